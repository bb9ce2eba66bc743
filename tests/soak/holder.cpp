// One of the processes of a soak: threads that share a client, contend for a few keys, and write
// down what they believed and when.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <redlease/redlease.hpp>

#include "soak/arguments.hpp"
#include "soak/cpu_watch.hpp"
#include "soak/records.hpp"
#include "support/process.hpp"

namespace redlease::soak {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr auto watch_every = 5ms;
constexpr auto signal_deadline = 5s;

class Random {
 public:
  explicit Random(unsigned long seed) : engine_(seed) {}

  bool one_in(int n) { return below(n) == 0; }
  int below(int n) { return std::uniform_int_distribution{0, n - 1}(engine_); }
  milliseconds between(milliseconds least, milliseconds most) {
    return milliseconds{std::uniform_int_distribution{least.count(), most.count()}(engine_)};
  }

 private:
  std::mt19937_64 engine_;
};

class Log {
 public:
  explicit Log(const std::string& path) : file_(path) {}

  void write(const std::string& line) {
    const std::lock_guard lock{mutex_};
    file_ << line << '\n' << std::flush;
  }
  void count(const std::string& name) {
    const std::lock_guard lock{mutex_};
    ++counts_[name];
  }
  void write_counts() {
    const std::lock_guard lock{mutex_};
    for (const auto& [name, count] : counts_) file_ << count_line(name, count) << '\n';
    file_.flush();
  }

 private:
  std::mutex mutex_;
  std::ofstream file_;
  std::map<std::string, long> counts_;
};

// Where the library puts it for keys like those of the soak.
std::string counter_of(const std::string& key, const LeaseOptions& options) {
  return options.fence_key.empty() ? "{" + key + "}:redlease:fence" : options.fence_key;
}

// Notes when it was called. Now and then it takes its time, which is no other lease's business.
class StopNote {
 public:
  explicit StopNote(milliseconds pause) : pause_(pause) {}

  void operator()() {
    at_ = Clock::now().time_since_epoch().count();
    std::this_thread::sleep_for(pause_);
  }
  std::optional<Instant> at() const {
    const auto at = at_.load();
    return at == 0 ? std::nullopt : std::optional{Instant{nanoseconds{at}}};
  }

 private:
  const milliseconds pause_;
  std::atomic<nanoseconds::rep> at_{0};
};

// A lease and what is known of it. The lease's own thread and the watcher look at it.
class Holding {
 public:
  // `polled`: held() is asked often, which alone would find a loss out. Otherwise nobody asks
  // before the signal.
  Holding(Lease lease, const LeaseOptions& options, Instant began, Instant acquired, bool polled,
          milliseconds callback_pause)
      : lease_(std::move(lease)), polled_(polled), stop_note_(callback_pause) {
    record_.keys.assign(lease_.keys().begin(), lease_.keys().end());
    for (const auto& key : record_.keys) {
      if (!options.fencing) break;
      record_.numbers.push_back({counter_of(key, options), lease_.fencing_token(key).value()});
    }
    record_.began = began;
    record_.token = lease_.token().reveal();
    record_.auto_renew = options.auto_renew;
    record_.ttl = options.ttl;
    record_.margin = options.safety_margin.value_or(record_.ttl / 10);
    record_.acquired = record_.last_held = acquired;
    record_.valid_first = record_.valid_last = acquired;
    if (look()) record_.valid_first = record_.valid_last;
  }

  Lease& lease() { return lease_; }

  // Before anybody else knows it.
  LeaseRecord beginning() {
    record_.end = "open";
    return record_;
  }

  void listen() {
    {
      const std::lock_guard lock{mutex_};
      record_.listening = Clock::now();
    }
    callback_.emplace(lease_.stop_token(), [this] { stop_note_(); });
  }

  bool listens() const { return callback_.has_value(); }
  bool polled() const { return polled_; }
  bool go_on() { return polled_ ? look() : !stop_note_.at(); }

