#include "support/spawner.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "support/sockets.hpp"

namespace redlease::test {
namespace {

// Between fork and exec: system calls only, as other threads may have held any lock.
[[noreturn]] void become(char* const* argv, int output, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // the parent ended before the line above
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  // Libraries open descriptors without close-on-exec; a copy in the child would keep a connection
  // open that the test has closed.
  if (::close_range(3, ~0U, 0) != 0) {
    for (int fd = 3; fd < 1024; ++fd) ::close(fd);
  }
  ::execv(argv[0], argv);
  ::_exit(127);
}

pid_t fork_and_exec(std::vector<std::string> argv, const std::string& output) {
  std::vector<char*> pointers;
  pointers.reserve(argv.size() + 1);
  for (std::string& arg : argv) pointers.push_back(arg.data());
  pointers.push_back(nullptr);
  const Fd log(::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log) throw std::system_error(errno, std::generic_category(), "open " + output);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) become(pointers.data(), log.get(), parent);
  return child;
}

}  // namespace

Spawner::Spawner() : thread_([this](const std::stop_token& stop) { run(stop); }) {}

pid_t Spawner::spawn(const std::vector<std::string>& argv, const std::string& output) {
  std::packaged_task<pid_t()> job([&] { return fork_and_exec(argv, output); });
  auto pid = job.get_future();
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
  }
  wake_.notify_one();
  return pid.get();
}

void Spawner::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (wake_.wait(lock, stop, [this] { return job_.valid(); })) {
    auto job = std::exchange(job_, {});
    job();
  }
}

}  // namespace redlease::test
