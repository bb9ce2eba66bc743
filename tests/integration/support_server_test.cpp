// The test support itself: RedisServer, Monitor, FakeServer and the process helpers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/fake_server.hpp"
#include "support/monitor.hpp"
#include "support/process.hpp"
#include "support/redis_server.hpp"
#include "support/sockets.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

TEST(RedisServer, AnswersItsAdministrator) {
  RedisServer server;
  const std::string key("a\0 b\r\n", 6);
  EXPECT_TRUE(server.admin("SET", key, "%s", "PX", 60000).is_ok());
  EXPECT_EQ(server.get(key), "%s");
  EXPECT_FALSE(server.exists("a"));
  EXPECT_EQ(server.get("a"), std::nullopt);
  EXPECT_GT(server.pttl(key), 0ms);
  EXPECT_EQ(server.pttl("a"), -2ms);
  EXPECT_EQ(server.dbsize(), 1);
  EXPECT_EQ(server.command_calls("set"), 1);
  EXPECT_EQ(server.command_calls("getdel"), 0);
  EXPECT_TRUE(server.admin("NONSENSE").is_error());
  EXPECT_EQ(server.admin("LPUSH", "list", "x", "y").integer, 2);
  EXPECT_EQ(server.admin("LRANGE", "list", 0, -1).elements.at(1).text, "x");
  EXPECT_THROW(server.get("list"), std::runtime_error);
  EXPECT_NO_THROW(server.config_set("timeout", "100"));
  EXPECT_THROW(server.config_set("timeout", "soon"), std::runtime_error);
  ASSERT_EQ(server.client_list().size(), 1U);
  EXPECT_EQ(server.client_list()[0].at("name"), "admin");
  EXPECT_EQ(server.client_list()[0].at("addr"), server.admin_address());
}

TEST(RedisServer, HonoursItsOptions) {
  const std::string password = "p w@:/#%?+\xc3\xa9\"";
  RedisServer server({.config = {"databases 3"}, .requirepass = password, .tcp = false});
  EXPECT_EQ(server.port(), 0);
  EXPECT_THROW(server.url(), std::logic_error);
  EXPECT_EQ(server.admin("CONFIG", "GET", "databases").elements.at(1).text, "3");
  EXPECT_TRUE(AdminConnection::to_socket(server.socket_path()).command({"PING"}).is_error());
}

TEST(RedisServer, ReportsWhyItCanNotStart) {
  try {
    RedisServer server({.config = {"no-such-option 1"}});
    FAIL() << "started";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("no-such-option"), std::string::npos);
  }
}

TEST(RedisServer, RestartsOnTheSamePort) {
  RedisServer server({.requirepass = "secret"});
  const auto port = server.port();
  const auto before = server.admin_address();
  server.admin("SET", "k", "v");
  server.kill();
  EXPECT_EQ(server.pid(), -1);
  EXPECT_THROW(server.admin("PING"), std::runtime_error);
  server.start();
  EXPECT_EQ(server.port(), port);
  EXPECT_FALSE(server.exists("k"));
  EXPECT_TRUE(server.admin_addresses().contains(before));
  EXPECT_TRUE(server.admin_addresses().contains(server.admin_address()));
  server.pause();
  server.stop();
  server.start();
  EXPECT_EQ(server.admin("PING").text, "PONG");
}

TEST(RedisServer, PausesAndResumes) {
  RedisServer server;
  server.pause();
  auto answer = std::async(std::launch::async, [&server] { return server.admin("PING"); });
  EXPECT_EQ(answer.wait_for(50ms), std::future_status::timeout);
  server.resume();
  EXPECT_EQ(answer.get().text, "PONG");
  AdminConnection other = server.connect_admin("other");
  EXPECT_TRUE(other.command({"CLIENT", "KILL", server.admin_address()}).is_ok());
  EXPECT_EQ(server.admin("PING").text, "PONG");  // on a new connection
}

TEST(RedisServer, LeavesNothingBehind) {
  std::thread{[] {}}.join();  // a sanitizer's own thread starts with the first one of the program
  const auto fds = count_fds();
  const auto threads = count_threads();
  std::string socket;
  pid_t pid = -1;
  {
    RedisServer first;
    RedisServer second;
    EXPECT_NE(first.port(), second.port());
    EXPECT_EQ(fork_and_wait([&first] { first.~RedisServer(); }), 0);  // the copy is inert
    EXPECT_EQ(first.admin("PING").text, "PONG");
    second.pause();
    socket = second.socket_path();
    pid = second.pid();
  }
  EXPECT_FALSE(std::filesystem::exists(socket));
  EXPECT_NE(::kill(pid, 0), 0);
  EXPECT_EQ(count_fds(), fds);
  // A joined thread stays in /proc for a moment.
  EXPECT_TRUE(eventually(5s, [threads] { return count_threads() == threads; }));
}

