// Lease objects: their end, moves, and use from several threads.
#include <atomic>
#include <thread>
#include <vector>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

class ThrowingObserver : public EventLog {
 public:
  void on_event(const Event& event) override {
    EventLog::on_event(event);
    throw std::runtime_error("an observer's own trouble");
  }
};

class LifetimeTest : public FaultTest {
 protected:
  static ClientOptions watched_by(const std::shared_ptr<Observer>& observer) {
    auto options = hasty();
    options.observer = observer;
    return options;
  }

  Client client{server.url(), patient()};
};

static_assert(!std::is_copy_constructible_v<Lease> && !std::is_copy_assignable_v<Lease>);
static_assert(std::is_nothrow_move_constructible_v<Lease> &&
              std::is_nothrow_move_assignable_v<Lease> && std::is_nothrow_destructible_v<Lease>);

// B75: a scope that ends while the server is down is silent and quick; the observer hears of it.
TEST_F(LifetimeTest, B75AScopeExitWithoutAServer) {
  for (const std::shared_ptr<EventLog>& log :
       {std::make_shared<EventLog>(), std::shared_ptr<EventLog>(new ThrowingObserver)}) {
    std::optional<Client> watched{std::in_place, server.url(), watched_by(log)};
    auto normal = std::optional{must_acquire(*watched, "normal")};
    auto unwound = std::optional{must_acquire(*watched, "unwound")};
    server.kill();
    Stopwatch watch;
    normal.reset();
    EXPECT_LT(watch.elapsed(), short_time + 100ms + slack);
    watch.restart();
    try {
      const auto scope = std::move(*unwound);
      throw std::runtime_error("unwinding");
    } catch (const std::runtime_error&) {
    }
    EXPECT_LT(watch.elapsed(), short_time + 100ms + slack);
    watch.restart();
    watched.reset();
    EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
    EXPECT_TRUE(eventually(10s, [&] { return log->of(Event::Kind::background_error).size() == 2; }))
        << log->of(Event::Kind::background_error).size();
    restart_server();
  }
}

// B75: the same with a peer that has gone silent, which shows at the client's end.
TEST_F(LifetimeTest, B75AScopeExitIntoABlackHole) {
  FaultProxy proxy{server.port()};
  const auto log = std::make_shared<EventLog>();
  {
    Client watched{proxy.url(), watched_by(log)};
    auto lease = std::optional{must_acquire(watched, "k", {.ttl = 60s})};
    proxy.black_hole(true);
    const Stopwatch watch;
    lease.reset();
    EXPECT_LT(watch.elapsed(), short_time + 100ms + slack);
  }
  EXPECT_EQ(log->of(Event::Kind::background_error).size(), 1U);
  proxy.black_hole(false);
  EXPECT_TRUE(becomes_absent("k"));
}

// B75: a few dozen scope exits in a row wait for nothing, though nobody answers.
TEST_F(LifetimeTest, B75ManyScopeExitsAtAStoppedServer) {
  Client hurried{server.url(), hasty()};
  std::vector<Lease> leases;
  for (int n = 0; n < 60; ++n) leases.push_back(must_acquire(hurried, std::to_string(n)));
  server.pause();
  std::jthread resumption{[&](const std::stop_token& stop) {
    eventually(5s, [&] { return stop.stop_requested(); });
    server.resume();
  }};
  const Stopwatch watch;
  leases.clear();
  EXPECT_LT(watch.elapsed(), short_time + 100ms + slack);
  resumption = {};
  EXPECT_TRUE(eventually(10s, [&] {
    static_cast<void>(thrown_by_ping(hurried));
    return server.dbsize() == 0;
  }));
}

