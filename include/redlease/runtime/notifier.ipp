#ifndef REDLEASE_RUNTIME_NOTIFIER_IPP
#define REDLEASE_RUNTIME_NOTIFIER_IPP

#include <condition_variable>
#include <deque>
#include <mutex>

#include <redlease/runtime/notifier.hpp>

namespace redlease::inline v1 {

const char* to_string(Event::Kind kind) noexcept {
  switch (kind) {
    case Event::Kind::acquired:
      return "acquired";
    case Event::Kind::contended:
      return "contended";
    case Event::Kind::renewed:
      return "renewed";
    case Event::Kind::renew_failed:
      return "renew_failed";
    case Event::Kind::lost:
      return "lost";
    case Event::Kind::released:
      return "released";
    case Event::Kind::in_doubt:
      return "in_doubt";
    case Event::Kind::background_error:
      return "background_error";
  }
  return "unknown";
}

namespace runtime {

struct Notifier::State {
  explicit State(std::shared_ptr<Observer> o) : observer(std::move(o)) {}

  const std::shared_ptr<Observer> observer;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Event> events;
  bool started = false;
  bool stopping = false;
  bool finished = false;
};

Notifier::Notifier(std::shared_ptr<Observer> observer)
    : state_(observer ? std::make_shared<State>(std::move(observer)) : nullptr) {}

Notifier::~Notifier() {
  if (!state_) return;
  std::unique_lock lock{state_->mutex};
  if (!state_->started) return;
  state_->stopping = true;
  state_->changed.notify_all();
  const bool self = thread_.get_id() == std::this_thread::get_id();
  const bool finished = !self && state_->changed.wait_for(lock, std::chrono::seconds{1},
                                                          [this] { return state_->finished; });
  lock.unlock();
  if (finished) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void Notifier::notify(Event event) noexcept {
  if (!state_) return;
  try {
    const std::lock_guard lock{state_->mutex};
    state_->events.push_back(std::move(event));
    if (!state_->started) {
      thread_ = std::thread{[state = state_] { run(state); }};
      state_->started = true;
    }
    state_->changed.notify_one();
  } catch (...) {
    // Nobody could be told of this either.
  }
}

void Notifier::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock{state->mutex};
  for (;;) {
    state->changed.wait(lock, [&] { return state->stopping || !state->events.empty(); });
    if (state->events.empty()) break;
    {
      const auto event = std::move(state->events.front());
      state->events.pop_front();
      lock.unlock();
      try {
        state->observer->on_event(event);
      } catch (...) {
        // An observer's trouble is its own.
      }
    }
    lock.lock();
  }
  state->finished = true;
  state->changed.notify_all();
}

}  // namespace runtime
}  // namespace redlease::inline v1

#endif
