// User code that the library runs, stop callbacks and observers: it may do as it likes, take its
// time, throw (the observer), and end leases and clients. Nobody else suffers from it.
#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include <redlease/clock.hpp>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

using Callback = std::stop_callback<std::function<void()>>;

// Holds up whoever comes, until it is opened.
class Gate {
 public:
  void pass() {
    ++waiting_;
    EXPECT_TRUE(eventually(30s, [this] { return open_.load(); }));
    ++passed_;
  }
  void open() { open_ = true; }
  int waiting() const { return waiting_; }
  int passed() const { return passed_; }

 private:
  std::atomic<bool> open_{false};
  std::atomic<int> waiting_{0};
  std::atomic<int> passed_{0};
};

class ObserverOf : public EventLog {
 public:
  explicit ObserverOf(std::function<void(const Event&)> fn) : fn_(std::move(fn)) {}
  void on_event(const Event& event) override {
    EventLog::on_event(event);
    fn_(event);
  }

 private:
  const std::function<void(const Event&)> fn_;
};

class CallbacksTest : public FaultTest {
 protected:
  // Has the server lose the key, and so the lease.
  void lose(std::string_view key) { server.admin("DEL", key); }
};

// B28: callbacks that use the lease they are told of.
TEST_F(CallbacksTest, B28ACallbackThatUsesItsLease) {
  Client client{server.url(), patient()};
  auto lease = must_acquire(client, "k", kept(20s, 20ms));
  std::atomic<int> seen{0};
  const Callback callback{lease.stop_token(), [&] {
                            EXPECT_FALSE(lease.held());
                            EXPECT_EQ(lease.remaining(), 0s);
                            EXPECT_TRUE(lease.loss());
                            EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::missing));
                            EXPECT_THAT(thrown_by_release(lease), lost(LossReason::missing));
                            EXPECT_TRUE(lease.stop_token().stop_requested());
                            ++seen;
                          }};
  lose("k");
  EXPECT_TRUE(eventually(10s, [&] { return seen == 1; }));
}

// B28: a callback that gives back another lease, which is held, and takes yet another one.
TEST_F(CallbacksTest, B28ACallbackThatUsesOtherLeases) {
  Client client{server.url(), patient()};
  auto lease = must_acquire(client, "k", kept(20s, 20ms));
  auto other = must_acquire(client, "other", kept(20s, 20ms));
  std::optional<Lease> next;
  std::atomic<bool> done{false};
  const Callback callback{lease.stop_token(), [&] {
                            other.release();
                            next = must_acquire(client, "k", kept(3s, 20ms));
                            next->renew();
                            static_cast<void>(next->stop_token());
                            done = true;
                          }};
  lose("k");
  ASSERT_TRUE(eventually(10s, [&] { return done.load(); }));
  EXPECT_FALSE(server.exists("other"));
  EXPECT_TRUE(next->held());
  EXPECT_EQ(server.get("k"), next->token().reveal());
}

// B28: a callback that destroys its lease; and the lease's signal outlives it.
TEST_F(CallbacksTest, B28ACallbackThatDestroysItsLease) {
  Client client{server.url(), patient()};
  for (int round = 0; round < 20; ++round) {
    std::optional lease{must_acquire(client, "k", kept(20s, 5ms))};
    const auto stop = lease->stop_token();
    std::atomic<bool> destroyed{false};
    const Callback callback{stop, [&] {
                              lease.reset();
                              destroyed = true;
                            }};
    lose("k");
    ASSERT_TRUE(eventually(10s, [&] { return destroyed.load(); }));
    EXPECT_TRUE(stop.stop_requested());
  }
}

