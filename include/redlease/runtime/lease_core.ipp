#ifndef REDLEASE_RUNTIME_LEASE_CORE_IPP
#define REDLEASE_RUNTIME_LEASE_CORE_IPP

#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <redlease/runtime/lease_core.hpp>

namespace redlease::inline v1::detail {

using namespace std::chrono_literals;
using store::Ownership;

Terms::Terms(const LeaseOptions& options) : ttl(options.ttl.ceil_ms()), label(options.label) {
  if (options.safety_margin) safety_margin = *options.safety_margin;
  if (!options.auto_renew) return;
  renewal.emplace();
  renewal->ttl = ttl;
  renewal->every = options.renew_every ? options.renew_every->value() : renewal->ttl / 3;
  if (options.max_hold) renewal->max_hold = *options.max_hold;
}

LeaseCore::LeaseCore(std::shared_ptr<runtime::ClientState> client, std::string_view key,
                     const store::Grant& grant, const Terms& terms)
    : client_(std::move(client)),
      backend_(&client_->here()),
      key_(key),
      token_(grant.token),
      ttl_(terms.ttl),
      label_(terms.label.empty() ? nullptr : std::make_unique<const std::string>(terms.label)),
      state_(grant.sent, terms.ttl, terms.safety_margin) {
  if (!terms.renewal) return;
  plan_ = {*terms.renewal, grant.sent};
  state_.warn_before_end();
}

void LeaseCore::begin_keeping() noexcept {
  if (!plan_.renews()) return;
  Clock::time_point next;
  {
    const std::lock_guard lock{mutex_};
    kept_ = true;
    next = next_step(Clock::now());
  }
  backend_->keeper.keep(*this, next);
}

// A copy that came with fork() must not even take a lock: a thread of the parent may have held it.
bool LeaseCore::ours() const noexcept { return backend_->generation == process_generation(); }

// ---- what may be believed ----------------------------------------------------------------------

std::chrono::nanoseconds LeaseCore::remaining() noexcept {
  if (!ours()) return std::chrono::nanoseconds{0};
  const std::lock_guard lock{mutex_};
  return state_.remaining(Clock::now());
}

bool LeaseCore::held() noexcept { return remaining() > std::chrono::nanoseconds{0}; }

// Under mutex_. Whoever notices a loss first has it told.
bool LeaseCore::is_lost(Clock::time_point now) noexcept {
  const auto reason = state_.loss(now);
  if (reason && !std::exchange(loss_told_, true)) {
    tell(Event::Kind::lost, state_.ended_at(), reason);
    if (stop_request_) {
      backend_->notifier.request_stop(std::move(stop_request_));
      backend_->keeper.nudge();
    }
  }
  return reason.has_value();
}

std::optional<Loss> LeaseCore::loss() {
  if (!ours()) return std::nullopt;
  const std::lock_guard lock{mutex_};
  const auto now = Clock::now();
  if (!is_lost(now)) return std::nullopt;
  return make_loss(*state_.loss(now));
}

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
  Clock::time_point next;
  {
    const std::lock_guard lock{mutex_};
    if (auto others = given_out()) return *others;
    stop_request_ = std::move(request);
    token = stop_request_->source.get_token();
    kept_ = true;
    state_.warn_before_end();
    next = next_step(Clock::now());
  }
  backend_->keeper.keep(*this, next);
  return token;
}

Loss LeaseCore::make_loss(LossReason reason) const {
  return {reason, key_, token_.fingerprint(), state_.ended_at() - state_.acquired_at()};
}

void LeaseCore::throw_not_held(const char* operation) const {
  throw std::invalid_argument(
      fmt::format("{} {}: the lease is not held: {}", operation, quote(key_),
                  ours() ? "it was released" : "it belongs to another process"));
}

