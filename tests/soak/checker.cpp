#include "soak/checker.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "soak/text.hpp"

namespace redlease::soak {
namespace {

using namespace std::chrono_literals;

nanoseconds common(Instant from, Instant to, Instant other_from, Instant other_to) {
  return std::max(nanoseconds{0}, std::min(to, other_to) - std::max(from, other_from));
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::ranges::find(words, word) != words.end();
}

// ---- overlaps ----------------------------------------------------------------------------------

struct Claim {
  const LeaseRecord* lease;
  const std::string* holder;

  std::string text() const { return *holder + ": " + to_line(*lease); }
};

// The erasure came between the two acquisitions, and the older lease did not know yet: what it knew
// to be valid when it was erased is at most its ttl. It may have been acquired shortly before
// `acquired`, so that an erasure right before that instant may have hit it as well. With one of its
// keys a lease loses all.
bool excuses(const Erasure& erasure, const LeaseRecord& older, const LeaseRecord& newer) {
  return (erasure.key.empty() || contains(older.keys, erasure.key)) &&
         erasure.to >= older.acquired - older.ttl && erasure.from <= newer.acquired &&
         std::min(older.last_held, newer.last_held) <= erasure.to + older.ttl;
}

void compare(const Claim& older, const Claim& newer, const std::vector<Erasure>& erasures,
             Findings& findings) {
  const bool excused = std::ranges::any_of(
      erasures, [&](const Erasure& e) { return excuses(e, *older.lease, *newer.lease); });
  if (excused) {
    ++findings.overlaps_excused;
    return;
  }
  const auto overlap =
      std::min(older.lease->last_held, newer.lease->last_held) - newer.lease->acquired;
  findings.violations.push_back(join("two leases on one key were held at once, for " + ms(overlap),
                                     {older.text(), newer.text()}));
}

// `claims` of one key, by the instant of their acquisition.
void check_key(const std::vector<Claim>& claims, const std::vector<Erasure>& erasures,
               Findings& findings) {
  std::vector<Claim> open;
  for (const auto& claim : claims) {
    const auto& lease = *claim.lease;
    ++findings.claims;
    if (lease.last_held <= lease.acquired) continue;  // an instant that nothing bounds
    std::erase_if(open,
                  [&](const Claim& other) { return other.lease->last_held <= lease.acquired; });
    for (const auto& other : open) compare(other, claim, erasures, findings);
    open.push_back(claim);
  }
}

// ---- one holder --------------------------------------------------------------------------------

class HolderCheck {
 public:
  HolderCheck(const HolderLog& log, const std::vector<Stop>& stops, const Surroundings& around)
      : log_(log), stops_(stops), around_(around) {}

  Findings run() {
    for (const auto& lease : log_.leases) check_lease(lease);
    check_numbers();
    for (const auto& regression : log_.regressions) check_regression(regression);
    for (const auto& error : log_.errors) complain(error);
    check_leftovers();
    return std::move(findings_);
  }

 private:
  void check_lease(const LeaseRecord& lease) {
    if (lease.end == "open" && !log_.killed) complain("a lease has no end", lease);
    if (lease.revived) complain("a lost lease was held again", lease);
    if (lease.held_late) complain("held() said yes behind the signal", lease);
    check_validity(lease);
    check_stops(lease);
    if (lease.loss == "none") {
      if (lease.signalled) complain("a loss was signalled, but loss() is empty", lease);
    } else {
      if (lease.end == "released") complain("a lost lease was released", lease);
      if (lease.listening) check_signal(lease);
    }
  }

  void check_validity(const LeaseRecord& lease) {
    if (lease.valid_first > lease.acquired + lease.ttl + running_slack(lease)) {
      complain("a lease is valid for longer than its ttl", lease);
    }
    if (lease.auto_renew || lease.renewed_by_hand) return;
    if (lease.last_held > lease.valid_first) {
      complain("a lease that nobody renewed was held beyond its validity", lease);
    }
  }

  // `valid_first` is at most what was true; it was measured a little behind `acquired`.
  nanoseconds running_slack(const LeaseRecord& lease) const {
    const auto until = lease.acquired + 50ms;
    return 50ms + stopped(lease.acquired, until + lease.ttl) + lateness(lease.acquired, until);
  }

