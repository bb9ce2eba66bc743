// What callers put in: durations, keys, URLs, credentials; and secrets that stay inside.

#include <algorithm>
#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "fault/world.hpp"
#include "support/fake_server.hpp"
#include "support/fault_proxy.hpp"

namespace redlease::test {
namespace {

using namespace std::string_literals;

class InputTest : public FaultTest {
 protected:
  // Commands that clients have sent so far.
  std::size_t commands() {
    monitor.sync();
    return monitor.count([&](const MonitorLine& line) {
      return line.source != "lua" && !server.admin_addresses().contains(line.source);
    });
  }

  Client client{server.url(), patient()};
};

// B85: a ttl that makes no sense is refused before anything is sent.
TEST_F(InputTest, B85BadTtlsAreRefused) {
  const std::vector<Duration> bad{0ms,
                                  -1ms,
                                  1us,
                                  999us,
                                  std::chrono::nanoseconds::min(),
                                  std::chrono::hours::max(),
                                  std::chrono::hours::min(),
                                  std::chrono::milliseconds::max(),
                                  std::chrono::duration<double>{std::nan("")},
                                  std::chrono::duration<double>{1e300}};
  for (const auto ttl : bad) {
    EXPECT_THAT(thrown_by_acquire(client, "k", {.ttl = ttl}), refused("ttl"));
    EXPECT_THAT(thrown_by([&] { return client.acquire("k", {.at_most = 1s}, {.ttl = ttl}); }),
                refused("ttl"));
  }
  EXPECT_EQ(commands(), 0U);
}

// B85: one that makes sense is never longer in Redis than asked for, and never without end.
TEST_F(InputTest, B85GoodTtlsArriveExactly) {
  using std::chrono::milliseconds;
  for (const auto ttl : {milliseconds{24h}, milliseconds{1LL << 31}, milliseconds{1LL << 32},
                         milliseconds{24h * 3650}}) {
    auto lease = must_acquire(client, "k", {.ttl = ttl});
    EXPECT_GT(server.pttl("k"), ttl - 60s);
    EXPECT_LE(server.pttl("k"), ttl);
    EXPECT_LE(lease.remaining(), ttl);
    lease.release();
  }
  // A millisecond may be over before the reply is there; no key is left in any case.
  for (const Duration ttl : {Duration{1ms}, Duration{1001us}, Duration{1.5ms}}) {
    static_cast<void>(thrown_by([&] { return client.try_acquire("k", {.ttl = ttl}); }));
    EXPECT_TRUE(becomes_absent("k"));
  }
  monitor.sync();
  EXPECT_EQ(monitor.count([](const MonitorLine& line) {
    return line.args.at(0) == "SET" && line.args.back() == "2";
  }),
            2U);
}

// B85: the other durations and numbers.
TEST_F(InputTest, B85BadOptionsAreRefused) {
  const auto waiting = [&](const Wait& wait) {
    return thrown_by([&] { return client.acquire("k", wait); });
  };
  EXPECT_THAT(waiting({.at_most = -1ms}), refused("at_most"));
  EXPECT_THAT(waiting({.at_most = -1ns}), refused("at_most"));
  EXPECT_THAT(waiting({.at_most = 1s, .attempts = 0}), refused("attempts"));
  EXPECT_THAT(waiting({.at_most = 1s, .backoff = {.min = 0ms}}), refused("backoff.min"));
  EXPECT_THAT(waiting({.at_most = 1s, .backoff = {.min = 9ms, .max = 8ms}}),
              refused("backoff.max"));
  EXPECT_THAT(waiting({.at_most = 1s, .order = static_cast<Order>(7)}), refused("order"));
  EXPECT_THAT(thrown_by_acquire(client, "k", {.renew_every = 1s}), refused("renew_every"));
  EXPECT_THAT(thrown_by_acquire(client, "k", {.ttl = 1s, .auto_renew = true, .renew_every = 1s}),
              refused("renew_every"));
  EXPECT_THAT(thrown_by_acquire(client, "k", {.ttl = 1s, .safety_margin = 1s}),
              refused("safety_margin"));
  EXPECT_THAT(thrown_by_acquire(client, "k", {.fence_key = "f"}), refused("fence_key"));
  EXPECT_THAT(thrown_by_acquire(client, "k", {.fencing = true, .fence_key = "k"}),
              refused("fence_key"));
  EXPECT_THAT(thrown_by_acquire(client, "k", {.min_replicas = 1}), refused("min_replicas"));

  const auto making = [&](const ClientOptions& options) {
    return thrown_by([&] { Client{server.url(), options}; });
  };
  EXPECT_THAT(making({.connect_timeout = 0ms}), refused("connect_timeout"));
  EXPECT_THAT(making({.command_timeout = -1s}), refused("command_timeout"));
  EXPECT_THAT(making({.command_timeout = Duration::max()}), refused("command_timeout"));
  EXPECT_THAT(making({.database = -1}), refused("database"));
  EXPECT_THAT(making({.client_name = "two words"}), refused("client_name"));
  EXPECT_THAT(making({.max_connections = 0}), refused("max_connections"));
  EXPECT_EQ(commands(), 0U);
}

// B86: renewing by nothing or less would delete the key.
TEST_F(InputTest, B86BadRenewalsAreRefused) {
  auto lease = must_acquire(client, "k", {.ttl = 20s});
  const auto sent = commands();
  const auto pttl = server.pttl("k");
  for (const Duration ttl : {Duration{0ms}, Duration{-5ms}, Duration{1us},
                             Duration{std::chrono::hours::max()}, Duration{-24h}}) {
    EXPECT_THAT(thrown_by([&] { lease.renew(ttl); }), refused("ttl"));
  }
  EXPECT_THAT(thrown_by([&] { lease.ensure_held(-1ms); }), refused("min"));
  EXPECT_EQ(commands(), sent);
  EXPECT_GT(server.pttl("k"), pttl - 10s);
  EXPECT_LE(server.pttl("k"), pttl);
  EXPECT_TRUE(lease.held());
}

const std::string odd_password = "p w@:/#%?+\xc3\xa9\"'\\";
const std::string odd_password_in_a_url = "p%20w%40%3A%2F%23%25%3F+%C3%A9%22%27%5C";

class CredentialsTest : public FaultTest {
 protected:
  CredentialsTest() : FaultTest({.config = {"bind 127.0.0.1 -::1"}, .requirepass = odd_password}) {}

