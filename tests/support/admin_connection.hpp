// A blocking connection with which a test looks at a server, or plays the hostile world.
#ifndef REDLEASE_TESTS_SUPPORT_ADMIN_CONNECTION_HPP
#define REDLEASE_TESTS_SUPPORT_ADMIN_CONNECTION_HPP

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct redisContext;

namespace redlease::test {

// A reply. An error reply is a value like the others, for the test to judge.
struct Answer {
  enum class Type { nil, status, error, integer, text, list };

  bool is_nil() const { return type == Type::nil; }
  bool is_error() const { return type == Type::error; }
  bool is_ok() const { return type == Type::status && text == "OK"; }

  Type type = Type::nil;
  std::string text;  // of a status, an error or a text
  long long integer = 0;
  std::vector<Answer> elements;
};

// Throws std::runtime_error when it can not connect, and when I/O fails or takes longer than the
// time-out. One thread at a time.
class AdminConnection {
 public:
  static AdminConnection to_port(std::uint16_t port);
  static AdminConnection to_socket(const std::string& path);

  Answer command(const std::vector<std::string>& args);
  void send(const std::vector<std::string>& args);
  Answer read();

  // Of each read and write; 30 s at first, zero waits for ever.
  void set_timeout(std::chrono::milliseconds timeout);
  // False once the peer has closed. Meant for a connection that awaits no reply.
  bool alive() const;
  // Ends both directions; may be called while another thread is in read().
  void shut_down();
  // "127.0.0.1:PORT", as MONITOR and CLIENT LIST name this connection; empty on a unix socket,
  // where the server calls every connection the same.
  const std::string& address() const { return address_; }

 private:
  struct Free {
    void operator()(redisContext* context) const;
  };
  explicit AdminConnection(redisContext* context);

  std::unique_ptr<redisContext, Free> context_;
  int fd_ = -1;
  std::string address_;
};

}  // namespace redlease::test

#endif
