#ifndef EXAMPLES_ORDER_SERVICE_RECONCILE_HPP
#define EXAMPLES_ORDER_SERVICE_RECONCILE_HPP

/// Whether the books are right, asked of the database alone.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "books.hpp"
#include "database.hpp"
#include "orders.hpp"

namespace order_service {

/// Prints each check, and remembers whether all came out well.
class Checklist {
 public:
  bool add(bool good, std::string_view what, std::string_view figures = {}) {
    fmt::print("{:<7}{}{}{}\n", good ? "ok" : "WRONG", what, figures.empty() ? "" : ": ", figures);
    all_good_ = all_good_ && good;
    return good;
  }
  bool all_good() const { return all_good_; }

 private:
  bool all_good_ = true;
};

class Reconciliation {
 public:
  Reconciliation(Database& database, const Shop& shop, Checklist& checklist)
      : database_(database), shop_(shop), checklist_(checklist) {
    for (const auto& row : database.run("SELECT id, state FROM orders").rows) {
      states_[row.number(0)] = state_of(row.text(1));
    }
  }

  /// An order comes to one end.
  void check_ends() {
    std::map<std::int64_t, int> ends;  // by order, as the journal has them
    bool agree = true;
    for (const auto& row : database_.run("SELECT order_id, state FROM journal").rows) {
      const auto state = state_of(row.text(1));
      if (!is_final(state)) continue;
      ++ends[row.number(0)];
      agree = agree && states_[row.number(0)] == state;
    }
    bool once = states_.size() == shop_.orders.size();
    for (const auto& order : shop_.orders) once = once && ends[order.id] == 1;
    checklist_.add(
        once && agree, "each order came to an end, and once",
        fmt::format("{} done + {} rejected + {} compensated = {}", count_of(State::done),
                    count_of(State::rejected), count_of(State::compensated), shop_.orders.size()));
  }

  /// An order that is done has all its lines, and no other has any.
  void check_lines() {
    using Line = std::tuple<std::int64_t, std::int64_t, std::string, std::int64_t>;
    std::set<Line> wanted;
    std::set<Line> found;
    for (const auto& order : shop_.orders) {
      if (!is_done(order.id)) continue;
      for (std::size_t line = 0; line < order.lines.size(); ++line) {
        const auto& [sku, quantity] = order.lines[line];
        wanted.emplace(order.id, static_cast<std::int64_t>(line), sku, quantity);
      }
    }
    const auto rows =
        database_.run("SELECT order_id, line_no, sku, quantity FROM reservation").rows;
    for (const auto& row : rows) {
      found.emplace(row.number(0), row.number(1), row.text(2), row.number(3));
    }
    checklist_.add(wanted == found, "what is done has all its lines, and nothing else has any",
                   fmt::format("{} lines", found.size()));
  }

  /// True if it is right.
  bool check_stock() {
    std::int64_t initial = 0;
    std::int64_t available = 0;
    std::int64_t sold = 0;
    std::int64_t wrong = 0;
    std::int64_t wrong_by = 0;
    bool negative = false;
    const auto rows = database_
                          .run(
                              "SELECT initial, available,"
                              " (SELECT COALESCE(SUM(quantity), 0) FROM reservation"
                              "  WHERE reservation.sku = stock.sku) FROM stock")
                          .rows;
    for (const auto& row : rows) {
      const auto missing = row.number(0) - row.number(1) - row.number(2);
      initial += row.number(0);
      available += row.number(1);
      sold += row.number(2);
      wrong += missing != 0;
      wrong_by += std::abs(missing);
      negative = negative || row.number(1) < 0;
    }
    checklist_.add(!negative, "stock is never negative");
    return checklist_.add(wrong == 0, "for each SKU, initial stock = what is left + what is sold",
                          wrong == 0 ? fmt::format("{} = {} + {}", initial, available, sold)
                                     : fmt::format("{} of {} SKUs are wrong, by {} pieces", wrong,
                                                   shop_.articles.size(), wrong_by));
  }

  /// An order that is done is paid, and no other is.
  void check_money() {
    std::map<std::int64_t, std::int64_t> charged;
    const auto rows =
        database_.run("SELECT order_id, amount FROM payment WHERE state = 'charged'").rows;
    for (const auto& row : rows) charged[row.number(0)] = row.number(1);
    std::map<std::int64_t, std::int64_t> due;
    std::int64_t sum = 0;
    for (const auto& order : shop_.orders) {
      if (!is_done(order.id)) continue;
      due[order.id] = shop_.price(order);
      sum += due[order.id];
    }
    checklist_.add(
        charged == due, "what is done is paid, once and exactly, and nothing else is",
        fmt::format("{} payments, {}.{:02} in all", charged.size(), sum / 100, sum % 100));
  }

 private:
  bool is_done(std::int64_t order) const {
    const auto found = states_.find(order);
    return found != states_.end() && found->second == State::done;
  }

  std::int64_t count_of(State state) const {
    std::int64_t count = 0;
    for (const auto& order : states_) count += order.second == state;
    return count;
  }

  Database& database_;
  const Shop& shop_;
  Checklist& checklist_;
  std::map<std::int64_t, State> states_;
};

}  // namespace order_service

#endif
