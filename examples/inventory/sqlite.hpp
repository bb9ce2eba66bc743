#ifndef EXAMPLES_INVENTORY_SQLITE_HPP
#define EXAMPLES_INVENTORY_SQLITE_HPP

/// The little of SQLite that the example needs, as objects that clean up after themselves.

#include <fmt/format.h>
#include <sqlite3.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace inventory {

class SqliteError : public std::runtime_error {
 public:
  SqliteError(std::string_view operation, sqlite3* connection)
      : std::runtime_error(fmt::format("SQLite: {}: {}", operation, sqlite3_errmsg(connection))) {}
};

/// The rows of one execution. Ending it early frees what it holds in the database.
class Rows {
 public:
  explicit Rows(sqlite3_stmt* statement) : statement_(statement) {}
  Rows(Rows&&) = default;
  Rows& operator=(Rows&&) = default;

  /// Goes to the next row, first to the first; false behind the last.
  bool next() {
    const int result = sqlite3_step(statement_.get());
    if (result == SQLITE_ROW) return true;
    if (result == SQLITE_DONE) return false;
    throw SqliteError{sqlite3_sql(statement_.get()), sqlite3_db_handle(statement_.get())};
  }

  std::int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }

  std::string text(int column) const {
    const auto* text = sqlite3_column_blob(statement_.get(), column);
    const auto size = sqlite3_column_bytes(statement_.get(), column);
    return text ? std::string{static_cast<const char*>(text), static_cast<std::size_t>(size)}
                : std::string{};
  }

 private:
  struct Reset {
    void operator()(sqlite3_stmt* statement) const { sqlite3_reset(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Reset> statement_;
};

/// A prepared statement, called with its parameters in order. One execution at a time.
class Statement {
 public:
  Statement(sqlite3* connection, std::string_view sql) {
    sqlite3_stmt* statement = nullptr;
    const int result = sqlite3_prepare_v3(connection, sql.data(), static_cast<int>(sql.size()),
                                          SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
    statement_.reset(statement);
    if (result != SQLITE_OK) throw SqliteError{sql, connection};
  }

  template <class... Parameters>
  Rows query(const Parameters&... parameters) {
    int index = 0;
    (bind(++index, parameters), ...);
    return Rows{statement_.get()};
  }

  /// Executes; returns how many rows were changed.
  template <class... Parameters>
  int run(const Parameters&... parameters) {
    auto rows = query(parameters...);
    while (rows.next()) {
    }
    return sqlite3_changes(sqlite3_db_handle(statement_.get()));
  }

 private:
  void bind(int index, std::int64_t value) {
    check(sqlite3_bind_int64(statement_.get(), index, value));
  }

  void bind(int index, std::string_view value) {
    check(sqlite3_bind_text(statement_.get(), index, value.data(), static_cast<int>(value.size()),
                            SQLITE_TRANSIENT));
  }

  void check(int result) const {
    if (result == SQLITE_OK) return;
    throw SqliteError{sqlite3_sql(statement_.get()), sqlite3_db_handle(statement_.get())};
  }

  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

/// A connection. It must not be carried over a fork().
class Connection {
 public:
  Connection(const std::string& path, int flags, std::chrono::milliseconds busy_timeout) {
    sqlite3* connection = nullptr;
    const int result = sqlite3_open_v2(path.c_str(), &connection, flags, nullptr);
    connection_.reset(connection);
    if (result != SQLITE_OK) throw SqliteError{fmt::format("open {}", path), connection};
    sqlite3_busy_timeout(connection, static_cast<int>(busy_timeout.count()));
  }

  Statement prepare(std::string_view sql) const { return {connection_.get(), sql}; }

  /// Any number of statements without parameters.
  void execute(const std::string& sql) const {
    if (sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
      throw SqliteError{sql, connection_.get()};
    }
  }

 private:
  struct Close {
    void operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }
  };
  std::unique_ptr<sqlite3, Close> connection_;
};

/// Rolls back unless committed.
class Transaction {
 public:
  // IMMEDIATE: waits for the other writers here, not when it has read something already.
  explicit Transaction(const Connection& connection) : connection_(connection) {
    connection_.execute("BEGIN IMMEDIATE");
  }
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;

  ~Transaction() {
    if (done_) return;
    try {
      connection_.execute("ROLLBACK");
    } catch (const SqliteError&) {
      // SQLite has rolled back already, or does so when the connection is closed.
    }
  }

  void commit() {
    connection_.execute("COMMIT");
    done_ = true;
  }

 private:
  const Connection& connection_;
  bool done_ = false;
};

}  // namespace inventory

#endif
