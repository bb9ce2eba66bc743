#ifndef REDLEASE_LEASE_HPP
#define REDLEASE_LEASE_HPP

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>

#include <redlease/api.hpp>
#include <redlease/duration.hpp>
#include <redlease/error.hpp>
#include <redlease/fencing.hpp>
#include <redlease/token.hpp>

namespace redlease::inline v1 {

namespace detail {
class LeaseCore;
}

/// A key in Redis that is ours for a while: an owner and an end.
///
/// What a lease promises
///  1. Never someone else's key. The only writes that reach a lease key are `SET key token NX PX
///     ttl` and scripts that compare the key with our token first, or find it absent. There is no
///     plain DEL.
///  2. Every acquisition has a fresh random token, kept out of logs and messages.
///  3. remaining() is never optimistic: it counts from the instant before the successful request
///     was sent, less 1 % for drifting clocks, on a clock that goes on during suspend.
///  4. Loss is final. A lost lease never becomes held again and sends nothing more. It is lost
///     when the server says that the key is gone or another's, or when validity ends unrenewed.
///  5. The work hears of it in time. stop_token() is requested when the lease is lost, and that is
///     `safety_margin` before validity ends at the latest: a local timer sees to it while the
///     network is silent. From then on held(), loss() and LeaseLost say the same. A key that
///     somebody deletes or takes is found out by the next request: see below.
///  6. A renewal never creates a key. With `auto_renew` the client's keeper renews the lease every
///     `renew_every`; what fails is tried again sooner, as long as there is time.
///  7. Unknown is not failed. A request whose answer is missing may have run; it is found out
///     before the call returns, or the call says `errc::in_doubt`.
///  8. Everything is bounded: see each function. State changes only on a definite answer.
///  9. A lease belongs to the process that took it: after fork() the child's copy is inert, is
///     not held, and sends nothing.
///
/// What no lease can promise: to stop a holder that was paused from writing late. It looks at
/// held() before the write, is paused behind it, and writes when the lease is another's. Give the
/// irreversible step room with ensure_held(), and let the database have the last word: with
/// fencing_token(), a unique key, a version, a conditional update (docs/fencing.md). Nor does it
/// survive a server that restarts without persistence, fails over (Redis replicates
/// asynchronously), evicts keys or is told to delete them: then the lease looks held until the next
/// request finds out, with `auto_renew` the next renewal.
///
/// What to do on loss: stop, undo what can be undone, and do not touch the resource again. After a
/// loss by the clock there is still the safety margin to do that in; after a loss that the server
/// told, the next holder may be at work already. Long work asks held() between its steps, or
/// registers a callback with stop_token(). (After a pause held() is false at once, and the stop
/// request follows as soon as a thread has woken up.)
///
/// held(), remaining(), loss() and stop_token() may be called from any thread at any time, as may
/// renew() and release(), which then take turns (and so may wait for each other's time). Moving,
/// swapping and destroying need the object to oneself. A moved-from lease holds nothing.
class REDLEASE_API Lease {
 public:
  Lease(Lease&& other) noexcept;
  /// Gives the lease that was held here back first, as the destructor does.
  Lease& operator=(Lease&& other) noexcept;
  /// Gives the lease back, if it is held: writes the compare-and-delete and doesn't wait for its
  /// answer; or leaves that to the thread of this client that waits for the key. Never throws.
  /// Blocks only when the connection is lost or clogged, for at most one command time-out, and
  /// while a renewal by the keeper is under way, for at most another one. What goes wrong reaches
  /// the observer. (The last lease of a client that is gone already closes its connections: see
  /// Client.)
  ~Lease();

  /// The key, as given; of several the first one in order. Empty for a moved-from lease.
  const std::string& key() const noexcept;
  /// All keys, sorted, each once. Valid as long as the lease is.
  std::span<const std::string> keys() const noexcept;
  /// The token in Redis. Throws std::invalid_argument for a moved-from lease.
  const Token& token() const;
  /// The number that was drawn with the acquisition, for a resource that refuses lower ones: with
  /// LeaseOptions::fencing. It stays the same for the life of the lease, and is to be used after
  /// that, too: a resource refuses it when the next holder has begun. Throws std::invalid_argument
  /// if there is none, or one for each of several keys: then name the key. Doesn't block.
  FencingToken fencing_token() const;
  FencingToken fencing_token(std::string_view key) const;

