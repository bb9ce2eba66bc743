// Those of one client who wait for a key: they queue, and hand the lease on from one to the next.
#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include <redlease/store/lua_scripts.hpp>

#include "integration/fixture.hpp"
#include "support/waiters.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

bool is_handoff(const MonitorLine& line) {
  return line.source != "lua" &&
         ((line.args.at(0) == "EVALSHA" && line.args.at(1) == lua::handoff.sha1) ||
          (line.args.at(0) == "EVAL" && line.args.at(1) == lua::handoff.text));
}

class Queue : public IntegrationTest {
 protected:
  using Waiters = std::vector<std::unique_ptr<Waiter>>;

  // One more at the end of the queue: when this returns it is in it.
  Waiter& queue_up(Waiters& waiters, const Wait& wait = restless(), LeaseOptions options = {}) {
    waiters.push_back(std::make_unique<Waiter>(client, "k", wait, options));
    EXPECT_TRUE(eventually(at_once, [&] { return waiters.back()->asked(); }));
    return *waiters.back();
  }

  Client other{server.url()};
};

// Who holds the lease, in this order.
class Served {
 public:
  void add(int who) {
    const std::lock_guard lock{mutex_};
    order_.push_back(who);
  }
  std::vector<int> order() const {
    const std::lock_guard lock{mutex_};
    return order_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<int> order_;
};

// First come, first served, whether they are woken, handed the lease, or poll.
TEST_F(Queue, IsFirstInFirstOut) {
  constexpr int count = 16;
  std::vector<int> expected;
  for (int n = 0; n < count; ++n) expected.push_back(n);
  for (const auto pause : {1ms, 10ms, 10ms}) {
    auto held = other.try_acquire("k", {.ttl = 60s});
    Served served;
    std::array<std::atomic<bool>, count> in_queue{};
    {
      std::vector<std::jthread> threads;
      for (int n = 0; n < count; ++n) {
        auto& arrived = in_queue.at(static_cast<std::size_t>(n));
        threads.emplace_back([&, n, pause] {
          auto lease = client.acquire("k",
                                      {.at_most = 60s,
                                       .backoff = {.min = pause, .max = pause},
                                       .still_needed = [&] { return arrived = true; }},
                                      {.ttl = 60s});
          ASSERT_TRUE(lease);
          served.add(n);
          if (n % 2 == 0) lease->release();
        });
        ASSERT_TRUE(eventually(at_once, [&] { return arrived.load(); }));
      }
      held->release();
    }
    EXPECT_EQ(served.order(), expected);
    EXPECT_TRUE(eventually(at_once, [&] { return !server.exists("k"); }));
  }
}

// B51: those who give up are not in the way of the others, and leave nothing behind.
TEST_F(Queue, B51WhoGivesUpIsNotInTheWay) {
  auto held = other.try_acquire("k", {.ttl = 60s});
  Waiters waiters;
  std::stop_source stop;
  std::atomic<bool> needed{true};
  auto& first = queue_up(waiters);
  auto late = restless();
  late.at_most = 500ms;
  auto& overdue = queue_up(waiters, late);
  auto& second = queue_up(waiters);
  auto stoppable = restless();
  stoppable.stop = stop.get_token();
  auto& stopped = queue_up(waiters, stoppable);
  auto doubtful = restless();
  doubtful.still_needed = [&] { return needed.load(); };
  auto& unneeded = queue_up(waiters, doubtful);
  auto broken = restless();
  broken.still_needed = [&]() -> bool {
    if (needed) return true;
    throw std::runtime_error("broken");
  };
  auto& throwing = queue_up(waiters, broken);
  auto counted = restless();
  counted.attempts = 20;
  auto& exhausted = queue_up(waiters, counted);
  auto& third = queue_up(waiters);
  stop.request_stop();
  needed = false;
  for (auto* waiter : {&overdue, &stopped, &unneeded, &exhausted}) {
    EXPECT_FALSE(waiter->acquired());
  }
  EXPECT_THROW((void)throwing.acquired(), std::runtime_error);
  EXPECT_LT(exhausted.took(), 30s);
  held->release();
  ASSERT_TRUE(first.acquired());
  EXPECT_FALSE(second.done() || third.done());
  first.lease().release();
  ASSERT_TRUE(second.acquired());
  EXPECT_FALSE(third.done());
  second.drop();
  ASSERT_TRUE(third.acquired());
  third.lease().release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B51: the first in the queue gives up, and those behind it go on being woken.
TEST_F(Queue, B51TheNextOneIsWokenWhenTheFirstHasGoneAway) {
  auto held = other.try_acquire("k", {.ttl = 60s});
  std::stop_source stop;
  auto stoppable = asleep();
  stoppable.stop = stop.get_token();
  Waiter first{client, "k", stoppable};
  ASSERT_TRUE(becomes_watched(server));
  Waiter second{client, "k", asleep()};
  Waiter third{client, "k", asleep()};
  stop.request_stop();
  EXPECT_FALSE(first.acquired());
  const Stopwatch watch;
  held->release();
  ASSERT_TRUE(eventually(at_once, [&] { return second.done() || third.done(); }));
  auto& earlier = second.done() ? second : third;
  auto& later = second.done() ? third : second;
  ASSERT_TRUE(earlier.acquired());
  earlier.drop();
  ASSERT_TRUE(later.acquired());
  EXPECT_LT(watch.elapsed(), 2 * at_once);
}

// A lease that comes to one who doesn't need it any more goes to the next.
TEST_F(Queue, WhoIsNotInNeedIsPassedOver) {
  for (const bool throwing : {false, true}) {
    auto held = other.try_acquire("k", {.ttl = 60s});
    Waiters waiters;
    std::atomic<bool> needed{true};
    std::atomic<bool> asked_under_a_lease{false};
    auto& first = queue_up(waiters, restless(), {.ttl = 60s});
    auto doubtful = restless();
    doubtful.still_needed = [&] {
      if (needed) return true;
      asked_under_a_lease = server.exists("k");
      if (throwing) throw std::runtime_error("broken");
      return false;
    };
    auto& second = queue_up(waiters, doubtful, {.ttl = 60s});
    auto& third = queue_up(waiters, restless(), {.ttl = 60s});
    held->release();
    ASSERT_TRUE(first.acquired());
    needed = false;
    first.lease().release();
    if (throwing) {
      EXPECT_THROW((void)second.acquired(), std::runtime_error);
    } else {
      EXPECT_FALSE(second.acquired());
    }
    ASSERT_TRUE(third.acquired());
    EXPECT_EQ(server.get("k"), third.lease().token().reveal());
    third.lease().release();
    EXPECT_FALSE(server.exists("k"));
  }
}

// B49: zero is one attempt, whoever waits, and a queue does not lengthen a count of attempts.
TEST_F(Queue, B49AttemptsAreCounted) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  std::stop_source stop;
  auto stoppable = asleep();
  stoppable.stop = stop.get_token();
  Waiter first{client, "k", stoppable};
  ASSERT_TRUE(becomes_watched(server));
  auto sets = server.command_calls("set");
  EXPECT_FALSE(client.acquire("k", {.at_most = 0s}));
  EXPECT_EQ(server.command_calls("set"), sets + 1);
  EXPECT_FALSE(client.try_acquire("k"));
  EXPECT_EQ(server.command_calls("set"), sets + 2);
  EXPECT_FALSE(client.acquire("k", {.at_most = 60s, .attempts = 1}));
  EXPECT_EQ(server.command_calls("set"), sets + 3);
  sets = server.command_calls("set");
  const Stopwatch watch;
  EXPECT_FALSE(client.acquire("k", {.at_most = 60s, .attempts = 4}));
  EXPECT_LT(watch.elapsed(), 30s);
  EXPECT_LE(server.command_calls("set"), sets + 4);
  EXPECT_FALSE(first.done());
  stop.request_stop();
  EXPECT_FALSE(first.acquired());
}

// B49: the time of one who is behind others is bounded as well.
TEST_F(Queue, B49EndsInTimeBehindOthers) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  std::stop_source stop;
  auto stoppable = asleep();
  stoppable.stop = stop.get_token();
  Waiter first{client, "k", stoppable};
  ASSERT_TRUE(becomes_watched(server));
  for (const auto at_most : {1ms, 20ms, 300ms}) {
    const Stopwatch watch;
    EXPECT_FALSE(client.acquire("k", {.at_most = at_most}));
    EXPECT_GE(watch.elapsed(), at_most);
    EXPECT_LT(watch.elapsed(), at_most + 2s);
  }
  stop.request_stop();
  EXPECT_FALSE(first.acquired());
}

