#ifndef REDLEASE_OBSERVER_HPP
#define REDLEASE_OBSERVER_HPP

#include <chrono>
#include <optional>
#include <string>
#include <system_error>

#include <redlease/api.hpp>
#include <redlease/error.hpp>

namespace redlease::inline v1 {

/// Something that happened to a lease or to a client's background work.
struct Event {
  enum class Kind {
    acquired,          ///< `waited` tells how long the acquisition took
    contended,         ///< a wait, or a single try, ended with the key in another's hands
    renewed,           ///< `left` is the new validity
    renew_failed,      ///< no definite answer or a refusal; the lease is still held for `left`,
                       ///< and with auto_renew it will be tried again
    lost,              ///< `reason`, `held_for`; once for a lease
    released,          ///< `held_for`, and `left`: the validity given back
    in_doubt,          ///< a request may or may not have run
    background_error,  ///< a scope exit or a clean-up could not do its work
  };

  Kind kind{};
  std::string key{};
  std::string fingerprint{};  ///< of the lease's token; empty when there is none
  std::string label{};        ///< LeaseOptions::label
  std::string server{};
  std::chrono::nanoseconds waited{0};
  std::chrono::nanoseconds held_for{0};  ///< since the acquisition
  std::chrono::nanoseconds left{0};      ///< of validity; 0 for a lease that is lost
  std::optional<LossReason> reason{};
  std::error_code error{};  ///< for renew_failed, in_doubt and background_error
  std::string message{};    ///< for people; no secret in it
};

/// "acquired", "contended", …
REDLEASE_API const char* to_string(Event::Kind kind) noexcept;

/// Implemented by those who want to know. Events of one client come one after the other, in the
/// order in which they happened, on a thread that runs nothing but user code: an observer may take
/// its time, throw (it is ignored), call exit(), and use or destroy clients and leases. No renewal
/// waits for it, and no stop request for longer than some milliseconds. One that is 65,536 events
/// behind isn't told of `renewed` and `renew_failed` any more.
class REDLEASE_API Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(const Event& event) = 0;
};

}  // namespace redlease::inline v1

#endif
