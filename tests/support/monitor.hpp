// Captures what a RedisServer executes, from its MONITOR feed, and finds the commands that break
// the promise "never someone else's key".
#ifndef REDLEASE_TESTS_SUPPORT_MONITOR_HPP
#define REDLEASE_TESTS_SUPPORT_MONITOR_HPP

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/redis_server.hpp"

namespace redlease::test {

struct MonitorLine {
  std::chrono::microseconds time{};  // since the epoch, on the server's clock
  int db = 0;
  std::string source;             // "lua", "127.0.0.1:PORT" or "unix:/path"
  std::vector<std::string> args;  // as bytes
};
std::ostream& operator<<(std::ostream& out, const MonitorLine& line);

// Throws std::invalid_argument for text that is no line of the feed.
MonitorLine parse_monitor_line(const std::string& text);

// Can this command end or overwrite a key whoever owns it? True for DEL, UNLINK, EXPIRE, PERSIST,
// SET without both NX and PX, FLUSHALL, RENAME, SCRIPT FLUSH and their like; false for the
// native compare-and-set and compare-and-delete commands.
bool is_unguarded_write(const std::vector<std::string>& args);

// Nothing that the server executes after the constructor is missed, until the server ends. All
// functions may be called from any thread.
class Monitor {
 public:
  explicit Monitor(RedisServer& server);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // Listens again after a restart of the server; the lines so far stay.
  void attach();

  // Returns when everything executed so far is in lines(); throws when the feed has ended or the
  // server does not answer. Call it before you look.
  void sync();

  std::vector<MonitorLine> lines() const;
  std::size_t count(const std::function<bool(const MonitorLine&)>& pred) const;

  // The unguarded writes that came neither from a script nor from an administrator's connection:
  // one of the server's admin_addresses() or of `more_admins`. Must be empty.
  std::vector<MonitorLine> violations(const std::set<std::string>& more_admins = {}) const;

 private:
  void detach();
  void collect();
  void take(const std::string& text);

  RedisServer& server_;
  std::optional<AdminConnection> connection_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MonitorLine> lines_;
  std::set<std::string> markers_;  // those of sync() that have come by
  std::string ended_;              // why the feed ended; empty while it goes on
  std::thread thread_;
};

}  // namespace redlease::test

#endif
