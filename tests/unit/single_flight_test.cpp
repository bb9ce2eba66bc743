#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <latch>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <redlease/redlease.hpp>

namespace {

using namespace std::chrono_literals;
using redlease::SingleFlight;

// Polls until it holds; false after a time that only a broken test takes.
template <class Condition>
bool eventually(Condition&& holds) {
  const auto deadline = redlease::Clock::now() + 60s;
  while (!holds()) {
    if (redlease::Clock::now() > deadline) return false;
    std::this_thread::sleep_for(100us);
  }
  return true;
}

// A run for "k" on a thread of its own that stays under way until it is told to end.
template <class Result>
class HeldRun {
 public:
  HeldRun(SingleFlight<Result>& flights, Result result)
      : thread_([this, &flights, result] {
          result_ = flights.run("k", [this, result] {
            begun_.count_down();
            end_.wait();
            return result;
          });
        }) {
    begun_.wait();
  }
  ~HeldRun() { end(); }

  Result end() {
    if (thread_.joinable()) {
      end_.count_down();
      thread_.join();
    }
    return result_;
  }

 private:
  std::latch begun_{1};
  std::latch end_{1};
  Result result_{};
  std::thread thread_;  // the last: it uses the others
};

TEST(SingleFlight, ALoneCallerRunsItsFunctionOnItsOwnThread) {
  SingleFlight<std::thread::id> flights;
  EXPECT_EQ(flights.run("k", [] { return std::this_thread::get_id(); }),
            std::this_thread::get_id());
  EXPECT_EQ(flights.waiting("k"), 0U);
}

TEST(SingleFlight, CallersOfOneKeyShareOneRun) {
  constexpr std::size_t callers = 8;
  SingleFlight<std::string> flights;
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> runs{0};
    std::atomic<int> good{0};
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < callers; ++i) {
        threads.emplace_back([&] {
          const auto result = flights.run("k", [&] {
            ++runs;
            // Whoever runs it waits until all others wait for it.
            EXPECT_TRUE(eventually([&] { return flights.waiting("k") == callers - 1; }));
            return "result " + std::to_string(round);
          });
          if (result == "result " + std::to_string(round)) ++good;
        });
      }
    }
    ASSERT_EQ(runs, 1);
    ASSERT_EQ(good, callers);
    ASSERT_EQ(flights.waiting("k"), 0U);
  }
}

TEST(SingleFlight, TheNextCallBeginsANewRun) {
  SingleFlight<int> flights;
  int runs = 0;
  for (int i = 1; i <= 3; ++i) EXPECT_EQ(flights.run("k", [&] { return ++runs; }), i);
}

TEST(SingleFlight, OtherKeysDoNotWait) {
  SingleFlight<int> flights;
  HeldRun<int> held{flights, 1};
  EXPECT_EQ(flights.run("other", [] { return 2; }), 2);
  EXPECT_EQ(flights.run("", [] { return 3; }), 3);
  EXPECT_EQ(flights.run(std::string_view{"k\0k", 3}, [] { return 4; }), 4);
  EXPECT_EQ(held.end(), 1);
}

TEST(SingleFlight, AnExceptionReachesAllWhoShareTheRun) {
  constexpr std::size_t callers = 6;
  SingleFlight<int> flights;
  for (int round = 0; round < 50; ++round) {
    // Outlives the threads: ThreadSanitizer doesn't see how the C++ runtime counts an exception's
    // references, and would complain of the last one that goes.
    const auto error = std::make_exception_ptr(std::runtime_error{"no database"});
    std::atomic<int> caught{0};
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < callers; ++i) {
        threads.emplace_back([&] {
          try {
            flights.run("k", [&]() -> int {
              EXPECT_TRUE(eventually([&] { return flights.waiting("k") == callers - 1; }));
              std::rethrow_exception(error);
            });
          } catch (const std::runtime_error& shared) {
            if (shared.what() == std::string_view{"no database"}) ++caught;
          }
        });
      }
    }
    ASSERT_EQ(caught, callers);
  }
  EXPECT_EQ(flights.run("k", [] { return 7; }), 7) << "a failed run is not kept";
}

