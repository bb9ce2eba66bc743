#include <SQLiteCpp/SQLiteCpp.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "sql/database.hpp"
#include "sql/statements.hpp"

namespace redlease::test {
namespace {

constexpr int busy_timeout_ms = 60'000;

class SqliteConnection : public Connection {
 public:
  explicit SqliteConnection(const std::string& path)
      : database_(path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, busy_timeout_ms) {
    database_.exec("PRAGMA journal_mode = WAL");
    database_.exec("PRAGMA synchronous = OFF");
  }

  Result run(const std::string& statement, const Parameters& parameters) override {
    SQLite::Statement prepared(database_, statement);
    for (const auto& name : numbered(statement).parameters) {
      std::visit([&](const auto& value) { prepared.bind(":" + name, value); }, parameters.at(name));
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

  void begin() override { database_.exec("BEGIN IMMEDIATE"); }
  void commit() override { database_.exec("COMMIT"); }
  void rollback() override { database_.exec("ROLLBACK"); }

 private:
  SQLite::Database database_;
};

class SqliteDatabase : public Database {
 public:
  SqliteDatabase() : directory_("/tmp/redlease-sql-XXXXXX") {
    if (!::mkdtemp(directory_.data())) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + directory_);
    }
  }
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;
  ~SqliteDatabase() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  std::unique_ptr<Connection> connect() override {
    return std::make_unique<SqliteConnection>(directory_ + "/database");
  }

 private:
  std::string directory_;
};

}  // namespace

std::unique_ptr<Database> make_sqlite_database() { return std::make_unique<SqliteDatabase>(); }

}  // namespace redlease::test
