// Cycles of acquire and release per second: redlease with one Client for all threads, raw hiredis
// with a blocking connection per thread, and raw hiredis with 64 cycles in flight on one
// connection, which is about what the server can do.
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <redlease/redlease.hpp>
#include <redlease/store/lua_scripts.hpp>

#include "allocations.hpp"
#include "parts.hpp"
#include "process.hpp"
#include "raw_redis.hpp"

namespace redlease::bench {
namespace {

constexpr auto rival = "hiredis/connection-per-thread";
constexpr std::size_t cycles_in_flight = 64;

struct Sample {
  double cycles_per_second = 0;
  double client_us = 0;  // processor time per cycle
  double server_us = 0;
  double allocations = 0;  // per cycle
};

std::string key_of(int thread) { return fmt::format("bench:cycle:{}", thread); }

// Runs `cycles` on each thread until told to stop, and counts in between.
struct Counter {
  std::atomic<bool> stop{false};
  struct alignas(64) Cell {
    std::atomic<long> cycles{0};
  };
  std::vector<Cell> cells;

  explicit Counter(int threads) : cells(static_cast<std::size_t>(threads)) {}
  long total() const {
    long sum = 0;
    for (const auto& cell : cells) sum += cell.cycles.load(std::memory_order_relaxed);
    return sum;
  }
};

// A subject makes what one thread needs and returns the function that runs one cycle.
using Cycle = std::function<long()>;  // how many cycles it ran
using Subject = std::function<Cycle(int thread)>;

Sample run(const Settings& settings, int threads, const Subject& subject) {
  RawRedis watcher{settings.host, settings.port};
  Counter counter{threads};
  std::vector<std::jthread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      const auto cycle = subject(i);
      auto& mine = counter.cells[static_cast<std::size_t>(i)].cycles;
      while (!counter.stop.load(std::memory_order_relaxed)) {
        mine.fetch_add(cycle(), std::memory_order_relaxed);
      }
    });
  }
  std::this_thread::sleep_for(settings.window / 5);  // connected and warm

  const double server_before = server_cpu_seconds(watcher);
  const double client_before = client_cpu_seconds();
  const auto allocations_before = allocations();
  const long before = counter.total();
  const auto start = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(settings.window);
  const auto cycles = static_cast<double>(counter.total() - before);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  Sample sample;
  sample.cycles_per_second = cycles / seconds.count();
  sample.allocations = static_cast<double>(allocations() - allocations_before) / cycles;
  sample.client_us = (client_cpu_seconds() - client_before) / cycles * 1e6;
  sample.server_us = (server_cpu_seconds(watcher) - server_before) / cycles * 1e6;
  counter.stop = true;
  return sample;
}

Subject lease_released(Client& client) {
  return [&client](int thread) -> Cycle {
    return [&client, key = key_of(thread)] {
      auto lease = client.try_acquire(key);
      if (!lease) throw std::logic_error("the key should have been free");
      lease->release();
      return 1L;
    };
  };
}

Subject fenced_lease(Client& client) {
  return [&client](int thread) -> Cycle {
    return [&client, key = key_of(thread)] {
      client.try_acquire(key, {.fencing = true}).value().release();
      return 1L;
    };
  };
}

Subject lease_on_four_keys(Client& client) {
  return [&client](int thread) -> Cycle {
    std::vector<std::string> keys;
    for (int i = 0; i < 4; ++i) keys.push_back(fmt::format("{}:{}", key_of(thread), i));
    return [&client, keys] {
      client.try_acquire_all(keys).value().release();
      return 1L;
    };
  };
}

Subject lease_left(Client& client) {
  return [&client](int thread) -> Cycle {
    return [&client, key = key_of(thread)] {
      // The release of the cycle before may still be on its way over another connection.
      return client.try_acquire(key) ? 1L : 0L;
    };
  };
}

Subject raw(const Settings& settings) {
  return [&settings](int thread) -> Cycle {
    auto redis = std::make_shared<RawRedis>(settings.host, settings.port);
    redis->command({"SCRIPT", "LOAD", lua::release.text});
    return [redis, key = key_of(thread), token = std::string(36, 'a')] {
      if (redis->command({"SET", key, token, "NX", "PX", "30000"})->type != REDIS_REPLY_STATUS ||
          redis->command({"EVALSHA", lua::release.sha1, "1", key, token})->integer != 1) {
        throw std::logic_error("the key should have been free");
      }
      return 1L;
    };
  };
}

