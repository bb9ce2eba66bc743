// A redis-server of the test's own: in its own temporary directory, on a free loopback port and on
// a unix socket, without persistence. It ends with the object, or with the test process.
//
// The program is $REDLEASE_TEST_REDIS_SERVER, or redis-server from PATH; without one the
// constructor throws. Any number of servers may run at once. start, stop, kill, pause and resume
// belong to one thread at a time; everything about `admin` may be called from any thread. A forked
// child's copy of the object does nothing when it is destroyed.
#ifndef REDLEASE_TESTS_SUPPORT_REDIS_SERVER_HPP
#define REDLEASE_TESTS_SUPPORT_REDIS_SERVER_HPP

#include <sys/types.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/admin_connection.hpp"
#include "support/spawner.hpp"

namespace redlease::test {

struct RedisServerOptions {
  std::vector<std::string> config{};  // more lines of redis.conf; they win over ours
  std::string requirepass{};
  bool tcp = true;  // false: unix socket only; then nobody can tell the admin by its address
};

class RedisServer {
 public:
  explicit RedisServer(RedisServerOptions options = {});  // starts it
  ~RedisServer();
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  // Returns when PING is answered; throws, with the end of the log, if that does not come. After
  // kill() or stop() it starts again on the same port, socket and directory.
  void start();
  void stop();   // SIGTERM, and waits for the end
  void kill();   // SIGKILL, also while paused
  void pause();  // SIGSTOP; returns once every thread has stopped
  void resume();

  std::uint16_t port() const { return port_; }  // 0 without TCP
  std::string socket_path() const { return directory_.path + "/s"; }
  std::string url() const;            // redis://127.0.0.1:PORT
  std::string unix_url() const;       // unix:///path
  pid_t pid() const { return pid_; }  // -1 while it does not run
  std::string log() const;

  // A command on the administrator's connection: text and integers, binary-safe. The connection
  // is named "admin", opened when first needed and again after a restart, and authenticated.
  // Throws when there is no answer within 30 s; an error reply is an Answer.
  template <typename... Args>
  Answer admin(const Args&... args) {
    return admin_command({argument(args)...});
  }
  Answer admin_command(const std::vector<std::string>& args);

  // One more connection with an administrator's rights, for a test that plays the hostile world.
  AdminConnection connect_admin(const std::string& name);

  // The address of the connection that admin() uses, as MONITOR shows it, and of all
  // administrators' connections so far; no client's can be the same. Empty without TCP.
  std::string admin_address();
  std::set<std::string> admin_addresses() const;

  // Conveniences over admin(); they throw on an error reply.
  std::optional<std::string> get(std::string_view key);
  bool exists(std::string_view key);
  std::chrono::milliseconds pttl(std::string_view key);  // -2 ms: no key, -1 ms: no expiry
  long long dbsize();
  std::vector<std::map<std::string, std::string>> client_list();  // by field: "addr", "name", …
  long long command_calls(std::string_view command);  // "set"; INFO commandstats, 0 if never
  void config_set(std::string_view name, std::string_view value);

 private:
  struct TemporaryDirectory {
    TemporaryDirectory();
    ~TemporaryDirectory();
    std::string path;
    pid_t owner;
  };

  static std::string argument(std::string_view text) { return std::string(text); }
  static std::string argument(std::integral auto number) { return std::to_string(number); }

  void write_config() const;
  void await_ready();
  void check_still_running();
  bool answers_ping() const;
  void forget_process();
  void introduce(AdminConnection& connection, const std::string& name) const;
  AdminConnection open_admin(const std::string& name);  // these two: with admin_mutex_ held
  AdminConnection& current_admin();
  Answer expect(Answer::Type type, const std::vector<std::string>& args);

  const RedisServerOptions options_;
  const std::string program_;
  const TemporaryDirectory directory_;
  std::unique_ptr<Spawner> spawner_;
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
  std::size_t log_start_ = 0;

  mutable std::mutex admin_mutex_;
  std::optional<AdminConnection> admin_;
  std::set<std::string> admin_addresses_;
};

}  // namespace redlease::test

#endif
