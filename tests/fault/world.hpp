// What the fault tests share: a server under watch, an observer that remembers, and words for
// what was thrown.
#ifndef REDLEASE_TESTS_FAULT_WORLD_HPP
#define REDLEASE_TESTS_FAULT_WORLD_HPP

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <redlease/redlease.hpp>

#include "support/monitor.hpp"
#include "support/process.hpp"
#include "support/redis_server.hpp"

namespace redlease::inline v1 {

// For the messages of failed tests.
inline void PrintTo(errc code, std::ostream* out) { *out << make_error_code(code).message(); }
inline void PrintTo(LossReason reason, std::ostream* out) { *out << to_string(reason); }
inline void PrintTo(Event::Kind kind, std::ostream* out) { *out << to_string(kind); }

}  // namespace redlease::inline v1

namespace redlease::test {

using namespace std::chrono_literals;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
inline constexpr bool sanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool sanitized = false;
#endif

// What a busy machine may add to a bound.
inline constexpr std::chrono::milliseconds slack = sanitized ? 2000ms : 1000ms;

// Time-outs for tests that want to see one, and for those that don't.
inline constexpr std::chrono::milliseconds short_time{300};
inline constexpr std::chrono::milliseconds long_time{20'000};

class EventLog : public Observer {
 public:
  void on_event(const Event& event) override {
    const std::lock_guard lock{mutex_};
    events_.push_back(event);
  }

  std::vector<Event> all() const {
    const std::lock_guard lock{mutex_};
    return events_;
  }

  std::vector<Event> of(Event::Kind kind) const {
    auto events = all();
    std::erase_if(events, [kind](const Event& event) { return event.kind != kind; });
    return events;
  }

  // Events come on a thread of their own, so a test waits for them.
  bool has(Event::Kind kind) const {
    return eventually(10s, [&] { return !of(kind).empty(); });
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Event> events_;
};

inline ClientOptions patient() {
  return {.connect_timeout = long_time, .command_timeout = long_time};
}
inline ClientOptions hasty() {
  return {.connect_timeout = short_time, .command_timeout = short_time};
}

// What a call threw: no code if nothing. Exceptions that are neither Error nor invalid_argument
// go through and fail the test.
struct Thrown {
  std::error_code code;
  std::string what;
  std::optional<LossReason> loss;
  bool invalid = false;  // std::invalid_argument

  bool nothing() const { return !code && !invalid; }
  friend std::ostream& operator<<(std::ostream& out, const Thrown& thrown) {
    return out << (thrown.nothing() ? "nothing was thrown" : thrown.what);
  }
};

template <class Fn>
Thrown thrown_by(Fn&& fn) {
  try {
    static_cast<void>(fn());
    return {};
  } catch (const LeaseLost& lost) {
    return {lost.code(), lost.what(), lost.loss().reason};
  } catch (const Error& error) {
    return {error.code(), error.what(), {}};
  } catch (const std::invalid_argument& invalid) {
    return {std::make_error_code(std::errc::invalid_argument), invalid.what(), {}, true};
  }
}

inline Thrown thrown_by_acquire(Client& client, std::string_view key,
                                const LeaseOptions& options = {}) {
  return thrown_by([&] { return client.try_acquire(key, options).has_value(); });
}
inline Thrown thrown_by_renew(Lease& lease) {
  return thrown_by([&] { lease.renew(); });
}
inline Thrown thrown_by_release(Lease& lease) {
  return thrown_by([&] { lease.release(); });
}
inline Thrown thrown_by_ping(Client& client) {
  return thrown_by([&] { client.ping(); });
}

// EXPECT_THAT(thrown_by_release(lease), failed(errc::rejected, "NOREPLICAS"));
inline auto failed(errc code, const std::string& text = {}) {
  return ::testing::AllOf(
      ::testing::Field("code", &Thrown::code, ::testing::Eq(make_error_code(code))),
      ::testing::Field("what", &Thrown::what, ::testing::HasSubstr(text)));
}
inline auto succeeded() {
  return ::testing::Truly([](const Thrown& t) { return t.nothing(); });
}
inline auto lost(LossReason reason) {
  return ::testing::AllOf(
      ::testing::Field("code", &Thrown::code, ::testing::Eq(make_error_code(errc::lost))),
      ::testing::Field("loss", &Thrown::loss, ::testing::Optional(reason)));
}
inline auto refused(const std::string& text) {
  return ::testing::AllOf(::testing::Field("invalid", &Thrown::invalid, true),
                          ::testing::Field("what", &Thrown::what, ::testing::HasSubstr(text)));
}

// Of a lease whose key the server must hold for it.
inline Lease must_acquire(Client& client, std::string_view key, const LeaseOptions& options = {}) {
  auto lease = client.try_acquire(key, options);
  if (!lease) throw std::runtime_error("the key is held by another: " + std::string{key});
  return std::move(*lease);
}

// A lease that is renewed by the keeper.
constexpr LeaseOptions kept(std::chrono::milliseconds ttl, std::chrono::milliseconds every) {
  return {.ttl = ttl, .auto_renew = true, .renew_every = Duration{every}};
}

// True if that is so all the time.
template <class Predicate>
bool always(std::chrono::nanoseconds for_so_long, Predicate&& pred) {
  return !eventually(for_so_long, [&] { return !pred(); });
}

// ThreadSanitizer gives up when a forked child of a process with threads starts threads itself, and
// AddressSanitizer's allocator may be locked for good in such a child.
inline constexpr bool children_have_threads = !sanitized;

// A forked child that goes on beside the test; its status is what fork_and_wait() gives.
class Child {
 public:
  template <class Fn>
  explicit Child(Fn&& fn) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::alarm(60);
    int status = 125;
    try {
      status = fn();
    } catch (...) {
    }
    ::_exit(status);
  }
  pid_t pid() const { return pid_; }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

// A server of the test's own. At the end of each test nothing but guarded writes must have reached
// it, and no thread or descriptor of the test's clients may be left.
class FaultTest : public ::testing::Test {
 protected:
  explicit FaultTest(RedisServerOptions options = {}) : server(std::move(options)) {
    fds_ = count_fds();
    threads_ = count_threads();
  }

  // By now the members of the test's own class, its clients for instance, are gone.
  ~FaultTest() override {
    EXPECT_TRUE(eventually(10s, [this] { return count_threads() <= threads_; }))
        << count_threads() << " threads instead of " << threads_;
    EXPECT_TRUE(eventually(10s, [this] { return count_fds() <= fds_; }))
        << count_fds() << " descriptors instead of " << fds_;
  }

  void TearDown() override {
    if (server.pid() != -1) {
      server.resume();
      monitor.sync();
    }
    EXPECT_THAT(monitor.violations(), ::testing::IsEmpty());
  }

  void restart_server() {
    server.start();
    monitor.attach();
  }

  // Closes the connections of all clients but the administrators'.
  void kill_clients() {
    for (auto& client : server.client_list()) {
      if (!server.admin_addresses().contains(client["addr"])) {
        server.admin("CLIENT", "KILL", "ID", client["id"]);
      }
    }
  }

  // How often the server refused a command with an error of this code.
  long long refusals(const std::string& code) {
    const auto info = server.admin("INFO", "errorstats").text;
    const auto name = "errorstat_" + code + ":count=";
    const auto at = info.find(name);
    return at == std::string::npos ? 0 : std::stoll(info.substr(at + name.size()));
  }

  // The ids of the connections that are no administrator's.
  std::vector<std::string> client_ids() {
    std::vector<std::string> ids;
    for (auto& client : server.client_list()) {
      if (!server.admin_addresses().contains(client["addr"])) ids.push_back(client["id"]);
    }
    return ids;
  }

  bool becomes_absent(std::string_view key, std::chrono::nanoseconds at_most = 10s) {
    return eventually(at_most, [&] { return !server.exists(key); });
  }

  // Scripts that clients sent, not what they did inside.
  std::size_t scripts_run() {
    monitor.sync();
    return monitor.count([](const MonitorLine& line) {
      return line.source != "lua" && (line.args.at(0) == "EVALSHA" || line.args.at(0) == "EVAL");
    });
  }

  RedisServer server;
  Monitor monitor{server};

 private:
  std::size_t fds_ = 0;
  std::size_t threads_ = 0;
};

}  // namespace redlease::test

#endif