  // True if the lease is held. Never blocks for long.
  bool look() {
    const std::lock_guard lock{mutex_};
    const auto signalled = stop_note_.at();
    const auto before = Clock::now();
    const bool held = lease_.held();
    const auto left = lease_.remaining();
    const auto after = Clock::now();
    if (held) {
      record_.last_held = before;
      record_.revived = record_.revived || lost_;
      if (signalled) record_.held_late = before;
    } else {
      lost_ = lost_ || lease_.loss();
    }
    if (left > 0ns) {
      record_.valid_last = std::max(record_.valid_last, after + left);
      note_validity({after, before + left});
    }
    return held;
  }

  // The observer was told now that so much was left.
  void renewed(nanoseconds left) {
    const auto now = Clock::now();
    const std::lock_guard lock{mutex_};
    if (!polled_) record_.valid_last = std::max(record_.valid_last, now + left);
  }

  void renew(std::error_code& error) {
    {
      const std::lock_guard lock{mutex_};
      record_.renewed_by_hand = true;
    }
    lease_.renew(error);
    look();
  }

  void release(std::error_code& error) {
    const auto before = Clock::now();
    lease_.release(error);
    const std::lock_guard lock{mutex_};
    record_.releasing = before;
    record_.answered = Clock::now();
    if (!error) record_.last_held = std::max(record_.last_held, before);
  }

  // Waits for the signal if there is to be one. Nobody else looks any more.
  LeaseRecord conclude(const std::string& end) {
    record_.end = end;
    if (callback_ && lease_.loss()) {
      test::eventually(signal_deadline, [this] { return stop_note_.at().has_value(); });
    }
    record_.signalled = stop_note_.at();
    if (const auto loss = lease_.loss()) record_.loss = to_string(loss->reason);
    return record_;
  }

 private:
  // Only a new one: the same one looks a little different each time.
  void note_validity(const Validity& seen) {
    auto& all = record_.validities;
    if (all.empty() || seen.end > all.back().end + 2ms) all.push_back(seen);
  }

  Lease lease_;
  const bool polled_;
  StopNote stop_note_;
  std::optional<std::stop_callback<std::function<void()>>> callback_;
  std::mutex mutex_;
  bool lost_ = false;
  LeaseRecord record_;
};

// Looks at all leases of the process, also while their own threads wait for an answer.
class Watcher {
 public:
  void add(Holding& holding) {
    const std::lock_guard lock{mutex_};
    holdings_.emplace(holding.lease().token().fingerprint(), &holding);
  }
  void remove(Holding& holding) {
    const std::lock_guard lock{mutex_};
    std::erase_if(holdings_, [&](const auto& entry) { return entry.second == &holding; });
  }
  void renewed(const std::string& fingerprint, nanoseconds left) {
    const std::lock_guard lock{mutex_};
    const auto [first, last] = holdings_.equal_range(fingerprint);
    for (auto entry = first; entry != last; ++entry) entry->second->renewed(left);
  }

 private:
  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      {
        const std::lock_guard lock{mutex_};
        for (const auto& [fingerprint, holding] : holdings_) {
          if (holding->polled()) holding->look();
        }
      }
      std::this_thread::sleep_for(watch_every);
    }
  }

  std::mutex mutex_;
  std::multimap<std::string, Holding*> holdings_;  // by fingerprint
  std::jthread thread_{[this](const std::stop_token& stop) { run(stop); }};
};

class EventReader : public Observer {
 public:
  EventReader(Log& log, Watcher& watcher) : log_(log), watcher_(watcher) {}
  void on_event(const Event& event) override {
    log_.count(std::string{"event:"} + to_string(event.kind));
    if (event.kind == Event::Kind::renewed) watcher_.renewed(event.fingerprint, event.left);
  }

 private:
  Log& log_;
  Watcher& watcher_;
};

