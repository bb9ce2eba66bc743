#ifndef REDLEASE_RUNTIME_LEASE_KEEPING_IPP
#define REDLEASE_RUNTIME_LEASE_KEEPING_IPP

// The part of LeaseCore that has to do with the keeper: automatic renewal, and the signal of a
// loss.

#include <algorithm>
#include <utility>

#include <redlease/runtime/lease_core.hpp>

namespace redlease::inline v1::detail {

void LeaseCore::begin_keeping() noexcept {
  if (!plan_.renews()) return;
  {
    const std::lock_guard lock{mutex_};
    kept_ = true;
  }
  backend_->keeper.keep(*this);
}

// A renewal under way is waited for, so that the release comes behind it, unless the lease is lost.
void LeaseCore::leave_keeper() noexcept {
  bool held = false;
  {
    const std::lock_guard lock{mutex_};
    if (!kept_) return;
    by_hand_ = true;
    held = state_.held(Clock::now());
  }
  const auto patience = backend_->pipelines.timeouts().command;
  if (held) (void)backend_->keeper.settle(*this, Clock::now() + patience);
  backend_->keeper.forget(*this);
}

// ---- what the keeper asks and tells -------------------------------------------------------------

// Under mutex_, as the next one.
bool LeaseCore::may_renew() const noexcept {
  return plan_.renews() && !renewing_ && !by_hand_ && !state_.is_releasing();
}

runtime::Kept::Step LeaseCore::look_further(Clock::time_point now) noexcept {
  if (state_.is_released()) return {};
  if (now >= state_.tell_end_at()) state_.lost(LossReason::expired, now);
  if (is_lost(now)) return {};
  const auto due = plan_.due(state_.valid_until(), state_.counted_ttl(), now);
  return {may_renew() ? due : never, state_.tell_end_at()};
}

runtime::Kept::Step LeaseCore::look(Clock::time_point now) noexcept {
  const std::lock_guard lock{mutex_};
  return look_further(now);
}

bool LeaseCore::begin_renewal(Clock::time_point now, bool joining, Try& begun) noexcept {
  const std::lock_guard lock{mutex_};
  if (!may_renew() || now >= state_.tell_end_at() || !state_.held(now)) return false;
  const auto valid_until = state_.valid_until();
  const auto counted = state_.counted_ttl();
  const auto from =
      joining ? plan_.may_join_at(valid_until, counted, now) : plan_.due(valid_until, counted, now);
  if (now < from) return false;
  renewing_ = true;
  state_.begin_renewal(now, ttl_);
  begun = {keys_.all(), token_.reveal(), ttl_, core::RenewalPlan::try_until(now, state_.ends_at())};
  return true;
}

runtime::Kept::Step LeaseCore::renewed(Clock::time_point sent, Clock::time_point now) noexcept {
  const std::lock_guard lock{mutex_};
  if (std::exchange(renewing_, false)) {
    state_.renewed(sent, ttl_, now);
    plan_.succeeded();
    if (!is_lost(now)) tell(Event::Kind::renewed, now);
  }
  return look_further(now);
}

runtime::Kept::Step LeaseCore::not_ours(store::Ownership found, Clock::time_point now) noexcept {
  const std::lock_guard lock{mutex_};
  if (std::exchange(renewing_, false)) {
    state_.lost(found == Ownership::other ? LossReason::taken : LossReason::missing, now);
  }
  return look_further(now);
}

runtime::Kept::Step LeaseCore::not_renewed(const store::Failure* failure,
                                           Clock::time_point now) noexcept {
  const std::lock_guard lock{mutex_};
  if (std::exchange(renewing_, false)) {
    const bool in_doubt = failure != nullptr && failure->in_doubt;
    in_doubt ? state_.renewal_in_doubt(ttl_) : state_.renewal_refused();
  }
  if (failure != nullptr) {
    plan_.failed(now, state_.ends_at());
    if (!is_lost(now)) tell_of_failed_renewal(*failure);
  }
  return look_further(now);
}

void LeaseCore::tell_of_failed_renewal(const store::Failure& failure) noexcept {
  if (!backend_->notifier.listening()) return;
  try {
    auto described = failure;
    described.what = backend_->store.describe("renew", keys_, failure.what);
    if (failure.in_doubt) described.what += "; the request may have run";
    tell_of_trouble(Event::Kind::renew_failed, described);
  } catch (...) {
    // No memory for an event.
  }
}

// ---- verbs beside the keeper --------------------------------------------------------------------

// A renewal of the keeper that is under way is waited for. If that takes too long, it may run yet,
// and what it says then means nothing: the verb may have changed the key before.
LeaseCore::ByHand::ByHand(LeaseCore& core) : core_(core), turn_(core.turn_) {
  Clock::time_point until;
  {
    const std::lock_guard lock{core_.mutex_};
    core_.by_hand_ = true;
    if (!core_.renewing_) return;
    const auto& timeouts = core_.backend_->pipelines.timeouts();
    until = std::min(Clock::now() + timeouts.command, core_.state_.ends_at());
  }
  if (core_.backend_->keeper.settle(core_, until)) return;
  const std::lock_guard lock{core_.mutex_};
  core_.renewing_ = false;
  core_.state_.renewal_in_doubt(core_.ttl_);
}

LeaseCore::ByHand::~ByHand() {
  {
    const std::lock_guard lock{core_.mutex_};
    core_.by_hand_ = false;
    if (!core_.kept_) return;
  }
  core_.backend_->keeper.keep(core_);
}

// ---- the signal ---------------------------------------------------------------------------------

// For those who ask when it is over. Never destroyed: other threads may ask while statics are.
static const std::stop_token& stopped() {
  static const auto& token = *new std::stop_token{[] {
    std::stop_source source;
    source.request_stop();
    return source.get_token();
  }()};
  return token;
}

std::stop_token LeaseCore::stop_token() {
  const auto given_out = [this]() -> std::optional<std::stop_token> {
    if (stop_request_) return stop_request_->source.get_token();
    if (!is_lost(Clock::now()) && !state_.is_released()) return std::nullopt;
    return stopped();
  };
  if (!ours()) throw_not_held("stop_token");
  {
    const std::lock_guard lock{mutex_};
    if (auto token = given_out()) return *token;
  }
  auto request = std::make_unique<runtime::StopRequest>();
  backend_->notifier.start();
  backend_->keeper.start();
  std::stop_token token;
  {
    const std::lock_guard lock{mutex_};
    if (auto others = given_out()) return *others;
    stop_request_ = std::move(request);
    token = stop_request_->source.get_token();
    kept_ = true;
    state_.warn_before_end();
  }
  backend_->keeper.keep(*this);
  return token;
}

}  // namespace redlease::inline v1::detail

#endif
