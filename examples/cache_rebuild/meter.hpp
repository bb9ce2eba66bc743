#ifndef EXAMPLES_CACHE_REBUILD_METER_HPP
#define EXAMPLES_CACHE_REBUILD_METER_HPP

/// What all processes note about their rebuilds, in memory that they share: for the checks only. It
/// doesn't need Redis, so it is exact when that is silent, and when a process is killed.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>
#include <system_error>

namespace cache_rebuild {

inline constexpr std::size_t most_processes = 16;
inline constexpr std::size_t page_count = 8;

class Meter {
 public:
  void begin(std::size_t process, std::size_t page) {
    ++under_way_[process][page];
    // Of two that begin at once, at least the later one sees both.
    const auto all = sum([](std::size_t) { return true; });
    const auto of_page = sum([page](std::size_t other) { return other == page; });
    raise(most_at_once_, all);
    raise(most_of_a_page_at_once_, of_page);
  }

  /// Returns how often the page has been rebuilt.
  std::int64_t end(std::size_t process, std::size_t page) {
    --under_way_[process][page];
    return ++rebuilds_[page];
  }

  /// For the parent: the process stands still, and won't go on.
  void killed(std::size_t process) {
    for (auto& page : under_way_[process]) page = 0;
  }

  /// A page that the process is rebuilding, `page_count` if there is none.
  std::size_t under_way(std::size_t process) const {
    const auto& pages = under_way_[process];
    const auto found = std::ranges::find_if(pages, [](const auto& count) { return count > 0; });
    return static_cast<std::size_t>(found - pages.begin());
  }

  std::int64_t rebuilds(std::size_t page) const { return rebuilds_[page]; }
  std::int64_t most_at_once() const { return most_at_once_; }
  std::int64_t most_of_a_page_at_once() const { return most_of_a_page_at_once_; }

 private:
  using Count = std::atomic<std::int64_t>;
  static_assert(Count::is_always_lock_free);  // a lock would be a process's own

  template <class Wanted>
  std::int64_t sum(Wanted&& wanted) const {
    std::int64_t result = 0;
    for (const auto& pages : under_way_) {
      for (std::size_t page = 0; page < page_count; ++page) {
        if (wanted(page)) result += pages[page];
      }
    }
    return result;
  }

  static void raise(Count& most, std::int64_t value) {
    auto known = most.load();
    while (known < value && !most.compare_exchange_weak(known, value)) {
    }
  }

  std::array<std::array<Count, page_count>, most_processes> under_way_{};
  std::array<Count, page_count> rebuilds_{};
  Count most_at_once_{0};
  Count most_of_a_page_at_once_{0};
};

/// A meter that children forked from now on share.
class SharedMeter {
 public:
  SharedMeter() {
    void* memory =
        ::mmap(nullptr, sizeof(Meter), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    meter_ = new (memory) Meter;
  }
  SharedMeter(const SharedMeter&) = delete;
  SharedMeter& operator=(const SharedMeter&) = delete;
  ~SharedMeter() { ::munmap(meter_, sizeof(Meter)); }

  Meter& operator*() const { return *meter_; }
  Meter* operator->() const { return meter_; }

 private:
  Meter* meter_;
};

}  // namespace cache_rebuild

#endif
