#include <redlease/store/lua_scripts.hpp>

#include "integration/fixture.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

using Renew = IntegrationTest;

// B82: in place, and seen from every thread.
TEST_F(Renew, ExtendsTheLeaseInPlace) {
  auto lease = client.try_acquire("k", {.ttl = 2s});
  const auto token = lease->token();
  for (int i = 0; i < 5; ++i) {
    lease->renew();
    EXPECT_GT(lease->remaining(), 1s);
    EXPECT_LE(lease->remaining(), 1980ms);
    std::jthread{[&] { EXPECT_TRUE(lease->held()); }}.join();
  }
  lease->renew(60s);
  EXPECT_GT(lease->remaining(), 50s);
  EXPECT_GT(server.pttl("k"), 50s);
  EXPECT_EQ(server.get("k"), token.reveal());
  EXPECT_EQ(events->first(Event::Kind::renewed).key, "k");
}

TEST_F(Renew, CanShortenALease) {
  auto lease = client.try_acquire("k", {.ttl = 60s});
  lease->renew(5s);
  EXPECT_LE(lease->remaining(), 4950ms);
  EXPECT_LE(server.pttl("k"), 5s);
}

// B22: never revives, never creates.
TEST_F(Renew, OfAnExpiredLeaseIsALoss) {
  auto lease = client.try_acquire("k", {.ttl = 50ms});
  ASSERT_TRUE(eventually(10s, [&] { return !server.exists("k"); }));
  EXPECT_THROW(lease->renew(), LeaseLost);
  EXPECT_FALSE(server.exists("k"));
  server.admin("SET", "k", "somebody", "PX", 60'000);
  EXPECT_THROW(lease->renew(), LeaseLost);
  EXPECT_EQ(server.get("k"), "somebody");
}

TEST_F(Renew, OfAMissingOrTakenKeyIsALoss) {
  auto missing = client.try_acquire("m");
  server.admin("DEL", "m");
  std::error_code error;
  missing->renew(error);
  EXPECT_EQ(error, errc::lost);
  EXPECT_EQ(missing->loss()->reason, LossReason::missing);
  EXPECT_FALSE(server.exists("m"));

  auto taken = client.try_acquire("t");
  server.admin("SET", "t", "somebody", "PX", 60'000);
  taken->renew(error);
  EXPECT_EQ(error, errc::lost);
  EXPECT_EQ(taken->loss()->reason, LossReason::taken);
  EXPECT_GT(server.pttl("t"), 50s);

  // B27: putting the old token back does not revive the handle.
  server.admin("SET", "t", std::string{taken->token().reveal()}, "PX", 60'000);
  EXPECT_FALSE(taken->held());
  EXPECT_THROW(taken->renew(), LeaseLost);
}

// B86
TEST_F(Renew, ATtlOfZeroOrLessIsRefusedBeforeItIsSent) {
  auto lease = client.try_acquire("k", {.ttl = 60s});
  EXPECT_THROW(lease->renew(0s), std::invalid_argument);
  EXPECT_THROW(lease->renew(-5ms), std::invalid_argument);
  EXPECT_THROW(lease->renew(1us), std::invalid_argument);
  EXPECT_EQ(scripts_run(), 0U);
  EXPECT_GT(server.pttl("k"), 50s);
  EXPECT_TRUE(lease->held());
}

// B86: the script refuses it, too.
TEST_F(Renew, TheScriptRefusesATtlOfZeroOrLess) {
  const auto lease = client.try_acquire("k", {.ttl = 60s});
  const std::string token{lease->token().reveal()};
  for (const char* ttl : {"0", "-5", "", "x", "nan"}) {
    const auto answer =
        server.admin("EVAL", std::string{lua::renew.text}, "1", "k", token, std::string{ttl});
    EXPECT_EQ(answer.type, Answer::Type::error) << ttl;
    EXPECT_GT(server.pttl("k"), 50s) << ttl;
  }
}

// B57
TEST_F(Renew, SurvivesAFlushedScriptCache) {
  auto lease = client.try_acquire("k", {.ttl = 60s});
  lease->renew();
  server.admin("SCRIPT", "FLUSH");
  lease->renew();
  server.admin("SCRIPT", "FLUSH");
  lease->release();
  EXPECT_FALSE(server.exists("k"));
  monitor.sync();
  EXPECT_EQ(monitor.count([](const auto& line) { return line.args[0] == "EVAL"; }), 3U)
      << "one extra round trip each, and no other";
}

TEST_F(Renew, EnsureHeldAsksForEnoughTime) {
  const auto lease = client.try_acquire("k", {.ttl = 2s});
  EXPECT_NO_THROW(lease->ensure_held());
  EXPECT_NO_THROW(lease->ensure_held(500ms));
  EXPECT_THROW(lease->ensure_held(3s), LeaseLost);
  EXPECT_TRUE(lease->held()) << "too little is not lost";
  EXPECT_FALSE(lease->loss().has_value());
  EXPECT_THROW(lease->ensure_held(-1s), std::invalid_argument);
}

}  // namespace
}  // namespace redlease::test
