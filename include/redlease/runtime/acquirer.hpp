#ifndef REDLEASE_RUNTIME_ACQUIRER_HPP
#define REDLEASE_RUNTIME_ACQUIRER_HPP

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <redlease/clock.hpp>
#include <redlease/core/wait_plan.hpp>
#include <redlease/observer.hpp>
#include <redlease/options.hpp>
#include <redlease/runtime/backend.hpp>
#include <redlease/runtime/lease_core.hpp>
#include <redlease/store/lease_store.hpp>

namespace redlease::inline v1::detail {

/// One acquisition: what is asked for, how it is waited for, and what the observer hears of it.
class Acquirer {
 public:
  Acquirer(std::shared_ptr<runtime::ClientState> client, store::Keys keys,
           const LeaseOptions& options, Order order = Order::any);

  /// Null if the key is held. Throws Error.
  std::unique_ptr<LeaseCore> try_once();
  /// Null if the wait ended without a lease. Throws Error.
  std::unique_ptr<LeaseCore> wait_for_it(const Wait& wait);

 private:
  using Place = runtime::WaitingRoom::Place;

  bool take_at_once(core::WaitPlan& plan);
  bool step_back(const core::WaitPlan& plan);
  bool take_turn(const core::WaitPlan& plan);
  bool attempt(const core::WaitPlan& plan, Place* place = nullptr);
  void note(std::optional<store::Failure>&& failure, Clock::time_point began,
            const core::WaitPlan& plan);
  bool wait_in_queue(const Wait& wait, core::WaitPlan& plan);
  bool wait_for_all(const Wait& wait, core::WaitPlan& plan);
  bool take_in_line(const core::WaitPlan& plan);
  bool wait_in_line(const Wait& wait, core::WaitPlan& plan);
  enum class Stay { granted, over, ticket_void };
  Stay stand_in_line(const Wait& wait, core::WaitPlan& plan, store::Ticket& ticket);
  bool accept(const store::Ticket& ticket, const store::Grant& grant, const core::WaitPlan& plan);
  std::optional<runtime::News> wait_while_needed(Place& place, const Wait& wait,
                                                 Clock::time_point until);
  std::optional<Clock::time_point> next_sign(const Place& place, const Wait& wait,
                                             const store::Ticket& ticket,
                                             core::WaitPlan& plan) const;
  std::optional<Clock::time_point> next_turn(const Place& place, const Wait& wait,
                                             core::WaitPlan& plan);
  void ask_for_expiry(core::WaitPlan& plan);
  bool is_needed(const Wait& wait, runtime::News& news, bool more);
  bool use(runtime::News&& news, Clock::time_point deadline);
  void dispose(runtime::News&& news) noexcept;

  std::unique_ptr<LeaseCore> acquired();
  std::optional<store::Failure> fallen_counter();
  std::unique_ptr<LeaseCore> contended();
  [[noreturn]] void give_up(store::Failure&& failure);
  std::string what_is_there(Clock::time_point limit);
  bool listening() const noexcept { return backend_.notifier.listening(); }
  Event make_event(Event::Kind kind) const;

  const std::shared_ptr<runtime::ClientState> client_;
  runtime::Backend& backend_;
  store::Keys keys_;         // until they are the lease's
  const std::string& key_;   // the first of them, and mostly the only one
  std::size_t blocker_ = 0;  // the key that was held when they were asked for
  const Terms terms_;
  std::vector<FencingToken> drawn_before_;  // of each counter: ours must be above that
  const Clock::time_point start_;
  std::optional<store::Grant> grant_;
  std::optional<store::Failure> trouble_;         // what the latest attempt that had its time met
  std::optional<Clock::time_point> answered_at_;  // when that was
  std::string hint_;
};

}  // namespace redlease::inline v1::detail

#endif
