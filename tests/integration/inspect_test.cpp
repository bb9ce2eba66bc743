#include "integration/fixture.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

using Inspect = IntegrationTest;

TEST_F(Inspect, ShowsWhoHoldsAKey) {
  EXPECT_FALSE(client.inspect("k").has_value());
  const auto lease = client.try_acquire("k", {.ttl = 60s});
  const auto seen = client.inspect("k");
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->fingerprint(), lease->token().fingerprint());
  EXPECT_GT(seen->ttl(), 50s);
  EXPECT_EQ(seen->type(), "string");
  EXPECT_TRUE(seen->is_lease());
}

TEST_F(Inspect, TellsWhatIsNoLease) {
  server.admin("SET", "forever", "x");
  EXPECT_FALSE(client.inspect("forever")->is_lease());
  server.admin("SET", "long", std::string(100'000, 'x'), "PX", 60'000);
  EXPECT_FALSE(client.inspect("long")->is_lease());
  server.admin("HSET", "hash", "a", "b");
  EXPECT_EQ(client.inspect("hash")->type(), "hash");
  EXPECT_FALSE(client.inspect("hash")->is_lease());
}

TEST_F(Inspect, BreakingDeletesWhatWasSeen) {
  auto lease = client.try_acquire("k", {.ttl = 60s});
  EXPECT_TRUE(client.break_lease("k", *client.inspect("k")));
  EXPECT_FALSE(server.exists("k"));
  EXPECT_THROW(lease->release(), LeaseLost);
}

// B42: breaking refuses when another has it by now.
TEST_F(Inspect, BreakingLeavesTheNextHolderAlone) {
  auto first = client.try_acquire("k", {.ttl = 60s});
  const auto seen = client.inspect("k");
  first->release();
  const auto second = client.try_acquire("k", {.ttl = 60s});
  EXPECT_FALSE(client.break_lease("k", *seen));
  EXPECT_EQ(server.get("k"), second->token().reveal());
}

TEST_F(Inspect, BreakingWhatIsNoLeaseIsRefused) {
  server.admin("SET", "k", "x");
  EXPECT_THROW(client.break_lease("k", *client.inspect("k")), std::invalid_argument);
  EXPECT_EQ(server.get("k"), "x");
}

}  // namespace
}  // namespace redlease::test
