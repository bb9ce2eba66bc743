// The world of a soak: a server, a proxy before it, the holders, and all that can happen to them.
#ifndef REDLEASE_TESTS_SOAK_WORLD_HPP
#define REDLEASE_TESTS_SOAK_WORLD_HPP

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "soak/checker.hpp"
#include "soak/feed_checker.hpp"
#include "support/fault_proxy.hpp"
#include "support/monitor.hpp"
#include "support/redis_server.hpp"
#include "support/spawner.hpp"

namespace redlease::soak {

struct Scale {
  std::size_t holders = 6;
  std::size_t threads = 4;  // of each holder
  std::size_t keys = 10;
  std::chrono::milliseconds longest_ttl{1500};
};

// One holder process. Ended with the object if it does not end by itself.
class HolderProcess {
 public:
  HolderProcess(test::Spawner& spawner, std::string name, std::string directory,
                std::vector<std::string> argv);
  HolderProcess(HolderProcess&& other) noexcept;
  HolderProcess& operator=(HolderProcess&&) = delete;
  ~HolderProcess();

  void kill();    // SIGKILL, and waits for its end
  void stop();    // SIGSTOP
  void resume();  // SIGCONT

  // Empty while it runs, and then what waitpid(2) said.
  std::optional<int> status();
  bool was_killed() const { return killed_; }
  HolderLog log() const;
  std::string output() const;
  const std::string& name() const { return name_; }
  const std::vector<Stop>& stops() const { return stops_; }

 private:
  std::string name_;
  std::string log_path_;
  std::string output_path_;
  pid_t pid_ = -1;
  std::optional<int> status_;
  bool killed_ = false;
  std::vector<Stop> stops_;
};

class World {
 public:
  World(const Scale& scale, unsigned long seed, const std::string& directory);

  void start_holders(std::chrono::seconds run_time);

  // A fault begins and ends; in between it lasts. What ends it does so whatever happened.
  struct Fault {
    enum class On { network, holder, server, admin };
    std::string name;
    On on;
    std::function<void()> begin;
    std::function<void()> end;
  };
  const std::vector<Fault>& faults() const { return faults_; }

  // False if one is still there after that time.
  bool await_holders(std::chrono::seconds at_most);
  // True if that happens in time: all but the counters of fencing numbers, and the lines in which a
  // killed process stood, for those last a while.
  bool keys_vanish(std::chrono::seconds at_most);
  std::map<std::string, CounterAtEnd> counters();

  // Those that were killed as well.
  std::deque<HolderProcess>& holders() { return holders_; }
  // When a release of this one may fail.
  std::vector<Trouble> troubles(const HolderProcess& holder) const;
  const std::vector<Erasure>& erasures() const { return erasures_; }
  std::vector<test::MonitorLine> feed();
  FeedChecker::World feed_world() const;

 private:
  using On = Fault::On;
  struct TroubleOf {
    std::string fault;
    On on;
    const HolderProcess* holder;
    Trouble time;
  };

  std::chrono::milliseconds between(int least, int most);
  int pick(int n);
  void add(std::string name, On on, std::function<void()> begin, std::function<void()> end = {});
  void add_network_faults();
  void add_server_faults();
  void add_admin_faults();
  void pause_server();
  void resume_server();
  void kill_server();
  void start_server();
  void kill_clients();
  void delete_a_key();
  void delete_parts();
  bool delete_key(const std::string& key);
  void flush_data();
  void start_holder();
  HolderProcess& pick_holder();
  void end_trouble(const std::string& fault);

  const Scale scale_;
  const unsigned long seed_;
  const std::string directory_;
  std::mt19937_64 random_;
  test::RedisServer server_;
  test::Monitor monitor_{server_};
  test::FaultProxy proxy_{server_.port()};
  test::Spawner spawner_;
  std::deque<HolderProcess> holders_;
  Instant holders_end_;
  HolderProcess* hit_ = nullptr;  // the holder that was stopped or killed
  std::deque<TroubleOf> troubles_;
  std::vector<Fault> faults_;
  std::vector<Erasure> erasures_;
  std::vector<FeedChecker::Span> pauses_;
  std::vector<FeedChecker::Span> blind_;
};

}  // namespace redlease::soak

#endif
