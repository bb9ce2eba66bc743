#ifndef REDLEASE_FMT_HPP
#define REDLEASE_FMT_HPP

/// For users of fmt: a token prints as its fingerprint. Not part of <redlease/redlease.hpp>,
/// so that those who don't use fmt don't see it.

#include <fmt/format.h>

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

#endif
