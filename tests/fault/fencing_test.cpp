// Fencing numbers in a bad world: whatever gets lost, is late or is refused, they rise strictly,
// and number and token belong together.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <redlease/core/key_slot.hpp>
#include <redlease/runtime/fence_memory.hpp>
#include <redlease/store/lua_scripts.hpp>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"
#include "support/waiters.hpp"

namespace redlease::test {
namespace {

using Keys = std::vector<std::string>;

const LeaseOptions fenced{.ttl = 30s, .fencing = true};
const std::string full = "9223372036854775807";

// In the requests that run a script.
std::string needle(const lua::Script& script) { return std::string{script.sha1}; }

std::string counter_of(std::string_view key) { return core::beside(key, "redlease:fence"); }

class FencingFaultTest : public FaultTest {
 protected:
  FencingFaultTest() { load_scripts(); }

  void load_scripts() {
    for (const auto& script : {lua::acquire, lua::own, lua::handoff, lua::handoff_all, lua::line,
                               lua::release, lua::release_all, lua::fenced_write}) {
      server.admin("SCRIPT", "LOAD", script.text);
    }
  }

  // Of a counter that belongs to one key.
  std::int64_t drawn(std::string_view key) {
    return std::stoll(server.get(counter_of(key)).value_or("0"));
  }

  // It is ours, and its numbers are the latest ones, above all that were seen before.
  void expect_good(const Lease& lease) {
    EXPECT_TRUE(lease.held());
    for (const auto& key : lease.keys()) {
      EXPECT_EQ(server.get(key), lease.token().reveal()) << key;
      const auto number = lease.fencing_token(key).value();
      EXPECT_EQ(number, drawn(key)) << key;
      EXPECT_GT(number, seen_[key]) << key;
      seen_[key] = number;
    }
  }

  // Keys that are no counters.
  Keys leftovers() {
    Keys found;
    for (const auto& key : server.admin("KEYS", "*").elements) {
      if (key.text.find("redlease:fence") == std::string::npos) found.push_back(key.text);
    }
    return found;
  }

  bool only_counters_left(Client& client, std::chrono::nanoseconds at_most = 10s) {
    return eventually(at_most, [&] {
      static_cast<void>(thrown_by_ping(client));  // debts are paid with what is sent next
      return leftovers().empty();
    });
  }

  const std::array<Keys, 2> one_and_several{Keys{"a"}, Keys{"c", "a", "b"}};
  FaultProxy proxy{server.port()};

