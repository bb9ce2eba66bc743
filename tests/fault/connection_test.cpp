// Connections: silent, slow, closed, refused, and peers that speak nonsense.
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "fault/world.hpp"
#include "support/fake_server.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

std::string refused_url() { return "redis://127.0.0.1:" + std::to_string(free_port()); }

FakeServerOptions always(const std::string& reply) {
  return {.answer = [reply](const std::string&) { return reply; }};
}

std::chrono::microseconds cpu_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& t) {
    return std::chrono::seconds{t.tv_sec} + std::chrono::microseconds{t.tv_usec};
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

// Interrupts the calling thread's system calls 20 times a second, without SA_RESTART.
class SignalStorm {
 public:
  SignalStorm() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGUSR1, &action, &before_);
    thread_ = std::jthread{[target = ::pthread_self()](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        ::pthread_kill(target, SIGUSR1);
        std::this_thread::sleep_for(50ms);
      }
    }};
  }
  ~SignalStorm() {
    thread_ = {};
    ::sigaction(SIGUSR1, &before_, nullptr);
  }
  SignalStorm(const SignalStorm&) = delete;
  SignalStorm& operator=(const SignalStorm&) = delete;

 private:
  struct sigaction before_ {};
  std::jthread thread_;
};

class ConnectionTest : public FaultTest {
 protected:
  FaultProxy proxy{server.port()};
};

// Without a server of its own: the peer is a FakeServer, or nobody.
class PeerTest : public ::testing::Test {
 protected:
  PeerTest() {
    std::jthread{[] {}}.join();  // some sanitizers start a thread of their own with the first one
    fds_ = count_fds();
    threads_ = count_threads();
  }
  ~PeerTest() override {
    EXPECT_TRUE(eventually(10s, [this] { return count_threads() <= threads_; }));
    EXPECT_LE(count_fds(), fds_);
  }

 private:
  std::size_t fds_ = 0;
  std::size_t threads_ = 0;
};

// B05: a write to a connection that the peer has closed raises no SIGPIPE, and the process's
// disposition and mask stay what they are.
TEST_F(ConnectionTest, B05NoSigpipe) {
  struct sigaction before {};
  sigset_t mask_before{};
  ::sigaction(SIGPIPE, nullptr, &before);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask_before);
  ASSERT_EQ(before.sa_handler, SIG_DFL);
  ASSERT_FALSE(sigismember(&mask_before, SIGPIPE));

  auto options = patient();
  options.max_connections = 1;
  Client client{proxy.url(), options};
  const std::string long_key(max_key_size, 'k');
  for (int round = 0; round < 20; ++round) {
    // (a) several requests written before the next read; (b) big ones.
    std::vector<Lease> leases;
    for (int n = 0; n < 5; ++n) leases.push_back(must_acquire(client, std::to_string(n)));
    leases.push_back(must_acquire(client, long_key));
    if (round % 2 == 0) {
      proxy.reset_all();
    } else {
      kill_clients();
    }
    leases.clear();
    EXPECT_TRUE(eventually(10s, [&] {
      static_cast<void>(thrown_by_ping(client));
      return server.dbsize() == 0;
    }));
  }

  struct sigaction after {};
  sigset_t mask_after{};
  ::sigaction(SIGPIPE, nullptr, &after);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask_after);
  EXPECT_EQ(after.sa_handler, SIG_DFL);
  EXPECT_FALSE(sigismember(&mask_after, SIGPIPE));
  sigset_t pending{};
  ::sigpending(&pending);
  EXPECT_FALSE(sigismember(&pending, SIGPIPE));
}

