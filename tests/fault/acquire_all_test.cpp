// Leases on several keys in a bad world: all or none, whatever gets lost, is late or is refused.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <redlease/store/lua_scripts.hpp>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"
#include "support/waiters.hpp"

namespace redlease::test {
namespace {

using Keys = std::vector<std::string>;

const Keys abc{"a", "b", "c"};

// In the requests that run a script.
std::string needle(const lua::Script& script) { return std::string{script.sha1}; }

// A call of acquire_all() on a thread of its own.
class AllWaiter {
 public:
  AllWaiter(Client& client, Keys keys, Wait wait, LeaseOptions options = {})
      : thread_{[this, &client, keys = std::move(keys), wait = std::move(wait),
                 options = std::move(options)]() mutable {
          const auto original = std::move(wait.still_needed);
          wait.still_needed = [this, &original] {
            ++asked_;
            return !original || original();
          };
          const Stopwatch watch;
          try {
            lease_ = client.acquire_all(keys, wait, options);
          } catch (...) {
            error_ = std::current_exception();
          }
          took_ = watch.elapsed();
          done_ = true;
        }} {}

  bool done() const { return done_; }
  bool asked() const { return asked_ > 0; }
  bool acquired() {
    if (thread_.joinable()) thread_.join();
    if (error_) std::rethrow_exception(error_);
    return lease_.has_value();
  }
  Lease& lease() { return lease_.value(); }
  void drop() { lease_.reset(); }
  std::chrono::nanoseconds took() const { return took_; }

 private:
  std::optional<Lease> lease_;
  std::exception_ptr error_;
  std::chrono::nanoseconds took_{0};
  std::atomic<int> asked_{0};
  std::atomic<bool> done_{false};
  std::jthread thread_;
};

class AcquireAllFaultTest : public FaultTest {
 protected:
  AcquireAllFaultTest() { load_scripts(); }

  void load_scripts() {
    for (const auto& script :
         {lua::acquire, lua::own, lua::handoff_all, lua::renew_many, lua::release_all}) {
      server.admin("SCRIPT", "LOAD", script.text);
    }
  }

  static Lease must_acquire_all(Client& client, const Keys& keys, LeaseOptions options = {}) {
    auto lease = client.try_acquire_all(keys, options);
    if (!lease) throw std::runtime_error("a key is held by another");
    return std::move(*lease);
  }

  static ClientOptions watched_by(ClientOptions options, const std::shared_ptr<Observer>& log) {
    options.observer = log;
    return options;
  }

  void expect_good(const Lease& lease) {
    EXPECT_TRUE(lease.held());
    for (const auto& key : lease.keys()) EXPECT_EQ(server.get(key), lease.token().reveal()) << key;
  }

  bool becomes_empty(std::chrono::nanoseconds at_most = 10s) {
    return eventually(at_most, [&] { return server.dbsize() == 0; });
  }

  // Its debts are paid with what it sends next.
  bool becomes_empty(Client& client) {
    return eventually(10s, [&] {
      static_cast<void>(thrown_by_ping(client));
      return server.dbsize() == 0;
    });
  }

  // One of the keys is not ours any more.
  void take_away(const std::string& key, const std::string& how) {
    server.admin("DEL", key);
    if (how == "taken") server.admin("SET", key, "stranger", "PX", 60'000);
    if (how == "no string") server.admin("LPUSH", key, "stranger");
  }
  // It is as it was left, and the others are free.
  void expect_only(const std::string& key, const std::string& how) {
    EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == (how == "missing" ? 0 : 1); }));
    if (how == "taken") {
      EXPECT_EQ(server.get(key), "stranger");
      EXPECT_GT(server.pttl(key), 50s);
    }
    if (how == "no string") {
      EXPECT_EQ(server.admin("LLEN", key).integer, 1);
    }
    server.admin("DEL", key);
  }
  static LossReason reason_of(const std::string& how) {
    return how == "missing" ? LossReason::missing : LossReason::taken;
  }
  const std::array<std::string, 3> ways_to_lose{"missing", "taken", "no string"};

  FaultProxy proxy{server.port()};
};

// ---- answers that get lost ---------------------------------------------------------------------

// B03: of the acquisition. See also FencingFaultTest.
TEST_F(AcquireAllFaultTest, B03AnAcquisitionInDoubt) {
  for (const bool then_close : {true, false}) {
    for (const bool reply : {true, false}) {
      Client client{proxy.url(), hasty()};
      if (reply) {
        proxy.drop_reply_matching(needle(lua::acquire), then_close);
      } else {
        proxy.drop_request_matching(needle(lua::acquire), then_close);
      }
      auto lease = must_acquire_all(client, abc, {.ttl = 40s});
      EXPECT_LE(lease.remaining(), 40s);
      expect_good(lease);
      EXPECT_THAT(thrown_by_release(lease), succeeded());
      EXPECT_TRUE(becomes_empty(client));
    }
  }
}

// B20: of a renewal. It is repeated, and if it ran in vain the lease is lost, as a whole.
TEST_F(AcquireAllFaultTest, B20ARenewalInDoubt) {
  for (const bool then_close : {true, false}) {
    for (const bool reply : {true, false}) {
      for (const bool loses : {false, true}) {
        Client client{proxy.url(), hasty()};
        auto lease = must_acquire_all(client, abc, {.ttl = 20s});
        if (loses) take_away("b", "taken");
        if (reply) {
          proxy.drop_reply_matching(needle(lua::renew_many), then_close);
        } else {
          proxy.drop_request_matching(needle(lua::renew_many), then_close);
        }
        const auto thrown = thrown_by([&] {
          lease.renew(60s);
          return 0;
        });
        if (!loses) {
          // Twice the time of a command, and both answers may be missing.
          EXPECT_TRUE(thrown.nothing() || thrown.code == errc::in_doubt) << thrown;
          expect_good(lease);
          EXPECT_THAT(thrown_by_release(lease), succeeded());
        } else {
          EXPECT_EQ(thrown.code, make_error_code(errc::lost)) << thrown;
          EXPECT_FALSE(lease.held());
          expect_only("b", "taken");
        }
        EXPECT_TRUE(becomes_empty(client));
      }
    }
  }
}

