#ifndef REDLEASE_RUNTIME_WAITING_HANDOFFS_IPP
#define REDLEASE_RUNTIME_WAITING_HANDOFFS_IPP

// Of the WaitingRoom: to whom a lease that is given back is handed on, and what follows if to
// nobody.

#include <algorithm>
#include <utility>

#include <redlease/runtime/lease_core.hpp>
#include <redlease/runtime/waiting_room.hpp>

namespace redlease::inline v1::runtime {

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
  if (queue == nullptr) return;
  queue->ours_until = {};
  queue->handed_on_at = {};
  queue->run.end(Clock::now());
  if (queue->empty()) return;
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

}  // namespace redlease::inline v1::runtime

#endif
