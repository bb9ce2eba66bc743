// Order::fifo: those who wait for a lease are served in order of arrival, over all clients.
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <stop_token>
#include <thread>

#include <redlease/core/key_slot.hpp>
#include <redlease/store/line_store.hpp>

#include "integration/fixture.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

// No poll helps those who wait with it.
constexpr Backoff long_backoff{.min = 30s, .max = 30s};

Wait in_line(std::chrono::milliseconds at_most = 55s) {
  return {.at_most = at_most, .backoff = long_backoff, .order = Order::fifo};
}

class Fifo : public IntegrationTest {
 protected:
  std::size_t length(std::string_view key = "k") {
    return static_cast<std::size_t>(
        server.admin("ZCARD", core::beside(key, "redlease:line")).integer);
  }
  bool becomes(std::size_t waiters, std::string_view key = "k") {
    return eventually(20s, [&] { return length(key) == waiters; });
  }

  // Holds the lease for a moment, alone.
  void note_turn(int who) {
    EXPECT_EQ(holders.fetch_add(1), 0) << "two holders";
    {
      const std::lock_guard lock{mutex};
      served.push_back(who);
    }
    holders.fetch_sub(1);
  }

  // Waits, notes the turn, and gives the lease back: every other one with the end of its scope.
  void take_turn(Client& waiting, int who, const Wait& wait, std::string_view key = "k") {
    auto lease = waiting.acquire(key, wait, {.ttl = 60s});
    ASSERT_TRUE(lease) << "waiter " << who;
    EXPECT_TRUE(lease->held());
    note_turn(who);
    if (who % 2 == 0) lease->release();
  }

  // Returns when the new one stands at that place in line.
  std::jthread waiter(Client& waiting, int who, std::size_t place, std::string_view key = "k") {
    std::jthread thread{[this, &waiting, who, name = std::string{key}] {
      take_turn(waiting, who, in_line(), name);
    }};
    EXPECT_TRUE(becomes(place, key)) << length(key) << " in line";
    return thread;
  }

  // Grants so far that came to nothing since their process was too slow: their tickets went back
  // to where they had stood.
  std::size_t missed_grants() {
    monitor.sync();
    std::map<std::string, bool> offered;
    std::size_t missed = 0;
    for (const auto& line : monitor.lines()) {
      if (line.source != "lua" || line.args[0] != "ZADD") continue;
      const bool offer = line.args[2].starts_with('-');
      if (!offer && offered[line.args[3]]) ++missed;
      offered[line.args[3]] = offer;
    }
    return missed;
  }

  // Runs a round in which `expected` are to be served in that order. A machine that is so busy that
  // a grant isn't accepted in time gets another chance.
  template <class Round>
  void expect_order(const std::vector<int>& expected, Round&& round) {
    for (int tries = 0; tries < 5; ++tries) {
      served.clear();
      const auto before = missed_grants();
      round();
      EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
      if (served == expected || missed_grants() == before) break;
      EXPECT_THAT(served, testing::UnorderedElementsAreArray(expected));
    }
    EXPECT_EQ(served, expected);
  }

  // Patient, so that a busy machine leaves nothing in doubt.
  static ClientOptions patient() { return {.connect_timeout = 20s, .command_timeout = 20s}; }
  Client first{server.url(), patient()};
  Client second{server.url(), patient()};
  Client third{server.url(), patient()};
  std::mutex mutex;
  std::vector<int> served;
  std::atomic<int> holders{0};
};

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// ---- the order ---------------------------------------------------------------------------------

TEST_F(Fifo, ServesInOrderWithinAClient) {
  expect_order(first_numbers(16), [&] {
    auto held = first.acquire("k", in_line(), {.ttl = 60s});
    std::vector<std::jthread> waiters;
    for (int n = 0; n < 16; ++n) {
      waiters.push_back(waiter(first, n, static_cast<std::size_t>(n) + 1));
    }
    held->release();
  });
}

