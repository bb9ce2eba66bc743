#ifndef EXAMPLES_JOB_RUNNER_TASKS_HPP
#define EXAMPLES_JOB_RUNNER_TASKS_HPP

/// The tables. What makes the result right whatever becomes of a lease is the WHERE in finish().

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "database.hpp"

namespace job_runner {

/// A task as it was when this worker began it.
struct Task {
  std::int64_t id = 0;
  std::int64_t version = 0;
  std::string payload;
};

/// One attempt of a worker at a task. Their table is for the count at the end; a service may keep
/// such a history, or not.
struct Attempt {
  std::int64_t worker = 0;
  std::int64_t number = 0;  // counted by the worker
};

class Tasks {
 public:
  explicit Tasks(const std::string& url) : database_{open_database(url)} {}

  /// Throws if they are there already, so that nobody's tables are harmed.
  void make_tables() {
    database_->in_transaction([this] {
      database_->run(
          "CREATE TABLE task ("
          "  id      BIGINT PRIMARY KEY,"
          "  status  TEXT NOT NULL CHECK (status IN ('ready', 'running', 'done')),"
          "  version BIGINT NOT NULL,"
          "  payload TEXT NOT NULL,"
          "  result  TEXT)");
      database_->run(
          "CREATE TABLE attempt ("
          "  worker  BIGINT NOT NULL,"
          "  number  BIGINT NOT NULL,"
          "  task    BIGINT NOT NULL,"
          "  outcome TEXT,"  // none: under way, or its worker is dead
          "  PRIMARY KEY (worker, number))");
      database_->run(
          "CREATE TABLE worker (id BIGINT PRIMARY KEY, left_alone BIGINT NOT NULL DEFAULT 0)");
    });
  }

  void add(const std::vector<std::string>& payloads) {
    database_->in_transaction([&] {
      std::int64_t id = 0;
      for (const auto& payload : payloads) {
        database_->run(
            "INSERT INTO task (id, status, version, payload) VALUES ($1, 'ready', 0, $2)",
            {++id, payload});
      }
    });
  }

  /// Which tasks aren't done, the oldest first. Those that are running are among them: the table
  /// can't tell whether their worker is alive.
  std::vector<std::int64_t> unfinished() {
    std::vector<std::int64_t> ids;
    const auto found =
        database_->run("SELECT id FROM task WHERE status <> 'done' ORDER BY id LIMIT 16");
    for (const auto& row : found.rows) ids.push_back(std::stoll(row[0]));
    return ids;
  }
  bool all_done() {
    return database_->run("SELECT count(*) FROM task").number() > 0 && unfinished().empty();
  }

  /// Looks at the task again, and marks it as running. Empty if it is done, or another worker was
  /// quicker. One that is running already is taken over as it is: the first to finish it counts.
  std::optional<Task> begin(std::int64_t id, const Attempt& attempt) {
    std::optional<Task> begun;
    database_->in_transaction([&] {
      const auto found =
          database_->run("SELECT status, version, payload FROM task WHERE id = $1", {id});
      if (found.rows.empty() || found.rows[0][0] == "done") return;
      Task task{id, std::stoll(found.rows[0][1]), found.rows[0][2]};
      if (found.rows[0][0] == "ready") {
        const auto taken = database_->run(
            "UPDATE task SET status = 'running', version = version + 1"
            " WHERE id = $1 AND version = $2 AND status = 'ready'",
            {id, task.version});
        if (taken.changed == 0) return;
        ++task.version;
      }
      database_->run("INSERT INTO attempt (worker, number, task) VALUES ($1, $2, $3)",
                     {attempt.worker, attempt.number, id});
      begun = std::move(task);
    });
    return begun;
  }

  /// True if this attempt has finished the task; false if it came too late.
  bool finish(const Task& task, const std::string& result, const Attempt& attempt) {
    bool counts = false;
    database_->in_transaction([&] {
      const auto finished = database_->run(
          "UPDATE task SET status = 'done', result = $1, version = version + 1"
          " WHERE id = $2 AND version = $3 AND status = 'running'",
          {result, task.id, task.version});
      counts = finished.changed == 1;
      record(attempt, counts ? "finished" : "refused");
    });
    return counts;
  }

  /// The lease is lost, and nothing was written.
  void give_up(const Attempt& attempt) { record(attempt, "given up"); }

  // ---- who is at work, and what they counted ----

  void report_in(std::int64_t worker) {
    database_->run("INSERT INTO worker (id) VALUES ($1)", {worker});
  }
  void report(std::int64_t worker, std::int64_t left_alone) {
    database_->run("UPDATE worker SET left_alone = $1 WHERE id = $2", {left_alone, worker});
  }
  /// Whether an attempt of another worker at this task has no outcome.
  bool another_is_at(std::int64_t task, std::int64_t worker) {
    return count("attempt WHERE task = $1 AND worker <> $2 AND outcome IS NULL", {task, worker}) >
           0;
  }

  /// SELECT count(*) FROM …
  std::int64_t count(const std::string& what, const std::vector<Value>& parameters = {}) {
    return database_->run("SELECT count(*) FROM " + what, parameters).number();
  }
  Database& database() { return *database_; }

 private:
  void record(const Attempt& attempt, const std::string& outcome) {
    database_->run("UPDATE attempt SET outcome = $1 WHERE worker = $2 AND number = $3",
                   {outcome, attempt.worker, attempt.number});
  }

  std::unique_ptr<Database> database_;
};

}  // namespace job_runner

#endif
