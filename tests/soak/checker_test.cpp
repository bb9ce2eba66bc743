// The checker finds what was put into hand-made logs, and excuses what it should.
#include "soak/checker.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "soak/feed_checker.hpp"

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
  return {.keys = {"k"},
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

// With a number of the counter beside its key.
LeaseRecord fenced(LeaseRecord record, std::int64_t number) {
  record.numbers = {{"{k}:redlease:fence", number}};
  return record;
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
  other.keys = {"other"};
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

TEST(SoakOverlaps, ALeaseOnSeveralKeysClaimsEachOfThem) {
  auto both = lease(0ms, 900ms, "a");
  both.keys = {"j", "k"};
  auto other = lease(500ms, 600ms, "b");
  EXPECT_THAT(check_overlaps({log_of({both, other})}, {}).violations, SizeIs(1));
  other.keys = {"j"};
  EXPECT_THAT(check_overlaps({log_of({both, other})}, {}).violations, SizeIs(1));
  other.keys = {"j", "k"};
  EXPECT_THAT(check_overlaps({log_of({both, other})}, {}).violations, SizeIs(2));
  other.keys = {"l"};
  EXPECT_THAT(check_overlaps({log_of({both, other})}, {}).violations, IsEmpty());
}

TEST(SoakOverlaps, WithOneOfItsKeysALeaseLosesAll) {
  auto both = lease(0ms, 900ms, "a");
  both.keys = {"j", "k"};
  const std::vector<HolderLog> logs{log_of({both, lease(500ms, 600ms, "b")})};
  EXPECT_THAT(check_overlaps(logs, {erasure("j", 400ms)}).violations, IsEmpty());
  EXPECT_THAT(check_overlaps(logs, {erasure("l", 400ms)}).violations, SizeIs(1));
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

TEST(SoakHolder, ASleeperOfAnotherProcessProvesABusyMachine) {
  const auto log = log_of({lost_lease(1050ms)});  // due at 890
  Surroundings around{.others = {{}, {{at(700ms), at(965ms)}}}};
  EXPECT_THAT(check_holder(log, {}, around).violations, ElementsAre(HasSubstr("75.000 ms")));
  around.others[1] = {{at(700ms), at(975ms)}};
  EXPECT_THAT(check_holder(log, {}, around).violations, IsEmpty());
  around.others = {{{at(890ms), at(930ms)}}, {{at(930ms), at(970ms)}}};  // neither by itself
  EXPECT_THAT(check_holder(log, {}, around).violations, SizeIs(1));
}

TEST(SoakHolder, ASleeperOfAnotherProcessThatWasStoppedProvesNone) {
  auto other = log_of({});
  other.late = {{at(100ms), at(200ms)}, {at(500ms), at(600ms)}, {at(700ms), at(800ms)}};
  const auto late = late_unstopped(other, {stop(550ms, 590ms), stop(650ms, 710ms)});
  ASSERT_THAT(late, SizeIs(1));
  EXPECT_EQ(late[0].due, at(100ms));
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

TEST(SoakHolder, OnlyWhatAKilledProcessHeldHasNoEnd) {
  auto record = lease(0ms, 0ms);
  record.end = "open";
  auto log = log_of({record});
  EXPECT_THAT(check_holder(log, {}).violations, ElementsAre(HasSubstr("no end")));
  log.killed = true;
  log.leftovers.reset();
  EXPECT_THAT(check_holder(log, {}).violations, IsEmpty());
}

TEST(SoakHolder, ANumberIsAboveThoseThatTheClientHadBeforeItAsked) {
  auto first = fenced(lease(0ms, 100ms), 7);
  auto second = fenced(lease(300ms, 400ms), 8);
  second.began = at(200ms);
  const auto findings = check_holder(log_of({first, second}), {});
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.numbers_of_client, 1U);
  for (const auto number : {7, 3}) {
    second.numbers.front().value = number;
    EXPECT_THAT(check_holder(log_of({second, first}), {}, {{erasure("", 150ms)}}).violations,
                ElementsAre(HasSubstr("not above")));
  }
  second.began = at(-1ms);  // it asked before
  EXPECT_THAT(check_holder(log_of({first, second}), {}).violations, IsEmpty());
  second.began = at(200ms);
  second.numbers.front().counter = "another";
  EXPECT_THAT(check_holder(log_of({first, second}), {}).violations, IsEmpty());
}

TEST(SoakHolder, ARefusedNumberIsExcusedOnlyByALossOfData) {
  auto log = log_of({fenced(lease(0ms, 100ms), 7)});
  log.regressions = {{at(490ms), at(500ms), {"{k}:redlease:fence"}}};
  EXPECT_THAT(check_holder(log, {}).violations, ElementsAre(HasSubstr("was not lost")));
  EXPECT_THAT(check_holder(log, {}, {{erasure("k", 400ms)}}).violations, SizeIs(1));
  EXPECT_THAT(check_holder(log, {}, {{erasure("", 501ms)}}).violations, SizeIs(1));
  const auto findings = check_holder(log, {}, {{erasure("", 400ms)}});
  EXPECT_THAT(findings.violations, IsEmpty());
  EXPECT_EQ(findings.regressions, 1U);
  auto since = fenced(lease(450ms, 460ms), 8);  // the counter has passed all that it had
  since.began = at(440ms);
  log.leases.push_back(since);
  EXPECT_THAT(check_holder(log, {}, {{erasure("", 400ms)}}).violations, SizeIs(1));
  log.leases.pop_back();
  log.regressions.front().counters = {"never seen"};
  EXPECT_THAT(check_holder(log, {}, {{erasure("", 400ms)}}).violations, SizeIs(1));
}

TEST(SoakHolder, ANumberBesideARefusedOneWasSeen) {
  auto log = log_of({fenced(lease(0ms, 100ms), 7)});
  log.regressions = {{at(290ms), at(300ms), {"{j}:redlease:fence", "{k}:redlease:fence"}},
                     {at(490ms), at(500ms), {"{j}:redlease:fence"}}};
  const std::vector<Erasure> both{erasure("", 200ms), erasure("", 400ms)};
  EXPECT_THAT(check_holder(log, {}, {both}).violations, IsEmpty());
  EXPECT_THAT(check_holder(log, {}, {{both.front()}}).violations, SizeIs(1));
  log.regressions.front().counters.erase(log.regressions.front().counters.begin());
  EXPECT_THAT(check_holder(log, {}, {both}).violations, SizeIs(1));
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

// ---- numbers, several keys, and the ends of leases ---------------------------------------------

class SoakScripts : public SoakFeed {
 protected:
  using Lines = std::vector<std::string>;

  // A script with its keys and arguments, and what it did.
  void run(long time, const std::string& arguments, const Lines& lines) {
    feed(time, R"([0 unix:/s] "EVALSHA" "sha" )" + arguments);
    for (const auto& line : lines) feed(time, "[0 lua] " + line);
  }
  void flush(long time) { feed(time, R"([0 127.0.0.1:9] "FLUSHALL")"); }
  // A lease on k with a number.
  void take_fenced(long time, const std::string& token) {
    run(time, R"("2" "k" "{k}:redlease:fence" ")" + token + R"(" "1000" "1")",
        {R"("INCR" "{k}:redlease:fence")", R"("SET" "k" ")" + token + R"(" "PX" "1000")"});
  }
  void take_both(long time, const std::string& token) {
    run(time, R"("2" "j" "k" ")" + token + R"(" "1000" "2")",
        {R"("SET" "j" ")" + token + R"(" "PX" "1000")",
         R"("SET" "k" ")" + token + R"(" "PX" "1000")"});
  }
  void give_back_both(long time, const std::string& token, const Lines& lines) {
    run(time, R"("2" "j" "k" ")" + token + R"(")", lines);
  }
  void check_numbers(std::vector<LeaseRecord> leases) {
    checker.check_numbers({log_of(std::move(leases))}, clocks);
  }

  const Lines delete_both{R"("DEL" "j" "k")"};
  const nanoseconds clocks = ms(0) - at(0ms).time_since_epoch();
};

TEST_F(SoakScripts, NumbersThatRiseAreFine) {
  take_fenced(0, "a");
  release(10, "a");
  take_fenced(20, "b");
  release(30, "b");
  check_numbers({fenced(lease(21ms, 29ms, "b"), 2), fenced(lease(1ms, 9ms, "a"), 1)});
  checker.check_counters({{"{k}:redlease:fence", {2, false}}});
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(checker.findings().numbers, 2U);
  EXPECT_EQ(checker.findings().counters, 1U);
}

TEST_F(SoakScripts, NumbersAgainstTheOrderOfTheFeedAreFound) {
  take_fenced(0, "a");
  release(10, "a");
  take_fenced(20, "b");
  check_numbers({fenced(lease(1ms, 9ms, "a"), 2), fenced(lease(21ms, 29ms, "b"), 1)});
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("do not rise")));
}

TEST_F(SoakScripts, ANumberThatWasGivenTwiceIsFound) {
  take_fenced(0, "a");
  release(10, "a");
  take_fenced(20, "b");
  check_numbers({fenced(lease(1ms, 9ms, "a"), 1), fenced(lease(21ms, 29ms, "b"), 1)});
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("given twice"), HasSubstr("do not rise")));
}