TEST_F(Fifo, ServesInOrderOverClients) {
  const std::array<Client*, 3> clients{&first, &second, &third};
  expect_order(first_numbers(15), [&] {
    auto held = third.acquire("k", in_line(), {.ttl = 60s});
    std::vector<std::jthread> waiters;
    for (int n = 0; n < 15; ++n) {
      // 0 1 2 0 1 2 ..., and some neighbours of one client.
      auto& waiting = *clients.at(static_cast<std::size_t>(n / (n < 9 ? 1 : 2)) % 3);
      waiters.push_back(waiter(waiting, n, static_cast<std::size_t>(n) + 1));
    }
    held.reset();
  });
}

// Those who give up don't cost the others their places.
TEST_F(Fifo, KeepsTheOrderWhenSomeLeave) {
  const std::array<Client*, 3> clients{&first, &second, &third};
  expect_order({0, 1, 5, 6, 7, 11}, [&] {
    auto held = second.acquire("k", in_line(), {.ttl = 60s});
    std::stop_source stop;
    std::vector<std::jthread> waiters;
    std::vector<std::jthread> leaving;
    std::size_t place = 0;
    for (int n = 0; n < 12; ++n) {
      auto& waiting = *clients.at(static_cast<std::size_t>(n) % 3);
      auto wait = in_line();
      if (n == 2 || n == 8) wait.stop = stop.get_token();
      if (n == 3 || n == 9) wait.still_needed = [] { return false; };  // asked at his turn
      if (n == 4 || n == 10) wait.at_most = 300ms;
      if (n % 6 < 2 || n % 6 == 5) {
        waiters.push_back(waiter(waiting, n, ++place));
        continue;
      }
      const bool in_time = n % 6 == 4;
      leaving.emplace_back([&waiting, wait] { EXPECT_FALSE(waiting.acquire("k", wait)); });
      if (in_time) {
        leaving.back().join();
      } else {
        ++place;
      }
      EXPECT_TRUE(becomes(place));
    }
    stop.request_stop();
    EXPECT_TRUE(becomes(8));
    held->release();
  });
}

// ---- when nobody waits -------------------------------------------------------------------------

TEST_F(Fifo, AFreeLeaseIsTakenAtOnceAndLeavesNoLine) {
  for (const auto& wait : {in_line(0s), in_line(), in_line()}) {
    const Stopwatch watch;
    auto lease = first.acquire("k", wait, {.ttl = 60s});
    ASSERT_TRUE(lease);
    EXPECT_LT(watch.elapsed(), 10s);
    EXPECT_EQ(server.get("k"), lease->token().reveal());
    EXPECT_EQ(server.dbsize(), 1);
    lease->release();
    EXPECT_EQ(server.dbsize(), 0);
  }
  monitor.sync();
  EXPECT_EQ(monitor.count([](const MonitorLine& line) { return line.args[0] == "ZADD"; }), 0U);
}

// B49
TEST_F(Fifo, ZeroIsOneAttempt) {
  const auto held = second.try_acquire("k", {.ttl = 60s});
  const auto before = scripts_run();
  EXPECT_FALSE(client.acquire("k", in_line(0s)));
  EXPECT_LE(scripts_run(), before + 3) << "the text, once, and the observer's look";
  EXPECT_EQ(server.dbsize(), 1);
}

// B49
TEST_F(Fifo, EndsAfterItsAttempts) {
  const auto held = second.try_acquire("k", {.ttl = 60s});
  for (const int attempts : {1, 2, 3, 5}) {
    const auto so_far = [&] {
      monitor.sync();
      return static_cast<int>(monitor.count([](const MonitorLine& line) {
        return line.args[0] == "EVALSHA" && line.args.size() > 5 &&
               (line.args[5] == "try" || line.args[5] == "join");
      }));
    };
    const auto before = so_far();
    EXPECT_FALSE(client.acquire("k", {.at_most = 55s, .attempts = attempts, .order = Order::fifo}));
    EXPECT_EQ(so_far() - before, attempts);
  }
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 1; }));
}