// B04: of a release. What is ours goes, the lease says what is known, and nobody else suffers.
TEST_F(AcquireAllFaultTest, B04AReleaseInDoubt) {
  for (const bool then_close : {true, false}) {
    for (const bool reply : {true, false}) {
      for (const bool scope_exit : {true, false}) {
        Client client{proxy.url(), hasty()};
        std::optional<Lease> lease{must_acquire_all(client, abc)};
        if (reply) {
          proxy.drop_reply_matching(needle(lua::release_all), then_close);
        } else {
          proxy.drop_request_matching(needle(lua::release_all), then_close);
        }
        const Stopwatch watch;
        if (scope_exit) {
          lease.reset();
        } else {
          const auto thrown = thrown_by_release(*lease);
          if (reply) {
            EXPECT_THAT(thrown, lost(LossReason::unconfirmed));
          } else {
            EXPECT_THAT(thrown, succeeded());
          }
        }
        EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
        EXPECT_TRUE(becomes_empty(client));
      }
    }
  }
}

// B04: some of the keys are gone, and the answer that would have told so is lost. The others are
// freed all the same.
TEST_F(AcquireAllFaultTest, B04AReleaseInDoubtOfALeaseThatIsLost) {
  for (const auto& how : ways_to_lose) {
    for (const auto& key : abc) {
      for (const bool reply : {true, false}) {
        Client client{proxy.url(), hasty()};
        auto lease = must_acquire_all(client, abc);
        take_away(key, how);
        if (reply) {
          proxy.drop_reply_matching(needle(lua::release_all), true);
        } else {
          proxy.drop_request_matching(needle(lua::release_all), true);
        }
        EXPECT_THAT(thrown_by_release(lease), lost(LossReason::unconfirmed));
        expect_only(key, how);
      }
    }
  }
}

// B12: of a handoff. The heir's token is in all keys, so the lease is his.
TEST_F(AcquireAllFaultTest, B12AHandoffInDoubt) {
  for (const bool then_close : {true, false}) {
    for (const bool reply : {true, false}) {
      for (const bool scope_exit : {false, true}) {
        const auto log = std::make_shared<EventLog>();
        Client client{proxy.url(), watched_by(hasty(), log)};
        std::optional<Lease> held{must_acquire_all(client, abc)};
        AllWaiter heir{client, {"c", "b", "a"}, restless(), {.ttl = 40s, .fencing = true}};
        EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
        const auto before = proxy.requests_seen(needle(lua::handoff_all));
        if (reply) {
          proxy.drop_reply_matching(needle(lua::handoff_all), then_close);
        } else {
          proxy.drop_request_matching(needle(lua::handoff_all), then_close);
        }
        const Stopwatch watch;
        if (scope_exit) {
          held.reset();
        } else {
          EXPECT_THAT(thrown_by_release(*held), succeeded());
        }
        EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
        EXPECT_EQ(proxy.requests_seen(needle(lua::handoff_all)) - before, 1U);
        ASSERT_TRUE(heir.acquired());
        EXPECT_LE(heir.lease().remaining(), 40s);
        expect_good(heir.lease());
        EXPECT_THAT(thrown_by_release(heir.lease()), succeeded());
        EXPECT_TRUE(eventually(10s, [&] { return !log->of(Event::Kind::released).empty(); }));
        // The end of the scope takes the time of one command, not of two.
        if (!scope_exit || then_close) {
          EXPECT_THAT(log->of(Event::Kind::lost), testing::IsEmpty());
        }
        server.admin("DEL", "{a}:redlease:fence", "{b}:redlease:fence", "{c}:redlease:fence");
        EXPECT_TRUE(becomes_empty(client));
      }
    }
  }
}

// B12: the request of a handoff runs when all is over. It finds nothing to hand on.
TEST_F(AcquireAllFaultTest, B12ALateHandoff) {
  Client client{proxy.url(), hasty()};
  auto held = must_acquire_all(client, abc);
  AllWaiter heir{client, abc, restless()};
  EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
  proxy.delay_requests(2 * short_time, needle(lua::handoff_all));
  static_cast<void>(thrown_by_release(held));
  ASSERT_TRUE(heir.acquired());
  expect_good(heir.lease());
  EXPECT_THAT(thrown_by_release(heir.lease()), succeeded());
  EXPECT_TRUE(always(2 * short_time, [&] { return server.dbsize() == 0; }));
}

// ---- keys that are lost ------------------------------------------------------------------------

// B21: one of them, before each of the verbs.
TEST_F(AcquireAllFaultTest, B21OneKeyIsLost) {
  const std::array<std::function<void(std::optional<Lease>&)>, 3> verbs{
      [](auto& lease) { lease->renew(); },
      [](auto& lease) { lease->release(); },
      [](auto& lease) { lease.reset(); },
  };
  for (const auto& verb : verbs) {
    for (const auto& how : ways_to_lose) {
      for (const auto& key : abc) {
        const auto log = std::make_shared<EventLog>();
        Client client{server.url(), watched_by(patient(), log)};
        std::optional<Lease> lease{must_acquire_all(client, abc)};
        take_away(key, how);
        const auto thrown = thrown_by([&] {
          verb(lease);
          return 0;
        });
        if (lease) {
          EXPECT_EQ(thrown.code, make_error_code(errc::lost)) << thrown;
          EXPECT_FALSE(lease->held());
        }
        ASSERT_TRUE(log->has(Event::Kind::lost));
        // A renewal of several asks with MGET, to which a key that is no string is as good as none.
        if (how != "no string") {
          EXPECT_EQ(log->of(Event::Kind::lost)[0].reason, reason_of(how));
        }
        expect_only(key, how);
      }
    }
  }
}

