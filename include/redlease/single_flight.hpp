#ifndef REDLEASE_SINGLE_FLIGHT_HPP
#define REDLEASE_SINGLE_FLIGHT_HPP

#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include <redlease/clock.hpp>
#include <redlease/duration.hpp>
#include <redlease/error.hpp>

namespace redlease::inline v1 {

/// Merges what the threads of a process do at the same time: of those who call for one key, one
/// runs its function, and the others wait and get what it brought. With a short lease around the
/// work, one thread of one process does what many want: see examples/cache_rebuild.
///
/// `Result` is void or copyable, and each caller gets a copy; std::shared_ptr<const T> saves the
/// copies, and takes what can't be copied. What a run throws reaches all who share it, as one and
/// the same exception object.
///
/// A run is shared until its function is through. Once any caller has its result, the next call
/// begins a new run, and nothing of the old one is kept. So a result may rest on what was read
/// shortly before one's own call: since the start of the run that this call found under way.
/// Functions of one key never run at the same time; different keys don't wait for each other.
///
/// All functions may be called from any thread. A run that calls for its own key, directly or
/// through other keys, would wait for itself: std::invalid_argument names the key. Runs of two
/// threads that call for each other's key wait for ever, unless one of them has a bound. Without
/// memory for a run, std::bad_alloc is thrown and nothing has begun. Must not be destroyed while
/// calls are under way. A forked child makes one of its own: runs that were under way in the parent
/// never end in the child.
template <class Result>
class SingleFlight {
  static_assert(std::is_void_v<Result> ||
                    (std::is_object_v<Result> && std::copy_constructible<Result>),
                "each caller gets a copy of the result, so it must be void or copyable: "
                "std::shared_ptr<const T> will do for every T");

 public:
  /// What a bounded call returns: empty, or false if `Result` is void, when its wait ended first.
  using Bounded = std::conditional_t<std::is_void_v<Result>, bool, std::optional<Result>>;

  SingleFlight() = default;
  SingleFlight(const SingleFlight&) = delete;
  SingleFlight& operator=(const SingleFlight&) = delete;

  /// Calls `fn()` on this thread, or waits for the run that is under way, for as long as it takes.
  /// Returns or throws what the run did. No lock is held while a function runs.
  template <class Fn>
  Result run(std::string_view key, Fn&& fn) {
    const auto run = join_or_perform(key, std::forward<Fn>(fn));
    run->await(Duration::max(), {});
    if constexpr (std::is_void_v<Result>) {
      run->outcome();
    } else {
      return *run->outcome();
    }
  }

  /// The same, but waits for another's run for at most `at_most` (0: not at all), and not when
  /// `stop` is requested. The run goes on for the others. Neither cuts a run of one's own: who
  /// calls `fn` gets its result. Throws std::invalid_argument if `at_most` is negative.
  template <class Fn>
  Bounded run(std::string_view key, Duration at_most, const std::stop_token& stop, Fn&& fn) {
    if (at_most < Duration{std::chrono::nanoseconds{0}}) {
      throw std::invalid_argument("SingleFlight: at_most = " + detail::to_text(at_most) +
                                  ": must not be negative");
    }
    const auto run = join_or_perform(key, std::forward<Fn>(fn));
    return run->await(at_most, stop) ? run->outcome() : Bounded{};
  }
  template <class Fn>
  Bounded run(std::string_view key, Duration at_most, Fn&& fn) {
    return run(key, at_most, {}, std::forward<Fn>(fn));
  }

  /// How many callers wait for the run that is under way for `key`. Its function may ask, too.
  /// Doesn't block.
  std::size_t waiting(std::string_view key) const {
    const std::lock_guard lock{mutex_};
    const auto found = runs_.find(key);
    return found == runs_.end() ? 0 : found->second->waiting();
  }

 private:
  /// One run, owned by those who share it. Each has a mutex of its own, so that its many waiters,
  /// when they wake up, don't crowd before those of other keys.
  class Run {
   public:
    bool is_mine() const noexcept { return runner_ == std::this_thread::get_id(); }

    template <class Fn>
    void perform(Fn&& fn) noexcept {
      try {
        if constexpr (std::is_void_v<Result>) {
          std::invoke(std::forward<Fn>(fn));
          outcome_ = true;
        } else {
          outcome_.emplace(std::invoke(std::forward<Fn>(fn)));
        }
      } catch (...) {
        error_ = std::current_exception();
      }
    }

    void end() {
      {
        const std::lock_guard lock{mutex_};
        ended_ = true;
      }
      changed_.notify_all();
    }

    /// False if `at_most` or `stop` ended the wait before the run ended.
    bool await(Duration at_most, const std::stop_token& stop) {
      const auto start = Clock::now();
      std::unique_lock lock{mutex_};
      ++waiting_;
      while (!ended_ && !stop.stop_requested()) {
        const auto left = at_most.value() - (Clock::now() - start);
        if (left <= left.zero()) break;
        // In steps, since the clock that the wait counts on stands still while the machine sleeps.
        constexpr std::chrono::nanoseconds longest_step = std::chrono::hours{1};
        changed_.wait_for(lock, stop, left < longest_step ? left : longest_step,
                          [this] { return ended_; });
      }
      --waiting_;
      return ended_;
    }

    /// After its end, nobody changes a run any more.
    Bounded outcome() const {
      if (error_) std::rethrow_exception(error_);
      return outcome_;
    }

    std::size_t waiting() const {
      const std::lock_guard lock{mutex_};
      return waiting_;
    }

   private:
    const std::thread::id runner_ = std::this_thread::get_id();
    Bounded outcome_{};
    std::exception_ptr error_;
    mutable std::mutex mutex_;  // guards what follows; taken under SingleFlight's, never around it
    std::condition_variable_any changed_;
    std::size_t waiting_ = 0;
    bool ended_ = false;
  };

  template <class Fn>
  std::shared_ptr<Run> join_or_perform(std::string_view key, Fn&& fn) {
    static_assert(std::is_invocable_r_v<Result, Fn>, "fn() must return what converts to Result");
    std::unique_lock lock{mutex_};
    if (const auto found = runs_.find(key); found != runs_.end()) {
      if (!found->second->is_mine()) return found->second;
      throw std::invalid_argument("SingleFlight: the run for " + detail::quote(key) +
                                  " calls for its own key, and would wait for itself");
    }
    const auto place = runs_.emplace(key, std::make_shared<Run>()).first;
    lock.unlock();
    auto run = place->second;
    run->perform(std::forward<Fn>(fn));
    lock.lock();
    runs_.erase(place);  // before anybody hears of the end, so that a later call begins a new run
    lock.unlock();
    run->end();
    return run;
  }

  mutable std::mutex mutex_;                                       // guards the map
  std::map<std::string, std::shared_ptr<Run>, std::less<>> runs_;  // those under way
};

}  // namespace redlease::inline v1

#endif
