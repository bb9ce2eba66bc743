/// Four processes work through a shop's order lines, each line under a lease on its SKU. The books
/// are in SQLite:  inventory --orders FILE --database FILE [--redis URL] [--fault FAULT]
///
/// Every line is delivered to two of the processes, as by a queue that delivers at least once. At
/// the end the books must show each line once, and the stock must add up.
///
/// The faults, in the middle of the work:
///   none               nothing happens
///   stop-before-check  a process that holds a lease is stopped for longer than the ttl, when it is
///                      about to check its lease: it learns of the loss and writes nothing
///   stop-before-write  the same behind that check, until another one has booked the same line: it
///                      writes late, and the database refuses
///
/// The work itself is in worker.hpp, the books are in ledger.hpp; here is the parent, which starts
/// the others, stops and resumes one, and checks the result. The exit code is 0 only if all adds
/// up.

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "ledger.hpp"
#include "orders.hpp"
#include "process.hpp"
#include "worker.hpp"

namespace inventory {

using Clock = std::chrono::steady_clock;
using processes::Child;
using std::chrono::milliseconds;

struct Options {
  std::string redis = "redis://127.0.0.1:6379";
  std::filesystem::path orders;
  std::filesystem::path stock;
  std::filesystem::path database;
  int workers = 4;
  std::optional<StopPoint> fault;  // one worker is stopped there
};

// ---- the processes -----------------------------------------------------------------------------

/// The order lines of each worker, in an order of its own; every line goes to two workers.
std::vector<std::vector<std::size_t>> deal(std::size_t line_count, std::size_t worker_count) {
  std::vector<std::vector<std::size_t>> hands(worker_count);
  for (std::size_t line = 0; line < line_count; ++line) {
    const auto first = line % worker_count;
    const auto distance = 1 + line / worker_count % (worker_count - 1);
    hands[first].push_back(line);
    hands[(first + distance) % worker_count].push_back(line);
  }
  std::mt19937 generator;  // without a seed: each run deals the same hands
  for (auto& hand : hands) std::shuffle(hand.begin(), hand.end(), generator);
  return hands;
}

/// The worker processes. They end with this object.
class Crew {
 public:
  void start(const Assignment& assignment, const std::vector<OrderLine>& orders) {
    auto [ours, theirs] = Channel<Message>::make_pair();
    auto child = Child::start(fmt::format("worker {}", assignment.worker), [&, &parent = theirs] {
      parent.send(Worker{assignment, orders, parent}.run());
      return EXIT_SUCCESS;
    });
    members_.push_back({std::move(child), std::move(ours)});
  }

  std::size_t size() const { return members_.size(); }
  Child& process(std::size_t member) { return members_[member].child; }
  void send(std::size_t member, const Message& message) { members_[member].channel.send(message); }

  /// The next message of one of them.
  Message receive(std::size_t member) {
    std::optional<Message> message;
    await(fmt::format("a message of worker {}", member + 1), [&] {
      message = members_[member].channel.try_receive();
      return message.has_value();
    });
    return *message;
  }

  /// Waits until `happened()`, but not for ever, and not when a worker has failed meanwhile.
  void await(std::string_view what, const std::function<bool()>& happened) {
    const auto deadline = Clock::now() + 60s;
    while (!happened()) {
      for (auto& member : members_) member.child.has_finished();
      if (Clock::now() > deadline) throw std::runtime_error(fmt::format("no sign of {}", what));
      std::this_thread::sleep_for(2ms);
    }
  }

  void await_end() {
    await("the workers' end", [this] {
      return std::ranges::all_of(members_,
                                 [](Member& member) { return member.child.has_finished(); });
    });
  }

 private:
  struct Member {
    Child child;
    Channel<Message> channel;
  };
  std::vector<Member> members_;
};

// ---- stopping one of them ----------------------------------------------------------------------

/// What came of stopping a worker while it held a lease.
struct Stop {
  Holding holding;
  std::string key;
  std::int64_t booked = 0;  // order lines by the time it was stopped
  milliseconds duration{0};
  std::optional<Booking> meanwhile;  // the same order line, booked by another
  Lost lost;

