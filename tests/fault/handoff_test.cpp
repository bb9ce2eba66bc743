// Waiters that are woken, and leases that go from one to the next, in a bad world.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include <redlease/store/lua_scripts.hpp>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"
#include "support/waiters.hpp"

namespace redlease::test {
namespace {

class HandoffTest : public FaultTest {
 protected:
  HandoffTest() {
    server.admin("SCRIPT", "LOAD", lua::handoff.text);
    server.admin("SCRIPT", "LOAD", lua::release.text);
  }

  static ClientOptions watched_by(ClientOptions options, const std::shared_ptr<Observer>& log) {
    options.observer = log;
    return options;
  }

  // A client's lease, and one of its own who waits for it.
  struct Pair {
    std::optional<Lease> lease;
    std::unique_ptr<Waiter> heir;
  };

  Pair make_pair(Client& client, const Wait& wait = restless(), const LeaseOptions& heirs = {}) {
    server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
    Pair pair;
    std::atomic<bool> arrived{false};
    auto polling = restless();
    polling.still_needed = [&] { return arrived = true; };
    std::jthread holder{[&] { pair.lease = client.acquire("k", polling, {.ttl = 60s}); }};
    EXPECT_TRUE(eventually(at_once, [&] { return arrived.load(); }));
    pair.heir = std::make_unique<Waiter>(client, "k", wait, heirs);
    // One that sleeps long shows in no other way that it is in the queue.
    if (wait.backoff.max < Duration{1s}) {
      EXPECT_TRUE(eventually(at_once, [&] { return pair.heir->asked(); }));
    } else {
      EXPECT_FALSE(eventually(20ms, [&] { return pair.heir->done(); }));
    }
    server.admin("DEL", "k");
    holder.join();
    if (!pair.lease) throw std::runtime_error("there is no holder");
    return pair;
  }

  // A process hands on for some time after it got the key only, which may pass on a busy machine.
  // So `round` is repeated until it says that the lease was handed on, or should have been.
  void until_handed_on(const std::function<void()>& round) {
    const auto before = proxy.requests_seen(lua::handoff.sha1);
    for (int n = 0; n < 50 && proxy.requests_seen(lua::handoff.sha1) == before; ++n) {
      proxy.pass_through();
      ASSERT_NO_FATAL_FAILURE(round());
      proxy.pass_through();
      EXPECT_TRUE(becomes_absent("k"));
      ASSERT_FALSE(HasFailure()) << "round " << n;
    }
    EXPECT_GT(proxy.requests_seen(lua::handoff.sha1), before);
  }

  // The heir has it, and it is good.
  void expect_good(Waiter& heir) {
    ASSERT_TRUE(heir.acquired());
    EXPECT_TRUE(heir.lease().held());
    EXPECT_EQ(server.get("k"), heir.lease().token().reveal());
    EXPECT_THAT(thrown_by_release(heir.lease()), succeeded());
  }