// B05 with release() and renew() on a connection that was closed: they work over a new one.
TEST_F(ConnectionTest, B05AClosedConnectionIsReplaced) {
  Client client{server.url(), patient()};
  auto lease = must_acquire(client, "k");
  for (int round = 0; round < 10; ++round) {
    kill_clients();
    lease.renew();
    kill_clients();
    EXPECT_FALSE(client.try_acquire("k"));
  }
  kill_clients();
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B05: looking changes nothing, so that a look whose connection breaks is simply repeated.
TEST_F(ConnectionTest, B05ALookIsRepeated) {
  Client client{server.url(), patient()};
  auto lease = must_acquire(client, "k");
  for (int round = 0; round < 10; ++round) {
    kill_clients();
    EXPECT_THAT(thrown_by_ping(client), succeeded());
    kill_clients();
    EXPECT_THAT(thrown_by([&] { EXPECT_TRUE(client.inspect("k")); }), succeeded());
  }
}

// B06: the time-out bounds the whole command, not each of its bytes.
TEST_F(PeerTest, B06ATrickleDoesNotStretchACommand) {
  FakeServer dribbling{
      {.answer = [](const std::string&) { return "+PONG\r\n"; }, .byte_interval = 200ms}};
  Client client{dribbling.url(), hasty()};
  Stopwatch watch;
  EXPECT_THAT(thrown_by_ping(client), failed(errc::unavailable, "timed out"));
  EXPECT_GE(watch.elapsed(), short_time);
  EXPECT_LT(watch.elapsed(), short_time + slack);
  EXPECT_TRUE(eventually(10s, [&] { return dribbling.open_connections() == 0; }));

  watch.restart();
  EXPECT_THAT(thrown_by_acquire(client, "k"), failed(errc::in_doubt, "timed out"));
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
  EXPECT_TRUE(eventually(10s, [&] { return dribbling.open_connections() == 0; }));
}

// B06 with renew, release, acquire in a wait and inspect, each within the time it promises.
TEST_F(ConnectionTest, B06ATrickleDoesNotStretchAnyCall) {
  Client client{proxy.url(), hasty()};
  auto lease = must_acquire(client, "k");
  proxy.trickle(1, 200ms);
  Stopwatch watch;
  EXPECT_THAT(thrown_by_renew(lease), failed(errc::in_doubt));
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);

  watch.restart();
  EXPECT_THAT(thrown_by([&] { client.inspect("k"); }), failed(errc::unavailable));
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);

  watch.restart();
  EXPECT_THAT(thrown_by([&] { return client.acquire("other", {.at_most = 400ms}); }),
              failed(errc::in_doubt));
  EXPECT_LT(watch.elapsed(), 400ms + slack);

  watch.restart();
  static_cast<void>(thrown_by_release(lease));  // ":1" alone may come through in time
  EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
  proxy.pass_through();
  EXPECT_TRUE(becomes_absent("other"));
}

// B06: signals interrupt the wait; they neither end nor stretch it.
TEST_F(PeerTest, B06SignalsDoNotStretchACommand) {
  FakeServer silent;
  Client client{silent.url(), hasty()};
  const SignalStorm storm;
  for (int round = 0; round < 3; ++round) {
    const Stopwatch watch;
    EXPECT_THAT(thrown_by_ping(client), failed(errc::unavailable, "timed out"));
    EXPECT_GE(watch.elapsed(), short_time);
    EXPECT_LT(watch.elapsed(), short_time + slack);
  }
}

// B06: nor do signals disturb calls that succeed, waits among them.
TEST_F(ConnectionTest, B06SignalsDoNotDisturb) {
  Client client{server.url(), patient()};
  const SignalStorm storm;
  const Stopwatch watch;
  while (watch.elapsed() < 500ms) {
    auto lease = must_acquire(client, "k", {.ttl = 20s});
    EXPECT_FALSE(client.acquire("k", {.at_most = 20s, .attempts = 3}));
    lease.release();
  }
  EXPECT_EQ(server.dbsize(), 0);
}

class PasswordTest : public FaultTest {
 protected:
  PasswordTest() : FaultTest({.requirepass = "secret"}) {}

  FaultProxy proxy{server.port()};
};

// B06, B13: the log-in is part of the connect time-out.
TEST_F(PasswordTest, B06ATrickleDuringTheLogIn) {
  auto options = patient();
  options.password = "secret";
  options.connect_timeout = short_time;
  Client client{proxy.url(), options};
  proxy.trickle(1, 200ms);
  const Stopwatch watch;
  EXPECT_THAT(thrown_by_acquire(client, "k"), failed(errc::unavailable, "AUTH"));
  EXPECT_LT(watch.elapsed(), short_time + slack);
  proxy.pass_through();
  EXPECT_TRUE(eventually(10s, [&] { return thrown_by_ping(client).nothing(); }));
}

