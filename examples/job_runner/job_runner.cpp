/// Many workers share a table of tasks. A short lease for each task keeps two of them from working
/// on the same one; which result counts is decided by the task's version in the database.
///
///   job_runner --redis URL --database URL [--fault FAULT]
///
/// The faults:
///   none          nothing goes wrong
///   pause-worker  a worker is stopped right before it writes its result, until another one has
///                 finished the task; then it goes on and writes
///   kill-worker   a worker dies in the middle of a task
///   no-lease      the workers take no leases
///
/// The work itself is in worker.hpp, the tables are in tasks.hpp. Here is the one who starts the
/// workers and checks the result. The exit code is 0 if every task was finished exactly once.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <redlease/redlease.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "crew.hpp"
#include "tasks.hpp"
#include "worker.hpp"

namespace job_runner {

const std::map<std::string, Fault> faults{{"none", Fault::none},
                                          {"pause-worker", Fault::pause_worker},
                                          {"kill-worker", Fault::kill_worker},
                                          {"no-lease", Fault::no_lease}};

std::string name_of(Fault wanted) {
  for (const auto& [name, fault] : faults) {
    if (fault == wanted) return name;
  }
  return {};
}

class Run {
 public:
  explicit Run(const Options& options) : options_{options}, tasks_{options.database} {}