// Under mutex_. Returns if the lease is held, or a release may be tried again.
void LeaseCore::require_held(const char* operation, Clock::time_point now) {
  if (is_lost(now)) {
    const auto loss = make_loss(*state_.loss(now));
    throw LeaseLost{describe(operation, loss), loss};
  }
  if (state_.is_released()) throw_not_held(operation);
}

void LeaseCore::ensure_held(std::chrono::nanoseconds min) {
  if (!ours()) throw_not_held("ensure_held");
  const std::lock_guard lock{mutex_};
  const auto now = Clock::now();
  require_held("ensure_held", now);
  if (state_.is_releasing()) {
    throw Error{errc::in_doubt,
                fmt::format("ensure_held {}: a release is under way or in doubt", quote(key_))};
  }
  if (const auto left = state_.remaining(now); left < min) {
    const auto text =
        fmt::format("ensure_held {}: only {} ms are left of the lease, not {} ms", quote(key_),
                    left / std::chrono::milliseconds{1}, Duration{min}.ceil_ms().count());
    throw LeaseLost{text,
                    {LossReason::expired, key_, token_.fingerprint(), now - state_.acquired_at()}};
  }
}

// ---- for the keeper ----------------------------------------------------------------------------

// Under mutex_. When the keeper has something to do.
Clock::time_point LeaseCore::next_step(Clock::time_point now) const noexcept {
  const auto end = state_.tell_end_at();
  if (!plan_.renews() || renewing_ || by_hand_) return end;
  return std::min(end, std::max(plan_.due(state_.valid_until()), now));
}

runtime::Kept::Step LeaseCore::look(Clock::time_point now, bool joining) noexcept {
  const std::lock_guard lock{mutex_};
  if (state_.is_released() || state_.is_releasing()) return {Clock::time_point::max()};
  if (now >= state_.tell_end_at()) state_.lost(LossReason::expired, now);
  if (is_lost(now)) return {Clock::time_point::max()};
  const bool may_renew = plan_.renews() && !renewing_ && !by_hand_;
  if (may_renew) {
    const auto valid_until = state_.valid_until();
    const auto due = joining ? plan_.may_join_at(valid_until) : plan_.due(valid_until);
    if (now >= due) return {state_.tell_end_at(), true};
  }
  return {next_step(now)};
}

std::optional<Clock::time_point> LeaseCore::begin_renewal(Clock::time_point now,
                                                          store::Renewal& renewal) noexcept {
  const std::lock_guard lock{mutex_};
  if (by_hand_ || !state_.held(now)) return std::nullopt;
  renewing_ = true;
  state_.begin_renewal(now, ttl_);
  renewal = {key_, token_.reveal(), ttl_};
  return core::RenewalPlan::try_until(now, state_.ends_at());
}

void LeaseCore::renewed(Clock::time_point sent, Clock::time_point now) noexcept {
  const std::lock_guard lock{mutex_};
  renewing_ = false;
  state_.renewed(sent, ttl_, now);
  plan_.succeeded();
  if (!is_lost(now)) tell(Event::Kind::renewed, now);
}

void LeaseCore::not_ours(store::Ownership found, Clock::time_point now) noexcept {
  const std::lock_guard lock{mutex_};
  renewing_ = false;
  state_.lost(found == Ownership::other ? LossReason::taken : LossReason::missing, now);
  is_lost(now);
}

void LeaseCore::not_renewed(const store::Failure* failure, Clock::time_point now) noexcept {
  const std::lock_guard lock{mutex_};
  if (std::exchange(renewing_, false)) {
    if (failure != nullptr && failure->in_doubt) {
      state_.renewal_in_doubt(ttl_);
    } else {
      state_.renewal_refused();
    }
  }
  if (failure == nullptr) return;
  plan_.failed(now, state_.ends_at());
  if (is_lost(now) || !backend_->notifier.listening()) return;
  try {
    auto described = *failure;
    described.what = backend_->store.describe("renew", key_, failure->what);
    tell_of_trouble(Event::Kind::renew_failed, described);
  } catch (...) {
    // No memory for an event.
  }
}

