#ifndef REDLEASE_WIRE_CONNECTION_IPP
#define REDLEASE_WIRE_CONNECTION_IPP

#include <hiredis/hiredis.h>

#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include <redlease/wire/connection.hpp>

namespace redlease::inline v1::wire {
namespace {

// All replies that redlease asks for are far smaller; a peer that sends more is not our server.
constexpr std::size_t max_reply_size = std::size_t{1} << 20;

// hiredis parses; the functions below let it build our Reply in place, without a heap allocation
// for every reply. A null result makes the parser fail. The longest array has something for each
// key of a lease that is renewed together with many others.
constexpr std::size_t most_elements = 2048;

Reply& place(const redisReadTask& task) {
  if (task.parent == nullptr) {
    auto& root = *static_cast<Reply*>(task.privdata);
    root.integer = 0;
    root.text.clear();
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

}  // namespace

void Connection::FreeReader::operator()(redisReader* reader) const noexcept {
  redisReaderFree(reader);
}

Connection::Connection() : reader_(redisReaderCreateWithFunctions(reply_functions())) {
  if (!reader_) throw std::bad_alloc{};
  reader_->privdata = &reply_;
}

Connection::~Connection() = default;

Io Connection::send(std::string_view bytes, Clock::time_point deadline, std::size_t& sent) {
  const auto outcome = socket_.send(bytes, deadline, sent);
  if (outcome == Io::failed) error_ = errno;
  return outcome;
}

Io Connection::receive(Clock::time_point deadline) {
  if (since_reply_ > 0 && Clock::now() >= deadline) return Io::timeout;
  return read(deadline);
}

Io Connection::receive_available() { return read({}); }

Io Connection::read(Clock::time_point deadline) {
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
