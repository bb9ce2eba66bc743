#include "soak/world.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "support/process.hpp"

namespace redlease::soak {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

// The server writes its feed by the wall clock.
FeedChecker::Time wall_clock() {
  return std::chrono::duration_cast<FeedChecker::Time>(
      std::chrono::system_clock::now().time_since_epoch());
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string holder_program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "redlease_soak_holder";
}

}  // namespace

// ---- a holder ----------------------------------------------------------------------------------

HolderProcess::HolderProcess(test::Spawner& spawner, std::string name, std::string directory,
                             std::vector<std::string> argv)
    : name_(std::move(name)),
      log_path_(directory + "/" + name_ + ".log"),
      output_path_(directory + "/" + name_ + ".out") {
  argv.insert(argv.end(), {"--log", log_path_});
  pid_ = spawner.spawn(argv, output_path_);
}

HolderProcess::HolderProcess(HolderProcess&& other) noexcept
    : name_(std::move(other.name_)),
      log_path_(std::move(other.log_path_)),
      output_path_(std::move(other.output_path_)),
      pid_(std::exchange(other.pid_, -1)),
      status_(other.status_),
      stops_(std::move(other.stops_)) {}

HolderProcess::~HolderProcess() {
  if (pid_ == -1 || status()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void HolderProcess::stop() {
  if (status()) return;
  stops_.push_back({.from = Clock::now(), .stopped = {}, .resumed = {}, .to = {}});
  test::pause_process(pid_);
  stops_.back().stopped = Clock::now();
}

void HolderProcess::resume() {
  if (status()) return;
  stops_.back().resumed = Clock::now();
  test::resume_process(pid_);
  stops_.back().to = Clock::now();
}

std::optional<int> HolderProcess::status() {
  int status = 0;
  if (!status_ && ::waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return status_;
}

HolderLog HolderProcess::log() const {
  std::ifstream file(log_path_);
  return read_log(name_, file);
}

std::string HolderProcess::output() const { return file_text(output_path_); }

// ---- the world ---------------------------------------------------------------------------------

World::World(const Scale& scale, unsigned long seed, const std::string& directory)
    : scale_(scale), seed_(seed), directory_(directory), random_(seed) {
  holders_.reserve(scale.holders);
  add_network_faults();
  add(
      "stop a holder", On::holder,
      [this] {
        stopped_ = &holders_.at(static_cast<std::size_t>(pick(static_cast<int>(holders_.size()))));
        stopped_->stop();
      },
      [this] { stopped_->resume(); });
  add_server_faults();
  add_admin_faults();
}

void World::start_holders(std::chrono::seconds run_time) {
  const std::vector<std::string> ways{server_.url(), proxy_.url(), server_.unix_url(),
                                      proxy_.url()};
  for (std::size_t i = 0; i < scale_.holders; ++i) {
    const std::vector<std::string> argv{holder_program(),
                                        "--redis",
                                        ways[i % ways.size()],
                                        "--keys",
                                        std::to_string(scale_.keys),
                                        "--threads",
                                        std::to_string(scale_.threads),
                                        "--timeout",
                                        i % 3 == 0 ? "200" : "500",
                                        "--seconds",
                                        std::to_string(run_time.count()),
                                        "--seed",
                                        std::to_string(seed_ * 100 + i)};
    holders_.emplace_back(spawner_, "holder-" + std::to_string(i + 1), directory_, argv);
  }
}

bool World::await_holders(std::chrono::seconds at_most) {
  return test::eventually(at_most, [this] {
    return std::ranges::all_of(holders_,
                               [](HolderProcess& holder) { return holder.status().has_value(); });
  });
}

bool World::keys_vanish(std::chrono::seconds at_most) {
  return test::eventually(at_most, [this] { return server_.dbsize() == 0; });
}

std::vector<test::MonitorLine> World::feed() {
  monitor_.sync();
  return monitor_.lines();
}

FeedChecker::World World::feed_world() const {
  return {.admins = server_.admin_addresses(),
          .pauses = pauses_,
          .blind = blind_,
          .longest_ttl = scale_.longest_ttl};
}

milliseconds World::between(int least, int most) {
  return milliseconds{least + pick(most - least)};
}

int World::pick(int n) { return std::uniform_int_distribution{0, n - 1}(random_); }

void World::add(std::string name, On on, std::function<void()> begin, std::function<void()> end) {
  if (!end) end = [] {};
  faults_.push_back({std::move(name), on, std::move(begin), std::move(end)});
}

void World::add_network_faults() {
  const auto on_network = [this](std::string name, std::function<void()> begin) {
    add(std::move(name), On::network, std::move(begin), [this] {
      proxy_.refuse(false);
      proxy_.black_hole(false);
      proxy_.pass_through();
    });
  };
  on_network("reset connections", [this] { proxy_.reset_all(); });
  on_network("refuse connections", [this] {
    proxy_.refuse(true);
    proxy_.reset_all();
  });
  on_network("delay replies", [this] { proxy_.delay_replies(between(10, 180)); });
  on_network("delay replies for long", [this] { proxy_.delay_replies(between(200, 1500)); });
  on_network("delay acquisitions",
             [this] { proxy_.delay_requests(between(20, 1500), "\r\nSET\r\n"); });
  on_network("delay requests", [this] { proxy_.delay_requests(between(20, 1000)); });
  // A stream never loses a part and goes on behind it, so what loses a reply is closed.
  on_network("lose replies to acquisitions", [this] {
    for (int i = 0; i < 4; ++i) proxy_.drop_reply_matching("\r\nSET\r\n", true);
  });
  on_network("lose replies to scripts", [this] {
    for (int i = 0; i < 4; ++i) proxy_.drop_reply_matching("\r\nEVAL", true);
  });
  on_network("lose requests", [this] {
    for (const char* command : {"\r\nSET\r\n", "\r\nEVAL"}) {
      for (int i = 0; i < 2; ++i) proxy_.drop_request_matching(command, true);
    }
  });
  on_network("black hole", [this] { proxy_.black_hole(true); });
  on_network("strand connections", [this] { proxy_.strand_open_connections(); });
  on_network("trickle", [this] { proxy_.trickle(3, 2ms); });
}

void World::add_server_faults() {
  add(
      "pause the server", On::server, [this] { pause_server(); }, [this] { resume_server(); });
  add(
      "kill the server", On::server, [this] { kill_server(); }, [this] { start_server(); });
}

void World::add_admin_faults() {
  add("flush scripts", On::admin, [this] { server_.admin("SCRIPT", "FLUSH"); });
  add("close clients' connections", On::admin, [this] { kill_clients(); });
  add("delete a key", On::admin, [this] { delete_a_key(); });
}

void World::pause_server() {
  const auto from = wall_clock();
  server_.pause();
  pauses_.push_back({from, FeedChecker::Time::max() / 2});
}

void World::resume_server() {
  server_.resume();
  pauses_.back().to = wall_clock();
}

void World::kill_server() {
  Erasure erasure{"", Clock::now(), {}, "the server was killed"};
  blind_.push_back({wall_clock(), {}});
  server_.kill();
  erasure.to = Clock::now();
  erasures_.push_back(erasure);
}

void World::start_server() {
  server_.start();
  monitor_.attach();
  blind_.back().to = wall_clock();
}

void World::kill_clients() {
  for (auto& client : server_.client_list()) {
    if (server_.admin_addresses().contains(client["addr"])) continue;
    server_.admin("CLIENT", "KILL", "ID", client["id"]);
  }
}

// One that is there, if possible.
void World::delete_a_key() {
  std::vector<std::size_t> order(scale_.keys);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random_);
  for (const auto number : order) {
    Erasure erasure{"soak:" + std::to_string(number), Clock::now(), {}, "an administrator"};
    const bool deleted = server_.admin("DEL", erasure.key).integer == 1;
    erasure.to = Clock::now();
    if (!deleted) continue;
    erasures_.push_back(erasure);
    return;
  }
}

}  // namespace redlease::soak
