#ifndef EXAMPLES_ORDER_SERVICE_SERVICE_HPP
#define EXAMPLES_ORDER_SERVICE_SERVICE_HPP

/// The parent of the workers: hands out deliveries, and does the faults.

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "database.hpp"
#include "faults.hpp"
#include "messages.hpp"
#include "orders.hpp"
#include "process.hpp"
#include "queue.hpp"
#include "worker.hpp"

namespace order_service {

struct ServiceOptions {
  WorkerOptions worker{};
  int workers = 8;
  bool pause_workers = false;
  bool kill_workers = false;
  pid_t paused_redis = 0;  ///< its process, if it is to be paused
};

/// What the workers counted, and what became of the faults.
struct Report {
  Counts counts{};
  std::chrono::microseconds longest_wait{0};
  std::vector<Fault> faults{};
  bool all_struck = false;  ///< whether there was a place for each
};

class Service {
 public:
  Service(ServiceOptions options, const Shop& shop)
      : options_(std::move(options)), shop_(shop), queue_(shop.orders.size()) {
    std::map<std::string, int> lines;
    for (const auto& order : shop.orders) {
      for (const auto& line : order.lines) ++lines[line.sku];
    }
    const auto count = [](const auto& sku) { return sku.second; };
    if (!lines.empty()) hot_sku_ = std::ranges::max_element(lines, {}, count)->first;
    if (options_.pause_workers) to_come_.push_back(pauses());
    if (options_.kill_workers) to_come_.push_back(kills());
    if (options_.paused_redis > 0) to_come_.push_back(redis_pauses());
  }

  /// Returns when each order has come to its end, and all its deliveries.
  Report run() {
    const auto deadline = Clock::now() + 100s;
    for (int i = 0; i < options_.workers; ++i) crew_.push_back(start(crew_.size()));
    while (queue_.open() > 0) {
      if (Clock::now() > deadline) throw std::runtime_error("the orders come to no end");
      hand_out();
      hear();
      go_on_with_faults();
    }
    for (auto& member : crew_) member.channel.send(End{});
    for (auto& member : crew_) await_end(member.child);
    if (redis_pause_) await_end(redis_pause_->child());
    const auto struck = [](const Fault& fault) { return fault.struck > 0; };
    report_.all_struck = to_come_.empty() && std::ranges::all_of(report_.faults, struck);
    return std::move(report_);
  }

 private:
  struct Member {
    Child child;
    Channel<Message> channel;
    std::optional<std::size_t> order{};  // what it is at

    bool is_busy() const { return order.has_value(); }
  };

  // ---- deliveries ------------------------------------------------------------------------------

  /// Forks. Nothing of a database or of Redis may be open in this process now.
  Member start(std::size_t member) {
    auto [ours, theirs] = Channel<Message>::make_pair();
    const int number = static_cast<int>(member) + 1;
    auto child = Child::start(fmt::format("worker {}", number), [&, &line = theirs] {
      Worker{number, options_.worker, shop_, line}.run();
      return EXIT_SUCCESS;
    });
    return {std::move(child), std::move(ours)};
  }

  void hand_out() {
    queue_.arrive(arrived());
    for (std::size_t i = 0; i < crew_.size(); ++i) {
      if (crew_[i].order) continue;
      const auto order = queue_.next();
      if (!order) return;
      crew_[i].order = order;
      crew_[i].channel.send(Delivery{*order, place_of_fault(*order, i)});
    }
  }

  /// Some orders come in later, so that there are some for the faults that are still to come. All
  /// come in when those before found no place for a fault.
  std::size_t arrived() const {
    const auto all = shop_.orders.size();
    const auto is_waiting = [](const Fault& fault) { return fault.phase == Fault::Phase::waiting; };
    const bool no_place = queue_.is_dry() && std::ranges::none_of(crew_, &Member::is_busy) &&
                          std::ranges::any_of(report_.faults, is_waiting);
    return no_place ? all : all - to_come_.size() * std::min<std::size_t>(60, all / 5);
  }

