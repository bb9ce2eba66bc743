#ifndef REDLEASE_CORE_LEASE_STATE_IPP
#define REDLEASE_CORE_LEASE_STATE_IPP

#include <algorithm>

#include <redlease/core/lease_state.hpp>

namespace redlease::inline v1::core {

void LeaseState::count_from(Instant sent, Span ttl) noexcept {
  ttl_ = ttl;
  valid_until_ = sent + ttl - drift(ttl);
}

void LeaseState::expire(Instant now) noexcept {
  const bool may_end =
      phase_ == Phase::held || phase_ == Phase::doubtful || (phase_ == Phase::releasing && warns_);
  if (may_end && now >= ends_at()) {
    phase_ = Phase::lost;
    reason_ = LossReason::expired;
    ended_ = std::max(ends_at(), acquired_);
  }
}

bool LeaseState::held(Instant now) noexcept {
  expire(now);
  return phase_ == Phase::held;
}

LeaseState::Span LeaseState::remaining(Instant now) noexcept {
  return held(now) ? valid_until_ - now : Span::zero();
}

bool LeaseState::may_release(Instant now) noexcept {
  expire(now);
  return phase_ == Phase::held || phase_ == Phase::doubtful;
}

void LeaseState::begin_renewal(Instant now, Span ttl) noexcept {
  ttl_without_renewal_ = ttl_;
  valid_without_renewal_ = valid_until_;
  if (now + ttl - drift(ttl) < valid_until_) count_from(now, ttl);
}

void LeaseState::renewed(Instant sent, Span ttl, Instant now) noexcept {
  if (!held(now)) return;
  count_from(sent, std::min(ttl, shortest_in_doubt_));
  expire(now);
}

void LeaseState::renewal_refused() noexcept {
  if (phase_ != Phase::held) return;
  ttl_ = ttl_without_renewal_;
  valid_until_ = valid_without_renewal_;
}

void LeaseState::renewal_in_doubt(Span ttl) noexcept {
  shortest_in_doubt_ = std::min(shortest_in_doubt_, ttl);
}

void LeaseState::begin_release() noexcept {
  if (phase_ == Phase::held || phase_ == Phase::doubtful) phase_ = Phase::releasing;
}

void LeaseState::release_refused() noexcept {
  if (phase_ == Phase::releasing) phase_ = Phase::held;
}

void LeaseState::release_in_doubt() noexcept {
  if (phase_ == Phase::releasing) phase_ = Phase::doubtful;
}

void LeaseState::released() noexcept {
  if (phase_ == Phase::held || phase_ == Phase::releasing) phase_ = Phase::released;
}

void LeaseState::lost(LossReason reason, Instant now) noexcept {
  expire(now);
  if (phase_ == Phase::lost || phase_ == Phase::released) return;
  phase_ = Phase::lost;
  reason_ = reason;
  ended_ = now;
}

std::optional<LossReason> LeaseState::loss(Instant now) noexcept {
  expire(now);
  if (phase_ != Phase::lost) return std::nullopt;
  return reason_;
}

}  // namespace redlease::inline v1::core

#endif
