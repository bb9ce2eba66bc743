// The loss signal: lost leases say so, everywhere, once, for good and in time.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include <redlease/clock.hpp>

#include "fault/world.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

// When a stop was requested, on the clock that validity is counted on.
class StopTime {
 public:
  explicit StopTime(std::stop_token token)
      : callback_(std::move(token), [this] { at_ = Clock::now().time_since_epoch().count(); }) {}

  bool requested() const { return at_ != 0; }
  Clock::time_point at() const { return Clock::time_point{std::chrono::nanoseconds{at_}}; }

 private:
  std::atomic<std::int64_t> at_{0};
  std::stop_callback<std::function<void()>> callback_;
};

class LosingTest : public FaultTest {
 protected:
  ClientOptions watched(ClientOptions options) const {
    options.observer = log;
    return options;
  }

  std::size_t told(Event::Kind kind) const { return log->of(kind).size(); }
  bool told_again(Event::Kind kind, std::size_t times = 1) const {
    const auto before = told(kind);
    return eventually(20s, [&] { return told(kind) >= before + times; });
  }

  // That all there is to ask says the same.
  void expect_lost(Lease& lease, const std::stop_token& stop, LossReason reason) {
    EXPECT_FALSE(lease.held());
    EXPECT_EQ(lease.remaining(), 0s);
    EXPECT_TRUE(eventually(5s, [&] { return stop.stop_requested(); }));
    ASSERT_TRUE(lease.loss());
    EXPECT_EQ(lease.loss()->reason, reason);
    EXPECT_EQ(lease.loss()->key, lease.key());
    EXPECT_EQ(lease.loss()->fingerprint, lease.token().fingerprint());
    EXPECT_THAT(thrown_by([&] { lease.ensure_held(); }), lost(reason));
    EXPECT_THAT(thrown_by_renew(lease), lost(reason));
    EXPECT_THAT(thrown_by_release(lease), lost(reason));
    EXPECT_TRUE(lease.stop_token().stop_requested());
  }

  // The one event of that lease's loss.
  void expect_told_once(const Lease& lease, LossReason reason) {
    const auto its_own = [&] {
      auto events = log->of(Event::Kind::lost);
      std::erase_if(events, [mine = lease.token().fingerprint()](const Event& event) {
        return event.fingerprint != mine;
      });
      return events;
    };
    ASSERT_TRUE(eventually(10s, [&] { return !its_own().empty(); }));
    const auto events = its_own();
    EXPECT_EQ(events.size(), 1U);
    EXPECT_EQ(events.front().reason, reason);
    EXPECT_EQ(events.front().key, lease.key());
  }

  const std::shared_ptr<EventLog> log = std::make_shared<EventLog>();
  Client client{server.url(), watched(patient())};
};

// --- what the server says -----------------------------------------------------------------------

// B27: a key that somebody deletes: noticed with the next renewal, told once, and final, also when
// another takes the key, or the very token comes back.
TEST_F(LosingTest, B27ADeletedKey) {
  auto lease = must_acquire(client, "k", kept(20s, 50ms));
  const auto token = std::string{lease.token().reveal()};
  const auto stop = lease.stop_token();
  ASSERT_TRUE(told_again(Event::Kind::renewed));
  const Stopwatch watch;
  server.admin("DEL", "k");
  ASSERT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
  EXPECT_LT(watch.elapsed(), 50ms + slack);
  expect_lost(lease, stop, LossReason::missing);
  expect_told_once(lease, LossReason::missing);

  for (const auto& value : {std::string{"stranger"}, token}) {
    server.admin("SET", "k", value, "PX", 5000);
    const auto scripts = scripts_run();
    EXPECT_TRUE(always(200ms, [&] { return !lease.held() && lease.loss(); }));
    expect_lost(lease, stop, LossReason::missing);
    EXPECT_EQ(scripts_run(), scripts);
    EXPECT_EQ(server.get("k"), value);
  }
  expect_told_once(lease, LossReason::missing);
}

