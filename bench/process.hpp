// This process, and others that run the same program.
#ifndef REDLEASE_BENCH_PROCESS_HPP
#define REDLEASE_BENCH_PROCESS_HPP

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace redlease::bench {

// Seconds of processor time that this process has used.
double client_cpu_seconds();

// An end of a pipe.
class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  void reset(int fd);
  void close();

 private:
  int fd_ = -1;
};

// A process that runs this program with other arguments. Its standard input holds nothing and ends
// when we say so, or when we end, however that is. Its standard output comes here.
class Child {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  explicit Child(std::vector<std::string> arguments);
  ~Child();  // ends it if it still runs
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Takes the next byte of its output. This and finish() throw if the child doesn't go on well, or
  // not in time.
  char next_byte(Deadline deadline);
  void end_input() { input_.close(); }
  // Takes the rest of its output, and waits for its end.
  std::string finish(Deadline deadline);

 private:
  // Appends what there is, up to `most` bytes; false at the end.
  bool read_some(std::string& to, std::size_t most, Deadline deadline);

  Descriptor input_;
  Descriptor output_;
  pid_t pid_ = 0;
};

// In a child: returns when its standard input has ended.
void await_end_of_input();

}  // namespace redlease::bench

#endif
