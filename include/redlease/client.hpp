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
#include <vector>

#include <redlease/api.hpp>
#include <redlease/fencing.hpp>
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
  /// The latest fencing number drawn for the key, if there was one, and its counter is beside the
  /// key (see LeaseOptions::fence_key).
  std::optional<FencingToken> fence() const noexcept { return fence_; }

 private:
  friend class Client;
  std::string token_;
  std::string fingerprint_;
  std::optional<std::chrono::milliseconds> ttl_;
  std::string type_;
  std::optional<FencingToken> fence_;
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
class REDLEASE_API Client {
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

  /// One lease on several keys, all or none, at once: nobody who waits for several holds some of
  /// them, so that orders over the same keys never block each other for good, whatever their order.
  /// Order and duplicates in the list don't matter. The lease is renewed and released as one, and
  /// if one key is lost it is lost as a whole: the others are given back. 1 to 1,000 keys (in a
  /// Cluster of one slot), each as for try_acquire(). With fencing each key has a number of its
  /// own. The destructor waits for the server's answer, for at most two command time-outs.
  [[nodiscard]] std::optional<Lease> try_acquire_all(const std::vector<std::string>& keys,
                                                     const LeaseOptions& options = {});
  /// The same with a wait: whoever waits watches the key that was in the way, and tries again when
  /// it is free. There is no promise of order: one who wants many keys may wait for long while
  /// others want few. Order::fifo is for one key only.
  [[nodiscard]] std::optional<Lease> acquire_all(const std::vector<std::string>& keys,
                                                 const Wait& wait,
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

  /// For resources in Redis: sets `key` to `value`, unless somebody with a higher fencing number
  /// has written there before; then nothing changes, and it returns false. The highest number is
  /// remembered in a key beside it, in the same slot, which never expires; so all who write there
  /// must write like this. `key` is the resource, not the lease's key. Blocks like try_acquire();
  /// on Error{in_doubt} it may have been written, or may be yet, and may be called again with the
  /// same arguments. Throws std::invalid_argument for a negative number.
  bool fenced_write(std::string_view key, std::string_view value, FencingToken number);

  /// Throws Error unless the server answers. Connects if need be. Blocks like try_acquire().
  void ping();

 private:
  static std::optional<Lease> wrap(std::unique_ptr<detail::LeaseCore> core);
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
