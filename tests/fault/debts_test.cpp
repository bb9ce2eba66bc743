// What becomes of the releases at the end of a scope that could not be done at once.
#include "fault/world.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

class DebtTest : public FaultTest {
 protected:
  long long scripts_run() { return server.command_calls("eval") + server.command_calls("evalsha"); }

  FaultProxy proxy{server.port()};
};

// A server that refuses for a while is not asked again with every batch.
TEST_F(DebtTest, RefusedReleasesAreTriedLessAndLess) {
  constexpr int leases = 20;
  Client client{server.url(), patient()};
  std::vector<Lease> held;
  held.reserve(leases);
  for (int n = 0; n < leases; ++n) held.push_back(must_acquire(client, std::to_string(n)));
  server.config_set("min-replicas-to-write", "1");
  held.clear();
  const Stopwatch watch;
  while (watch.elapsed() < 300ms) client.ping();
  // At once, after 10, 20, 40, 80 and 160 ms; twice if the first one was an EVALSHA.
  EXPECT_LE(scripts_run(), leases * 8);
  server.config_set("min-replicas-to-write", "0");
  EXPECT_TRUE(eventually(10s, [&] {
    client.ping();
    return server.dbsize() == 0;
  }));
}

// Nor does the client's end ask again and again.
TEST_F(DebtTest, TheClientsEndTriesOnceOrTwice) {
  long long before = 0;
  {
    Client client{server.url(), patient()};
    const auto lease = must_acquire(client, "k", {.ttl = 20s});
    server.config_set("min-replicas-to-write", "1");
    before = scripts_run();
  }
  EXPECT_LE(scripts_run() - before, 4);
  server.config_set("min-replicas-to-write", "0");
  server.admin("DEL", "k");
}

// Who leaves a scope and comes back finds it given back, also when the connection broke between.
TEST_F(DebtTest, AnOwedReleaseGoesAheadOfTheNextAcquisition) {
  Client client{proxy.url(), patient()};
  for (int round = 0; round < 10; ++round) {
    { const auto lease = must_acquire(client, "k", {.ttl = 20s}); }
    client.ping();
    {
      const auto lease = must_acquire(client, "k", {.ttl = 20s});
      proxy.drop_request_matching("EVAL", true);
    }
    EXPECT_TRUE(eventually(10s, [&] { return proxy.open_connections() == 0; }));
    EXPECT_NO_THROW(must_acquire(client, "k", {.ttl = 20s})) << "round " << round;
  }
}

// Waiting for nothing means not to wait: the 17th scope's end reads what is there and goes on.
TEST_F(DebtTest, ManyScopeExitsAtAStoppedServerWaitForNothing) {
  Client client{server.url(), hasty()};
  std::vector<Lease> held;
  held.reserve(40);
  for (int n = 0; n < 40; ++n) held.push_back(must_acquire(client, std::to_string(n)));
  server.pause();
  const Stopwatch watch;
  held.clear();
  EXPECT_LT(watch.elapsed(), short_time + slack);
  server.resume();
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

}  // namespace
}  // namespace redlease::test
