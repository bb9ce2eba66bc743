// Whose key it is: expiry, loss, release, and keys that hold something else.
#include <atomic>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

class OwnershipTest : public FaultTest {
 protected:
  // Held by another: a key that a foreign client took with a plain SET NX PX.
  void take_as_stranger(std::string_view key, std::chrono::milliseconds ttl = 5s) {
    ASSERT_TRUE(server.admin("SET", key, "stranger", "NX", "PX", ttl.count()).is_ok());
  }
  void expect_untouched(std::string_view key) {
    EXPECT_EQ(server.get(key), "stranger");
    EXPECT_GT(server.pttl(key), 0ms);
    EXPECT_LE(server.pttl(key), 5s);
  }
  void steal(std::string_view key) {
    server.admin("DEL", key);
    take_as_stranger(key);
  }

  Client client{server.url(), patient()};
};

// B22: renewing an expired lease neither revives nor re-creates the key.
TEST_F(OwnershipTest, B22RenewAfterExpiryIsALoss) {
  auto lease = must_acquire(client, "k", {.ttl = 200ms});
  ASSERT_TRUE(becomes_absent("k"));
  EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::expired));
  EXPECT_FALSE(server.exists("k"));

  take_as_stranger("k");
  EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::expired));
  EXPECT_FALSE(lease.held());
  expect_untouched("k");
}

// B22, while our own clock still says held: the server has lost the key, or it is another's.
TEST_F(OwnershipTest, B22RenewOfALostKeyIsALoss) {
  auto missing = must_acquire(client, "missing");
  server.admin("DEL", "missing");
  EXPECT_THAT(thrown_by_renew(missing), lost(LossReason::missing));
  EXPECT_FALSE(server.exists("missing"));

  auto taken = must_acquire(client, "taken");
  steal("taken");
  EXPECT_THAT(thrown_by_renew(taken), lost(LossReason::taken));
  expect_untouched("taken");
}

// B22, B27: lost is final, even if the very token comes back.
TEST_F(OwnershipTest, B22ALostLeaseDoesNotRevive) {
  auto lease = must_acquire(client, "k");
  const std::string token{lease.token().reveal()};
  server.admin("DEL", "k");
  EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::missing));
  server.admin("SET", "k", token, "PX", 5000);
  const auto scripts = scripts_run();
  EXPECT_FALSE(lease.held());
  EXPECT_EQ(lease.remaining(), 0s);
  EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::missing));
  EXPECT_THAT(thrown_by_release(lease), lost(LossReason::missing));
  EXPECT_THAT(thrown_by([&] { lease.ensure_held(); }), lost(LossReason::missing));
  EXPECT_EQ(scripts_run(), scripts);
  EXPECT_EQ(server.get("k"), token);
}

// B23 (a): the time spent waiting is not deducted from the ttl.
TEST_F(OwnershipTest, B23ValidityStartsBehindTheWait) {
  take_as_stranger("k", 700ms);
  auto lease = client.acquire("k", {.at_most = 20s}, {.ttl = 2s});
  ASSERT_TRUE(lease);
  EXPECT_GT(lease->remaining(), 1400ms);
  EXPECT_LE(lease->remaining(), 1980ms);
}

// B23 (b): the time that the reply took is.
TEST_F(OwnershipTest, B23ALateReplyShortensValidity) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), patient()};
  far.ping();
  proxy.delay_replies(700ms);
  const Stopwatch watch;
  auto lease = must_acquire(far, "k", {.ttl = 2s});
  EXPECT_GE(watch.elapsed(), 700ms);
  EXPECT_LE(lease.remaining(), 1280ms);
}

// B23 (c): a reply that comes after the end of validity hands out nothing, and the key goes.
TEST_F(OwnershipTest, B23AReplyBehindTheTtlIsNoLease) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), patient()};
  far.ping();
  proxy.delay_replies(600ms);
  EXPECT_THAT(thrown_by_acquire(far, "k", {.ttl = 500ms}), failed(errc::unavailable));
  EXPECT_TRUE(becomes_absent("k"));
}