TEST_F(SoakScripts, OneNumberOfASharedCounterOnTwoKeysIsFound) {
  take_fenced(0, "a");
  run(1, R"("2" "j" "soak:numbers" "b" "1000" "1")",
      {R"("INCR" "soak:numbers")", R"("SET" "j" "b" "PX" "1000")"});
  auto first = lease(1ms, 9ms, "a");
  auto second = lease(2ms, 9ms, "b");
  first.numbers = second.numbers = {{shared_counter, 1}};
  second.keys = {"j"};
  check_numbers({first, second});
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("given twice")));
}

TEST_F(SoakScripts, NumbersOfOtherKeysNeedNotRiseInTheOrderOfTheFeed) {
  take_fenced(0, "a");
  run(1, R"("2" "j" "soak:numbers" "b" "1000" "1")",
      {R"("INCR" "soak:numbers")", R"("SET" "j" "b" "PX" "1000")"});
  auto first = lease(1ms, 9ms, "a");  // its number was drawn when its answer had been lost
  auto second = lease(2ms, 9ms, "b");
  first.numbers = {{shared_counter, 2}};
  second.numbers = {{shared_counter, 1}};
  second.keys = {"j"};
  check_numbers({first, second});
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(SoakScripts, NumbersBeginAgainOnlyWhenTheDataWasLost) {
  take_fenced(0, "a");
  flush(5);
  take_fenced(10, "b");
  check_numbers({fenced(lease(1ms, 9ms, "a"), 1), fenced(lease(11ms, 19ms, "b"), 1)});
  checker.check_counters({{"{k}:redlease:fence", {1, false}}});
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(SoakScripts, NumbersBeginAgainWithAnotherServer) {
  take_fenced(29'000, "a");
  release(29'100, "a");
  take_fenced(30'600, "b");
  check_numbers(
      {fenced(lease(29'001ms, 29'099ms, "a"), 1), fenced(lease(30'601ms, 30'699ms, "b"), 1)});
  checker.check_counters({{"{k}:redlease:fence", {3, false}}});  // two drawn without a feed
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(SoakScripts, ANumberThatNoFeedTellsOfIsExcusedOnlyWhereThereIsNone) {
  auto without_feed = fenced(lease(30'100ms, 30'200ms, "a"), 5);
  without_feed.began = at(30'090ms);
  check_numbers({without_feed});
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(checker.findings().numbers_unseen, 1U);
  auto with_feed = fenced(lease(20'100ms, 20'200ms, "b"), 5);
  with_feed.began = at(20'090ms);
  check_numbers({with_feed});
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("did not give")));
}

TEST_F(SoakScripts, ACounterThatFellExpiresOrIsGoneIsFound) {
  take_fenced(0, "a");
  checker.check_counters({{"{k}:redlease:fence", {1, false}}});
  EXPECT_THAT(violations(), IsEmpty());
  checker.check_counters({{"{k}:redlease:fence", {1, true}}});
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("expires")));
  checker.check_counters({{"{k}:redlease:fence", {2, false}}});  // nobody incremented it
  EXPECT_THAT(violations(), SizeIs(2));
  checker.check_counters({});
  EXPECT_THAT(violations(), SizeIs(3));
  check_numbers({fenced(lease(1ms, 9ms, "a"), 2)});
  checker.check_counters({{"{k}:redlease:fence", {1, false}}});
  EXPECT_THAT(violations().back(), HasSubstr("a counter fell"));
}

TEST_F(SoakScripts, ACounterIsOnlyIncremented) {
  run(0, R"("2" "k" "{k}:redlease:fence" "a")",
      {R"("INCR" "{k}:redlease:fence")", R"("GET" "{k}:redlease:fence")"});
  feed(1, R"([0 127.0.0.1:9] "DEL" "{k}:redlease:fence")");
  EXPECT_THAT(violations(), IsEmpty());
  for (const auto* write : {"DECR", "DEL", "SET", "EXPIRE", "INCRBY"}) {
    run(2, R"("2" "k" "{k}:redlease:fence" "a")",
        {std::string{"\""} + write + R"(" "{k}:redlease:fence" "1")"});
  }
  feed(3, R"([0 unix:/s] "DEL" "soak:numbers")");
  EXPECT_THAT(violations(), SizeIs(6));
}

TEST_F(SoakScripts, SeveralKeysAreGivenRenewedAndGivenBackAtOnce) {
  take_both(0, "a");
  run(500, R"("3" "i" "j" "k" "x" "a" "a" "1000")",
      {R"("PEXPIRE" "j" "1000")", R"("PEXPIRE" "k" "1000")"});
  give_back_both(600, "a", delete_both);
  take_both(700, "b");
  run(800, R"("2" "j" "k" "b" "c" "1000" "2")",
      {R"("SET" "j" "c" "PX" "1000")", R"("SET" "k" "c" "PX" "1000")"});
  auto record = lease(1ms, 599ms, "a");
  record.keys = {"j", "k"};
  check_numbers({record});
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(checker.findings().taken_whole, 3U);
  EXPECT_EQ(checker.findings().renewed_whole, 1U);
  EXPECT_EQ(checker.findings().ended_whole, 1U);
}

TEST_F(SoakScripts, SomeOfTheKeysAreFound) {
  run(0, R"("2" "j" "k" "a" "1000" "2")", {R"("SET" "j" "a" "PX" "1000")"});
  feed(1, R"([0 unix:/s] "PING")");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("only some of the keys")));
}

TEST_F(SoakScripts, KeysThatCameOneByOneAreFound) {
  run(0, R"("1" "j" "a" "1000" "1")", {R"("SET" "j" "a" "PX" "1000")"});
  run(1, R"("1" "k" "a" "1000" "1")", {R"("SET" "k" "a" "PX" "1000")"});
  auto record = lease(2ms, 9ms, "a");
  record.keys = {"j", "k"};
  check_numbers({record});
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("one by one")));
}

TEST_F(SoakScripts, ALeaseThatHasNotAllOfItsKeysIsFound) {
  run(0, R"("1" "j" "a" "1000" "1")", {R"("SET" "j" "a" "PX" "1000")"});
  auto record = lease(2ms, 9ms, "a");
  record.began = at(-1ms);
  record.keys = {"j", "k"};
  check_numbers({record});
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("as a whole")));
}

