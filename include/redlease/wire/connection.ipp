#ifndef REDLEASE_WIRE_CONNECTION_IPP
#define REDLEASE_WIRE_CONNECTION_IPP

#include <hiredis/hiredis.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
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

// hiredis parses; the functions below let it build our Reply in place, without a heap allocation
// for every reply. A null result makes the parser fail.
constexpr std::size_t most_elements = 64;

Reply& place(const redisReadTask& task) {
  if (task.parent == nullptr) {
    auto& root = *static_cast<Reply*>(task.privdata);
    root.elements.clear();
    return root;
  }
  return static_cast<Reply*>(task.parent->obj)->elements[static_cast<std::size_t>(task.idx)];
}

Reply::Type type_of_text(int type) {
  if (type == REDIS_REPLY_STATUS) return Reply::Type::status;
  return type == REDIS_REPLY_ERROR ? Reply::Type::error : Reply::Type::string;
}

void* make_text(const redisReadTask* task, char* text, std::size_t size) noexcept try {
  Reply& reply = place(*task);
  reply.type = type_of_text(task->type);
  reply.text.assign(text, size);
  return &reply;
} catch (const std::bad_alloc&) {
  return nullptr;
}

template <class Size>  // int before hiredis 1.0, size_t since
void* make_array(const redisReadTask* task, Size size) noexcept try {
  if (static_cast<std::size_t>(size) > most_elements) return nullptr;
  Reply& reply = place(*task);
  reply.type = Reply::Type::array;
  reply.elements.resize(static_cast<std::size_t>(size));
  return &reply;
} catch (const std::bad_alloc&) {
  return nullptr;
}

void* make_integer(const redisReadTask* task, long long value) noexcept {
  Reply& reply = place(*task);
  reply.type = Reply::Type::integer;
  reply.integer = value;
  return &reply;
}

void* make_nil(const redisReadTask* task) noexcept {
  Reply& reply = place(*task);
  reply.type = Reply::Type::nil;
  return &reply;
}

redisReplyObjectFunctions* reply_functions() {
  static redisReplyObjectFunctions functions = [] {
    redisReplyObjectFunctions f{};
    f.createString = make_text;
    f.createArray = make_array;
    f.createInteger = make_integer;
    f.createNil = make_nil;
    f.freeObject = [](void*) {};  // replies live in the connection
    return f;
  }();
  return &functions;
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

}  // namespace

void Connection::FreeReader::operator()(redisReader* reader) const noexcept {
  redisReaderFree(reader);
}

Connection::Connection() : reader_(redisReaderCreateWithFunctions(reply_functions())) {
  if (!reader_) throw std::bad_alloc{};
  reader_->privdata = &reply_;
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
      const auto text = printable(reply.text, {endpoint.password, endpoint.username});
      const bool passing = classify(reply.text) == ServerError::transient;
      throw Error{passing ? errc::unavailable : errc::rejected, fmt::format("{}: {}", step, text)};
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
  if (since_reply_ > 0 && Clock::now() >= deadline) return Io::timeout;
  std::array<char, 16384> buffer;  // NOLINT(cppcoreguidelines-pro-type-member-init): read into
  std::size_t received = 0;
  const auto outcome = socket_.receive(buffer.data(), buffer.size(), deadline, received);
  if (outcome == Io::failed) error_ = errno;
  if (outcome != Io::done) return outcome;
  received_at_ = Clock::now();
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
  // A type of RESP3, which we never asked for, is made by none of our functions.
  if (parsed != &reply_) return Parsed::nonsense;
  since_reply_ = 0;
  last_heard_ = received_at_;
  reply = std::move(reply_);
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
