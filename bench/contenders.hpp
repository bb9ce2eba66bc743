// Those who contend for one key, in ways of their own: what one of the contended part's processes
// runs.
#ifndef REDLEASE_BENCH_CONTENDERS_HPP
#define REDLEASE_BENCH_CONTENDERS_HPP

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parts.hpp"

namespace redlease::bench {

inline constexpr auto contended_key = "bench:contended";

// What one thread holds the key with, again and again.
class Contender {
 public:
  Contender() = default;
  virtual ~Contender() = default;
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  virtual void acquire() = 0;  // returns with the key held
  virtual void release() = 0;
};

// Makes the contenders of one process, and outlives them.
using Contenders = std::function<std::unique_ptr<Contender>(int thread)>;

// The rivals: raw hiredis, a blocking connection per thread.
Contenders polling_contenders(const Settings& settings);  // tries anew after 1 to 10 ms
// A release is published. One thread per process listens, and wakes one of the waiters there.
Contenders publish_contenders(const Settings& settings);
// First in, first out: a release sets the key to the token of the first in a list, and tells it
// through a list of its own, on which it waits by BLPOP.
Contenders grants_contenders(const Settings& settings);

// Whether this version of redlease has Order::fifo.
bool has_fifo(const Settings& settings);

// When a thread asked for the key, had it, and was about to give it back: nanoseconds of the
// steady clock, which all processes share.
struct Turn {
  std::int64_t asked = 0;
  std::int64_t had = 0;
  std::int64_t releasing = 0;
  std::int64_t thread = 0;
};
std::int64_t steady_now();

// What such a process does: writes a byte when all threads are connected, lets them contend until
// its standard input ends, and then writes all turns.
void contend(const Settings& settings, const std::string& subject, int threads);

// The turns that such a process has written.
std::vector<Turn> turns_of(const std::string& written);

}  // namespace redlease::bench

#endif
