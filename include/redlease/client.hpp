#ifndef REDLEASE_CLIENT_HPP
#define REDLEASE_CLIENT_HPP

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <redlease/lease.hpp>
#include <redlease/options.hpp>

namespace redlease::inline v1 {

namespace runtime {
class ClientState;
}

/// What an operator sees of a key. See Client::inspect().
class Inspection {
 public:
  /// Of the token in the key, ours or another library's; empty if the key holds no lease.
  const std::string& fingerprint() const noexcept { return fingerprint_; }
  /// What is left of its ttl on the server. None: the key never expires, which no lease does.
  std::optional<std::chrono::milliseconds> ttl() const noexcept { return ttl_; }
  /// The key's type in Redis; a lease is a "string".
  const std::string& type() const noexcept { return type_; }
  /// Whether the key can be a lease: a short string that expires.
  bool is_lease() const noexcept { return !token_.empty() && ttl_.has_value(); }

 private:
  friend class Client;
  std::string token_;
  std::string fingerprint_;
  std::optional<std::chrono::milliseconds> ttl_;
  std::string type_;
};

/// The way to leases on one Redis server. Thread-safe; one per process is enough: all threads
/// share a few connections. Copies share them too. Leases may outlive their client.
///
/// Constructing does no I/O and starts no thread; connections are made when they are needed and
/// made anew when they break. After fork() the child may go on using it: it gets its own ones.
/// When the last of a client's copies and leases is gone, that waits for outstanding answers, for
/// at most one command time-out, and for the observer to be told of them, for at most a second.
///
/// Every function checks its arguments first and throws std::invalid_argument, naming field and
/// value, before any I/O. All other failures are Error, as errc describes; and std::system_error if
/// the operating system gives no random bytes (or with auto_renew no thread), std::bad_alloc if
/// there is no memory. A moved-from client may only be assigned to or destroyed.
class Client {
 public:
  /// `url`: redis://[user[:password]@]host[:port][/database] or
  /// unix://[user[:password]@]/path[?db=database], with percent-encoded user info.
  explicit Client(std::string_view url, ClientOptions options = {});

  /// One attempt. Empty if the key is held by another, or holds something that is no lease:
  /// inspect() tells. On return the lease is held: a reply that comes when nothing, or with
  /// auto_renew only the safety margin, is left of it is answered by giving it back.
  /// Blocks for at most two command time-outs, plus a connect time-out if not connected.
  /// Throws Error{in_doubt} if the server got the request but the outcome could not be found
  /// out: nothing is held then, and the key is freed by a clean-up, or at the latest by its ttl.
  [[nodiscard]] std::optional<Lease> try_acquire(std::string_view key,
                                                 const LeaseOptions& options = {});

  /// Tries until the lease is held or the wait ends, which `wait.at_most` bounds with all that
  /// happens within. One that is given back or ends, whoever held it, is had one or two round trips
  /// later, if no other client has it first; a release within this client hands it on without a
  /// gap. docs/waiting.md tells how, and which order is promised. Empty if the wait ended: time,
  /// attempts, a stop request, or `still_needed` said no. A stop request ends a pause at once, an
  /// attempt under way when that has its answer. Trouble that may pass is waited out; if it lasts
  /// to the end, its Error is thrown.
  [[nodiscard]] std::optional<Lease> acquire(std::string_view key, const Wait& wait,
                                             const LeaseOptions& options = {});

  /// Acquires, calls `fn(Lease&)` only when the lease is held, and releases. Returns what `fn`
  /// returned, empty if the wait ended without a lease; for a void `fn`, whether it was called.
  /// Throws LeaseLost behind `fn` if the lease was lost meanwhile. If the lease was held
  /// throughout but could not be given back, the result still counts: the ttl frees the key. What
  /// `fn` throws passes through, and the lease is given back as by its destructor.
  template <class Fn>
  [[nodiscard]] auto with_lease(std::string_view key, const Wait& wait, const LeaseOptions& options,
                                Fn&& fn);

  /// For operators: what a key holds now; empty if there is none. Blocks like try_acquire().
  std::optional<Inspection> inspect(std::string_view key);
  /// For operators: deletes the key if it still holds exactly what was inspected. False if it
  /// doesn't; then nothing has changed. Its holder learns of it with its
  /// next request, and goes on until then: with auto_renew for up to `renew_every`. Blocks like
  /// try_acquire(). Throws std::invalid_argument unless `inspection.is_lease()`.
  bool break_lease(std::string_view key, const Inspection& inspection);

  /// Throws Error unless the server answers. Connects if need be. Blocks like try_acquire().
  void ping();

 private:
  static void conclude(Lease& lease);

  std::shared_ptr<runtime::ClientState> state_;
};

template <class Fn>
auto Client::with_lease(std::string_view key, const Wait& wait, const LeaseOptions& options,
                        Fn&& fn) {
  using Result = std::invoke_result_t<Fn, Lease&>;
  auto lease = acquire(key, wait, options);
  if constexpr (std::is_void_v<Result>) {
    if (!lease) return false;
    std::invoke(std::forward<Fn>(fn), *lease);
    conclude(*lease);
    return true;
  } else {
    std::optional<std::remove_cvref_t<Result>> result;
    if (!lease) return result;
    result.emplace(std::invoke(std::forward<Fn>(fn), *lease));
    conclude(*lease);
    return result;
  }
}

}  // namespace redlease::inline v1

#endif
