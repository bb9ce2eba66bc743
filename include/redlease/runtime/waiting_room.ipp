#ifndef REDLEASE_RUNTIME_WAITING_ROOM_IPP
#define REDLEASE_RUNTIME_WAITING_ROOM_IPP

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include <redlease/runtime/lease_core.hpp>
#include <redlease/runtime/waiting_room.hpp>
#include <redlease/wire/futex.hpp>

namespace redlease::inline v1::runtime {
namespace {

using namespace std::chrono_literals;

// Redis expires a key after its last millisecond.
constexpr auto expiry_slack = 1ms;

// A lease of our own that was just handed on mostly changes hands again soon. Only one that stays
// is looked at, so that its end by another hand is noticed.
constexpr auto own_lease_settles = 5ms;

// Each change calls for a look. When changes come as a flood, looks are rationed.
constexpr double most_credit = 16;
constexpr double credit_per_ms = 1;
// The line is served by the server: a look is for holders who don't know of it.
constexpr double most_line_credit = 2;
constexpr double line_credit_per_ms = 0.02;

// A queue that nobody is in is kept for that long, since its key is likely to be wanted again.
constexpr auto linger = 1s;

// Sleeps are made in steps, since their clock stands still while the machine sleeps.
constexpr auto longest_sleep = 1h;

// After a look, or an attempt, that the server refused.
constexpr auto look_again = 1s;

constexpr auto never = KeyQueue::never;

KeyQueue::Instant later(KeyQueue::Instant now, std::chrono::nanoseconds span) {
  return span > never - now ? never : now + span;
}

}  // namespace

News::News() noexcept = default;
News::News(News&& other) noexcept = default;
News& News::operator=(News&& other) noexcept = default;
News::~News() = default;

WaitingRoom::~WaitingRoom() { schedule_.clear(); }

// ---- under the mutex ---------------------------------------------------------------------------

KeyQueue* WaitingRoom::find(std::string_view key) noexcept {
  const auto found = queues_.find(key);
  return found == queues_.end() ? nullptr : found->second.get();
}

std::shared_ptr<Waiter> WaitingRoom::first_of(const Place::List& list) noexcept {
  for (const auto& waiter : list) {
    if (!waiter->claimed) return waiter;
  }
  return nullptr;
}

void WaitingRoom::ring_by(Instant when) noexcept {
  if (alarm_ == nullptr || when >= rings_at_) return;
  rings_at_ = when;
  alarm_->set(when);
}

void WaitingRoom::set_look(KeyQueue& queue, Instant when) noexcept {
  if (when != never) when = std::max(when, queue.not_before);
  if (when == queue.look_at) return;
  if (queue.look_at != never) schedule_.erase(schedule_.iterator_to(queue));
  queue.look_at = when;
  if (when == never) return;
  schedule_.insert(queue);
  ring_by(when);
}

void WaitingRoom::look_after_change(KeyQueue& queue, Instant now) noexcept {
  queue.changed = false;
  queue.seen_free = false;
  if (queue.empty()) return;
  const bool for_line = !queue.is_looked_at() && !queue.heads_line;
  if (!for_line && now - queue.handed_on_at < own_lease_settles) {
    return set_look(queue, queue.handed_on_at + own_lease_settles);
  }
  const std::chrono::duration<double, std::milli> since = now - queue.credited_at;
  queue.credit =
      std::min(for_line ? most_line_credit : most_credit,
               queue.credit + since.count() * (for_line ? line_credit_per_ms : credit_per_ms));
  queue.credited_at = now;
  if (queue.credit >= 1) {
    queue.credit -= 1;
    return set_look(queue, now);
  }
  const std::chrono::duration<double, std::milli> until_next{
      (1 - queue.credit) / (for_line ? line_credit_per_ms : credit_per_ms)};
  const auto next = now + std::chrono::duration_cast<std::chrono::nanoseconds>(until_next);
  if (queue.look_at <= next) return;
  queue.credit -= 1;
  set_look(queue, next);
}

void WaitingRoom::answered(KeyQueue& queue, Instant now) noexcept {
  queue.answered_at = now;
  queue.trouble.reset();
}

void WaitingRoom::wake(Waiter& waiter) noexcept {
  waiter.word.store(1, std::memory_order_release);
  wire::futex_wake(waiter.word, 1);
}

void WaitingRoom::tell_first(KeyQueue& queue) noexcept {
  if (const auto first = first_of(queue.waiters)) wake(*first);
  if (const auto first = first_of(queue.line)) wake(*first);
  tell_watchers(queue);
}

// One after the other: most of them will be in each other's way.
void WaitingRoom::tell_watchers(KeyQueue& queue) noexcept {
  if (!queue.watchers.empty()) wake(*queue.watchers.front());
}

bool WaitingRoom::deliver(Waiter& waiter, const store::Grant& grant) noexcept {
  if (waiter.gone) return false;
  waiter.news.grant = grant;
  wake(waiter);
  return true;
}

void WaitingRoom::begin_holding(KeyQueue& queue, std::chrono::nanoseconds ttl,
                                Instant now) noexcept {
  answered(queue, now);
  queue.ours_until = later(now, ttl);
  queue.run.begin(now, queue.gave_back && !queue.others_came);
  queue.gave_back = false;
  queue.seen_free = false;
  queue.handed_on_at = now;
  queue.changed = true;
  if (queue.is_looked_at()) set_look(queue, now + own_lease_settles);
}

void WaitingRoom::note_trouble(KeyQueue& queue, const store::Failure& failure) noexcept {
  try {
    queue.trouble = failure;
  } catch (...) {
    // No memory: those who wait learn it from an attempt of their own.
  }
}

void WaitingRoom::handed_on(KeyQueue& queue, std::chrono::nanoseconds ttl, Instant now) noexcept {
  answered(queue, now);
  queue.ours_until = later(now, ttl);
  queue.run.handed_on();
  queue.handed_on_at = now;
  set_look(queue, now + own_lease_settles);
}

// ---- a place in the queue ----------------------------------------------------------------------

bool WaitingRoom::has_queue(std::string_view key) noexcept {
  if (empty()) return false;
  const std::lock_guard lock{mutex_};
  const auto* queue = find(key);
  return queue != nullptr &&
         (!queue->waiters.empty() || (watching_ && queue->ours_until > Clock::now()));
}

WaitingRoom::Place WaitingRoom::enter(std::string_view key, const store::Demand& demand) {
  auto waiter = std::make_shared<Waiter>(demand);
  const std::lock_guard lock{mutex_};
  const auto now = Clock::now();
  auto& queue = make_queue(key);
  queue.waiters.push_back(std::move(waiter));
  // Without a watch nobody notices that a lease of ours is lost.
  const bool ours = watching_ && queue.ours_until > now;
  const bool behind = ours || queue.waiters.size() > 1;
  // For those who are just being served nobody looks.
  if (first_of(queue.waiters) == queue.waiters.back() && !queue.asking) {
    set_look(queue, ours ? std::max(now, queue.handed_on_at + own_lease_settles) : now);
  }
  if (!watching_) ring_by(now);
  return {*this, queue, queue.waiters, behind};
}

WaitingRoom::Place WaitingRoom::enter_watchers(std::string_view key,
                                               std::span<const std::string> all,
                                               const store::Demand& demand) {
  auto waiter = std::make_shared<Waiter>(demand);
  waiter->keys.assign(all.begin(), all.end());
  const std::lock_guard lock{mutex_};
  const auto now = Clock::now();
  auto& queue = make_queue(key);
  queue.watchers.push_back(std::move(waiter));
  // The look has the server tell of the next change. What changed before, the look finds.
  if (!queue.asking) set_look(queue, now);
  if (!watching_) ring_by(now);
  return {*this, queue, queue.watchers, true};
}

WaitingRoom::Place WaitingRoom::enter_line(std::string_view key, const store::Demand& demand,
                                           const store::Ticket& ticket) {
  auto waiter = std::make_shared<Waiter>(demand, &ticket);
  const std::lock_guard lock{mutex_};
  auto& queue = make_queue(key);
  in_line_.emplace(ticket.number, InLine{waiter.get(), &queue});
  try {
    queue.line.push_back(std::move(waiter));
  } catch (...) {
    in_line_.erase(ticket.number);
    throw;
  }
  const auto now = Clock::now();
  if (queue.look_at == never && !queue.asking) look_after_change(queue, now);
  if (!watching_) ring_by(now);
  return {*this, queue, queue.line, true};
}

// An empty one, if it has to be made.
KeyQueue& WaitingRoom::make_queue(std::string_view key) {
  if (auto* found = find(key)) return *found;
  const auto made = queues_.emplace(std::string{key}, std::make_unique<KeyQueue>()).first;
  auto& queue = *made->second;
  queue.key = made->first;
  queue.empty_since = Clock::now();
  sweep_at_ = std::min(sweep_at_, queue.empty_since + linger);
  queues_made_.store(queues_.size(), std::memory_order_relaxed);
  return queue;
}

// Null if he has gone.
Waiter* WaitingRoom::granted_to(std::uint64_t number) noexcept {
  const auto found = in_line_.find(number);
  if (found == in_line_.end()) return nullptr;
  auto& queue = *found->second.queue;
  queue.granted_at = Clock::now();
  queue.heads_line = false;
  return found->second.waiter;
}

void WaitingRoom::called(std::uint64_t number) noexcept {
  const std::lock_guard lock{mutex_};
  if (auto* waiter = granted_to(number)) wake(*waiter);
}

void WaitingRoom::granted(const store::LineGrant& grant, Instant sent) noexcept {
  const std::lock_guard lock{mutex_};
  auto* waiter = granted_to(grant.number);
  if (waiter == nullptr) return;
  if (grant.accepted) {
    deliver(*waiter, {*waiter->token, sent});
  } else {
    wake(*waiter);
  }
}

void WaitingRoom::await_watch(Instant until) noexcept {
  while (watch_decided_.load(std::memory_order_acquire) == 0 &&
         wire::futex_wait(watch_decided_, 0, until)) {
  }
}

WaitingRoom::Place::~Place() { (void)leave(); }

News WaitingRoom::Place::leave() noexcept {
  if (std::exchange(left_, true)) return {};
  const std::lock_guard lock{room_.mutex_};
  const bool was_first = !room_.watching_ && list_.front() == waiter_;
  waiter_->gone = true;
  list_.erase(self_);
  if (waiter_->number != 0) room_.in_line_.erase(waiter_->number);
  if (was_first) room_.tell_first(queue_);
  if (queue_.empty()) {
    room_.set_look(queue_, never);
    queue_.empty_since = Clock::now();  // without a thread that sweeps it stays for the next ones
    room_.sweep_at_ = std::min(room_.sweep_at_, queue_.empty_since + linger);
    room_.ring_by(room_.sweep_at_);
  }
  return std::exchange(waiter_->news, News{});
}

News WaitingRoom::Place::wait(Instant until, const std::stop_token& stop, bool late) {
  const std::stop_callback end{stop, [this] { wake(*waiter_); }};
  for (;;) {
    bool in_time = true;
    while (in_time && waiter_->word.load(std::memory_order_acquire) == 0) {
      in_time = wire::futex_wait(waiter_->word, 0, std::min(until, Clock::now() + longest_sleep));
    }
    const std::lock_guard lock{room_.mutex_};
    waiter_->word.store(0, std::memory_order_relaxed);
    auto news = std::exchange(waiter_->news, News{});
    news.called = in_time;
    if (!in_time || !late || news.grant || news.baton || stop.stop_requested()) return news;
  }
}

bool WaitingRoom::Place::is_first() const noexcept {
  const std::lock_guard lock{room_.mutex_};
  return list_.front() == waiter_;
}

void WaitingRoom::Place::stands_at(const std::string& where, bool first) noexcept {
  std::uint64_t place = 0;
  (void)std::from_chars(where.data(), where.data() + where.size(), place);
  const std::lock_guard lock{room_.mutex_};
  const auto now = Clock::now();
  const bool to_look = first && now - queue_.granted_at > store::LineStore::window;
  if (to_look && !std::exchange(queue_.heads_line, true) && !queue_.asking) {
    room_.set_look(queue_, now);
  }
  if (waiter_->place == place) return;
  waiter_->place = place;
  auto before = list_.end();
  while (before != list_.begin()) {
    const auto& other = *std::prev(before);
    if (other != waiter_ && other->place <= place) break;
    --before;
  }
  list_.splice(before, list_, self_);
}

void WaitingRoom::Place::wake_next(bool served) noexcept {
  const std::lock_guard lock{room_.mutex_};
  if (list_.front() != waiter_) return;
  const bool headed = &list_ == &queue_.line && std::exchange(queue_.heads_line, false);
  // He is still there when the next one looks whether he is the first.
  list_.splice(list_.end(), list_, self_);
  if ((headed || !served) && list_.front() != waiter_) wake(*list_.front());
}

void WaitingRoom::Place::wake_others() noexcept {
  const std::lock_guard lock{room_.mutex_};
  for (const auto& waiter : list_) {
    if (waiter != waiter_) wake(*waiter);
  }
}

void WaitingRoom::Place::attempt_ended(const store::Acquisition& acquisition,
                                       Instant began) noexcept {
  const std::lock_guard lock{room_.mutex_};
  if (acquisition.grant) return;
  if (!acquisition.failure) {
    room_.answered(queue_, Clock::now());
  } else if (queue_.answered_at < began) {
    room_.note_trouble(queue_, *acquisition.failure);
  }
}

void WaitingRoom::Place::heard(std::optional<Instant>& answered_at,
                               std::optional<store::Failure>& trouble) const {
  const std::lock_guard lock{room_.mutex_};
  if (queue_.trouble) {
    trouble = queue_.trouble;
  } else if (queue_.answered_at > answered_at.value_or(Instant{})) {
    answered_at = queue_.answered_at;
    trouble.reset();
  }
}

void WaitingRoom::Place::back_in_line() noexcept {
  const std::lock_guard lock{room_.mutex_};
  waiter_->claimed = false;
  queue_.ours_until = {};
  if (!queue_.asking) room_.set_look(queue_, Clock::now());
}

WaitingRoom::Instant WaitingRoom::Place::not_before() const noexcept {
  const std::lock_guard lock{room_.mutex_};
  return queue_.not_before;
}

// ---- handing on --------------------------------------------------------------------------------

bool WaitingRoom::run_goes_on(KeyQueue& queue, Instant now) noexcept {
  // A lease that the room hasn't heard of, one of try_acquire().
  if (!queue.run.is_on()) queue.run.begin(now, false);
  return queue.run.may_go_on(now);
}

std::optional<WaitingRoom::Heir> WaitingRoom::next_for(std::string_view key) {
  if (empty()) return std::nullopt;
  const std::lock_guard lock{mutex_};
  auto* queue = find(key);
  if (queue == nullptr) return std::nullopt;
  auto first = first_of(queue->waiters);
  if (!first || !run_goes_on(*queue, Clock::now())) return std::nullopt;
  if (queue->candidate) return std::nullopt;  // his turn is before all others'
  std::optional<Heir> heir{Heir{*this, std::string{key}, std::move(first)}};
  heir->waiter_->claimed = true;
  return heir;
}

std::optional<WaitingRoom::Heir> WaitingRoom::next_for_all(std::span<const std::string> keys) {
  if (empty()) return std::nullopt;
  const std::lock_guard lock{mutex_};
  const auto now = Clock::now();
  const std::string* watched = nullptr;
  std::shared_ptr<Waiter> chosen;
  for (const auto& key : keys) {
    auto* queue = find(key);
    if (queue == nullptr) continue;
    if (!queue->waiters.empty() || !queue->line.empty()) return std::nullopt;
    if (chosen) continue;
    const auto first = first_of(queue->watchers);
    if (!first || !run_goes_on(*queue, now) ||
        !std::equal(keys.begin(), keys.end(), first->keys.begin(), first->keys.end())) {
      continue;
    }
    watched = &key;
    chosen = first;
  }
  if (!chosen) return std::nullopt;
  std::optional<Heir> heir{Heir{*this, *watched, chosen}};
  chosen->claimed = true;
  return heir;
}

WaitingRoom::Heir::~Heir() {
  if (!waiter_) return;
  const std::lock_guard lock{room_->mutex_};
  waiter_->claimed = false;
  auto* queue = room_->find(key_);
  if (queue == nullptr || queue->empty()) return;
  queue->ours_until = {};
  room_->set_look(*queue, Clock::now());
  if (!room_->watching_) room_->tell_first(*queue);
}

bool WaitingRoom::Heir::grant(const store::Grant& grant) noexcept {
  const auto waiter = std::exchange(waiter_, nullptr);
  const std::lock_guard lock{room_->mutex_};
  auto* queue = room_->find(key_);
  if (queue == nullptr) return false;
  room_->handed_on(*queue, waiter->demand.ttl, Clock::now());
  for (const auto& key : waiter->keys) {
    auto* other = room_->find(key);
    if (other != nullptr && other != queue)
      room_->handed_on(*other, waiter->demand.ttl, Clock::now());
  }
  return room_->deliver(*waiter, grant);
}

void WaitingRoom::Heir::pass(std::unique_ptr<detail::LeaseCore>& baton) noexcept {
  const auto waiter = std::exchange(waiter_, nullptr);
  const std::lock_guard lock{room_->mutex_};
  auto* queue = room_->find(key_);
  if (queue == nullptr || waiter->gone) return;
  waiter->news.baton = std::move(baton);
  room_->handed_on(*queue, waiter->demand.ttl, Clock::now());
  wake(*waiter);
}

void WaitingRoom::released(std::string_view key) noexcept {
  if (empty()) return;
  const std::lock_guard lock{mutex_};
  auto* queue = find(key);
  if (queue == nullptr) return;
  queue->ours_until = {};
  queue->seen_free = false;
  queue->gave_back = true;
  queue->others_came = false;
  const auto now = Clock::now();
  queue->run.end(now);
  if (const auto first = first_of(queue->line)) wake(*first);
  tell_watchers(*queue);
  if (queue->waiters.empty()) return;
  queue->handed_on_at = {};
  queue->not_before = now + core::HandoffRun::step_back;
  set_look(*queue, queue->not_before);
  if (!watching_) tell_first(*queue);
}

void WaitingRoom::freed(std::string_view key) noexcept {
  if (empty()) return;
  const std::lock_guard lock{mutex_};
  auto* queue = find(key);
  if (queue == nullptr || queue->empty()) return;
  queue->ours_until = {};
  queue->handed_on_at = {};
  queue->run.end(Clock::now());
  queue->seen_free = !queue->waiters.empty();
  if (!queue->asking) set_look(*queue, Clock::now());
  if (const auto first = first_of(queue->line)) wake(*first);
  tell_watchers(*queue);
  if (!watching_) tell_first(*queue);
}

void WaitingRoom::obtained(std::string_view key, std::chrono::nanoseconds ttl) noexcept {
  if (empty()) return;
  const std::lock_guard lock{mutex_};
  if (auto* queue = find(key)) begin_holding(*queue, ttl, Clock::now());
}

// ---- for Wakeups -------------------------------------------------------------------------------

void WaitingRoom::use(Timer& alarm) noexcept {
  const std::lock_guard lock{mutex_};
  alarm_ = &alarm;
}

WaitingRoom::Instant WaitingRoom::set_alarm(Instant at_latest, bool went_off) noexcept {
  const std::lock_guard lock{mutex_};
  auto next = std::min(at_latest, sweep_at_);
  if (watching_ && !schedule_.empty()) next = std::min(next, schedule_.begin()->look_at);
  // Somebody came in just now, for whom the connections are to be opened.
  if (!watching_ && !schedule_.empty() && at_latest == never) next = Clock::now();
  if (went_off || next < rings_at_) {
    rings_at_ = next;
    alarm_->set(next);
  }
  return next;
}

void WaitingRoom::ring() noexcept {
  const std::lock_guard lock{mutex_};
  rings_at_ = {};
  if (alarm_ != nullptr) alarm_->set({});
}

std::optional<WaitingRoom::Question> WaitingRoom::next_question(Instant now) {
  const std::lock_guard lock{mutex_};
  while (!schedule_.empty() && schedule_.begin()->look_at <= now) {
    KeyQueue& queue = *schedule_.begin();
    const auto first = first_of(queue.waiters);
    if (queue.asking || (!first && !first_of(queue.line) && queue.watchers.empty())) {
      set_look(queue, never);  // the answer, or the next to come in, sets it anew
      continue;
    }
    Question question{std::string{queue.key}, {}};
    set_look(queue, never);
    queue.asking = true;
    queue.changed = false;
    if (queue.seen_free && first) {
      question.attempt = first->demand;
      first->claimed = true;
      queue.candidate = first;
    }
    return question;
  }
  return std::nullopt;
}

void WaitingRoom::changed(std::string_view key, Instant now) noexcept {
  const std::lock_guard lock{mutex_};
  auto* queue = find(key);
  if (queue == nullptr) return;
  queue->changed = true;
  if (!queue->asking) look_after_change(*queue, now);
}

void WaitingRoom::all_changed(Instant now) noexcept {
  const std::lock_guard lock{mutex_};
  for (auto& [key, queue] : queues_) {
    queue->changed = true;
    queue->handed_on_at = {};
    if (!queue->asking) look_after_change(*queue, now);
  }
}

void WaitingRoom::looked(std::string_view key, std::optional<std::chrono::milliseconds> ttl,
                         Instant now) noexcept {
  const std::lock_guard lock{mutex_};
  auto* queue = find(key);
  if (queue == nullptr) return;
  queue->asking = false;
  answered(*queue, now);
  if (queue->empty()) return;
  // It may have become ours since.
  if (!ttl && queue->changed && queue->ours_until > now) return look_after_change(*queue, now);
  if (!ttl) {
    if (const auto first = first_of(queue->line)) wake(*first);
    tell_watchers(*queue);
    queue->seen_free = !queue->waiters.empty();
    return set_look(*queue, queue->seen_free ? now + queue->run.courtesy(now)
                                             : later(now, store::LineStore::window));
  }
  queue->others_came = true;
  if (queue->changed) return look_after_change(*queue, now);
  const bool endless = *ttl == std::chrono::milliseconds::max();
  set_look(*queue, endless ? never : later(now, *ttl + expiry_slack));
}

bool WaitingRoom::tried(std::string_view key, const store::Acquisition& acquisition,
                        Instant now) noexcept {
  const std::lock_guard lock{mutex_};
  auto* queue = find(key);
  if (queue == nullptr) return false;
  queue->asking = false;
  queue->seen_free = false;
  const auto candidate = std::exchange(queue->candidate, nullptr);
  if (acquisition.grant) {
    if (candidate && deliver(*candidate, *acquisition.grant)) {
      begin_holding(*queue, candidate->demand.ttl, now);
      return true;
    }
    set_look(*queue, now);
    return false;
  }
  if (candidate) candidate->claimed = false;
  if (acquisition.failure) {
    note_trouble(*queue, *acquisition.failure);
    set_look(*queue, now + look_again);
    tell_first(*queue);
    return true;
  }
  answered(*queue, now);
  queue->others_came = true;
  // Whoever came first has changed the key, which is news, or will be.
  if (queue->changed) return look_after_change(*queue, now), true;
  set_look(*queue, now + own_lease_settles);
  return true;
}

void WaitingRoom::failed(std::string_view key) noexcept {
  const std::lock_guard lock{mutex_};
  auto* queue = find(key);
  if (queue == nullptr) return;
  queue->asking = false;
  set_look(*queue, Clock::now() + look_again);
  tell_first(*queue);
}

void WaitingRoom::watch(bool on, bool hears_grants, Instant now) noexcept {
  const std::lock_guard lock{mutex_};
  if (watching_.exchange(on) == on) return;
  hears_grants_.store(hears_grants);
  for (auto& [key, queue] : queues_) {
    if (!on) {
      // No answer comes any more.
      queue->asking = false;
      if (const auto candidate = std::exchange(queue->candidate, nullptr)) {
        candidate->claimed = false;
      }
    }
    if (queue->empty()) continue;
    on ? set_look(*queue, now) : tell_first(*queue);
    for (const auto& waiter : queue->line) wake(*waiter);  // grants may have been missed
  }
}

void WaitingRoom::decide_watch(bool decided) noexcept {
  if (watch_decided_.exchange(decided ? 1 : 0) == (decided ? 1 : 0) || !decided) return;
  wire::futex_wake(watch_decided_, std::numeric_limits<int>::max());
}

bool WaitingRoom::sweep(Instant now) noexcept {
  const std::lock_guard lock{mutex_};
  if (now >= sweep_at_) {
    sweep_at_ = never;
    std::erase_if(queues_, [&](auto& entry) {
      auto& queue = *entry.second;
      if (!queue.empty()) return false;
      if (queue.asking || now < queue.empty_since + linger) {
        sweep_at_ = std::min(sweep_at_, now + linger);
        return false;
      }
      set_look(queue, never);
      return true;
    });
    queues_made_.store(queues_.size(), std::memory_order_relaxed);
  }
  return !queues_.empty();
}

}  // namespace redlease::inline v1::runtime

#endif
