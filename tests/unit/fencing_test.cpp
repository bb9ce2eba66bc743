#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <redlease/core/key_slot.hpp>
#include <redlease/fencing.hpp>
#include <redlease/fmt.hpp>
#include <redlease/runtime/fence_memory.hpp>

namespace redlease::test {
namespace {

using namespace std::string_literals;

TEST(FencingTokenTest, IsOrderedAndPrints) {
  const FencingToken low{2};
  const FencingToken high{10};
  EXPECT_LT(low, high);
  EXPECT_EQ(low, FencingToken{2});
  EXPECT_EQ(high.value(), 10);
  std::ostringstream out;
  out << high;
  EXPECT_EQ(out.str(), "10");
  EXPECT_EQ(fmt::format("{} {:>4}", low, high), "2   10");
}

TEST(FencingTokenTest, IsExactBeyondWhatADoubleHolds) {
  constexpr std::int64_t odd = (std::int64_t{1} << 53) + 1;
  EXPECT_LT(FencingToken{odd - 1}, FencingToken{odd});
  EXPECT_EQ(fmt::format("{}", FencingToken{odd}), "9007199254740993");
  EXPECT_EQ(FencingToken{std::numeric_limits<std::int64_t>::max()}.value(),
            std::numeric_limits<std::int64_t>::max());
}

TEST(FenceGateTest, LetsInTheHighestAndHigherOnes) {
  FenceGate gate;
  EXPECT_FALSE(gate.highest());
  EXPECT_TRUE(gate.admit(FencingToken{5}));
  EXPECT_TRUE(gate.admit(FencingToken{5}));
  EXPECT_FALSE(gate.admit(FencingToken{4}));
  EXPECT_TRUE(gate.admit(FencingToken{9}));
  EXPECT_FALSE(gate.admit(FencingToken{5}));
  EXPECT_EQ(gate.highest(), FencingToken{9});
}

TEST(FenceGateTest, NobodyGetsInBehindAHigherOne) {
  FenceGate gate;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t n = t; n < 20'000; n += 4) {
        const auto before = gate.highest();
        const bool in = gate.admit(FencingToken{n});
        if (in && before && FencingToken{n} < *before) ++wrong;
        if (gate.highest() < FencingToken{n}) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(gate.highest(), FencingToken{19'999});
}

// B45
TEST(FenceMemoryTest, KnowsTheHighest) {
  runtime::FenceMemory memory;
  EXPECT_EQ(memory.highest("a"), FencingToken{0});
  memory.note("a", FencingToken{1});
  memory.note("b", FencingToken{3});
  memory.note("a", FencingToken{7});
  memory.note("a", FencingToken{5});  // it was drawn earlier, and heard of later
  EXPECT_EQ(memory.highest("a"), FencingToken{7});
  EXPECT_EQ(memory.highest("b"), FencingToken{3});
  EXPECT_EQ(memory.highest("c"), FencingToken{0});
}

TEST(FenceMemoryTest, ForgetsRatherThanGrowsOrMixesUp) {
  runtime::FenceMemory memory;
  for (int i = 0; i < 100'000; ++i) {
    const auto counter = "counter" + std::to_string(i);
    ASSERT_EQ(memory.highest(counter), FencingToken{0});
    memory.note(counter, FencingToken{100'000 - i});
    ASSERT_EQ(memory.highest(counter), FencingToken{100'000 - i});
  }
}

// The check value of CRC-16/XMODEM, and what a server says of the others (CLUSTER KEYSLOT).
TEST(KeySlotTest, IsThatOfRedisCluster) {
  EXPECT_EQ(core::slot_of("123456789"), 12739U);
  EXPECT_EQ(core::slot_of("foo"), 12182U);
  EXPECT_EQ(core::slot_of("{user1000}.following"), core::slot_of("user1000"));
  EXPECT_EQ(core::slot_of("foo{{bar}}zap"), core::slot_of("{bar"));
  EXPECT_EQ(core::slot_of("foo{bar}{zap}"), core::slot_of("bar"));
  EXPECT_NE(core::slot_of("foo{}{bar}"), core::slot_of("bar"));
}

TEST(KeySlotTest, WhatLiesBesideAKeyIsInItsSlot) {
  std::vector<std::string> keys{"k",
                                "{k}",
                                "a{b}c",
                                "{}x",
                                "{x",
                                "a}b{c",
                                "}{",
                                "{",
                                "}",
                                "{}{x}",
                                "\0\r\n\xff"s,
                                "a}b:\0"s,
                                std::string(65536, '}')};
  for (int i = 0; i < 500; ++i) keys.push_back("}" + std::to_string(i) + "{");
  std::vector<std::string> names;
  for (const auto& key : keys) {
    names.push_back(core::beside(key, "redlease:fence"));
    EXPECT_EQ(core::slot_of(names.back()), core::slot_of(key)) << key;
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end()) << "each has its own";
}

}  // namespace
}  // namespace redlease::test
