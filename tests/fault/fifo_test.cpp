// Order::fifo in a bad world: a line whose waiters die, stop, or can't be reached goes on.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <new>
#include <random>
#include <stop_token>
#include <thread>

#include <redlease/core/key_slot.hpp>
#include <redlease/store/line_store.hpp>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

constexpr std::chrono::milliseconds window = store::LineStore::window;

// Bounds here tell a window from a ttl or a time-out of many seconds. A machine on which all stands
// still for a while is no failure.
constexpr std::chrono::milliseconds much_slack = 4 * slack;

Wait in_line(std::chrono::milliseconds at_most = 55s, Backoff backoff = {}) {
  return {.at_most = at_most, .backoff = backoff, .order = Order::fifo};
}

// What is seen by child processes, too.
template <class T>
class Shared {
 public:
  Shared()
      : object_(::new (::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0)) T) {}
  ~Shared() { ::munmap(object_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return object_; }

 private:
  T* object_;
};

// Who held the lease, in order; and whether two believed so at once. Holders claim no more than
// remaining() says, and give up their claim before they release.
class Turns {
 public:
  using Claim = std::chrono::steady_clock::rep;

  Claim take(int who, const Lease& lease) {
    const auto now = std::chrono::steady_clock::now();
    const auto claim = (now + lease.remaining()).time_since_epoch().count();
    const auto before = until_.exchange(claim);
    // One who was stopped in between may have lost the lease: then the next one's claim is right.
    if (!lease.held()) {
      give_up(claim, before);
    } else if (before > now.time_since_epoch().count()) {
      ++overlaps_;
    }
    who_.at(count_++ % who_.size()) = who;
    return claim;
  }
  void give_up(Claim claim, Claim before = 0) { until_.compare_exchange_strong(claim, before); }

  std::size_t count() const { return count_; }
  int overlaps() const { return overlaps_; }
  std::vector<int> order() const {
    return {who_.begin(), who_.begin() + static_cast<std::ptrdiff_t>(count_.load())};
  }

 private:
  std::atomic<Claim> until_{0};
  std::atomic<int> overlaps_{0};
  std::atomic<std::size_t> count_{0};
  std::array<std::atomic<int>, 4096> who_{};
};

class FifoTest : public FaultTest {
 protected:
  using FaultTest::FaultTest;

  std::size_t length() {
    return static_cast<std::size_t>(
        server.admin("ZCARD", core::beside("k", "redlease:line")).integer);
  }
  bool becomes(std::size_t waiters) {
    return eventually(20s, [&] { return length() == waiters; });
  }
  // Those who wait in a fresh client don't, at first.
  bool all_hear() {
    const auto tickets = server.admin("ZRANGE", core::beside("k", "redlease:line"), 0, -1);
    return std::none_of(tickets.elements.begin(), tickets.elements.end(),
                        [](const Answer& ticket) { return ticket.text.starts_with("-:"); });
  }

  // Grants so far that came to nothing since their process was too slow.
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

  // Waits for the lease, notes that it came, and gives it back.
  void take_turn(Client& waiting, int who, const Wait& wait = in_line(),
                 const LeaseOptions& options = {.ttl = 60s}) {
    auto lease = waiting.acquire("k", wait, options);
    ASSERT_TRUE(lease) << "waiter " << who;
    const auto claim = turns->take(who, *lease);
    turns->give_up(claim);
    std::error_code error;
    lease->release(error);
  }

  // The n-th in line. Returns when he stands there.
  std::jthread waiter(Client& waiting, int who, std::size_t place, const Wait& wait = in_line(),
                      const LeaseOptions& options = {.ttl = 60s}) {
    std::jthread thread{[this, &waiting, who, wait, options] {
      EXPECT_THAT(thrown_by([&] { return take_turn(waiting, who, wait, options), 0; }),
                  succeeded());
    }};
    EXPECT_TRUE(becomes(place)) << length() << " in line";
    return thread;
  }

