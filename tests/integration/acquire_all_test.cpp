// One lease on several keys: all or none, and one thing from then on.
#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <redlease/store/lua_scripts.hpp>

#include "integration/fixture.hpp"
#include "support/waiters.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

class AcquireAllTest : public IntegrationTest {
 protected:
  bool free(const std::vector<std::string>& keys) {
    return std::none_of(keys.begin(), keys.end(), [&](auto& key) { return server.exists(key); });
  }
  // A call of acquire_all() on a thread of its own.
  std::jthread wait_for(std::vector<std::string> keys, std::optional<Lease>& lease,
                        std::atomic<bool>& asked, LeaseOptions options = {}, Wait wait = asleep()) {
    return std::jthread{[&, keys = std::move(keys), options, wait]() mutable {
      wait.still_needed = [&] { return asked = true; };
      lease = client.acquire_all(keys, wait, options);
    }};
  }
};

TEST_F(AcquireAllTest, TakesAllAtOnce) {
  auto lease = client.try_acquire_all({"b", "a", "c", "a"}, {.ttl = 30s});
  ASSERT_TRUE(lease);
  EXPECT_THAT(lease->keys(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(lease->key(), "a");
  for (const auto& key : lease->keys()) {
    EXPECT_EQ(server.get(key), lease->token().reveal());
    EXPECT_GT(server.pttl(key), 29s);
  }
  EXPECT_TRUE(lease->held());
  lease->ensure_held(20s);
  lease->release();
  EXPECT_FALSE(lease->held());
  EXPECT_EQ(server.dbsize(), 0);
}

TEST_F(AcquireAllTest, TakesAllOrNone) {
  const auto blocker = client.try_acquire("b");
  EXPECT_FALSE(client.try_acquire_all({"a", "b", "c"}));
  EXPECT_EQ(server.dbsize(), 1);
  server.admin("LPUSH", "list", "x");
  EXPECT_FALSE(client.try_acquire_all({"a", "list"}));
  EXPECT_EQ(server.dbsize(), 2);
}

TEST_F(AcquireAllTest, OneKeyIsAnOrdinaryLease) {
  auto lease = client.try_acquire_all({"a", "a"});
  ASSERT_TRUE(lease);
  EXPECT_THAT(lease->keys(), ElementsAre("a"));
  EXPECT_EQ(scripts_run(), 0U) << "SET NX PX";
  EXPECT_FALSE(client.acquire("a", {.at_most = 0s}));
}

TEST_F(AcquireAllTest, IsGivenBackAtTheEndOfTheScope) {
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(client.try_acquire_all({"a", "b"})) << "nobody overtakes himself";
    ASSERT_TRUE(client.try_acquire("b")) << "nor that";
  }
  client.ping();
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

TEST_F(AcquireAllTest, RefusesBadListsBeforeAnyRequest) {
  const std::vector<std::string> many(1001, "k");
  for (const auto& keys : std::vector<std::vector<std::string>>{
           {}, {""}, {"a", ""}, {"a", std::string(65537, 'x')}, many}) {
    EXPECT_THROW((void)client.try_acquire_all(keys), std::invalid_argument);
    EXPECT_THROW((void)client.acquire_all(keys, {.at_most = 1s}), std::invalid_argument);
  }
  EXPECT_THROW((void)client.try_acquire_all({"a", "b"}, {.ttl = 0ms}), std::invalid_argument);
  EXPECT_THROW((void)client.acquire_all({"a", "b"}, {.at_most = -1s}), std::invalid_argument);
  EXPECT_THROW((void)client.acquire_all({"a", "b"}, {.at_most = 1s, .order = Order::fifo}),
               std::invalid_argument);
  EXPECT_THROW((void)client.try_acquire_all({"a", "b"}, {.fencing = true, .fence_key = "b"}),
               std::invalid_argument);
  EXPECT_TRUE(server.client_list().size() <= 2) << "nothing connected";
}

TEST_F(AcquireAllTest, ManyKeysAreOneRequestEach) {
  std::vector<std::string> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back("key:" + std::to_string(i));
  auto lease = client.try_acquire_all(keys, {.ttl = 30s, .fencing = true});
  ASSERT_TRUE(lease);
  EXPECT_EQ(server.dbsize(), 2000);
  lease->renew(60s);
  for (const auto& key : keys) EXPECT_GT(server.pttl(key), 50s);
  lease->release();
  EXPECT_EQ(server.dbsize(), 1000);
}

TEST_F(AcquireAllTest, EachKeyHasAFencingNumber) {
  const LeaseOptions fenced{.ttl = 30s, .fencing = true};
  (void)client.try_acquire("b", fenced);
  auto lease = client.try_acquire_all({"a", "b"}, fenced);
  ASSERT_TRUE(lease);
  EXPECT_EQ(lease->fencing_token("a"), FencingToken{1});
  EXPECT_EQ(lease->fencing_token("b"), FencingToken{2});
  EXPECT_THROW((void)lease->fencing_token(), std::invalid_argument);
  EXPECT_THROW((void)lease->fencing_token("c"), std::invalid_argument);
}

// B44
TEST_F(AcquireAllTest, ABadCounterLeavesNothingBehind) {
  server.admin("SET", "{b}:redlease:fence", "abc");
  EXPECT_THROW((void)client.try_acquire_all({"a", "b", "c"}, {.fencing = true}), Error);
  EXPECT_EQ(server.dbsize(), 1);
}

// ---- renewing and losing -----------------------------------------------------------------------

TEST_F(AcquireAllTest, IsRenewedAsOne) {
  auto lease = client.try_acquire_all({"a", "b"}, {.ttl = 1s});
  lease->renew(60s);
  EXPECT_GT(lease->remaining(), 50s);
  EXPECT_GT(server.pttl("a"), 50s);
  EXPECT_GT(server.pttl("b"), 50s);
}

TEST_F(AcquireAllTest, TheKeeperRenewsAll) {
  auto lease = client.try_acquire_all({"a", "b", "c"}, {.ttl = 600ms, .auto_renew = true});
  const auto single = client.try_acquire("d", {.ttl = 600ms, .auto_renew = true});
  ASSERT_TRUE(lease && single);
  EXPECT_TRUE(eventually(10s, [&] { return events->all(Event::Kind::renewed).size() >= 8; }));
  EXPECT_TRUE(lease->held());
  EXPECT_TRUE(single->held());
  EXPECT_EQ(server.dbsize(), 4);
  lease->release();
  EXPECT_EQ(server.dbsize(), 1);
}

// One key lost is the lease lost, and then the others are given back.
TEST_F(AcquireAllTest, OneKeyLostIsTheLeaseLost) {
  for (const std::string lost : {"a", "b", "c"}) {
    for (const bool taken : {false, true}) {
      auto lease = client.try_acquire_all({"a", "b", "c"}, {.ttl = 30s});
      ASSERT_TRUE(lease);
      server.admin("DEL", lost);
      if (taken) server.admin("SET", lost, "theirs", "PX", 30'000);
      try {
        lease->renew();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const LeaseLost& error) {
        EXPECT_EQ(error.loss().reason, taken ? LossReason::taken : LossReason::missing);
      }
      EXPECT_FALSE(lease->held());
      EXPECT_EQ(server.dbsize(), taken ? 1 : 0) << "the others are free";
      EXPECT_THROW(lease->release(), LeaseLost);
      EXPECT_EQ(server.get(lost), taken ? std::optional{std::string{"theirs"}} : std::nullopt);
      server.admin("DEL", lost);
    }
  }
}

TEST_F(AcquireAllTest, ReleaseTellsOfALossAndFreesTheRest) {
  auto lease = client.try_acquire_all({"a", "b", "c"}, {.ttl = 30s});
  server.admin("SET", "b", "theirs", "PX", 30'000);
  EXPECT_THROW(lease->release(), LeaseLost);
  EXPECT_EQ(server.dbsize(), 1);
  EXPECT_EQ(server.get("b"), "theirs");
}

TEST_F(AcquireAllTest, TheKeeperNoticesALossAndFreesTheRest) {
  auto lease = client.try_acquire_all({"a", "b", "c"}, {.ttl = 3s, .auto_renew = true});
  const auto single = client.try_acquire("d", {.ttl = 3s, .auto_renew = true});
  const auto lost = lease->stop_token();
  server.admin("SET", "c", "theirs", "PX", 60'000);
  EXPECT_TRUE(eventually(10s, [&] { return lost.stop_requested(); }));
  EXPECT_EQ(lease->loss()->reason, LossReason::taken);
  EXPECT_TRUE(free({"a", "b"}));
  EXPECT_EQ(server.get("c"), "theirs");
  EXPECT_TRUE(single->held());
  EXPECT_EQ(events->all(Event::Kind::lost).size(), 1U);
}

TEST_F(AcquireAllTest, ADestructorFreesWhatIsOurs) {
  {
    const auto lease = client.try_acquire_all({"a", "b", "c"}, {.ttl = 30s});
    server.admin("DEL", "a");
  }
  EXPECT_EQ(events->first(Event::Kind::lost).reason, LossReason::missing);
  EXPECT_EQ(server.dbsize(), 0);
}

// ---- waiting -----------------------------------------------------------------------------------

TEST_F(AcquireAllTest, IsWokenWhenTheLastBlockerGoes) {
  for (const bool scope_exit : {false, true}) {
    auto first = client.try_acquire("a");
    auto second = client.try_acquire("c");
    std::optional<Lease> lease;
    std::atomic<bool> asked = false;
    auto waiter = wait_for({"a", "b", "c"}, lease, asked);
    EXPECT_TRUE(becomes_watched(server));
    const Stopwatch watch;
    first->release();
    EXPECT_TRUE(eventually(at_once, [&] { return asked.load(); }));
    EXPECT_FALSE(lease) << "the other one is held still";
    if (scope_exit) {
      second.reset();
    } else {
      second->release();
    }
    waiter.join();
    ASSERT_TRUE(lease);
    EXPECT_LT(watch.elapsed(), at_once);
    lease->release();
  }
}

// One request, and no moment in which a key is free.
TEST_F(AcquireAllTest, IsHandedOnAsOneToWhoeverWantsTheSame) {
  const LeaseOptions fenced{.ttl = 30s, .fencing = true};
  const auto handoffs = [&] {
    monitor.sync();
    return monitor.count([](const MonitorLine& line) {
      return line.args[0] == "EVALSHA" && line.args[1] == lua::handoff_all.sha1;
    });
  };
  for (const bool scope_exit : {false, true}) {
    auto held = client.try_acquire_all({"a", "b"}, fenced);
    ASSERT_TRUE(held);
    const auto before = held->fencing_token("b");
    std::optional<Lease> lease;
    std::atomic<bool> asked = false;
    auto waiter = wait_for({"b", "a"}, lease, asked, fenced, restless());
    EXPECT_TRUE(eventually(at_once, [&] { return asked.load(); }));
    const auto so_far = handoffs();
    if (scope_exit) {
      held.reset();
    } else {
      held->release();
    }
    waiter.join();
    ASSERT_TRUE(lease);
    EXPECT_EQ(handoffs() - so_far, 1U);
    EXPECT_LT(before, lease->fencing_token("b"));
    EXPECT_EQ(server.get("a"), lease->token().reveal());
    EXPECT_EQ(server.get("b"), lease->token().reveal());
    lease->release();
  }
}

// Whoever frees it, and however.
TEST_F(AcquireAllTest, IsWokenByStrangers) {
  Client other{server.url()};
  const std::vector<std::function<void(Lease&)>> ways{
      [](Lease& lease) { lease.release(); },
      [&](Lease&) { server.admin("DEL", "b"); },
      [&](Lease&) { server.admin("FLUSHALL"); },
      [&](Lease&) { server.admin("PEXPIRE", "b", 20); },
  };
  for (const auto& way : ways) {
    auto held = other.try_acquire("b");
    std::optional<Lease> lease;
    std::atomic<bool> asked = false;
    auto waiter = wait_for({"a", "b"}, lease, asked);
    EXPECT_TRUE(becomes_watched(server));
    const Stopwatch watch;
    way(*held);
    waiter.join();
    ASSERT_TRUE(lease);
    EXPECT_LT(watch.elapsed(), at_once);
    lease->release();
  }
}

TEST_F(AcquireAllTest, AReleaseOfAllWakesThoseWhoWaitForOne) {
  for (const auto order : {Order::any, Order::fifo}) {
    auto lease = client.try_acquire_all({"a", "b"});
    auto wait = asleep();
    wait.order = order;
    Waiter one{client, "b", wait};
    EXPECT_TRUE(becomes_watched(server));
    lease->release();
    EXPECT_TRUE(one.acquired());
    EXPECT_LT(one.took(), 30s);
    one.drop();
    EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
  }
}

TEST_F(AcquireAllTest, AWaitEndsWithoutATrace) {
  const auto held = client.try_acquire("b");
  const Stopwatch watch;
  EXPECT_FALSE(client.acquire_all({"a", "b"}, {.at_most = 200ms}));
  EXPECT_LT(watch.elapsed(), 10s);
  EXPECT_FALSE(client.acquire_all({"a", "b"}, {.at_most = 60s, .attempts = 3}));
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(client.acquire_all({"a", "b"}, {.at_most = 60s, .stop = stop.get_token()}));
  EXPECT_FALSE(
      client.acquire_all({"a", "b"}, {.at_most = 60s, .still_needed = [] { return false; }}));
  EXPECT_FALSE(client.acquire_all({"a", "b"}, {.at_most = 0s}));
  EXPECT_EQ(server.dbsize(), 1);
}

// Two orders over the same keys in opposite order; and single ones in between.
TEST_F(AcquireAllTest, OverlappingOrdersNeverBlockEachOtherForGood) {
  Client second{server.url()};
  constexpr int skus = 6;
  std::array<std::atomic<int>, skus> holders{};
  std::atomic<int> overlaps{0};
  std::atomic<int> served{0};
  std::vector<std::thread> crowd;
  for (unsigned t = 0; t < 12; ++t) {
    crowd.emplace_back([&, t] {
      auto mine = t % 2 == 0 ? client : second;
      std::minstd_rand random{t + 1};
      for (int i = 0; i < 60; ++i) {
        std::vector<int> order(skus);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        order.resize(1 + random() % 3);
        std::vector<std::string> keys;
        for (const int sku : order) keys.push_back("sku:" + std::to_string(sku));
        auto lease = mine.acquire_all(keys, {.at_most = 60s}, {.ttl = 30s});
        if (!lease) continue;
        ++served;
        for (const int sku : order) {
          if (holders[static_cast<std::size_t>(sku)]++ != 0) ++overlaps;
        }
        if (i % 3 == 0) std::this_thread::yield();
        for (const int sku : order) --holders[static_cast<std::size_t>(sku)];
        if (i % 2 == 0) lease->release();
      }
    });
  }
  for (auto& thread : crowd) thread.join();
  EXPECT_EQ(overlaps, 0);
  EXPECT_EQ(served, 12 * 60);
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

}  // namespace
}  // namespace redlease::test
