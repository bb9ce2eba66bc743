#ifndef REDLEASE_TOKEN_HPP
#define REDLEASE_TOKEN_HPP

#include <array>
#include <iosfwd>
#include <string>
#include <string_view>

#include <redlease/api.hpp>

namespace redlease::inline v1 {

/// What proves that a key in Redis is ours: a fresh version 4 UUID for every acquisition, drawn
/// from the operating system's generator, never from a seeded engine, and different after fork().
///
/// Whoever knows a token can release its lease, so its text stays out of every message, log and
/// metric: streams and fmt (see <redlease/fmt.hpp>) print the fingerprint.
class REDLEASE_API Token {
 public:
  static constexpr std::size_t size = 36;

  /// Draws a new token. Throws std::system_error if the operating system gives no random bytes.
  static Token generate();

  /// A short hash of the token, 8 hex digits: enough to tell two holders apart in a log.
  std::string fingerprint() const;

  /// The text as it stands in Redis. Keep it out of logs.
  std::string_view reveal() const noexcept { return {text_.data(), text_.size()}; }

  friend bool operator==(const Token&, const Token&) = default;

 private:
  Token() = default;
  std::array<char, size> text_{};
};

/// Prints the fingerprint.
REDLEASE_API std::ostream& operator<<(std::ostream& out, const Token& token);

namespace detail {
/// The fingerprint of any value of a key, ours or another library's.
std::string fingerprint_of(std::string_view token);

/// Evenly spread over [0, 1): for jitter.
double random_unit();

/// Counts the fork() calls between the first process of this program and the calling one. What
/// was made under another number belongs to another process and must not be used here.
unsigned process_generation() noexcept;
}  // namespace detail

}  // namespace redlease::inline v1

#endif
