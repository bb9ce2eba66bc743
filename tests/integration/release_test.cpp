#include "integration/fixture.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

class Release : public IntegrationTest {
 protected:
  LossReason loss_on_release(Lease& lease) {
    try {
      lease.release();
    } catch (const LeaseLost& lost) {
      return lost.loss().reason;
    }
    throw std::logic_error("the release succeeded");
  }
};

TEST_F(Release, DeletesTheKeyAndEndsTheLease) {
  auto lease = client.try_acquire("k");
  lease->release();
  EXPECT_FALSE(server.exists("k"));
  EXPECT_FALSE(lease->held());
  EXPECT_EQ(lease->remaining(), 0s);
  EXPECT_FALSE(lease->loss().has_value());
  EXPECT_EQ(scripts_run(), 2U) << "EVALSHA, and EVAL since the script was new to the server";
  EXPECT_THROW(lease->release(), std::invalid_argument);
  EXPECT_THROW(lease->renew(), std::invalid_argument);
  EXPECT_THROW(lease->ensure_held(), std::invalid_argument);
  EXPECT_EQ(scripts_run(), 2U);
}

// B31
TEST_F(Release, OfATakenKeyIsALossAndTouchesNothing) {
  auto lease = client.try_acquire("k", {.ttl = 10s});
  server.admin("SET", "k", "somebody", "PX", 60'000);
  EXPECT_EQ(loss_on_release(*lease), LossReason::taken);
  EXPECT_EQ(server.get("k"), "somebody");
  EXPECT_GT(server.pttl("k"), 50s);
  EXPECT_EQ(lease->loss()->reason, LossReason::taken);
  EXPECT_EQ(lease->loss()->key, "k");
  EXPECT_EQ(lease->loss()->fingerprint, lease->token().fingerprint());
  const auto before = scripts_run();
  EXPECT_THROW(lease->release(), LeaseLost);
  EXPECT_THROW(lease->renew(), LeaseLost);
  EXPECT_THROW(lease->ensure_held(), LeaseLost);
  EXPECT_EQ(scripts_run(), before) << "a lost lease sends nothing more";
}

TEST_F(Release, OfAMissingKeyIsALoss) {
  auto lease = client.try_acquire("k");
  server.admin("DEL", "k");
  EXPECT_EQ(loss_on_release(*lease), LossReason::missing);
}

// B39
TEST_F(Release, OfAKeyThatHoldsSomethingElseIsALoss) {
  auto lease = client.try_acquire("k");
  server.admin("DEL", "k");
  server.admin("HSET", "k", "field", "value");
  EXPECT_EQ(loss_on_release(*lease), LossReason::taken);
  EXPECT_EQ(server.admin("HGET", "k", "field").text, "value");
}

// B36: what has ended on our own clock needs no server to be lost.
TEST_F(Release, OfAnExpiredLeaseSendsNothing) {
  auto lease = client.try_acquire("k", {.ttl = 50ms});
  ASSERT_TRUE(eventually(10s, [&] { return !server.exists("k"); }));
  EXPECT_FALSE(lease->held());
  EXPECT_EQ(loss_on_release(*lease), LossReason::expired);
  EXPECT_EQ(scripts_run(), 0U);
}

TEST_F(Release, TheEndOfTheScopeFreesTheKey) {
  { const auto lease = client.try_acquire("k", {.ttl = 60s}); }
  EXPECT_TRUE(eventually(10s, [&] { return !server.exists("k"); }));
}

// A thread that leaves the scope and comes back must not overtake its own release, whichever
// connection it takes.
TEST_F(Release, TheEndOfTheScopeComesBeforeTheNextAcquisition) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([this, t] {
      for (int n = 0; n < 1000; ++n) {
        const auto lease = client.try_acquire(std::to_string(t) + ":" + std::to_string(n % 3));
        ASSERT_TRUE(lease.has_value()) << "round " << n;
      }
    });
  }
}

