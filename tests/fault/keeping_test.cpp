// Automatic renewal: what it survives, what it must never do, and when it ends.
#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>

#include <redlease/store/lua_scripts.hpp>

#include "fault/world.hpp"
#include "support/fake_server.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

class KeepingTest : public FaultTest {
 protected:
  explicit KeepingTest(RedisServerOptions options = {}) : FaultTest(std::move(options)) {}

  ClientOptions watched(ClientOptions options) const {
    options.observer = log;
    return options;
  }

  static bool renews(const MonitorLine& line) {
    if (line.source == "lua" || line.args.size() < 3) return false;
    return line.args[1] == lua::renew_many.sha1 || line.args[1] == lua::renew_many.text;
  }
  static bool releases(const MonitorLine& line) {
    if (line.source == "lua" || line.args.size() < 5) return false;
    return line.args[1] == lua::release.sha1 || line.args[1] == lua::release.text;
  }
  std::size_t renewals_seen() {
    monitor.sync();
    return monitor.count(renews);
  }

  // Requests that renew a token behind the request that gave it back.
  std::size_t renewals_behind_releases() {
    monitor.sync();
    std::set<std::string> given_back;
    std::size_t found = 0;
    for (const auto& line : monitor.lines()) {
      if (releases(line)) given_back.insert(line.args[4]);
      if (!renews(line)) continue;
      for (const auto& argument : line.args) found += given_back.count(argument);
    }
    return found;
  }

  std::size_t told(Event::Kind kind) const { return log->of(kind).size(); }
  // Waits until that has been told some more times.
  bool told_again(Event::Kind kind, std::size_t times = 1) const {
    const auto before = told(kind);
    return eventually(20s, [&] { return told(kind) >= before + times; });
  }

  // A renewal fails while the world is broken, and the next ones succeed when it is mended.
  void expect_to_survive(Lease& lease, const std::function<void()>& do_harm,
                         const std::function<void()>& mend) {
    const auto token = std::string{lease.token().reveal()};
    const auto failures = told(Event::Kind::renew_failed);
    do_harm();
    EXPECT_TRUE(eventually(20s, [&] { return told(Event::Kind::renew_failed) > failures; }));
    EXPECT_TRUE(lease.held());
    mend();
    EXPECT_TRUE(told_again(Event::Kind::renewed, 2));
    EXPECT_TRUE(lease.held());
    EXPECT_FALSE(lease.loss());
    EXPECT_EQ(told(Event::Kind::lost), 0U);
    EXPECT_EQ(server.get(lease.key()), token);
  }

  const std::shared_ptr<EventLog> log = std::make_shared<EventLog>();
};

// --- what must not be renewed -------------------------------------------------------------------

// B18: nothing is renewed behind its release, whether that is explicit or the end of the scope.
TEST_F(KeepingTest, B18RenewalEndsWithTheRelease) {
  {
    Client client{server.url(), patient()};
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random{static_cast<unsigned>(t)};
        const auto key = "k" + std::to_string(t);
        for (int n = 0; n < (sanitized ? 150 : 600); ++n) {
          auto lease = client.acquire(key, {.at_most = 30s}, kept(1s, 5ms));
          ASSERT_TRUE(lease);
          // Half of them are given back at once, the others when renewals are under way.
          std::this_thread::sleep_for(std::chrono::microseconds{random() % 2 * (random() % 8000)});
          if (n % 2 == 0) lease->release();
        }
      });
    }
    threads.clear();
    client.ping();
    EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
    EXPECT_GT(renewals_seen(), 0U);
    const auto renewals = renewals_seen();
    EXPECT_TRUE(always(300ms, [&] { return server.dbsize() == 0; }));
    EXPECT_EQ(renewals_seen(), renewals);
  }
  EXPECT_EQ(renewals_behind_releases(), 0U);
}

// B18: the same when renewals never pause, and leases share their requests.
TEST_F(KeepingTest, B18ReleasesAmongHotRenewals) {
  {
    Client client{server.url(), patient()};
    std::vector<Lease> others;
    for (int n = 0; n < 20; ++n) {
      others.push_back(must_acquire(client, "other" + std::to_string(n), kept(20s, 1ms)));
    }
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int n = 0; n < (sanitized ? 50 : 200); ++n) {
          auto lease =
              must_acquire(client, std::to_string(t) + ":" + std::to_string(n), kept(20s, 1ms));
          if (n % 4 == 1) std::this_thread::sleep_for(2ms);
          if (n % 2 == 0) lease.release();
        }
      });
    }
    threads.clear();
    for (auto& lease : others) lease.release();
    client.ping();
    EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
  }
  EXPECT_GT(renewals_seen(), 0U);
  EXPECT_EQ(renewals_behind_releases(), 0U);
}

// B19: an acquisition that failed is not renewed.
TEST_F(KeepingTest, B19AFailedAcquisitionIsNotKept) {
  Client client{server.url(), watched(hasty())};
  client.ping();
  server.admin("CLIENT", "PAUSE", 1500, "ALL");
  const auto acquire = [&] {
    return client.acquire("k", {.at_most = 500ms}, kept(2s, 50ms)).has_value();
  };
  EXPECT_THAT(thrown_by(acquire).code, ::testing::AnyOf(errc::unavailable, errc::in_doubt));
  server.admin("CLIENT", "UNPAUSE");
  EXPECT_TRUE(becomes_absent("k"));
  EXPECT_TRUE(always(700ms, [&] { return !server.exists("k"); }));
  EXPECT_EQ(renewals_seen(), 0U);
  EXPECT_EQ(told(Event::Kind::lost), 0U);

  auto lease = client.acquire("k", {.at_most = 20s}, kept(2s, 50ms));
  ASSERT_TRUE(lease);
  EXPECT_TRUE(told_again(Event::Kind::renewed, 2));
  lease->release();
}