// B21: before it is handed on. Neither has it, and whoever waits gets it when all are free.
TEST_F(AcquireAllFaultTest, B21OneKeyIsLostBeforeTheHandoff) {
  for (const auto& how : ways_to_lose) {
    for (const bool scope_exit : {false, true}) {
      const auto log = std::make_shared<EventLog>();
      Client client{proxy.url(), watched_by(patient(), log)};
      std::optional<Lease> held{must_acquire_all(client, abc)};
      AllWaiter heir{client, abc, restless()};
      EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
      take_away("b", how);
      const auto thrown = thrown_by([&] {
        scope_exit ? held.reset() : held->release();
        return 0;
      });
      if (!scope_exit) {
        EXPECT_THAT(thrown, lost(reason_of(how)));
      }
      EXPECT_TRUE(log->has(Event::Kind::lost));
      if (how != "missing") {
        EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 1; })) << "the others are free";
        EXPECT_FALSE(heir.done());
        server.admin("DEL", "b");
      }
      ASSERT_TRUE(heir.acquired());
      expect_good(heir.lease());
      heir.drop();
      EXPECT_TRUE(becomes_empty(client));
    }
  }
}

// B21: under the keeper, and among others.
TEST_F(AcquireAllFaultTest, B21OneKeyIsLostUnderTheKeeper) {
  Client client{server.url(), patient()};
  for (const auto& how : ways_to_lose) {
    auto lease = must_acquire_all(client, abc, kept(60s, 20ms));
    auto neighbour = must_acquire_all(client, {"d", "e"}, kept(60s, 20ms));
    auto single = must_acquire(client, "f", kept(60s, 20ms));
    const auto over = lease.stop_token();
    take_away("b", how);
    EXPECT_TRUE(eventually(10s, [&] { return over.stop_requested(); }));
    EXPECT_TRUE(lease.loss().has_value());
    EXPECT_TRUE(eventually(10s, [&] { return !server.exists("a") && !server.exists("c"); }));
    EXPECT_TRUE(always(100ms, [&] { return neighbour.held() && single.held(); }));
    EXPECT_THAT(thrown_by_release(neighbour), succeeded());
    EXPECT_THAT(thrown_by_release(single), succeeded());
    expect_only("b", how);
  }
}

// B23: one key ends before the others.
TEST_F(AcquireAllFaultTest, B23OneKeyExpires) {
  Client client{server.url(), patient()};
  auto lease = must_acquire_all(client, abc);
  server.admin("PEXPIRE", "b", 1);
  EXPECT_TRUE(becomes_absent("b"));
  EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::missing));
  EXPECT_TRUE(becomes_empty(1s));
}

// ---- a server that is silent or refuses --------------------------------------------------------

// B49: each call has its bound, also the end of the scope.
TEST_F(AcquireAllFaultTest, B49BoundsOfEachCall) {
  for (const bool stopped : {true, false}) {
    Client client{proxy.url(), hasty()};
    auto lease = std::optional<Lease>{must_acquire_all(client, abc, kept(60s, 20s))};
    auto second = std::optional<Lease>{must_acquire_all(client, {"d", "e"})};
    stopped ? server.pause() : proxy.black_hole(true);
    const auto bounded = [](auto&& call) {
      const Stopwatch watch;
      static_cast<void>(thrown_by([&] {
        call();
        return 0;
      }));
      EXPECT_LT(watch.elapsed(), 3 * short_time + slack);
    };
    bounded([&] { lease->renew(); });
    bounded([&] { (void)client.try_acquire_all({"x", "y"}); });
    bounded([&] { lease->release(); });
    EXPECT_FALSE(lease->held()) << "a release is in doubt";
    bounded([&] { lease.reset(); });
    bounded([&] { second.reset(); });
    const Stopwatch watch;
    EXPECT_FALSE(thrown_by([&] {
                   return client.acquire_all({"x", "y"}, {.at_most = 200ms});
                 }).nothing());
    EXPECT_LT(watch.elapsed(), 200ms + slack);
    stopped ? server.resume() : proxy.black_hole(false);
    EXPECT_TRUE(becomes_empty(client));
  }
}

