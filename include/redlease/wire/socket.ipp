#ifndef REDLEASE_WIRE_SOCKET_IPP
#define REDLEASE_WIRE_SOCKET_IPP

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <redlease/wire/socket.hpp>

namespace redlease::inline v1::wire {
namespace {

void set_option(int fd, int level, int name, int value) noexcept {
  // Best effort: a kernel without the option serves as well, only less tidily.
  (void)::setsockopt(fd, level, name, &value, sizeof value);
}

void set_tcp_options(int fd) noexcept {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  // Unacknowledged data would otherwise hold a half-open connection for a quarter of an hour.
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    blocking_wait_ = other.blocking_wait_;
  }
  return *this;
}

void Socket::close() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

bool Socket::begin_connect(const sockaddr& address, std::size_t size) {
  close();
  fd_ = ::socket(address.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return false;
  if (address.sa_family != AF_UNIX) set_tcp_options(fd_);
  if (::connect(fd_, &address, static_cast<socklen_t>(size)) == 0) return true;
  // An interrupted connect goes on by itself, like one that is in progress.
  return errno == EINPROGRESS || errno == EINTR;
}

Io Socket::finish_connect(std::chrono::nanoseconds usual_wait) {
  pollfd entry{fd_, POLLOUT, 0};
  const int ready = ::poll(&entry, 1, 0);
  if (ready == 0 || (ready < 0 && errno == EINTR)) return Io::timeout;
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return Io::failed;
  if (error != 0) {
    errno = error;
    return Io::failed;
  }

  // Reads that may take their usual time block in recv() itself: one system call instead of
  // three. The kernel's time-out is a little shorter, so that the deadline stays ours.
  blocking_wait_ = usual_wait * 7 / 8;
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(blocking_wait_).count();
  timeval limit{static_cast<time_t>(us / 1'000'000), static_cast<suseconds_t>(us % 1'000'000)};
  if (us < 1 || ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0) {
    blocking_wait_ = std::chrono::nanoseconds::max();
  }
  const int flags = ::fcntl(fd_, F_GETFL);
  return flags >= 0 && ::fcntl(fd_, F_SETFL, flags & ~O_NONBLOCK) == 0 ? Io::done : Io::failed;
}

Io Socket::send(std::string_view bytes, Clock::time_point deadline, std::size_t& sent) {
  sent = 0;
  while (sent < bytes.size()) {
    const auto n =
        ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      sent += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (const auto waited = wait(POLLOUT, deadline); waited != Io::done) return waited;
    } else if (errno != EINTR) {
      return Io::failed;
    }
  }
  return Io::done;
}

Io Socket::receive(char* buffer, std::size_t capacity, Clock::time_point deadline,
                   std::size_t& received) {
  for (;;) {
    const auto now = Clock::now();
    const bool block = deadline > now && deadline - now >= blocking_wait_;
    const auto n = ::recv(fd_, buffer, capacity, block ? 0 : MSG_DONTWAIT);
    if (n > 0) {
      received = static_cast<std::size_t>(n);
      return Io::done;
    }
    if (n == 0) return Io::closed;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (block) continue;
      if (const auto waited = wait(POLLIN, deadline); waited != Io::done) return waited;
    } else if (errno != EINTR) {
      return Io::failed;
    }
  }
}

Socket::Look Socket::peek() const noexcept {
  char byte;
  const auto n = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0) return Look::readable;
  const bool nothing_yet = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return nothing_yet ? Look::quiet : Look::closed;
}

Io Socket::wait(short events, Clock::time_point deadline) const {
  for (;;) {
    const auto now = Clock::now();
    if (deadline <= now) return Io::timeout;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now);
    pollfd entry{fd_, events, 0};
    const auto timeout = std::min<std::chrono::milliseconds::rep>(left.count(), 3'600'000);
    const int n = ::poll(&entry, 1, static_cast<int>(timeout));
    if (n > 0) return Io::done;  // an error shows itself in the next system call
    if (n < 0 && errno != EINTR) return Io::failed;
  }
}

}  // namespace redlease::inline v1::wire

#endif