// B08: a new connection has everything that the old one had.
TEST_F(PasswordTest, B08AReconnectForgetsNothing) {
  auto options = hasty();
  options.password = "secret";
  options.client_name = "orders";
  Client client{server.url() + "/5", options};
  auto lease = must_acquire(client, "k");
  const auto before = client_ids();
  kill_clients();
  lease.release();
  EXPECT_NE(client_ids(), before);

  auto mine = server.client_list();
  std::erase_if(mine, [](auto& fields) { return fields["name"] != "orders"; });
  ASSERT_EQ(mine.size(), 1U);
  EXPECT_EQ(mine.at(0)["db"], "5");
  EXPECT_EQ(server.dbsize(), 0);
  EXPECT_EQ(server.admin("INFO", "keyspace").text.find("db5"), std::string::npos);

  // And its time-outs.
  server.admin("CLIENT", "PAUSE", 1500, "ALL");
  const Stopwatch watch;
  EXPECT_THAT(thrown_by_ping(client), failed(errc::unavailable, "timed out"));
  EXPECT_LT(watch.elapsed(), short_time + slack);
}

// B08: a step of the log-in that fails is a failed connection, not one without that step.
TEST_F(PasswordTest, B08AFailedStepIsNoConnection) {
  auto options = patient();
  EXPECT_THAT(thrown_by([&] {
                Client{server.url(), options}.ping();
              }),
              failed(errc::rejected, "NOAUTH"));
  options.password = "secret";
  options.database = 99;
  Client nowhere{server.url(), options};
  EXPECT_THAT(thrown_by_acquire(nowhere, "k"), failed(errc::rejected, "SELECT"));
  EXPECT_THAT(thrown_by_ping(nowhere), failed(errc::rejected, "SELECT"));
  EXPECT_EQ(server.dbsize(), 0);
}

// B11: a server that is down costs neither memory nor descriptors, however often it is tried.
TEST_F(PeerTest, B11AServerThatIsDownCostsNothing) {
  Client client{refused_url(), hasty()};
  const auto attempt = [&] {
    EXPECT_THAT(thrown_by_acquire(client, "k"), failed(errc::unavailable));
  };
  const int attempts = sanitized ? 2'000 : 100'000;
  for (int n = 0; n < attempts / 10; ++n) attempt();
  const auto fds_before = count_fds();
  const auto rss = rss_bytes();
  for (int n = 0; n < attempts; ++n) attempt();
  EXPECT_EQ(count_fds(), fds_before);
  if (!sanitized) {
    EXPECT_LT(rss_bytes(), rss + (1 << 20));
  }
}

// B11 with each use of a lease whose server went away.
TEST_F(ConnectionTest, B11EveryUseSurvivesADeadServer) {
  Client client{server.url(), hasty()};
  auto lease = must_acquire(client, "k");
  server.kill();
  EXPECT_FALSE(
      thrown_by_renew(lease).nothing());  // it was connected still: unavailable or in doubt
  for (int n = 0; n < 200; ++n) {
    EXPECT_THAT(thrown_by_renew(lease), failed(errc::unavailable));
    EXPECT_THAT(thrown_by_release(lease), failed(errc::unavailable));
    EXPECT_THAT(thrown_by_ping(client), failed(errc::unavailable));
    EXPECT_THAT(thrown_by([&] { client.inspect("k"); }), failed(errc::unavailable));
  }
  EXPECT_TRUE(lease.held());
}

struct Odd {
  const char* name;
  std::string reply;
  errc code;  // of an acquisition
};
void PrintTo(const Odd& odd, std::ostream* out) { *out << odd.name; }

class OddReplyTest : public PeerTest, public ::testing::WithParamInterface<Odd> {};

// B11: each reply's type is looked at before it is used; a lease needs a "+OK".
TEST_P(OddReplyTest, B11NoReplyMakesALeaseButOk) {
  FakeServer peer{always(GetParam().reply)};
  for (int round = 0; round < 2; ++round) {
    Client client{peer.url(), hasty()};
    Stopwatch watch;
    const auto acquired = thrown_by_acquire(client, "k");
    EXPECT_EQ(acquired.code, GetParam().code) << acquired;
    EXPECT_LT(watch.elapsed(), 2 * short_time + slack);
    watch.restart();
    EXPECT_FALSE(thrown_by_ping(client).nothing());
    EXPECT_LT(watch.elapsed(), short_time + slack);
    const auto inspected = thrown_by([&] { return client.inspect("k"); });
    EXPECT_FALSE(inspected.nothing());
    EXPECT_THAT(acquired.what, ::testing::HasSubstr(std::to_string(peer.port())));
  }
}

const std::string garbage(3 << 20, 'x');

