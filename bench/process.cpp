#include "process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <stdexcept>
#include <system_error>

namespace redlease::bench {
namespace {

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

// Closed on exec(), or a child would hold the other children's inputs open.
void make_pipe(Descriptor& read_end, Descriptor& write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail(errno, "pipe");
  read_end.reset(ends[0]);
  write_end.reset(ends[1]);
}

pid_t spawn(std::vector<std::string>& arguments, int input, int output) {
  std::vector<char*> pointers;
  pointers.reserve(arguments.size() + 1);
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  if (const int error = ::posix_spawn_file_actions_init(&actions)) fail(error, "spawn");
  ::posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) fail(error, "spawn");
  return pid;
}

}  // namespace

double client_cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

void Descriptor::reset(int fd) {
  close();
  fd_ = fd;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Child::Child(std::vector<std::string> arguments) {
  Descriptor its_input;
  Descriptor its_output;
  make_pipe(its_input, input_);
  make_pipe(output_, its_output);
  arguments.insert(arguments.begin(), "redlease_bench");
  pid_ = spawn(arguments, its_input.get(), its_output.get());
}

Child::~Child() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

char Child::next_byte(Deadline deadline) {
  std::string byte;
  if (!read_some(byte, 1, deadline)) throw std::runtime_error("a child process ended too early");
  return byte.front();
}

std::string Child::finish(Deadline deadline) {
  end_input();
  std::string rest;
  while (read_some(rest, 1 << 16, deadline)) continue;
  int status = 0;
  if (::waitpid(pid_, &status, 0) != pid_) fail(errno, "waitpid");
  pid_ = 0;
  if (status != 0) throw std::runtime_error("a child process failed");
  return rest;
}

bool Child::read_some(std::string& to, std::size_t most, Deadline deadline) {
  using std::chrono::ceil;
  using std::chrono::milliseconds;
  pollfd readable{output_.get(), POLLIN, 0};
  const auto left = ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  const int ready = ::poll(&readable, 1, static_cast<int>(std::max<long>(left, 0)));
  if (ready < 0) fail(errno, "poll");
  if (ready == 0) throw std::runtime_error("a child process takes too long");
  const auto size = to.size();
  to.resize(size + most);
  const auto got = ::read(output_.get(), to.data() + size, most);
  if (got < 0) fail(errno, "read");
  to.resize(size + static_cast<std::size_t>(got));
  return got > 0;
}

void await_end_of_input() {
  char byte = 0;
  for (;;) {
    const auto got = ::read(STDIN_FILENO, &byte, 1);
    if (got == 0) return;
    if (got < 0 && errno != EINTR) fail(errno, "read");
  }
}

}  // namespace redlease::bench
