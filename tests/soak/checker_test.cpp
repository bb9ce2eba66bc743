// The checker finds what was put into hand-made logs, and excuses what it should.
#include "soak/checker.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <vector>

namespace redlease::soak {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Instant at(std::chrono::milliseconds time) { return Instant{1h + time}; }

// From `acquired` to `last_held`, with a ttl of a second, released.
LeaseRecord lease(std::chrono::milliseconds acquired, std::chrono::milliseconds last_held,
                  const std::string& token = "token") {
  return {.key = "k",
          .token = token,
          .ttl = 1s,
          .margin = 100ms,
          .acquired = at(acquired),
          .last_held = at(last_held),
          .valid_first = at(acquired + 990ms),
          .valid_last = at(acquired + 990ms),
          .validities = {{at(acquired), at(acquired + 989ms)}},
          .listening = at(acquired),
          .end = "released"};
}

// The same, acquired at 0 and lost at the end of its validity, with a signal.
LeaseRecord lost_lease(std::chrono::milliseconds signalled) {
  auto record = lease(0ms, 800ms);
  record.signalled = at(signalled);
  record.loss = "expired";
  record.end = "lost";
  return record;
}

HolderLog log_of(std::vector<LeaseRecord> leases) {
  HolderLog log;
  log.name = "holder";
  log.leases = std::move(leases);
  log.leftovers = Leftovers{};
  return log;
}

Erasure erasure(const std::string& key, std::chrono::milliseconds from) {
  return {key, at(from), at(from + 1ms), "test"};
}

Stop stop(std::chrono::milliseconds from, std::chrono::milliseconds to) {
  return {at(from), at(from + 1ms), at(to - 1ms), at(to)};
}

// ---- overlaps ----------------------------------------------------------------------------------

TEST(SoakOverlaps, LeasesOneAfterTheOtherAreFine) {
  const auto findings = check_overlaps({log_of({lease(0ms, 100ms), lease(200ms, 300ms)}),
                                        log_of({lease(100ms, 200ms), lease(300ms, 400ms)})},
                                       {});
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.claims, 4U);
}

TEST(SoakOverlaps, TwoClaimsAtOnceAreFound) {
  const auto findings =
      check_overlaps({log_of({lease(0ms, 100ms, "a")}), log_of({lease(99ms, 200ms, "b")})}, {});
  EXPECT_THAT(findings.violations, ElementsAre(HasSubstr("for 1.000 ms")));
}

TEST(SoakOverlaps, AClaimWithinALongOneIsFoundBehindOthers) {
  const auto findings = check_overlaps(
      {log_of({lease(0ms, 900ms, "a")}),
       log_of({lease(100ms, 100ms, "empty"), lease(200ms, 300ms, "b"), lease(400ms, 500ms, "c")})},
      {});
  EXPECT_THAT(findings.violations, ElementsAre(HasSubstr("100.000 ms"), HasSubstr("100.000 ms")));
}

TEST(SoakOverlaps, OtherKeysAreNoMatter) {
  auto other = lease(50ms, 150ms);
  other.key = "other";
  EXPECT_THAT(check_overlaps({log_of({lease(0ms, 100ms), other})}, {}).violations, IsEmpty());
}

TEST(SoakOverlaps, AnErasureBetweenTheAcquisitionsExcuses) {
  const std::vector<HolderLog> logs{log_of({lease(0ms, 900ms, "a"), lease(500ms, 600ms, "b")})};
  EXPECT_THAT(check_overlaps(logs, {}).violations, SizeIs(1));
  EXPECT_THAT(check_overlaps(logs, {erasure("k", 400ms)}).violations, IsEmpty());
  EXPECT_THAT(check_overlaps(logs, {erasure("", 400ms)}).violations, IsEmpty());
  EXPECT_EQ(check_overlaps(logs, {erasure("", 400ms)}).overlaps_excused, 1U);
}

TEST(SoakOverlaps, AnotherErasureExcusesNothing) {
  const std::vector<HolderLog> logs{log_of({lease(0ms, 900ms, "a"), lease(500ms, 600ms, "b")})};
  EXPECT_THAT(check_overlaps(logs, {erasure("other", 400ms)}).violations, SizeIs(1));
  EXPECT_THAT(check_overlaps(logs, {erasure("k", 501ms)}).violations, SizeIs(1));
  EXPECT_THAT(check_overlaps(logs, {erasure("k", -1100ms)}).violations, SizeIs(1));
}

