// Memory that runs out in the middle of things: the n-th allocation of a call fails, for each n.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"
#include "support/waiters.hpp"

// The sanitizers bring allocators of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {
thread_local int allocations_left = -1;  // none fails while it is negative
// A thread of the library's that is short of memory: one in so many allocations fails on it.
std::atomic<const char*> short_of_memory{nullptr};
std::atomic<unsigned> one_in{10};

bool thread_is_short() {
  const char* name = short_of_memory.load(std::memory_order_relaxed);
  if (name == nullptr) return false;
  thread_local const auto own = [] {
    std::array<char, 16> text{};
    ::pthread_getname_np(::pthread_self(), text.data(), text.size());
    return text;
  }();
  thread_local unsigned n = 0;
  return std::string_view{own.data()} == name && ++n % one_in == 0;
}
}  // namespace

// Not inlined: the compiler would see free() for what came from operator new, and complain.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc{};
  if (thread_is_short()) throw std::bad_alloc{};
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc{};
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace redlease::test {
namespace {

class MemoryTest : public FaultTest {
 protected:
  // Calls `fn` with its n-th allocation failing; true if it got so far.
  template <class Fn>
  bool failing_at(int n, Fn&& fn) {
    allocations_left = n;
    try {
      fn();
    } catch (const std::bad_alloc&) {
    } catch (const std::exception&) {
    }
    const bool reached = allocations_left < 0;
    allocations_left = -1;
    return reached;
  }

  // Replies still go to those who asked for them.
  void expect_sound(Client& client) {
    EXPECT_FALSE(client.try_acquire("foreign"));
    EXPECT_THAT(thrown_by_ping(client), succeeded());
    auto lease = must_acquire(client, "own", {.ttl = 20s});
    EXPECT_EQ(server.get("own"), lease.token().reveal());
    EXPECT_FALSE(client.try_acquire("foreign"));
    EXPECT_THAT(thrown_by_release(lease), succeeded());
    EXPECT_FALSE(server.exists("own"));
  }

  void SetUp() override { server.admin("SET", "foreign", "somebody", "NX", "PX", 600'000); }
};

TEST_F(MemoryTest, AnyAllocationOfAnyVerbMayFail) {
  Client client{server.url(), patient()};
  int n = 0;
  for (bool reached = true; reached; ++n) {
    ASSERT_LT(n, 500);
    reached = failing_at(n, [&] {
      Client fresh{server.url(), patient()};
      auto lease = fresh.acquire("k", {.at_most = 5s}, {.ttl = 100ms});
      if (lease) lease->renew();
      if (lease) lease->release();
    });
    reached =
        failing_at(n, [&] { auto lease = client.try_acquire("k", {.ttl = 100ms}); }) || reached;
    reached = failing_at(n,
                         [&] {
                           auto lease = client.try_acquire("k", {.ttl = 100ms});
                           if (lease) lease->renew();
                           if (lease) lease->release();
                         }) ||
              reached;
    reached = failing_at(n, [&] { client.inspect("foreign"); }) || reached;
    ASSERT_NO_FATAL_FAILURE(expect_sound(client)) << "allocation " << n;
  }
  EXPECT_GT(n, 5);
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 1; }));
}

// The same for several keys, with their fencing numbers; alone, and with one who waits for them.
TEST_F(MemoryTest, AnyAllocationForSeveralKeysMayFail) {
  Client client{server.url(), patient()};
  const std::vector<std::string> keys{"a", "b", "c"};
  const LeaseOptions options{.ttl = 100ms, .fencing = true};
  int n = 0;
  for (bool reached = true; reached; ++n) {
    ASSERT_LT(n, 500);
    reached = failing_at(n, [&] {
      auto lease = client.try_acquire_all(keys, options);
      if (lease) lease->renew();
      if (lease) lease->release();
    });
    reached = failing_at(n, [&] { auto lease = client.try_acquire_all(keys, options); }) || reached;
    reached = failing_at(n, [&] { auto lease = client.try_acquire("a", options); }) || reached;
    reached = failing_at(n, [&] { client.fenced_write("d", "v", FencingToken{1}); }) || reached;
    std::jthread other{[&] {
      const auto lease = client.acquire_all(keys, {.at_most = 60s}, {.ttl = 100ms});
      EXPECT_TRUE(lease);
    }};
    reached = failing_at(n,
                         [&] {
                           auto lease = client.acquire_all(keys, {.at_most = 5s}, options);
                           if (lease && n % 2 == 0) lease->release();
                         }) ||
              reached;
    other.join();
    ASSERT_NO_FATAL_FAILURE(expect_sound(client)) << "allocation " << n;
  }
  EXPECT_GT(n, 10);
  for (const auto& key : keys) server.admin("DEL", "{" + key + "}:redlease:fence");
  server.admin("DEL", "d", "{d}:redlease:seen");
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 1; }));
}

