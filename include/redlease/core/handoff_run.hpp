#ifndef REDLEASE_CORE_HANDOFF_RUN_HPP
#define REDLEASE_CORE_HANDOFF_RUN_HPP

#include <algorithm>

#include <redlease/clock.hpp>

namespace redlease::inline v1::core {

/// How long a process may keep a key to itself before it really gives it back and steps back, so
/// that other processes get their turn. Pure: time comes in as an argument.
///
/// A run begins when the process gets the key from the server. It has at most `first_count`
/// handoffs and takes `first_span`. A process that stepped back for nothing, since nobody else
/// came, may go on for twice as long the next time, up to `last_count` and `last_span`.
class HandoffRun {
 public:
  using Instant = Clock::time_point;
  using Span = std::chrono::nanoseconds;
  static constexpr int first_count = 16;
  static constexpr int last_count = 256;
  static constexpr Span first_span = std::chrono::milliseconds{50};
  static constexpr Span last_span = std::chrono::milliseconds{400};
  /// That long others have the key for themselves.
  static constexpr Span step_back = std::chrono::milliseconds{2};
  /// See courtesy().
  static constexpr Span longest_courtesy = std::chrono::microseconds{600};

  /// The process got the key. `again`: after it had stepped back, and nobody had come.
  void begin(Instant now, bool again) noexcept {
    doublings_ = again ? std::min(doublings_ + 1, most_doublings) : 0;
    count_ = 0;
    since_ = now;
  }
  /// It is known that a run has begun, and not ended.
  bool is_on() const noexcept { return since_ != Instant{}; }
  bool may_go_on(Instant now) const noexcept {
    return count_ < std::min(first_count << doublings_, last_count) &&
           now - since_ < longest_span(doublings_);
  }
  void handed_on() noexcept { ++count_; }
  /// The key was really given back.
  void end(Instant now) noexcept {
    length_ = is_on() ? std::max(now - since_, step_back) : first_span;
    ended_ = now;
    since_ = {};
  }

  /// How long to let other processes go first when the key becomes free: the longer, the more
  /// recent our own run was. So it goes round among the processes, though not strictly, and not
  /// always to the one that happens to hear of it first.
  Span courtesy(Instant now) const noexcept {
    if (ended_ == Instant{}) return Span::zero();
    const auto runs_ago = std::chrono::duration<double>(now - ended_) / length_;
    return Span{
        static_cast<Span::rep>(static_cast<double>(longest_courtesy.count()) / (1 + runs_ago))};
  }

  static constexpr int most_doublings = 4;
  static constexpr Span longest_span(int doublings) noexcept {
    return std::min(first_span * (1 << doublings), last_span);
  }

 private:
  int count_ = 0;
  int doublings_ = 0;
  Instant since_{};  // none: it is not known that a run has begun
  Instant ended_{};
  Span length_{};
};

}  // namespace redlease::inline v1::core

#endif
