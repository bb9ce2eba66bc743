// Many threads that want one key, in one process and in several: how soon the next one has it, what
// that costs the server, and whether all get their turn. N waiters are N + 1 threads: one holds the
// key for 2 ms, the others wait.
//
// The threads are in processes of their own, which write down when they asked for the key, had it,
// and were about to give it back. One after the other, of all processes, those turns are the key's
// history:
//   handoff    from where one is about to give the key back to where the next one has it. That may
//              well be the same thread, asking again before any other has noticed
//   to_waiter  the same of those who had been waiting when the key was given back, and their share
//              of all handoffs
//   waiting    from asking for the key to having it, of all who waited at some time in the window
//   turns      of the thread that had fewest and of the one that had most, and their ratio
//   requests   that clients sent, per handoff: what MONITOR shows but for what scripts did. MONITOR
//              makes the server a bit slower, so counting has a window of its own
//   commands   that the server ran, per handoff, those of scripts included: all that MONITOR shows
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "contenders.hpp"
#include "parts.hpp"
#include "process.hpp"
#include "raw_redis.hpp"

namespace redlease::bench {
namespace {

using namespace std::chrono_literals;
using Milliseconds = std::chrono::milliseconds;

constexpr std::array crowds{1, 8, 32, 128};  // waiters
constexpr std::array process_counts{1, 4};
constexpr int most_rounds = 3;
constexpr auto patience = 60s;  // with a process that is to begin, or to end

// A subject, and the rival to compare it with.
struct Entrant {
  std::string name;
  std::string rival;
};

std::vector<Entrant> entrants(const Settings& settings) {
  const std::string publish = "hiredis/publish";
  const std::string grants = "hiredis/grants";
  std::vector<Entrant> all{{"hiredis/polling", ""},
                           {publish, ""},
                           {grants, ""},
                           {"redlease", publish},
                           {"redlease/scope_exit", publish}};
  if (has_fifo(settings)) all.push_back({"redlease/fifo", grants});
  return all;
}

// A dozen turns for each thread, with the default window.
Milliseconds window_of(const Settings& settings, int threads) {
  return settings.window * std::max(3, threads / 10);
}

// A span of the steady clock, and what the server did in it.
struct Span {
  std::int64_t from = 0;
  std::int64_t to = 0;