  void SetUp() override {
    server.admin("ACL", "SETUSER", "orders", "on", ">" + odd_password, "~lease:*", "+set", "+get",
                 "+del", "+pexpire", "+pttl", "+evalsha", "+eval", "+select", "+client|setname");
    server.admin("ACL", "SETUSER", "open", "on", "nopass", "~*", "+@all");
    server.admin("ACL", "SETUSER", "p@q:r", "on", ">short", "~*", "+@all");
  }

  std::string url(const std::string& user_info, const std::string& host = "127.0.0.1",
                  const std::string& path = {}) const {
    return "redis://" + user_info + (user_info.empty() ? "" : "@") + host + ":" +
           std::to_string(server.port()) + path;
  }

  static void expect_works(const std::string& url, ClientOptions options = patient()) {
    Client client{url, std::move(options)};
    auto lease = must_acquire(client, "lease:k");
    lease.renew();
    lease.release();
  }
};

// B87: passwords with all sorts of characters, in the URL and by field.
TEST_F(CredentialsTest, B87PasswordsWithSpecialCharacters) {
  expect_works(url(":" + odd_password_in_a_url));
  expect_works(url("default:" + odd_password_in_a_url));
  expect_works(url("orders:" + odd_password_in_a_url));
  expect_works(url("p%40q%3Ar:short"));
  expect_works(url("open"));
  expect_works(url("open:whatever"));
  expect_works(url(":" + odd_password_in_a_url, "127.0.0.1", "/3"));
  // User info ends at the last '@' even if the password is not encoded as it should be.
  expect_works(url("default:p%20w@%3A%2F%23%25%3F+%C3%A9%22%27%5C"));

  auto options = patient();
  options.password = odd_password;
  expect_works(url(""), options);
  options.username = "orders";
  expect_works(url(""), options);
  expect_works(url("somebody:wrong"), options);  // fields override the URL
  expect_works("unix://" + server.socket_path(), options);
  expect_works("unix://orders:" + odd_password_in_a_url + "@" + server.socket_path() + "?db=2");
}

// B87: an IPv6 literal, where the machine has IPv6.
TEST_F(CredentialsTest, B87AnIpv6Literal) {
  const auto literal = url(":" + odd_password_in_a_url, "[::1]", "/3");
  const auto thrown = thrown_by([&] { Client{literal, patient()}.ping(); });
  if (thrown.code == errc::unavailable) GTEST_SKIP() << "no IPv6 here: " << thrown;
  EXPECT_THAT(thrown, succeeded());
  expect_works(literal);
}

// B87, B91: what is wrong is refused, and no text repeats the password.
TEST_F(CredentialsTest, B87WrongCredentials) {
  for (const auto& user_info : {":nonsense-9f"s, "orders:nonsense-9f"s, "nobody:nonsense-9f"s,
                                ":p+w%40%3A%2F%23%25%3F+%C3%A9%22%27%5C"s, ""s}) {
    Client client{url(user_info), patient()};
    const auto thrown = thrown_by_acquire(client, "lease:k");
    EXPECT_EQ(thrown.code, errc::rejected) << thrown;
    EXPECT_THAT(thrown.what, ::testing::Not(::testing::HasSubstr("nonsense-9f")));
    EXPECT_THAT(thrown.what, ::testing::Not(::testing::HasSubstr("p+w@")));
  }
  EXPECT_EQ(server.dbsize(), 0);
}

// B87: malformed URLs.
TEST(MalformedUrlTest, B87IsRefusedWithoutTheSecret) {
  for (const auto* url : {"",
                          "127.0.0.1",
                          "redis:/",
                          "redis://",
                          "http://h",
                          "redis://u:secret-9f@",
                          "redis://u:secret-9f%zz@h",
                          "redis://u:secret-9f%@h",
                          "redis://u:secret-9f@h:0",
                          "redis://u:secret-9f@h:65536",
                          "redis://u:secret-9f@h:abc",
                          "redis://u:secret-9f@h:-1",
                          "redis://u:secret-9f@h:6379:6379",
                          "redis://u:secret-9f@h/abc",
                          "redis://u:secret-9f@h/-1",
                          "redis://u:secret-9f@h/1/2",
                          "redis://u:secret-9f@h/99999999999",
                          "redis://secret-9f:h",
                          "redis://u:secret-9f@[::1",
                          "redis://u:secret-9f@[::1]6379",
                          "redis://u:secret-9f@a b",
                          "redis://u:secret-9f@h?x=1",
                          "redis://u:secret-9f@h#x",
                          "unix://u:secret-9f@relative",
                          "unix://",
                          "unix:///s?db=x",
                          "rediss://u:secret-9f@h",
                          "redis+cluster://u:secret-9f@h",
                          "secret-9f"}) {
    const auto thrown = thrown_by([&] { Client{url}; });
    EXPECT_THAT(thrown, refused("url")) << url;
    EXPECT_THAT(thrown.what, ::testing::Not(::testing::HasSubstr("secret-9f"))) << url;
  }
  EXPECT_THAT(thrown_by([&] { Client{"unix:///" + std::string(200, 'x')}; }), refused("url"));
}

// B87: URLs that are fine, with nobody there.
TEST(NobodyThereTest, B87NamesTheServer) {
  EXPECT_THAT(thrown_by([] { Client{"unix:///nonexistent/socket"}.ping(); }),
              failed(errc::unavailable, "/nonexistent/socket"));
  const auto port = std::to_string(free_port());
  EXPECT_THAT(thrown_by([&] { Client{"redis://127.0.0.1:" + port}.ping(); }),
              failed(errc::unavailable, port));
}

// B89: keys are bytes.
TEST_F(InputTest, B89KeysAreBytes) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const auto& key :
       {"%s%n%d"s, "a b"s, "a\r\nb"s, "a\0b"s, "\0"s, "\r\n"s, "\xff\xfe"s, "schl\xc3\xbcssel"s,
        "k"s, "{"s, "}"s, "*"s, "$-1\r\n"s, "{a}b"s, "'\""s, all, std::string(max_key_size, 'x')}) {
    auto lease = must_acquire(client, key, {.ttl = 20s});
    EXPECT_EQ(lease.key(), key);
    EXPECT_EQ(server.get(key), lease.token().reveal());
    EXPECT_EQ(server.dbsize(), 1);
    EXPECT_FALSE(client.try_acquire(key));
    lease.renew();
    EXPECT_TRUE(client.inspect(key));
    lease.release();
    EXPECT_EQ(server.dbsize(), 0);
    { const auto scope = must_acquire(client, key, {.ttl = 20s}); }
    client.ping();
    EXPECT_EQ(server.dbsize(), 0);
  }
}