// B49: a wait ends in time, whatever goes on.
TEST_F(AcquireAllFaultTest, B49AWaitEndsInTime) {
  Client client{proxy.url(), {.connect_timeout = 5s, .command_timeout = 5s}};
  server.admin("SET", "b", "stranger", "PX", 60'000);
  const auto wait_so_long = [&](std::chrono::milliseconds at_most) {
    const Stopwatch watch;
    const auto thrown = thrown_by([&] { return client.acquire_all(abc, {.at_most = at_most}); });
    EXPECT_LT(watch.elapsed(), at_most + slack);
    return thrown;
  };
  EXPECT_THAT(wait_so_long(300ms), succeeded());
  std::jthread pausing{[&] {
    eventually(100ms, [] { return false; });
    server.pause();
  }};
  static_cast<void>(wait_so_long(300ms));
  pausing.join();
  EXPECT_FALSE(wait_so_long(300ms).nothing());
  server.resume();
  proxy.black_hole(true);
  EXPECT_FALSE(wait_so_long(300ms).nothing());
  proxy.black_hole(false);
  server.admin("DEL", "b");
  EXPECT_TRUE(becomes_empty(client));
}

// B38: an unreachable server is not busy, for none of those who wait behind one another.
TEST_F(AcquireAllFaultTest, B38AllWhoWaitHearOfADeadServer) {
  server.admin("SET", "b", "stranger", "PX", 60'000);
  Client client{server.url(), hasty()};
  const Wait wait{.at_most = 2s, .backoff = {.min = 5ms, .max = 10ms}};
  std::vector<std::unique_ptr<AllWaiter>> waiters;
  for (int i = 0; i < 4; ++i) waiters.push_back(std::make_unique<AllWaiter>(client, abc, wait));
  EXPECT_TRUE(eventually(10s, [&] {
    return std::all_of(waiters.begin(), waiters.end(), [](auto& each) { return each->asked(); });
  }));
  server.pause();
  for (auto& each : waiters) EXPECT_THROW(static_cast<void>(each->acquired()), Error);
  server.resume();
}

// B65: without memory nothing is taken, and what is held is renewed and given back, to a waiter
// later.
TEST_F(AcquireAllFaultTest, B65AServerWithoutMemory) {
  for (const bool scope_exit : {false, true}) {
    Client client{server.url(), patient()};
    auto held = std::optional<Lease>{must_acquire_all(client, abc)};
    AllWaiter heir{client, abc, restless()};
    EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
    server.config_set("maxmemory", "1");
    EXPECT_THAT(thrown_by([&] {
                  return client.try_acquire_all({"x", "y"});
                }),
                failed(errc::rejected, "OOM"));
    EXPECT_THAT(thrown_by_renew(*held), succeeded());
    if (scope_exit) {
      held.reset();
    } else {
      EXPECT_THAT(thrown_by_release(*held), succeeded());
    }
    EXPECT_TRUE(becomes_empty());
    EXPECT_FALSE(heir.done());
    server.config_set("maxmemory", "0");
    ASSERT_TRUE(heir.acquired());
    expect_good(heir.lease());
    heir.drop();
    EXPECT_TRUE(becomes_empty(client));
  }
}

// B57
TEST_F(AcquireAllFaultTest, B57ScriptsAreForgottenAllTheTime) {
  Client client{server.url(), patient()};
  std::atomic<bool> enough{false};
  std::jthread saboteur{[&] {
    while (!enough) server.admin("SCRIPT", "FLUSH");
  }};
  auto under_keeper = must_acquire_all(client, {"d", "e"}, kept(60s, 20ms));
  for (int i = 0; i < 30; ++i) {
    auto lease = std::optional<Lease>{must_acquire_all(client, abc)};
    EXPECT_THAT(thrown_by_renew(*lease), succeeded());
    AllWaiter heir{client, abc, restless()};
    EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
    if (i % 2 == 0) {
      lease.reset();
    } else {
      EXPECT_THAT(thrown_by_release(*lease), succeeded());
    }
    ASSERT_TRUE(heir.acquired());
    expect_good(heir.lease());
    EXPECT_THAT(thrown_by_release(heir.lease()), succeeded());
  }
  EXPECT_TRUE(under_keeper.held());
  EXPECT_THAT(thrown_by_release(under_keeper), succeeded());
  enough = true;
  saboteur.join();
  EXPECT_TRUE(becomes_empty(client));
}

// B42, B65: a user who loses rights while the lease is held. A refusal changes nothing: the lease
// is held, with its token, and can be given back when the rights are there again.
TEST_F(AcquireAllFaultTest, B65ARefusedReleaseLeavesTheLeaseHeld) {
  const std::array<Keys, 5> fewer_rights{
      Keys{"resetkeys", "~a"},                  // the other keys are not to be seen
      Keys{"resetkeys", "~a", "%R~b", "%R~c"},  // or only to be looked at
      Keys{"-del"},
      Keys{"-get"},
      Keys{"-evalsha", "-eval"},
  };
  const auto grant = [&](const Keys& rights) {
    std::vector<std::string> rule{"ACL", "SETUSER", "poor"};
    rule.insert(rule.end(), rights.begin(), rights.end());
    ASSERT_TRUE(server.admin_command(rule).is_ok());
  };
  for (std::size_t i = 0; i < fewer_rights.size(); ++i) {
    for (const bool waited_for : {false, true}) {
      if (waited_for && fewer_rights.at(i)[0] == "-del") continue;  // to hand it on takes none
      grant({"reset", "on", "nopass", "~*", "&*", "+@all"});
      auto options = patient();
      options.username = "poor";
      options.password = "any";
      Client poor{server.url(), options};
      auto lease = must_acquire_all(poor, abc, {.ttl = 60s});
      std::optional<AllWaiter> heir;
      if (waited_for) {
        heir.emplace(poor, abc, Wait{.at_most = 500ms});
        EXPECT_TRUE(eventually(at_once, [&] { return heir->asked() || heir->done(); }));
      }
      grant(fewer_rights.at(i));
      EXPECT_THAT(thrown_by_release(lease), failed(errc::rejected)) << i << " " << waited_for;
      EXPECT_TRUE(lease.held()) << i << " " << waited_for;
      for (const auto& key : abc) EXPECT_EQ(server.get(key), lease.token().reveal()) << key << i;
      grant({"~*", "+@all"});
      EXPECT_TRUE(thrown_by_release(lease).nothing()) << i << " " << waited_for;
      if (heir) static_cast<void>(thrown_by([&] { return heir->acquired(); }));
      heir.reset();
      server.admin("FLUSHALL");
    }
  }
}

// B65: the same of a renewal, by hand and by the keeper.
TEST_F(AcquireAllFaultTest, B65ARefusedRenewalLeavesTheLeaseHeld) {
  server.admin("ACL", "SETUSER", "poor", "reset", "on", "nopass", "~*", "&*", "+@all");
  auto options = patient();
  options.username = "poor";
  options.password = "any";
  Client poor{server.url(), options};
  auto by_hand = must_acquire_all(poor, abc, {.ttl = 60s});
  auto by_keeper = must_acquire_all(poor, {"d", "e"}, kept(60s, 20ms));
  auto neighbour = must_acquire_all(poor, {"a1", "a2"}, kept(1500ms, 100ms));
  server.admin("ACL", "SETUSER", "poor", "resetkeys", "~a*");
  EXPECT_THAT(thrown_by_renew(by_hand), failed(errc::rejected));
  EXPECT_TRUE(always(2s, [&] { return by_hand.held() && by_keeper.held() && neighbour.held(); }));
  server.admin("ACL", "SETUSER", "poor", "~*");
  EXPECT_THAT(thrown_by_renew(by_hand), succeeded());
  EXPECT_THAT(thrown_by_release(by_hand), succeeded());
  EXPECT_THAT(thrown_by_release(by_keeper), succeeded());
  EXPECT_THAT(thrown_by_release(neighbour), succeeded());
  EXPECT_TRUE(becomes_empty(poor));
}

// B44: a user who may see some of the keys only. Nothing is taken.
TEST_F(AcquireAllFaultTest, B44AUserWithFewRights) {
  for (const Keys& rights : {Keys{"~a*"}, Keys{"~a", "%R~b", "~c"}, Keys{"~a", "~b", "%R~c"}}) {
    std::vector<std::string> rule{"ACL", "SETUSER", "poor", "reset", "on", "nopass", "+@all"};
    rule.insert(rule.end(), rights.begin(), rights.end());
    ASSERT_TRUE(server.admin_command(rule).is_ok());
    auto options = patient();
    options.username = "poor";
    options.password = "any";
    Client poor{server.url(), options};
    EXPECT_THAT(thrown_by([&] { return poor.try_acquire_all(abc); }), failed(errc::rejected));
    EXPECT_THAT(thrown_by([&] { return poor.acquire_all(abc, {.at_most = 1s}); }),
                failed(errc::rejected));
    EXPECT_EQ(server.dbsize(), 0);
  }
}

// ---- keys of all kinds -------------------------------------------------------------------------

TEST_F(AcquireAllFaultTest, ManyKeysLongKeysBinaryKeys) {
  using namespace std::string_literals;
  Client client{server.url(), patient()};
  Keys many;
  for (int i = 0; i < 1000; ++i) many.push_back("key:" + std::to_string(i % 990));  // duplicates
  Keys longest;
  for (int i = 0; i < 6; ++i) longest.push_back(std::to_string(i) + std::string(65530, 'x'));
  for (auto& key : longest) key.resize(65536, '\0');
  const Keys binary{"\0"s, "\r\n"s, "\0\0"s, "$5\r\n"s, "{}"s, "a}b{c"s, "\xff\xfe"s, " "s, "{a}"s};
  for (const auto& keys : {many, longest, binary}) {
    const std::set<std::string> distinct{keys.begin(), keys.end()};
    for (const bool has_numbers : {false, true}) {
      auto lease = must_acquire_all(
          client, keys,
          {.ttl = 60s, .auto_renew = true, .renew_every = Duration{100ms}, .fencing = has_numbers});
      EXPECT_EQ(lease.keys().size(), distinct.size());
      expect_good(lease);
      EXPECT_FALSE(client.try_acquire_all(keys));
      lease.renew(100s);
      EXPECT_TRUE(always(300ms, [&] { return lease.held(); }));
      for (const auto& key : distinct) EXPECT_GT(server.pttl(key), 50s);
      AllWaiter heir{client, keys, restless()};
      EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
      EXPECT_THAT(thrown_by_release(lease), succeeded());
      ASSERT_TRUE(heir.acquired());
      expect_good(heir.lease());
      heir.drop();
      EXPECT_EQ(server.dbsize(), has_numbers ? static_cast<long long>(distinct.size()) : 0);
    }
    server.admin("FLUSHALL");
  }
}

// ---- the keeper --------------------------------------------------------------------------------

// B12: hundreds of leases, on few keys and on hundreds, whose connection breaks again and again.
TEST_F(AcquireAllFaultTest, B12HundredsOfLeasesUnderTheKeeper) {
  Client client{proxy.url(), patient()};
  std::vector<Lease> leases;
  std::size_t keys = 0;
  const auto options = kept(20s, 50ms);
  for (int i = 0; i < 200; ++i) {
    Keys some;
    for (int k = 0; k < 1 + i % 5; ++k) some.push_back(std::to_string(i) + ":" + std::to_string(k));
    if (i % 50 == 7) {
      for (int k = 0; k < 300; ++k) some.push_back(std::to_string(i) + ":x" + std::to_string(k));
    }
    leases.push_back(must_acquire_all(client, some, options));
    keys += leases.back().keys().size();
  }
  EXPECT_EQ(server.dbsize(), static_cast<long long>(keys));
  const auto all_held = [&] {
    return std::all_of(leases.begin(), leases.end(), [](const Lease& l) { return l.held(); });
  };
  for (int round = 0; round < 10; ++round) {
    proxy.drop_reply_matching(needle(lua::renew_many), true);
    if (round % 3 == 0) server.admin("SCRIPT", "FLUSH");
    if (round % 4 == 3) proxy.reset_all();
    EXPECT_TRUE(always(100ms, all_held));
  }
  proxy.pass_through();
  // All of them were renewed in the end: none is nearer to its end than some renewals ago.
  EXPECT_TRUE(eventually(20s, [&] {
    return std::all_of(leases.begin(), leases.end(),
                       [](const Lease& l) { return l.remaining() > 19s; });
  }));
  // And of those that are lost only those.
  std::set<std::size_t> unlucky{3, 7, 57, 107, 199};
  for (const auto i : unlucky) server.admin("DEL", leases.at(i).keys().back());
  EXPECT_TRUE(eventually(10s, [&] {
    return std::none_of(unlucky.begin(), unlucky.end(),
                        [&](std::size_t i) { return leases.at(i).held(); });
  }));
  for (const auto i : unlucky) keys -= leases.at(i).keys().size();
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == static_cast<long long>(keys); }));
  for (std::size_t i = 0; i < leases.size(); ++i) {
    EXPECT_EQ(leases.at(i).held(), !unlucky.contains(i)) << i;
  }
  leases.clear();
  EXPECT_TRUE(becomes_empty(client));
}

