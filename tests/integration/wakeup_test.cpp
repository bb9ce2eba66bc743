// A waiter hears of a key that gets free; nobody has to tell it but the server. Its polls are 30 s
// apart here, so that one which is there within 10 s was woken.
#include <functional>
#include <random>
#include <thread>

#include "integration/fixture.hpp"
#include "support/waiters.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

class Wakeup : public IntegrationTest {
 protected:
  std::size_t requests_of_clients() {
    monitor.sync();
    return monitor.count([&](const MonitorLine& line) {
      return line.source != "lua" && !server.admin_addresses().contains(line.source);
    });
  }

  Client other{server.url()};
};

// ---- how a key gets free -----------------------------------------------------------------------

struct Way {
  const char* name;
  std::function<void(RedisServer&, std::optional<Lease>&)> free;
  std::chrono::milliseconds ttl = 60s;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class WakeupBy : public Wakeup, public testing::WithParamInterface<Way> {};

TEST_P(WakeupBy, EndsAWaitAtOnce) {
  auto held = other.try_acquire("k", {.ttl = GetParam().ttl});
  ASSERT_TRUE(held);
  Waiter waiter{client, "k", asleep(), {.ttl = 5s}};
  ASSERT_TRUE(becomes_watched(server));
  ASSERT_FALSE(waiter.done()) << "it waits";
  const Stopwatch watch;
  GetParam().free(server, held);
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
  EXPECT_EQ(server.get("k"), waiter.lease().token().reveal());
  waiter.lease().release();
  EXPECT_FALSE(server.exists("k"));
}

void nothing(RedisServer&, std::optional<Lease>&) {}

// Sets another's token after a look, and waits until that has been looked at, too.
void overwrite(RedisServer& server) {
  const auto looks = server.command_calls("pttl");
  server.admin("SET", "k", "stranger", "PX", 60'000);
  EXPECT_TRUE(eventually(at_once, [&] { return server.command_calls("pttl") > looks; }));
  EXPECT_TRUE(becomes_watched(server));
}

INSTANTIATE_TEST_SUITE_P(
    Everything, WakeupBy,
    testing::Values(
        Way{"Release", [](RedisServer&, std::optional<Lease>& held) { held->release(); }},
        Way{"ScopeExit", [](RedisServer&, std::optional<Lease>& held) { held.reset(); }},
        Way{"Del", [](RedisServer& server, auto&) { server.admin("DEL", "k"); }},
        Way{"Unlink", [](RedisServer& server, auto&) { server.admin("UNLINK", "k"); }},
        Way{"DelInAScript",
            [](RedisServer& server, auto&) {
              server.admin("EVAL", "return redis.call('DEL', KEYS[1])", 1, "k");
            }},
        Way{"DelInATransaction",
            [](RedisServer& server, auto&) {
              server.admin("MULTI");
              server.admin("DEL", "k");
              server.admin("EXEC");
            }},
        Way{"OverwriteAndDel",
            [](RedisServer& server, auto&) {
              server.admin("SET", "k", "stranger");
              server.admin("DEL", "k");
            }},
        Way{"DelAfterALookAtAnOverwrite",
            [](RedisServer& server, auto&) {
              overwrite(server);
              server.admin("DEL", "k");
            }},
        Way{"DelOfAKeyThatNeverExpires",
            [](RedisServer& server, auto&) {
              overwrite(server);
              server.admin("PERSIST", "k");
              EXPECT_TRUE(becomes_watched(server));
              server.admin("DEL", "k");
            }},
        Way{"Rename", [](RedisServer& server, auto&) { server.admin("RENAME", "k", "elsewhere"); }},
        Way{"Move", [](RedisServer& server, auto&) { server.admin("MOVE", "k", 5); }},
        Way{"FlushAll", [](RedisServer& server, auto&) { server.admin("FLUSHALL"); }},
        Way{"FlushDb", [](RedisServer& server, auto&) { server.admin("FLUSHDB"); }},
        // As other libraries do it.
        Way{"AForeignScript",
            [](RedisServer& server, std::optional<Lease>& held) {
              server.admin("EVAL",
                           "if redis.call('get',KEYS[1]) == ARGV[1] then"
                           "  return redis.call('del',KEYS[1]) else return 0 end",
                           1, "k", held->token().reveal());
            }},
        Way{"Expiry", nothing, 300ms},
        Way{"AnEarlierExpiry",
            [](RedisServer& server, auto&) { server.admin("PEXPIRE", "k", 200); }},
        Way{"AnExpiryInThePast",
            [](RedisServer& server, auto&) { server.admin("PEXPIREAT", "k", 1); }},
        Way{"ALaterExpiryAndDel",
            [](RedisServer& server, std::optional<Lease>& held) {
              held->renew(100s);
              server.admin("DEL", "k");
            }}),
    [](const auto& each) { return std::string{each.param.name}; });

TEST_F(Wakeup, EndsAWaitWhenTheKeyIsEvicted) {
  server.admin("SETRANGE", "k", 20'000'000, "x");
  server.admin("PEXPIRE", "k", 60'000);
  Waiter waiter{client, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  const Stopwatch watch;
  server.config_set("maxmemory-policy", "volatile-ttl");
  server.config_set("maxmemory", "10mb");
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
  EXPECT_EQ(server.get("k"), waiter.lease().token().reveal());
}

// The memory for the lease is there later than the key is free.
TEST_F(Wakeup, EndsAWaitWhenTheServerHasMemoryAgain) {
  server.admin("SET", "k", "stranger", "PX", 60'000);
  Waiter waiter{client, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  server.config_set("maxmemory", "1");
  server.admin("DEL", "k");
  EXPECT_TRUE(eventually(at_once, [&] {
    return server.admin("INFO", "errorstats").text.find("errorstat_OOM") != std::string::npos;
  }));
  EXPECT_FALSE(waiter.done());
  const Stopwatch watch;
  server.config_set("maxmemory", "0");
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
}

// A holder that renews changes its key every time; that makes no stampede.
TEST_F(Wakeup, ARenewalCostsAtMostALook) {
  auto held = other.try_acquire("k", {.ttl = 60s});
  std::vector<std::unique_ptr<Waiter>> waiters;
  for (int n = 0; n < 8; ++n) waiters.push_back(std::make_unique<Waiter>(client, "k", asleep()));
  ASSERT_TRUE(becomes_watched(server));
  const auto looks = server.command_calls("pttl");
  const auto sets = server.command_calls("set");
  constexpr int renewals = 100;
  for (int n = 0; n < renewals; ++n) held->renew();
  EXPECT_LE(server.command_calls("pttl") - looks, renewals + 2);
  // Each of those who come at the same time may have tried once.
  EXPECT_LE(server.command_calls("set") - sets, 8);
  const Stopwatch watch;
  held->release();
  // One after the other: a lease ends with its object.
  ASSERT_TRUE(eventually(2 * at_once, [&] {
    return std::erase_if(waiters, [](auto& waiter) { return waiter->done(); }), waiters.empty();
  }));
  EXPECT_LT(watch.elapsed(), 2 * at_once);
}

// ---- where the key is --------------------------------------------------------------------------

TEST_F(Wakeup, ReachesAClientInAnotherDatabase) {
  Client there{server.url(), {.database = 3}};
  Client also_there{server.url() + "/3"};
  auto held = also_there.try_acquire("k", {.ttl = 60s});
  const auto elsewhere = client.try_acquire("k", {.ttl = 60s});
  Waiter waiter{there, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  // The key of that name in another database is another one.
  server.admin("SET", "k", "stranger");
  server.admin("DEL", "k");
  EXPECT_FALSE(eventually(50ms, [&] { return waiter.done(); }));
  const Stopwatch watch;
  held->release();
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
}

TEST_F(Wakeup, ReachesAClientOnAUnixSocket) {
  Client there{server.unix_url()};
  auto held = other.try_acquire("k", {.ttl = 60s});
  Waiter waiter{there, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  const Stopwatch watch;
  held->release();
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
}

TEST_F(Wakeup, TellsApartManyKeys) {
  constexpr int count = 20;
  std::vector<Lease> held;
  std::vector<std::unique_ptr<Waiter>> waiters;
  for (int n = 0; n < count; ++n) {
    const auto key = "k" + std::to_string(n);
    held.push_back(other.try_acquire(key, {.ttl = 60s}).value());
    waiters.push_back(std::make_unique<Waiter>(client, key, asleep()));
  }
  ASSERT_TRUE(becomes_watched(server, count));
  const Stopwatch watch;
  for (int n = count; n-- > 0;) {
    EXPECT_FALSE(waiters.at(static_cast<std::size_t>(n))->done());
    held.at(static_cast<std::size_t>(n)).release();
    EXPECT_TRUE(waiters.at(static_cast<std::size_t>(n))->acquired());
  }
  EXPECT_LT(watch.elapsed(), 2 * at_once);
}

// ---- what the server must allow ----------------------------------------------------------------

// What docs/architecture.md tells administrators.
const std::vector<std::string> leases = {
    "on",      ">secret",  "~k*",     "+set",      "+get",           "+mget",
    "+del",    "+pexpire", "+pttl",   "+eval",     "+evalsha",       "+type",
    "+strlen", "+ping",    "+select", "+getrange", "+client|setname"};
// And what it takes to be woken.
const std::vector<std::string> wakeups = {"+client|id", "+client|tracking", "+subscribe",
                                          "&__redis__:invalidate"};

class WakeupRights : public Wakeup {
 protected:
  static ClientOptions user() { return {.username = "u", .password = "secret"}; }

  void set_user(const std::string& without = {}) {
    std::vector<std::string> command{"ACL", "SETUSER", "u", "reset"};
    for (const auto& rules : {leases, wakeups}) {
      for (const auto& rule : rules) {
        if (rule != without) command.push_back(rule);
      }
    }
    EXPECT_TRUE(server.admin_command(command).is_ok());
  }
};

TEST_F(WakeupRights, AUserMayBeWoken) {
  set_user();
  Client limited{server.url(), user()};
  auto held = other.try_acquire("k", {.ttl = 60s});
  Waiter waiter{limited, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  const Stopwatch watch;
  held->release();
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
  waiter.lease().release();
  // Nothing was refused but the channel on which Order::fifo is told of its grants.
  for (const auto& entry : server.admin("ACL", "LOG").elements) {
    ASSERT_GE(entry.elements.size(), 8U);
    EXPECT_EQ(entry.elements[3].text, "channel");
    EXPECT_THAT(entry.elements[7].text, testing::StartsWith("redlease:")) << "the object";
  }
}

// Without one of the rights for it, or all, waiters poll as they did before there were wake-ups.
class WakeupRefused : public WakeupRights, public testing::WithParamInterface<const char*> {
 protected:
  static Wait polling() { return {.at_most = 60s, .backoff = {.min = 20ms, .max = 20ms}}; }
};

TEST_P(WakeupRefused, WaitersPoll) {
  set_user(GetParam());
  Client limited{server.url(), user()};
  auto held = other.try_acquire("k", {.ttl = 60s});
  std::vector<std::unique_ptr<Waiter>> waiters;
  for (int n = 0; n < 4; ++n) {
    waiters.push_back(std::make_unique<Waiter>(limited, "k", polling()));
  }
  ASSERT_TRUE(eventually(at_once, [&] {
    return std::all_of(waiters.begin(), waiters.end(),
                       [](auto& waiter) { return waiter->asked(); });
  }));
  const Stopwatch watch;
  held->release();
  // Each is served when the one before has given its lease back.
  for (int served = 0; served < 4; ++served) {
    Waiter* next = nullptr;
    ASSERT_TRUE(eventually(at_once, [&] {
      for (auto& waiter : waiters) {
        if (waiter && waiter->done()) next = waiter.get();
      }
      return next != nullptr;
    }));
    ASSERT_TRUE(next->acquired());
    std::erase_if(waiters, [&](auto& waiter) { return waiter.get() == next; });
  }
  EXPECT_LT(watch.elapsed(), at_once);
}

// A key that was ours and is free is tried for at once, though nobody can tell that it is.
TEST_P(WakeupRefused, AFreeKeyIsHadAtOnce) {
  set_user(GetParam());
  Client limited{server.url(), user()};
  auto held = other.try_acquire("k", {.ttl = 60s});
  Waiter first{limited, "k", polling(), {.ttl = 60s}};
  ASSERT_TRUE(eventually(at_once, [&] { return first.asked(); }));
  held->release();
  ASSERT_TRUE(first.acquired());
  server.admin("DEL", "k");
  const Stopwatch watch;
  EXPECT_TRUE(limited.acquire("k", asleep()).has_value());
  EXPECT_LT(watch.elapsed(), at_once);
}

// That wake-ups are refused does not keep anybody from connecting.
TEST_P(WakeupRefused, TheClientGoesOn) {
  set_user(GetParam());
  Client limited{server.url(), user()};
  const auto held = other.try_acquire("k", {.ttl = 60s});
  Waiter waiter{limited, "k", {.at_most = 3s, .backoff = {.min = 20ms, .max = 20ms}}};
  while (!waiter.done()) {
    for (auto& connection : server.client_list()) {
      if (connection["user"] == "u") server.admin("CLIENT", "KILL", "ID", connection["id"]);
    }
    try {
      limited.ping();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), make_error_code(errc::unavailable)) << error.what();
    }
  }
  try {
    EXPECT_FALSE(waiter.acquired());
  } catch (const Error& error) {
    EXPECT_NE(error.code(), make_error_code(errc::rejected)) << error.what();
  }
}

// Nor after many refusals in a row, which are none of the connection's.
TEST_P(WakeupRefused, ManyRefusalsAreNoReasonNotToConnect) {
  set_user(GetParam());
  Client limited{server.url(), user()};
  const auto held = other.try_acquire("k", {.ttl = 60s});
  std::stop_source stop;
  auto wait = asleep();
  wait.stop = stop.get_token();
  const auto connections = [&] {
    return info_number(server, "stats", "total_connections_received");
  };
  const auto before = connections();
  Waiter waiter{limited, "k", wait};
  const int each = GetParam() == std::string_view{"+client|tracking"} ? 2 : 1;
  EXPECT_TRUE(eventually(at_once, [&] { return connections() - before >= 1 + 6 * each; }));
  for (auto& connection : server.client_list()) {
    if (connection["user"] == "u") server.admin("CLIENT", "KILL", "ID", connection["id"]);
  }
  for (int n = 0; n < 3; ++n) {
    try {
      limited.ping();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), make_error_code(errc::unavailable)) << error.what();
    }
  }
  stop.request_stop();
  EXPECT_FALSE(waiter.acquired());
}

INSTANTIATE_TEST_SUITE_P(Without, WakeupRefused,
                         testing::Values("+client|id", "+client|tracking", "+subscribe",
                                         "&__redis__:invalidate"),
                         [](const auto& each) { return "Right" + std::to_string(each.index); });

TEST(WakeupWithoutCommands, WaitersPoll) {
  RedisServer server{{.config = {"rename-command SUBSCRIBE \"\""}, .requirepass = "secret"}};
  Client client{server.url(), {.password = "secret"}};
  Client other{server.url(), {.password = "secret"}};
  auto held = other.try_acquire("k", {.ttl = 60s});
  Waiter waiter{client, "k", restless()};
  ASSERT_TRUE(eventually(at_once, [&] { return waiter.asked(); }));
  const Stopwatch watch;
  held->release();
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
}

TEST(WakeupWithAPassword, EndsAWait) {
  RedisServer server{{.requirepass = "secret"}};
  Client client{server.url(), {.password = "secret"}};
  Client other{server.url(), {.password = "secret"}};
  auto held = other.try_acquire("k", {.ttl = 60s});
  Waiter waiter{client, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  const Stopwatch watch;
  held->release();
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
}

// ---- races -------------------------------------------------------------------------------------

// B46: the key gets free at any time around a waiter's first attempt and its first look.
TEST_F(Wakeup, B46NoneIsLost) {
  std::mt19937 random{46};
  std::chrono::nanoseconds worst{0};
  std::optional<Client> fresh;
  for (int round = 0; round < 500; ++round) {
    // Those who wait for the first time have to connect first.
    if (round % 10 == 0) fresh.emplace(server.url());
    auto held = other.try_acquire("k", {.ttl = 60s});
    ASSERT_TRUE(held);
    const auto sets = server.command_calls("set");
    Waiter waiter{round % 2 == 0 ? client : *fresh, "k", asleep(), {.ttl = 60s}};
    ASSERT_TRUE(eventually(at_once, [&] { return server.command_calls("set") > sets; }));
    const auto pause = std::chrono::microseconds{std::uniform_int_distribution{0, 5000}(random)};
    std::this_thread::sleep_for(pause);
    const Stopwatch watch;
    held->release();
    ASSERT_TRUE(waiter.acquired());
    worst = std::max(worst, watch.elapsed());
    waiter.lease().release();
  }
  EXPECT_LT(worst, at_once);
}

// B46: somebody comes to the queue while the only one in it is being served.
TEST_F(Wakeup, B46ANewcomerIsWokenThoughAnotherIsJustBeingServed) {
  auto held = other.try_acquire("k", {.ttl = 60s});
  std::atomic<bool> serving{false};
  std::atomic<bool> go_on{false};
  auto slow = asleep();
  slow.still_needed = [&] {
    serving = true;
    return eventually(at_once, [&] { return go_on.load(); });
  };
  Waiter first{client, "k", slow, {.ttl = 60s}};
  ASSERT_TRUE(becomes_watched(server));
  held->release();
  ASSERT_TRUE(eventually(at_once, [&] { return serving.load(); }));
  // The next look is due within that time, and finds nobody to look for.
  EXPECT_FALSE(eventually(50ms, [&] { return first.done(); }));
  Waiter second{client, "k", asleep()};
  EXPECT_FALSE(eventually(50ms, [&] { return second.done(); }));
  go_on = true;
  ASSERT_TRUE(first.acquired());
  EXPECT_TRUE(becomes_watched(server));
  const Stopwatch watch;
  server.admin("DEL", "k");
  ASSERT_TRUE(second.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
}

// ---- what it costs -----------------------------------------------------------------------------

// B50: many waiters of a client cost as much as one.
TEST_F(Wakeup, B50WaitersOfOneClientAskOnce) {
  server.admin("SET", "k", "stranger", "PX", 600'000);
  for (const int count : {5, 50}) {
    Client crowd{server.url()};
    std::stop_source stop;
    constexpr auto interval = 50ms;
    const Wait wait{
        .at_most = 60s, .backoff = {.min = interval, .max = interval}, .stop = stop.get_token()};
    std::vector<std::unique_ptr<Waiter>> waiters;
    waiters.push_back(std::make_unique<Waiter>(crowd, "k", wait));
    ASSERT_TRUE(eventually(at_once, [&] { return waiters.front()->asked(); }));
    ASSERT_TRUE(becomes_watched(server));
    const auto before = requests_of_clients();
    const Stopwatch watch;
    for (int n = 1; n < count; ++n) waiters.push_back(std::make_unique<Waiter>(crowd, "k", wait));
    EXPECT_FALSE(eventually(2s, [&] { return !server.exists("k"); }));
    stop.request_stop();
    for (auto& waiter : waiters) EXPECT_FALSE(waiter->acquired());
    const auto polls = static_cast<std::size_t>(watch.elapsed() / interval);
    // The connection that only hears is asked each second whether it lives.
    EXPECT_LE(requests_of_clients() - before, polls + 10 + polls / 20);
    EXPECT_GE(requests_of_clients() - before, 2U) << "the first one polls";
  }
  EXPECT_EQ(server.command_calls("eval") + server.command_calls("evalsha"), 0);
  EXPECT_EQ(server.command_calls("del"), 0);
}

// B50: changes may come as a flood, looks don't.
TEST_F(Wakeup, B50LooksAreRationed) {
  server.admin("SET", "k", "stranger", "PX", 600'000);
  Waiter waiter{client, "k", asleep()};
  ASSERT_TRUE(becomes_watched(server));
  auto flood = server.connect_admin("flood");
  const auto looks = server.command_calls("pttl");
  const Stopwatch watch;
  int changes = 0;
  while (watch.elapsed() < 1s || changes < 10'000) {
    for (int n = 0; n < 50; ++n) flood.send({"SET", "k", "stranger", "PX", "600000"});
    for (int n = 0; n < 50; ++n) EXPECT_TRUE(flood.read().is_ok());
    changes += 50;
  }
  const auto elapsed = watch.elapsed();
  const auto looked = server.command_calls("pttl") - looks;
  EXPECT_LE(looked, 16 + elapsed / 1ms + 20) << changes;
  EXPECT_GE(looked, 2);
  EXPECT_FALSE(waiter.done());
  const Stopwatch free;
  server.admin("DEL", "k");
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(free.elapsed(), at_once);
}

TEST_F(Wakeup, ItsConnectionsAreThereOnlyWhileSomebodyWaits) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  auto lease = client.try_acquire("mine", {.ttl = 60s});
  EXPECT_EQ(watching_connections(server), 0U);
  std::stop_source stop;
  for (int round = 0; round < 2; ++round) {
    stop = {};
    auto wait = asleep();
    wait.stop = stop.get_token();
    Waiter waiter{client, "k", wait};
    ASSERT_TRUE(eventually(at_once, [&] { return watching_connections(server) == 2; }));
    stop.request_stop();
    EXPECT_FALSE(waiter.acquired());
    EXPECT_TRUE(eventually(at_once, [&] { return watching_connections(server) == 0; }));
  }
  lease->release();
}

TEST_F(Wakeup, NothingOfItOutlivesTheClient) {
  const auto held = other.try_acquire("k", {.ttl = 60s});
  const auto threads = count_threads();
  const auto fds = count_fds();
  for (int round = 0; round < 20; ++round) {
    Client brief{server.url()};
    EXPECT_FALSE(brief.acquire(
        "k", {.at_most = std::chrono::milliseconds{round}, .backoff = {.min = 1ms, .max = 1ms}}));
  }
  EXPECT_TRUE(eventually(at_once, [&] { return count_threads() <= threads; }));
  EXPECT_TRUE(eventually(at_once, [&] { return count_fds() <= fds; }));
  EXPECT_TRUE(eventually(at_once, [&] { return watching_connections(server) == 0; }));
}

// A key that lives for centuries is looked at as seldom as one that lives for ever.
TEST_F(Wakeup, AFarAwayExpiryIsNoReasonToLook) {
  server.admin("SET", "k", "stranger");
  server.admin("EXPIRE", "k", 9'999'999'999);
  EXPECT_FALSE(client.acquire("k", {.at_most = 500ms}));
  EXPECT_LE(server.command_calls("pttl"), 20);
}

}  // namespace
}  // namespace redlease::test
