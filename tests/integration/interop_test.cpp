// Other libraries use the same keys: redis-py's Lock stands for them.
#include <cstdio>
#include <filesystem>

#include "integration/fixture.hpp"
#include "support/waiters.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

// One that has redis-py, or nothing.
std::string python() {
  for (const auto* program : {"python3", "/usr/bin/python3"}) {
    const auto command = std::string{program} + " -c 'import redis' 2>&1";
    std::FILE* pipe = ::popen(command.c_str(), "re");
    while (std::fgetc(pipe) != EOF) continue;
    if (::pclose(pipe) == 0) return program;
  }
  return {};
}

// A run of the script beside this file.
class RedisPy {
 public:
  RedisPy(const RedisServer& server, const std::string& what) {
    const auto script = std::filesystem::path{__FILE__}.parent_path() / "redis_py_lock.py";
    const auto command = "exec " + python() + " '" + script.string() + "' " +
                         std::to_string(server.port()) + " " + what;
    pipe_ = ::popen(command.c_str(), "re");
  }
  ~RedisPy() {
    if (pipe_ != nullptr) ::pclose(pipe_);
  }
  RedisPy(const RedisPy&) = delete;
  RedisPy& operator=(const RedisPy&) = delete;

  // The next word that it says; empty at its end.
  std::string word() {
    std::string word;
    for (int byte = std::fgetc(pipe_); byte != EOF && byte != '\n'; byte = std::fgetc(pipe_)) {
      word += static_cast<char>(byte);
    }
    return word;
  }

 private:
  std::FILE* pipe_ = nullptr;
};

class Interop : public IntegrationTest {
 protected:
  void SetUp() override {
    ASSERT_NE(python(), "")
        << "this needs redis-py: the Debian package python3-redis, which scripts/setup installs";
  }
};

TEST_F(Interop, AWaiterIsWokenWhenRedisPyReleases) {
  RedisPy python{server, "hold"};
  ASSERT_EQ(python.word(), "waiting");
  ASSERT_EQ(python.word(), "acquired");
  Waiter waiter{client, "k", asleep(), {.ttl = 5s}};
  ASSERT_TRUE(becomes_watched(server));
  EXPECT_FALSE(waiter.done());
  const Stopwatch watch;
  server.admin("RPUSH", "go", "go");
  ASSERT_TRUE(waiter.acquired());
  EXPECT_LT(watch.elapsed(), at_once);
  EXPECT_EQ(python.word(), "released");
  EXPECT_EQ(server.get("k"), waiter.lease().token().reveal());
}

TEST_F(Interop, RedisPyGetsTheKeyAfterARelease) {
  for (const bool scope_exit : {false, true}) {
    auto lease = client.try_acquire("k", {.ttl = 60s});
    ASSERT_TRUE(lease);
    RedisPy python{server, "wait"};
    ASSERT_EQ(python.word(), "waiting");
    const auto sets = server.command_calls("set");
    EXPECT_TRUE(eventually(at_once, [&] { return server.command_calls("set") > sets; }));
    scope_exit ? lease.reset() : lease->release();
    EXPECT_EQ(python.word(), "acquired");
    EXPECT_EQ(python.word(), "released");
    EXPECT_FALSE(server.exists("k"));
  }
}

// Neither takes the other's key for its own.
TEST_F(Interop, AWaiterAndRedisPyTakeTurns) {
  auto lease = client.try_acquire("k", {.ttl = 60s});
  RedisPy python{server, "wait"};
  ASSERT_EQ(python.word(), "waiting");
  Waiter waiter{client, "k", asleep(), {.ttl = 60s}};
  ASSERT_TRUE(becomes_watched(server));
  lease->release();
  ASSERT_TRUE(waiter.acquired());
  EXPECT_NO_THROW(waiter.lease().release());
  EXPECT_EQ(python.word(), "acquired");
  EXPECT_EQ(python.word(), "released");
  EXPECT_FALSE(server.exists("k"));
}

}  // namespace
}  // namespace redlease::test