  bool has(std::int64_t instant) const { return from <= instant && instant < to; }
  double seconds() const { return static_cast<double>(to - from) * 1e-9; }
};
struct TimedSpan : Span {
  double server_seconds = 0;
};
struct CountedSpan : Span {
  double requests = 0;
  double commands = 0;
};

// ---- watching ----------------------------------------------------------------------------------

TimedSpan time_for(Milliseconds time, RawRedis& watcher) {
  TimedSpan span;
  const double before = server_cpu_seconds(watcher);
  span.from = steady_now();
  std::this_thread::sleep_for(time);
  span.to = steady_now();
  span.server_seconds = server_cpu_seconds(watcher) - before;
  return span;
}

// A line of MONITOR: 1339518083.107412 [0 127.0.0.1:60866] "GET" "key", or [0 lua] for a script's.
CountedSpan count_for(Milliseconds time, const Settings& settings, RawRedis& watcher) {
  const std::string_view end = "\"bench:end-of-count\"";
  CountedSpan span;
  RawRedis monitor{settings.host, settings.port};
  monitor.command({"MONITOR"});
  span.from = steady_now();
  std::this_thread::sleep_for(time);
  span.to = steady_now();
  watcher.command({"ECHO", end.substr(1, end.size() - 2)});
  for (;;) {
    const auto reply = monitor.next_reply();
    const std::string_view line{reply->str, reply->len};
    if (line.ends_with(end)) return span;
    ++span.commands;
    if (!line.substr(0, line.find(']')).ends_with(" lua")) ++span.requests;
  }
}

// What one measurement has seen.
struct History {
  TimedSpan timed;
  CountedSpan counted;
  std::vector<Turn> turns;
  int threads = 0;
};

// So many threads for each process. Two threads need no more than two processes.
std::vector<int> shares_of(int threads, int processes) {
  std::vector<int> shares(static_cast<std::size_t>(std::min(threads, processes)));
  for (std::size_t i = 0; i < static_cast<std::size_t>(threads); ++i) ++shares[i % shares.size()];
  return shares;
}

History watch(const Settings& settings, const std::string& subject, int processes, int threads) {
  const auto deadline = [] { return std::chrono::steady_clock::now() + patience; };
  const auto shares = shares_of(threads, processes);
  RawRedis watcher{settings.host, settings.port};
  std::deque<Child> children;
  for (const int share : shares) {
    children.emplace_back(std::vector<std::string>{
        "--redis", fmt::format("redis://{}:{}", settings.host, settings.port), "contend", subject,
        std::to_string(share)});
  }
  for (auto& child : children) child.next_byte(deadline());
  std::this_thread::sleep_for(settings.window / 2);  // warm

  History history;
  history.threads = threads;
  history.timed = time_for(window_of(settings, threads), watcher);
  history.counted = count_for(settings.window, settings, watcher);
  // All at once, since some wait for what others hold.
  for (auto& child : children) child.end_input();
  std::int64_t first_thread = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    for (auto turn : turns_of(children[i].finish(deadline()))) {
      turn.thread += first_thread;
      history.turns.push_back(turn);
    }
    first_thread += shares[i];
  }
  if (watcher.command({"EXISTS", contended_key})->integer != 0) {
    throw std::runtime_error(subject + " left its key behind");
  }
  return history;
}

// ---- what it says ------------------------------------------------------------------------------

struct Sample {
  std::vector<double> handoffs;  // in microseconds, as are the next two
  std::vector<double> to_waiters;
  std::vector<double> waits;
  double to_waiters_share = 0;  // of all handoffs, as is the next
  double unwaited = 0;  // nobody was waiting when the key was given back: not among those above
  double per_second = 0;
  double server_us = 0;  // processor time, per handoff
  double requests = 0;   // per handoff
  double commands = 0;
  double least_turns = 0;
  double most_turns = 0;
};

double us(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-3; }

Sample evaluate(const std::string& subject, History history) {
  auto& turns = history.turns;
  std::sort(turns.begin(), turns.end(), [](auto& a, auto& b) { return a.had < b.had; });
  std::vector<std::int64_t> asked;
  asked.reserve(turns.size());
  for (const auto& turn : turns) asked.push_back(turn.asked);
  std::sort(asked.begin(), asked.end());

  Sample sample;
  // Those still waiting at the end, too, or who never gets a turn would go unnoticed. They got it
  // when all had to stop, so of their wait this is the part that was seen.
  for (const auto& turn : turns) {
    if (turn.asked < history.timed.to && turn.had >= history.timed.from) {
      sample.waits.push_back(us(turn.had - turn.asked));
    }
  }
  double handoffs = 0;
  double counted = 0;
  std::vector<double> turns_of_thread(static_cast<std::size_t>(history.threads));
  for (std::size_t i = 1; i < turns.size(); ++i) {
    const auto& last = turns[i - 1];
    const auto& turn = turns[i];
    if (turn.had < last.releasing) {
      throw std::runtime_error(subject + ": two threads held the key at the same time");
    }
    if (history.counted.has(turn.had)) ++counted;
    if (!history.timed.has(turn.had)) continue;
    ++turns_of_thread[static_cast<std::size_t>(turn.thread)];
    ++handoffs;
    // Until then i turns had begun; were there more who had asked?
    const auto askers =
        std::upper_bound(asked.begin(), asked.end(), last.releasing) - asked.begin();
    if (askers <= static_cast<std::ptrdiff_t>(i)) {
      ++sample.unwaited;
      continue;
    }
    sample.handoffs.push_back(us(turn.had - last.releasing));
    if (turn.asked <= last.releasing) sample.to_waiters.push_back(sample.handoffs.back());
  }
  if (sample.handoffs.empty() || counted == 0) {
    throw std::runtime_error(subject + ": nobody got the key; the window is too short");
  }
  sample.to_waiters_share = static_cast<double>(sample.to_waiters.size()) / handoffs;
  sample.unwaited /= handoffs;
  sample.per_second = handoffs / history.timed.seconds();
  sample.server_us = history.timed.server_seconds / handoffs * 1e6;
  sample.requests = history.counted.requests / counted;
  sample.commands = history.counted.commands / counted;
  const auto [least, most] = std::minmax_element(turns_of_thread.begin(), turns_of_thread.end());
  sample.least_turns = *least;
  sample.most_turns = *most;
  return sample;
}

double quantile_or_nan(const std::vector<double>& values, double which) {
  return values.empty() ? std::nan("") : quantile(values, which);
}

// What is reported of a sample; not a number if it had none.
struct Figure {
  const char* name;
  const char* unit;
  double (*of)(const Sample& sample);
  bool compared = true;
};
constexpr std::array figures{
    Figure{"handoff/p50", "us", [](auto& s) { return quantile_or_nan(s.handoffs, 0.5); }},
    Figure{"handoff/p99", "us", [](auto& s) { return quantile_or_nan(s.handoffs, 0.99); }},
    Figure{"handoff/unwaited", "of all", [](auto& s) { return s.unwaited; }, false},
    Figure{"to_waiter/p50", "us", [](auto& s) { return quantile_or_nan(s.to_waiters, 0.5); }},
    Figure{"to_waiter/p99", "us", [](auto& s) { return quantile_or_nan(s.to_waiters, 0.99); }},
    Figure{"to_waiter/share", "of all", [](auto& s) { return s.to_waiters_share; }, false},
    Figure{"requests", "1/handoff", [](auto& s) { return s.requests; }},
    Figure{"commands", "1/handoff", [](auto& s) { return s.commands; }},
    Figure{"server_cpu", "us/handoff", [](auto& s) { return s.server_us; }},
    Figure{"rate", "handoffs/s", [](auto& s) { return s.per_second; }},
    Figure{"turns/least", "turns", [](auto& s) { return s.least_turns; }, false},
    Figure{"turns/most", "turns", [](auto& s) { return s.most_turns; }, false},
    Figure{"turns/evenness", "least/most", [](auto& s) { return s.least_turns / s.most_turns; },
           false},
    Figure{"waiting/p99", "ms", [](auto& s) { return quantile_or_nan(s.waits, 0.99) / 1000; }},
};

// A sample per round, of one subject in one setting.
using Series = std::vector<Sample>;

std::vector<double> values(const Series& series, const Figure& figure) {
  std::vector<double> found;
  for (const auto& sample : series) {
    if (const double value = figure.of(sample); !std::isnan(value)) found.push_back(value);
  }
  return found;
}

void add_rows(std::vector<Row>& rows, const std::string& name, int waiters, const Series& series,
              const std::string& rival, const Series* base) {
  for (const auto& figure : figures) {
    const auto ours = values(series, figure);
    if (ours.empty()) continue;
    Row row{
        fmt::format("{}/{}", name, figure.name), waiters, median(ours), figure.unit, {}, "waiters"};
    if (base != nullptr && figure.compared) {
      const auto theirs = values(*base, figure);
      if (ours.size() == series.size() && theirs.size() == series.size()) {
        row.ratio = ratio(rival, ours, theirs);
      }
    }
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<Row> measure_contention(const Settings& settings) {
  const auto all = entrants(settings);
  std::map<std::tuple<int, int, std::string>, Series> series;
  for (int round = 0; round < std::min(settings.rounds, most_rounds); ++round) {
    for (const int processes : process_counts) {
      for (const int waiters : crowds) {
        for (const auto& [name, rival] : all) {
          series[{processes, waiters, name}].push_back(
              evaluate(name, watch(settings, name, processes, waiters + 1)));
        }
      }
    }
  }

  std::vector<Row> rows;
  for (const int processes : process_counts) {
    for (const int waiters : crowds) {
      for (const auto& [name, rival] : all) {
        const auto* base = rival.empty() ? nullptr : &series.at({processes, waiters, rival});
        add_rows(rows, fmt::format("{}/processes_{}", name, processes), waiters,
                 series.at({processes, waiters, name}), rival, base);
      }
    }
  }
  return rows;
}

}  // namespace redlease::bench
