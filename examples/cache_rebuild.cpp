/// A cache whose pages expire while everybody wants them:  cache_rebuild [--redis URL]
///
/// Four processes of 32 threads each read a few pages from a cache in Redis, every second time the
/// same hot one. When a page expires, all of them miss it at the same moment. Yet it is rebuilt
/// once: the threads of a process leave it to one of them (SingleFlight), the processes to the one
/// that gets a lease, and no more than two rebuilds go on at once, of all pages and in all
/// processes (two more leases). Meanwhile readers serve the old page, wait for the new one, or at
/// their deadline do without.
///
/// How a page is read is in cache_rebuild/reader.hpp, the cache in cache_rebuild/cache.hpp; here
/// are the processes, and the checks at the end. The exit code is 0 only if all hold.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <random>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache_rebuild/cache.hpp"
#include "cache_rebuild/reader.hpp"
#include "inventory/process.hpp"

namespace cache_rebuild {

using inventory::Channel;
using inventory::Child;

struct Options {
  std::string redis = "redis://127.0.0.1:6379";
  int processes = 4;
  int threads = 32;
};

constexpr auto run_time = 3s;
constexpr unsigned page_count = 8;

std::string page_name(unsigned page) { return fmt::format("example:{}", page + 1); }

// ---- a process ---------------------------------------------------------------------------------

/// Reads pages until the time is over.
Counts visit(Service& service, const std::string& url, unsigned seed) {
  Reader reader{service, url, seed};
  std::minstd_rand random{seed};
  for (const auto end = Clock::now() + run_time; Clock::now() < end;) {
    const bool hot = random() % 2 == 0;
    (void)reader.read(page_name(hot ? 0 : static_cast<unsigned>(random() % page_count)));
    std::this_thread::sleep_for(5ms + std::chrono::microseconds{random() % 10'000});
  }
  return reader.counts();
}

Counts serve(const Options& options, unsigned process) {
  Service service{redlease::Client{options.redis, {.client_name = "cache-rebuild"}}};
  std::vector<std::future<Counts>> threads;
  for (int i = 0; i < options.threads; ++i) {
    const auto seed = 1000 * process + static_cast<unsigned>(i) + 1;
    threads.push_back(std::async(std::launch::async, [&service, &options, seed] {
      return visit(service, options.redis, seed);
    }));
  }
  Counts total;
  for (auto& thread : threads) total += thread.get();
  return total;
}

/// Starts the processes, waits until all have ended, and returns what they counted.
std::vector<Counts> run_processes(const Options& options) {
  struct Process {
    Child child;
    Channel<Counts> channel;
  };
  std::vector<Process> processes;
  for (int i = 0; i < options.processes; ++i) {
    auto [ours, theirs] = Channel<Counts>::make_pair();
    const auto number = static_cast<unsigned>(i + 1);
    auto child =
        Child::start(fmt::format("process {}", number), [&options, &channel = theirs, number] {
          channel.send(serve(options, number));
          return EXIT_SUCCESS;
        });
    processes.push_back({std::move(child), std::move(ours)});
  }

  std::vector<Counts> counts;
  for (const auto deadline = Clock::now() + run_time + 20s; auto& process : processes) {
    while (!process.child.has_finished()) {
      if (Clock::now() > deadline) throw std::runtime_error("a process doesn't come to its end");
      std::this_thread::sleep_for(5ms);
    }
    counts.push_back(process.channel.receive());
  }
  return counts;
}

// ---- the result --------------------------------------------------------------------------------

void print_counts(const std::vector<Counts>& processes, const Counts& total) {
  constexpr auto row = "{:<9}{:>7}{:>8}{:>9}{:>7}{:>10}{:>8}{:>9}{:>9}{:>6}{:>8}{:>10}\n";
  const auto print = [&](std::string_view name, const Counts& c) {
    fmt::print(row, name, c.reads, c.fresh, c.awaited, c.stale, c.degraded, c.merged, c.refused,
               c.no_slot, c.lost, c.failed, c.rebuilds);
  };
  fmt::print(row, "process", "reads", "fresh", "awaited", "stale", "degraded", "merged", "refused",
             "no slot", "lost", "failed", "rebuilds");
  for (std::size_t i = 0; i < processes.size(); ++i) print(fmt::format("{}", i + 1), processes[i]);
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

/// No page may be rebuilt more often than it can have expired in that time.
void check_rebuilds(Cache& cache, Clock::duration elapsed, const Counts& total,
                    Checklist& checklist) {
  const auto most = 1 + elapsed / Cache::fresh_for;
  std::int64_t all = 0;
  std::int64_t most_of_a_page = 0;
  for (unsigned page = 0; page < page_count; ++page) {
    const auto rebuilds = cache.add(rebuilds_key(page_name(page)), 0);
    all += rebuilds;
    most_of_a_page = std::max(most_of_a_page, rebuilds);
  }
  checklist.add(most_of_a_page <= most, "no page is rebuilt more often than it expires",
                fmt::format("{} times at most, of {}", most_of_a_page, most));
  checklist.add(all == total.rebuilds && all > 0, "Redis counts as many rebuilds as the processes",
                fmt::format("{}", all));
}

void check_leases(redlease::Client& redis, Checklist& checklist) {
  std::vector<std::string> keys;
  for (unsigned page = 0; page < page_count; ++page) keys.push_back(lease_key(page_name(page)));
  for (int slot = 0; slot < slot_count; ++slot) keys.push_back(slot_key(slot));
  const auto left =
      std::ranges::count_if(keys, [&](const auto& key) { return redis.inspect(key).has_value(); });
  checklist.add(left == 0, "no lease key is left in Redis", fmt::format("{} left", left));
}

/// Removes what belongs to the cache. The leases have been given back; they are nobody's to remove.
void clean_up(Cache& cache) {
  for (unsigned page = 0; page < page_count; ++page) {
    cache.remove(page_key(page_name(page)));
    cache.remove(rebuilds_key(page_name(page)));
  }
  cache.remove(under_way_key());
}

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
  const auto start = Clock::now();
  const auto processes = run_processes(options);
  const auto elapsed = Clock::now() - start;
  Counts total;
  for (const auto& process : processes) total += process;
  print_counts(processes, total);

  Cache cache{options.redis};
  redlease::Client redis{options.redis};
  Checklist checklist;
  check_rebuilds(cache, elapsed, total, checklist);
  checklist.add(total.most_at_once <= slot_count, "rebuilds at once are limited",
                fmt::format("{} at most, of {}", total.most_at_once, slot_count));
  const auto answers = total.fresh + total.awaited + total.stale + total.degraded;
  checklist.add(answers == total.reads && total.failed == 0, "every read has its answer",
                fmt::format("{} + {} + {} + {} = {}, {} failed", total.fresh, total.awaited,
                            total.stale, total.degraded, total.reads, total.failed));
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
        ->check(CLI::Range(1, 16))
        ->capture_default_str();
    app.add_option("--threads", options.threads, "of each process")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    return cache_rebuild::run(options) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "cache_rebuild: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