// B28: a callback that destroys the last owner of the client, whose thread it runs on.
TEST_F(CallbacksTest, B28ACallbackThatDestroysTheClient) {
  for (const bool lease_first : {false, true}) {
    for (int round = 0; round < 10; ++round) {
      const auto log = std::make_shared<EventLog>();
      auto options = patient();
      options.observer = log;
      std::optional<Client> client{std::in_place, server.url(), options};
      std::optional lease{must_acquire(*client, "k", kept(20s, 5ms))};
      std::optional other{must_acquire(*client, "other", kept(20s, 5ms))};
      std::atomic<bool> destroyed{false};
      const Callback callback{lease->stop_token(), [&] {
                                if (lease_first) lease.reset();
                                other.reset();
                                client.reset();
                                lease.reset();
                                destroyed = true;
                              }};
      lose("k");
      ASSERT_TRUE(eventually(10s, [&] { return destroyed.load(); }));
      EXPECT_TRUE(becomes_absent("other"));
      EXPECT_TRUE(eventually(10s, [&] { return log->of(Event::Kind::lost).size() == 1; }));
    }
  }
}

// B28: a callback that takes long, while others are held with short ttl's, and yet others are lost:
// those are told in time, and these are kept.
TEST_F(CallbacksTest, B28ASleepingCallbackDelaysNobody) {
  Client client{server.url(), patient()};
  Gate gate;
  auto slow = must_acquire(client, "slow", kept(20s, 20ms));
  std::optional<Callback> sleeping{std::in_place, slow.stop_token(), [&] { gate.pass(); }};
  std::vector<Lease> held;
  std::vector<Lease> losing;
  std::vector<std::unique_ptr<Callback>> callbacks;
  std::atomic<int> told{0};
  std::atomic<int> told_late{0};
  for (int n = 0; n < 10; ++n) {
    held.push_back(must_acquire(client, "held" + std::to_string(n), kept(2500ms, 100ms)));
    losing.push_back(must_acquire(client, "losing" + std::to_string(n),
                                  {.ttl = 2s, .safety_margin = Duration{1s}}));
  }
  lose("slow");
  ASSERT_TRUE(eventually(10s, [&] { return gate.waiting() == 1; }));
  for (auto& lease : losing) {
    const auto left = lease.remaining();
    const auto end = Clock::now() + left;
    callbacks.push_back(std::make_unique<Callback>(lease.stop_token(), [&, end] {
      if (Clock::now() >= end) ++told_late;
      ++told;
    }));
  }
  EXPECT_TRUE(eventually(10s, [&] { return told == 10; }));
  EXPECT_EQ(told_late, 0);
  // Losses that the server tells are no slower.
  for (int n = 0; n < 3; ++n) {
    const auto stop = held.back().stop_token();
    lose(held.back().key());
    EXPECT_TRUE(eventually(slack, [&] { return stop.stop_requested(); }));
    held.pop_back();
  }
  EXPECT_TRUE(always(2600ms, [&] {
    return std::all_of(held.begin(), held.end(), [](auto& lease) { return lease.held(); });
  }));
  EXPECT_EQ(gate.passed(), 0);
  gate.open();
  sleeping.reset();  // waits for it
  EXPECT_EQ(gate.passed(), 1);
}

// B28: many callbacks that take long, all at once. Their threads go again.
TEST_F(CallbacksTest, B28ManySleepingCallbacks) {
  Client client{server.url(), patient()};
  const auto threads = count_threads();
  Gate gate;
  std::vector<Lease> leases;
  std::vector<std::unique_ptr<Callback>> callbacks;
  const int count = 60;
  for (int n = 0; n < count; ++n) {
    leases.push_back(must_acquire(client, std::to_string(n), kept(20s, 20ms)));
    callbacks.push_back(
        std::make_unique<Callback>(leases.back().stop_token(), [&] { gate.pass(); }));
  }
  server.admin("FLUSHALL");
  EXPECT_TRUE(eventually(20s, [&] { return gate.waiting() == count; })) << gate.waiting();
  auto one_more = must_acquire(client, "one more", {.ttl = 300ms});
  const auto stop = one_more.stop_token();
  EXPECT_TRUE(eventually(300ms + slack, [&] { return stop.stop_requested(); }));
  gate.open();
  callbacks.clear();
  EXPECT_EQ(gate.passed(), count);
  EXPECT_TRUE(eventually(10s, [&] { return count_threads() <= threads + 2; })) << count_threads();
}

