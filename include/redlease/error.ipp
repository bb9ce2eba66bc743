#ifndef REDLEASE_ERROR_IPP
#define REDLEASE_ERROR_IPP

#include <string_view>

#include <fmt/format.h>
#include <redlease/error.hpp>

namespace redlease::inline v1 {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "redlease"; }

  std::string message(int code) const override {
    switch (static_cast<errc>(code)) {
      case errc::lost:
        return "the lease is lost";
      case errc::in_doubt:
        return "the request may or may not have run";
      case errc::unavailable:
        return "the server could not be reached, or did not answer in time";
      case errc::rejected:
        return "the server refused";
      case errc::protocol:
        return "the peer does not speak the Redis protocol";
      case errc::no_quorum:
        return "too few servers agreed";
      case errc::no_replicas:
        return "too few replicas acknowledged";
      case errc::fence_regressed:
        return "the counter of the fencing numbers fell";
    }
    return "unknown error";
  }
};

}  // namespace

const std::error_category& error_category() noexcept {
  static const Category category;
  return category;
}

std::error_code make_error_code(errc code) noexcept {
  return {static_cast<int>(code), error_category()};
}

Error::Error(errc code, const std::string& what) : std::system_error(code), message_(what) {}

const char* to_string(LossReason reason) noexcept {
  switch (reason) {
    case LossReason::expired:
      return "expired";
    case LossReason::taken:
      return "taken";
    case LossReason::missing:
      return "missing";
    case LossReason::unconfirmed:
      return "unconfirmed";
  }
  return "unknown";
}

LeaseLost::LeaseLost(const std::string& what, Loss loss)
    : Error(errc::lost, what), loss_(std::move(loss)) {}

namespace detail {

std::string describe(std::string_view operation, const Loss& loss) {
  const auto held = std::chrono::duration_cast<std::chrono::milliseconds>(loss.held_for);
  return fmt::format("{} {}: the lease is lost ({}) after {} ms; token {}", operation,
                     quote(loss.key), to_string(loss.reason), held.count(), loss.fingerprint);
}

std::string quote(std::string_view bytes) {
  constexpr std::size_t longest = 100;
  std::string out = "'";
  for (const char c : bytes.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < ' ' || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += bytes.size() > longest ? "'..." : "'";
  return out;
}

}  // namespace detail
}  // namespace redlease::inline v1

#endif