// B89: no key, or one that is too long.
TEST_F(InputTest, B89BadKeysAreRefused) {
  for (const auto& key : {""s, std::string(max_key_size + 1, 'x')}) {
    EXPECT_THAT(thrown_by_acquire(client, key), refused("key"));
    EXPECT_THAT(thrown_by([&] { return client.acquire(key, {.at_most = 1s}); }), refused("key"));
    EXPECT_THAT(thrown_by([&] { return client.inspect(key); }), refused("key"));
    EXPECT_THAT(thrown_by([&] { return client.break_lease(key, {}); }), refused("key"));
  }
  EXPECT_EQ(commands(), 0U);
}

// B89: an error about an odd key stays one readable line.
TEST_F(InputTest, B89OddKeysInMessages) {
  server.config_set("min-replicas-to-write", "1");
  const auto thrown = thrown_by_acquire(client, "a\r\nb\0c"s + std::string(1000, 'x'));
  EXPECT_THAT(thrown, failed(errc::rejected, "NOREPLICAS"));
  EXPECT_LT(thrown.what.size(), 500U);
  for (const char c : thrown.what) EXPECT_GE(static_cast<unsigned char>(c), ' ');
}

// B87: a database that the server does not have.
TEST_F(InputTest, B87ADatabaseThatIsNotThere) {
  Client nowhere{server.url() + "/99", patient()};
  EXPECT_THAT(thrown_by_acquire(nowhere, "k"), failed(errc::rejected, "SELECT"));
  EXPECT_THAT(thrown_by([&] { return nowhere.acquire("k", {.at_most = 20s}); }),
              failed(errc::rejected, "DB index"));
  EXPECT_EQ(server.dbsize(), 0);
}

