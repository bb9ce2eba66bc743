// The parts of the benchmark. Each measures its subjects one after the other, in several rounds,
// so that all of them see the same noise.
#ifndef REDLEASE_BENCH_PARTS_HPP
#define REDLEASE_BENCH_PARTS_HPP

#include <chrono>
#include <string>
#include <vector>

#include "report.hpp"

namespace redlease::bench {

struct Settings {
  std::string host = "127.0.0.1";
  int port = 6379;
  int rounds = 9;
  std::chrono::milliseconds window{300};  // of one measurement
};

// One key that 1 to 128 threads wait for, in one process and in several.
std::vector<Row> measure_contention(const Settings& settings);
// Acquire and release, uncontended, with 1 to 64 threads.
std::vector<Row> measure_cycles(const Settings& settings);
// What a file that includes redlease costs to compile.
std::vector<Row> measure_includes(const Settings& settings);
// Leases that are held and renewed by themselves, 1,000 to 100,000 of them on one client.
std::vector<Row> measure_renewals(const Settings& settings);

}  // namespace redlease::bench

#endif