// B21: all keys of a thousand are gone, and those of 99 others that are renewed with them.
TEST_F(AcquireAllFaultTest, B21AThousandKeysAreLostAtOnce) {
  Client client{server.url(), patient()};
  std::vector<Lease> leases;
  const auto options = kept(60s, 500ms);
  for (int i = 0; i < 99; ++i) {
    leases.push_back(must_acquire(client, "single:" + std::to_string(i), options));
  }
  Keys thousand;
  for (int i = 0; i < 1000; ++i) thousand.push_back("key:" + std::to_string(i));
  leases.push_back(must_acquire_all(client, thousand, options));
  server.admin("FLUSHALL");
  EXPECT_TRUE(eventually(10s, [&] {
    return std::none_of(leases.begin(), leases.end(), [](const Lease& l) { return l.held(); });
  }));
  EXPECT_EQ(server.dbsize(), 0);
}

// ---- waiting -----------------------------------------------------------------------------------

// B46: 500 rounds in which the blockers go a moment after the attempt, one after the other, each
// some way or other. Nobody polls.
TEST_F(AcquireAllFaultTest, B46NoWakeUpIsLost) {
  constexpr int rounds = sanitized ? 100 : 500;
  Client client{server.url(), patient()};
  Client other{server.url(), patient()};
  std::mt19937 random{7};
  std::chrono::nanoseconds worst{0};
  for (int round = 0; round < rounds; ++round) {
    const auto pick = [&](int n) { return std::uniform_int_distribution{0, n - 1}(random); };
    std::vector<Lease> blockers;
    for (const auto& key : abc) {
      if (pick(3) == 0) continue;
      blockers.push_back(must_acquire(pick(2) == 0 ? client : other, key));
    }
    std::shuffle(blockers.begin(), blockers.end(), random);
    AllWaiter waiter{client, abc, asleep(), {.fencing = pick(2) == 0}};
    while (!blockers.empty()) {
      eventually(std::chrono::microseconds{pick(5000)}, [] { return false; });
      auto blocker = std::move(blockers.back());
      blockers.pop_back();
      if (pick(2) == 0) blocker.release();
    }
    const Stopwatch watch;
    ASSERT_TRUE(eventually(20s, [&] { return waiter.done(); })) << "round " << round;
    worst = std::max(worst, watch.elapsed());
    ASSERT_TRUE(waiter.acquired());
  }
  EXPECT_LT(worst, at_once);
  RecordProperty("worst_ms", static_cast<int>(worst / 1ms));
}

