// Judges a soak by what its holders wrote down and what its server executed. No I/O: logs in,
// findings out.
//
// Nothing is held against the library that it can't help, and each excuse is as narrow as can be: a
// key was deleted, a server lost its memory, a process was stopped, or the machine was so busy that
// a thread which only sleeps was late as well.
#ifndef REDLEASE_TESTS_SOAK_CHECKER_HPP
#define REDLEASE_TESTS_SOAK_CHECKER_HPP

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "soak/records.hpp"
#include "support/monitor.hpp"

namespace redlease::soak {

// A key was lost at some instant from `from` to `to`: all keys if `key` is empty.
struct Erasure {
  std::string key;
  Instant from;
  Instant to;
  std::string why;
};

// A holder was stopped: perhaps from `from` to `to`, certainly from `stopped` to `resumed`.
struct Stop {
  Instant from;
  Instant stopped;
  Instant resumed;
  Instant to;
};

struct Findings {
  std::vector<std::string> violations;

  std::size_t claims = 0;            // compared with all others on their key
  std::size_t overlaps_excused = 0;  // the server had lost the older lease
  std::size_t signals = 0;           // of losses that were signalled in time
  std::size_t signals_behind = 0;    // of losses that a release found out about in the end
  std::size_t signals_excused = 0;   // the machine was too busy
  std::size_t long_stops = 0;        // leases whose holder was stopped for more than their ttl
  std::size_t feed_lines = 0;
  std::size_t deletes = 0;     // in scripts, of the token that the key held
  std::size_t renewals = 0;    // in scripts, the same
  std::size_t grants = 0;      // in scripts, to one who waited
  std::size_t validities = 0;  // compared with what the server gave

  void add(const Findings& other);
};

// No two leases claim one key at the same instant, unless an erasure explains it.
Findings check_overlaps(const std::vector<HolderLog>& logs, const std::vector<Erasure>& erasures);

// Of one holder: losses are final and were signalled in time, nothing is held beyond its validity,
// and nothing is left at the end.
Findings check_holder(const HolderLog& log, const std::vector<Stop>& stops);

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
  const Findings& findings() const { return findings_; }

 private:
  // When the server ran a command, and when a lease ends: at some time from `from` to `to`.
  struct Holding {
    std::optional<std::string> token;  // none: unknown
    Span expiry;
  };
  struct Script {
    std::string source;
    std::vector<std::string> args;  // behind the keys
  };

  Span when(Time written) const;
  Span expiry(Span at, Time ttl) const;
  std::vector<Holding>& possibilities(const std::string& key);
  void forget_until(Time now);
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
};

}  // namespace redlease::soak

#endif
