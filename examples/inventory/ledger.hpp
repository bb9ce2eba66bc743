#ifndef EXAMPLES_INVENTORY_LEDGER_HPP
#define EXAMPLES_INVENTORY_LEDGER_HPP

/// The shop's books: the stock, and what became of each order line.
///
/// A lease keeps two workers from doing the same work at once; it cannot stop a paused one from
/// writing late. So the database has the last word: an order line is booked once, because it is the
/// key of its table, and stock is deducted only where there is enough.

#include <SQLiteCpp/SQLiteCpp.h>
#include <SQLiteCpp/VariadicBind.h>
#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "orders.hpp"

namespace inventory {

enum class Outcome { applied, refused };

/// What is in the books about one order line.
struct Booking {
  std::string sku;
  std::int64_t quantity = 0;
  Outcome outcome{};
  int worker = 0;
};

/// What is in the books about one SKU.
struct Balance {
  std::string sku;
  std::int64_t initial = 0;
  std::int64_t available = 0;
  std::int64_t applied = 0;           ///< the sum of the quantities that were applied
  std::int64_t smallest_refused = 0;  ///< quantity; 0 if none was refused
};

/// A connection to the books. It must not be carried over a fork().
class Ledger {
 public:
  /// Makes a new database file and closes it again.
  static void create(const std::filesystem::path& path, const std::vector<Stock>& stock);

  explicit Ledger(const std::filesystem::path& path) : Ledger(path, SQLite::OPEN_READWRITE) {}

  std::optional<Booking> find(const OrderLine& line) const;

  /// Deducts the stock and books the line, or books that the stock didn't suffice. Empty if the
  /// line was booked before; then nothing has changed.
  std::optional<Outcome> book(const OrderLine& line, int worker);

  std::int64_t count() const;
  std::vector<Balance> balances() const;

 private:
  Ledger(const std::filesystem::path& path, int flags)
      : database_(path.string(), flags, busy_timeout_ms) {
    // A power cut may lose what was written last. For a demonstration that is fine, and it doesn't
    // let the disk's speed decide how long a lease is held; real books keep the default.
    database_.exec("PRAGMA synchronous = OFF");
  }

  static constexpr int busy_timeout_ms = 5000;

  SQLite::Database database_;
};

inline void Ledger::create(const std::filesystem::path& path, const std::vector<Stock>& stock) {
  if (std::filesystem::exists(path)) {
    throw std::runtime_error(fmt::format("{}: is there already; name a new file", path.string()));
  }
  Ledger ledger{path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE};
  auto& database = ledger.database_;
  // With a write-ahead log those who read don't wait for the one who writes.
  database.exec(R"sql(
    PRAGMA journal_mode = WAL;
    CREATE TABLE stock (
      sku       TEXT PRIMARY KEY,
      initial   INTEGER NOT NULL,
      available INTEGER NOT NULL CHECK (available >= 0)
    ) WITHOUT ROWID;
    CREATE TABLE booking (
      order_id INTEGER NOT NULL,
      line_no  INTEGER NOT NULL,
      sku      TEXT NOT NULL,
      quantity INTEGER NOT NULL CHECK (quantity > 0),
      outcome  TEXT NOT NULL CHECK (outcome IN ('applied', 'refused')),
      worker   INTEGER NOT NULL,
      PRIMARY KEY (order_id, line_no)
    ) WITHOUT ROWID;
  )sql");

  SQLite::Transaction transaction{database};
  for (const auto& [sku, quantity] : stock) {
    SQLite::Statement insert{database, "INSERT INTO stock VALUES (?1, ?2, ?2)"};
    SQLite::bind(insert, sku, quantity);
    insert.exec();
  }
  transaction.commit();
}

inline std::optional<Booking> Ledger::find(const OrderLine& line) const {
  SQLite::Statement find{database_,
                         "SELECT sku, quantity, outcome = 'applied', worker FROM booking"
                         " WHERE order_id = ?1 AND line_no = ?2"};
  SQLite::bind(find, line.order_id, line.line_no);
  if (!find.executeStep()) return std::nullopt;
  return Booking{find.getColumn(0).getString(), find.getColumn(1).getInt64(),
                 find.getColumn(2).getInt() != 0 ? Outcome::applied : Outcome::refused,
                 find.getColumn(3).getInt()};
}

inline std::optional<Outcome> Ledger::book(const OrderLine& line, int worker) {
  // IMMEDIATE: waits for the other writers here, not when it has read something already.
  SQLite::Transaction transaction{database_, SQLite::TransactionBehavior::IMMEDIATE};
  SQLite::Statement deduct{
      database_, "UPDATE stock SET available = available - ?2 WHERE sku = ?1 AND available >= ?2"};
  SQLite::bind(deduct, line.sku, line.quantity);
  const auto enough = deduct.exec() == 1;

  SQLite::Statement insert{
      database_,
      "INSERT INTO booking (order_id, line_no, sku, quantity, outcome, worker)"
      " VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (order_id, line_no) DO NOTHING"};
  SQLite::bind(insert, line.order_id, line.line_no, line.sku, line.quantity,
               enough ? "applied" : "refused", worker);
  if (insert.exec() == 0) return std::nullopt;  // and the deduction is rolled back
  transaction.commit();
  return enough ? Outcome::applied : Outcome::refused;
}

inline std::int64_t Ledger::count() const {
  SQLite::Statement count{database_, "SELECT count(*) FROM booking"};
  count.executeStep();
  return count.getColumn(0).getInt64();
}

inline std::vector<Balance> Ledger::balances() const {
  SQLite::Statement rows{database_, R"sql(
    SELECT stock.sku, initial, available,
           coalesce(sum(quantity) FILTER (WHERE outcome = 'applied'), 0),
           coalesce(min(quantity) FILTER (WHERE outcome = 'refused'), 0)
    FROM stock LEFT JOIN booking ON booking.sku = stock.sku
    GROUP BY stock.sku
  )sql"};
  std::vector<Balance> balances;
  while (rows.executeStep()) {
    balances.push_back({rows.getColumn(0).getString(), rows.getColumn(1).getInt64(),
                        rows.getColumn(2).getInt64(), rows.getColumn(3).getInt64(),
                        rows.getColumn(4).getInt64()});
  }
  return balances;
}

}  // namespace inventory

#endif
