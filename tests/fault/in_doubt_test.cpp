// Requests whose answer is missing: they may have run, and what became of them is found out.
#include <atomic>
#include <thread>
#include <vector>

#include "fault/world.hpp"
#include "support/fake_server.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

constexpr auto set_command = "\r\nSET\r\n";
constexpr auto any_script = "\r\nEVAL";  // EVALSHA, too

class InDoubtTest : public FaultTest {
 protected:
  FaultProxy proxy{server.port()};
};

// B01: the late reply of a command that was given up is not the next one's.
TEST_F(InDoubtTest, B01ALateReplyIsNotTheNextOnes) {
  Client other{server.url(), patient()};
  auto theirs = must_acquire(other, "k2");
  Client client{server.url(), hasty()};
  client.ping();
  const auto before = client_ids();

  server.pause();
  EXPECT_THAT(thrown_by_acquire(client, "k1"), failed(errc::in_doubt));
  server.resume();
  EXPECT_FALSE(client.try_acquire("k2"));
  EXPECT_EQ(server.get("k2"), theirs.token().reveal());
  EXPECT_TRUE(eventually(10s, [&] {
    const auto now = client_ids();
    return now.size() == 2 && now != before;
  }));
  EXPECT_TRUE(becomes_absent("k1"));
}

// B01 with a crowd on one connection and a server that stands still again and again: nobody gets
// a lease on a key that is taken, and who gets one has his token in it.
TEST_F(InDoubtTest, B01LateRepliesNeverCrossInACrowd) {
  Client other{server.url(), patient()};
  auto theirs = must_acquire(other, "taken", {.ttl = 10min});
  auto options = hasty();
  options.command_timeout = 100ms;
  options.max_connections = 1;
  Client client{server.url(), options};
  std::atomic<int> acquired{0};
  const auto work = [&](const std::stop_token& stop, int thread) {
    for (int n = 0; !stop.stop_requested(); ++n) {
      const auto key = "free:" + std::to_string(thread) + ":" + std::to_string(n);
      try {
        EXPECT_FALSE(client.try_acquire("taken"));
        auto lease = client.try_acquire(key, {.ttl = 10min});
        ASSERT_TRUE(lease) << key << " was never anybody else's";
        if (lease->held()) ++acquired;
        const auto now = server.get(key);
        EXPECT_EQ(now, lease->token().reveal()) << key;
        lease->release();
      } catch (const Error& error) {
        EXPECT_NE(error.code(), errc::protocol) << error.what();
        EXPECT_NE(error.code(), errc::rejected) << error.what();
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 6; ++t) threads.emplace_back(work, t);
    for (int round = 0; round < 6; ++round) {
      const Stopwatch stopped;
      server.pause();
      EXPECT_TRUE(eventually(10s, [&] { return stopped.elapsed() > 40ms * (round + 1); }));
      server.resume();
      const int before = acquired;
      EXPECT_TRUE(eventually(20s, [&] { return acquired > before + 20; }));
    }
  }
  EXPECT_EQ(server.get("taken"), theirs.token().reveal());
}

// B02: a SET that the server runs after its client has given up leaves no key behind.
TEST_F(InDoubtTest, B02AGhostOfAStoppedServerIsCleanedUp) {
  Client client{server.url(), hasty()};
  for (int round = 0; round < (sanitized ? 5 : 20); ++round) {
    ASSERT_TRUE(eventually(10s, [&] { return thrown_by_ping(client).nothing(); }));
    server.pause();
    const Stopwatch watch;
    EXPECT_THAT(thrown_by_acquire(client, "k", {.ttl = 20s}), failed(errc::in_doubt));
    EXPECT_LT(watch.elapsed(), 700ms + slack);
    server.resume();
    ASSERT_TRUE(becomes_absent("k", 1s + slack)) << "round " << round;
    EXPECT_GE(server.command_calls("set"), round + 1);
  }
}

// B02 with a crowd on one connection, whose members give up all at the same time.
TEST_F(InDoubtTest, B02TheGhostsOfACrowdAreCleanedUp) {
  auto options = hasty();
  options.command_timeout = 150ms;
  options.max_connections = 1;
  Client client{server.url(), options};
  for (int round = 0; round < (sanitized ? 5 : 20); ++round) {
    ASSERT_TRUE(eventually(10s, [&] { return thrown_by_ping(client).nothing(); }));
    server.pause();
    std::vector<std::jthread> crowd;
    for (int t = 0; t < 8; ++t) {
      crowd.emplace_back([&, t] {
        const auto thrown = thrown_by_acquire(client, std::to_string(t), {.ttl = 10min});
        EXPECT_TRUE(thrown.code == errc::in_doubt || thrown.code == errc::unavailable) << thrown;
      });
    }
    crowd.clear();
    server.resume();
    ASSERT_TRUE(eventually(1s + slack, [&] { return server.dbsize() == 0; }))
        << server.dbsize() << " keys are left in round " << round;
  }
}

// B02, when the client ends before the server goes on.
TEST_F(InDoubtTest, B02AGhostOfAClientThatIsGone) {
  {
    Client client{server.url(), hasty()};
    client.ping();
    server.pause();
    EXPECT_THAT(thrown_by_acquire(client, "k", {.ttl = 20s}), failed(errc::in_doubt));
  }
  server.resume();
  EXPECT_TRUE(eventually(10s, [&] { return server.command_calls("set") == 1; }));
  EXPECT_TRUE(becomes_absent("k"));
}

// B02: requests that a network failure holds back arrive late, and clean up behind themselves.
TEST_F(InDoubtTest, B02AGhostOfABlackHoleIsCleanedUp) {
  Client client{proxy.url(), hasty()};
  client.ping();
  proxy.black_hole(true);
  EXPECT_THAT(thrown_by_acquire(client, "k", {.ttl = 20s}), failed(errc::in_doubt));
  EXPECT_FALSE(server.exists("k"));
  proxy.black_hole(false);
  EXPECT_TRUE(eventually(10s, [&] { return server.command_calls("set") >= 1; }));
  EXPECT_TRUE(becomes_absent("k"));
}

// B02: a reset behind the request. The look on the next connection finds the key and adopts it.
TEST_F(InDoubtTest, B02AResetIsLookedInto) {
  Client client{proxy.url(), patient()};
  client.ping();
  proxy.delay_replies(5s);
  std::jthread reset{[&] {
    EXPECT_TRUE(eventually(10s, [&] { return server.exists("k"); }));
    proxy.pass_through();
    proxy.reset_all();
  }};
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  EXPECT_EQ(server.get("k"), lease.token().reveal());
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B02: a reset in front of the request. It has not run, so the lease is simply acquired.
TEST_F(InDoubtTest, B02ALostRequestIsSentAgain) {
  Client client{proxy.url(), patient()};
  client.ping();
  proxy.drop_request_matching(set_command, true);
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  EXPECT_EQ(server.get("k"), lease.token().reveal());
  EXPECT_EQ(server.command_calls("set"), 1);
}

// B02, seen by the observer: an event without the token.
TEST_F(InDoubtTest, B02TheObserverHearsOfTheDoubt) {
  const auto log = std::make_shared<EventLog>();
  auto options = hasty();
  options.observer = log;
  Client client{server.url(), options};
  client.ping();
  server.pause();
  EXPECT_THAT(thrown_by_acquire(client, "k"), failed(errc::in_doubt, "'k'"));
  server.resume();
  ASSERT_TRUE(log->has(Event::Kind::in_doubt));
  const auto event = log->of(Event::Kind::in_doubt).at(0);
  EXPECT_EQ(event.key, "k");
  EXPECT_EQ(event.error, errc::in_doubt);
  EXPECT_TRUE(becomes_absent("k"));
}

// B03: an attempt whose reply is lost is recognised as one's own.
TEST_F(InDoubtTest, B03AnOwnAttemptIsAdopted) {
  for (const bool then_close : {true, false}) {
    auto options = patient();
    options.command_timeout = then_close ? long_time : 300ms;
    Client client{proxy.url(), options};
    ASSERT_TRUE(eventually(10s, [&] { return thrown_by_ping(client).nothing(); }));
    proxy.drop_reply_matching(set_command, then_close);
    const Stopwatch watch;
    auto lease = client.acquire("k", {.at_most = 2s + slack}, {.ttl = 10s});
    ASSERT_TRUE(lease);
    EXPECT_LT(watch.elapsed(), 2s + slack);
    EXPECT_EQ(server.get("k"), lease->token().reveal());
    // Counted from the first send.
    EXPECT_LE(lease->remaining(), then_close ? 9900ms : 9600ms);
    lease->release();
    EXPECT_EQ(server.dbsize(), 0);
  }
}

// B03: when the look gets lost, too, a wait goes on until it knows.
TEST_F(InDoubtTest, B03AWaitGoesOnUntilItKnows) {
  Client client{proxy.url(), patient()};
  client.ping();
  proxy.drop_reply_matching(set_command, true);
  proxy.drop_reply_matching(any_script, true);
  proxy.drop_reply_matching(any_script, true);
  auto lease = client.acquire("k", {.at_most = 10s}, {.ttl = 20s});
  ASSERT_TRUE(lease);
  EXPECT_EQ(server.get("k"), lease->token().reveal());
}

// B03: an attempt in doubt on a key that is another's is plain contention.
TEST_F(InDoubtTest, B03ADoubtfulAttemptOnATakenKey) {
  server.admin("SET", "k", "stranger", "NX", "PX", 20'000);
  Client client{proxy.url(), patient()};
  client.ping();
  proxy.drop_reply_matching(set_command, true);
  EXPECT_FALSE(client.try_acquire("k"));
  EXPECT_EQ(server.get("k"), "stranger");
}

// B03 with a renewal: repeated, for comparing and setting a ttl twice does no harm.
TEST_F(InDoubtTest, B03ARenewalIsRepeated) {
  Client client{proxy.url(), patient()};
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  lease.renew();
  proxy.drop_reply_matching(any_script, true);
  lease.renew();
  EXPECT_GT(lease.remaining(), 15s);
  proxy.drop_request_matching(any_script, true);
  lease.renew(30s);
  EXPECT_GT(server.pttl("k"), 20s);
  // The doubtful renewal with 20 s may run yet, for all that is known, and would count then.
  EXPECT_GT(lease.remaining(), 15s);
  EXPECT_LT(lease.remaining(), 20s);
}

// A second release that surely did not happen must not make the lease look held again: the first
// one may have.
TEST_F(InDoubtTest, B04ARefusedReleaseDoesNotEndTheDoubt) {
  Client client{proxy.url(), hasty()};
  must_acquire(client, "k").release();
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  proxy.drop_reply_matching(any_script, true);
  proxy.refuse(true);
  EXPECT_THAT(thrown_by_release(lease), failed(errc::in_doubt));
  EXPECT_FALSE(server.exists("k")) << "it did run";
  EXPECT_THAT(thrown_by_release(lease), failed(errc::in_doubt));
  EXPECT_FALSE(lease.held());
  EXPECT_THAT(thrown_by([&] { lease.ensure_held(); }), failed(errc::in_doubt));
  EXPECT_THAT(thrown_by_renew(lease), failed(errc::in_doubt));
  proxy.refuse(false);
  EXPECT_TRUE(eventually(10s, [&] { return thrown_by_release(lease).loss.has_value(); }));
  EXPECT_EQ(lease.loss()->reason, LossReason::unconfirmed);
}

// The same doubt, when the end of the scope finds the key gone.
TEST_F(InDoubtTest, B04AScopesEndAfterADoubtIsUnconfirmed) {
  const auto log = std::make_shared<EventLog>();
  auto options = hasty();
  options.observer = log;
  Client client{proxy.url(), options};
  must_acquire(client, "k").release();
  {
    auto lease = must_acquire(client, "k", {.ttl = 20s});
    proxy.drop_reply_matching(any_script, true);
    proxy.refuse(true);
    EXPECT_THAT(thrown_by_release(lease), failed(errc::in_doubt));
    proxy.refuse(false);
    EXPECT_TRUE(eventually(10s, [&] { return thrown_by_ping(client).nothing(); }));
  }
  client.ping();
  ASSERT_TRUE(log->has(Event::Kind::lost));
  EXPECT_EQ(log->of(Event::Kind::lost).front().reason, LossReason::unconfirmed);
}

// "False" of break_lease() means that nothing has changed: not so if its own answer got lost.
TEST_F(InDoubtTest, ABreakWhoseReplyIsLostIsInDoubt) {
  Client client{proxy.url(), patient()};
  must_acquire(client, "k").release();  // now the server knows the script
  const auto lease = must_acquire(client, "k", {.ttl = 20s});
  const auto seen = client.inspect("k");
  ASSERT_TRUE(seen);
  proxy.drop_reply_matching(any_script, true);
  EXPECT_THAT(thrown_by([&] { return client.break_lease("k", *seen); }), failed(errc::in_doubt));
}

// A renewal whose first attempt is on its way still bounds all later ones.
TEST_F(InDoubtTest, B03ALateRenewalIsReckonedWith) {
  Client client{proxy.url(), hasty()};
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  lease.renew();
  proxy.drop_reply_matching(any_script, true);
  lease.renew(5s);
  lease.renew(60s);
  EXPECT_LT(lease.remaining(), 5s);
}

// B03 with a release whose reply is lost: the key is gone, whether in time nobody can tell.
TEST_F(InDoubtTest, B03AReleaseWhoseReplyIsLostIsUnconfirmed) {
  Client client{proxy.url(), patient()};
  must_acquire(client, "k").release();
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  proxy.drop_reply_matching(any_script, true);
  EXPECT_THAT(thrown_by_release(lease), lost(LossReason::unconfirmed));
  EXPECT_FALSE(server.exists("k"));
  EXPECT_THAT(thrown_by_release(lease), lost(LossReason::unconfirmed));
}

// B03 with a release that never arrived: found out, and sent again.
TEST_F(InDoubtTest, B03AReleaseThatGotLostIsSentAgain) {
  Client client{proxy.url(), patient()};
  must_acquire(client, "k").release();
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  proxy.drop_request_matching(any_script, true);
  lease.release();
  EXPECT_FALSE(server.exists("k"));
  EXPECT_FALSE(lease.loss());
}

// B04: a scope exit while the server stands still neither waits nor throws, and takes effect.
TEST_F(InDoubtTest, B04AScopeExitAtAStoppedServer) {
  Client client{server.url(), hasty()};
  Client other{server.url(), patient()};
  auto lease = std::optional{must_acquire(client, "k", {.ttl = 20s})};
  server.pause();
  const Stopwatch watch;
  lease.reset();
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
  server.resume();
  EXPECT_TRUE(becomes_absent("k", 3s));
  auto theirs = must_acquire(other, "k", {.ttl = 20s});
  EXPECT_TRUE(eventually(10s, [&] { return thrown_by_ping(client).nothing(); }));
  EXPECT_EQ(server.get("k"), theirs.token().reveal());
}

// B04: a release() that times out says so, and may be called again.
TEST_F(InDoubtTest, B04AReleaseAtAStoppedServerIsInDoubt) {
  Client client{server.url(), hasty()};
  must_acquire(client, "k").release();  // now the server knows the script
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  server.pause();
  const Stopwatch watch;
  EXPECT_THAT(thrown_by_release(lease), failed(errc::in_doubt));
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
  EXPECT_FALSE(lease.held());
  EXPECT_FALSE(lease.loss());
  EXPECT_THAT(thrown_by([&] { lease.ensure_held(); }), failed(errc::in_doubt));
  EXPECT_THAT(thrown_by_renew(lease), failed(errc::in_doubt));
  server.resume();
  EXPECT_TRUE(becomes_absent("k"));
  // Most likely it was our own release that ended it.
  EXPECT_THAT(thrown_by_release(lease), lost(LossReason::unconfirmed));
}

// B04: in a black hole nothing arrives; the second release finds the key still ours.
TEST_F(InDoubtTest, B04ASecondReleaseSucceeds) {
  Client client{proxy.url(), hasty()};
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  // The open connection goes silent, and later ones are refused.
  proxy.strand_open_connections();
  proxy.refuse(true);
  EXPECT_THAT(thrown_by_release(lease), failed(errc::in_doubt));
  EXPECT_TRUE(server.exists("k"));
  proxy.refuse(false);
  EXPECT_TRUE(eventually(10s, [&] { return thrown_by_release(lease).nothing(); }));
  EXPECT_FALSE(server.exists("k"));
}

// B04: a renewal at a stopped server is in doubt, and the lease lasts as long as it did before.
TEST_F(InDoubtTest, B04ARenewalAtAStoppedServerIsInDoubt) {
  Client client{server.url(), hasty()};
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  server.pause();
  const Stopwatch watch;
  EXPECT_THAT(thrown_by_renew(lease), failed(errc::in_doubt));
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
  EXPECT_TRUE(lease.held());
  EXPECT_THAT(thrown_by([&] { lease.renew(5s); }), failed(errc::in_doubt));
  EXPECT_LE(lease.remaining(), 5s);  // it may have run
  server.resume();
  EXPECT_TRUE(eventually(10s, [&] { return thrown_by_renew(lease).nothing(); }));
  EXPECT_TRUE(lease.held());
  lease.release();
}

// B10: on a half-open connection calls end in time, validity ends in time, and a new connection
// works at once.
TEST_F(InDoubtTest, B10AHalfOpenConnection) {
  Client client{proxy.url(), hasty()};
  auto lease = must_acquire(client, "k", {.ttl = 1500ms});
  const Stopwatch since;
  proxy.black_hole(true);
  Stopwatch watch;
  EXPECT_THAT(thrown_by_renew(lease), failed(errc::in_doubt));
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
  EXPECT_TRUE(eventually(10s, [&] { return !lease.held(); }));
  EXPECT_LE(since.elapsed(), 1500ms + slack);
  EXPECT_THAT(thrown_by_release(lease), lost(LossReason::expired));

  proxy.strand_open_connections();
  proxy.black_hole(false);
  watch.restart();
  auto next = client.acquire("other", {.at_most = 5s});
  EXPECT_TRUE(next);
  EXPECT_LT(watch.elapsed(), 3 * short_time + slack);
}

// B10: with only the open connection gone, the very call finds its way over a new one.
TEST_F(InDoubtTest, B10AStrandedConnectionIsReplaced) {
  Client client{proxy.url(), hasty()};
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  proxy.strand_open_connections();
  lease.renew();
  EXPECT_TRUE(lease.held());
  proxy.strand_open_connections();
  lease.release();
  proxy.strand_open_connections();
  must_acquire(client, "k").release();
  EXPECT_EQ(server.dbsize(), 0);
}

}  // namespace
}  // namespace redlease::test
