#ifndef REDLEASE_WIRE_CONNECTOR_IPP
#define REDLEASE_WIRE_CONNECTOR_IPP

#include <algorithm>

#include <fmt/format.h>
#include <redlease/token.hpp>
#include <redlease/wire/connector.hpp>

namespace redlease::inline v1::wire {
namespace {

constexpr int free_failures = 3;
constexpr std::chrono::milliseconds first_pause{10};
constexpr std::chrono::milliseconds longest_pause{100};

}  // namespace

std::unique_ptr<Connection> Connector::open(Clock::time_point deadline) {
  auto opening = begin(deadline);
  for (;;) {
    if (auto connection = advance(opening)) return connection;
    opening.wait();
  }
}

Opening Connector::begin(Clock::time_point deadline) {
  const auto now = Clock::now();
  if (now >= deadline) throw Error{errc::unavailable, "timed out before connecting"};
  {
    const std::lock_guard lock{mutex_};
    if (now < not_before_) {
      const auto pause = std::chrono::ceil<std::chrono::milliseconds>(not_before_ - now);
      throw Error{last_code_, fmt::format("{} (the next connection attempt is due in {} ms)",
                                          last_cause_, pause.count())};
    }
  }
  const bool cut_short = deadline < now + timeouts_.connect;
  return {endpoint_, resolver_, timeouts_.command, cut_short ? deadline : now + timeouts_.connect,
          cut_short};
}

std::unique_ptr<Connection> Connector::advance(Opening& opening) {
  try {
    return opening.advance();
  } catch (const Error& error) {
    // One who had no time for it says nothing about the server.
    const bool no_time = opening.is_cut_short() && Clock::now() >= opening.deadline();
    if (!no_time) failed(static_cast<errc>(error.code().value()), error.what());
    throw;
  }
}

void Connector::worked() {
  const std::lock_guard lock{mutex_};
  failures_ = 0;
}

void Connector::failed(errc code, const std::string& cause) {
  const std::lock_guard lock{mutex_};
  last_code_ = code;
  last_cause_ = cause;
  if (++failures_ <= free_failures) return;
  const int doublings = std::min(failures_ - free_failures - 1, 10);
  const auto pause =
      std::min<std::chrono::nanoseconds>(first_pause * (1 << doublings), longest_pause);
  not_before_ = Clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   pause * (1.0 + detail::random_unit()) / 2.0);
}

}  // namespace redlease::inline v1::wire

#endif
