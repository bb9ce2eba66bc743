// Leases that a client holds and renews by itself: how fast it can, what that and the mere holding
// cost, and what others on the same client notice of it. The rival renews as many keys with one
// EVALSHA each, up to 512 of them in flight on one connection.
//
// Leases with a `renew_every` of 1 ms are always due, so that the keeper renews as fast as it can;
// those with the default of ttl / 3 are renewed as they would be in use.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <future>
#include <redlease/redlease.hpp>
#include <redlease/store/lua_scripts.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "parts.hpp"
#include "process.hpp"
#include "raw_redis.hpp"

namespace redlease::bench {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr auto rival = "hiredis/renew-one-by-one";
constexpr auto ttl = 30s;
constexpr auto usual_renew_every = ttl / 3;
constexpr int most = 100'000;               // leases
constexpr std::size_t half_a_window = 256;  // commands in flight of the rival
constexpr int acquiring_threads = 8;

// Short enough to need no memory beside the string itself.
std::string key_of(int lease) { return fmt::format("bench:{}", lease); }

double heap_bytes() {
  const auto heap = ::mallinfo2();
  return static_cast<double>(heap.uordblks + heap.hblkhd);
}

int threads_now() {
  std::ifstream status{"/proc/self/status"};
  const std::string name = "Threads:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stoi(line.substr(name.size()));
  }
  throw std::runtime_error("/proc/self/status tells of no threads");
}

// ---- renewing as fast as it goes ---------------------------------------------------------------

struct Sample {
  double renewals_per_second = 0;
  double client_us = 0;  // processor time per renewal
  double server_us = 0;
  double script_us = 0;  // of that the scripts' part, as the server reports it
};

// Renews for that long.
using Renewing = std::function<void(Milliseconds)>;

double renewals(RawRedis& watcher) { return command_stats(watcher, "pexpire").calls; }

double script_seconds(RawRedis& watcher) {
  return command_stats(watcher, "evalsha").seconds + command_stats(watcher, "eval").seconds;
}

Sample run(const Settings& settings, RawRedis& watcher, const Renewing& renew) {
  renew(settings.window / 5);  // warm
  const double scripts_before = script_seconds(watcher);
  const double server_before = server_cpu_seconds(watcher);
  const double before = renewals(watcher);
  const double client_before = client_cpu_seconds();
  const auto start = SteadyClock::now();
  renew(settings.window);
  const std::chrono::duration<double> seconds = SteadyClock::now() - start;
  const double client = client_cpu_seconds() - client_before;
  const double count = renewals(watcher) - before;
  const double server = server_cpu_seconds(watcher) - server_before;
  const double scripts = script_seconds(watcher) - scripts_before;
  if (count <= 0) throw std::runtime_error("nothing was renewed");
  return {count / seconds.count(), client / count * 1e6, server / count * 1e6,
          scripts / count * 1e6};
}

class Rival {
 public:
  Rival(const Settings& settings, int keys) : redis_(settings.host, settings.port) {
    redis_.command({"SCRIPT", "LOAD", lua::renew.text});
    for (int i = 0; i < keys; ++i) {
      keys_.push_back(key_of(i));
      tokens_.push_back(fmt::format("{:0{}}", i, Token::size));
    }
    for_each_key([this](std::size_t i) {
      redis_.append({"SET", keys_[i], tokens_[i], "PX", "120000"});
    });
  }
  ~Rival() {
    try {
      for_each_key([this](std::size_t i) { redis_.append({"DEL", keys_[i]}); });
    } catch (const std::exception&) {
      // They expire.
    }
  }
  Rival(const Rival&) = delete;
  Rival& operator=(const Rival&) = delete;

  void renew(Milliseconds time) {
    const auto end = SteadyClock::now() + time;
    pipeline([end](std::size_t) { return SteadyClock::now() < end ? half_a_window : 0; },
             [this](std::size_t i) {
               redis_.append({"EVALSHA", lua::renew.sha1, "1", keys_[i], tokens_[i], "30000"});
             });
  }