class Worker {
 public:
  Worker(Client& client, Watcher& watcher, Log& log, unsigned long keys, unsigned long seed)
      : client_(client), watcher_(watcher), log_(log), keys_(keys), random_(seed) {}

  void work_until(Instant end) {
    while (Clock::now() < end) {
      try {
        if (!try_once()) log_.count("contended");
      } catch (const Error& error) {
        log_.count("acquire: " + error.code().message());
        pause(random_.between(5ms, 50ms));
      } catch (const std::exception& error) {
        log_.write(error_line(error.what()));
      }
      pause(random_.between(0ms, 40ms));
    }
  }

 private:
  static void pause(milliseconds time) { std::this_thread::sleep_for(time); }

  LeaseOptions pick_options() {
    LeaseOptions options{.ttl = random_.between(300ms, 1500ms)};
    options.auto_renew = random_.one_in(2);
    if (random_.one_in(4)) options.safety_margin = options.ttl.value() / 4;
    if (options.auto_renew && random_.one_in(8)) options.max_hold = random_.between(300ms, 2000ms);
    options.fencing = random_.one_in(2);
    if (options.fencing && random_.one_in(4)) options.fence_key = shared_counter;
    return options;
  }

  static std::string key_of(int number) { return "soak:" + std::to_string(number); }

  // Some keys are for those who want several, mostly: on a busy one they hardly ever get them.
  int pick_number(int one_in_calm) {
    const auto keys = static_cast<int>(keys_);
    const auto calm = std::max(1, 2 * keys / 5);
    return random_.one_in(one_in_calm) ? keys - 1 - random_.below(calm)
                                       : random_.below(keys - calm);
  }

  // In any order; one of them twice, now and then.
  std::vector<std::string> pick_keys() {
    if (!random_.one_in(3)) return {key_of(pick_number(8))};
    std::vector<std::string> keys;
    const auto most = std::min<std::size_t>(keys_, 2 + static_cast<std::size_t>(random_.below(3)));
    while (keys.size() < most) {
      const auto key = key_of(random_.one_in(8) ? pick_number(8) : pick_number(1));
      if (std::ranges::find(keys, key) == keys.end() || random_.one_in(8)) keys.push_back(key);
    }
    return keys;
  }

  std::optional<Lease> acquire(const std::vector<std::string>& keys, const LeaseOptions& options) {
    Wait wait{.at_most = random_.between(0ms, 300ms)};
    if (keys.size() > 1) {
      log_.count("asked for several keys");
      return random_.one_in(4) ? client_.try_acquire_all(keys, options)
                               : client_.acquire_all(keys, wait, options);
    }
    if (random_.one_in(8)) return client_.try_acquire(keys.front(), options);
    if (random_.one_in(3)) wait.order = Order::fifo;
    return client_.acquire(keys.front(), wait, options);
  }

  void note_regression(const std::vector<std::string>& keys, const LeaseOptions& options,
                       Instant began) {
    Regression regression{began, Clock::now(), {}};
    for (const auto& key : keys) regression.counters.push_back(counter_of(key, options));
    log_.write(to_line(regression));
  }

  void check_keys(const Lease& lease, const std::vector<std::string>& keys) {
    const std::set<std::string> wanted{keys.begin(), keys.end()};
    if (std::ranges::equal(lease.keys(), wanted)) return;
    log_.write(error_line("a lease on other keys than were asked for: " + lease.key()));
  }

  milliseconds pick_work(const LeaseOptions& options, bool several) {
    if (!random_.one_in(several ? 2 : 6)) return random_.between(1ms, 60ms);
    return random_.between(100ms, options.ttl.ceil_ms() * (options.auto_renew ? 3 : 1) + 200ms);
  }

  bool try_once() {
    const auto keys = pick_keys();
    const auto options = pick_options();
    const auto began = Clock::now();
    try {
      auto lease = acquire(keys, options);
      const auto acquired = Clock::now();
      if (!lease) return false;
      check_keys(*lease, keys);
      hold(std::move(*lease), options, began, acquired);
    } catch (const Error& error) {
      if (error.code() == errc::fence_regressed) note_regression(keys, options, began);
      throw;
    }
    return true;
  }

