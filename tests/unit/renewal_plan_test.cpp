#include <gtest/gtest.h>

#include <redlease/core/lease_state.hpp>
#include <redlease/core/renewal_plan.hpp>

namespace {

using namespace std::chrono_literals;
using redlease::core::LeaseState;
using redlease::core::RenewalPlan;
using Instant = redlease::Clock::time_point;

constexpr Instant at(std::chrono::nanoseconds since_start) { return Instant{} + 1h + since_start; }
constexpr Instant never = Instant::max();

Instant due(const RenewalPlan& plan, const LeaseState& state, Instant now = at(0s)) {
  return plan.due(state.valid_until(), state.counted_ttl(), now);
}
Instant may_join_at(const RenewalPlan& plan, const LeaseState& state, Instant now = at(0s)) {
  return plan.may_join_at(state.valid_until(), state.counted_ttl(), now);
}

RenewalPlan plan_of(std::chrono::milliseconds ttl, std::chrono::milliseconds every,
                    std::optional<std::chrono::nanoseconds> max_hold = {}) {
  return {{.ttl = ttl, .every = every, .max_hold = max_hold}, at(0s)};
}

TEST(RenewalPlan, IsDueOnceInEveryPeriod) {
  const auto plan = plan_of(30s, 10s);
  EXPECT_EQ(due(plan, {at(0s), 30s}), at(10s));
  EXPECT_EQ(due(plan, {at(10s), 30s}), at(20s)) << "from the send on";
}

TEST(RenewalPlan, NeverRenewsByDefault) {
  EXPECT_FALSE(RenewalPlan{}.renews());
  EXPECT_EQ(due({}, {at(0s), 30s}), never);
}

TEST(RenewalPlan, ALongerRenewalByHandIsNotShortened) {
  const auto plan = plan_of(30s, 10s);
  const LeaseState longer{at(0s), 60s};
  EXPECT_GE(LeaseState(due(plan, longer), 30s).valid_until(), longer.valid_until());
}

TEST(RenewalPlan, AShorterRenewalIsRenewedInProportion) {
  EXPECT_EQ(due(plan_of(30s, 10s), {at(0s), 3s}), at(1s));
  EXPECT_EQ(due(plan_of(30s, 100ms), {at(0s), 3s}), at(100ms));
}

TEST(RenewalPlan, JoinsOthersOnlyWhenItIsNearlyDue) {
  EXPECT_EQ(may_join_at(plan_of(30s, 8s), {at(0s), 30s}), at(7s));
}

TEST(RenewalPlan, EndsWithMaxHold) {
  const auto plan = plan_of(30s, 10s, 25s);
  EXPECT_EQ(due(plan, {at(10s), 30s}), at(20s));
  EXPECT_EQ(due(plan, {at(10s), 30s}, at(25s)), never) << "it should have been earlier";
  EXPECT_EQ(due(plan, {at(20s), 30s}), never);
  EXPECT_EQ(may_join_at(plan, {at(20s), 30s}), never);
  EXPECT_EQ(due(plan_of(30s, 10s, std::chrono::nanoseconds::max()), {at(0s), 30s}), at(10s));
}

// B20: the sooner the less is left, and not more often than every 5 ms.
TEST(RenewalPlan, AFailedTryIsRepeatedSooner) {
  auto plan = plan_of(3s, 1s);
  const LeaseState state{at(0s), 3s};
  auto now = at(1s);
  const auto end = at(2700ms);
  auto pause = 500ms * 1;
  int tries = 0;
  for (; now < end; ++tries) {
    plan.failed(now, end);
    const auto next = due(plan, state, now);
    ASSERT_GE(next - now, 5ms);
    ASSERT_LE(next - now, pause);
    ASSERT_EQ(may_join_at(plan, state, now), next) << "not earlier along with others";
    pause = std::chrono::ceil<std::chrono::milliseconds>(next - now);
    now = next;
  }
  EXPECT_GT(tries, 10);
  EXPECT_LT(tries, 60);
  plan.succeeded();
  EXPECT_EQ(due(plan, state), at(1s));
}

TEST(RenewalPlan, ATryLeavesTimeForAnotherOne) {
  EXPECT_EQ(RenewalPlan::try_until(at(1s), at(4s)), at(3s));
  EXPECT_EQ(RenewalPlan::try_until(at(5s), at(4s)), at(5s)) << "too late";
}

}  // namespace
