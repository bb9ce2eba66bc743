#ifndef EXAMPLES_JOB_RUNNER_CREW_HPP
#define EXAMPLES_JOB_RUNNER_CREW_HPP

/// The processes that work: this program again, once for each worker. None of them outlives the
/// one who started them. For Linux.

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace job_runner {

class Crew {
 public:
  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew() {
    for (const auto& [pid, worker] : running_) {
      ::kill(pid, SIGKILL);  // ends a stopped process, too
      ::waitpid(pid, nullptr, 0);
    }
  }

  void start(std::int64_t worker, std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() == parent) ::execv("/proc/self/exe", argv.data());
      ::_exit(127);
    }
    running_.emplace(pid, worker);
  }

  /// Waits until `happened()`, but not for ever; keeps count of what became of the workers.
  void await(std::string_view what, const std::function<bool()>& happened) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    while (look_after_workers(), !happened()) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error(fmt::format("no sign of {}", what));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{2});
    }
  }

  bool all_ended() const { return running_.empty(); }
  /// The worker that has stopped itself, and the one that was killed.
  std::optional<std::int64_t> stopped() const { return stopped_; }
  std::optional<std::int64_t> killed() const { return killed_; }

  void resume_stopped() { ::kill(stopped_pid_, SIGCONT); }

 private:
  void look_after_workers() {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
      const auto worker = running_.at(pid);
      if (WIFSTOPPED(status)) {
        stopped_ = worker;
        stopped_pid_ = pid;
        continue;
      }
      running_.erase(pid);
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        killed_ = worker;
      } else if (status != 0) {
        throw std::runtime_error(fmt::format("worker {} has failed", worker));
      }
    }
  }

  std::map<pid_t, std::int64_t> running_;
  std::optional<std::int64_t> stopped_;
  std::optional<std::int64_t> killed_;
  pid_t stopped_pid_ = 0;
};

}  // namespace job_runner

#endif
