#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <redlease/wire/batch.hpp>

namespace {

using redlease::errc;
using redlease::wire::Batch;
using redlease::wire::Outcome;
using redlease::wire::Reply;
using redlease::wire::Request;
using redlease::wire::Route;
using Instant = redlease::Clock::time_point;

constexpr Instant now{std::chrono::hours{1}};

Reply text(std::string what) {
  Reply reply;
  reply.type = Reply::Type::string;
  reply.text = std::move(what);
  return reply;
}

struct Posted {
  std::vector<Outcome> outcomes;
  Request request(std::string_view bytes, Route* route = nullptr) {
    return {bytes, now,
            [](void* context, Outcome&& outcome) noexcept {
              static_cast<Posted*>(context)->outcomes.push_back(std::move(outcome));
            },
            this, route};
  }
};

TEST(Batch, MatchesRepliesInOrder) {
  Batch batch;
  Posted posted;
  const auto first = batch.add({"a", now});
  batch.add(posted.request("b"));
  const auto second = batch.add({"c", now});
  batch.close(now);
  EXPECT_EQ(batch.bytes, "abc");
  batch.answer(text("1"));
  batch.answer(text("2"));
  EXPECT_FALSE(batch.over());
  batch.answer(text("3"));
  EXPECT_TRUE(batch.over());
  EXPECT_TRUE(batch.complete());
  EXPECT_EQ(batch.outcome(first, nullptr).reply.text, "1");
  EXPECT_EQ(batch.outcome(second, nullptr).reply.text, "3");
  ASSERT_EQ(posted.outcomes.size(), 1U);
  EXPECT_EQ(posted.outcomes[0].reply.text, "2");
  EXPECT_EQ(posted.outcomes[0].sent, now);
}

TEST(Batch, IsOverWhenAllWhoWaitHaveTheirReply) {
  Batch batch;
  Posted posted;
  batch.add({"a", now});
  batch.add(posted.request("b"));
  batch.close(now);
  batch.answer(text("1"));
  EXPECT_TRUE(batch.over());
  EXPECT_FALSE(batch.complete()) << "the posted one's reply is still to come";
}

TEST(Batch, WhatWasWithdrawnIsNotSentAndGetsNoReply) {
  Batch batch;
  const auto first = batch.add({"aa", now});
  const auto second = batch.add({"b", now});
  const auto third = batch.add({"cc", now});
  const auto fourth = batch.add({"d", now});
  batch.withdraw(first);
  batch.withdraw(third);
  batch.close(now);
  EXPECT_EQ(batch.bytes, "bd");
  EXPECT_EQ(batch.members, 2);
  batch.answer(text("1"));
  batch.answer(text("2"));
  EXPECT_TRUE(batch.complete());
  EXPECT_EQ(batch.outcome(second, nullptr).reply.text, "1");
  EXPECT_EQ(batch.outcome(fourth, nullptr).reply.text, "2");
}

TEST(Batch, OfAllWithdrawnIsCompleteAtOnce) {
  Batch batch;
  batch.withdraw(batch.add({"a", now}));
  batch.close(now);
  EXPECT_TRUE(batch.complete());
  EXPECT_TRUE(batch.over());
  EXPECT_EQ(batch.bytes, "");
}

// What went out in full may have run; what did not, has not.
TEST(Batch, AFailureTellsWhatMayHaveRun) {
  Batch batch;
  Posted posted;
  Route route;
  ASSERT_EQ(route.enter(3), 3U);
  const auto answered = batch.add({"aaaa", now});
  const auto sent = batch.add({"bbbb", now});
  const auto half = batch.add({"cccc", now});
  batch.add(posted.request("dddd", &route));
  batch.close(now);
  batch.written = 10;
  batch.answer(text("1"));
  batch.fail(errc::unavailable, "reset");
  EXPECT_TRUE(batch.over());
  EXPECT_EQ(batch.outcome(answered, nullptr).kind, Outcome::Kind::answered);
  EXPECT_EQ(batch.outcome(sent, nullptr).kind, Outcome::Kind::in_doubt);
  EXPECT_EQ(batch.outcome(half, nullptr).kind, Outcome::Kind::not_sent);
  EXPECT_EQ(batch.outcome(half, nullptr).cause, "reset");
  ASSERT_EQ(posted.outcomes.size(), 1U);
  EXPECT_EQ(posted.outcomes[0].kind, Outcome::Kind::not_sent);
  EXPECT_FALSE(route.pipeline().has_value()) << "given up, so nothing is under way";
}

TEST(Batch, ATimeOutBeforeItIsWrittenIsNoDoubt) {
  Batch batch;
  const auto mine = batch.add({"a", now});
  EXPECT_EQ(batch.outcome(mine, nullptr).kind, Outcome::Kind::not_sent);
  batch.close(now);
  EXPECT_EQ(batch.outcome(mine, nullptr).kind, Outcome::Kind::in_doubt);
}

TEST(Batch, PinnedCommandsCanBeTakenOut) {
  Batch batch;
  Posted posted;
  batch.add({"a", now});
  batch.slots[batch.add(posted.request("last words"))].pinned = true;
  batch.add({"b", now});
  EXPECT_EQ(batch.take_pinned(), "last words");
  batch.close(now);
  EXPECT_EQ(batch.bytes, "ab");
}

TEST(Batch, CanBeUsedAgain) {
  Batch batch;
  batch.add({"a", now});
  batch.close(now);
  batch.fail(errc::protocol, "nonsense");
  batch.reset();
  const auto mine = batch.add({"b", now});
  batch.close(now);
  EXPECT_EQ(batch.bytes, "b");
  batch.answer(text("1"));
  EXPECT_TRUE(batch.complete());
  EXPECT_EQ(batch.outcome(mine, nullptr).reply.text, "1");
}

TEST(Route, LeadsToThePipelineWithCommandsUnderWay) {
  Route route;
  EXPECT_FALSE(route.pipeline().has_value());
  EXPECT_EQ(route.enter(2), 2U);
  EXPECT_EQ(route.enter(0), 2U) << "behind the first one";
  EXPECT_EQ(route.pipeline(), 2U);
  route.leave();
  EXPECT_EQ(route.pipeline(), 2U);
  route.leave();
  EXPECT_FALSE(route.pipeline().has_value());
  EXPECT_EQ(route.enter(63), 63U);
}

}  // namespace
