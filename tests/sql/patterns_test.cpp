// The patterns of docs/fencing.md, on each database: what they refuse, and what they don't.
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "sql/fixture.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

constexpr int writers = 4;
constexpr int rounds = 50;

class Patterns : public ::testing::TestWithParam<Engine> {
 protected:
  std::int64_t reserve(std::int64_t quantity, std::int64_t fence) {
    return own().change(documented("reserve"), {{"sku", "tea"}, {"n", quantity}, {"fence", fence}});
  }
  std::vector<std::string> why() { return own().run(documented("why"), {{"sku", "tea"}}).rows[0]; }
  std::int64_t count(const std::string& from) {
    return own().find_number("SELECT count(*) FROM " + from);
  }
  Connection& own() { return world_.own(); }

  World world_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Databases, Patterns, ::testing::Values(Engine::sqlite, Engine::postgresql),
                         ::testing::PrintToStringParamName());

using Row = std::vector<std::string>;

// ---- 1: a conditional update with a fence ------------------------------------------------------

TEST_P(Patterns, LateWriterIsRefused) {
  EXPECT_EQ(reserve(1, newest), 1);
  EXPECT_EQ(reserve(1, newest - 1), 0);
  EXPECT_EQ(why(), (Row{"999", std::to_string(newest)}));
}

TEST_P(Patterns, SameHolderMayWriteAgain) {
  EXPECT_EQ(reserve(1, newest), 1);
  EXPECT_EQ(reserve(1, newest), 1);
  EXPECT_EQ(why(), (Row{"998", std::to_string(newest)}));
}

TEST_P(Patterns, ShortageChangesNothing) {
  EXPECT_EQ(reserve(1, 33), 1);
  EXPECT_EQ(reserve(1000, 34), 0);
  EXPECT_EQ(why(), (Row{"999", "33"}));
  EXPECT_EQ(reserve(1, 33), 1) << "an update that changed nothing fences nobody off";
}

TEST_P(Patterns, StockNeverFallsBelowZero) {
  EXPECT_ANY_THROW(own().run("UPDATE stock SET available = -1"));
  EXPECT_EQ(why(), (Row{"1000", "0"}));
}

TEST_P(Patterns, ConcurrentWritersEndWithTheHighestNumber) {
  std::atomic<std::int64_t> number = 0;
  std::atomic<int> accepted = 0;
  write_at_once(world_, writers, [&](Connection& connection, int writer) {
    for (int round = 0; round < rounds; ++round) {
      const auto fence = ++number;
      std::this_thread::yield();  // others come in between
      const auto request = std::to_string(writer) + "/" + std::to_string(round);
      if (book(connection, request, 1, fence) == Booked::now) ++accepted;
    }
  });
  EXPECT_EQ(why(), (Row{std::to_string(1000 - accepted), std::to_string(number.load())}));
  EXPECT_EQ(count("booking"), accepted) << "those who were refused left something behind";
}

// In each round one holder is late: it may come in first, or be refused, but never comes second.
TEST_P(Patterns, LateWriterNeverComesSecond) {
  own().run("CREATE TABLE history (place BIGINT PRIMARY KEY, number BIGINT NOT NULL)");
  write_at_once(world_, writers, [&](Connection& connection, int writer) {
    for (int round = 0; round < rounds; ++round) {
      connection.begin();
      const std::int64_t fence = round * writers + writer + 1;
      if (connection.change(documented("reserve"), {{"sku", "tea"}, {"n", 1}, {"fence", fence}}) ==
          0) {
        connection.rollback();
        continue;
      }
      // Under the row's lock, so that the places are the order of the writes.
      connection.run(
          "INSERT INTO history (place, number) "
          "SELECT count(*) + 1, :fence FROM history",
          {{"fence", fence}});
      connection.commit();
    }
  });
  EXPECT_EQ(own().find_number("SELECT count(*) FROM history a JOIN history b "
                              "ON b.place = a.place + 1 AND b.number <= a.number"),
            0);
  EXPECT_EQ(own().find_number("SELECT max(number) FROM history"), writers * rounds);
}

// ---- 2: a version column -----------------------------------------------------------------------

class Document {
 public:
  explicit Document(Connection& connection) : connection_(connection) {
    const auto row = connection.run(documented("read-document"), {{"id", 1}}).rows.at(0);
    body = row[0];
    version = std::stoll(row[1]);
  }
  std::int64_t write(const std::string& text) const {
    return connection_.change(documented("write-document"),
                              {{"id", 1}, {"body", text}, {"version", version}});
  }

  std::string body;
  std::int64_t version = 0;

 private:
  Connection& connection_;
};

TEST_P(Patterns, WriteOnAnOldVersionIsRefused) {
  const Document late(own());
  EXPECT_EQ(Document(own()).write("new"), 1);
  EXPECT_EQ(late.write("late"), 0);
  EXPECT_EQ(Document(own()).body, "new");
  EXPECT_EQ(Document(own()).version, 1);
}