  // A process in which `threads` wait for the lease, one after the other in line.
  Child waiting_process(int who, int threads, std::size_t before) {
    entering->allowed = 1;
    Child child{[&] {
      Client own{server.url(), patient()};
      {
        std::vector<std::jthread> waiters;
        for (int n = 0; n < threads; ++n) {
          waiters.emplace_back([&] { take_turn(own, who); });
          if (!eventually(20s, [&] { return entering->allowed > n + 1; })) return 3;
        }
      }
      return ::testing::Test::HasFailure() ? 2 : 0;
    }};
    for (int n = 0; n < threads; ++n) {
      EXPECT_TRUE(becomes(before + static_cast<std::size_t>(n) + 1));
      entering->allowed = n + 2;
    }
    EXPECT_TRUE(eventually(20s, [&] { return all_hear(); }));
    return child;
  }

  // What a client that is gone may have left in the line is passed over by the next one.
  void expect_nothing_left() {
    Client last{server.url(), patient()};
    EXPECT_TRUE(eventually(30s, [&] {
      if (auto lease = last.acquire("k", in_line(5s), {.ttl = 60s})) lease->release();
      return server.dbsize() == 0;
    }));
    EXPECT_EQ(turns->overlaps(), 0);
  }

  struct Entering {
    std::atomic<int> allowed{0};
  };
  Shared<Turns> turns;
  Shared<Entering> entering;
  Client client{server.url(), patient()};
  Client other{server.url(), patient()};
};

// ---- in doubt ----------------------------------------------------------------------------------

// B51, B06: a sign of life whose answer is lost makes the ticket void. A grant that is heard of in
// the meantime must not be accepted: the clean-up gives it away.
TEST_F(FifoTest, B51AGrantOfAVoidTicketIsNoLease) {
  FaultProxy proxy{server.port()};
  Client shaky{proxy.url(), {.command_timeout = 2s}};
  auto held = shaky.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  std::jthread waiting{[&] {
    auto lease = shaky.acquire("k", in_line(), {.ttl = 60s});
    ASSERT_TRUE(lease);
    EXPECT_TRUE(always(
        500ms, [&] { return !lease->held() || server.get("k") == lease->token().reveal(); }));
  }};
  ASSERT_TRUE(becomes(1));
  ASSERT_TRUE(eventually(20s, [&] { return all_hear(); }));
  const auto joins = proxy.requests_seen("\r\njoin\r\n");
  proxy.drop_reply_matching("\r\njoin\r\n", false);
  ASSERT_TRUE(eventually(20s, [&] { return proxy.requests_seen("\r\njoin\r\n") > joins; }));
  held->release();
  waiting.join();
  expect_nothing_left();
}

// B51: a waiter whose leaving is lost stays in the line. A grant to him is given back.
TEST_F(FifoTest, B51AWaiterWhoseLeavingIsLost) {
  {
    FaultProxy proxy{server.port()};
    Client shaky{proxy.url(), hasty()};
    auto held = shaky.acquire("k", in_line(), {.ttl = 60s});
    ASSERT_TRUE(held);
    std::stop_source stop;
    std::jthread leaving{[&] {
      auto wait = in_line();
      wait.stop = stop.get_token();
      EXPECT_FALSE(shaky.acquire("k", wait, {.ttl = 60s}));
    }};
    ASSERT_TRUE(becomes(1));
    auto next = waiter(other, 1, 2, in_line(10s));
    EXPECT_TRUE(eventually(20s, [&] { return all_hear(); }));
    proxy.drop_request_matching("\r\nleave\r\n", true);
    stop.request_stop();
    leaving.join();
    held->release();
    next.join();
    expect_nothing_left();
  }
}

