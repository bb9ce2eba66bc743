#ifndef REDLEASE_CORE_WAIT_PLAN_IPP
#define REDLEASE_CORE_WAIT_PLAN_IPP

#include <algorithm>

#include <redlease/core/wait_plan.hpp>

namespace redlease::inline v1::core {
namespace {

// An attempt that can't have its answer before the deadline would only leave a key in doubt.
constexpr std::chrono::milliseconds longest_reserve{50};

}  // namespace

WaitPlan::WaitPlan(const Limits& limits, Instant start) noexcept
    : attempts_left_(limits.attempts),
      longest_pause_(limits.backoff_max),
      backoff_(limits.backoff_min, limits.backoff_max) {
  if (limits.at_most == Span::zero()) attempts_left_ = 1;
  const bool endless = limits.at_most == Span::zero() || limits.at_most > Instant::max() - start;
  deadline_ = endless ? Instant::max() : start + limits.at_most;
  last_start_ = deadline_ - std::min<Span>(limits.at_most / 4, longest_reserve);
}

std::optional<WaitPlan::Instant> WaitPlan::next_attempt(Instant now, double random) noexcept {
  if (attempts_left_ && --*attempts_left_ <= 0) return std::nullopt;
  if (now >= last_start_) return std::nullopt;
  auto next = now + backoff_.next(random);
  if (holder_expires_ && *holder_expires_ > now && *holder_expires_ < next) {
    next = *holder_expires_ + expiry_slack;
  }
  return std::min(next, last_start_);
}

std::optional<WaitPlan::Instant> WaitPlan::next_look(Instant now, double random) const noexcept {
  const auto spread = static_cast<double>(longest_pause_.count()) * random / 2;
  return within(now, now + longest_pause_ / 2 + Span{static_cast<Span::rep>(spread)});
}

std::optional<WaitPlan::Instant> WaitPlan::within(Instant now, Instant when) const noexcept {
  if (now >= last_start_) return std::nullopt;
  return std::min(when, last_start_);
}

void WaitPlan::holder_expires_in(Span ttl, Instant now) noexcept {
  holder_expires_ = ttl > Instant::max() - now ? Instant::max() : now + ttl;
}

}  // namespace redlease::inline v1::core

#endif
