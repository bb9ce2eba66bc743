// Waits: what bounds them, what they cost, and what they say at their end.
#include <dlfcn.h>
#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "fault/world.hpp"
#include "support/fake_server.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

// Looking up the host "hang.test" takes until release_lookups() is called.
std::mutex lookup_mutex;
std::condition_variable lookup_changed;
bool lookups_released = false;

void wait_for_release() {
  std::unique_lock lock{lookup_mutex};
  lookup_changed.wait(lock, [] { return lookups_released; });
}
void release_lookups(bool released) {
  const std::lock_guard lock{lookup_mutex};
  lookups_released = released;
  lookup_changed.notify_all();
}

}  // namespace
}  // namespace redlease::test

// In the place of the C library's for this program.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** result) {
  using Function = decltype(&getaddrinfo);
  static const auto original = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool literal = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (node != nullptr && std::string_view{node} == "hang.test" && !literal) {
    redlease::test::wait_for_release();
    return EAI_AGAIN;
  }
  return original(node, service, hints, result);
}

namespace redlease::test {
namespace {

class WaitingTest : public FaultTest {
 protected:
  Client client{server.url(), patient()};
  std::stop_source stop;
};

Thrown thrown_by_wait(Client& client, std::string_view key, const Wait& wait) {
  return thrown_by([&] { return client.acquire(key, wait).has_value(); });
}

// B38: an unreachable server is not "held by another": not at the end of a wait, ...
TEST_F(WaitingTest, B38ADeadServerIsNotContention) {
  client.ping();
  server.kill();
  const Stopwatch watch;
  EXPECT_THAT(thrown_by_wait(client, "k", {.at_most = 500ms}), failed(errc::unavailable, "'k'"));
  EXPECT_LT(watch.elapsed(), 500ms + slack);
  EXPECT_THAT(thrown_by_acquire(client, "k"), failed(errc::unavailable));
}

// B38: ... nor when it dies during the wait, ...
TEST_F(WaitingTest, B38AServerThatDiesDuringTheWait) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  std::jthread killer{[&] {
    EXPECT_TRUE(eventually(10s, [&] { return server.command_calls("set") >= 3; }));
    server.kill();
  }};
  EXPECT_THAT(thrown_by_wait(client, "k", {.at_most = 3s}), failed(errc::unavailable));
}

// B38: ... while a held key is, and so is one that was seen held before a stop request.
TEST_F(WaitingTest, B38AHeldKeyIsContention) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  EXPECT_FALSE(client.acquire("k", {.at_most = 200ms}));
  EXPECT_FALSE(client.acquire("k", {.at_most = 0ms}));
  EXPECT_FALSE(client.acquire("k", {.at_most = 20s, .attempts = 3}));
  EXPECT_FALSE(client.acquire("k", {.at_most = 20s, .still_needed = [] { return false; }}));
  std::jthread stopper{[&] { stop.request_stop(); }};
  EXPECT_FALSE(client.acquire("k", {.at_most = 20s, .stop = stop.get_token()}));
}

// B38: a server that comes back during the wait.
TEST_F(WaitingTest, B38AServerThatComesBack) {
  server.kill();
  std::jthread waiter{[&] { EXPECT_TRUE(client.acquire("k", {.at_most = 60s})); }};
  restart_server();
}

// B49 (a): a held key. The wait ends in time, whatever the back-off, and not before.
TEST_F(WaitingTest, B49AHeldKey) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  for (const auto max : {5ms, 100ms, 10'000ms}) {
    const Stopwatch watch;
    EXPECT_FALSE(client.acquire("k", {.at_most = 300ms, .backoff = {.min = 5ms, .max = max}}));
    EXPECT_GE(watch.elapsed(), 300ms);
    EXPECT_LT(watch.elapsed(), 400ms + slack);
  }
}

