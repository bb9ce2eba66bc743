#include "support/redis_server.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "support/process.hpp"
#include "support/sockets.hpp"

namespace redlease::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr auto start_deadline = 30s;
constexpr auto stop_deadline = 20s;

struct PortTaken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string find_program() {
  if (const char* chosen = std::getenv("REDLEASE_TEST_REDIS_SERVER"); chosen && *chosen) {
    if (::access(chosen, X_OK) == 0) return chosen;
    throw std::runtime_error(std::string("REDLEASE_TEST_REDIS_SERVER is no program: ") + chosen);
  }
  const char* path = std::getenv("PATH");
  std::istringstream directories(path ? path : "");
  for (std::string directory; std::getline(directories, directory, ':');) {
    std::string program = directory + "/redis-server";
    if (::access(program.c_str(), X_OK) == 0) return program;
  }
  throw std::runtime_error(
      "redis-server is neither in PATH nor named by REDLEASE_TEST_REDIS_SERVER; the tests need it");
}

// A value in redis.conf that may hold any bytes.
std::string config_value(std::string_view text) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    result += {'\\', 'x', digits[byte >> 4U], digits[byte & 15U]};
  }
  return result + '"';
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::map<std::string, std::string> client_fields(const std::string& line) {
  std::map<std::string, std::string> fields;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    if (equals != std::string::npos) fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return fields;
}

}  // namespace

// Not under TMPDIR: the path of a unix socket holds 107 bytes.
RedisServer::TemporaryDirectory::TemporaryDirectory()
    : path("/tmp/redlease-XXXXXX"), owner(::getpid()) {
  if (!::mkdtemp(path.data())) {
    throw std::system_error(errno, std::generic_category(), "mkdtemp " + path);
  }
}

RedisServer::TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (::getpid() == owner) fs::remove_all(path, ignored);
}

RedisServer::RedisServer(RedisServerOptions options)
    : options_(std::move(options)),
      program_(find_program()),
      spawner_(std::make_unique<Spawner>()) {
  // Between our choice of a port and the server's bind another process may take it.
  for (int attempts_left = 10; pid_ == -1; --attempts_left) {
    port_ = options_.tcp ? free_port() : std::uint16_t{0};
    write_config();
    try {
      start();
    } catch (const PortTaken&) {
      if (attempts_left == 1) throw;
    }
  }
}

RedisServer::~RedisServer() {
  if (::getpid() == directory_.owner) {
    kill();
  } else {
    static_cast<void>(spawner_.release());  // its thread does not exist in a forked child
  }
}

void RedisServer::write_config() const {
  std::ofstream config(directory_.path + "/redis.conf");
  config << "bind 127.0.0.1\nprotected-mode no\nport " << port_ << "\nunixsocket " << socket_path()
         << "\nunixsocketperm 700\ndir " << directory_.path
         << "\ndaemonize no\nlogfile \"\"\nsave \"\"\nappendonly no\n";
  if (const std::string& password = options_.requirepass; !password.empty()) {
    config << "requirepass " << config_value(password) << '\n';
  }
  for (const std::string& line : options_.config) config << line << '\n';
  if (!config.flush()) throw std::runtime_error("cannot write " + directory_.path + "/redis.conf");
}

void RedisServer::start() {
  if (pid_ != -1) throw std::logic_error("redis-server is already running");
  log_start_ = log().size();
  pid_ = spawner_->spawn({program_, directory_.path + "/redis.conf"}, directory_.path + "/log");
  try {
    await_ready();
  } catch (...) {
    kill();
    throw;
  }
}

void RedisServer::await_ready() {
  const bool ready = eventually(start_deadline, [this] {
    check_still_running();
    return answers_ping();
  });
  if (!ready) throw std::runtime_error("redis-server does not answer PING; its log:\n" + log());
  const std::lock_guard lock(admin_mutex_);
  current_admin();  // now, so that a test that counts descriptors finds a steady number
}

void RedisServer::check_still_running() {
  if (::waitpid(pid_, nullptr, WNOHANG) == 0) return;
  forget_process();
  const std::string said = log().substr(log_start_);
  if (said.find("Address already in use") != std::string::npos) throw PortTaken(said);
  throw std::runtime_error("redis-server ended while starting; its log:\n" + said);
}

// Over the unix socket, which is certainly ours. The server binds its port first and ends when
// that fails, so the port is ours as well.
bool RedisServer::answers_ping() const {
  try {
    AdminConnection connection = AdminConnection::to_socket(socket_path());
    introduce(connection, "starting");
    return connection.command({"PING"}).text == "PONG";
  } catch (const std::runtime_error&) {
    return false;
  }
}

