#ifndef REDLEASE_WIRE_URL_IPP
#define REDLEASE_WIRE_URL_IPP

#include <sys/un.h>

#include <charconv>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>
#include <redlease/error.hpp>
#include <redlease/wire/url.hpp>

namespace redlease::inline v1::wire {
namespace {

[[noreturn]] void bad_url(const std::string& why) { throw std::invalid_argument("url: " + why); }

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// `part` names what is decoded: its text may be a secret.
std::string percent_decode(std::string_view text, const char* part) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) bad_url(fmt::format("the {} has a '%' without two hex digits", part));
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

std::optional<int> whole_number(std::string_view digits, int max) {
  int value = 0;
  const auto* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value);
  if (digits.empty() || digits.front() == '-' || error != std::errc{} || stop != end) return {};
  if (value > max) return {};
  return value;
}

int parse_database(std::string_view text) {
  const auto database = whole_number(text, 1'000'000);
  if (!database) bad_url("the database is not a number");  // its text may be a password
  return *database;
}

void parse_user_info(std::string_view text, Endpoint& endpoint) {
  const auto colon = text.find(':');
  endpoint.username = percent_decode(text.substr(0, colon), "user name");
  if (colon != std::string_view::npos) {
    endpoint.password = percent_decode(text.substr(colon + 1), "password");
  }
  endpoint.authenticate = !endpoint.username.empty() || !endpoint.password.empty();
}

void parse_port(std::string_view text, Endpoint& endpoint) {
  const auto port = whole_number(text, 65535);
  // Its text may be a password whose host was forgotten.
  if (!port || *port == 0) bad_url("the port is not a number from 1 to 65535");
  endpoint.port = static_cast<std::uint16_t>(*port);
}

void parse_host_and_port(std::string_view text, Endpoint& endpoint) {
  std::string_view host;
  std::string_view rest;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) bad_url("an IPv6 address lacks its ']'");
    host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
    if (host.find(':') == std::string_view::npos) {
      bad_url(fmt::format("host {} is no IPv6 address", detail::quote(host)));
    }
  } else {
    const auto colon = text.find(':');
    host = text.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon);
  }
  for (const char c : host) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '%' || c == 0x7f) {
      bad_url(fmt::format("host {} has a character that no host has", detail::quote(host)));
    }
  }
  if (host.empty()) bad_url("the host is missing");
  if (!rest.empty() && !rest.starts_with(':')) bad_url("there is text between host and port");
  endpoint.host = host;
  if (!rest.empty()) parse_port(rest.substr(1), endpoint);
}

Endpoint parse_tcp(std::string_view rest) {
  Endpoint endpoint;
  if (const auto at = rest.rfind('@'); at != std::string_view::npos) {
    parse_user_info(rest.substr(0, at), endpoint);
    rest.remove_prefix(at + 1);
  }
  if (rest.find_first_of("?#") != std::string_view::npos) {
    bad_url("redis:// takes no query and no fragment");
  }
  const auto slash = rest.find('/');
  parse_host_and_port(rest.substr(0, slash), endpoint);
  if (slash != std::string_view::npos && slash + 1 < rest.size()) {
    endpoint.database = parse_database(rest.substr(slash + 1));
  }
  return endpoint;
}

Endpoint parse_unix(std::string_view rest) {
  Endpoint endpoint;
  if (!rest.starts_with('/')) {
    const auto at = rest.rfind("@/");
    if (at == std::string_view::npos) bad_url("unix:// needs an absolute path");
    parse_user_info(rest.substr(0, at), endpoint);
    rest.remove_prefix(at + 1);
  }
  if (const auto question = rest.find('?'); question != std::string_view::npos) {
    const auto query = rest.substr(question + 1);
    if (!query.starts_with("db=")) bad_url("unix:// takes no query but db=NUMBER");
    endpoint.database = parse_database(query.substr(3));
    rest = rest.substr(0, question);
  }
  endpoint.socket_path = percent_decode(rest, "socket path");
  if (endpoint.socket_path.size() <= 1) bad_url("the socket path is missing");
  if (endpoint.socket_path.find('\0') != std::string::npos) bad_url("the socket path has a NUL");
  if (endpoint.socket_path.size() >= sizeof(sockaddr_un::sun_path)) {
    bad_url(fmt::format("socket path {} is longer than the {} bytes that a socket address holds",
                        detail::quote(endpoint.socket_path), sizeof(sockaddr_un::sun_path) - 1));
  }
  return endpoint;
}

}  // namespace

std::string Endpoint::address() const {
  if (!socket_path.empty()) return "unix:" + socket_path;
  if (host.find(':') != std::string::npos) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

Endpoint parse_url(std::string_view url) {
  const auto colon = url.find("://");
  if (colon == std::string_view::npos) bad_url("it has no scheme (redis:// or unix://)");
  const auto scheme = url.substr(0, colon);
  const auto rest = url.substr(colon + 3);
  if (scheme == "redis") return parse_tcp(rest);
  if (scheme == "unix") return parse_unix(rest);
  if (scheme == "rediss" || scheme == "redis+sentinel" || scheme == "redis+cluster") {
    bad_url(fmt::format("{}:// is not supported by this version of redlease", scheme));
  }
  bad_url("the scheme is not one of redis:// and unix://");
}

}  // namespace redlease::inline v1::wire

#endif