// While a verb is at work: the keeper doesn't renew, but notices the end. A renewal of its own that
// is under way is waited for first; if that takes too long, it may run yet.
class LeaseCore::ByHand {
 public:
  explicit ByHand(LeaseCore& core) : core_(core), turn_(core.turn_) {
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
    core_.state_.renewal_in_doubt(core_.ttl_);
  }

  ~ByHand() {
    Clock::time_point next;
    {
      const std::lock_guard lock{core_.mutex_};
      core_.by_hand_ = false;
      const auto now = Clock::now();
      if (!core_.kept_ || !core_.state_.held(now)) return;
      next = core_.next_step(now);
    }
    core_.backend_->keeper.keep(core_, next);
  }
  ByHand(const ByHand&) = delete;
  ByHand& operator=(const ByHand&) = delete;

 private:
  LeaseCore& core_;
  const std::lock_guard<std::mutex> turn_;
};

// ---- renew and release -------------------------------------------------------------------------

void LeaseCore::renew(std::chrono::milliseconds ttl) {
  if (!ours()) throw_not_held("renew");
  const ByHand by_hand{*this};
  Clock::time_point limit;
  {
    const std::lock_guard lock{mutex_};
    const auto now = Clock::now();
    require_held("renew", now);
    if (state_.is_releasing()) {
      throw Error{errc::in_doubt, fmt::format("renew {}: a release is in doubt", quote(key_))};
    }
    state_.begin_renewal(now, ttl);
    limit = state_.ends_at();
  }

  auto found = backend_->store.renew(key_, token_.reveal(), ttl, limit);

  const std::lock_guard lock{mutex_};
  const auto now = Clock::now();
  if (!found.confirmed || (found.failure && found.failure->in_doubt)) {
    state_.renewal_in_doubt(ttl);
  }
  if (found.failure && found.failure->in_doubt) {
    // Nothing more is known.
  } else if (found.failure) {
    state_.renewal_refused();
  } else if (found.ownership == Ownership::ours) {
    state_.renewed(found.sent, ttl, now);
    plan_.succeeded();
  } else {
    state_.lost(found.ownership == Ownership::other ? LossReason::taken : LossReason::missing, now);
  }
  require_held("renew", now);
  if (found.failure) {
    tell_of_trouble(Event::Kind::renew_failed, *found.failure);
    throw Error{found.failure->code, found.failure->what};
  }
  tell(Event::Kind::renewed, now);
}

void LeaseCore::release() {
  if (!ours()) throw_not_held("release");
  const ByHand by_hand{*this};
  {
    const std::lock_guard lock{mutex_};
    const auto now = Clock::now();
    state_.may_release(now);
    require_held("release", now);
    state_.begin_release();
  }

  auto found = backend_->store.release(key_, token_.reveal(), Clock::time_point::max());

  const std::lock_guard lock{mutex_};
  const auto now = Clock::now();
  if (found.failure) {
    doubted_ = doubted_ || found.failure->in_doubt;
    if (!doubted_) state_.release_refused();
    if (doubted_ && !found.failure->in_doubt) {
      // This one did not happen, but an earlier one may have: the lease must not look held again.
      found.failure->code = errc::in_doubt;
      found.failure->in_doubt = true;
    }
    tell_of_trouble(found.failure->in_doubt ? Event::Kind::in_doubt : Event::Kind::background_error,
                    *found.failure);
    throw Error{found.failure->code, found.failure->what};
  }
  if (found.ownership == Ownership::ours) {
    tell(Event::Kind::released, now);
    state_.released();
    return;
  }
  doubted_ = doubted_ || !found.confirmed;
  state_.lost(doubted_                              ? LossReason::unconfirmed
              : found.ownership == Ownership::other ? LossReason::taken
                                                    : LossReason::missing,
              now);
  require_held("release", now);
}

// ---- the end of the scope ----------------------------------------------------------------------

