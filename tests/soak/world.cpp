#include "soak/world.hpp"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "support/process.hpp"

namespace redlease::soak {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

std::string key_of(std::size_t number) { return "soak:" + std::to_string(number); }

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
      killed_(other.killed_),
      stops_(std::move(other.stops_)) {}

HolderProcess::~HolderProcess() {
  if (pid_ == -1 || status()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void HolderProcess::kill() {
  if (status()) return;
  killed_ = true;
  ::kill(pid_, SIGKILL);
  int status = 0;
  if (::waitpid(pid_, &status, 0) == pid_) status_ = status;
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
  return read_log(name_, file, killed_);
}

std::string HolderProcess::output() const { return file_text(output_path_); }

// ---- the world ---------------------------------------------------------------------------------

World::World(const Scale& scale, unsigned long seed, const std::string& directory)
    : scale_(scale), seed_(seed), directory_(directory), random_(seed) {
  add_network_faults();
  add(
      "stop a holder", On::holder, [this] { pick_holder().stop(); }, [this] { hit_->resume(); });
  add(
      "kill a holder", On::holder, [this] { pick_holder().kill(); }, [this] { start_holder(); });
  add_server_faults();
  add_admin_faults();
}

void World::start_holders(std::chrono::seconds run_time) {
  holders_end_ = Clock::now() + run_time;
  for (std::size_t i = 0; i < scale_.holders; ++i) start_holder();
}

// One more.
void World::start_holder() {
  const auto i = holders_.size();
  const std::vector<std::string> ways{server_.url(), proxy_.url(), server_.unix_url(),
                                      proxy_.url()};
  const auto left = std::chrono::ceil<std::chrono::seconds>(holders_end_ - Clock::now());
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
                                      std::to_string(std::max(1L, long{left.count()})),
                                      "--seed",
                                      std::to_string(seed_ * 100 + i)};
  holders_.emplace_back(spawner_, "holder-" + std::to_string(i + 1), directory_, argv);
}

// One that lives, if possible.
HolderProcess& World::pick_holder() {
  std::vector<HolderProcess*> living;
  for (auto& holder : holders_) {
    if (!holder.status()) living.push_back(&holder);
  }
  hit_ = living.empty()
             ? &holders_.back()
             : living.at(static_cast<std::size_t>(pick(static_cast<int>(living.size()))));
  return *hit_;
}

bool World::await_holders(std::chrono::seconds at_most) {
  return test::eventually(at_most, [this] {
    return std::ranges::all_of(holders_,
                               [](HolderProcess& holder) { return holder.status().has_value(); });
  });
}

bool World::keys_vanish(std::chrono::seconds at_most) {
  return test::eventually(at_most, [this] {
    const bool killed = std::ranges::any_of(holders_, &HolderProcess::was_killed);
    const auto left = server_.admin("KEYS", "*").elements;
    return std::ranges::all_of(left, [&](const auto& key) {
      return is_counter(key.text) ||
             (killed && is_line(key.text) && server_.pttl(key.text) != -1ms);
    });
  });
}

std::map<std::string, CounterAtEnd> World::counters() {
  std::map<std::string, CounterAtEnd> counters;
  for (const auto& key : server_.admin("KEYS", "*").elements) {
    if (!is_counter(key.text)) continue;
    counters[key.text] = {std::stoll(server_.get(key.text).value_or("0")),
                          server_.pttl(key.text) != -1ms};
  }
  return counters;
}

std::vector<Trouble> World::troubles(const HolderProcess& holder) const {
  const auto number = static_cast<std::size_t>(
      std::ranges::find(holders_, &holder, [](const auto& other) { return &other; }) -
      holders_.begin());
  const bool has_proxy = number % 2 == 1;
  std::vector<Trouble> troubles;
  for (const auto& trouble : troubles_) {
    if (trouble.on == On::network && !has_proxy) continue;
    if (trouble.on == On::holder && trouble.holder != &holder) continue;
    troubles.push_back(trouble.time);
  }
  return troubles;
}

void World::end_trouble(const std::string& fault) {
  const auto last =
      std::ranges::find(troubles_.rbegin(), troubles_.rend(), fault, &TroubleOf::fault);
  last->time.to = Clock::now();
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
  const auto begin_noted = [this, name, on, begin = std::move(begin)] {
    troubles_.push_back({name, on, nullptr, {Clock::now(), Instant::max()}});
    begin();
    troubles_.back().holder = hit_;
  };
  const auto end_noted = [this, name, end = std::move(end)] {
    if (end) end();
    end_trouble(name);
  };
  faults_.push_back({std::move(name), on, begin_noted, end_noted});
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
  add("delete keys of leases on several", On::admin, [this] { delete_parts(); });
  add("flush the data", On::admin, [this] { flush_data(); });
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

void World::flush_data() {
  Erasure erasure{"", Clock::now(), {}, "an administrator"};
  server_.admin("FLUSHALL");
  erasure.to = Clock::now();
  erasures_.push_back(erasure);
}

// One that is there, if possible.
void World::delete_a_key() {
  std::vector<std::size_t> order(scale_.keys);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random_);
  for (const auto number : order) {
    if (delete_key(key_of(number))) return;
  }
}

// Of each lease on several keys the first one that is found.
void World::delete_parts() {
  std::map<std::string, std::string> keys;  // by token
  std::set<std::string> done;
  for (std::size_t number = 0; number < scale_.keys; ++number) {
    const auto token = server_.get(key_of(number));
    if (!token) continue;
    const auto [other, is_first] = keys.try_emplace(*token, key_of(number));
    if (!is_first && done.insert(*token).second) delete_key(other->second);
  }
}

// False if there was none.
bool World::delete_key(const std::string& key) {
  Erasure erasure{key, Clock::now(), {}, "an administrator"};
  const bool deleted = server_.admin("DEL", key).integer == 1;
  erasure.to = Clock::now();
  if (deleted) erasures_.push_back(erasure);
  return deleted;
}

}  // namespace redlease::soak
