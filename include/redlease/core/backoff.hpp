#ifndef REDLEASE_CORE_BACKOFF_HPP
#define REDLEASE_CORE_BACKOFF_HPP

#include <algorithm>
#include <chrono>

namespace redlease::inline v1::core {

/// How long to sleep before the next attempt: evenly spread over [min, limit], where the limit
/// starts at 2 * min and doubles up to max ("full jitter": waiters that were woken together do
/// not come back together).
class BackoffSchedule {
 public:
  using Span = std::chrono::nanoseconds;

  BackoffSchedule(Span min, Span max) noexcept : min_(min), max_(max), limit_(min) {}

  /// `random` is from [0, 1).
  Span next(double random) noexcept {
    limit_ = limit_ > max_ / 2 ? max_ : limit_ * 2;
    const auto spread = static_cast<double>((limit_ - min_).count()) * random;
    return min_ + Span{static_cast<Span::rep>(spread)};
  }

 private:
  Span min_;
  Span max_;
  Span limit_;
};

}  // namespace redlease::inline v1::core

#endif
