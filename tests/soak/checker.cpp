#include "soak/checker.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

namespace redlease::soak {
namespace {

using namespace std::chrono_literals;

// How far a server's look at its clock and the time of the line in its feed may be apart, unless
// the server is stopped in between.
constexpr FeedChecker::Time slack = 100ms;

// How far two looks at two clocks may be apart.
constexpr nanoseconds clock_slack = 5ms;

std::string ms(nanoseconds time) {
  std::ostringstream text;
  text.precision(3);
  text << std::fixed << std::chrono::duration<double, std::milli>{time}.count() << " ms";
  return text.str();
}

std::string join(const std::string& what, const std::vector<std::string>& lines) {
  std::string text = what;
  for (const auto& line : lines) text += "\n    " + line;
  return text;
}

nanoseconds common(Instant from, Instant to, Instant other_from, Instant other_to) {
  return std::max(nanoseconds{0}, std::min(to, other_to) - std::max(from, other_from));
}

// ---- overlaps ----------------------------------------------------------------------------------

struct Claim {
  const LeaseRecord* lease;
  const std::string* holder;

  std::string text() const { return *holder + ": " + to_line(*lease); }
};

// The erasure came between the two acquisitions, and the older lease did not know yet: what it knew
// to be valid when it was erased is at most its ttl. It may have been acquired shortly before
// `acquired`, so that an erasure right before that instant may have hit it as well.
bool excuses(const Erasure& erasure, const LeaseRecord& older, const LeaseRecord& newer) {
  return (erasure.key.empty() || erasure.key == older.key) &&
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
  HolderCheck(const HolderLog& log, const std::vector<Stop>& stops) : log_(log), stops_(stops) {}

  Findings run() {
    for (const auto& lease : log_.leases) check_lease(lease);
    for (const auto& error : log_.errors) complain(error);
    check_leftovers();
    return std::move(findings_);
  }

 private:
  void check_lease(const LeaseRecord& lease) {
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
    } else if (2 * lateness(due, signalled) >= late_by) {
      // Two threads have to wake up for a signal: one that keeps the time, one that calls.
      ++findings_.signals_excused;
    } else {
      complain("a loss was signalled late: due " + ms(signalled - due) +
                   " earlier, a sleeper was late by " + ms(lateness(due, signalled)),
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

  void check_leftovers() {
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

  void complain(const std::string& what) {
    findings_.violations.push_back(log_.name + ": " + what);
  }
  void complain(const std::string& what, const LeaseRecord& lease) {
    complain(join(what, {to_line(lease)}));
  }

  const HolderLog& log_;
  const std::vector<Stop>& stops_;
  Findings findings_;
};

// ---- words of the feed -------------------------------------------------------------------------

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

std::string command_of(const test::MonitorLine& line) {
  return line.args.empty() ? std::string{} : upper(line.args.front());
}

FeedChecker::Time milliseconds_in(const std::string& text) {
  return std::chrono::milliseconds{std::stoll(text)};
}

std::optional<FeedChecker::Time> px_of(const std::vector<std::string>& set) {
  for (std::size_t i = 3; i + 1 < set.size(); ++i) {
    if (upper(set[i]) == "PX") return milliseconds_in(set[i + 1]);
  }
  return {};
}

// The lines of those who wait are no leases.
bool is_line(const std::string& key) { return key.ends_with(":redlease:line"); }

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
}

Findings check_overlaps(const std::vector<HolderLog>& logs, const std::vector<Erasure>& erasures) {
  std::map<std::string, std::vector<Claim>> claims;
  for (const auto& log : logs) {
    for (const auto& lease : log.leases) claims[lease.key].push_back({&lease, &log.name});
  }
  Findings findings;
  for (auto& [key, of_key] : claims) {
    std::ranges::sort(of_key, {}, [](const Claim& claim) { return claim.lease->acquired; });
    check_key(of_key, erasures, findings);
  }
  return findings;
}

Findings check_holder(const HolderLog& log, const std::vector<Stop>& stops) {
  return HolderCheck{log, stops}.run();
}

// ---- the feed ----------------------------------------------------------------------------------

void FeedChecker::take(const test::MonitorLine& line) {
  ++findings_.feed_lines;
  forget_until(line.time);
  const auto command = command_of(line);
  if (line.source == "lua") {
    if (test::is_unguarded_write(line.args)) {
      take_script_write(line);
    } else if (command == "SET") {
      take_set(line);
    }
  } else if (world_.admins.contains(line.source)) {
    take_admin(line);
  } else if (test::is_unguarded_write(line.args)) {
    complain("an unguarded write of a client", line);
  } else if (command == "SET") {
    take_set(line);
  } else if ((command == "EVAL" || command == "EVALSHA") && line.args.size() > 2) {
    const auto behind_keys = 3 + std::stoul(line.args[2]);
    script_ = {line.source, {}};
    if (behind_keys < line.args.size()) {
      script_.args.assign(line.args.begin() + static_cast<std::ptrdiff_t>(behind_keys),
                          line.args.end());
    }
  }
}

void FeedChecker::check_validity(const HolderLog& log, nanoseconds clocks) {
  const auto complain = [&](const std::string& what, const LeaseRecord& lease) {
    findings_.violations.push_back(join(log.name + ": " + what, {to_line(lease)}));
  };
  for (const auto& lease : log.leases) {
    if (!seen_throughout(lease, clocks)) continue;
    const auto& written = written_[lease.token];
    for (const auto& [seen, end] : lease.validities) {
      const auto known =
          Time{std::chrono::ceil<Time>(seen.time_since_epoch() + clocks + clock_slack)};
      const auto behind = std::ranges::upper_bound(written, known);
      if (behind == written.begin()) {
        complain("a lease that the server never gave", lease);
        break;
      }
      ++findings_.validities;
      const auto certain = Instant{*std::prev(behind) - clocks} + lease.ttl - lease.ttl / 100;
      if (end <= certain + clock_slack) continue;
      complain("a lease was believed to be valid for " + ms(end - certain) +
                   " beyond what the server gave",
               lease);
    }
  }
}

bool FeedChecker::seen_throughout(const LeaseRecord& lease, nanoseconds clocks) const {
  const auto from = lease.acquired.time_since_epoch() + clocks - lease.ttl;
  const auto to = lease.valid_last.time_since_epoch() + clocks;
  return std::ranges::none_of(world_.blind,
                              [&](const Span& span) { return from <= span.to && to >= span.from; });
}

// A server that was stopped in the middle of a command writes the line down when it goes on.
FeedChecker::Span FeedChecker::when(Time written) const {
  for (const auto& pause : world_.pauses) {
    if (written >= pause.from && written <= pause.to + slack) return {pause.from, written};
  }
  return {written, written};
}

FeedChecker::Span FeedChecker::expiry(Span at, Time ttl) const {
  return {at.from + ttl - slack, at.to + ttl + slack};
}

std::vector<FeedChecker::Holding>& FeedChecker::possibilities(const std::string& key) {
  const auto [found, is_new] = keys_.try_emplace(key);
  if (is_new && forgotten_) {
    found->second.push_back({{}, expiry(*forgotten_, world_.longest_ttl)});
  }
  return found->second;
}

void FeedChecker::forget_until(Time now) {
  for (; next_blind_ < world_.blind.size() && world_.blind[next_blind_].from < now; ++next_blind_) {
    forgotten_ = world_.blind[next_blind_];
    keys_.clear();
  }
}

void FeedChecker::take_admin(const test::MonitorLine& line) {
  const auto command = command_of(line);
  if (command == "DEL" || command == "UNLINK") {
    for (std::size_t i = 1; i < line.args.size(); ++i) possibilities(line.args[i]).clear();
  } else if (command == "FLUSHALL" || command == "FLUSHDB") {
    for (auto& [key, holdings] : keys_) holdings.clear();
  }
}

// With NX: it succeeded if the key was free, and the lines don't tell.
void FeedChecker::take_set(const test::MonitorLine& line) {
  const auto ttl = px_of(line.args);
  if (!ttl) return;
  const auto at = when(line.time);
  written_[line.args.at(2)].push_back(line.time);
  const bool free = may_be_free(line.args.at(1), at);
  auto& holdings = possibilities(line.args.at(1));
  std::erase_if(holdings, [&](const Holding& holding) { return at.from > holding.expiry.to; });
  if (free) holdings.push_back({line.args.at(2), expiry(at, *ttl)});
}

bool FeedChecker::may_be_free(const std::string& key, Span at) {
  const auto& holdings = possibilities(key);
  return holdings.empty() || std::ranges::any_of(holdings, [&](const Holding& holding) {
           return !holding.token || at.to >= holding.expiry.from;
         });
}

// A script that grants the lease to one who waits: in the place of its own token, or of none.
void FeedChecker::take_grant(const test::MonitorLine& line, Time ttl) {
  const auto& key = line.args[1];
  const auto at = when(line.time);
  if (!owner_in_script(key, at) && !may_be_free(key, at)) {
    complain("a script grants a key that holds a foreign token", line);
  }
  ++findings_.grants;
  written_[line.args.at(2)].push_back(line.time);
  possibilities(key) = {{line.args.at(2), expiry(at, ttl)}};
}

void FeedChecker::take_script_write(const test::MonitorLine& line) {
  const auto command = command_of(line);
  if (line.args.size() > 1 && is_line(line.args[1])) return;
  if (const auto ttl = px_of(line.args); ttl && command == "SET") return take_grant(line, *ttl);
  if ((command != "DEL" && command != "PEXPIRE") || line.args.size() < 2) {
    complain("an unguarded write of a script", line);
    return;
  }
  const auto& key = line.args[1];
  const auto at = when(line.time);
  const auto owner = owner_in_script(key, at);
  if (!owner) complain("a script writes to a key that holds a foreign token", line);
  auto& holdings = possibilities(key);
  holdings.clear();
  if (command == "DEL") {
    ++findings_.deletes;
  } else {
    ++findings_.renewals;
    if (owner && owner->token) {
      written_[*owner->token].push_back(line.time);
    } else {
      for (const auto& token : script_.args) written_[token].push_back(line.time);
    }
    const auto ttl = milliseconds_in(line.args.at(2));
    holdings.push_back({owner ? owner->token : std::nullopt, expiry(at, ttl)});
  }
}

// The lease whose token the script was given, by itself or at the end of a ticket, if the key may
// hold it.
std::optional<FeedChecker::Holding> FeedChecker::owner_in_script(const std::string& key, Span at) {
  for (const auto& holding : possibilities(key)) {
    const bool given =
        !holding.token || std::ranges::any_of(script_.args, [&](const std::string& arg) {
          return arg == *holding.token || arg.ends_with(":" + *holding.token);
        });
    if (given && at.from <= holding.expiry.to) return holding;
  }
  return {};
}

void FeedChecker::complain(const std::string& what, const test::MonitorLine& line) {
  std::ostringstream text;
  text << line;
  std::vector<std::string> lines{"at " + std::to_string(line.time.count()) + " us: " + text.str()};
  if (line.source == "lua") lines.push_back(join("called by " + script_.source, script_.args));
  if (line.args.size() > 1) {
    for (const auto& holding : possibilities(line.args[1])) {
      lines.push_back("it may hold " + holding.token.value_or("an unknown token") + " until " +
                      std::to_string(holding.expiry.to.count()) + " us");
    }
  }
  findings_.violations.push_back(join(what, lines));
}

}  // namespace redlease::soak
