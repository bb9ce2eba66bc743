#ifndef REDLEASE_WIRE_FUTEX_HPP
#define REDLEASE_WIRE_FUTEX_HPP

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include <redlease/clock.hpp>

/// Waiting on a word with a deadline, and waking one or all of its waiters with one system call.
/// std::atomic::wait has no deadline, and a condition variable makes everybody who wakes queue
/// for its mutex.
namespace redlease::inline v1::wire {

/// Blocks while `word` is `value`; false when the deadline came first. May wake up for nothing.
inline bool futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value,
                       Clock::time_point deadline) noexcept {
  const auto now = Clock::now();
  if (deadline <= now) return false;
  const auto left = deadline - now;
  const auto s = std::chrono::duration_cast<std::chrono::seconds>(left);
  const timespec timeout{static_cast<time_t>(s.count()), static_cast<long>((left - s).count())};
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, &timeout,
            nullptr, 0);
  return true;
}

inline void futex_wake(std::atomic<std::uint32_t>& word, int how_many) noexcept {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, how_many,
            nullptr, nullptr, 0);
}

}  // namespace redlease::inline v1::wire

#endif
