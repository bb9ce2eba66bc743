// What the tests of the patterns share: an empty database with the tables of docs/fencing.md, and
// writers on threads of their own.
#ifndef REDLEASE_TESTS_SQL_FIXTURE_HPP
#define REDLEASE_TESTS_SQL_FIXTURE_HPP

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "sql/database.hpp"
#include "sql/statements.hpp"

namespace redlease::test {

// Above 2^53, where neighbours are one number for a double. Used wherever the size is no matter.
inline constexpr std::int64_t newest = 9'007'199'254'740'993;

class World {
 public:
  explicit World(Engine engine) : database_(make_database(engine)), own_(connect()) {
    for (const char* table : {"stock-table", "document-table", "booking-table", "purchase-table",
                              "fence-table", "pick-table"}) {
      own_->run(documented(table));
    }
    own_->run("INSERT INTO stock (sku, available) VALUES ('tea', 1000)");
    own_->run("INSERT INTO document (id, body) VALUES (1, '0')");
    own_->run("INSERT INTO purchase (id, state) VALUES (1, 'reserved')");
  }

  std::unique_ptr<Connection> connect() { return database_->connect(); }
  Connection& own() { return *own_; }

 private:
  std::unique_ptr<Database> database_;
  std::unique_ptr<Connection> own_;
};

// Calls `write(connection, writer)` on `count` threads with a connection each, all at once. What
// one of them throws is thrown here.
inline void write_at_once(World& world, int count,
                          const std::function<void(Connection&, int)>& write) {
  std::barrier<> start(count);
  std::vector<std::future<void>> writers;
  writers.reserve(static_cast<std::size_t>(count));
  for (int writer = 0; writer < count; ++writer) {
    writers.push_back(std::async(std::launch::async, [&, writer] {
      std::unique_ptr<Connection> connection;
      try {
        connection = world.connect();
      } catch (...) {
        start.arrive_and_drop();
        throw;
      }
      start.arrive_and_wait();
      write(*connection, writer);
    }));
  }
  std::exception_ptr trouble;
  for (auto& writer : writers) {
    try {
      writer.get();
    } catch (...) {
      trouble = std::current_exception();
    }
  }
  if (trouble) std::rethrow_exception(trouble);
}

enum class Booked { now, before, refused, busy };

inline std::int64_t admit(Connection& connection, const std::string& resource, std::int64_t fence) {
  return connection.change(documented("admit"), {{"resource", resource}, {"fence", fence}});
}

// The transaction that docs/fencing.md recommends: the record first, then the fenced write.
inline Booked book(Connection& connection, const std::string& request, std::int64_t quantity,
                   std::int64_t fence) {
  const Parameters parameters{
      {"request", request}, {"sku", "tea"}, {"n", quantity}, {"fence", fence}};
  connection.begin();
  if (connection.change(documented("record-booking"), parameters) == 0) {
    connection.rollback();
    return Booked::before;
  }
  if (connection.change(documented("reserve"), parameters) == 0) {
    connection.rollback();
    return Booked::refused;
  }
  connection.commit();
  return Booked::now;
}

}  // namespace redlease::test

#endif
