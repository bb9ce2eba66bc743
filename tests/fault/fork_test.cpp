// fork(): a lease belongs to the process that took it, and processes share no connection.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "fault/world.hpp"

namespace redlease::test {
namespace {

class ForkTest : public FaultTest {
 protected:
  // What clients sent, by their connections' addresses.
  std::multiset<std::string> senders() {
    monitor.sync();
    std::multiset<std::string> all;
    for (const auto& line : monitor.lines()) {
      if (line.source != "lua" && !server.admin_addresses().contains(line.source)) {
        all.insert(line.source);
      }
    }
    return all;
  }

  std::optional<Client> client{std::in_place, server.url(), patient()};
};

// B77: the child's copy of a lease does nothing: at its end, when asked, or when it is replaced.
TEST_F(ForkTest, B77AChildLeavesTheParentsLeaseAlone) {
  auto lease = std::optional{must_acquire(*client, "k", {.ttl = 20s})};
  auto second = std::optional{must_acquire(*client, "second", {.ttl = 20s})};
  const auto sent = senders();
  const int status = fork_and_wait([&] {
    int wrong = 0;
    if (lease->held() || lease->remaining() != 0s || lease->loss()) wrong |= 1;
    if (!thrown_by_release(*lease).invalid || !thrown_by_renew(*lease).invalid) wrong |= 2;
    if (!thrown_by([&] { lease->ensure_held(); }).invalid) wrong |= 4;
    std::error_code error;
    lease->release(error);
    if (error != std::errc::invalid_argument) wrong |= 8;
    *lease = std::move(*second);
    lease.reset();
    second.reset();
    client.reset();
    return wrong;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(senders(), sent);
  EXPECT_EQ(server.get("k"), lease->token().reveal());
  EXPECT_EQ(server.get("second"), second->token().reveal());
  lease->renew();
  lease->release();
  second->release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B77: a child that uses the client before it lets go of the parent's lease.
TEST_F(ForkTest, B77AChildThatUsesTheClient) {
  auto lease = std::optional{must_acquire(*client, "k", {.ttl = 20s})};
  const int status = fork_and_wait([&] {
    if (client->try_acquire("k")) return 1;
    { const auto own = must_acquire(*client, "own"); }
    must_acquire(*client, "own").release();
    lease.reset();
    return client->try_acquire("k") ? 2 : 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(server.get("k"), lease->token().reveal());
  lease->release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B77: a scope exit that is not answered yet is the parent's affair, too.
TEST_F(ForkTest, B77AnUnansweredScopeExit) {
  { const auto lease = must_acquire(*client, "k", {.ttl = 20s}); }
  EXPECT_EQ(fork_and_wait([&] { client.reset(); }), 0);
  client->ping();
  must_acquire(*client, "k").release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B79: parent and child each have their own connections, and only right answers.
TEST_F(ForkTest, B79ParentAndChildWorkSideBySide) {
  client->ping();
  const int cycles = sanitized ? 200 : 1000;
  const auto work = [&](const std::string& key) {
    for (int n = 0; n < cycles; ++n) {
      auto lease = client->try_acquire(key, {.ttl = 20s});
      if (!lease || !lease->held()) return 1;
      if (client->try_acquire(key)) return 2;
      lease->release();
    }
    return 0;
  };
  Child child{[&] { return work("child"); }};
  EXPECT_EQ(work("parent"), 0);
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(server.dbsize(), 0);
  const auto all = senders();
  EXPECT_GE(std::set<std::string>(all.begin(), all.end()).size(), 2U);
}

// B79: fork() while other threads are in the middle of a call. The child starts afresh.
TEST_F(ForkTest, B79AForkInTheMiddleOfCalls) {
  if (sanitized) GTEST_SKIP() << "another thread may hold the sanitizer's own locks at the fork";
  std::atomic<int> cycles{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        must_acquire(*client, std::to_string(t)).release();
        ++cycles;
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    const int before = cycles;
    EXPECT_TRUE(eventually(10s, [&] { return cycles > before + 10; }));
    ASSERT_EQ(fork_and_wait([&] { must_acquire(*client, "child").release(); }), 0);
  }
  threads.clear();
  EXPECT_EQ(server.dbsize(), 0);
}

// B79: a grandchild, and a child that forks before it uses anything.
TEST_F(ForkTest, B79AGrandchild) {
  auto lease = must_acquire(*client, "k", {.ttl = 20s});
  const int status = fork_and_wait([&] {
    auto mine = must_acquire(*client, "child", {.ttl = 20s});
    const int grandchild = fork_and_wait([&] {
      if (mine.held() || lease.held()) return 1;
      must_acquire(*client, "grandchild").release();
      return client->try_acquire("child") || client->try_acquire("k") ? 2 : 0;
    });
    if (grandchild != 0 || !mine.held()) return 3 + grandchild;
    mine.release();
    return 0;
  });
  EXPECT_EQ(status, 0);
  lease.release();
  EXPECT_EQ(server.dbsize(), 0);
}

// B79: a program that is started from here inherits no connection.
TEST_F(ForkTest, B79ConnectionsAreClosedOnExec) {
  const auto open_descriptors = [] {
    std::set<int> all;
    for (int fd = 0; fd < 256; ++fd) {
      if (::fcntl(fd, F_GETFD) >= 0) all.insert(fd);
    }
    return all;
  };
  const auto before = open_descriptors();
  client->ping();
  auto opened = open_descriptors();
  std::erase_if(opened, [&](int fd) { return before.contains(fd); });
  ASSERT_EQ(opened.size(), 1U);
  EXPECT_TRUE(::fcntl(*opened.begin(), F_GETFD) & FD_CLOEXEC);
}

}  // namespace
}  // namespace redlease::test
