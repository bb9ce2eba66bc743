#ifndef REDLEASE_STORE_WATCH_STREAM_IPP
#define REDLEASE_STORE_WATCH_STREAM_IPP

#include <poll.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include <redlease/error.hpp>
#include <redlease/store/watch_stream.hpp>
#include <redlease/wire/command.hpp>
#include <redlease/wire/server_error.hpp>

namespace redlease::inline v1::store {
namespace {

using wire::Reply;

// Where RESP2 delivers invalidations.
constexpr std::string_view invalidations = "__redis__:invalidate";

// How often a look-up of a host name is asked for its result.
constexpr std::chrono::milliseconds lookup_poll{2};

// A connection that only listens can be dead for long without a sign: it is asked that often.
constexpr std::chrono::seconds ear_check{1};

// What an attempt's reply brings with the lease, if it brings one.
std::optional<std::vector<FencingToken>> granted_by(const Reply& reply, const Demand& demand) {
  const bool by_script = !demand.counters.empty();
  const bool granted = by_script ? reply.type == Reply::Type::array
                                 : reply.type == Reply::Type::status && reply.text == "OK";
  if (!granted) return std::nullopt;
  return read_numbers(reply, demand);
}

}  // namespace

void WatchStream::open(Clock::time_point deadline) {
  close();
  opening_.emplace(connector_.begin(deadline));
  deadline_ = deadline;
  step_ = Step::connecting_ear;
}

void WatchStream::look(std::string_view key, Clock::time_point now) {
  // PTTL tells whether there is a key, and of which life, without fetching what it holds.
  ask({Sighting::Kind::looked, std::string{key}, {}, {}, now}, {"PTTL", key});
}

void WatchStream::attempt(std::string_view key, const Demand& demand, Clock::time_point now) {
  const auto token = Token::generate();
  const auto ttl = std::to_string(demand.ttl.count());
  Asked asked{Sighting::Kind::tried, std::string{key}, token, demand, now};
  if (demand.counters.empty()) {
    ask(std::move(asked), {"SET", key, token.reveal(), "NX", "PX", ttl});
  } else {
    ask(std::move(asked),
        {"EVAL", lua::acquire.text, "2", key, demand.counters.front(), token.reveal(), ttl, "1"});
  }
}

void WatchStream::give_back(std::string_view key, const Token& token, const Demand& demand,
                            Clock::time_point now) {
  ask({Sighting::Kind::unreleased, std::string{key}, token, demand, now},
      {"EVAL", lua::release.text, "1", key, token.reveal()});
}

void WatchStream::ask(Asked asked, std::initializer_list<std::string_view> command) {
  const wire::Command encoded{command};
  under_way_.push_back(std::move(asked));
  try {
    eye_.outbox += encoded.bytes();
  } catch (...) {
    under_way_.pop_back();
    throw;
  }
}

std::optional<Sighting> WatchStream::next() {
  if (sightings_.empty()) return std::nullopt;
  std::optional<Sighting> first{std::move(sightings_.front())};
  sightings_.pop_front();
  return first;
}

// ---- going on ----------------------------------------------------------------------------------

void WatchStream::advance(Clock::time_point now) {
  connect(now);
  if (ear_.connection) write(ear_);
  if (eye_.connection) write(eye_);
  Reply reply;
  while (ear_.connection && read(ear_, reply)) hear(std::move(reply));
  while (eye_.connection && read(eye_, reply)) see(reply);
  check_silence(now);
}

void WatchStream::connect(Clock::time_point now) {
  if (!opening_) {
    if (step_ == Step::closed || step_ == Step::ready || now < deadline_) return;
    break_off(errc::unavailable, "timed out");
  }
  std::unique_ptr<wire::Connection> opened;
  try {
    opened = connector_.advance(*opening_);
  } catch (...) {
    close();
    throw;
  }
  if (!opened) return;
  opening_.reset();
  if (step_ == Step::connecting_ear) {
    step_ = Step::subscribing;
    ear_.connection = std::move(opened);
    ear_.outbox = wire::Command{"CLIENT", "ID"}.bytes();
    ear_.outbox += wire::Command{"SUBSCRIBE", invalidations}.bytes();
    ear_.outbox += wire::Command{"SUBSCRIBE", grants_}.bytes();
    to_come_ = 3;
    hears_grants_ = false;
    ear_asked_ = Clock::time_point::max();
  } else {
    step_ = Step::asking;
    eye_.connection = std::move(opened);
    // What we set ourselves is no news.
    ask({Sighting::Kind::changed, {}, {}, {}, now},
        {"CLIENT", "TRACKING", "ON", "REDIRECT", ear_id_, "NOLOOP"});
    write(eye_);
  }
}

void WatchStream::write(Line& line) {
  if (line.outbox.empty()) return;
  std::size_t sent = 0;
  const auto outcome = line.connection->send(line.outbox, {}, sent);
  line.outbox.erase(0, sent);
  if (outcome != wire::Io::done && outcome != wire::Io::timeout) {
    break_off(errc::unavailable, "send: " + line.connection->describe(outcome));
  }
}

bool WatchStream::read(Line& line, Reply& reply) {
  for (;;) {
    const auto parsed = line.connection->next_reply(reply);
    if (parsed == wire::Connection::Parsed::reply) return true;
    if (parsed == wire::Connection::Parsed::nonsense) {
      break_off(errc::protocol, "the reply is not the Redis protocol");
    }
    const auto received = line.connection->receive_available();
    if (received == wire::Io::timeout) return false;
    if (received != wire::Io::done) {
      break_off(errc::unavailable, line.connection->describe(received));
    }
  }
}

void WatchStream::hear(Reply&& reply) {
  if (step_ == Step::subscribing) return listen(reply);
  if (reply.type != Reply::Type::array || reply.elements.empty()) {
    break_off(errc::protocol, "a message of an unexpected kind");
  }
  const auto& kind = reply.elements[0].text;
  if (kind == "pong") {
    ear_asked_ = Clock::time_point::max();
  } else if (kind == "message" && reply.elements.size() == 3) {
    auto& keys = reply.elements[2];
    if (reply.elements[1].text == grants_) {
      auto& sighting = sightings_.emplace_back();
      sighting.kind = Sighting::Kind::granted;
      (void)std::from_chars(keys.text.data(), keys.text.data() + keys.text.size(), sighting.number);
    } else if (keys.type != Reply::Type::array) {
      sightings_.emplace_back().kind = Sighting::Kind::all_changed;
    } else {
      for (auto& key : keys.elements) {
        sightings_.emplace_back().key = std::move(key.text);
      }
    }
  }
}

// The answers to the ear's first commands. Who may not hear of grants may still hear of changes.
void WatchStream::listen(const Reply& reply) {
  --to_come_;
  if (reply.is_error() && to_come_ > 0) {
    break_off(errc::rejected, wire::printable(reply.text));
  }
  if (to_come_ == 2) ear_id_ = std::to_string(reply.integer);
  if (to_come_ > 0) return;
  hears_grants_ = !reply.is_error();
  opening_.emplace(connector_.begin(deadline_));
  step_ = Step::connecting_eye;
}

void WatchStream::see(const Reply& reply) {
  if (under_way_.empty()) break_off(errc::protocol, "there was a reply that nobody asked for");
  if (step_ == Step::asking) {
    if (reply.is_error()) break_off(errc::rejected, wire::printable(reply.text));
    under_way_.pop_front();
    connector_.worked();
    step_ = Step::ready;
    return;
  }
  auto asked = std::move(under_way_.front());
  under_way_.pop_front();
  const bool given_back = asked.kind == Sighting::Kind::unreleased && !reply.is_error();
  if (asked.kind == Sighting::Kind::changed || given_back) return;
  Sighting sighting;
  sighting.kind = asked.kind;
  sighting.key = std::move(asked.key);
  if (asked.kind == Sighting::Kind::looked) {
    if (reply.type != Reply::Type::integer) {
      sighting.kind = Sighting::Kind::failed;
    } else if (reply.integer != -2) {
      const bool endless = reply.integer < 0 || reply.integer > longest_ttl.count();
      sighting.ttl =
          endless ? std::chrono::milliseconds::max() : std::chrono::milliseconds{reply.integer};
    }
  } else {
    sighting.token = asked.token;
    sighting.demand = asked.demand;
    sighting.sent = asked.sent;
    if (asked.kind == Sighting::Kind::unreleased) {
      // Refused: it is tried again elsewhere.
    } else if (auto numbers = granted_by(reply, asked.demand)) {
      sighting.acquisition.grant.emplace(Grant{*asked.token, asked.sent, std::move(*numbers)});
    } else if (reply.type !=
               (asked.demand.counters.empty() ? Reply::Type::nil : Reply::Type::integer)) {
      const bool refused = reply.is_error();
      sighting.acquisition.failure =
          Failure{refused ? errc::rejected : errc::protocol,
                  refused ? wire::printable(reply.text, {asked.token->reveal()})
                          : std::string{"a reply of an unexpected kind"},
                  refused && wire::classify(reply.text) == wire::ServerError::transient, !refused};
    }
  }
  sightings_.push_back(std::move(sighting));
}

// ---- the end -----------------------------------------------------------------------------------

void WatchStream::check_silence(Clock::time_point now) {
  const auto patience = connector_.timeouts().command;
  if (!under_way_.empty() && now - under_way_.front().sent >= patience) {
    break_off(errc::unavailable, "timed out");
  }
  if (step_ != Step::ready) return;
  if (ear_asked_ != Clock::time_point::max()) {
    if (now - ear_asked_ >= patience) break_off(errc::unavailable, "timed out");
  } else if (now - ear_.connection->last_heard() >= ear_check) {
    ear_.outbox += wire::Command{"PING"}.bytes();
    ear_asked_ = now;
    write(ear_);
  }
}

void WatchStream::break_off(errc code, const std::string& cause) {
  // A refusal of what is asked for here says nothing about connecting.
  if (step_ != Step::ready && code != errc::rejected) connector_.failed(code, cause);
  end(cause);
  throw Error{code, cause};
}

void WatchStream::close() noexcept {
  try {
    end("closed");
  } catch (...) {
    under_way_.clear();  // no memory to tell of it
  }
}

// An attempt whose answer is out may run yet. The last words behind it free the key then.
void WatchStream::end(const std::string& cause) {
  step_ = Step::closed;
  opening_.reset();
  ear_ = {};
  auto eye = std::exchange(eye_, {});
  auto under_way = std::exchange(under_way_, {});
  for (auto& asked : under_way) {
    if (asked.kind == Sighting::Kind::changed) continue;
    auto& sighting = sightings_.emplace_back();
    sighting.key = std::move(asked.key);
    sighting.kind = Sighting::Kind::failed;
    if (asked.kind == Sighting::Kind::looked) continue;
    sighting.kind = asked.kind;
    sighting.token = asked.token;
    sighting.demand = asked.demand;
    sighting.sent = asked.sent;
    if (asked.kind != Sighting::Kind::tried) continue;
    sighting.acquisition.failure = Failure{errc::in_doubt, cause, true, true};
    eye.outbox +=
        wire::Command{"EVAL", lua::release.text, "1", sighting.key, asked.token->reveal()}.bytes();
  }
  if (!eye.connection || eye.outbox.empty()) return;
  std::size_t sent = 0;
  (void)eye.connection->send(eye.outbox, {}, sent);
}

// ---- what to wait for --------------------------------------------------------------------------

std::array<pollfd, 2> WatchStream::polled() const noexcept {
  const auto of = [this](const Line& line, Step connecting) -> pollfd {
    if (opening_ && step_ == connecting) return {opening_->fd(), opening_->events(), 0};
    if (!line.connection) return {-1, 0, 0};
    const auto events = line.outbox.empty() ? POLLIN : POLLIN | POLLOUT;
    return {line.connection->fd(), static_cast<short>(events), 0};
  };
  return {of(ear_, Step::connecting_ear), of(eye_, Step::connecting_eye)};
}

Clock::time_point WatchStream::wake_at(Clock::time_point now) const noexcept {
  if (step_ == Step::closed) return Clock::time_point::max();
  if (opening_) return opening_->fd() < 0 ? now + lookup_poll : opening_->wake_at();
  if (step_ != Step::ready) return deadline_;
  const auto patience = connector_.timeouts().command;
  auto earliest = ear_asked_ != Clock::time_point::max()
                      ? ear_asked_ + patience
                      : ear_.connection->last_heard() + ear_check;
  if (!under_way_.empty()) earliest = std::min(earliest, under_way_.front().sent + patience);
  return earliest;
}

void WatchStream::abandon() noexcept {
  if (opening_) opening_->abandon();
  if (ear_.connection) ear_.connection->abandon();
  if (eye_.connection) eye_.connection->abandon();
}

}  // namespace redlease::inline v1::store

#endif
