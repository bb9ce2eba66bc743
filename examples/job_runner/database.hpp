#ifndef EXAMPLES_JOB_RUNNER_DATABASE_HPP
#define EXAMPLES_JOB_RUNNER_DATABASE_HPP

/// SQLite or PostgreSQL behind one small face. Both know the parameters $1, $2, …, and all that the
/// example asks of them.

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <pqxx/pqxx>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace job_runner {

using Value = std::variant<std::int64_t, std::string>;

struct Result {
  std::int64_t changed = 0;  // rows
  std::vector<std::vector<std::string>> rows{};

  std::int64_t number() const { return std::stoll(rows.at(0).at(0)); }
};

/// A connection, for one thread. It must not be carried over a fork().
class Database {
 public:
  virtual ~Database() = default;

  /// One statement; it commits itself outside of in_transaction().
  virtual Result run(const std::string& statement, const std::vector<Value>& parameters = {}) = 0;
  /// All of `body` or nothing: rolls back if it throws.
  virtual void in_transaction(const std::function<void()>& body) = 0;
};

class SqliteDatabase : public Database {
 public:
  explicit SqliteDatabase(const std::string& path)
      : database_{path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, busy_timeout_ms} {
    database_.exec("PRAGMA journal_mode = WAL");
    database_.exec("PRAGMA synchronous = NORMAL");
  }

  Result run(const std::string& statement, const std::vector<Value>& parameters) override {
    SQLite::Statement prepared{database_, statement};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto name = "$" + std::to_string(i + 1);
      std::visit([&](const auto& value) { prepared.bind(name, value); }, parameters[i]);
    }
    Result result;
    while (prepared.executeStep()) {
      auto& row = result.rows.emplace_back();
      for (int column = 0; column < prepared.getColumnCount(); ++column) {
        row.push_back(prepared.getColumn(column).getString());
      }
    }
    result.changed = prepared.getChanges();
    return result;
  }

  void in_transaction(const std::function<void()>& body) override {
    // IMMEDIATE: waits for the other writers here, not when it has read something already.
    SQLite::Transaction transaction{database_, SQLite::TransactionBehavior::IMMEDIATE};
    body();
    transaction.commit();
  }

 private:
  static constexpr int busy_timeout_ms = 10'000;

  SQLite::Database database_;
};

class PostgresDatabase : public Database {
 public:
  explicit PostgresDatabase(const std::string& url) : connection_{url} {}

  Result run(const std::string& statement, const std::vector<Value>& parameters) override {
    if (transaction_) return run_in(*transaction_, statement, parameters);
    pqxx::nontransaction alone{connection_};
    return run_in(alone, statement, parameters);
  }

  void in_transaction(const std::function<void()>& body) override {
    transaction_.emplace(connection_);  // READ COMMITTED: an UPDATE sees what it waited for
    try {
      body();
      transaction_->commit();
    } catch (...) {
      transaction_.reset();  // rolls back
      throw;
    }
    transaction_.reset();
  }

 private:
  static Result run_in(pqxx::transaction_base& transaction, const std::string& statement,
                       const std::vector<Value>& parameters) {
    std::vector<std::string> texts;
    for (const auto& value : parameters) {
      const auto* number = std::get_if<std::int64_t>(&value);
      texts.push_back(number ? std::to_string(*number) : std::get<std::string>(value));
    }
    const auto found = transaction.exec_params(
        statement, pqxx::prepare::make_dynamic_params(texts.begin(), texts.end()));
    Result result;
    result.changed = static_cast<std::int64_t>(found.affected_rows());
    for (const auto& row : found) {
      auto& copy = result.rows.emplace_back();
      for (const auto& field : row) copy.emplace_back(field.c_str());
    }
    return result;
  }

  pqxx::connection connection_;
  std::optional<pqxx::work> transaction_;
};

/// sqlite:///path/to/file, or what libpq takes: postgresql://…
inline std::unique_ptr<Database> open_database(const std::string& url) {
  constexpr std::string_view sqlite = "sqlite://";
  if (url.starts_with(sqlite)) return std::make_unique<SqliteDatabase>(url.substr(sqlite.size()));
  if (url.starts_with("postgresql://") || url.starts_with("postgres://")) {
    return std::make_unique<PostgresDatabase>(url);
  }
  throw std::invalid_argument("--database: neither sqlite:///… nor postgresql://…: " + url);
}

}  // namespace job_runner

#endif