  std::string fingerprint() const {
    return {holding.fingerprint.begin(), holding.fingerprint.end()};
  }
};

template <class Expected>
Expected expect(const Message& message, std::string_view otherwise) {
  if (const auto* expected = std::get_if<Expected>(&message)) return *expected;
  throw std::runtime_error(std::string{otherwise});
}

bool holds(redlease::Client& redis, const Stop& stop) {
  const auto found = redis.inspect(stop.key);
  return found && found->fingerprint() == stop.fingerprint();
}

/// Stops a worker when it says that it holds a lease, until the lease is another's business:
/// before the check, until its ttl has run out; before the write, until another worker has booked
/// the very same line, so that the late write must be refused.
Stop stop_while_holding(std::size_t member, Crew& crew, redlease::Client& redis, Ledger& ledger,
                        const std::vector<OrderLine>& orders) {
  Stop stop;
  stop.holding = expect<Holding>(
      crew.receive(member),
      "the worker was through before it could be stopped: there are too few order lines");
  const auto& line = orders[stop.holding.line];
  stop.key = lease_key(line.sku);

  const auto start = Clock::now();
  crew.process(member).stop();
  if (!holds(redis, stop)) throw std::runtime_error("the worker was stopped too late");
  stop.booked = ledger.count();
  crew.await("the end of the stopped worker's lease", [&] { return !holds(redis, stop); });
  if (stop.holding.at == StopPoint::before_write) {
    crew.await("another worker that books the same line", [&] { return !!ledger.find(line); });
  }
  stop.meanwhile = ledger.find(line);
  stop.duration = std::chrono::floor<milliseconds>(Clock::now() - start);

  crew.send(member, Go{});
  crew.process(member).resume();
  stop.lost =
      expect<Lost>(crew.receive(member), "the worker did not notice that its lease is lost");
  return stop;
}

// ---- the result --------------------------------------------------------------------------------

/// Prints each check, and remembers whether all came out well.
class Checklist {
 public:
  void add(bool good, std::string_view what, std::string_view figures = {}) {
    fmt::print("{:<7}{}{}{}\n", good ? "ok" : "WRONG", what, figures.empty() ? "" : ": ", figures);
    all_good_ = all_good_ && good;
  }
  bool all_good() const { return all_good_; }

 private:
  bool all_good_ = true;
};

void print_reports(const std::vector<Report>& reports) {
  constexpr auto row = "{:<6}{:>9}{:>9}{:>9}{:>11}{:>13}{:>6}{:>10}{:>8}{:>10}{:>10}\n";
  fmt::print("\n");
  fmt::print(row, "worker", "applied", "refused", "known", "overtaken", "waits ended", "lost",
             "in doubt", "failed", "wait p50", "p99");
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const auto& report = reports[i];
    const auto in_ms = [](auto wait) {
      return fmt::format("{:.2f} ms", std::chrono::duration<double, std::milli>{wait}.count());
    };
    fmt::print(row, i + 1, report.applied, report.refused, report.known, report.overtaken,
               report.waits_ended, report.lost, report.in_doubt, report.failed,
               in_ms(report.median_wait), in_ms(report.p99_wait));
  }
  fmt::print("\n");
}

void print_stop(const Stop& stop) {
  const bool at_check = stop.holding.at == StopPoint::before_check;
  fmt::print("\nWorker 1 is stopped {}, with {} lines booked; it holds {}.\n",
             at_check ? "before its last check" : "between check and write", stop.booked, stop.key);
  fmt::print("  Resumed after {} ms, {} throws LeaseLost ({}, token {}).\n", stop.duration.count(),
             at_check ? "ensure_held()" : "release()", to_string(stop.lost.reason),
             stop.fingerprint());
  if (at_check) {
    fmt::print("  Nothing was written; the line is tried again.\n");
  } else {
    fmt::print("  Worker {} booked the line meanwhile; the database {}.\n", stop.meanwhile->worker,
               stop.lost.wrote ? "BOOKED IT TWICE" : "refused the late write");
  }
}