// B19: neither is one that was refused, or that found the key held.
TEST_F(KeepingTest, B19ContentionIsNotKept) {
  Client client{server.url(), watched(patient())};
  server.admin("SET", "k", "stranger", "NX", "PX", 1500);
  EXPECT_FALSE(client.try_acquire("k", kept(2s, 10ms)));
  EXPECT_FALSE(client.acquire("k", {.at_most = 100ms}, kept(2s, 10ms)));
  server.config_set("min-replicas-to-write", "1");
  EXPECT_THAT(thrown_by_acquire(client, "other", kept(2s, 10ms)), failed(errc::rejected));
  server.config_set("min-replicas-to-write", "0");
  EXPECT_TRUE(becomes_absent("k"));
  EXPECT_EQ(renewals_seen(), 0U);
}

// B19: a reply that comes when validity is over hands out nothing, and nothing is kept.
TEST_F(KeepingTest, B19ALateGrantIsNotKept) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), watched(patient())};
  far.ping();
  proxy.delay_replies(600ms);
  EXPECT_THAT(thrown_by_acquire(far, "k", kept(500ms, 10ms)), failed(errc::unavailable));
  EXPECT_TRUE(becomes_absent("k"));
  EXPECT_EQ(renewals_seen(), 0U);
}

// B22: a key that is gone is not made again, however hot the renewals are.
TEST_F(KeepingTest, B22RenewalsNeverCreateAKey) {
  Client client{server.url(), watched(patient())};
  for (int round = 0; round < 30; ++round) {
    auto lease = must_acquire(client, "k", kept(20s, 1ms));
    ASSERT_TRUE(told_again(Event::Kind::renewed));
    server.admin("DEL", "k");
    ASSERT_TRUE(eventually(10s, [&] { return !lease.held(); }));
    ASSERT_FALSE(server.exists("k"));
    EXPECT_EQ(lease.loss()->reason, LossReason::missing);
  }
  EXPECT_TRUE(always(200ms, [&] { return server.dbsize() == 0; }));
  EXPECT_TRUE(eventually(10s, [&] { return told(Event::Kind::lost) == 30U; }));
}

// B22: another's key stays as it is: its value, and its time to live.
TEST_F(KeepingTest, B22RenewalsLeaveASuccessorAlone) {
  Client client{server.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(30s, 1ms));
  auto hash = must_acquire(client, "hash", kept(30s, 1ms));
  auto lasting = must_acquire(client, "lasting", kept(30s, 1ms));
  ASSERT_TRUE(told_again(Event::Kind::renewed, 3));
  server.admin("SET", "k", "stranger", "PX", 5000);
  server.admin("MULTI");
  server.admin("DEL", "hash");
  server.admin("HSET", "hash", "a", "b");
  server.admin("EXEC");
  server.admin("SET", "lasting", "for ever");
  ASSERT_TRUE(eventually(10s, [&] { return !lease.held() && !hash.held() && !lasting.held(); }));
  for (const auto* l : {&lease, &hash, &lasting}) {
    EXPECT_EQ(l->loss()->reason, LossReason::taken) << l->key();
  }
  EXPECT_EQ(server.get("k"), "stranger");
  EXPECT_GT(server.pttl("k"), 0ms);
  EXPECT_LE(server.pttl("k"), 5s);
  EXPECT_EQ(server.admin("HGET", "hash", "a").text, "b");
  EXPECT_EQ(server.pttl("hash"), -1ms);
  EXPECT_EQ(server.pttl("lasting"), -1ms);
}

// --- trouble that passes ------------------------------------------------------------------------

// B20: a server that stands still for a while.
TEST_F(KeepingTest, B20AStoppedServer) {
  Client client{server.url(), watched(hasty())};
  auto lease = must_acquire(client, "k", kept(4s, 1s));
  const Stopwatch held_for;
  ASSERT_TRUE(eventually(10s, [&] { return lease.remaining() < 3200ms; }));
  const Stopwatch stopped;
  expect_to_survive(
      lease, [&] { server.pause(); },
      [&] {
        EXPECT_TRUE(eventually(5s, [&] { return stopped.elapsed() >= 1200ms; }));
        server.resume();
      });
  // By now it would be over without renewals.
  EXPECT_TRUE(eventually(5s, [&] { return held_for.elapsed() > 4200ms; }));
  EXPECT_TRUE(lease.held());
  EXPECT_GE(told(Event::Kind::renew_failed), 1U);
  lease.release();
}

// B20: each kind of trouble on the way to the server.
class KeepingOverABadNetwork : public KeepingTest {
 protected:
  void expect_to_survive_all(const std::map<std::string, std::function<void()>>& kinds) {
    for (const auto& [name, do_harm] : kinds) {
      SCOPED_TRACE(name);
      expect_to_survive(lease, do_harm, [&] {
        proxy.refuse(false);
        proxy.black_hole(false);
        proxy.pass_through();
      });
    }
    // On a busy machine a release may take longer than its little time; then again.
    EXPECT_TRUE(eventually(5s, [&] {
      std::error_code error;
      lease.release(error);
      return !error;
    }));
  }