// B27: a key that another has.
TEST_F(LosingTest, B27AnothersKey) {
  auto lease = must_acquire(client, "k", kept(20s, 50ms));
  const auto token = std::string{lease.token().reveal()};
  const auto stop = lease.stop_token();
  const Stopwatch watch;
  server.admin("SET", "k", "stranger", "PX", 5000);
  ASSERT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
  EXPECT_LT(watch.elapsed(), 50ms + slack);
  expect_lost(lease, stop, LossReason::taken);
  expect_told_once(lease, LossReason::taken);
  EXPECT_EQ(server.get("k"), "stranger");
  server.admin("SET", "k", token, "PX", 5000);
  expect_lost(lease, stop, LossReason::taken);
  EXPECT_EQ(server.get("k"), token);
}

// B27: those who share a request with a lost lease are renewed all the same.
TEST_F(LosingTest, B27OneOfMany) {
  std::vector<Lease> leases;
  for (int n = 0; n < 150; ++n) {
    leases.push_back(must_acquire(client, std::to_string(n), kept(2500ms, 100ms)));
  }
  for (const int n : {0, 42, 99, 100, 149}) server.admin("DEL", n);
  server.admin("SET", "7", "stranger", "PX", 10'000);
  EXPECT_TRUE(eventually(10s, [&] { return told(Event::Kind::lost) == 6; }));
  EXPECT_TRUE(always(2600ms, [&] { return told(Event::Kind::lost) == 6; }));
  for (const auto& lease : leases) {
    const bool gone = lease.key() == "0" || lease.key() == "42" || lease.key() == "99" ||
                      lease.key() == "100" || lease.key() == "149";
    const bool taken = lease.key() == "7";
    ASSERT_EQ(lease.held(), !gone && !taken) << lease.key();
    if (gone) {
      EXPECT_EQ(lease.loss()->reason, LossReason::missing);
    }
    if (taken) {
      EXPECT_EQ(lease.loss()->reason, LossReason::taken);
    }
  }
  EXPECT_EQ(server.get("7"), "stranger");
}

// B27: a loss that somebody else notices first: a renewal or a release by hand.
TEST_F(LosingTest, B27ALossThatAVerbNotices) {
  auto renewed = must_acquire(client, "renewed", {.ttl = 20s});
  auto released = must_acquire(client, "released", kept(20s, 10s));
  const auto stop_renewed = renewed.stop_token();
  const auto stop_released = released.stop_token();
  server.admin("DEL", "renewed", "released");
  EXPECT_THAT(thrown_by_renew(renewed), lost(LossReason::missing));
  EXPECT_THAT(thrown_by_release(released), lost(LossReason::missing));
  expect_lost(renewed, stop_renewed, LossReason::missing);
  expect_lost(released, stop_released, LossReason::missing);
  expect_told_once(renewed, LossReason::missing);
  expect_told_once(released, LossReason::missing);
}

// B29: keys that the server throws out, for want of memory or because it is told to.
TEST_F(LosingTest, B29AnEvictedKey) {
  auto lease = must_acquire(client, "k", kept(20s, 50ms));
  auto released = must_acquire(client, "released", {.ttl = 20s});
  const auto stop = lease.stop_token();
  server.config_set("maxmemory-policy", "allkeys-random");
  server.config_set("maxmemory", "1");
  server.admin("SET", "filler", "x", "PX", 1);  // makes room, so that all else goes
  ASSERT_TRUE(becomes_absent("k") && becomes_absent("released"));
  const Stopwatch watch;
  ASSERT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
  EXPECT_LT(watch.elapsed(), 50ms + slack);
  expect_lost(lease, stop, LossReason::missing);
  expect_told_once(lease, LossReason::missing);
  EXPECT_THAT(thrown_by_release(released), lost(LossReason::missing));
}

// B29: the whole database.
TEST_F(LosingTest, B29AFlushedServer) {
  std::vector<Lease> leases;
  std::vector<std::stop_token> stops;
  for (int n = 0; n < 50; ++n) {
    leases.push_back(must_acquire(client, std::to_string(n), kept(20s, 50ms)));
    stops.push_back(leases.back().stop_token());
  }
  const Stopwatch watch;
  server.admin("FLUSHALL");
  server.admin("SET", "0", "stranger", "PX", 10'000);
  for (const auto& stop : stops) {
    ASSERT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
  }
  EXPECT_LT(watch.elapsed(), 50ms + slack);
  for (std::size_t n = 1; n < leases.size(); ++n) {
    expect_lost(leases[n], stops[n], LossReason::missing);
  }
  EXPECT_FALSE(leases[0].held());
  EXPECT_THAT(thrown_by_release(leases[0]).code, errc::lost);
  EXPECT_EQ(server.get("0"), "stranger");
  EXPECT_TRUE(eventually(10s, [&] { return told(Event::Kind::lost) == 50; }));
  EXPECT_EQ(server.dbsize(), 1);
}

// B29: a restart without persistence.
TEST_F(LosingTest, B29ARestartThatForgets) {
  auto lease = must_acquire(client, "k", kept(20s, 50ms));
  const auto stop = lease.stop_token();
  server.kill();
  restart_server();
  ASSERT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
  expect_lost(lease, stop, LossReason::missing);
  EXPECT_EQ(server.dbsize(), 0);
}

// break_lease(): the holder hears of it as of any loss.
TEST_F(LosingTest, ABrokenLease) {
  auto lease = must_acquire(client, "k", kept(20s, 50ms));
  const auto stop = lease.stop_token();
  // The inspection goes by the token, which renewals leave as it is.
  EXPECT_TRUE(client.break_lease("k", *client.inspect("k")));
  ASSERT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
  expect_lost(lease, stop, LossReason::missing);
  expect_told_once(lease, LossReason::missing);
}

// --- what the clock says ------------------------------------------------------------------------

// The signal of a plain lease comes the margin before validity ends, not before and not after it.
TEST_F(LosingTest, B10TheSignalComesInTime) {
  struct Case {
    std::chrono::milliseconds ttl;
    std::optional<Duration> margin;
  };
  for (const auto& [ttl, margin] :
       {Case{1000ms, {}}, Case{3s, Duration{2500ms}}, Case{700ms, Duration{0s}}}) {
    auto lease = must_acquire(client, "k", {.ttl = ttl, .safety_margin = margin});
    const StopTime stop{lease.stop_token()};
    const auto left = lease.remaining();
    const auto end = Clock::now() + left;  // of validity, or a little behind it
    const auto due = end - (margin ? margin->value() : ttl / 10);
    ASSERT_TRUE(eventually(20s, [&] { return stop.requested(); }));
    // It is told a moment before, so that it is heard in time.
    EXPECT_GE(stop.at(), due - 10ms);
    EXPECT_LE(stop.at(), due + slack);
    expect_lost(lease, lease.stop_token(), LossReason::expired);
    expect_told_once(lease, LossReason::expired);
    EXPECT_TRUE(becomes_absent("k"));
  }
}

// And so it does when the server never answers again.
TEST_F(LosingTest, B10AServerThatStandsStill) {
  auto renewed = must_acquire(client, "renewed", kept(1500ms, 200ms));
  auto plain = must_acquire(client, "plain", {.ttl = 1500ms});
  const StopTime stop_renewed{renewed.stop_token()};
  const StopTime stop_plain{plain.stop_token()};
  server.pause();
  const auto left = std::max(renewed.remaining(), plain.remaining());
  const auto latest = Clock::now() + left;
  std::jthread by_hand{[&] {
    EXPECT_THAT(thrown_by_renew(plain).code,
                ::testing::AnyOf(errc::lost, errc::unavailable, errc::in_doubt));
  }};
  std::jthread by_hand_too{[&] {
    EXPECT_THAT(thrown_by_renew(renewed).code,
                ::testing::AnyOf(errc::lost, errc::unavailable, errc::in_doubt));
  }};
  ASSERT_TRUE(eventually(20s, [&] { return stop_renewed.requested() && stop_plain.requested(); }));
  EXPECT_LE(stop_renewed.at(), latest - 150ms + slack);
  EXPECT_LE(stop_plain.at(), latest - 150ms + slack);
  EXPECT_FALSE(renewed.held());
  EXPECT_FALSE(plain.held());
  by_hand.join();
  by_hand_too.join();
  expect_lost(renewed, renewed.stop_token(), LossReason::expired);
  expect_lost(plain, plain.stop_token(), LossReason::expired);
  EXPECT_TRUE(eventually(10s, [&] { return told(Event::Kind::lost) == 2; }));
  server.resume();
  EXPECT_TRUE(becomes_absent("renewed"));
  expect_lost(renewed, renewed.stop_token(), LossReason::expired);
}

// B10: nor by a connection that is half open.
TEST_F(LosingTest, B10ABlackHole) {
  FaultProxy proxy{server.port()};
  Client far{proxy.url(), watched(patient())};
  auto lease = must_acquire(far, "k", kept(1500ms, 100ms));
  const StopTime stop{lease.stop_token()};
  ASSERT_TRUE(told_again(Event::Kind::renewed));
  proxy.black_hole(true);
  const auto left = lease.remaining();
  const auto latest = Clock::now() + std::max<std::chrono::nanoseconds>(left, 1485ms) - 150ms;
  ASSERT_TRUE(eventually(20s, [&] { return stop.requested(); }));
  EXPECT_LE(stop.at(), latest + slack);
  expect_lost(lease, lease.stop_token(), LossReason::expired);
  expect_told_once(lease, LossReason::expired);
  proxy.black_hole(false);
}

// B10: nor while a release hangs.
TEST_F(LosingTest, B10AReleaseThatHangs) {
  auto lease = must_acquire(client, "k", kept(1s, 300ms));
  const auto stop = lease.stop_token();
  server.pause();
  std::jthread release{[&] { EXPECT_FALSE(thrown_by_release(lease).nothing()); }};
  EXPECT_TRUE(eventually(1s + slack, [&] { return stop.stop_requested(); }));
  EXPECT_FALSE(lease.held());
  EXPECT_TRUE(lease.loss());
  server.resume();
  release.join();
  EXPECT_TRUE(becomes_absent("k"));
}

// B10: and behind one that is in doubt.
TEST_F(LosingTest, B10AReleaseInDoubt) {
  Client hurried{server.url(), watched(hasty())};
  auto lease = must_acquire(hurried, "k", kept(3s, 1s));
  const auto stop = lease.stop_token();
  server.pause();
  EXPECT_EQ(thrown_by_release(lease).code, errc::in_doubt);
  EXPECT_TRUE(eventually(3s + slack, [&] { return stop.stop_requested(); }));
  EXPECT_FALSE(lease.held());
  EXPECT_TRUE(lease.loss());
  server.resume();
}

// B13: a connection attempt that hangs, in the log-in, holds up no timer.
TEST_F(LosingTest, B13AConnectionAttemptThatHangs) {
  FaultProxy proxy{server.port()};
  auto options = watched(patient());
  options.client_name = "named";  // so that a log-in has something to wait for
  Client far{proxy.url(), options};
  auto lease = must_acquire(far, "k", kept(3s, 1s));
  std::vector<Lease> plain;
  std::vector<std::unique_ptr<StopTime>> stops;
  for (int n = 1; n <= 5; ++n) {
    plain.push_back(must_acquire(far, std::to_string(n), {.ttl = 1s + n * 200ms}));
    stops.push_back(std::make_unique<StopTime>(plain.back().stop_token()));
  }
  // The keeper connects for its first renewal, now that nobody answers any more.
  proxy.black_hole(true);
  proxy.strand_open_connections();
  const auto now = Clock::now();
  for (std::size_t n = 0; n < plain.size(); ++n) {
    const auto ttl = 1200ms + static_cast<int>(n) * 200ms;
    ASSERT_TRUE(eventually(20s, [&] { return stops[n]->requested(); }));
    EXPECT_LE(stops[n]->at(), now + ttl - ttl / 10 + slack);
    EXPECT_FALSE(plain[n].held());
  }
  ASSERT_TRUE(eventually(20s, [&] { return lease.stop_token().stop_requested(); }));
  expect_lost(lease, lease.stop_token(), LossReason::expired);
  proxy.black_hole(false);
}

// held(), loss() and the signal agree at the end of validity: whoever sees the one sees the others,
// and nobody is told before it is so.
TEST_F(LosingTest, B27AllAgreeAtTheEnd) {
  for (int round = 0; round < 5; ++round) {
    auto lease = must_acquire(client, "k" + std::to_string(round), {.ttl = 200ms});
    std::atomic<bool> contradiction{false};
    std::stop_callback callback{lease.stop_token(), [&] {
                                  if (lease.held() || !lease.loss()) contradiction = true;
                                }};
    const auto stop = lease.stop_token();
    ASSERT_TRUE(eventually(10s, [&] {
      if (stop.stop_requested() && lease.held()) contradiction = true;
      const bool was_lost = lease.loss().has_value();
      if (was_lost && lease.held()) contradiction = true;
      return was_lost && stop.stop_requested();
    }));
    EXPECT_FALSE(contradiction);
  }
}

// --- the token ----------------------------------------------------------------------------------

// All who ask have the same signal.
TEST_F(LosingTest, ManyThreadsAskForTheToken) {
  for (int round = 0; round < 30; ++round) {
    auto lease = must_acquire(client, "k", {.ttl = 20s});
    std::vector<std::stop_token> tokens(8);
    {
      std::vector<std::jthread> threads;
      for (auto& token : tokens) threads.emplace_back([&] { token = lease.stop_token(); });
    }
    for (const auto& token : tokens) EXPECT_EQ(token, tokens.front());
    EXPECT_EQ(lease.stop_token(), tokens.front());
    server.admin("DEL", "k");
    EXPECT_THAT(thrown_by_renew(lease), lost(LossReason::missing));
    for (const auto& token : tokens) {
      EXPECT_TRUE(eventually(10s, [&] { return token.stop_requested(); }));
    }
  }
}

// A renewal by hand moves the signal.
TEST_F(LosingTest, RenewingMovesTheSignal) {
  auto lease = must_acquire(client, "k", {.ttl = 2s});
  const StopTime stop{lease.stop_token()};
  for (int n = 0; n < 3; ++n) {
    ASSERT_TRUE(eventually(10s, [&] { return lease.remaining() < 1500ms; }));
    lease.renew();
  }
  EXPECT_FALSE(stop.requested());
  const auto before = Clock::now();
  lease.renew(700ms);
  ASSERT_TRUE(eventually(10s, [&] { return stop.requested(); }));
  EXPECT_GE(stop.at(), before + 693ms - 70ms - 10ms);
  EXPECT_LE(stop.at(), before + 693ms + slack);
  expect_lost(lease, lease.stop_token(), LossReason::expired);
}

// A margin that was given stays, whatever ttl the renewals have: none may be shorter.
TEST_F(LosingTest, RenewingForLessThanTheMargin) {
  auto lease = must_acquire(client, "k", {.ttl = 20s, .safety_margin = Duration{5s}});
  const auto stop = lease.stop_token();
  EXPECT_THAT(thrown_by([&] { lease.renew(1s); }), refused("safety_margin"));
  EXPECT_TRUE(lease.held());
  EXPECT_FALSE(stop.stop_requested());
}

// Neither release() nor the end of the scope requests a stop, nor does time after it.
TEST_F(LosingTest, AReleaseRequestsNoStop) {
  std::vector<std::stop_token> stops;
  for (const bool renewed : {false, true}) {
    const LeaseOptions options{.ttl = 300ms, .auto_renew = renewed};
    auto lease = must_acquire(client, "k", options);
    stops.push_back(lease.stop_token());
    lease.release();
    {
      const auto scope = must_acquire(client, "scope", options);
      stops.push_back(scope.stop_token());
    }
    client.ping();
  }
  EXPECT_TRUE(always(400ms, [&] {
    return std::none_of(stops.begin(), stops.end(),
                        [](auto& stop) { return stop.stop_requested(); });
  }));
  EXPECT_EQ(told(Event::Kind::lost), 0U);
}

// Asked for too late, it is requested already, or at once if only the margin is left.
TEST_F(LosingTest, AskedForTooLate) {
  auto lease = must_acquire(client, "k", {.ttl = 300ms});
  ASSERT_TRUE(becomes_absent("k"));
  EXPECT_TRUE(lease.stop_token().stop_requested());
  EXPECT_EQ(lease.loss()->reason, LossReason::expired);

  auto late = must_acquire(client, "late", {.ttl = 3s, .safety_margin = Duration{2900ms}});
  ASSERT_TRUE(eventually(10s, [&] { return late.remaining() < 2850ms; }));
  EXPECT_TRUE(late.held());
  const auto stop = late.stop_token();
  EXPECT_TRUE(eventually(1s, [&] { return stop.stop_requested(); }));
  EXPECT_FALSE(late.held());
  EXPECT_EQ(late.loss()->reason, LossReason::expired);
}

// A renewal that would leave nothing of the lease is a bug in the call, and changes nothing.
TEST_F(LosingTest, B86ARenewalShorterThanTheMarginIsRefused) {
  auto lease =
      must_acquire(client, "k", {.ttl = 20s, .auto_renew = true, .safety_margin = Duration{500ms}});
  EXPECT_THAT(thrown_by([&] { lease.renew(500ms); }), refused("safety_margin"));
  EXPECT_TRUE(lease.held());
  EXPECT_GT(server.pttl("k"), 15s);
  EXPECT_THAT(thrown_by([&] { lease.renew(10s); }), succeeded());
  lease.release();

  auto plain = must_acquire(client, "plain", {.ttl = 20s, .safety_margin = Duration{10s}});
  EXPECT_THAT(thrown_by([&] { plain.renew(5s); }), succeeded()) << "nobody asked to be warned";
  EXPECT_TRUE(plain.stop_token().stop_possible());
  ASSERT_TRUE(eventually(10s, [&] { return plain.loss().has_value(); }));
  EXPECT_GE(plain.loss()->held_for, 0s);
}

// A moved-from lease has none; a moved one keeps its own.
TEST_F(LosingTest, B81TheTokenFollowsTheLease) {
  auto lease = must_acquire(client, "k", kept(20s, 20ms));
  const auto stop = lease.stop_token();
  std::vector<Lease> grown;
  grown.push_back(std::move(lease));
  // NOLINTBEGIN(bugprone-use-after-move): what it does then is the point
  EXPECT_TRUE(thrown_by([&] { return lease.stop_token(); }).invalid);
  // NOLINTEND(bugprone-use-after-move)
  for (int n = 0; n < 50; ++n)
    grown.push_back(must_acquire(client, std::to_string(n), kept(20s, 20ms)));
  EXPECT_EQ(grown.front().stop_token(), stop);
  swap(grown.front(), grown.back());
  EXPECT_EQ(grown.back().stop_token(), stop);
  server.admin("DEL", "k");
  ASSERT_TRUE(eventually(10s, [&] { return stop.stop_requested(); }));
  expect_lost(grown.back(), stop, LossReason::missing);
  EXPECT_TRUE(eventually(10s, [&] { return told(Event::Kind::lost) == 1; }));
}

// Plain leases need no thread, until somebody asks for a signal; then there are two for all.
TEST_F(LosingTest, PlainLeasesNeedNoThread) {
  Client plain{server.url(), patient()};
  const auto threads = count_threads();
  std::vector<Lease> leases;
  for (int n = 0; n < 100; ++n) {
    leases.push_back(must_acquire(plain, std::to_string(n), {.ttl = 20s}));
    leases.back().renew();
  }
  EXPECT_EQ(count_threads(), threads);
  for (auto& lease : leases) static_cast<void>(lease.stop_token());
  EXPECT_EQ(count_threads(), threads + 2);
}

// B33: a stop that was requested hinders no release, not even by an exception.
TEST_F(LosingTest, B33AStopHindersNoRelease) {
  std::stop_source caller;
  const Wait wait{.at_most = 10s, .stop = caller.get_token()};
  try {
    auto lease = client.acquire("k", wait, kept(20s, 20ms));
    ASSERT_TRUE(lease);
    caller.request_stop();
    throw std::runtime_error("the body's own");
  } catch (const std::runtime_error&) {
  }
  EXPECT_TRUE(becomes_absent("k", 100ms + slack));
  auto lease = must_acquire(client, "k", kept(20s, 20ms));
  caller.request_stop();
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// --- a holder that is paused --------------------------------------------------------------------

// B25: a process that is stopped for longer than its ttl knows of it when it goes on.
TEST_F(LosingTest, B25AHolderThatIsPaused) {
  if (!children_have_threads) GTEST_SKIP() << "not with sanitizers";
  struct Shared {
    std::atomic<int> ready, go, held, stopped, losses, release_lost, done;
  };
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto& shared = *new (memory) Shared{};
  for (const bool asks_for_signal : {false, true}) {
    new (memory) Shared{};
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      int status = 1;
      try {
        const auto seen = std::make_shared<EventLog>();
        auto options = patient();
        options.observer = seen;
        Client own{server.url(), options};
        auto lease = must_acquire(own, "k", kept(1s, 100ms));
        std::stop_token stop;
        if (asks_for_signal) stop = lease.stop_token();
        eventually(10s, [&] { return seen->of(Event::Kind::renewed).size() > 2; });
        shared.ready = 1;
        while (shared.go == 0) std::this_thread::sleep_for(1ms);
        shared.held = lease.held() ? 1 : 0;
        shared.release_lost = thrown_by_release(lease).loss ? 1 : 0;
        shared.stopped =
            !asks_for_signal || eventually(10s, [&] { return stop.stop_requested(); }) ? 1 : 0;
        eventually(10s, [&] { return !seen->of(Event::Kind::lost).empty(); });
        always(200ms, [&] { return seen->of(Event::Kind::lost).size() == 1; });
        shared.losses = static_cast<int>(seen->of(Event::Kind::lost).size());
        status = 0;
      } catch (...) {
      }
      ::_exit(status);
    }
    ASSERT_TRUE(eventually(20s, [&] { return shared.ready == 1; }));
    pause_process(child);
    auto lease = client.acquire("k", {.at_most = 20s}, kept(20s, 1s));
    ASSERT_TRUE(lease);
    shared.go = 1;
    resume_process(child);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(shared.held, 0);
    EXPECT_EQ(shared.release_lost, 1);
    EXPECT_EQ(shared.stopped, 1);
    EXPECT_EQ(shared.losses, 1);
    EXPECT_EQ(server.get("k"), lease->token().reveal());
    EXPECT_TRUE(lease->held());
    lease->release();
  }
  ::munmap(memory, sizeof(Shared));
}

}  // namespace
}  // namespace redlease::test
