#ifndef EXAMPLES_INVENTORY_WORKER_HPP
#define EXAMPLES_INVENTORY_WORKER_HPP

/// What each of the processes does: the part to look at, if you look at one.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "ledger.hpp"
#include "orders.hpp"
#include "process.hpp"

namespace inventory {

using namespace std::chrono_literals;
using processes::Channel;

/// So short that a stopped worker loses its lease while the others are still at work. In a service
/// it is several times what the work takes on a bad day.
inline constexpr auto lease_ttl = 400ms;
/// What a worker gives to one SKU before it takes another order line first.
inline constexpr auto longest_wait = 250ms;
/// What has to be left of a lease for booking an order line under it.
inline constexpr auto room_to_book = 100ms;
/// After that many failures in a row, or that many waits for one SKU, something is wrong.
inline constexpr int most_failures = 20;

inline std::string lease_key(const std::string& sku) { return "stock:lock:" + sku; }

/// Where a worker can be stopped: when it is about to check its lease, or behind that check, when
/// it is about to write. The first is what a lease is for; against the second no lease helps.
enum class StopPoint { before_check, before_write };

// ---- what a worker tells the parent, and back --------------------------------------------------

/// "I hold the lease of this line's SKU, and stand still until you say Go."
struct Holding {
  StopPoint at{};
  std::size_t line = 0;  // its index
  std::array<char, 8> fingerprint{};
};
struct Go {};
/// "That lease is lost; I was told when I checked or released it."
struct Lost {
  redlease::LossReason reason{};
  bool wrote = false;  // whether the database took the late write
};
/// "I'm through."
struct Report {
  std::int64_t applied = 0;
  std::int64_t refused = 0;      // there was not enough stock
  std::int64_t known = 0;        // booked before, as a look into the books showed
  std::int64_t overtaken = 0;    // booked by another while this worker was at it
  std::int64_t waits_ended = 0;  // without a lease
  std::int64_t lost = 0;         // leases
  std::int64_t in_doubt = 0;     // answers that could not be found out
  std::int64_t failed = 0;       // other trouble with the server
  std::chrono::microseconds median_wait{0};
  std::chrono::microseconds p99_wait{0};
};
using Message = std::variant<Holding, Go, Lost, Report>;

// ---- the worker --------------------------------------------------------------------------------

struct Assignment {
  int worker = 0;
  std::string redis;
  std::filesystem::path database;
  std::vector<std::size_t> lines;   // which order lines, in this order
  std::optional<StopPoint> stop{};  // where it shall be stopped, if anywhere,
  std::string stop_at{};            // with this SKU
};

class Worker {
 public:
  Worker(const Assignment& assignment, const std::vector<OrderLine>& orders,
         const Channel<Message>& parent)
      : number_(assignment.worker),
        orders_(orders),
        parent_(parent),
        redis_(assignment.redis, {.client_name = fmt::format("inventory-{}", number_)}),
        ledger_(assignment.database),
        stop_(assignment.stop),
        stop_at_(assignment.stop_at),
        stop_from_(assignment.lines.size() * 3 / 4) {
    queue_.assign(assignment.lines.begin(), assignment.lines.end());
  }

  /// Works until every line is booked. Throws when that can't be done.
  Report run() {
    redis_.ping();  // rather fail now than after a number of attempts
    for (int failures = 0; !queue_.empty();) {
      const auto line = queue_.front();
      queue_.pop_front();
      if (attempt(line)) {
        failures = 0;
        continue;
      }
      if (++failures >= most_failures || busy_[orders_[line].sku] >= most_failures) give_up(line);
      queue_.push_back(line);
    }
    report_.median_wait = wait_at(0.5);
    report_.p99_wait = wait_at(0.99);
    return report_;
  }

