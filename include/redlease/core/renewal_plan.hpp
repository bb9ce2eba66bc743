#ifndef REDLEASE_CORE_RENEWAL_PLAN_HPP
#define REDLEASE_CORE_RENEWAL_PLAN_HPP

#include <optional>

#include <redlease/clock.hpp>

namespace redlease::inline v1::core {

/// When to renew a lease by itself. Pure: time comes in as an argument.
///
/// A renewal is due `every` after the last one was sent; sooner if that one counts for less than
/// the ttl, and later if it was for longer. One that failed is tried again soon, the sooner the
/// less time is left, and each try leaves time for another one.
class RenewalPlan {
 public:
  using Instant = Clock::time_point;
  using Span = std::chrono::nanoseconds;

  struct Terms {
    Span ttl{};
    Span every{};                    ///< ttl / 3 is usual
    std::optional<Span> max_hold{};  ///< no renewal begins later than that after the acquisition
  };

  RenewalPlan() = default;  ///< never renews
  RenewalPlan(const Terms& terms, Instant acquired) noexcept;

  bool renews() const noexcept { return every_ > Span::zero(); }

  /// When to renew next a lease that is valid until then, as counted with a ttl of `counted`;
  /// Instant::max() for never again.
  Instant due(Instant valid_until, Span counted, Instant now) const noexcept;
  /// From then on it may be renewed along with others: one request serves a hundred leases.
  Instant may_join_at(Instant valid_until, Span counted, Instant now) const noexcept;
  /// How long a try that begins now may take, when the lease is lost at `end`.
  static Instant try_until(Instant now, Instant end) noexcept;

  void succeeded() noexcept { not_before_ = Instant::min(); }
  void failed(Instant now, Instant end) noexcept;

 private:
  Span ttl_{};
  Span every_{};
  Instant last_ = Instant::min();  // no renewal begins from then on
  Instant not_before_ = Instant::min();
};

}  // namespace redlease::inline v1::core

#endif