 private:
  std::map<std::string, std::int64_t> seen_;
};

// ---- an acquisition in doubt -------------------------------------------------------------------

// B03, B44: the answer that told the number is lost. The lease is adopted, with a number of its
// own.
TEST_F(FencingFaultTest, B44TheReplyOfAnAcquisitionIsLost) {
  for (const auto& keys : one_and_several) {
    for (const bool then_close : {true, false}) {
      Client client{proxy.url(), hasty()};
      proxy.drop_reply_matching(needle(lua::acquire), then_close);
      auto lease = client.try_acquire_all(keys, fenced);
      ASSERT_TRUE(lease);
      expect_good(*lease);
      EXPECT_LE(lease->remaining(), 30s);
      EXPECT_THAT(thrown_by_release(*lease), succeeded());
      lease = client.try_acquire_all(keys, fenced);
      ASSERT_TRUE(lease);
      expect_good(*lease);
      lease.reset();
      EXPECT_TRUE(only_counters_left(client));
    }
  }
}

// B44: the request is lost. What was taken is not there, and one more attempt takes it.
TEST_F(FencingFaultTest, B44TheRequestOfAnAcquisitionIsLost) {
  for (const auto& keys : one_and_several) {
    for (const bool then_close : {true, false}) {
      Client client{proxy.url(), hasty()};
      proxy.drop_request_matching(needle(lua::acquire), then_close);
      auto lease = client.try_acquire_all(keys, fenced);
      ASSERT_TRUE(lease);
      expect_good(*lease);
      lease.reset();
      EXPECT_TRUE(only_counters_left(client));
    }
  }
}

// B44: so is the answer that would have told what became of it, once or for good.
TEST_F(FencingFaultTest, B44TheReplyOfTheAdoptionIsLost) {
  for (const auto& keys : one_and_several) {
    for (const int times : {1, 2}) {
      Client client{proxy.url(), hasty()};
      proxy.drop_reply_matching(needle(lua::acquire), true);
      for (int i = 0; i < times; ++i) proxy.drop_reply_matching(needle(lua::own), true);
      std::optional<Lease> lease;
      const auto thrown = thrown_by([&] {
        lease = client.try_acquire_all(keys, fenced);
        return 0;
      });
      EXPECT_EQ(lease.has_value(), times == 1) << thrown;
      if (lease) expect_good(*lease);
      if (!lease) {
        EXPECT_THAT(thrown, failed(errc::in_doubt));
      }
      lease.reset();
      EXPECT_TRUE(only_counters_left(client));
      lease = client.try_acquire_all(keys, fenced);
      ASSERT_TRUE(lease);
      expect_good(*lease);
      lease.reset();
      EXPECT_TRUE(only_counters_left(client));
    }
  }
}

// B02, B44: the counter breaks between the acquisition and the adoption.
TEST_F(FencingFaultTest, B44ACounterThatBreaksBeforeTheAdoption) {
  for (const auto& keys : one_and_several) {
    Client client{proxy.url(), patient()};
    client.ping();
    proxy.drop_reply_matching(needle(lua::acquire), true);
    proxy.delay_requests(200ms, needle(lua::own));
    std::jthread saboteur{[&] {
      EXPECT_TRUE(eventually(10s, [&] { return server.exists(keys.back()); }));
      server.admin("SET", counter_of(keys.back()), "broken");
    }};
    EXPECT_THAT(thrown_by([&] { return client.try_acquire_all(keys, fenced).has_value(); }),
                failed(errc::in_doubt));
    saboteur.join();
    proxy.pass_through();
    EXPECT_TRUE(only_counters_left(client));
    server.admin("SET", counter_of(keys.back()), "1000");
  }
}

// B02: the request runs when everybody has forgotten it. No key stays, and numbers go on rising.
TEST_F(FencingFaultTest, B02ALateAcquisition) {
  for (const auto& keys : one_and_several) {
    Client client{proxy.url(), hasty()};
    client.ping();
    proxy.delay_requests(3 * short_time, needle(lua::acquire));
    const Stopwatch watch;
    auto lease = std::optional<Lease>{};
    const auto thrown = thrown_by([&] {
      lease = client.try_acquire_all(keys, fenced);
      return 0;
    });
    EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
    EXPECT_FALSE(lease) << "its own request is on its way";
    EXPECT_THAT(thrown, failed(errc::in_doubt));
    proxy.pass_through();
    EXPECT_TRUE(eventually(10s, [&] { return drawn("a") > 0; })) << "it has run";
    EXPECT_TRUE(only_counters_left(client));
    lease = client.try_acquire_all(keys, fenced);
    ASSERT_TRUE(lease);
    expect_good(*lease);
    lease.reset();
    EXPECT_TRUE(only_counters_left(client));
  }
}

// B02, B49: a server that stands still.
TEST_F(FencingFaultTest, B02AServerThatStandsStill) {
  for (const auto& keys : one_and_several) {
    for (int times = 0; times < 2; ++times) {
      Client client{server.url(), hasty()};
      client.ping();
      server.pause();
      const Stopwatch watch;
      EXPECT_THAT(thrown_by([&] { return client.try_acquire_all(keys, fenced).has_value(); }),
                  failed(errc::in_doubt));
      EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
      server.resume();
      EXPECT_TRUE(only_counters_left(client));
      auto lease = client.try_acquire_all(keys, fenced);
      ASSERT_TRUE(lease);
      expect_good(*lease);
      lease.reset();
      EXPECT_TRUE(only_counters_left(client));
    }
  }
}

// B09, B57: whatever happens to the scripts.
TEST_F(FencingFaultTest, B57ScriptsAreForgottenAllTheTime) {
  Client client{server.url(), patient()};
  std::atomic<bool> enough{false};
  std::jthread saboteur{[&] {
    while (!enough) server.admin("SCRIPT", "FLUSH");
  }};
  for (int i = 0; i < 100; ++i) {
    auto lease = client.try_acquire_all(one_and_several[static_cast<std::size_t>(i % 2)], fenced);
    ASSERT_TRUE(lease);
    expect_good(*lease);
    EXPECT_THAT(thrown_by_renew(*lease), succeeded());
    EXPECT_THAT(thrown_by_release(*lease), succeeded());
  }
  enough = true;
}

// ---- handing on --------------------------------------------------------------------------------

// B12: the heir's number is drawn by the one who gives the lease back.
TEST_F(FencingFaultTest, B12TheReplyOfAHandoffIsLost) {
  for (const bool then_close : {true, false}) {
    for (const bool scope_exit : {false, true}) {
      Client client{proxy.url(), hasty()};
      auto held = client.try_acquire("a", fenced);
      ASSERT_TRUE(held);
      expect_good(*held);
      Waiter heir{client, "a", restless(), fenced};
      EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
      proxy.drop_reply_matching(needle(lua::handoff), then_close);
      const Stopwatch watch;
      if (scope_exit) {
        held.reset();
      } else {
        EXPECT_THAT(thrown_by_release(*held), succeeded());
      }
      EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
      ASSERT_TRUE(heir.acquired());
      expect_good(heir.lease());
      heir.drop();
      EXPECT_TRUE(only_counters_left(client));
    }
  }
}

// B44: the heir's counter is broken. He hears of it; the releaser has nothing to do with it.
TEST_F(FencingFaultTest, B44AHandoffToAnHeirWithABrokenCounter) {
  for (const auto order : {Order::any, Order::fifo}) {
    for (const auto& bad : {std::string{"abc"}, full}) {
      Client client{server.url(), patient()};
      auto held = client.acquire("a", {.at_most = 0s, .order = order}, {.ttl = 30s});
      ASSERT_TRUE(held);
      auto wait = restless();
      wait.order = order;
      Waiter heir{client, "a", wait, fenced};
      EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
      server.admin("SET", counter_of("a"), bad);
      EXPECT_THAT(thrown_by_release(*held), succeeded());
      EXPECT_THAT(thrown_by([&] { return heir.acquired(); }), failed(errc::rejected));
      EXPECT_TRUE(becomes_absent("a"));
      EXPECT_EQ(server.get(counter_of("a")), bad);
      server.admin("DEL", counter_of("a"));
      EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; })) << "no line, either";
    }
  }
}