TEST_F(Fifo, EndsEmptyAtItsTime) {
  const auto held = second.try_acquire("k", {.ttl = 60s});
  const Stopwatch watch;
  EXPECT_FALSE(client.acquire("k", in_line(300ms)));
  EXPECT_GE(watch.elapsed(), 300ms);
  EXPECT_LT(watch.elapsed(), 3s);
  EXPECT_THAT(events->first(Event::Kind::contended).message,
              testing::HasSubstr(held->token().fingerprint()));
  EXPECT_TRUE(becomes(0));
}

// ---- waking up ---------------------------------------------------------------------------------

// B46: whatever frees the key, the line hears of it, though nobody polls.
TEST_F(Fifo, EveryWayToGetFreeWakesTheLine) {
  const auto begin = [&](std::chrono::milliseconds ttl) {
    server.admin("SET", "k", "stranger", "NX", "PX", ttl.count());
  };
  std::optional<Lease> held;
  const std::vector<std::pair<std::function<void()>, std::function<void()>>> ways{
      {[&] { begin(60s); }, [&] { server.admin("DEL", "k"); }},
      {[&] { begin(60s); }, [&] { server.admin("FLUSHALL"); }},
      {[&] { begin(60s); }, [&] { server.admin("PEXPIRE", "k", 50); }},
      {[&] { held = third.try_acquire("k", {.ttl = 60s}); }, [&] { held->release(); }},
      {[&] { held = third.try_acquire("k", {.ttl = 60s}); }, [&] { held.reset(); }},
      {[&] { held = second.try_acquire("k", {.ttl = 60s}); }, [&] { held->release(); }},
      {[&] { held = second.acquire("k", in_line(), {.ttl = 60s}); }, [&] { held->release(); }},
      {[&] { held = third.acquire("k", in_line(), {.ttl = 60s}); }, [&] { held.reset(); }},
      {[&] { held = second.acquire("k", in_line(), {.ttl = 60s}); }, [&] { held.reset(); }},
  };
  for (std::size_t way = 0; way < ways.size(); ++way) {
    SCOPED_TRACE(way);
    served.clear();
    ways[way].first();
    std::vector<std::jthread> waiters;
    waiters.push_back(waiter(second, 0, 1));
    waiters.push_back(waiter(first, 1, 2));
    waiters.push_back(waiter(second, 2, 3));
    const Stopwatch watch;
    ways[way].second();
    waiters.clear();
    EXPECT_LT(watch.elapsed(), 10s);
    EXPECT_EQ(served.size(), 3U);
    EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
  }
}

// B46: the first waiter of a fresh client hears of his grant, too, as soon as it is connected.
TEST_F(Fifo, TheFirstOfAClientHearsOfHisGrant) {
  const auto held = second.acquire("k", in_line(), {.ttl = 60s});
  std::stop_source stop;
  std::jthread waiting{[&] {
    auto wait = in_line();
    wait.stop = stop.get_token();
    EXPECT_FALSE(first.acquire("k", wait));
  }};
  EXPECT_TRUE(eventually(10s, [&] {
    const auto tickets = server.admin("ZRANGE", "{k}:redlease:line", 0, -1).elements;
    return tickets.size() == 1 && !tickets[0].text.starts_with("-:");
  }));
  stop.request_stop();
}

// A holder whose lease ends by itself.
// Asking costs no request, so it goes on at the pace of the back-off, for those behind, too.
TEST_F(Fifo, AsksWhetherItIsStillNeeded) {
  const auto held = client.try_acquire("k", {.ttl = 60s});
  const auto ahead = waiter(client, 0, 1);
  int asked = 0;
  Wait wait{.at_most = 55s, .order = Order::fifo};
  wait.backoff = {.min = 5ms, .max = 10ms};
  wait.still_needed = [&] { return ++asked < 50; };
  const Stopwatch watch;
  EXPECT_FALSE(client.acquire("k", wait));
  EXPECT_LT(watch.elapsed(), 20s);
  EXPECT_EQ(asked, 50);
  EXPECT_TRUE(becomes(1));
  server.admin("DEL", "k");
}

