#include "support/monitor.hpp"

#include <algorithm>
#include <atomic>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace redlease::test {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view marker_prefix = "redlease-monitor-marker-";
constexpr auto sync_deadline = 30s;

std::string new_marker() {
  static std::atomic<unsigned long long> last{0};
  return std::string(marker_prefix) + std::to_string(++last);
}

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  throw std::invalid_argument("MONITOR line: bad hexadecimal digit");
}

char control_character(char letter) {
  switch (letter) {
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 't':
      return '\t';
    case 'a':
      return '\a';
    case 'b':
      return '\b';
    default:
      return letter;  // a quote or a backslash
  }
}

// `at` is behind the opening quote, and afterwards behind the closing one.
std::string unescape(const std::string& text, std::size_t& at) {
  std::string bytes;
  for (char c = text.at(at++); c != '"'; c = text.at(at++)) {
    if (c != '\\') {
      bytes += c;
    } else if (const char letter = text.at(at++); letter == 'x') {
      bytes += static_cast<char>(hex_digit(text.at(at)) * 16 + hex_digit(text.at(at + 1)));
      at += 2;
    } else {
      bytes += control_character(letter);
    }
  }
  return bytes;
}

bool has_option(const std::vector<std::string>& args, std::string_view option) {
  return std::any_of(args.begin(), args.end(),
                     [option](const std::string& arg) { return upper(arg) == option; });
}

bool is_guarded_set(const std::vector<std::string>& args) {
  if (args.size() < 4) return false;
  const std::vector<std::string> options(args.begin() + 3, args.end());
  return has_option(options, "PX") && (has_option(options, "NX") || has_option(options, "IFEQ"));
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const MonitorLine& line) {
  out << '[' << line.db << ' ' << line.source << ']';
  for (const std::string& arg : line.args) out << " \"" << arg << '"';
  return out;
}

// 1700000000.123456 [0 127.0.0.1:50000] "SET" "key" "a\x00b"
MonitorLine parse_monitor_line(const std::string& text) {
  MonitorLine line;
  std::istringstream head(text);
  long long seconds = 0;
  long long micros = 0;
  char dot = 0;
  char bracket = 0;
  if (!(head >> seconds >> dot >> micros >> bracket >> line.db >> line.source) || bracket != '[' ||
      !line.source.ends_with(']')) {
    throw std::invalid_argument("not a line of MONITOR: " + text);
  }
  line.time = std::chrono::seconds(seconds) + std::chrono::microseconds(micros);
  line.source.pop_back();
  for (auto at = text.find('"'); at < text.size(); ++at) {
    if (text[at] == '"') line.args.push_back(unescape(text, ++at));
  }
  return line;
}

bool is_unguarded_write(const std::vector<std::string>& args) {
  static const std::set<std::string> unguarded = {
      "DEL",     "UNLINK",  "GETDEL",   "EXPIRE", "PEXPIRE",  "EXPIREAT", "PEXPIREAT",
      "PERSIST", "GETEX",   "GETSET",   "SETEX",  "PSETEX",   "SETNX",    "MSET",
      "MSETNX",  "APPEND",  "SETRANGE", "SETBIT", "RENAME",   "RENAMENX", "MOVE",
      "COPY",    "RESTORE", "MIGRATE",  "SWAPDB", "FLUSHALL", "FLUSHDB"};
  if (args.empty()) return false;
  const std::string name = upper(args[0]);
  if (name == "SET") return !is_guarded_set(args);
  if (name == "DELEX") return args.size() < 4;  // without a condition it is a DEL
  if (name == "SCRIPT" || name == "FUNCTION") return args.size() > 1 && upper(args[1]) == "FLUSH";
  return unguarded.contains(name);
}

Monitor::Monitor(RedisServer& server) : server_(server) { attach(); }

Monitor::~Monitor() { detach(); }

void Monitor::attach() {
  detach();
  connection_ = server_.connect_admin("monitor");
  const Answer answer = connection_->command({"MONITOR"});
  if (!answer.is_ok()) throw std::runtime_error("MONITOR: " + answer.text);
  connection_->set_timeout(0s);
  {
    const std::lock_guard lock(mutex_);
    ended_.clear();
  }
  thread_ = std::thread([this] { collect(); });
}

void Monitor::detach() {
  if (connection_) connection_->shut_down();
  if (thread_.joinable()) thread_.join();
}

void Monitor::collect() {
  try {
    while (true) take(connection_->read().text);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    ended_ = error.what();
  }
  changed_.notify_all();
}

void Monitor::take(const std::string& text) {
  MonitorLine line = parse_monitor_line(text);
  const std::lock_guard lock(mutex_);
  if (line.args.size() == 2 && line.args[1].starts_with(marker_prefix)) {
    markers_.insert(line.args[1]);
    changed_.notify_all();
  } else {
    lines_.push_back(std::move(line));
  }
}

// The server runs one command after the other, so what ran before the marker is in the feed
// before it.
void Monitor::sync() {
  const std::string marker = new_marker();
  const Answer answer = server_.admin("ECHO", marker);
  if (answer.text != marker) throw std::runtime_error("Monitor::sync: " + answer.text);
  std::unique_lock lock(mutex_);
  const bool done = changed_.wait_for(lock, sync_deadline, [this, &marker] {
    return markers_.contains(marker) || !ended_.empty();
  });
  if (!ended_.empty()) throw std::runtime_error("Monitor::sync: the feed ended: " + ended_);
  if (!done) throw std::runtime_error("Monitor::sync: the feed is silent");
}

std::vector<MonitorLine> Monitor::lines() const {
  const std::lock_guard lock(mutex_);
  return lines_;
}

std::size_t Monitor::count(const std::function<bool(const MonitorLine&)>& pred) const {
  const std::vector<MonitorLine> all = lines();
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), pred));
}

std::vector<MonitorLine> Monitor::violations(const std::set<std::string>& more_admins) const {
  std::set<std::string> allowed = server_.admin_addresses();
  allowed.insert(more_admins.begin(), more_admins.end());
  allowed.insert("lua");
  std::vector<MonitorLine> found = lines();
  std::erase_if(found, [&allowed](const MonitorLine& line) {
    return allowed.contains(line.source) || !is_unguarded_write(line.args);
  });
  return found;
}

}  // namespace redlease::test
