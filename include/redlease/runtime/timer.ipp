#ifndef REDLEASE_RUNTIME_TIMER_IPP
#define REDLEASE_RUNTIME_TIMER_IPP

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <redlease/runtime/timer.hpp>

namespace redlease::inline v1::runtime {

Timer::Timer() : fd_(::timerfd_create(CLOCK_BOOTTIME, TFD_NONBLOCK | TFD_CLOEXEC)) {
  if (fd_ < 0) throw std::system_error{errno, std::system_category(), "timerfd_create"};
}

Timer::~Timer() { close(); }

void Timer::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Timer::set(Clock::time_point when) noexcept {
  itimerspec setting{};
  if (when != Clock::time_point::max()) {
    // All zero would mean never.
    const auto since = std::max(when.time_since_epoch(), Clock::duration{1});
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    setting.it_value.tv_sec = static_cast<time_t>(seconds.count());
    setting.it_value.tv_nsec = static_cast<long>((since - seconds).count());
  }
  (void)::timerfd_settime(fd_, TFD_TIMER_ABSTIME, &setting, nullptr);
}

}  // namespace redlease::inline v1::runtime

#endif
