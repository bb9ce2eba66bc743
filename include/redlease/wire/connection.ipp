#ifndef REDLEASE_WIRE_CONNECTION_IPP
#define REDLEASE_WIRE_CONNECTION_IPP

#include <hiredis/hiredis.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#include <fmt/format.h>
#include <redlease/error.hpp>
#include <redlease/wire/command.hpp>
#include <redlease/wire/connection.hpp>
#include <redlease/wire/resolver.hpp>
#include <redlease/wire/server_error.hpp>

namespace redlease::inline v1::wire {
namespace {

// All replies that redlease asks for are far smaller; a peer that sends more is not our server.
constexpr std::size_t max_reply_size = std::size_t{1} << 20;

Reply convert(const redisReply& from) {
  Reply reply;
  switch (from.type) {
    case REDIS_REPLY_STATUS:
      reply.type = Reply::Type::status;
      reply.text.assign(from.str, from.len);
      break;
    case REDIS_REPLY_ERROR:
      reply.type = Reply::Type::error;
      reply.text.assign(from.str, from.len);
      break;
    case REDIS_REPLY_INTEGER:
      reply.type = Reply::Type::integer;
      reply.integer = from.integer;
      break;
    case REDIS_REPLY_STRING:
      reply.type = Reply::Type::string;
      reply.text.assign(from.str, from.len);
      break;
    case REDIS_REPLY_ARRAY:
      reply.type = Reply::Type::array;
      for (std::size_t i = 0; i < from.elements; ++i) {
        reply.elements.push_back(convert(*from.element[i]));
      }
      break;
    default:
      break;  // nil; RESP3 types need a HELLO that we never send
  }
  return reply;
}

std::vector<Address> addresses_of(const Endpoint& endpoint, Resolver& resolver,
                                  Clock::time_point deadline) {
  if (endpoint.socket_path.empty()) {
    return resolver.resolve(endpoint.host, endpoint.port, deadline);
  }
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // The path's length was checked when it was parsed.
  std::memcpy(name.sun_path, endpoint.socket_path.c_str(), endpoint.socket_path.size() + 1);
  Address address;
  address.size = sizeof name;
  std::memcpy(&address.storage, &name, sizeof name);
  return {address};
}

std::string hide(std::string text, const std::string& secret) {
  if (secret.empty()) return text;
  for (auto at = text.find(secret); at != std::string::npos; at = text.find(secret, at + 3)) {
    text.replace(at, secret.size(), "***");
  }
  return text;
}

}  // namespace

void Connection::FreeReader::operator()(redisReader* reader) const noexcept {
  redisReaderFree(reader);
}

Connection::Connection() : reader_(redisReaderCreate()) {
  if (!reader_) throw std::bad_alloc{};
}

Connection::~Connection() = default;

std::unique_ptr<Connection> Connection::open(const Endpoint& endpoint, Resolver& resolver,
                                             std::chrono::nanoseconds usual_wait,
                                             Clock::time_point deadline) {
  const auto addresses = addresses_of(endpoint, resolver, deadline);
  std::unique_ptr<Connection> connection{new Connection};
  std::string failure = "no address";
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    // A silent address must leave time for those behind it.
    const auto share = (deadline - Clock::now()) / static_cast<int>(addresses.size() - i);
    const auto& storage = addresses[i].storage;
    const auto outcome =
        connection->socket_.connect(reinterpret_cast<const sockaddr&>(storage), addresses[i].size,
                                    usual_wait, Clock::now() + share);
    connection->error_ = errno;
    if (outcome == Io::done) {
      connection->log_in(endpoint, deadline);
      return connection;
    }
    failure = connection->describe(outcome);
  }
  throw Error{errc::unavailable, fmt::format("connect: {}", failure)};
}

void Connection::log_in(const Endpoint& endpoint, Clock::time_point deadline) {
  last_heard_ = Clock::now();
  std::string bytes;
  std::vector<const char*> steps;
  const auto add = [&](const char* step, std::initializer_list<std::string_view> arguments) {
    steps.push_back(step);
    bytes += Command{arguments}.bytes();
  };
  if (endpoint.authenticate && endpoint.username.empty()) {
    add("AUTH", {"AUTH", endpoint.password});
  } else if (endpoint.authenticate) {
    add("AUTH", {"AUTH", endpoint.username, endpoint.password});
  }
  if (endpoint.database != 0) add("SELECT", {"SELECT", std::to_string(endpoint.database)});
  if (!endpoint.client_name.empty()) {
    add("CLIENT SETNAME", {"CLIENT", "SETNAME", endpoint.client_name});
  }

  std::size_t sent = 0;
  if (const auto outcome = send(bytes, deadline, sent); outcome != Io::done) {
    throw Error{errc::unavailable, fmt::format("log in: {}", describe(outcome))};
  }
  for (const auto* step : steps) {
    const auto reply = round_trip_reply(deadline, step);
    if (reply.is_error()) {
      const auto text = hide(hide(reply.text, endpoint.password), endpoint.username);
      const bool passing = classify(reply.text) == ServerError::transient;
      throw Error{passing ? errc::unavailable : errc::rejected,
                  fmt::format("{}: {}", step, printable(text))};
    }
  }
}

Reply Connection::round_trip_reply(Clock::time_point deadline, const char* step) {
  Reply reply;
  for (;;) {
    switch (next_reply(reply)) {
      case Parsed::reply:
        return reply;
      case Parsed::nonsense:
        throw Error{errc::protocol, fmt::format("{}: the reply is not the Redis protocol", step)};
      case Parsed::incomplete:
        if (const auto outcome = receive(deadline); outcome != Io::done) {
          throw Error{errc::unavailable, fmt::format("{}: {}", step, describe(outcome))};
        }
    }
  }
}

Io Connection::send(std::string_view bytes, Clock::time_point deadline, std::size_t& sent) {
  const auto outcome = socket_.send(bytes, deadline, sent);
  if (outcome == Io::failed) error_ = errno;
  return outcome;
}

Io Connection::receive(Clock::time_point deadline) {
  std::array<char, 16384> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): read into
  std::size_t received = 0;
  const auto outcome = socket_.receive(buffer.data(), buffer.size(), deadline, received);
  if (outcome == Io::failed) error_ = errno;
  if (outcome != Io::done) return outcome;
  last_heard_ = Clock::now();
  since_reply_ += received;
  // Out of memory is the only way for this to fail; the next parse then reports it.
  (void)redisReaderFeed(reader_.get(), buffer.data(), received);
  return Io::done;
}

Connection::Parsed Connection::next_reply(Reply& reply) {
  void* parsed = nullptr;
  if (redisReaderGetReply(reader_.get(), &parsed) != REDIS_OK) return Parsed::nonsense;
  if (parsed == nullptr) {
    return since_reply_ > max_reply_size ? Parsed::nonsense : Parsed::incomplete;
  }
  const std::unique_ptr<redisReply, void (*)(void*)> owner{static_cast<redisReply*>(parsed),
                                                           freeReplyObject};
  since_reply_ = 0;
  reply = convert(*owner);
  return Parsed::reply;
}

bool Connection::has_unparsed() const noexcept { return reader_->len > reader_->pos; }

std::string Connection::describe(Io outcome) const {
  switch (outcome) {
    case Io::done:
      return "done";
    case Io::timeout:
      return "timed out";
    case Io::closed:
      return "the server closed the connection";
    case Io::failed:
      break;
  }
  return std::system_category().message(error_);
}

}  // namespace redlease::inline v1::wire

#endif
