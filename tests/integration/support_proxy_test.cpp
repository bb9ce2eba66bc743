// The test support itself: FaultProxy in front of a real server.
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/fault_proxy.hpp"
#include "support/process.hpp"
#include "support/redis_server.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

class FaultProxyTest : public ::testing::Test {
 protected:
  AdminConnection connect() const {
    AdminConnection connection = AdminConnection::to_port(proxy.port());
    connection.set_timeout(10s);
    return connection;
  }

  RedisServer server;
  FaultProxy proxy{server.port()};
};

TEST_F(FaultProxyTest, PassesEverythingThrough) {
  FaultProxy by_socket(server.socket_path());
  const std::string big(8 << 20, 'x');
  for (const auto port : {proxy.port(), by_socket.port()}) {
    AdminConnection client = AdminConnection::to_port(port);
    EXPECT_TRUE(client.command({"SET", "big", big}).is_ok());
    EXPECT_EQ(client.command({"GET", "big"}).text, big);
  }
  EXPECT_EQ(proxy.accepted(), 1U);
  EXPECT_EQ(proxy.requests_seen("\r\nSET\r\n"), 1U);
  EXPECT_TRUE(eventually(10s, [this] { return proxy.open_connections() == 0; }));
  EXPECT_TRUE(eventually(10s, [this] { return server.client_list().size() == 1; }));
}

TEST_F(FaultProxyTest, ServesManyConnectionsAtOnce) {
  std::vector<std::thread> threads(8);
  for (std::thread& thread : threads) {
    thread = std::thread([this] {
      AdminConnection client = connect();
      for (int n = 0; n < 50; ++n) client.send({"INCR", "n"});
      for (int n = 0; n < 50; ++n) EXPECT_GT(client.read().integer, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server.get("n"), "400");
}

TEST_F(FaultProxyTest, DelaysRequestsAndReplies) {
  AdminConnection client = connect();
  proxy.delay_replies(80ms);
  Stopwatch watch;
  EXPECT_TRUE(client.command({"SET", "k", "v"}).is_ok());
  EXPECT_GE(watch.elapsed(), 80ms);
  proxy.pass_through();
  proxy.delay_requests(80ms, "EVAL");
  watch.restart();
  EXPECT_EQ(client.command({"EVAL", "return 1", "0"}).integer, 1);
  EXPECT_GE(watch.elapsed(), 80ms);
}

TEST_F(FaultProxyTest, ForwardsDelayedRequestsOfClientsThatLeft) {
  proxy.delay_requests(50ms);
  connect().send({"SET", "late", "v"});
  EXPECT_TRUE(eventually(10s, [this] { return server.exists("late"); }));
}

TEST_F(FaultProxyTest, DropsReplies) {
  AdminConnection client = connect();
  proxy.drop_replies(2, false);
  client.send({"INCR", "n"});
  client.send({"INCR", "n"});
  EXPECT_EQ(client.command({"INCR", "n"}).integer, 3);

  proxy.drop_reply_matching("\r\nSET\r\n", true);
  EXPECT_TRUE(client.command({"CLIENT", "SETNAME", "someone"}).is_ok());
  EXPECT_THROW(client.command({"SET", "k", "v"}), std::runtime_error);
  EXPECT_EQ(server.get("k"), "v");
  EXPECT_TRUE(connect().command({"SET", "k", "w"}).is_ok());
}

TEST_F(FaultProxyTest, DropsRequests) {
  AdminConnection client = connect();
  proxy.drop_request_matching("lost", false);
  client.send({"SET", "k", "lost"});
  EXPECT_EQ(client.command({"PING"}).text, "PONG");
  proxy.drop_request_matching("lost", true);
  EXPECT_THROW(client.command({"SET", "k", "lost"}), std::runtime_error);
  EXPECT_FALSE(server.exists("k"));
  EXPECT_EQ(proxy.requests_seen("lost"), 2U);
}

TEST_F(FaultProxyTest, SwallowsAndGivesBack) {
  AdminConnection old = connect();
  old.command({"PING"});
  proxy.black_hole(true);
  connect().send({"SET", "ghost", "v"});
  old.send({"PING"});
  EXPECT_TRUE(eventually(10s, [this] { return proxy.accepted() == 2; }));
  EXPECT_TRUE(eventually(10s, [this] { return proxy.open_connections() == 1; }));
  EXPECT_TRUE(old.alive());
  EXPECT_FALSE(server.exists("ghost"));
  proxy.black_hole(false);
  EXPECT_EQ(old.read().text, "PONG");
  EXPECT_TRUE(eventually(10s, [this] { return server.exists("ghost"); }));

  proxy.strand_open_connections();
  old.send({"SET", "stranded", "v"});
  EXPECT_EQ(connect().command({"PING"}).text, "PONG");
  EXPECT_FALSE(server.exists("stranded"));
  EXPECT_TRUE(old.alive());
}

TEST_F(FaultProxyTest, Trickles) {
  AdminConnection client = connect();
  proxy.trickle(2, 20ms);
  const Stopwatch watch;
  EXPECT_EQ(client.command({"PING"}).text, "PONG");  // "+PONG\r\n": four bites
  EXPECT_GE(watch.elapsed(), 60ms);
}

TEST_F(FaultProxyTest, RefusesAndResets) {
  AdminConnection client = connect();
  client.command({"PING"});
  proxy.refuse(true);
  EXPECT_THROW(connect(), std::runtime_error);
  EXPECT_EQ(client.command({"PING"}).text, "PONG");
  proxy.reset_all();
  EXPECT_THROW(client.read(), std::runtime_error);
  EXPECT_EQ(proxy.open_connections(), 0U);
  proxy.refuse(false);
  EXPECT_EQ(connect().command({"PING"}).text, "PONG");
}

TEST_F(FaultProxyTest, ClosesWhenTheServerIsDown) {
  AdminConnection client = connect();
  client.command({"PING"});
  server.kill();
  EXPECT_THROW(client.command({"PING"}), std::runtime_error);
  EXPECT_THROW(connect().command({"PING"}), std::runtime_error);
  server.start();
  EXPECT_EQ(connect().command({"PING"}).text, "PONG");
}

}  // namespace
}  // namespace redlease::test
