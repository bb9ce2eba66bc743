#ifndef EXAMPLES_ORDER_SERVICE_REPORT_HPP
#define EXAMPLES_ORDER_SERVICE_REPORT_HPP

/// What is printed of a run: what became of the faults, and how often each layer saved the day.

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "books.hpp"
#include "database.hpp"
#include "faults.hpp"
#include "messages.hpp"
#include "orders.hpp"
#include "service.hpp"

namespace order_service {

constexpr std::string_view nobody = "nobody";

/// Who stopped a worker that went on after its lease was over.
inline std::string who_caught(const Counts& counts) {
  static constexpr std::pair<Fact, std::string_view> layers[] = {
      {Fact::late_write, "nobody, the late write went through"},
      {Fact::stale_fence, "the fence"},
      {Fact::charge_known, "the payment's idempotency key"},
      {Fact::charge_void, "the payment's idempotency key"},
      {Fact::stale_state, "the state machine"},
      {Fact::not_held, "ensure_held()"},
      {Fact::told_to_stop, "the stop token"},
  };
  std::string names;
  for (const auto& [fact, name] : layers) {
    if (counts[fact] == 0) continue;
    names += (names.empty() ? "" : ", then ") + std::string{name};
  }
  return names.empty() ? std::string{nobody} : names;
}

inline std::string what_became_of(Database& database, std::int64_t order) {
  const auto found = database.run("SELECT state, takes FROM orders WHERE id = $1", {order});
  if (found.rows.empty()) return "never seen";
  return fmt::format("{}, with attempt {}", found.rows[0].text(0), found.rows[0].number(1));
}

/// True unless a worker that was stopped, or cut off from Redis, went on as if nothing were.
inline bool was_caught(const Fault& fault) {
  if (fault.kind == Fault::Kind::kill || fault.struck == 0) return true;
  const auto& counts = fault.after;
  return counts[Fact::late_write] == 0 && who_caught(counts) != nobody;
}

inline void print_fault(Database& database, const Shop& shop, const Fault& fault) {
  const auto& order = shop.orders[fault.order];
  const auto line =
      fault.place.step != Place::Step::reserve
          ? ""
          : fmt::format(", line {} ({})", fault.place.line + 1, order.lines[fault.place.line].sku);
  if (fault.struck == 0) {
    fmt::print("  A worker should have been struck {}, and was not.\n", fault.where);
  } else if (fault.kind == Fault::Kind::pause) {
    fmt::print("  Worker {} was stopped {}: order {}{}, for {} ms. Caught by {}.\n",
               fault.worker + 1, fault.where, order.id, line, fault.duration.count(),
               who_caught(fault.after));
  } else if (fault.kind == Fault::Kind::redis) {
    fmt::print("  Redis was paused for {} ms, {}: worker {}, order {}. Caught by {}.\n",
               redis_pause.count(), fault.where, fault.worker + 1, order.id,
               who_caught(fault.after));
  } else {
    fmt::print("  {} killed {}: order {}{}. In the end it is {}.\n",
               fault.struck == 1 ? "A worker was" : "One worker after the other was", fault.where,
               order.id, line, what_became_of(database, order.id));
  }
}

inline void print_faults(Database& database, const Shop& shop, const Report& report) {
  for (const auto& fault : report.faults) print_fault(database, shop, fault);
  if (!report.faults.empty()) fmt::print("\n");
}

inline void print_layers(const Report& report) {
  struct Line {
    std::string_view layer, what;
    Fact fact;
  };
  static constexpr Line lines[] = {
      {"lease", "had at once", Fact::at_once},
      {"", "had after a wait: another order held one of the SKUs", Fact::after_wait},
      {"", "not had in time: the order is delivered again", Fact::wait_ended},
      {"", "Redis didn't answer: the order is delivered again", Fact::no_answer},
      {"", "lost: the stop token ended the work", Fact::told_to_stop},
      {"", "lost: ensure_held() held the write back", Fact::not_held},
      {"", "lost: noticed behind the last write only", Fact::lost_at_end},
      {"fence", "write refused: a later holder has been here", Fact::stale_fence},
      {"constraint", "write refused: not enough stock", Fact::no_stock},
      {"idempotency", "delivery of an order that is settled", Fact::settled},
      {"", "charge that was made before", Fact::charge_known},
      {"", "charge refused: the order was given up", Fact::charge_void},
      {"state machine", "write refused: another has moved the order on", Fact::stale_state},
      {"transactions", "rolled back by the database, and tried again", Fact::conflict},
      {"", "the answer to a COMMIT got lost", Fact::commit_unsure},
      {"", "the connection broke: the order is delivered again", Fact::no_database},
      {"compensation", "order left half done: taken up again", Fact::taken_up},
      {"", "order given up: left half done too often", Fact::compensated},
      {"", "lines whose stock was put back", Fact::lines_back},
      {"", "payment given back", Fact::refunded},
      {"none", "late write went through", Fact::late_write},
  };
  fmt::print("{:<15}{:<56}{:>6}\n", "layer", "what happened", "times");
  for (const auto& [layer, what, fact] : lines) {
    fmt::print("{:<15}{:<56}{:>6}\n", layer, what, report.counts[fact]);
  }
  fmt::print("\n");
}

/// How many pairs of orders name two SKUs in opposite order: the ones that could deadlock.
inline std::int64_t opposite_pairs(const Shop& shop) {
  std::map<std::pair<std::string, std::string>, std::int64_t> orders;
  for (const auto& order : shop.orders) {
    for (std::size_t i = 0; i < order.lines.size(); ++i) {
      for (std::size_t j = i + 1; j < order.lines.size(); ++j) {
        ++orders[{order.lines[i].sku, order.lines[j].sku}];
      }
    }
  }
  std::int64_t pairs = 0;
  for (const auto& [skus, count] : orders) {
    const auto opposite = orders.find({skus.second, skus.first});
    if (skus.first < skus.second && opposite != orders.end()) pairs += count * opposite->second;
  }
  return pairs;
}

}  // namespace order_service

#endif
