// Counts what goes to the heap, hiredis and the standard library included: the benchmark replaces
// malloc's front doors with ones that count.
#ifndef REDLEASE_BENCH_ALLOCATIONS_HPP
#define REDLEASE_BENCH_ALLOCATIONS_HPP

namespace redlease::bench {

// By all threads so far.
long allocations();

}  // namespace redlease::bench

#endif