INSTANTIATE_TEST_SUITE_P(
    Replies, OddReplyTest,
    ::testing::Values(
        Odd{"error", "-ERR no\r\n", errc::rejected}, Odd{"empty_error", "-\r\n", errc::rejected},
        Odd{"status", "+QUEUED\r\n", errc::protocol}, Odd{"empty_status", "+\r\n", errc::protocol},
        Odd{"lower_case", "+ok\r\n", errc::protocol}, Odd{"integer", ":1\r\n", errc::protocol},
        Odd{"bulk", "$2\r\nOK\r\n", errc::protocol},
        Odd{"empty_bulk", "$0\r\n\r\n", errc::protocol},
        Odd{"array", "*2\r\n+OK\r\n$-1\r\n", errc::protocol},
        Odd{"empty_array", "*0\r\n", errc::protocol},
        Odd{"nested", "*1\r\n*1\r\n*1\r\n+OK\r\n", errc::protocol},
        Odd{"http", "HTTP/1.1 400 Bad Request\r\n\r\n", errc::protocol},
        Odd{"tls", std::string("\x15\x03\x03\x00\x02\x02\x28", 7), errc::protocol},
        Odd{"garbage", garbage, errc::protocol},
        Odd{"endless_status", "+" + garbage, errc::protocol},
        Odd{"truncated", "$5\r\nab", errc::in_doubt}, Odd{"half_a_line", "+O", errc::in_doubt},
        Odd{"huge_bulk", "$999999999999\r\nab", errc::in_doubt},
        Odd{"no_length", "$x\r\n", errc::protocol}, Odd{"negative", "$-5\r\n", errc::protocol},
        Odd{"huge_array", "*99999999999\r\n", errc::protocol},
        Odd{"deep",
            [] {
              std::string deep;
              for (int n = 0; n < 1000; ++n) deep += "*1\r\n";
              return deep + "+OK\r\n";
            }(),
            errc::protocol}),
    [](const auto& test) { return std::string{test.param.name}; });

// B11: nil is an answer to SET … NX and to nothing else.
TEST_F(PeerTest, B11NilIsContention) {
  for (const std::string nil : {"$-1\r\n", "*-1\r\n"}) {
    FakeServer peer{always(nil)};
    Client client{peer.url(), hasty()};
    EXPECT_FALSE(client.try_acquire("k"));
    EXPECT_THAT(thrown_by_ping(client), failed(errc::protocol));
    EXPECT_THAT(thrown_by([&] { client.inspect("k"); }), failed(errc::protocol));
  }
}

// B11: scripts answer -1, 0 or 1; with anything else the lease is neither lost nor given back.
TEST_F(PeerTest, B11OddAnswersOfAScriptChangeNothing) {
  for (const std::string odd :
       {"+OK\r\n", "$1\r\n1\r\n", ":2\r\n", ":-2\r\n", "*1\r\n:1\r\n", "$-1\r\n", "-ERR no\r\n"}) {
    SCOPED_TRACE(odd);
    FakeServer peer{{.answer = [&](const std::string& request) {
      return request.find("\r\nSET\r\n") != std::string::npos ? "+OK\r\n" : odd;
    }}};
    Client client{peer.url(), hasty()};
    auto lease = must_acquire(client, "k");
    const auto code = odd.starts_with('-') ? errc::rejected : errc::protocol;
    EXPECT_THAT(thrown_by_renew(lease), failed(code));
    EXPECT_TRUE(lease.held());
    EXPECT_THAT(thrown_by_release(lease), failed(code));
    EXPECT_TRUE(lease.held());
    EXPECT_FALSE(lease.loss());
  }
}

// B01, B11: a reply that nobody asked for, even one that comes late, is not the next command's.
TEST_F(PeerTest, B11AReplyTooManyIsNotTheNextOnes) {
  for (const auto interval : {0ms, 10ms}) {
    std::atomic<int> sets{0};
    FakeServer peer{{.answer = [&](const std::string& request) -> std::string {
                       if (request.find("\r\nSET\r\n") == std::string::npos) return ":1\r\n";
                       return ++sets == 1 ? "+OK\r\n+OK\r\n" : "$-1\r\n";
                     },
                     .byte_interval = interval}};
    Client client{peer.url(), {.connect_timeout = 1s, .command_timeout = 1s}};
    const auto first = client.try_acquire("first");
    EXPECT_TRUE(first);
    // The point is that the second "+OK" has come in the meantime.
    std::this_thread::sleep_for(200ms);
    static_cast<void>(thrown_by([&] { EXPECT_FALSE(client.try_acquire("second")); }));
  }
}