// B23 (c) in a wait: what is over on arrival is given back, and the wait goes on.
TEST_F(OwnershipTest, B23AWaitOutlivesLateReplies) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), patient()};
  far.ping();
  proxy.delay_replies(600ms);
  std::jthread recovery{[&] {
    EXPECT_TRUE(eventually(10s, [&] { return proxy.requests_seen("\r\nSET\r\n") >= 2; }));
    proxy.delay_replies(0ms);
  }};
  auto lease = far.acquire("k", {.at_most = 20s}, {.ttl = 500ms});
  ASSERT_TRUE(lease);
  EXPECT_EQ(server.get("k"), lease->token().reveal());
}

// B23 (d): the same rules for a renewal.
TEST_F(OwnershipTest, B23ALateRenewalCountsFromItsRequest) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), patient()};
  auto lease = must_acquire(far, "k", {.ttl = 2s});
  proxy.delay_replies(700ms);
  lease.renew();
  EXPECT_LE(lease.remaining(), 1280ms);
  EXPECT_TRUE(lease.held());

  proxy.delay_replies(2500ms);
  const Stopwatch watch;
  EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::expired));
  EXPECT_LT(watch.elapsed(), 1980ms + slack);
  EXPECT_FALSE(lease.held());
}

// B31: a late holder's release leaves its successor's key alone.
TEST_F(OwnershipTest, B31ALateReleaseLeavesTheSuccessorAlone) {
  auto late = must_acquire(client, "k", {.ttl = 200ms});
  ASSERT_TRUE(becomes_absent("k"));
  auto successor = must_acquire(client, "k", {.ttl = 5s});
  EXPECT_THAT(thrown_by_release(late), lost(LossReason::expired));
  EXPECT_EQ(server.get("k"), successor.token().reveal());
  EXPECT_GT(server.pttl("k"), 1s);
  EXPECT_TRUE(successor.held());
  successor.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B31: the same when only the server can tell, with release(), scope exit and renewal.
TEST_F(OwnershipTest, B31OnlyTheServerKnowsOfTheSuccessor) {
  auto released = must_acquire(client, "released");
  steal("released");
  EXPECT_THAT(thrown_by_release(released), lost(LossReason::taken));
  expect_untouched("released");

  {
    auto left = must_acquire(client, "left");
    steal("left");
  }
  client.ping();
  expect_untouched("left");
}

// B32: a refused release changes nothing; it can be tried again.
TEST_F(OwnershipTest, B32ARefusedReleaseKeepsTheLease) {
  auto lease = must_acquire(client, "k");
  server.config_set("min-replicas-to-write", "1");
  EXPECT_THAT(thrown_by_release(lease), failed(errc::rejected, "NOREPLICAS"));
  EXPECT_TRUE(lease.held());
  EXPECT_FALSE(lease.loss());
  EXPECT_EQ(server.get("k"), lease.token().reveal());

  std::error_code error;
  lease.release(error);
  EXPECT_EQ(error, errc::rejected);
  server.config_set("min-replicas-to-write", "0");
  lease.renew();
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B32: and after a loss the same client can have the key again.
TEST_F(OwnershipTest, B32ALossLeavesTheClientClean) {
  auto lease = must_acquire(client, "k");
  server.admin("DEL", "k");
  EXPECT_THAT(thrown_by_release(lease), lost(LossReason::missing));
  must_acquire(client, "k").release();
}

// B34: no two acquisitions have the same token, in 200 children that inherited a used client.
TEST_F(OwnershipTest, B34TokensAreUniqueAcrossForks) {
  must_acquire(client, "before").release();
  const int children = sanitized ? 50 : 200;
  for (int child = 0; child < children; ++child) {
    const int status = fork_and_wait([&] {
      for (int n = 0; n < 10; ++n) {
        const auto key = std::to_string(child) + ":" + std::to_string(n);
        // Left behind, as the child ends without destructors: the parent looks at the value.
        static_cast<void>(new Lease{must_acquire(client, key, {.ttl = 1min})});
      }
    });
    ASSERT_EQ(status, 0);
  }
  std::set<std::string> tokens;
  for (int n = 0; n < children * 10; ++n) {
    const auto key = std::to_string(n / 10) + ":" + std::to_string(n % 10);
    const auto token = server.get(key);
    ASSERT_TRUE(token) << key;
    EXPECT_GE(token->size(), 22U);
    tokens.insert(*token);
  }
  EXPECT_EQ(tokens.size(), static_cast<std::size_t>(children) * 10);
}

// B35: acquiring twice through one client is plain contention.
TEST_F(OwnershipTest, B35TheSameClientContendsWithItself) {
  auto lease = must_acquire(client, "k");
  EXPECT_FALSE(client.try_acquire("k"));
  const Stopwatch watch;
  EXPECT_FALSE(client.acquire("k", {.at_most = 300ms}));
  EXPECT_LT(watch.elapsed(), 300ms + slack);
  EXPECT_TRUE(lease.held());
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B35: many threads on one client hold one key in turn, each with its own token.
TEST_F(OwnershipTest, B35ThreadsOfOneClientTakeTurns) {
  std::atomic<int> holders{0};
  std::mutex mutex;
  std::set<std::string> tokens;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int n = 0; n < 10; ++n) {
        auto lease = client.acquire("k", {.at_most = 30s});
        ASSERT_TRUE(lease);
        EXPECT_EQ(++holders, 1);
        {
          const std::lock_guard lock{mutex};
          EXPECT_TRUE(tokens.emplace(lease->token().reveal()).second);
        }
        --holders;
        lease->release();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(tokens.size(), 40U);
  EXPECT_EQ(server.dbsize(), 0);
}

// B36: releasing an expired lease is one quick answer, and the destructor adds nothing.
TEST_F(OwnershipTest, B36ReleasingAnExpiredLeaseIsQuick) {
  const auto log = std::make_shared<EventLog>();
  Client watched{server.url(), {.observer = log}};
  const auto scripts = scripts_run();
  {
    auto lease = must_acquire(watched, "k", {.ttl = 200ms});
    ASSERT_TRUE(becomes_absent("k"));
    const Stopwatch watch;
    EXPECT_THAT(thrown_by_release(lease), lost(LossReason::expired));
    EXPECT_LT(watch.elapsed(), 50ms + slack);
  }
  EXPECT_LE(scripts_run(), scripts + 1);
  EXPECT_TRUE(log->has(Event::Kind::lost));
  EXPECT_EQ(log->of(Event::Kind::lost).size(), 1U);
}

// B36: a scope exit past the ttl sends nothing, throws nothing, and tells the observer once.
TEST_F(OwnershipTest, B36AnExpiredScopeExitIsSilent) {
  const auto log = std::make_shared<EventLog>();
  Client watched{server.url(), {.observer = log}};
  const auto scripts = scripts_run();
  {
    auto lease = must_acquire(watched, "k", {.ttl = 200ms});
    ASSERT_TRUE(becomes_absent("k"));
  }
  watched.ping();
  EXPECT_EQ(scripts_run(), scripts);
  ASSERT_TRUE(log->has(Event::Kind::lost));
  EXPECT_EQ(log->of(Event::Kind::lost).at(0).reason, LossReason::expired);
}

// B39: a key of the application looks like contention, and the observer hears why.
TEST_F(OwnershipTest, B39ApplicationDataIsNeverChanged) {
  server.admin("HSET", "hash", "a", "b");
  server.admin("RPUSH", "list", "a");
  server.admin("SET", "plain", "forever");
  const auto log = std::make_shared<EventLog>();
  Client watched{server.url(), {.observer = log}};
  for (const auto* key : {"hash", "list", "plain"}) {
    // What the observer hears comes from a look in the wait's last moments, if that succeeds.
    EXPECT_TRUE(eventually(20s, [&] {
      EXPECT_FALSE(watched.acquire(key, {.at_most = 100ms})) << key;
      const auto told = log->of(Event::Kind::contended);
      return !told.empty() && told.back().key == key &&
             told.back().message.find("not a lease") != std::string::npos;
    })) << key;
  }
  EXPECT_EQ(server.admin("HGET", "hash", "a").text, "b");
  EXPECT_EQ(server.admin("LLEN", "list").integer, 1);
  EXPECT_EQ(server.get("plain"), "forever");
}

// B39: what replaces the token in the key, of whatever type, is a loss and stays.
TEST_F(OwnershipTest, B39AReplacedKeyIsALoss) {
  const std::vector<std::vector<std::string>> replacements{
      {"HSET", "k", "a", "b"}, {"RPUSH", "k", "a"}, {"ZADD", "k", "1", "a"},
      {"SADD", "k", "a"},      {"SET", "k", ""},    {"SET", "k", "forever"}};
  for (const auto& replacement : replacements) {
    SCOPED_TRACE(replacement.front());
    auto renewed = must_acquire(client, "k");
    server.admin("DEL", "k");
    server.admin_command(replacement);
    EXPECT_THAT(thrown_by_renew(renewed), lost(LossReason::taken));
    EXPECT_THAT(thrown_by_release(renewed), lost(LossReason::taken));
    server.admin("DEL", "k");

    auto released = must_acquire(client, "k");
    server.admin("DEL", "k");
    server.admin_command(replacement);
    EXPECT_THAT(thrown_by_release(released), lost(LossReason::taken));
    EXPECT_TRUE(server.exists("k"));
    server.admin("DEL", "k");
  }
}

// B43: with_lease calls its function only when the lease is held.
TEST_F(OwnershipTest, B43NoBodyWithoutTheLease) {
  take_as_stranger("k");
  bool called = false;
  const auto body = [&](Lease&) { called = true; };
  EXPECT_FALSE(client.with_lease("k", {.at_most = 200ms}, {}, body));
  const auto counted = [&](Lease&) { return called = true; };
  EXPECT_FALSE(client.with_lease("k", {.at_most = 200ms}, {}, counted).has_value());
  server.pause();
  Client impatient{server.url(), hasty()};
  EXPECT_THROW(static_cast<void>(impatient.with_lease("free", {.at_most = 200ms}, {}, body)),
               Error);
  server.resume();
  EXPECT_FALSE(called);
  expect_untouched("k");

  EXPECT_EQ(client.with_lease("free", {.at_most = 5s}, {}, counted), std::optional{true});
  EXPECT_TRUE(called);
  EXPECT_FALSE(server.exists("free"));
}

// B43: a loss during the body is reported behind it; the successor's key stays.
TEST_F(OwnershipTest, B43ALossDuringTheBodyIsReported) {
  const auto overrun = [&](Lease& lease) {
    steal("k");
    EXPECT_TRUE(lease.held());
  };
  EXPECT_THAT(thrown_by([&] { return client.with_lease("k", {.at_most = 1s}, {}, overrun); }),
              lost(LossReason::taken));
  expect_untouched("k");
  server.admin("DEL", "k");

  const auto failing = [](Lease&) { throw std::runtime_error("the body's own"); };
  EXPECT_THROW(static_cast<void>(client.with_lease("k", {.at_most = 1s}, {}, failing)),
               std::runtime_error);
  client.ping();
  EXPECT_EQ(server.dbsize(), 0);
}

// B57: the script cache may be flushed at any time.
TEST_F(OwnershipTest, B57FlushedScriptsAreSentAgain) {
  auto lease = must_acquire(client, "k");
  lease.renew();
  for (int round = 0; round < 3; ++round) {
    server.admin("SCRIPT", "FLUSH");
    lease.renew();
    EXPECT_GT(lease.remaining(), 1s);
  }
  server.admin("SCRIPT", "FLUSH");
  EXPECT_TRUE(client.inspect("k"));
  server.admin("SCRIPT", "FLUSH");
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B57: also right between a release, which shows that the script is cached, and a scope exit.
TEST_F(OwnershipTest, B57AFlushBeforeAScopeExit) {
  for (int round = 0; round < 20; ++round) {
    auto first = must_acquire(client, "first");
    {
      auto second = must_acquire(client, "second");
      first.release();
      server.admin("SCRIPT", "FLUSH");
    }
    client.ping();
    EXPECT_TRUE(eventually(5s,
                           [&] {
                             client.ping();
                             return !server.exists("second");
                           }))
        << "round " << round;
    if (HasFailure()) break;
  }
}

// B57: a restart forgets scripts and keys.
TEST_F(OwnershipTest, B57ARestartForgetsTheScripts) {
  must_acquire(client, "k").release();
  auto lease = must_acquire(client, "k");
  server.kill();
  restart_server();
  EXPECT_THAT(thrown_by_release(lease), lost(LossReason::missing));
  auto again = must_acquire(client, "k");
  again.renew();
  again.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B56: a demoted server says READONLY. That is a refusal, nothing is lost, and a wait goes on.
TEST_F(OwnershipTest, B56AReadOnlyReplicaRefuses) {
  auto lease = must_acquire(client, "k");
  server.admin("REPLICAOF", "127.0.0.1", free_port());
  EXPECT_THAT(thrown_by_renew(lease), failed(errc::rejected, "READONLY"));
  EXPECT_THAT(thrown_by_release(lease), failed(errc::rejected, "READONLY"));
  EXPECT_THAT(thrown_by_acquire(client, "other"), failed(errc::rejected, "READONLY"));
  EXPECT_TRUE(lease.held());
  const auto waiting = [&] { return client.acquire("other", {.at_most = 200ms}).has_value(); };
  EXPECT_THAT(thrown_by(waiting), failed(errc::rejected, "READONLY"));

  std::jthread promotion{[&] {
    const auto before = refusals("READONLY");
    EXPECT_TRUE(eventually(10s, [&] { return refusals("READONLY") >= before + 2; }));
    server.admin("REPLICAOF", "NO", "ONE");
  }};
  EXPECT_TRUE(client.acquire("other", {.at_most = 20s}));
  promotion.join();
  lease.release();
}

// B56: MASTERDOWN is of the same kind.
TEST_F(OwnershipTest, B56AReplicaWithoutAMasterRefuses) {
  auto lease = must_acquire(client, "k");
  server.config_set("replica-serve-stale-data", "no");
  server.admin("REPLICAOF", "127.0.0.1", free_port());
  EXPECT_THAT(thrown_by_renew(lease), failed(errc::rejected, "MASTERDOWN"));
  EXPECT_THAT(thrown_by_release(lease), failed(errc::rejected, "MASTERDOWN"));
  EXPECT_TRUE(lease.held());
  server.admin("REPLICAOF", "NO", "ONE");
  lease.renew();
  lease.release();
}

// B65: out of memory nothing is acquired, but what is held can be renewed and given back.
TEST_F(OwnershipTest, B65OutOfMemory) {
  auto lease = must_acquire(client, "k");
  auto left = must_acquire(client, "left");
  server.config_set("maxmemory", "1");
  EXPECT_THAT(thrown_by_acquire(client, "other"), failed(errc::rejected, "OOM"));
  lease.renew();
  lease.release();
  { const auto scope = std::move(left); }
  client.ping();
  EXPECT_EQ(server.dbsize(), 0);
  server.config_set("maxmemory", "0");
  EXPECT_TRUE(client.acquire("other", {.at_most = 10s}));
}

// B65: MISCONF refuses a release; after the repair it succeeds.
TEST_F(OwnershipTest, B65ABrokenSnapshot) {
  auto lease = must_acquire(client, "k");
  const auto last_status = [&](const std::string& status) {
    server.admin("BGSAVE");
    return eventually(20s, [&] {
      const auto info = server.admin("INFO", "persistence").text;
      return info.find("rdb_bgsave_in_progress:0") != std::string::npos &&
             info.find("rdb_last_bgsave_status:" + status) != std::string::npos;
    });
  };
  // A directory in the place of the snapshot.
  const auto directory = server.socket_path().substr(0, server.socket_path().rfind('/'));
  const auto obstacle = directory + "/dump.rdb";
  ASSERT_TRUE(std::filesystem::create_directory(obstacle));
  server.config_set("save", "3600 1000000");
  ASSERT_TRUE(last_status("err"));
  EXPECT_THAT(thrown_by_release(lease), failed(errc::rejected, "MISCONF"));
  EXPECT_THAT(thrown_by_acquire(client, "other"), failed(errc::rejected, "MISCONF"));
  EXPECT_TRUE(lease.held());

  std::filesystem::remove(obstacle);
  ASSERT_TRUE(eventually(20s, [&] { return last_status("ok"); }));
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B65: a scope exit that the server refuses is repeated with what is sent next.
TEST_F(OwnershipTest, B65ARefusedScopeExitIsRepeated) {
  const auto log = std::make_shared<EventLog>();
  auto options = patient();
  options.observer = log;
  Client watched{server.url(), options};
  auto lease = std::optional{must_acquire(watched, "k")};
  server.config_set("min-replicas-to-write", "1");
  lease.reset();
  watched.ping();
  ASSERT_TRUE(log->has(Event::Kind::background_error));
  EXPECT_THAT(log->of(Event::Kind::background_error).at(0).message,
              ::testing::HasSubstr("NOREPLICAS"));
  EXPECT_TRUE(server.exists("k"));
  server.config_set("min-replicas-to-write", "0");
  EXPECT_TRUE(eventually(10s, [&] {
    watched.ping();
    return !server.exists("k") && !log->of(Event::Kind::released).empty();
  }));
}

}  // namespace
}  // namespace redlease::test