// ---- in line -----------------------------------------------------------------------------------

// B44: whichever answer of the line is lost, the numbers rise and nobody is left behind.
TEST_F(FencingFaultTest, B44RepliesOfTheLineAreLost) {
  for (const bool then_close : {true, false}) {
    for (int times = 0; times < 4; ++times) {
      Client client{proxy.url(), hasty()};
      Client other{server.url(), patient()};
      const Wait in_line{.at_most = 20s, .order = Order::fifo};
      auto held = other.acquire("a", in_line, fenced);
      ASSERT_TRUE(held);
      expect_good(*held);
      auto wait = restless();
      wait.order = Order::fifo;
      Waiter heir{client, "a", wait, fenced};
      EXPECT_TRUE(eventually(at_once, [&] { return heir.asked(); }));
      // That of the join that accepts the grant, or one of those before.
      if (times % 2 == 0) {
        EXPECT_THAT(thrown_by_release(*held), succeeded());
      }
      proxy.drop_reply_matching(needle(lua::line), then_close);
      if (times % 2 == 1) {
        EXPECT_THAT(thrown_by_release(*held), succeeded());
      }
      ASSERT_TRUE(heir.acquired());
      expect_good(heir.lease());
      proxy.pass_through();
      EXPECT_THAT(thrown_by_release(heir.lease()), succeeded());
      EXPECT_TRUE(only_counters_left(client));
    }
  }
}

