#ifndef REDLEASE_CORE_LEASE_STATE_HPP
#define REDLEASE_CORE_LEASE_STATE_HPP

#include <algorithm>
#include <optional>

#include <redlease/clock.hpp>
#include <redlease/error.hpp>

namespace redlease::inline v1::core {

using detail::drift;

/// What a lease's holder may believe. A pure machine: time comes in as an argument, nothing here
/// does I/O, locks or reads a clock.
///
///     held --begin_release--> releasing --released--> released
///      ^                       |  |  ^
///      +----release_refused----+  v  |
///                               doubtful         all but released --(not ours, too late)--> lost
///
/// Its rules: validity is counted from the instant before a successful request was sent; it is
/// over `drift` earlier than the ttl; a renewal whose answer is out can shorten it but not lengthen
/// it; a lease whose holder is to be warned is lost a margin before validity ends, even while a
/// release is under way (the answer of one without that decides, however late it comes); and lost
/// is final.
class LeaseState {
 public:
  using Instant = Clock::time_point;
  using Span = std::chrono::nanoseconds;

  /// `margin`: see warn_before_end().
  LeaseState(Instant sent, Span ttl, std::optional<Span> margin = {}) noexcept
      : acquired_(sent),
        ttl_(ttl),
        valid_until_(sent + ttl - drift(ttl)),
        margin_(margin.value_or(Span{-1})) {}

  /// From now on the lease is lost a margin before its validity ends (a tenth of the ttl, if none
  /// was given): its holder needs some time to stop.
  void warn_before_end() noexcept { warns_ = true; }
  /// Whether a renewal with this ttl would leave anything of the lease.
  bool can_last(Span ttl) const noexcept { return !warns_ || margin_ < ttl - drift(ttl); }
  /// The lease is lost then, unless it is renewed.
  Instant ends_at() const noexcept { return warns_ ? valid_until_ - margin() : valid_until_; }
  /// When to tell of that: a moment earlier, since nobody hears of it sooner than it is told.
  Instant tell_end_at() const noexcept {
    return ends_at() - std::min<Span>(margin() / 8, std::chrono::milliseconds{1});
  }

  /// True while the key is ours for certain. A release under way or in doubt makes it false.
  bool held(Instant now) noexcept;
  /// Validity left; zero unless held.
  Span remaining(Instant now) noexcept;
  /// May a release be sent? One in doubt may be tried again until validity ends.
  bool may_release(Instant now) noexcept;

  /// A renewal is about to be sent. From now on the server's ttl may be the new one, so that
  /// validity shrinks at once if that is shorter.
  void begin_renewal(Instant now, Span ttl) noexcept;
  /// The server confirmed it; it was sent at `sent`. Too late when validity has ended meanwhile.
  void renewed(Instant sent, Span ttl, Instant now) noexcept;
  /// It did not run: everything is as before it began.
  void renewal_refused() noexcept;
  /// It may have run, or may run yet, even after a later one: its ttl bounds all later ones.
  void renewal_in_doubt(Span ttl) noexcept;

  void begin_release() noexcept;
  void release_refused() noexcept;   ///< by a definite answer: the lease is as before
  void release_in_doubt() noexcept;  ///< it may have run, or may run yet
  void released() noexcept;
  /// The server said that the key isn't ours.
  void lost(LossReason reason, Instant now) noexcept;

  bool is_released() const noexcept { return phase_ == Phase::released; }
  /// A release is under way or in doubt.
  bool is_releasing() const noexcept {
    return phase_ == Phase::releasing || phase_ == Phase::doubtful;
  }
  /// Set once, for good.
  std::optional<LossReason> loss(Instant now) noexcept;

  Instant acquired_at() const noexcept { return acquired_; }
  Instant valid_until() const noexcept { return valid_until_; }
  Span counted_ttl() const noexcept { return ttl_; }
  Instant ended_at() const noexcept { return ended_; }

 private:
  enum class Phase : char { held, releasing, doubtful, released, lost };

  Span margin() const noexcept { return margin_ < Span::zero() ? ttl_ / 10 : margin_; }
  void count_from(Instant sent, Span ttl) noexcept;
  void expire(Instant now) noexcept;

  Phase phase_ = Phase::held;
  LossReason reason_ = LossReason::expired;
  bool warns_ = false;
  Instant acquired_;
  Span ttl_;  // that validity is counted with
  Instant valid_until_;
  Span ttl_without_renewal_{};
  Instant valid_without_renewal_{};
  Instant ended_{};
  Span shortest_in_doubt_ = Span::max();
  Span margin_;  // negative: none was given
};

}  // namespace redlease::inline v1::core

#endif