// ---- handing on --------------------------------------------------------------------------------

class Handoff : public Queue {
 protected:
  // The way in which the first of two waiters of a client gives its lease back.
  using GiveBack = std::function<void(Waiter&)>;

  // What the server saw of the key between the first one's lease and the second one's.
  struct Seen {
    bool handed_on = false;
    std::vector<MonitorLine> lines;
  };

  // A process hands a lease on for some time after it got it, which may pass on a busy machine:
  // the lease is released then. So this tries until it was handed on.
  void until_handed_on(const GiveBack& give_back, LeaseOptions first_options,
                       LeaseOptions second_options, const std::function<void(Waiter&)>& check) {
    bool handed_on = false;
    for (int round = 0; round < 100 && !handed_on; ++round) {
      auto held = other.try_acquire("k", {.ttl = 60s});
      Waiters waiters;
      auto& first = queue_up(waiters, restless(), first_options);
      auto& second = queue_up(waiters, restless(), second_options);
      held->release();
      ASSERT_TRUE(first.acquired());
      const std::string token{first.lease().token().reveal()};
      give_back(first);
      ASSERT_TRUE(second.acquired());
      const auto seen = between(token, second.lease().token().reveal());
      EXPECT_NE(token, second.lease().token().reveal()) << "every lease has a token of its own";
      EXPECT_EQ(server.get("k"), second.lease().token().reveal());
      handed_on = std::any_of(seen.begin(), seen.end(), is_handoff);
      if (handed_on) {
        EXPECT_FALSE(std::any_of(seen.begin(), seen.end(), [](const MonitorLine& line) {
          return line.args.at(0) == "DEL";
        })) << "no moment in which the key is free";
        check(second);
      }
      second.drop();
      EXPECT_TRUE(eventually(at_once, [&] { return !server.exists("k"); }));
    }
    EXPECT_TRUE(handed_on);
  }

