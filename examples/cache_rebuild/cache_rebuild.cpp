/// A cache whose pages expire while everybody wants them:  cache_rebuild [--redis URL]
///     [--fault FAULT]
///
/// Four processes of 32 threads each read a few pages from a cache in Redis, every second time the
/// same hot one. When a page expires, all of them miss it at the same moment. Yet it is rebuilt
/// once: the threads of a process leave it to one of them (SingleFlight), the processes to the one
/// that gets a lease, and no more than two rebuilds go on at once, of all pages and in all
/// processes (two more leases). Meanwhile readers serve the old page, wait for the new one, or at
/// their deadline do without.
///
/// The faults, in the middle of the run:
///   none            nothing happens
///   kill-rebuilder  a process is killed while it rebuilds a page: when its lease has run out,
///                   another one rebuilds it, and until then readers are served the old page
///   pause-redis     the redis-server of --redis-pid stops answering for two seconds: readers do
///                   without, in time, and when it is back everything goes on
///
/// How a page is read is in reader.hpp, the cache in cache.hpp, what the checks need in meter.hpp;
/// here are the processes, the faults, and the checks at the end. The exit code is 0 only if all
/// hold.

#include <fmt/format.h>
#include <signal.h>
#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <random>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache.hpp"
#include "meter.hpp"
#include "process.hpp"
#include "reader.hpp"

namespace cache_rebuild {

using processes::Channel;
using processes::Child;
using std::chrono::milliseconds;

struct Options {
  std::string redis = "redis://127.0.0.1:6379";
  std::size_t processes = 4;
  int threads = 32;
  std::string fault = "none";
  pid_t redis_pid = 0;

