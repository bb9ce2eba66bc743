#ifndef REDLEASE_TOKEN_IPP
#define REDLEASE_TOKEN_IPP

#include <pthread.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <system_error>

#include <fmt/format.h>
#include <boost/uuid/uuid.hpp>
#include <redlease/token.hpp>

namespace redlease::inline v1 {
namespace {

std::atomic<unsigned> forks{0};

// Random bytes of the operating system, fetched a few hundred at a time: one system call per
// token would cost more than all else that a client does for it. Never the same in two threads,
// nor on the two sides of a fork(). Plain data, so that it can be used at any time, also while
// the program ends.
struct Pool {
  std::array<unsigned char, 512> bytes;
  std::size_t used;
  unsigned generation;
  bool filled;
};
thread_local Pool pool;

void refill() {
  std::size_t have = 0;
  while (have < pool.bytes.size()) {
    const auto n = ::getrandom(pool.bytes.data() + have, pool.bytes.size() - have, 0);
    if (n >= 0) {
      have += static_cast<std::size_t>(n);
    } else if (errno != EINTR) {
      throw std::system_error(errno, std::system_category(), "getrandom");
    }
  }
  pool.used = 0;
  pool.generation = detail::process_generation();
  pool.filled = true;
}

template <std::size_t Size>
std::array<unsigned char, Size> draw() {
  static_assert(Size <= sizeof(Pool::bytes));
  if (!pool.filled || pool.generation != detail::process_generation() ||
      pool.used + Size > pool.bytes.size()) {
    refill();
  }
  std::array<unsigned char, Size> drawn;
  auto* const unused = pool.bytes.data() + pool.used;
  std::copy_n(unused, Size, drawn.begin());
  std::fill_n(unused, Size, static_cast<unsigned char>(0));  // handed out once, and forgotten
  pool.used += Size;
  return drawn;
}

}  // namespace

Token Token::generate() {
  // What boost::uuids::random_generator does, but with one system call for many tokens.
  boost::uuids::uuid uuid;
  const auto bits = draw<16>();
  std::copy(bits.begin(), bits.end(), uuid.begin());
  uuid.begin()[6] = static_cast<std::uint8_t>(0x40 | (uuid.begin()[6] & 0x0f));  // version 4
  uuid.begin()[8] = static_cast<std::uint8_t>(0x80 | (uuid.begin()[8] & 0x3f));  // variant 1
  // Written here since Boost before 1.76 can do it only by way of the heap.
  constexpr std::string_view digits = "0123456789abcdef";
  Token token;
  auto* out = token.text_.data();
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *out++ = '-';
    const std::uint8_t byte = uuid.begin()[i];
    *out++ = digits[byte >> 4];
    *out++ = digits[byte & 0x0f];
  }
  return token;
}

std::string Token::fingerprint() const { return detail::fingerprint_of(reveal()); }

std::ostream& operator<<(std::ostream& out, const Token& token) {
  return out << token.fingerprint();
}

namespace detail {

std::string fingerprint_of(std::string_view token) {
  // FNV-1a, folded to 32 bits: far too few to find a token by.
  std::uint64_t hash = 14695981039346656037U;
  for (const char c : token) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  return fmt::format("{:08x}", static_cast<std::uint32_t>(hash ^ (hash >> 32)));
}

double random_unit() {
  const auto bytes = draw<sizeof(std::uint32_t)>();
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  return static_cast<double>(number) * 0x1.0p-32;
}

unsigned process_generation() noexcept {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
  return forks.load(std::memory_order_relaxed);
}

}  // namespace detail
}  // namespace redlease::inline v1

#endif
