// A small proxy on a loopback port that loses, delays and dribbles on demand.
//
// It understands RESP well enough to know which reply answers which request; a stream that is not
// RESP (TLS) is passed on as it comes. A reply is matched by its place in line; pushed messages
// (RESP3 pushes, pub/sub messages) are passed by, but a SUBSCRIBE of several channels in one
// request counts as one reply. All functions may be called from any thread and take effect for
// what arrives after they return.
#ifndef REDLEASE_TESTS_SUPPORT_FAULT_PROXY_HPP
#define REDLEASE_TESTS_SUPPORT_FAULT_PROXY_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/sockets.hpp"

struct pollfd;

namespace redlease::test {

class FaultProxy {
 public:
  explicit FaultProxy(std::uint16_t target_port);  // forwards to 127.0.0.1:target_port
  explicit FaultProxy(std::string target_socket);  // forwards to a unix socket
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  std::uint16_t port() const { return listener_.port; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port()); }

  // Ends every mode below and forgets the drops that have not happened yet.
  void pass_through();

  // Holds back what arrives from now on. Order is kept, so whatever comes behind a delayed
  // request waits, too; `needle` chooses the requests to delay. Zero ends it.
  void delay_requests(std::chrono::milliseconds delay, std::string needle = {});
  void delay_replies(std::chrono::milliseconds delay);

  // One-shot drops. A needle is looked for in the bytes of a whole request, "\r\nSET\r\n" finds
  // the command SET and not CLIENT SETNAME. `then_close` closes the connection, on both sides, in
  // the place of what was dropped. Several drops may be pending; the oldest that fits is used.
  void drop_replies(std::size_t n, bool then_close);  // of the next n requests
  void drop_reply_matching(std::string needle, bool then_close);
  void drop_request_matching(std::string needle, bool then_close);

  // Nothing is forwarded either way, nothing is closed, new connections are accepted and silent.
  // false: everything goes on, as after a network failure: what was sent meanwhile arrives late,
  // also from clients that have closed since.
  void black_hole(bool on);
  // The same for the connections that are open now, for good; new ones work.
  void strand_open_connections();

  // Sends replies `bytes` at a time with `interval` between; 0 bytes ends it.
  void trickle(std::size_t bytes, std::chrono::milliseconds interval);

  void refuse(bool on);  // new connections are refused, the open ones stay
  void reset_all();      // RST to both sides of every open connection

  std::size_t accepted() const;
  std::size_t open_connections() const;  // that neither the client nor the proxy has closed
  // Requests that arrived so far with `needle` in their first 4096 bytes.
  std::size_t requests_seen(std::string_view needle) const;

 private:
  struct Chunk;
  struct Drop;
  struct Lane;
  struct Link;

  FaultProxy(std::uint16_t target_port, std::string target_socket);
  void run();
  int prepare_poll(std::vector<pollfd>& fds) const;
  void accept_new();
  void serve(Link& link, const pollfd& client, const pollfd& server);
  bool silent(const Link& link) const;
  void take_requests(Link& link);
  void judge(Link& link, std::string request);
  std::optional<Drop> take_drop(const std::string& request);
  void take_replies(Link& link);
  void flush(Link& link);

  const std::uint16_t target_port_;
  const std::string target_socket_;
  const Listener listener_;
  WakeUp wake_;

  mutable std::mutex mutex_;
  std::list<Link> links_;
  std::list<Drop> drops_;
  std::vector<std::string> seen_;
  std::size_t accepted_ = 0;
  std::chrono::milliseconds request_delay_{0};
  std::string request_delay_needle_;
  std::chrono::milliseconds reply_delay_{0};
  std::size_t trickle_bytes_ = 0;
  std::chrono::milliseconds trickle_interval_{0};
  bool black_hole_ = false;
  bool refuse_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace redlease::test

#endif
