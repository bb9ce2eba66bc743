#ifndef EXAMPLES_ORDER_SERVICE_PROCESS_HPP
#define EXAMPLES_ORDER_SERVICE_PROCESS_HPP

/// Child processes that never outlive their parent, and a line to talk to them. For Linux. Only the
/// demonstration needs this.

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

namespace order_service {

[[noreturn]] inline void throw_errno(const char* operation) {
  throw std::system_error(errno, std::generic_category(), operation);
}

/// One end of a line between two processes that run the same program: messages are sent as they are
/// in memory.
template <class Message>
class Channel {
  static_assert(std::is_trivially_copyable_v<Message>);

 public:
  static std::pair<Channel, Channel> make_pair() {
    int ends[2];
    // SEQPACKET keeps the messages apart.
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      throw_errno("socketpair");
    }
    return {Channel{ends[0]}, Channel{ends[1]}};
  }

  Channel(Channel&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Channel& operator=(Channel&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Channel() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  int descriptor() const { return descriptor_; }

  void send(const Message& message) const {
    if (::send(descriptor_, &message, sizeof message, MSG_NOSIGNAL) != sizeof message) {
      throw_errno("send to the other process");
    }
  }

  /// Waits for a message.
  Message receive() const {
    auto message = receive_with(0);
    if (!message) throw std::runtime_error("the other process has ended");
    return std::move(*message);
  }

  /// Empty if there is none yet, or none any more.
  std::optional<Message> try_receive() const { return receive_with(MSG_DONTWAIT); }

 private:
  explicit Channel(int descriptor) : descriptor_(descriptor) {}

  std::optional<Message> receive_with(int flags) const {
    Message message;
    ssize_t size = 0;
    do {
      size = ::recv(descriptor_, &message, sizeof message, flags);
    } while (size < 0 && errno == EINTR);
    if (size == sizeof message) return message;
    if (size == 0 || (size < 0 && (errno == EAGAIN || errno == ECONNRESET))) return std::nullopt;
    throw_errno("receive from the other process");
  }

  int descriptor_;
};

/// A child process. Its object ends it, if it hasn't ended by itself.
class Child {
 public:
  /// Runs `body()` in a child, which exits with what it returns; an exception is printed.
  /// The caller must have no other threads and no connections that the child could use by mistake.
  template <class Body>
  static Child start(const std::string& name, Body&& body);

  Child(Child&& other) noexcept
      : name_(std::move(other.name_)), pid_(std::exchange(other.pid_, 0)), status_(other.status_) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(name_, other.name_);
    std::swap(pid_, other.pid_);
    std::swap(status_, other.status_);
    return *this;
  }
  ~Child() { kill(); }

  /// Stops the child; it stands still when this returns.
  void stop() {
    signal(SIGSTOP);
    wait(WUNTRACED);
    if (!running()) throw std::runtime_error(name_ + " has ended when it was to be stopped");
  }
  void resume() const { signal(SIGCONT); }
  /// Ends it at once, even if it is stopped.
  void kill() {
    if (!running()) return;
    ::kill(pid_, SIGKILL);
    wait(0);
  }

  /// True if the child has ended by itself and without an error, false while it runs. Throws if it
  /// came to another end.
  bool has_finished() {
    if (running()) wait(WNOHANG);
    if (running()) return false;
    if (WIFSIGNALED(status_)) {
      throw std::runtime_error(fmt::format("{} was ended by signal {}", name_, WTERMSIG(status_)));
    }
    if (WEXITSTATUS(status_) != EXIT_SUCCESS) throw std::runtime_error(name_ + " has failed");
    return true;
  }

 private:
  Child(std::string name, pid_t pid) : name_(std::move(name)), pid_(pid) {}

  bool running() const { return pid_ > 0; }

  void signal(int number) const {
    if (!running() || ::kill(pid_, number) != 0) {
      throw std::runtime_error(name_ + " cannot be signalled: it has ended");
    }
  }

  void wait(int options) {
    pid_t found = 0;
    do {
      found = ::waitpid(pid_, &status_, options);
    } while (found < 0 && errno == EINTR);
    if (found == pid_ && !WIFSTOPPED(status_)) pid_ = 0;
  }

  std::string name_;
  pid_t pid_;  // 0 when it has ended
  int status_ = 0;
};

template <class Body>
Child Child::start(const std::string& name, Body&& body) {
  std::fflush(nullptr);  // or the child, too, would print what is in the buffers
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_errno("fork");
  if (pid > 0) return Child{name, pid};

  int status = EXIT_FAILURE;
  try {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) throw std::runtime_error("the parent has ended");
    status = std::forward<Body>(body)();
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
  } catch (...) {
    fmt::print(stderr, "{}: ended by an exception of unknown type\n", name);
  }
  ::_exit(status);  // without the destructors of the parent's objects, which would end its children
}

}  // namespace order_service

#endif