  void hold(Lease lease, const LeaseOptions& options, Instant began, Instant acquired) {
    const bool polled = !random_.one_in(3);
    const bool slow_callback = random_.one_in(20);
    auto holding = std::make_unique<Holding>(std::move(lease), options, began, acquired, polled,
                                             slow_callback ? random_.between(50ms, 300ms) : 0ms);
    log_.count("acquired");
    log_.write(to_line(holding->beginning()));
    if (options.auto_renew || !polled || random_.one_in(3)) holding->listen();
    watcher_.add(*holding);
    work(*holding, pick_work(options, holding->lease().keys().size() > 1));
    const auto end = finish(*holding);
    watcher_.remove(*holding);
    auto record = holding->conclude(end);
    holding.reset();
    record.destroyed = Clock::now();
    log_.write(to_line(record));
  }

  void work(Holding& holding, milliseconds time) {
    const auto end = Clock::now() + time;
    const bool renews = holding.polled() && random_.one_in(5);
    while (Clock::now() < end && holding.go_on()) {
      pause(std::min(5ms, std::chrono::ceil<milliseconds>(end - Clock::now())));
      if (!holding.listens() && random_.one_in(20)) holding.listen();
      if (renews && random_.one_in(10)) {
        std::error_code error;
        holding.renew(error);
        log_.count(error ? "renew: " + error.message() : "renewed by hand");
      }
    }
  }

  std::string finish(Holding& holding) {
    const bool held = holding.look();
    if (held && random_.one_in(3)) return "scope";
    std::error_code error;
    holding.release(error);
    if (!error) return "released";
    if (error == errc::lost) return "lost";
    log_.count("release: " + error.message());
    return "not_released";
  }

  Client& client_;
  Watcher& watcher_;
  Log& log_;
  const unsigned long keys_;
  Random random_;
};

void hold_leases(const Arguments& arguments, Log& log, Watcher& watcher) {
  const auto keys = arguments.number("keys");
  const auto seed = arguments.number("seed");
  const auto end = Clock::now() + std::chrono::seconds{arguments.number("seconds")};
  const milliseconds patience{arguments.number("timeout")};
  Client client{arguments.text("redis"),
                {.connect_timeout = patience,
                 .command_timeout = patience,
                 .observer = std::make_shared<EventReader>(log, watcher)}};
  std::vector<std::jthread> workers;
  for (unsigned long i = 0; i < arguments.number("threads"); ++i) {
    workers.emplace_back([&, i] {
      Worker{client, watcher, log, keys, seed * 1000 + i}.work_until(end);
    });
  }
}

int run(const Arguments& arguments) {
  Log log{arguments.text("log")};
  Watcher watcher;
  std::jthread sleeper{[&log](const std::stop_token& stop) {
    sleep_and_note(stop, [&log](const Late& late) { log.write(to_line(late)); });
  }};
  const auto threads = static_cast<long>(test::count_threads());
  const auto fds = static_cast<long>(test::count_fds());
  hold_leases(arguments, log, watcher);
  Leftovers left;
  test::eventually(10s, [&] {
    left.threads = std::max(0L, static_cast<long>(test::count_threads()) - threads);
    left.fds = std::max(0L, static_cast<long>(test::count_fds()) - fds);
    return left.threads == 0 && left.fds == 0;
  });
  log.write_counts();
  log.write(to_line(left));
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace redlease::soak

int main(int argc, char** argv) {
  try {
    return redlease::soak::run({argc,
                                argv,
                                {{"redis", ""},
                                 {"keys", "4"},
                                 {"threads", "4"},
                                 {"timeout", "500"},
                                 {"seconds", "10"},
                                 {"seed", "1"},
                                 {"log", ""}}});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "redlease_soak_holder: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
