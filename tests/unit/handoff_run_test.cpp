#include <gtest/gtest.h>

#include <redlease/core/handoff_run.hpp>

namespace {

using namespace std::chrono_literals;
using redlease::core::HandoffRun;
using Instant = redlease::Clock::time_point;

constexpr Instant start = Instant{} + 1h;

// How many handoffs in a row there are if each takes that long.
int length(HandoffRun& run, std::chrono::nanoseconds pace, Instant begin = start) {
  int count = 0;
  for (auto now = begin; run.may_go_on(now) && count < 10'000; now += pace, ++count) {
    run.handed_on();
  }
  return count;
}

TEST(HandoffRun, DoesNotBeginByItself) {
  const HandoffRun run;
  EXPECT_FALSE(run.may_go_on(start)) << "nobody knows how long the process has had the key";
}

TEST(HandoffRun, IsBoundedInItsCount) {
  HandoffRun run;
  run.begin(start, false);
  EXPECT_EQ(length(run, 0ns), HandoffRun::first_count);
  EXPECT_FALSE(run.may_go_on(start));
}

TEST(HandoffRun, IsBoundedInItsTime) {
  HandoffRun run;
  run.begin(start, false);
  EXPECT_TRUE(run.may_go_on(start + HandoffRun::first_span - 1ns));
  EXPECT_FALSE(run.may_go_on(start + HandoffRun::first_span));
  EXPECT_EQ(length(run, HandoffRun::first_span / 4), 4);
}

TEST(HandoffRun, BeginsAnew) {
  HandoffRun run;
  run.begin(start, false);
  EXPECT_EQ(length(run, 0ns), HandoffRun::first_count);
  run.begin(start + 1s, false);
  EXPECT_EQ(length(run, 0ns, start + 1s), HandoffRun::first_count);
}

TEST(HandoffRun, GrowsWhileNobodyElseComes) {
  HandoffRun run;
  run.begin(start, false);
  int expected = HandoffRun::first_count;
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(length(run, 0ns), expected);
    run.begin(start, true);
    expected = std::min(2 * expected, HandoffRun::last_count);
  }
  EXPECT_EQ(expected, HandoffRun::last_count);
}

TEST(HandoffRun, GrowsInTimeAsWell) {
  HandoffRun run;
  auto expected = HandoffRun::first_span;
  for (int round = 0; round < 100; ++round) {
    run.begin(start, round > 0);
    EXPECT_TRUE(run.may_go_on(start + expected - 1ns));
    EXPECT_FALSE(run.may_go_on(start + expected));
    expected = std::min(2 * expected, HandoffRun::last_span);
  }
}

TEST(HandoffRun, IsShortAgainWhenSomebodyCame) {
  HandoffRun run;
  for (int round = 0; round < 10; ++round) run.begin(start, true);
  EXPECT_EQ(length(run, 0ns), HandoffRun::last_count);
  run.begin(start, false);
  EXPECT_EQ(length(run, 0ns), HandoffRun::first_count);
  EXPECT_FALSE(run.may_go_on(start + HandoffRun::first_span));
}

// The longer a process had the key, and the more recently, the longer it lets others go first.
TEST(HandoffRun, IsFollowedByCourtesy) {
  HandoffRun run;
  EXPECT_EQ(run.courtesy(start), 0ns) << "it has had no run yet";
  run.begin(start, false);
  run.end(start + 40ms);
  EXPECT_EQ(run.courtesy(start + 40ms), HandoffRun::longest_courtesy);
  EXPECT_EQ(run.courtesy(start + 80ms), HandoffRun::longest_courtesy / 2);
  EXPECT_EQ(run.courtesy(start + 160ms), HandoffRun::longest_courtesy / 4);
  EXPECT_LT(run.courtesy(start + 1h), 1us);
}

TEST(HandoffRun, EvenTheShortestIsFollowedByCourtesy) {
  HandoffRun run;
  run.begin(start, false);
  run.end(start);
  EXPECT_EQ(run.courtesy(start), HandoffRun::longest_courtesy);
  EXPECT_EQ(run.courtesy(start + HandoffRun::step_back), HandoffRun::longest_courtesy / 2);
}

// The more recent its own run, the longer a process lets others go first.
TEST(HandoffRun, CourtesyFades) {
  HandoffRun run;
  EXPECT_EQ(run.courtesy(start), 0ns);
  run.begin(start, false);
  run.end(start + 10ms);
  EXPECT_EQ(run.courtesy(start + 10ms), HandoffRun::longest_courtesy);
  EXPECT_EQ(run.courtesy(start + 20ms), HandoffRun::longest_courtesy / 2);
  EXPECT_EQ(run.courtesy(start + 40ms), HandoffRun::longest_courtesy / 4);
  EXPECT_LT(run.courtesy(start + 1h), 1us);
}

// A lease may be given back whose begin was not seen. That run must not look endless: its process
// would give way to all others for ever.
TEST(HandoffRun, CourtesyFadesAfterARunWithoutABegin) {
  HandoffRun run;
  for (int round = 0; round < 3; ++round) {
    run.end(start + round * 1s);
    EXPECT_LE(run.courtesy(start + round * 1s + 1s), HandoffRun::longest_courtesy / 20);
  }
}

}  // namespace
