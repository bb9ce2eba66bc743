#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <sstream>
#include <thread>

#include <redlease/fmt.hpp>
#include <redlease/redlease.hpp>

namespace {

using namespace std::chrono_literals;
using redlease::Duration;
using redlease::Token;

TEST(Token, IsAFreshVersion4Uuid) {
  std::set<std::string> seen;
  for (int i = 0; i < 10'000; ++i) {
    const auto token = Token::generate();
    const std::string text{token.reveal()};
    ASSERT_EQ(text.size(), 36U);
    ASSERT_EQ(text[14], '4');
    ASSERT_NE(std::string{"89ab"}.find(text[19]), std::string::npos);
    ASSERT_TRUE(seen.insert(text).second);
  }
}

// B34: no two threads draw the same.
TEST(Token, DiffersBetweenThreads) {
  std::array<std::vector<std::string>, 4> drawn;
  {
    std::vector<std::jthread> threads;
    for (auto& mine : drawn) {
      threads.emplace_back([&mine] {
        for (int i = 0; i < 1000; ++i) mine.emplace_back(Token::generate().reveal());
      });
    }
  }
  std::set<std::string> all;
  for (const auto& mine : drawn) all.insert(mine.begin(), mine.end());
  EXPECT_EQ(all.size(), 4000U);
}

// B34: nor do a process and its child, though random bytes are fetched in advance.
TEST(Token, DiffersAfterFork) {
  (void)Token::generate();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto token = Token::generate();
    const auto n = ::write(ends[1], token.reveal().data(), Token::size);
    ::_exit(n == static_cast<ssize_t>(Token::size) ? 0 : 1);
  }
  const auto mine = Token::generate();
  char theirs[Token::size];
  ASSERT_EQ(::read(ends[0], theirs, sizeof theirs), static_cast<ssize_t>(sizeof theirs));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(mine.reveal(), std::string_view(theirs, sizeof theirs));
  ::close(ends[0]);
  ::close(ends[1]);
}

// B91: what prints is the fingerprint.
TEST(Token, PrintsItsFingerprintOnly) {
  const auto token = Token::generate();
  std::ostringstream stream;
  stream << token;
  EXPECT_EQ(stream.str(), token.fingerprint());
  EXPECT_EQ(fmt::format("{}", token), token.fingerprint());
  EXPECT_EQ(fmt::format("{:>10}", token), "  " + token.fingerprint());
  EXPECT_EQ(token.fingerprint().size(), 8U);
  EXPECT_EQ(token.fingerprint().find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(token.fingerprint(), Token::generate().fingerprint());
}

// B85: conversions round up and never wrap.
TEST(Duration, RoundsUpAndSaturates) {
  EXPECT_EQ(Duration{1500us}.ceil_ms(), 2ms);
  EXPECT_EQ(Duration{2ms}.ceil_ms(), 2ms);
  EXPECT_EQ(Duration{1ns}.ceil_ms(), 1ms);
  EXPECT_EQ(Duration{-5ms}.ceil_ms(), -5ms);
  EXPECT_EQ((Duration{std::chrono::duration<double>{0.25}}.value()), 250ms);
  EXPECT_EQ((Duration{std::chrono::duration<int, std::pico>{1}}.value()), 1ns);
  EXPECT_EQ(Duration{std::chrono::hours::max()}, Duration::max());
  EXPECT_EQ(Duration{std::chrono::milliseconds::max()}, Duration::max());
  EXPECT_LT(Duration{std::chrono::hours::min()}, Duration{0s});
  EXPECT_LT(Duration{std::chrono::duration<double>{std::nan("")}}, Duration{0s});
  EXPECT_EQ(Duration{std::chrono::duration<double>{1e300}}, Duration::max());
}

TEST(Error, ComparesWithItsCodeAndReadsWell) {
  const redlease::Error error{redlease::errc::unavailable, "ping h:1: timed out"};
  EXPECT_EQ(error.code(), redlease::errc::unavailable);
  EXPECT_STREQ(error.what(), "ping h:1: timed out");
  EXPECT_STREQ(error.code().category().name(), "redlease");
  const redlease::Loss loss{redlease::LossReason::taken, "k\n%s", "0a1b2c3d", 1500ms};
  const redlease::LeaseLost lost{redlease::detail::describe("release", loss), loss};
  EXPECT_EQ(lost.code(), redlease::errc::lost);
  EXPECT_STREQ(lost.what(),
               "release 'k\\x0a%s': the lease is lost (taken) after 1500 ms; token 0a1b2c3d");
  EXPECT_EQ(lost.loss().reason, redlease::LossReason::taken);
}

TEST(Error, LongKeysAreCutInMessages) {
  EXPECT_EQ(redlease::detail::quote(std::string(70'000, 'k')).size(), 105U);
}

}  // namespace