TEST(SingleFlight, AResultMayBeVoid) {
  SingleFlight<void> flights;
  int runs = 0;
  flights.run("k", [&] { ++runs; });
  EXPECT_TRUE(flights.run("k", 0s, [&] { return ++runs; })) << "what it returns is dropped";
  EXPECT_EQ(runs, 2);
  EXPECT_THROW(flights.run("k", [] { throw std::runtime_error{"no"}; }), std::runtime_error);

  std::latch begun{1};
  std::latch end{1};
  std::jthread thread{[&] {
    flights.run("k", [&] {
      begun.count_down();
      end.wait();
    });
  }};
  begun.wait();
  EXPECT_FALSE(flights.run("k", 0s, [] {}));
  end.count_down();
}

TEST(SingleFlight, WhatCannotBeCopiedIsShared) {
  using Page = std::unique_ptr<int>;
  SingleFlight<std::shared_ptr<const Page>> flights;
  HeldRun<std::shared_ptr<const Page>> held{flights,
                                            std::make_shared<const Page>(std::make_unique<int>(5))};
  std::shared_ptr<const Page> shared;
  {
    std::jthread other{[&] { shared = flights.run("k", [] { return nullptr; }); }};
    ASSERT_TRUE(eventually([&] { return flights.waiting("k") == 1; }));
    held.end();
  }
  EXPECT_EQ(shared, held.end());
  EXPECT_EQ(**shared, 5);
}

TEST(SingleFlight, NothingIsKeptOfARunThatEnded) {
  SingleFlight<std::shared_ptr<int>> flights;
  std::weak_ptr<int> result;
  {
    const auto mine = flights.run("k", [] { return std::make_shared<int>(1); });
    EXPECT_EQ(mine.use_count(), 1);
    result = mine;
  }
  EXPECT_TRUE(result.expired());
}

TEST(SingleFlight, ABoundEndsTheWaitAndNotTheRun) {
  SingleFlight<int> flights;
  HeldRun<int> held{flights, 1};
  const auto never = []() -> int { throw std::logic_error{"must not be called"}; };

  EXPECT_FALSE(flights.run("k", 0s, never).has_value());
  const auto start = redlease::Clock::now();
  EXPECT_FALSE(flights.run("k", 20ms, never).has_value());
  EXPECT_GE(redlease::Clock::now() - start, 20ms);

  std::optional<int> patient;
  {
    std::jthread other{[&] { patient = flights.run("k", redlease::Duration::max(), never); }};
    ASSERT_TRUE(eventually([&] { return flights.waiting("k") == 1; }));
    held.end();
  }
  EXPECT_EQ(patient, 1);
  EXPECT_EQ(held.end(), 1);
}

TEST(SingleFlight, AStopRequestEndsTheWait) {
  SingleFlight<int> flights;
  HeldRun<int> held{flights, 1};
  std::stop_source source;
  std::optional<int> stopped = 9;
  {
    std::jthread other{
        [&] { stopped = flights.run("k", 24h, source.get_token(), [] { return 2; }); }};
    ASSERT_TRUE(eventually([&] { return flights.waiting("k") == 1; }));
    source.request_stop();
  }
  EXPECT_FALSE(stopped.has_value());
  EXPECT_EQ(flights.waiting("k"), 0U);
  EXPECT_FALSE(flights.run("k", 24h, source.get_token(), [] { return 2; }).has_value());
  EXPECT_EQ(held.end(), 1);
}

TEST(SingleFlight, NeitherCutsARunOfOnesOwn) {
  SingleFlight<int> flights;
  std::stop_source source;
  source.request_stop();
  EXPECT_EQ(flights.run("k", 0s, source.get_token(), [] { return 1; }), 1);
  EXPECT_THROW(flights.run("k", 0s, []() -> int { throw std::runtime_error{"no"}; }),
               std::runtime_error);
}

TEST(SingleFlight, ANegativeBoundIsRefusedByName) {
  SingleFlight<int> flights;
  bool called = false;
  try {
    flights.run("k", -1ms, [&] {
      called = true;
      return 1;
    });
    ADD_FAILURE() << "not refused";
  } catch (const std::invalid_argument& refused) {
    EXPECT_NE(std::string_view{refused.what()}.find("at_most = -1ms"), std::string_view::npos)
        << refused.what();
  }
  EXPECT_FALSE(called);
}

