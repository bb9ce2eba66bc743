#ifndef REDLEASE_WIRE_SOCKET_HPP
#define REDLEASE_WIRE_SOCKET_HPP

#include <cstddef>
#include <string_view>
#include <utility>

#include <redlease/clock.hpp>

struct sockaddr;

namespace redlease::inline v1::wire {

enum class Io {
  done,
  timeout,  ///< the deadline came first; the socket is as good as before
  closed,   ///< the peer has closed the connection
  failed,   ///< errno says why
};

/// A stream socket. Every wait ends at an absolute deadline, whatever signals arrive and however
/// slowly bytes trickle in: time-outs of the kernel count per system call and start afresh each
/// time (field report B06). Nothing here raises SIGPIPE, and no child inherits the descriptor.
class Socket {
 public:
  Socket() = default;
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  /// Begins to connect, with TCP_NODELAY, keep-alive and TCP_USER_TIMEOUT where they apply, and
  /// doesn't wait: see finish_connect(). False if that failed at once; errno says why.
  bool begin_connect(const sockaddr& address, std::size_t size);
  /// Doesn't wait either: `timeout` while it takes longer. `usual_wait` is how long reads mostly
  /// may take: see receive().
  Io finish_connect(std::chrono::nanoseconds usual_wait);

  /// Sends all of `bytes`. `sent` tells how many the kernel took, also when it ends early.
  Io send(std::string_view bytes, Clock::time_point deadline, std::size_t& sent);

  /// Waits until there is something to read and reads what there is, up to `capacity` bytes.
  Io receive(char* buffer, std::size_t capacity, Clock::time_point deadline, std::size_t& received);

  enum class Look { quiet, readable, closed };
  /// What a read would find. Doesn't block and reads nothing.
  Look peek() const noexcept;

  /// Waits for an event of poll(2).
  Io wait(short events, Clock::time_point deadline) const;

  void close() noexcept;
  int fd() const noexcept { return fd_; }

 private:
  int fd_ = -1;
  std::chrono::nanoseconds blocking_wait_{0};  // SO_RCVTIMEO as it is set on the socket
};

}  // namespace redlease::inline v1::wire

#endif
