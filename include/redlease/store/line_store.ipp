#ifndef REDLEASE_STORE_LINE_STORE_IPP
#define REDLEASE_STORE_LINE_STORE_IPP

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include <fmt/format.h>
#include <redlease/core/key_slot.hpp>
#include <redlease/store/line_store.hpp>
#include <redlease/wire/command.hpp>
#include <redlease/wire/server_error.hpp>

namespace redlease::inline v1::store {
namespace {

// A process that can't hear of grants, or doesn't want to.
constexpr std::string_view nobody = "-";

// A line without a sign of life for that long is gone.
constexpr std::chrono::milliseconds line_lasts{60'000};

// See lua/line.lua.
constexpr std::size_t reply_size = 6;

// Leaving may take that long, though the time of the wait is over.
constexpr std::chrono::milliseconds least_patience{50};

// A ticket of this process that got the lease: a negative number has to accept it.
LineGrant grant_in(const wire::Reply& reply) {
  const auto number = reply.elements[1].integer;
  return {static_cast<std::uint64_t>(number < 0 ? -number : number), number > 0};
}

void forget(void*, wire::Outcome&&) noexcept {}

const std::string& counter_of(const Demand& demand) {
  static const std::string none;
  return demand.counters.empty() ? none : demand.counters.front();
}

// A ticket that is left behind costs others a window, or if it is granted by one of this process
// its whole ttl. So leaving is tried once more.
struct Leaving {
  Leaving(wire::Pipelines& through, std::string words)
      : pipelines(through), command(std::move(words)) {}
  wire::Pipelines& pipelines;
  std::string command;

  static void done(void* context, wire::Outcome&& outcome) noexcept {
    const std::unique_ptr<Leaving> self{static_cast<Leaving*>(context)};
    if (outcome.kind == wire::Outcome::Kind::answered && !outcome.reply.is_error()) return;
    const auto now = Clock::now();
    try {
      self->pipelines.owe({std::move(self->command), now, now + line_lasts, forget, nullptr});
    } catch (...) {
      // No memory.
    }
  }
};

}  // namespace

LineStore::LineStore(LeaseStore& leases, wire::Pipelines& pipelines, std::string process)
    : leases_(leases), pipelines_(pipelines), process_(std::move(process)) {}

std::string LineStore::text_of(const Ticket& ticket) const {
  return fmt::format("{}:{}{}:{}:{}", ticket.deaf ? nobody : process_, ticket.number,
                     ticket.demand.counters.empty() ? "" : "f", ticket.demand.ttl.count(),
                     ticket.token.reveal());
}

wire::Command LineStore::command(By by, std::string_view verb, std::string_view key,
                                 std::string_view process, std::string_view subject,
                                 std::string_view place, const std::string& counter) const {
  const auto line = core::beside(key, "redlease:line");
  const auto within = std::to_string(window.count());
  const auto lasts = std::to_string(line_lasts.count());
  const bool text = by == By::text;
  const std::array<std::string_view, 6> call{text ? "EVAL" : "EVALSHA",
                                             text ? lua::line.text : lua::line.sha1,
                                             counter.empty() ? "2" : "3",
                                             key,
                                             line,
                                             counter};
  const std::array<std::string_view, 6> arguments{verb, process, within, lasts, subject, place};
  return {std::span{call}.first(counter.empty() ? 5 : 6), arguments};
}

wire::Outcome LineStore::call(std::string_view verb, std::string_view key, std::string_view subject,
                              std::string_view place, const std::string& counter,
                              Clock::time_point deadline) {
  const auto send = [&](By by) {
    const auto words = command(by, verb, key, process_, subject, place, counter);
    return pipelines_.call(words, deadline, key);
  };
  auto outcome = send(By::sha1);
  if (is_no_script(outcome)) outcome = send(By::text);
  in_cache_.note(outcome);
  return outcome;
}

// ---- waiting -----------------------------------------------------------------------------------

LineStep LineStore::take(std::string_view key, const Ticket& ticket, Clock::time_point limit) {
  auto copy = ticket;
  return step("try", key, copy, limit);
}

LineStep LineStore::join(std::string_view key, Ticket& ticket, Clock::time_point limit) {
  return step("join", key, ticket, limit);
}

LineStep LineStore::step(std::string_view verb, std::string_view key, Ticket& ticket,
                         Clock::time_point limit) {
  LineStep result;
  const auto outcome = call(verb, key, text_of(ticket), ticket.place, counter_of(ticket.demand),
                            leases_.deadline(limit));
  result.sent = outcome.sent;
  const auto& reply = outcome.reply;
  if (outcome.kind != wire::Outcome::Kind::answered) {
    result.failure = leases_.failure("acquire", key, outcome);
    if (outcome.kind == wire::Outcome::Kind::in_doubt) give_up(key, ticket, outcome);
  } else if (reply.type == wire::Reply::Type::array && reply.elements.size() == reply_size) {
    const bool ours = reply.elements[0].integer == 1;
    const auto numbers = read_numbers(reply.elements[5], ticket.demand);
    if (ours && numbers) result.grant = Grant{ticket.token, outcome.sent, *numbers};
    if (ours && !numbers) {
      result.failure = leases_.refusal("acquire", key, {}, {});
      give_up(key, ticket, outcome);
    }
    result.granted = grant_in(reply);
    if (verb == "join" && !ours) ticket.place = reply.elements[2].text;
    result.missed = reply.elements[3].integer == 1;
    result.first = reply.elements[4].integer == 1;
  } else {
    result.failure = leases_.refusal("acquire", key, ticket.token.reveal(), reply);
  }
  return result;
}

// The request may run yet. What it leaves behind is removed on its own connection, and once more
// with what is sent next, should that have broken in between.
void LineStore::give_up(std::string_view key, const Ticket& ticket, const wire::Outcome& doubtful) {
  const auto words = leaving(key, ticket);
  const auto now = Clock::now();
  wire::Pipelines::follow_up(doubtful, words, now);
  pipelines_.owe({std::string{words.bytes()}, now, now + std::max(ticket.demand.ttl, line_lasts),
                  forget, nullptr});
}

wire::Command LineStore::leaving(std::string_view key, const Ticket& ticket) const {
  return command(By::text, "leave", key, nobody, text_of(ticket), ticket.place, {});
}

void LineStore::leave(std::string_view key, const Ticket& ticket,
                      Clock::time_point limit) noexcept {
  try {
    const auto words = leaving(key, ticket);
    const auto now = Clock::now();
    if (!pipelines_.connected()) {
      pipelines_.owe({std::string{words.bytes()}, now, now + line_lasts, forget, nullptr});
      return;
    }
    const auto deadline =
        std::min(now + pipelines_.timeouts().command, std::max(limit, now + least_patience));
    auto context = std::make_unique<Leaving>(pipelines_, std::string{words.bytes()});
    pipelines_.post(key, words, deadline, Leaving::done, context.get());
    (void)context.release();  // it is done()'s now
  } catch (...) {
    // No memory: the ticket is passed over when nobody accepts its grant.
  }
}

// ---- giving back -------------------------------------------------------------------------------

Comparison LineStore::release(std::string_view key, std::string_view token, Clock::time_point limit,
                              LineGrant& granted) {
  return leases_.release_by(
      key, token, limit,
      [&](Clock::time_point until) { return call("release", key, token, "0", {}, until); },
      [&](const wire::Outcome& outcome) { return comparison_of(key, token, outcome, granted); });
}

void LineStore::post_release(std::string_view key, std::string_view token, wire::Completion done,
                             void* context) {
  const auto now = Clock::now();
  const auto by = in_cache_.is_sure(now) ? By::sha1 : By::text;
  // Nobody waits for the reply, so it must not be the only one to tell of a grant.
  pipelines_.post(key, command(by, "release", key, nobody, token, "0", {}),
                  now + pipelines_.timeouts().command, done, context);
}

Comparison LineStore::answer_to_post(std::string_view key, std::string_view token,
                                     const wire::Outcome& outcome) {
  in_cache_.note(outcome);
  LineGrant granted;
  return comparison_of(key, token, outcome, granted);
}

Comparison LineStore::comparison_of(std::string_view key, std::string_view token,
                                    const wire::Outcome& outcome, LineGrant& granted) const {
  const auto& reply = outcome.reply;
  if (reply.type != wire::Reply::Type::array || reply.elements.size() != reply_size) {
    return leases_.comparison_of("release", key, token, outcome);
  }
  granted = grant_in(reply);
  wire::Outcome first;
  first.kind = outcome.kind;
  first.sent = outcome.sent;
  first.reply = reply.elements[0];
  return leases_.comparison_of("release", key, token, first);
}

}  // namespace redlease::inline v1::store

#endif