// B28: hundreds of callbacks that sleep; when they wake up, all are told.
TEST_F(CallbacksTest, B28HundredsOfSleepingCallbacks) {
  Client client{server.url(), patient()};
  Gate gate;
  std::vector<Lease> leases;
  std::vector<std::unique_ptr<Callback>> callbacks;
  const int count = 300;
  for (int n = 0; n < count; ++n) {
    leases.push_back(must_acquire(client, std::to_string(n), kept(20s, 100ms)));
    callbacks.push_back(
        std::make_unique<Callback>(leases.back().stop_token(), [&] { gate.pass(); }));
  }
  server.admin("FLUSHALL");
  EXPECT_TRUE(eventually(20s, [&] { return gate.waiting() == count; })) << gate.waiting();
  auto held = must_acquire(client, "held", kept(3s, 100ms));
  EXPECT_TRUE(held.held());
  gate.open();
  EXPECT_TRUE(eventually(20s, [&] { return gate.passed() == count; })) << gate.passed();
  EXPECT_TRUE(held.held());
}

// B28: the client ends while callbacks sleep: it waits for a second, not for them.
TEST_F(CallbacksTest, B28AClientEndsDuringCallbacks) {
  Gate gate;
  std::vector<std::stop_token> stops;
  std::vector<std::unique_ptr<Callback>> callbacks;
  {
    Client client{server.url(), patient()};
    std::vector<Lease> leases;
    for (int n = 0; n < 5; ++n) {
      leases.push_back(must_acquire(client, std::to_string(n), kept(20s, 20ms)));
      stops.push_back(leases.back().stop_token());
      callbacks.push_back(std::make_unique<Callback>(stops.back(), [&] { gate.pass(); }));
    }
    server.admin("FLUSHALL");
    ASSERT_TRUE(eventually(10s, [&] { return gate.waiting() == 5; }));
    leases.clear();
    const Stopwatch watch;
    std::optional last{std::move(client)};
    last.reset();
    EXPECT_LT(watch.elapsed(), 1s + slack);
  }
  EXPECT_EQ(gate.passed(), 0);
  gate.open();
  callbacks.clear();
  EXPECT_EQ(gate.passed(), 5);
}

// B28: callbacks that go while their stop is requested.
TEST_F(CallbacksTest, B28CallbacksThatGoAtThatMoment) {
  Client client{server.url(), patient()};
  std::atomic<int> called{0};
  for (int round = 0; round < (sanitized ? 50 : 200); ++round) {
    auto lease = must_acquire(client, "k", {.ttl = 20s});
    const auto stop = lease.stop_token();
    auto callback = std::make_unique<Callback>(stop, [&] { ++called; });
    lose("k");
    std::jthread loser{[&] { EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::missing)); }};
    if (round % 3 == 0) eventually(5s, [&] { return stop.stop_requested(); });
    if (round % 3 == 1) eventually(5s, [&] { return !lease.held(); });
    callback.reset();
    const int before = called;
    loser.join();
    EXPECT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
    EXPECT_EQ(called, before);  // a callback that is gone is not called
  }
}

