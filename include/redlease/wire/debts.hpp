#ifndef REDLEASE_WIRE_DEBTS_HPP
#define REDLEASE_WIRE_DEBTS_HPP

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <redlease/clock.hpp>
#include <redlease/wire/outcome.hpp>

namespace redlease::inline v1::wire {

/// A command that was left undone, by a broken connection or a refusal that may pass, and that is
/// still worth doing between two instants.
struct Debt {
  std::string bytes;
  Clock::time_point from;
  Clock::time_point until;
  Completion done;
  void* context;
};

/// All debts of a client. They go out ahead of the next batch of whichever pipeline is driven
/// first when they are due. Thread-safe.
class Debts {
 public:
  /// False, and nothing done, once it is closed.
  bool add(Debt debt);

  bool any() const noexcept { return first_.load(std::memory_order_acquire) != never; }
  bool due(Clock::time_point now) const noexcept {
    return any() && first_.load(std::memory_order_acquire) <= now.time_since_epoch().count();
  }
  /// Takes those that are due by then, but not too many at once.
  std::vector<Debt> take_due(Clock::time_point by);
  /// From now on there are none.
  std::vector<Debt> close();

 private:
  static constexpr Clock::rep never = Clock::time_point::max().time_since_epoch().count();
  void note_first();

  std::mutex mutex_;
  std::atomic<Clock::rep> first_{never};  // when the first one is due
  bool closed_ = false;
  std::vector<Debt> debts_;
};

}  // namespace redlease::inline v1::wire

#endif
