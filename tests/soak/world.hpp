// The world of a soak: a server, a proxy before it, the holders, and all that can happen to them.
#ifndef REDLEASE_TESTS_SOAK_WORLD_HPP
#define REDLEASE_TESTS_SOAK_WORLD_HPP

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "soak/checker.hpp"
#include "support/fault_proxy.hpp"
#include "support/monitor.hpp"
#include "support/redis_server.hpp"
#include "support/spawner.hpp"

namespace redlease::soak {

struct Scale {
  std::size_t holders = 6;
  std::size_t threads = 4;  // of each holder
  std::size_t keys = 6;
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

  void stop();    // SIGSTOP
  void resume();  // SIGCONT

  // Empty while it runs, and then what waitpid(2) said.
  std::optional<int> status();
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
  // True if that happens in time.
  bool keys_vanish(std::chrono::seconds at_most);

  std::vector<HolderProcess>& holders() { return holders_; }
  const std::vector<Erasure>& erasures() const { return erasures_; }
  std::vector<test::MonitorLine> feed();
  FeedChecker::World feed_world() const;

 private:
  using On = Fault::On;

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

  const Scale scale_;
  const unsigned long seed_;
  const std::string directory_;
  std::mt19937_64 random_;
  test::RedisServer server_;
  test::Monitor monitor_{server_};
  test::FaultProxy proxy_{server_.port()};
  test::Spawner spawner_;
  std::vector<HolderProcess> holders_;
  HolderProcess* stopped_ = nullptr;
  std::vector<Fault> faults_;
  std::vector<Erasure> erasures_;
  std::vector<FeedChecker::Span> pauses_;
  std::vector<FeedChecker::Span> blind_;
};

}  // namespace redlease::soak

#endif