  // The lines from the one that set the first token to the one that set the second.
  std::vector<MonitorLine> between(std::string_view first, std::string_view second) {
    monitor.sync();
    std::vector<MonitorLine> lines;
    bool begun = false;
    for (const auto& line : monitor.lines()) {
      const bool set = line.args.size() > 2 && line.args[0] == "SET" && line.args[1] == "k";
      if (set && line.args[2] == first) begun = true;
      if (begun) lines.push_back(line);
      if (set && line.args[2] == second) break;
    }
    return lines;
  }
};

TEST_F(Handoff, ReplacesReleaseAndAcquisition) {
  until_handed_on([](Waiter& first) { first.lease().release(); }, {.ttl = 20s}, {.ttl = 500s},
                  [&](Waiter& second) {
                    EXPECT_GT(server.pttl("k"), 400s) << "the next holder's own ttl";
                    EXPECT_GT(second.lease().remaining(), 400s);
                    second.lease().renew();
                    second.lease().release();
                    EXPECT_FALSE(server.exists("k"));
                  });
}

TEST_F(Handoff, GivesTheNextHolderHisOwnTtlIfItIsShorter) {
  until_handed_on([](Waiter& first) { first.lease().release(); }, {.ttl = 500s}, {.ttl = 20s},
                  [&](Waiter& second) {
                    EXPECT_LE(server.pttl("k"), 20s);
                    EXPECT_LE(second.lease().remaining(), 20s);
                  });
}

TEST_F(Handoff, EndsAScope) {
  until_handed_on([](Waiter& first) { first.drop(); }, {.ttl = 20s}, {.ttl = 500s},
                  [&](Waiter& second) {
                    EXPECT_GT(server.pttl("k"), 400s);
                    EXPECT_GT(second.lease().remaining(), 400s);
                    EXPECT_NO_THROW(second.lease().release());
                  });
}

TEST_F(Handoff, EndsTheScopeOfAMovedLease) {
  until_handed_on(
      [](Waiter& first) {
        std::optional<Lease> moved{std::move(first.lease())};
        first.drop();
        *moved = Lease{std::move(*moved)};
        moved.reset();
      },
      {.ttl = 20s}, {.ttl = 20s}, [](Waiter& second) { EXPECT_TRUE(second.lease().held()); });
}

TEST_F(Handoff, WorksWithTheNoexceptRelease) {
  until_handed_on(
      [](Waiter& first) {
        std::error_code error;
        first.lease().release(error);
        EXPECT_FALSE(error) << error.message();
        EXPECT_THROW(first.lease().release(), std::invalid_argument) << "it was released";
      },
      {.ttl = 20s}, {.ttl = 20s}, [](Waiter& second) { EXPECT_TRUE(second.lease().held()); });
}

