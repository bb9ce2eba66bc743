#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include <redlease/redlease.hpp>

// Everything here is refused before any I/O: no server is running at this address.
namespace {

using namespace std::chrono_literals;
using redlease::Client;
using redlease::ClientOptions;
using redlease::Duration;
using redlease::LeaseOptions;
using redlease::Wait;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto nowhere = "redis://u:s3cret@127.0.0.1:1";

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  } catch (const redlease::Error&) {
    // It went as far as the network.
  }
  return "accepted";
}

std::string refusal(const LeaseOptions& options) {
  return refusal([&] { (void)Client{nowhere}.try_acquire("k", options); });
}

std::string refusal(const Wait& wait) {
  return refusal([&] { (void)Client{nowhere}.acquire("k", wait); });
}

std::string refusal(ClientOptions options) {
  return refusal([&] { Client client(nowhere, std::move(options)); });
}

// B85
TEST(LeaseOptionsCheck, NamesABadTtl) {
  EXPECT_THAT(refusal(LeaseOptions{.ttl = 0s}), AllOf(HasSubstr("ttl"), HasSubstr("0s")));
  EXPECT_THAT(refusal(LeaseOptions{.ttl = -1ms}), AllOf(HasSubstr("ttl"), HasSubstr("-1ms")));
  EXPECT_THAT(refusal(LeaseOptions{.ttl = 1us}), AllOf(HasSubstr("ttl"), HasSubstr("1us")));
  EXPECT_THAT(refusal(LeaseOptions{.ttl = 999us}), HasSubstr("at least 1ms"));
  EXPECT_THAT(refusal(LeaseOptions{.ttl = std::chrono::hours::max()}), HasSubstr("ttl"));
  EXPECT_THAT(refusal(LeaseOptions{.ttl = std::chrono::milliseconds::max()}), HasSubstr("ttl"));
  EXPECT_THAT(refusal(LeaseOptions{.ttl = std::chrono::nanoseconds::min()}), HasSubstr("ttl"));
  EXPECT_THAT(refusal(LeaseOptions{
                  .ttl = std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN())}),
              HasSubstr("ttl"));
}

TEST(LeaseOptionsCheck, ARenewalMustComeBeforeTheEnd) {
  const auto with = [](Duration ttl, std::optional<Duration> every,
                       std::optional<Duration> margin) {
    return refusal(LeaseOptions{
        .ttl = ttl, .auto_renew = true, .renew_every = every, .safety_margin = margin});
  };
  EXPECT_EQ(with(3s, 2600ms, {}), "accepted") << "certain for 2970 ms, less a margin of 300 ms";
  EXPECT_THAT(with(3s, 2670ms, {}), AllOf(HasSubstr("renew_every = 2670ms"), HasSubstr("300ms")));
  EXPECT_THAT(with(3s, 3s, {}), HasSubstr("renew_every = 3s"));
  EXPECT_THAT(with(3s, Duration::max(), {}), HasSubstr("renew_every"));
  EXPECT_THAT(with(3s, 0ms, {}), HasSubstr("renew_every = 0s: must be at least 1ms"));
  EXPECT_THAT(with(3s, -5ms, {}), HasSubstr("renew_every = -5ms"));
  EXPECT_EQ(with(3s, {}, 1900ms), "accepted");
  EXPECT_THAT(with(3s, {}, 2s), HasSubstr("safety_margin = 2s")) << "ttl / 3 comes too late";
  EXPECT_EQ(with(3s, 2900ms, 0ms), "accepted");
  EXPECT_EQ(with(1ms, {}, {}), "accepted");
}

TEST(LeaseOptionsCheck, TheSafetyMarginLeavesSomethingOfTheLease) {
  EXPECT_EQ(refusal(LeaseOptions{.ttl = 1s, .safety_margin = 900ms}), "accepted");
  EXPECT_THAT(refusal(LeaseOptions{.ttl = 1s, .safety_margin = 990ms}),
              HasSubstr("safety_margin = 990ms: must be below 99 % of the ttl"));
  EXPECT_THAT(refusal(LeaseOptions{.safety_margin = -1ms}),
              HasSubstr("safety_margin = -1ms: must not be negative"));
  EXPECT_THAT(refusal(LeaseOptions{.auto_renew = true, .max_hold = 0ms}), HasSubstr("max_hold"));
  EXPECT_EQ(refusal(LeaseOptions{.auto_renew = true, .max_hold = Duration::max()}), "accepted");
}

