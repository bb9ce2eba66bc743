#ifndef REDLEASE_RUNTIME_TURNS_HPP
#define REDLEASE_RUNTIME_TURNS_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <string_view>

#include <redlease/clock.hpp>
#include <redlease/core/handoff_run.hpp>

namespace redlease::inline v1::runtime {

/// Keeps one who takes and gives back the same key again and again, without a pause, from shutting
/// out other processes: they hear that the key is free after he has taken it again. So he steps
/// back now and then, by the rules of core::HandoffRun. Keys share a cell when their hashes do,
/// which costs a little patience. Thread-safe, without a lock: a race makes a turn a bit longer.
class Turns {
 public:
  using Instant = Clock::time_point;

  /// The key was really given back.
  void released(std::string_view key, Instant now) noexcept {
    cell(key).released.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }

  /// Somebody got the key after he had to wait for it: a turn begins.
  void begin(std::string_view key, Instant now) noexcept {
    cell(key).began.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }

  /// Somebody is about to take the key and would wait for it, too. Returns whether it is time to
  /// step back; then stepped_back() is to be called.
  bool is_over(std::string_view key, Instant now) noexcept {
    auto& turn = cell(key);
    const auto at = now.time_since_epoch();
    const Clock::duration released{turn.released.load(std::memory_order_relaxed)};
    const Clock::duration began{turn.began.load(std::memory_order_relaxed)};
    const bool goes_on = at - released < core::HandoffRun::step_back && began.count() != 0;
    const auto span =
        core::HandoffRun::longest_span(turn.doublings.load(std::memory_order_relaxed));
    if (goes_on && at - began < span) return false;
    turn.began.store(at.count(), std::memory_order_relaxed);
    return goes_on;
  }
  /// `for_nothing`: nobody else had come.
  void stepped_back(std::string_view key, bool for_nothing, Instant now) noexcept {
    auto& turn = cell(key);
    const auto doublings = turn.doublings.load(std::memory_order_relaxed);
    turn.doublings.store(
        for_nothing ? std::min(doublings + 1, core::HandoffRun::most_doublings) : 0,
        std::memory_order_relaxed);
    turn.began.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  struct Cell {
    std::atomic<Clock::rep> began{0};
    std::atomic<Clock::rep> released{0};
    std::atomic<int> doublings{0};
  };
  Cell& cell(std::string_view key) noexcept {
    return cells_[std::hash<std::string_view>{}(key) % cells_.size()];
  }
  std::array<Cell, 64> cells_;
};

}  // namespace redlease::inline v1::runtime

#endif
