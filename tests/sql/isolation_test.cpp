// What docs/fencing.md says of each database's isolation, which is why its patterns are right.
#include <SQLiteCpp/SQLiteCpp.h>

#include <chrono>
#include <pqxx/pqxx>

#include "sql/fixture.hpp"
#include "support/process.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

class OnPostgres : public ::testing::Test {
 protected:
  std::int64_t reserve(Connection& connection, std::int64_t quantity, std::int64_t fence) {
    return connection.change(documented("reserve"),
                             {{"sku", "tea"}, {"n", quantity}, {"fence", fence}});
  }

  // Whether somebody stands still in front of a lock that another transaction has.
  bool somebody_waits() {
    return eventually(30s, [&] {
      return world_.own().find_number(
                 "SELECT count(*) FROM pg_stat_activity "
                 "WHERE datname = current_database() "
                 "AND wait_event_type = 'Lock'") == 1;
    });
  }

  // Runs `second` while `first` has an open transaction, and until it waits for that.
  template <class Second>
  auto behind(Connection& first, Second&& second) {
    auto result = std::async(std::launch::async, [this, &second] {
      const auto connection = world_.connect();
      return second(*connection);
    });
    EXPECT_TRUE(somebody_waits());
    first.commit();
    return result.get();
  }

  World world_{Engine::postgresql};
};

TEST_F(OnPostgres, ReadCommittedLooksAtTheFenceAgainBehindTheWait) {
  const auto first = world_.connect();
  first->begin();
  EXPECT_EQ(reserve(*first, 1, 34), 1);
  EXPECT_EQ(behind(*first, [&](Connection& late) { return reserve(late, 1, 33); }), 0);
}

TEST_F(OnPostgres, ReadCommittedLooksAtTheStockAgainBehindTheWait) {
  const auto first = world_.connect();
  first->begin();
  EXPECT_EQ(reserve(*first, 600, 33), 1);
  EXPECT_EQ(behind(*first, [&](Connection& second) { return reserve(second, 600, 33); }), 0);
  EXPECT_EQ(world_.own().find_number("SELECT available FROM stock"), 400);
}

TEST_F(OnPostgres, ReadCommittedAdmitsByTheNumberThatIsThereBehindTheWait) {
  for (const std::int64_t fence : {34, 44}) {  // the row isn't there yet, and it is
    const auto first = world_.connect();
    first->begin();
    EXPECT_EQ(admit(*first, "north", fence), 1);
    EXPECT_EQ(behind(*first, [&](Connection& late) { return admit(late, "north", fence - 1); }), 0);
  }
}

TEST_F(OnPostgres, SecondOfOneRequestWaitsForTheFirst) {
  const Parameters parameters{{"request", "r1"}, {"sku", "tea"}, {"n", 1}};
  const auto first = world_.connect();
  first->begin();
  EXPECT_EQ(first->change(documented("record-booking"), parameters), 1);
  EXPECT_EQ(behind(*first,
                   [&](Connection& second) {
                     return second.change(documented("record-booking"), parameters);
                   }),
            0);
}

// It has no definite answer: the whole transaction is to be tried again.
TEST_F(OnPostgres, RepeatableReadFailsInsteadOfLookingAgain) {
  const auto second = world_.connect();
  second->begin();
  second->run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
  EXPECT_EQ(second->find_number("SELECT available FROM stock"), 1000);
  EXPECT_EQ(reserve(world_.own(), 1, 33), 1);
  EXPECT_THROW(reserve(*second, 1, 34), pqxx::serialization_failure);
  second->rollback();

  second->begin();
  second->run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ");
  EXPECT_EQ(reserve(*second, 1, 34), 1);
  second->commit();
  EXPECT_EQ(world_.own().find_number("SELECT available FROM stock"), 998);
}

TEST_F(OnPostgres, IntegerIsTooShortForANumber) {
  world_.own().run("CREATE TABLE short (fence INTEGER)");
  EXPECT_THROW(world_.own().run("INSERT INTO short VALUES (:fence)", {{"fence", newest}}),
               pqxx::sql_error);
}

TEST(OnSqlite, PlainBeginFailsIfAnotherWroteBetweenItsReadAndItsWrite) {
  World world{Engine::sqlite};
  const auto second = world.connect();
  second->run("BEGIN");
  EXPECT_EQ(second->find_number("SELECT available FROM stock"), 1000);
  world.own().run("UPDATE stock SET available = 999");
  const Stopwatch watch;
  EXPECT_THROW(second->run("UPDATE stock SET available = available - 1"), SQLite::Exception);
  EXPECT_LT(watch.elapsed(), 30s) << "the busy time-out of a minute doesn't help";
  second->rollback();

  second->begin();
  EXPECT_EQ(second->change("UPDATE stock SET available = available - 1"), 1);
  second->commit();
  EXPECT_EQ(world.own().find_number("SELECT available FROM stock"), 998);
}

}  // namespace
}  // namespace redlease::test