// B28: leases that go while they are lost.
TEST_F(CallbacksTest, B28LeasesThatGoAtThatMoment) {
  Client client{server.url(), patient()};
  std::vector<std::stop_token> stops;
  for (int round = 0; round < (sanitized ? 20 : 60); ++round) {
    std::vector<Lease> leases;
    for (int n = 0; n < 8; ++n) {
      leases.push_back(must_acquire(client, std::to_string(n), kept(20s, 1ms)));
      stops.push_back(leases.back().stop_token());
    }
    for (int n = 0; n < 8; n += 2) lose(std::to_string(n));
    if (round % 2 == 0) eventually(5s, [&] { return !leases.front().held(); });
    leases.clear();
  }
  client.ping();
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

// B28: an observer that throws at every event: leases are kept, and lost, as ever.
TEST_F(CallbacksTest, B28AThrowingObserver) {
  const auto thrower =
      std::make_shared<ObserverOf>([](const Event&) { throw std::runtime_error("its own"); });
  auto options = patient();
  options.observer = thrower;
  Client client{server.url(), options};
  auto lease = must_acquire(client, "k", kept(2s, 20ms));
  EXPECT_TRUE(always(2200ms, [&] { return lease.held(); }));
  const auto stop = lease.stop_token();
  lose("k");
  EXPECT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
  EXPECT_TRUE(thrower->has(Event::Kind::lost));
  EXPECT_EQ(thrower->of(Event::Kind::lost).size(), 1U);
}

// B28: an observer that takes its time holds up neither renewals nor signals, and hears all of it
// afterwards, in order.
TEST_F(CallbacksTest, B28ASleepingObserver) {
  Gate gate;
  const auto sleeper = std::make_shared<ObserverOf>([&](const Event& event) {
    if (event.kind == Event::Kind::renewed && gate.passed() == 0) gate.pass();
  });
  auto options = patient();
  options.observer = sleeper;
  Client client{server.url(), options};
  auto lease = must_acquire(client, "k", kept(2s, 20ms));
  ASSERT_TRUE(eventually(10s, [&] { return gate.waiting() == 1; }));
  EXPECT_TRUE(always(2200ms, [&] { return lease.held(); }));
  auto plain = must_acquire(client, "plain", {.ttl = 2s, .safety_margin = Duration{1s}});
  const auto left = plain.remaining();
  const auto end = Clock::now() + left;
  std::atomic<int> in_time{0};
  const Callback callback{plain.stop_token(), [&] { in_time = Clock::now() < end ? 1 : -1; }};
  EXPECT_TRUE(eventually(10s, [&] { return in_time != 0; }));
  EXPECT_EQ(in_time, 1);
  const auto stop = lease.stop_token();
  lose("k");
  EXPECT_TRUE(eventually(slack, [&] { return stop.stop_requested(); }));
  EXPECT_TRUE(sleeper->of(Event::Kind::lost).empty());
  gate.open();
  EXPECT_TRUE(eventually(10s, [&] { return sleeper->of(Event::Kind::lost).size() == 2; }));
  const auto events = sleeper->all();
  EXPECT_EQ(events.front().kind, Event::Kind::acquired);
  EXPECT_EQ(events.back().kind, Event::Kind::lost);
  EXPECT_EQ(events.back().key, "k");
}

// B28: the client doesn't wait for an observer that takes long either; it hears the rest later.
TEST_F(CallbacksTest, B28AClientEndsDuringAnEvent) {
  Gate gate;
  const auto sleeper = std::make_shared<ObserverOf>([&](const Event& event) {
    if (event.kind == Event::Kind::acquired) gate.pass();
  });
  auto options = patient();
  options.observer = sleeper;
  const Stopwatch watch;
  {
    Client client{server.url(), options};
    auto lease = must_acquire(client, "k", kept(20s, 20ms));
    static_cast<void>(lease.stop_token());
    ASSERT_TRUE(eventually(10s, [&] { return gate.waiting() == 1; }));
    lease.release();
  }
  EXPECT_LT(watch.elapsed(), 1s + slack);
  EXPECT_EQ(gate.passed(), 0);
  gate.open();
  EXPECT_TRUE(sleeper->has(Event::Kind::released));
}

// B28: an observer that gives up leases, and the client, when it hears of a loss.
TEST_F(CallbacksTest, B28AnObserverThatDestroysLeasesAndTheClient) {
  struct World {
    std::mutex mutex;
    std::vector<Lease> leases;
    std::optional<Client> client;
    std::atomic<bool> destroyed{false};
  };
  for (int round = 0; round < 10; ++round) {
    const auto world = std::make_shared<World>();  // the observer's, too
    auto options = patient();
    options.observer = std::make_shared<ObserverOf>([world](const Event& event) {
      if (event.kind != Event::Kind::lost) return;
      const std::lock_guard lock{world->mutex};
      world->leases.clear();
      world->client.reset();
      world->destroyed = true;
    });
    {
      const std::lock_guard lock{world->mutex};
      world->client.emplace(server.url(), options);
      for (int n = 0; n < 5; ++n) {
        world->leases.push_back(must_acquire(*world->client, std::to_string(n), kept(20s, 5ms)));
        static_cast<void>(world->leases.back().stop_token());
      }
    }
    options = {};
    lose("3");
    ASSERT_TRUE(eventually(20s, [&] { return world->destroyed.load(); }));
    EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
  }
}

// B28: an observer that acquires, with the client that it observes.
TEST_F(CallbacksTest, B28AnObserverThatAcquires) {
  Client* self = nullptr;
  std::atomic<int> acquired{0};
  std::vector<Lease> taken;
  const auto taker = std::make_shared<ObserverOf>([&](const Event& event) {
    if (event.kind != Event::Kind::lost) return;
    taken.push_back(must_acquire(*self, "instead of " + event.key, kept(3s, 20ms)));
    ++acquired;
  });
  auto options = patient();
  options.observer = taker;
  Client client{server.url(), options};
  self = &client;
  auto a = must_acquire(client, "a", kept(20s, 20ms));
  auto b = must_acquire(client, "b", kept(20s, 20ms));
  server.admin("DEL", "a", "b");
  ASSERT_TRUE(eventually(10s, [&] { return acquired == 2; }));
  EXPECT_TRUE(taken[0].held() && taken[1].held());
  taken.clear();
}

// B28: an event for each thing that happened: of renewals, too, with what it left.
TEST_F(CallbacksTest, B92RenewalsAreTold) {
  const auto log = std::make_shared<EventLog>();
  auto options = patient();
  options.observer = log;
  Client client{server.url(), options};
  auto lease = must_acquire(
      client, "k", {.ttl = 3s, .auto_renew = true, .renew_every = Duration{50ms}, .label = "jobs"});
  ASSERT_TRUE(eventually(10s, [&] { return log->of(Event::Kind::renewed).size() >= 3; }));
  for (const auto& event : log->of(Event::Kind::renewed)) {
    EXPECT_EQ(event.key, "k");
    EXPECT_EQ(event.label, "jobs");
    EXPECT_EQ(event.fingerprint, lease.token().fingerprint());
    EXPECT_GT(event.held_for, 0s);
    EXPECT_GT(event.left, 300ms);
    EXPECT_LE(event.left, 2970ms);
    EXPECT_FALSE(event.error);
  }
  lose("k");
  ASSERT_TRUE(log->has(Event::Kind::lost));
  const auto loss = log->of(Event::Kind::lost).at(0);
  EXPECT_EQ(loss.label, "jobs");
  EXPECT_GT(loss.held_for, 150ms);
  EXPECT_EQ(loss.held_for, lease.loss()->held_for);
}

// B28: a stop callback that takes long doesn't keep the observer from hearing of other things.
TEST_F(CallbacksTest, B28ASleepingCallbackDelaysNoEvent) {
  const auto log = std::make_shared<EventLog>();
  auto options = patient();
  options.observer = log;
  Client client{server.url(), options};
  Gate gate;
  auto lease = must_acquire(client, "k", kept(20s, 20ms));
  std::optional<Callback> sleeping{std::in_place, lease.stop_token(), [&] { gate.pass(); }};
  ASSERT_TRUE(log->has(Event::Kind::acquired));
  lose("k");
  ASSERT_TRUE(eventually(10s, [&] { return gate.waiting() == 1; }));
  EXPECT_TRUE(eventually(3s, [&] { return !log->of(Event::Kind::lost).empty(); }));
  gate.open();
  sleeping.reset();
}

}  // namespace
}  // namespace redlease::test