void RedisServer::stop() {
  if (pid_ == -1) return;
  resume();
  ::kill(pid_, SIGTERM);
  const bool ended =
      eventually(stop_deadline, [this] { return ::waitpid(pid_, nullptr, WNOHANG) == pid_; });
  if (!ended) {
    kill();
    throw std::runtime_error("redis-server does not stop");
  }
  forget_process();
}

// SIGKILL ends a stopped process, too; resuming it first would let it run what is queued.
void RedisServer::kill() {
  if (pid_ == -1) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  forget_process();
}

void RedisServer::pause() { pause_process(pid_); }
void RedisServer::resume() { resume_process(pid_); }

std::string RedisServer::url() const {
  if (port_ == 0) throw std::logic_error("this redis-server has no TCP port");
  return "redis://127.0.0.1:" + std::to_string(port_);
}

std::string RedisServer::unix_url() const { return "unix://" + socket_path(); }

std::string RedisServer::log() const { return file_text(directory_.path + "/log"); }

void RedisServer::introduce(AdminConnection& connection, const std::string& name) const {
  if (!options_.requirepass.empty()) {
    const Answer answer = connection.command({"AUTH", options_.requirepass});
    if (!answer.is_ok()) throw std::runtime_error("admin: AUTH: " + answer.text);
  }
  const Answer answer = connection.command({"CLIENT", "SETNAME", name});
  if (!answer.is_ok()) throw std::runtime_error("admin: CLIENT SETNAME: " + answer.text);
}

AdminConnection RedisServer::open_admin(const std::string& name) {
  AdminConnection connection =
      options_.tcp ? AdminConnection::to_port(port_) : AdminConnection::to_socket(socket_path());
  if (!connection.address().empty()) admin_addresses_.insert(connection.address());
  introduce(connection, name);
  return connection;
}

AdminConnection& RedisServer::current_admin() {
  if (admin_ && !admin_->alive()) admin_.reset();
  if (!admin_) admin_ = open_admin("admin");
  return *admin_;
}

AdminConnection RedisServer::connect_admin(const std::string& name) {
  const std::lock_guard lock(admin_mutex_);
  return open_admin(name);
}

Answer RedisServer::admin_command(const std::vector<std::string>& args) {
  const std::lock_guard lock(admin_mutex_);
  AdminConnection& connection = current_admin();
  try {
    return connection.command(args);
  } catch (...) {
    admin_.reset();  // its late reply must not be taken for the next command's
    throw;
  }
}

void RedisServer::forget_process() {
  pid_ = -1;
  const std::lock_guard lock(admin_mutex_);
  admin_.reset();
}

std::string RedisServer::admin_address() {
  const std::lock_guard lock(admin_mutex_);
  return current_admin().address();
}

std::set<std::string> RedisServer::admin_addresses() const {
  const std::lock_guard lock(admin_mutex_);
  return admin_addresses_;
}

Answer RedisServer::expect(Answer::Type type, const std::vector<std::string>& args) {
  Answer answer = admin_command(args);
  if (answer.type != type && !answer.is_nil()) {
    throw std::runtime_error("admin: " + args.front() + ": unexpected answer " + answer.text);
  }
  return answer;
}

std::optional<std::string> RedisServer::get(std::string_view key) {
  const Answer answer = expect(Answer::Type::text, {"GET", std::string(key)});
  return answer.is_nil() ? std::nullopt : std::optional(answer.text);
}

bool RedisServer::exists(std::string_view key) {
  return expect(Answer::Type::integer, {"EXISTS", std::string(key)}).integer == 1;
}

std::chrono::milliseconds RedisServer::pttl(std::string_view key) {
  const Answer answer = expect(Answer::Type::integer, {"PTTL", std::string(key)});
  return std::chrono::milliseconds(answer.integer);
}

long long RedisServer::dbsize() { return expect(Answer::Type::integer, {"DBSIZE"}).integer; }

std::vector<std::map<std::string, std::string>> RedisServer::client_list() {
  std::istringstream lines(expect(Answer::Type::text, {"CLIENT", "LIST"}).text);
  std::vector<std::map<std::string, std::string>> clients;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) clients.push_back(client_fields(line));
  }
  return clients;
}

long long RedisServer::command_calls(std::string_view command) {
  const std::string stats = expect(Answer::Type::text, {"INFO", "commandstats"}).text;
  const std::string field = "cmdstat_" + std::string(command) + ":calls=";
  const auto found = stats.find(field);
  return found == std::string::npos ? 0 : std::stoll(stats.substr(found + field.size(), 20));
}

void RedisServer::config_set(std::string_view name, std::string_view value) {
  expect(Answer::Type::status, {"CONFIG", "SET", std::string(name), std::string(value)});
}

}  // namespace redlease::test
