#ifndef EXAMPLES_ORDER_SERVICE_BOOKS_HPP
#define EXAMPLES_ORDER_SERVICE_BOOKS_HPP

/// The books of the service, and every statement that changes them. They stay right whoever writes,
/// however late; leases make it rare that two want to write the same. Four patterns see to that:
///
///   fence        each SKU's row remembers the highest fencing number it has seen. A holder raises
///                it first, before he reads; from then on earlier holders are refused.
///   constraint   stock is taken only where there is enough, by the UPDATE itself.
///   idempotency  the order, its lines and its payment have keys of their own: done twice is once.
///   state        an order moves on only from the state and version that the writer knows.
///
/// Transactions change rows in the same order, stock by SKU and then the order, so that no two wait
/// for each other.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <redlease/fencing.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "database.hpp"
#include "orders.hpp"

namespace order_service {

// ---- what an order goes through ----------------------------------------------------------------

/// received -> reserved -> paid -> done. Instead of reserved: rejected, as stock doesn't suffice.
/// From received or reserved: compensated, when it was left half done too often. From paid on there
/// is only forward.
enum class State { received, reserved, paid, done, rejected, compensated };

constexpr std::string_view state_names[] = {"received", "reserved", "paid",
                                            "done",     "rejected", "compensated"};

inline std::string name_of(State state) {
  return std::string{state_names[static_cast<std::size_t>(state)]};
}

inline State state_of(std::string_view name) {
  for (const auto state : {State::received, State::reserved, State::paid, State::done,
                           State::rejected, State::compensated}) {
    if (name == name_of(state)) return state;
  }
  throw std::runtime_error(fmt::format("no state of an order: {}", name));
}

inline bool is_final(State state) { return state >= State::done; }

/// What a worker knows of an order that it holds. Whatever it does with it goes by that, and is
/// refused when it is no longer so.
struct Progress {
  State state{};
  std::int64_t version = 0;
  std::int64_t takes = 0;                         ///< how often somebody began with it
  std::set<std::size_t> reserved;                 ///< lines
  std::map<std::string, std::int64_t> available;  ///< by SKU, when the fences were raised
};

/// The fencing number for each SKU. Sorted, so that all transactions go through them in one order.
using Fences = std::map<std::string, redlease::FencingToken>;

/// Thrown when a later holder has been here: what was to be written is rolled back. Whoever gets it
/// leaves the order alone.
class Overtaken : public std::runtime_error {
 public:
  enum class By { fence, state };
  Overtaken(By by, const std::string& what) : std::runtime_error(what), by_(by) {}
  By by() const { return by_; }

 private:
  By by_;
};

// ---- the books ---------------------------------------------------------------------------------

class Books {
 public:
  /// `conditional`: false writes stock as an object mapper does, with the number that was read
  /// earlier. It is here to show what that leads to.
  Books(std::unique_ptr<Database> database, int worker, bool conditional = true)
      : database_(std::move(database)), worker_(worker), conditional_(conditional) {}

  static void create(Database& database, const Shop& shop);

  /// Whether the order has come to its end. To be asked before a lease is taken: it costs a read.
  bool is_settled(const Order& order) {
    const auto found = database_->run("SELECT state FROM orders WHERE id = $1", {order.id});
    return !found.rows.empty() && is_final(state_of(found.rows[0].text(0)));
  }

  /// The first write under a lease. Raises the fences and takes the order over: it is received, if
  /// it is new, and its version rises, so that whoever had it before is overtaken.
  Progress take_over(const Order& order, const Fences& fences);

  /// Takes the stock of one line. False if there is not enough; then nothing has changed.
  bool reserve(const Order& order, std::size_t line, redlease::FencingToken fence,
               Progress& progress);

  /// Moves the order on.
  State advance(const Order& order, State next, Progress& progress) {
    database_->transact([&](Session& session) {
      step(session, order, progress, next);
      return true;
    });
    moved(progress, next);
    return next;
  }

  /// Puts back what the order has reserved, and ends it. Returns how many lines that were.
  std::size_t put_back(const Order& order, const Fences& fences, State end, Progress& progress);