void LeaseCore::let_go(std::unique_ptr<LeaseCore> core) noexcept {
  if (!core->ours()) return;
  // The answer comes through the client's connections, so the core must not keep them alive; the
  // client closes them when its last owner is gone, which may be here.
  const auto client = std::move(core->client_);
  try {
    {
      const std::lock_guard turn{core->turn_};
      core->leave_keeper();
      const std::lock_guard lock{core->mutex_};
      const auto now = Clock::now();
      if (!core->state_.may_release(now)) {
        core->is_lost(now);
        return;
      }
      core->state_.begin_release();
    }
    auto& mine = *core;
    mine.backend_->store.post_release(mine.key_, mine.token_.reveal(), on_answer, core.get());
    (void)core.release();  // it is on_answer()'s now, and may be gone already
  } catch (...) {
    // No memory to write the request: the ttl frees the key.
  }
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
  if (held)
    (void)backend_->keeper.settle(*this, Clock::now() + backend_->pipelines.timeouts().command);
  backend_->keeper.forget(*this);
}

void LeaseCore::on_answer(void* context, wire::Outcome&& outcome) noexcept {
  std::unique_ptr<LeaseCore> core{static_cast<LeaseCore*>(context)};
  try {
    if (!core->answered(outcome)) (void)core.release();
  } catch (...) {
    // Nothing is left to be done but to forget the lease: the ttl frees the key.
  }
}

// True when that was the end of it; false when the release goes out again.
bool LeaseCore::answered(const wire::Outcome& outcome) {
  auto& store = backend_->store;
  const auto found = store.answer_to_post(key_, token_.reveal(), outcome);
  const auto now = Clock::now();
  if (!found.failure && found.ownership == Ownership::ours) {
    tell(Event::Kind::released, now);
    return true;
  }
  if (!found.failure) {
    const auto reason =
        found.ownership == Ownership::other ? LossReason::taken : LossReason::missing;
    const std::lock_guard lock{mutex_};
    state_.lost(doubted_ ? LossReason::unconfirmed : reason, now);
    is_lost(now);
    return true;
  }
  doubted_ = doubted_ || found.failure->in_doubt;
  if (tries_ == 0) tell_of_trouble(Event::Kind::background_error, *found.failure);
  // The first time at once, over another connection or with the script's text; then less and less.
  const auto pause = tries_ == 0 ? 0ms : std::min(10ms * (1 << std::min(tries_, 10)), 1000ms);
  ++tries_;
  const bool again = found.failure->transient && now + pause < state_.valid_until();
  return !again || !store.owe_release(key_, token_.reveal(), now + pause, state_.valid_until(),
                                      on_answer, this);
}

// ---- the observer ------------------------------------------------------------------------------

Event LeaseCore::event(Event::Kind kind, Clock::time_point now) const {
  Event event;
  event.kind = kind;
  event.key = key_;
  event.fingerprint = token_.fingerprint();
  if (label_) event.label = *label_;
  event.server = backend_->store.server();
  event.held_for = now - state_.acquired_at();
  event.left = std::max(state_.valid_until() - now, std::chrono::nanoseconds{0});
  return event;
}

void LeaseCore::tell(Event::Kind kind, Clock::time_point now,
                     std::optional<LossReason> reason) noexcept {
  auto& notifier = backend_->notifier;
  if (!notifier.listening()) return;
  try {
    auto happened = event(kind, now);
    happened.reason = reason;
    notifier.notify(std::move(happened));
  } catch (...) {
    // No memory for an event.
  }
}

void LeaseCore::tell_of_trouble(Event::Kind kind, const store::Failure& failure) noexcept {
  auto& notifier = backend_->notifier;
  if (!notifier.listening()) return;
  try {
    auto happened = event(kind, Clock::now());
    happened.error = make_error_code(failure.code);
    happened.message = failure.what;
    notifier.notify(std::move(happened));
  } catch (...) {
    // No memory for an event.
  }
}

}  // namespace redlease::inline v1::detail

#endif
