#ifndef REDLEASE_RUNTIME_WAKEUPS_HPP
#define REDLEASE_RUNTIME_WAKEUPS_HPP

#include <atomic>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include <redlease/clock.hpp>
#include <redlease/runtime/timer.hpp>
#include <redlease/runtime/waiting_room.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/store/watch_stream.hpp>
#include <redlease/wire/connector.hpp>

namespace redlease::inline v1::runtime {

/// Watches the keys that the calls of one client wait for: hears from the server when one changes,
/// looks, and tries to get a free one for the first of its waiters. One thread, which starts with
/// the first waiter, for any number of keys and waiters. Its connections are closed when nobody
/// has waited for a second or two.
///
/// It makes waiting quicker and cheaper, but nobody depends on it: where a server refuses tracking,
/// or while there is no connection, the waiters ask by themselves, at their own pace.
class Wakeups {
 public:
  /// `process`: see LineStore.
  Wakeups(wire::Connector& connector, store::LeaseStore& store, std::string_view process,
          WaitingRoom& room);
  ~Wakeups() { stop(); }
  Wakeups(const Wakeups&) = delete;
  Wakeups& operator=(const Wakeups&) = delete;

  /// Makes sure that the thread runs, if the system has one to give.
  void start() noexcept;
  /// Ends it. Nobody may be waiting any more.
  void stop() noexcept;
  /// In a child process: closes the inherited descriptors, and nothing else.
  void abandon() noexcept;

 private:
  void run() noexcept;
  void serve(Clock::time_point now) noexcept;
  void go_on(Clock::time_point now);
  void handle(const store::Sighting& sighting, Clock::time_point now);
  void conclude(const store::Sighting& sighting, Clock::time_point now);
  bool wait_until(Clock::time_point next) noexcept;

  wire::Connector& connector_;
  store::LeaseStore& store_;
  WaitingRoom& room_;

  std::mutex mutex_;  // for starting and stopping
  std::atomic<bool> running_{false};
  std::atomic<bool> stopping_{false};
  std::optional<Timer> timer_;
  std::thread thread_;

  // The thread's.
  store::WatchStream stream_;
  Clock::time_point open_at_{};        // not before, after trouble
  std::chrono::nanoseconds pause_{0};  // that was made last
  bool went_off_ = true;               // the timer has to be set anew
};

}  // namespace redlease::inline v1::runtime

#endif