void check_lines(Ledger& ledger, const std::vector<OrderLine>& orders, Checklist& checklist) {
  std::size_t applied = 0;
  std::size_t refused = 0;
  for (const auto& line : orders) {
    const auto booking = ledger.find(line);
    if (!booking || booking->sku != line.sku || booking->quantity != line.quantity) continue;
    ++(booking->outcome == Outcome::applied ? applied : refused);
  }
  const auto booked = static_cast<std::size_t>(ledger.count());
  checklist.add(applied + refused == orders.size() && booked == orders.size(),
                "every order line is booked, and once",
                fmt::format("{} applied + {} refused = {}", applied, refused, booked));
}

void check_stock(const std::vector<Balance>& balances, Checklist& checklist) {
  Balance total;
  for (const auto& sku : balances) {
    total.initial += sku.initial;
    total.applied += sku.applied;
    total.available += sku.available;
  }
  const auto adds_up = [](const Balance& sku) {
    return sku.initial - sku.applied == sku.available;
  };
  const auto not_negative = [](const Balance& sku) { return sku.available >= 0; };
  // Stock only shrinks here, so what was too much once is too much at the end.
  const auto refused_rightly = [](const Balance& sku) {
    return sku.smallest_refused == 0 || sku.smallest_refused > sku.available;
  };
  const auto sold_out = [](const Balance& sku) { return sku.available == 0; };

  checklist.add(std::ranges::all_of(balances, adds_up),
                "for each SKU, initial stock - what was applied = what is left",
                fmt::format("{} - {} = {}", total.initial, total.applied, total.available));
  checklist.add(std::ranges::all_of(balances, not_negative), "stock is never negative",
                fmt::format("{} of {} SKUs sold out", std::ranges::count_if(balances, sold_out),
                            balances.size()));
  checklist.add(std::ranges::all_of(balances, refused_rightly),
                "nothing was refused that there was stock for");
}

void check_reports(Ledger& ledger, const std::vector<Report>& reports, Checklist& checklist) {
  std::int64_t booked = 0;
  for (const auto& report : reports) booked += report.applied + report.refused;
  checklist.add(booked == ledger.count(), "the workers' own counts agree with the books",
                fmt::format("{} booked", booked));
}

void check_stop(const Stop& stop, const std::vector<Report>& reports, Checklist& checklist) {
  std::int64_t lost = 0;
  for (const auto& report : reports) lost += report.lost;
  checklist.add(lost >= 1, "the stopped worker's lease is reported lost",
                fmt::format("{} lost in all", lost));
  checklist.add(!stop.lost.wrote, "no late write got through");
}

void check_keys(redlease::Client& redis, const std::vector<Balance>& balances,
                Checklist& checklist) {
  // The last requests of a scope exit may still be on their way; no key outlives its ttl.
  const auto deadline = Clock::now() + lease_ttl + 100ms;
  const auto is_left = [&](const Balance& sku) {
    return redis.inspect(lease_key(sku.sku)).has_value();
  };
  auto left = std::ranges::count_if(balances, is_left);
  while (left > 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(10ms);
    left = std::ranges::count_if(balances, is_left);
  }
  checklist.add(left == 0, "no lease key is left in Redis", fmt::format("{} left", left));
}

// ---- all of it ---------------------------------------------------------------------------------

std::string most_ordered_sku(const std::vector<OrderLine>& orders) {
  std::map<std::string, int> lines;
  for (const auto& line : orders) ++lines[line.sku];
  const auto lines_of = [](const auto& sku) { return sku.second; };
  const auto most = std::ranges::max_element(lines, {}, lines_of);
  return most == lines.end() ? "" : most->first;
}

