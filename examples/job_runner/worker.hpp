#ifndef EXAMPLES_JOB_RUNNER_WORKER_HPP
#define EXAMPLES_JOB_RUNNER_WORKER_HPP

/// What each instance does: the part to look at, if you look at one.

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <redlease/redlease.hpp>
#include <set>
#include <string>
#include <system_error>
#include <thread>

#include "tasks.hpp"

namespace job_runner {

using namespace std::chrono_literals;

/// How long a task waits for another worker when its own has died. Renewed while it is worked on,
/// so it needn't be as long as the longest task.
inline constexpr auto lease_ttl = 600ms;
/// What has to be left of a lease for the last step.
inline constexpr auto room_to_finish = 50ms;
/// Between two looks when all unfinished tasks are in others' hands.
inline constexpr auto pause_between_looks = 10ms;
/// After that many failures of Redis in a row, something is wrong.
inline constexpr int most_failures = 20;

inline std::string lease_key(std::int64_t task) { return fmt::format("job:{}", task); }

/// What the tasks are about: how many steps a number takes to 1, if an even one is halved, and an
/// odd one tripled and raised by one.
inline std::string steps_to_one(const std::string& payload) {
  int steps = 0;
  for (auto n = std::stoull(payload); n != 1; ++steps) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
  return std::to_string(steps);
}

enum class Fault { none, pause_worker, kill_worker, no_lease };

struct Options {
  std::string redis = "redis://127.0.0.1:6379";
  std::string database;
  Fault fault = Fault::none;
  std::int64_t tasks = 40;
  std::int64_t workers = 4;
  std::chrono::milliseconds work_time{30};
  std::int64_t worker = 0;  // its number; 0 for the one who starts the workers

  /// In the middle of the work.
  std::int64_t task_of_the_fault() const { return (tasks + 1) / 2; }
};

class Worker {
 public:
  explicit Worker(const Options& options)
      : options_{options},
        redis_{options.redis, {.client_name = fmt::format("job-runner-{}", options.worker)}},
        tasks_{options.database} {}

  /// Works until all tasks are done.
  void run() {
    redis_.ping();  // rather fail now than after a number of attempts
    tasks_.report_in(options_.worker);
    while (!tasks_.all_done()) {
      if (!work_on_some()) std::this_thread::sleep_for(pause_between_looks);
    }
    tasks_.report(options_.worker, static_cast<std::int64_t>(left_alone_.size()));
  }

 private:
  bool work_on_some() {
    bool worked = false;
    for (const auto id : tasks_.unfinished()) worked = attempt(id) || worked;
    return worked;
  }

  /// False if there was nothing to do, or nothing that could be done now.
  bool attempt(std::int64_t id) {
    if (options_.fault == Fault::no_lease) return process(id, nullptr);
    try {
      auto lease = redis_.try_acquire(lease_key(id), {.ttl = lease_ttl, .auto_renew = true});
      failures_ = 0;
      if (!lease) {
        left_alone_.insert(id);  // somebody is at it: no need to do it twice
        return false;
      }
      const bool worked = process(id, &*lease);
      std::error_code trouble;  // the task is done or not, whatever becomes of the release
      lease->release(trouble);
      return worked;
    } catch (const redlease::Error&) {
      if (++failures_ == most_failures) throw;
      return false;  // tried again behind a pause
    }
  }

  bool process(std::int64_t id, const redlease::Lease* lease) {
    const Attempt attempt{options_.worker, ++attempts_};
    // Behind the acquisition: what was seen before may be old.
    const auto task = tasks_.begin(id, attempt);
    if (!task) return false;

    try {
      const auto result = work(*task, lease);
      if (lease) lease->ensure_held(room_to_finish);
      stop_if_planned(*task);
      // Should the lease be lost in this very instant: the version decides.
      tasks_.finish(*task, result, attempt);
    } catch (const redlease::LeaseLost&) {
      tasks_.give_up(attempt);
    }
    return true;
  }

  /// Throws LeaseLost as soon as it sees that another may be at it.
  std::string work(const Task& task, const redlease::Lease* lease) {
    constexpr int slices = 10;
    for (int slice = 0; slice < slices; ++slice) {
      if (lease) lease->ensure_held();
      std::this_thread::sleep_for(options_.work_time / slices);
      if (slice == slices / 2) die_if_planned(task);
    }
    return steps_to_one(task.payload);
  }

  // ---- faults, which only the demonstration needs ----

  void stop_if_planned(const Task& task) {
    if (is_planned(Fault::pause_worker, task)) std::raise(SIGSTOP);
  }
  void die_if_planned(const Task& task) {
    if (is_planned(Fault::kill_worker, task)) std::raise(SIGKILL);
  }
  /// Only for the first to come here: those who take the task over find it at it.
  bool is_planned(Fault fault, const Task& task) {
    return options_.fault == fault && task.id == options_.task_of_the_fault() &&
           !tasks_.another_is_at(task.id, options_.worker);
  }

  const Options options_;
  redlease::Client redis_;
  Tasks tasks_;
  std::int64_t attempts_ = 0;
  int failures_ = 0;
  std::set<std::int64_t> left_alone_;  // tasks that others were found at
};

}  // namespace job_runner

#endif
