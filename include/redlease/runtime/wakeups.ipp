#ifndef REDLEASE_RUNTIME_WAKEUPS_IPP
#define REDLEASE_RUNTIME_WAKEUPS_IPP

#include <poll.h>

#include <algorithm>
#include <array>

#include <redlease/error.hpp>
#include <redlease/runtime/quiet_thread.hpp>
#include <redlease/runtime/wakeups.hpp>

namespace redlease::inline v1::runtime {
namespace {

// After trouble the server is asked again that soon, then half as often each time.
constexpr std::chrono::milliseconds first_pause{50};
constexpr std::chrono::seconds longest_pause{3};

}  // namespace

Wakeups::Wakeups(wire::Connector& connector, store::LeaseStore& store, std::string_view process,
                 WaitingRoom& room)
    : connector_(connector), store_(store), room_(room), stream_(connector, process) {}

void Wakeups::start() noexcept {
  if (running_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock{mutex_};
  if (thread_.joinable()) return;
  try {
    if (!timer_) timer_.emplace();
    room_.use(*timer_);
    thread_ = start_quiet_thread("redlease-wakeup", [this] { run(); });
    running_.store(true, std::memory_order_release);
  } catch (...) {
    room_.decide_watch(true);  // the waiters ask by themselves
  }
}

void Wakeups::stop() noexcept {
  const std::lock_guard lock{mutex_};
  if (!thread_.joinable()) return;
  stopping_.store(true);
  room_.ring();
  thread_.join();
}

void Wakeups::abandon() noexcept {
  if (timer_) timer_->close();
  stream_.abandon();
}

void Wakeups::run() noexcept {
  while (!stopping_.load()) {
    const auto now = Clock::now();
    serve(now);
    auto next = stream_.wake_at(now);
    if (stream_.closed() && !room_.empty()) next = std::min(next, open_at_);
    next = room_.set_alarm(next, std::exchange(went_off_, false));
    if (stopping_.load()) break;  // the ring for it may just have been overwritten
    went_off_ = wait_until(next);
  }
  // Nobody waits any more. What is under way is given back with the client's last words.
  stream_.close();
  try {
    while (const auto sighting = stream_.next()) handle(*sighting, Clock::now());
  } catch (...) {
    // No memory: the ttl frees the key.
  }
}

void Wakeups::serve(Clock::time_point now) noexcept {
  const bool was_ready = stream_.ready();
  try {
    if (!room_.sweep(now)) {
      if (!was_ready || stream_.idle()) stream_.close();
    } else if (stream_.closed() && now >= open_at_) {
      stream_.open(now + connector_.timeouts().connect);
    }
    go_on(now);
  } catch (...) {
    // A server that refuses what is needed will go on to do so; a connection that broke may work
    // again at once.
    pause_ = was_ready
                 ? first_pause
                 : std::clamp<std::chrono::nanoseconds>(2 * pause_, first_pause, longest_pause);
    open_at_ = now + pause_;
    stream_.close();
  }
  try {
    while (const auto sighting = stream_.next()) handle(*sighting, now);
  } catch (...) {
    stream_.close();  // no memory
  }
  if (stream_.ready()) pause_ = {};
  room_.watch(stream_.ready(), stream_.hears_grants(), now);
  room_.decide_watch(stream_.ready() || now < open_at_);
}

void Wakeups::go_on(Clock::time_point now) {
  stream_.advance(now);
  while (const auto sighting = stream_.next()) handle(*sighting, now);
  if (!stream_.ready()) return;
  room_.watch(true, stream_.hears_grants(), now);
  bool asked = false;
  while (const auto question = room_.next_question(now)) {
    if (question->attempt) {
      stream_.attempt(question->key, *question->attempt, now);
    } else {
      stream_.look(question->key, now);
    }
    asked = true;
  }
  if (asked) stream_.advance(now);
}

void Wakeups::handle(const store::Sighting& sighting, Clock::time_point now) {
  using Kind = store::Sighting::Kind;
  switch (sighting.kind) {
    case Kind::changed:
      return room_.changed(sighting.key, now);
    case Kind::all_changed:
      return room_.all_changed(now);
    case Kind::granted:
      return room_.called(sighting.number);
    case Kind::looked:
      return room_.looked(sighting.key, sighting.ttl, now);
    case Kind::failed:
      return room_.failed(sighting.key);
    case Kind::unreleased:
      return store_.disown(sighting.key, *sighting.token, sighting.sent + sighting.demand.ttl);
    case Kind::tried:
      break;
  }
  conclude(sighting, now);
}

// How an attempt ended.
void Wakeups::conclude(const store::Sighting& sighting, Clock::time_point now) {
  auto acquisition = sighting.acquisition;
  const bool granted = acquisition.grant.has_value();
  if (granted && store::LeaseStore::lateness(sighting.demand, sighting.sent).count() >= 0) {
    acquisition.grant.reset();
    acquisition.failure = store::Failure{errc::unavailable, "the reply came late", true, false};
  }
  const bool in_doubt = acquisition.failure && acquisition.failure->in_doubt;
  if (acquisition.failure) {
    try {
      acquisition.failure->what =
          store_.describe("acquire", sighting.key, acquisition.failure->what);
    } catch (const std::bad_alloc&) {
      // The cause will do.
    }
  }
  const bool taken = room_.tried(sighting.key, acquisition, now) && acquisition.grant;
  if (granted && !taken && stream_.ready()) {
    stream_.give_back(sighting.key, *sighting.token, sighting.demand, now);
  } else if (in_doubt || (granted && !taken)) {
    store_.disown(sighting.key, *sighting.token, sighting.sent + sighting.demand.ttl);
  }
}

// True if the timer has gone off.
bool Wakeups::wait_until(Clock::time_point next) noexcept {
  const auto lines = stream_.polled();
  std::array<pollfd, 3> polled{{{timer_->fd(), POLLIN, 0}, lines[0], lines[1]}};
  (void)::poll(polled.data(), polled.size(), next > Clock::now() ? -1 : 0);
  return polled[0].revents != 0;
}

}  // namespace redlease::inline v1::runtime

#endif