  FaultProxy proxy{server.port()};
};

const std::string handoff_request{lua::handoff.sha1};

// B12, B42: the reply of a handoff gets lost, alone or with its connection. The heir's token is in
// the key, so the lease is his, counted from the first send, and the releaser is told the truth.
TEST_F(HandoffTest, B12AReplyIsLost) {
  for (const bool then_close : {true, false}) {
    for (const bool scope_exit : {false, true}) {
      until_handed_on([&] {
        const auto log = std::make_shared<EventLog>();
        Client client{proxy.url(), watched_by(hasty(), log)};
        auto pair = make_pair(client, restless(), {.ttl = 40s});
        proxy.drop_reply_matching(handoff_request, then_close);
        const Stopwatch watch;
        if (scope_exit) {
          pair.lease.reset();
        } else {
          EXPECT_THAT(thrown_by_release(*pair.lease), succeeded());
          EXPECT_THAT(thrown_by_release(*pair.lease), refused("it was released"));
        }
        EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
        ASSERT_TRUE(pair.heir->acquired());
        EXPECT_LE(pair.heir->lease().remaining(), 40s);
        expect_good(*pair.heir);
        EXPECT_TRUE(eventually(10s, [&] { return log->of(Event::Kind::released).size() == 2; }));
        EXPECT_THAT(log->of(Event::Kind::lost), testing::IsEmpty());
      });
    }
  }
}

// B12: the request gets lost. The lease is released then, and the heir goes on waiting.
TEST_F(HandoffTest, B12ARequestIsLost) {
  for (const bool then_close : {true, false}) {
    for (const bool scope_exit : {false, true}) {
      until_handed_on([&] {
        Client client{proxy.url(), hasty()};
        auto pair = make_pair(client);
        proxy.drop_request_matching(handoff_request, then_close);
        if (scope_exit) {
          pair.lease.reset();
        } else {
          EXPECT_THAT(thrown_by_release(*pair.lease), succeeded());
        }
        expect_good(*pair.heir);
      });
    }
  }
}

// B12: the request comes late, when the lease was released otherwise. It then finds nothing.
TEST_F(HandoffTest, B12ARequestIsLate) {
  until_handed_on([&] {
    Client client{proxy.url(), hasty()};
    auto pair = make_pair(client);
    proxy.delay_requests(2 * short_time, handoff_request);
    static_cast<void>(thrown_by_release(*pair.lease));
    pair.lease.reset();
    expect_good(*pair.heir);
    EXPECT_TRUE(always(2 * short_time, [&] { return !server.exists("k"); }));
  });
}

// B49, B52: nobody answers any more. Both end within their bounds, and no key stays behind.
TEST_F(HandoffTest, B49ABlackHole) {
  for (const bool scope_exit : {false, true}) {
    until_handed_on([&] {
      Client client{proxy.url(), hasty()};
      auto wait = restless();
      wait.at_most = 5s;
      const Stopwatch waiting;
      auto pair = make_pair(client, wait);
      proxy.black_hole(true);
      const Stopwatch watch;
      if (scope_exit) {
        pair.lease.reset();
      } else {
        EXPECT_THAT(thrown_by_release(*pair.lease), failed(errc::in_doubt));
        EXPECT_FALSE(pair.lease->held());
      }
      EXPECT_LT(watch.elapsed(), 3 * short_time + slack);
      EXPECT_FALSE(thrown_by([&] { return pair.heir->acquired(); }).nothing());
      EXPECT_LT(waiting.elapsed(), 5s + 10s);
      EXPECT_LT(pair.heir->took(), 5s + slack);
      proxy.black_hole(false);
      // By what was under way, or with what is sent next.
      if (!scope_exit) static_cast<void>(thrown_by_release(*pair.lease));
      static_cast<void>(thrown_by_ping(client));
      EXPECT_TRUE(becomes_absent("k"));
    });
  }
}

// B49: a black hole that ends while the heir still waits. He is woken when the key gets free.
TEST_F(HandoffTest, B49ABlackHoleThatEnds) {
  for (const bool scope_exit : {false, true}) {
    until_handed_on([&] {
      Client client{proxy.url(), hasty()};
      auto pair = make_pair(client, asleep());
      proxy.black_hole(true);
      if (scope_exit) {
        pair.lease.reset();
        EXPECT_TRUE(always(3 * short_time, [&] { return !pair.heir->done(); }));
      } else {
        EXPECT_THAT(thrown_by_release(*pair.lease), failed(errc::in_doubt));
      }
      proxy.black_hole(false);
      const Stopwatch watch;
      pair.lease.reset();
      expect_good(*pair.heir);
      EXPECT_LT(watch.elapsed(), at_once + slack);
    });
  }
}

// B49: a server that stands still for a time, shorter or longer than the time-outs.
TEST_F(HandoffTest, B49AServerThatStandsStill) {
  for (const bool longer : {false, true}) {
    until_handed_on([&] {
      Client client{proxy.url(), longer ? hasty() : patient()};
      auto pair = make_pair(client, asleep());
      server.pause();
      std::jthread resumption{[&] {
        eventually(longer ? 3 * short_time : short_time / 2, [] { return false; });
        server.resume();
      }};
      const auto thrown = thrown_by_release(*pair.lease);
      if (!longer) {
        EXPECT_THAT(thrown, succeeded());
      }
      resumption.join();
      pair.lease.reset();
      const Stopwatch watch;
      expect_good(*pair.heir);
      EXPECT_LT(watch.elapsed(), at_once + slack);
    });
  }
}

// B52: a server that has no memory for the heir's token takes the lease back all the same.
TEST_F(HandoffTest, B52AServerWithoutMemory) {
  for (const bool scope_exit : {false, true}) {
    until_handed_on([&] {
      Client client{proxy.url(), patient()};
      auto pair = make_pair(client, asleep());
      server.config_set("maxmemory", "1");
      if (scope_exit) {
        pair.lease.reset();
      } else {
        EXPECT_THAT(thrown_by_release(*pair.lease), succeeded());
      }
      EXPECT_TRUE(becomes_absent("k"));
      EXPECT_FALSE(pair.heir->done());
      server.config_set("maxmemory", "0");
      const Stopwatch watch;
      expect_good(*pair.heir);
      EXPECT_LT(watch.elapsed(), at_once);
    });
  }
}

// B57: a server that has forgotten the script.
TEST_F(HandoffTest, B57AServerThatForgotTheScript) {
  for (const bool scope_exit : {false, true}) {
    until_handed_on([&] {
      Client client{proxy.url(), patient()};
      auto pair = make_pair(client);
      const std::string token{pair.lease->token().reveal()};
      server.admin("SCRIPT", "FLUSH");
      if (scope_exit) {
        pair.lease.reset();
      } else {
        EXPECT_THAT(thrown_by_release(*pair.lease), succeeded());
      }
      expect_good(*pair.heir);
    });
  }
}

// B21: the key is gone before the lease is given back: the holder hears of it, and who waits gets
// the lease.
TEST_F(HandoffTest, B21ALeaseThatIsMissing) {
  for (const bool scope_exit : {false, true}) {
    until_handed_on([&] {
      const auto log = std::make_shared<EventLog>();
      Client client{proxy.url(), watched_by(patient(), log)};
      auto pair = make_pair(client, asleep());
      server.admin("DEL", "k");
      const auto thrown =
          thrown_by([&] { scope_exit ? pair.lease.reset() : pair.lease->release(); });
      expect_good(*pair.heir);
      EXPECT_LT(pair.heir->took(), at_once + slack);
      // The heir may have been quicker.
      if (!scope_exit) {
        EXPECT_TRUE(thrown.loss == LossReason::missing || thrown.loss == LossReason::taken);
      }
      EXPECT_TRUE(eventually(10s, [&] { return log->of(Event::Kind::lost).size() == 1; }));
    });
  }
}

// B21: another has the key. The heir goes on waiting, and is woken when that one gives it back,
// however long it took to find out.
TEST_F(HandoffTest, B21ALeaseThatIsTaken) {
  for (const bool scope_exit : {false, true}) {
    for (const auto delay : {0ms, 100ms}) {
      until_handed_on([&] {
        const auto log = std::make_shared<EventLog>();
        Client client{proxy.url(), watched_by(patient(), log)};
        auto pair = make_pair(client, asleep());
        server.admin("SET", "k", "stranger", "PX", 60'000);
        proxy.delay_requests(delay, handoff_request);
        const auto thrown =
            thrown_by([&] { scope_exit ? pair.lease.reset() : pair.lease->release(); });
        if (!scope_exit) {
          EXPECT_THAT(thrown, lost(LossReason::taken));
        }
        EXPECT_TRUE(eventually(10s, [&] { return log->of(Event::Kind::lost).size() == 1; }));
        EXPECT_TRUE(always(100ms, [&] { return server.get("k") == "stranger"; }));
        EXPECT_FALSE(pair.heir->done());
        const Stopwatch watch;
        server.admin("DEL", "k");
        expect_good(*pair.heir);
        EXPECT_LT(watch.elapsed(), at_once);
      });
    }
  }
}

// B46, B51: the heir's time ends while the lease is on its way to him, and it never comes to him.
// Who comes to the queue meanwhile is woken when the key gets free.
TEST_F(HandoffTest, B51AnHeirThatIsGoneWhenTheLeaseComes) {
  for (const bool lost : {false, true}) {
    until_handed_on([&] {
      Client client{proxy.url(), {.connect_timeout = long_time, .command_timeout = 2s}};
      auto wait = restless();
      wait.at_most = 500ms;
      auto pair = make_pair(client, wait);
      const auto seen = proxy.requests_seen(handoff_request);
      if (lost) {
        proxy.drop_request_matching(handoff_request, false);
      } else {
        proxy.delay_requests(800ms, handoff_request);
      }
      std::jthread releaser{[&] { EXPECT_THAT(thrown_by_release(*pair.lease), succeeded()); }};
      if (!eventually(200ms, [&] { return proxy.requests_seen(handoff_request) > seen; })) return;
      Waiter newcomer{client, "k", asleep()};
      EXPECT_NO_THROW(EXPECT_FALSE(pair.heir->acquired()));
      const Stopwatch watch;
      expect_good(newcomer);
      EXPECT_LT(watch.elapsed(), at_once);
    });
  }
}

// ---- those who watch ---------------------------------------------------------------------------

// B46: their connections are closed again and again.
TEST_F(HandoffTest, B46WatchingConnectionsAreKilled) {
  Client client{server.url(), patient()};
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  Waiter waiter{client, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  const Stopwatch killing;
  for (int kills = 0; kills < 200 || killing.elapsed() < 2s; ++kills) kill_clients();
  EXPECT_FALSE(waiter.done());
  const Stopwatch watch;
  server.admin("DEL", "k");
  expect_good(waiter);
  EXPECT_LT(watch.elapsed(), at_once);
}

// B46: only one of the two is.
TEST_F(HandoffTest, B46OneOfTheWatchingConnectionsIsKilled) {
  Client client{server.url(), patient()};
  for (const char flag : {'P', 't'}) {
    server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
    Waiter waiter{client, "k", asleep()};
    ASSERT_TRUE(eventually(at_once, [&] { return watching_connections(server) == 2; }));
    for (auto& connection : server.client_list()) {
      if (connection["flags"].find(flag) != std::string::npos) {
        server.admin("CLIENT", "KILL", "ID", connection["id"]);
      }
    }
    const Stopwatch watch;
    server.admin("DEL", "k");
    expect_good(waiter);
    EXPECT_LT(watch.elapsed(), at_once);
  }
}

// B46: the server goes, and comes back without the key.
TEST_F(HandoffTest, B46TheServerIsRestarted) {
  Client client{server.url(), patient()};
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  Waiter waiter{client, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  server.kill();
  EXPECT_TRUE(always(100ms, [&] { return !waiter.done(); }));
  restart_server();
  const Stopwatch watch;
  expect_good(waiter);
  EXPECT_LT(watch.elapsed(), at_once + slack);
}

// B46: a connection that only hears dies without a sign.
TEST_F(HandoffTest, B46StrandedConnections) {
  Client client{proxy.url(), hasty()};
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  Waiter waiter{client, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  proxy.strand_open_connections();
  const Stopwatch watch;
  server.admin("DEL", "k");
  expect_good(waiter);
  EXPECT_LT(watch.elapsed(), at_once);
}

// B46: an answer that never comes while connecting says nothing to those who wait later.
TEST_F(HandoffTest, B46AConnectionThatWasGivenUpWhileItWasMade) {
  Client client{proxy.url(), patient()};
  client.ping();
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  proxy.drop_reply_matching("TRACKING", false);
  EXPECT_FALSE(client.acquire("k", {.at_most = 500ms, .backoff = {.min = 30s, .max = 30s}}));
  ASSERT_TRUE(eventually(at_once, [&] { return watching_connections(server) == 0; }));
  Waiter waiter{client, "k", asleep()};
  ASSERT_TRUE(eventually(at_once, [&] { return watching_connections(server) == 2; }));
  EXPECT_TRUE(always(100ms, [&] { return !waiter.done(); }));
  const Stopwatch watch;
  server.admin("DEL", "k");
  expect_good(waiter);
  EXPECT_LT(watch.elapsed(), at_once);
}

// B12: a client ends while an attempt for its last waiter is under way. The key does not stay.
TEST_F(HandoffTest, B12AClientThatEndsWithAnAttemptUnderWay) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  {
    Client client{proxy.url(), patient()};
    auto wait = asleep();
    wait.at_most = 1500ms;
    Waiter waiter{client, "k", wait, {.ttl = 60s}};
    ASSERT_TRUE(becomes_watched(server));
    proxy.drop_reply_matching("\r\nNX\r\n", false);
    server.admin("DEL", "k");
    EXPECT_TRUE(eventually(1s, [&] { return server.exists("k"); }));
    EXPECT_NO_THROW(EXPECT_FALSE(waiter.acquired()));
  }
  EXPECT_TRUE(becomes_absent("k"));
}

// B12: the same when its connections break.
TEST_F(HandoffTest, B12AnAttemptIsUnderWayWhenTheConnectionsBreak) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  Client client{proxy.url(), patient()};
  Waiter waiter{client, "k", asleep(), {.ttl = 60s}};
  ASSERT_TRUE(becomes_watched(server));
  proxy.drop_reply_matching("\r\nNX\r\n", true);
  const Stopwatch watch;
  server.admin("DEL", "k");
  expect_good(waiter);
  EXPECT_LT(watch.elapsed(), at_once);
}

// B76: clients end as soon as nobody waits.
TEST_F(HandoffTest, B76AClientThatEndsAtOnce) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  std::mt19937 random{76};
  for (int round = 0; round < 100; ++round) {
    std::optional<Client> client{std::in_place, server.url(), patient()};
    const auto at_most = std::chrono::microseconds{std::uniform_int_distribution{1, 5000}(random)};
    std::optional<Lease> own;
    if (round % 2 == 0) own = client->acquire("own", {.at_most = 5s}, {.ttl = 20s});
    // There may be no time to connect.
    try {
      EXPECT_FALSE(client->acquire("k", {.at_most = at_most}));
    } catch (const Error& error) {
      EXPECT_NE(error.code(), make_error_code(errc::rejected)) << error.what();
    }
    client.reset();
  }
  EXPECT_TRUE(eventually(10s, [&] { return client_ids().empty(); }));
  EXPECT_EQ(server.get("k"), "stranger");
  EXPECT_TRUE(becomes_absent("own"));
}

// ---- processes ---------------------------------------------------------------------------------

// B77: a process with waiters forks. The child's use of the client, and its end, do not disturb
// them.
TEST_F(HandoffTest, B77AProcessWithWaitersForks) {
  std::optional<Client> client{std::in_place, server.url(), patient()};
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  {
    Waiter waiter{*client, "k", asleep()};
    ASSERT_TRUE(becomes_watched(server));
    EXPECT_EQ(fork_and_wait([&] {
                { const auto own = must_acquire(*client, "own"); }
                must_acquire(*client, "own").release();
                if (!client->acquire("k", {.at_most = 0s})) return 0;
                return 1;
              }),
              0);
    if (children_have_threads) {
      EXPECT_EQ(fork_and_wait([&] {
                  const auto none = client->acquire("k", {.at_most = 100ms});
                  auto own = client->acquire("own", {.at_most = 10s});
                  if (none || !own) return 1;
                  own->release();
                  client.reset();
                  return 0;
                }),
                0);
    }
    EXPECT_EQ(fork_and_wait([&] { client.reset(); }), 0);
    EXPECT_FALSE(waiter.done());
    const Stopwatch watch;
    server.admin("DEL", "k");
    expect_good(waiter);
    EXPECT_LT(watch.elapsed(), at_once);
  }
  client.reset();
  EXPECT_EQ(server.dbsize(), 0);
}

// B25, B51: a process is stopped while its threads hand leases on. Another one gets the key when
// the lease has run out, and the first one knows later that it lost it.
TEST_F(HandoffTest, B25AProcessIsStoppedInTheMiddle) {
  if (!children_have_threads) GTEST_SKIP() << "the child starts threads";
  struct Shared {
    std::atomic<int> stop, cycles, lost, wrong;
  };
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shared = *new (memory) Shared{};
  constexpr auto ttl = 400ms;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(90);
    try {
      Client client{server.url(), patient()};
      std::vector<std::jthread> threads;
      for (int n = 0; n < 4; ++n) {
        threads.emplace_back([&] {
          while (shared.stop == 0) {
            auto lease = client.acquire("k", {.at_most = 30s}, {.ttl = ttl});
            if (!lease) continue;
            ++shared.cycles;
            if (shared.cycles % 2 == 0) continue;
            const auto thrown = thrown_by_release(*lease);
            if (thrown.loss) ++shared.lost;
            if (!thrown.loss && !thrown.nothing()) ++shared.wrong;
          }
        });
      }
      threads.clear();
    } catch (...) {
      ++shared.wrong;
    }
    ::_exit(0);
  }
  Client client{server.url(), patient()};
  for (int round = 0; round < 10; ++round) {
    const int before = shared.cycles;
    ASSERT_TRUE(eventually(20s, [&] { return shared.cycles > before + 50; }));
    pause_process(child);
    const Stopwatch watch;
    auto lease =
        client.acquire("k", {.at_most = 20s, .backoff = {.min = 10s, .max = 10s}}, {.ttl = 60s});
    ASSERT_TRUE(lease);
    EXPECT_LT(watch.elapsed(), ttl + slack);
    resume_process(child);
    EXPECT_TRUE(always(50ms, [&] { return server.get("k") == lease->token().reveal(); }));
    EXPECT_THAT(thrown_by_release(*lease), succeeded());
  }
  shared.stop = 1;
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(shared.wrong, 0);
  EXPECT_TRUE(becomes_absent("k"));
  ::munmap(memory, sizeof(Shared));
}

// ---- all together ------------------------------------------------------------------------------

// Who believes to hold a key. Holders tell the truth: they claim no more than remaining() says.
class Holders {
 public:
  void take(std::size_t key, const Lease& lease) {
    const auto now = std::chrono::steady_clock::now();
    const auto end = now + lease.remaining();
    const std::lock_guard lock{mutex_};
    auto& until = until_.at(key);
    if (until > now) ++overlaps_;
    until = end;
  }
  void give_up(std::size_t key) {
    const std::lock_guard lock{mutex_};
    until_.at(key) = std::min(until_.at(key), std::chrono::steady_clock::now());
  }
  int overlaps() const { return overlaps_; }

