// lua/line.lua by itself: what its head comment promises, from an administrator's connection.
#include <string>
#include <vector>

#include <redlease/store/lua_scripts.hpp>

#include "integration/fixture.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

// What the script replies.
struct Step {
  long long ours = 0;
  long long granted = 0;
  std::string place;
  bool missed = false;
  bool first = false;
  std::string fence;
  std::string error;
};

class LineScript : public IntegrationTest {
 protected:
  static constexpr auto line = "{k}:redlease:line";
  std::chrono::milliseconds window = 10s;  // so that a busy machine misses none by chance

  static std::string ticket(const std::string& process, int number, const std::string& token,
                            int ttl = 30'000) {
    return process + ":" + std::to_string(number) + ":" + std::to_string(ttl) + ":" + token;
  }
  static std::string fenced_ticket(const std::string& process, int number,
                                   const std::string& token) {
    return process + ":" + std::to_string(number) + "f:30000:" + token;
  }

  Step run(const std::string& verb, const std::string& process, const std::string& subject,
           const std::string& place = "0") {
    const auto answer = server.admin("EVAL", lua::line.text, 3, "k", line, "fence", verb, process,
                                     window.count(), 60'000, subject, place);
    Step step;
    if (answer.is_error()) {
      step.error = answer.text;
    } else {
      EXPECT_EQ(answer.elements.size(), 6U);
      step.ours = answer.elements.at(0).integer;
      step.granted = answer.elements.at(1).integer;
      step.place = answer.elements.at(2).text;
      step.missed = answer.elements.at(3).integer == 1;
      step.first = answer.elements.at(4).integer == 1;
      step.fence = answer.elements.at(5).text;
    }
    return step;
  }
  Step join(const std::string& process, const std::string& subject,
            const std::string& place = "0") {
    return run("join", process, subject, place);
  }

  std::vector<std::string> in_line() {
    std::vector<std::string> tickets;
    for (const auto& each : server.admin("ZRANGE", line, 0, -1).elements) {
      tickets.push_back(each.text);
    }
    return tickets;
  }
  std::string score(const std::string& member) { return server.admin("ZSCORE", line, member).text; }

  // A process that hears of its grants.
  AdminConnection ear_of(const std::string& process) {
    auto ear = server.connect_admin("ear");
    ear.command({"SUBSCRIBE", "redlease:" + process});
    return ear;
  }
  static std::string heard(AdminConnection& ear) { return ear.read().elements.at(2).text; }

  void hold(const std::string& token = "holder") {
    EXPECT_TRUE(server.admin("SET", "k", token, "NX", "PX", 60'000).is_ok());
  }
};

// ---- try ---------------------------------------------------------------------------------------

TEST_F(LineScript, TryTakesAFreeLease) {
  const auto step = run("try", "p", ticket("p", 1, "mine", 30'000));
  EXPECT_EQ(step.ours, 1);
  EXPECT_EQ(step.granted, 0);
  EXPECT_EQ(server.get("k"), "mine");
  EXPECT_GT(server.pttl("k"), 20s);
  EXPECT_LE(server.pttl("k"), 30s);
  EXPECT_EQ(server.dbsize(), 1);
}

TEST_F(LineScript, TryNeitherTakesAHeldLeaseNorWaits) {
  hold();
  EXPECT_EQ(run("try", "p", ticket("p", 1, "mine")).ours, 0);
  EXPECT_EQ(run("try", "p", ticket("p", 1, "holder")).ours, 0) << "nor accepts a grant";
  EXPECT_EQ(server.get("k"), "holder");
  EXPECT_EQ(server.dbsize(), 1);
}

TEST_F(LineScript, TryLetsThoseWhoWaitGoFirst) {
  hold();
  auto ear = ear_of("q");
  join("q", ticket("q", 7, "theirs"));
  server.admin("DEL", "k");
  EXPECT_EQ(run("try", "p", ticket("p", 1, "mine")).ours, 0);
  EXPECT_EQ(server.get("k"), "theirs");
  EXPECT_EQ(heard(ear), "7");
}

// B51
TEST_F(LineScript, TryTakesALeaseForWhichOnlyTheDeadWait) {
  hold();
  join("dead", ticket("dead", 1, "a"));
  join("dead", ticket("dead", 2, "b"));
  server.admin("DEL", "k");
  EXPECT_EQ(run("try", "p", ticket("p", 1, "mine")).ours, 1);
  EXPECT_EQ(server.get("k"), "mine");
  EXPECT_EQ(server.dbsize(), 1);
}

// ---- join --------------------------------------------------------------------------------------

TEST_F(LineScript, JoinTakesAFreeLease) {
  EXPECT_EQ(join("p", ticket("p", 1, "mine")).ours, 1);
  EXPECT_EQ(server.get("k"), "mine");
  EXPECT_EQ(server.dbsize(), 1);
}

TEST_F(LineScript, JoinWaitsForAHeldOne) {
  hold();
  const auto first = join("p", ticket("p", 1, "a"));
  EXPECT_EQ(first.ours, 0);
  EXPECT_EQ(first.granted, 0);
  EXPECT_EQ(first.place, score(ticket("p", 1, "a")));
  EXPECT_FALSE(first.missed);
  EXPECT_EQ(server.get("k"), "holder");
  EXPECT_GT(server.pttl(line), 50s);

  // A sign of life changes nothing but the line's own time.
  server.admin("PEXPIRE", line, 1000);
  const auto again = join("p", ticket("p", 1, "a"), first.place);
  EXPECT_EQ(again.ours, 0);
  EXPECT_EQ(again.place, first.place);
  EXPECT_FALSE(again.missed);
  EXPECT_GT(server.pttl(line), 50s);
  EXPECT_THAT(in_line(), ElementsAre(ticket("p", 1, "a")));
}

TEST_F(LineScript, PlacesRise) {
  hold();
  std::vector<std::string> expected;
  long long last = 0;
  for (int n = 0; n < 100; ++n) {
    const auto place = std::stoll(join("p", ticket("p", n + 1, "t")).place);
    EXPECT_GT(place, last);
    last = place;
    expected.push_back(ticket("p", n + 1, "t"));
  }
  EXPECT_EQ(in_line(), expected);

  // Also behind one that a clock which went back has left in the future.
  server.admin("ZADD", line, "9000000000000000", ticket("p", 200, "t"));
  EXPECT_EQ(join("p", ticket("p", 201, "t")).place, "9000000000000001");
  EXPECT_EQ(join("p", ticket("p", 202, "t")).place, "9000000000000002");
}

TEST_F(LineScript, WhoJoinsAgainHasHisOldPlace) {
  hold();
  const auto place = join("p", ticket("p", 1, "a")).place;
  join("q", ticket("q", 1, "b"));
  server.admin("ZREM", line, ticket("p", 1, "a"));
  const auto again = join("p", ticket("p", 3, "c"), place);
  EXPECT_EQ(again.place, place);
  EXPECT_TRUE(again.missed);
  EXPECT_THAT(in_line(), ElementsAre(ticket("p", 3, "c"), ticket("q", 1, "b")));
}

TEST_F(LineScript, JoinGrantsAFreeLeaseToTheFirst) {
  hold();
  auto ear = ear_of("q");
  join("q", ticket("q", 5, "first"));
  server.admin("DEL", "k");
  const auto step = join("p", ticket("p", 1, "second"));
  EXPECT_EQ(step.ours, 0);
  EXPECT_EQ(step.granted, 0) << "he is of another process";
  EXPECT_EQ(heard(ear), "5");
  EXPECT_EQ(server.get("k"), "first");
  EXPECT_LE(server.pttl("k"), window);
}

TEST_F(LineScript, JoinTellsOfAGrantWithinItsProcess) {
  hold();
  join("p", ticket("p", 1, "first", 20'000));
  server.admin("DEL", "k");
  const auto step = join("p", ticket("p", 2, "second"));
  EXPECT_EQ(step.ours, 0);
  EXPECT_EQ(step.granted, 1);
  EXPECT_EQ(server.get("k"), "first");
  EXPECT_GT(server.pttl("k"), 10s) << "it needs no acceptance";
  EXPECT_THAT(in_line(), ElementsAre(ticket("p", 2, "second")));
}

// ---- release -----------------------------------------------------------------------------------

TEST_F(LineScript, ReleaseFreesTheKeyWhenNobodyWaits) {
  hold();
  EXPECT_EQ(run("release", "p", "holder").ours, 1);
  EXPECT_EQ(server.dbsize(), 0);
}

TEST_F(LineScript, ReleaseOfWhatIsNotOurs) {
  EXPECT_EQ(run("release", "p", "mine").ours, -1);
  hold();
  join("p", ticket("p", 1, "a"));
  EXPECT_EQ(run("release", "p", "mine").ours, 0);
  EXPECT_EQ(server.get("k"), "holder");
  EXPECT_GT(server.pttl("k"), 50s);
  EXPECT_THAT(in_line(), ElementsAre(ticket("p", 1, "a")));
}

TEST_F(LineScript, ReleaseGrantsToOnesOwnProcess) {
  hold();
  join("p", ticket("p", 1, "a", 20'000));
  const auto step = run("release", "p", "holder");
  EXPECT_EQ(step.ours, 1);
  EXPECT_EQ(step.granted, 1);
  EXPECT_EQ(server.get("k"), "a");
  EXPECT_GT(server.pttl("k"), 10s);
  EXPECT_EQ(server.dbsize(), 1) << "the line is empty, and gone";
}

TEST_F(LineScript, ReleaseGrantsToAnotherProcessForTheWindow) {
  for (const int ttl : {20, 30'000}) {
    hold();
    auto ear = ear_of("q");
    const auto theirs = ticket("q", 3, "a", ttl);
    const auto place = join("q", theirs).place;
    const auto step = run("release", "-", "holder");
    EXPECT_EQ(step.ours, 1);
    EXPECT_EQ(step.granted, 0);
    EXPECT_EQ(heard(ear), "3");
    EXPECT_EQ(server.get("k"), "a");
    EXPECT_GT(server.pttl("k"), 1s) << "a short ttl leaves no time to accept";
    EXPECT_LE(server.pttl("k"), window);
    EXPECT_EQ(score(theirs), "-" + place);

    // Accepting it makes it last its ttl, and ends the line.
    EXPECT_EQ(join("q", theirs, place).ours, 1);
    EXPECT_LE(server.pttl("k"), std::chrono::milliseconds{ttl});
    EXPECT_EQ(server.pttl("k") > 20s, ttl > 500);
    EXPECT_FALSE(server.exists(line));
    server.admin("DEL", "k");
  }
}

// B51: whoever has no connection is dead, and so are all of his process.
TEST_F(LineScript, ReleasePassesTheDeadOver) {
  hold();
  auto ear = ear_of("live");
  join("dead", ticket("dead", 1, "a"));
  join("live", ticket("live", 1, "b"));
  join("dead", ticket("dead", 2, "c"));
  join("live", ticket("live", 2, "d"));
  EXPECT_EQ(run("release", "p", "holder").ours, 1);
  EXPECT_EQ(server.get("k"), "b");
  EXPECT_THAT(in_line(), ElementsAre(ticket("live", 1, "b"), ticket("live", 2, "d")));
}

TEST_F(LineScript, ReleaseWhenAllAreDead) {
  hold();
  join("dead", ticket("dead", 1, "a"));
  join("gone", ticket("gone", 1, "b"));
  EXPECT_EQ(run("release", "p", "holder").ours, 1);
  EXPECT_EQ(server.dbsize(), 0);
}

// B51: a grant that wasn't accepted goes to the next one.
TEST_F(LineScript, AGrantThatIsNotAcceptedPassesOn) {
  window = 100ms;
  hold();
  auto stopped = ear_of("stopped");
  auto live = ear_of("live");
  const auto late = ticket("stopped", 1, "a");
  const auto place = join("stopped", late).place;
  join("live", ticket("live", 1, "b"));
  join("stopped", ticket("stopped", 2, "c"));
  EXPECT_EQ(run("release", "p", "holder").ours, 1);
  EXPECT_EQ(score(late), "-" + place);
  window = 10s;
  EXPECT_TRUE(eventually(10s, [&] { return !server.exists("k"); }));
  join("other", ticket("other", 1, "z"));
  EXPECT_EQ(server.get("k"), "b");
  EXPECT_THAT(in_line(), ElementsAre(ticket("live", 1, "b"), ticket("other", 1, "z")));

  // He who comes too late waits where he had stood.
  const auto step = join("stopped", late, place);
  EXPECT_EQ(step.ours, 0);
  EXPECT_TRUE(step.missed);
  EXPECT_EQ(server.get("k"), "b");
  EXPECT_EQ(score(late), place);
}

TEST_F(LineScript, OneWhoCanNotListenIsGrantedUntold) {
  hold();
  join("p", ticket("-", 1, "a"));
  join("p", ticket("-", 2, "b"));
  EXPECT_EQ(run("release", "p", "holder").granted, 0);
  EXPECT_EQ(server.get("k"), "a");
  EXPECT_LE(server.pttl("k"), window);
  EXPECT_EQ(in_line().size(), 2U);
  // His own question tells him, also when the lease was free.
  EXPECT_EQ(join("p", ticket("-", 1, "a"), "1").ours, 1);
  server.admin("DEL", "k");
  EXPECT_EQ(join("p", ticket("-", 2, "b"), "2").ours, 1);
  EXPECT_GT(server.pttl("k"), 20s);
  EXPECT_EQ(server.dbsize(), 1);
}

// ---- leave -------------------------------------------------------------------------------------

TEST_F(LineScript, LeaveTakesATicketOutOfTheLine) {
  hold();
  join("p", ticket("p", 1, "a"));
  join("p", ticket("p", 2, "b"));
  EXPECT_EQ(run("leave", "-", ticket("p", 1, "a")).ours, 0);
  EXPECT_THAT(in_line(), ElementsAre(ticket("p", 2, "b")));
  EXPECT_EQ(run("leave", "-", ticket("p", 2, "b")).ours, 0);
  EXPECT_EQ(run("leave", "-", ticket("p", 2, "b")).ours, 0) << "once more does no harm";
  EXPECT_EQ(server.get("k"), "holder");
  EXPECT_EQ(server.dbsize(), 1);
}

TEST_F(LineScript, LeaveGivesAGrantOn) {
  hold();
  auto ear = ear_of("q");
  join("q", ticket("q", 1, "a"));
  join("q", ticket("q", 2, "b"));
  run("release", "-", "holder");
  EXPECT_EQ(server.get("k"), "a");
  EXPECT_EQ(run("leave", "-", ticket("q", 1, "a")).ours, 1);
  EXPECT_EQ(server.get("k"), "b");
  EXPECT_THAT(in_line(), ElementsAre(ticket("q", 2, "b")));
  EXPECT_EQ(run("leave", "-", ticket("q", 2, "b")).ours, 1);
  EXPECT_EQ(server.dbsize(), 0);
}

// ---- a hostile world ---------------------------------------------------------------------------

TEST_F(LineScript, AKeyOfAnotherTypeIsLeftAlone) {
  server.admin("HSET", "k", "a", "b");
  EXPECT_EQ(run("try", "p", ticket("p", 1, "t")).ours, 0);
  EXPECT_EQ(join("p", ticket("p", 1, "t")).ours, 0);
  EXPECT_THAT(run("release", "p", "t").error, testing::HasSubstr("WRONGTYPE"));
  EXPECT_THAT(run("leave", "p", ticket("p", 1, "t")).error, testing::HasSubstr("WRONGTYPE"));
  EXPECT_EQ(server.admin("HGET", "k", "a").text, "b");
  EXPECT_FALSE(server.exists(line)) << "he has left it nevertheless";
}

// Whatever else stands in the line is no reason to keep the key.
TEST_F(LineScript, NonsenseInTheLineIsThrownOut) {
  hold();
  server.admin("ZADD", line, 1, "nonsense");
  server.admin("ZADD", line, 2, "a:b:c:d");
  join("p", ticket("p", 1, "a"));
  EXPECT_EQ(run("release", "p", "holder").granted, 1);
  EXPECT_EQ(server.get("k"), "a");
  EXPECT_EQ(server.dbsize(), 1);
}

TEST_F(LineScript, ALineOfAnotherTypeDoesNotKeepTheKey) {
  hold();
  server.admin("SET", line, "a stranger's");
  EXPECT_THAT(join("p", ticket("p", 1, "a")).error, testing::HasSubstr("WRONGTYPE"));
  EXPECT_EQ(run("release", "p", "holder").ours, 1);
  EXPECT_FALSE(server.exists("k"));
  EXPECT_EQ(server.get(line), "a stranger's");
}

// B51: a full server still lets a lease go.
TEST_F(LineScript, ReleaseFreesTheKeyWithoutMemory) {
  hold();
  auto ear = ear_of("q");
  join("q", ticket("q", 1, "a"));
  join("p", ticket("p", 1, "b"));
  server.config_set("maxmemory", "1");
  EXPECT_THAT(join("p", ticket("p", 2, "c")).error, testing::HasSubstr("OOM"));
  EXPECT_EQ(run("release", "p", "holder").ours, 1);
  EXPECT_FALSE(server.exists("k"));
  EXPECT_EQ(run("leave", "p", ticket("p", 1, "b")).ours, 0);
  server.config_set("maxmemory", "0");
  EXPECT_THAT(in_line(), ElementsAre(ticket("q", 1, "a")));
}

// ---- fencing -----------------------------------------------------------------------------------

TEST_F(LineScript, ANumberIsDrawnWithTheLease) {
  EXPECT_EQ(join("p", fenced_ticket("p", 1, "a")).fence, "1");
  EXPECT_EQ(run("release", "p", "a").ours, 1);
  EXPECT_EQ(run("try", "q", fenced_ticket("q", 1, "b")).fence, "2");
  EXPECT_EQ(join("p", fenced_ticket("p", 2, "c")).fence, "");
  EXPECT_EQ(join("p", ticket("p", 3, "d")).fence, "");
  EXPECT_EQ(server.get("fence"), "2");
}

// It is drawn with the acceptance, also within a process: only its holder knows the counter.
TEST_F(LineScript, AGrantHasToBeAcceptedForANumber) {
  hold();
  join("p", fenced_ticket("p", 7, "a"));
  const auto released = run("release", "p", "holder");
  EXPECT_EQ(released.ours, 1);
  EXPECT_EQ(released.granted, -7);
  EXPECT_EQ(server.get("k"), "a");
  EXPECT_LE(server.pttl("k"), window);
  EXPECT_FALSE(server.exists("fence"));

  const auto accepted = join("p", fenced_ticket("p", 7, "a"));
  EXPECT_EQ(accepted.ours, 1);
  EXPECT_EQ(accepted.fence, "1");
  EXPECT_GT(server.pttl("k"), window);
  EXPECT_THAT(in_line(), testing::IsEmpty());
}

// B44
TEST_F(LineScript, ABadCounterStopsAllBeforeItBegins) {
  for (const std::string bad : {"abc", "9223372036854775807", "-1"}) {
    server.admin("SET", "fence", bad);
    EXPECT_THAT(join("p", fenced_ticket("p", 1, "a")).error, testing::StartsWith("ERR"));
    EXPECT_THAT(run("try", "p", fenced_ticket("p", 1, "a")).error, testing::StartsWith("ERR"));
    EXPECT_EQ(server.dbsize(), 1);
    EXPECT_EQ(server.get("fence"), bad);
  }
}

// The token of a ticket may be anything that a key may hold.
TEST_F(LineScript, TokensMayHaveOddBytes) {
  hold();
  using namespace std::string_literals;
  const auto odd = "a:b:\0\r\n%d}\xff"s;
  join("p", ticket("p", 1, odd));
  EXPECT_EQ(run("release", "p", "holder").granted, 1);
  EXPECT_EQ(server.get("k"), odd);
  EXPECT_EQ(run("release", "p", odd).ours, 1);
  EXPECT_EQ(server.dbsize(), 0);
}

TEST_F(LineScript, TellsTheFirstThatHeIsTheFirst) {
  hold();
  EXPECT_TRUE(join("p", ticket("p", 1, "a")).first);
  const auto second = join("q", ticket("q", 1, "b"));
  EXPECT_FALSE(second.first);
  run("leave", "p", ticket("p", 1, "a"));
  EXPECT_TRUE(join("q", ticket("q", 1, "b"), second.place).first);
}

// A grant that was missed takes its process out of the line, but not the one who is asking.
TEST_F(LineScript, WhoAsksLives) {
  const auto ear = ear_of("p");
  hold();
  const auto first = join("p", ticket("p", 1, "a"));
  const auto second = join("p", ticket("p", 2, "b"));
  const auto third = join("p", ticket("p", 3, "c"));
  window = 50ms;
  EXPECT_EQ(run("release", "q", "holder").ours, 1);
  EXPECT_TRUE(eventually(10s, [&] { return !server.exists("k"); }));
  window = 10s;
  EXPECT_EQ(join("p", ticket("p", 2, "b"), second.place).ours, 1);
  EXPECT_EQ(server.get("k"), "b");
  EXPECT_THAT(in_line(), ElementsAre(ticket("p", 3, "c")));
}

}  // namespace
}  // namespace redlease::test