  FaultProxy proxy{server.port()};
  Client client{proxy.url(), watched(hasty())};
  Lease lease = must_acquire(client, "k", kept(4s, 50ms));
};

TEST_F(KeepingOverABadNetwork, B20Loss) {
  expect_to_survive_all({
      {"replies", [&] { proxy.drop_replies(2, false); }},
      {"replies and connections", [&] { proxy.drop_replies(2, true); }},
      {"requests", [&] { proxy.drop_request_matching("EVAL", false); }},
      {"requests and connections", [&] { proxy.drop_request_matching("EVAL", true); }},
  });
}

TEST_F(KeepingOverABadNetwork, B20Silence) {
  expect_to_survive_all({
      {"a black hole", [&] { proxy.black_hole(true); }},
      {"stranded connections", [&] { proxy.strand_open_connections(); }},
      {"slow requests", [&] { proxy.delay_requests(1s); }},
      {"bytes that trickle in", [&] { proxy.trickle(1, 200ms); }},
  });
}

TEST_F(KeepingOverABadNetwork, B20SlowReplies) {
  expect_to_survive_all({{"slow replies", [&] { proxy.delay_replies(1s); }}});
}

TEST_F(KeepingOverABadNetwork, B20NobodyListens) {
  expect_to_survive_all({{"refused", [&] {
                            proxy.refuse(true);
                            proxy.reset_all();
                          }}});
}

// B20: connections that are killed again and again, for longer than the ttl.
TEST_F(KeepingTest, B20KilledConnections) {
  Client client{server.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(2500ms, 20ms));
  const auto token = std::string{lease.token().reveal()};
  const Stopwatch watch;
  EXPECT_TRUE(eventually(10s, [&] {
    kill_clients();
    return watch.elapsed() > 3500ms;
  }));
  EXPECT_TRUE(lease.held());
  EXPECT_EQ(told(Event::Kind::lost), 0U);
  EXPECT_EQ(server.get("k"), token);
  EXPECT_TRUE(told_again(Event::Kind::renewed));
  EXPECT_TRUE(eventually(10s, [&] {
    std::error_code error;
    lease.release(error);
    return !error;
  }));
}

// B20: a restart that keeps the data, as with persistence, while nobody gets through.
TEST_F(KeepingTest, B20ARestartThatKeepsTheKey) {
  FaultProxy proxy{server.port()};
  Client client{proxy.url(), watched(hasty())};
  auto lease = must_acquire(client, "k", kept(6s, 50ms));
  ASSERT_TRUE(told_again(Event::Kind::renewed, 2));
  expect_to_survive(
      lease,
      [&] {
        proxy.refuse(true);
        proxy.reset_all();
        server.kill();
        restart_server();
        server.admin("SET", "k", lease.token().reveal(), "NX", "PX", 6000);
      },
      [&] { proxy.refuse(false); });
  lease.release();
}

// B20: states of the server that pass.
TEST_F(KeepingTest, B20TroubleOfTheServer) {
  Client client{server.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(6s, 20ms));
  ASSERT_TRUE(told_again(Event::Kind::renewed, 2));
  const auto last_trouble = [&] { return log->of(Event::Kind::renew_failed).back(); };
  expect_to_survive(
      lease, [&] { server.config_set("min-replicas-to-write", "1"); },
      [&] { server.config_set("min-replicas-to-write", "0"); });
  EXPECT_THAT(last_trouble().message, ::testing::HasSubstr("NOREPLICAS"));
  EXPECT_EQ(last_trouble().error, errc::rejected);
  EXPECT_EQ(last_trouble().key, "k");
  EXPECT_EQ(last_trouble().fingerprint, lease.token().fingerprint());
  EXPECT_THAT(last_trouble().message,
              ::testing::Not(::testing::HasSubstr(std::string{lease.token().reveal()})));

  expect_to_survive(
      lease, [&] { server.admin("REPLICAOF", "127.0.0.1", free_port()); },
      [&] { server.admin("REPLICAOF", "NO", "ONE"); });
  EXPECT_THAT(last_trouble().message, ::testing::HasSubstr("READONLY"));

  server.config_set("replica-serve-stale-data", "no");
  expect_to_survive(
      lease, [&] { server.admin("REPLICAOF", "127.0.0.1", free_port()); },
      [&] { server.admin("REPLICAOF", "NO", "ONE"); });
  EXPECT_THAT(last_trouble().message, ::testing::HasSubstr("MASTERDOWN"));

  // Out of memory a renewal needs none.
  server.config_set("maxmemory", "1");
  EXPECT_TRUE(told_again(Event::Kind::renewed, 3));
  server.config_set("maxmemory", "0");
  EXPECT_TRUE(lease.held());
  lease.release();
}

