#include <gtest/gtest.h>

#include <random>

#include <redlease/core/lease_state.hpp>

namespace {

using namespace std::chrono_literals;
using redlease::LossReason;
using redlease::core::LeaseState;
using Instant = redlease::Clock::time_point;

constexpr Instant at(std::chrono::nanoseconds since_start) { return Instant{} + 1h + since_start; }

// B23: validity counts from the instant before sending, less the drift.
TEST(LeaseState, ValidityCountsFromTheSendAndEndsEarly) {
  LeaseState state{at(0s), 1s};
  EXPECT_EQ(state.remaining(at(0s)), 990ms);
  EXPECT_EQ(state.remaining(at(700ms)), 290ms);
  EXPECT_TRUE(state.held(at(989ms)));
  EXPECT_FALSE(state.held(at(990ms)));
  EXPECT_EQ(state.loss(at(990ms)), LossReason::expired);
  EXPECT_EQ(state.ended_at(), at(990ms));
}

TEST(LeaseState, AnExpiredLeaseIsNotRevivedByALateRenewal) {
  LeaseState state{at(0s), 1s};
  state.begin_renewal(at(900ms), 1s);
  state.renewed(at(900ms), 1s, at(1000ms));
  EXPECT_FALSE(state.held(at(1000ms)));
  EXPECT_EQ(state.loss(at(1000ms)), LossReason::expired);
}

TEST(LeaseState, ARenewalCountsFromItsOwnSend) {
  LeaseState state{at(0s), 1s};
  state.begin_renewal(at(500ms), 2s);
  EXPECT_EQ(state.remaining(at(600ms)), 390ms) << "nothing is gained before the answer";
  state.renewed(at(500ms), 2s, at(700ms));
  EXPECT_EQ(state.valid_until(), at(500ms + 1980ms));
}

TEST(LeaseState, AShorterRenewalUnderWayShortensValidityAtOnce) {
  LeaseState state{at(0s), 30s};
  state.begin_renewal(at(1s), 100ms);
  EXPECT_TRUE(state.held(at(1s + 98ms)));
  EXPECT_FALSE(state.held(at(1s + 99ms))) << "the server may have applied it already";
}

TEST(LeaseState, ARefusedRenewalLeavesEverythingAsBefore) {
  LeaseState state{at(0s), 30s};
  state.begin_renewal(at(1s), 100ms);
  state.renewal_refused();
  EXPECT_EQ(state.valid_until(), at(29700ms));
}

TEST(LeaseState, ARenewalInDoubtBoundsAllLaterOnes) {
  LeaseState state{at(0s), 30s};
  state.begin_renewal(at(1s), 5s);
  state.renewal_in_doubt(5s);
  state.begin_renewal(at(2s), 60s);
  state.renewed(at(2s), 60s, at(2s));
  EXPECT_EQ(state.valid_until(), at(2s + 4950ms)) << "the doubtful one may run after this one";
}

// B27: lost for ever.
TEST(LeaseState, LossIsFinal) {
  LeaseState state{at(0s), 10s};
  state.lost(LossReason::taken, at(1s));
  state.renewed(at(2s), 10s, at(2s));
  state.release_refused();
  state.lost(LossReason::missing, at(3s));
  EXPECT_FALSE(state.held(at(3s)));
  EXPECT_EQ(state.loss(at(20s)), LossReason::taken);
  EXPECT_EQ(state.ended_at(), at(1s));
  EXPECT_FALSE(state.may_release(at(3s)));
}

TEST(LeaseState, ReleaseEndsHoldingAtOnceAndForGood) {
  LeaseState state{at(0s), 10s};
  state.begin_release();
  EXPECT_FALSE(state.held(at(1s)));
  state.released();
  EXPECT_TRUE(state.is_released());
  EXPECT_FALSE(state.loss(at(1h)).has_value()) << "a released lease is not lost later";
}

// B32: a refusal changes nothing.
TEST(LeaseState, ARefusedReleaseLeavesTheLeaseHeld) {
  LeaseState state{at(0s), 10s};
  state.begin_release();
  state.release_refused();
  EXPECT_TRUE(state.held(at(1s)));
  EXPECT_EQ(state.remaining(at(1s)), 8900ms);
}

TEST(LeaseState, AReleaseInDoubtMayBeTriedAgainUntilValidityEnds) {
  LeaseState state{at(0s), 10s};
  state.begin_release();
  state.release_in_doubt();
  EXPECT_TRUE(state.may_release(at(5s)));
  EXPECT_FALSE(state.held(at(5s)));
  EXPECT_TRUE(state.is_releasing());
  state.begin_release();
  state.release_in_doubt();
  EXPECT_FALSE(state.loss(at(9s)).has_value());
  EXPECT_FALSE(state.may_release(at(10s)));
  EXPECT_EQ(state.loss(at(10s)), LossReason::expired);
}

TEST(LeaseState, TheAnswerOfAReleaseDecidesHoweverLateItComes) {
  LeaseState state{at(0s), 10s};
  state.begin_release();
  EXPECT_FALSE(state.loss(at(20s)).has_value());
  state.released();
  EXPECT_TRUE(state.is_released());
}

TEST(LeaseState, ALeaseThatWarnsIsLostAMarginEarly) {
  LeaseState state{at(0s), 10s};
  state.warn_before_end();
  EXPECT_EQ(state.ends_at(), at(8900ms)) << "a tenth of the ttl";
  EXPECT_EQ(state.tell_end_at(), at(8899ms));
  EXPECT_EQ(state.remaining(at(8s)), 1900ms) << "the key stays ours for as long";
  EXPECT_FALSE(state.held(at(8900ms)));
  EXPECT_EQ(state.loss(at(8900ms)), LossReason::expired);
  EXPECT_EQ(state.ended_at(), at(8900ms));
}

TEST(LeaseState, TheMarginIsAsGiven) {
  LeaseState state{at(0s), 10s, 4ms};
  EXPECT_EQ(state.ends_at(), at(9900ms)) << "nobody asked to be warned";
  state.warn_before_end();
  EXPECT_EQ(state.ends_at(), at(9896ms));
  EXPECT_EQ(state.tell_end_at(), at(9896ms - 500us));
  state.begin_renewal(at(1s), 1s);
  state.renewed(at(1s), 1s, at(1s));
  EXPECT_EQ(state.ends_at(), at(1s + 986ms));
}

TEST(LeaseState, ALeaseThatWarnsIsLostInTimeWhileAReleaseHangs) {
  LeaseState state{at(0s), 10s};
  state.warn_before_end();
  state.begin_release();
  EXPECT_EQ(state.loss(at(8900ms)), LossReason::expired);
  state.released();
  EXPECT_FALSE(state.is_released()) << "the loss was told";
}

// Whatever the order of events: never held after a loss or a release, and never held at an instant
// at which the server may have dropped the key.
TEST(LeaseState, HoldsItsRulesForRandomEvents) {
  std::mt19937 random{20240229};
  const auto pick = [&](int n) { return std::uniform_int_distribution{0, n - 1}(random); };
  for (int round = 0; round < 20'000; ++round) {
    auto now = at(0s);
    std::chrono::milliseconds ttl{1 + pick(1000)};
    LeaseState state{now, ttl};
    auto server_until = now + ttl;  // the earliest instant at which the server may drop the key
    bool over = false;
    for (int step = 0; step < 30; ++step) {
      now += std::chrono::microseconds{pick(100'000)};
      ttl = std::chrono::milliseconds{1 + pick(1000)};
      const bool was_held = state.held(now);
      switch (pick(6)) {
        case 0:  // a renewal that runs, and whose answer comes after a while
          if (!was_held) break;
          state.begin_renewal(now, ttl);
          server_until = now + ttl;
          state.renewed(now, ttl, now + std::chrono::milliseconds{pick(200)});
          break;
        case 1:  // one that is in doubt, and runs at once
          if (!was_held) break;
          state.begin_renewal(now, ttl);
          state.renewal_in_doubt(ttl);
          server_until = std::min(server_until, now + ttl);
          break;
        case 2:
          if (!was_held) break;
          state.begin_renewal(now, ttl);
          state.renewal_refused();
          break;
        case 3:
          state.begin_release();
          state.release_refused();
          break;
        case 4:
          if (pick(10) != 0) break;
          state.lost(LossReason::missing, now);
          over = true;
          break;
        default:
          if (pick(10) != 0) break;
          state.begin_release();
          state.released();
          over = true;
          break;
      }
      over = over || state.loss(now).has_value();
      if (state.held(now)) {
        ASSERT_FALSE(over);
        ASSERT_LT(now, server_until);
        ASSERT_LE(now + state.remaining(now), server_until);
      }
    }
  }
}

}  // namespace