TEST_F(SoakScripts, TheRenewalOfAPartIsFound) {
  take_both(0, "a");
  run(1, R"("2" "j" "k" "a" "a" "1000")", {R"("PEXPIRE" "k" "1000")"});
  run(2, R"("1" "k" "a" "1000")", {R"("PEXPIRE" "k" "1000")"});
  give_back_both(3, "a", delete_both);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("renews a part"), HasSubstr("renews a part")));
}

TEST_F(SoakScripts, OfALostLeaseTheOthersAreDeletedNotRenewed) {
  take_both(0, "a");
  feed(1, R"([0 127.0.0.1:9] "DEL" "j")");
  run(2, R"("2" "j" "k" "a" "a" "1000")", {R"("DEL" "k")"});
  take_both(3, "b");
  EXPECT_THAT(violations(), IsEmpty());
  feed(4, R"([0 127.0.0.1:9] "DEL" "j")");
  run(5, R"("2" "j" "k" "b" "b" "1000")", {R"("PEXPIRE" "k" "1000")"});
  feed(6, R"([0 unix:/s] "PING")");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("renews a part")));
}

TEST_F(SoakScripts, APartThatIsLeftBehindIsFound) {
  take_both(0, "a");
  give_back_both(1, "a", {R"("DEL" "j")"});
  feed(2, R"([0 unix:/s] "PING")");
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("leaves a part")));
}