// B51: the same, when he is granted the lease by one of his own process who joins.
TEST_F(FifoTest, B51ALostLeavingAndAJoinOfTheSameProcess) {
  FaultProxy proxy{server.port()};
  Client shaky{proxy.url(), hasty()};
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  std::stop_source stop;
  std::jthread leaving{[&] {
    auto wait = in_line();
    wait.stop = stop.get_token();
    EXPECT_FALSE(shaky.acquire("k", wait, {.ttl = 60s}));
  }};
  ASSERT_TRUE(becomes(1));
  auto next = waiter(shaky, 1, 2, in_line(10s));
  EXPECT_TRUE(eventually(20s, [&] { return all_hear(); }));
  proxy.drop_request_matching("\r\nleave\r\n", true);
  stop.request_stop();
  leaving.join();
  server.admin("DEL", "k");
  next.join();
  expect_nothing_left();
}

// B51: the dead don't keep a lease from those who don't wait.
TEST_F(FifoTest, B51ALineOfTheDeadDoesNotKeepAFreeLease) {
  if (!children_have_threads) GTEST_SKIP() << "not with sanitizers";
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  auto child = waiting_process(1, 2, 0);
  ::kill(child.pid(), SIGKILL);
  EXPECT_EQ(child.wait(), 128 + SIGKILL);
  // The server has noticed when nobody listens to grants.
  ASSERT_TRUE(eventually(
      10s, [&] { return server.admin("PUBSUB", "CHANNELS", "redlease:*").elements.empty(); }));
  server.admin("DEL", "k");
  EXPECT_TRUE(client.acquire("k", in_line(0ms)));
  expect_nothing_left();
}

// ---- those who don't hear ----------------------------------------------------------------------

// B51: whoever may not listen asks, soon enough to accept a grant, whatever the back-off.
TEST_F(FifoTest, B51ADeafWaiterWithALongBackoff) {
  for (const auto* refused : {"-subscribe", "-client|tracking"}) {
    server.admin("ACL", "SETUSER", "deaf", "reset", "on", ">pw", "~*", "&*", "+@all", refused);
    Client deaf{server.url(), {.username = "deaf", .password = "pw"}};
    auto held = client.acquire("k", in_line(), {.ttl = 60s});
    ASSERT_TRUE(held);
    auto next = waiter(deaf, 1, 1, in_line(20s, {.min = 1500ms, .max = 1500ms}));
    const Stopwatch watch;
    held->release();
    next.join();
    EXPECT_LT(watch.elapsed(), 10s);
  }
  expect_nothing_left();
}

// B51: one who hears no more, for good, is served as if he never had.
TEST_F(FifoTest, B51AWaiterWhoBecomesDeaf) {
  server.admin("ACL", "SETUSER", "deaf", "reset", "on", ">pw", "~*", "&*", "+@all");
  Client deaf{server.url(), {.username = "deaf", .password = "pw"}};
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  auto first = waiter(deaf, 1, 1, in_line(30s));
  auto second = waiter(deaf, 2, 2, in_line(30s));
  server.admin("ACL", "SETUSER", "deaf", "-subscribe");
  server.admin("CLIENT", "KILL", "USER", "deaf");
  std::vector<std::jthread> busy;
  std::atomic<bool> enough{false};
  for (int n = 0; n < 3; ++n) {
    busy.emplace_back([&] {
      while (!enough) {
        const auto lease = other.acquire("k", in_line(), {.ttl = 60s});
        EXPECT_TRUE(lease);
        eventually(1s, [&] { return enough || length() >= 2; });
      }
    });
  }
  held->release();
  first.join();
  second.join();
  enough = true;
  busy.clear();
  expect_nothing_left();
}