 private:
  void for_each_key(auto&& append) {
    pipeline([this](std::size_t sent) { return std::min(half_a_window, keys_.size() - sent); },
             append);
  }

  // `how_many` more commands are to be sent, `append` appends that of one key; it goes over the
  // keys again and again. While the server works on one half of the window, the other is made.
  void pipeline(auto&& how_many, auto&& append) {
    std::size_t sent = 0;
    std::size_t in_flight = 0;
    while (const std::size_t more = how_many(sent)) {
      for (std::size_t i = 0; i < more; ++i) append(sent++ % keys_.size());
      redis_.flush();
      drain(in_flight);
      in_flight = more;
    }
    drain(in_flight);
  }

  void drain(std::size_t replies) {
    for (std::size_t i = 0; i < replies; ++i) {
      const auto reply = redis_.next_reply();
      if (reply->type == REDIS_REPLY_ERROR ||
          (reply->type == REDIS_REPLY_INTEGER && reply->integer != 1)) {
        throw std::runtime_error("the rival's keys should have been there");
      }
    }
  }

  RawRedis redis_;
  std::vector<std::string> keys_;
  std::vector<std::string> tokens_;
};

// ---- leases ------------------------------------------------------------------------------------

LeaseOptions renewed_every(Milliseconds interval) {
  return {.ttl = ttl, .auto_renew = true, .renew_every = interval};
}

Lease acquire(Client& client, const std::string& key, const LeaseOptions& options) {
  auto lease = client.try_acquire(key, options);
  if (!lease) throw std::logic_error("the key should have been free");
  return std::move(*lease);
}

// Leases that are held at the same time.
class Held {
 public:
  Held(Client& client, int count, const LeaseOptions& options, int threads)
      : shares_(static_cast<std::size_t>(threads)) {
    std::vector<std::future<void>> workers;
    workers.reserve(shares_.size());
    for (int t = 0; t < threads; ++t) {
      workers.push_back(std::async(std::launch::async, [=, this, &client, &options] {
        auto& share = shares_[static_cast<std::size_t>(t)];
        share.reserve(static_cast<std::size_t>(count) / shares_.size() + 1);
        for (int i = t; i < count; i += threads) {
          share.push_back(acquire(client, key_of(i), options));
        }
      }));
    }
    for (auto& worker : workers) worker.get();
  }

  void ask_for_stop_tokens() {
    for_each([](Lease& lease) { (void)lease.stop_token(); });
  }
  int lost() {
    int count = 0;
    for_each([&](Lease& lease) { count += lease.held() ? 0 : 1; });
    return count;
  }

 private:
  void for_each(auto&& function) {
    for (auto& share : shares_) {
      for (auto& lease : share) function(lease);
    }
  }

  std::vector<std::vector<Lease>> shares_;
};

// Throws if a lease was lost.
void check(Held& held) {
  if (const int lost = held.lost(); lost > 0) {
    throw std::runtime_error(fmt::format("{} leases were lost", lost));
  }
}

// Has its connection, and a keeper.
Client connected_client(const Settings& settings) {
  Client client{fmt::format("redis://{}:{}", settings.host, settings.port)};
  acquire(client, key_of(0), renewed_every(usual_renew_every)).release();
  return client;
}

// ---- what holding takes ------------------------------------------------------------------------

struct Keep {
  double bytes = 0;  // of the heap, per lease
  double bytes_with_stop_token = 0;
  int threads = 0;
  int threads_with_stop_token = 0;
};

Keep measure_keep(const Settings& settings, int count) {
  const int threads_before = threads_now();
  auto client = connected_client(settings);
  const double bytes_before = heap_bytes();
  Held held{client, count, renewed_every(usual_renew_every), 1};
  Keep keep;
  keep.bytes = (heap_bytes() - bytes_before) / count;
  keep.threads = threads_now() - threads_before;
  held.ask_for_stop_tokens();
  keep.bytes_with_stop_token = (heap_bytes() - bytes_before) / count;
  keep.threads_with_stop_token = threads_now() - threads_before;
  check(held);
  return keep;
}

