// A PostgreSQL server of the test's own: a new cluster in a temporary directory, reached over a
// unix socket in there and by nothing else. It ends with the object, or with the test process.
//
// PostgreSQL refuses to run as root; a test that does runs it as the user `postgres`. The programs
// are those in $REDLEASE_TEST_POSTGRES_BIN, or in PATH, or the newest below /usr/lib/postgresql;
// without any the constructor throws. Any number of servers may run at once. An object belongs to
// one thread at a time, but any thread may connect. A forked child's copy of the object does
// nothing when it is destroyed.
#ifndef REDLEASE_TESTS_SUPPORT_POSTGRES_SERVER_HPP
#define REDLEASE_TESTS_SUPPORT_POSTGRES_SERVER_HPP

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "support/spawner.hpp"

namespace redlease::test {

class PostgresServer {
 public:
  PostgresServer();  // starts it; returns when it takes connections
  ~PostgresServer();
  PostgresServer(const PostgresServer&) = delete;
  PostgresServer& operator=(const PostgresServer&) = delete;

  // postgresql:///DATABASE?host=DIRECTORY&port=5432&user=postgres, for libpq and all built on it.
  std::string url(const std::string& database = "postgres") const;
  pid_t pid() const { return pid_; }  // -1 while it does not run
  std::string log() const;

 private:
  struct TemporaryDirectory {
    TemporaryDirectory();
    ~TemporaryDirectory();
    std::string path;
    pid_t owner;
  };

  // As the user that runs the server, and ended by `end_signal` with the thread that started it.
  pid_t spawn(const char* end_signal, std::vector<std::string> command);
  void make_cluster();
  void start();
  void stop();  // ends open connections, too, and waits for the end
  void await_ready();
  void check_still_running();

  const std::string programs_;
  const TemporaryDirectory directory_;
  std::unique_ptr<Spawner> spawner_;
  pid_t pid_ = -1;
};

}  // namespace redlease::test

#endif
