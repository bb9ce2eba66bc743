#include "allocations.hpp"

#include <atomic>
#include <cstddef>

// glibc's own names for the real functions. operator new calls malloc, so this sees it, too.
extern "C" {
void* __libc_malloc(std::size_t size);                     // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(std::size_t count, std::size_t size);  // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* old, std::size_t size);         // NOLINT(bugprone-reserved-identifier)
}

namespace {

// Per thread while it runs, so that counting does not make the threads meet.
struct alignas(64) Cell {
  std::atomic<long> count{0};
};
constexpr std::size_t cells = 256;
Cell counts[cells];
std::atomic<std::size_t> next_cell{0};
thread_local Cell* mine = nullptr;

void count_one() {
  if (mine == nullptr) mine = &counts[next_cell.fetch_add(1, std::memory_order_relaxed) % cells];
  mine->count.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

extern "C" void* malloc(std::size_t size) {
  count_one();
  return __libc_malloc(size);
}
extern "C" void* calloc(std::size_t count, std::size_t size) {
  count_one();
  return __libc_calloc(count, size);
}
extern "C" void* realloc(void* old, std::size_t size) {
  count_one();
  return __libc_realloc(old, size);
}

namespace redlease::bench {

long allocations() {
  long sum = 0;
  for (const auto& cell : counts) sum += cell.count.load(std::memory_order_relaxed);
  return sum;
}

}  // namespace redlease::bench