  /// Waits a little for messages, and takes those that are there.
  void hear() {
    std::vector<pollfd> polled;
    for (const auto& member : crew_) polled.push_back({member.channel.descriptor(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), 5);
    for (std::size_t i = 0; i < crew_.size(); ++i) {
      if (polled[i].revents == 0) continue;
      const auto message = crew_[i].channel.try_receive();
      if (!message) {
        crew_[i].child.has_finished();
        throw std::runtime_error(fmt::format("worker {} has ended", i + 1));
      }
      if (std::holds_alternative<Standing>(*message)) strike(i);
      if (const auto* answer = std::get_if<Answer>(&*message)) take(i, *answer);
    }
  }

  void take(std::size_t member, const Answer& answer) {
    const auto order = std::exchange(crew_[member].order, std::nullopt).value();
    report_.counts += answer.counts;
    report_.longest_wait = std::max(report_.longest_wait, answer.longest_wait);
    if (answer.settled) {
      queue_.settle();
    } else {
      deliver_again(order, 50ms);
    }
    for (auto& fault : report_.faults) {
      if (fault.order == order && fault.worker == member) close(fault, answer);
    }
  }

  void deliver_again(std::size_t order, std::chrono::milliseconds later) {
    if (queue_.deliveries(order) > 60) {
      throw std::runtime_error(fmt::format("gave up on order {}", shop_.orders[order].id));
    }
    queue_.again(order, later);
  }

  static void await_end(Child& child) {
    const auto deadline = Clock::now() + 30s;
    while (!child.has_finished()) {
      if (Clock::now() > deadline) throw std::runtime_error("a process doesn't end");
      std::this_thread::sleep_for(2ms);
    }
  }

  // ---- faults ----------------------------------------------------------------------------------

  /// Where a worker has to stand still with this order, if it is one for a fault. Such an order is
  /// in nobody else's hands.
  Place place_of_fault(std::size_t order, std::size_t member) {
    using Phase = Fault::Phase;
    const auto is_on = [](const Fault& fault) {
      return fault.phase != Phase::waiting && fault.phase != Phase::over;
    };
    // The others have to do what a stopped worker waits for.
    if (std::ranges::count_if(report_.faults, is_on) >= options_.workers / 2) return {};
    for (auto& fault : report_.faults) {
      if (fault.phase != Phase::waiting) continue;
      auto place = fault.place;
      if (fault.struck > 0 ? fault.order != order : !fits(order, place)) continue;
      fault.phase = Phase::sent;
      fault.order = order;
      fault.worker = member;
      fault.place = place;
      queue_.withhold(order);
      return place;
    }
    return {};
  }

  /// An order with several lines that nobody has seen yet. Not the first ones: all workers shall be
  /// at work. The line to stand at is that of the SKU which others want most.
  bool fits(std::size_t order, Place& place) const {
    const auto& lines = shop_.orders[order].lines;
    if (order < 20 || lines.size() < 2 || queue_.deliveries(order) != 1) return false;
    if (place.step != Place::Step::reserve) return true;
    const auto hot = std::ranges::find(lines, hot_sku_, &OrderLine::sku);
    place.line = static_cast<std::size_t>(hot - lines.begin());
    return hot != lines.end() && place.line > 0;
  }

  /// The worker stands still.
  void strike(std::size_t member) {
    const auto found = std::ranges::find_if(report_.faults, [&](const Fault& fault) {
      return fault.phase == Fault::Phase::sent && fault.worker == member;
    });
    if (found == report_.faults.end()) throw std::runtime_error("a worker stands for no reason");
    auto& fault = *found;
    ++fault.struck;
    if (fault.kind == Fault::Kind::kill) return kill(fault);
    if (fault.kind == Fault::Kind::redis) {
      redis_pause_.emplace(options_.paused_redis, redis_pause);
    } else {
      crew_[member].child.stop();
    }
    fault.phase = Fault::Phase::paused;
    fault.since = Clock::now();
    if (fault.until == Fault::Until::order_settled) queue_.hand_out(fault.order);
    fault.taken = taken_by_others(fault);
  }

  void kill(Fault& fault) {
    auto& member = crew_[fault.worker];
    member.child.kill();
    member = start(fault.worker);
    fault.phase = --fault.times > 0 ? Fault::Phase::waiting : Fault::Phase::over;
    queue_.hand_out(fault.order);
    queue_.again(fault.order, 0ms);  // the broker sees that the consumer is gone
  }

  bool may_go_on(const Fault& fault) const {
    const auto stopped_for = Clock::now() - fault.since;
    if (stopped_for < lease_ttl + 100ms) return false;
    if (stopped_for > 40s) throw std::runtime_error("nobody does what a stopped worker waits for");
    if (fault.until == Fault::Until::sku_taken) return taken_by_others(fault) > fault.taken;
    if (fault.until == Fault::Until::order_settled) return is_settled(shop_.orders[fault.order]);
    return true;
  }

  std::int64_t taken_by_others(const Fault& fault) const {
    if (fault.until != Fault::Until::sku_taken) return 0;
    const auto& order = shop_.orders[fault.order];
    return ask("SELECT count(*) FROM reservation WHERE sku = $1 AND order_id <> $2",
               {order.lines[fault.place.line].sku, order.id});
  }

  bool is_settled(const Order& order) const {
    return ask("SELECT count(*) FROM orders WHERE id = $1"
               " AND state IN ('done', 'rejected', 'compensated')",
               {order.id}) > 0;
  }

  /// Over a connection that is closed again: the next worker may have to be forked.
  std::int64_t ask(const std::string& sql, const std::vector<Value>& values) const {
    for (int tries = 1;; ++tries) {
      try {
        return open_database(options_.worker.database)->run(sql, values).rows.at(0).number(0);
      } catch (const Conflict&) {
        if (tries == 20) throw;
      }
    }
  }

  /// Resumes who may go on, and begins with the next faults when these are over.
  void go_on_with_faults() {
    if (Clock::now() < next_look_) return;
    next_look_ = Clock::now() + 20ms;
    bool quiet = true;
    for (auto& fault : report_.faults) {
      if (fault.phase == Fault::Phase::paused && may_go_on(fault)) resume(fault);
      if (fault.phase != Fault::Phase::over) quiet = false;
    }
    if (!quiet || to_come_.empty()) return;
    report_.faults.insert(report_.faults.end(), to_come_.front().begin(), to_come_.front().end());
    to_come_.pop_front();
  }

  void resume(Fault& fault) {
    auto& member = crew_[fault.worker];
    fault.phase = Fault::Phase::resumed;
    fault.duration = std::chrono::floor<std::chrono::milliseconds>(Clock::now() - fault.since);
    member.channel.send(Go{});
    member.child.resume();
  }

  /// The worker is through with the delivery.
  void close(Fault& fault, const Answer& answer) {
    if (fault.phase == Fault::Phase::resumed) {
      fault.after = answer.counts;
      fault.phase = Fault::Phase::over;
      queue_.hand_out(fault.order);
    } else if (fault.phase == Fault::Phase::sent) {
      // It didn't come to that place. Another order, unless this one is struck already.
      const bool ended = fault.struck > 0 && answer.settled;
      fault.phase = ended ? Fault::Phase::over : Fault::Phase::waiting;
      queue_.hand_out(fault.order);
    }
  }

  ServiceOptions options_;
  const Shop& shop_;
  Queue queue_;
  std::string hot_sku_;
  std::deque<std::vector<Fault>> to_come_;
  std::vector<Member> crew_;
  std::optional<ServerPause> redis_pause_;
  Clock::time_point next_look_{};  // at the faults
  Report report_;
};

}  // namespace order_service

#endif
