// Starts child processes that end with this process, however it ends.
#ifndef REDLEASE_TESTS_SUPPORT_SPAWNER_HPP
#define REDLEASE_TESTS_SUPPORT_SPAWNER_HPP

#include <sys/types.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace redlease::test {

// The kernel ends the children (PR_SET_PDEATHSIG) when the *thread* that forked them ends. So a
// thread of its own forks them and lives as long as this object, which must outlive the children.
class Spawner {
 public:
  Spawner();

  // Runs argv[0] (a path) with its output appended to the file `output` and no other descriptor
  // of ours. The caller ends and reaps the child.
  pid_t spawn(const std::vector<std::string>& argv, const std::string& output);

 private:
  void run(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::packaged_task<pid_t()> job_;
  std::jthread thread_;
};

}  // namespace redlease::test

#endif