TEST_F(Release, TheEndOfTheScopeIsReadByTheNextOne) {
  { const auto lease = client.try_acquire("k", {.ttl = 60s}); }
  client.ping();
  EXPECT_EQ(events->first(Event::Kind::released).key, "k");
}

// B57: nobody waits for the answer of a scope's end, and still it survives SCRIPT FLUSH.
TEST_F(Release, TheEndOfTheScopeSurvivesAFlushedScriptCache) {
  for (int round = 0; round < 20; ++round) {
    {
      const auto lease = client.try_acquire("k", {.ttl = 60s});
      server.admin("SCRIPT", "FLUSH");
    }
    client.ping();
    ASSERT_TRUE(eventually(10s, [&] { return !server.exists("k"); })) << "round " << round;
  }
}

TEST_F(Release, ALossAtTheEndOfTheScopeReachesTheObserver) {
  {
    const auto lease = client.try_acquire("k", {.ttl = 60s, .label = "orders"});
    server.admin("SET", "k", "somebody", "PX", 60'000);
  }
  client.ping();
  const auto event = events->first(Event::Kind::lost);
  EXPECT_EQ(event.reason, LossReason::taken);
  EXPECT_EQ(event.label, "orders");
  EXPECT_EQ(event.server, "127.0.0.1:" + std::to_string(server.port()));
  EXPECT_EQ(server.get("k"), "somebody");
}

// The client's end waits for what was posted.
TEST_F(Release, TheClientsEndIsTheLastChanceOfAScopesEnd) {
  std::optional<Lease> lease;
  {
    Client short_lived{server.url()};
    lease = short_lived.try_acquire("k", {.ttl = 60s});
  }
  EXPECT_TRUE(lease->held()) << "leases may outlive their client";
  lease.reset();
  EXPECT_FALSE(server.exists("k"));
}

// B84
TEST_F(Release, OfTwoThreadsExactlyOneReleases) {
  for (int round = 0; round < 200; ++round) {
    auto lease = client.try_acquire("k");
    ASSERT_TRUE(lease.has_value());
    std::atomic<int> released{0};
    std::atomic<int> refused{0};
    const auto release = [&] {
      std::error_code error;
      lease->release(error);
      (error == std::errc::invalid_argument ? refused : released) += 1;
      EXPECT_TRUE(!error || error == std::errc::invalid_argument) << error.message();
    };
    {
      std::jthread one{release};
      std::jthread two{release};
    }
    ASSERT_EQ(released, 1);
    ASSERT_EQ(refused, 1);
    ASSERT_FALSE(server.exists("k"));
  }
}

// B81
TEST_F(Release, MovingKeepsOneLeaseAndReleasesTheTarget) {
  auto a = client.try_acquire("a");
  auto b = client.try_acquire("b");
  const auto token = b->token();
  *a = std::move(*b);
  client.ping();
  EXPECT_TRUE(eventually(10s, [&] { return !server.exists("a"); }));
  EXPECT_EQ(a->key(), "b");
  EXPECT_EQ(server.get("b"), token.reveal());
  EXPECT_FALSE(b->held());
  EXPECT_EQ(b->key(), "");
  EXPECT_THROW(b->release(), std::invalid_argument);
  EXPECT_THROW((void)b->token(), std::invalid_argument);
  Lease& self = *a;
  *a = std::move(self);
  EXPECT_TRUE(a->held());

  std::vector<Lease> leases;
  for (int i = 0; i < 20; ++i) leases.push_back(*client.try_acquire("v" + std::to_string(i)));
  EXPECT_EQ(server.dbsize(), 21);
  swap(leases.front(), leases.back());
  EXPECT_EQ(leases.front().key(), "v19");
  EXPECT_TRUE(leases.front().held());
  leases.clear();
  a->release();
  client.ping();
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

}  // namespace
}  // namespace redlease::test
