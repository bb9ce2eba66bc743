// How late a thread that only sleeps wakes up, on each processor. One that is taken away from the
// machine for a while holds up the threads that happen to be on it, and no others.
#ifndef REDLEASE_TESTS_SOAK_CPU_WATCH_HPP
#define REDLEASE_TESTS_SOAK_CPU_WATCH_HPP

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <stop_token>
#include <thread>
#include <vector>

#include "soak/records.hpp"

namespace redlease::soak {

// Calls `note` with each time it woke up late.
template <class Note>
void sleep_and_note(const std::stop_token& stop, Note&& note) {
  constexpr auto period = std::chrono::milliseconds{5};
  constexpr auto tolerance = std::chrono::milliseconds{2};
  while (!stop.stop_requested()) {
    const auto due = Clock::now() + period;
    std::this_thread::sleep_for(period);
    const auto woke = Clock::now();
    if (woke - due > tolerance) note(Late{due, woke});
  }
}

class CpuWatch {
 public:
  CpuWatch() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) watch(cpu);
    }
  }

  // One list for each processor.
  std::vector<std::vector<Late>> stop() {
    threads_.clear();
    return {late_.begin(), late_.end()};
  }

 private:
  void watch(std::size_t cpu) {
    auto& late = late_.emplace_back();
    threads_.emplace_back([&late, cpu](const std::stop_token& stop) {
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(cpu, &only);
      if (::pthread_setaffinity_np(::pthread_self(), sizeof only, &only) != 0) return;
      sleep_and_note(stop, [&late](const Late& each) { late.push_back(each); });
    });
  }

  std::deque<std::vector<Late>> late_;
  std::deque<std::jthread> threads_;  // ends before what it writes to
};

}  // namespace redlease::soak

#endif