// Waiting behind others, being served, and handing on.
TEST_F(MemoryTest, AnyAllocationOfAWaitMayFail) {
  Client client{server.url(), patient()};
  std::atomic<bool> enough{false};
  std::vector<std::jthread> others;
  for (int n = 0; n < 3; ++n) {
    others.emplace_back([&] {
      while (!enough) {
        auto lease = client.acquire("k", {.at_most = 60s}, {.ttl = 200ms});
        ASSERT_TRUE(lease);
      }
    });
  }
  // How many there are depends on what the others do meanwhile.
  int reached = 0;
  for (int n = 0; n < 30; ++n) {
    for (int times = 0; times < 10; ++times) {
      const bool failed = failing_at(n, [&] {
        auto lease = client.acquire("k", {.at_most = 60s, .backoff = {.min = 5ms, .max = 5ms}},
                                    {.ttl = 200ms});
        if (lease && times % 2 == 0) lease->release();
      });
      if (failed) ++reached;
    }
  }
  EXPECT_GT(reached, 10);
  enough = true;
  others.clear();
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 1; }));
}

// Neither has the one who watches for those who wait. They get by without it as long as that lasts.
TEST_F(MemoryTest, TheOneWhoWatchesGetsBy) {
  Client client{server.url(), patient()};
  for (const unsigned each : {1U, 3U, 7U, 20U, 41U, 100U}) {
    server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
    one_in = each;
    short_of_memory = "redlease-wakeup";
    auto wait = restless();
    wait.backoff.max = 50ms;
    Waiter first{client, "k", wait, {.ttl = 300ms}};
    Waiter second{client, "k", wait, {.ttl = 300ms}};
    EXPECT_TRUE(always(200ms, [&] { return !first.done() && !second.done(); }));
    for (int change = 0; change < 50; ++change) server.admin("PEXPIRE", "k", 60'000 + change);
    server.admin("DEL", "k");
    ASSERT_TRUE(eventually(10s, [&] { return first.done() || second.done(); })) << each;
    auto& earlier = first.done() ? first : second;
    auto& later = first.done() ? second : first;
    ASSERT_TRUE(earlier.acquired());
    earlier.drop();
    ASSERT_TRUE(later.acquired());
    later.drop();
    short_of_memory = nullptr;
    // What it got and could not tell of ends with its ttl.
    EXPECT_TRUE(becomes_absent("k"));
    // Nothing stays confused.
    server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
    Waiter asleep_one{client, "k", asleep(), {.ttl = 300ms}};
    ASSERT_TRUE(eventually(20s, [&] { return watching_connections(server) == 2; }));
    server.admin("DEL", "k");
    ASSERT_TRUE(eventually(10s, [&] { return asleep_one.done(); })) << each;
    EXPECT_TRUE(asleep_one.acquired());
    asleep_one.drop();
    EXPECT_TRUE(becomes_absent("k"));
  }
}

// The keeper has nobody to tell: it goes on, and so do the leases.
TEST_F(MemoryTest, TheKeeperGetsBy) {
  FaultProxy proxy{server.port()};
  Client client{proxy.url(), {.connect_timeout = long_time, .command_timeout = short_time}};
  {
    std::vector<Lease> leases;
    for (int n = 0; n < 300; ++n) {
      leases.push_back(must_acquire(
          client, std::to_string(n),
          {.ttl = 60s, .auto_renew = true, .renew_every = std::chrono::milliseconds{20}}));
    }
    for (int n = 0; n < 50; ++n) {
      std::vector<std::string> keys;
      for (int k = 0; k < (n == 7 ? 300 : 5); ++k) {
        keys.push_back("several:" + std::to_string(n) + ":" + std::to_string(k));
      }
      auto lease = client.try_acquire_all(
          keys, {.ttl = 60s, .auto_renew = true, .renew_every = std::chrono::milliseconds{20}});
      ASSERT_TRUE(lease);
      leases.push_back(std::move(*lease));
    }
    const auto all_held = [&] {
      return std::all_of(leases.begin(), leases.end(), [](const Lease& l) { return l.held(); });
    };
    proxy.delay_replies(3ms);
    one_in = 10;
    short_of_memory = "redlease-keeper";
    EXPECT_FALSE(eventually(1500ms, [&] { return !all_held(); }));
    proxy.reset_all();
    server.pause();
    EXPECT_FALSE(eventually(1500ms, [&] { return !all_held(); }));
    server.resume();
    short_of_memory = nullptr;
    proxy.pass_through();
    EXPECT_TRUE(all_held());
  }
}

}  // namespace
}  // namespace redlease::test

#endif
