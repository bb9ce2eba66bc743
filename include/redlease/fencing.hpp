#ifndef REDLEASE_FENCING_HPP
#define REDLEASE_FENCING_HPP

#include <atomic>
#include <compare>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <optional>

#include <redlease/api.hpp>

namespace redlease::inline v1 {

/// A number that rises with every acquisition of a key. A resource that remembers the highest one
/// that it has seen can refuse a holder who comes late, after the next one has begun: no lease can
/// do that (Kleppmann, "How to do distributed locking", 2016). docs/fencing.md tells how, in SQL
/// and in Redis, and what the number can't promise.
///
/// It is ordered and prints, and that is all: numbers of different keys have nothing to do with
/// each other, and gaps mean nothing.
class FencingToken {
 public:
  /// From one that was stored.
  explicit constexpr FencingToken(std::int64_t value) noexcept : value_(value) {}
  /// For storing: fits a BIGINT.
  constexpr std::int64_t value() const noexcept { return value_; }

  friend constexpr bool operator==(FencingToken, FencingToken) noexcept = default;
  friend constexpr std::strong_ordering operator<=>(FencingToken a, FencingToken b) noexcept {
    return a.value_ <=> b.value_;
  }

 private:
  std::int64_t value_;
};

/// Prints the number.
REDLEASE_API std::ostream& operator<<(std::ostream& out, FencingToken token);

/// The check for a resource that lives in this process: lets those in who come with the highest
/// number seen so far, or a higher one. Between the check and the use nothing may intervene, so
/// hold the resource's own mutex over both. Thread-safe.
class FenceGate {
 public:
  /// False for one who comes late; then nothing has changed.
  [[nodiscard]] bool admit(FencingToken token) noexcept {
    auto seen = highest_.load(std::memory_order_relaxed);
    while (token.value() > seen) {
      if (highest_.compare_exchange_weak(seen, token.value(), std::memory_order_acq_rel)) {
        return true;
      }
    }
    return token.value() == seen;
  }

  /// Nothing before the first one was let in.
  std::optional<FencingToken> highest() const noexcept {
    const auto seen = highest_.load(std::memory_order_acquire);
    if (seen == none) return std::nullopt;
    return FencingToken{seen};
  }

 private:
  static constexpr auto none = std::numeric_limits<std::int64_t>::min();
  std::atomic<std::int64_t> highest_{none};
};

}  // namespace redlease::inline v1

#endif