Subject raw_pipelined(const Settings& settings) {
  return [&settings](int) -> Cycle {
    auto redis = std::make_shared<RawRedis>(settings.host, settings.port);
    redis->command({"SCRIPT", "LOAD", lua::release.text});
    return [redis, token = std::string(36, 'a')] {
      for (std::size_t i = 0; i < cycles_in_flight; ++i) {
        const auto key = key_of(static_cast<int>(i));
        redis->append({"SET", key, token, "NX", "PX", "30000"});
        redis->append({"EVALSHA", lua::release.sha1, "1", key, token});
      }
      for (std::size_t i = 0; i < 2 * cycles_in_flight; ++i) redis->next_reply();
      return static_cast<long>(cycles_in_flight);
    };
  };
}

// All samples of one subject at one number of threads, a value per round.
struct Series {
  std::vector<double> rate;
  std::vector<double> client_us;
  std::vector<double> server_us;
  std::vector<double> allocations;

  void add(const Sample& sample) {
    rate.push_back(sample.cycles_per_second);
    client_us.push_back(sample.client_us);
    server_us.push_back(sample.server_us);
    allocations.push_back(sample.allocations);
  }
};

}  // namespace

std::vector<Row> measure_cycles(const Settings& settings) {
  const std::vector<int> crowd{1, 2, 4, 16, 64};
  const auto url = fmt::format("redis://{}:{}", settings.host, settings.port);
  std::map<std::string, std::map<int, Series>> series;
  for (int round = 0; round < settings.rounds; ++round) {
    series["hiredis/pipelined-64"][1].add(run(settings, 1, raw_pipelined(settings)));
    for (const int threads : crowd) {
      series[rival][threads].add(run(settings, threads, raw(settings)));
      Client client{url};
      series["cycle/release"][threads].add(run(settings, threads, lease_released(client)));
      series["cycle/scope_exit"][threads].add(run(settings, threads, lease_left(client)));
      if (threads != 1 && threads != 16) continue;
      series["cycle/fenced"][threads].add(run(settings, threads, fenced_lease(client)));
      series["cycle/four_keys"][threads].add(run(settings, threads, lease_on_four_keys(client)));
    }
  }

  std::vector<Row> rows;
  rows.push_back(
      {"hiredis/pipelined-64", 1, median(series["hiredis/pipelined-64"][1].rate), "cycles/s"});
  for (const int threads : crowd) {
    const auto& base = series[rival][threads];
    rows.push_back({rival, threads, median(base.rate), "cycles/s"});
    for (const std::string name : {"cycle/release", "cycle/scope_exit"}) {
      const auto& ours = series[name][threads];
      rows.push_back(
          {name, threads, median(ours.rate), "cycles/s", ratio(rival, ours.rate, base.rate)});
    }
  }
  for (const std::string name : {"cycle/fenced", "cycle/four_keys"}) {
    for (const int threads : {1, 16}) {
      const auto& base = series["cycle/release"][threads];
      rows.push_back({name, threads, median(series[name][threads].rate), "cycles/s",
                      ratio("cycle/release", series[name][threads].rate, base.rate)});
      rows.push_back({name + "/server_cpu", threads, median(series[name][threads].server_us),
                      "us/cycle",
                      ratio("cycle/release", series[name][threads].server_us, base.server_us)});
    }
  }
  for (const std::string name : {"cycle/release", "cycle/scope_exit"}) {
    for (const int threads : crowd) {
      const auto& base = series[rival][threads];
      const auto& ours = series[name][threads];
      rows.push_back({name + "/server_cpu", threads, median(ours.server_us), "us/cycle",
                      ratio(rival, ours.server_us, base.server_us)});
      rows.push_back({name + "/client_cpu", threads, median(ours.client_us), "us/cycle",
                      ratio(rival, ours.client_us, base.client_us)});
      rows.push_back({name + "/allocations", threads, median(ours.allocations), "1/cycle",
                      ratio(rival, ours.allocations, base.allocations)});
    }
  }
  return rows;
}

}  // namespace redlease::bench
