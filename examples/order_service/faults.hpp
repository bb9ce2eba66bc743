#ifndef EXAMPLES_ORDER_SERVICE_FAULTS_HPP
#define EXAMPLES_ORDER_SERVICE_FAULTS_HPP

/// What can go wrong on request, and how far it has come.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "messages.hpp"
#include "process.hpp"
#include "queue.hpp"
#include "worker.hpp"

namespace order_service {

/// How long Redis is paused: beyond every ttl.
inline constexpr auto redis_pause = lease_ttl + 600ms;

/// A worker is stopped or killed at a place on its way through an order, or Redis is paused then.
struct Fault {
  enum class Kind { pause, kill, redis };
  /// When a stopped worker may go on. Never before its lease is over.
  enum class Until { lease_over, sku_taken, order_settled };
  enum class Phase { waiting, sent, paused, resumed, over };

  Kind kind{};
  Place place{};
  const char* where = "";
  Until until{};
  int times = 1;

  Phase phase = Phase::waiting;
  std::size_t order = 0;
  std::size_t worker = 0;
  int struck = 0;  ///< how often
  Clock::time_point since{};
  std::chrono::milliseconds duration{0};
  std::int64_t taken = 0;  ///< by others from the SKU, when the worker was stopped
  Counts after{};          ///< what the worker counted in that delivery
};

inline std::vector<Fault> pauses() {
  using Step = Place::Step;
  using Moment = Place::Moment;
  using Until = Fault::Until;
  const auto pause = [](Step step, Moment moment, const char* where, Until until) {
    return Fault{.place = {step, moment}, .where = where, .until = until};
  };
  return {
      pause(Step::reserve, Moment::before_check, "before its last check, stock", Until::lease_over),
      pause(Step::reserve, Moment::before_write, "behind its last check, stock", Until::sku_taken),
      pause(Step::charge, Moment::before_write, "behind its last check, payment",
            Until::order_settled),
      pause(Step::confirm, Moment::before_write, "behind its last check, state",
            Until::order_settled)};
}

inline std::vector<Fault> kills() {
  using Moment = Place::Moment;
  return {{.kind = Fault::Kind::kill,
           .place = {Place::Step::reserve, Moment::before_write},
           .where = "between two lines"},
          // As an order does that brings down everybody who touches it.
          {.kind = Fault::Kind::kill,
           .place = {Place::Step::charged, Moment::before_check},
           .where = "behind the charge",
           .times = most_takes}};
}

/// The worker stands still meanwhile without being stopped, as if the provider were slow. When it
/// goes on, Redis is still silent.
inline std::vector<Fault> redis_pauses() {
  return {{.kind = Fault::Kind::redis,
           .place = {Place::Step::charge, Place::Moment::at_work},
           .where = "while a worker waited for the payment provider"}};
}

/// Stops a server that isn't ours, and lets it go on after a while. That is left to a child, so
/// that it happens even if we are killed.
class ServerPause {
 public:
  ServerPause(pid_t server, std::chrono::milliseconds time)
      : server_(server), child_(Child::start("the pause of the server", [=] {
          ::prctl(PR_SET_PDEATHSIG, 0);
          ::signal(SIGTERM, SIG_IGN);
          ::signal(SIGINT, SIG_IGN);
          if (::kill(server, SIGSTOP) != 0) throw_errno("stop the server");
          ::usleep(static_cast<useconds_t>(std::chrono::microseconds{time}.count()));
          return ::kill(server, SIGCONT) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
        })) {}
  ServerPause(const ServerPause&) = delete;
  ServerPause& operator=(const ServerPause&) = delete;
  ~ServerPause() { ::kill(server_, SIGCONT); }

  Child& child() { return child_; }

 private:
  pid_t server_;
  Child child_;
};

}  // namespace order_service

#endif
