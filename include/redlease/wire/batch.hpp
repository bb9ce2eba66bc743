#ifndef REDLEASE_WIRE_BATCH_HPP
#define REDLEASE_WIRE_BATCH_HPP

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <redlease/wire/outcome.hpp>
#include <redlease/wire/routes.hpp>

namespace redlease::inline v1::wire {

/// What to send. With a completion nobody waits for the reply: it is posted.
struct Request {
  std::string_view bytes;
  Clock::time_point deadline;  ///< bounds the whole call, connecting included
  Completion done = nullptr;
  void* context = nullptr;
  Route* route = nullptr;  ///< of a posted command: left when it is answered or given up
};

/// Commands that are written in one go, and what becomes of each of them. It fills up while it is
/// open, is closed to be written, and is over when all who wait have their result. It does no I/O
/// and has no lock of its own: Pipeline says who may touch what.
struct Batch {
  // Its members sleep while it is `waiting`.
  static constexpr std::uint32_t waiting = 0;
  static constexpr std::uint32_t vacant = 1;  // the driver's seat is free for a member
  static constexpr std::uint32_t done = 2;

  struct Slot {
    std::size_t end = 0;  // of the command within the bytes
    Outcome::Kind kind = Outcome::Kind::not_sent;
    bool withdrawn = false;  // given up before it was written
    bool pinned = false;     // of no use on another connection than the present one
    Reply reply;
    Completion done = nullptr;
    void* context = nullptr;
    Route* route = nullptr;

    void complete(Outcome&& outcome);
  };

  /// Empties it for its next use.
  void reset();

  /// Adds a command to an open batch; returns its index.
  std::size_t add(const Request& request);
  /// Takes a command that is waited for out again.
  void withdraw(std::size_t index);
  /// Takes all pinned commands out again; returns their bytes.
  std::string take_pinned();
  /// From now on it has no more members, and may be written.
  void close(Clock::time_point now);
  /// The same when it never will be written.
  void close_unsent() noexcept;

  /// Everybody who waits has a result.
  bool over() const noexcept { return failed || answered >= needed; }
  /// No command is without a reply.
  bool complete() const noexcept { return answered == slots.size(); }
  /// The next reply, in the order of the commands.
  void answer(Reply&& reply);
  /// The commands without a reply will get none.
  void fail(errc code, const std::string& cause);

  /// What became of a command. `link`: the present connection, for one that is still out.
  Outcome outcome(std::size_t index, const std::shared_ptr<Link>& link);

  std::atomic<std::uint32_t> state{waiting};
  std::atomic<int> users{0};  // those who may look at it; may be reset when there are none
  std::string bytes;
  std::vector<Slot> slots;
  int awaiting = 0;          // members that still wait
  int members = 0;           // that waited when it was closed
  bool closed = false;       // it is being written, or was
  bool failed = false;       // see fail()
  std::size_t answered = 0;  // slots that have their reply, or need none
  std::size_t needed = 0;    // slots that have to be answered before it is over
  std::size_t written = 0;   // bytes
  Clock::time_point sent{};
  errc code = errc::unavailable;
  std::string cause;
  std::shared_ptr<Link> link;  // of a failed one: the connection on which its commands may yet run

 private:
  void drop_withdrawn();
  void skip_withdrawn();
};

}  // namespace redlease::inline v1::wire

#endif
