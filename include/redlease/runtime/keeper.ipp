#ifndef REDLEASE_RUNTIME_KEEPER_IPP
#define REDLEASE_RUNTIME_KEEPER_IPP

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>

#include <redlease/core/renewal_plan.hpp>
#include <redlease/error.hpp>
#include <redlease/runtime/keeper.hpp>

namespace redlease::inline v1::runtime {
namespace {

constexpr auto never = Clock::time_point::max();

// Leases that are dealt with before others, who call keep() and forget(), get the mutex again.
constexpr int most_at_once = 256;

// The keys of a request, together, are not much longer.
constexpr std::size_t most_key_bytes = 65536;

// Leases that are asked whether they want to join a request.
constexpr int most_asked = 2 * static_cast<int>(store::RenewalStream::most_renewals);

// A thread that the application's signal handlers never run on: they could hold it up.
std::thread start_quiet_thread(auto&& function) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  struct Restore {
    sigset_t& mask;
    ~Restore() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } restore{before};
  return std::thread{std::forward<decltype(function)>(function)};
}

}  // namespace

// ---- for all threads ---------------------------------------------------------------------------

void Keeper::start() {
  const std::lock_guard lock{mutex_};
  if (thread_.joinable()) return;
  if (!timer_) timer_.emplace();
  thread_ = start_quiet_thread([this] { run(); });
  (void)::pthread_setname_np(thread_.native_handle(), "redlease-keeper");
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

void Keeper::keep(Kept& lease, Clock::time_point when) noexcept {
  const std::lock_guard lock{mutex_};
  place(lease, lease.place_ == Kept::Place::request ? lease.place_ : Kept::Place::schedule, when);
  if (when < waking_at_) wake_at(when);
}

bool Keeper::settle(Kept& lease, Clock::time_point until) noexcept {
  std::unique_lock lock{mutex_};
  if (lease.place_ == Kept::Place::ready) place(lease, Kept::Place::schedule, lease.when_);
  const auto left = std::max(until - Clock::now(), Clock::duration::zero());
  return settled_.wait_until(lock, std::chrono::steady_clock::now() + left,
                             [&] { return lease.place_ != Kept::Place::request; });
}

void Keeper::forget(Kept& lease) noexcept {
  const std::lock_guard lock{mutex_};
  if (lease.place_ == Kept::Place::request) {
    Kept* const nobody = nullptr;
    for (auto& request : requests_) std::replace(request.begin(), request.end(), &lease, nobody);
  }
  take_out(lease);
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

void Keeper::take_out(Kept& lease) noexcept {
  const auto where = std::exchange(lease.place_, Kept::Place::nowhere);
  if (where == Kept::Place::nowhere) return;
  auto& tree = where == Kept::Place::schedule ? schedule_ : ends_;
  tree.erase(tree.iterator_to(lease));
  if (where == Kept::Place::ready) ready_.erase(ready_.iterator_to(lease));
  if (where == Kept::Place::request) settled_.notify_all();
}

void Keeper::place(Kept& lease, Kept::Place where, Clock::time_point when) noexcept {
  take_out(lease);
  lease.when_ = when;
  lease.place_ = where;
  // Leases mostly have like terms, so that the one looked at last is the last one to look at.
  auto& tree = where == Kept::Place::schedule ? schedule_ : ends_;
  tree.insert(tree.end(), lease);
  if (where == Kept::Place::ready) ready_.push_back(lease);
}

void Keeper::look(Kept& lease, Clock::time_point now) noexcept {
  const auto step = lease.look(now, false);
  if (step.next == never) {
    take_out(lease);
  } else {
    place(lease, step.renew ? Kept::Place::ready : Kept::Place::schedule, step.next);
  }
}

// ---- the thread --------------------------------------------------------------------------------

void Keeper::run() noexcept {
  std::unique_lock lock{mutex_};
  while (!stopping_) {
    const auto now = Clock::now();
    if (nudged_.exchange(false)) waking_at_ = {};
    bool more = look_at_due(schedule_, now);
    more = look_at_due(ends_, now) || more;  // each of them has its turn
    more = fail_ready(now) || more;
    connect(now);
    send_requests(now);
    const auto next = more ? std::min(next_instant(now), now) : next_instant(now);
    if (next != waking_at_) wake_at(next);
    lock.unlock();
    communicate(next);
    lock.lock();
    for (const auto& answer : answers_) deliver(answer, Clock::now());
    answers_.clear();
  }
}

bool Keeper::look_at_due(Schedule& tree, Clock::time_point now) noexcept {
  const auto due = [&] { return !tree.empty() && tree.begin()->when_ <= now; };
  for (int i = 0; i < most_at_once && due(); ++i) {
    Kept& lease = *tree.begin();
    if (lease.place_ == Kept::Place::request) {
      place(lease, Kept::Place::request, lease.look(now, false).next);  // until its answer comes
    } else {
      look(lease, now);
    }
  }
  return due();
}

Clock::time_point Keeper::next_instant(Clock::time_point now) noexcept {
  auto next = std::min(stream_.wake_at(now), notifier_.assist(now));
  if (!schedule_.empty()) next = std::min(next, schedule_.begin()->when_);
  if (!ends_.empty()) next = std::min(next, ends_.begin()->when_);
  return next;
}

// Without the mutex: writes, waits until something happens or `next` comes, and reads.
void Keeper::communicate(Clock::time_point next) noexcept {
  try {
    const bool was_connected = stream_.connected();
    stream_.advance();
    if (stream_.connected() && !was_connected) return;  // there is something to send now
    std::array<pollfd, 2> polled{{{timer_->fd(), POLLIN, 0}, {stream_.fd(), stream_.events(), 0}}};
    const bool wait = next > Clock::now() && !nudged_.load();
    (void)::poll(polled.data(), polled.size(), wait ? -1 : 0);
    const auto now = Clock::now();
    if (polled[1].revents == 0 && stream_.wake_at(now) > now) return;
    while (auto answer = stream_.next_answer(now)) answers_.push_back(std::move(*answer));
  } catch (const Error& error) {
    trouble_ = store::Failure{static_cast<errc>(error.code().value()), error.what(), true, false};
  } catch (...) {
    trouble_ = store::Failure{errc::unavailable, "no memory", true, false};
  }
}

// ---- renewing ----------------------------------------------------------------------------------

// Those that can't be sent now try again soon, each in its own time.
bool Keeper::fail_ready(Clock::time_point now) noexcept {
  if (!trouble_) return false;
  for (int i = 0; i < most_at_once && !ready_.empty(); ++i) {
    Kept& lease = ready_.front();
    lease.not_renewed(&*trouble_, now);
    look(lease, now);
  }
  if (ready_.empty()) trouble_.reset();
  return trouble_.has_value();
}

void Keeper::connect(Clock::time_point now) noexcept {
  if (ready_.empty() || trouble_ || stream_.connected() || stream_.connecting() || !stream_.idle())
    return;
  try {
    stream_.connect(core::RenewalPlan::try_until(now, ready_.front().when_));
  } catch (const Error& error) {
    trouble_ = store::Failure{static_cast<errc>(error.code().value()), error.what(), true, false};
  } catch (...) {
    trouble_ = store::Failure{errc::unavailable, "no memory", true, false};
  }
}

void Keeper::send_requests(Clock::time_point now) noexcept {
  while (!ready_.empty() && !trouble_ && stream_.has_room()) {
    try {
      requests_.emplace_back();
    } catch (...) {
      trouble_ = store::Failure{errc::unavailable, "no memory", true, false};
      return;
    }
    try {
      auto until = never;
      fill_request(now, until);
      if (!renewals_.empty()) {
        stream_.send(renewals_, now, until);
        continue;
      }
    } catch (...) {
      trouble_ = store::Failure{errc::unavailable, "no memory", true, false};
    }
    conclude(requests_.back(), now,
             [&](Kept& lease) { lease.not_renewed(trouble_ ? &*trouble_ : nullptr, now); });
    requests_.pop_back();
  }
}

void Keeper::fill_request(Clock::time_point now, Clock::time_point& until) {
  renewals_.clear();
  renewals_.reserve(store::RenewalStream::most_renewals);
  requests_.back().reserve(store::RenewalStream::most_renewals);
  std::size_t bytes = 0;  // keys may be long
  const auto full = [&] {
    return renewals_.size() == store::RenewalStream::most_renewals || bytes >= most_key_bytes;
  };
  while (!ready_.empty() && !full()) {
    bytes += add_to_request(ready_.front(), ready_.front().when_, now, until);
  }
  // One request serves many: those that are due soon are renewed along with them.
  auto candidate = schedule_.begin();
  for (int i = 0; i < most_asked && candidate != schedule_.end() && !full(); ++i) {
    Kept& lease = *candidate++;
    const auto step = lease.look(now, true);
    if (step.renew) bytes += add_to_request(lease, step.next, now, until);
  }
}

// Returns the size of the key.
std::size_t Keeper::add_to_request(Kept& lease, Clock::time_point end, Clock::time_point now,
                                   Clock::time_point& until) noexcept {
  store::Renewal renewal;
  const auto bound = lease.begin_renewal(now, renewal);
  if (!bound) {
    look(lease, now);
    return 0;
  }
  until = std::min(until, *bound);
  place(lease, Kept::Place::request, end);
  // Room was reserved.
  requests_.back().push_back(&lease);
  renewals_.push_back(renewal);
  return renewal.key.size();
}

void Keeper::deliver(const store::RenewalAnswer& answer, Clock::time_point now) noexcept {
  auto& request = requests_.front();
  for (const auto& [index, found] : answer.not_ours) {
    if (index >= request.size() || request[index] == nullptr) continue;
    Kept& lease = *std::exchange(request[index], nullptr);
    lease.not_ours(found, now);
    look(lease, now);
  }
  conclude(request, now, [&](Kept& lease) {
    if (answer.unknown_script) {
      lease.not_renewed(nullptr, now);
    } else if (answer.failure) {
      lease.not_renewed(&*answer.failure, now);
    } else {
      lease.renewed(answer.sent, now);
    }
  });
  requests_.pop_front();
}

// The request is over: tells its leases, and has each of them look further.
void Keeper::conclude(const Request& request, Clock::time_point now, auto&& tell) noexcept {
  for (Kept* lease : request) {
    if (lease == nullptr) continue;
    tell(*lease);
    look(*lease, now);
  }
}

}  // namespace redlease::inline v1::runtime

#endif
