#ifndef REDLEASE_STORE_LEASE_STORE_IPP
#define REDLEASE_STORE_LEASE_STORE_IPP

#include <algorithm>

#include <fmt/format.h>
#include <redlease/core/lease_state.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/wire/server_error.hpp>

namespace redlease::inline v1::store {
namespace {

using wire::Command;
using wire::Outcome;
using wire::Reply;

Command evalsha(const lua::Script& script, std::string_view key,
                std::initializer_list<std::string_view> arguments) {
  const std::array<std::string_view, 4> call{"EVALSHA", script.sha1, "1", key};
  return {call, {arguments.begin(), arguments.size()}};
}

Command eval_text(const lua::Script& script, std::string_view key,
                  std::initializer_list<std::string_view> arguments) {
  const std::array<std::string_view, 4> call{"EVAL", script.text, "1", key};
  return {call, {arguments.begin(), arguments.size()}};
}

bool answered(const Outcome& outcome) { return outcome.kind == Outcome::Kind::answered; }
bool in_doubt(const Outcome& outcome) { return outcome.kind == Outcome::Kind::in_doubt; }

Command set(std::string_view key, const Token& token, std::chrono::milliseconds ttl) {
  return {"SET", key, token.reveal(), "NX", "PX", std::to_string(ttl.count())};
}

void ignore(void*, Outcome&&) noexcept {}

}  // namespace

bool is_no_script(const Outcome& outcome) noexcept {
  return answered(outcome) && outcome.reply.is_error() &&
         wire::classify(outcome.reply.text) == wire::ServerError::no_script;
}

// ---- acquire -----------------------------------------------------------------------------------

Acquisition LeaseStore::acquire(std::string_view key, const Span& span, Clock::time_point limit) {
  const auto token = Token::generate();
  const auto outcome = pipelines_.call(set(key, token, span.ttl), deadline(limit), key);
  if (in_doubt(outcome)) return resolve_acquire(key, span, token, outcome, limit);
  return acquisition_of(key, token, span, outcome);
}

Acquisition LeaseStore::acquisition_of(std::string_view key, const Token& token, const Span& span,
                                       const Outcome& outcome) {
  if (!answered(outcome)) return {{}, failure("acquire", key, outcome)};
  const auto& reply = outcome.reply;
  if (reply.type == Reply::Type::nil) return {};
  if (reply.type == Reply::Type::status && reply.text == "OK") {
    return granted(key, token, span, outcome.sent);
  }
  return {{}, refusal("acquire", key, token.reveal(), reply)};
}

std::chrono::nanoseconds LeaseStore::lateness(const Span& span, Clock::time_point sent) noexcept {
  return Clock::now() - (core::LeaseState{sent, span.ttl}.valid_until() - span.reserve);
}

Acquisition LeaseStore::granted(std::string_view key, const Token& token, const Span& span,
                                Clock::time_point sent) {
  const auto late = lateness(span, sent);
  if (late.count() < 0) return {Grant{token, sent}, {}};
  give_back(key, token.reveal());
  return {{},
          Failure{errc::unavailable,
                  describe("acquire", key,
                           fmt::format("the server's reply came {} ms after the lease's "
                                       "{} had ended; it was given back",
                                       std::chrono::ceil<std::chrono::milliseconds>(late).count(),
                                       span.reserve.count() > 0 ? "time before the safety margin"
                                                                : "validity")),
                  true, false}};
}

// The request may have run. Its token tells: a key that holds it is ours, counted from the first
// send. Otherwise it may run yet, so its traces are removed, and one more try has a token of its
// own.
Acquisition LeaseStore::resolve_acquire(std::string_view key, const Span& span, const Token& token,
                                        const Outcome& doubtful, Clock::time_point limit) {
  const auto until = std::min(limit, Clock::now() + pipelines_.timeouts().command);
  const auto found =
      comparison_of("acquire", key, token.reveal(), look(lua::own, key, {token.reveal()}, until));
  if (!found.failure && found.ownership == Ownership::ours) {
    return granted(key, token, span, doubtful.sent);
  }
  clean_up(key, token, span.ttl, doubtful);
  if (found.failure) return {{}, failure("acquire", key, doubtful)};
  if (found.ownership == Ownership::other) return {};

  const auto fresh = Token::generate();
  const auto again = pipelines_.call(set(key, fresh, span.ttl), until, key);
  if (in_doubt(again)) clean_up(key, fresh, span.ttl, again);
  return acquisition_of(key, fresh, span, again);
}

// A compare-and-delete behind the doubtful request, on its own connection: the server runs it
// after that request or not at all. And once more with what is sent next, should the connection
// have broken between the two. The token must not be used again.
void LeaseStore::clean_up(std::string_view key, const Token& token, std::chrono::milliseconds ttl,
                          const Outcome& doubtful) {
  wire::Pipelines::follow_up(doubtful, eval_text(lua::release, key, {token.reveal()}),
                             Clock::now());
  disown(key, token, doubtful.sent + ttl);
}

void LeaseStore::disown(std::string_view key, const Token& token, Clock::time_point until) {
  owe_release(key, token.reveal(), Clock::now(), until, ignore, nullptr);
}

// ---- renew and release -------------------------------------------------------------------------

Comparison LeaseStore::renew(std::string_view key, std::string_view token,
                             std::chrono::milliseconds ttl, Clock::time_point limit) {
  const auto milliseconds = std::to_string(ttl.count());
  auto outcome = eval(lua::renew, key, {token, milliseconds}, deadline(limit));
  if (!in_doubt(outcome)) return comparison_of("renew", key, token, outcome);
  const auto until = std::min(limit, Clock::now() + pipelines_.timeouts().command);
  auto again =
      comparison_of("renew", key, token, eval(lua::renew, key, {token, milliseconds}, until));
  if (again.failure) again.failure = failure("renew", key, outcome);
  again.confirmed = false;  // the first one may run yet
  return again;
}

Comparison LeaseStore::release(std::string_view key, std::string_view token,
                               Clock::time_point limit) {
  const auto outcome = eval(lua::release, key, {token}, deadline(limit));
  if (!in_doubt(outcome)) return comparison_of("release", key, token, outcome);

  const auto until = std::min(limit, Clock::now() + pipelines_.timeouts().command);
  auto found = compare(key, token, until);
  if (!found.failure && found.ownership == Ownership::ours) {
    found = comparison_of("release", key, token, eval(lua::release, key, {token}, until));
  }
  if (found.failure) found.failure = failure("release", key, outcome);
  found.confirmed = !found.failure && found.ownership == Ownership::ours;
  return found;
}

Handover LeaseStore::hand_over(std::string_view key, std::string_view token, const Span& heir,
                               Clock::time_point limit) {
  const auto theirs = Token::generate();
  const auto outcome =
      eval(lua::handoff, key, {token, theirs.reveal(), std::to_string(heir.ttl.count())},
           deadline(limit));
  if (in_doubt(outcome)) return resolve_handover(key, token, theirs, heir, outcome, limit);
  auto found = comparison_of("release", key, token, outcome);
  if (found.failure && outcome.kind == Outcome::Kind::answered) {
    return {release(key, token, limit), {}};  // that needs no memory on the server, for instance
  }
  if (found.failure || found.ownership != Ownership::ours) return {std::move(found), {}};
  // One that comes too late for the heir is given back for him; it is nothing to the releaser.
  return {std::move(found), granted(key, theirs, heir, outcome.sent).grant};
}

// Either the heir's token is in the key: then he has it. Or ours is: then ours is released, after
// which the doubtful request finds nothing to hand on.
Handover LeaseStore::resolve_handover(std::string_view key, std::string_view token,
                                      const Token& theirs, const Span& heir,
                                      const Outcome& doubtful, Clock::time_point limit) {
  const auto until = std::min(limit, Clock::now() + pipelines_.timeouts().command);
  auto found = comparison_of("release", key, token, look(lua::own, key, {theirs.reveal()}, until));
  if (!found.failure && found.ownership == Ownership::ours) {
    return {std::move(found), granted(key, theirs, heir, doubtful.sent).grant};
  }
  if (!found.failure) {
    found = comparison_of("release", key, token, eval(lua::release, key, {token}, until));
  }
  if (found.failure) found.failure = failure("release", key, doubtful);
  found.confirmed = !found.failure && found.ownership == Ownership::ours;
  if (!found.confirmed) clean_up(key, theirs, heir.ttl, doubtful);
  return {std::move(found), {}};
}

void LeaseStore::post_release(std::string_view key, std::string_view token, wire::Completion done,
                              void* context) {
  const auto now = Clock::now();
  const auto command = release_in_cache_.is_sure(now) ? evalsha(lua::release, key, {token})
                                                      : eval_text(lua::release, key, {token});
  pipelines_.post(key, command, now + pipelines_.timeouts().command, done, context);
}

void LeaseStore::give_back(std::string_view key, std::string_view token) noexcept {
  try {
    post_release(key, token, ignore, nullptr);
  } catch (...) {
    // No memory to write the request: the ttl frees the key.
  }
}

bool LeaseStore::owe_release(std::string_view key, std::string_view token, Clock::time_point from,
                             Clock::time_point until, wire::Completion done, void* context) {
  const auto command = eval_text(lua::release, key, {token});
  return pipelines_.owe({std::string{command.bytes()}, from, until, done, context});
}

Comparison LeaseStore::compare(std::string_view key, std::string_view token,
                               Clock::time_point until) {
  return comparison_of("release", key, token, look(lua::own, key, {token}, until));
}

Comparison LeaseStore::comparison_of(std::string_view operation, std::string_view key,
                                     std::string_view token, const Outcome& outcome) const {
  Comparison found;
  found.sent = outcome.sent;
  if (!answered(outcome)) {
    found.failure = failure(operation, key, outcome);
    return found;
  }
  const auto& reply = outcome.reply;
  if (reply.type == Reply::Type::integer && reply.integer >= -1 && reply.integer <= 1) {
    found.ownership = reply.integer == 1   ? Ownership::ours
                      : reply.integer == 0 ? Ownership::other
                                           : Ownership::absent;
  } else if (reply.is_error() && wire::classify(reply.text) == wire::ServerError::wrong_type) {
    found.ownership = Ownership::other;
  } else {
    found.failure = refusal(operation, key, token, reply);
  }
  return found;
}

Comparison LeaseStore::answer_to_post(std::string_view key, std::string_view token,
                                      const Outcome& outcome) {
  release_in_cache_.note(outcome);
  return comparison_of("release", key, token, outcome);
}

// ---- looking -----------------------------------------------------------------------------------

std::optional<KeyContent> LeaseStore::inspect(std::string_view key, Clock::time_point limit) {
  const auto outcome = look(lua::inspect, key, {}, deadline(limit));
  if (!answered(outcome)) {
    // Looking changes nothing, so it can't be in doubt.
    throw Error{in_doubt(outcome) ? errc::unavailable : outcome.code,
                describe("inspect", key, outcome.cause)};
  }
  const auto& reply = outcome.reply;
  if (reply.type != Reply::Type::array || reply.elements.size() != 4) {
    const auto failed = refusal("inspect", key, {}, reply);
    throw Error{failed.code, failed.what};
  }
  KeyContent content;
  content.type = reply.elements[0].text;
  if (content.type == "none") return std::nullopt;
  if (const auto ttl = reply.elements[1].integer; ttl >= 0) {
    content.ttl = std::chrono::milliseconds{ttl};
  }
  content.length = static_cast<std::size_t>(reply.elements[2].integer);
  content.beginning = reply.elements[3].text;
  return content;
}

std::optional<std::chrono::milliseconds> LeaseStore::time_to_live(std::string_view key,
                                                                  Clock::time_point limit) {
  const auto outcome = look(Command{"PTTL", key}, deadline(limit));
  if (!answered(outcome) || outcome.reply.type != Reply::Type::integer) return std::nullopt;
  if (outcome.reply.integer == -1 || outcome.reply.integer > longest_ttl.count()) {
    return std::nullopt;
  }
  return std::chrono::milliseconds{std::max<std::int64_t>(outcome.reply.integer, 0)};
}

void LeaseStore::ping() {
  const auto outcome = look(Command{"PING"}, deadline(Clock::time_point::max()));
  if (!answered(outcome)) {
    throw Error{outcome.code, fmt::format("ping {}: {}", server_, outcome.cause)};
  }
  if (outcome.reply.is_error()) {
    throw Error{errc::rejected,
                fmt::format("ping {}: {}", server_, wire::printable(outcome.reply.text))};
  }
  if (outcome.reply.type != Reply::Type::status || outcome.reply.text != "PONG") {
    throw Error{errc::protocol, fmt::format("ping {}: the answer is not PONG", server_)};
  }
}

// ---- common ------------------------------------------------------------------------------------

Clock::time_point LeaseStore::deadline(Clock::time_point limit) const {
  auto time = pipelines_.timeouts().command;
  if (!pipelines_.connected()) time += pipelines_.timeouts().connect;
  return std::min(limit, Clock::now() + time);
}

Outcome LeaseStore::eval(const lua::Script& script, std::string_view key, Arguments arguments,
                         Clock::time_point deadline) {
  auto outcome = pipelines_.call(evalsha(script, key, arguments), deadline);
  if (is_no_script(outcome)) {
    outcome = pipelines_.call(eval_text(script, key, arguments), deadline);
  }
  if (&script == &lua::release) release_in_cache_.note(outcome);
  return outcome;
}

// What changes nothing may simply be asked once more when a connection breaks.
Outcome LeaseStore::look(const Command& command, Clock::time_point deadline) {
  auto outcome = pipelines_.call(command, deadline);
  if (in_doubt(outcome) && Clock::now() < deadline) outcome = pipelines_.call(command, deadline);
  return outcome;
}

Outcome LeaseStore::look(const lua::Script& script, std::string_view key, Arguments arguments,
                         Clock::time_point deadline) {
  auto outcome = eval(script, key, arguments, deadline);
  if (in_doubt(outcome) && Clock::now() < deadline) {
    outcome = eval(script, key, arguments, deadline);
  }
  return outcome;
}

std::string LeaseStore::describe(std::string_view operation, std::string_view key,
                                 std::string_view cause) const {
  return fmt::format("{} {} at {}: {}", operation, detail::quote(key), server_, cause);
}

Failure LeaseStore::failure(std::string_view operation, std::string_view key,
                            const Outcome& outcome) const {
  if (in_doubt(outcome)) {
    const bool nonsense = outcome.code == errc::protocol;
    return {nonsense ? errc::protocol : errc::in_doubt,
            describe(operation, key, outcome.cause + "; the request may have run"), !nonsense,
            true};
  }
  return {outcome.code, describe(operation, key, outcome.cause), outcome.code == errc::unavailable,
          false};
}

Failure LeaseStore::refusal(std::string_view operation, std::string_view key,
                            std::string_view token, const Reply& reply) const {
  if (!reply.is_error()) {
    return {errc::protocol, describe(operation, key, "a reply of an unexpected kind"), false,
            false};
  }
  const auto kind = wire::classify(reply.text);
  return {errc::rejected, describe(operation, key, wire::printable(reply.text, {token})),
          kind == wire::ServerError::transient || kind == wire::ServerError::no_script, false};
}

}  // namespace redlease::inline v1::store

#endif
