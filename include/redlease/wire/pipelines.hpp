#ifndef REDLEASE_WIRE_PIPELINES_HPP
#define REDLEASE_WIRE_PIPELINES_HPP

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <redlease/wire/command.hpp>
#include <redlease/wire/connector.hpp>
#include <redlease/wire/debts.hpp>
#include <redlease/wire/pipeline.hpp>
#include <redlease/wire/routes.hpp>

namespace redlease::inline v1::wire {

/// All connections of a client to one server: a few pipelines, shared by all threads.
///
/// While there are few callers, each takes an idle pipeline, and a new connection is opened when
/// callers meet. When a crowd comes, it gathers on the first one: one thread that writes for many
/// beats many connections by far (docs/performance.md).
class Pipelines {
 public:
  Pipelines(Endpoint endpoint, Timeouts timeouts, std::size_t max_connections);
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  /// Sends `command` and waits for its reply, until `deadline` at the latest. With a `key` it goes
  /// behind what was posted for that key.
  Outcome call(const Command& command, Clock::time_point deadline, std::string_view key = {});

  /// Returns when what was posted for that key has been answered or given up, or at the deadline.
  void await_posted(std::string_view key, Clock::time_point deadline);

  /// Sends `command` without waiting for its reply; `done` is called once, sooner or later.
  void post(std::string_view key, const Command& command, Clock::time_point deadline,
            Completion done, void* context);

  /// Has a command sent with whatever is sent next when it is due. False, and nothing done, after
  /// close().
  bool owe(Debt debt) { return debts_.add(std::move(debt)); }

  /// Sends `command` behind the one that is `in_doubt`, on the same connection.
  static void follow_up(const Outcome& in_doubt, const Command& command,
                        Clock::time_point deadline);

  /// Pays debts and reads outstanding replies, for at most the time of one command. Whatever was
  /// posted has its completion called by then. To be called once, before the end.
  void close() noexcept;

  bool connected() const noexcept;
  Connector& connector() noexcept { return connector_; }
  const Timeouts& timeouts() const noexcept { return connector_.timeouts(); }

  /// In a child process: closes the inherited descriptors, and nothing else.
  void abandon() noexcept;

 private:
  std::size_t idle_one() const noexcept;
  bool submit_to_idle(const Request& request, Outcome& outcome);
  Outcome submit(const Request& request, std::string_view key);

  Connector connector_;
  Debts debts_;
  Routes routes_;
  std::vector<std::unique_ptr<Pipeline>> pipelines_;
};

}  // namespace redlease::inline v1::wire

#endif
