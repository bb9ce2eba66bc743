#include "integration/fixture.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

class Waiting : public IntegrationTest {
 protected:
  Client other{server.url()};
};

TEST_F(Waiting, EndsWithTheLeaseWhenTheHolderReleases) {
  auto held = other.try_acquire("k", {.ttl = 60s});
  std::jthread holder{[&] {
    eventually(10s, [&] { return server.command_calls("set") >= 3; });
    held->release();
  }};
  const auto lease = client.acquire("k", {.at_most = 20s}, {.ttl = 5s});
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(server.get("k"), lease->token().reveal());
  EXPECT_GT(lease->remaining(), 4s) << "B23: waiting is not deducted";
  EXPECT_GT(events->first(Event::Kind::acquired).waited, 0s);
}

TEST_F(Waiting, EndsEmptyAtItsTime) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  const Stopwatch watch;
  EXPECT_FALSE(client.acquire("k", {.at_most = 300ms}).has_value());
  EXPECT_GE(watch.elapsed(), 295ms);
  EXPECT_LT(watch.elapsed(), 2s);
  const auto event = events->first(Event::Kind::contended);
  EXPECT_THAT(event.message, testing::HasSubstr(held->token().fingerprint()));
}

// B49
TEST_F(Waiting, ZeroIsOneAttempt) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  EXPECT_FALSE(client.acquire("k", {.at_most = 0s}).has_value());
  EXPECT_EQ(server.command_calls("set"), 2);
  EXPECT_TRUE(client.acquire("free", {.at_most = 0s}).has_value());
}

TEST_F(Waiting, EndsAfterItsAttempts) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  const Stopwatch watch;
  EXPECT_FALSE(client.acquire("k", {.at_most = 60s, .attempts = 3}).has_value());
  EXPECT_LT(watch.elapsed(), 30s);
  EXPECT_EQ(server.command_calls("set"), 4);
}

TEST_F(Waiting, EndsWhenAskedToStop) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  std::stop_source source;
  std::jthread stopper{[&] {
    eventually(10s, [&] { return server.command_calls("set") >= 3; });
    source.request_stop();
  }};
  const Stopwatch watch;
  EXPECT_FALSE(
      client
          .acquire("k",
                   {.at_most = 60s, .backoff = {.min = 5ms, .max = 1h}, .stop = source.get_token()})
          .has_value());
  EXPECT_LT(watch.elapsed(), 30s);
  EXPECT_FALSE(client.acquire("free", {.at_most = 1s, .stop = source.get_token()}).has_value());
  EXPECT_FALSE(server.exists("free"));
}

TEST_F(Waiting, AsksWhetherItIsStillNeeded) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  int asked = 0;
  EXPECT_FALSE(client.acquire("k", {.at_most = 60s, .still_needed = [&] { return ++asked < 3; }}));
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(server.command_calls("set"), 4) << "the holder's, and one before each 'yes'";
}

// A long back-off is cut by what the holder's key has left to live.
TEST_F(Waiting, TheHoldersExpiryEndsASleep) {
  const auto held = other.try_acquire("k", {.ttl = 300ms});
  const Stopwatch watch;
  const auto lease = client.acquire("k", {.at_most = 60s, .backoff = {.min = 30s, .max = 30s}});
  EXPECT_TRUE(lease.has_value());
  EXPECT_LT(watch.elapsed(), 15s);
}

// B50: a definite "held by another" needs no clean-up, and polls are spaced.
TEST_F(Waiting, PollsAreFewAndNeedNoCleanUp) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  {
    std::vector<std::jthread> waiters;
    for (int i = 0; i < 20; ++i) {
      waiters.emplace_back([&] {
        EXPECT_FALSE(client.acquire("k", {.at_most = 1s, .backoff = {.min = 50ms, .max = 50ms}}));
      });
    }
  }
  EXPECT_LE(server.command_calls("set"), 20 * (1000 / 50 + 2) + 1);
  EXPECT_EQ(server.command_calls("evalsha"), 20) << "one look each for the observer at the end";
}

// B39
TEST_F(Waiting, TellsWhenTheKeyHoldsNoLease) {
  server.admin("HSET", "k", "a", "b");
  // On a busy machine there may be no time left for the look at the end of a wait.
  EXPECT_TRUE(eventually(20s, [&] {
    EXPECT_FALSE(client.acquire("k", {.at_most = 100ms}).has_value());
    const auto contended = events->all(Event::Kind::contended);
    return !contended.empty() && contended.back().message.find("hash") != std::string::npos;
  }));
  EXPECT_EQ(server.admin("HGET", "k", "a").text, "b");
}

// B43
TEST_F(Waiting, WithLeaseCallsOnlyUnderALease) {
  auto held = other.try_acquire("k", {.ttl = 60s});
  bool called = false;
  EXPECT_FALSE(client.with_lease("k", {.at_most = 50ms}, {}, [&](Lease&) { called = true; }));
  EXPECT_FALSE(called);
  held->release();

  const auto result = client.with_lease("k", {.at_most = 1s}, {}, [&](Lease& lease) {
    EXPECT_TRUE(lease.held());
    EXPECT_TRUE(server.exists("k"));
    return 42;
  });
  EXPECT_EQ(result, 42);
  EXPECT_FALSE(server.exists("k"));
  EXPECT_TRUE(client.with_lease("k", {.at_most = 1s}, {}, [](Lease& lease) { lease.release(); }));
}

TEST_F(Waiting, WithLeaseThrowsWhenTheLeaseWasLost) {
  EXPECT_THROW(
      (void)client.with_lease("k", {.at_most = 1s}, {}, [&](Lease&) { server.admin("DEL", "k"); }),
      LeaseLost);
  EXPECT_THROW((void)client.with_lease(
                   "k", {.at_most = 1s}, {.ttl = 20ms},
                   [&](Lease& lease) { return eventually(10s, [&] { return !lease.held(); }); }),
               LeaseLost);
}

// B33: what a caller throws, or a stop request, does not keep the key.
TEST_F(Waiting, WithLeaseReleasesWhenTheWorkThrows) {
  std::stop_source source;
  EXPECT_THROW((void)client.with_lease("k", {.at_most = 1s, .stop = source.get_token()}, {},
                                       [&](Lease&) {
                                         source.request_stop();
                                         throw std::runtime_error("work failed");
                                       }),
               std::runtime_error);
  EXPECT_TRUE(eventually(10s, [&] { return !server.exists("k"); }));
}

}  // namespace
}  // namespace redlease::test