// B51, B46: whoever may not listen, or not be told, is served by his signs of life, in order.
TEST_F(FifoTest, B51TheOrderOfThoseWhoDoNotHear) {
  const std::vector<std::vector<std::string>> rights{
      {"&*", "-subscribe"},
      {"resetchannels", "&__redis__:invalidate"},
      {"&*", "-client|tracking"},
      {"&*", "-publish"},
  };
  for (const auto& right : rights) {
    SCOPED_TRACE(right.back());
    std::vector<std::string> command{"ACL", "SETUSER", "deaf", "reset", "on", ">pw", "~*", "+@all"};
    command.insert(command.end(), right.begin(), right.end());
    ASSERT_TRUE(server.admin_command(command).is_ok());
    auto options = patient();
    options.username = "deaf";
    options.password = "pw";
    Client one{server.url(), options};
    Client two{server.url(), options};
    const auto before = turns->count();
    const auto missed = missed_grants();
    auto held = one.acquire("k", in_line(), {.ttl = 60s});
    ASSERT_TRUE(held);
    std::vector<std::jthread> waiters;
    for (std::size_t n = 0; n < 6; ++n) {
      waiters.push_back(waiter(n % 3 == 0 ? one : two, static_cast<int>(n), n + 1));
    }
    const Stopwatch watch;
    held->release();
    waiters.clear();
    EXPECT_LT(watch.elapsed(), 6 * (window + much_slack));
    auto order = turns->order();
    order.erase(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(before));
    EXPECT_EQ(order.size(), 6U);
    if (missed_grants() == missed) {
      EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4, 5));
    }
  }
  expect_nothing_left();
}

// B46: connections that listen are killed again and again.
TEST_F(FifoTest, B46WatchersAreKilledAgainAndAgain) {
  Client third{server.url(), patient()};
  std::jthread killer{[&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      server.admin("CLIENT", "KILL", "TYPE", "pubsub");
      std::this_thread::yield();
    }
  }};
  std::vector<std::jthread> threads;
  for (int n = 0; n < 6; ++n) {
    threads.emplace_back([&, n] {
      auto& mine = n % 3 == 0 ? client : n % 3 == 1 ? other : third;
      for (int cycle = 0; cycle < 20; ++cycle) take_turn(mine, n);
    });
  }
  threads.clear();
  killer = {};
  EXPECT_EQ(turns->count(), 6U * 20);
  expect_nothing_left();
}

// ---- bounds ------------------------------------------------------------------------------------

// B49: a wait in line ends in time, too, whatever the time-outs: a held key, a server that stands
// still, a black hole, with and without a connection and a log-in.
TEST_F(FifoTest, B49TheWaitIsBounded) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  FaultProxy proxy{server.port()};
  auto options = patient();
  options.database = 0;
  Client connected{proxy.url(), options};
  connected.ping();
  options.database = 3;
  Client fresh{proxy.url(), options};
  Client waited{proxy.url(), options};
  EXPECT_FALSE(connected.acquire("k", in_line(300ms)));
  EXPECT_TRUE(waited.acquire("k", in_line(300ms)));
  const auto expect_bounded = [&](Client& each) {
    const Stopwatch watch;
    EXPECT_FALSE(thrown_by([&] { return each.acquire("k", in_line(300ms)); }).nothing());
    EXPECT_LT(watch.elapsed(), 400ms + much_slack);
  };
  proxy.black_hole(true);
  for (auto* each : {&connected, &fresh, &waited}) {
    expect_bounded(*each);
    expect_bounded(*each);
  }
  proxy.pass_through();
  server.pause();
  for (auto* each : {&connected, &client}) expect_bounded(*each);
  server.resume();
  EXPECT_TRUE(becomes(0));
  server.admin("DEL", "k");
  expect_nothing_left();
}

