#ifndef REDLEASE_CLOCK_HPP
#define REDLEASE_CLOCK_HPP

#include <time.h>

#include <chrono>

namespace redlease::inline v1 {

/// The one clock of this library: monotonic, and it goes on while the machine is suspended
/// (CLOCK_BOOTTIME). A lease must not look held after a laptop or a virtual machine wakes up,
/// and no step of the wall clock may lengthen or shorten it.
struct Clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<Clock>;
  static constexpr bool is_steady = true;

  static time_point now() noexcept {
    timespec t{};
    ::clock_gettime(CLOCK_BOOTTIME, &t);
    return time_point{std::chrono::seconds{t.tv_sec} + std::chrono::nanoseconds{t.tv_nsec}};
  }
};

namespace detail {
/// How far the server's clock may run ahead of ours within a ttl: 1 % of it, as the Redlock
/// algorithm has it (redis.io, "Distributed Locks with Redis").
constexpr std::chrono::nanoseconds drift(std::chrono::nanoseconds ttl) noexcept {
  return ttl / 100;
}
}  // namespace detail

}  // namespace redlease::inline v1

#endif
