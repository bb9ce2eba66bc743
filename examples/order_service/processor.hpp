#ifndef EXAMPLES_ORDER_SERVICE_PROCESSOR_HPP
#define EXAMPLES_ORDER_SERVICE_PROCESSOR_HPP

/// What is done with an order: the part to look at, if you look at one, and to take over.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <redlease/redlease.hpp>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "books.hpp"
#include "orders.hpp"
#include "payments.hpp"
#include "probe.hpp"

namespace order_service {

using namespace std::chrono_literals;

/// Short, so that a demonstration sees leases end. In a service it is several times what an order
/// takes on a bad day; renewal does the rest.
inline constexpr auto lease_ttl = 900ms;
/// After that long without the leases a worker takes another order first.
inline constexpr auto longest_wait = 1500ms;
/// What has to be left of the lease when a write begins: the time that it may take.
inline constexpr auto room_to_write = longest_database_wait + 150ms;
/// How often a transaction is tried that the database rolls back.
inline constexpr int most_tries = 3;
/// How often an order is begun with. One that is left half done each time is given up.
inline constexpr int most_takes = 2;

/// The hash tag keeps the keys of one lease in one slot of a Cluster.
inline std::string lease_key(const std::string& sku) { return "{shop}:stock:" + sku; }

/// What can be turned off, to see what it is for.
struct Layers {
  bool lease = true;      ///< off: each worker has keys of its own, so nobody excludes anybody
  bool fence = true;      ///< off: everybody writes with the same number
  bool condition = true;  ///< off: stock is written as it was read, less what is taken
};

class Processor {
 public:
  /// `worker`: its number, for the journal.
  Processor(int worker, Layers layers, std::string database, redlease::Client& redis,
            const Shop& shop, Probe& probe)
      : worker_(worker),
        layers_(layers),
        database_(std::move(database)),
        redis_(redis),
        shop_(shop),
        probe_(probe) {}

  /// True when the order has come to its end, by whomever. False if it shall be delivered again:
  /// each step is harmless when it is done once more.
  bool handle(const Order& order) {
    try {
      return process(order);
    } catch (const redlease::LeaseLost&) {
      // The next holder may be at work already. Nothing more is written, not even to clean up:
      // whoever has the leases next finds what stands, and goes on from there.
      probe_.count(Fact::not_held);
    } catch (const Stopped&) {
      probe_.count(Fact::told_to_stop);  // the same, noticed between two steps
    } catch (const Overtaken& overtaken) {
      // There is a later holder, and a write of ours came too late. It was rolled back.
      const bool by_fence = overtaken.by() == Overtaken::By::fence;
      probe_.count(by_fence ? Fact::stale_fence : Fact::stale_state);
    } catch (const redlease::Error& error) {
      // A counter of fencing numbers has lost its memory: an operator has to see to it.
      if (error.code() == redlease::errc::fence_regressed) throw;
      probe_.count(Fact::no_answer);
    } catch (const CommitInDoubt&) {
      // Whether it stands, the next one to take the order over reads in the books.
      probe_.count(Fact::commit_unsure);
      books_.reset();
    } catch (const DatabaseUnavailable&) {
      probe_.count(Fact::no_database);
      books_.reset();
    } catch (const Conflict&) {
      // Tried often enough for now.
    }
    return false;
  }

 private:
  /// An order under its lease.
  struct Work {
    const Order& order;
    redlease::Lease lease;
    std::stop_token lost;  ///< requested when the lease is lost
    Fences fences;
    Progress progress{};
  };

  struct Stopped {};

  bool process(const Order& order) {
    connect();
    if (books_->is_settled(order)) return settled_before();  // a look is cheaper than a lease

    auto work = acquire(order);
    if (!work) return false;  // busy is an answer, not an error: there are other orders

    work->progress = write(*work, [&] { return books_->take_over(order, work->fences); });
    const auto& progress = work->progress;
    if (is_final(progress.state)) return settled_before();
    if (progress.takes > 1) probe_.count(Fact::taken_up);
    if (progress.takes > most_takes && progress.state < State::paid) give_up(*work);

    if (progress.state == State::received) reserve(*work);
    if (progress.state == State::reserved) pay(*work);
    if (progress.state == State::paid) confirm(*work);

    std::error_code late;       // what is written stands, whatever becomes of the release
    work->lease.release(late);  // other trouble than a loss: the ttl frees the keys
    if (late == redlease::errc::lost) probe_.count(Fact::lost_at_end);
    return true;
  }

  /// The leases on all SKUs of an order, or none: two orders that name them in opposite order never
  /// wait for each other.
  std::optional<Work> acquire(const Order& order) {
    std::vector<std::string> keys;
    for (const auto& line : order.lines) keys.push_back(key_of(line.sku));

    const auto start = std::chrono::steady_clock::now();
    bool waited = false;
    const auto note = [&waited] { return waited = true; };  // not asked when it is had at once
    auto lease = redis_.acquire_all(
        keys, {.at_most = longest_wait, .still_needed = note},
        {.ttl = lease_ttl, .auto_renew = true, .fencing = true, .label = "order"});
    probe_.count(!lease ? Fact::wait_ended : waited ? Fact::after_wait : Fact::at_once);
    probe_.waited(std::chrono::steady_clock::now() - start);
    if (!lease) return std::nullopt;

    auto lost = lease->stop_token();
    auto fences = fences_of(order, *lease);
    return Work{order, std::move(*lease), std::move(lost), std::move(fences)};
  }

