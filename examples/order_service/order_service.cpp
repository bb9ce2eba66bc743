/// Processes that work through a shop's orders, under leases on all SKUs of an order. The books are
/// in SQLite or PostgreSQL:  order_service --database URL [--redis URL] [--fault FAULT]
///
/// Orders are delivered more than once, their work takes several transactions, and on request
/// workers are stopped or killed in the middle of it, or Redis is paused. At the end the books must
/// be right. It is printed how often which layer saw to that.
///
/// worker.hpp is what a service would do, and books.hpp the SQL that makes late writes harmless;
/// service.hpp stands for the message broker, and does the faults; reconcile.hpp checks the books.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <string>
#include <thread>

#include "books.hpp"
#include "database.hpp"
#include "orders.hpp"
#include "payments.hpp"
#include "reconcile.hpp"
#include "report.hpp"
#include "service.hpp"

namespace order_service {

struct Options {
  ServiceOptions service{};
  std::filesystem::path data;
  std::string fault = "none";
  int redis_pid = 0;
  bool no_lease = false;
  bool no_fence = false;
  bool no_condition = false;
};

/// Whether books that are wrong are what the switches are there to show: stock is written as it was
/// read, and nothing keeps two from doing that at once; or nothing but the lease, and a worker was
/// paused behind its last look at it.
bool shall_break(const Options& options) {
  if (!options.no_condition) return false;
  return options.no_lease || (options.no_fence && options.service.pause_workers);
}

bool is_fenced(const Options& options) { return !options.no_lease && !options.no_fence; }

ServiceOptions chosen(const Options& options) {
  auto service = options.service;
  service.worker.layers = {!options.no_lease, !options.no_fence, !options.no_condition};
  const auto is = [&](const char* fault) {
    return options.fault == fault || options.fault == "all";
  };
  service.pause_workers = is("pause-worker");
  service.kill_workers = is("kill-worker");
  if (is("pause-redis")) {
    if (options.redis_pid <= 0) throw std::runtime_error("this fault takes --redis-pid");
    service.paused_redis = options.redis_pid;
  }
  return service;
}

void make_books(const std::string& url, const Shop& shop) {
  prepare_database(url);
  const auto database = open_database(url);
  Books::create(*database, shop);
  Payments::create(*database);
}

void print_start(const Options& options, const Shop& shop) {
  fmt::print("{} orders, {} SKUs, {} processes; every order is delivered twice, or more often.\n",
             shop.orders.size(), shop.articles.size(), options.service.workers);
  fmt::print("{} pairs of orders name two SKUs in opposite order.\n", opposite_pairs(shop));
  fmt::print("Fault: {}. Turned off:{}{}{}{}.\n\n", options.fault, options.no_lease ? " lease" : "",
             options.no_fence ? " fence" : "", options.no_condition ? " condition" : "",
             options.no_lease || options.no_fence || options.no_condition ? "" : " nothing");
  std::fflush(stdout);
}

/// A worker that was killed, or a release that had no answer, leaves keys to their ttl.
bool keys_are_left(const Options& options, const Shop& shop) {
  redlease::Client redis{options.service.worker.redis, {.command_timeout = 5s}};
  const auto is_left = [&](const auto& article) {
    return redis.inspect(lease_key(article.first)).has_value();
  };
  const auto deadline = Clock::now() + lease_ttl + 500ms;
  while (std::ranges::any_of(shop.articles, is_left)) {
    if (Clock::now() > deadline) return true;
    std::this_thread::sleep_for(20ms);
  }
  return false;
}

/// Prints the checks and the verdict; true if it is as it should be.
bool reconcile(const Options& options, Database& database, const Shop& shop, const Report& report) {
  Checklist checklist;
  Reconciliation books{database, shop, checklist};
  books.check_ends();
  books.check_lines();
  books.check_money();
  checklist.add(!keys_are_left(options, shop), "no lease key is left in Redis");
  checklist.add(report.all_struck, "every fault found its place");
  if (is_fenced(options)) {
    checklist.add(std::ranges::all_of(report.faults, was_caught),
                  "who was stopped was caught, and wrote nothing");
  }
  const bool others = checklist.all_good();
  const bool right = books.check_stock();  // the last one: it is what the switches may break

  if (shall_break(options)) {
    fmt::print("\n{}\n", right ? "The books are right, though these switches should break them."
                               : "The stock is wrong, as these switches are there to show.");
    return others && !right;
  }
  fmt::print("\n{}\n",
             checklist.all_good() ? "Reconciled: the books are right." : "NOT reconciled.");
  return checklist.all_good();
}

bool run(Options options) {
  const auto start = Clock::now();
  options.service = chosen(options);
  const auto& worker = options.service.worker;
  const auto shop = read_shop(options.data / "orders.csv", options.data / "stock.csv");
  redlease::Client{worker.redis, {.command_timeout = 5s}}.ping();  // fail now, not in each worker
  make_books(worker.database, shop);
  print_start(options, shop);

  const auto report = Service{options.service, shop}.run();

  const auto database = open_database(worker.database);
  print_faults(*database, shop, report);
  print_layers(report);
  const bool good = reconcile(options, *database, shop, report);
  fmt::print("The longest wait for leases took {} ms; all in all {:.1f} s.\n",
             std::chrono::floor<std::chrono::milliseconds>(report.longest_wait).count(),
             std::chrono::duration<double>(Clock::now() - start).count());
  return good;
}

}  // namespace order_service

int main(int argc, char** argv) {
  try {
    order_service::Options options;
    options.data = std::filesystem::path{argv[0]}.parent_path() / "data";
    options.service.worker.redis = "redis://127.0.0.1:6379";
    CLI::App app{"Processes that work through a shop's orders, under leases."};
    app.add_option("--database", options.service.worker.database,
                   "sqlite:///path/of/a/new/file, or postgresql://…, where the schema order_service"
                   " is made anew")
        ->required();
    app.add_option("--redis", options.service.worker.redis, "URL of the server")
        ->capture_default_str();
    app.add_option("--data", options.data, "directory of orders.csv and stock.csv")
        ->capture_default_str();
    app.add_option("--workers", options.service.workers, "processes")
        ->check(CLI::Range(2, 64))
        ->capture_default_str();
    app.add_option("--fault", options.fault, "what goes wrong")
        ->check(CLI::IsMember({"none", "pause-worker", "kill-worker", "pause-redis", "all"}))
        ->capture_default_str();
    app.add_option("--redis-pid", options.redis_pid, "process of the server, for pause-redis");
    app.add_flag("--no-lease", options.no_lease, "nobody excludes anybody");
    app.add_flag("--no-fence", options.no_fence, "late writers are not told by their number");
    app.add_flag("--no-condition", options.no_condition,
                 "stock is written as it was read, less what is taken");
    CLI11_PARSE(app, argc, argv);
    return order_service::run(options) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "order_service: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