  bool go() {
    fmt::print("{} tasks of {} ms, {} workers; {}.\n", options_.tasks, options_.work_time.count(),
               options_.workers,
               has_leases()
                   ? fmt::format("a lease for each task, {} ms, renewed", lease_ttl.count())
                   : "no leases");
    tasks_.make_tables();
    start_workers();
    const auto start = Clock::now();
    tasks_.add(payloads());
    if (options_.fault == Fault::pause_worker) pause_a_worker();
    if (options_.fault == Fault::kill_worker) see_one_die();
    crew_.await("the workers' end", [this] { return crew_.all_ended(); });
    const auto took = std::chrono::round<std::chrono::milliseconds>(Clock::now() - start);
    print_workers();
    print_summary(took);
    return reconcile();
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool has_leases() const { return options_.fault != Fault::no_lease; }

  std::vector<std::string> payloads() const {
    std::vector<std::string> numbers;
    for (std::int64_t n = 1; n <= options_.tasks; ++n) numbers.push_back(std::to_string(n));
    return numbers;
  }

  /// The tasks come when all workers are there, so that none has done them alone.
  void start_workers() {
    for (std::int64_t worker = 1; worker <= options_.workers; ++worker) {
      crew_.start(worker, {"job_runner", "--worker", std::to_string(worker),  //
                           "--redis", options_.redis,                         //
                           "--database", options_.database,                   //
                           "--fault", name_of(options_.fault),                //
                           "--tasks", std::to_string(options_.tasks),         //
                           "--work-ms", std::to_string(options_.work_time.count())});
    }
    crew_.await("all workers", [this] { return tasks_.count("worker") >= options_.workers; });
  }

  // ---- the faults ----

  void pause_a_worker() {
    crew_.await("a worker that stands still", [this] { return crew_.stopped().has_value(); });
    struck_ = *crew_.stopped();
    const auto since = Clock::now();
    fmt::print("\nWorker {} is stopped right before it writes the result of task {}.\n", struck_,
               options_.task_of_the_fault());
    print_who_took_over(since);
    crew_.resume_stopped();
    fmt::print("  Worker {} goes on, and writes its result.\n", struck_);
  }

  void see_one_die() {
    crew_.await("a worker's death", [this] { return crew_.killed().has_value(); });
    struck_ = *crew_.killed();
    const auto since = Clock::now();
    fmt::print("\nWorker {} has died in the middle of task {}.\n", struck_,
               options_.task_of_the_fault());
    print_who_took_over(since);
  }

  void print_who_took_over(Clock::time_point since) {
    const std::string finisher =
        "SELECT worker FROM attempt WHERE task = $1 AND outcome = 'finished'";
    const std::vector<Value> task{options_.task_of_the_fault()};
    crew_.await("another one who takes it over",
                [&] { return !tasks_.database().run(finisher, task).rows.empty(); });
    const auto after = std::chrono::round<std::chrono::milliseconds>(Clock::now() - since);
    fmt::print("  {} ms later the task is done, by worker {}.\n", after.count(),
               tasks_.database().run(finisher, task).number());
    std::fflush(stdout);
  }

  // ---- what came of it ----

  std::int64_t attempts(const std::string& outcome) {
    return tasks_.count("attempt WHERE outcome = $1", {outcome});
  }
  std::int64_t attempts_without_outcome() { return tasks_.count("attempt WHERE outcome IS NULL"); }

  void print_workers() {
    fmt::print("\n{:<8}{:>9}{:>10}{:>9}{:>10}{:>11}{:>12}\n", "worker", "attempts", "finished",
               "refused", "given up", "cut short", "left alone");
    const auto found = tasks_.database().run(
        "SELECT w.id, count(a.number), count(CASE a.outcome WHEN 'finished' THEN 1 END),"
        "  count(CASE a.outcome WHEN 'refused' THEN 1 END),"
        "  count(CASE a.outcome WHEN 'given up' THEN 1 END),"
        "  count(a.number) - count(a.outcome), w.left_alone"
        " FROM worker w LEFT JOIN attempt a ON a.worker = w.id"
        " GROUP BY w.id, w.left_alone ORDER BY w.id");
    for (const auto& row : found.rows) {
      fmt::print("{:<8}{:>9}{:>10}{:>9}{:>10}{:>11}{:>12}\n", row[0], row[1], row[2], row[3],
                 row[4], row[5], row[6]);
    }
  }

  void print_summary(std::chrono::milliseconds took) {
    const auto left_alone =
        tasks_.database().run("SELECT coalesce(sum(left_alone), 0) FROM worker").number();
    fmt::print("\n{:>5}  tasks, done in {} ms\n", options_.tasks, took.count());
    fmt::print("{:>5}  times double work avoided: a worker found the task's lease held\n",
               left_alone);
    fmt::print(
        "{:>5}  times double work done: the result came too late, and its update changed no row\n",
        attempts("refused"));
    fmt::print("{:>5}  times stopped before the write: the lease was lost\n", attempts("given up"));
    fmt::print("{:>5}  times cut short by a worker's death\n\n", attempts_without_outcome());
  }

  void check(bool holds, const std::string& what) {
    fmt::print("{:<6} {}\n", holds ? "ok" : "FAILED", what);
    if (!holds) all_hold_ = false;
  }

  bool reconcile() {
    const auto done = tasks_.count("task WHERE status = 'done'");
    check(done == options_.tasks,
          fmt::format("every task is done: {} of {}", done, options_.tasks));
    const auto once = tasks_.count(
        "(SELECT task FROM attempt WHERE outcome = 'finished' GROUP BY task HAVING count(*) = 1)"
        " AS once");
    const auto finished = attempts("finished");
    check(once == options_.tasks && finished == options_.tasks,
          fmt::format("each by exactly one attempt: {} tasks, {} attempts", once, finished));
    const auto twice = tasks_.count("task WHERE version = 2");
    check(twice == options_.tasks,
          fmt::format("each changed twice, when begun and when done: {} of {}", twice,
                      options_.tasks));
    check(wrong_results() == 0, fmt::format("the results are right: {} wrong", wrong_results()));
    check_attempts();
    check_fault();
    check_leases();
    return all_hold_;
  }

  std::int64_t wrong_results() {
    std::int64_t wrong = 0;
    for (const auto& row : tasks_.database().run("SELECT payload, result FROM task").rows) {
      if (row[1] != steps_to_one(row[0])) ++wrong;
    }
    return wrong;
  }

  void check_attempts() {
    const auto all = tasks_.count("attempt");
    const auto cut_short = attempts_without_outcome();
    const auto accounted =
        attempts("finished") + attempts("refused") + attempts("given up") + cut_short;
    const std::int64_t deaths = options_.fault == Fault::kill_worker ? 1 : 0;
    // One more worker, started by hand (--worker), may come to any end.
    const auto of_crew =
        tasks_.count("attempt WHERE outcome IS NULL AND worker <= $1", {options_.workers});
    check(all == accounted && of_crew == deaths,
          fmt::format("every attempt is accounted for: {} of {}, {} cut short", accounted, all,
                      cut_short));
  }

  void check_fault() {
    const std::vector<Value> parameters{options_.task_of_the_fault(), struck_};
    const std::string of_struck = "attempt WHERE task = $1 AND worker = $2 AND outcome ";
    if (options_.fault == Fault::pause_worker) {
      check(tasks_.count(of_struck + "= 'refused'", parameters) == 1,
            fmt::format("the late update of worker {} was refused", struck_));
    }
    if (options_.fault == Fault::kill_worker) {
      check(tasks_.count(of_struck + "IS NULL", parameters) == 1,
            fmt::format("the attempt of worker {} has left nothing", struck_));
    }
  }

  /// A lease that couldn't be given back is gone when its ttl ends.
  void check_leases() {
    redlease::Client redis{options_.redis};
    std::int64_t left = 0;
    for (const auto deadline = Clock::now() + 2 * lease_ttl;;) {
      left = 0;
      for (std::int64_t id = 1; id <= options_.tasks; ++id) {
        if (redis.inspect(lease_key(id))) ++left;
      }
      if (left == 0 || Clock::now() > deadline) break;
      std::this_thread::sleep_for(pause_between_looks);
    }
    check(left == 0, fmt::format("no lease key is left in Redis: {} left", left));
  }

  const Options options_;
  Tasks tasks_;
  Crew crew_;
  std::int64_t struck_ = 0;  // the worker that the fault has struck
  bool all_hold_ = true;
};

}  // namespace job_runner

int main(int argc, char** argv) {
  using namespace job_runner;
  Options options;
  std::string fault = "none";
  std::int64_t work_ms = options.work_time.count();
  CLI::App app{"Workers share a table of tasks: leases keep them apart, versions decide."};
  app.add_option("--redis", options.redis, "URL of the server")->capture_default_str();
  app.add_option("--database", options.database,
                 "sqlite:///path, or postgresql://…; the tables task, attempt and worker are made")
      ->required();
  app.add_option("--fault", fault, "what goes wrong")
      ->check(CLI::IsMember(faults))
      ->capture_default_str();
  app.add_option("--tasks", options.tasks)->check(CLI::Range(1, 10'000))->capture_default_str();
  app.add_option("--workers", options.workers, "processes")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--work-ms", work_ms, "how long a task takes, in ms")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  app.add_option("--worker", options.worker, "work only, as the worker of this number")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  options.fault = faults.at(fault);
  options.work_time = std::chrono::milliseconds{work_ms};
  try {
    if (options.worker > 0) {
      Worker{options}.run();
      return EXIT_SUCCESS;
    }
    return Run{options}.go() ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "job_runner: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