  /// How long the key stays ours for certain; zero unless held. It counts to the end of validity;
  /// with auto_renew or stop_token() the lease is lost `safety_margin` before that. Doesn't block.
  std::chrono::nanoseconds remaining() const noexcept;
  /// True while the key is ours for certain, provided that the server keeps it (see above). False
  /// from the start of a release. Doesn't block.
  bool held() const noexcept;
  /// Returns if the lease is held and remaining() is at least `min`: to be called right before a
  /// step that can't be undone. A `min` up to `safety_margin` asks for no more than held() where
  /// the lease is lost that much before the end of validity. Throws LeaseLost if it is lost, and
  /// also if less than `min` is left: then the lease stays held, Lease::loss() stays empty and
  /// renew() still works. Throws Error{in_doubt} while a release is under way or in doubt,
  /// std::invalid_argument if there is nothing to hold. Doesn't block.
  void ensure_held(Duration min = std::chrono::nanoseconds{0}) const;
  /// For the work under the lease: requested when the lease is lost, and at the latest
  /// `safety_margin` before validity ends, whatever the network does. See "What to do on loss".
  /// release() doesn't request it. A token first asked for after the end, by loss or release, is
  /// requested already. From the first call on, a lease without auto_renew is lost that margin
  /// before its validity ends, too: held(), loss() and this agree. Callbacks run on a thread of the
  /// library that runs nothing but user code: they may take their time, and release or destroy the
  /// lease or the client; but, as with all std::stop_callback, they must not throw. Throws
  /// std::system_error if the system gives no thread for that, std::invalid_argument for a
  /// moved-from or inherited lease. Doesn't block.
  std::stop_token stop_token() const;
  /// How the lease was lost; empty while it is held and after a release. Doesn't block.
  std::optional<Loss> loss() const;

  /// Makes the lease last its ttl (as acquired, or the one given) from now on. Blocks for at most
  /// two command time-outs, and a connect time-out if there is no connection, but never beyond the
  /// validity that is left. With auto_renew the keeper goes on, and never shortens
  /// validity: after a longer ttl it waits until its own would last longer, after a shorter one it
  /// comes within a third of it. Throws LeaseLost; Error{rejected, unavailable} if it did not
  /// happen, and {in_doubt, protocol} if it may have: the lease is then held for what was left
  /// before, or for `ttl` from the call if that is shorter. Throws Error{in_doubt} while a release
  /// is in doubt, and std::invalid_argument if there is nothing to renew, or the ttl is out of
  /// range or not longer than the safety margin.
  void renew();
  void renew(Duration ttl);
  /// The same as renew(), reported in `error`, which is cleared on success;
  /// std::errc::invalid_argument if there is nothing to renew.
  void renew(std::error_code& error) noexcept;

  /// Gives the lease back, to the next one who waits for it in this client if there is one, and
  /// waits for the answer: at most two command time-outs, a connect
  /// time-out if there is no connection, and one more command time-out while a renewal by the
  /// keeper is under way. It stops renewing first; if the release fails, the keeper goes on. When
  /// it returns the lease was held to that very point. Throws LeaseLost if it wasn't. On
  /// Error{rejected, unavailable} the lease is still held, with its token; on Error{in_doubt,
  /// protocol} it may be gone. In both cases release() may be called again until validity ends, and
  /// else the destructor tries. Throws std::invalid_argument if there is nothing to release. Of two
  /// threads that release one lease exactly one succeeds.
  void release();
  /// The same, reported in `error`; std::errc::invalid_argument if there is nothing to release.
  void release(std::error_code& error) noexcept;

  friend void swap(Lease& a, Lease& b) noexcept { a.core_.swap(b.core_); }

 private:
  friend class Client;
  explicit Lease(std::unique_ptr<detail::LeaseCore> core) noexcept;

  std::unique_ptr<detail::LeaseCore> core_;  // empty when moved from
};

}  // namespace redlease::inline v1

#endif