  // While a process is stopped nothing is renewed, so what is held afterwards is no older than a
  // ttl.
  void check_stops(const LeaseRecord& lease) {
    for (const auto& stop : stops_) {
      if (stop.stopped <= lease.acquired || stop.resumed - stop.stopped <= lease.ttl) continue;
      if (lease.valid_last >= stop.from) ++findings_.long_stops;
      if (lease.last_held > stop.resumed && lease.acquired < stop.from) {
        complain("a lease outlived a stop of its holder that was longer than its ttl", lease);
      }
    }
  }

  void check_signal(const LeaseRecord& lease) {
    if (!lease.signalled) {
      complain("a loss was never signalled", lease);
      return;
    }
    const auto signalled = *lease.signalled;
    const auto due = signal_due(lease);
    const auto late_by = signalled - due - stopped(due, signalled);
    if (signalled <= lease.valid_last) {
      ++findings_.signals;
    } else if (late_by <= lease.margin) {
      ++(lease.answered ? findings_.signals_behind : findings_.signals);
    } else if (2 * std::max(lateness(due, signalled), lateness_of_others(due, signalled)) >=
               late_by) {
      // Two threads have to wake up for a signal: one that keeps the time, one that calls.
      ++findings_.signals_excused;
    } else {
      complain("a loss was signalled late: due " + ms(signalled - due) +
                   " earlier, its sleeper was late by " + ms(lateness(due, signalled)) +
                   ", another by " + ms(lateness_of_others(due, signalled)),
               lease);
    }
  }

  // Who starts to listen shortly before the end has less than the margin. Who is giving the lease
  // back needs no signal to stop, and hears of a loss with the answer.
  static Instant signal_due(const LeaseRecord& lease) {
    const auto due = std::max(lease.valid_last - lease.margin, *lease.listening);
    const bool gave_back_in_time = lease.releasing && *lease.releasing < due;
    return gave_back_in_time ? std::max(due, *lease.answered) : due;
  }

  // A call that begins when a lease has been handed out knows its numbers.
  void check_numbers() {
    std::vector<const LeaseRecord*> by_begin;
    for (const auto& lease : log_.leases) {
      if (!lease.numbers.empty()) by_begin.push_back(&lease);
    }
    auto by_acquisition = by_begin;
    std::ranges::sort(by_begin, {}, &LeaseRecord::began);
    std::ranges::sort(by_acquisition, {}, &LeaseRecord::acquired);
    std::map<std::string, const LeaseRecord*> highest;
    auto known = by_acquisition.begin();
    for (const auto* lease : by_begin) {
      for (; known != by_acquisition.end() && (*known)->acquired <= lease->began; ++known) {
        for (const auto& [counter, value] : (*known)->numbers) {
          const auto [found, is_new] = highest.try_emplace(counter, *known);
          if (!is_new && value > highest_in(*found->second, counter)) found->second = *known;
        }
      }
      for (const auto& number : lease->numbers) compare(number, *lease, highest);
    }
  }

  static std::int64_t highest_in(const LeaseRecord& lease, const std::string& counter) {
    std::int64_t highest = 0;
    for (const auto& number : lease.numbers) {
      if (number.counter == counter) highest = std::max(highest, number.value);
    }
    return highest;
  }

  void compare(const Number& number, const LeaseRecord& lease,
               const std::map<std::string, const LeaseRecord*>& highest) {
    const auto before = highest.find(number.counter);
    if (before == highest.end()) return;
    ++findings_.numbers_of_client;
    if (number.value > highest_in(*before->second, number.counter)) return;
    complain(join("a client was given a number of " + number.counter +
                      " that is not above one that it had before",
                  {to_line(*before->second), to_line(lease)}));
  }

  // The client had a number from before the data was lost, and none from since then.
  void check_regression(const Regression& regression) {
    const bool lost = std::ranges::any_of(around_.erasures, [&](const Erasure& erasure) {
      return erasure.key.empty() && erasure.from <= regression.at &&
             std::ranges::any_of(regression.counters, [&](const std::string& counter) {
               return had_before(counter, erasure.to, regression) &&
                      !has_passed(counter, erasure.to, regression);
             });
    });
    if (lost) {
      ++findings_.regressions;
    } else {
      complain(join("a number was refused, but its counter was not lost", {to_line(regression)}));
    }
  }

  static bool has_number(const LeaseRecord& lease, const std::string& counter) {
    return std::ranges::find(lease.numbers, counter, &Number::counter) != lease.numbers.end();
  }

