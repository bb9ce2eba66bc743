#ifndef EXAMPLES_ORDER_SERVICE_MESSAGES_HPP
#define EXAMPLES_ORDER_SERVICE_MESSAGES_HPP

/// What the queue, in the parent process, and the workers say to each other.

#include <chrono>
#include <cstddef>
#include <variant>

#include "probe.hpp"

namespace order_service {

// ---- from the queue to a worker ----

/// "Here is an order." May come more than once for an order, also at the same time.
struct Delivery {
  std::size_t order = 0;  ///< its index
  Place stand{};          ///< where to stand still on the way
};
/// "Go on", to one that stands still.
struct Go {};
/// "There will be no more."
struct End {};

// ---- from a worker to the queue ----

/// "I have come to the place, and stand still until you say Go."
struct Standing {};
/// "I'm through with the delivery."
struct Answer {
  bool settled = false;  ///< false: deliver it again later
  Counts counts{};
  std::chrono::microseconds longest_wait{0};  ///< for leases
};

using Message = std::variant<Delivery, Go, End, Standing, Answer>;

}  // namespace order_service

#endif