// B46: many who want overlapping keys, each of whom sleeps for 30 s unless he is woken.
TEST_F(AcquireAllFaultTest, B46ACrowdIsServedWithoutPolling) {
  Client client{server.url(), patient()};
  Client other{server.url(), patient()};
  std::vector<Lease> blockers;
  for (const auto* key : {"a", "b", "c", "d"}) blockers.push_back(must_acquire(other, key));
  const Keys all{"a", "b", "c", "d"};
  std::mt19937 random{3};
  std::vector<std::unique_ptr<AllWaiter>> crowd;
  std::atomic<int> served{0};
  std::vector<std::jthread> threads;
  for (int n = 0; n < 16; ++n) {
    auto keys = all;
    std::shuffle(keys.begin(), keys.end(), random);
    keys.resize(static_cast<std::size_t>(1 + n % 4));
    threads.emplace_back([&, keys, n] {
      auto lease = (n % 3 == 0 ? other : client).acquire_all(keys, asleep());
      if (lease) ++served;
      if (lease && n % 2 == 0) lease->release();
    });
  }
  EXPECT_TRUE(becomes_watched(server, 4));
  blockers.clear();
  const Stopwatch watch;
  EXPECT_TRUE(eventually(at_once + slack, [&] { return served == 16; })) << served;
  threads.clear();
  EXPECT_TRUE(becomes_empty(client));
}

