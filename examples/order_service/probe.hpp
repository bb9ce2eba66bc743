#ifndef EXAMPLES_ORDER_SERVICE_PROBE_HPP
#define EXAMPLES_ORDER_SERVICE_PROBE_HPP

/// How the demonstration looks into the processing of an order. A service would have its metrics
/// here.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace order_service {

/// What a worker counts while it is at an order.
enum class Fact {
  at_once,        ///< the leases were had by the first attempt,
  after_wait,     ///< or after a wait,
  wait_ended,     ///< or not in time
  told_to_stop,   ///< stop_token() said so between two steps
  not_held,       ///< ensure_held() threw
  lost_at_end,    ///< release() told of a loss when all was written
  no_answer,      ///< Redis didn't answer, or refused
  stale_fence,    ///< an UPDATE was refused: its fencing number was older than the row's
  no_stock,       ///< an UPDATE was refused: there was not enough
  settled,        ///< a delivery of an order that had come to its end
  charge_known,   ///< a charge for an order that was charged before
  charge_void,    ///< a charge for an order that was given up
  stale_state,    ///< a step was refused: the order was no longer in the state it went by
  late_write,     ///< a write that went through when the lease was over
  conflict,       ///< a transaction was rolled back by the database, and tried again
  commit_unsure,  ///< the answer to a COMMIT got lost
  no_database,    ///< the connection to the database broke
  taken_up,       ///< an order that somebody had left half done
  lines_back,     ///< lines whose stock was put back
  refunded,       ///< payments given back
  done,           ///< orders ended as done,
  rejected,       ///< as rejected,
  compensated,    ///< or as compensated
  count           ///< how many kinds of facts there are
};

class Counts {
 public:
  std::int64_t& operator[](Fact fact) { return values_[static_cast<std::size_t>(fact)]; }
  std::int64_t operator[](Fact fact) const { return values_[static_cast<std::size_t>(fact)]; }
  Counts& operator+=(const Counts& other) {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] += other.values_[i];
    return *this;
  }

 private:
  std::array<std::int64_t, static_cast<std::size_t>(Fact::count)> values_{};
};

/// Where a worker can be made to stand still, for the faults of the demonstration.
struct Place {
  enum class Step { nowhere, reserve, charge, charged, confirm };
  enum class Moment { at_work, before_check, before_write };  ///< the check is ensure_held()

  Step step = Step::nowhere;
  Moment moment{};
  std::size_t line = 0;  ///< for reserve

  Place at(Moment other) const { return {step, other, line}; }
  friend bool operator==(const Place&, const Place&) = default;
};

class Probe {
 public:
  virtual void count(Fact fact, std::int64_t times) = 0;
  void count(Fact fact) { count(fact, 1); }
  /// How long it took to get the leases, or to go without.
  virtual void waited(std::chrono::nanoseconds time) = 0;
  /// The work has come to that place.
  virtual void pass(const Place& place) = 0;

 protected:
  ~Probe() = default;
};

}  // namespace order_service

#endif
