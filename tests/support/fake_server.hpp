// A scripted TCP listener on a loopback port: the peer that is silent, slow or speaks nonsense.
//
//   FakeServer silent;                                       // accepts, reads, never speaks
//   FakeServer closing({.close_on_connect = true});
//   FakeServer web({.greeting = "HTTP/1.1 400 Bad Request\r\n"});
//   FakeServer loading({.answer = [](const std::string&) { return "-LOADING wait\r\n"; }});
//   FakeServer dribbling({.answer = …, .byte_interval = 200ms});
#ifndef REDLEASE_TESTS_SUPPORT_FAKE_SERVER_HPP
#define REDLEASE_TESTS_SUPPORT_FAKE_SERVER_HPP

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>

#include "support/sockets.hpp"

namespace redlease::test {

struct FakeServerOptions {
  std::string greeting{};         // sent on connect
  bool close_on_connect = false;  // behind the greeting
  // Called on the server's thread for each whole RESP request, or for the bytes that came when
  // they are not RESP; what it returns is sent. None: no answer. It must not throw.
  std::function<std::string(const std::string& request)> answer{};
  std::chrono::milliseconds byte_interval{0};  // sends single bytes with this interval between
};

class FakeServer {
 public:
  explicit FakeServer(FakeServerOptions options = {});
  ~FakeServer();
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  std::uint16_t port() const { return listener_.port; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port()); }

  // From any thread.
  std::size_t accepted() const { return accepted_; }
  std::size_t open_connections() const { return open_; }
  std::size_t requests() const { return requests_; }

 private:
  struct Peer;

  void run();
  void accept_new(std::list<Peer>& peers);
  void serve(Peer& peer, bool readable);
  void send_due(Peer& peer) const;

  const FakeServerOptions options_;
  const Listener listener_;
  WakeUp wake_;
  std::atomic<std::size_t> accepted_{0};
  std::atomic<std::size_t> open_{0};
  std::atomic<std::size_t> requests_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace redlease::test

#endif