// ---- counters of all kinds ---------------------------------------------------------------------

// B44: of several counters one is bad. The others stay as they were.
TEST_F(FencingFaultTest, B44OneBadCounterOfSeveral) {
  Client client{server.url(), patient()};
  server.admin("SET", counter_of("a"), 5);
  for (const auto& bad : {std::string{"abc"}, full, std::string{"1.5"}, std::string{" 1"}}) {
    for (const auto* key : {"b", "c"}) {
      server.admin("SET", counter_of(key), bad);
      EXPECT_THAT(thrown_by([&] {
                    return client.try_acquire_all({"a", "b", "c"}, fenced);
                  }),
                  failed(errc::rejected));
      EXPECT_EQ(server.get(counter_of("a")), "5");
      EXPECT_EQ(server.get(counter_of(key)), bad);
      EXPECT_EQ(server.dbsize(), 2) << "neither keys nor other counters";
      server.admin("DEL", counter_of(key));
      server.admin("LPUSH", counter_of(key), "a list");
      EXPECT_THAT(thrown_by([&] {
                    return client.try_acquire_all({"a", "b", "c"}, fenced);
                  }),
                  failed(errc::rejected, "WRONGTYPE"));
      EXPECT_EQ(server.dbsize(), 2);
      server.admin("DEL", counter_of(key));
    }
  }
}

// B44: up to the last number of all, and no further.
TEST_F(FencingFaultTest, B44TheLastNumbers) {
  constexpr auto last = std::numeric_limits<std::int64_t>::max();
  Client client{server.url(), patient()};
  server.admin("SET", counter_of("a"), last - 3);
  for (auto number = last - 2;; ++number) {
    auto lease = client.try_acquire_all(number % 2 == 0 ? Keys{"a"} : Keys{"a", "b"}, fenced);
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease->fencing_token("a"), FencingToken{number});
    EXPECT_THAT(thrown_by_release(*lease), succeeded());
    if (number == last) break;
  }
  EXPECT_THAT(thrown_by_acquire(client, "a", fenced), failed(errc::rejected));
  EXPECT_EQ(server.get(counter_of("a")), full);
  EXPECT_FALSE(server.exists("a"));
}

// B44: the line has the same numbers. A counter may have begun with the nanoseconds of a clock.
TEST_F(FencingFaultTest, B44TheLastNumbersInLine) {
  Client client{server.url(), patient()};
  for (const std::string before : {"1764000000000000000", "9223372036854775806"}) {
    server.admin("SET", counter_of("a"), before);
    auto lease = client.acquire("a", {.at_most = 5s, .order = Order::fifo}, fenced);
    ASSERT_TRUE(lease);
    EXPECT_EQ(lease->fencing_token(), FencingToken{std::stoll(before) + 1});
    EXPECT_THAT(thrown_by_release(*lease), succeeded());
  }
  EXPECT_THAT(
      thrown_by([&] { return client.acquire("a", {.at_most = 1s, .order = Order::fifo}, fenced); }),
      failed(errc::rejected, "full"));
  EXPECT_EQ(server.dbsize(), 1);
}

// B45: a negative one fell below zero by somebody's hand.
TEST_F(FencingFaultTest, B45ANegativeCounter) {
  Client client{server.url(), patient()};
  server.admin("SET", counter_of("a"), -5);
  EXPECT_THAT(thrown_by_acquire(client, "a", fenced), failed(errc::fence_regressed));
  EXPECT_TRUE(becomes_absent("a"));
  server.admin("SET", counter_of("a"), 0);
  auto lease = must_acquire(client, "a", fenced);
  EXPECT_EQ(lease.fencing_token(), FencingToken{1});
}

