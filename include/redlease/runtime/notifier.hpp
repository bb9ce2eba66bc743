#ifndef REDLEASE_RUNTIME_NOTIFIER_HPP
#define REDLEASE_RUNTIME_NOTIFIER_HPP

#include <memory>
#include <thread>

#include <redlease/observer.hpp>

namespace redlease::inline v1::runtime {

/// Hands events to the observer, one after the other, on a thread of its own that starts with the
/// first event. Whatever the observer does there, throwing and sleeping included, holds up nobody
/// else; it may even destroy the client that owns this.
class Notifier {
 public:
  explicit Notifier(std::shared_ptr<Observer> observer);
  /// Waits up to a second for the observer to have seen all events. An observer that is busy for
  /// longer sees the rest on a thread that is left behind.
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  /// False when there is nobody to tell: then don't trouble to make an event.
  bool listening() const noexcept { return state_ != nullptr; }

  /// Queues the event; dropped only if memory or threads are used up. Never blocks for long.
  void notify(Event event) noexcept;

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // empty without an observer
  std::thread thread_;            // guarded by the state's mutex
};

}  // namespace redlease::inline v1::runtime

#endif
