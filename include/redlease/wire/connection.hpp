#ifndef REDLEASE_WIRE_CONNECTION_HPP
#define REDLEASE_WIRE_CONNECTION_HPP

#include <memory>
#include <string>
#include <string_view>

#include <redlease/clock.hpp>
#include <redlease/wire/reply.hpp>
#include <redlease/wire/socket.hpp>

struct redisReader;

namespace redlease::inline v1::wire {

/// A connection that has logged in, chosen its database and got its name. An Opening is the only
/// way to get one, so that no reconnect can forget a step (field report B08). One thread at a time.
class Connection {
 public:
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Sends all of `bytes`; `sent` tells how many went out, also on failure.
  Io send(std::string_view bytes, Clock::time_point deadline, std::size_t& sent);

  /// Reads once, waiting for bytes until `deadline`. They come out of next_reply(). Bytes that
  /// trickle in behind the deadline do not count: that is a timeout, too.
  Io receive(Clock::time_point deadline);
  /// Reads what is there; `timeout` if that is nothing.
  Io receive_available();

  enum class Parsed { reply, incomplete, nonsense };
  /// Takes the next complete reply out of what was received.
  Parsed next_reply(Reply& reply);

  /// Something was received that is not part of any reply taken so far.
  bool has_unparsed() const noexcept;

  Socket::Look peek() const noexcept { return socket_.peek(); }
  int fd() const noexcept { return socket_.fd(); }
  /// The instant of the latest complete reply, or of connecting.
  Clock::time_point last_heard() const noexcept { return last_heard_; }
  /// What went wrong, for a message, after an Io other than done or a Parsed::nonsense.
  std::string describe(Io outcome) const;

  /// Closes the inherited descriptor in a child process: sends nothing, so the parent's
  /// connection goes on.
  void abandon() noexcept { socket_.close(); }

 private:
  friend class Opening;
  Connection();
  Io read(Clock::time_point deadline);

  struct FreeReader {
    void operator()(redisReader* reader) const noexcept;
  };
  Socket socket_;
  std::unique_ptr<redisReader, FreeReader> reader_;
  Reply reply_;                  // the one that is being parsed
  std::size_t since_reply_ = 0;  // bytes received since the last complete reply
  Clock::time_point received_at_{};
  Clock::time_point last_heard_{};
  int error_ = 0;
};

}  // namespace redlease::inline v1::wire

#endif