/// Starts the workers. With a fault, the first of them will be stopped with the SKU that all others
/// need most.
void start(Crew& crew, const Options& options, const std::vector<OrderLine>& orders) {
  const auto hands = deal(orders.size(), static_cast<std::size_t>(options.workers));
  for (int i = 0; i < options.workers; ++i) {
    Assignment assignment{i + 1, options.redis, options.database,
                          hands[static_cast<std::size_t>(i)]};
    if (i == 0 && options.fault) {
      assignment.stop = options.fault;
      assignment.stop_at = most_ordered_sku(orders);
    }
    crew.start(assignment, orders);
  }
}

/// Prints the result; true if everything came out as it should.
bool reconcile(redlease::Client& redis, Ledger& ledger, const std::vector<OrderLine>& orders,
               const std::optional<Stop>& stop, const std::vector<Report>& reports) {
  const auto balances = ledger.balances();
  Checklist checklist;
  check_lines(ledger, orders, checklist);
  check_stock(balances, checklist);
  check_reports(ledger, reports, checklist);
  if (stop) check_stop(*stop, reports, checklist);
  check_keys(redis, balances, checklist);
  return checklist.all_good();
}

bool run(const Options& options) {
  const auto orders = read_orders(options.orders);
  const auto stock = read_stock(options.stock);
  Ledger::create(options.database, stock);

  // fork() first: no connection, neither to Redis nor to SQLite, shall be on both sides of it.
  const auto start_time = Clock::now();
  Crew crew;
  start(crew, options, orders);
  redlease::Client redis{options.redis, {.client_name = "inventory-parent"}};
  Ledger ledger{options.database};

  fmt::print("{} order lines, {} SKUs, {} processes; every line is delivered to two of them.\n",
             orders.size(), stock.size(), crew.size());
  fmt::print("Leases {} for {} ms; the books are in SQLite {}.\n", lease_key("<sku>"),
             lease_ttl.count(), SQLite::getLibVersion());
  std::fflush(stdout);
  std::optional<Stop> stop;
  if (options.fault) {
    stop = stop_while_holding(0, crew, redis, ledger, orders);
    print_stop(*stop);
  }
  std::vector<Report> reports;
  for (std::size_t i = 0; i < crew.size(); ++i) {
    reports.push_back(expect<Report>(crew.receive(i), "a worker said something unexpected"));
  }
  crew.await_end();
  print_reports(reports);

  const bool good = reconcile(redis, ledger, orders, stop, reports);
  fmt::print(
      "\n{} after {:.1f} s.\n",
      good ? "Reconciled: no line was booked twice and no stock was oversold," : "NOT reconciled,",
      std::chrono::duration<double>(Clock::now() - start_time).count());
  return good;
}

}  // namespace inventory

int main(int argc, char** argv) {
  try {
    inventory::Options options;
    CLI::App app{"Processes that share a stock, under leases."};
    app.add_option("--redis", options.redis, "URL of the server")->capture_default_str();
    app.add_option("--orders", options.orders, "CSV file: order_id,line_no,sku,quantity")
        ->required();
    app.add_option("--stock", options.stock, "CSV file: sku,stock [stock.csv beside the orders]");
    app.add_option("--database", options.database, "SQLite file to be made for the books")
        ->required();
    app.add_option("--workers", options.workers, "processes")
        ->check(CLI::Range(2, 16))
        ->capture_default_str();
    std::string fault = "none";
    app.add_option("--fault", fault, "where a worker that holds a lease is stopped")
        ->check(CLI::IsMember({"none", "stop-before-check", "stop-before-write"}))
        ->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    if (fault == "stop-before-check") options.fault = inventory::StopPoint::before_check;
    if (fault == "stop-before-write") options.fault = inventory::StopPoint::before_write;
    if (options.stock.empty()) options.stock = options.orders.parent_path() / "stock.csv";
    return inventory::run(options) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "inventory: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
