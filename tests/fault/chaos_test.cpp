// Many threads on one client, over a network that resets, loses, delays and dribbles at random.
#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <redlease/redlease.hpp>

#include "support/fault_proxy.hpp"
#include "support/monitor.hpp"
#include "support/process.hpp"
#include "support/redis_server.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;
using Instant = std::chrono::steady_clock::time_point;

// Who believes to hold a key, and until when. Holders tell the truth about themselves: they claim
// no more than remaining() says, and give up their claim before they begin to release.
class Claims {
 public:
  void take(std::size_t key, const Lease& lease) {
    // In this order: a pause in between must not make the claim longer than the lease.
    const auto now = std::chrono::steady_clock::now();
    const auto end = now + lease.remaining();
    const std::lock_guard lock{mutex_};
    auto& until = until_.at(key);
    if (until > now) ++overlaps_;
    until = end;
  }
  void give_up(std::size_t key) {
    const std::lock_guard lock{mutex_};
    until_.at(key) = std::min(until_.at(key), std::chrono::steady_clock::now());
  }
  int overlaps() const { return overlaps_; }

 private:
  std::mutex mutex_;
  std::array<Instant, 3> until_{};
  int overlaps_ = 0;
};

class Chaos : public testing::Test {
 protected:
  void work(unsigned seed) {
    std::mt19937 random{seed};
    const auto pick = [&](int n) { return std::uniform_int_distribution{0, n - 1}(random); };
    while (!stop) {
      const auto key = static_cast<std::size_t>(pick(3));
      const Stopwatch watch;
      try {
        auto lease = client.acquire("k" + std::to_string(key), {.at_most = 50ms}, {.ttl = 300ms});
        ++calls;
        if (!lease) continue;
        claims.take(key, *lease);
        if (pick(3) == 0) {
          std::error_code error;
          lease->renew(error);
        }
        claims.give_up(key);
        ++held;
        if (pick(2) == 0) lease->release();
      } catch (const LeaseLost&) {
        ++lost;
      } catch (const Error&) {
        ++failed;
      }
      note(watch.elapsed());
    }
  }

  void note(std::chrono::nanoseconds took) {
    const std::lock_guard lock{mutex};
    longest = std::max(longest, took);
  }

  void disturb() {
    std::mt19937 random{42};
    const Stopwatch watch;
    while (watch.elapsed() < 3s) {
      proxy.pass_through();
      switch (std::uniform_int_distribution{0, 7}(random)) {
        case 0:
          proxy.reset_all();
          break;
        case 1:
          proxy.drop_request_matching("SET", true);
          break;
        case 2:
          proxy.drop_replies(2, true);  // a stream never loses a part and goes on behind it
          break;
        case 3:
          proxy.drop_request_matching("EVAL", true);
          break;
        case 4:
          proxy.black_hole(true);
          break;
        case 5:
          proxy.delay_replies(20ms);
          break;
        case 6:
          proxy.trickle(3, 1ms);
          break;
        default:
          break;
      }
      eventually(60ms, [] { return false; });
      proxy.black_hole(false);
      eventually(20ms, [] { return false; });
    }
    proxy.pass_through();
    stop = true;
  }

  RedisServer server;
  Monitor monitor{server};
  FaultProxy proxy{server.port()};
  Client client{proxy.url(), {.connect_timeout = 100ms, .command_timeout = 100ms}};
  Claims claims;
  std::atomic<bool> stop{false};
  std::atomic<int> calls{0};
  std::atomic<int> held{0};
  std::atomic<int> lost{0};
  std::atomic<int> failed{0};
  std::mutex mutex;
  std::chrono::nanoseconds longest{0};
};

TEST_F(Chaos, NobodyIsHurtByABrokenNetwork) {
  {
    std::vector<std::jthread> workers;
    for (unsigned i = 0; i < 8; ++i) workers.emplace_back([this, i] { work(i + 1); });
    disturb();
  }
  RecordProperty("calls", calls);
  RecordProperty("held", held);
  RecordProperty("lost", lost);
  RecordProperty("failed", failed);
  EXPECT_GT(held, 20);
  EXPECT_EQ(claims.overlaps(), 0);
  EXPECT_LT(longest, 5s);
  // What was in doubt is cleaned up or ends with its ttl, and the client is as good as new.
  EXPECT_TRUE(eventually(10s, [&] { return server.dbsize() == 0; }));
  EXPECT_NO_THROW(client.acquire("k0", {.at_most = 5s})->release());
  monitor.sync();
  EXPECT_THAT(monitor.violations(), testing::IsEmpty());
}

}  // namespace
}  // namespace redlease::test
