#include "support/sockets.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <stdexcept>
#include <system_error>

namespace redlease::test {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

Fd new_socket(int family) {
  Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail("socket");
  return fd;
}

void enable(const Fd& fd, int level, int option) {
  const int on = 1;
  ::setsockopt(fd.get(), level, option, &on, sizeof on);
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

template <typename Address>
const sockaddr* generic(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

bool bind_to(const Fd& fd, std::uint16_t port) {
  const sockaddr_in address = loopback(port);
  return ::bind(fd.get(), generic(address), sizeof address) == 0;
}

// Calls `take(port)` with ports drawn at random until it says that it has got one.
template <typename Take>
std::uint16_t draw_port(Take take) {
  std::random_device random;
  std::uniform_int_distribution<std::uint16_t> ports(10000, 29999);
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const std::uint16_t port = ports(random);
    if (take(port)) return port;
    if (errno != EADDRINUSE) fail("bind to a loopback port");
  }
  throw std::runtime_error("no free loopback port");
}

}  // namespace

void Fd::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

std::uint16_t free_port() {
  return draw_port([](std::uint16_t port) { return bind_to(new_socket(AF_INET), port); });
}

Listener listen_on_loopback() {
  Listener listener;
  listener.port = draw_port([&listener](std::uint16_t port) {
    listener.fd = new_socket(AF_INET);
    enable(listener.fd, SOL_SOCKET, SO_REUSEADDR);
    return bind_to(listener.fd, port) && ::listen(listener.fd.get(), SOMAXCONN) == 0;
  });
  return listener;
}

Fd accept_from(const Fd& listener) {
  Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd) enable(fd, IPPROTO_TCP, TCP_NODELAY);
  return fd;
}

Fd connect_to_port(std::uint16_t port) {
  Fd fd = new_socket(AF_INET);
  enable(fd, IPPROTO_TCP, TCP_NODELAY);
  const sockaddr_in address = loopback(port);
  if (::connect(fd.get(), generic(address), sizeof address) == 0 || errno == EINPROGRESS) return fd;
  return {};
}

Fd connect_to_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) throw std::invalid_argument("socket path too long");
  std::copy(path.begin(), path.end(), address.sun_path);
  Fd fd = new_socket(AF_UNIX);
  if (::connect(fd.get(), generic(address), sizeof address) == 0) return fd;
  return {};
}

void reset_on_close(const Fd& fd) {
  const linger at_once{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

Received receive(const Fd& fd, std::string& into) {
  std::array<char, 65536> buffer;
  const ssize_t size = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
  if (size > 0) {
    into.append(buffer.data(), static_cast<std::size_t>(size));
    return Received::bytes;
  }
  return size < 0 && (errno == EAGAIN || errno == EINTR) ? Received::nothing : Received::end;
}

int poll_timeout(std::chrono::steady_clock::time_point until) {
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  if (until == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<milliseconds>(std::max(until, Clock::now()) - Clock::now());
  return static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 60000));
}

WakeUp::WakeUp() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) fail("eventfd");
}

void WakeUp::signal() { ::eventfd_write(event_.get(), 1); }

void WakeUp::drain() {
  eventfd_t ignored = 0;
  ::eventfd_read(event_.get(), &ignored);
}

}  // namespace redlease::test
