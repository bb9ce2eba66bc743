#ifndef REDLEASE_RUNTIME_TIMER_HPP
#define REDLEASE_RUNTIME_TIMER_HPP

#include <redlease/clock.hpp>

namespace redlease::inline v1::runtime {

/// An alarm that can be polled and counts the time in which the machine is suspended, too: that of
/// poll(2) itself stands still then. Thread-safe.
class Timer {
 public:
  /// Throws std::system_error.
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  /// Goes off at that instant, at once if it is over, instead of what was set before;
  /// Clock::time_point::max(): never. Until it is set anew.
  void set(Clock::time_point when) noexcept;

  /// Readable when it has gone off.
  int fd() const noexcept { return fd_; }
  void close() noexcept;

 private:
  int fd_;
};

}  // namespace redlease::inline v1::runtime

#endif
