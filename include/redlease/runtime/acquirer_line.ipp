#ifndef REDLEASE_RUNTIME_ACQUIRER_LINE_IPP
#define REDLEASE_RUNTIME_ACQUIRER_LINE_IPP

// Of the Acquirer: waiting in the line of all processes, for Order::fifo.

#include <algorithm>
#include <utility>

#include <redlease/runtime/acquirer.hpp>
#include <redlease/token.hpp>

namespace redlease::inline v1::detail {
namespace {

// To connect takes a millisecond or two.
constexpr std::chrono::milliseconds longest_await{50};

}  // namespace

// Only if there is none.
bool Acquirer::take_in_line(const core::WaitPlan& plan) {
  const auto began = Clock::now();
  const store::Ticket ticket{backend_.room.next_number(), Token::generate(), terms_.demand};
  auto step = backend_.line.take(key_, ticket, plan.deadline());
  if (step.granted.number != 0) backend_.room.granted(step.granted, step.sent);
  if (step.grant) return accept(ticket, *step.grant, plan);
  note(std::move(step.failure), began, plan);
  return false;
}

bool Acquirer::accept(const store::Ticket& ticket, const store::Grant& grant,
                      const core::WaitPlan& plan) {
  if (store::LeaseStore::lateness(terms_.demand, grant.sent).count() >= 0) {
    backend_.line.leave(key_, ticket, plan.deadline());
    trouble_ = store::Failure{
        errc::unavailable,
        backend_.store.describe("acquire", key_, "the server's reply came late; it was given back"),
        true, false};
    answered_at_ = Clock::now();
    return false;
  }
  trouble_.reset();
  grant_ = grant;
  return true;
}

bool Acquirer::wait_in_line(const Wait& wait, core::WaitPlan& plan) {
  backend_.wakeups.start();
  std::string place = "0";
  for (;;) {
    // A ticket is good for one grant, but its successor inherits the place in the line.
    store::Ticket ticket{backend_.room.next_number(), Token::generate(), terms_.demand};
    ticket.place = place;
    const auto stay = stand_in_line(wait, plan, ticket);
    if (stay != Stay::ticket_void) return stay == Stay::granted;
    place = ticket.place;
  }
}

Acquirer::Stay Acquirer::stand_in_line(const Wait& wait, core::WaitPlan& plan,
                                       store::Ticket& ticket) {
  auto place = backend_.room.enter_line(key_, terms_.demand, ticket);
  struct Leave {
    Acquirer& self;
    store::Ticket& ticket;
    Place& place;
    const core::WaitPlan& plan;
    ~Leave() {
      const bool served = self.grant_.has_value();
      // One who never had a place has nothing to leave; what is in doubt is cleaned up already.
      if (!served && ticket.place != "0") {
        self.backend_.line.leave(self.key_, ticket, plan.deadline());
      }
      place.wake_next(served);
    }
  } const leave{*this, ticket, place, plan};

  // A process that hears of its grants is served sooner: worth a moment.
  backend_.room.await_watch(std::min(plan.deadline(), Clock::now() + longest_await));
  ticket.deaf = !backend_.room.hears_grants();
  for (bool fresh = true;; fresh = false) {
    const auto began = Clock::now();
    auto step = backend_.line.join(key_, ticket, plan.deadline());
    if (step.granted.number != 0) backend_.room.granted(step.granted, step.sent);
    // Whoever else of this process was in line has been taken out of it, too.
    if (step.missed && !fresh && place.is_first()) place.wake_others();
    if (!step.grant && !step.failure) place.stands_at(ticket.place, step.first);
    if (step.grant && accept(ticket, *step.grant, plan)) return Stay::granted;
    const bool used_up = step.grant || (step.failure && step.failure->in_doubt);
    if (!step.grant) note(std::move(step.failure), began, plan);
    // Who hears, or doesn't any more, needs another ticket.
    const bool other_ticket = ticket.deaf == backend_.room.hears_grants();
    if (other_ticket && !trouble_ && !wait.attempts) return Stay::ticket_void;

    const auto next = next_sign(place, wait, ticket, plan);
    if (!next && !plan.has_attempts()) return Stay::over;
    if (!next && listening()) hint_ = what_is_there(plan.deadline());
    const auto news = wait_while_needed(place, wait, next.value_or(plan.deadline()));
    if (!news) {
      trouble_.reset();
      return Stay::over;
    }
    // What such a ticket is granted goes on to the next one: see LineStore::join().
    if (news->grant && !used_up) {
      return accept(ticket, *news->grant, plan) ? Stay::granted : Stay::ticket_void;
    }
    if (!next && Clock::now() >= plan.deadline()) return Stay::over;
    if (used_up) return Stay::ticket_void;
  }
}

// Asks whether the lease is needed still at the pace of the back-off, which takes no request.
// Nothing when it isn't, or a stop is requested.
std::optional<runtime::News> Acquirer::wait_while_needed(Place& place, const Wait& wait,
                                                         Clock::time_point until) {
  core::BackoffSchedule pace{wait.backoff.min, wait.backoff.max};
  for (;;) {
    const auto pause =
        wait.still_needed ? pace.next(random_unit()) : std::chrono::nanoseconds::max();
    const auto now = Clock::now();
    auto news = place.wait(pause < until - now ? now + pause : until, wait.stop, false);
    if (wait.stop.stop_requested() || (wait.still_needed && !wait.still_needed())) return {};
    if (news.grant || news.called || Clock::now() >= until) return news;
  }
}

// When to join again without having heard of a grant. The first of a process looks after a free
// lease that nobody granted; for the others it is a sign of life.
std::optional<Clock::time_point> Acquirer::next_sign(const Place& place, const Wait& wait,
                                                     const store::Ticket& ticket,
                                                     core::WaitPlan& plan) const {
  const auto now = Clock::now();
  const auto random = random_unit();
  const bool deaf = ticket.deaf || !backend_.room.hears_grants();
  if (wait.attempts || trouble_ || deaf) {
    const auto next = plan.next_attempt(now, random);
    if (!next || wait.attempts || trouble_) return next;
    return std::min(*next, now + store::LineStore::window / 3);  // in time to accept a grant
  }
  const std::chrono::duration<double, std::milli> pause{(place.is_first() ? 200 : 5000) *
                                                        (1 + random)};
  return plan.within(now, now + std::chrono::duration_cast<std::chrono::nanoseconds>(pause));
}

}  // namespace redlease::inline v1::detail

#endif
