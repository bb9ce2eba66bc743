#ifndef REDLEASE_OPTIONS_HPP
#define REDLEASE_OPTIONS_HPP

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <redlease/duration.hpp>

namespace redlease::inline v1 {

class Observer;

/// All options are plain aggregates for designated initialisers. They are checked once, on entry
/// and before any I/O; std::invalid_argument then names the field and the value.

/// How a Client reaches its server. What is set here overrides the URL.
struct ClientOptions {
  Duration connect_timeout = std::chrono::seconds{1};  ///< resolving, connecting, AUTH, SELECT
  Duration command_timeout = std::chrono::seconds{1};  ///< one request; a call may need two
  std::optional<std::string> username{};
  std::optional<std::string> password{};
  std::optional<int> database{};    ///< 0 unless the URL says otherwise
  std::string client_name{};        ///< CLIENT SETNAME; none if empty
  std::size_t max_connections = 4;  ///< 1 to 64; they are shared by all threads. One more for
                                    ///< automatic renewals, and two more while somebody waits
  std::shared_ptr<Observer> observer{};
};

/// How a lease is held.
struct LeaseOptions {
  Duration ttl = std::chrono::seconds{30};  ///< 1 ms to 10 years; rounded up to whole milliseconds
  bool auto_renew = false;                  ///< the client's keeper thread renews it in time
  std::optional<Duration> renew_every{};  ///< with auto_renew; ttl / 3 if not given. Together with
                                          ///< safety_margin below 99 % of the ttl
  std::optional<Duration> safety_margin{};  ///< see Lease::stop_token(); ttl / 10 if not given
  std::optional<Duration> max_hold{};       ///< with auto_renew: no renewal begins later than that
                                            ///< after the acquisition. So the lease may be held for
                                            ///< nearly a ttl longer, and then it expires
  bool fencing = false;     ///< with each acquisition a number is drawn: Lease::fencing_token()
  std::string fence_key{};  ///< with fencing: the key of the counter to draw it from, which other
                            ///< leases may share; in a Cluster it must be in the lease's slot. If
                            ///< not given, one beside the lease's key. It never expires
  int min_replicas = 0;     ///< not in this version: anything but 0 is refused
  std::string label{};      ///< for metrics and events; never the key
};

/// A waiter is woken when the lease is his, or may be. Only in case that fails he looks by himself,
/// too: after a random time, evenly spread over [min, limit]; the limit starts at 2 * min and
/// doubles up to max with every attempt ("full jitter"). Where a server refuses what waking takes,
/// that is how he waits.
struct Backoff {
  Duration min = std::chrono::milliseconds{5};
  Duration max = std::chrono::milliseconds{100};
};

/// In which order those who wait for a key get it. Waiters of both kinds may wait for one key.
enum class Order {
  any,   ///< within a client, the order of arrival. Among clients, turns of at most 16 leases or
         ///< 50 ms (longer while no other comes), then the others get theirs, in no strict order
  fifo,  ///< the order of arrival among all clients that wait like this, by a line at the server
         ///< beside the key. A waiter who died or was suspended is passed over within a second.
         ///< While the line of a busy key isn't empty, those with Order::any get nothing
};

/// How long, and for how long it makes sense, to wait for a key that is held.
struct Wait {
  Duration at_most;  ///< has no default; bounds the whole call. 0: one attempt, as try_acquire()
                     ///< (with Order::fifo not before those who stand in line)
  std::optional<int> attempts{};  ///< at least 1; being woken counts for none, see Backoff
  Backoff backoff{};
  std::stop_token stop{};                ///< ends the wait when requested
  std::function<bool()> still_needed{};  ///< asked before each further attempt, and before a
                                         ///< lease that was waited for is handed out; not when
                                         ///< the first attempt has it. Must be quick
  Order order = Order::any;
};

/// Keys are binary-safe and 1 to 65,536 bytes long.
inline constexpr std::size_t max_key_size = 65536;
/// A lease on several keys has up to so many.
inline constexpr std::size_t max_keys = 1000;

namespace detail {
void check(const ClientOptions& options);
void check(const Wait& wait);
void check_key(std::string_view key);
void check(const LeaseOptions& options);
void check_key(std::string_view key, const LeaseOptions& options);
void check_keys(const std::vector<std::string>& keys, const LeaseOptions& options);
void check_ttl(const char* field, Duration ttl);
}  // namespace detail

}  // namespace redlease::inline v1

#endif