TEST(RedisServer, EndsWithAProcessThatIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd reading(ends[0]);
  const Fd writing(ends[1]);
  const int status = fork_and_wait([&writing] {
    RedisServer server;
    const std::string path = server.socket_path();
    if (::write(writing.get(), path.data(), path.size()) > 0) ::raise(SIGKILL);
  });
  EXPECT_EQ(status, 128 + SIGKILL);
  std::string path(200, '\0');
  path.resize(static_cast<std::size_t>(::read(reading.get(), path.data(), path.size())));
  EXPECT_TRUE(eventually(10s, [&path] { return !connect_to_socket(path); }));
  std::filesystem::remove_all(std::filesystem::path(path).parent_path());
}

TEST(Monitor, SeesCommandsAndTheirSources) {
  RedisServer server;
  Monitor monitor(server);
  AdminConnection client = AdminConnection::to_port(server.port());
  const std::string bytes("\"\\\r\n\t\a\b\0\xff x", 11);
  client.command({"SET", "k", bytes, "NX", "PX", "10000"});
  client.command({"EVAL", "return redis.call('DEL', KEYS[1])", "1", "k"});
  server.admin("DEL", "k");
  monitor.sync();
  EXPECT_TRUE(monitor.violations().empty());
  EXPECT_EQ(monitor.count([&](const MonitorLine& line) {
    return line.source == client.address() && line.args.at(2) == bytes && line.db == 0;
  }),
            1U);
  EXPECT_EQ(monitor.count([](const MonitorLine& line) { return line.source == "lua"; }), 1U);

  client.command({"set", "k", "PX", "NX"});
  client.command({"del", "k"});
  monitor.sync();
  ASSERT_EQ(monitor.violations().size(), 2U);
  EXPECT_EQ(monitor.violations()[1].args.at(0), "del");
  EXPECT_TRUE(monitor.violations({client.address()}).empty());

  server.kill();
  server.start();
  EXPECT_THROW(monitor.sync(), std::runtime_error);
  monitor.attach();
  server.admin("GET", "again");
  monitor.sync();
  EXPECT_EQ(monitor.lines().back().args.back(), "again");
}

TEST(Monitor, KnowsUnguardedWrites) {
  using Command = std::vector<std::string>;
  const Command unguarded[] = {{"SET", "k", "v"},
                               {"SET", "k", "v", "NX"},
                               {"SET", "k", "v", "PX", "1"},
                               {"SET", "k", "v", "NX", "EX", "1"},
                               {"UNLINK", "k"},
                               {"PEXPIRE", "k", "1"},
                               {"FLUSHALL"},
                               {"script", "flush"},
                               {"DELEX", "k"}};
  const Command guarded[] = {{"SET", "k", "v", "nx", "px", "1"},
                             {"SET", "k", "v", "IFEQ", "o", "PX", "1"},
                             {"DELEX", "k", "IFEQ", "o"},
                             {"EVALSHA", "sha", "1", "k"},
                             {"SCRIPT", "LOAD", "x"},
                             {"GET", "k"}};
  for (const Command& command : unguarded) EXPECT_TRUE(is_unguarded_write(command)) << command[0];
  for (const Command& command : guarded) EXPECT_FALSE(is_unguarded_write(command)) << command[0];
}

TEST(FakeServer, PlaysItsScript) {
  FakeServer loading({.answer = [](const std::string&) { return "-LOADING wait\r\n"; }});
  AdminConnection client = AdminConnection::to_port(loading.port());
  client.send({"A"});
  client.send({"B"});
  EXPECT_EQ(client.read().text, "LOADING wait");
  EXPECT_EQ(client.read().text, "LOADING wait");
  EXPECT_EQ(loading.requests(), 2U);

  FakeServer closing({.close_on_connect = true});
  EXPECT_THROW(AdminConnection::to_port(closing.port()).command({"PING"}), std::runtime_error);
  EXPECT_EQ(closing.accepted(), 1U);

  FakeServer web({.greeting = "HTTP/1.1 400 Bad Request\r\n", .close_on_connect = true});
  EXPECT_THROW(AdminConnection::to_port(web.port()).read(), std::runtime_error);

  FakeServer dribbling({.greeting = "+OK\r\n", .byte_interval = 10ms});
  const Stopwatch watch;
  EXPECT_TRUE(AdminConnection::to_port(dribbling.port()).read().is_ok());
  EXPECT_GE(watch.elapsed(), 40ms);

  FakeServer silent;
  {
    AdminConnection unheard = AdminConnection::to_port(silent.port());
    unheard.set_timeout(50ms);
    EXPECT_THROW(unheard.command({"PING"}), std::runtime_error);
    EXPECT_EQ(silent.open_connections(), 1U);
  }
  EXPECT_TRUE(eventually(5s, [&silent] { return silent.open_connections() == 0; }));
}

TEST(Process, ReportsHowAChildEnded) {
  EXPECT_EQ(fork_and_wait([] {}), 0);
  EXPECT_EQ(fork_and_wait([] { return 7; }), 7);
  EXPECT_EQ(fork_and_wait([]() -> int { throw std::runtime_error("expected"); }), 125);
  EXPECT_EQ(fork_and_wait([] { ::raise(SIGKILL); }), 128 + SIGKILL);
  EXPECT_GT(rss_bytes(), 100000U);
  EXPECT_FALSE(eventually(5ms, [] { return false; }));
  EXPECT_THROW(pause_process(-1), std::logic_error);
}

}  // namespace
}  // namespace redlease::test
