#ifndef REDLEASE_CORE_RENEWAL_PLAN_IPP
#define REDLEASE_CORE_RENEWAL_PLAN_IPP

#include <algorithm>

#include <redlease/core/lease_state.hpp>
#include <redlease/core/renewal_plan.hpp>

namespace redlease::inline v1::core {
namespace {

constexpr std::chrono::milliseconds shortest_pause{5};
constexpr std::chrono::milliseconds longest_pause{500};

}  // namespace

RenewalPlan::RenewalPlan(const Terms& terms, Instant acquired) noexcept
    : ttl_(terms.ttl), every_(terms.every), last_(Instant::max()) {
  if (terms.max_hold && *terms.max_hold < Instant::max() - acquired) {
    last_ = acquired + *terms.max_hold;
  }
}

RenewalPlan::Instant RenewalPlan::due(Instant valid_until, Span counted,
                                      Instant now) const noexcept {
  // No renewal shortens what a longer one by hand has given.
  auto due = valid_until - (ttl_ - drift(ttl_) - every_);
  if (counted < ttl_)
    due = valid_until - (counted - drift(counted)) + std::min(every_, counted / 3);
  due = std::max(due, not_before_);
  return std::max(due, now) < last_ ? due : Instant::max();
}

RenewalPlan::Instant RenewalPlan::may_join_at(Instant valid_until, Span counted,
                                              Instant now) const noexcept {
  const auto next = due(valid_until, counted, now);
  if (next == Instant::max()) return next;
  return std::max(next - every_ / 8, not_before_);
}

RenewalPlan::Instant RenewalPlan::try_until(Instant now, Instant end) noexcept {
  return end > now ? now + (end - now) / 3 * 2 : now;
}

void RenewalPlan::failed(Instant now, Instant end) noexcept {
  const auto left = std::max(end - now, Span::zero());
  not_before_ = now + std::clamp<Span>(left / 8, shortest_pause, longest_pause);
}

}  // namespace redlease::inline v1::core

#endif