// B20: somebody else's script that takes long.
TEST_F(KeepingTest, B20ABusyServer) {
  server.config_set("busy-reply-threshold", "10");
  Client client{server.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(6s, 20ms));
  ASSERT_TRUE(told_again(Event::Kind::renewed, 2));
  auto hog = server.connect_admin("hog");
  expect_to_survive(
      lease,
      [&] {
        hog.send({"EVAL", "while true do end", "0"});
      },
      [&] {
        EXPECT_TRUE(eventually(10s, [&] { return server.admin("SCRIPT", "KILL").is_ok(); }));
      });
  EXPECT_THAT(log->of(Event::Kind::renew_failed).at(0).message, ::testing::HasSubstr("BUSY"));
  EXPECT_TRUE(hog.read().is_error());
  lease.release();
}

// B20: too many clients, when the keeper needs a new connection.
TEST_F(KeepingTest, B20TooManyClients) {
  Client client{server.url(), watched(hasty())};
  auto lease = must_acquire(client, "k", kept(6s, 50ms));
  ASSERT_TRUE(told_again(Event::Kind::renewed, 2));
  server.get("k");  // the administrator's connection is there already
  expect_to_survive(
      lease,
      [&] {
        server.config_set("maxclients", "1");
        kill_clients();
      },
      [&] { server.config_set("maxclients", "1000"); });
  lease.release();
}

// A server that grants everything but renewals, to which it says what it is told to say.
class Grumbler {
 public:
  void says(const std::string& text) {
    const std::lock_guard lock{mutex_};
    text_ = text;
  }
  std::string answer(const std::string& request) {
    const std::lock_guard lock{mutex_};
    if (request.find("\r\nEVAL") == std::string::npos) return "+OK\r\n";
    const bool many = request.find(lua::renew_many.sha1) != std::string::npos ||
                      request.find("MGET") != std::string::npos;
    if (!many) return ":1\r\n";
    return text_.empty() ? "*0\r\n" : text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

class KeepingAtAGrumbler : public KeepingTest {
 protected:
  // None of them is a loss, since none of them names the lease.
  void expect_to_survive_all(const std::vector<std::string>& texts) {
    for (const auto& text : texts) {
      SCOPED_TRACE(text);
      ASSERT_TRUE(told_again(Event::Kind::renewed, 2));
      const auto failures = told(Event::Kind::renew_failed);
      grumbler.says(text);
      EXPECT_TRUE(eventually(10s, [&] { return told(Event::Kind::renew_failed) > failures; }));
      grumbler.says("");
      EXPECT_TRUE(told_again(Event::Kind::renewed));
      EXPECT_TRUE(lease.held());
    }
    EXPECT_EQ(told(Event::Kind::lost), 0U);
  }

  Grumbler grumbler;
  FakeServer fake{{.answer = [&](const std::string& request) { return grumbler.answer(request); }}};
  Client client{fake.url(), watched(hasty())};
  Lease lease = must_acquire(client, "k", kept(3s, 10ms));
};

TEST_F(KeepingAtAGrumbler, B20Refusals) {
  expect_to_survive_all({
      "-LOADING Redis is loading the dataset in memory\r\n",
      "-BUSY Redis is busy running a script.\r\n",
      "-CLUSTERDOWN The cluster is down\r\n",
      "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
      "-OOM command not allowed. script: f00, on @user_script:1.\r\n",
      "-MISCONF Redis is configured to save RDB snapshots\r\n",
      "-NOREPLICAS Not enough good replicas to write.\r\n",
      "-ERR Error running script (call to f_00): @user_script:17: -READONLY You can't\r\n",
      "-MASTERDOWN Link with MASTER is down\r\n",
      "-ERR The user executing the script can't run this command or subcommand\r\n",
      "-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
  });
}

TEST_F(KeepingAtAGrumbler, B20Nonsense) {
  expect_to_survive_all({
      "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", "-ERR unknown\r\n",
      "+OK\r\n", ":1\r\n", "$-1\r\n", "*-1\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n",
      "*1\r\n$1\r\nx\r\n", "*1\r\n:0\r\n", "*1\r\n:7\r\n",
      "*2\r\n:1\r\n",  // and the rest never comes
  });
}

// B15: a server that knows no script, not even with its text, is not asked without a pause.
TEST_F(KeepingAtAGrumbler, B15NoScriptForEver) {
  ASSERT_TRUE(told_again(Event::Kind::renewed));
  grumbler.says("-NOSCRIPT No matching script. Please use EVAL.\r\n");
  const auto before = fake.requests();
  EXPECT_TRUE(told_again(Event::Kind::renew_failed, 3));
  EXPECT_LT(fake.requests() - before, 50U);
  grumbler.says("");
  EXPECT_TRUE(told_again(Event::Kind::renewed));
  EXPECT_TRUE(lease.held());
}

// B20: a connection that ends while nothing is under way is no failure; there is another in time.
TEST_F(KeepingTest, B20IdleConnectionsMayEnd) {
  Client client{server.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(6s, 1s));
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(told_again(Event::Kind::renewed));
    kill_clients();
  }
  ASSERT_TRUE(told_again(Event::Kind::renewed));
  EXPECT_EQ(told(Event::Kind::renew_failed), 0U);
  EXPECT_TRUE(lease.held());
}

// A user who may do no more than what plain leases need, with and without MGET.
TEST_F(KeepingTest, B40AUserWithFewRights) {
  for (const auto* mget : {"+mget", "-mget"}) {
    SCOPED_TRACE(mget);
    server.admin("ACL", "SETUSER", "orders", "reset", "on", ">secret", "~order:*", "+set", "+get",
                 "+del", "+pexpire", "+pttl", "+eval", "+evalsha", mget);
    auto options = watched(patient());
    options.username = "orders";
    options.password = "secret";
    Client client{server.url(), options};
    auto held = must_acquire(client, "order:held", kept(3s, 20ms));
    auto missing = must_acquire(client, "order:missing", kept(3s, 20ms));
    auto taken = must_acquire(client, "order:taken", kept(3s, 20ms));
    auto hash = must_acquire(client, "order:hash", kept(3s, 20ms));
    ASSERT_TRUE(told_again(Event::Kind::renewed, 8));
    server.admin("DEL", "order:missing", "order:hash");
    server.admin("HSET", "order:hash", "a", "b");
    server.admin("SET", "order:taken", "stranger");
    EXPECT_TRUE(eventually(10s, [&] { return !missing.held() && !taken.held() && !hash.held(); }));
    EXPECT_EQ(missing.loss()->reason, LossReason::missing);
    EXPECT_EQ(taken.loss()->reason, LossReason::taken);
    ASSERT_TRUE(told_again(Event::Kind::renewed, 2));
    EXPECT_TRUE(held.held());
    EXPECT_EQ(told(Event::Kind::renew_failed), 0U);
    held.release();
    server.admin("DEL", "order:hash", "order:taken");
  }
}

// Over a unix socket.
TEST_F(KeepingTest, OverAUnixSocket) {
  Client client{server.unix_url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(1500ms, 50ms));
  EXPECT_TRUE(always(1700ms, [&] { return lease.held(); }));
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B57: the script cache may be flushed between renewals, all the time.
TEST_F(KeepingTest, B57FlushedScripts) {
  Client client{server.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(3s, 10ms));
  for (int round = 0; round < 30; ++round) {
    server.admin("SCRIPT", "FLUSH");
    ASSERT_TRUE(told_again(Event::Kind::renewed));
  }
  EXPECT_EQ(told(Event::Kind::renew_failed), 0U);
  EXPECT_EQ(told(Event::Kind::lost), 0U);
  lease.release();
}

// B08: the keeper's connection logs in, selects its database and has its name, every time.
class KeepingBehindAPassword : public KeepingTest {
 protected:
  KeepingBehindAPassword() : KeepingTest({.requirepass = "secret"}) {}
};
TEST_F(KeepingBehindAPassword, B08TheKeepersConnectionIsComplete) {
  auto options = watched(patient());
  options.password = "secret";
  options.database = 5;
  options.client_name = "keeping";
  Client client{server.url(), options};
  auto lease = must_acquire(client, "k", kept(5s, 20ms));
  for (int round = 0; round < 10; ++round) {
    kill_clients();
    ASSERT_TRUE(told_again(Event::Kind::renewed, 2));
    for (auto& other : server.client_list()) {
      if (server.admin_addresses().contains(other["addr"])) continue;
      EXPECT_EQ(other["db"], "5");
      EXPECT_EQ(other["name"], "keeping");
    }
  }
  EXPECT_TRUE(lease.held());
  EXPECT_EQ(told(Event::Kind::lost), 0U);
  lease.release();
}

// --- counting validity --------------------------------------------------------------------------

// B23: validity counts from the instant before a renewal was sent, not from its reply.
TEST_F(KeepingTest, B23LateRepliesShortenValidity) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), watched(patient())};
  auto lease = must_acquire(far, "k", kept(5s, 50ms));
  proxy.delay_replies(500ms);
  // The first of them may have been under way before.
  const auto before = told(Event::Kind::renewed);
  ASSERT_TRUE(eventually(20s, [&] { return told(Event::Kind::renewed) >= before + 4; }));
  const auto renewed = log->of(Event::Kind::renewed);
  for (auto n = before + 2; n < renewed.size(); ++n) EXPECT_LE(renewed[n].left, 4450ms);
  EXPECT_LE(lease.remaining(), 4450ms);
  EXPECT_TRUE(lease.held());
  proxy.pass_through();
  lease.release();
}

