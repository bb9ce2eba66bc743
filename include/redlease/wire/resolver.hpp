#ifndef REDLEASE_WIRE_RESOLVER_HPP
#define REDLEASE_WIRE_RESOLVER_HPP

#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include <redlease/clock.hpp>

namespace redlease::inline v1::wire {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/// Turns a host name into addresses within a deadline.
///
/// getaddrinfo() has no time-out of its own, so names are looked up on a thread that may outlive
/// the call; a second caller joins the look-up that is under way instead of starting another, so
/// that one resolver never has more than one such thread. Literal addresses take no thread.
/// Thread-safe.
class Resolver {
 public:
  struct Lookup;

  /// Asks anew each time: a name may have moved. Throws Error{unavailable}. Doesn't block.
  std::shared_ptr<const Lookup> begin(const std::string& host, std::uint16_t port);
  /// Waits for the answer; false if the deadline came first.
  bool wait(const Lookup& lookup, Clock::time_point deadline) const;
  /// Of a look-up that has its answer. Throws Error{unavailable} if there is no such host.
  static const std::vector<Address>& addresses(const Lookup& lookup);

 private:
  struct State;
  std::shared_ptr<State> state_ = make_state();
  static std::shared_ptr<State> make_state();
};

}  // namespace redlease::inline v1::wire

#endif
