#ifndef REDLEASE_STORE_LINE_STORE_HPP
#define REDLEASE_STORE_LINE_STORE_HPP

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <redlease/clock.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/token.hpp>
#include <redlease/wire/pipelines.hpp>

namespace redlease::inline v1::store {

/// A place in the line for a lease: see lua/line.lua.
struct Ticket {
  std::uint64_t number;  ///< tells the waiters of a process apart
  Token token;           ///< will be in the key when it is granted
  Demand demand;
  bool deaf = false;  ///< its process can't hear of a grant: its holder has to ask
  std::string place = "0";
};

/// A ticket of this process to which the lease was granted on the way.
struct LineGrant {
  std::uint64_t number = 0;  ///< 0: there is none
  bool accepted = false;     ///< the lease is his; otherwise he has to join once more
};

/// What a step in the line brought.
struct LineStep {
  std::optional<Grant> grant;  ///< the lease is ours
  LineGrant granted;           ///< or another one's
  bool missed = false;         ///< we had been taken out of the line
  Clock::time_point sent{};
  bool first = false;  ///< nobody is before us in line
  std::optional<Failure> failure;
};

/// Leases that are served in order of arrival, over all processes. Blocks as LeaseStore does.
/// Thread-safe.
class LineStore {
 public:
  /// A granted lease has to be accepted within that time, or the next one gets it.
  static constexpr std::chrono::milliseconds window{500};

  /// `process`: the name of this one, different from all others.
  LineStore(LeaseStore& leases, wire::Pipelines& pipelines, std::string process);

  const std::string& process() const noexcept { return process_; }

  /// Takes the lease if it is free and nobody waits.
  LineStep take(std::string_view key, const Ticket& ticket, Clock::time_point limit);
  /// The same, or gets in line; or accepts a grant. To be repeated, as a sign of life. A ticket
  /// whose step ended in doubt is void.
  LineStep join(std::string_view key, Ticket& ticket, Clock::time_point limit);
  /// Leaves the line, and gives the lease back if it was granted. Doesn't wait for the answer, nor
  /// much longer than `limit` for a connection: without one that is done with what is sent next.
  void leave(std::string_view key, const Ticket& ticket, Clock::time_point limit) noexcept;

  /// As LeaseStore::release(). `granted`: who has it now, if he is of this process.
  Comparison release(std::string_view key, std::string_view token, Clock::time_point limit,
                     LineGrant& granted);
  /// As LeaseStore::post_release() and answer_to_post().
  void post_release(std::string_view key, std::string_view token, wire::Completion done,
                    void* context);
  Comparison answer_to_post(std::string_view key, std::string_view token,
                            const wire::Outcome& outcome);

 private:
  enum class By : char { sha1, text };
  std::string text_of(const Ticket& ticket) const;
  wire::Command command(By by, std::string_view verb, std::string_view key,
                        std::string_view process, std::string_view subject, std::string_view place,
                        const std::string& counter) const;
  wire::Outcome call(std::string_view verb, std::string_view key, std::string_view subject,
                     std::string_view place, const std::string& counter,
                     Clock::time_point deadline);
  wire::Command leaving(std::string_view key, const Ticket& ticket) const;
  LineStep step(std::string_view verb, std::string_view key, Ticket& ticket,
                Clock::time_point limit);
  Comparison comparison_of(std::string_view key, std::string_view token,
                           const wire::Outcome& outcome, LineGrant& granted) const;
  void give_up(std::string_view key, const Ticket& ticket, const wire::Outcome& doubtful);

  LeaseStore& leases_;
  wire::Pipelines& pipelines_;
  const std::string process_;
  ScriptInCache in_cache_;  // see LeaseStore::post_release()
};

}  // namespace redlease::inline v1::store

#endif
