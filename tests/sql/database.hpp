// One face for the two databases of the tests: SQLite, and a PostgreSQL server of the test's own.
#ifndef REDLEASE_TESTS_SQL_DATABASE_HPP
#define REDLEASE_TESTS_SQL_DATABASE_HPP

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <variant>
#include <vector>

namespace redlease::test {

using Value = std::variant<std::int64_t, std::string>;
// By name, without the colon. What a statement doesn't name is not used.
using Parameters = std::map<std::string, Value>;

struct Result {
  std::int64_t changed = 0;
  std::vector<std::vector<std::string>> rows{};
};

// A connection; of one thread at a time. Outside of a transaction each statement commits itself.
class Connection {
 public:
  virtual ~Connection() = default;

  virtual Result run(const std::string& statement, const Parameters& parameters = {}) = 0;

  virtual void begin() = 0;  // as docs/fencing.md has it: READ COMMITTED, or BEGIN IMMEDIATE
  virtual void commit() = 0;
  virtual void rollback() = 0;

  // How many rows the statement changes, and the only field that it finds.
  std::int64_t change(const std::string& statement, const Parameters& parameters = {}) {
    return run(statement, parameters).changed;
  }
  std::string find(const std::string& statement, const Parameters& parameters = {}) {
    return run(statement, parameters).rows.at(0).at(0);
  }
  std::int64_t find_number(const std::string& statement, const Parameters& parameters = {}) {
    return std::stoll(find(statement, parameters));
  }
};

// An empty database, gone with the object.
class Database {
 public:
  virtual ~Database() = default;
  virtual std::unique_ptr<Connection> connect() = 0;  // from any thread
};

enum class Engine { sqlite, postgresql };

inline std::ostream& operator<<(std::ostream& out, Engine engine) {
  return out << (engine == Engine::sqlite ? "sqlite" : "postgresql");
}

std::unique_ptr<Database> make_sqlite_database();
// On a server that all tests of this process share; the first one starts it.
std::unique_ptr<Database> make_postgres_database();

inline std::unique_ptr<Database> make_database(Engine engine) {
  return engine == Engine::sqlite ? make_sqlite_database() : make_postgres_database();
}

}  // namespace redlease::test

#endif