 private:
  std::mutex mutex_;
  std::array<std::chrono::steady_clock::time_point, 3> until_{};
  int overlaps_ = 0;
};

// B20: many threads of several clients, few keys, and all ways to wait for one and to give it back.
TEST_F(HandoffTest, B20ManyCyclesOfAllKinds) {
  constexpr int cycles = 10'000;
  Holders holders;
  std::atomic<int> done{0};
  std::atomic<int> held{0};
  std::mutex mutex;
  std::string trouble;
  {
    std::vector<std::unique_ptr<Client>> clients;
    for (int n = 0; n < 3; ++n)
      clients.push_back(std::make_unique<Client>(server.url(), patient()));
    const auto cycle = [&](Client& client, std::mt19937& random) {
      const auto pick = [&](int n) { return std::uniform_int_distribution{0, n - 1}(random); };
      const auto key = static_cast<std::size_t>(pick(3));
      const LeaseOptions options{.ttl = std::chrono::milliseconds{pick(4) == 0 ? 20 : 2000},
                                 .auto_renew = pick(8) == 0};
      Wait wait{.at_most = std::chrono::milliseconds{pick(4) == 0 ? 5000 : pick(20)}};
      if (pick(8) == 0) wait.attempts = 1 + pick(3);
      if (pick(8) == 0) wait.still_needed = [&] { return pick(4) != 0; };
      auto lease = client.acquire("k" + std::to_string(key), wait, options);
      if (!lease) return;
      if (!lease->held()) return;
      holders.take(key, *lease);
      ++held;
      if (pick(200) == 0) eventually(30ms, [&] { return !lease->held(); });
      if (pick(8) == 0) {
        std::error_code error;
        lease->renew(error);
        if (lease->held()) holders.give_up(key), holders.take(key, *lease);
      }
      holders.give_up(key);
      std::error_code error;
      switch (pick(4)) {
        case 0:
          return;  // the end of the scope
        case 1: {
          const Lease moved{std::move(*lease)};
          return;
        }
        default:
          lease->release(error);
          if (error && error != make_error_code(errc::lost)) {
            throw std::system_error(error);
          }
      }
    };
    std::vector<std::jthread> threads;
    for (unsigned n = 0; n < 12; ++n) {
      threads.emplace_back([&, n] {
        std::mt19937 random{n};
        while (done++ < cycles) {
          try {
            cycle(*clients.at(n % clients.size()), random);
          } catch (const std::system_error& error) {
            // Some milliseconds may be too little for an answer.
            if (error.code() == make_error_code(errc::in_doubt)) continue;
            if (error.code() == make_error_code(errc::unavailable)) continue;
            const std::lock_guard lock{mutex};
            trouble = error.what();
          }
        }
      });
    }
  }
  EXPECT_EQ(trouble, "");
  EXPECT_EQ(holders.overlaps(), 0);
  EXPECT_GT(held, cycles / 4);
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
  EXPECT_TRUE(eventually(10s, [&] { return client_ids().empty(); }));
}

}  // namespace
}  // namespace redlease::test
