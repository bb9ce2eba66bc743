#ifndef REDLEASE_WIRE_PIPELINE_HPP
#define REDLEASE_WIRE_PIPELINE_HPP

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <redlease/wire/batch.hpp>
#include <redlease/wire/connection.hpp>
#include <redlease/wire/connector.hpp>
#include <redlease/wire/debts.hpp>
#include <redlease/wire/outcome.hpp>

namespace redlease::inline v1::wire {

class Pipeline;

/// A connection while commands may still run on it. When its pipeline has retired it, nobody
/// reads from it any more; whoever has a command in doubt keeps it open and may add last words.
struct Link {
  Link(Pipeline& owner, std::unique_ptr<Connection> opened)
      : pipeline(owner), connection(std::move(opened)) {}

  Pipeline& pipeline;
  const std::unique_ptr<Connection> connection;
  bool proven = false;    // it has answered a command (the driver's)
  std::mutex last_words;  // taken to write on a retired connection
};

/// One connection shared by many threads, without a thread of its own.
///
/// A caller who finds the pipeline idle takes the driver's seat: it writes its command and reads
/// the reply itself, as fast as a blocking client. Those who come meanwhile join the open batch
/// and sleep. When the driver is done, one of them takes the seat, writes the whole batch in one
/// go, reads the replies, and wakes all of its members with one system call: a wake-up costs as
/// much as a round trip, and here it is paid once for many commands.
///
/// Replies come in the order of the commands. A member that gives up leaves its slot behind: the
/// late reply is matched with it and dropped. A connection that fails, or stays silent for about
/// a command's whole time, is retired and never used again.
class Pipeline {
 public:
  Pipeline(Connector& connector, Debts& debts) : connector_(connector), debts_(debts) {}
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Without a completion: sends, and waits for the reply. With one: writes at once if the
  /// pipeline is idle, leaves the writing to its driver otherwise, and returns an empty outcome.
  Outcome submit(const Request& request);
  /// The same if the pipeline is idle; otherwise returns false and has done nothing.
  bool submit_if_idle(const Request& request, Outcome& outcome);

  /// Writes `bytes` behind the command that is in doubt, on the same connection, so that the
  /// server runs it after that one or not at all. Doesn't wait; what it answers is dropped.
  void follow_up(const std::shared_ptr<Link>& link, std::string_view bytes,
                 Clock::time_point deadline);

  /// Pays debts and reads all outstanding replies, then closes the connection; what is not
  /// answered by then is reported in doubt. Nobody else may be using the pipeline.
  void drain(Clock::time_point deadline) noexcept;

  bool idle() const noexcept { return !driven_.load(std::memory_order_relaxed); }
  bool connected() const noexcept { return connected_.load(std::memory_order_relaxed); }
  /// About how many callers the latest batches had: a measure of the crowd.
  unsigned depth() const noexcept { return depth_.load(std::memory_order_relaxed); }

  /// In a child process: closes the inherited descriptor, and nothing else.
  void abandon() noexcept;

 private:
  struct Ticket {
    Batch* batch;
    std::size_t index;
    bool awaited;
  };

  // Under mutex_.
  Batch& unused_batch();
  Ticket join(const Request& request);
  void measure_crowd(const Batch& batch);

  // For those who sleep.
  Outcome follow(const Ticket& mine, Clock::time_point deadline);
  Outcome give_up(const Ticket& mine);
  void leave(Batch& batch, const Outcome& outcome);

  // For the driver.
  Outcome drive(const Ticket& mine, Clock::time_point deadline);
  bool ensure_link(const Ticket& mine, Clock::time_point deadline, Clock::time_point& now);
  void check_link();
  void pay_debts(Clock::time_point due_by, Clock::time_point deadline);
  void send(Batch& batch, Clock::time_point deadline);
  void transmit(Batch& batch, Clock::time_point deadline, Clock::time_point now);
  void collect(const Ticket& mine, Clock::time_point deadline);
  void read_outstanding(Clock::time_point deadline);
  void deliver(Reply&& reply);
  void hand_over(const Ticket& mine) noexcept;
  void write_posted(Batch* batch) noexcept;
  static void fail(Batch& batch, const std::shared_ptr<Link>& link, errc code,
                   const std::string& cause);
  void fail_unsent(Batch& batch, errc code, const std::string& cause);
  void fail_link(errc code, const std::string& cause);
  bool silent_for_too_long() const;
  static void say(Link& retired, std::string_view bytes);

  Connector& connector_;
  Debts& debts_;

  std::mutex mutex_;
  std::atomic<bool> driven_{false};  // written under mutex_
  std::atomic<bool> connected_{false};
  std::atomic<unsigned> depth_{0};
  Batch* open_ = nullptr;                        // takes new members
  std::vector<std::unique_ptr<Batch>> batches_;  // all there are, in use or not
  std::shared_ptr<Link> link_;                   // written by the driver, under mutex_
  std::shared_ptr<Link> failing_;                // that is being retired (under mutex_)

  std::vector<Batch*> in_flight_;  // the driver's: written, not all answered; oldest first
};

}  // namespace redlease::inline v1::wire

#endif
