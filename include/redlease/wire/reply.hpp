#ifndef REDLEASE_WIRE_REPLY_HPP
#define REDLEASE_WIRE_REPLY_HPP

#include <cstdint>
#include <string>
#include <vector>

namespace redlease::inline v1::wire {

/// One reply of a server, in RESP2.
struct Reply {
  enum class Type : std::uint8_t { nil, status, error, integer, string, array };

  Type type = Type::nil;
  std::int64_t integer = 0;
  std::string text;             ///< of a status, an error or a string
  std::vector<Reply> elements;  ///< of an array

  bool is_error() const noexcept { return type == Type::error; }
};

}  // namespace redlease::inline v1::wire

#endif