// B45: the counter is deleted between two acquisitions, of which the second one is in doubt, handed
// on, or of several keys.
TEST_F(FencingFaultTest, B45AFallIsNoticedHoweverTheLeaseCame) {
  for (const auto& keys : one_and_several) {
    Client client{proxy.url(), hasty()};
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(client.try_acquire_all(keys, fenced));
    server.admin("DEL", counter_of("a"));
    proxy.drop_reply_matching(needle(lua::acquire), true);
    EXPECT_THAT(thrown_by([&] { return client.try_acquire_all(keys, fenced).has_value(); }),
                failed(errc::fence_regressed));
    EXPECT_TRUE(only_counters_left(client));
    EXPECT_THAT(thrown_by([&] { return client.acquire_all(keys, {.at_most = 1s}, fenced); }),
                failed(errc::fence_regressed));
    EXPECT_TRUE(only_counters_left(client));
    server.admin("SET", counter_of("a"), 5);
    EXPECT_TRUE(client.try_acquire_all(keys, fenced)) << "it is above 5 again";
    EXPECT_TRUE(only_counters_left(client));
    server.admin("FLUSHALL");
  }
}

// B45: a key counted by two lists of keys, and by itself, never seems to fall.
TEST_F(FencingFaultTest, B45NoFalseAlarms) {
  Client client{server.url(), patient()};
  Client second{server.url(), patient()};
  std::atomic<int> served{0};
  std::vector<std::jthread> crowd;
  for (unsigned t = 0; t < 8; ++t) {
    crowd.emplace_back([&, t] {
      auto& mine = t % 2 == 0 ? client : second;
      std::minstd_rand random{t + 1};
      LeaseOptions options = fenced;
      for (int i = 0; i < 150; ++i) {
        options.fence_key = random() % 2 == 0 ? "all" : "";
        const std::string own = "own:" + std::to_string(t);
        const Keys keys{own, random() % 2 == 0 ? "shared" : own + "x", own};
        const auto thrown = thrown_by([&] {
          if (mine.try_acquire_all(keys, options)) ++served;
          return 0;
        });
        EXPECT_THAT(thrown, succeeded());
      }
    });
  }
  crowd.clear();
  EXPECT_GT(served, 8 * 150 / 4);
}