// B23: what the lease believes never exceeds what the server has left for it.
TEST_F(KeepingTest, B23RemainingIsNeverOptimistic) {
  FaultProxy proxy{server.port()};
  Client client{proxy.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(3s, 5ms));
  std::mt19937 random{1};
  const Stopwatch watch;
  while (watch.elapsed() < 2s) {
    proxy.delay_replies(std::chrono::milliseconds{random() % 30});
    if (random() % 4 == 0) {
      std::error_code error;
      lease.renew(error);
    }
    // Asked first, so that a renewal in between can only make the second one larger; less what
    // the server rounds off.
    const auto believed = lease.remaining();
    const Stopwatch between;
    const auto left = server.pttl("k");
    EXPECT_LE(believed - between.elapsed(), left + 1ms);
    if (HasFailure()) break;
  }
  proxy.pass_through();
  lease.release();
}

// One lease whose key is refused costs the others, with which it was renewed, nothing.
TEST_F(KeepingTest, B20ARefusedKeyIsItsOwnTrouble) {
  server.admin("ACL", "SETUSER", "u", "on", ">pw", "~a:*", "~b:*", "+@all");
  auto options = watched(patient());
  options.username = "u";
  options.password = "pw";
  Client client{server.url(), options};
  std::vector<Lease> healthy;
  for (int n = 0; n < 5; ++n) {
    healthy.push_back(must_acquire(client, "a:" + std::to_string(n), kept(3s, 300ms)));
  }
  auto refused = must_acquire(client, "b:0", kept(3s, 300ms));
  server.admin("ACL", "SETUSER", "u", "on", ">pw", "resetkeys", "~a:*", "+@all");
  ASSERT_TRUE(eventually(20s, [&] { return refused.loss().has_value(); }));
  EXPECT_TRUE(always(1s, [&] {
    return std::all_of(healthy.begin(), healthy.end(), [](const Lease& l) { return l.held(); });
  }));
  for (const auto& event : log->of(Event::Kind::renew_failed)) EXPECT_EQ(event.key, "b:0");
}