 private:
  void raise(Session& session, const std::string& sku, redlease::FencingToken fence,
             Progress& progress);
  bool take(Session& session, const OrderLine& line, redlease::FencingToken fence,
            const Progress& progress);
  void give(Session& session, const OrderLine& line, redlease::FencingToken fence,
            const Progress& progress);
  void step(Session& session, const Order& order, const Progress& progress, State next);

  static void moved(Progress& progress, State state) {
    progress.state = state;
    ++progress.version;
  }

  [[noreturn]] static void refused_by_fence(const std::string& sku, redlease::FencingToken fence) {
    throw Overtaken{Overtaken::By::fence, fmt::format("{}: {} is too old", sku, fence.value())};
  }

  std::unique_ptr<Database> database_;
  int worker_;
  bool conditional_;
};

inline Progress Books::take_over(const Order& order, const Fences& fences) {
  return database_->transact([&](Session& session) {
    Progress progress;
    for (const auto& [sku, fence] : fences) raise(session, sku, fence, progress);
    session.run(
        "INSERT INTO orders (id, state, version, takes) VALUES ($1, 'received', 0, 0)"
        " ON CONFLICT (id) DO NOTHING",
        {order.id});
    session.run(
        "UPDATE orders SET version = version + 1, takes = takes + 1"
        " WHERE id = $1 AND state IN ('received', 'reserved', 'paid')",
        {order.id});
    const auto found =
        session.run("SELECT state, version, takes FROM orders WHERE id = $1", {order.id});
    progress.state = state_of(found.rows.at(0).text(0));
    progress.version = found.rows.at(0).number(1);
    progress.takes = found.rows.at(0).number(2);
    const auto lines =
        session.run("SELECT line_no FROM reservation WHERE order_id = $1", {order.id});
    for (const auto& row : lines.rows) {
      progress.reserved.insert(static_cast<std::size_t>(row.number(0)));
    }
    return progress;
  });
}

/// The fence comes first and the read with it. Were it the other way round, an earlier holder could
/// still write between the two, and what was read would be wrong.
inline void Books::raise(Session& session, const std::string& sku, redlease::FencingToken fence,
                         Progress& progress) {
  const auto raised =
      session.run("UPDATE stock SET fence = $1 WHERE sku = $2 AND fence <= $1 RETURNING available",
                  {fence.value(), sku});
  if (raised.rows.empty()) refused_by_fence(sku, fence);
  progress.available[sku] = raised.rows[0].number(0);
}

inline bool Books::reserve(const Order& order, std::size_t line, redlease::FencingToken fence,
                           Progress& progress) {
  const auto& wanted = order.lines[line];
  const bool reserved = database_->transact([&](Session& session) {
    if (!take(session, wanted, fence, progress)) return false;
    const auto inserted = session.run(
        "INSERT INTO reservation (order_id, line_no, sku, quantity) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (order_id, line_no) DO NOTHING",
        {order.id, static_cast<std::int64_t>(line), wanted.sku, wanted.quantity});
    if (inserted.changed == 0) {
      throw Overtaken{Overtaken::By::state, fmt::format("order {}: reserved already", order.id)};
    }
    step(session, order, progress, State::received);
    return true;
  });
  if (!reserved) return false;
  moved(progress, State::received);
  progress.reserved.insert(line);
  progress.available[wanted.sku] -= wanted.quantity;  // should the SKU come again in this order
  return true;
}

/// The heart of it: one statement checks fence and stock, and writes.
inline bool Books::take(Session& session, const OrderLine& line, redlease::FencingToken fence,
                        const Progress& progress) {
  const auto& [sku, quantity] = line;
  if (!conditional_) {
    const auto left = progress.available.at(sku) - quantity;  // as it was some time ago
    if (left < 0) return false;
    const auto written =
        session.run("UPDATE stock SET available = $1, fence = $2 WHERE sku = $3 AND fence <= $2",
                    {left, fence.value(), sku});
    if (written.changed == 0) refused_by_fence(sku, fence);
    return true;
  }
  const auto taken = session.run(
      "UPDATE stock SET available = available - $1, fence = $2"
      " WHERE sku = $3 AND available >= $1 AND fence <= $2",
      {quantity, fence.value(), sku});
  if (taken.changed == 1) return true;

  // No row was changed. Why not? Who is overtaken must not say that there is no stock.
  const auto found =
      session.run("SELECT available, fence FROM stock WHERE sku = $1", {sku}).rows.at(0);
  if (found.number(1) > fence.value()) refused_by_fence(sku, fence);
  if (found.number(0) < quantity) return false;
  throw Conflict{fmt::format("{} has changed since", sku)};  // another try will tell
}

inline void Books::give(Session& session, const OrderLine& line, redlease::FencingToken fence,
                        const Progress& progress) {
  const auto& [sku, quantity] = line;
  const auto given =
      conditional_
          ? session.run(
                "UPDATE stock SET available = available + $1, fence = $2"
                " WHERE sku = $3 AND fence <= $2",
                {quantity, fence.value(), sku})
          : session.run(
                "UPDATE stock SET available = $1, fence = $2 WHERE sku = $3 AND fence <= $2",
                {progress.available.at(sku) + quantity, fence.value(), sku});
  if (given.changed == 0) refused_by_fence(sku, fence);
}

/// The order's part of each transaction: on from the state and version that the writer knows, or
/// not at all. A change of state goes into the journal.
inline void Books::step(Session& session, const Order& order, const Progress& progress,
                        State next) {
  const auto stepped = session.run(
      "UPDATE orders SET state = $1, version = version + 1"
      " WHERE id = $2 AND state = $3 AND version = $4",
      {name_of(next), order.id, name_of(progress.state), progress.version});
  if (stepped.changed == 0) {
    throw Overtaken{Overtaken::By::state,
                    fmt::format("order {} is no longer {} in version {}", order.id,
                                name_of(progress.state), progress.version)};
  }
  if (next == progress.state) return;
  session.run("INSERT INTO journal (order_id, version, state, worker) VALUES ($1, $2, $3, $4)",
              {order.id, progress.version + 1, name_of(next), std::int64_t{worker_}});
}

inline std::size_t Books::put_back(const Order& order, const Fences& fences, State end,
                                   Progress& progress) {
  std::map<std::string, std::int64_t> sums;  // by SKU: sorted, each once
  for (const auto line : progress.reserved) {
    sums[order.lines[line].sku] += order.lines[line].quantity;
  }
  database_->transact([&](Session& session) {
    for (const auto& [sku, sum] : sums) give(session, {sku, sum}, fences.at(sku), progress);
    session.run("DELETE FROM reservation WHERE order_id = $1", {order.id});
    step(session, order, progress, end);
    return true;
  });
  moved(progress, end);
  return std::exchange(progress.reserved, {}).size();
}

inline void Books::create(Database& database, const Shop& shop) {
  database.transact([&](Session& session) {
    session.run(
        "CREATE TABLE stock (sku TEXT PRIMARY KEY, initial BIGINT NOT NULL,"
        " available BIGINT NOT NULL CHECK (available >= 0), fence BIGINT NOT NULL DEFAULT 0)");
    session.run(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, state TEXT NOT NULL,"
        " version BIGINT NOT NULL, takes BIGINT NOT NULL)");
    session.run(
        "CREATE TABLE reservation (order_id BIGINT NOT NULL, line_no BIGINT NOT NULL,"
        " sku TEXT NOT NULL, quantity BIGINT NOT NULL, PRIMARY KEY (order_id, line_no))");
    session.run(
        "CREATE TABLE journal (order_id BIGINT NOT NULL, version BIGINT NOT NULL,"
        " state TEXT NOT NULL, worker BIGINT NOT NULL, PRIMARY KEY (order_id, version))");
    for (const auto& [sku, article] : shop.articles) {
      session.run("INSERT INTO stock (sku, initial, available) VALUES ($1, $2, $2)",
                  {sku, article.stock});
    }
    return true;
  });
}

}  // namespace order_service

#endif