// Collects every text that reaches a user.
class Secrets {
 public:
  void add(const Thrown& thrown) { texts_.push_back(thrown.what); }
  void add(const EventLog& log) {
    for (const auto& event : log.all()) {
      texts_.push_back(event.message);
      texts_.push_back(event.fingerprint);
      texts_.push_back(event.server);
    }
  }
  void expect_none_of(const std::string& secret) const {
    for (const auto& text : texts_) EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr(secret)));
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::vector<std::string> texts_;
};

// Tokens have the form of a UUID, whole or cut short.
bool shows_a_token(const std::string& text) {
  return ::testing::Matches(::testing::ContainsRegex("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}"))(text);
}

// B91: servers that repeat a request in their error: neither token nor password gets through.
TEST(SecretsTest, B91AnEchoingServer) {
  for (const auto& prefix : {"ERR unknown command, with args beginning with: "s, "ERR "s,
                             "LOADING "s, "ERR "s + std::string(250, '.')}) {
    for (const bool grant : {false, true}) {
      const auto log = std::make_shared<EventLog>();
      FakeServer echo{{.answer = [&](const std::string& request) {
        if (grant && request.find("\r\nSET\r\n") != std::string::npos) return "+OK\r\n"s;
        auto text = request;
        std::replace_if(
            text.begin(), text.end(), [](char c) { return c < ' '; }, ' ');
        return "-" + prefix + text + "\r\n";
      }}};
      Secrets secrets;
      {
        Client client{echo.url(), {.observer = log}};
        auto lease = std::optional<Lease>{};
        secrets.add(thrown_by([&] { lease = client.try_acquire("k"); }));
        secrets.add(thrown_by([&] { lease = client.acquire("k2", {.at_most = 50ms}); }));
        if (lease) {
          secrets.add(thrown_by_renew(*lease));
          secrets.add(thrown_by_release(*lease));
        }
        secrets.add(thrown_by([&] { return client.inspect("k"); }));
        lease.reset();
        auto options = patient();
        options.password = "secret-9f";
        options.username = "user-9f";
        Client closed{echo.url(), options};
        secrets.add(thrown_by_ping(closed));
      }
      secrets.add(*log);
      for (const auto& text : secrets.texts()) EXPECT_FALSE(shows_a_token(text)) << text;
      secrets.expect_none_of("secret-9f");
      secrets.expect_none_of("user-9f");
    }
  }
}

