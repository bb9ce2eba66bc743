#ifndef REDLEASE_RUNTIME_WAITING_PLACES_IPP
#define REDLEASE_RUNTIME_WAITING_PLACES_IPP

// Of the WaitingRoom: what a waiter does.

#include <algorithm>
#include <charconv>
#include <utility>

#include <redlease/runtime/waiting_room.hpp>
#include <redlease/wire/futex.hpp>

namespace redlease::inline v1::runtime {
namespace {

// Sleeps are made in steps, since their clock stands still while the machine sleeps.
constexpr std::chrono::hours longest_sleep{1};

}  // namespace

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
  if (queue.look_at == KeyQueue::never && !queue.asking) look_after_change(queue, now);
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
    room_.set_look(queue_, KeyQueue::never);
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

}  // namespace redlease::inline v1::runtime

#endif