// B11: what servers say when they cannot serve: the text reaches the caller, a wait goes on.
TEST_F(PeerTest, B11ServersThatCannotServe) {
  for (const std::string text :
       {"LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "READONLY You can't write against a read only replica.",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "NOREPLICAS Not enough good replicas to write.", "CLUSTERDOWN The cluster is down",
        "ERR max number of clients reached"}) {
    SCOPED_TRACE(text);
    FakeServer peer{always("-" + text + "\r\n")};
    Client client{peer.url(), hasty()};
    EXPECT_THAT(thrown_by_acquire(client, "k"), failed(errc::rejected, text));
    const auto before = peer.requests();
    EXPECT_THAT(thrown_by([&] { return client.acquire("k", {.at_most = 200ms}); }),
                failed(errc::rejected, text));
    EXPECT_GE(peer.requests(), before + 2);
  }
}

// B11: what does not pass ends a wait at once.
TEST_F(PeerTest, B11RefusalsForGood) {
  for (const std::string text :
       {"DENIED Redis is running in protected mode because protected mode is enabled",
        "NOAUTH Authentication required.", "WRONGPASS invalid username-password pair",
        "NOPERM this user has no permissions to run the 'set' command", "MOVED 3999 127.0.0.1:6381",
        "ERR unknown command 'SET', with args beginning with: 'k'"}) {
    SCOPED_TRACE(text);
    FakeServer peer{always("-" + text + "\r\n")};
    Client client{peer.url(), hasty()};
    const Stopwatch watch;
    EXPECT_THAT(thrown_by([&] { return client.acquire("k", {.at_most = 20s}); }),
                failed(errc::rejected, text.substr(0, text.find(','))));
    EXPECT_LT(watch.elapsed(), 10s);
    EXPECT_EQ(peer.requests(), 1U);
  }
}

// B11: a server that greets with an error and closes, as Redis does in protected mode and when
// it has too many clients.
TEST_F(PeerTest, B11AGreetingThatSaysNo) {
  FakeServer peer{{.greeting = "-ERR max number of clients reached\r\n", .close_on_connect = true}};
  for (const auto* url_password : {"", ":secret@"}) {
    Client client{
        "redis://" + std::string{url_password} + "127.0.0.1:" + std::to_string(peer.port()),
        hasty()};
    for (int n = 0; n < 5; ++n) {
      const auto thrown = thrown_by_acquire(client, "k");
      EXPECT_TRUE(thrown.code == errc::rejected || thrown.code == errc::unavailable ||
                  thrown.code == errc::in_doubt)
          << thrown;
      EXPECT_FALSE(thrown.nothing());
    }
  }
}

// B11: a real server with too many clients. When there is room again, all is well.
TEST_F(ConnectionTest, B11TooManyClients) {
  server.config_set("maxclients", "4");
  std::vector<AdminConnection> crowd;
  while (server.client_list().size() < 4) crowd.push_back(server.connect_admin("crowd"));
  Client client{server.url(), hasty()};
  for (int n = 0; n < 5; ++n) EXPECT_FALSE(thrown_by_acquire(client, "k").nothing());
  EXPECT_FALSE(thrown_by([&] { return client.acquire("k", {.at_most = 300ms}); }).nothing());
  crowd.clear();
  EXPECT_TRUE(client.acquire("k", {.at_most = 20s}));
}

// B11: a server that loads its data set, and one that is busy with a script: waits outlast both.
TEST_F(ConnectionTest, B11ABusyServer) {
  server.config_set("busy-reply-threshold", "1");
  AdminConnection hostile = server.connect_admin("hostile");
  hostile.send({"EVAL", "while true do end", "0"});
  Client client{server.url(), hasty()};
  EXPECT_TRUE(eventually(10s, [&] {
    const auto thrown = thrown_by_acquire(client, "k");
    return thrown.code == errc::rejected && thrown.what.find("BUSY") != std::string::npos;
  }));
  std::jthread relief{[&] {
    AdminConnection other = AdminConnection::to_port(server.port());
    EXPECT_TRUE(eventually(10s, [&] { return other.command({"SCRIPT", "KILL"}).is_ok(); }));
  }};
  EXPECT_TRUE(client.acquire("k", {.at_most = 20s}));
}

