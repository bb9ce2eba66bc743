#include "integration/fixture.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

using Acquire = IntegrationTest;

TEST_F(Acquire, IsOneSetWithTokenAndTtl) {
  const auto lease = client.try_acquire("k", {.ttl = 10s});
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->key(), "k");
  EXPECT_EQ(server.get("k"), lease->token().reveal());
  EXPECT_GT(server.pttl("k"), 5s);
  EXPECT_LE(server.pttl("k"), 10s);
  EXPECT_TRUE(lease->held());
  EXPECT_GT(lease->remaining(), 5s);
  EXPECT_LE(lease->remaining(), 9900ms) << "less the drift";
  monitor.sync();
  const auto lines = monitor.lines();
  const auto set = std::find_if(lines.begin(), lines.end(),
                                [](const auto& line) { return line.args[0] == "SET"; });
  ASSERT_NE(set, lines.end());
  EXPECT_THAT(set->args, testing::ElementsAre("SET", "k", std::string(lease->token().reveal()),
                                              "NX", "PX", "10000"));
}

TEST_F(Acquire, ContentionIsAnEmptyOptionalAndLeavesTheHolderAlone) {
  const auto lease = client.try_acquire("k", {.ttl = 10s});
  Client other{server.url()};
  EXPECT_FALSE(other.try_acquire("k").has_value());
  EXPECT_FALSE(client.try_acquire("k").has_value()) << "B35: no silent re-entrancy";
  EXPECT_EQ(server.get("k"), lease->token().reveal());
}

TEST_F(Acquire, EveryAcquisitionHasANewToken) {
  auto first = client.try_acquire("k");
  const auto token = first->token();
  first->release();
  const auto second = client.try_acquire("k");
  EXPECT_NE(second->token(), token);
}

// B89
TEST_F(Acquire, KeysAreBinarySafe) {
  using namespace std::string_literals;
  for (const auto& key : {"%s%n"s, "a b"s, "a\r\nb"s, "a\0b"s, "\xff\xfe"s, "käse"s, "x"s, "{"s,
                          "*"s, std::string(65'536, 'k')}) {
    auto lease = client.try_acquire(key);
    ASSERT_TRUE(lease.has_value()) << testing::PrintToString(key);
    EXPECT_EQ(server.get(key), lease->token().reveal());
    EXPECT_EQ(server.dbsize(), 1);
    lease->renew();
    lease->release();
    EXPECT_EQ(server.dbsize(), 0);
  }
}

// B85
TEST_F(Acquire, TtlsRoundUpToWholeMilliseconds) {
  const auto lease = client.try_acquire("k", {.ttl = std::chrono::microseconds{90'000'001}});
  monitor.sync();
  EXPECT_EQ(monitor.count([](const auto& line) { return line.args.back() == "90001"; }), 1U);
  const auto longest = client.try_acquire("l", {.ttl = std::chrono::hours{87600}});
  EXPECT_GT(server.pttl("l"), 87599h);
}

TEST_F(Acquire, WorksOverAUnixSocketInADatabaseUnderAName) {
  Client named{server.unix_url() + "?db=3", {.client_name = "orders-7"}};
  const auto lease = named.try_acquire("k");
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(server.dbsize(), 0) << "not in database 0";
  const auto clients = server.client_list();
  const auto ours = std::find_if(clients.begin(), clients.end(),
                                 [](const auto& c) { return c.at("name") == "orders-7"; });
  ASSERT_NE(ours, clients.end());
  EXPECT_EQ(ours->at("db"), "3");
}

TEST_F(Acquire, FieldsOverrideTheUrl) {
  Client other{server.url() + "/2", {.database = 5, .client_name = "five"}};
  const auto lease = other.try_acquire("k");
  for (const auto& c : server.client_list()) {
    if (c.at("name") == "five") {
      EXPECT_EQ(c.at("db"), "5");
    }
  }
  EXPECT_TRUE(lease.has_value());
}

TEST_F(Acquire, PingConnects) { EXPECT_NO_THROW(client.ping()); }

TEST_F(Acquire, AFewConnectionsServeManyThreads) {
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 32; ++i) {
      threads.emplace_back([this, key = "k" + std::to_string(i)] {
        for (int n = 0; n < 100; ++n) {
          auto lease = client.try_acquire(key);
          ASSERT_TRUE(lease.has_value());
          lease->release();
        }
      });
    }
  }
  const auto clients = server.client_list();
  EXPECT_LE(std::count_if(clients.begin(), clients.end(),
                          [](const auto& c) { return c.at("name").empty(); }),
            4 + 1 /* the monitor */);
  EXPECT_EQ(server.dbsize(), 0);
}

}  // namespace
}  // namespace redlease::test
