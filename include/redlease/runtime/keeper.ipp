#ifndef REDLEASE_RUNTIME_KEEPER_IPP
#define REDLEASE_RUNTIME_KEEPER_IPP

#include <poll.h>

#include <algorithm>
#include <array>

#include <redlease/core/renewal_plan.hpp>
#include <redlease/error.hpp>
#include <redlease/runtime/keeper.hpp>
#include <redlease/runtime/quiet_thread.hpp>

namespace redlease::inline v1::runtime {
namespace {

// Leases that are dealt with before others, who call keep() and forget(), get the mutex again.
constexpr int most_at_once = 256;

// With so many in a request no more are asked to join it: a request holds up everybody else at the
// server, and the next one may be as full.
constexpr std::size_t enough_company = 25;
constexpr int most_asked = 100;

// The keys of a request, together, are not much longer.
constexpr std::size_t most_key_bytes = 65536;

constexpr const char* no_memory = "no memory";  // short enough to need none

// A lease that was renewed keeps its old place among the ends until that comes near. Those that
// come near together are moved together.
constexpr std::chrono::milliseconds refresh_ahead{10};

// Thousands of leases don't fit into the processor's cache. What is needed next is fetched while
// the present one is dealt with.
void prefetch(const Kept* lease) noexcept {
  constexpr std::size_t cache_line = 64;
  constexpr std::size_t lines = 6;
  for (std::size_t i = 0; i < lines; ++i) {
    __builtin_prefetch(reinterpret_cast<const char*>(lease) + i * cache_line);
  }
}

}  // namespace

Keeper::Keeper(wire::Connector& connector, Notifier& notifier)
    : notifier_(notifier), stream_(connector) {
  answers_.reserve(8);  // more are never under way
}

// ---- for all threads ---------------------------------------------------------------------------

void Keeper::start() {
  const std::lock_guard lock{mutex_};
  if (thread_.joinable()) return;
  if (!timer_) timer_.emplace();
  thread_ = start_quiet_thread("redlease-keeper", [this] { run(); });
}

void Keeper::stop() noexcept {
  {
    const std::lock_guard lock{mutex_};
    if (!thread_.joinable()) return;
    stopping_ = true;
    wake_at({});
  }
  thread_.join();
}

void Keeper::keep(Kept& lease) noexcept {
  const std::lock_guard lock{mutex_};
  place(lease, lease.look(Clock::now()));
  const auto first = std::min(lease.due_, lease.end_);
  if (first < waking_at_) wake_at(first);
}

bool Keeper::settle(Kept& lease, Clock::time_point until) noexcept {
  std::unique_lock lock{mutex_};
  const auto left = std::max(until - Clock::now(), Clock::duration::zero());
  return settled_.wait_until(lock, std::chrono::steady_clock::now() + left,
                             [&] { return !lease.in_request_; });
}

void Keeper::forget(Kept& lease) noexcept {
  const std::lock_guard lock{mutex_};
  if (lease.in_request_) {
    Kept* const nobody = nullptr;
    for (auto& request : requests_) std::replace(request.begin(), request.end(), &lease, nobody);
    leave_request(lease);
  }
  place(lease, {});
}

void Keeper::nudge() noexcept {
  nudged_.store(true);
  timer_->set({});
}

void Keeper::abandon() noexcept {
  if (timer_) timer_->close();
  stream_.abandon();
}

void Keeper::wake_at(Clock::time_point when) noexcept {
  waking_at_ = when;
  timer_->set(when);
}

// ---- where a lease is --------------------------------------------------------------------------

// Leases mostly have like terms, so that the one dealt with last is the last one to be due again.
void Keeper::set_due(Kept& lease, Clock::time_point due) noexcept {
  if (due == lease.due_) return;
  if (lease.due_ != Kept::never) by_due_.erase(by_due_.iterator_to(lease));
  lease.due_ = due;
  if (due != Kept::never) by_due_.insert(by_due_.end(), lease);
}

void Keeper::set_end(Kept& lease, Clock::time_point end) noexcept {
  if (end == lease.end_) return;
  if (lease.end_ != Kept::never) by_end_.erase(by_end_.iterator_to(lease));
  lease.end_ = end;
  if (end != Kept::never) by_end_.insert(by_end_.end(), lease);
}

void Keeper::place(Kept& lease, const Kept::Step& step) noexcept {
  set_due(lease, lease.in_request_ ? Kept::never : step.due);
  // Seeing to its end too early does no harm, and most ends never come.
  const bool later = step.end > lease.end_ && step.end != Kept::never;
  if (!later) set_end(lease, step.end);
}

void Keeper::leave_request(Kept& lease) noexcept {
  lease.in_request_ = false;
  settled_.notify_all();
}

// ---- the thread --------------------------------------------------------------------------------

void Keeper::run() noexcept {
  for (;;) {
    const auto assist_at = notifier_.assist(Clock::now());  // may start threads
    std::unique_lock lock{mutex_};
    if (stopping_) return;
    const auto now = Clock::now();
    bool more = look_at_ends(now);
    more = fail_due(now) || more;
    connect(now);
    send_request(now);
    const auto next = more ? now : std::min(assist_at, next_instant(now));
    // A timer that goes off for nothing is cheaper than one that is set for each request.
    if (next > now && (next < waking_at_ || waking_at_ <= now)) wake_at(next);
    lock.unlock();
    const bool timer_went_off = communicate(next);
    lock.lock();
    if (timer_went_off) waking_at_ = {};  // to be set anew; others may have set it
    for (const auto& answer : answers_) deliver(answer, Clock::now());
    answers_.clear();
  }
}

bool Keeper::any_due(Clock::time_point now) const noexcept {
  return !by_due_.empty() && by_due_.begin()->due_ <= now;
}

Clock::time_point Keeper::next_instant(Clock::time_point now) noexcept {
  auto next = stream_.wake_at(now);
  if (!by_end_.empty()) next = std::min(next, by_end_.begin()->end_);
  // Those that are due and can't be sent yet wait for the stream.
  if (!by_due_.empty() && (!any_due(now) || stream_.has_room() || trouble_)) {
    next = std::min(next, by_due_.begin()->due_);
  }
  return next;
}

// Without the mutex: writes, waits until something happens or `next` comes, and reads. True if the
// timer has gone off.
bool Keeper::communicate(Clock::time_point next) noexcept {
  std::array<pollfd, 2> polled{};
  try {
    const bool was_connected = stream_.connected();
    stream_.advance();
    if (stream_.connected() && !was_connected) return false;  // there is something to send now
    polled = {{{timer_->fd(), POLLIN, 0}, {stream_.fd(), stream_.events(), 0}}};
    const bool wait = next > Clock::now() && !nudged_.exchange(false);
    (void)::poll(polled.data(), polled.size(), wait ? -1 : 0);
    const auto now = Clock::now();
    if (polled[1].revents == 0 && stream_.wake_at(now) > now) return polled[0].revents != 0;
    while (auto answer = stream_.next_answer(now)) {
      answers_.push_back(std::move(*answer));
      if (!stream_.may_have_answer()) break;
    }
  } catch (const Error& error) {
    fail(static_cast<errc>(error.code().value()), error.what());
  } catch (...) {
    fail(errc::unavailable, no_memory);
  }
  return polled[0].revents != 0;
}

bool Keeper::look_at_ends(Clock::time_point now) noexcept {
  const auto any_ended = [&] { return !by_end_.empty() && by_end_.begin()->end_ <= now; };
  if (!any_ended()) return false;
  auto next = by_end_.begin();
  for (int looks = 0; looks < most_at_once; ++looks) {
    if (next == by_end_.end() || next->end_ > now + refresh_ahead) break;
    Kept& lease = *next++;
    const auto step = lease.look(now);
    set_end(lease, step.end);
    set_due(lease, lease.in_request_ ? Kept::never : step.due);
  }
  return any_ended();
}

// ---- renewing ----------------------------------------------------------------------------------

void Keeper::fail(errc code, const char* cause) noexcept {
  try {
    trouble_ = store::Failure{code, cause, true, false};
  } catch (const std::bad_alloc&) {
    trouble_ = store::Failure{code, no_memory, true, false};
  }
}

// When nothing can be sent, those that are due try again soon, each in its own time.
bool Keeper::fail_due(Clock::time_point now) noexcept {
  if (!trouble_) return false;
  for (int i = 0; any_due(now); ++i) {
    if (i == most_at_once) return true;
    Kept& lease = *by_due_.begin();
    place(lease, lease.not_renewed(&*trouble_, now));
  }
  trouble_.reset();
  return false;
}

void Keeper::connect(Clock::time_point now) noexcept {
  if (trouble_ || stream_.connected() || stream_.connecting() || !stream_.idle()) return;
  auto end = Kept::never;
  while (end == Kept::never) {
    if (!any_due(now)) return;
    Kept& lease = *by_due_.begin();
    const auto step = lease.look(now);
    if (step.due <= now) end = step.end;
    place(lease, step);  // things may have changed
  }
  try {
    stream_.connect(core::RenewalPlan::try_until(now, end));
  } catch (const Error& error) {
    fail(static_cast<errc>(error.code().value()), error.what());
  } catch (...) {
    fail(errc::unavailable, no_memory);
  }
}

// One at a time: it is written before the next one is made, so that the server doesn't wait.
void Keeper::send_request(Clock::time_point now) noexcept {
  if (!any_due(now) || trouble_ || !stream_.has_room()) return;
  try {
    requests_.emplace_back();
  } catch (...) {
    return fail(errc::unavailable, no_memory);
  }
  try {
    const auto give_up_at = fill_request(now);
    if (!renewals_.empty()) return stream_.send(renewals_, now, give_up_at);
  } catch (...) {
    fail(errc::unavailable, no_memory);
  }
  auto& unsent = requests_.back();
  unsent.erase(std::unique(unsent.begin(), unsent.end()), unsent.end());
  for (Kept* lease : unsent) {
    leave_request(*lease);
    place(*lease, lease->not_renewed(&*trouble_, now));
  }
  requests_.pop_back();
}

// Takes those that are due and, since one request serves many, those that are due soon.
Clock::time_point Keeper::fill_request(Clock::time_point now) {
  constexpr auto most = store::RenewalStream::most_renewals;
  auto& request = requests_.back();
  request.reserve(most);
  renewals_.clear();
  renewals_.reserve(most);
  auto give_up_at = Kept::never;
  std::size_t bytes = 0;
  auto next = by_due_.begin();
  for (int asked = 0; next != by_due_.end(); ++asked) {
    if (request.size() >= most || bytes >= most_key_bytes) break;
    Kept& lease = *next++;
    if (next != by_due_.end()) prefetch(&*next);
    const bool due = lease.due_ <= now;
    if (!due && (request.size() >= enough_company || asked >= most_asked)) break;
    if (lease.alone_ && !request.empty()) break;
    Kept::Try begun;
    if (lease.begin_renewal(now, !due, begun)) {
      set_due(lease, Kept::never);
      lease.in_request_ = true;
      for (const auto& key : begun.keys) {
        request.push_back(&lease);
        renewals_.push_back({key, begun.token, begun.ttl});
        bytes += key.size();
      }
      give_up_at = std::min(give_up_at, begun.give_up_at);
      if (lease.alone_) break;
    } else if (due) {
      place(lease, lease.look(now));  // things have changed
    }
  }
  return give_up_at;
}

// A lease on several keys is there once for each of them.
void Keeper::strike_out(Request& request, std::size_t index) noexcept {
  Kept* const lease = request[index];
  while (index > 0 && request[index - 1] == lease) --index;
  while (index < request.size() && request[index] == lease) request[index++] = nullptr;
}

void Keeper::deliver(const store::RenewalAnswer& answer, Clock::time_point now) noexcept {
  auto& request = requests_.front();
  // What was refused for good may be the fault of one of them: each tries again by itself.
  const bool together = !request.empty() && request.front() != request.back();
  const bool refused_together = together && answer.failure && !answer.unknown_script &&
                                !answer.failure->transient && !answer.failure->in_doubt;
  for (const auto& [index, found] : answer.not_ours) {
    Kept* const lease = request[index];
    if (lease == nullptr) continue;
    strike_out(request, index);
    leave_request(*lease);
    place(*lease, lease->not_ours(found, now));
  }
  for (std::size_t i = 0; i < request.size(); ++i) {
    if (i + 1 < request.size() && request[i + 1] != nullptr) prefetch(request[i + 1]);
    Kept* const lease = request[i];
    if (lease == nullptr || (i > 0 && request[i - 1] == lease)) continue;
    leave_request(*lease);
    lease->alone_ = answer.failure && (lease->alone_ || refused_together);
    if (answer.unknown_script || refused_together) {
      place(*lease, lease->not_renewed(nullptr, now));
    } else if (answer.failure) {
      place(*lease, lease->not_renewed(&*answer.failure, now));
    } else {
      place(*lease, lease->renewed(answer.sent, now));
    }
  }
  requests_.pop_front();
}

}  // namespace redlease::inline v1::runtime

#endif
