#ifndef EXAMPLES_ORDER_SERVICE_PAYMENTS_HPP
#define EXAMPLES_ORDER_SERVICE_PAYMENTS_HPP

/// Stands for a payment provider: another system, which knows nothing of leases and fences and is
/// in no transaction of ours. Like real ones it takes an idempotency key, and that is the order's
/// number. It keeps its own books, here in a table beside the others.

#include <cstdint>
#include <memory>
#include <utility>

#include "database.hpp"

namespace order_service {

enum class Charge {
  charged,  ///< now
  known,    ///< it was before: nothing more is charged
  refused,  ///< the key was cancelled
};

class Payments {
 public:
  explicit Payments(std::unique_ptr<Database> database) : database_(std::move(database)) {}

  static void create(Database& database) {
    database.run(
        "CREATE TABLE payment (order_id BIGINT PRIMARY KEY, amount BIGINT NOT NULL,"
        " state TEXT NOT NULL)");
  }

  Charge charge(std::int64_t order, std::int64_t amount) {
    const auto inserted = database_->run(
        "INSERT INTO payment (order_id, amount, state) VALUES ($1, $2, 'charged')"
        " ON CONFLICT (order_id) DO NOTHING",
        {order, amount});
    if (inserted.changed == 1) return Charge::charged;
    const auto found = database_->run("SELECT state FROM payment WHERE order_id = $1", {order});
    return found.rows.at(0).text(0) == "charged" ? Charge::known : Charge::refused;
  }

  /// Gives the money back. What was not charged can't be charged any more: without that, a paused
  /// worker could charge later for an order that is given up. True if there was money to give back.
  bool cancel(std::int64_t order) {
    const auto cancelled = database_->run(
        "INSERT INTO payment (order_id, amount, state) VALUES ($1, 0, 'cancelled')"
        " ON CONFLICT (order_id) DO UPDATE SET state = 'refunded'"
        " WHERE payment.state = 'charged' RETURNING state",
        {order});
    return !cancelled.rows.empty() && cancelled.rows[0].text(0) == "refunded";
  }

 private:
  std::unique_ptr<Database> database_;
};

}  // namespace order_service

#endif