// Processor time of a client that only holds leases.
double measure_holding(const Settings& settings, int count, std::chrono::seconds time) {
  auto client = connected_client(settings);
  Held held{client, count, renewed_every(usual_renew_every), 1};
  const double before = client_cpu_seconds();
  std::this_thread::sleep_for(time);
  const double seconds = client_cpu_seconds() - before;
  check(held);
  return seconds;
}

// ---- what others notice ------------------------------------------------------------------------

// How long try_acquire() took, in microseconds.
class Latencies {
 public:
  void add(const std::vector<double>& more) { all_.insert(all_.end(), more.begin(), more.end()); }
  double quantile(double which) const { return bench::quantile(all_, which); }
  const std::vector<double>& all() const { return all_; }

 private:
  std::vector<double> all_;
};

// Takes a lease a thousand times a second: seldom enough to disturb nobody.
std::vector<double> probe(Client& client, Milliseconds time) {
  std::vector<double> found;
  const auto end = SteadyClock::now() + time;
  for (auto next = SteadyClock::now(); next < end;) {
    std::this_thread::sleep_until(next);
    const auto start = SteadyClock::now();
    auto lease = client.try_acquire("bench:probe");
    const std::chrono::duration<double, std::micro> took = SteadyClock::now() - start;
    if (!lease) throw std::logic_error("the key should have been free");
    lease->release();
    found.push_back(took.count());
    next = std::max(next + 1ms, SteadyClock::now());
  }
  return found;
}

// The same client without and with leases that are being renewed.
struct Noticed {
  Latencies idle;
  Latencies renewing;
  std::vector<double> idle_p99;  // a value per round
  std::vector<double> renewing_p99;

  void add(const Latencies& idle_now, const Latencies& renewing_now) {
    idle.add(idle_now.all());
    renewing.add(renewing_now.all());
    idle_p99.push_back(idle_now.quantile(0.99));
    renewing_p99.push_back(renewing_now.quantile(0.99));
  }
};

// Renewals at the usual interval come in the same order and at the same pace as the acquisitions
// did, in less than the whole interval. What counts is the time in which there were some.
void measure_noticed(const Settings& settings, Noticed& noticed, std::vector<double>& rate) {
  RawRedis watcher{settings.host, settings.port};
  auto client = connected_client(settings);
  Latencies idle;
  Latencies renewing;
  idle.add(probe(client, 5 * settings.window));
  {
    Held held{client, most, renewed_every(usual_renew_every), 1};
    double before = renewals(watcher);
    double count = 0;
    std::chrono::duration<double> counted{0};
    const auto end = SteadyClock::now() + 2 * usual_renew_every;
    while (counted < 10 * settings.window && SteadyClock::now() < end) {
      const auto start = SteadyClock::now();
      const auto found = probe(client, 50ms);
      const double now = renewals(watcher);
      if (now > before) {
        renewing.add(found);
        count += now - before;
        counted += SteadyClock::now() - start;
      }
      before = now;
    }
    check(held);
    rate.push_back(count / counted.count());
  }
  idle.add(probe(client, 5 * settings.window));
  noticed.add(idle, renewing);
}

// ---- all of it ---------------------------------------------------------------------------------

// All samples of one subject with one number of leases, a value per round.
struct Series {
  std::vector<double> rate;
  std::vector<double> client_us;
  std::vector<double> server_us;
  std::vector<double> script_us;

  void add(const Sample& sample) {
    rate.push_back(sample.renewals_per_second);
    client_us.push_back(sample.client_us);
    server_us.push_back(sample.server_us);
    script_us.push_back(sample.script_us);
  }
};

struct Comparison {
  Series rival;
  Series ours;
};

