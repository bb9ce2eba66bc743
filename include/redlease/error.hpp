#ifndef REDLEASE_ERROR_HPP
#define REDLEASE_ERROR_HPP

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include <redlease/api.hpp>

namespace redlease::inline v1 {

/// Why an operation failed. Contention is not among them: that is an empty optional.
enum class errc {
  lost = 1,     ///< the lease is no longer ours: see LeaseLost
  in_doubt,     ///< the request may or may not have run, and it could not be found out in time
  unavailable,  ///< not connected, or no answer in time; nothing was acquired, renewed or released
  rejected,     ///< the server refused; the message has its text; nothing has changed
  protocol,     ///< the peer does not speak the Redis protocol; a request to it may have run
  no_quorum,    ///< too few servers agreed (not in this version)
  no_replicas,  ///< too few replicas acknowledged (not in this version)
  fence_regressed,  ///< a fencing number was not above one seen before: its counter was deleted, or
                    ///< lost in a failover. No lease was handed out; see docs/fencing.md
};

REDLEASE_API const std::error_category& error_category() noexcept;
REDLEASE_API std::error_code make_error_code(errc code) noexcept;

/// Every failure of the world. `code()` compares with `errc`; `what()` names operation, key,
/// server and the server's text, and never has a password, URL user info or token in it.
/// (A caller's bug, a bad option for instance, is std::invalid_argument.)
class REDLEASE_API Error : public std::system_error {
 public:
  Error(errc code, const std::string& what);
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // whose copies cannot throw
};

/// How a lease was lost.
enum class LossReason {
  expired,      ///< its validity ended on our own clock
  taken,        ///< the key holds another token, or something that is no lease
  missing,      ///< the key is gone: expired, evicted, flushed or deleted
  unconfirmed,  ///< a release whose answer got lost: the key is not ours now, and may not have
                ///< been ours when the release arrived
};

/// "expired", "taken", "missing", "unconfirmed".
REDLEASE_API const char* to_string(LossReason reason) noexcept;

struct Loss {
  LossReason reason = LossReason::expired;
  std::string key{};                     ///< of a lease on several keys the first in order,
                                         ///< whichever was lost
  std::string fingerprint{};             ///< of the token that was lost
  std::chrono::nanoseconds held_for{0};  ///< from acquisition to loss
};

/// The lease is lost, for good. (Only Lease::ensure_held(min) also throws it when less than `min`
/// is left of a lease that is held.) It is the one error that callers handle differently from all
/// others: the work done under the lease may have overlapped with somebody else's.
class REDLEASE_API LeaseLost : public Error {
 public:
  /// `what` is the whole message.
  LeaseLost(const std::string& what, Loss loss);
  const Loss& loss() const noexcept { return loss_; }

 private:
  Loss loss_;
};

namespace detail {
/// "release 'k': the lease is lost (taken) after 40 ms; token 0a1b2c3d"
std::string describe(std::string_view operation, const Loss& loss);
/// A key for a message: quoted, unprintable bytes escaped, cut when long.
REDLEASE_API std::string quote(std::string_view bytes);
}  // namespace detail

}  // namespace redlease::inline v1

template <>
struct std::is_error_code_enum<redlease::errc> : std::true_type {};

#endif
