#ifndef REDLEASE_VERSION_HPP
#define REDLEASE_VERSION_HPP

#include <string_view>

#include <redlease/api.hpp>

namespace redlease::inline v1 {

/// The version of these headers (semver.org). Before 1.0 a new minor version may break its users,
/// a new patch version doesn't.
inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;
inline constexpr std::string_view header_version = "0.1.0";

/// The version of the library that runs: a shared one may have another patch version than the
/// headers that its user was compiled with.
REDLEASE_API std::string_view version() noexcept;

}  // namespace redlease::inline v1

#endif