// A renewal by hand that is in doubt bounds all later ones; they are not sent one after the other
// for that.
TEST_F(KeepingTest, B94AShortRenewalInDoubtMakesNoStorm) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), watched(patient())};
  auto lease = must_acquire(far, "k", {.ttl = 30s, .auto_renew = true});
  proxy.drop_reply_matching(std::string{lua::renew.sha1}, true);
  lease.renew(3s);
  const auto before = scripts_run();
  EXPECT_TRUE(always(2500ms, [&] { return lease.held(); }));
  EXPECT_LT(scripts_run() - before, 20U);
}

// B23: an acquisition whose reply comes when only the margin is left hands out nothing.
TEST_F(KeepingTest, B23ALateReplyInTheMarginIsNoLease) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), watched(patient())};
  far.ping();
  proxy.delay_replies(2500ms);
  const LeaseOptions wide{.ttl = 4s, .auto_renew = true, .safety_margin = Duration{2s}};
  EXPECT_THAT(thrown_by_acquire(far, "k", wide), failed(errc::unavailable, "safety margin"));
  bool called = false;
  EXPECT_FALSE(thrown_by([&] {
                 return far.with_lease("w", {.at_most = 3s}, wide, [&](Lease&) { called = true; });
               }).nothing());
  EXPECT_FALSE(called);
  proxy.pass_through();
  EXPECT_TRUE(becomes_absent("k", 2s)) << "it was given back";
  EXPECT_EQ(told(Event::Kind::lost), 0U);
}

// A renewal that timed out may have run: the event doesn't say that it didn't.
TEST_F(KeepingTest, ARenewalWithoutAnswerIsInDoubt) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), watched(hasty())};
  auto lease = must_acquire(far, "k", kept(5s, 100ms));
  ASSERT_TRUE(told_again(Event::Kind::renewed));
  proxy.black_hole(true);
  ASSERT_TRUE(log->has(Event::Kind::renew_failed));
  const auto first = log->of(Event::Kind::renew_failed).front();
  EXPECT_EQ(first.error, errc::in_doubt);
  EXPECT_THAT(first.message, ::testing::HasSubstr("may have run"));
  proxy.pass_through();
}

// B23: a renewal whose reply comes when the lease is lost does not revive it.
TEST_F(KeepingTest, B23AReplyBehindTheMarginRevivesNothing) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), watched(patient())};
  auto lease = must_acquire(far, "k", kept(1s, 100ms));
  proxy.delay_replies(1500ms);
  ASSERT_TRUE(eventually(10s, [&] { return lease.loss().has_value(); }));
  EXPECT_EQ(lease.loss()->reason, LossReason::expired);
  EXPECT_GE(renewals_seen(), 1U);
  EXPECT_TRUE(always(1700ms, [&] { return !lease.held() && lease.remaining() == 0s; }));
  EXPECT_EQ(lease.loss()->reason, LossReason::expired);
  EXPECT_TRUE(eventually(10s, [&] { return told(Event::Kind::lost) == 1U; }));
  EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::expired));
  EXPECT_THAT(thrown_by_release(lease), lost(LossReason::expired));
  proxy.pass_through();
  EXPECT_TRUE(becomes_absent("k"));
}

// B82: whoever looks at a lease that is renewed by hand and by itself sees it held, never too long.
TEST_F(KeepingTest, B82ManyLookWhileItIsRenewed) {
  Client client{server.url(), patient()};
  auto lease = must_acquire(client, "k", kept(4s, 1ms));
  std::atomic<bool> right{true};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const auto left = lease.remaining();
        if (!lease.held() || lease.loss() || left > 4s || left < 400ms) right = false;
        lease.ensure_held(400ms);
        if (lease.stop_token().stop_requested()) right = false;
      }
    });
  }
  threads.emplace_back([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) lease.renew();
  });
  const Stopwatch watch;
  EXPECT_TRUE(eventually(10s, [&] { return watch.elapsed() > 2s; }));
  threads.clear();
  EXPECT_TRUE(right);
  lease.release();
}

// Renewals by hand and automatic ones: the longer of the two counts, until it has to be renewed.
TEST_F(KeepingTest, RenewingByHandMovesTheNextRenewal) {
  Client client{server.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(2s, 20ms));
  lease.renew(60s);
  const auto renewals = renewals_seen();
  EXPECT_TRUE(always(300ms, [&] { return lease.remaining() > 50s && server.pttl("k") > 50s; }));
  EXPECT_LE(renewals_seen(), renewals);
  // A short one is made longer at once.
  lease.renew(300ms);
  EXPECT_TRUE(eventually(10s, [&] { return lease.remaining() > 1500ms; }));
  EXPECT_GT(server.pttl("k"), 1s);
  EXPECT_EQ(told(Event::Kind::lost), 0U);
  lease.release();
}