TEST_P(Patterns, NoChangeIsLostBetweenReadAndWrite) {
  write_at_once(world_, writers, [&](Connection& connection, int) {
    for (int round = 0; round < rounds;) {
      const Document read(connection);
      round += static_cast<int>(read.write(std::to_string(std::stoll(read.body) + 1)));
    }
  });
  EXPECT_EQ(Document(own()).body, std::to_string(writers * rounds));
  EXPECT_EQ(Document(own()).version, writers * rounds);
}

// ---- 3: a unique idempotency key ---------------------------------------------------------------

TEST_P(Patterns, DuplicateIsRefused) {
  EXPECT_EQ(book(own(), "r1", 5, 33), Booked::now);
  EXPECT_EQ(book(own(), "r1", 7, 33), Booked::before);
  EXPECT_EQ(book(own(), "r1", 7, 34), Booked::before) << "under a newer lease, too";
  EXPECT_EQ(why(), (Row{"995", "33"}));
  EXPECT_EQ(own().run(documented("find-booking"), {{"request", "r1"}}).rows[0], (Row{"tea", "5"}));
}

TEST_P(Patterns, RetryWithAnOldNumberLearnsThatItWasDone) {
  EXPECT_EQ(book(own(), "r1", 5, 33), Booked::now);
  EXPECT_EQ(book(own(), "r2", 5, 34), Booked::now);
  EXPECT_EQ(book(own(), "r1", 5, 33), Booked::before);
  EXPECT_EQ(why(), (Row{"990", "34"}));
}

TEST_P(Patterns, LateWriterLeavesNoRecord) {
  EXPECT_EQ(book(own(), "r1", 5, 34), Booked::now);
  EXPECT_EQ(book(own(), "late", 5, 33), Booked::refused);
  EXPECT_TRUE(own().run(documented("find-booking"), {{"request", "late"}}).rows.empty());
  EXPECT_EQ(book(own(), "late", 5, 35), Booked::now) << "its work can be done by the next holder";
}

// The connection breaks with the COMMIT: the writer doesn't know, and does all of it again.
TEST_P(Patterns, RetryAfterALostAnswerCountsOnce) {
  for (const bool stands : {true, false}) {
    const std::string request = stands ? "stands" : "doesn't";
    {
      const auto connection = world_.connect();
      const Parameters parameters{{"request", request}, {"sku", "tea"}, {"n", 1}, {"fence", 33}};
      connection->begin();
      EXPECT_EQ(connection->change(documented("record-booking"), parameters), 1);
      EXPECT_EQ(connection->change(documented("reserve"), parameters), 1);
      if (stands) connection->commit();
    }  // the connection is gone, with what wasn't committed
    EXPECT_EQ(book(own(), request, 1, 33), stands ? Booked::before : Booked::now);
  }
  EXPECT_EQ(why(), (Row{"998", "33"}));
}

TEST_P(Patterns, OneRequestOfManyAtOnceIsDoneOnce) {
  std::atomic<int> done = 0;
  write_at_once(world_, writers, [&](Connection& connection, int) {
    for (int round = 0; round < rounds; ++round) {
      const auto outcome = book(connection, std::to_string(round), 1, 33);
      EXPECT_NE(outcome, Booked::refused);
      if (outcome == Booked::now) ++done;
    }
  });
  EXPECT_EQ(done, rounds);
  EXPECT_EQ(count("booking"), rounds);
  EXPECT_EQ(why(), (Row{std::to_string(1000 - rounds), "33"}));
}

// ---- 4: a state machine ------------------------------------------------------------------------

TEST_P(Patterns, StepIsTakenOnce) {
  EXPECT_EQ(own().change(documented("pay"), {{"id", 1}}), 1);
  EXPECT_EQ(own().change(documented("pay"), {{"id", 1}}), 0);
  EXPECT_EQ(own().change(documented("cancel"), {{"id", 1}}), 0);
  EXPECT_EQ(own().find("SELECT state FROM purchase WHERE id = 1"), "paid");
  EXPECT_ANY_THROW(own().run("UPDATE purchase SET state = 'lost'"));
}

TEST_P(Patterns, OfTwoStepsThatExcludeEachOtherOneIsTaken) {
  for (int id = 2; id < 2 + rounds; ++id) {
    own().run("INSERT INTO purchase (id, state) VALUES (:id, 'reserved')", {{"id", id}});
  }
  std::atomic<int> taken = 0;
  write_at_once(world_, writers, [&](Connection& connection, int writer) {
    for (int id = 2; id < 2 + rounds; ++id) {
      const auto* const step = (writer + id) % 2 == 0 ? "pay" : "cancel";
      taken += static_cast<int>(connection.change(documented(step), {{"id", id}}));
    }
  });
  EXPECT_EQ(taken, rounds);
  EXPECT_EQ(count("purchase WHERE state = 'reserved' AND id > 1"), 0);
}

// As the page says: what this pattern doesn't refuse.
TEST_P(Patterns, StateThatComesRoundAgainTakesALateWriter) {
  EXPECT_EQ(own().change(documented("cancel"), {{"id", 1}}), 1);
  own().run("UPDATE purchase SET state = 'reserved' WHERE id = 1");  // by a newer holder
  EXPECT_EQ(own().change(documented("pay"), {{"id", 1}}), 1);
}