// The keeper has the lease of either.
TEST_F(Handoff, GoesFromOneKeptLeaseToTheNext) {
  const LeaseOptions kept{.ttl = 600ms, .auto_renew = true, .renew_every = 100ms};
  for (const bool scope_exit : {false, true}) {
    until_handed_on(
        [&](Waiter& first) {
          auto stop = first.lease().stop_token();
          scope_exit ? first.drop() : first.lease().release();
          EXPECT_FALSE(stop.stop_requested());
        },
        kept, kept,
        [&](Waiter& second) {
          const auto stop = second.lease().stop_token();
          const std::string token{second.lease().token().reveal()};
          const Stopwatch watch;
          EXPECT_TRUE(eventually(at_once, [&] { return watch.elapsed() > 1s; }));
          EXPECT_TRUE(second.lease().held()) << "it was renewed";
          EXPECT_EQ(server.get("k"), token);
          server.admin("DEL", "k");
          EXPECT_TRUE(eventually(at_once, [&] { return stop.stop_requested(); }));
          EXPECT_EQ(second.lease().loss().value().reason, LossReason::missing);
        });
  }
}

TEST_F(Handoff, TellsTheObserver) {
  until_handed_on([](Waiter& first) { first.lease().release(); }, {.ttl = 20s, .label = "first"},
                  {.ttl = 20s, .label = "second"},
                  [&](Waiter& second) {
                    const std::string fingerprint{second.lease().token().fingerprint()};
                    const auto label_of = [&](Event::Kind kind, std::string_view of) {
                      for (const auto& event : events->all(kind)) {
                        if (event.fingerprint == of) return event.label;
                      }
                      return std::string{};
                    };
                    EXPECT_TRUE(eventually(at_once, [&] {
                      return label_of(Event::Kind::acquired, fingerprint) == "second";
                    }));
                    const auto all = events->all(Event::Kind::acquired);
                    const auto mine = std::find_if(all.begin(), all.end(), [&](const Event& event) {
                      return event.fingerprint == fingerprint;
                    });
                    ASSERT_NE(mine, all.end());
                    EXPECT_GT(mine->waited, 0s);
                    EXPECT_GT(mine->left, 10s);
                    EXPECT_EQ(label_of(Event::Kind::released, fingerprint), std::string{});
                    second.lease().release();
                    EXPECT_TRUE(eventually(at_once, [&] {
                      return label_of(Event::Kind::released, fingerprint) == "second";
                    }));
                    // As many ends as beginnings, and no more than one for each lease.
                    std::multiset<std::string> ends;
                    for (const auto& event : events->all(Event::Kind::released)) {
                      ends.insert(std::string{event.fingerprint});
                    }
                    for (const auto& event : all) EXPECT_EQ(ends.count(event.fingerprint), 1U);
                  });
  EXPECT_THAT(events->all(Event::Kind::lost), testing::IsEmpty());
  EXPECT_THAT(events->all(Event::Kind::in_doubt), testing::IsEmpty());
  EXPECT_THAT(events->all(Event::Kind::background_error), testing::IsEmpty());
}

// B50: what a handoff costs. A busy machine makes holders slow, and those who wait look then; so
// the best of some rounds counts.
TEST_F(Handoff, B50CostsLittleMoreThanARequest) {
  constexpr std::size_t threads = 8;
  constexpr std::size_t cycles = 100;
  double best = 100;
  for (int round = 0; round < 30 && best > 1.3; ++round) {
    monitor.sync();
    const auto is_request = [&](const MonitorLine& line) {
      return line.source != "lua" && !server.admin_addresses().contains(line.source);
    };
    const auto before = monitor.count(is_request);
    {
      std::vector<std::jthread> workers;
      for (std::size_t n = 0; n < threads; ++n) {
        workers.emplace_back([&] {
          for (std::size_t cycle = 0; cycle < cycles; ++cycle) {
            ASSERT_TRUE(client.acquire("k", {.at_most = 60s}, {.ttl = 60s}));
          }
        });
      }
    }
    monitor.sync();
    const auto requests = static_cast<double>(monitor.count(is_request) - before);
    best = std::min(best, requests / (threads * cycles));
  }
  EXPECT_LE(best, 1.3);
}