// Those who don't know of the line free the key for moments only.
TEST_F(Fifo, IsServedBesideALoopOfAPlainHolder) {
  Client other{server.url()};
  std::atomic<int> turns{0};
  std::jthread plain{[&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (auto lease = other.acquire("k", {.at_most = 10s}, {.ttl = 60s})) ++turns;
    }
  }};
  EXPECT_TRUE(eventually(20s, [&] { return turns > 10; }));
  for (int turn = 0; turn < 5; ++turn) {
    const auto lease = client.acquire("k", in_line(20s), {.ttl = 60s});
    EXPECT_TRUE(lease);
    note_turn(turn);
  }
  EXPECT_TRUE(eventually(20s, [&, before = turns.load()] { return turns > before + 10; }));
}

TEST_F(Fifo, AnExpiryServesTheNext) {
  auto held = third.acquire("k", in_line(), {.ttl = 500ms});
  const Stopwatch watch;
  auto next = second.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(next);
  EXPECT_LT(watch.elapsed(), 10s);
  EXPECT_FALSE(held->held());
}

// ---- beside plain waiters ----------------------------------------------------------------------

TEST_F(Fifo, PlainAndFifoWaitersShareAKey) {
  const std::array<Client*, 3> clients{&first, &second, &third};
  std::atomic<int> turns{0};
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < 9; ++n) {
      threads.emplace_back([&, n] {
        auto& mine = *clients.at(static_cast<std::size_t>(n) % 3);
        for (int cycle = 0; cycle < 20; ++cycle) {
          std::optional<Lease> lease;
          if (n < 3) {
            EXPECT_TRUE(eventually(50s, [&] {
              lease = mine.try_acquire("k", {.ttl = 60s});
              return lease.has_value();
            }));
          } else {
            lease = mine.acquire("k", {.at_most = 55s, .order = n < 6 ? Order::any : Order::fifo},
                                 {.ttl = 60s});
          }
          ASSERT_TRUE(lease) << "thread " << n;
          EXPECT_EQ(server.get("k"), lease->token().reveal());
          note_turn(n);
          ++turns;
          if (cycle % 2 == 0) lease->release();
        }
      });
    }
  }
  EXPECT_EQ(turns, 9 * 20);
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

// ---- what is granted ---------------------------------------------------------------------------

