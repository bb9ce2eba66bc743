#ifndef REDLEASE_RUNTIME_FENCE_MEMORY_HPP
#define REDLEASE_RUNTIME_FENCE_MEMORY_HPP

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include <redlease/fencing.hpp>

namespace redlease::inline v1::runtime {

/// Remembers the latest number of each counter that this client has drawn from, so that a counter
/// which falls, since it was deleted or lost in a failover, is noticed. It takes 256 KiB from the
/// first use on, however many counters there are: of two that share a cell the latest one stays.
/// Thread-safe.
class FenceMemory {
 public:
  /// Nothing if `number` is higher than all before, and remembers it. Otherwise the highest one.
  std::optional<FencingToken> fell(std::string_view counter, FencingToken number) {
    const auto hash = std::hash<std::string_view>{}(counter);
    const std::lock_guard lock{mutex_};
    if (cells_.empty()) cells_.resize(most_cells);
    auto& cell = cells_[hash % most_cells];
    const auto highest = cell.counter == hash ? cell.highest : 0;
    if (number.value() <= highest) return FencingToken{highest};
    cell = {hash, number.value()};
    return std::nullopt;
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