  /// Line by line, each in its own transaction: other orders get in between, and what is reserved
  /// stays when this process dies.
  void reserve(Work& work) {
    const auto& lines = work.order.lines;
    for (std::size_t line = 0; line < lines.size(); ++line) {
      if (work.progress.reserved.contains(line)) continue;  // by the one who had it before
      work_for(1ms, work.lost);                             // ask the warehouse
      const auto fence = work.fences.at(lines[line].sku);
      const bool enough = write(work, {Place::Step::reserve, {}, line}, [&] {
        return books_->reserve(work.order, line, fence, work.progress);
      });
      if (!enough) {
        probe_.count(Fact::no_stock);
        return end(work, State::rejected);
      }
    }
    advance(work, {}, State::reserved);
  }

  /// The point of no return. The provider is another system, so two transactions are needed;
  /// between the two the order is paid, and the books don't know it yet. That is why a charge that
  /// was made before counts as made.
  void pay(Work& work) {
    probe_.pass({Place::Step::charge, Place::Moment::at_work});
    work_for(2ms, work.lost);  // talk to the provider
    const auto charge = write(work, {Place::Step::charge}, [&] {
      return payments_->charge(work.order.id, shop_.price(work.order));
    });
    if (charge == Charge::refused) {
      probe_.count(Fact::charge_void);
      throw Overtaken{Overtaken::By::state, "the order was given up"};
    }
    if (charge == Charge::known) probe_.count(Fact::charge_known);
    advance(work, {Place::Step::charged}, State::paid);
  }

  void confirm(Work& work) {
    advance(work, {Place::Step::confirm}, State::done);
    probe_.count(Fact::done);
  }

  /// An order that was left half done too often. First the money: nobody can charge for it from
  /// then on. Then the stock, and with it the end. If this, too, is left half done, it is done
  /// again.
  void give_up(Work& work) {
    const bool refunded = write(work, [&] { return payments_->cancel(work.order.id); });
    if (refunded) probe_.count(Fact::refunded);
    end(work, State::compensated);
  }

  /// Puts back what is reserved, and ends the order.
  void end(Work& work, State state) {
    const auto lines = write(
        work, [&] { return books_->put_back(work.order, work.fences, state, work.progress); });
    probe_.count(Fact::lines_back, static_cast<std::int64_t>(lines));
    probe_.count(state == State::rejected ? Fact::rejected : Fact::compensated);
  }

  void advance(Work& work, Place place, State next) {
    write(work, place, [&] { return books_->advance(work.order, next, work.progress); });
  }

  /// Each transaction: make sure of the lease, with room for the write, and write. The database
  /// decides; see books.hpp.
  template <class Step>
  std::invoke_result_t<Step&> write(const Work& work, Place place, Step step) {
    for (int tries = 1;; ++tries) {
      probe_.pass(place.at(Place::Moment::before_check));
      work.lease.ensure_held(room_to_write);
      probe_.pass(place.at(Place::Moment::before_write));  // checked, and not yet written
      try {
        auto result = step();
        if (!work.lease.held() && wrote(result)) probe_.count(Fact::late_write);
        return result;
      } catch (const Conflict&) {
        probe_.count(Fact::conflict);
        if (tries == most_tries) throw;
      }
    }
  }

  template <class Step>
  std::invoke_result_t<Step&> write(const Work& work, Step step) {
    return write(work, Place{}, std::move(step));
  }

  // ---- what it needs for that ------------------------------------------------------------------

  static bool wrote(bool reserved) { return reserved; }
  static bool wrote(Charge charge) { return charge == Charge::charged; }
  static bool wrote(const auto&) { return true; }

  Fences fences_of(const Order& order, const redlease::Lease& lease) const {
    const bool fenced = layers_.lease && layers_.fence;
    Fences fences;
    for (const auto& [sku, quantity] : order.lines) {
      fences.emplace(sku, fenced ? lease.fencing_token(key_of(sku)) : redlease::FencingToken{0});
    }
    return fences;
  }

  std::string key_of(const std::string& sku) const {
    return layers_.lease ? lease_key(sku) : lease_key(sku) + ":" + std::to_string(worker_);
  }

  /// Stands for work that takes its time, and looks at the stop token at its end.
  static void work_for(std::chrono::milliseconds time, const std::stop_token& lost) {
    std::this_thread::sleep_for(time);
    if (lost.stop_requested()) throw Stopped{};
  }

  bool settled_before() {
    probe_.count(Fact::settled);
    return true;
  }

  void connect() {
    if (books_) return;
    books_.emplace(open_database(database_), worker_, layers_.condition);
    payments_.emplace(open_database(database_));
  }

  const int worker_;
  const Layers layers_;
  const std::string database_;
  redlease::Client& redis_;
  const Shop& shop_;
  Probe& probe_;
  std::optional<Books> books_;  // empty: not connected
  std::optional<Payments> payments_;
};

}  // namespace order_service

#endif
