#ifndef REDLEASE_RUNTIME_NOTIFIER_HPP
#define REDLEASE_RUNTIME_NOTIFIER_HPP

#include <boost/intrusive/slist.hpp>
#include <memory>
#include <stop_token>

#include <redlease/clock.hpp>
#include <redlease/observer.hpp>

namespace redlease::inline v1::runtime {

/// Made beforehand: a loss must be told when memory is used up, too.
struct StopRequest : boost::intrusive::slist_base_hook<
                         boost::intrusive::link_mode<boost::intrusive::normal_link>> {
  std::stop_source source;
};

/// Runs the user's code: hands events to the observer, one after the other, and requests stops,
/// whose callbacks are the user's as well. It has a thread of its own, which starts when there is
/// something to do. Whatever that code does, throwing (the observer) and sleeping included, holds
/// up nobody else: what waits behind it gets another thread. It may even destroy
/// the client that owns this.
class Notifier {
 public:
  explicit Notifier(std::shared_ptr<Observer> observer);
  /// Waits up to a second for all events to have been seen and all stops requested. What is busy
  /// for longer ends on threads that are left behind.
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  /// False when there is nobody to tell: then don't trouble to make an event.
  bool listening() const noexcept { return listening_; }

  /// Queues the event; dropped only if memory or threads are used up. Never blocks for long.
  void notify(Event event) noexcept;

  /// Makes sure that there is a thread for stop requests. Throws std::system_error.
  void start();
  /// Has a stop requested; start() must have succeeded before. Never blocks for long. assist() must
  /// be called soon after.
  void request_stop(std::unique_ptr<StopRequest> request) noexcept;
  /// Starts more threads when something waits behind callbacks that take long. Returns when to
  /// call it again; Clock::time_point::max() when nothing waits.
  Clock::time_point assist(Clock::time_point now) noexcept;

 private:
  struct Worker;
  struct State;
  static void start_worker(const std::shared_ptr<State>& state);
  static void start_another(const std::shared_ptr<State>& state) noexcept;
  static void run(const std::shared_ptr<State>& state, Worker& self);

  const bool listening_;
  const std::shared_ptr<State> state_;  // the workers' too, who may outlive this
};

}  // namespace redlease::inline v1::runtime

#endif