// B12: many threads on one client, each outcome right, nothing left.
TEST_F(ConnectionTest, B12ThreadsShareAClient) {
  Client client{server.url(), patient()};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        const auto key = std::to_string(t);
        for (int n = 0; n < (sanitized ? 300 : 2000); ++n) {
          auto lease = client.try_acquire(key);
          ASSERT_TRUE(lease) << key << " is nobody else's";
          if (n % 7 == 0) lease->renew();
          if (n % 11 == 0) {
            ASSERT_FALSE(client.try_acquire(key));
          }
          lease->release();
        }
      });
    }
  }
  EXPECT_EQ(server.dbsize(), 0);
  EXPECT_LE(client_ids().size(), 4U);
}

// B12 with scope exits: no thread overtakes its own.
TEST_F(ConnectionTest, B12ThreadsLeaveTheirScopes) {
  Client client{server.url(), patient()};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int n = 0; n < (sanitized ? 300 : 2000); ++n) {
          const auto lease = client.try_acquire(std::to_string(t));
          ASSERT_TRUE(lease) << t << " is nobody else's";
        }
      });
    }
  }
  client.ping();
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
}

// B13: a peer that accepts and stays silent holds nobody for longer than the connect time-out.
TEST_F(PeerTest, B13ASilentPeerDuringTheLogIn) {
  FakeServer silent;
  auto options = patient();
  options.connect_timeout = short_time;
  options.password = "secret";
  Stopwatch watch;
  Client client{silent.url(), options};
  EXPECT_EQ(silent.accepted(), 0U);
  EXPECT_THAT(thrown_by_ping(client), failed(errc::unavailable, "AUTH"));
  EXPECT_LT(watch.elapsed(), short_time + slack);
  watch.restart();
  EXPECT_THAT(thrown_by([&] { return client.acquire("k", {.at_most = 1s}); }),
              failed(errc::unavailable));
  EXPECT_LT(watch.elapsed(), 1s + slack);
  EXPECT_TRUE(eventually(10s, [&] { return silent.open_connections() == 0; }));
}

// B13: a listener whose queue is full answers no connect at all.
TEST_F(PeerTest, B13AConnectThatHangs) {
  Listener full = listen_on_loopback();
  ASSERT_EQ(::listen(full.fd.get(), 0), 0);
  std::vector<Fd> queue;
  for (int n = 0; n < 8; ++n) queue.push_back(connect_to_port(full.port));
  auto options = patient();
  options.connect_timeout = short_time;
  Client client{"redis://127.0.0.1:" + std::to_string(full.port), options};
  const Stopwatch watch;
  EXPECT_THAT(thrown_by_ping(client), failed(errc::unavailable));
  EXPECT_LT(watch.elapsed(), short_time + slack);
}

// B15: waiters of a server that is down neither hammer it nor burn the processor, and find it
// soon when it is back.
TEST_F(ConnectionTest, B15NoReconnectStorm) {
  Client client{server.url(), hasty()};
  client.ping();
  server.kill();
  std::atomic<int> acquired{0};
  std::vector<std::jthread> waiters;
  for (int n = 0; n < 20; ++n) {
    waiters.emplace_back([&] {
      auto lease = client.acquire("k", {.at_most = 60s});
      if (lease) ++acquired;
    });
  }
  Stopwatch watch;
  const auto cpu = cpu_time();
  EXPECT_TRUE(eventually(10s, [&] { return watch.elapsed() >= 2s; }));
  const auto used = cpu_time() - cpu;
  if (!sanitized) {
    EXPECT_LT(used, watch.elapsed() / 5);
  }
  EXPECT_EQ(acquired, 0);

  restart_server();
  watch.restart();
  EXPECT_TRUE(eventually(10s, [&] { return acquired > 0; }));
  EXPECT_LT(watch.elapsed(), 300ms + slack);
  EXPECT_TRUE(eventually(30s, [&] { return acquired == 20; }));
}

// B15: a listener that accepts and closes (a balancer without a server) is not hammered either.
TEST_F(PeerTest, B15NoStormAtAListenerThatCloses) {
  FakeServer closing{{.close_on_connect = true}};
  Client client{closing.url(), hasty()};
  const Stopwatch watch;
  {
    std::vector<std::jthread> waiters;
    for (int n = 0; n < 20; ++n) {
      waiters.emplace_back([&] {
        EXPECT_FALSE(thrown_by([&] { return client.acquire("k", {.at_most = 2s}); }).nothing());
      });
    }
  }
  const double seconds = std::chrono::duration<double>(watch.elapsed()).count();
  EXPECT_LE(static_cast<double>(closing.accepted()), 20 * 10 * seconds);
}

}  // namespace
}  // namespace redlease::test