// A client that has waiters enough to go on for ever gives others their turn.
TEST_F(Handoff, LeavesOthersTheirTurn) {
  for (const auto* url : {"first", "second"}) {
    Client& busy = url == std::string_view{"first"} ? client : other;
    Client& modest = url == std::string_view{"first"} ? other : client;
    std::atomic<bool> enough{false};
    std::atomic<int> turns{0};
    std::vector<std::jthread> threads;
    for (int n = 0; n < 4; ++n) {
      threads.emplace_back([&] {
        while (!enough) {
          ASSERT_TRUE(busy.acquire("k", {.at_most = 60s}, {.ttl = 60s}));
          ++turns;
        }
      });
    }
    EXPECT_TRUE(eventually(at_once, [&] { return turns > 100; }));
    std::chrono::nanoseconds longest{0};
    for (int n = 0; n < 10; ++n) {
      const Stopwatch watch;
      EXPECT_TRUE(modest.acquire("k", asleep(), {.ttl = 60s}));
      longest = std::max(longest, watch.elapsed());
    }
    enough = true;
    EXPECT_LT(longest, at_once);
  }
}

// Two clients with waiters each: both get their share, whatever the order of their threads.
TEST_F(Handoff, TakesTurnsWithAnotherClient) {
  constexpr int enough = 300;
  std::atomic<int> mine{0};
  std::atomic<int> theirs{0};
  const auto work = [&](Client& who, std::atomic<int>& count) {
    while (mine < enough || theirs < enough) {
      ASSERT_TRUE(who.acquire("k", {.at_most = 60s}, {.ttl = 60s}));
      ++count;
    }
  };
  const Stopwatch watch;
  {
    std::vector<std::jthread> threads;
    for (int n = 0; n < 4; ++n) {
      threads.emplace_back([&] { work(client, mine); });
      threads.emplace_back([&] { work(other, theirs); });
    }
  }
  EXPECT_LT(watch.elapsed(), 60s) << mine << " and " << theirs;
}

// A holder that has had its lease for long gives it back for all, not only for its own client.
TEST_F(Handoff, ALongHeldLeaseIsReallyReleased) {
  auto mine = client.try_acquire("k", {.ttl = 60s});
  Waiter near{client, "k", asleep(), {.ttl = 60s}};
  Waiter far{other, "k", asleep(), {.ttl = 60s}};
  ASSERT_TRUE(becomes_watched(server));
  const Stopwatch watch;
  EXPECT_FALSE(eventually(500ms, [&] { return near.done() || far.done(); }));
  mine->release();
  ASSERT_TRUE(eventually(at_once, [&] { return near.done() || far.done(); }));
  auto& earlier = near.done() ? near : far;
  auto& later = near.done() ? far : near;
  ASSERT_TRUE(earlier.acquired());
  earlier.drop();
  ASSERT_TRUE(later.acquired());
  EXPECT_LT(watch.elapsed(), 2 * at_once);
}

// A run ends in time, too, when its leases are held for longer than their ttl.
TEST_F(Handoff, ARunOfRenewedLeasesEndsInTime) {
  std::vector<std::jthread> threads;
  for (int n = 0; n < 3; ++n) {
    threads.emplace_back([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const auto lease =
            client.acquire("k", {.at_most = 20s}, {.ttl = 200ms, .auto_renew = true});
        const Stopwatch watch;
        if (lease) eventually(300ms, [&] { return watch.elapsed() >= 250ms; });
      }
    });
  }
  for (int turn = 0; turn < 3; ++turn) EXPECT_TRUE(other.acquire("k", {.at_most = 20s}));
}

// Where a server refuses tracking, clients step back, too.
TEST_F(Handoff, ClientsTakeTurnsWithoutTracking) {
  server.admin("ACL", "SETUSER", "poor", "on", ">secret", "~*", "&*", "+@all", "-client|tracking");
  const auto url = "redis://poor:secret@127.0.0.1:" + std::to_string(server.port());
  std::array<std::atomic<int>, 2> turns{};
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::jthread> threads;
  for (auto& of_client : turns) {
    auto& mine = *clients.emplace_back(std::make_unique<Client>(url));
    for (int n = 0; n < 4; ++n) {
      threads.emplace_back([&mine, &of_client](const std::stop_token& stop) {
        while (!stop.stop_requested()) {
          if (mine.acquire("k", {.at_most = 20s}, {.ttl = 60s})) ++of_client;
        }
      });
    }
  }
  EXPECT_TRUE(eventually(30s, [&] { return turns[0] > 20 && turns[1] > 20; }))
      << turns[0] << " and " << turns[1];
}

}  // namespace
}  // namespace redlease::test