// B49: no wait means exactly one attempt, and attempts are counted.
TEST_F(WaitingTest, B49AttemptsAreCounted) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  auto before = server.command_calls("set");
  EXPECT_FALSE(client.acquire("k", {.at_most = 0s}));
  EXPECT_EQ(server.command_calls("set"), before + 1);
  EXPECT_FALSE(client.try_acquire("k"));
  EXPECT_EQ(server.command_calls("set"), before + 2);
  EXPECT_FALSE(client.acquire("k", {.at_most = 20s, .attempts = 4}));
  EXPECT_EQ(server.command_calls("set"), before + 6);
}

// B49 (b): a server that stands still, and a long command time-out.
TEST_F(WaitingTest, B49AStoppedServer) {
  client.ping();
  server.pause();
  for (int round = 0; round < 2; ++round) {  // connected, and not
    const Stopwatch watch;
    EXPECT_FALSE(thrown_by_wait(client, "k", {.at_most = 300ms}).nothing());
    EXPECT_LT(watch.elapsed(), 400ms + slack);
  }
  server.resume();
  EXPECT_TRUE(becomes_absent("k"));
}

// B49 (c): a black hole, with and without a connection, with and without a log-in.
TEST_F(WaitingTest, B49ABlackHole) {
  FaultProxy proxy{server.port()};
  Client connected{proxy.url(), patient()};
  connected.ping();
  proxy.black_hole(true);
  auto options = patient();
  options.database = 3;
  Client fresh{proxy.url(), options};
  for (auto* each : {&connected, &fresh}) {
    const Stopwatch watch;
    EXPECT_FALSE(thrown_by_wait(*each, "k", {.at_most = 300ms}).nothing());
    EXPECT_LT(watch.elapsed(), 400ms + slack);
  }
  proxy.black_hole(false);
  EXPECT_TRUE(becomes_absent("k"));
}

// B49 (d): names that do not resolve, at once or ever.
TEST_F(WaitingTest, B49AResolverThatFailsOrHangs) {
  release_lookups(false);
  for (const auto* url : {"redis://no-such-host.invalid", "redis://hang.test:6379"}) {
    Client nowhere{url, patient()};
    const Stopwatch watch;
    EXPECT_THAT(thrown_by_wait(nowhere, "k", {.at_most = 300ms}), failed(errc::unavailable));
    EXPECT_LT(watch.elapsed(), 400ms + slack);
  }
  Client nowhere{"redis://hang.test:6379", hasty()};
  const auto threads = count_threads();
  for (int round = 0; round < 3; ++round) {
    const Stopwatch watch;
    EXPECT_THAT(thrown_by_ping(nowhere), failed(errc::unavailable, "timed out"));
    EXPECT_LT(watch.elapsed(), short_time + slack);
  }
  EXPECT_LE(count_threads(), threads + 1);
  release_lookups(true);
}

// B49: the observer's curiosity at the end of a wait costs the caller nothing.
TEST_F(WaitingTest, B49TheObserverDoesNotStretchAWait) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  FaultProxy proxy{server.port()};
  proxy.delay_requests(2s, "\r\nEVAL");
  for (const Wait& wait : {Wait{.at_most = 300ms}, Wait{.at_most = 300ms, .attempts = 2}}) {
    auto options = patient();
    options.observer = std::make_shared<EventLog>();
    Client watched{proxy.url(), options};
    watched.ping();
    const Stopwatch watch;
    EXPECT_FALSE(watched.acquire("k", wait));
    EXPECT_LT(watch.elapsed(), 400ms + slack);
  }
}

// B49: a stop request ends a wait at once.
TEST_F(WaitingTest, B49AStopRequestEndsTheWait) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  std::jthread stopper{[&] {
    EXPECT_TRUE(eventually(10s, [&] { return server.command_calls("set") >= 3; }));
    stop.request_stop();
  }};
  const Stopwatch watch;
  const Wait wait{.at_most = 60s, .backoff = {.min = 20s, .max = 20s}, .stop = stop.get_token()};
  EXPECT_FALSE(client.acquire("k", {.at_most = 60s, .attempts = 2}));
  EXPECT_FALSE(client.acquire("k", wait));
  EXPECT_LT(watch.elapsed(), 10s);
}

