#ifndef REDLEASE_RUNTIME_LEASE_CORE_IPP
#define REDLEASE_RUNTIME_LEASE_CORE_IPP

#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <redlease/core/key_slot.hpp>
#include <redlease/runtime/lease_core.hpp>

namespace redlease::inline v1::detail {

using namespace std::chrono_literals;
using store::Ownership;

Terms::Terms(const LeaseOptions& options, store::KeyView keys, Order order)
    : label(options.label), in_line(order == Order::fifo) {
  demand.ttl = options.ttl.ceil_ms();
  for (std::size_t i = 0; options.fencing && i < keys.size(); ++i) {
    demand.counters.push_back(options.fence_key.empty()
                                  ? core::beside(keys[i], store::fencing_counter)
                                  : options.fence_key);
  }
  if (options.safety_margin) safety_margin = *options.safety_margin;
  if (!options.auto_renew) return;
  // It ends a margin before its validity does.
  demand.reserve = safety_margin.value_or(std::chrono::nanoseconds{demand.ttl} / 10);
  renewal.emplace();
  renewal->ttl = demand.ttl;
  renewal->every = options.renew_every ? options.renew_every->value() : renewal->ttl / 3;
  if (options.max_hold) renewal->max_hold = *options.max_hold;
}

LeaseCore::LeaseCore(std::shared_ptr<runtime::ClientState> client, store::Keys&& keys,
                     store::Grant&& grant, const Terms& terms)
    : client_(std::move(client)),
      backend_(&client_->here()),
      label_(terms.label.empty() ? nullptr : std::make_unique<const std::string>(terms.label)),
      numbers_(grant.numbers.empty()
                   ? nullptr
                   : std::make_unique<const std::vector<FencingToken>>(std::move(grant.numbers))),
      keys_(std::move(keys)),
      token_(grant.token),
      ttl_(terms.demand.ttl),
      in_line_(terms.in_line),
      state_(grant.sent, terms.demand.ttl, terms.safety_margin) {
  if (!terms.renewal) return;
  plan_ = {*terms.renewal, grant.sent};
  state_.warn_before_end();
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
    if (stop_request_) {
      backend_->notifier.request_stop(std::move(stop_request_));
      backend_->keeper.nudge();
    }
    tell(Event::Kind::lost, state_.ended_at(), reason);
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

Loss LeaseCore::make_loss(LossReason reason) const {
  return {reason, keys_.first(), token_.fingerprint(), state_.ended_at() - state_.acquired_at()};
}

void LeaseCore::throw_not_held(const char* operation) const {
  throw std::invalid_argument(
      fmt::format("{} {}: the lease is not held: {}", operation, store::quote(keys_),
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
    throw Error{errc::in_doubt, fmt::format("ensure_held {}: a release is under way or in doubt",
                                            store::quote(keys_))};
  }
  if (const auto left = state_.remaining(now); left < min) {
    const auto text = fmt::format("ensure_held {}: only {} ms are left of the lease, not {} ms",
                                  store::quote(keys_), left / std::chrono::milliseconds{1},
                                  Duration{min}.ceil_ms().count());
    throw LeaseLost{
        text,
        {LossReason::expired, keys_.first(), token_.fingerprint(), now - state_.acquired_at()}};
  }
}

// ---- renew and release -------------------------------------------------------------------------

void LeaseCore::renew(std::chrono::milliseconds ttl) {
  if (!ours()) throw_not_held("renew");
  const ByHand by_hand{*this};
  Clock::time_point limit;
  bool kept = false;
  {
    const std::lock_guard lock{mutex_};
    const auto now = Clock::now();
    require_held("renew", now);
    if (state_.is_releasing()) {
      throw Error{errc::in_doubt,
                  fmt::format("renew {}: a release is in doubt", store::quote(keys_))};
    }
    if (!state_.can_last(ttl)) {
      throw std::invalid_argument(
          fmt::format("renew {}: ttl = {}: must be more than the lease's safety_margin and 1 %",
                      store::quote(keys_), to_text(ttl)));
    }
    state_.begin_renewal(now, ttl);
    limit = state_.ends_at();
    kept = kept_;
  }
  if (kept) backend_->keeper.keep(*this);  // its end may come sooner now

  auto found = backend_->store.renew(keys_, token_.reveal(), ttl, limit);

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
    require_held("release", now);
    state_.begin_release();
  }

  store::Comparison found;
  try {
    found = give_back();
  } catch (...) {
    // Out of memory, most likely: nobody knows whether it was sent.
    const std::lock_guard lock{mutex_};
    doubted_ = true;
    state_.release_in_doubt();
    throw;
  }

  const std::lock_guard lock{mutex_};
  const auto now = Clock::now();
  if (found.failure) {
    doubted_ = doubted_ || found.failure->in_doubt;
    doubted_ ? state_.release_in_doubt() : state_.release_refused();
    if (doubted_ && !found.failure->in_doubt) {
      // This one did not happen, but an earlier one may have: the lease must not look held again.
      found.failure->code = errc::in_doubt;
      found.failure->in_doubt = true;
    }
    if (state_.loss(now)) require_held("release", now);
    tell_of_trouble(found.failure->in_doubt ? Event::Kind::in_doubt : Event::Kind::background_error,
                    *found.failure);
    throw Error{found.failure->code, found.failure->what};
  }
  if (found.ownership == Ownership::ours) {
    require_held("release", now);  // its end may have come, and been told, before the answer
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

// To the next one who waits in this client, if there is one, without a moment in which the key is
// free.
store::Comparison LeaseCore::give_back() {
  constexpr auto no_limit = Clock::time_point::max();
  if (in_line_) return give_back_in_line();
  if (keys_.several()) return give_back_all(no_limit);
  auto& room = backend_->room;
  const auto& key = keys_.first();
  if (auto heir = room.next_for(key)) {
    auto handed = backend_->store.hand_over(key, token_.reveal(), heir->demand(), no_limit);
    if (handed.grant && !heir->grant(*handed.grant)) {
      backend_->store.give_back(key, handed.grant->token.reveal());
      room.released(key);
    }
    return std::move(handed.given);
  }
  auto found = backend_->store.release(key, token_.reveal(), no_limit);
  if (!found.failure) {
    backend_->turns.released(key, Clock::now());
    room.released(key);
  }
  return found;
}

store::Comparison LeaseCore::give_back_all(Clock::time_point limit) {
  const auto tell_all = [this] {
    for (const auto& key : keys_.all()) backend_->room.freed(key);
  };
  if (auto heir = backend_->room.next_for_all(keys_.all())) {
    auto handed = backend_->store.hand_over(keys_, token_.reveal(), heir->demand(), limit);
    if (handed.grant && !heir->grant(*handed.grant)) {
      backend_->store.give_back(keys_, handed.grant->token.reveal());
      handed.grant.reset();
    }
    if (!handed.grant) tell_all();
    return std::move(handed.given);
  }
  auto found = backend_->store.release(keys_, token_.reveal(), limit);
  if (!found.failure) tell_all();
  return found;
}

// The server knows whose turn it is. If it is one of ours, the answer tells.
store::Comparison LeaseCore::give_back_in_line() {
  store::LineGrant granted;
  const auto& key = keys_.first();
  auto found = backend_->line.release(key, token_.reveal(), Clock::time_point::max(), granted);
  if (granted.number != 0) {
    backend_->room.granted(granted, found.sent);
  } else if (!found.failure) {
    backend_->turns.released(key, Clock::now());
    backend_->room.released(key);
  }
  return found;
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
    hand_on_or_post(std::move(core));
  } catch (...) {
    // No memory to write the request: the ttl frees the key.
  }
}

void LeaseCore::hand_on_or_post(std::unique_ptr<LeaseCore> core) noexcept {
  try {
    auto& mine = *core;
    auto& room = mine.backend_->room;
    if (mine.keys_.several()) {
      // A posted request keeps its order for one key only, so this one is waited for.
      const auto until = Clock::now() + 2 * mine.backend_->pipelines.timeouts().command;
      if (!mine.conclude(mine.give_back_all(until))) (void)core.release();  // it is on_answer()'s
      return;
    }
    if (!mine.in_line_) {
      if (auto heir = room.next_for(mine.keys_.first())) heir->pass(core);
      if (!core) return;
    }
    const auto& key = mine.keys_.first();
    const auto waited_for = room.empty() ? std::string{} : key;
    const auto token = mine.token_.reveal();
    mine.backend_->turns.released(key, Clock::now());
    if (mine.in_line_) {
      mine.backend_->line.post_release(key, token, on_answer, core.get());
    } else {
      mine.backend_->store.post_release(key, token, on_answer, core.get());
    }
    (void)core.release();  // it is on_answer()'s now, and may be gone already
    if (!waited_for.empty()) room.released(waited_for);
  } catch (...) {
    // No memory to write the request: the ttl frees the key.
  }
}

std::optional<store::Grant> LeaseCore::pass_on(std::unique_ptr<LeaseCore> core,
                                               const store::Demand& heir, Clock::time_point limit) {
  {
    const std::lock_guard lock{core->mutex_};
    const auto now = Clock::now();
    if (now >= core->state_.valid_until()) core->state_.lost(LossReason::expired, now);
    if (core->is_lost(now)) return std::nullopt;
  }
  try {
    auto handed =
        core->backend_->store.hand_over(core->keys_.first(), core->token_.reveal(), heir, limit);
    if (!core->conclude(handed.given)) (void)core.release();  // it is on_answer()'s now
    return handed.grant;
  } catch (...) {
    if (core) hand_on_or_post(std::move(core));
    throw;
  }
}

void LeaseCore::on_answer(void* context, wire::Outcome&& outcome) noexcept {
  std::unique_ptr<LeaseCore> core{static_cast<LeaseCore*>(context)};
  try {
    auto& backend = *core->backend_;
    const auto token = core->token_.reveal();
    const auto found = core->in_line_
                           ? backend.line.answer_to_post(core->keys_.first(), token, outcome)
                           : backend.store.answer_to_post(core->keys_, token, outcome);
    if (!core->conclude(found)) (void)core.release();
  } catch (...) {
    // Nothing is left to be done but to forget the lease: the ttl frees the key.
  }
}

// True when that was the end of it; false when the release goes out again.
bool LeaseCore::conclude(const store::Comparison& found) {
  auto& store = backend_->store;
  const auto now = Clock::now();
  if (!found.failure && found.ownership == Ownership::ours) {
    tell(Event::Kind::released, now);
    return true;
  }
  if (!found.failure) {
    const auto reason =
        found.ownership == Ownership::other ? LossReason::taken : LossReason::missing;
    const std::lock_guard lock{mutex_};
    state_.lost(doubted_ || !found.confirmed ? LossReason::unconfirmed : reason, now);
    is_lost(now);
    return true;
  }
  doubted_ = doubted_ || found.failure->in_doubt;
  if (tries_ == 0) tell_of_trouble(Event::Kind::background_error, *found.failure);
  // The first time at once, over another connection or with the script's text; then less and less.
  const auto pause = tries_ == 0 ? 0ms : std::min(10ms * (1 << std::min(tries_, 10)), 1000ms);
  ++tries_;
  const bool again = found.failure->transient && now + pause < state_.valid_until();
  return !again || !store.owe_release(keys_, token_.reveal(), now + pause, state_.valid_until(),
                                      on_answer, this);
}

// ---- the observer ------------------------------------------------------------------------------

Event LeaseCore::event(Event::Kind kind, Clock::time_point now) const {
  Event event;
  event.kind = kind;
  event.key = keys_.first();
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
    if (reason) happened.left = std::chrono::nanoseconds{0};
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
