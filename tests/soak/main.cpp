// The soak: processes contend for a few keys in a world where everything goes wrong, and a checker
// proves from their logs and the server's feed that no promise was broken.
//
// It goes in rounds of about a minute, each with a server, holders and a proxy of its own, so that
// whatever is left behind shows at the end of a round, and no log grows without bounds.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "soak/arguments.hpp"
#include "soak/checker.hpp"
#include "soak/cpu_watch.hpp"
#include "soak/feed_checker.hpp"
#include "soak/world.hpp"
#include "support/process.hpp"

namespace redlease::soak {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto round_time = 60s;
constexpr int shown_of_each_kind = 2;

struct Totals {
  int rounds = 0;
  Findings findings;
  std::map<std::string, long> counts;  // of the holders that came to their end
  std::map<std::string, long> leases;
  std::map<std::string, long> lost;
  std::map<std::string, long> ends;
  std::map<std::string, long> faults;
};

// ---- faults ------------------------------------------------------------------------------------

// Each kind comes once before one comes again. Every third has company of another kind.
class FaultDriver {
 public:
  FaultDriver(World& world, unsigned long seed, std::map<std::string, long>& counts)
      : world_(world), random_(seed), counts_(counts) {
    for (const auto& fault : world.faults()) counts_.try_emplace(fault.name, 0);
  }

  void run_until(Instant end) {
    while (Clock::now() < end) {
      const auto& fault = next();
      const auto* company = pick(3) == 0 ? company_for(fault) : nullptr;
      begin(fault);
      if (company) begin(*company);
      std::this_thread::sleep_for(duration(fault));
      if (company) company->end();
      fault.end();
      std::this_thread::sleep_for(milliseconds{200 + pick(600)});
    }
  }

 private:
  using Fault = World::Fault;

  std::size_t pick(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>{0, n - 1}(random_);
  }

  const Fault& next() {
    if (deck_.empty()) {
      for (const auto& fault : world_.faults()) deck_.push_back(&fault);
      std::ranges::shuffle(deck_, random_);
    }
    const auto* fault = deck_.back();
    deck_.pop_back();
    return *fault;
  }

  const Fault* company_for(const Fault& fault) {
    const auto& all = world_.faults();
    const auto& other = all[pick(all.size())];
    const bool fits = other.on == Fault::On::network || other.on == Fault::On::holder;
    return fits && other.on != fault.on ? &other : nullptr;
  }

  void begin(const Fault& fault) {
    fault.begin();
    ++counts_[fault.name];
  }

  // A holder is stopped for longer than its leases last as often as not.
  milliseconds duration(const Fault& fault) {
    const bool is_long = pick(fault.on == Fault::On::holder ? 2 : 4) == 0;
    return milliseconds{is_long ? 600 + pick(2000) : 50 + pick(550)};
  }