TEST(SoakOverlaps, AnErasureExcusesNoLongerThanTheOldLeaseWasValid) {
  const std::vector<HolderLog> logs{log_of({lease(0ms, 1500ms, "a"), lease(500ms, 2000ms, "b")})};
  EXPECT_THAT(check_overlaps(logs, {erasure("k", 400ms)}).violations, SizeIs(1));
  EXPECT_THAT(check_overlaps(logs, {erasure("k", 499ms)}).violations, IsEmpty());
}

// ---- one holder --------------------------------------------------------------------------------

TEST(SoakHolder, ASignalInTimeIsFine) {
  const auto findings = check_holder(log_of({lost_lease(895ms), lost_lease(990ms)}), {});
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.signals, 2U);
}

TEST(SoakHolder, ALateSignalIsFound) {
  EXPECT_THAT(check_holder(log_of({lost_lease(991ms)}), {}).violations,
              ElementsAre(HasSubstr("late")));
}

TEST(SoakHolder, AMissingSignalIsFound) {
  auto record = lost_lease(0ms);
  record.signalled.reset();
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, ElementsAre(HasSubstr("never")));
  record.listening.reset();
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, IsEmpty());
}

TEST(SoakHolder, ALateSignalOfAStoppedHolderIsExcused) {
  const auto log = log_of({lost_lease(1500ms)});
  EXPECT_THAT(check_holder(log, {stop(700ms, 1495ms)}).violations, IsEmpty());
  EXPECT_THAT(check_holder(log, {stop(700ms, 1200ms)}).violations, SizeIs(1));
  EXPECT_THAT(check_holder(log, {stop(1600ms, 2495ms)}).violations, SizeIs(1));
}

TEST(SoakHolder, ALateSignalOnABusyMachineIsExcused) {
  auto log = log_of({lost_lease(1050ms)});
  log.late = {{at(100ms), at(400ms)}, {at(900ms), at(950ms)}};
  EXPECT_THAT(check_holder(log, {}).violations, SizeIs(1));
  log.late.push_back({at(955ms), at(1000ms)});
  const auto findings = check_holder(log, {});
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.signals_excused, 1U);
}

TEST(SoakHolder, ASleeperThatWasStoppedProvesNoBusyMachine) {
  auto log = log_of({lost_lease(1250ms)});
  log.late = {{at(890ms), at(1002ms)}};
  EXPECT_THAT(check_holder(log, {stop(900ms, 1000ms)}).violations, SizeIs(1));
}

TEST(SoakHolder, WhoListensLateHasTheMarginFromThere) {
  auto record = lost_lease(1020ms);
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, SizeIs(1));
  record.listening = at(980ms);
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, IsEmpty());
}

TEST(SoakHolder, ALossThatAReleaseFindsIsSignalledWithItsAnswer) {
  auto record = lost_lease(1300ms);
  record.releasing = at(850ms);
  record.answered = at(1290ms);
  const auto findings = check_holder(log_of({record}), {});
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.signals_behind, 1U);
  record.signalled = at(1391ms);
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, SizeIs(1));
  record.signalled = at(1300ms);
  record.releasing = at(900ms);
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, SizeIs(1));
}

TEST(SoakHolder, LossIsFinal) {
  auto revived = lost_lease(900ms);
  revived.revived = true;
  auto held_late = lost_lease(900ms);
  held_late.held_late = at(950ms);
  auto released = lost_lease(900ms);
  released.end = "released";
  auto signalled = lease(0ms, 100ms);
  signalled.signalled = at(50ms);
  EXPECT_THAT(check_holder(log_of({revived, held_late, released, signalled}), {}).violations,
              ElementsAre(HasSubstr("held again"), HasSubstr("behind the signal"),
                          HasSubstr("was released"), HasSubstr("loss() is empty")));
}

TEST(SoakHolder, ALeaseBeyondItsValidityIsFound) {
  auto record = lease(0ms, 1000ms);
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, SizeIs(1));
  record.auto_renew = true;
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, IsEmpty());
  record.valid_first = at(2000ms);
  EXPECT_THAT(check_holder(log_of({record}), {}).violations, ElementsAre(HasSubstr("longer")));
}

TEST(SoakHolder, NothingOutlivesALongStop) {
  auto record = lease(0ms, 2000ms);
  record.auto_renew = true;
  record.valid_last = at(2500ms);
  EXPECT_THAT(check_holder(log_of({record}), {stop(500ms, 1400ms)}).violations, IsEmpty());
  const auto findings = check_holder(log_of({record}), {stop(500ms, 1600ms)});
  EXPECT_THAT(findings.violations, ElementsAre(HasSubstr("outlived")));
  EXPECT_EQ(findings.long_stops, 1U);
}

