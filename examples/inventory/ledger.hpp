#ifndef EXAMPLES_INVENTORY_LEDGER_HPP
#define EXAMPLES_INVENTORY_LEDGER_HPP

/// The shop's books: the stock, and what became of each order line.
///
/// A lease keeps two workers from doing the same work at once; it cannot stop a paused one from
/// writing late. So the database has the last word: an order line is booked once, because it is the
/// key of its table, and stock is deducted only where there is enough.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "orders.hpp"
#include "sqlite.hpp"

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

class Ledger {
 public:
  /// Makes a new database file and closes it again.
  static void create(const std::filesystem::path& path, const std::vector<Stock>& stock);

  explicit Ledger(const std::filesystem::path& path)
      : connection_(open(path, SQLITE_OPEN_READWRITE)) {}

  std::optional<Booking> find(const OrderLine& line);

  /// Deducts the stock and books the line, or books that the stock didn't suffice. Empty if the
  /// line was booked before; then nothing has changed.
  std::optional<Outcome> book(const OrderLine& line, int worker);

  std::int64_t count();
  std::vector<Balance> balances();

 private:
  static Connection open(const std::filesystem::path& path, int flags) {
    Connection connection{path.string(), flags, std::chrono::seconds{5}};
    // A power cut may lose what was written last. For a demonstration that is fine, and it doesn't
    // let the disk's speed decide how long a lease is held; real books keep the default.
    connection.execute("PRAGMA synchronous = OFF");
    return connection;
  }

  Connection connection_;
  Statement find_ = connection_.prepare(
      "SELECT sku, quantity, outcome = 'applied', worker FROM booking"
      " WHERE order_id = ?1 AND line_no = ?2");
  Statement deduct_ = connection_.prepare(
      "UPDATE stock SET available = available - ?2 WHERE sku = ?1 AND available >= ?2");
  Statement insert_ = connection_.prepare(
      "INSERT INTO booking (order_id, line_no, sku, quantity, outcome, worker)"
      " VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (order_id, line_no) DO NOTHING");
};

inline void Ledger::create(const std::filesystem::path& path, const std::vector<Stock>& stock) {
  if (std::filesystem::exists(path)) {
    throw std::runtime_error(fmt::format("{}: is there already; name a new file", path.string()));
  }
  const auto connection = open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  // With a write-ahead log those who read don't wait for the one who writes.
  connection.execute(R"sql(
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

  Transaction transaction{connection};
  auto insert = connection.prepare("INSERT INTO stock VALUES (?1, ?2, ?2)");
  for (const auto& [sku, quantity] : stock) insert.run(sku, quantity);
  transaction.commit();
}

inline std::optional<Booking> Ledger::find(const OrderLine& line) {
  auto rows = find_.query(line.order_id, line.line_no);
  if (!rows.next()) return std::nullopt;
  return Booking{rows.text(0), rows.integer(1),
                 rows.integer(2) != 0 ? Outcome::applied : Outcome::refused,
                 static_cast<int>(rows.integer(3))};
}

inline std::optional<Outcome> Ledger::book(const OrderLine& line, int worker) {
  Transaction transaction{connection_};
  const auto enough = deduct_.run(line.sku, line.quantity) == 1;
  const auto* outcome = enough ? "applied" : "refused";
  const auto booked = insert_.run(line.order_id, line.line_no, line.sku, line.quantity,
                                  std::string_view{outcome}, std::int64_t{worker});
  if (booked == 0) return std::nullopt;  // and the deduction is rolled back
  transaction.commit();
  return enough ? Outcome::applied : Outcome::refused;
}

inline std::int64_t Ledger::count() {
  auto statement = connection_.prepare("SELECT count(*) FROM booking");
  auto rows = statement.query();
  rows.next();
  return rows.integer(0);
}

inline std::vector<Balance> Ledger::balances() {
  auto statement = connection_.prepare(R"sql(
    SELECT stock.sku, initial, available,
           coalesce(sum(quantity) FILTER (WHERE outcome = 'applied'), 0),
           coalesce(min(quantity) FILTER (WHERE outcome = 'refused'), 0)
    FROM stock LEFT JOIN booking ON booking.sku = stock.sku
    GROUP BY stock.sku
  )sql");
  std::vector<Balance> balances;
  auto rows = statement.query();
  while (rows.next()) {
    balances.push_back(
        {rows.text(0), rows.integer(1), rows.integer(2), rows.integer(3), rows.integer(4)});
  }
  return balances;
}

}  // namespace inventory

#endif