// The lease is as long as the waiter's, not as what was left of the window or of the one before.
TEST_F(Fifo, AGrantHasItsOwnTtl) {
  for (auto* holder : {&second, &third}) {
    for (const bool by_scope : {false, true}) {
      auto held = holder->acquire("k", in_line(), {.ttl = 10s});
      std::jthread waiting{[&] {
        const auto lease = second.acquire("k", in_line(), {.ttl = 50s});
        ASSERT_TRUE(lease);
        const auto remaining = lease->remaining();
        const Stopwatch watch;
        const auto on_server = server.pttl("k");
        EXPECT_GT(on_server, 40s);
        EXPECT_LE(on_server, 50s);
        EXPECT_GT(remaining, 35s);
        EXPECT_LE(remaining, on_server + watch.elapsed() + 1ms);
        EXPECT_EQ(server.get("k"), lease->token().reveal());
      }};
      EXPECT_TRUE(becomes(1));
      by_scope ? held.reset() : held->release();
    }
  }
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

// A ttl that is shorter than the way to the waiter counts from when he accepts.
TEST_F(Fifo, ShortLeasesAreServedToo) {
  auto held = third.acquire("k", in_line(), {.ttl = 60s});
  std::vector<std::jthread> waiters;
  for (std::size_t n = 0; n < 4; ++n) {
    waiters.emplace_back([&, n] {
      auto& mine = n % 2 == 0 ? first : second;
      EXPECT_TRUE(mine.acquire("k", in_line(20s), {.ttl = 200ms}));
    });
    EXPECT_TRUE(becomes(n + 1));
  }
  held->release();
}

TEST_F(Fifo, AutoRenewAndStopToken) {
  const LeaseOptions kept{.ttl = 2s, .auto_renew = true, .renew_every = Duration{100ms}};
  for (auto* holder : {&first, &third}) {
    auto held = holder->acquire("k", in_line(), kept);
    ASSERT_TRUE(held);
    std::jthread waiting{[&] {
      auto lease = first.acquire("k", in_line(), kept);
      ASSERT_TRUE(lease);
      const auto stop = lease->stop_token();
      const Stopwatch watch;
      EXPECT_TRUE(eventually(20s, [&] { return watch.elapsed() > 2200ms; }));
      EXPECT_TRUE(lease->held() && !stop.stop_requested()) << "renewed beyond its ttl";
      server.admin("DEL", "k");
      EXPECT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
      EXPECT_EQ(lease->loss()->reason, LossReason::missing);
    }};
    EXPECT_TRUE(becomes(1));
    held->release();
  }
}

// ---- keys --------------------------------------------------------------------------------------

TEST_F(Fifo, AnyKeyHasALine) {
  using namespace std::string_literals;
  const std::vector<std::string> keys{"a{b}c",
                                      "{a}{b}",
                                      "x}y",
                                      "{",
                                      "}",
                                      "{}",
                                      "{}a{b}",
                                      "\0\r\n\xff$-1 *3 '\"%s"s,
                                      std::string(max_key_size, 'k')};
  for (const auto& key : keys) {
    SCOPED_TRACE(key.substr(0, 20));
    served.clear();
    auto held = first.acquire(key, in_line(), {.ttl = 60s});
    ASSERT_TRUE(held);
    std::vector<std::jthread> waiters;
    waiters.push_back(waiter(second, 0, 1, key));
    waiters.push_back(waiter(third, 1, 2, key));
    waiters.push_back(waiter(second, 2, 3, key));
    held->release();
    waiters.clear();
    EXPECT_EQ(served.size(), 3U);
    EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
  }
}

TEST_F(Fifo, WorksInAnyDatabase) {
  auto options = patient();
  options.database = 5;
  Client one{server.url(), options};
  Client two{server.url(), options};
  auto admin = server.connect_admin("database");
  admin.command({"SELECT", "5"});
  auto here = first.acquire("k", in_line(), {.ttl = 60s});
  auto held = one.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(here && held) << "databases have nothing to do with each other";
  std::jthread waiting{[&] { EXPECT_TRUE(two.acquire("k", in_line(10s), {.ttl = 60s})); }};
  EXPECT_TRUE(eventually(10s, [&] {
    return admin.command({"ZCARD", "{k}:redlease:line"}).integer == 1;
  }));
  held->release();
  waiting.join();
  EXPECT_TRUE(eventually(10s, [&] { return admin.command({"DBSIZE"}).integer == 0; }));
}

// ---- the end -----------------------------------------------------------------------------------

// Nothing stays behind: no key, no channel, no connection.
TEST_F(Fifo, LeavesNothingBehind) {
  const auto connections = [&] {
    auto clients = server.client_list();
    std::erase_if(clients,
                  [&](auto& each) { return server.admin_addresses().contains(each["addr"]); });
    return clients.size();
  };
  {
    Client one{server.url(), patient()};
    Client two{server.url(), patient()};
    std::vector<std::jthread> threads;
    for (int n = 0; n < 8; ++n) {
      threads.emplace_back([&, n] {
        for (int cycle = 0; cycle < 10; ++cycle) take_turn(n < 4 ? one : two, n, in_line());
      });
    }
    threads.clear();
    EXPECT_LE(connections(), 2 * (4 + 2U));
    EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
  }
  EXPECT_TRUE(eventually(10s, [&] { return connections() == 0; })) << connections();
  EXPECT_TRUE(
      eventually(10s, [&] { return server.admin("PUBSUB", "CHANNELS", "*").elements.empty(); }));
}

}  // namespace
}  // namespace redlease::test
