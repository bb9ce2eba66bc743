// A holder whose lease is over, and who writes all the same: with real leases and their numbers, on
// each database and in Redis.
#include <atomic>
#include <chrono>
#include <optional>
#include <redlease/redlease.hpp>
#include <span>
#include <utility>

#include "sql/fixture.hpp"
#include "support/redis_server.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

constexpr auto soon_over = 50ms;

// ---- what stands in docs/fencing.md ------------------------------------------------------------

Booked book_tea(Client& redis, Connection& database, const std::string& request,
                std::int64_t quantity) {
  auto lease = redis.acquire("stock:tea", {.at_most = 10s}, {.ttl = 8s, .fencing = true});
  if (!lease) return Booked::busy;
  return book(database, request, quantity, lease->fencing_token().value());
}

bool admit_all(Connection& database, const Lease& lease) {
  for (const std::string& key : lease.keys()) {
    if (admit(database, key, lease.fencing_token(key).value()) == 0) return false;  // roll back
  }
  return true;
}

enum class Published { now, refused };

Published publish(Client& redis, const Lease& lease, const std::string& text) {
  if (!redis.fenced_write("catalogue:current", text, lease.fencing_token())) {
    return Published::refused;  // a newer holder has written; nothing has changed
  }
  return Published::now;
}

// ---- the tests ---------------------------------------------------------------------------------

class LateHolder : public ::testing::TestWithParam<Engine> {
 protected:
  // Takes a lease that is over when this returns, and another one of the next holder.
  std::pair<Lease, Lease> one_after_the_other(const std::vector<std::string>& keys) {
    auto late = first_.acquire_all(keys, {.at_most = 30s}, {.ttl = soon_over, .fencing = true});
    auto next = second_.acquire_all(keys, {.at_most = 30s}, {.fencing = true});
    return {std::move(late.value()), std::move(next.value())};
  }
  std::string stock() {
    const auto row = world_.own().run(documented("why"), {{"sku", "tea"}}).rows.at(0);
    return row[0] + " left, fence " + row[1];
  }

  RedisServer server_;
  Client first_{server_.unix_url()};
  Client second_{server_.unix_url()};
  World world_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Databases, LateHolder,
                         ::testing::Values(Engine::sqlite, Engine::postgresql),
                         ::testing::PrintToStringParamName());

TEST_P(LateHolder, IsRefusedByTheDatabase) {
  auto [late, next] = one_after_the_other({"stock:tea"});
  EXPECT_FALSE(late.held());
  EXPECT_LT(late.fencing_token(), next.fencing_token());

  EXPECT_EQ(book(world_.own(), "r1", 1, next.fencing_token().value()), Booked::now);
  EXPECT_EQ(book(world_.own(), "r2", 1, late.fencing_token().value()), Booked::refused);
  EXPECT_EQ(book(world_.own(), "r3", 1, next.fencing_token().value()), Booked::now);
  EXPECT_EQ(stock(), "998 left, fence 2");
}

// However a lease came, its number is the highest so far: nobody who holds one is refused.
TEST_P(LateHolder, NobodyElseIsRefused) {
  constexpr int rounds = 25;
  write_at_once(world_, 4, [&](Connection& connection, int writer) {
    Client& redis = writer % 2 == 0 ? first_ : second_;
    for (int round = 0; round < rounds; ++round) {
      const auto request = std::to_string(writer) + "/" + std::to_string(round);
      EXPECT_EQ(book_tea(redis, connection, request, 1), Booked::now);
    }
  });
  EXPECT_EQ(stock(), "900 left, fence 100");
}

TEST_P(LateHolder, OfSeveralKeysIsRefusedByEach) {
  // So that the numbers of the keys differ.
  EXPECT_TRUE(first_.try_acquire("south", {.fencing = true}).has_value());
  auto [late, next] = one_after_the_other({"south", "north", "south"});
  EXPECT_EQ(next.fencing_token("north"), FencingToken{2});
  EXPECT_EQ(next.fencing_token("south"), FencingToken{3});

  EXPECT_TRUE(admit_all(world_.own(), next));
  EXPECT_FALSE(admit_all(world_.own(), late));
  EXPECT_EQ(admit(world_.own(), "north", late.fencing_token("north").value()), 0);
  EXPECT_EQ(admit(world_.own(), "south", late.fencing_token("south").value()), 0);
}

TEST(LateHolderInRedis, IsRefused) {
  RedisServer server;
  Client redis{server.unix_url()};
  const auto late = redis.try_acquire("catalogue", {.ttl = soon_over, .fencing = true});
  ASSERT_TRUE(late);
  EXPECT_EQ(publish(redis, *late, "first"), Published::now);
  const auto next = redis.acquire("catalogue", {.at_most = 30s}, {.fencing = true});
  ASSERT_TRUE(next);
  EXPECT_EQ(publish(redis, *late, "late, but nobody has written yet"), Published::now);
  EXPECT_EQ(publish(redis, *next, "second"), Published::now);
  EXPECT_EQ(publish(redis, *late, "late"), Published::refused);
  EXPECT_EQ(server.get("catalogue:current"), "second");
  EXPECT_EQ(publish(redis, *next, "third"), Published::now);
  EXPECT_EQ(server.get("catalogue:current"), "third");
}

}  // namespace
}  // namespace redlease::test
