// What the tests of waiting share: waiters on threads of their own, and what the server shows of
// those who watch a key.
#ifndef REDLEASE_TESTS_SUPPORT_WAITERS_HPP
#define REDLEASE_TESTS_SUPPORT_WAITERS_HPP

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <redlease/redlease.hpp>

#include "support/process.hpp"
#include "support/redis_server.hpp"

namespace redlease::test {

// A wait in which polls come so late that only a wake-up can end it in time.
inline Wait asleep() {
  return {.at_most = std::chrono::seconds{60},
          .backoff = {.min = std::chrono::seconds{30}, .max = std::chrono::seconds{30}}};
}
// A wake-up comes within some ms; this is for a busy machine.
inline constexpr std::chrono::seconds at_once{10};

// A wait with short pauses. For a Waiting that shows soon whether it is in the queue.
inline Wait restless() {
  return {.at_most = std::chrono::seconds{60},
          .backoff = {.min = std::chrono::milliseconds{5}, .max = std::chrono::milliseconds{10}}};
}

// A call of acquire() on a thread of its own.
class Waiter {
 public:
  Waiter(Client& client, std::string key, Wait wait, LeaseOptions options = {})
      : thread_{[this, &client, key = std::move(key), wait = counted(std::move(wait)), options] {
          const Stopwatch watch;
          try {
            lease_ = client.acquire(key, wait, options);
          } catch (...) {
            error_ = std::current_exception();
          }
          took_ = watch.elapsed();
          done_ = true;
        }} {}

  bool done() const { return done_; }
  // Whether it was asked if its lease is still needed, and so is in the queue.
  bool asked() const { return asked_ > 0; }
  int times_asked() const { return asked_; }

  // Waits for the end of the call; what it threw is thrown here. Whether there is a lease.
  bool acquired() {
    if (thread_.joinable()) thread_.join();
    if (error_) std::rethrow_exception(error_);
    return lease_.has_value();
  }
  Lease& lease() { return lease_.value(); }
  void drop() { lease_.reset(); }
  std::chrono::nanoseconds took() const { return took_; }

 private:
  Wait counted(Wait wait) {
    wait.still_needed = [this, original = std::move(wait.still_needed)] {
      ++asked_;
      return !original || original();
    };
    return wait;
  }

  std::optional<Lease> lease_;
  std::exception_ptr error_;
  std::chrono::nanoseconds took_{0};
  std::atomic<int> asked_{0};
  std::atomic<bool> done_{false};
  std::jthread thread_;
};

// What INFO says of it: 0 if nothing.
inline long long info_number(RedisServer& server, const std::string& section,
                             const std::string& field) {
  const auto info = server.admin("INFO", section).text;
  const auto name = "\n" + field + ":";
  const auto at = info.find(name);
  return at == std::string::npos ? 0 : std::stoll(info.substr(at + name.size()));
}

// Waits until the server tracks `count` keys for those who look at them.
inline bool becomes_watched(RedisServer& server, int count = 1) {
  return eventually(at_once,
                    [&] { return info_number(server, "stats", "tracking_total_keys") >= count; });
}

// The connections of those who watch keys: one looks, one hears.
inline std::size_t watching_connections(RedisServer& server) {
  std::size_t count = 0;
  for (auto& client : server.client_list()) {
    const auto& flags = client["flags"];
    if (flags.find('t') != std::string::npos || flags.find('P') != std::string::npos) ++count;
  }
  return count;
}

}  // namespace redlease::test

#endif
