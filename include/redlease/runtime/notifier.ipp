#ifndef REDLEASE_RUNTIME_NOTIFIER_IPP
#define REDLEASE_RUNTIME_NOTIFIER_IPP

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <thread>

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
namespace {

// A stop request doesn't wait for longer behind others' callbacks.
constexpr std::chrono::milliseconds patience{2};
// Threads that were needed for a while end when they have had nothing to do for so long.
constexpr std::chrono::milliseconds spare_time{200};
// While a callback runs, events that come are looked after so often.
constexpr std::chrono::milliseconds event_patience{20};
// An observer that is so far behind isn't told of every renewal any more.
constexpr std::size_t most_events = 65536;

bool may_be_left_out(Event::Kind kind) noexcept {
  return kind == Event::Kind::renewed || kind == Event::Kind::renew_failed;
}

}  // namespace

struct Notifier::Worker {
  std::thread thread;
  bool finished = false;
};

struct Notifier::State {
  explicit State(std::shared_ptr<Observer> o) : observer(std::move(o)) {}
  ~State() { stops.clear_and_dispose(std::default_delete<StopRequest>{}); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void reap() {
    std::erase_if(workers, [](Worker& worker) {
      if (worker.finished) worker.thread.join();
      return worker.finished;
    });
  }
  bool may_observe() const noexcept { return !events.empty() && !observing; }
  // For so long that an event need not wait for them.
  bool all_in_callbacks() const noexcept {
    return in_callbacks > 0 && in_callbacks == workers.size() &&
           Clock::now() - callback_begun > patience;
  }
  std::size_t waiting() const noexcept { return stops.size() + (may_observe() ? 1 : 0); }

  const std::shared_ptr<Observer> observer;
  std::mutex mutex;  // guards what follows; never held while user code runs
  std::condition_variable changed;
  std::list<Worker> workers;
  std::size_t idle = 0;
  std::deque<Event> events;
  bool observing = false;  // an event is being seen: the next one has to wait
  boost::intrusive::slist<StopRequest, boost::intrusive::cache_last<true>> stops;
  bool crowded = false;          // callbacks take long: each worker starts two more
  std::size_t in_callbacks = 0;  // workers that request a stop
  Clock::time_point callback_begun{};
  std::size_t begun = 0;         // stop requests and events
  std::size_t begun_before = 0;  // at the latest assist()
  Clock::time_point assist_at{};
  bool stopping = false;
  bool abandoned = false;  // by its notifier: nobody would join another worker
};

Notifier::Notifier(std::shared_ptr<Observer> observer)
    : listening_(observer != nullptr), state_(std::make_shared<State>(std::move(observer))) {}

Notifier::~Notifier() {
  std::unique_lock lock{state_->mutex};
  state_->stopping = true;
  state_->crowded = !state_->stops.empty();
  if (state_->crowded) start_another(state_);
  state_->changed.notify_all();
  const auto self = std::this_thread::get_id();
  state_->changed.wait_for(lock, std::chrono::seconds{1}, [&] {
    return std::all_of(state_->workers.begin(), state_->workers.end(), [&](const Worker& worker) {
      return worker.finished || worker.thread.get_id() == self;
    });
  });
  state_->abandoned = true;
  for (auto& worker : state_->workers) {
    if (worker.finished) {
      worker.thread.join();
    } else {
      worker.thread.detach();
    }
  }
}

void Notifier::start_worker(const std::shared_ptr<State>& state) {
  state->reap();
  auto& worker = state->workers.emplace_back();
  try {
    worker.thread = std::thread{[state, &worker] { run(state, worker); }};
  } catch (...) {
    state->workers.pop_back();
    throw;
  }
}

void Notifier::start_another(const std::shared_ptr<State>& state) noexcept {
  if (state->abandoned) return;
  try {
    start_worker(state);
  } catch (...) {
    // Out of memory or threads: tried again soon.
  }
}

void Notifier::notify(Event event) noexcept {
  if (!listening_) return;
  try {
    const std::lock_guard lock{state_->mutex};
    if (state_->events.size() >= most_events && may_be_left_out(event.kind)) return;
    state_->events.push_back(std::move(event));
    if (state_->workers.empty() || state_->all_in_callbacks()) start_worker(state_);
    state_->changed.notify_one();
  } catch (...) {
    // Nobody could be told of this either.
  }
}

void Notifier::start() {
  const std::lock_guard lock{state_->mutex};
  if (state_->workers.empty()) start_worker(state_);
}

void Notifier::request_stop(std::unique_ptr<StopRequest> request) noexcept {
  const std::lock_guard lock{state_->mutex};
  state_->stops.push_back(*request.release());
  state_->changed.notify_one();
}

Clock::time_point Notifier::assist(Clock::time_point now) noexcept {
  const std::lock_guard lock{state_->mutex};
  auto& state = *state_;
  if (state.waiting() == 0) {
    return state.in_callbacks > 0 ? now + event_patience : Clock::time_point::max();
  }
  const bool stuck = state.begun == state.begun_before;
  if (stuck && now < state.assist_at) return state.assist_at;
  if (stuck) {
    state.crowded = true;
    start_another(state_);
  }
  state.begun_before = state.begun;
  return state.assist_at = now + patience;
}

void Notifier::run(const std::shared_ptr<State>& state, Worker& self) {
  std::unique_lock lock{state->mutex};
  const auto has_work = [&] {
    return state->stopping || !state->stops.empty() || state->may_observe();
  };
  for (;;) {
    if (!state->stops.empty()) {
      std::unique_ptr<StopRequest> request{&state->stops.front()};
      state->stops.pop_front();
      ++state->begun;
      ++state->in_callbacks;
      state->callback_begun = Clock::now();
      if (state->may_observe()) state->changed.notify_one();
      state->crowded = state->crowded && state->waiting() > 0;
      // Two for each one, so that a crowd is soon served.
      for (int i = 0; i < 2 && state->crowded && state->idle == 0; ++i) start_another(state);
      lock.unlock();
      request->source.request_stop();
      request.reset();
      lock.lock();
      --state->in_callbacks;
    } else if (state->may_observe()) {
      auto event = std::move(state->events.front());
      state->events.pop_front();
      state->observing = true;
      ++state->begun;
      lock.unlock();
      try {
        state->observer->on_event(event);
      } catch (...) {
        // An observer's trouble is its own.
      }
      event = {};
      lock.lock();
      state->observing = false;
    } else if (state->stopping) {
      break;
    } else {
      const bool spare = state->idle > 0;
      ++state->idle;
      if (!spare) {
        state->changed.wait(lock, has_work);
      } else if (!state->changed.wait_for(lock, spare_time, has_work) && state->idle > 1) {
        --state->idle;
        break;
      }
      --state->idle;
    }
  }
  self.finished = true;
  state->changed.notify_all();
}

}  // namespace runtime
}  // namespace redlease::inline v1

#endif