TEST(SoakHolder, LeftoversErrorsAndAnEarlyEndAreFound) {
  auto log = log_of({});
  log.leftovers = {1, 0};
  log.errors = {"error unexpected"};
  EXPECT_THAT(check_holder(log, {}).violations, SizeIs(2));
  log.leftovers.reset();
  EXPECT_THAT(check_holder(log, {}).violations, SizeIs(2));
}

// ---- the feed ----------------------------------------------------------------------------------

// Lines as MONITOR writes them; the time is in milliseconds.
class SoakFeed : public testing::Test {
 protected:
  static FeedChecker::Time ms(long time) { return 100s + std::chrono::milliseconds{time}; }

  void feed(long time, const std::string& rest) {
    test::MonitorLine line = test::parse_monitor_line("0.0 " + rest);
    line.time = ms(time);
    checker.take(line);
  }
  void set(long time, const std::string& token) {
    feed(time, R"([0 unix:/s] "SET" "k" ")" + token + R"(" "NX" "PX" "1000")");
  }
  void script(long time, const std::string& token, const std::string& write) {
    feed(time, R"([0 127.0.0.1:5] "EVALSHA" "sha" "1" "k" ")" + token + R"(" "1000")");
    feed(time, R"([0 lua] "GET" "k")");
    feed(time, "[0 lua] " + write);
  }
  void release(long time, const std::string& token) { script(time, token, R"("DEL" "k")"); }
  void renew(long time, const std::string& token) {
    script(time, token, R"("PEXPIRE" "k" "1000")");
  }
  const std::vector<std::string>& violations() { return checker.findings().violations; }

  FeedChecker checker{{.admins = {"127.0.0.1:9"},
                       .pauses = {{ms(20'000), ms(22'000)}},
                       .blind = {{ms(30'000), ms(30'500)}},
                       .longest_ttl = 1500ms}};
};

TEST_F(SoakFeed, GuardedWritesOfTheOwnTokenAreFine) {
  set(0, "a");
  renew(900, "a");
  release(1800, "a");
  set(1801, "b");
  release(1802, "b");
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(checker.findings().deletes, 2U);
  EXPECT_EQ(checker.findings().renewals, 1U);
}

TEST_F(SoakFeed, TheDeleteOfAForeignTokenIsFound) {
  set(0, "a");
  set(100, "b");
  release(200, "b");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("foreign")));
}

TEST_F(SoakFeed, TheRenewalOfAForeignTokenIsFound) {
  set(0, "a");
  renew(200, "b");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("foreign")));
}

TEST_F(SoakFeed, ADeleteOfWhatIsGoneIsFound) {
  set(0, "a");
  release(1200, "a");
  set(2000, "b");
  release(2001, "b");
  release(2002, "b");
  EXPECT_THAT(violations(), SizeIs(2));
}

