#ifndef EXAMPLES_CACHE_REBUILD_READER_HPP
#define EXAMPLES_CACHE_REBUILD_READER_HPP

/// How a service reads from a cache whose pages expire while many want them: the part to look at,
/// if you look at one.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "cache.hpp"
#include "meter.hpp"

namespace cache_rebuild {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// What a reader waits for a page that isn't there, before it does without.
inline constexpr auto patience = 250ms;
/// What a rebuild takes.
inline constexpr auto rebuild_time = 100ms;
/// So many rebuilds may go on at once, of all pages and in all processes.
inline constexpr int slot_count = 2;
/// Should a process die over a rebuild, another one may begin after that time. While it lives, its
/// leases are renewed, however long the rebuild takes.
inline constexpr std::chrono::milliseconds lease_ttl = 2s;
inline const redlease::LeaseOptions lease_terms{
    .ttl = lease_ttl, .auto_renew = true, .label = "cache-rebuild"};

inline std::string page_name(std::size_t page) { return fmt::format("example:{}", page + 1); }
inline std::string page_key(std::size_t page) { return "cache:" + page_name(page); }
inline std::string lease_key(std::size_t page) { return "cache:rebuild:" + page_name(page); }
inline std::string slot_key(int slot) { return fmt::format("cache:rebuild-slot:{}", slot + 1); }

struct Counts {
  std::int64_t reads = 0;     // each of them ends in one of the next four
  std::int64_t fresh = 0;     // a fresh page was in the cache
  std::int64_t awaited = 0;   // the reader rebuilt the page, or waited for it
  std::int64_t stale = 0;     // an old page was good enough meanwhile
  std::int64_t degraded = 0;  // no page: the answer does without
  std::int64_t merged = 0;    // left to another thread of the process
  std::int64_t refused = 0;   // another process holds the lease
  std::int64_t no_slot = 0;   // too many rebuilds are under way
  std::int64_t lost = 0;      // leases, in the middle of a rebuild
  std::int64_t failed = 0;    // reads that met trouble with Redis
  std::int64_t rebuilds = 0;  // that really happened
  std::int64_t unmerged = 0;  // that would have, if everyone rebuilt what they find expired
  std::chrono::milliseconds longest_read{0};

  Counts& operator+=(const Counts& other) {
    for (const auto count :
         {&Counts::reads, &Counts::fresh, &Counts::awaited, &Counts::stale, &Counts::degraded,
          &Counts::merged, &Counts::refused, &Counts::no_slot, &Counts::lost, &Counts::failed,
          &Counts::rebuilds, &Counts::unmerged}) {
      this->*count += other.*count;
    }
    longest_read = std::max(longest_read, other.longest_read);
    return *this;
  }
};

/// What the threads of a process share.
struct Service {
  redlease::Client redis;
  Meter& meter;
  std::size_t process = 0;
  redlease::SingleFlight<Page> rebuilds{};  // by page; no page if it couldn't be had now
};

/// One thread of the service.
class Reader {
 public:
  Reader(Service& service, const std::string& url, unsigned seed)
      : service_(service), cache_(url), random_(seed) {}

  /// The page for a visitor, or none: then the answer has to do without.
  Page read(std::size_t page) {
    const auto start = Clock::now();
    auto found = find(page, start + patience);
    const auto took = std::chrono::floor<std::chrono::milliseconds>(Clock::now() - start);
    ++counts_.reads;
    counts_.longest_read = std::max(counts_.longest_read, took);
    return found;
  }

  const Counts& counts() const { return counts_; }

 private:
  Page find(std::size_t page, Clock::time_point deadline) {
    Page old;
    try {
      const auto found = cache_.read(page_key(page));
      note_expiry(page, found && found->fresh);
      if (found && found->fresh) return count(counts_.fresh, found->page);
      if (found) old = found->page;
      if (auto fresh = old ? refresh(page) : await(page, deadline)) {
        return count(counts_.awaited, fresh);
      }
    } catch (const std::runtime_error&) {
      // Redis is in trouble: CacheError or redlease::Error. A visitor wants an answer anyway.
      ++counts_.failed;
    }
    return count(old ? counts_.stale : counts_.degraded, old);
  }

