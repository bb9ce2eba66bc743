#ifndef EXAMPLES_ORDER_SERVICE_SQLITE_DATABASE_HPP
#define EXAMPLES_ORDER_SERVICE_SQLITE_DATABASE_HPP

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "database.hpp"

namespace order_service {

class SqliteDatabase : public Database {
 public:
  explicit SqliteDatabase(const std::string& path)
      : connection_(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE) {
    connection_.setBusyTimeout(static_cast<int>(longest_database_wait.count()));
    // A power cut may lose what was written last. For a demonstration that is fine; real books keep
    // the default.
    run("PRAGMA synchronous = OFF");
  }

  Result run(const std::string& sql, const std::vector<Value>& values = {}) override {
    return translated([&] {
      SQLite::Statement statement{connection_, sql};
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto name = fmt::format("${}", i + 1);
        std::visit([&](const auto& value) { statement.bind(name, value); }, values[i]);
      }
      Result result;
      while (statement.executeStep()) {
        std::vector<std::string> fields(static_cast<std::size_t>(statement.getColumnCount()));
        for (std::size_t i = 0; i < fields.size(); ++i) {
          fields[i] = statement.getColumn(static_cast<int>(i)).getString();
        }
        result.rows.emplace_back(std::move(fields));
      }
      result.changed = connection_.getChanges();
      return result;
    });
  }

  std::unique_ptr<Transaction> begin() override {
    return translated([&] { return std::make_unique<SqliteTransaction>(*this); });
  }

 private:
  class SqliteTransaction : public Transaction {
   public:
    // IMMEDIATE: waits for other writers here. One that reads first and then wants to write could
    // only be refused, however long it waited.
    explicit SqliteTransaction(SqliteDatabase& database)
        : database_(database),
          transaction_(database.connection_, SQLite::TransactionBehavior::IMMEDIATE) {}
    Result run(const std::string& sql, const std::vector<Value>& values = {}) override {
      return database_.run(sql, values);
    }
    void commit() override {
      translated([&] { transaction_.commit(); });
    }

   private:
    SqliteDatabase& database_;
    SQLite::Transaction transaction_;
  };

  template <class Function>
  static std::invoke_result_t<Function> translated(Function&& function) {
    try {
      return std::forward<Function>(function)();
    } catch (const SQLite::Exception& error) {
      const int code = error.getErrorCode();
      if (code == SQLITE_BUSY || code == SQLITE_LOCKED) throw Conflict{error.what()};
      throw;
    }
  }

  SQLite::Database connection_;
};

}  // namespace order_service

#endif