// B45: what is remembered is never more than what was seen, however full the memory is.
TEST_F(FencingFaultTest, B45AMemoryThatIsFull) {
  runtime::FenceMemory memory;
  for (std::int64_t i = 0; i < 100'000; ++i) {
    const auto counter = "counter:" + std::to_string(i);
    EXPECT_EQ(memory.highest(counter).value(), 0);
    memory.note(counter, FencingToken{i + 1});
    memory.note(counter, FencingToken{i});
    EXPECT_EQ(memory.highest(counter).value(), i + 1);
  }
  int known = 0;
  for (std::int64_t i = 0; i < 100'000; ++i) {
    const auto highest = memory.highest("counter:" + std::to_string(i)).value();
    EXPECT_TRUE(highest == 0 || highest == i + 1);
    known += highest != 0 ? 1 : 0;
  }
  EXPECT_GT(known, 10'000);
}

// ---- a server that refuses ---------------------------------------------------------------------

// B44, B65: no memory. Neither key nor number, and both when there is some again.
TEST_F(FencingFaultTest, B65AServerWithoutMemory) {
  Client client{server.url(), patient()};
  for (const auto& keys : one_and_several) {
    const auto before = drawn("a");
    server.config_set("maxmemory", "1");
    EXPECT_THAT(thrown_by([&] { return client.try_acquire_all(keys, fenced); }),
                failed(errc::rejected, "OOM"));
    EXPECT_FALSE(thrown_by([&] {
                   return client.acquire("a", {.at_most = 200ms, .order = Order::fifo}, fenced);
                 }).nothing());
    EXPECT_EQ(drawn("a"), before);
    server.config_set("maxmemory", "0");
    EXPECT_TRUE(only_counters_left(client));
    auto lease = client.try_acquire_all(keys, fenced);
    ASSERT_TRUE(lease);
    expect_good(*lease);
    EXPECT_EQ(drawn("a"), before + 1);
    lease.reset();
    EXPECT_TRUE(only_counters_left(client));
  }
}

// B38: a refusal is no contention, also where the answer before was one.
TEST_F(FencingFaultTest, B38ARefusalAfterContention) {
  Client client{server.url(), patient()};
  for (const auto& keys : one_and_several) {
    {
      const auto held = client.try_acquire_all(keys, fenced);
      EXPECT_FALSE(client.try_acquire_all(keys, fenced));
      server.config_set("maxmemory", "1");
      EXPECT_THAT(thrown_by([&] {
                    return client.try_acquire_all({"x", "y"}, fenced);
                  }),
                  failed(errc::rejected, "OOM"));
      EXPECT_THAT(thrown_by([&] { return client.try_acquire("x", fenced); }),
                  failed(errc::rejected, "OOM"));
      server.config_set("maxmemory", "0");
      EXPECT_FALSE(client.try_acquire_all(keys, fenced));
      server.admin("SET", counter_of("x"), full);
      EXPECT_THAT(thrown_by_acquire(client, "x", fenced), failed(errc::rejected, "overflow"));
    }
    EXPECT_TRUE(only_counters_left(client));
  }
}

// B44: a user who may not do all of it. Whatever was refused, no key is left.
TEST_F(FencingFaultTest, B44AUserWithFewRights) {
  struct Rights {
    Keys rules;
    bool refused;
  };
  const std::array rights{
      Rights{{"~a", "~{a}*", "+@all"}, true},                // nothing of the others
      Rights{{"~a", "~b", "~c", "+@all"}, true},             // no counters
      Rights{{"~a", "~{*", "%R~b", "%R~c", "+@all"}, true},  // may look at the others
      Rights{{"~*", "+@all", "-incr"}, true},
      Rights{{"~*", "+@all", "-set"}, true},
      Rights{{"~*", "+@all", "-exists"}, true},
      Rights{{"~*", "+@all", "-decr"}, false},
      Rights{{"~*", "+@all", "-decr", "-set"}, true},
      Rights{{"~a", "~{*", "%R~b", "%R~c", "+@all", "-decr"}, true},
  };
  for (std::size_t i = 0; i < rights.size(); ++i) {
    std::vector<std::string> rule{"ACL", "SETUSER", "poor", "reset", "on", "nopass"};
    rule.insert(rule.end(), rights.at(i).rules.begin(), rights.at(i).rules.end());
    ASSERT_TRUE(server.admin_command(rule).is_ok());
    auto options = patient();
    options.username = "poor";
    options.password = "any";
    Client poor{server.url(), options};
    const auto thrown = thrown_by([&] {
      return poor.try_acquire_all({"a", "b", "c"}, fenced).has_value();
    });
    EXPECT_EQ(!thrown.nothing(), rights.at(i).refused) << i << ": " << thrown;
    EXPECT_TRUE(eventually(
        1s, [&] { return !server.exists("a") && !server.exists("b") && !server.exists("c"); }))
        << "rights " << i;
    server.admin("FLUSHALL");
  }
}

// ---- writing under it --------------------------------------------------------------------------

TEST_F(FencingFaultTest, AFencedWriteWhoseReplyOrRequestIsLost) {
  Client client{proxy.url(), hasty()};
  // Without a break there is no time for a second try within the call, but the caller may try
  // again.
  const auto write = [&](const char* value, std::int64_t number) {
    try {
      return client.fenced_write("data", value, FencingToken{number});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), errc::in_doubt) << error.what();
    }
    return client.fenced_write("data", value, FencingToken{number});
  };
  std::int64_t number = 0;
  for (const bool then_close : {true, false}) {
    proxy.drop_reply_matching(needle(lua::fenced_write), then_close);
    EXPECT_TRUE(write("a", ++number));
    EXPECT_EQ(server.get("data"), "a");
    proxy.drop_request_matching(needle(lua::fenced_write), then_close);
    EXPECT_TRUE(write("b", ++number));
    EXPECT_EQ(server.get("data"), "b");
    proxy.drop_reply_matching(needle(lua::fenced_write), then_close);
    EXPECT_FALSE(write("c", number - 1));
    EXPECT_EQ(server.get("data"), "b");
  }
  EXPECT_EQ(server.get("{data}:redlease:seen"), std::to_string(number));
}

