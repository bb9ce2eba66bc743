#ifndef REDLEASE_FMT_HPP
#define REDLEASE_FMT_HPP

/// For users of fmt: a token prints as its fingerprint, a fencing token as its number. Not part of
/// <redlease/redlease.hpp>, so that those who don't use fmt don't see it.

#include <fmt/format.h>

#include <redlease/fencing.hpp>
#include <redlease/token.hpp>

/// Prints the fingerprint, never the text.
template <>
struct fmt::formatter<redlease::Token> : fmt::formatter<fmt::string_view> {
  template <class Context>
  auto format(const redlease::Token& token, Context& context) const {
    const auto text = token.fingerprint();
    return fmt::formatter<fmt::string_view>::format({text.data(), text.size()}, context);
  }
};

template <>
struct fmt::formatter<redlease::FencingToken> : fmt::formatter<std::int64_t> {
  template <class Context>
  auto format(redlease::FencingToken token, Context& context) const {
    return fmt::formatter<std::int64_t>::format(token.value(), context);
  }
};

#endif
