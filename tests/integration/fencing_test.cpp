// LeaseOptions::fencing: a number with each acquisition, strictly rising however the lease was
// come by, and nothing left behind when it can't be had.
#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <redlease/core/key_slot.hpp>

#include "integration/fixture.hpp"
#include "support/waiters.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr auto counter = "{k}:redlease:fence";
const LeaseOptions fenced{.ttl = 30s, .fencing = true};

class FencingTest : public IntegrationTest {
 protected:
  // As many threads, each taking the lease so often. The numbers in the order of acquisition.
  std::vector<std::int64_t> contend(std::vector<Client> clients, int threads, int leases,
                                    const Wait& wait, const LeaseOptions& options,
                                    bool by_scope_exit) {
    std::vector<std::int64_t> numbers;  // guarded by the lease itself
    std::vector<std::thread> crowd;
    for (int t = 0; t < threads; ++t) {
      crowd.emplace_back([&, t] {
        auto mine = clients[static_cast<std::size_t>(t) % clients.size()];
        for (int i = 0; i < leases; ++i) {
          auto lease = mine.acquire("k", wait, options);
          if (!lease) continue;
          numbers.push_back(lease->fencing_token().value());
          if (!by_scope_exit) lease->release();
        }
      });
    }
    for (auto& thread : crowd) thread.join();
    return numbers;
  }

  static void expect_strictly_rising(const std::vector<std::int64_t>& numbers) {
    EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end(), std::greater_equal<>{}),
              numbers.end());
  }

  std::string thrown_with(const LeaseOptions& options, errc code) {
    try {
      (void)client.try_acquire("k", options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
  }
};

TEST_F(FencingTest, TheNumberRisesWithEachAcquisition) {
  for (std::int64_t n = 1; n <= 3; ++n) {
    auto lease = client.try_acquire("k", fenced);
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease->fencing_token(), FencingToken{n});
    EXPECT_EQ(lease->fencing_token("k"), FencingToken{n});
    EXPECT_EQ(server.get("k"), lease->token().reveal());
    lease->renew();
    EXPECT_EQ(lease->fencing_token(), FencingToken{n});
    EXPECT_FALSE(client.try_acquire("k", fenced));
    if (n == 2) lease->release();
    EXPECT_EQ(lease->fencing_token(), FencingToken{n}) << "it is of use to the end and after it";
  }
  EXPECT_EQ(server.get(counter), "3") << "what was refused draws no number";
  EXPECT_EQ(server.pttl(counter), -1ms);
  EXPECT_EQ(client.inspect("k"), std::nullopt);
}

TEST_F(FencingTest, InspectTellsTheLatestNumber) {
  const auto lease = client.try_acquire("k", fenced);
  EXPECT_EQ(client.inspect("k")->fence(), FencingToken{1});
  const auto other = client.try_acquire("other");
  EXPECT_EQ(client.inspect("other")->fence(), std::nullopt);
}

TEST_F(FencingTest, WithoutFencingThereIsNone) {
  const auto lease = client.try_acquire("k");
  ASSERT_TRUE(lease);
  EXPECT_THROW((void)lease->fencing_token(), std::invalid_argument);
  EXPECT_THROW((void)lease->fencing_token("k"), std::invalid_argument);
  EXPECT_EQ(server.dbsize(), 1);
}

// B45
TEST_F(FencingTest, LeasesMayShareACounter) {
  const LeaseOptions shared{.ttl = 30s, .fencing = true, .fence_key = "all"};
  const auto a = client.try_acquire("a", shared);
  const auto b = client.try_acquire("b", shared);
  ASSERT_TRUE(a && b);
  EXPECT_LT(a->fencing_token(), b->fencing_token());
  EXPECT_EQ(server.get("all"), "2");
  EXPECT_EQ(server.dbsize(), 3);
}

// B45: answers of leases that have nothing to do with each other overtake each other.
TEST_F(FencingTest, ASharedCounterNeverSeemsToFall) {
  std::vector<std::thread> crowd;
  for (int t = 0; t < 8; ++t) {
    crowd.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        (void)client.try_acquire("key:" + std::to_string(t),
                                 {.ttl = 30s, .fencing = true, .fence_key = "all"});
      }
    });
  }
  for (auto& thread : crowd) thread.join();
  EXPECT_EQ(server.get("all"), "2400");
}

