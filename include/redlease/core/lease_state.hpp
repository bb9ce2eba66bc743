#ifndef REDLEASE_CORE_LEASE_STATE_HPP
#define REDLEASE_CORE_LEASE_STATE_HPP

#include <optional>

#include <redlease/clock.hpp>
#include <redlease/error.hpp>

namespace redlease::inline v1::core {

/// How far the server's clock may run ahead of ours: 1 % of the ttl, as the Redlock algorithm
/// has it (redis.io, "Distributed Locks with Redis").
constexpr std::chrono::nanoseconds drift(std::chrono::nanoseconds ttl) noexcept {
  return ttl / 100;
}

/// What a lease's holder may believe. A pure machine: time comes in as an argument, nothing here
/// does I/O, locks or reads a clock.
///
///     held --begin_release--> releasing --released--> released
///      ^                          |
///      +-----release_refused------+        held, releasing --(not ours, too late)--> lost
///
/// Its rules: validity is counted from the instant before a successful request was sent; it is
/// over `drift` earlier than the ttl; a renewal whose answer is out can shorten it but not lengthen
/// it; and lost is final.
class LeaseState {
 public:
  using Instant = Clock::time_point;
  using Span = std::chrono::nanoseconds;

  LeaseState(Instant sent, Span ttl) noexcept
      : acquired_(sent), valid_until_(sent + ttl - drift(ttl)) {}

  /// True while the key is ours for certain. A release under way or in doubt makes it false.
  bool held(Instant now) noexcept;
  /// Validity left; zero unless held.
  Span remaining(Instant now) noexcept;
  /// May a release still be sent? One in doubt may be tried again until validity ends. Not to be
  /// asked while a release is under way: its answer alone decides.
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
  void release_refused() noexcept;  ///< by a definite answer: the lease is as before
  void released() noexcept;
  /// The server said that the key isn't ours.
  void lost(LossReason reason, Instant now) noexcept;

  bool is_released() const noexcept { return phase_ == Phase::released; }
  bool is_releasing() const noexcept { return phase_ == Phase::releasing; }
  /// Set once, for good.
  std::optional<LossReason> loss(Instant now) noexcept;

  Instant acquired_at() const noexcept { return acquired_; }
  Instant valid_until() const noexcept { return valid_until_; }
  Instant ended_at() const noexcept { return ended_; }

 private:
  enum class Phase { held, releasing, released, lost };

  void expire(Instant now) noexcept;

  Phase phase_ = Phase::held;
  LossReason reason_ = LossReason::expired;
  Instant acquired_;
  Instant valid_until_;
  Instant valid_without_renewal_{};
  Instant ended_{};
  Span shortest_in_doubt_ = Span::max();
};

}  // namespace redlease::inline v1::core

#endif