  /// With a fault there is more to see.
  milliseconds run_time() const { return fault == "none" ? 3s : 5s; }
};

/// How long Redis is paused: much longer than any reader waits.
constexpr milliseconds outage = 2s;
/// Nobody reads for longer than that. A reader waits for a page, finds at its deadline that it can
/// rebuild it, and then Redis falls silent; the rest is for a machine that is busy.
constexpr milliseconds longest_read = patience + rebuild_time + 2 * command_timeout + 350ms;
static_assert(longest_read < outage);

/// Waits until `happened()`, but not for ever.
void await(std::string_view what, milliseconds at_most, const std::function<bool()>& happened) {
  for (const auto deadline = Clock::now() + at_most; !happened();) {
    if (Clock::now() > deadline) throw std::runtime_error(fmt::format("no sign of {}", what));
    std::this_thread::sleep_for(1ms);
  }
}

// ---- the processes -----------------------------------------------------------------------------

/// Reads pages until the time is over.
Counts visit(Service& service, const Options& options, unsigned seed) {
  Reader reader{service, options.redis, seed};
  std::minstd_rand random{seed};
  for (const auto end = Clock::now() + options.run_time(); Clock::now() < end;) {
    const bool hot = random() % 2 == 0;
    (void)reader.read(hot ? 0 : random() % page_count);
    std::this_thread::sleep_for(5ms + std::chrono::microseconds{random() % 10'000});
  }
  return reader.counts();
}

Counts serve(const Options& options, Meter& meter, std::size_t process) {
  Service service{
      redlease::Client{options.redis,
                       {.command_timeout = command_timeout, .client_name = "cache-rebuild"}},
      meter, process};
  std::vector<std::future<Counts>> threads;
  for (int i = 0; i < options.threads; ++i) {
    const auto seed = static_cast<unsigned>(1000 * (process + 1)) + static_cast<unsigned>(i);
    threads.push_back(std::async(
        std::launch::async, [&service, &options, seed] { return visit(service, options, seed); }));
  }
  Counts total;
  for (auto& thread : threads) total += thread.get();
  return total;
}

/// The processes of the service. They end with this object.
class Processes {
 public:
  Processes(const Options& options, Meter& meter) {
    for (std::size_t i = 0; i < options.processes; ++i) {
      auto [ours, theirs] = Channel<Counts>::make_pair();
      auto child =
          Child::start(fmt::format("process {}", i + 1), [&options, &meter, &channel = theirs, i] {
            channel.send(serve(options, meter, i));
            return EXIT_SUCCESS;
          });
      processes_.emplace(i, Process{std::move(child), std::move(ours)});
    }
  }

  Child& operator[](std::size_t process) { return processes_.at(process).child; }
  void forget(std::size_t process) { processes_.erase(process); }

  /// Waits until all that are left have ended, and returns what they counted.
  std::map<std::size_t, Counts> await_end(milliseconds at_most) {
    std::map<std::size_t, Counts> counts;
    for (auto& [number, process] : processes_) {
      await("a process's end", at_most, [&child = process.child] { return child.has_finished(); });
      counts.emplace(number, process.channel.receive());
    }
    return counts;
  }

 private:
  struct Process {
    Child child;
    Channel<Counts> channel;
  };
  std::map<std::size_t, Process> processes_;
};

// ---- the faults --------------------------------------------------------------------------------

std::int64_t all_rebuilds(const Meter& meter) {
  std::int64_t all = 0;
  for (std::size_t page = 0; page < page_count; ++page) all += meter.rebuilds(page);
  return all;
}

/// From then on there is at least an old edition of each page.
void await_first_rebuilds(const Meter& meter) {
  await("each page's first rebuild", 20s, [&] {
    for (std::size_t page = 0; page < page_count; ++page) {
      if (meter.rebuilds(page) == 0) return false;
    }
    return true;
  });
}

/// Stops a process in the middle of a rebuild, and returns which one and which page.
std::optional<std::pair<std::size_t, std::size_t>> stop_a_rebuilder(std::size_t count,
                                                                    Processes& processes,
                                                                    const Meter& meter) {
  for (std::size_t process = 0; process < count; ++process) {
    if (meter.under_way(process) == page_count) continue;
    processes[process].stop();
    const auto page = meter.under_way(process);
    if (page < page_count) return std::pair{process, page};
    processes[process].resume();  // it was through before it stood still
  }
  return std::nullopt;
}

/// Kills a process in the middle of a rebuild, and returns how long nobody else rebuilt that page.
milliseconds kill_a_rebuilder(const Options& options, Processes& processes, Meter& meter) {
  await_first_rebuilds(meter);
  std::optional<std::pair<std::size_t, std::size_t>> stopped;
  await("a rebuild", 20s, [&] {
    stopped = stop_a_rebuilder(options.processes, processes, meter);
    return stopped.has_value();
  });
  const auto [process, page] = *stopped;
  const auto times = meter.rebuilds(page);
  const auto start = Clock::now();
  processes[process].kill();
  meter.killed(process);
  fmt::print("Process {} is killed while it rebuilds {}.\n", process + 1, page_name(page));
  std::fflush(stdout);

  await("another rebuild of the page", 20s,
        [&meter, page = page, times] { return meter.rebuilds(page) > times; });
  const auto took = std::chrono::floor<milliseconds>(Clock::now() - start);
  fmt::print("  Another one has rebuilt it {} ms later.\n\n", took.count());
  processes.forget(process);
  return took;
}

/// Pauses Redis, and returns how many rebuilds there were by the end of that.
std::int64_t pause_redis(const Options& options, const Meter& meter) {
  await_first_rebuilds(meter);
  fmt::print("Redis is paused for {} ms.\n\n", outage.count());
  std::fflush(stdout);
  // Whatever is to end this process waits until Redis goes on.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  const bool stopped = ::kill(options.redis_pid, SIGSTOP) == 0;
  if (stopped) std::this_thread::sleep_for(outage);
  ::kill(options.redis_pid, SIGCONT);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (!stopped) throw std::runtime_error("the process of --redis-pid can't be stopped");
  return all_rebuilds(meter);
}

// ---- the result --------------------------------------------------------------------------------

void print_counts(const std::map<std::size_t, Counts>& processes, const Counts& total) {
  constexpr auto row = "{:<9}{:>7}{:>8}{:>9}{:>7}{:>10}{:>8}{:>9}{:>9}{:>6}{:>8}{:>10}\n";
  const auto print = [&](std::string_view name, const Counts& c) {
    fmt::print(row, name, c.reads, c.fresh, c.awaited, c.stale, c.degraded, c.merged, c.refused,
               c.no_slot, c.lost, c.failed, c.rebuilds);
  };
  fmt::print(row, "process", "reads", "fresh", "awaited", "stale", "degraded", "merged", "refused",
             "no slot", "lost", "failed", "rebuilds");
  for (const auto& [number, counts] : processes) print(fmt::format("{}", number + 1), counts);
  print("all", total);
  fmt::print(
      "\nA read is fresh, awaited, stale or degraded. merged, refused and no slot are attempts to\n"
      "get a new page, left to another thread, to another process, or put off for want of a "
      "slot.\n\n");
}

/// Prints each check, and remembers whether all came out well.
class Checklist {
 public:
  void add(bool good, std::string_view what, std::string_view figures) {
    fmt::print("{:<7}{}: {}\n", good ? "ok" : "WRONG", what, figures);
    all_good_ = all_good_ && good;
  }
  bool all_good() const { return all_good_; }

 private:
  bool all_good_ = true;
};

/// No page may be rebuilt more often than it can have expired in that time. When Redis falls
/// silent behind a rebuild, its page can't be written, and is rebuilt once more.
void check_rebuilds(const Meter& meter, Clock::duration elapsed, bool paused,
                    Checklist& checklist) {
  const auto most = 1 + elapsed / Cache::fresh_for + (paused ? 1 : 0);
  std::int64_t most_of_a_page = 0;
  for (std::size_t page = 0; page < page_count; ++page) {
    most_of_a_page = std::max(most_of_a_page, meter.rebuilds(page));
  }
  checklist.add(most_of_a_page > 0 && most_of_a_page <= most,
                "no page is rebuilt more often than it expires",
                fmt::format("{} times at most, of {}", most_of_a_page, most));
  checklist.add(meter.most_of_a_page_at_once() <= 1, "no page is rebuilt by two at once",
                fmt::format("{} at most", meter.most_of_a_page_at_once()));
  checklist.add(meter.most_at_once() <= slot_count, "rebuilds at once are limited",
                fmt::format("{} at most, of {}", meter.most_at_once(), slot_count));
}

void check_reads(const Counts& total, bool paused, Checklist& checklist) {
  const auto answers = total.fresh + total.awaited + total.stale + total.degraded;
  checklist.add(answers == total.reads && total.reads > 0, "every read has its answer",
                fmt::format("{} + {} + {} + {} = {}", total.fresh, total.awaited, total.stale,
                            total.degraded, total.reads));
  checklist.add(total.longest_read <= longest_read, "nobody hangs",
                fmt::format("the longest read took {} ms, of {}", total.longest_read.count(),
                            longest_read.count()));
  if (paused) {
    checklist.add(total.failed > 0 && total.degraded > 0, "readers did without Redis",
                  fmt::format("{} times", total.failed));
  } else {
    // On a machine that is busy with other things, an answer may be late now and then.
    checklist.add(100 * total.failed <= total.reads, "Redis was in no trouble",
                  fmt::format("{} reads failed", total.failed));
  }
}

/// While the lease lasts nobody else may rebuild the page, and then somebody shall. The lease was
/// taken shortly before the kill, or renewed: every third of its ttl.
void check_takeover(milliseconds took, Checklist& checklist) {
  checklist.add(took >= lease_ttl / 2 && took <= lease_ttl + 1s,
                "a dead one's page is rebuilt behind the ttl",
                fmt::format("after {} ms, with a ttl of {}", took.count(), lease_ttl.count()));
}

void check_leases(redlease::Client& redis, Checklist& checklist) {
  std::vector<std::string> keys;
  for (std::size_t page = 0; page < page_count; ++page) keys.push_back(lease_key(page));
  for (int slot = 0; slot < slot_count; ++slot) keys.push_back(slot_key(slot));
  const auto count = [&] {
    return std::ranges::count_if(keys,
                                 [&](const auto& key) { return redis.inspect(key).has_value(); });
  };
  // What could not be given back ends with its ttl.
  auto left = count();
  for (const auto deadline = Clock::now() + lease_ttl + 100ms; left > 0 && Clock::now() < deadline;
       left = count()) {
    std::this_thread::sleep_for(10ms);
  }
  checklist.add(left == 0, "no lease key is left in Redis", fmt::format("{} left", left));
}

/// Removes what belongs to the cache. The leases have been given back; they are nobody's to remove.
void clean_up(Cache& cache) {
  for (std::size_t page = 0; page < page_count; ++page) cache.remove(page_key(page));
}

// ---- all of it ---------------------------------------------------------------------------------

bool run(const Options& options) {
  fmt::print("{} processes x {} threads read {} pages, each fresh for {} ms.\n", options.processes,
             options.threads, page_count, Cache::fresh_for.count());
  fmt::print("A rebuild takes {} ms, and {} may go on at once. Readers wait for {} ms.\n\n",
             rebuild_time.count(), slot_count, patience.count());
  {
    Cache cache{options.redis};
    clean_up(cache);  // an earlier run may have been ended
  }

  // fork() while there is neither a connection nor a thread here.
  const SharedMeter meter;
  const auto start = Clock::now();
  Processes processes{options, *meter};
  const bool paused = options.fault == "pause-redis";
  std::optional<milliseconds> takeover;
  std::optional<std::int64_t> rebuilds_before;
  if (options.fault == "kill-rebuilder") takeover = kill_a_rebuilder(options, processes, *meter);
  if (paused) rebuilds_before = pause_redis(options, *meter);
  const auto counts = processes.await_end(options.run_time() + 20s);
  const auto elapsed = Clock::now() - start;
  Counts total;
  for (const auto& [number, of_process] : counts) total += of_process;
  print_counts(counts, total);

  Cache cache{options.redis};
  redlease::Client redis{options.redis};
  Checklist checklist;
  check_rebuilds(*meter, elapsed, paused, checklist);
  check_reads(total, paused, checklist);
  if (takeover) check_takeover(*takeover, checklist);
  if (rebuilds_before) {
    const auto since = all_rebuilds(*meter) - *rebuilds_before;
    checklist.add(since > 0, "rebuilds go on when Redis is back", fmt::format("{} more", since));
  }
  check_leases(redis, checklist);
  clean_up(cache);
  if (checklist.all_good()) {
    fmt::print("\nAs promised: {} rebuilds, instead of {} if every thread saw to itself.\n",
               total.rebuilds, total.unmerged);
  }
  return checklist.all_good();
}

}  // namespace cache_rebuild

int main(int argc, char** argv) {
  try {
    cache_rebuild::Options options;
    CLI::App app{"A cache whose pages are rebuilt once, however many miss them."};
    app.add_option("--redis", options.redis, "URL of the server")->capture_default_str();
    app.add_option("--processes", options.processes)
        ->check(CLI::Range(std::size_t{2}, cache_rebuild::most_processes))
        ->capture_default_str();
    app.add_option("--threads", options.threads, "of each process")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    auto* pid = app.add_option("--redis-pid", options.redis_pid, "of a redis-server of your own")
                    ->check(CLI::PositiveNumber);
    app.add_option("--fault", options.fault, "what happens in the middle of the run")
        ->check(CLI::IsMember({"none", "kill-rebuilder", "pause-redis"}))
        ->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    if (options.fault == "pause-redis" && pid->empty()) {
      throw std::runtime_error("--fault pause-redis needs --redis-pid");
    }
    return cache_rebuild::run(options) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "cache_rebuild: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