 private:
  /// True if the line is in the books now; false if it shall be tried again later.
  bool attempt(std::size_t line) {
    using Clock = std::chrono::steady_clock;
    try {
      const auto start = Clock::now();
      auto lease = redis_.acquire(lease_key(orders_[line].sku), {.at_most = longest_wait},
                                  {.ttl = lease_ttl, .label = "stock"});
      if (!lease) {
        // Busy is an answer, not an error: there is other work.
        ++report_.waits_ended;
        ++busy_[orders_[line].sku];
        trouble_ = "the lease stays in another's hands";
        return false;
      }
      busy_.erase(orders_[line].sku);
      waits_.push_back(Clock::now() - start);
      process(line, *lease);
      lease->release();
      return true;
    } catch (const redlease::LeaseLost& lost) {
      // Another worker may be at the same line by now. What was written stands or not, only the
      // books know: ask them again, under a new lease.
      ++report_.lost;
      trouble_ = lost.what();
      tell_if_stopped(lost.loss());
    } catch (const redlease::Error& error) {
      // The server couldn't be reached, or refused. If that was after the booking, the next attempt
      // finds the line booked; that is what makes trying again harmless.
      ++(error.code() == redlease::errc::in_doubt ? report_.in_doubt : report_.failed);
      trouble_ = error.what();
      std::this_thread::sleep_for(longest_wait);  // spare a server in trouble
    }
    return false;
  }

  /// Books a line under the lease of its SKU.
  void process(std::size_t index, const redlease::Lease& lease) {
    const auto& line = orders_[index];
    if (ledger_.find(line)) {
      ++report_.known;
      return;
    }
    // Stands for what makes a lease worth its price: work that no two should do at once, like
    // asking a warehouse.
    std::this_thread::sleep_for(1ms);

    stop_if_planned(StopPoint::before_check, index, lease);
    lease.ensure_held(room_to_book);
    stop_if_planned(StopPoint::before_write, index, lease);
    count(ledger_.book(line, number_));
  }

  void count(std::optional<Outcome> outcome) {
    last_write_ = outcome;
    if (!outcome) {
      ++report_.overtaken;
    } else if (*outcome == Outcome::applied) {
      ++report_.applied;
    } else {
      ++report_.refused;
    }
  }

  [[noreturn]] void give_up(std::size_t line) const {
    const auto& [order_id, line_no, sku, quantity] = orders_[line];
    throw std::runtime_error(fmt::format("gave up on order {}, line {}, under {}: {}", order_id,
                                         line_no, lease_key(sku), trouble_));
  }

  std::chrono::microseconds wait_at(double quantile) {
    if (waits_.empty()) return {};
    const auto rank = static_cast<std::ptrdiff_t>(quantile * static_cast<double>(waits_.size()));
    std::nth_element(waits_.begin(), waits_.begin() + rank, waits_.end());
    return std::chrono::ceil<std::chrono::microseconds>(waits_[static_cast<std::size_t>(rank)]);
  }

  // ---- being stopped, which only the demonstration needs ----

  /// Stands still, holding the lease, when this is the place and time for it.
  void stop_if_planned(StopPoint here, std::size_t line, const redlease::Lease& lease) {
    if (stop_ != here || orders_[line].sku != stop_at_) return;
    if (queue_.size() > stop_from_) return;  // not in the middle of the work yet
    stop_.reset();

    Holding holding{here, line, {}};
    stopped_lease_ = lease.token().fingerprint();
    stopped_lease_.copy(holding.fingerprint.data(), holding.fingerprint.size());
    last_write_.reset();
    parent_.send(holding);
    parent_.receive();  // here the parent stops this process
  }

  void tell_if_stopped(const redlease::Loss& loss) {
    if (loss.fingerprint != stopped_lease_) return;
    parent_.send(Lost{loss.reason, last_write_.has_value()});
  }

  const int number_;
  const std::vector<OrderLine>& orders_;
  const Channel<Message>& parent_;
  redlease::Client redis_;
  Ledger ledger_;
  std::deque<std::size_t> queue_;    // indices of order lines
  std::map<std::string, int> busy_;  // the waits for a SKU that ended without a lease, in a row
  std::optional<StopPoint> stop_;
  const std::string stop_at_;
  const std::size_t stop_from_;
  std::string stopped_lease_;  // the fingerprint of its token
  std::optional<Outcome> last_write_;
  Report report_;
  std::string trouble_;  // the last one, for people
  std::vector<std::chrono::nanoseconds> waits_;
};

}  // namespace inventory

#endif
