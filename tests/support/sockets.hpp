// Sockets on loopback for the test servers: an owned descriptor, listeners on free ports,
// non-blocking connections and a wake-up for poll loops. Everything is close-on-exec.
#ifndef REDLEASE_TESTS_SUPPORT_SOCKETS_HPP
#define REDLEASE_TESTS_SUPPORT_SOCKETS_HPP

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace redlease::test {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// A port of 127.0.0.1 on which nobody listens now. It lies below the range from which outgoing
// connections take theirs: a client that retries while the server is down can not connect to
// itself, and nobody's connection occupies the port when the server comes back.
std::uint16_t free_port();

struct Listener {
  Fd fd;  // non-blocking
  std::uint16_t port = 0;
};
Listener listen_on_loopback();

// Non-blocking and with TCP_NODELAY; an empty Fd when there is nothing to accept.
Fd accept_from(const Fd& listener);

// Non-blocking; a TCP connection may still be in progress. An empty Fd when refused at once.
Fd connect_to_port(std::uint16_t port);
Fd connect_to_socket(const std::string& path);

// The coming close sends RST instead of FIN.
void reset_on_close(const Fd& fd);

enum class Received { bytes, nothing, end };
// Appends what one recv gives to `into`; an error counts as the end.
Received receive(const Fd& fd, std::string& into);

// What is left until then for poll(2), rounded up so that a loop does not spin through the last
// millisecond; -1 (no limit) for time_point::max().
int poll_timeout(std::chrono::steady_clock::time_point until);

// Makes a poll in another thread return.
class WakeUp {
 public:
  WakeUp();
  int fd() const { return event_.get(); }
  void signal();
  void drain();

 private:
  Fd event_;
};

}  // namespace redlease::test

#endif