class RenamedTest : public FaultTest {
 protected:
  RenamedTest()
      : FaultTest({.config = {"rename-command EVALSHA \"\"", "rename-command EVAL \"\""}}) {}
};

// B91: a real server without scripts repeats the arguments, the token among them.
TEST_F(RenamedTest, B91ScriptsThatAreRenamedAway) {
  const auto log = std::make_shared<EventLog>();
  std::string token;
  Secrets secrets;
  {
    Client client{server.url(), {.observer = log}};
    auto lease = must_acquire(client, "k");
    token = lease.token().reveal();
    const auto refusal = thrown_by_release(lease);
    EXPECT_THAT(refusal, failed(errc::rejected, "unknown command"));
    secrets.add(refusal);
    secrets.add(thrown_by_renew(lease));
    secrets.add(thrown_by([&] { return client.inspect("k"); }));
    EXPECT_TRUE(lease.held());
  }
  secrets.add(*log);
  secrets.expect_none_of(token);
  for (const auto& text : secrets.texts()) EXPECT_FALSE(shows_a_token(text)) << text;
  EXPECT_TRUE(server.exists("k"));  // for as long as its ttl
}

// B91: all that is said about a life with trouble: no token, no password.
TEST_F(CredentialsTest, B91NoSecretIsEverSaid) {
  const auto log = std::make_shared<EventLog>();
  Secrets secrets;
  std::vector<std::string> tokens;
  FaultProxy proxy{server.port()};
  {
    auto options = hasty();
    options.observer = log;
    Client client{
        "redis://orders:" + odd_password_in_a_url + "@127.0.0.1:" + std::to_string(proxy.port()),
        options};
    auto lease = must_acquire(client, "lease:k");
    tokens.emplace_back(lease.token().reveal());
    secrets.add(thrown_by_acquire(client, "forbidden"));
    secrets.add(thrown_by([&] { return client.acquire("lease:k", {.at_most = 50ms}); }));
    proxy.black_hole(true);
    secrets.add(thrown_by_renew(lease));
    secrets.add(thrown_by_acquire(client, "lease:other"));
    secrets.add(thrown_by_release(lease));
    secrets.add(thrown_by_release(lease));
    proxy.black_hole(false);
    proxy.refuse(true);
    proxy.reset_all();
    secrets.add(thrown_by_ping(client));
    secrets.add(thrown_by_acquire(client, "lease:other"));
    std::ostringstream out;
    out << lease.token();
    EXPECT_EQ(out.str(), lease.token().fingerprint());
  }
  secrets.add(*log);
  EXPECT_GE(secrets.texts().size(), 10U);
  secrets.expect_none_of(odd_password);
  secrets.expect_none_of(odd_password_in_a_url);
  for (const auto& token : tokens) secrets.expect_none_of(token);
  for (const auto& text : secrets.texts()) EXPECT_FALSE(shows_a_token(text)) << text;
  server.admin("FLUSHALL");
}

}  // namespace
}  // namespace redlease::test
