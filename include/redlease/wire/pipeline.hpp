#ifndef REDLEASE_WIRE_PIPELINE_HPP
#define REDLEASE_WIRE_PIPELINE_HPP

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <redlease/wire/connection.hpp>
#include <redlease/wire/connector.hpp>
#include <redlease/wire/outcome.hpp>
#include <redlease/wire/routes.hpp>

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

  /// What to send. With a completion nobody waits for the reply: whoever drives the pipeline next
  /// reads it and calls `done`. `deadline` bounds the whole call, connecting included.
  struct Request {
    std::string_view bytes;
    Clock::time_point deadline;
    Completion done = nullptr;
    void* context = nullptr;
    Route* route = nullptr;  ///< of a posted command: left when it is answered or given up
  };

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
  void drain(Clock::time_point deadline);

  bool idle() const noexcept { return !driven_.load(std::memory_order_relaxed); }
  bool connected() const noexcept { return connected_.load(std::memory_order_relaxed); }
  /// About how many callers the latest batches had: a measure of the crowd.
  unsigned depth() const noexcept { return depth_.load(std::memory_order_relaxed); }

  /// In a child process: closes the inherited descriptor, and nothing else.
  void abandon() noexcept;

 private:
  // States of a batch. Members sleep while it is `waiting`.
  static constexpr std::uint32_t waiting = 0;
  static constexpr std::uint32_t vacant = 1;  // the driver's seat is free for a member
  static constexpr std::uint32_t done = 2;

  struct Slot {
    std::size_t end = 0;  // of the command within the batch's bytes
    Outcome::Kind kind = Outcome::Kind::not_sent;
    bool withdrawn = false;  // given up before it was written
    bool pinned = false;     // of no use on another connection than the present one
    Reply reply;
    Completion done = nullptr;
    void* context = nullptr;
    Route* route = nullptr;
  };

  struct Batch {
    std::atomic<std::uint32_t> state{waiting};
    std::atomic<int> users{0};  // those who may look at it; reused when there are none
    std::string bytes;
    std::vector<Slot> slots;
    int awaiting = 0;          // members that still wait (under the mutex until it is over)
    int members = 0;           // that waited when it was closed
    bool closed = false;       // no more members: it is being written, or was
    bool failed = false;       // the slots that are not answered never will be
    std::size_t answered = 0;  // slots that have their reply
    std::size_t needed = 0;    // slots that have to be answered for those who wait
    std::size_t written = 0;   // bytes
    Clock::time_point sent{};
    errc code = errc::unavailable;
    std::string cause;
    std::shared_ptr<Link> link;

    bool over() const noexcept { return failed || answered >= needed; }
  };

  struct Ticket {
    Batch* batch;
    std::size_t index;
    bool awaited;
  };

  // Under mutex_.
  Batch& open_batch();
  Ticket join(const Request& request);
  void withdraw(const Ticket& ticket);
  void close(Batch& batch, Clock::time_point now);
  static void drop_withdrawn(Batch& batch);
  static void complete(Slot& slot, Outcome&& outcome);
  static void fail_slots(Batch& batch, const std::shared_ptr<Link>& link, errc code,
                         const std::string& cause);

  // For those who sleep.
  Outcome follow(const Ticket& mine, Clock::time_point deadline);
  Outcome give_up(const Ticket& mine);
  void leave(Batch& batch, const Outcome& outcome);

  // For the driver.
  Outcome drive(const Ticket& mine, Clock::time_point deadline);
  bool ensure_link(const Ticket& mine, Clock::time_point deadline, Clock::time_point& now);
  void check_link();
  void transmit(Batch& batch, Clock::time_point deadline, Clock::time_point now);
  void collect(const Ticket& mine, Clock::time_point deadline);
  bool read_until(std::size_t in_flight, Clock::time_point deadline);
  void deliver(Reply&& reply);
  Outcome result(const Ticket& mine);
  void hand_over(const Ticket& mine);
  void fail_unsent(Batch& batch, errc code, const std::string& cause);
  void fail_link(errc code, const std::string& cause);
  bool silent_for_too_long() const;
  static void say(Link& retired, std::string_view bytes);
  static std::string take_pinned(Batch& batch);  // under mutex_

  Connector& connector_;
  Debts& debts_;

  std::mutex mutex_;
  std::atomic<bool> driven_{false};  // written under mutex_
  std::atomic<bool> connected_{false};
  std::atomic<unsigned> depth_{0};
  Batch* open_ = nullptr;                        // takes new members
  std::vector<std::unique_ptr<Batch>> batches_;  // all there are, in use or not
  std::shared_ptr<Link> link_;                   // written by the driver, under mutex_

  std::vector<Batch*> in_flight_;  // the driver's: written, not all answered; oldest first
};

}  // namespace redlease::inline v1::wire

#endif
