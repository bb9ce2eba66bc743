#ifndef REDLEASE_CORE_WAIT_PLAN_HPP
#define REDLEASE_CORE_WAIT_PLAN_HPP

#include <chrono>
#include <optional>

#include <redlease/clock.hpp>
#include <redlease/core/backoff.hpp>

namespace redlease::inline v1::core {

/// Redis expires a key after its last millisecond.
inline constexpr std::chrono::milliseconds expiry_slack{1};

/// When to try for a key that is held. Pure: time and randomness come in as arguments.
class WaitPlan {
 public:
  using Instant = Clock::time_point;
  using Span = std::chrono::nanoseconds;

  struct Limits {
    Span at_most{};
    std::optional<int> attempts;
    Span backoff_min{};
    Span backoff_max{};
  };

  WaitPlan(const Limits& limits, Instant start) noexcept;

  /// The whole call ends then. With `at_most` = 0 there is one attempt and no such end.
  Instant deadline() const noexcept { return deadline_; }
  /// An attempt that begins then may well be cut short by the deadline, on a busy machine.
  bool is_last_moment(Instant now) const noexcept {
    return now >= last_start_ - (deadline_ - last_start_);
  }
  /// False when the number of attempts, not time, ends the wait.
  bool has_attempts() const noexcept { return !attempts_left_ || *attempts_left_ > 0; }
  /// False when the next attempt is the last one, whatever the time.
  bool has_many() const noexcept { return !attempts_left_ || *attempts_left_ > 1; }
  /// Whether next_attempt() could still name one.
  bool expects_more(Instant now) const noexcept { return now < last_start_ && has_many(); }

  /// An attempt was made, and the next one follows at once.
  void count_attempt() noexcept {
    if (attempts_left_) --*attempts_left_;
  }
  /// An attempt has just ended at `now` without a lease. Returns when to make the next one, or
  /// nothing when there is none to be made. The instant is the first of: a jittered poll, the
  /// holder's expiry, and the last moment at which an answer can still be expected in time.
  std::optional<Instant> next_attempt(Instant now, double random) noexcept;

  /// `when`, or the last moment for an attempt if that comes first; nothing when that is over.
  std::optional<Instant> within(Instant now, Instant when) const noexcept;
  /// When one for whom others ask sees whether that is still so; nothing when it is too late for
  /// that.
  std::optional<Instant> next_look(Instant now, double random) const noexcept;

  /// The server said how long the holder's key has to live.
  void holder_expires_in(Span ttl, Instant now) noexcept;
  /// True if asking for that would help: it isn't known yet, or the instant has passed.
  bool wants_holder_expiry(Instant now) const noexcept {
    return !holder_expires_ || *holder_expires_ < now;
  }

 private:
  Instant deadline_;
  Instant last_start_;  // later attempts have too little time for an answer
  std::optional<int> attempts_left_;
  Span longest_pause_;
  BackoffSchedule backoff_;
  std::optional<Instant> holder_expires_;
};

}  // namespace redlease::inline v1::core

#endif