// B75: many scope exits, more than the socket holds, into a server that stands still.
TEST_F(LifetimeTest, B75ACrowdOfScopeExitsAtAStoppedServer) {
  std::vector<Lease> leases;
  const auto log = std::make_shared<EventLog>();
  std::optional<Client> watched{std::in_place, server.url(), watched_by(log)};
  const std::string filler(50'000, 'x');
  for (int n = 0; n < 200; ++n) {
    leases.push_back(must_acquire(*watched, std::to_string(n) + filler, {.ttl = 10min}));
  }
  server.pause();
  std::jthread resumption{[&] {
    const Stopwatch stopped;
    EXPECT_TRUE(eventually(20s, [&] { return stopped.elapsed() > 2s; }));
    server.resume();
  }};
  const Stopwatch watch;
  leases.clear();
  // Those that found the connection clogged waited, each for its own time at most.
  EXPECT_LT(watch.elapsed(), 200 * (2 * short_time) + slack);
  resumption.join();
  EXPECT_TRUE(eventually(20s, [&] {
    static_cast<void>(thrown_by_ping(*watched));
    return server.dbsize() == 0;
  })) << server.dbsize();
}

// B75: a lease may outlive its client, and the server may come and go meanwhile.
TEST_F(LifetimeTest, B75ALeaseOutlivesItsClient) {
  std::optional<Client> owner{std::in_place, server.url(), patient()};
  auto lease = must_acquire(*owner, "k");
  auto left = std::optional{must_acquire(*owner, "left")};
  owner.reset();
  lease.renew();
  lease.release();
  left.reset();
  EXPECT_EQ(server.dbsize(), 0);
}

// B81: move assignment gives the target back first, and the source is empty.
TEST_F(LifetimeTest, B81MoveAssignmentReleasesTheTarget) {
  auto a = must_acquire(client, "a");
  auto b = must_acquire(client, "b");
  const auto token = b.token();
  a = std::move(b);
  EXPECT_TRUE(becomes_absent("a"));
  EXPECT_EQ(a.key(), "b");
  EXPECT_EQ(a.token(), token);
  EXPECT_TRUE(a.held());
  EXPECT_EQ(server.get("b"), token.reveal());
  a.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B81: a moved-from lease holds nothing, says so, and sends nothing, not even at its end.
TEST_F(LifetimeTest, B81AMovedFromLeaseIsEmpty) {
  std::optional<Lease> kept;
  std::size_t scripts = 0;
  {
    auto lease = must_acquire(client, "k");
    kept = std::move(lease);
    scripts = scripts_run();
    // NOLINTBEGIN(bugprone-use-after-move): what it does then is the point
    EXPECT_FALSE(lease.held());
    EXPECT_EQ(lease.remaining(), 0s);
    EXPECT_EQ(lease.key(), "");
    EXPECT_FALSE(lease.loss());
    EXPECT_TRUE(thrown_by_release(lease).invalid);
    EXPECT_TRUE(thrown_by_renew(lease).invalid);
    EXPECT_TRUE(thrown_by([&] { lease.ensure_held(); }).invalid);
    EXPECT_TRUE(thrown_by([&] { static_cast<void>(lease.token()); }).invalid);
    std::error_code error;
    lease.release(error);
    EXPECT_EQ(error, std::errc::invalid_argument);
    // NOLINTEND(bugprone-use-after-move)
  }
  EXPECT_EQ(scripts_run(), scripts);
  EXPECT_TRUE(kept->held());
}

// B81: self-move, swap, and a vector that grows.
TEST_F(LifetimeTest, B81MovesKeepLeasesWhole) {
  auto a = must_acquire(client, "a");
  auto b = must_acquire(client, "b");
  auto& self = a;
  a = std::move(self);
  EXPECT_TRUE(a.held());
  swap(a, b);
  std::swap(a, b);
  swap(a, b);
  EXPECT_EQ(a.key(), "b");
  EXPECT_TRUE(a.held() && b.held());

  std::vector<Lease> many;
  for (int n = 0; n < 100; ++n) many.push_back(must_acquire(client, std::to_string(n)));
  many.erase(many.begin(), many.begin() + 50);
  client.ping();
  EXPECT_EQ(server.dbsize(), 52);
  for (auto& lease : many) lease.release();
  EXPECT_EQ(server.dbsize(), 2);
}

// B82: renewing updates the lease in place, for all who look at it.
TEST_F(LifetimeTest, B82RenewUpdatesInPlace) {
  auto lease = must_acquire(client, "k", {.ttl = 3s});
  std::atomic<bool> always_held{true};
  std::jthread reader{[&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!lease.held() || lease.remaining() > 3s) always_held = false;
    }
  }};
  for (int round = 0; round < 5; ++round) {
    const auto left = lease.remaining();
    EXPECT_TRUE(eventually(10s, [&] { return lease.remaining() < left - 300ms; }));
    const auto before = lease.remaining();
    lease.renew();
    EXPECT_GT(lease.remaining(), before);
    EXPECT_GT(server.pttl("k"), 1s);
  }
  reader = {};
  EXPECT_TRUE(always_held);
  lease.renew(60s);
  EXPECT_GT(lease.remaining(), 50s);
  lease.renew();  // back to the ttl that it was acquired with
  EXPECT_LE(lease.remaining(), 3s);
}

// B84: a lease is released by whichever thread has it.
TEST_F(LifetimeTest, B84AnotherThreadReleases) {
  for (int round = 0; round < 50; ++round) {
    auto lease = must_acquire(client, "k");
    std::jthread{[mine = std::move(lease)]() mutable { mine.release(); }}.join();
    ASSERT_FALSE(server.exists("k"));
  }
}

// B84: of two threads that release one lease exactly one does it, the other hears that.
TEST_F(LifetimeTest, B84TwoThreadsReleaseOnce) {
  for (int round = 0; round < (sanitized ? 200 : 1000); ++round) {
    auto lease = must_acquire(client, "k");
    std::atomic<int> released{0};
    std::atomic<int> refused{0};
    const auto release = [&] {
      const auto thrown = thrown_by_release(lease);
      if (thrown.nothing()) ++released;
      if (thrown.invalid) ++refused;
    };
    std::jthread other{release};
    release();
    other.join();
    ASSERT_EQ(released, 1);
    ASSERT_EQ(refused, 1);
  }
  EXPECT_EQ(server.dbsize(), 0);
}

// B84: release against renewals and readers in other threads.
TEST_F(LifetimeTest, B84ReleaseAgainstRenewals) {
  for (int round = 0; round < (sanitized ? 50 : 200); ++round) {
    auto lease = must_acquire(client, "k");
    {
      std::jthread renewer{[&] {
        for (int n = 0; n < 5; ++n) {
          const auto thrown = thrown_by_renew(lease);
          EXPECT_TRUE(thrown.nothing() || thrown.invalid) << thrown;
        }
      }};
      std::jthread reader{[&] {
        for (int n = 0; n < 100; ++n) static_cast<void>(lease.held() || lease.loss());
      }};
      lease.release();
    }
    EXPECT_FALSE(lease.held());
    EXPECT_FALSE(lease.loss());
    ASSERT_FALSE(server.exists("k"));
  }
}

}  // namespace
}  // namespace redlease::test
