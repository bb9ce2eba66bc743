#include <gtest/gtest.h>

#include <string>

#include <redlease/wire/command.hpp>
#include <redlease/wire/server_error.hpp>

namespace {

using namespace std::string_literals;
using redlease::wire::classify;
using redlease::wire::Command;
using redlease::wire::error_code;
using redlease::wire::printable;
using redlease::wire::ServerError;

// B89: lengths everywhere.
TEST(Command, IsBinarySafe) {
  const std::string nul{"a\0b", 3};
  const Command command{"SET", nul, "%s%n\r\n", ""};
  EXPECT_EQ(command.bytes(), "*4\r\n$3\r\nSET\r\n$3\r\na\0b\r\n$6\r\n%s%n\r\n\r\n$0\r\n\r\n"s);
}

TEST(Command, LongArgumentsGoToTheHeap) {
  for (const std::size_t size : {250U, 300U, 310U, 320U, 321U, 65536U}) {
    const std::string key(size, 'k');
    const Command command{"GET", key, "tail"};
    EXPECT_EQ(command.bytes(),
              "*3\r\n$3\r\nGET\r\n$" + std::to_string(size) + "\r\n" + key + "\r\n$4\r\ntail\r\n");
  }
}

TEST(ServerErrors, AreClassifiedByTheirCode) {
  for (const std::string code : {"LOADING", "BUSY", "READONLY", "MASTERDOWN", "MISCONF",
                                 "NOREPLICAS", "OOM", "CLUSTERDOWN", "TRYAGAIN"}) {
    EXPECT_EQ(classify(code + " some text"), ServerError::transient) << code;
  }
  EXPECT_EQ(classify("NOSCRIPT No matching script. Please use EVAL."), ServerError::no_script);
  EXPECT_EQ(classify("WRONGTYPE Operation against a key"), ServerError::wrong_type);
  EXPECT_EQ(classify("ERR max number of clients reached"), ServerError::transient);
  for (const char* text : {"NOAUTH Authentication required.", "NOPERM this user has no permissions",
                           "ERR unknown command", "WRONGPASS invalid", "", "ERR", "lower case"}) {
    EXPECT_EQ(classify(text), ServerError::permanent) << text;
  }
}

// B56: scripts wrap the error of a command; before Redis 7 inside another text.
TEST(ServerErrors, AreFoundInsideAScriptsError) {
  EXPECT_EQ(classify("READONLY You can't write against a read only replica. script: "
                     "c0ffee, on @user_script:1."),
            ServerError::transient);
  const std::string before_7 =
      "ERR Error running script (call to f_c0ffee): @user_script:12: -OOM command not allowed "
      "when used memory > 'maxmemory'.";
  EXPECT_EQ(error_code(before_7), "OOM");
  EXPECT_EQ(classify(before_7), ServerError::transient);
  EXPECT_EQ(classify("ERR Error running script (call to f_c0ffee): @user_script:12: WRONGTYPE "
                     "Operation against a key holding the wrong kind of value"),
            ServerError::wrong_type);
  EXPECT_EQ(classify("ERR Error running script (call to f_c0ffee): @user_script:3: "
                     "@user_script: 3: Unknown Redis command called from script"),
            ServerError::permanent);
  EXPECT_EQ(classify("ERR The user executing the script can't run this command or subcommand"),
            ServerError::permanent);
}

// B91: some errors repeat the arguments of the command, secrets included.
TEST(ServerErrors, ArePrintedWithoutArguments) {
  EXPECT_EQ(printable("ERR unknown command 'EVALSHA', with args beginning with: 'sha' '1' 'k' 't'"),
            "ERR unknown command 'EVALSHA'");
  EXPECT_EQ(printable("ERR a\r\nb"), "ERR a??b");
  EXPECT_EQ(printable(std::string(1000, 'x')).size(), 303U);
}

TEST(Printable, ShowsNothingThatLooksLikeAToken) {
  EXPECT_EQ(printable("ERR no 49cbd47c-0000-4abc-8def-0123456789ab here"), "ERR no *** here");
  EXPECT_EQ(printable("49cbd47c-0000-4abc-8def-0123456789ab"), "***");
  EXPECT_EQ(printable("49cbd47c-0000-4abc-8def-0123456789a"),
            "49cbd47c-0000-4abc-8def-0123456789a");
}

}  // namespace