// --- the end ------------------------------------------------------------------------------------

// B26: a release behind a renewal that is under way finds its key, and nobody hears of a loss.
TEST_F(KeepingTest, B26ReleasesDuringRenewals) {
  FaultProxy proxy{server.port()};
  {
    Client client{proxy.url(), watched(patient())};
    // Only renewals are late, so that a release would overtake one that it doesn't wait for.
    proxy.delay_requests(50ms, std::string{lua::renew_many.sha1});
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random{static_cast<unsigned>(t)};
        for (int n = 0; n < (sanitized ? 5 : 12); ++n) {
          auto lease = must_acquire(client, std::to_string(t), kept(10s, 20ms));
          std::this_thread::sleep_for(std::chrono::milliseconds{random() % 60});
          EXPECT_THAT(thrown_by_release(lease), succeeded());
        }
      });
    }
    threads.clear();
  }
  EXPECT_EQ(told(Event::Kind::lost), 0U);
  EXPECT_TRUE(
      eventually(10s, [&] { return told(Event::Kind::released) == (sanitized ? 20U : 48U); }));
  EXPECT_EQ(renewals_behind_releases(), 0U);
  EXPECT_EQ(server.dbsize(), 0);
}

// B26: the same at the end of a scope.
TEST_F(KeepingTest, B26ScopeExitsDuringRenewals) {
  FaultProxy proxy{server.port()};
  {
    Client client{proxy.url(), watched(patient())};
    proxy.delay_requests(30ms, std::string{lua::renew_many.sha1});
    std::mt19937 random{7};
    for (int n = 0; n < 20; ++n) {
      auto lease = must_acquire(client, std::to_string(n), kept(10s, 5ms));
      std::this_thread::sleep_for(std::chrono::milliseconds{random() % 40});
    }
    proxy.pass_through();
  }
  EXPECT_EQ(told(Event::Kind::lost), 0U);
  EXPECT_TRUE(eventually(10s, [&] { return told(Event::Kind::released) == 20U; }));
  EXPECT_EQ(renewals_behind_releases(), 0U);
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

// B32: a release that the server refuses changes nothing: the lease is still held, and still kept.
TEST_F(KeepingTest, B32ARefusedReleaseIsStillKept) {
  Client client{server.url(), watched(patient())};
  auto lease = must_acquire(client, "k", kept(2s, 20ms));
  const auto stop = lease.stop_token();
  server.config_set("min-replicas-to-write", "1");
  for (int n = 0; n < 3; ++n) {
    EXPECT_THAT(thrown_by_release(lease), failed(errc::rejected, "NOREPLICAS"));
    EXPECT_TRUE(lease.held());
  }
  server.config_set("min-replicas-to-write", "0");
  const Stopwatch watch;
  EXPECT_TRUE(told_again(Event::Kind::renewed, 2));
  EXPECT_TRUE(always(2200ms, [&] { return lease.held(); }));
  EXPECT_FALSE(stop.stop_requested());
  lease.release();
  EXPECT_FALSE(stop.stop_requested());
  EXPECT_EQ(server.dbsize(), 0);
}

// B32: and behind a release in doubt nothing is renewed, whether it has run or not.
TEST_F(KeepingTest, B32NothingIsRenewedBehindADoubtfulRelease) {
  FaultProxy proxy{server.port()};
  {
    Client client{proxy.url(), watched(hasty())};
    auto lease = must_acquire(client, "k", kept(5s, 20ms));
    ASSERT_TRUE(told_again(Event::Kind::renewed, 2));
    proxy.black_hole(true);
    EXPECT_EQ(thrown_by_release(lease).code, errc::in_doubt);
    EXPECT_FALSE(lease.held());
    proxy.black_hole(false);
    const auto renewals = renewals_seen();
    EXPECT_TRUE(always(300ms, [&] { return !lease.held(); }));
    EXPECT_LE(renewals_seen(), renewals + 1);  // one that was under way then
  }
  EXPECT_TRUE(becomes_absent("k"));
}

// max_hold: no renewal begins later, and then the lease ends as one that nobody renews.
TEST_F(KeepingTest, MaxHoldEndsTheRenewals) {
  Client client{server.url(), watched(patient())};
  auto options = kept(1s, 50ms);
  options.max_hold = Duration{500ms};
  const Stopwatch watch;
  auto lease = must_acquire(client, "k", options);
  const auto stop = lease.stop_token();
  ASSERT_TRUE(eventually(20s, [&] { return stop.stop_requested(); }));
  EXPECT_LE(watch.elapsed(), 500ms + 1s + slack);
  EXPECT_FALSE(lease.held());
  ASSERT_TRUE(lease.loss());
  EXPECT_EQ(lease.loss()->reason, LossReason::expired);
  EXPECT_GE(told(Event::Kind::renewed), 1U);
  EXPECT_TRUE(becomes_absent("k"));
  for (const auto& event : log->of(Event::Kind::renewed)) EXPECT_LE(event.held_for, 500ms + slack);
  EXPECT_TRUE(log->has(Event::Kind::lost));
  const auto held_for = log->of(Event::Kind::lost).at(0).held_for;
  EXPECT_LE(held_for, 1500ms);
}

// max_hold: shorter than the first renewal: none at all. By hand the lease is renewed yet.
TEST_F(KeepingTest, MaxHoldLeavesRenewingByHand) {
  Client client{server.url(), watched(patient())};
  auto options = kept(2s, 1s);
  options.max_hold = Duration{1ms};
  auto lease = must_acquire(client, "k", options);
  ASSERT_TRUE(eventually(10s, [&] { return lease.remaining() < 800ms; }));
  EXPECT_EQ(renewals_seen(), 0U);
  lease.renew();
  EXPECT_GT(lease.remaining(), 1s);
  ASSERT_TRUE(eventually(20s, [&] { return !lease.held(); }));
  EXPECT_EQ(renewals_seen(), 0U);
}

// --- many ---------------------------------------------------------------------------------------

// `begin` comes when all are acquired, `end` before they are given back.
void keep_many(RedisServer& server, const EventLog& losses, Client& client,
               const std::function<void()>& begin, const std::function<void()>& end) {
  const auto threads = count_threads();
  const int count = sanitized ? 500 : 1000;
  std::vector<Lease> leases;
  for (int n = 0; n < count; ++n) {
    leases.push_back(must_acquire(client, std::to_string(n), {.ttl = 3s, .auto_renew = true}));
  }
  std::vector<std::stop_token> tokens;
  tokens.reserve(leases.size());
  for (auto& lease : leases) tokens.push_back(lease.stop_token());
  // The keeper's and the notifier's, and on a busy machine now and then some that help out.
  EXPECT_LE(count_threads(), threads + 8);
  begin();
  EXPECT_TRUE(always(4s, [&] { return losses.all().empty(); }));
  for (auto& lease : leases) {
    ASSERT_TRUE(lease.held());
    ASSERT_GT(lease.remaining(), 300ms);
  }
  for (auto& token : tokens) ASSERT_FALSE(token.stop_requested());
  EXPECT_EQ(server.dbsize(), count);
  end();
  leases.clear();
  client.ping();
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

// Keeps losses only: the renewals of thousands are too many to remember.
class LossLog : public EventLog {
 public:
  void on_event(const Event& event) override {
    if (event.kind == Event::Kind::lost) EventLog::on_event(event);
  }
};

// B94: thousands of leases, one thread.
TEST_F(KeepingTest, B94ManyLeases) {
  const auto losses = std::make_shared<LossLog>();
  auto options = patient();
  options.observer = losses;
  Client client{server.url(), options};
  keep_many(
      server, *losses, client, [] {}, [] {});
}

// B94: the same with a far server.
TEST_F(KeepingTest, B94ManyLeasesOfAFarServer) {
  FaultProxy proxy{server.port()};
  const auto losses = std::make_shared<LossLog>();
  auto options = patient();
  options.observer = losses;
  Client client{proxy.url(), options};
  keep_many(
      server, *losses, client,
      [&] {
        proxy.delay_replies(10ms);
        proxy.delay_requests(10ms);
      },
      [&] { proxy.pass_through(); });
}

// B94: the largest keys: a request that doesn't fit into the socket's buffers.
TEST_F(KeepingTest, B94LargeKeys) {
  Client client{server.url(), watched(patient())};
  std::vector<Lease> leases;
  const std::string filler(60'000, 'x');
  for (int n = 0; n < 20; ++n) {
    leases.push_back(must_acquire(client, std::to_string(n) + filler, kept(4s, 1s)));
  }
  EXPECT_TRUE(always(4500ms, [&] { return told(Event::Kind::lost) == 0; }));
  for (auto& lease : leases) EXPECT_TRUE(lease.held());
}

// B94: leases that have too little time for this network fail alone.
TEST_F(KeepingTest, B94HopelessLeasesSpoilNoOthers) {
  FaultProxy proxy{server.port()};
  auto options = watched(patient());
  options.max_connections = 32;
  Client client{proxy.url(), options};
  auto healthy = must_acquire(client, "healthy", kept(3s, 1s));
  proxy.delay_replies(100ms);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 30; ++t) {
    threads.emplace_back([&, t](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        static_cast<void>(thrown_by([&] {
          auto lease = client.try_acquire("short" + std::to_string(t), kept(200ms, 10ms));
          if (lease) eventually(10s, [&] { return !lease->held(); });
          return true;
        }));
      }
    });
  }
  EXPECT_TRUE(always(3500ms, [&] { return healthy.held(); }));
  threads.clear();
  proxy.pass_through();
}

// B89: keys of any bytes are renewed, each for itself.
TEST_F(KeepingTest, B89BinaryKeys) {
  using namespace std::string_literals;
  Client client{server.url(), watched(patient())};
  std::vector<Lease> leases;
  const std::vector<std::string> keys{"%s%n",     "a b", "a\r\nb", "a\0b"s, "a",
                                      "\xff\xfe", "{",   "*",      "$1"};
  for (const auto& key : keys) leases.push_back(must_acquire(client, key, kept(1500ms, 100ms)));
  EXPECT_TRUE(always(2s, [&] { return told(Event::Kind::lost) == 0; }));
  for (auto& lease : leases) EXPECT_EQ(server.get(lease.key()), lease.token().reveal());
}

}  // namespace
}  // namespace redlease::test