// B44
TEST_F(FencingTest, ABadCounterLeavesNothingBehind) {
  for (const std::string bad : {"abc", "9223372036854775807", ""}) {
    server.admin("SET", counter, bad);
    for (const auto order : {Order::any, Order::fifo}) {
      try {
        (void)client.acquire("k", {.at_most = 200ms, .order = order}, fenced);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), errc::rejected);
        EXPECT_THAT(error.what(), HasSubstr("'k'"));
      }
      EXPECT_FALSE(server.exists("k"));
    }
    EXPECT_EQ(server.get(counter), bad);
    EXPECT_EQ(server.dbsize(), 1);
  }
  server.admin("DEL", counter);
  server.admin("LPUSH", counter, "a list");
  EXPECT_THAT(thrown_with(fenced, errc::rejected), HasSubstr("WRONGTYPE"));
  EXPECT_EQ(server.dbsize(), 1);
}

// B44: a user who may not set the key.
TEST_F(FencingTest, ARefusedAcquisitionDrawsNoNumber) {
  server.admin("ACL", "SETUSER", "poor", "on", "nopass", "~*", "+@all", "-set");
  Client poor{server.url(), {.username = "poor", .password = "any"}};
  EXPECT_THROW((void)poor.try_acquire("k", fenced), Error);
  EXPECT_EQ(server.dbsize(), 0);
}

TEST_F(FencingTest, NumbersAreExactAbove2To53) {
  server.admin("SET", counter, "9007199254740992");
  const auto lease = client.try_acquire("k", fenced);
  EXPECT_EQ(lease->fencing_token(), FencingToken{9007199254740993});
}

// B45
TEST_F(FencingTest, AFallIsNoticed) {
  for (int i = 0; i < 5; ++i) (void)client.try_acquire("k", fenced);
  server.admin("DEL", counter);
  const auto text = thrown_with(fenced, errc::fence_regressed);
  EXPECT_THAT(text, HasSubstr("{k}:redlease:fence"));
  EXPECT_THAT(text, HasSubstr("1 of"));
  EXPECT_THAT(text, HasSubstr("not above 5"));
  EXPECT_TRUE(eventually(10s, [&] { return !server.exists("k"); })) << "it was given back";

  server.admin("SET", counter, "5");
  EXPECT_EQ(client.try_acquire("k", fenced)->fencing_token(), FencingToken{6});
  EXPECT_TRUE(eventually(10s, [&] { return !server.exists("k"); }));
  Client other{server.url()};
  server.admin("DEL", counter);
  EXPECT_EQ(other.try_acquire("k", fenced)->fencing_token(), FencingToken{1})
      << "another process doesn't know";
}

TEST_F(FencingTest, AFallIsNoticedByOneWhoWaits) {
  (void)client.try_acquire("k", fenced);
  (void)client.try_acquire("k", fenced);
  for (const auto order : {Order::any, Order::fifo}) {
    auto held = client.acquire("k", {.at_most = 10s, .order = order}, {.ttl = 30s});
    ASSERT_TRUE(held);
    server.admin("DEL", counter);
    auto wait = restless();
    wait.order = order;
    Waiter waiter{client, "k", wait, fenced};
    EXPECT_TRUE(eventually(10s, [&] { return waiter.asked(); }));
    held->release();
    EXPECT_THROW(waiter.acquired(), Error);
    EXPECT_TRUE(eventually(10s, [&] { return !server.exists("k"); }));
  }
}

// B44: in the order of acquisition, and no gaps.
TEST_F(FencingTest, RisesThroughHandoffs) {
  for (const bool by_scope_exit : {false, true}) {
    const auto numbers = contend({client}, 8, 100, {.at_most = 60s}, fenced, by_scope_exit);
    EXPECT_EQ(numbers.size(), 800U);
    expect_strictly_rising(numbers);
  }
}

