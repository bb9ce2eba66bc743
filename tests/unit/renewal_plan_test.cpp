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

RenewalPlan plan_of(std::chrono::milliseconds ttl, std::chrono::milliseconds every,
                    std::optional<std::chrono::nanoseconds> max_hold = {}) {
  return {{.ttl = ttl, .every = every, .max_hold = max_hold}, at(0s)};
}

TEST(RenewalPlan, IsDueOnceInEveryPeriod) {
  const auto plan = plan_of(30s, 10s);
  EXPECT_EQ(plan.due(LeaseState(at(0s), 30s).valid_until()), at(10s));
  EXPECT_EQ(plan.due(LeaseState(at(10s), 30s).valid_until()), at(20s)) << "from the send on";
}

TEST(RenewalPlan, NeverRenewsByDefault) {
  EXPECT_FALSE(RenewalPlan{}.renews());
  EXPECT_EQ(RenewalPlan{}.due(at(1s)), never);
}

TEST(RenewalPlan, ALongerRenewalByHandIsNotShortened) {
  const auto plan = plan_of(30s, 10s);
  const auto due = plan.due(LeaseState(at(0s), 60s).valid_until());
  EXPECT_GE(LeaseState(due, 30s).valid_until(), LeaseState(at(0s), 60s).valid_until());
}

TEST(RenewalPlan, AShorterRenewalByHandIsRenewedAtOnce) {
  EXPECT_LT(plan_of(30s, 10s).due(LeaseState(at(0s), 1s).valid_until()), at(0s));
}

TEST(RenewalPlan, JoinsOthersOnlyWhenItIsNearlyDue) {
  const auto plan = plan_of(30s, 8s);
  const auto valid_until = LeaseState(at(0s), 30s).valid_until();
  EXPECT_EQ(plan.may_join_at(valid_until), at(7s));
}

TEST(RenewalPlan, EndsWithMaxHold) {
  const auto plan = plan_of(30s, 10s, 25s);
  EXPECT_EQ(plan.due(LeaseState(at(10s), 30s).valid_until()), at(20s));
  EXPECT_EQ(plan.due(LeaseState(at(20s), 30s).valid_until()), never);
  EXPECT_EQ(plan.may_join_at(LeaseState(at(20s), 30s).valid_until()), never);
  EXPECT_EQ(plan_of(30s, 10s, std::chrono::nanoseconds::max()).due(at(20s)), at(300ms));
}

// B20: the sooner the less is left, and not more often than every 5 ms.
TEST(RenewalPlan, AFailedTryIsRepeatedSooner) {
  auto plan = plan_of(3s, 1s);
  const auto valid_until = LeaseState(at(0s), 3s).valid_until();
  auto now = at(1s);
  const auto end = at(2700ms);
  auto pause = 500ms * 1;
  int tries = 0;
  for (; now < end; ++tries) {
    plan.failed(now, end);
    const auto next = plan.due(valid_until);
    ASSERT_GE(next - now, 5ms);
    ASSERT_LE(next - now, pause);
    ASSERT_EQ(plan.may_join_at(valid_until), next) << "not earlier along with others";
    pause = std::chrono::ceil<std::chrono::milliseconds>(next - now);
    now = next;
  }
  EXPECT_GT(tries, 10);
  EXPECT_LT(tries, 60);
  plan.succeeded();
  EXPECT_EQ(plan.due(valid_until), at(1s));
}

TEST(RenewalPlan, ATryLeavesTimeForAnotherOne) {
  EXPECT_EQ(RenewalPlan::try_until(at(1s), at(4s)), at(3s));
  EXPECT_EQ(RenewalPlan::try_until(at(5s), at(4s)), at(5s)) << "too late";
}

}  // namespace