  // A number that was refused may have had others beside it, of other counters.
  bool had_before(const std::string& counter, Instant until, const Regression& regression) const {
    return std::ranges::any_of(log_.leases,
                               [&](const LeaseRecord& lease) {
                                 return lease.began <= until && has_number(lease, counter);
                               }) ||
           std::ranges::any_of(log_.regressions, [&](const Regression& other) {
             return other.began <= until && other.at < regression.at && other.counters.size() > 1 &&
                    contains(other.counters, counter);
           });
  }

  bool has_passed(const std::string& counter, Instant since, const Regression& regression) const {
    return std::ranges::any_of(log_.leases, [&](const LeaseRecord& lease) {
      return lease.began > since && lease.acquired <= regression.began &&
             has_number(lease, counter);
    });
  }

  void check_leftovers() {
    if (log_.killed) return;
    if (!log_.leftovers) {
      complain("it did not come to its end");
    } else if (log_.leftovers->threads > 0 || log_.leftovers->fds > 0) {
      complain(to_line(*log_.leftovers));
    }
  }

  nanoseconds stopped(Instant from, Instant to) const {
    nanoseconds sum{0};
    for (const auto& stop : stops_) sum += common(from, to, stop.from, stop.to);
    return sum;
  }

  // How late the sleeper was in this time, while its process ran.
  nanoseconds lateness(Instant from, Instant to) const {
    nanoseconds sum{0};
    const auto first = std::ranges::lower_bound(log_.late, from, {}, &Late::woke);
    for (auto late = first; late != log_.late.end() && late->due < to; ++late) {
      sum += late->woke - late->due - stopped(late->due, late->woke);
    }
    return sum;
  }

  // The latest of the other sleepers, as far as that falls into this time.
  nanoseconds lateness_of_others(Instant from, Instant to) const {
    nanoseconds most{0};
    for (const auto& other : around_.others) {
      nanoseconds sum{0};
      for (const auto& late : other) sum += common(from, to, late.due, late.woke);
      most = std::max(most, sum);
    }
    return most;
  }

  void complain(const std::string& what) {
    findings_.violations.push_back(log_.name + ": " + what);
  }
  void complain(const std::string& what, const LeaseRecord& lease) {
    complain(join(what, {to_line(lease)}));
  }

  const HolderLog& log_;
  const std::vector<Stop>& stops_;
  const Surroundings& around_;
  Findings findings_;
};

}  // namespace

void Findings::add(const Findings& other) {
  violations.insert(violations.end(), other.violations.begin(), other.violations.end());
  claims += other.claims;
  overlaps_excused += other.overlaps_excused;
  signals += other.signals;
  signals_behind += other.signals_behind;
  signals_excused += other.signals_excused;
  long_stops += other.long_stops;
  feed_lines += other.feed_lines;
  deletes += other.deletes;
  renewals += other.renewals;
  grants += other.grants;
  validities += other.validities;
  numbers += other.numbers;
  numbers_unseen += other.numbers_unseen;
  numbers_of_client += other.numbers_of_client;
  regressions += other.regressions;
  counters += other.counters;
  taken_whole += other.taken_whole;
  renewed_whole += other.renewed_whole;
  ended_whole += other.ended_whole;
  given_back += other.given_back;
  given_back_later += other.given_back_later;
  left_to_expire += other.left_to_expire;
}

std::vector<Late> late_unstopped(const HolderLog& log, const std::vector<Stop>& stops) {
  std::vector<Late> late;
  std::ranges::copy_if(log.late, std::back_inserter(late), [&](const Late& each) {
    return std::ranges::none_of(
        stops, [&](const Stop& stop) { return stop.from <= each.woke && stop.to >= each.due; });
  });
  return late;
}

Findings check_overlaps(const std::vector<HolderLog>& logs, const std::vector<Erasure>& erasures) {
  std::map<std::string, std::vector<Claim>> claims;
  for (const auto& log : logs) {
    for (const auto& lease : log.leases) {
      for (const auto& key : lease.keys) claims[key].push_back({&lease, &log.name});
    }
  }
  Findings findings;
  for (auto& [key, of_key] : claims) {
    std::ranges::sort(of_key, {}, [](const Claim& claim) { return claim.lease->acquired; });
    check_key(of_key, erasures, findings);
  }
  return findings;
}

Findings check_holder(const HolderLog& log, const std::vector<Stop>& stops,
                      const Surroundings& around) {
  return HolderCheck{log, stops, around}.run();
}

}  // namespace redlease::soak
