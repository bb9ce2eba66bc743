// Judges a soak by what its server executed, and compares that with what its holders wrote down. No
// I/O.
#ifndef REDLEASE_TESTS_SOAK_FEED_CHECKER_HPP
#define REDLEASE_TESTS_SOAK_FEED_CHECKER_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "soak/checker.hpp"
#include "soak/records.hpp"
#include "support/monitor.hpp"

namespace redlease::soak {

// A fault that may keep a holder from giving a lease back began and ended.
struct Trouble {
  Instant from;
  Instant to;
};

// What became of a counter of fencing numbers.
struct CounterAtEnd {
  std::int64_t value = 0;
  bool expires = false;
};

// Is this key the counter of fencing numbers?
bool is_counter(const std::string& key);
// Or the line of those who wait for one?
bool is_line(const std::string& key);

// Follows the MONITOR feed. The feed has requests and no replies, and its times are those at which
// the server wrote them down, so what a key holds is known as a set of possibilities.
class FeedChecker {
 public:
  using Time = std::chrono::microseconds;  // since the epoch, as in the feed
  struct Span {
    Time from;
    Time to;
  };
  struct World {
    std::set<std::string> admins;  // addresses of those who may do anything
    std::vector<Span> pauses;      // of the server
    std::vector<Span> blind;       // from the end of one server until the next one's feed
    Time longest_ttl{0};
  };

  explicit FeedChecker(World world) : world_(std::move(world)) {}

  void take(const test::MonitorLine& line);
  // When the feed is through: no lease was believed to be valid for longer than its ttl (less 1 %
  // for drifting clocks) from when the server had set its ttl. `clocks`: how far the
  // server's clock is ahead of that of the logs.
  void check_validity(const HolderLog& log, nanoseconds clocks);
  // The same, of all holders: while the server kept its data no number of a counter was given
  // twice, and those of a key rise in the order in which the server gave it. A lease on several
  // keys was given all of them by one script.
  void check_numbers(const std::vector<HolderLog>& logs, nanoseconds clocks);
  // The same: `counters` have no expiry, and stand where the increments of the feed have led them.
  void check_counters(const std::map<std::string, CounterAtEnd>& counters);
  // The same: of a lease that was released no key was left when the answer came; nor of one that
  // was destroyed, unless there was trouble or no time.
  void check_ends(const HolderLog& log, const std::vector<Trouble>& troubles, nanoseconds clocks);
  const Findings& findings() const { return findings_; }

 private:
  // When the server ran a command, and when a lease ends: at some time from `from` to `to`.
  struct Holding {
    std::optional<std::string> token;  // none: unknown
    Span expiry;
  };
  struct Script {
    std::string source;
    std::vector<std::string> keys;               // of leases; lines and counters stand behind them
    std::vector<std::string> args;               // behind the keys
    std::map<std::string, std::string> set;      // key and token
    std::map<std::string, std::string> deleted;  // the same
    std::set<std::string> renewed;
  };
  // A script set a token to a key: which one since the beginning, and how often the server had lost
  // its data before.
  struct Given {
    std::size_t script = 0;
    std::size_t epoch = 0;
  };
  using ByNumber = std::map<std::int64_t, std::string>;  // the lease, for a message
  struct Drawn {
    std::int64_t number;
    std::string lease;
  };

  Span when(Time written) const;
  Span expiry(Span at, Time ttl) const;
  std::vector<Holding>& possibilities(const std::string& key);
  void forget_until(Time now);
  void begin_script(const test::MonitorLine& line);
  void end_script();
  void judge_renewals(const Script& script);
  void judge_deletes(const Script& script);
  bool certainly_holds(const std::string& key, const std::string& token) const;
  const std::map<std::string, Given>* given(const std::string& token) const;
  void take_counter(const test::MonitorLine& line);
  void note_gone(const std::string& key, const std::optional<std::string>& token, Time at);
  void compare_numbers(const HolderLog& log, const LeaseRecord& lease);
  void check_order();
  bool is_gone(const std::string& key, const std::string& token, Time until) const;
  void check_release(const HolderLog& log, const LeaseRecord& lease, nanoseconds clocks);
  void check_destruction(const HolderLog& log, const LeaseRecord& lease,
                         const std::vector<Trouble>& troubles, nanoseconds clocks);
  bool unseen(Instant from, Instant to, nanoseconds clocks) const;
  void complain(const std::string& what, const Script& script);
  void report(const std::string& what, const std::vector<std::string>& details);
  void complain(const std::string& what, const test::MonitorLine& line);

  void take_admin(const test::MonitorLine& line);
  void take_script_write(const test::MonitorLine& line);
  void take_set(const test::MonitorLine& line);
  bool seen_throughout(const LeaseRecord& lease, nanoseconds clocks) const;
  bool may_be_free(const std::string& key, Span at);
  void take_grant(const test::MonitorLine& line, Time ttl);
  std::optional<Holding> owner_in_script(const std::string& key, Span at);

  World world_;
  Findings findings_;
  std::map<std::string, std::vector<Holding>> keys_;
  std::optional<Span> forgotten_;  // the last time without a feed: a key not seen since is unknown
  std::size_t next_blind_ = 0;
  Script script_;
  std::map<std::string, std::vector<Time>> written_;  // by token
  Time last_{0};                                      // line
  std::size_t scripts_ = 0;
  std::size_t epoch_ = 0;
  std::map<std::string, std::map<std::string, Given>> given_;  // by token and key
  std::map<std::string, std::map<std::string, Time>> gone_;  // the same: it holds the token no more
  std::map<std::string, std::int64_t> increments_;           // of counters, in this epoch
  bool all_increments_ = true;                               // none was missed
  std::map<std::pair<std::string, std::size_t>, ByNumber> numbers_;  // by counter and epoch
  // By counter, key and epoch, in the order in which the server gave the key.
  std::map<std::tuple<std::string, std::string, std::size_t>, std::map<std::size_t, Drawn>> drawn_;
};

}  // namespace redlease::soak

#endif