TEST_F(FencingFaultTest, AFencedWriteToAServerThatStandsStill) {
  Client client{server.url(), hasty()};
  EXPECT_TRUE(client.fenced_write("data", "a", FencingToken{1}));
  server.pause();
  const Stopwatch watch;
  const auto thrown = thrown_by([&] { return client.fenced_write("data", "b", FencingToken{2}); });
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
  EXPECT_THAT(thrown, failed(errc::in_doubt));
  server.resume();
  EXPECT_TRUE(client.fenced_write("data", "c", FencingToken{3}));
  EXPECT_TRUE(always(100ms, [&] { return server.get("data") == "c"; }))
      << "the late one is refused";
}

// A refusal by the server is none by the fence.
TEST_F(FencingFaultTest, AFencedWriteThatTheServerRefuses) {
  Client client{server.url(), patient()};
  const auto write = [&] { return client.fenced_write("data", "a", FencingToken{7}); };
  server.config_set("maxmemory", "1");
  EXPECT_THAT(thrown_by(write), failed(errc::rejected, "OOM"));
  server.config_set("maxmemory", "0");
  EXPECT_EQ(server.dbsize(), 0);
  for (const std::string bad : {"nonsense", "-1", ""}) {
    server.admin("SET", "{data}:redlease:seen", bad);
    EXPECT_THAT(thrown_by(write), failed(errc::rejected));
  }
  server.admin("DEL", "{data}:redlease:seen");
  server.admin("LPUSH", "{data}:redlease:seen", "a list");
  EXPECT_THAT(thrown_by(write), failed(errc::rejected, "WRONGTYPE"));
  EXPECT_FALSE(server.exists("data"));
}

// ---- processes ---------------------------------------------------------------------------------

// B35: a child goes on with the numbers of the same counters, and so does its parent.
TEST_F(FencingFaultTest, B35NumbersRiseOverAFork) {
  Client client{server.url(), patient()};
  std::int64_t last = 0;
  for (int round = 0; round < 5; ++round) {
    auto lease = client.try_acquire_all({"a", "b"}, fenced);
    ASSERT_TRUE(lease);
    expect_good(*lease);
    EXPECT_EQ(lease->fencing_token("a").value(), last + 1);
    EXPECT_EQ(fork_and_wait([&] {
                if (client.try_acquire("a", fenced)) return 1;
                lease.reset();  // which does nothing
                auto own = client.try_acquire("c", fenced);
                return own && own->fencing_token().value() == round + 1 ? 0 : 2;
              }),
              0);
    EXPECT_TRUE(lease->held());
    EXPECT_THAT(thrown_by_release(*lease), succeeded());
    EXPECT_EQ(fork_and_wait([&] {
                auto theirs = client.try_acquire("a", fenced);
                return theirs && theirs->fencing_token().value() == last + 2 ? 0 : 1;
              }),
              0);
    last += 2;
    EXPECT_TRUE(becomes_absent("a"));
    EXPECT_TRUE(becomes_absent("c"));
  }
}

// ---- all together ------------------------------------------------------------------------------

// What all threads know of the keys. A lease's number is above all those before it.
class Books {
 public:
  void take(const Lease& lease, bool has_numbers) {
    const std::lock_guard lock{mutex_};
    for (const auto& key : lease.keys()) {
      auto& page = pages_[key];
      if (page.held) ++overlaps_;
      page.held = true;
      if (!has_numbers) continue;
      const auto number = lease.fencing_token(key).value();
      if (number <= page.highest) ++falls_;
      page.highest = std::max(page.highest, number);
    }
    ++taken_;
  }
  void give_up(const Lease& lease) {
    const std::lock_guard lock{mutex_};
    for (const auto& key : lease.keys()) pages_[key].held = false;
  }
  int taken() const { return taken_; }
  int overlaps() const { return overlaps_; }
  int falls() const { return falls_; }

