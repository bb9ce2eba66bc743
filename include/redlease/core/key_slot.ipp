#ifndef REDLEASE_CORE_KEY_SLOT_IPP
#define REDLEASE_CORE_KEY_SLOT_IPP

#include <array>
#include <cstdint>

#include <fmt/format.h>
#include <boost/crc.hpp>
#include <redlease/core/key_slot.hpp>

namespace redlease::inline v1::core {
namespace {

constexpr unsigned slots = 16384;

unsigned checksum_slot(std::string_view text) noexcept {
  boost::crc_optimal<16, 0x1021, 0, 0, false, false> crc;  // CRC-16/XMODEM
  crc.process_bytes(text.data(), text.size());
  return crc.checksum() % slots;
}

// Empty if there is none: an empty one doesn't count either.
std::string_view hash_tag(std::string_view key) noexcept {
  const auto open = key.find('{');
  if (open == std::string_view::npos) return {};
  const auto close = key.find('}', open);
  if (close == std::string_view::npos) return {};
  return key.substr(open + 1, close - open - 1);
}

// For each slot a number whose digits belong into it.
std::array<std::uint32_t, slots> find_numbers() {
  std::array<std::uint32_t, slots> numbers{};
  unsigned missing = slots;
  for (std::uint32_t number = 1; missing > 0; ++number) {
    auto& found = numbers[checksum_slot(std::to_string(number))];
    if (found != 0) continue;
    found = number;
    --missing;
  }
  return numbers;
}

}  // namespace

unsigned slot_of(std::string_view key) noexcept {
  const auto tag = hash_tag(key);
  return checksum_slot(tag.empty() ? key : tag);
}

std::string beside(std::string_view key, std::string_view what) {
  if (!hash_tag(key).empty()) return fmt::format("{}::{}", key, what);
  if (key.find('}') == std::string_view::npos) return fmt::format("{{{}}}:{}", key, what);
  static const auto numbers = find_numbers();
  return fmt::format("{{{}}}:{}:{}", numbers[checksum_slot(key)], key, what);
}

}  // namespace redlease::inline v1::core

#endif