  World& world_;
  std::mt19937_64 random_;
  std::map<std::string, long>& counts_;
  std::vector<const Fault*> deck_;
};

// ---- one round ---------------------------------------------------------------------------------

void judge(const HolderLog& log, Totals& totals) {
  for (const auto& [name, count] : log.counts) totals.counts[name] += count;
  for (const auto& lease : log.leases) {
    ++totals.leases["all"];
    if (log.killed) ++totals.leases["of a process that was killed"];
    if (!lease.numbers.empty()) ++totals.leases["with fencing numbers"];
    if (!lease.numbers.empty() && lease.numbers.front().counter == shared_counter) {
      ++totals.leases["with numbers of the shared counter"];
    }
    if (lease.keys.size() > 1) ++totals.leases["on several keys"];
    if (lease.keys.size() > 1 && !lease.numbers.empty()) {
      ++totals.leases["on several keys, with fencing numbers"];
    }
    ++totals.ends[lease.end];
    if (lease.loss != "none") ++totals.lost[lease.loss];
  }
}

// How far the wall clock is ahead of the holders' clock.
nanoseconds clocks() {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  return wall - Clock::now().time_since_epoch();
}

Findings check_feed(World& world, const std::string& directory) {
  FeedChecker checker{world.feed_world()};
  const auto counters = world.counters();
  const auto feed = world.feed();
  for (const auto& line : feed) checker.take(line);
  std::vector<HolderLog> logs;
  for (const auto& holder : world.holders()) {
    logs.push_back(holder.log());
    checker.check_validity(logs.back(), clocks());
    checker.check_ends(logs.back(), world.troubles(holder), clocks());
  }
  checker.check_numbers(logs, clocks());
  checker.check_counters(counters);
  if (!checker.findings().violations.empty()) {
    std::ofstream file(directory + "/feed.log");
    for (const auto& line : feed) file << line.time.count() << ' ' << line << '\n';
  }
  return checker.findings();
}

std::string describe(int status) {
  return WIFSIGNALED(status) ? fmt::format("ended by signal {}", WTERMSIG(status))
                             : fmt::format("exit status {}", WEXITSTATUS(status));
}

Surroundings surroundings(World& world, const std::vector<HolderLog>& logs, std::size_t self,
                          const std::vector<std::vector<Late>>& processors) {
  Surroundings around{.erasures = world.erasures(), .others = processors};
  for (std::size_t i = 0; i < logs.size(); ++i) {
    if (i != self) around.others.push_back(late_unstopped(logs[i], world.holders()[i].stops()));
  }
  return around;
}

Findings check_holders(World& world, Totals& totals,
                       const std::vector<std::vector<Late>>& processors) {
  Findings findings;
  std::vector<HolderLog> logs;
  for (auto& holder : world.holders()) {
    const auto complain = [&](const std::string& what) {
      findings.violations.push_back(holder.name() + ": " + what);
    };
    if (const auto status = holder.status(); !status) {
      complain("it does not end");
    } else if (*status != 0 && !holder.was_killed()) {
      complain(describe(*status));
    }
    if (const auto output = holder.output(); !output.empty()) complain("it said: " + output);
    logs.push_back(holder.log());
    judge(logs.back(), totals);
  }
  for (std::size_t i = 0; i < logs.size(); ++i) {
    const auto around = surroundings(world, logs, i, processors);
    findings.add(check_holder(logs[i], world.holders()[i].stops(), around));
  }
  findings.add(check_overlaps(logs, world.erasures()));
  return findings;
}

void write_lateness(const std::vector<std::vector<Late>>& processors,
                    const std::string& directory) {
  std::ofstream file(directory + "/processors.log");
  for (std::size_t i = 0; i < processors.size(); ++i) {
    for (const auto& late : processors[i]) file << i << ' ' << to_line(late) << '\n';
  }
}

void write_events(World& world, const std::string& directory) {
  std::ofstream file(directory + "/events.log");
  const auto ns = [](Instant at) { return at.time_since_epoch().count(); };
  for (const auto& erasure : world.erasures()) {
    file << fmt::format("erased key={} from={} to={} why={}\n", erasure.key, ns(erasure.from),
                        ns(erasure.to), erasure.why);
  }
  for (const auto& holder : world.holders()) {
    for (const auto& stop : holder.stops()) {
      file << fmt::format("stopped {} from={} stopped={} resumed={} to={}\n", holder.name(),
                          ns(stop.from), ns(stop.stopped), ns(stop.resumed), ns(stop.to));
    }
  }
}

// Returns what was wrong.
std::vector<std::string> run_round(const Scale& scale, unsigned long seed, seconds time,
                                   const std::string& directory, Totals& totals) {
  const auto threads = test::count_threads();
  const auto fds = test::count_fds();
  Findings findings;
  {
    World world{scale, seed, directory};
    CpuWatch watch;
    const auto end = Clock::now() + time;
    world.start_holders(time);
    std::this_thread::sleep_for(1s);
    FaultDriver{world, seed, totals.faults}.run_until(end - 4s);
    world.await_holders(std::chrono::ceil<seconds>(end - Clock::now()) + 30s);
    const auto processors = watch.stop();
    findings = check_holders(world, totals, processors);
    if (!world.keys_vanish(std::chrono::ceil<seconds>(scale.longest_ttl) + 5s)) {
      findings.violations.emplace_back("keys are left on the server");
    }
    findings.add(check_feed(world, directory));
    if (!findings.violations.empty()) {
      write_events(world, directory);
      write_lateness(processors, directory);
    }
  }
  if (!test::eventually(
          5s, [=] { return test::count_threads() <= threads && test::count_fds() <= fds; })) {
    findings.violations.emplace_back("the soak itself left threads or descriptors behind");
  }
  ++totals.rounds;
  totals.findings.add(findings);
  return findings.violations;
}

// ---- all of it ---------------------------------------------------------------------------------

void print_group(const std::string& title, const std::map<std::string, long>& counts) {
  fmt::print("{}\n", title);
  for (const auto& [name, count] : counts) fmt::print("  {:<58}{:>9}\n", name, count);
}

void print(const Totals& totals, const Scale& scale, double minutes) {
  const auto& found = totals.findings;
  fmt::print("\n");
  print_group("holders", totals.counts);
  print_group("leases", totals.leases);
  print_group("leases ended", totals.ends);
  print_group("leases lost", totals.lost);
  print_group("faults", totals.faults);
  const auto row = [](const char* name, std::size_t count) {
    fmt::print("  {:<58}{:>9}\n", name, count);
  };
  fmt::print("checked\n");
  row("claims compared with all others on their key", found.claims);
  row("overlaps excused: the server had lost the older lease", found.overlaps_excused);
  row("losses signalled in time", found.signals);
  row("losses found by a release, signalled with its answer", found.signals_behind);
  row("signals excused: the machine was too busy", found.signals_excused);
  row("leases whose holder was stopped for longer than their ttl", found.long_stops);
  row("lines of the server's feed", found.feed_lines);
  row("deletes by scripts, of the token that the key held", found.deletes);
  row("renewals by scripts, the same", found.renewals);
  row("grants by scripts, of a key that was ours or free", found.grants);
  row("validities compared with what the server gave", found.validities);
  row("fencing numbers compared with all of their counter", found.numbers);
  row("fencing numbers drawn while there was no feed", found.numbers_unseen);
  row("fencing numbers compared with those their client had", found.numbers_of_client);
  row("numbers refused by a client, of a counter that was lost", found.regressions);
  row("counters read at the end of a round", found.counters);
  row("scripts that gave several keys, all at once", found.taken_whole);
  row("renewals of leases on several keys, all at once", found.renewed_whole);
  row("ends of leases on several keys, with nothing left", found.ended_whole);
  row("keys of released leases, gone with the answer", found.given_back);
  row("keys of destroyed leases, given back", found.given_back_later);
  row("keys of destroyed leases, left to expire in trouble", found.left_to_expire);
  fmt::print(
      "\n{:.1f} minutes, {} rounds, {} processes with {} threads on {} keys: {} violations\n",
      minutes, totals.rounds, scale.holders, scale.threads, scale.keys, found.violations.size());
}

long count(const std::map<std::string, long>& counts, const std::string& name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

// A soak in which nothing happens proves nothing.
std::vector<std::string> idleness(const Totals& totals, double minutes) {
  std::vector<std::string> missing;
  const auto need = [&](const std::string& what, auto had, double per_minute) {
    const auto needed = std::max(1.0, per_minute * minutes);
    if (static_cast<double>(had) >= needed) return;
    missing.push_back(fmt::format("{}: {} instead of {:.0f}", what, had, needed));
  };
  const auto& found = totals.findings;
  need("leases acquired", count(totals.leases, "all"), 200);
  need("leases released", count(totals.ends, "released"), 100);
  need("leases that expired", count(totals.lost, "expired"), 5);
  need("leases taken or missing", count(totals.lost, "taken") + count(totals.lost, "missing"), 1);
  need("losses signalled", found.signals, 5);
  need("deletes by scripts", found.deletes, 100);
  need("renewals by scripts", found.renewals, 20);
  need("grants by scripts", found.grants, 20);
  need("leases on several keys", count(totals.leases, "on several keys"), 20);
  need("fencing numbers compared", found.numbers, 100);
  need("renewals of leases on several keys", found.renewed_whole, 5);
  need("ends of leases on several keys", found.ended_whole, 20);
  need("keys of released leases", found.given_back, 100);
  need("keys of destroyed leases", found.given_back_later, 20);
  need("leases held over a long stop", found.long_stops, 0);
  for (const auto& [fault, happened] : totals.faults) need(fault, happened, 0);
  return missing;
}

struct LogDirectory {
  LogDirectory() {
    path = std::filesystem::temp_directory_path() / "redlease-soak-XXXXXX";
    if (!::mkdtemp(path.data())) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + path);
    }
  }
  std::string path;
};

