// What the holders of a soak write down about themselves, one line a record: words of the form
// name=value, times in nanoseconds of redlease::Clock, which all processes of a machine share.
#ifndef REDLEASE_TESTS_SOAK_RECORDS_HPP
#define REDLEASE_TESTS_SOAK_RECORDS_HPP

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <redlease/clock.hpp>

namespace redlease::soak {

using Instant = Clock::time_point;
using std::chrono::nanoseconds;

// The counter that leases on all keys may share.
inline constexpr const char* shared_counter = "soak:numbers";

// A fencing number, and the key of the counter that it was drawn from.
struct Number {
  std::string counter;
  std::int64_t value = 0;
};

// Seen before `seen`: a lease is valid until `end`, or a little longer.
struct Validity {
  Instant seen;
  Instant end;
};

// The life of one lease. Its claim is the time from `acquired` to `last_held`: both are instants at
// which the lease certainly called itself held. It is written down when the lease is acquired, with
// `end` "open", and again when it has ended: what a killed process held stays open.
struct LeaseRecord {
  std::vector<std::string> keys;
  std::vector<Number> numbers{};  // one for each key, or none
  std::string token;
  bool auto_renew = false;
  bool renewed_by_hand = false;
  nanoseconds ttl{0};
  nanoseconds margin{0};  // the signal is due so long before validity ends
  Instant began{};        // before the acquisition was called
  Instant acquired;       // the acquisition had returned
  Instant last_held;      // before the last held() that said yes, or a release that succeeded
  Instant valid_first;    // the end of validity as first seen, and at most that
  Instant valid_last;     // the same for the latest end that was seen
  std::vector<Validity> validities;    // each end that was seen
  std::optional<Instant> listening{};  // stop_token() was asked for
  std::optional<Instant> signalled{};  // its stop was requested
  std::optional<Instant> held_late{};  // before a held() that said yes although the stop was known
  std::optional<Instant> releasing{};  // a release was called
  std::optional<Instant> answered{};   // it had returned
  std::optional<Instant> destroyed{};  // the object was gone
  bool revived = false;                // held() said yes behind loss()
  std::string loss = "none";           // or the reason
  std::string end;                     // "released", "scope", "lost", or what release() said
};

// An acquisition failed because a number was not above an earlier one.
struct Regression {
  Instant began;  // before the acquisition was called
  Instant at;
  std::vector<std::string> counters;  // it was one of these
};

// A thread that does nothing but sleep woke up late: how busy the machine was.
struct Late {
  Instant due;
  Instant woke;
};

// The last words of a holder.
struct Leftovers {
  long threads = 0;  // more than at its start
  long fds = 0;
};

struct HolderLog {
  std::string name;
  bool killed = false;
  std::vector<LeaseRecord> leases;
  std::vector<Regression> regressions;
  std::vector<Late> late;
  std::map<std::string, long> counts;
  std::vector<std::string> errors;  // what a holder must never see
  std::optional<Leftovers> leftovers;
};

std::string to_line(const LeaseRecord& lease);
std::string to_line(const Regression& regression);
std::string to_line(const Late& late);
std::string to_line(const Leftovers& leftovers);
std::string count_line(const std::string& name, long count);
std::string error_line(const std::string& what);

// Throws std::runtime_error for a line that none of the functions above made. The last words of one
// that was `killed` may have been cut.
HolderLog read_log(const std::string& name, std::istream& lines, bool killed = false);

}  // namespace redlease::soak

#endif
