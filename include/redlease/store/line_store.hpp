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

/// The name of something that lies beside a lease's key, in the same slot of a Cluster: a key
/// without a hash tag becomes the tag.
std::string beside(std::string_view key, std::string_view what);

/// A place in the line for a lease: see lua/line.lua.
struct Ticket {
  std::uint64_t number;  ///< tells the waiters of a process apart
  Token token;           ///< will be in the key when it is granted
  std::chrono::milliseconds ttl;
  bool deaf = false;  ///< its process can't hear of a grant: its holder has to ask
  std::string place = "0";
};

/// What a step in the line brought.
struct LineStep {
  bool ours = false;          ///< the lease is, from `sent` on
  std::uint64_t granted = 0;  ///< the number of another ticket of this process that got it
  bool missed = false;        ///< we had been taken out of the line
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

  /// As LeaseStore::release(). `granted`: the number of a ticket of this process that has it now.
  Comparison release(std::string_view key, std::string_view token, Clock::time_point limit,
                     std::uint64_t& granted);
  /// As LeaseStore::post_release() and answer_to_post().
  void post_release(std::string_view key, std::string_view token, wire::Completion done,
                    void* context);
  Comparison answer_to_post(std::string_view key, std::string_view token,
                            const wire::Outcome& outcome);

 private:
  enum class By : char { sha1, text };
  std::string text_of(const Ticket& ticket) const;
  wire::Command command(By by, std::string_view verb, std::string_view key,
                        std::string_view process, std::string_view subject,
                        std::string_view place) const;
  wire::Outcome call(std::string_view verb, std::string_view key, std::string_view subject,
                     std::string_view place, Clock::time_point deadline);
  LineStep step(std::string_view verb, std::string_view key, Ticket& ticket,
                Clock::time_point limit);
  Comparison comparison_of(std::string_view key, std::string_view token,
                           const wire::Outcome& outcome, std::uint64_t& granted) const;
  void give_up(std::string_view key, const Ticket& ticket, const wire::Outcome& doubtful);

  LeaseStore& leases_;
  wire::Pipelines& pipelines_;
  const std::string process_;
  ScriptInCache in_cache_;  // see LeaseStore::post_release()
};

}  // namespace redlease::inline v1::store

#endif
