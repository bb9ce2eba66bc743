#include <gtest/gtest.h>

#include <random>

#include <redlease/core/backoff.hpp>
#include <redlease/core/wait_plan.hpp>

namespace {

using namespace std::chrono_literals;
using redlease::core::BackoffSchedule;
using redlease::core::WaitPlan;
using Instant = redlease::Clock::time_point;

constexpr Instant start = Instant{} + 1h;

WaitPlan::Limits limits(std::chrono::nanoseconds at_most, std::optional<int> attempts = {}) {
  return {at_most, attempts, 5ms, 100ms};
}

TEST(Backoff, DoublesItsLimitUpToTheMaximum) {
  BackoffSchedule schedule{5ms, 100ms};
  const auto next_ms = [&] {
    return std::chrono::duration<double, std::milli>{schedule.next(0.999999)}.count();
  };
  EXPECT_NEAR(next_ms(), 10, 0.1);
  EXPECT_NEAR(next_ms(), 20, 0.1);
  EXPECT_NEAR(next_ms(), 40, 0.1);
  EXPECT_NEAR(next_ms(), 80, 0.1);
  EXPECT_NEAR(next_ms(), 100, 0.1);
  EXPECT_NEAR(next_ms(), 100, 0.1);
}

TEST(Backoff, NeverSleepsLessThanTheMinimumNorMoreThanTheMaximum) {
  std::mt19937 random{7};
  std::uniform_real_distribution<double> unit{0.0, 1.0};
  for (int i = 0; i < 1000; ++i) {
    BackoffSchedule schedule{3ms, 50ms};
    for (int n = 0; n < 80; ++n) {
      const auto sleep = schedule.next(unit(random));
      ASSERT_GE(sleep, 3ms);
      ASSERT_LE(sleep, 50ms);
    }
  }
}

TEST(Backoff, EqualBoundsMakeASteadyPoll) {
  BackoffSchedule schedule{10ms, 10ms};
  for (int n = 0; n < 5; ++n) EXPECT_EQ(schedule.next(0.7), 10ms);
}

TEST(Backoff, SurvivesTheLargestDurations) {
  BackoffSchedule schedule{24h, std::chrono::nanoseconds::max()};
  for (int n = 0; n < 100; ++n) EXPECT_GE(schedule.next(0.5), 24h);
}

// B49: zero is exactly one attempt.
TEST(WaitPlan, ZeroIsOneAttemptWithoutADeadline) {
  WaitPlan plan{limits(0s), start};
  EXPECT_FALSE(plan.next_attempt(start, 0.5).has_value());
  EXPECT_FALSE(plan.expects_more(start));
  EXPECT_EQ(plan.deadline(), Instant::max());
  EXPECT_FALSE(plan.has_attempts());
}

TEST(WaitPlan, AttemptsAreCounted) {
  WaitPlan plan{limits(10s, 3), start};
  EXPECT_TRUE(plan.next_attempt(start, 0.5).has_value());
  EXPECT_TRUE(plan.next_attempt(start + 1s, 0.5).has_value());
  EXPECT_FALSE(plan.next_attempt(start + 2s, 0.5).has_value());
}

TEST(WaitPlan, NoAttemptStartsTooLateForItsAnswer) {
  WaitPlan plan{limits(2s), start};
  const auto next = plan.next_attempt(start + 1940ms, 0.99);
  ASSERT_TRUE(next.has_value());
  EXPECT_LE(*next, start + 1950ms);
  EXPECT_FALSE(plan.next_attempt(start + 1950ms, 0.0).has_value());
  EXPECT_TRUE(plan.has_attempts()) << "time ended the wait";
}

TEST(WaitPlan, KnowsItsLastMoment) {
  WaitPlan plan{limits(2s), start};
  EXPECT_FALSE(plan.is_last_moment(start + 1899ms));
  EXPECT_TRUE(plan.is_last_moment(start + 1900ms));
}

TEST(WaitPlan, ShortWaitsKeepMostOfTheirTimeForAttempts) {
  WaitPlan plan{limits(20ms), start};
  EXPECT_TRUE(plan.next_attempt(start + 5ms, 0.0).has_value());
  EXPECT_FALSE(plan.next_attempt(start + 15ms, 0.0).has_value());
}

TEST(WaitPlan, TheHoldersExpiryCutsASleep) {
  WaitPlan plan{{10s, {}, 1s, 5s}, start};
  plan.holder_expires_in(200ms, start);
  EXPECT_FALSE(plan.wants_holder_expiry(start + 100ms));
  EXPECT_EQ(plan.next_attempt(start, 0.5), start + 201ms);
  EXPECT_TRUE(plan.wants_holder_expiry(start + 201ms)) << "another holder, another expiry";
  EXPECT_GE(plan.next_attempt(start + 201ms, 0.0), start + 1201ms);
}

// Those who are not the first in their queue see now and then whether they have become it.
TEST(WaitPlan, LooksAreBetweenHalfAndAWholePause) {
  WaitPlan plan{limits(10s), start};
  EXPECT_EQ(plan.next_look(start, 0.0), start + 50ms);
  EXPECT_EQ(plan.next_look(start, 0.5), start + 75ms);
  EXPECT_LE(plan.next_look(start, 0.999999), start + 100ms);
  EXPECT_EQ(plan.next_look(start + 5s, 0.0), start + 5050ms) << "they don't grow";
}

TEST(WaitPlan, LooksAreNoAttempts) {
  WaitPlan plan{limits(10s, 2), start};
  for (int n = 0; n < 10; ++n) EXPECT_TRUE(plan.next_look(start, 0.5).has_value());
  EXPECT_TRUE(plan.next_attempt(start, 0.5).has_value());
  EXPECT_FALSE(plan.next_attempt(start, 0.5).has_value());
}

TEST(WaitPlan, TheLastLookLeavesTimeForAnAttempt) {
  WaitPlan plan{limits(2s), start};
  EXPECT_EQ(plan.next_look(start + 1920ms, 0.99), start + 1950ms);
  EXPECT_FALSE(plan.next_look(start + 1950ms, 0.0).has_value());
  EXPECT_FALSE(plan.next_look(start + 3s, 0.0).has_value());
}

TEST(WaitPlan, LooksWithHugeValuesDoNotOverflow) {
  WaitPlan endless{{std::chrono::nanoseconds::max(), {}, 5ms, 24h}, start};
  EXPECT_EQ(endless.next_look(start, 0.0), start + 12h);
  WaitPlan bounded{{1s, {}, 5ms, 24h}, start};
  EXPECT_EQ(bounded.next_look(start, 0.999999), start + 950ms);
}

TEST(WaitPlan, HugeValuesDoNotOverflow) {
  WaitPlan plan{limits(std::chrono::nanoseconds::max()), start};
  plan.holder_expires_in(std::chrono::nanoseconds::max(), start);
  const auto next = plan.next_attempt(start, 0.5);
  ASSERT_TRUE(next.has_value());
  EXPECT_LE(*next, start + 100ms);
}

}  // namespace