// The first line without what differs from case to case.
std::string kind_of(const std::string& violation) {
  auto kind = violation.substr(0, violation.find('\n'));
  std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
  return kind;
}

// A few of each kind; the others are in the file.
void print_violations(const std::vector<std::string>& violations, const std::string& directory) {
  std::ofstream file(directory + "/violations.log");
  std::map<std::string, int> shown;
  for (const auto& violation : violations) {
    file << violation << '\n';
    if (++shown[kind_of(violation)] <= shown_of_each_kind) fmt::print("VIOLATION {}\n", violation);
  }
}

bool run(double minutes, unsigned long seed) {
  const Scale scale;
  const LogDirectory logs;
  std::thread{[] {}}.join();  // with the first one a sanitizer starts a thread of its own
  const auto start = Clock::now();
  const auto whole =
      std::chrono::duration_cast<seconds>(std::chrono::duration<double>{minutes * 60});
  const auto rounds = std::max(1L, whole / round_time);
  fmt::print("soak: {:.1f} minutes in {} rounds, seed {}, logs in {}\n", minutes, rounds, seed,
             logs.path);
  std::fflush(stdout);
  Totals totals;
  std::vector<std::string> wrong;
  for (long round = 0; round < rounds && wrong.empty(); ++round) {
    const auto directory = logs.path + "/round-" + std::to_string(round + 1);
    std::filesystem::create_directory(directory);
    wrong = run_round(scale, seed + static_cast<unsigned long>(round), whole / rounds, directory,
                      totals);
    fmt::print("round {}: {} leases so far, {} violations\n", round + 1,
               count(totals.leases, "all"), wrong.size());
    std::fflush(stdout);
    if (wrong.empty()) std::filesystem::remove_all(directory);
  }
  const auto took = std::chrono::duration<double, std::ratio<60>>{Clock::now() - start}.count();
  print(totals, scale, took);
  if (wrong.empty()) {
    std::filesystem::remove_all(logs.path);
    const auto missing = idleness(totals, minutes);
    for (const auto& what : missing) fmt::print("INCOMPLETE {}\n", what);
    fmt::print("{}\n",
               missing.empty() ? "PASSED" : "FAILED: too little happened to prove anything");
    return missing.empty();
  }
  print_violations(wrong, logs.path);
  fmt::print("FAILED: round {} with seed {}; logs: {}\n", totals.rounds,
             seed + static_cast<unsigned long>(totals.rounds) - 1, logs.path);
  return false;
}

}  // namespace
}  // namespace redlease::soak

int main(int argc, char** argv) {
  try {
    const redlease::soak::Arguments arguments{
        argc, argv, {{"minutes", "2"}, {"seed", std::to_string(std::random_device{}())}}};
    const auto minutes = arguments.real("minutes");
    return redlease::soak::run(minutes, arguments.number("seed")) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "soak: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