TEST(LeaseOptionsCheck, NothingIsSilentlyIgnored) {
  EXPECT_THAT(refusal(LeaseOptions{.renew_every = 1s}),
              AllOf(HasSubstr("renew_every"), HasSubstr("auto_renew")));
  EXPECT_THAT(refusal(LeaseOptions{.max_hold = 1s}),
              AllOf(HasSubstr("max_hold"), HasSubstr("auto_renew")));
  EXPECT_THAT(refusal(LeaseOptions{.fence_key = "f"}),
              AllOf(HasSubstr("fence_key"), HasSubstr("'f'"), HasSubstr("fencing")));
  EXPECT_THAT(refusal(LeaseOptions{.min_replicas = 1}), HasSubstr("min_replicas"));
}

TEST(WaitCheck, NamesTheField) {
  EXPECT_THAT(refusal(Wait{.at_most = -1ms}), AllOf(HasSubstr("at_most"), HasSubstr("-1ms")));
  EXPECT_THAT(refusal(Wait{.at_most = 1s, .attempts = 0}), HasSubstr("attempts"));
  EXPECT_THAT(refusal(Wait{.at_most = 1s, .attempts = -3}), HasSubstr("-3"));
  EXPECT_THAT(refusal(Wait{.at_most = 1s, .backoff = {.min = 0ms}}), HasSubstr("backoff.min"));
  EXPECT_THAT(refusal(Wait{.at_most = 1s, .backoff = {.min = 5ms, .max = 4ms}}),
              HasSubstr("backoff.max"));
  EXPECT_THAT(refusal(Wait{.at_most = 1s, .order = static_cast<redlease::Order>(7)}),
              HasSubstr("order = 7"));
}

TEST(ClientOptionsCheck, NamesTheField) {
  EXPECT_THAT(refusal(ClientOptions{.connect_timeout = 0s}), HasSubstr("connect_timeout"));
  EXPECT_THAT(refusal(ClientOptions{.command_timeout = -1s}), HasSubstr("command_timeout"));
  EXPECT_THAT(refusal(ClientOptions{.command_timeout = std::chrono::hours::max()}),
              HasSubstr("command_timeout"));
  EXPECT_THAT(refusal(ClientOptions{.database = -1}), HasSubstr("database"));
  EXPECT_THAT(refusal(ClientOptions{.client_name = "two words"}), HasSubstr("client_name"));
  EXPECT_THAT(refusal(ClientOptions{.max_connections = 0}), HasSubstr("max_connections"));
  EXPECT_THAT(refusal(ClientOptions{.max_connections = 65}), HasSubstr("65"));
}

TEST(KeyCheck, EmptyAndOverLongKeysAreRefused) {
  Client client{nowhere};
  EXPECT_THAT(refusal([&] { (void)client.try_acquire(""); }), HasSubstr("key"));
  EXPECT_THAT(refusal([&] { (void)client.try_acquire(std::string(65'537, 'k')); }),
              HasSubstr("65537"));
  EXPECT_THAT(refusal([&] { (void)client.acquire("", {.at_most = 1s}); }), HasSubstr("key"));
  EXPECT_THAT(refusal([&] { (void)client.inspect(""); }), HasSubstr("key"));
}

// `Wait` has no default for its bound: waiting for ever by accident does not compile.
static_assert(!std::is_default_constructible_v<redlease::Duration>);
static_assert(!std::is_default_constructible_v<Wait>);
static_assert(!std::is_copy_constructible_v<redlease::Lease>);
static_assert(!std::is_copy_assignable_v<redlease::Lease>);
static_assert(std::is_nothrow_move_constructible_v<redlease::Lease>);
static_assert(std::is_nothrow_move_assignable_v<redlease::Lease>);
static_assert(std::is_nothrow_destructible_v<redlease::Lease>);

}  // namespace
