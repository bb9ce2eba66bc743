#include "soak/feed_checker.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "soak/text.hpp"

namespace redlease::soak {
namespace {

using namespace std::chrono_literals;

// How far a server's look at its clock and the time of the line in its feed may be apart, unless
// the server is stopped in between.
constexpr FeedChecker::Time slack = 100ms;

// How far two looks at two clocks may be apart.
constexpr nanoseconds clock_slack = 5ms;

// What is written without waiting has been executed then, unless something is in the way.
constexpr nanoseconds time_to_give_back = 500ms;

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

// Without those who may change it otherwise a counter only rises.
bool may_touch_counter(const std::string& command) {
  static const std::set<std::string> allowed{"INCR", "GET", "EXISTS", "TYPE", "PTTL"};
  return allowed.contains(command);
}

}  // namespace

bool is_counter(const std::string& key) {
  return key.ends_with(":redlease:fence") || key == shared_counter;
}
bool is_line(const std::string& key) { return key.ends_with(":redlease:line"); }

// ---- the feed ----------------------------------------------------------------------------------

void FeedChecker::take(const test::MonitorLine& line) {
  ++findings_.feed_lines;
  if (line.source != "lua") end_script();
  forget_until(line.time);
  last_ = line.time;
  const auto command = command_of(line);
  const bool counts = line.args.size() > 1 && is_counter(line.args[1]);
  if (counts && !world_.admins.contains(line.source)) {
    take_counter(line);
  } else if (line.source == "lua") {
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
    begin_script(line);
  }
}

void FeedChecker::begin_script(const test::MonitorLine& line) {
  script_ = {};
  script_.source = line.source;
  const auto first = line.args.begin() + 3;
  const auto count = std::min(std::stoul(line.args[2]), line.args.size() - 3);
  const auto behind = first + static_cast<std::ptrdiff_t>(count);
  std::copy_if(first, behind, std::back_inserter(script_.keys),
               [](const std::string& key) { return !is_counter(key) && !is_line(key); });
  script_.args.assign(behind, line.args.end());
  ++scripts_;
}

// Nobody comes between the lines of a script, so only behind the last one a lease on several keys
// has to be whole.
void FeedChecker::end_script() {
  const auto script = std::exchange(script_, {});
  if (!script.set.empty() && script.set.size() != script.keys.size()) {
    complain("a script gives only some of the keys that were asked for", script);
  } else if (script.set.size() > 1) {
    ++findings_.taken_whole;
  }
  if (!script.renewed.empty()) judge_renewals(script);
  if (!script.deleted.empty()) judge_deletes(script);
}

// Each key has a token at its place.
void FeedChecker::judge_renewals(const Script& script) {
  std::map<std::string, std::set<std::string>> renewed;  // by token
  for (std::size_t i = 0; i < std::min(script.keys.size(), script.args.size()); ++i) {
    const auto& key = script.keys[i];
    if (script.renewed.contains(key)) renewed[script.args[i]].insert(key);
  }
  for (const auto& [token, keys] : renewed) {
    const auto* all = given(token);
    if (!all || all->size() < 2) continue;
    if (all->size() == keys.size()) {
      ++findings_.renewed_whole;
    } else {
      complain("a script renews a part of a lease on several keys", script);
    }
  }
}

void FeedChecker::judge_deletes(const Script& script) {
  std::set<std::string> tokens;
  for (const auto& [key, token] : script.deleted) tokens.insert(token);
  for (const auto& token : tokens) {
    const auto* all = given(token);
    if (!all || all->size() < 2) continue;
    const bool whole = std::ranges::none_of(
        *all, [&](const auto& entry) { return certainly_holds(entry.first, token); });
    if (whole) {
      ++findings_.ended_whole;
    } else {
      complain("a script leaves a part of a lease on several keys behind", script);
    }
  }
}

bool FeedChecker::certainly_holds(const std::string& key, const std::string& token) const {
  const auto found = keys_.find(key);
  if (found == keys_.end() || found->second.size() != 1) return false;
  const auto& holding = found->second.front();
  return holding.token == token && when(last_).to < holding.expiry.from;
}

// The keys that scripts have set to the token; null: there are none.
const std::map<std::string, FeedChecker::Given>* FeedChecker::given(
    const std::string& token) const {
  const auto found = given_.find(token);
  return found == given_.end() ? nullptr : &found->second;
}

void FeedChecker::take_counter(const test::MonitorLine& line) {
  const auto command = command_of(line);
  if (!may_touch_counter(command)) complain("a counter of fencing numbers is changed", line);
  if (command == "INCR") ++increments_[line.args[1]];
}

void FeedChecker::note_gone(const std::string& key, const std::optional<std::string>& token,
                            Time at) {
  if (token) {
    gone_[*token].insert_or_assign(key, at);
  } else {
    for (const auto& each : script_.args) gone_[each].insert_or_assign(key, at);
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
  return !unseen(lease.acquired - lease.ttl, lease.valid_last, clocks);
}

// ---- numbers, and the ends of leases -----------------------------------------------------------

void FeedChecker::check_numbers(const std::vector<HolderLog>& logs, nanoseconds clocks) {
  end_script();
  for (const auto& log : logs) {
    for (const auto& lease : log.leases) {
      if (lease.numbers.empty() && lease.keys.size() < 2) continue;
      const auto* keys = given(lease.token);
      if (keys && keys->size() == lease.keys.size()) {
        compare_numbers(log, lease);
      } else if (unseen(lease.began - lease.ttl, lease.acquired, clocks)) {
        findings_.numbers_unseen += lease.numbers.size();
      } else {
        report(log.name + ": a lease that the server did not give as a whole", {to_line(lease)});
      }
    }
  }
  check_order();
}

void FeedChecker::compare_numbers(const HolderLog& log, const LeaseRecord& lease) {
  const auto& keys = *given(lease.token);
  const auto& first = keys.begin()->second;
  const auto text = log.name + ": " + to_line(lease);
  const bool at_once = std::ranges::all_of(
      keys, [&](const auto& entry) { return entry.second.script == first.script; });
  if (!at_once) report("the keys of a lease were given one by one", {text});
  for (std::size_t i = 0; i < lease.numbers.size(); ++i) {
    const auto& [counter, value] = lease.numbers[i];
    ++findings_.numbers;
    const auto [other, is_new] = numbers_[{counter, first.epoch}].try_emplace(value, text);
    if (!is_new) {
      report("a number of " + counter + " was given twice", {other->second, text});
    }
    drawn_[{counter, lease.keys[i], first.epoch}].emplace(first.script, Drawn{value, text});
  }
}

void FeedChecker::check_order() {
  for (const auto& [place, drawn] : drawn_) {
    const Drawn* before = nullptr;
    for (const auto& [script, now] : drawn) {
      if (before && now.number <= before->number) {
        report("the numbers of " + std::get<1>(place) + " do not rise", {before->lease, now.lease});
      }
      before = &now;
    }
  }
}

void FeedChecker::check_counters(const std::map<std::string, CounterAtEnd>& counters) {
  end_script();
  for (const auto& [name, counter] : counters) {
    ++findings_.counters;
    if (counter.expires) report("a counter that expires: " + name, {});
  }
  const auto value_of = [&](const std::string& name) {
    const auto found = counters.find(name);
    return found == counters.end() ? 0 : found->second.value;
  };
  for (const auto& [name, count] : increments_) {
    const auto value = value_of(name);
    if (value == count || (value > count && !all_increments_)) continue;
    report("a counter is not where its increments have led it",
           {name + " is " + std::to_string(value) + " behind " + std::to_string(count)});
  }
  for (const auto& [place, numbers] : numbers_) {
    if (place.second != epoch_ || numbers.rbegin()->first <= value_of(place.first)) continue;
    report("a counter fell: " + place.first + " is " + std::to_string(value_of(place.first)),
           {numbers.rbegin()->second});
  }
}

void FeedChecker::check_ends(const HolderLog& log, const std::vector<Trouble>& troubles,
                             nanoseconds clocks) {
  end_script();
  for (const auto& lease : log.leases) {
    const auto end = std::max(lease.valid_last, lease.answered.value_or(lease.valid_last));
    if (unseen(lease.acquired - lease.ttl, end, clocks)) continue;
    if (lease.end == "released") check_release(log, lease, clocks);
    if (lease.end == "scope" && lease.destroyed) check_destruction(log, lease, troubles, clocks);
  }
}

bool FeedChecker::is_gone(const std::string& key, const std::string& token, Time until) const {
  const auto keys = gone_.find(token);
  if (keys == gone_.end()) return false;
  const auto found = keys->second.find(key);
  return found != keys->second.end() && found->second <= until;
}

void FeedChecker::check_release(const HolderLog& log, const LeaseRecord& lease,
                                nanoseconds clocks) {
  const auto until =
      std::chrono::ceil<Time>(lease.answered->time_since_epoch() + clocks + clock_slack);
  for (const auto& key : lease.keys) {
    if (is_gone(key, lease.token, until)) {
      ++findings_.given_back;
    } else {
      report(log.name + ": a released lease still had " + key, {to_line(lease)});
    }
  }
}

// A destructor doesn't wait, so it takes time and a server that answers.
void FeedChecker::check_destruction(const HolderLog& log, const LeaseRecord& lease,
                                    const std::vector<Trouble>& troubles, nanoseconds clocks) {
  const auto from = lease.destroyed.value() - 1s;
  const auto to = *lease.destroyed + time_to_give_back;
  const bool calm = lease.loss == "none" && lease.valid_last >= to &&
                    std::ranges::none_of(
                        troubles, [&](const Trouble& t) { return t.from <= to && t.to >= from; }) &&
                    std::ranges::none_of(log.late, [&](const Late& late) {
                      return late.due <= to && late.woke >= from && late.woke - late.due > 50ms;
                    });
  const auto until = std::chrono::ceil<Time>(to.time_since_epoch() + clocks);
  for (const auto& key : lease.keys) {
    if (is_gone(key, lease.token, calm ? until : Time::max())) {
      ++findings_.given_back_later;
    } else if (!calm) {
      ++findings_.left_to_expire;
    } else {
      report(log.name + ": a destroyed lease still had " + key, {to_line(lease)});
    }
  }
}

bool FeedChecker::unseen(Instant from, Instant to, nanoseconds clocks) const {
  const auto first = from.time_since_epoch() + clocks;
  const auto last = to.time_since_epoch() + clocks;
  return std::ranges::any_of(
      world_.blind, [&](const Span& span) { return first <= span.to && last >= span.from; });
}

// ---- what a key holds --------------------------------------------------------------------------

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
    ++epoch_;
    increments_.clear();
    all_increments_ = false;
  }
}