// B46: those who wait get by when their watching connections are closed all the time, or the server
// comes back without the keys.
TEST_F(AcquireAllFaultTest, B46WatchingConnectionsBreak) {
  Client client{server.url(), patient()};
  server.admin("SET", "b", "stranger", "PX", 60'000);
  AllWaiter waiter{client, abc, asleep()};
  ASSERT_TRUE(becomes_watched(server));
  for (int kills = 0; kills < 100; ++kills) kill_clients();
  EXPECT_FALSE(waiter.done());
  server.admin("DEL", "b");
  EXPECT_TRUE(eventually(at_once, [&] { return waiter.done(); }));
  ASSERT_TRUE(waiter.acquired());
  waiter.drop();
  server.admin("SET", "c", "stranger", "PX", 60'000);
  AllWaiter second{client, abc, asleep()};
  ASSERT_TRUE(becomes_watched(server));
  server.kill();
  restart_server();
  EXPECT_TRUE(eventually(at_once + slack, [&] { return second.done(); }));
  ASSERT_TRUE(second.acquired());
  expect_good(second.lease());
}

// B50: when a lease on all of them was given back, nobody queues up for a key that is free.
TEST_F(AcquireAllFaultTest, B50AFreeKeyIsHadAtOnce) {
  Client client{server.url(), patient()};
  const auto asks_at_once = [&] {
    server.admin("SET", "a", "stranger", "PX", 60'000);
    AllWaiter waiter{client, abc, asleep()};
    EXPECT_TRUE(becomes_watched(server));
    server.admin("DEL", "a");
    EXPECT_TRUE(waiter.acquired());
    EXPECT_THAT(thrown_by_release(waiter.lease()), succeeded());
    monitor.sync();
    const auto before = monitor.lines().size();
    auto lease = client.acquire("a", {.at_most = 10s});
    EXPECT_TRUE(lease);
    monitor.sync();
    return monitor.lines().at(before).args.at(0) == "SET";
  };
  // A look that was under way comes first now and then.
  bool at_once_once = false;
  for (int times = 0; times < 10 && !at_once_once; ++times) at_once_once = asks_at_once();
  EXPECT_TRUE(at_once_once);
}

// B51: the heir's time ends while the lease is on its way to him. It doesn't stay behind.
TEST_F(AcquireAllFaultTest, B51AnHeirThatIsGoneWhenTheLeaseComes) {
  Client client{proxy.url(), {.connect_timeout = long_time, .command_timeout = 2s}};
  auto held = must_acquire_all(client, abc);
  auto wait = restless();
  wait.at_most = 500ms;
  AllWaiter heir{client, abc, wait, {.ttl = 60s}};
  EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
  proxy.delay_requests(800ms, needle(lua::handoff_all));
  EXPECT_THAT(thrown_by_release(held), succeeded());
  static_cast<void>(thrown_by([&] { return heir.acquired(); }));
  heir.drop();
  EXPECT_TRUE(becomes_empty(client));
}

// B55: one who is granted the lease and doesn't need it any more gives it back, also when the
// server has just forgotten how.
TEST_F(AcquireAllFaultTest, B57AGrantThatIsNotNeededWhenScriptsAreForgotten) {
  for (const auto& keys : {Keys{"a"}, abc}) {
    Client client{server.url(), patient()};
    auto held = std::optional<Lease>{must_acquire_all(client, keys, {.ttl = 60s})};
    auto wait = restless();
    wait.still_needed = [&] {
      if (server.get("a") == held->token().reveal()) return true;
      must_acquire(client, "x").release();  // the script is in the cache
      server.admin("SCRIPT", "FLUSH");
      return false;
    };
    AllWaiter heir{client, keys, wait, {.ttl = 60s}};
    EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
    EXPECT_THAT(thrown_by_release(*held), succeeded());
    EXPECT_FALSE(heir.acquired());
    EXPECT_TRUE(becomes_empty(client)) << keys.size() << " keys";
    server.admin("FLUSHALL");
  }
}

// ---- processes and clients ---------------------------------------------------------------------

// B35: the child's copy does nothing, and the child may take leases of its own.
TEST_F(AcquireAllFaultTest, B35AfterAFork) {
  std::optional<Client> client{std::in_place, server.url(), patient()};
  auto lease = std::optional<Lease>{must_acquire_all(*client, abc, kept(60s, 20ms))};
  EXPECT_EQ(fork_and_wait([&] {
              if (lease->held()) return 1;
              if (thrown_by_release(*lease).nothing() || thrown_by_renew(*lease).nothing())
                return 2;
              if (client->try_acquire_all({"c", "d"})) return 3;
              auto own = client->try_acquire_all({"d", "e"});
              if (!own || !own->held()) return 4;
              own->release();
              { const auto scope = client->try_acquire_all({"d", "e"}); }
              lease.reset();
              return 0;
            }),
            0);
  expect_good(*lease);
  EXPECT_EQ(server.dbsize(), 3);
  EXPECT_THAT(thrown_by_release(*lease), succeeded());
  EXPECT_TRUE(becomes_empty());
}

// B18: the lease goes on when its client is gone, and ends with its own scope.
TEST_F(AcquireAllFaultTest, B18ALeaseThatOutlivesItsClient) {
  for (const bool scope_exit : {true, false}) {
    std::optional<Lease> lease;
    {
      Client client{server.url(), patient()};
      lease = client.try_acquire_all(abc, kept(800ms, 100ms));
    }
    ASSERT_TRUE(lease);
    EXPECT_TRUE(always(1200ms, [&] { return lease->held(); }));
    EXPECT_THAT(thrown_by_renew(*lease), succeeded());
    if (!scope_exit) {
      EXPECT_THAT(thrown_by_release(*lease), succeeded());
    }
    lease.reset();
    EXPECT_EQ(server.dbsize(), 0);
  }
}

// B04, B49: the last lease of a client that is gone, and the server stands still.
TEST_F(AcquireAllFaultTest, B49TheLastLeaseOfAClientThatIsGone) {
  std::optional<Lease> lease;
  {
    Client client{server.url(), hasty()};
    lease = client.try_acquire_all(abc, {.ttl = 20s});
  }
  ASSERT_TRUE(lease);
  server.pause();
  const Stopwatch watch;
  lease.reset();
  EXPECT_LT(watch.elapsed(), 4 * short_time + slack);
  server.resume();
  EXPECT_TRUE(becomes_empty()) << "what was written runs";
}

// B25: a process that is stopped for longer than its leases last. It learns that it lost them, and
// leaves those of others alone.
TEST_F(AcquireAllFaultTest, B25AProcessIsStopped) {
  if (!children_have_threads) GTEST_SKIP() << "the child starts threads";
  struct Shared {
    std::atomic<int> stop, cycles, lost, wrong;
  };
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shared = *new (memory) Shared{};
  constexpr auto ttl = 400ms;
  Child child{[&] {
    Client client{server.url(), patient()};
    std::vector<std::jthread> threads;
    for (int n = 0; n < 3; ++n) {
      threads.emplace_back([&, n] {
        while (shared.stop == 0) {
          auto lease = client.acquire_all({"a", n == 0 ? "b" : "c"}, {.at_most = 30s},
                                          {.ttl = ttl, .auto_renew = n == 1});
          if (!lease) continue;
          if (++shared.cycles % 2 == 0) continue;
          const auto thrown = thrown_by_release(*lease);
          if (thrown.loss) ++shared.lost;
          if (!thrown.loss && !thrown.nothing()) ++shared.wrong;
        }
      });
    }
    return 0;
  }};
  Client client{server.url(), patient()};
  for (int round = 0; round < 5; ++round) {
    const int before = shared.cycles;
    ASSERT_TRUE(eventually(20s, [&] { return shared.cycles > before + 30; }));
    pause_process(child.pid());
    const Stopwatch watch;
    auto lease = client.acquire_all(abc, asleep(), {.ttl = 60s});
    EXPECT_LT(watch.elapsed(), at_once);
    resume_process(child.pid());
    ASSERT_TRUE(lease);
    EXPECT_TRUE(always(50ms, [&] { return server.get("a") == lease->token().reveal(); }));
    expect_good(*lease);
    EXPECT_THAT(thrown_by_release(*lease), succeeded());
  }
  shared.stop = 1;
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(shared.wrong, 0);
  EXPECT_TRUE(becomes_empty());
  ::munmap(memory, sizeof(Shared));
}

// ---- all together ------------------------------------------------------------------------------

// Who believes to hold which keys. Holders claim no more than remaining() says.
class Holders {
 public:
  void take(const Lease& lease) {
    const auto now = std::chrono::steady_clock::now();
    const auto end = now + lease.remaining();
    const std::lock_guard lock{mutex_};
    for (const auto& key : lease.keys()) {
      auto& until = until_[key];
      if (until > now) ++overlaps_;
      until = end;
    }
  }
  void give_up(const Lease& lease) {
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock{mutex_};
    for (const auto& key : lease.keys()) until_[key] = std::min(until_[key], now);
  }
  int overlaps() const { return overlaps_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::chrono::steady_clock::time_point> until_;
  int overlaps_ = 0;
};

struct Tally {
  Holders holders;
  std::atomic<int> held{0};
  std::atomic<int> late{0};  // waits that took longer than they may
};

void one_cycle(Client& client, std::mt19937& random, Tally& tally) {
  const auto pick = [&](int n) { return std::uniform_int_distribution{0, n - 1}(random); };
  Keys keys{"k0", "k1", "k2", "k3"};
  std::shuffle(keys.begin(), keys.end(), random);
  keys.resize(1 + static_cast<std::size_t>(pick(4)));
  const LeaseOptions options{.ttl = std::chrono::milliseconds{pick(6) == 0 ? 30 : 5000},
                             .auto_renew = pick(8) == 0,
                             .fencing = pick(3) == 0};
  Wait wait{.at_most = std::chrono::milliseconds{pick(3) == 0 ? 5000 : pick(30)}};
  if (pick(8) == 0) wait.attempts = 1 + pick(3);
  if (pick(8) == 0) wait.still_needed = [&] { return pick(4) != 0; };
  if (keys.size() == 1 && pick(3) == 0) wait.order = Order::fifo;
  const Stopwatch watch;
  auto lease = client.acquire_all(keys, wait, options);
  if (watch.elapsed() > wait.at_most.value() + at_once) ++tally.late;
  if (!lease || !lease->held()) return;
  tally.holders.take(*lease);
  ++tally.held;
  if (pick(50) == 0) eventually(40ms, [&] { return !lease->held(); });
  std::error_code error;
  if (pick(8) == 0) {
    lease->renew(error);
    if (lease->held()) {
      tally.holders.give_up(*lease);
      tally.holders.take(*lease);
    }
  }
  tally.holders.give_up(*lease);
  if (pick(2) == 0) return;  // the end of the scope
  lease->release(error);
  if (error && error != make_error_code(errc::lost)) throw std::system_error(error);
}

// B20: leases on one to four of four keys, of several clients, of all kinds.
TEST_F(AcquireAllFaultTest, B20ManyCyclesOfAllKinds) {
  constexpr int cycles = sanitized ? 3'000 : 5'000;
  Tally tally;
  std::atomic<int> done{0};
  std::mutex mutex;
  std::set<std::string> trouble;
  {
    std::vector<Client> clients;
    for (int n = 0; n < 3; ++n) clients.emplace_back(server.url(), patient());
    std::vector<std::jthread> threads;
    for (unsigned n = 0; n < 12; ++n) {
      threads.emplace_back([&, n] {
        std::mt19937 random{n};
        while (done++ < cycles) {
          try {
            one_cycle(clients.at(n % clients.size()), random, tally);
          } catch (const std::system_error& error) {
            // Some milliseconds may be too little for an answer.
            if (error.code() == make_error_code(errc::in_doubt)) continue;
            if (error.code() == make_error_code(errc::unavailable)) continue;
            const std::lock_guard lock{mutex};
            trouble.insert(error.what());
          }
        }
      });
    }
  }
  EXPECT_THAT(trouble, testing::IsEmpty());
  EXPECT_EQ(tally.holders.overlaps(), 0);
  EXPECT_EQ(tally.late, 0);
  EXPECT_GT(tally.held, cycles / 5);
  for (int k = 0; k < 4; ++k) {
    server.admin("DEL", "{k" + std::to_string(k) + "}:redlease:fence");
  }
  EXPECT_TRUE(becomes_empty());
  EXPECT_TRUE(eventually(10s, [&] { return client_ids().empty(); }));
}

}  // namespace
}  // namespace redlease::test
