#ifndef EXAMPLES_ORDER_SERVICE_QUEUE_HPP
#define EXAMPLES_ORDER_SERVICE_QUEUE_HPP

/// A queue that delivers at least once, as a message broker does.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

namespace order_service {

using Clock = std::chrono::steady_clock;

class Queue {
 public:
  /// Each order is in it twice, the second time some places behind the first.
  explicit Queue(std::size_t orders) : deliveries_(orders), arrived_(orders) {
    struct Copy {
      std::size_t order, at;
    };
    std::vector<Copy> copies;
    for (std::size_t order = 0; order < orders; ++order) {
      copies.push_back({order, 2 * order});
      copies.push_back({order, 2 * order + 1 + order * 37 % 60});
    }
    std::ranges::stable_sort(copies, {}, &Copy::at);
    for (const auto& copy : copies) waiting_.push_back({copy.order, {}});
    open_ = waiting_.size();
  }

  /// The next one that is due; empty if there is none now.
  std::optional<std::size_t> next() {
    const auto now = Clock::now();
    const auto found = std::ranges::find_if(waiting_, [&](const Entry& entry) {
      return entry.due <= now && entry.order < arrived_ && !withheld_.contains(entry.order);
    });
    if (found == waiting_.end()) return std::nullopt;
    const auto order = found->order;
    waiting_.erase(found);
    ++deliveries_[order];
    return order;
  }

  /// A delivery has done its duty.
  void settle() { --open_; }
  /// It has not: deliver the order again.
  void again(std::size_t order, std::chrono::milliseconds later) {
    waiting_.insert(waiting_.begin(), Entry{order, Clock::now() + later});
  }

  /// How many of the orders have come in so far: nobody gets the others yet. All, at first.
  void arrive(std::size_t orders) { arrived_ = orders; }
  /// Whether there is nothing to do until more orders come in.
  bool is_dry() const {
    return std::ranges::none_of(waiting_,
                                [&](const Entry& entry) { return entry.order < arrived_; });
  }

  /// Nobody gets this order for now.
  void withhold(std::size_t order) { withheld_.insert(order); }
  void hand_out(std::size_t order) { withheld_.erase(order); }

  int deliveries(std::size_t order) const { return deliveries_[order]; }
  /// Deliveries that have not done their duty yet.
  std::size_t open() const { return open_; }

 private:
  struct Entry {
    std::size_t order;
    Clock::time_point due;
  };
  std::vector<Entry> waiting_;
  std::set<std::size_t> withheld_;
  std::vector<int> deliveries_;
  std::size_t arrived_;
  std::size_t open_ = 0;
};

}  // namespace order_service

#endif