  /// There is an old page to serve. So one thread sees to a new one, and nobody waits for it.
  Page refresh(std::size_t page) {
    return merge(page, 0ms, [&] { return obtain(page); });
  }

  /// There is nothing to serve: all wait, until their own deadline, for the one who sees to it.
  Page await(std::size_t page, Clock::time_point deadline) {
    for (auto left = patience; left > 0ms; left = left_until(deadline)) {
      auto fresh = merge(page, left, [&] { return obtain_by(page, deadline); });
      if (fresh) return fresh;  // if not, the one who saw to it may have had less time
    }
    return nullptr;
  }

  /// One thread of this process calls `fn`; the others share what it brings, if it does so in time.
  template <class Fn>
  Page merge(std::size_t page, std::chrono::milliseconds at_most, Fn&& fn) {
    bool merged = true;
    const auto result = service_.rebuilds.run(page_key(page), at_most, [&] {
      merged = false;
      return fn();
    });
    counts_.merged += merged ? 1 : 0;
    return result.value_or(nullptr);
  }

  /// Tries until there is a fresh page, ours or another process's.
  Page obtain_by(std::size_t page, Clock::time_point deadline) {
    for (int limit = 10;; limit = std::min(2 * limit, 50)) {
      if (auto fresh = obtain(page)) return fresh;
      // Random, so that those who were refused together don't come back together.
      const std::chrono::milliseconds pause{std::uniform_int_distribution{5, limit}(random_)};
      const auto left = left_until(deadline);
      if (left <= 0ms) return nullptr;
      std::this_thread::sleep_for(std::min(pause, left));  // and a last try at the deadline
    }
  }

  /// One attempt: the page, if it is fresh by now or if it is for us to rebuild it.
  Page obtain(std::size_t page) {
    auto found = cache_.read(page_key(page));
    if (found && found->fresh) return found->page;

    const auto lease = service_.redis.try_acquire(lease_key(page), lease_terms);
    if (!lease) {
      ++counts_.refused;
      return nullptr;
    }
    // The last holder may have written between that look and this lease; nobody writes now.
    found = cache_.read(page_key(page));
    if (found && found->fresh) return found->page;

    const auto slot = take_slot();
    if (!slot) {
      ++counts_.no_slot;
      return nullptr;
    }
    auto rebuilt = rebuild(page);
    // What a holder of a lost lease brings may be older than what the next one has written. (One
    // that is paused right here still writes late. It does no harm for longer than a page lasts.)
    if (!lease->held() || !slot->held()) {
      ++counts_.lost;
      return nullptr;
    }
    cache_.write(page_key(page), rebuilt);
    return rebuilt;
  }  // slot and lease are given back here, behind the write

  /// One of the few leases under which rebuilds go on; empty if all are held.
  std::optional<redlease::Lease> take_slot() {
    const auto first = static_cast<int>(random_() % slot_count);
    for (int i = 0; i < slot_count; ++i) {
      auto slot = service_.redis.try_acquire(slot_key((first + i) % slot_count), lease_terms);
      if (slot) return slot;
    }
    return std::nullopt;
  }

  /// Stands for what makes a cache worth its price.
  Page rebuild(std::size_t page) {
    service_.meter.begin(service_.process, page);
    std::this_thread::sleep_for(rebuild_time);
    const auto times = service_.meter.end(service_.process, page);
    ++counts_.rebuilds;
    return std::make_shared<const std::string>(
        fmt::format("{}, edition {}", page_name(page), times));
  }

  static std::chrono::milliseconds left_until(Clock::time_point deadline) {
    return std::chrono::floor<std::chrono::milliseconds>(deadline - Clock::now());
  }

  // ---- what only the demonstration needs ----

  static Page count(std::int64_t& counter, const Page& page) {
    ++counter;
    return page;
  }

  /// Without merging, a thread would rebuild a page each time that it finds it expired.
  void note_expiry(std::size_t page, bool fresh) {
    auto& was_fresh = was_fresh_.try_emplace(page, true).first->second;
    if (was_fresh && !fresh) ++counts_.unmerged;
    was_fresh = fresh;
  }

  Service& service_;
  Cache cache_;
  std::minstd_rand random_;
  Counts counts_;
  std::map<std::size_t, bool> was_fresh_;  // at this thread's last look
};

}  // namespace cache_rebuild

#endif
