// Small helpers about processes and time: what this process uses (threads, descriptors, memory),
// polling to a deadline, running code in a forked child, stopping and resuming a process.
#ifndef REDLEASE_TESTS_SUPPORT_PROCESS_HPP
#define REDLEASE_TESTS_SUPPORT_PROCESS_HPP

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <type_traits>

namespace redlease::test {

// Of the calling process, from /proc/self.
std::size_t count_threads();
std::size_t count_fds();
std::size_t rss_bytes();

// Asks `pred` at once and then every 2 ms until it is true or `at_most` is over; returns its last
// answer. `pred` is asked once more at the end, so a slow machine gets its full chance.
template <typename Predicate>
bool eventually(std::chrono::nanoseconds at_most, Predicate&& pred) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  while (!pred()) {
    if (std::chrono::steady_clock::now() >= deadline) return pred();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

// Runs `fn` in a forked child, which ends by _exit (no destructor of the parent's objects runs
// there). Returns the child's exit status: what `fn` returned, 0 if it returns nothing, 125 if it
// threw, 128 + n if signal n ended it. A child that takes longer than a minute is ended by SIGALRM.
int run_in_child(const std::function<int()>& fn);

template <typename Function>
int fork_and_wait(Function&& fn) {
  if constexpr (std::is_void_v<std::invoke_result_t<Function&>>) {
    return run_in_child([&fn] { return fn(), 0; });
  } else {
    return run_in_child([&fn] { return static_cast<int>(fn()); });
  }
}

// SIGSTOP; returns once every thread of the process has really stopped (throws after 10 s).
void pause_process(pid_t pid);
void resume_process(pid_t pid);

class Stopwatch {
 public:
  std::chrono::nanoseconds elapsed() const { return std::chrono::steady_clock::now() - start_; }
  void restart() { start_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace redlease::test

#endif
