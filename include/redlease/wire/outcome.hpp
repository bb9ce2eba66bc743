#ifndef REDLEASE_WIRE_OUTCOME_HPP
#define REDLEASE_WIRE_OUTCOME_HPP

#include <memory>
#include <string>

#include <redlease/clock.hpp>
#include <redlease/error.hpp>
#include <redlease/wire/reply.hpp>

namespace redlease::inline v1::wire {

struct Link;

/// What became of a command.
struct Outcome {
  enum class Kind {
    answered,  ///< `reply` is the server's
    not_sent,  ///< it has not run, and will not
    in_doubt,  ///< it was written, and no reply came: it may have run, or may run yet
  };

  Kind kind = Kind::not_sent;
  Reply reply;
  Clock::time_point sent{};       ///< the instant before it was written
  errc code = errc::unavailable;  ///< why there is no answer, and
  std::string cause;              ///< in words
  std::shared_ptr<Link> link;     ///< in doubt: the connection on which it may run yet
};

/// Called once for a posted command, on the thread that drives its connection: it must be quick,
/// must not block and must call nothing of the pipelines but owe().
using Completion = void (*)(void* context, Outcome&& outcome) noexcept;

}  // namespace redlease::inline v1::wire

#endif