// ---- 5: a fence table --------------------------------------------------------------------------

TEST_P(Patterns, FenceTableAdmitsWhoIsNotLate) {
  EXPECT_EQ(admit(own(), "north", newest - 1), 1) << "the first of all";
  EXPECT_EQ(admit(own(), "north", newest - 1), 1) << "the same holder";
  EXPECT_EQ(admit(own(), "north", newest), 1);
  EXPECT_EQ(admit(own(), "north", newest - 1), 0);
  EXPECT_EQ(admit(own(), "south", 1), 1) << "another resource";
  EXPECT_EQ(own().find_number("SELECT highest FROM fence WHERE resource = 'north'"), newest);
}

// A list that is replaced as a whole, each of its lines with the number of who wrote it.
bool replace_picks(Connection& connection, std::int64_t fence, int lines) {
  connection.begin();
  if (admit(connection, "north", fence) == 0) {
    connection.rollback();
    return false;
  }
  connection.run(documented("clear-picks"), {{"warehouse", "north"}});
  for (int place = 1; place <= lines; ++place) {
    connection.run(documented("add-pick"),
                   {{"warehouse", "north"}, {"place", place}, {"sku", std::to_string(fence)}});
  }
  connection.commit();
  return true;
}

TEST_P(Patterns, LateHolderReplacesNothing) {
  EXPECT_TRUE(replace_picks(own(), 34, 3));
  EXPECT_FALSE(replace_picks(own(), 33, 5));
  EXPECT_EQ(count("pick WHERE sku = '34'"), 3);
  EXPECT_EQ(count("pick"), 3);
}

TEST_P(Patterns, ListOfManyWritersIsThatOfTheHighest) {
  std::atomic<std::int64_t> number = 0;
  write_at_once(world_, writers, [&](Connection& connection, int) {
    for (int round = 0; round < rounds; ++round) replace_picks(connection, ++number, 3);
  });
  EXPECT_EQ(count("pick"), 3);
  EXPECT_EQ(count("pick WHERE sku = '" + std::to_string(number) + "'"), 3);
}

TEST_P(Patterns, NewHolderFencesOffItsPredecessorBeforeItWrites) {
  EXPECT_TRUE(replace_picks(own(), 33, 3));
  EXPECT_EQ(admit(own(), "north", 34), 1);
  EXPECT_FALSE(replace_picks(own(), 33, 5));
  EXPECT_EQ(count("pick"), 3);
}

// Whoever is admitted reads what all before it have left, also one whose transaction was still
// open when it came.
TEST_P(Patterns, WhatIsReadBehindTheFenceIsTheLast) {
  const auto slow = world_.connect();
  slow->begin();
  EXPECT_EQ(admit(*slow, "north", 33), 1);

  std::promise<void> begun;
  auto next = std::async(std::launch::async, [&] {
    const auto connection = world_.connect();
    begun.set_value();
    connection->begin();
    EXPECT_EQ(admit(*connection, "north", 34), 1);
    const auto found = connection->find_number("SELECT count(*) FROM pick");
    connection->commit();
    return found;
  });
  begun.get_future().wait();
  EXPECT_EQ(next.wait_for(50ms), std::future_status::timeout) << "it waits for the one before";
  slow->run(documented("add-pick"), {{"warehouse", "north"}, {"place", 1}, {"sku", "tea"}});
  slow->commit();
  EXPECT_EQ(next.get(), 1);
}

// ---- 6: several resources ----------------------------------------------------------------------

TEST_P(Patterns, OneLateNumberOfSeveralRefusesAll) {
  EXPECT_EQ(admit(own(), "north", 10), 1);
  EXPECT_EQ(admit(own(), "south", 20), 1);

  own().begin();
  EXPECT_EQ(admit(own(), "north", 11), 1);
  own().run(documented("add-pick"), {{"warehouse", "north"}, {"place", 1}, {"sku", "tea"}});
  EXPECT_EQ(admit(own(), "south", 19), 0);
  own().rollback();

  EXPECT_EQ(count("pick"), 0);
  EXPECT_EQ(own().find_number("SELECT highest FROM fence WHERE resource = 'north'"), 10);
}

// ---- what was run ------------------------------------------------------------------------------

class EverythingWasRun : public ::testing::Environment {
 public:
  void TearDown() override {
    if (::testing::GTEST_FLAG(filter) != "*") return;
    const auto used = documented_and_used();
    for (const auto& [name, statement] : sql_blocks("fencing.md")) {
      EXPECT_TRUE(used.contains(name)) << name << " of docs/fencing.md";
    }
  }
};

const auto* const everything_was_run =
    ::testing::AddGlobalTestEnvironment(std::make_unique<EverythingWasRun>().release());

TEST(Documents, HaveTheSameSqlInBothLanguages) {
  EXPECT_EQ(sql_blocks("fencing.md"), sql_blocks("fencing.zh-CN.md"));
}

}  // namespace
}  // namespace redlease::test
