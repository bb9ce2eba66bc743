#ifndef REDLEASE_WIRE_URL_HPP
#define REDLEASE_WIRE_URL_HPP

#include <cstdint>
#include <string>
#include <string_view>

namespace redlease::inline v1::wire {

/// One server, and what it takes to log in there.
struct Endpoint {
  std::string host;  ///< name, IPv4 or IPv6 literal (without brackets); empty for a unix socket
  std::uint16_t port = 6379;
  std::string socket_path;  ///< unix socket; empty for TCP
  std::string username;
  std::string password;
  bool authenticate = false;  ///< the URL has user info, or a field says so
  int database = 0;
  std::string client_name;

  /// "127.0.0.1:6379", "[::1]:6379" or "unix:/run/redis.sock": never with user info.
  std::string address() const;
};

/// Reads
///     redis://[user[:password]@]host[:port][/database]
///     unix://[user[:password]@]/path/to/socket[?db=database]
/// User info ends at the last '@' and is percent-decoded ('+' stays '+'); IPv6 literals stand in
/// brackets. Anything else is std::invalid_argument, with a text that never repeats user info.
Endpoint parse_url(std::string_view url);

}  // namespace redlease::inline v1::wire

#endif