// B50: waiters neither load the server nor clean up behind a definite "no".
TEST_F(WaitingTest, B50WaitersPollAtTheirInterval) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  const auto sets = server.command_calls("set");
  constexpr int waiters = 50;
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < waiters; ++n) {
      threads.emplace_back([&] {
        EXPECT_THAT(thrown_by([&] {
                      EXPECT_FALSE(client.acquire(
                          "k", {.at_most = 2s, .backoff = {.min = 50ms, .max = 50ms}}));
                    }),
                    succeeded());
      });
    }
  }
  EXPECT_LE(server.command_calls("set") - sets, waiters * (2000 / 50 + 2) * 12 / 10);
  // Where everything is slow the last attempts of some may end in doubt, which scripts settle.
  EXPECT_LE(server.command_calls("eval") + server.command_calls("evalsha"), waiters / 10);
  EXPECT_EQ(server.command_calls("del"), 0);
}

// B50: after a release the next holder is soon there, and all get their turn.
TEST_F(WaitingTest, B50AReleaseWakesSoon) {
  constexpr int waiters = 50;
  constexpr auto interval = 50ms;
  auto lease = std::optional{must_acquire(client, "k", {.ttl = 60s})};
  std::mutex mutex;
  std::vector<std::chrono::nanoseconds> gaps;
  Stopwatch since_release;
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < waiters; ++n) {
      threads.emplace_back([&] {
        auto mine = client.acquire("k", {.at_most = 60s, .backoff = {.min = 5ms, .max = interval}},
                                   {.ttl = 60s});
        ASSERT_TRUE(mine);
        const std::lock_guard lock{mutex};
        gaps.push_back(since_release.elapsed());
        mine->release();
        since_release.restart();
      });
    }
    EXPECT_TRUE(eventually(10s, [&] { return server.command_calls("set") > waiters; }));
    const std::lock_guard lock{mutex};
    lease->release();
    since_release.restart();
  }
  ASSERT_EQ(gaps.size(), static_cast<std::size_t>(waiters));
  std::sort(gaps.begin(), gaps.end());
  EXPECT_LT(gaps.at(waiters * 95 / 100), 2 * interval + slack);
  EXPECT_EQ(server.dbsize(), 0);
}

// B33: giving back has its own time, whatever became of the caller's.
TEST_F(WaitingTest, B33ACancelledCallerStillReleases) {
  try {
    const auto lease = client.acquire("k", {.at_most = 5s, .stop = stop.get_token()});
    ASSERT_TRUE(lease);
    stop.request_stop();
    throw std::runtime_error("cancelled");
  } catch (const std::runtime_error&) {
    EXPECT_TRUE(becomes_absent("k", 100ms + slack));
  }
  EXPECT_FALSE(client.acquire("k", {.at_most = 5s, .stop = stop.get_token()}));
  EXPECT_FALSE(server.exists("k"));
}

// B33: the same when the wait's time is over, and with release().
TEST_F(WaitingTest, B33AnOverdueCallerStillReleases) {
  server.admin("SET", "k", "stranger", "NX", "PX", 200);
  const Stopwatch watch;
  auto lease = client.acquire("k", {.at_most = 20s}, {.ttl = 30s});
  ASSERT_TRUE(lease);
  auto quick = client.acquire("quick", {.at_most = 50ms});
  ASSERT_TRUE(quick);
  EXPECT_TRUE(eventually(10s, [&] { return watch.elapsed() > 300ms; }));
  quick->release();
  lease->release();
  EXPECT_EQ(server.dbsize(), 0);
}

}  // namespace
}  // namespace redlease::test
