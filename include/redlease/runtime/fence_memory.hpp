#ifndef REDLEASE_RUNTIME_FENCE_MEMORY_HPP
#define REDLEASE_RUNTIME_FENCE_MEMORY_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include <redlease/fencing.hpp>

namespace redlease::inline v1::runtime {

/// Remembers the highest number that this client has drawn from each counter, so that one which
/// falls, since it was deleted or lost in a failover, is noticed: whatever is drawn later than the
/// highest one was known must be above it. It takes 256 KiB from the first use on, however many
/// counters there are: of two that share a cell the latest one stays. Thread-safe.
class FenceMemory {
 public:
  /// 0 if none is known.
  FencingToken highest(std::string_view counter) {
    const auto hash = std::hash<std::string_view>{}(counter);
    const std::lock_guard lock{mutex_};
    if (cells_.empty()) return FencingToken{0};
    const auto& cell = cells_[hash % most_cells];
    return FencingToken{cell.counter == hash ? cell.highest : 0};
  }

  void note(std::string_view counter, FencingToken number) {
    const auto hash = std::hash<std::string_view>{}(counter);
    const std::lock_guard lock{mutex_};
    if (cells_.empty()) cells_.resize(most_cells);
    auto& cell = cells_[hash % most_cells];
    if (cell.counter != hash || number.value() > cell.highest) cell = {hash, number.value()};
  }

 private:
  static constexpr std::size_t most_cells = 16384;
  struct Cell {
    std::size_t counter = 0;  // its hash
    std::int64_t highest = 0;
  };

  std::mutex mutex_;
  std::vector<Cell> cells_;
};

}  // namespace redlease::inline v1::runtime

#endif
