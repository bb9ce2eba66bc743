#ifndef REDLEASE_STORE_RENEWAL_STREAM_IPP
#define REDLEASE_STORE_RENEWAL_STREAM_IPP

#include <poll.h>

#include <algorithm>

#include <redlease/store/renewal_stream.hpp>
#include <redlease/wire/command.hpp>
#include <redlease/wire/server_error.hpp>

namespace redlease::inline v1::store {
namespace {

// Enough to keep the server busy while the next request is built, few enough not to stand in the
// way of others there: a request of a hundred renewals takes it about 0.15 ms.
constexpr std::size_t most_under_way = 2;

// How often a look-up of a host name is asked for its result.
constexpr std::chrono::milliseconds resolver_poll{2};

}  // namespace

bool RenewalStream::has_room() const noexcept {
  return connected() && under_way_.size() < most_under_way;
}

void RenewalStream::send(std::span<const Renewal> renewals, Clock::time_point now,
                         Clock::time_point give_up_at) {
  const auto longest = connector_.timeouts().command;
  const auto until = std::min(now + longest, std::max(give_up_at, now + patience_));
  under_way_.push_back({now, until, renewals.size(), !has_script_});
  const auto before = outbox_.size();
  try {
    const auto ttl = renewals.front().ttl;
    const bool same_ttl = std::all_of(renewals.begin(), renewals.end(),
                                      [ttl](const Renewal& r) { return r.ttl == ttl; });
    const auto ttls = same_ttl ? 1 : renewals.size();
    wire::CommandWriter command{outbox_, 3 + 2 * renewals.size() + ttls};
    command.add(has_script_ ? "EVALSHA" : "EVAL");
    command.add(has_script_ ? lua::renew_many.sha1 : lua::renew_many.text);
    command.add(renewals.size());
    for (const auto& renewal : renewals) command.add(renewal.key);
    for (const auto& renewal : renewals) command.add(renewal.token);
    for (const auto& renewal : renewals.first(ttls)) {
      command.add(static_cast<std::uint64_t>(renewal.ttl.count()));
    }
  } catch (...) {
    outbox_.resize(before);
    under_way_.pop_back();
    throw;
  }
  has_script_ = true;
}

void RenewalStream::advance() {
  if (opening_) {
    try {
      connection_ = connector_.advance(*opening_);
    } catch (...) {
      opening_.reset();
      throw;
    }
    if (!connection_) return;
    opening_.reset();
    proven_ = has_script_ = false;
  }
  if (connection_) write();
}

void RenewalStream::write() {
  if (outbox_.empty()) return;
  std::size_t sent = 0;
  const auto outcome = connection_->send(outbox_, {}, sent);
  outbox_.erase(0, sent);
  if (outcome != wire::Io::done && outcome != wire::Io::timeout) {
    break_off(errc::unavailable, "send: " + connection_->describe(outcome));
  }
}

std::optional<RenewalAnswer> RenewalStream::next_answer(Clock::time_point now) {
  if (connection_) {
    try {
      if (auto answer = read(now)) return answer;
    } catch (const std::bad_alloc&) {
      break_off(errc::unavailable, "no memory");  // short enough to need none
    }
  }
  if (connection_ || idle()) return std::nullopt;
  RenewalAnswer answer{under_way_.front().sent, {}, broken_};
  under_way_.pop_front();
  return answer;
}

bool RenewalStream::may_have_answer() const noexcept {
  return connection_ ? connection_->has_unparsed() : !idle();
}

std::optional<RenewalAnswer> RenewalStream::read(Clock::time_point now) {
  wire::Reply reply;
  auto parsed = connection_->next_reply(reply);
  while (parsed == wire::Connection::Parsed::incomplete) {
    const auto received = connection_->receive_available();
    if (received == wire::Io::timeout) {
      const bool late = std::any_of(under_way_.begin(), under_way_.end(),
                                    [now](const UnderWay& u) { return u.deadline <= now; });
      if (late) time_out(now);
      return std::nullopt;
    }
    if (received != wire::Io::done) {
      break_off(errc::unavailable, connection_->describe(received));
      return std::nullopt;
    }
    parsed = connection_->next_reply(reply);
  }
  if (parsed == wire::Connection::Parsed::nonsense || idle()) {
    break_off(errc::protocol, "the reply is not the Redis protocol, or nobody asked for it");
    return std::nullopt;
  }
  const auto request = under_way_.front();
  auto answer = answer_of(reply, request);
  under_way_.pop_front();
  patience_ += (4 * (now - request.sent) - patience_) / 2;
  // A server that was demoted won't renew any more: connecting anew finds its successor.
  const auto code = wire::error_code(reply.text);
  if (reply.is_error() && (code == "READONLY" || code == "MASTERDOWN")) {
    proven_ = false;  // pause before the next one, if it goes on
    break_off(errc::unavailable, "the server is no master now");
  } else if (!std::exchange(proven_, true)) {
    connector_.worked();
  }
  return answer;
}

// A server that is slower than usual must not cost all leases one connection after the other,
// because of one lease that has too little time: the next request gets more of it.
void RenewalStream::time_out(Clock::time_point now) {
  const auto waited = now - under_way_.front().sent;
  patience_ = std::min(std::max(2 * patience_, waited), connector_.timeouts().command);
  // One who had little time says nothing about the server.
  proven_ = proven_ || waited < connector_.timeouts().command / 2;
  break_off(errc::unavailable, "timed out");
}

RenewalAnswer RenewalStream::answer_of(const wire::Reply& reply, const UnderWay& request) {
  RenewalAnswer answer;
  answer.sent = request.sent;
  if (reply.is_error()) {
    const auto kind = wire::classify(reply.text);
    answer.unknown_script = kind == wire::ServerError::no_script && !request.with_text;
    if (answer.unknown_script) has_script_ = false;
    answer.failure = Failure{errc::rejected, wire::printable(reply.text),
                             kind == wire::ServerError::transient, false};
    return answer;
  }
  bool sensible = reply.type == wire::Reply::Type::array;
  for (const auto& element : reply.elements) {
    const auto place = element.integer < 0 ? -element.integer : element.integer;
    sensible = sensible && element.type == wire::Reply::Type::integer && place >= 1 &&
               place <= static_cast<std::int64_t>(request.renewals);
    if (!sensible) break;
    answer.not_ours.emplace_back(static_cast<std::size_t>(place - 1),
                                 element.integer < 0 ? Ownership::absent : Ownership::other);
  }
  if (!sensible) {
    answer.not_ours.clear();
    answer.failure = Failure{errc::protocol, "a reply of an unexpected kind", false, true};
  }
  return answer;
}

void RenewalStream::break_off(errc code, const std::string& cause) {
  if (!proven_) connector_.failed(code, cause);
  connection_.reset();
  outbox_.clear();
  broken_ = {code == errc::unavailable ? errc::in_doubt : code, cause, true, true};
}

int RenewalStream::fd() const noexcept {
  if (opening_) return opening_->fd();
  return connection_ ? connection_->fd() : -1;
}

short RenewalStream::events() const noexcept {
  if (opening_) return opening_->events();
  return static_cast<short>(outbox_.empty() ? POLLIN : POLLIN | POLLOUT);
}

Clock::time_point RenewalStream::wake_at(Clock::time_point now) const noexcept {
  if (!connection_ && !idle()) return now;  // there are answers of a connection that broke
  if (opening_) return opening_->fd() < 0 ? now + resolver_poll : opening_->wake_at();
  auto earliest = Clock::time_point::max();
  for (const auto& request : under_way_) earliest = std::min(earliest, request.deadline);
  return earliest;
}

void RenewalStream::abandon() noexcept {
  if (opening_) opening_->abandon();
  if (connection_) connection_->abandon();
}

}  // namespace redlease::inline v1::store

#endif