// `noticed`: also see what others notice.
void compare(const Settings& settings, int count, Comparison& comparison, Noticed* noticed) {
  RawRedis watcher{settings.host, settings.port};
  {
    Rival raw{settings, count};
    comparison.rival.add(run(settings, watcher, [&](Milliseconds time) { raw.renew(time); }));
  }
  auto client = connected_client(settings);
  Latencies idle;
  if (noticed != nullptr) idle.add(probe(client, settings.window));
  Held held{client, count, renewed_every(1ms), acquiring_threads};
  comparison.ours.add(
      run(settings, watcher, [](Milliseconds time) { std::this_thread::sleep_for(time); }));
  if (noticed != nullptr) {
    Latencies renewing;
    renewing.add(probe(client, settings.window));
    noticed->add(idle, renewing);
  }
  check(held);
}

void add_latency_rows(std::vector<Row>& rows, const std::string& name, int leases,
                      const Latencies& found, std::optional<Ratio> p99 = {}) {
  rows.push_back({name + "/p50", leases, found.quantile(0.5), "us", {}, "leases"});
  rows.push_back({name + "/p99", leases, found.quantile(0.99), "us", std::move(p99), "leases"});
  rows.push_back({name + "/max", leases, found.quantile(1), "us", {}, "leases"});
}

}  // namespace

std::vector<Row> measure_renewals(const Settings& settings) {
  std::vector<Row> rows;
  const auto add = [&](const std::string& name, int leases, double value, const std::string& unit,
                       std::optional<Ratio> to = {}) {
    rows.push_back({name, leases, value, unit, std::move(to), "leases"});
  };

  Noticed saturated;
  for (const int count : {1'000, 10'000, most}) {
    Comparison found;
    for (int round = 0; round < settings.rounds; ++round) {
      compare(settings, count, found, count == most ? &saturated : nullptr);
    }
    const auto& [raw, ours] = found;
    add(rival, count, median(raw.rate), "renewals/s");
    add("renew/rate", count, median(ours.rate), "renewals/s", ratio(rival, ours.rate, raw.rate));
    add("renew/client_cpu", count, median(ours.client_us), "us/renewal",
        ratio(rival, ours.client_us, raw.client_us));
    add("renew/server_cpu", count, median(ours.server_us), "us/renewal",
        ratio(rival, ours.server_us, raw.server_us));
    add("renew/server_scripts", count, median(ours.script_us), "us/renewal",
        ratio(rival, ours.script_us, raw.script_us));
    if (count != most) continue;
    add("renew/one_pass/server_cpu", count, median(ours.server_us) * count / 1000, "ms");
    add("renew/one_pass/server_scripts", count, median(ours.script_us) * count / 1000, "ms");
  }

  for (const int count : {1'000, 10'000, most}) {
    const auto keep = measure_keep(settings, count);
    add("renew/lease+handle/heap", count, keep.bytes, "bytes/lease");
    add("renew/lease+handle+stop_token/heap", count, keep.bytes_with_stop_token, "bytes/lease");
    add("renew/threads", count, keep.threads, "threads");
    add("renew/stop_token/threads", count, keep.threads_with_stop_token, "threads");
  }
  add("renew/held_for_30s/client_cpu", 1'000, 1000 * measure_holding(settings, 1'000, 30s), "ms");

  Noticed usual;
  std::vector<double> rate;
  for (int round = 0; round < std::min(settings.rounds, 2); ++round) {
    measure_noticed(settings, usual, rate);
  }
  const std::string idle = "renew/try_acquire/idle";
  add_latency_rows(rows, idle, 0, usual.idle);
  const std::string renewing = "renew/try_acquire/renewing";
  add(renewing + "/rate", most, median(rate), "renewals/s");
  add_latency_rows(rows, renewing, most, usual.renewing,
                   ratio(idle + "/p99", usual.renewing_p99, usual.idle_p99));
  add_latency_rows(rows, "renew/try_acquire/saturated", most, saturated.renewing,
                   ratio(idle + "/p99", saturated.renewing_p99, saturated.idle_p99));
  add("renew/lost", most, 0, "leases");  // or a measurement would have thrown
  return rows;
}

}  // namespace redlease::bench