TEST_F(SoakScripts, APartThatMayHaveExpiredIsNotLeftBehind) {
  take_both(0, "a");
  give_back_both(950, "a", {R"("DEL" "j")"});
  take_both(2000, "b");
  feed(2001, R"([0 127.0.0.1:9] "DEL" "k")");
  give_back_both(2002, "b", {R"("DEL" "j")"});
  feed(2003, R"([0 unix:/s] "PING")");
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(SoakScripts, AKeyThatAReleaseLeavesIsFound) {
  take_both(0, "a");
  give_back_both(10, "a", delete_both);
  auto record = lease(1ms, 9ms, "a");
  record.keys = {"j", "k"};
  record.answered = at(11ms);
  checker.check_ends(log_of({record}), {}, clocks);
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(checker.findings().given_back, 2U);
  record.answered = at(4ms);
  checker.check_ends(log_of({record}), {}, clocks);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("still had j"), HasSubstr("still had k")));
}

TEST_F(SoakScripts, AKeyThatWasHandedOnIsGivenBack) {
  take_fenced(0, "a");
  run(10, R"("2" "k" "{k}:redlease:fence" "a" "b" "1000")",
      {R"("INCR" "{k}:redlease:fence")", R"("SET" "k" "b" "PX" "1000")"});
  auto record = lease(1ms, 9ms, "a");
  record.answered = at(11ms);
  checker.check_ends(log_of({record}), {}, clocks);
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(SoakScripts, AKeyThatADestructorLeavesIsFoundIfThereWasNoTrouble) {
  take_fenced(2000, "a");
  auto record = lease(2001ms, 2009ms, "a");
  record.end = "scope";
  record.destroyed = at(2010ms);
  const auto log = log_of({record});
  checker.check_ends(log, {{at(1500ms), at(1600ms)}}, clocks);
  EXPECT_EQ(checker.findings().left_to_expire, 1U);
  auto busy = log;
  busy.late = {{at(2020ms), at(2080ms)}};
  checker.check_ends(busy, {}, clocks);
  auto ending = log;
  ending.leases.front().valid_last = at(2200ms);
  checker.check_ends(ending, {}, clocks);
  EXPECT_EQ(checker.findings().left_to_expire, 3U);
  EXPECT_THAT(violations(), IsEmpty());
  checker.check_ends(log, {{at(100ms), at(900ms)}, {at(2600ms), at(2700ms)}}, clocks);
  EXPECT_THAT(violations(), ElementsAre(HasSubstr("a destroyed lease")));
}

TEST_F(SoakScripts, AKeyThatADestructorGaveBackIsFine) {
  take_fenced(2000, "a");
  release(2100, "a");
  auto record = lease(2001ms, 2009ms, "a");
  record.end = "scope";
  record.destroyed = at(2010ms);
  checker.check_ends(log_of({record}), {}, clocks);
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(checker.findings().given_back_later, 1U);
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

TEST(SoakRecords, KeysNumbersAndRegressionsAreReadAgain) {
  auto record = fenced(lease(5ms, 10ms), 9'007'199'254'740'993);
  record.keys = {"j", "k"};
  record.numbers.push_back({shared_counter, 2});
  record.began = at(1ms);
  record.destroyed = at(11ms);
  std::stringstream file;
  file << to_line(record) << '\n'
       << to_line(Regression{at(19ms), at(20ms), {"one", "other"}}) << '\n';
  const auto log = read_log("holder", file);
  ASSERT_THAT(log.leases, SizeIs(1));
  EXPECT_EQ(to_line(log.leases[0]), to_line(record));
  EXPECT_THAT(log.leases[0].keys, ElementsAre("j", "k"));
  EXPECT_EQ(log.leases[0].numbers.at(0).value, 9'007'199'254'740'993);
  EXPECT_EQ(log.leases[0].numbers.at(1).counter, shared_counter);
  ASSERT_THAT(log.regressions, SizeIs(1));
  EXPECT_THAT(log.regressions[0].counters, ElementsAre("one", "other"));
}

TEST(SoakRecords, TheEndOfALeaseTakesThePlaceOfItsBeginning) {
  auto beginning = lease(0ms, 0ms, "a");
  beginning.end = "open";
  auto other = lease(0ms, 10ms, "b");
  std::stringstream file;
  file << to_line(beginning) << '\n'
       << to_line(other) << '\n'
       << to_line(lease(0ms, 20ms, "a")) << '\n';
  const auto log = read_log("holder", file);
  ASSERT_THAT(log.leases, SizeIs(2));
  EXPECT_EQ(log.leases[0].end, "released");
}

TEST(SoakRecords, OnlyTheLastWordsOfAKilledHolderMayBeCut) {
  const auto text = to_line(lease(0ms, 10ms)) + "\nlease keys=k numb";
  std::stringstream cut(text);
  EXPECT_THAT(read_log("holder", cut, true).leases, SizeIs(1));
  std::stringstream same(text);
  EXPECT_THROW(read_log("holder", same), std::runtime_error);
}

TEST(SoakRecords, NonsenseIsRefused) {
  std::stringstream file("lease key=k\n");
  EXPECT_THROW(read_log("holder", file), std::runtime_error);
}

}  // namespace
}  // namespace redlease::soak
