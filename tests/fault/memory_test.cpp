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

// The sanitizers bring allocators of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace {
thread_local int allocations_left = -1;  // none fails while it is negative
std::atomic<bool> keeper_is_short{false};

bool is_keeper() {
  thread_local const bool keeper = [] {
    std::array<char, 16> name{};
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    return std::string_view{name.data()} == "redlease-keeper";
  }();
  return keeper;
}

// Every tenth of the keeper's, while it is short of memory.
bool keeper_fails() {
  thread_local unsigned n = 0;
  return keeper_is_short.load(std::memory_order_relaxed) && is_keeper() && ++n % 10 == 0;
}
}  // namespace

// Not inlined: the compiler would see free() for what came from operator new, and complain.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc{};
  if (keeper_fails()) throw std::bad_alloc{};
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
    const auto all_held = [&] {
      return std::all_of(leases.begin(), leases.end(), [](const Lease& l) { return l.held(); });
    };
    proxy.delay_replies(3ms);
    keeper_is_short = true;
    EXPECT_FALSE(eventually(1500ms, [&] { return !all_held(); }));
    proxy.reset_all();
    server.pause();
    EXPECT_FALSE(eventually(1500ms, [&] { return !all_held(); }));
    server.resume();
    keeper_is_short = false;
    proxy.pass_through();
    EXPECT_TRUE(all_held());
  }
}

}  // namespace
}  // namespace redlease::test

#endif