TEST_F(FencingTest, RisesThroughFifoGrants) {
  Client second{server.url()};
  for (const bool by_scope_exit : {false, true}) {
    const auto numbers = contend({client, second}, 8, 50, {.at_most = 60s, .order = Order::fifo},
                                 fenced, by_scope_exit);
    EXPECT_EQ(numbers.size(), 400U);
    expect_strictly_rising(numbers);
  }
}

TEST_F(FencingTest, RisesOverClientsThatPoll) {
  std::vector<Client> clients;
  for (int i = 0; i < 10; ++i) clients.emplace_back(server.url());
  const auto numbers = contend(clients, 50, 40, {.at_most = 60s}, fenced, false);
  EXPECT_EQ(numbers.size(), 2000U);
  expect_strictly_rising(numbers);
  monitor.sync();
  const auto acquisitions = monitor.count(
      [](const MonitorLine& line) { return line.args[0] == "SET" && line.args[1] == "k"; });
  EXPECT_EQ(server.get(counter), std::to_string(acquisitions)) << "failed tries draw none";
}

// Those with and those without a number wait for one key.
TEST_F(FencingTest, WaitersMayWantItOrNot) {
  std::vector<std::thread> crowd;
  std::vector<std::int64_t> numbers;
  for (int t = 0; t < 8; ++t) {
    crowd.emplace_back([&, t] {
      const auto order = t % 4 < 2 ? Order::any : Order::fifo;
      for (int i = 0; i < 40; ++i) {
        auto lease = client.acquire("k", {.at_most = 60s, .order = order},
                                    {.ttl = 30s, .fencing = t % 2 == 0});
        if (!lease) continue;
        if (t % 2 == 0) numbers.push_back(lease->fencing_token().value());
      }
    });
  }
  for (auto& thread : crowd) thread.join();
  EXPECT_EQ(numbers.size(), 160U);
  expect_strictly_rising(numbers);
}

// B63 and its kind: keys of all shapes, in a slot of their own.
TEST_F(FencingTest, CountersLieBesideKeysOfAnyShape) {
  using namespace std::string_literals;
  for (const auto& key : {"a{b}c"s, "{}x"s, "{x"s, "a}b{c"s, "\0\r\n"s, std::string(65536, 'x')}) {
    const auto lease = client.try_acquire(key, fenced);
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease->fencing_token(), FencingToken{1});
    EXPECT_EQ(server.get(core::beside(key, "redlease:fence")), "1");
  }
}

// ---- what is written under it ------------------------------------------------------------------

TEST_F(FencingTest, AWriterWhoComesLateIsRefused) {
  EXPECT_TRUE(client.fenced_write("data", "a", FencingToken{3}));
  EXPECT_TRUE(client.fenced_write("data", "b", FencingToken{3}));
  EXPECT_FALSE(client.fenced_write("data", "c", FencingToken{2}));
  EXPECT_EQ(server.get("data"), "b");
  EXPECT_TRUE(client.fenced_write("data", "d", FencingToken{10})) << "10 is above 3, as a number";
  EXPECT_FALSE(client.fenced_write("data", "e", FencingToken{9}));
  EXPECT_EQ(server.get("data"), "d");
  EXPECT_EQ(server.get("{data}:redlease:seen"), "10");
}

TEST_F(FencingTest, FencedWritesAreExactAndBinarySafe) {
  using namespace std::string_literals;
  EXPECT_TRUE(client.fenced_write("data", "\0\r\n$5"s, FencingToken{9007199254740993}));
  EXPECT_FALSE(client.fenced_write("data", "late", FencingToken{9007199254740992}));
  EXPECT_EQ(server.get("data"), "\0\r\n$5"s);
  EXPECT_THROW((void)client.fenced_write("", "v", FencingToken{1}), std::invalid_argument);
  EXPECT_THROW((void)client.fenced_write("d", "v", FencingToken{-1}), std::invalid_argument);
  server.admin("SET", "{data}:redlease:seen", "nonsense");
  EXPECT_THROW((void)client.fenced_write("data", "v", FencingToken{1}), Error);
  EXPECT_EQ(server.get("data"), "\0\r\n$5"s);
}

}  // namespace
}  // namespace redlease::test