 private:
  struct Page {
    bool held = false;
    std::int64_t highest = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Page> pages_;
  std::atomic<int> taken_{0};
  std::atomic<int> overlaps_{0};
  std::atomic<int> falls_{0};
};

// Longer than anybody holds one. What is left when also the clean-up got lost ends with it.
constexpr auto chaos_ttl = 6s;

// One lease of any kind. What was thrown, or why it was lost, unless the bad world explains it.
std::string one_cycle(Client& client, std::mt19937& random, Books& books) {
  const auto pick = [&](int n) { return std::uniform_int_distribution{0, n - 1}(random); };
  const std::string key = "k" + std::to_string(pick(3));
  const bool has_numbers = pick(3) != 0;
  const LeaseOptions options{.ttl = chaos_ttl, .fencing = has_numbers};
  Wait wait{.at_most = std::chrono::milliseconds{pick(3) == 0 ? 20 : 10'000}};
  std::optional<Lease> lease;
  try {
    switch (pick(4)) {
      case 0:
        lease = client.try_acquire(key, options);
        break;
      case 1:
        lease = client.acquire_all({key, "k" + std::to_string(pick(3))}, wait, options);
        break;
      default:
        if (pick(2) == 0) wait.order = Order::fifo;
        lease = client.acquire(key, wait, options);
    }
    if (!lease) return {};
    books.take(*lease, has_numbers);
    if (pick(10) == 0) lease->renew();
    books.give_up(*lease);
    if (pick(2) == 0) lease->release();
  } catch (const LeaseLost& lost) {
    books.give_up(*lease);
    if (lost.loss().reason != LossReason::unconfirmed) return lost.what();
  } catch (const Error& error) {
    if (lease) books.give_up(*lease);
    const bool to_be_expected = error.code() == errc::in_doubt || error.code() == errc::unavailable;
    if (!to_be_expected) return error.what();
  }
  return {};
}

// B20, B44: leases of all kinds, with and without numbers, in a world in which answers get lost,
// connections break and scripts are forgotten.
TEST_F(FencingFaultTest, B44NumbersRiseInABadWorld) {
  constexpr auto duration = sanitized ? 6s : 4s;
  Books books;
  std::mutex mutex;
  std::set<std::string> trouble;
  std::atomic<bool> enough{false};
  Client client{proxy.url(), hasty()};
  Client second{proxy.url(), hasty()};
  std::vector<std::jthread> crowd;
  for (unsigned t = 0; t < 10; ++t) {
    crowd.emplace_back([&, t] {
      std::mt19937 random{t};
      while (!enough) {
        auto text = one_cycle(t % 2 == 0 ? client : second, random, books);
        if (text.empty()) continue;
        const std::lock_guard lock{mutex};
        trouble.insert(std::move(text));
      }
    });
  }
  std::mt19937 random{99};
  const std::array scripts{lua::acquire, lua::own,         lua::handoff, lua::handoff_all,
                           lua::release, lua::release_all, lua::line};
  const Stopwatch watch;
  for (int n = 0; watch.elapsed() < duration; ++n) {
    proxy.drop_reply_matching(needle(scripts.at(random() % scripts.size())), true);
    if (n % 7 == 0) server.admin("SCRIPT", "FLUSH");
    if (n % 11 == 0) kill_clients();
    if (n % 13 == 0) proxy.reset_all();
    std::this_thread::sleep_for(20ms);
  }
  enough = true;
  proxy.pass_through();
  crowd.clear();
  EXPECT_THAT(trouble, testing::IsEmpty());
  EXPECT_EQ(books.overlaps(), 0);
  EXPECT_EQ(books.falls(), 0);
  EXPECT_GT(books.taken(), 100);
  EXPECT_TRUE(only_counters_left(client, chaos_ttl + 10s) && only_counters_left(second))
      << testing::PrintToString(leftovers());
}

}  // namespace
}  // namespace redlease::test
