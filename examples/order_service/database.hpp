#ifndef EXAMPLES_ORDER_SERVICE_DATABASE_HPP
#define EXAMPLES_ORDER_SERVICE_DATABASE_HPP

/// The little that the service needs of a database. The SQL in books.hpp is the same for all of
/// them: parameters are $1, $2, … in the order of their first appearance.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "orders.hpp"

namespace order_service {

/// How long a statement waits for another transaction. It belongs to what has to be left of a
/// lease before a write begins (room_to_write), so it is short.
inline constexpr std::chrono::milliseconds longest_database_wait{150};

/// Another transaction was in the way: SQLite was busy, PostgreSQL gave up waiting for a row, found
/// a deadlock or could not serialize. This one is rolled back, and may be tried again.
class Conflict : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The connection broke while the answer to COMMIT was due: the transaction stands, or it doesn't.
/// Only the database can tell, over a new connection.
class CommitInDoubt : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// No connection. A transaction that was not committed is rolled back; a statement on its own may
/// have run.
class DatabaseUnavailable : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Value = std::variant<std::int64_t, std::string>;

class Row {
 public:
  explicit Row(std::vector<std::string> fields) : fields_(std::move(fields)) {}
  const std::string& text(std::size_t column) const { return fields_.at(column); }
  std::int64_t number(std::size_t column) const { return to_number(text(column)); }

 private:
  std::vector<std::string> fields_;
};

struct Result {
  std::vector<Row> rows;  ///< of a SELECT, or of what RETURNING asks for
  int changed = 0;        ///< rows that an INSERT, UPDATE or DELETE changed
};

/// Where statements run.
class Session {
 public:
  virtual ~Session() = default;
  virtual Result run(const std::string& sql, const std::vector<Value>& values = {}) = 0;
};

/// Rolls back unless committed.
class Transaction : public Session {
 public:
  virtual void commit() = 0;
};

/// A connection, for one thread. It must not be carried over a fork(). Statements that it runs
/// itself are transactions of their own.
class Database : public Session {
 public:
  virtual std::unique_ptr<Transaction> begin() = 0;

  /// Runs `step(Session&)` in a transaction, which is rolled back when that throws.
  template <class Step>
  auto transact(Step&& step) {
    const auto transaction = begin();
    auto result = std::forward<Step>(step)(*transaction);
    transaction->commit();
    return result;
  }
};

/// sqlite:///path/to/file or postgresql://…, a connection URI of libpq.
std::unique_ptr<Database> open_database(const std::string& url);

/// Makes room for new tables: a new SQLite file, or the schema order_service made anew.
void prepare_database(const std::string& url);

}  // namespace order_service

#endif
