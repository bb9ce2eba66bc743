#include "support/process.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>

namespace redlease::test {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

std::size_t count_entries(const char* directory) {
  const auto entries = std::distance(fs::directory_iterator(directory), fs::directory_iterator());
  return static_cast<std::size_t>(entries);
}

// The letter after the parenthesised command name, which may itself contain blanks and brackets.
char thread_state(const fs::path& task) {
  std::ifstream file(task / "stat");
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto bracket = line.rfind(") ");
  return bracket == std::string::npos ? '?' : line.at(bracket + 2);
}

bool all_threads_stopped(pid_t pid) {
  for (const auto& task : fs::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    if (thread_state(task.path()) != 'T') return false;
  }
  return true;
}

void send_signal(pid_t pid, int signal) {
  if (pid <= 0) throw std::logic_error("no such process");  // kill(2) would take it for a group
  if (::kill(pid, signal) != 0) throw std::system_error(errno, std::generic_category(), "kill");
}

[[noreturn]] void run_child(const std::function<int()>& fn) {
  int status = 125;
  ::alarm(60);
  try {
    status = fn();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "child process: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "child process: unknown exception\n");
  }
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

std::size_t count_threads() { return count_entries("/proc/self/task"); }

std::size_t count_fds() {
  return count_entries("/proc/self/fd") - 1;  // without the one that reads the directory
}

std::size_t rss_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0;
  std::size_t resident = 0;
  if (!(statm >> total >> resident)) throw std::runtime_error("cannot read /proc/self/statm");
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

int run_in_child(const std::function<int()>& fn) {
  std::fflush(nullptr);  // or the child's own flush would print the parent's buffer again
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) run_child(fn);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void pause_process(pid_t pid) {
  send_signal(pid, SIGSTOP);
  if (!eventually(10s, [pid] { return all_threads_stopped(pid); })) {
    throw std::runtime_error("process " + std::to_string(pid) + " does not stop");
  }
}

void resume_process(pid_t pid) { send_signal(pid, SIGCONT); }

}  // namespace redlease::test
