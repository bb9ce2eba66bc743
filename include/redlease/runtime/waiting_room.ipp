#ifndef REDLEASE_RUNTIME_WAITING_ROOM_IPP
#define REDLEASE_RUNTIME_WAITING_ROOM_IPP

#include <algorithm>
#include <limits>
#include <utility>

#include <redlease/core/wait_plan.hpp>
#include <redlease/runtime/lease_core.hpp>
#include <redlease/runtime/waiting_room.hpp>
#include <redlease/wire/futex.hpp>

namespace redlease::inline v1::runtime {
namespace {

using namespace std::chrono_literals;

// Each change calls for a look. When changes come as a flood, looks are rationed.
constexpr double most_credit = 16;
constexpr double credit_per_ms = 1;
// The line is served by the server: a look is for holders who don't know of it.
constexpr double most_line_credit = 2;
constexpr double line_credit_per_ms = 0.02;

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
  set_look(*queue, endless ? never : later(now, *ttl + core::expiry_slack));
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