TEST(SingleFlight, ARunThatWouldWaitForItselfIsToldSo) {
  SingleFlight<int> flights;
  const auto refusal_of = [&](auto&& call) -> std::string {
    try {
      flights.run("key 1", [&] { return flights.run("key 2", call); });
    } catch (const std::invalid_argument& refused) {
      return refused.what();
    }
    return "not refused";
  };
  const auto again = [] { return 1; };
  const auto directly = refusal_of([&] { return flights.run("key 2", again); });
  EXPECT_NE(directly.find("'key 2'"), std::string::npos) << directly;
  const auto in_a_ring = refusal_of([&] { return flights.run("key 1", again); });
  EXPECT_NE(in_a_ring.find("'key 1'"), std::string::npos) << in_a_ring;
  const auto bounded = refusal_of([&] { return flights.run("key 1", 0s, again).value_or(2); });
  EXPECT_NE(bounded.find("'key 1'"), std::string::npos) << bounded;

  EXPECT_EQ(flights.run("key 1", [] { return 3; }), 3) << "no run is left behind";
  EXPECT_EQ(flights.run("key 2", [] { return 4; }), 4);
}

// A result whose copies fail while `copies_fail`.
struct Brittle {
  explicit Brittle(std::atomic<bool>& fail) : copies_fail(&fail) {}
  Brittle(const Brittle& other) : copies_fail(other.copies_fail) {
    if (*copies_fail) throw std::bad_alloc{};
  }
  Brittle(Brittle&&) noexcept = default;
  Brittle& operator=(const Brittle&) = delete;
  Brittle& operator=(Brittle&&) = delete;
  ~Brittle() = default;

  std::atomic<bool>* copies_fail;
};

TEST(SingleFlight, ACopyThatFailsHarmsItsCallerOnly) {
  SingleFlight<Brittle> flights;
  std::atomic<bool> copies_fail{true};
  EXPECT_THROW(flights.run("k", [&] { return Brittle{copies_fail}; }), std::bad_alloc);
  copies_fail = false;
  EXPECT_NO_THROW(flights.run("k", [&] { return Brittle{copies_fail}; }));
}

// Many threads, few keys: never two functions of one key at once, no result of another key, and
// none of a run whose result anybody had when the call began.
TEST(SingleFlight, NoResultIsOlderThanTheLastOneHandedOut) {
  struct Key {
    std::atomic<int> at_work{0};
    std::atomic<int> begun{0};
    std::atomic<int> handed_out{0};
  };
  constexpr int rounds = 2000;
  std::array<Key, 3> keys;
  SingleFlight<std::pair<std::size_t, int>> flights;
  std::atomic<int> wrong{0};
  std::atomic<int> calls{0};
  {
    std::vector<std::jthread> threads;
    for (unsigned seed = 0; seed < 8; ++seed) {
      threads.emplace_back([&, seed] {
        std::mt19937 random{seed};
        for (int round = 0; round < rounds; ++round) {
          const std::size_t number = random() % keys.size();
          auto& key = keys[number];
          const auto work = [&] {
            if (++key.at_work != 1) ++wrong;
            const std::pair result{number, ++key.begun};
            if (random() % 2 == 0) std::this_thread::yield();
            --key.at_work;
            return result;
          };
          const int before = key.handed_out;
          const auto result = random() % 4 == 0
                                  ? flights.run(std::to_string(number), 50us, work)
                                  : std::optional{flights.run(std::to_string(number), work)};
          if (!result) continue;
          ++calls;
          if (result->first != number || result->second <= before) ++wrong;
          int last = key.handed_out;
          while (last < result->second &&
                 !key.handed_out.compare_exchange_weak(last, result->second)) {
          }
        }
      });
    }
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(calls, 0);
  for (std::size_t number = 0; number < keys.size(); ++number) {
    EXPECT_EQ(flights.waiting(std::to_string(number)), 0U);
  }
}

}  // namespace
