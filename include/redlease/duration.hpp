#ifndef REDLEASE_DURATION_HPP
#define REDLEASE_DURATION_HPP

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include <redlease/api.hpp>

namespace redlease::inline v1 {

/// What options take wherever they mean a span of time: any std::chrono duration converts to it
/// without loss of meaning. A value that doesn't fit into 64 bits of nanoseconds (about 292
/// years) saturates, and one that is not a number becomes the lowest value, so that the check of
/// the option can refuse it by name; a plain std::chrono conversion would silently wrap round.
///
///     LeaseOptions{.ttl = 3s};   Wait{.at_most = 1500us};   Duration{std::chrono::hours::max()}
class Duration {
 public:
  template <class Rep, class Period>
  // NOLINTNEXTLINE(google-explicit-constructor): `.ttl = 3s` is the point of this type
  constexpr Duration(std::chrono::duration<Rep, Period> d) noexcept : value_(saturate(d)) {}

  // NOLINTNEXTLINE(google-explicit-constructor): reads as the chrono type it stands for
  constexpr operator std::chrono::nanoseconds() const noexcept { return value_; }

  constexpr std::chrono::nanoseconds value() const noexcept { return value_; }

  /// Whole milliseconds, rounded away from zero for positive values (a ttl never gets shorter).
  constexpr std::chrono::milliseconds ceil_ms() const noexcept {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(value_);
    return ms < value_ ? ms + std::chrono::milliseconds{1} : ms;
  }

  static constexpr Duration max() noexcept { return std::chrono::nanoseconds::max(); }

  friend constexpr auto operator<=>(Duration a, Duration b) noexcept {
    return a.value_.count() <=> b.value_.count();
  }
  friend constexpr bool operator==(Duration a, Duration b) noexcept { return a.value_ == b.value_; }

 private:
  template <class Rep, class Period>
  static constexpr std::chrono::nanoseconds saturate(
      std::chrono::duration<Rep, Period> d) noexcept {
    using std::chrono::nanoseconds;
    using Exact = std::chrono::duration<long double, std::nano>;
    if constexpr (std::is_floating_point_v<Rep>) {
      if (d.count() != d.count()) return nanoseconds::min();
    }
    const auto exact = Exact{d}.count();
    if (exact >= static_cast<long double>(nanoseconds::max().count())) return nanoseconds::max();
    if (exact <= static_cast<long double>(nanoseconds::min().count())) return nanoseconds::min();
    if constexpr (std::is_floating_point_v<Rep>) {
      const auto whole = static_cast<std::int64_t>(exact);
      return nanoseconds{whole < exact ? whole + 1 : whole};
    } else {
      return ceil_ns(d);
    }
  }

  template <class Rep, class Period>
  static constexpr std::chrono::nanoseconds ceil_ns(std::chrono::duration<Rep, Period> d) noexcept {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(d);
    return ns < d ? ns + std::chrono::nanoseconds{1} : ns;
  }

  std::chrono::nanoseconds value_;
};

namespace detail {
/// "1500ms", "3s", "250us": for messages; the longest values read as "too long to count".
REDLEASE_API std::string to_text(Duration d);
}  // namespace detail

}  // namespace redlease::inline v1

#endif
