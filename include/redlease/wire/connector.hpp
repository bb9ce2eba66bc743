#ifndef REDLEASE_WIRE_CONNECTOR_HPP
#define REDLEASE_WIRE_CONNECTOR_HPP

#include <memory>
#include <mutex>
#include <string>

#include <redlease/clock.hpp>
#include <redlease/error.hpp>
#include <redlease/wire/connection.hpp>
#include <redlease/wire/opening.hpp>
#include <redlease/wire/resolver.hpp>
#include <redlease/wire/url.hpp>

namespace redlease::inline v1::wire {

struct Timeouts {
  std::chrono::nanoseconds connect{};
  std::chrono::nanoseconds command{};
};

/// Opens the connections to one server, and doesn't hammer a server that refuses them: after a
/// few failures in a row there is a pause before the next attempt, doubled each time up to
/// 100 ms, with jitter. Within the pause open() repeats the last error at once. Thread-safe.
class Connector {
 public:
  Connector(Endpoint endpoint, Timeouts timeouts)
      : endpoint_(std::move(endpoint)), timeouts_(timeouts) {}

  /// A connection that is ready for use. Throws Error.
  std::unique_ptr<Connection> open(Clock::time_point deadline);
  /// The same step by step, for those who must not wait. Throws Error.
  Opening begin(Clock::time_point deadline);
  /// The connection when it is ready; null while it takes longer. Throws Error.
  std::unique_ptr<Connection> advance(Opening& opening);

  /// Tells what became of a connection: it answered its first command, or broke before that.
  void worked();
  void failed(errc code, const std::string& cause);

  const Timeouts& timeouts() const noexcept { return timeouts_; }

 private:
  const Endpoint endpoint_;
  const Timeouts timeouts_;
  Resolver resolver_;
  std::mutex mutex_;
  int failures_ = 0;
  Clock::time_point not_before_{};
  errc last_code_ = errc::unavailable;
  std::string last_cause_;
};

}  // namespace redlease::inline v1::wire

#endif
