#ifndef REDLEASE_RUNTIME_ACQUIRER_IPP
#define REDLEASE_RUNTIME_ACQUIRER_IPP

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <redlease/runtime/acquirer.hpp>
#include <redlease/token.hpp>

namespace redlease::inline v1::detail {
Acquirer::Acquirer(std::shared_ptr<runtime::ClientState> client, store::Keys keys,
                   const LeaseOptions& options, Order order)
    : client_(std::move(client)),
      backend_(client_->here()),
      keys_(std::move(keys)),
      key_(keys_.first()),
      terms_(options, keys_, order),
      start_(Clock::now()) {
  for (const auto& counter : terms_.demand.counters) {
    drawn_before_.push_back(backend_.fences.highest(counter));
  }
  if (terms_.renewal) backend_.keeper.start();
}

std::unique_ptr<LeaseCore> Acquirer::try_once() {
  auto acquisition = backend_.store.acquire(keys_, terms_.demand, Clock::time_point::max());
  blocker_ = acquisition.blocker;
  if (acquisition.failure) give_up(std::move(*acquisition.failure));
  if (!acquisition.grant) return contended();
  grant_ = std::move(acquisition.grant);
  return acquired();
}

// ---- waiting -----------------------------------------------------------------------------------

std::unique_ptr<LeaseCore> Acquirer::wait_for_it(const Wait& wait) {
  core::WaitPlan plan{{wait.at_most, wait.attempts, wait.backoff.min, wait.backoff.max}, start_};
  if (wait.stop.stop_requested()) return contended();
  const bool many = plan.has_many();
  bool held = take_at_once(plan);
  if (!held && many) {
    held = keys_.several()  ? wait_for_all(wait, plan)
           : terms_.in_line ? wait_in_line(wait, plan)
                            : wait_in_queue(wait, plan);
    if (held) backend_.turns.begin(key_, Clock::now());
  }
  if (held) return acquired();
  if (trouble_) give_up(std::move(*trouble_));
  return contended();
}

// The first attempt, unless it is better to queue up at once.
bool Acquirer::take_at_once(core::WaitPlan& plan) {
  if (keys_.several()) return attempt(plan);
  if (!terms_.in_line) {
    // Behind others of this client, or one of its own leases, an attempt is of no use.
    const bool queues_up = plan.has_many() && backend_.room.has_queue(key_);
    return !queues_up && take_turn(plan);
  }
  // Joining the line is an attempt, too.
  const bool joins = !step_back(plan) && plan.has_many() && backend_.room.hears_grants();
  if (joins) return false;
  const bool held = take_in_line(plan);
  plan.count_attempt();
  return held;
}

// Lets others have the key when this process has had it for long enough. True if it did.
bool Acquirer::step_back(const core::WaitPlan& plan) {
  if (!plan.expects_more(start_ + core::HandoffRun::step_back)) return false;  // no time for that
  if (!backend_.turns.is_over(key_, start_)) return false;
  std::this_thread::sleep_for(core::HandoffRun::step_back);
  return true;
}

// The first attempt.
bool Acquirer::take_turn(const core::WaitPlan& plan) {
  const bool stepped_back = step_back(plan);
  const bool free = attempt(plan);
  if (stepped_back) backend_.turns.stepped_back(key_, free, Clock::now());
  return free;
}

// One attempt, whose failure counts if it had its time. True with a lease.
bool Acquirer::attempt(const core::WaitPlan& plan, Place* place) {
  const auto began = Clock::now();
  auto acquisition = backend_.store.acquire(keys_, terms_.demand, plan.deadline());
  if (!acquisition.failure) blocker_ = acquisition.blocker;
  if (place != nullptr) place->attempt_ended(acquisition, began);
  if (acquisition.grant) {
    grant_ = std::move(acquisition.grant);
    for (const auto& key : keys_.all()) backend_.room.obtained(key, terms_.demand.ttl);
    return true;
  }
  note(std::move(acquisition.failure), began, plan);
  return false;
}

// How an attempt without a lease ended.
void Acquirer::note(std::optional<store::Failure>&& failure, Clock::time_point began,
                    const core::WaitPlan& plan) {
  if (failure && !failure->transient) give_up(std::move(*failure));
  // An attempt that began at the last moment, and that the end of the wait cut short, says nothing
  // new: what was said just before still counts. (Its traces are removed already.)
  const bool cut = failure && plan.is_last_moment(began) && Clock::now() >= plan.deadline();
  if (!cut || !answered_at_ || began - *answered_at_ > backend_.pipelines.timeouts().command) {
    trouble_ = std::move(failure);
    answered_at_ = Clock::now();
  }
}

bool Acquirer::wait_in_queue(const Wait& wait, core::WaitPlan& plan) {
  backend_.wakeups.start();
  auto place = backend_.room.enter(key_, terms_.demand);
  struct Leave {
    Acquirer& self;
    Place& place;
    ~Leave() { self.dispose(place.leave()); }
  } const leave{*this, place};

  // Nobody asked for this one yet, if it came to a queue that had just become empty.
  bool at_once = !answered_at_ && !place.is_behind();
  for (bool more = true; more; at_once = false) {
    const auto next = at_once ? start_ : next_turn(place, wait, plan);
    more = next.has_value();
    if (!more && !plan.has_attempts()) break;
    if (!more && listening()) hint_ = what_is_there(plan.deadline());
    auto news = place.wait(next.value_or(plan.deadline()), wait.stop, !more);
    const bool needed = is_needed(wait, news, more);
    if (news.grant || news.baton) {
      if (needed && use(std::move(news), plan.deadline())) return true;
      place.back_in_line();
      more = true;
    }
    if (!needed) {
      trouble_.reset();
      return false;
    }
    if (!more) break;
    if (!place.is_first()) {
      place.heard(answered_at_, trouble_);
      continue;
    }
    // Two milliseconds at most.
    const auto pause = std::min(place.not_before(), plan.deadline()) - Clock::now();
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    if (attempt(plan, &place)) return true;
  }
  return false;
}

// All or none: he holds none of the keys while he waits. He watches the one that was in the way,
// and when that is free he tries for all of them again.
bool Acquirer::wait_for_all(const Wait& wait, core::WaitPlan& plan) {
  backend_.wakeups.start();
  auto next = plan.next_attempt(Clock::now(), random_unit());
  for (;;) {
    const auto blocker = blocker_;
    auto place = backend_.room.enter_watchers(keys_.all()[blocker], keys_.all(), terms_.demand);
    struct Leave {
      Acquirer& self;
      Place& place;
      ~Leave() {
        place.wake_next(self.grant_.has_value());
        self.dispose(place.leave());
      }
    } const leave{*this, place};
    while (blocker_ == blocker) {
      const bool more = next.has_value();
      if (!more && !plan.has_attempts()) return false;
      if (!more && listening()) hint_ = what_is_there(plan.deadline());
      auto news = place.wait(next.value_or(plan.deadline()), wait.stop, !more);
      if (!is_needed(wait, news, more)) {
        trouble_.reset();
        return false;
      }
      if (news.grant) {
        if (use(std::move(news), plan.deadline())) return true;
        place.back_in_line();
        continue;
      }
      if (!more) return false;
      const bool tries = news.called || place.is_first() || wait.attempts;
      if (tries && attempt(plan, &place)) return true;
      if (!tries) place.heard(answered_at_, trouble_);
      if (news.called) continue;  // that counts for no attempt of his own
      next = tries ? plan.next_attempt(Clock::now(), random_unit())
                   : plan.next_look(Clock::now(), random_unit());
    }
  }
}

// When to look after the lease by itself. Those who are not the first are served by others, and
// see now and then whether they have become the first.
std::optional<Clock::time_point> Acquirer::next_turn(const Place& place, const Wait& wait,
                                                     core::WaitPlan& plan) {
  const bool first = place.is_first();
  if (!first && !wait.attempts) return plan.next_look(Clock::now(), random_unit());
  if (first && !trouble_ && !backend_.room.watching()) ask_for_expiry(plan);
  return plan.next_attempt(Clock::now(), random_unit());
}

// A poll that is cut by the holder's expiry spares a waiter up to a whole back-off.
void Acquirer::ask_for_expiry(core::WaitPlan& plan) {
  if (!plan.expects_more(Clock::now()) || !plan.wants_holder_expiry(Clock::now())) return;
  if (const auto ttl = backend_.store.time_to_live(key_, plan.deadline())) {
    plan.holder_expires_in(*ttl, Clock::now());
  }
}

// Before each further attempt, and before a lease that was waited for is handed out.
bool Acquirer::is_needed(const Wait& wait, runtime::News& news, bool more) {
  if (!wait.stop.stop_requested()) {
    if (!more && !news.grant && !news.baton) return true;
    try {
      if (!wait.still_needed || wait.still_needed()) return true;
    } catch (...) {
      dispose(std::move(news));
      throw;
    }
  }
  dispose(std::move(news));
  return false;
}

bool Acquirer::use(runtime::News&& news, Clock::time_point deadline) {
  const auto& demand = terms_.demand;
  grant_ = news.baton ? LeaseCore::pass_on(std::move(news.baton), demand, deadline) : news.grant;
  if (!grant_) return false;
  if (store::LeaseStore::lateness(demand, grant_->sent).count() < 0) return true;
  backend_.store.give_back(keys_, grant_->token.reveal());
  grant_.reset();
  return false;
}

// Gives on, or back, what is of no use here.
void Acquirer::dispose(runtime::News&& news) noexcept {
  if (news.baton) LeaseCore::hand_on_or_post(std::move(news.baton));
  if (!news.grant) return;
  backend_.store.give_back(keys_, news.grant->token.reveal());
  for (const auto& key : keys_.all()) backend_.room.released(key);
  news.grant.reset();
}

// ---- the end -----------------------------------------------------------------------------------

std::unique_ptr<LeaseCore> Acquirer::acquired() {
  std::unique_ptr<LeaseCore> core;
  try {
    std::optional<Event> event;
    if (listening()) {
      event = make_event(Event::Kind::acquired);
      event->fingerprint = grant_->token.fingerprint();
    }
    auto trouble = fallen_counter();
    core = std::make_unique<LeaseCore>(client_, std::move(keys_), std::move(*grant_), terms_);
    if (trouble) give_up(std::move(*trouble));
    if (event) {
      event->left = core->remaining();
      backend_.notifier.notify(std::move(*event));
    }
  } catch (...) {
    // Mostly out of memory. A core gives the lease back by itself; without one it is done here.
    if (core) {
      LeaseCore::let_go(std::move(core));
    } else {
      backend_.store.give_back(keys_, grant_->token.reveal());
    }
    throw;
  }
  core->begin_keeping();
  return core;
}

// A number that was drawn from a counter which fell: a resource would refuse it, or worse, has
// forgotten those from before.
std::optional<store::Failure> Acquirer::fallen_counter() {
  for (std::size_t i = 0; i < grant_->numbers.size(); ++i) {
    const auto& counter = terms_.demand.counters[i];
    const auto number = grant_->numbers[i];
    if (number <= drawn_before_[i]) {
      const auto cause = fmt::format(
          "fencing number {} of the counter {} is not above {}, which was drawn before; the lease "
          "was given back",
          number.value(), quote(counter), drawn_before_[i].value());
      return store::Failure{errc::fence_regressed, backend_.store.describe("acquire", keys_, cause),
                            false, false};
    }
  }
  for (std::size_t i = 0; i < grant_->numbers.size(); ++i) {
    backend_.fences.note(terms_.demand.counters[i], grant_->numbers[i]);
  }
  return std::nullopt;
}

std::unique_ptr<LeaseCore> Acquirer::contended() {
  if (listening()) {
    auto event = make_event(Event::Kind::contended);
    event.message = hint_;
    backend_.notifier.notify(std::move(event));
  }
  return nullptr;
}

void Acquirer::give_up(store::Failure&& failure) {
  if (failure.in_doubt && listening()) {
    auto event = make_event(Event::Kind::in_doubt);
    event.error = make_error_code(failure.code);
    event.message = failure.what;
    backend_.notifier.notify(std::move(event));
  }
  throw Error{failure.code, failure.what};
}

// For the observer, at the end of a wait: a key that holds no lease doesn't get free by waiting.
std::string Acquirer::what_is_there(Clock::time_point limit) {
  try {
    const auto content = backend_.store.inspect(keys_.all()[blocker_], limit);
    if (!content) return "the key is free by now";
    if (content->type != "string") return "not a lease: the key holds a " + content->type;
    if (!content->ttl) return "not a lease: the key never expires";
    return "held by " + fingerprint_of(content->beginning);
  } catch (const Error& error) {
    return error.what();
  }
}

Event Acquirer::make_event(Event::Kind kind) const {
  Event event;
  event.kind = kind;
  event.key = key_;
  event.label = terms_.label;
  event.server = backend_.store.server();
  event.waited = Clock::now() - start_;
  return event;
}

}  // namespace redlease::inline v1::detail

#endif
