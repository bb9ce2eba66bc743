#include "support/resp_frames.hpp"

#include <charconv>
#include <cstddef>
#include <string_view>
#include <utility>

namespace redlease::test {
namespace {

constexpr std::size_t incomplete = 0;
constexpr std::size_t malformed = std::string_view::npos;

// Where the value that begins at `at` ends.
std::size_t value_end(std::string_view bytes, std::size_t at) {
  if (at >= bytes.size()) return incomplete;
  const char type = bytes[at];
  if (std::string_view("+-:$*_#,(!=%~>").find(type) == std::string_view::npos) return malformed;
  const std::size_t line_end = bytes.find("\r\n", at);
  if (line_end == std::string_view::npos) return incomplete;
  std::size_t end = line_end + 2;
  if (std::string_view("+-:_#,(").find(type) != std::string_view::npos) return end;

  long long count = 0;
  const auto parsed = std::from_chars(bytes.data() + at + 1, bytes.data() + line_end, count);
  if (parsed.ec != std::errc() || parsed.ptr != bytes.data() + line_end) return malformed;
  if (count < 0) return end;
  if (type == '$' || type == '!' || type == '=') {
    end += static_cast<std::size_t>(count) + 2;
    return end <= bytes.size() ? end : incomplete;
  }
  if (type == '%') count *= 2;
  for (; count > 0; --count) {
    end = value_end(bytes, end);
    if (end == incomplete || end == malformed) return end;
  }
  return end;
}

}  // namespace

std::optional<std::string> RespFrames::next() {
  if (buffer_.empty()) return std::nullopt;
  const std::size_t end = foreign_ ? malformed : value_end(buffer_, 0);
  if (end == incomplete) return std::nullopt;
  if (end == malformed) {
    foreign_ = true;
    return std::exchange(buffer_, {});
  }
  std::string value = buffer_.substr(0, end);
  buffer_.erase(0, end);
  return value;
}

}  // namespace redlease::test
