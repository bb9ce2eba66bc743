#include "support/postgres_server.hpp"

#include <pwd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "support/process.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto start_deadline = 60s;
constexpr auto stop_deadline = 20s;
constexpr auto user = "postgres";
// Part of the socket's name only: the server listens on no port.
constexpr auto port = "5432";

bool has_programs(const std::string& directory) {
  return ::access((directory + "/initdb").c_str(), X_OK) == 0 &&
         ::access((directory + "/postgres").c_str(), X_OK) == 0;
}

// The greatest version that Debian has put beside others; empty if there is none.
std::string newest_of_debian() {
  std::string newest;
  int highest = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/usr/lib/postgresql", none)) {
    const int version = std::atoi(entry.path().filename().c_str());
    std::string programs = (entry.path() / "bin").string();
    if (version > highest && has_programs(programs)) {
      highest = version;
      newest = std::move(programs);
    }
  }
  return newest;
}

std::string find_programs() {
  if (const char* chosen = std::getenv("REDLEASE_TEST_POSTGRES_BIN"); chosen && *chosen) {
    if (has_programs(chosen)) return chosen;
    throw std::runtime_error(std::string("REDLEASE_TEST_POSTGRES_BIN has no programs: ") + chosen);
  }
  const char* path = std::getenv("PATH");
  std::istringstream directories(path ? path : "");
  for (std::string directory; std::getline(directories, directory, ':');) {
    if (has_programs(directory)) return directory;
  }
  if (auto debians = newest_of_debian(); !debians.empty()) return debians;
  throw std::runtime_error("PostgreSQL's initdb and postgres are nowhere; the tests need them");
}

bool is_root() { return ::geteuid() == 0; }

void give_to_server_user(const std::string& path) {
  const passwd* const entry = ::getpwnam(user);
  if (!entry) throw std::runtime_error("there is no user postgres, and root can't run the server");
  if (::chown(path.c_str(), entry->pw_uid, entry->pw_gid) != 0) {
    throw std::system_error(errno, std::generic_category(), "chown " + path);
  }
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

// Not under TMPDIR: the path of a unix socket holds 107 bytes.
PostgresServer::TemporaryDirectory::TemporaryDirectory()
    : path("/tmp/redlease-pg-XXXXXX"), owner(::getpid()) {
  if (!::mkdtemp(path.data())) {
    throw std::system_error(errno, std::generic_category(), "mkdtemp " + path);
  }
}

PostgresServer::TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (::getpid() == owner) fs::remove_all(path, ignored);
}

PostgresServer::PostgresServer()
    : programs_(find_programs()), spawner_(std::make_unique<Spawner>()) {
  if (is_root()) give_to_server_user(directory_.path);
  make_cluster();
  start();
}

PostgresServer::~PostgresServer() {
  if (::getpid() != directory_.owner) {
    static_cast<void>(spawner_.release());  // its thread does not exist in a forked child
    return;
  }
  try {
    stop();
  } catch (const std::runtime_error&) {
    // It was killed instead.
  }
}

// setpriv becomes the program that it starts, so that the pid is the server's, and its death
// signal outlasts the change of user, which clears the one that Spawner has asked for.
pid_t PostgresServer::spawn(const char* end_signal, std::vector<std::string> command) {
  std::vector<std::string> argv{"/usr/bin/setpriv", "--pdeathsig", end_signal};
  if (is_root()) {
    argv.insert(argv.end(), {std::string("--reuid=") + user, std::string("--regid=") + user,
                             "--init-groups", "--reset-env"});
  }
  argv.emplace_back("--");
  argv.insert(argv.end(), std::make_move_iterator(command.begin()),
              std::make_move_iterator(command.end()));
  return spawner_->spawn(argv, directory_.path + "/log");
}

void PostgresServer::make_cluster() {
  const pid_t initdb =
      spawn("KILL", {programs_ + "/initdb", "--pgdata=" + directory_.path + "/data",
                     std::string("--username=") + user, "--auth=trust", "--encoding=UTF8",
                     "--locale=C", "--no-sync", "--no-instructions"});
  int status = 0;
  while (::waitpid(initdb, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error("initdb has failed; its log:\n" + log());
  }
}

void PostgresServer::start() {
  // QUIT ends it without clean-up but for its shared memory, which KILL would leave behind.
  pid_ = spawn("QUIT", {programs_ + "/postgres", "-D", directory_.path + "/data",  //
                        "-c", "listen_addresses=",                                 //
                        "-c", "unix_socket_directories=" + directory_.path,        //
                        "-c", std::string("port=") + port,                         //
                        "-c", "fsync=off",                                         //
                        "-c", "shared_buffers=16MB",                               //
                        "-c", "max_connections=50"});
  try {
    await_ready();
  } catch (...) {
    stop();
    throw;
  }
}

// The postmaster writes this word into its lock file when it takes connections. That needs no
// client library here.
void PostgresServer::await_ready() {
  const std::string lock_file = directory_.path + "/data/postmaster.pid";
  const bool ready = eventually(start_deadline, [&] {
    check_still_running();
    return file_text(lock_file).find("\nready") != std::string::npos;
  });
  if (!ready) throw std::runtime_error("PostgreSQL does not get ready; its log:\n" + log());
}

void PostgresServer::check_still_running() {
  if (::waitpid(pid_, nullptr, WNOHANG) == 0) return;
  pid_ = -1;
  throw std::runtime_error("PostgreSQL ended while starting; its log:\n" + log());
}

// SIGQUIT: at once, and all its children with it.
void PostgresServer::stop() {
  if (pid_ == -1) return;
  ::kill(pid_, SIGQUIT);
  const bool ended =
      eventually(stop_deadline, [this] { return ::waitpid(pid_, nullptr, WNOHANG) == pid_; });
  if (!ended) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  if (!ended) throw std::runtime_error("PostgreSQL does not stop");
}

std::string PostgresServer::url(const std::string& database) const {
  return "postgresql:///" + database + "?host=" + directory_.path + "&port=" + port +
         "&user=" + user;
}

std::string PostgresServer::log() const { return file_text(directory_.path + "/log"); }

}  // namespace redlease::test
