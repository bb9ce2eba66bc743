#include "support/admin_connection.hpp"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace redlease::test {
namespace {

constexpr timeval connect_timeout{10, 0};

Answer to_answer(const redisReply& reply) {
  Answer answer;
  switch (reply.type) {
    case REDIS_REPLY_NIL:
      return answer;
    case REDIS_REPLY_INTEGER:
      answer.type = Answer::Type::integer;
      answer.integer = reply.integer;
      return answer;
    case REDIS_REPLY_ARRAY:
      answer.type = Answer::Type::list;
      for (std::size_t i = 0; i < reply.elements; ++i) {
        answer.elements.push_back(to_answer(*reply.element[i]));
      }
      return answer;
    case REDIS_REPLY_STATUS:
      answer.type = Answer::Type::status;
      break;
    case REDIS_REPLY_ERROR:
      answer.type = Answer::Type::error;
      break;
    default:
      answer.type = Answer::Type::text;
      break;
  }
  answer.text.assign(reply.str, static_cast<std::size_t>(reply.len));
  return answer;
}

// Administrators come from an address of their own, so that no client's ever looks like theirs:
// ports are used again.
constexpr in_addr_t admins_host = INADDR_LOOPBACK + 1;
constexpr auto admins_name = "127.0.0.2:";

std::string local_address(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  const int result = ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  if (result != 0 || address.sin_family != AF_INET) return {};
  return admins_name + std::to_string(ntohs(address.sin_port));
}

sockaddr_in address_of(in_addr_t host, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(port);
  return address;
}

// Blocks for as long as the loopback takes: a server that is stopped still accepts.
int connect_from_admins_host(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto from = address_of(admins_host, 0);
  const auto to = address_of(INADDR_LOOPBACK, port);
  const auto* const source = reinterpret_cast<const sockaddr*>(&from);
  const auto* const target = reinterpret_cast<const sockaddr*>(&to);
  if (fd < 0 || ::bind(fd, source, sizeof from) != 0 || ::connect(fd, target, sizeof to) != 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    throw std::runtime_error("admin: connect: " + why);
  }
  return fd;
}

std::string formatted(const std::vector<std::string>& args) {
  std::vector<const char*> pointers;
  std::vector<std::size_t> sizes;
  for (const std::string& arg : args) {
    pointers.push_back(arg.data());
    sizes.push_back(arg.size());
  }
  char* text = nullptr;
  const int count = static_cast<int>(args.size());
  const auto size = redisFormatCommandArgv(&text, count, pointers.data(), sizes.data());
  if (size < 0) throw std::runtime_error("admin: cannot format the command");
  std::string command(text, static_cast<std::size_t>(size));
  redisFreeCommand(text);
  return command;
}

}  // namespace

void AdminConnection::Free::operator()(redisContext* context) const { redisFree(context); }

AdminConnection::AdminConnection(redisContext* context) : context_(context) {
  if (!context) throw std::runtime_error("admin: out of memory");
  if (context->err) throw std::runtime_error(std::string("admin: connect: ") + context->errstr);
  fd_ = context->fd;
  ::fcntl(fd_, F_SETFD, FD_CLOEXEC);
  address_ = local_address(fd_);
  set_timeout(std::chrono::seconds(30));
}

AdminConnection AdminConnection::to_port(std::uint16_t port) {
  return AdminConnection(redisConnectFd(connect_from_admins_host(port)));
}

AdminConnection AdminConnection::to_socket(const std::string& path) {
  return AdminConnection(redisConnectUnixWithTimeout(path.c_str(), connect_timeout));
}

Answer AdminConnection::command(const std::vector<std::string>& args) {
  send(args);
  return read();
}

// Not hiredis' own writing, which can raise SIGPIPE.
void AdminConnection::send(const std::vector<std::string>& args) {
  const std::string bytes = formatted(args);
  for (std::string_view rest = bytes; !rest.empty();) {
    const ssize_t sent = ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      rest.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      throw std::runtime_error(std::string("admin: send: ") + std::strerror(errno));
    }
  }
}

Answer AdminConnection::read() {
  void* reply = nullptr;
  if (redisGetReply(context_.get(), &reply) != REDIS_OK) {
    throw std::runtime_error(std::string("admin: read: ") + context_->errstr);
  }
  const std::unique_ptr<void, void (*)(void*)> owner(reply, freeReplyObject);
  return to_answer(*static_cast<const redisReply*>(reply));
}

void AdminConnection::set_timeout(std::chrono::milliseconds timeout) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(timeout);
  const std::chrono::microseconds rest = timeout - seconds;
  redisSetTimeout(context_.get(), timeval{seconds.count(), rest.count()});
}

bool AdminConnection::alive() const {
  pollfd state{fd_, POLLIN | POLLRDHUP, 0};
  return ::poll(&state, 1, 0) == 0;
}

void AdminConnection::shut_down() { ::shutdown(fd_, SHUT_RDWR); }

}  // namespace redlease::test
