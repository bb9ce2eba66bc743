#ifndef REDLEASE_WIRE_SERVER_ERROR_IPP
#define REDLEASE_WIRE_SERVER_ERROR_IPP

#include <algorithm>
#include <array>

#include <redlease/wire/server_error.hpp>

namespace redlease::inline v1::wire {
namespace {

bool is_code(std::string_view word) noexcept {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::string_view first_word(std::string_view text) noexcept {
  return text.substr(0, text.find(' '));
}

// What looks like a token: a UUID, as 8-4-4-4-12 hex digits.
bool is_token(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (dash ? c != '-' : !hex) return false;
  }
  return true;
}

// A request for many leases has many secrets; none of them is to be seen if a peer repeats it.
void mask_tokens(std::string& text) {
  constexpr std::size_t size = 36;
  for (std::size_t at = 0; at + size <= text.size(); ++at) {
    if (is_token(std::string_view{text}.substr(at, size))) text.replace(at, size, "***");
  }
}

// States that a server leaves again by itself or by failover.
constexpr std::array<std::string_view, 9> transient_codes{"LOADING",     "BUSY",     "READONLY",
                                                          "MASTERDOWN",  "MISCONF",  "OOM",
                                                          "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS"};

}  // namespace

std::string_view error_code(std::string_view text) noexcept {
  const auto code = first_word(text);
  if (code != "ERR" || !text.starts_with("ERR Error running script")) return code;
  // The wrapped error stands behind the script's position: "...: @user_script:1: -OOM command".
  for (auto at = text.find(": "); at != std::string_view::npos; at = text.find(": ", at + 2)) {
    auto inner = text.substr(at + 2);
    if (inner.starts_with('-')) inner.remove_prefix(1);
    if (const auto word = first_word(inner); is_code(word) && word != "ERR") return word;
  }
  return code;
}

ServerError classify(std::string_view text) noexcept {
  const auto code = error_code(text);
  if (code == "NOSCRIPT") return ServerError::no_script;
  if (code == "WRONGTYPE") return ServerError::wrong_type;
  if (std::find(transient_codes.begin(), transient_codes.end(), code) != transient_codes.end()) {
    return ServerError::transient;
  }
  if (text.starts_with("ERR max number of clients reached")) return ServerError::transient;
  return ServerError::permanent;
}

std::string printable(std::string_view text, std::initializer_list<std::string_view> secrets) {
  constexpr std::size_t longest = 300;
  std::string out{text.substr(0, text.find(", with args beginning with"))};
  for (const auto secret : secrets) {
    if (secret.empty()) continue;
    for (auto at = out.find(secret); at != std::string::npos; at = out.find(secret, at + 3)) {
      out.replace(at, secret.size(), "***");
    }
  }
  mask_tokens(out);
  const bool cut = out.size() > longest;
  out.resize(std::min(out.size(), longest));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  if (cut) out += "...";
  return out;
}

}  // namespace redlease::inline v1::wire

#endif
