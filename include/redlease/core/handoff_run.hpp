#ifndef REDLEASE_CORE_HANDOFF_RUN_HPP
#define REDLEASE_CORE_HANDOFF_RUN_HPP

#include <algorithm>

#include <redlease/clock.hpp>

namespace redlease::inline v1::core {

/// How often a process may hand a lease on to its own waiters before it really gives it back and
/// steps back, so that other processes get their turn. Pure: time comes in as an argument.
///
/// A run is at most `first_count` handoffs and `first_span` long. A process that stepped back for
/// nothing, since nobody else came, may go on for twice as long the next time, up to `last_count`
/// and `last_span`.
class HandoffRun {
 public:
  using Instant = Clock::time_point;
  using Span = std::chrono::nanoseconds;
  static constexpr int first_count = 16;
  static constexpr int last_count = 256;
  static constexpr Span first_span = std::chrono::milliseconds{50};
  static constexpr Span last_span = std::chrono::milliseconds{400};
  /// That long others have the key for themselves.
  static constexpr Span step_back = std::chrono::milliseconds{1};

  /// The process got the key. `again`: after it had stepped back, and nobody had come.
  void begin(Instant now, bool again) noexcept {
    doublings_ = again ? std::min(doublings_ + 1, 8) : 0;
    count_ = 0;
    since_ = now;
  }
  bool may_go_on(Instant now) const noexcept {
    return count_ < std::min(first_count << doublings_, last_count) &&
           now - since_ < std::min(first_span * (1 << doublings_), last_span);
  }
  void handed_on() noexcept { ++count_; }

 private:
  int count_ = 0;
  int doublings_ = 0;
  Instant since_{};
};

}  // namespace redlease::inline v1::core

#endif
