#ifndef REDLEASE_WIRE_ROUTES_HPP
#define REDLEASE_WIRE_ROUTES_HPP

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace redlease::inline v1::wire {

/// Keeps the commands for a key in order when one of them was posted: while its answer is
/// outstanding, later commands for the key take the same pipeline. Otherwise a thread that leaves a
/// lease's scope and takes the lease again could overtake itself. Keys share a route when their
/// hashes do, which costs them nothing but some freedom. Thread-safe.
class Route {
 public:
  /// The pipeline on which posted commands are under way, if there are any.
  std::optional<std::size_t> pipeline() const noexcept {
    const auto word = word_.load(std::memory_order_acquire);
    if (word < one) return std::nullopt;
    return word % one;
  }

  /// To be called before posting. Returns the pipeline to take: `wanted`, unless others are under
  /// way on another one.
  std::size_t enter(std::size_t wanted) noexcept {
    auto word = word_.load(std::memory_order_relaxed);
    for (;;) {
      const auto index = word < one ? static_cast<std::uint32_t>(wanted) : word % one;
      const auto entered = word / one * one + one + index;
      if (word_.compare_exchange_weak(word, entered, std::memory_order_acq_rel)) return index;
    }
  }

  /// To be called once for each enter(), when the answer is there or given up.
  void leave() noexcept { word_.fetch_sub(one, std::memory_order_release); }

 private:
  static constexpr std::uint32_t one = 64;  // the low bits hold the pipeline, the others a count
  std::atomic<std::uint32_t> word_{0};
};

class Routes {
 public:
  Route& of(std::string_view key) noexcept {
    return routes_[std::hash<std::string_view>{}(key) % routes_.size()];
  }

 private:
  std::array<Route, 256> routes_;
};

}  // namespace redlease::inline v1::wire

#endif
