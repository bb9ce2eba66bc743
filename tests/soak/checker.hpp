// Judges a soak by what its holders wrote down; feed_checker.hpp, by what its server executed. No
// I/O: logs in, findings out.
//
// Nothing is held against the library that it can't help, and each excuse is as narrow as can be: a
// key was deleted, a server lost its memory, a process was stopped, or the machine was so busy that
// a thread which only sleeps was late as well.
#ifndef REDLEASE_TESTS_SOAK_CHECKER_HPP
#define REDLEASE_TESTS_SOAK_CHECKER_HPP

#include <cstddef>
#include <string>
#include <vector>

#include "soak/records.hpp"

namespace redlease::soak {

// A key was lost at some instant from `from` to `to`: all keys if `key` is empty.
struct Erasure {
  std::string key;
  Instant from;
  Instant to;
  std::string why;
};

// A holder was stopped: perhaps from `from` to `to`, certainly from `stopped` to `resumed`.
struct Stop {
  Instant from;
  Instant stopped;
  Instant resumed;
  Instant to;
};

struct Findings {
  std::vector<std::string> violations;

  std::size_t claims = 0;            // compared with all others on their key
  std::size_t overlaps_excused = 0;  // the server had lost the older lease
  std::size_t signals = 0;           // of losses that were signalled in time
  std::size_t signals_behind = 0;    // of losses that a release found out about in the end
  std::size_t signals_excused = 0;   // the machine was too busy
  std::size_t long_stops = 0;        // leases whose holder was stopped for more than their ttl
  std::size_t feed_lines = 0;
  std::size_t deletes = 0;     // in scripts, of the token that the key held
  std::size_t renewals = 0;    // in scripts, the same
  std::size_t grants = 0;      // in scripts, to one who waited
  std::size_t validities = 0;  // compared with what the server gave

  std::size_t numbers = 0;            // compared with all others of their counter
  std::size_t numbers_unseen = 0;     // drawn while there was no feed
  std::size_t numbers_of_client = 0;  // compared with what the same client had before
  std::size_t regressions = 0;        // noticed by a client, after the server had lost its data
  std::size_t counters = 0;           // read at the end
  std::size_t taken_whole = 0;        // leases on several keys, all of them in one script
  std::size_t renewed_whole = 0;      // the same, renewals
  std::size_t ended_whole = 0;        // the same, given back, handed on or deleted
  std::size_t given_back = 0;         // keys that were gone when the release had its answer
  std::size_t given_back_later = 0;   // keys that a destructor gave back
  std::size_t left_to_expire = 0;     // keys that it could not, in trouble

  void add(const Findings& other);
};

// What one holder can't know of itself.
struct Surroundings {
  std::vector<Erasure> erasures{};
  // How late other sleepers were, each by itself: those of the other holders, while they were not
  // stopped, and one on each processor. A processor that is taken away from the machine holds up
  // only the threads that are on it.
  std::vector<std::vector<Late>> others{};
};

// When the sleeper was late and its process was not stopped.
std::vector<Late> late_unstopped(const HolderLog& log, const std::vector<Stop>& stops);

// No two leases claim one key at the same instant, unless an erasure explains it.
Findings check_overlaps(const std::vector<HolderLog>& logs, const std::vector<Erasure>& erasures);

// Of one holder: losses are final and were signalled in time, nothing is held beyond its validity,
// and nothing is left at the end. Each fencing number is above all that its client had seen before
// it asked, also when the server has lost its data meanwhile; and only then a number may have been
// refused.
Findings check_holder(const HolderLog& log, const std::vector<Stop>& stops,
                      const Surroundings& around = {});

}  // namespace redlease::soak

#endif
