#ifndef REDLEASE_STORE_LEASE_STORE_HPP
#define REDLEASE_STORE_LEASE_STORE_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <redlease/clock.hpp>
#include <redlease/error.hpp>
#include <redlease/fencing.hpp>
#include <redlease/store/keys.hpp>
#include <redlease/store/lua_scripts.hpp>
#include <redlease/token.hpp>
#include <redlease/wire/outcome.hpp>
#include <redlease/wire/pipelines.hpp>

namespace redlease::inline v1::store {

/// Why there is no definite answer, or a refusal.
struct Failure {
  errc code = errc::unavailable;
  std::string what;        ///< names operation, key and server; has no secret in it
  bool transient = false;  ///< trying again makes sense
  bool in_doubt = false;   ///< the request may have run, or may run yet
};

/// How a lease is wanted.
struct Demand {
  std::chrono::milliseconds ttl{};
  std::chrono::nanoseconds reserve{0};  ///< validity that must be left when it is handed out
  std::vector<std::string> counters{};  ///< of its fencing numbers, one for each key; or none
};

struct Grant {
  Token token;
  Clock::time_point sent;               ///< the instant before the successful request was sent
  std::vector<FencingToken> numbers{};  ///< one for each key, if they were demanded
};

struct Acquisition {
  std::optional<Grant> grant{};      ///< neither this
  std::optional<Failure> failure{};  ///< nor that: held by another
  std::size_t blocker = 0;           ///< that key of several
};

/// What a script that compares the key with a token found, and (if ours) did.
enum class Ownership { ours, other, absent };

struct Comparison {
  Ownership ownership = Ownership::absent;
  Clock::time_point sent{};
  bool confirmed = true;           ///< false: an answer got lost; that request may run yet
  std::optional<Failure> failure;  ///< if set, nothing else counts
};

/// How a lease was handed on.
struct Handover {
  Comparison given;            ///< ours: we held the lease to the end, and it is given back
  std::optional<Grant> grant;  ///< the next holder's lease. Without one the key is free, or lost
};

struct KeyContent {
  std::string type;                              ///< "string", "hash", ...
  std::optional<std::chrono::milliseconds> ttl;  ///< none: it never expires
  std::size_t length = 0;
  std::string beginning;               ///< of a string, up to 512 bytes
  std::optional<FencingToken> number;  ///< the latest one, if its counter is beside the key
};

/// Knows whether the server surely has a script in its cache: for a moment after an answer of it.
/// An EVALSHA whose answer nobody waits for is safe then; SCRIPT FLUSH may come at any time.
/// Thread-safe.
class ScriptInCache {
 public:
  bool is_sure(Clock::time_point now) const noexcept {
    const Clock::time_point seen{Clock::duration{seen_.load(std::memory_order_relaxed)}};
    return seen + trust > now;
  }
  void note(const wire::Outcome& outcome) noexcept {
    if (outcome.kind != wire::Outcome::Kind::answered || outcome.reply.is_error()) return;
    seen_.store(outcome.sent.time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  static constexpr std::chrono::milliseconds trust{10};
  std::atomic<Clock::rep> seen_{Clock::time_point::min().time_since_epoch().count()};
};

/// What the counter of a key's fencing numbers is called, beside the key.
inline constexpr std::string_view fencing_counter = "redlease:fence";

/// The fencing numbers in an answer; nothing if it has others than were demanded.
std::optional<std::vector<FencingToken>> read_numbers(const wire::Reply& answer,
                                                      const Demand& demand);

/// For a message: "'a' and 2 more".
std::string quote(KeyView keys);

/// What lives for longer lives for ever, as far as anybody waits for its end.
inline constexpr std::chrono::milliseconds longest_ttl = std::chrono::hours{24 * 365 * 100};

/// The server doesn't know the script: send its text.
bool is_no_script(const wire::Outcome& outcome) noexcept;

/// What is asked of one server about lease keys. The only writes that it ever sends are
/// `SET key token NX PX ttl` and the scripts in lua/. A lease on several keys is taken, renewed and
/// given back with one request, and of one that is lost by any of its keys nothing stays.
///
/// Each call blocks for at most two command time-outs (the second one to find out what became of
/// a request whose answer is missing), and one connect time-out when there is no connection yet;
/// and never beyond `limit`. Thread-safe.
class LeaseStore {
 public:
  LeaseStore(wire::Pipelines& pipelines, std::string server)
      : pipelines_(pipelines), server_(std::move(server)) {}

  Acquisition acquire(KeyView keys, const Demand& demand, Clock::time_point limit);

  /// How late an acquisition that was sent then is granted now: not yet too late if negative.
  static std::chrono::nanoseconds lateness(const Demand& demand, Clock::time_point sent) noexcept;
  /// Has the keys freed with whatever is sent next, should they hold the token by then.
  void disown(KeyView keys, const Token& token, Clock::time_point until);

  Comparison renew(KeyView keys, std::string_view token, std::chrono::milliseconds ttl,
                   Clock::time_point limit);

  Comparison release(KeyView keys, std::string_view token, Clock::time_point limit);

  /// The same for one who waits: sets a fresh token for `heir` in the place of ours. If that is
  /// refused, releases.
  Handover hand_over(KeyView keys, std::string_view token, const Demand& heir,
                     Clock::time_point limit);

  /// Writes the release and doesn't wait for its answer: `done` gets it; see answer_to_post().
  void post_release(std::string_view key, std::string_view token, wire::Completion done,
                    void* context);
  /// Has the release sent with whatever is sent next between `from` and `until`. False, and
  /// nothing done, when the client is being closed.
  bool owe_release(KeyView keys, std::string_view token, Clock::time_point from,
                   Clock::time_point until, wire::Completion done, void* context);
  /// Writes the release of a lease that nobody has heard of. Never throws.
  void give_back(KeyView keys, std::string_view token) noexcept;
  /// Reads the outcome of a posted or owed release.
  Comparison answer_to_post(KeyView keys, std::string_view token, const wire::Outcome& outcome);

  /// Writes `value` to a key unless a higher number was seen there. False: one was. Throws Error.
  bool fenced_write(std::string_view key, std::string_view value, FencingToken number);

  /// Empty if there is no such key. Throws Error.
  std::optional<KeyContent> inspect(std::string_view key, Clock::time_point limit);

  /// How long a key has to live: nothing if that is unknown, or the key never expires.
  std::optional<std::chrono::milliseconds> time_to_live(std::string_view key,
                                                        Clock::time_point limit);

  /// Throws Error unless the server answers.
  void ping();

  const std::string& server() const noexcept { return server_; }
  /// The text of a failure: operation, key and server, and why.
  std::string describe(std::string_view operation, KeyView keys, std::string_view cause) const;

 private:
  friend class LineStore;
  Clock::time_point deadline(Clock::time_point limit) const;
  wire::Outcome eval(const lua::Script& script, const ScriptKeys& keys, const Arguments& arguments,
                     Clock::time_point deadline);
  wire::Outcome look(const wire::Command& command, Clock::time_point deadline);
  wire::Outcome look(const lua::Script& script, const ScriptKeys& keys, const Arguments& arguments,
                     Clock::time_point deadline);
  Failure failure(std::string_view operation, KeyView keys, const wire::Outcome& outcome) const;
  Failure refusal(std::string_view operation, KeyView keys, std::string_view token,
                  const wire::Reply& reply) const;
  Comparison comparison_of(std::string_view operation, KeyView keys, std::string_view token,
                           const wire::Outcome& outcome) const;
  wire::Outcome ask_to_renew(KeyView keys, std::string_view token, std::chrono::milliseconds ttl,
                             Clock::time_point deadline);
  Comparison comparison_of(std::string_view operation, KeyView keys, std::string_view token,
                           const Demand& demand, const wire::Outcome& outcome) const;
  Comparison renewal_of(KeyView keys, std::string_view token, const wire::Outcome& outcome) const;
  template <class Ask, class Read>
  Comparison release_by(KeyView keys, std::string_view token, Clock::time_point limit, Ask ask,
                        Read read);
  Comparison compare(KeyView keys, std::string_view token, Clock::time_point until);
  wire::Outcome ask_for(KeyView keys, const Token& token, const Demand& demand,
                        Clock::time_point deadline);
  wire::Outcome look_for(KeyView keys, const Token& token, const Demand& demand,
                         Clock::time_point deadline);
  Acquisition acquisition_of(KeyView keys, const Token& token, const Demand& demand,
                             const wire::Outcome& outcome);
  void clean_up(KeyView keys, const Token& token, std::chrono::milliseconds ttl,
                const wire::Outcome& doubtful);
  Acquisition resolve_acquire(KeyView keys, const Demand& demand, const Token& token,
                              const wire::Outcome& in_doubt, Clock::time_point limit);
  Acquisition granted(KeyView keys, const Token& token, const Demand& demand,
                      const wire::Outcome& request, const wire::Reply& answer);
  Handover resolve_handover(KeyView keys, std::string_view token, const Token& theirs,
                            const Demand& heir, const wire::Outcome& doubtful,
                            Clock::time_point limit);

  wire::Pipelines& pipelines_;
  const std::string server_;
  ScriptInCache release_in_cache_;  // see post_release()
};

// A release by whatever `ask` sends and `read` understands. If the answer is missing, the keys
// tell.
template <class Ask, class Read>
Comparison LeaseStore::release_by(KeyView keys, std::string_view token, Clock::time_point limit,
                                  Ask ask, Read read) {
  const wire::Outcome outcome = ask(deadline(limit));
  if (outcome.kind != wire::Outcome::Kind::in_doubt) return read(outcome);

  const auto until = std::min(limit, Clock::now() + pipelines_.timeouts().command);
  auto found = compare(keys, token, until);
  const bool ours = !found.failure && found.ownership == Ownership::ours;
  if (ours || keys.several()) {  // of several some may be ours still
    const auto again = read(ask(until));
    if (ours || again.failure) found = again;
  }
  if (found.failure) found.failure = failure("release", keys, outcome);
  found.confirmed = !found.failure && found.ownership == Ownership::ours;
  return found;
}

}  // namespace redlease::inline v1::store

#endif
