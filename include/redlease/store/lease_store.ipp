#ifndef REDLEASE_STORE_LEASE_STORE_IPP
#define REDLEASE_STORE_LEASE_STORE_IPP

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <redlease/core/key_slot.hpp>
#include <redlease/core/lease_state.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/wire/server_error.hpp>

namespace redlease::inline v1::store {
namespace {

using wire::Command;
using wire::Outcome;
using wire::Reply;

Command script_command(std::string_view verb, std::string_view script, const ScriptKeys& keys,
                       const Arguments& arguments) {
  if (!keys.keys.several() && keys.beside.empty()) {
    const std::array<std::string_view, 4> call{verb, script, "1", keys.keys.first()};
    return {call, arguments.all()};
  }
  const auto count = std::to_string(keys.keys.size() + keys.beside.size());
  std::vector<std::string_view> call{verb, script, count};
  for (std::size_t i = 0; i < keys.keys.size(); ++i) call.push_back(keys.keys[i]);
  call.insert(call.end(), keys.beside.begin(), keys.beside.end());
  return {call, arguments.all()};
}

Command evalsha(const lua::Script& script, const ScriptKeys& keys, const Arguments& arguments) {
  return script_command("EVALSHA", script.sha1, keys, arguments);
}

Command eval_text(const lua::Script& script, const ScriptKeys& keys, const Arguments& arguments) {
  return script_command("EVAL", script.text, keys, arguments);
}

// A plain SET can't take several keys, nor draw a number.
bool by_script(const KeyView& keys, const Demand& demand) {
  return keys.several() || !demand.counters.empty();
}

const lua::Script& release_script(const KeyView& keys) {
  return keys.several() ? lua::release_all : lua::release;
}

bool answered(const Outcome& outcome) { return outcome.kind == Outcome::Kind::answered; }
bool in_doubt(const Outcome& outcome) { return outcome.kind == Outcome::Kind::in_doubt; }

std::optional<FencingToken> number_in(const Reply& reply) {
  if (reply.type != Reply::Type::string) return std::nullopt;
  std::int64_t value = 0;
  const auto* const end = reply.text.data() + reply.text.size();
  const auto parsed = std::from_chars(reply.text.data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
  return FencingToken{value};
}

void ignore(void*, Outcome&&) noexcept {}

}  // namespace

bool is_no_script(const Outcome& outcome) noexcept {
  return answered(outcome) && outcome.reply.is_error() &&
         wire::classify(outcome.reply.text) == wire::ServerError::no_script;
}

std::string quote(KeyView keys) {
  auto first = detail::quote(keys.first());
  return keys.several() ? fmt::format("{} and {} more", first, keys.size() - 1) : first;
}

std::optional<std::vector<FencingToken>> read_numbers(const Reply& reply, const Demand& demand) {
  std::vector<FencingToken> numbers;
  if (demand.counters.empty()) return numbers;
  const auto add = [&numbers](const Reply& from) {
    if (const auto number = number_in(from)) numbers.push_back(*number);
  };
  add(reply);
  for (const auto& element : reply.elements) add(element);
  if (numbers.size() != demand.counters.size()) return std::nullopt;
  return numbers;
}

// ---- acquire -----------------------------------------------------------------------------------

Acquisition LeaseStore::acquire(KeyView keys, const Demand& demand, Clock::time_point limit) {
  const auto token = Token::generate();
  const auto outcome = ask_for(keys, token, demand, deadline(limit));
  if (in_doubt(outcome)) return resolve_acquire(keys, demand, token, outcome, limit);
  return acquisition_of(keys, token, demand, outcome);
}

// Goes behind what was posted for these keys: it may free them.
Outcome LeaseStore::ask_for(KeyView keys, const Token& token, const Demand& demand,
                            Clock::time_point deadline) {
  const auto ttl = std::to_string(demand.ttl.count());
  if (!by_script(keys, demand)) {
    return pipelines_.call({"SET", keys.first(), token.reveal(), "NX", "PX", ttl}, deadline,
                           keys.first());
  }
  for (std::size_t i = 0; i < keys.size(); ++i) pipelines_.await_posted(keys[i], deadline);
  return eval(lua::acquire, {keys, demand.counters},
              {token.reveal(), ttl, std::to_string(keys.size())}, deadline);
}

Acquisition LeaseStore::acquisition_of(KeyView keys, const Token& token, const Demand& demand,
                                       const Outcome& outcome) {
  if (!answered(outcome)) return {{}, failure("acquire", keys, outcome)};
  const auto& reply = outcome.reply;
  if (by_script(keys, demand)) {
    if (reply.type == Reply::Type::array) return granted(keys, token, demand, outcome, reply);
    if (reply.type == Reply::Type::integer && reply.integer < 0) {
      const auto blocker = static_cast<std::size_t>(-reply.integer);
      if (blocker <= keys.size()) return {{}, {}, blocker - 1};
    }
  } else {
    if (reply.type == Reply::Type::nil) return {};
    if (reply.type == Reply::Type::status && reply.text == "OK") {
      return granted(keys, token, demand, outcome, reply);
    }
  }
  return {{}, refusal("acquire", keys, token.reveal(), reply)};
}

std::chrono::nanoseconds LeaseStore::lateness(const Demand& demand,
                                              Clock::time_point sent) noexcept {
  return Clock::now() - (core::LeaseState{sent, demand.ttl}.valid_until() - demand.reserve);
}

// `request`: what the lease counts from. `answer`: what tells of it, with the fencing numbers.
Acquisition LeaseStore::granted(KeyView keys, const Token& token, const Demand& demand,
                                const Outcome& request, const Reply& answer) {
  auto numbers = read_numbers(answer, demand);
  const auto late = lateness(demand, request.sent);
  if (numbers && late.count() < 0) return {Grant{token, request.sent, std::move(*numbers)}, {}};
  give_back(keys, token.reveal());
  if (!numbers) return {{}, refusal("acquire", keys, token.reveal(), {})};
  return {{},
          Failure{errc::unavailable,
                  describe("acquire", keys,
                           fmt::format("the server's reply came {} ms after the lease's "
                                       "{} had ended; it was given back",
                                       std::chrono::ceil<std::chrono::milliseconds>(late).count(),
                                       demand.reserve.count() > 0 ? "time before the safety margin"
                                                                  : "validity")),
                  true, false}};
}

// The request may have run. Its token tells: a key that holds it is ours, counted from the first
// send. Otherwise it may run yet, so its traces are removed, and one more try has a token of its
// own.
Acquisition LeaseStore::resolve_acquire(KeyView keys, const Demand& demand, const Token& token,
                                        const Outcome& doubtful, Clock::time_point limit) {
  const auto until = std::min(limit, Clock::now() + pipelines_.timeouts().command);
  const auto seen = look_for(keys, token, demand, until);
  const auto found = comparison_of("acquire", keys, token.reveal(), demand, seen);
  if (!found.failure && found.ownership == Ownership::ours) {
    return granted(keys, token, demand, doubtful, seen.reply);
  }
  clean_up(keys, token, demand.ttl, doubtful);
  if (found.failure) return {{}, failure("acquire", keys, doubtful)};
  if (found.ownership == Ownership::other && !keys.several()) return {};

  const auto fresh = Token::generate();
  const auto again = ask_for(keys, fresh, demand, until);
  if (in_doubt(again)) clean_up(keys, fresh, demand.ttl, again);
  return acquisition_of(keys, fresh, demand, again);
}

// Whether they hold the token, and with which fencing numbers.
Outcome LeaseStore::look_for(KeyView keys, const Token& token, const Demand& demand,
                             Clock::time_point deadline) {
  return look(lua::own, {keys, demand.counters}, {token.reveal(), std::to_string(keys.size())},
              deadline);
}

// A compare-and-delete behind the doubtful request, on its own connection: the server runs it
// after that request or not at all. And once more with what is sent next, should the connection
// have broken between the two. The token must not be used again.
void LeaseStore::clean_up(KeyView keys, const Token& token, std::chrono::milliseconds ttl,
                          const Outcome& doubtful) {
  wire::Pipelines::follow_up(doubtful, eval_text(release_script(keys), keys, {token.reveal()}),
                             Clock::now());
  disown(keys, token, doubtful.sent + ttl);
}

void LeaseStore::disown(KeyView keys, const Token& token, Clock::time_point until) {
  owe_release(keys, token.reveal(), Clock::now(), until, ignore, nullptr);
}

// ---- renew and release -------------------------------------------------------------------------

Comparison LeaseStore::renew(KeyView keys, std::string_view token, std::chrono::milliseconds ttl,
                             Clock::time_point limit) {
  const auto outcome = ask_to_renew(keys, token, ttl, deadline(limit));
  if (!in_doubt(outcome)) return renewal_of(keys, token, outcome);
  const auto until = std::min(limit, Clock::now() + pipelines_.timeouts().command);
  auto again = renewal_of(keys, token, ask_to_renew(keys, token, ttl, until));
  if (again.failure) again.failure = failure("renew", keys, outcome);
  again.confirmed = false;  // the first one may run yet
  return again;
}

Outcome LeaseStore::ask_to_renew(KeyView keys, std::string_view token,
                                 std::chrono::milliseconds ttl, Clock::time_point deadline) {
  const auto milliseconds = std::to_string(ttl.count());
  if (!keys.several()) return eval(lua::renew, keys, {token, milliseconds}, deadline);
  std::vector<std::string_view> arguments(keys.size(), token);
  arguments.emplace_back(milliseconds);
  return eval(lua::renew_many, keys, arguments, deadline);
}

// The script for many tells of those that are not ours.
Comparison LeaseStore::renewal_of(KeyView keys, std::string_view token,
                                  const Outcome& outcome) const {
  if (!keys.several() || !answered(outcome) || outcome.reply.type != Reply::Type::array) {
    return comparison_of("renew", keys, token, outcome);
  }
  Comparison found;
  found.sent = outcome.sent;
  found.ownership = Ownership::ours;
  if (!outcome.reply.elements.empty()) {
    const bool absent = outcome.reply.elements.front().integer < 0;
    found.ownership = absent ? Ownership::absent : Ownership::other;
  }
  return found;
}

Comparison LeaseStore::release(KeyView keys, std::string_view token, Clock::time_point limit) {
  return release_by(
      keys, token, limit,
      [&](Clock::time_point until) { return eval(release_script(keys), keys, {token}, until); },
      [&](const Outcome& outcome) { return comparison_of("release", keys, token, outcome); });
}

Handover LeaseStore::hand_over(KeyView keys, std::string_view token, const Demand& heir,
                               Clock::time_point limit) {
  const auto theirs = Token::generate();
  const auto ttl = std::to_string(heir.ttl.count());
  const ScriptKeys all{keys, heir.counters};
  const auto outcome =
      keys.several()
          ? eval(lua::handoff_all, all, {token, theirs.reveal(), ttl, std::to_string(keys.size())},
                 deadline(limit))
          : eval(lua::handoff, all, {token, theirs.reveal(), ttl}, deadline(limit));
  if (in_doubt(outcome)) return resolve_handover(keys, token, theirs, heir, outcome, limit);
  auto found = comparison_of("release", keys, token, heir, outcome);
  if (found.failure && outcome.kind == Outcome::Kind::answered) {
    return {release(keys, token, limit), {}};  // that needs no memory on the server, for instance
  }
  if (found.failure || found.ownership != Ownership::ours) return {std::move(found), {}};
  // One that comes too late for the heir is given back for him; it is nothing to the releaser.
  return {std::move(found), granted(keys, theirs, heir, outcome, outcome.reply).grant};
}

// Either the heir's token is in the key: then he has it. Or ours is: then ours is released, after
// which the doubtful request finds nothing to hand on.
Handover LeaseStore::resolve_handover(KeyView keys, std::string_view token, const Token& theirs,
                                      const Demand& heir, const Outcome& doubtful,
                                      Clock::time_point limit) {
  const auto until = std::min(limit, Clock::now() + pipelines_.timeouts().command);
  const auto seen = look_for(keys, theirs, heir, until);
  auto found = comparison_of("release", keys, token, heir, seen);
  if (!found.failure && found.ownership == Ownership::ours) {
    return {std::move(found), granted(keys, theirs, heir, doubtful, seen.reply).grant};
  }
  if (!found.failure) {
    found = comparison_of("release", keys, token, eval(release_script(keys), keys, {token}, until));
  }
  if (found.failure) found.failure = failure("release", keys, doubtful);
  found.confirmed = !found.failure && found.ownership == Ownership::ours;
  if (!found.confirmed) clean_up(keys, theirs, heir.ttl, doubtful);
  return {std::move(found), {}};
}

void LeaseStore::post_release(std::string_view key, std::string_view token, wire::Completion done,
                              void* context) {
  const auto now = Clock::now();
  const auto command = release_in_cache_.is_sure(now) ? evalsha(lua::release, key, {token})
                                                      : eval_text(lua::release, key, {token});
  pipelines_.post(key, command, now + pipelines_.timeouts().command, done, context);
}

void LeaseStore::give_back(KeyView keys, std::string_view token) noexcept {
  try {
    // Nobody hears that the server has forgotten the script.
    const auto command = eval_text(release_script(keys), keys, {token});
    pipelines_.post(keys.first(), command, Clock::now() + pipelines_.timeouts().command, ignore,
                    nullptr);
  } catch (...) {
    // No memory to write the request: the ttl frees the key.
  }
}

bool LeaseStore::owe_release(KeyView keys, std::string_view token, Clock::time_point from,
                             Clock::time_point until, wire::Completion done, void* context) {
  const auto command = eval_text(release_script(keys), keys, {token});
  return pipelines_.owe({std::string{command.bytes()}, from, until, done, context});
}

Comparison LeaseStore::compare(KeyView keys, std::string_view token, Clock::time_point until) {
  const auto seen = look(lua::own, keys, {token, std::to_string(keys.size())}, until);
  return comparison_of("release", keys, token, seen);
}

Comparison LeaseStore::comparison_of(std::string_view operation, KeyView keys,
                                     std::string_view token, const Outcome& outcome) const {
  Comparison found;
  found.sent = outcome.sent;
  if (!answered(outcome)) {
    found.failure = failure(operation, keys, outcome);
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
    found.failure = refusal(operation, keys, token, reply);
  }
  return found;
}

// The same of an answer that has fencing numbers in it, if there is something to have them for.
Comparison LeaseStore::comparison_of(std::string_view operation, KeyView keys,
                                     std::string_view token, const Demand& demand,
                                     const Outcome& outcome) const {
  if (demand.counters.empty() || !answered(outcome) || !read_numbers(outcome.reply, demand)) {
    return comparison_of(operation, keys, token, outcome);
  }
  Comparison found;
  found.sent = outcome.sent;
  found.ownership = Ownership::ours;
  return found;
}

Comparison LeaseStore::answer_to_post(KeyView keys, std::string_view token,
                                      const Outcome& outcome) {
  if (!keys.several()) release_in_cache_.note(outcome);
  return comparison_of("release", keys, token, outcome);
}

// ---- looking -----------------------------------------------------------------------------------

std::optional<KeyContent> LeaseStore::inspect(std::string_view key, Clock::time_point limit) {
  const std::array counter{core::beside(key, fencing_counter)};
  const auto outcome = look(lua::inspect, {key, counter}, {}, deadline(limit));
  if (!answered(outcome)) {
    // Looking changes nothing, so it can't be in doubt.
    throw Error{in_doubt(outcome) ? errc::unavailable : outcome.code,
                describe("inspect", key, outcome.cause)};
  }
  const auto& reply = outcome.reply;
  if (reply.type != Reply::Type::array || reply.elements.size() != 5) {
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
  content.number = number_in(reply.elements[4]);
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

// ---- writing -----------------------------------------------------------------------------------

// A request in doubt is simply sent again: with the same number it is not refused.
bool LeaseStore::fenced_write(std::string_view key, std::string_view value, FencingToken number) {
  const std::array seen{core::beside(key, "redlease:seen")};
  const auto outcome = look(lua::fenced_write, {key, seen}, {std::to_string(number.value()), value},
                            deadline(Clock::time_point::max()));
  const auto& reply = outcome.reply;
  const bool told = answered(outcome) && reply.type == Reply::Type::integer;
  if (told && (reply.integer == 0 || reply.integer == 1)) return reply.integer == 1;
  const auto failed = answered(outcome) ? refusal("fenced_write", key, {}, reply)
                                        : failure("fenced_write", key, outcome);
  throw Error{failed.code, failed.what};
}

// ---- common ------------------------------------------------------------------------------------

Clock::time_point LeaseStore::deadline(Clock::time_point limit) const {
  auto time = pipelines_.timeouts().command;
  if (!pipelines_.connected()) time += pipelines_.timeouts().connect;
  return std::min(limit, Clock::now() + time);
}

Outcome LeaseStore::eval(const lua::Script& script, const ScriptKeys& keys,
                         const Arguments& arguments, Clock::time_point deadline) {
  auto outcome = pipelines_.call(evalsha(script, keys, arguments), deadline);
  if (is_no_script(outcome)) {
    outcome = pipelines_.call(eval_text(script, keys, arguments), deadline);
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

Outcome LeaseStore::look(const lua::Script& script, const ScriptKeys& keys,
                         const Arguments& arguments, Clock::time_point deadline) {
  auto outcome = eval(script, keys, arguments, deadline);
  if (in_doubt(outcome) && Clock::now() < deadline) {
    outcome = eval(script, keys, arguments, deadline);
  }
  return outcome;
}

std::string LeaseStore::describe(std::string_view operation, KeyView keys,
                                 std::string_view cause) const {
  return fmt::format("{} {} at {}: {}", operation, quote(keys), server_, cause);
}

Failure LeaseStore::failure(std::string_view operation, KeyView keys,
                            const Outcome& outcome) const {
  if (in_doubt(outcome)) {
    const bool nonsense = outcome.code == errc::protocol;
    return {nonsense ? errc::protocol : errc::in_doubt,
            describe(operation, keys, outcome.cause + "; the request may have run"), !nonsense,
            true};
  }
  return {outcome.code, describe(operation, keys, outcome.cause), outcome.code == errc::unavailable,
          false};
}

Failure LeaseStore::refusal(std::string_view operation, KeyView keys, std::string_view token,
                            const Reply& reply) const {
  if (!reply.is_error()) {
    return {errc::protocol, describe(operation, keys, "a reply of an unexpected kind"), false,
            false};
  }
  const auto kind = wire::classify(reply.text);
  return {errc::rejected, describe(operation, keys, wire::printable(reply.text, {token})),
          kind == wire::ServerError::transient || kind == wire::ServerError::no_script, false};
}

}  // namespace redlease::inline v1::store

#endif