TEST_F(SoakFeed, NearTheEndOfATtlEitherMayHoldTheKey) {
  set(0, "a");
  set(950, "b");
  release(960, "b");
  set(2000, "c");
  set(2950, "d");
  release(2960, "c");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(SoakFeed, UnguardedWritesOfClientsAndScriptsAreFound) {
  feed(0, R"([0 unix:/s] "DEL" "k")");
  feed(1, R"([0 127.0.0.1:5] "SET" "k" "a")");
  feed(2, R"([0 127.0.0.1:5] "EVAL" "text" "1" "k" "a")");
  feed(3, R"([0 lua] "SET" "k" "a")");
  EXPECT_THAT(violations(), SizeIs(3));
}

TEST_F(SoakFeed, AnAdministratorMayDelete) {
  set(0, "a");
  feed(1, R"([0 127.0.0.1:9] "DEL" "k")");
  set(2, "b");
  release(3, "b");
  EXPECT_THAT(violations(), IsEmpty());
  release(4, "a");
  EXPECT_THAT(violations(), SizeIs(1));
}

TEST_F(SoakFeed, ACommandMayBeOlderThanItsLineByAPause) {
  set(22'001, "a");  // perhaps at 20'000, when the server was stopped
  set(22'500, "b");
  release(22'600, "b");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(SoakFeed, WhatHappenedWithoutAFeedIsUnknown) {
  set(29'900, "a");
  release(30'501, "seen by nobody");
  set(30'502, "b");
  release(30'503, "a");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("foreign")));
}

TEST_F(SoakFeed, ALeaseIsHandedOnInThePlaceOfItsToken) {
  set(0, "a");
  feed(1, R"([0 unix:/s] "EVALSHA" "sha" "1" "k" "a" "b" "1000")");
  feed(1, R"([0 lua] "SET" "k" "b" "PX" "1000")");
  release(2, "b");
  EXPECT_EQ(checker.findings().grants, 1U);
  EXPECT_THAT(violations(), IsEmpty());
  set(3, "c");
  feed(4, R"([0 unix:/s] "EVALSHA" "sha" "1" "k" "a" "b" "1000")");
  feed(4, R"([0 lua] "SET" "k" "b" "PX" "1000")");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("foreign")));
}

TEST_F(SoakFeed, AFreeKeyIsGrantedToTheFirstInLine) {
  feed(1, R"([0 unix:/s] "EVALSHA" "sha" "2" "k" "{k}:redlease:line" "join" "p:1:1000:a")");
  feed(1, R"([0 lua] "PEXPIRE" "{k}:redlease:line" "60000")");
  feed(1, R"([0 lua] "SET" "k" "b" "PX" "500")");
  feed(2, R"([0 unix:/s] "EVALSHA" "sha" "2" "k" "{k}:redlease:line" "join" "p:2:1000:b")");
  feed(2, R"([0 lua] "PEXPIRE" "k" "1000")");
  release(1001, "b");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(SoakFeed, ManyLeasesAreRenewedByOneScript) {
  set(0, "a");
  feed(1, R"([0 unix:/s] "SET" "l" "b" "NX" "PX" "1000")");
  feed(2, R"([0 unix:/s] "EVALSHA" "sha" "2" "k" "l" "a" "1000" "b" "1000")");
  feed(2, R"([0 lua] "PEXPIRE" "k" "1000")");
  feed(2, R"([0 lua] "PEXPIRE" "l" "1000")");
  EXPECT_THAT(violations(), IsEmpty());
  feed(3, R"([0 unix:/s] "EVALSHA" "sha" "2" "k" "l" "a" "1000" "x" "1000")");
  feed(3, R"([0 lua] "PEXPIRE" "l" "1000")");
  EXPECT_THAT(violations(), SizeIs(1));
}

TEST_F(SoakFeed, ValidityBeyondWhatTheServerGaveIsFound) {
  const auto clocks = ms(0) - at(0ms).time_since_epoch();
  set(0, "a");
  renew(500, "a");
  auto record = lease(1ms, 800ms, "a");
  record.validities.push_back({at(501ms), at(1490ms)});
  checker.check_validity(log_of({record}), clocks);
  EXPECT_THAT(violations(), IsEmpty());
  record.validities.push_back({at(600ms), at(1510ms)});
  checker.check_validity(log_of({record}), clocks);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("20.000 ms beyond")));
  record.validities = {{at(490ms), at(1020ms)}};  // the server renewed it, but later
  checker.check_validity(log_of({record}), clocks);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("beyond"), HasSubstr("30.000 ms beyond")));
}

TEST_F(SoakFeed, ValidityThatNoFeedTellsOfIsExcusedOnlyWhereThereIsNone) {
  const auto clocks = ms(0) - at(0ms).time_since_epoch();
  checker.check_validity(log_of({lease(29'500ms, 29'600ms, "a")}), clocks);
  EXPECT_THAT(violations(), IsEmpty());
  checker.check_validity(log_of({lease(28'000ms, 28'100ms, "b")}), clocks);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("never")));
}

// ---- the logs ----------------------------------------------------------------------------------

TEST(SoakRecords, WhatIsWrittenIsReadAgain) {
  auto record = lost_lease(900ms);
  record.auto_renew = true;
  std::stringstream file;
  file << to_line(record) << '\n'
       << to_line(Late{at(1ms), at(2ms)}) << '\n'
       << count_line("in doubt: twice", 2) << '\n'
       << error_line("what happened") << '\n'
       << to_line(Leftovers{1, 2}) << '\n';
  const auto log = read_log("holder", file);
  ASSERT_THAT(log.leases, SizeIs(1));
  EXPECT_EQ(to_line(log.leases[0]), to_line(record));
  ASSERT_THAT(log.late, SizeIs(1));
  EXPECT_EQ(log.late[0].woke, at(2ms));
  EXPECT_THAT(log.counts, ElementsAre(testing::Pair("in doubt: twice", 2)));
  EXPECT_THAT(log.errors, ElementsAre("error what happened"));
  ASSERT_TRUE(log.leftovers);
  EXPECT_EQ(log.leftovers->fds, 2);
}

TEST(SoakRecords, NonsenseIsRefused) {
  std::stringstream file("lease key=k\n");
  EXPECT_THROW(read_log("holder", file), std::runtime_error);
}

}  // namespace
}  // namespace redlease::soak