void FeedChecker::take_admin(const test::MonitorLine& line) {
  const auto command = command_of(line);
  if (command == "DEL" || command == "UNLINK") {
    for (std::size_t i = 1; i < line.args.size(); ++i) possibilities(line.args[i]).clear();
  } else if (command == "FLUSHALL" || command == "FLUSHDB") {
    for (auto& [key, holdings] : keys_) holdings.clear();
    forgotten_.reset();
    ++epoch_;
    increments_.clear();
    all_increments_ = true;
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
  const auto owner = owner_in_script(key, at);
  if (!owner && !may_be_free(key, at)) {
    complain("a script grants a key that holds a foreign token", line);
  }
  if (owner) note_gone(key, owner->token, line.time);
  script_.set[key] = line.args.at(2);
  given_[line.args.at(2)].insert_or_assign(key, Given{scripts_, epoch_});
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
  if (command == "DEL" && line.args.size() > 2) {
    for (std::size_t i = 1; i < line.args.size(); ++i) {
      auto one = line;
      one.args = {command, line.args[i]};
      take_script_write(one);
    }
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
    if (owner) note_gone(key, owner->token, line.time);
    if (owner && owner->token) script_.deleted[key] = *owner->token;
  } else {
    ++findings_.renewals;
    script_.renewed.insert(key);
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

void FeedChecker::report(const std::string& what, const std::vector<std::string>& details) {
  findings_.violations.push_back(join(what, details));
}

void FeedChecker::complain(const std::string& what, const Script& script) {
  std::vector<std::string> lines{"at " + std::to_string(last_.count()) + " us, called by " +
                                 script.source};
  for (const auto& key : script.keys) lines.push_back("for " + key);
  for (const auto& arg : script.args) lines.push_back("with " + arg);
  for (const auto& [key, token] : script.set) lines.push_back("it set " + key + " to " + token);
  for (const auto& [key, token] : script.deleted) lines.push_back("it deleted " + key);
  for (const auto& key : script.renewed) lines.push_back("it renewed " + key);
  report(what, lines);
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