// B49: so does a stop request, though the server hangs.
TEST_F(FifoTest, B49AStopRequestEndsTheWait) {
  server.admin("SET", "k", "stranger", "NX", "PX", 60'000);
  FaultProxy proxy{server.port()};
  Client hangs{proxy.url(), {.connect_timeout = 1s, .command_timeout = 1s, .database = 0}};
  std::stop_source stop;
  std::vector<std::jthread> waiters;
  for (std::size_t n = 0; n < 4; ++n) {
    waiters.emplace_back([&] {
      auto wait = in_line();
      wait.stop = stop.get_token();
      EXPECT_THAT(thrown_by([&] { return hangs.acquire("k", wait); }), succeeded());
    });
    EXPECT_TRUE(becomes(n + 1));
  }
  proxy.black_hole(true);
  const Stopwatch watch;
  stop.request_stop();
  waiters.clear();
  EXPECT_LT(watch.elapsed(), 2s + much_slack);
  proxy.black_hole(false);
  server.admin("DEL", "k");
  expect_nothing_left();
}

// ---- death and sleep ---------------------------------------------------------------------------

// B51: kill -9 of a process while it waits.
TEST_F(FifoTest, B51AKilledWaiterIsPassedOver) {
  if (!children_have_threads) GTEST_SKIP() << "not with sanitizers";
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  auto child = waiting_process(1, 3, 0);
  auto first = waiter(other, 2, 4);
  auto second = waiter(client, 3, 5);
  ::kill(child.pid(), SIGKILL);
  EXPECT_EQ(child.wait(), 128 + SIGKILL);
  const Stopwatch watch;
  held->release();
  first.join();
  second.join();
  EXPECT_LT(watch.elapsed(), window + much_slack);
  EXPECT_EQ(turns->count(), 2U);
  expect_nothing_left();
}

// B51: kill -9 of a process right when its waiter was granted the lease.
TEST_F(FifoTest, B51AWaiterWhoIsKilledWhenGranted) {
  if (!children_have_threads) GTEST_SKIP() << "not with sanitizers";
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  auto child = waiting_process(1, 2, 0);
  auto next = waiter(other, 2, 3);
  pause_process(child.pid());
  const Stopwatch watch;
  held->release();
  ::kill(child.pid(), SIGKILL);
  EXPECT_EQ(child.wait(), 128 + SIGKILL);
  next.join();
  EXPECT_LT(watch.elapsed(), window + much_slack);
  expect_nothing_left();
}

// B51: a process that stands still costs the others one window, however many of its threads wait.
// When it goes on it waits as before, and never takes another's lease for its own.
TEST_F(FifoTest, B51AStoppedProcessIsPassedOver) {
  if (!children_have_threads) GTEST_SKIP() << "not with sanitizers";
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  auto child = waiting_process(1, 4, 0);
  std::vector<std::jthread> waiters;
  for (std::size_t n = 0; n < 4; ++n) {
    waiters.push_back(waiter(n % 2 == 0 ? client : other, 2, 5 + n));
  }
  pause_process(child.pid());
  Stopwatch watch;
  held->release();
  EXPECT_TRUE(eventually(20s, [&] { return turns->count() >= 4; }));
  EXPECT_LT(watch.elapsed(), window + much_slack);
  waiters.clear();

  auto again = client.acquire("k", in_line(), {.ttl = 60s});
  EXPECT_TRUE(again);
  resume_process(child.pid());
  watch.restart();
  EXPECT_TRUE(becomes(4)) << "all are in line again";
  EXPECT_LT(watch.elapsed(), much_slack);
  EXPECT_EQ(turns->count(), 4U);
  again->release();
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(turns->count(), 8U);
  expect_nothing_left();
}

// B51: they are soon back in line, whoever is served in the meantime.
TEST_F(FifoTest, B51AProcessThatWasStoppedIsSoonServed) {
  if (!children_have_threads) GTEST_SKIP() << "not with sanitizers";
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  auto child = waiting_process(1, 4, 0);
  std::atomic<bool> enough{false};
  std::vector<std::jthread> busy;
  for (std::size_t n = 0; n < 4; ++n) {
    busy.emplace_back([&] {
      while (!enough) {
        take_turn(other, 2);
        std::this_thread::yield();
      }
    });
    EXPECT_TRUE(becomes(5 + n));
  }
  pause_process(child.pid());
  held->release();
  EXPECT_TRUE(eventually(20s, [&] { return turns->count() >= 4; }));
  resume_process(child.pid());
  const Stopwatch watch;
  EXPECT_EQ(child.wait(), 0);
  EXPECT_LT(watch.elapsed(), 3s + much_slack);
  enough = true;
  busy.clear();
  expect_nothing_left();
}

// B51: a holder that stands still costs its ttl, and knows that afterwards.
TEST_F(FifoTest, B51AStoppedHolder) {
  if (!children_have_threads) GTEST_SKIP() << "not with sanitizers";
  Child child{[&] {
    Client own{server.url(), patient()};
    auto lease = own.acquire("k", in_line(), {.ttl = 1s});
    if (!lease) return 1;
    const auto claim = turns->take(1, *lease);
    if (!eventually(30s, [&] { return entering->allowed == 1; })) return 2;
    if (lease->held() || !lease->loss()) return 3;
    turns->give_up(claim);
    return 0;
  }};
  EXPECT_TRUE(eventually(20s, [&] { return turns->count() == 1; }));
  pause_process(child.pid());
  const Stopwatch watch;
  take_turn(client, 2);
  EXPECT_LT(watch.elapsed(), 1s + much_slack);
  entering->allowed = 1;
  resume_process(child.pid());
  EXPECT_EQ(child.wait(), 0);
  expect_nothing_left();
}

// ---- a bad network -----------------------------------------------------------------------------

// B07, B51: of any request in the line the request or the reply is lost, or comes late.
TEST_F(FifoTest, B51LostMessagesOfTheLine) {
  for (const std::string verb : {"join", "release", "leave"}) {
    for (const int fault : {0, 1, 2}) {
      for (const bool by_scope : {false, true}) {
        SCOPED_TRACE(verb + " " + std::to_string(fault) + (by_scope ? " by scope" : ""));
        FaultProxy proxy{server.port()};
        Client shaky{proxy.url(), hasty()};
        shaky.ping();
        const auto needle = "\r\n" + verb + "\r\n";
        const auto command = verb == "leave" ? "\r\nEVAL\r\n" : needle;
        std::stop_source stop;
        std::vector<std::jthread> waiters;
        const auto before = turns->count();
        std::size_t seen = 0;
        {
          auto held = shaky.acquire("k", in_line(), {.ttl = 3s});
          ASSERT_TRUE(held);
          waiters.push_back(waiter(shaky, 1, 1));
          waiters.push_back(waiter(other, 2, 2));
          auto wait = in_line();
          wait.stop = stop.get_token();
          waiters.emplace_back([&shaky, wait] {
            (void)thrown_by([&] { return shaky.acquire("k", wait, {.ttl = 3s}); });
          });
          EXPECT_TRUE(becomes(3));
          waiters.push_back(waiter(shaky, 3, 4));
          seen = proxy.requests_seen(command);
          if (fault == 0) proxy.drop_request_matching(needle, true);
          if (fault == 1) proxy.drop_reply_matching(needle, true);
          if (fault == 2) proxy.delay_requests(short_time * 2, needle);
          stop.request_stop();
          const auto claim = turns->take(0, *held);
          turns->give_up(claim);
          std::error_code error;
          if (!by_scope) held->release(error);
        }
        EXPECT_TRUE(eventually(20s, [&] { return proxy.requests_seen(command) > seen; }));
        proxy.delay_requests(0ms);
        EXPECT_TRUE(eventually(15s, [&] { return turns->count() == before + 4; }))
            << turns->count() - before;
        proxy.pass_through();
        waiters.clear();
        expect_nothing_left();
      }
    }
  }
}

// B49, B51: a black hole takes a whole process. The others go on; it gives up in time.
TEST_F(FifoTest, B51ABlackHole) {
  FaultProxy proxy{server.port()};
  Client shaky{proxy.url(), hasty()};
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  std::vector<std::jthread> lost;
  for (std::size_t n = 0; n < 3; ++n) {
    lost.emplace_back([&] {
      const Stopwatch watch;
      EXPECT_THAT(thrown_by([&] { return shaky.acquire("k", in_line(3s), {.ttl = 60s}); }),
                  ::testing::AnyOf(failed(errc::unavailable), failed(errc::in_doubt)));
      EXPECT_LT(watch.elapsed(), 3s + much_slack);
    });
    EXPECT_TRUE(becomes(n + 1));
  }
  auto first = waiter(other, 1, 4);
  auto second = waiter(client, 2, 5);
  proxy.black_hole(true);
  const Stopwatch watch;
  held->release();
  first.join();
  second.join();
  EXPECT_LT(watch.elapsed(), window + much_slack);
  lost.clear();
  proxy.black_hole(false);
  expect_nothing_left();
}

// B51: after a break of all connections those who waited are in line again.
TEST_F(FifoTest, B51AllConnectionsBreak) {
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  std::vector<std::jthread> waiters;
  for (std::size_t n = 0; n < 6; ++n) {
    waiters.push_back(waiter(n % 2 == 0 ? client : other, 1, n + 1));
  }
  for (int round = 0; round < 5; ++round) {
    kill_clients();
    server.admin("DEL", core::beside("k", "redlease:line"));
    EXPECT_TRUE(becomes(6));
  }
  held->release();
  waiters.clear();
  expect_nothing_left();
}

// ---- a bad server ------------------------------------------------------------------------------

TEST_F(FifoTest, B51APausedServer) {
  Client hurried{server.url(), hasty()};
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  std::vector<std::jthread> waiters;
  for (std::size_t n = 0; n < 4; ++n) {
    waiters.push_back(waiter(n % 2 == 0 ? hurried : other, 1, n + 1));
  }
  server.pause();
  EXPECT_TRUE(always(2 * window, [&] { return turns->count() == 0; }));
  server.resume();
  held->release();
  waiters.clear();
  expect_nothing_left();
}

// B51: a server that restarts has neither line nor lease; all are served nevertheless.
TEST_F(FifoTest, B51ARestartedServer) {
  std::vector<std::jthread> waiters;
  {
    const auto held = client.acquire("k", in_line(), {.ttl = 60s});
    ASSERT_TRUE(held);
    for (std::size_t n = 0; n < 6; ++n) {
      waiters.push_back(waiter(n % 2 == 0 ? client : other, 1, n + 1));
    }
    server.kill();
    restart_server();
    waiters.clear();
  }
  EXPECT_EQ(turns->count(), 6U);
  expect_nothing_left();
}

TEST_F(FifoTest, B51ScriptsAreForgottenAgainAndAgain) {
  std::jthread flusher{[&](const std::stop_token& stop) {
    while (!stop.stop_requested()) server.admin("SCRIPT", "FLUSH");
  }};
  std::vector<std::jthread> threads;
  for (int n = 0; n < 6; ++n) {
    threads.emplace_back([&, n] {
      for (int cycle = 0; cycle < 10; ++cycle) take_turn(n % 2 == 0 ? client : other, n);
    });
  }
  threads.clear();
  flusher = {};
  EXPECT_EQ(turns->count(), 6U * 10);
  expect_nothing_left();
}

// B65, B51: without memory a lease is freed, and the line goes on when there is some.
TEST_F(FifoTest, B65OutOfMemory) {
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  std::vector<std::jthread> waiters;
  for (std::size_t n = 0; n < 4; ++n) {
    waiters.push_back(waiter(n % 2 == 0 ? client : other, 1, n + 1));
  }
  server.config_set("maxmemory", "1");
  held->release();
  EXPECT_TRUE(becomes_absent("k"));
  EXPECT_FALSE(thrown_by([&] { return client.acquire("k", in_line(300ms)); }).nothing());
  EXPECT_EQ(turns->count(), 0U);
  server.config_set("maxmemory", "0");
  waiters.clear();
  EXPECT_EQ(turns->count(), 4U);
  expect_nothing_left();
}

// B51: somebody who knows nothing of the line deletes the key, and takes it.
TEST_F(FifoTest, B51AStrangerTakesTheKey) {
  auto held = client.acquire("k", in_line(), {.ttl = 60s});
  ASSERT_TRUE(held);
  std::vector<std::jthread> waiters;
  for (std::size_t n = 0; n < 4; ++n) {
    waiters.push_back(waiter(n % 2 == 0 ? client : other, static_cast<int>(n), n + 1));
  }
  server.admin("MULTI");
  server.admin("DEL", "k");
  server.admin("SET", "k", "stranger", "PX", 60'000);
  server.admin("EXEC");
  EXPECT_THAT(thrown_by_release(*held), lost(LossReason::taken));
  EXPECT_TRUE(always(200ms, [&] { return server.get("k") == "stranger"; }));
  EXPECT_EQ(turns->count(), 0U);
  server.admin("DEL", "k");
  waiters.clear();
  EXPECT_EQ(turns->count(), 4U);
  expect_nothing_left();
}

// ---- all together ------------------------------------------------------------------------------

// B51, B49: a thousand waits of all kinds over three clients: no two holders, nobody is left out,
// nothing stays behind.
TEST_F(FifoTest, B51AThousandMixedCycles) {
  Client third{server.url(), patient()};
  std::atomic<int> cycles{0};
  std::array<std::atomic<int>, 12> served{};
  std::vector<std::jthread> threads;
  for (unsigned n = 0; n < served.size(); ++n) {
    threads.emplace_back([&, n] {
      std::mt19937 random{n};
      const auto pick = [&](int below) {
        return std::uniform_int_distribution{0, below - 1}(random);
      };
      auto& mine = n % 3 == 0 ? client : n % 3 == 1 ? other : third;
      while (cycles++ < 1000) {
        auto wait = in_line(pick(3) == 0 ? std::chrono::milliseconds{pick(20)} : 30s);
        if (pick(10) == 0) wait.order = Order::any;
        if (pick(10) == 0) wait.still_needed = [&] { return pick(2) == 0; };
        if (pick(10) == 0) wait.attempts = 3;
        const Stopwatch watch;
        std::optional<Lease> lease;
        const auto thrown =
            thrown_by([&] { return lease = mine.acquire("k", wait, {.ttl = 60s}), 0; });
        // Cut short by the end of the wait, on a busy machine.
        EXPECT_TRUE(thrown.nothing() || wait.at_most <= Duration{1s}) << thrown;
        EXPECT_LT(watch.elapsed(), 30s);
        if (!lease) continue;
        const auto claim = turns->take(static_cast<int>(n), *lease);
        EXPECT_TRUE(lease->held());
        ++served.at(n);
        turns->give_up(claim);
        if (pick(2) == 0) {
          const auto released = thrown_by_release(*lease);
          EXPECT_THAT(released, succeeded()) << "token " << lease->token().reveal();
        }
      }
    });
  }
  threads.clear();
  for (const auto& each : served) EXPECT_GT(each, 0);
  expect_nothing_left();
}

// A lease that always comes too late is not asked for without a pause.
TEST_F(FifoTest, B51ALeaseThatComesTooLate) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), patient()};
  far.ping();
  proxy.delay_replies(20ms);
  auto wait = in_line(20s);
  wait.attempts = 4;
  EXPECT_THAT(thrown_by([&] { return far.acquire("k", wait, {.ttl = 5ms}).has_value(); }),
              failed(errc::unavailable, "late"));
  EXPECT_LE(proxy.requests_seen("\r\njoin\r\n"), 5U);
  proxy.pass_through();
  EXPECT_TRUE(becomes_absent("k"));
}

}  // namespace
}  // namespace redlease::test
