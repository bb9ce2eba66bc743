#ifndef REDLEASE_RUNTIME_KEEPER_HPP
#define REDLEASE_RUNTIME_KEEPER_HPP

#include <atomic>
#include <boost/intrusive/set.hpp>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <redlease/clock.hpp>
#include <redlease/runtime/kept.hpp>
#include <redlease/runtime/notifier.hpp>
#include <redlease/runtime/timer.hpp>
#include <redlease/store/renewal_stream.hpp>
#include <redlease/wire/connector.hpp>

namespace redlease::inline v1::runtime {

/// Keeps the leases of one client: renews them in time, many with one request, and notices when
/// one ends. One thread, which starts when it is first needed, does both for any number of leases,
/// and it never waits for anything else than the next instant at which something is due: not for
/// a server, a connection or the user's code. Thread-safe.
class Keeper {
 public:
  Keeper(wire::Connector& connector, Notifier& notifier);
  ~Keeper() { stop(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Makes sure that the thread runs. Throws std::system_error.
  void start();

  /// Asks the lease what comes next, and from then on sees to it; to be called again when that has
  /// changed. start() must have succeeded.
  void keep(Kept& lease) noexcept;
  /// Waits until no renewal of the lease is under way; it must not begin another one. False when
  /// `until` came first.
  bool settle(Kept& lease, Clock::time_point until) noexcept;
  /// Never looks at the lease again, whatever becomes of a renewal that is under way.
  void forget(Kept& lease) noexcept;
  /// Has the thread see whether the notifier needs help. Takes no lock; start() must have
  /// succeeded.
  void nudge() noexcept;

  /// Ends the thread. No lease may be kept any more.
  void stop() noexcept;
  /// In a child process: closes the inherited descriptors, and nothing else.
  void abandon() noexcept;

 private:
  struct EarlierDue {
    bool operator()(const Kept& a, const Kept& b) const noexcept { return a.due_ < b.due_; }
  };
  struct EarlierEnd {
    bool operator()(const Kept& a, const Kept& b) const noexcept { return a.end_ < b.end_; }
  };
  template <class Tag, class Order>
  using Leases = boost::intrusive::multiset<Kept, boost::intrusive::base_hook<Hook<Tag>>,
                                            boost::intrusive::compare<Order>>;
  using Request = std::vector<Kept*>;  // null: forgotten, or told already

  // The thread's.
  void run() noexcept;
  bool communicate(Clock::time_point next) noexcept;

  // Under mutex_.
  void wake_at(Clock::time_point when) noexcept;
  void set_due(Kept& lease, Clock::time_point due) noexcept;
  void set_end(Kept& lease, Clock::time_point end) noexcept;
  void place(Kept& lease, const Kept::Step& step) noexcept;
  void fail(errc code, const char* cause) noexcept;
  void leave_request(Kept& lease) noexcept;
  Clock::time_point next_instant(Clock::time_point now) noexcept;
  bool look_at_ends(Clock::time_point now) noexcept;
  bool any_due(Clock::time_point now) const noexcept;
  bool fail_due(Clock::time_point now) noexcept;
  void connect(Clock::time_point now) noexcept;
  void send_request(Clock::time_point now) noexcept;
  Clock::time_point fill_request(Clock::time_point now);
  static void strike_out(Request& request, std::size_t index) noexcept;
  void deliver(const store::RenewalAnswer& answer, Clock::time_point now) noexcept;

  Notifier& notifier_;

  store::RenewalStream stream_;                // the thread's, as are the next ones
  std::vector<store::RenewalAnswer> answers_;  // to be delivered
  std::optional<store::Failure> trouble_;      // why nothing can be sent

  std::mutex mutex_;  // guards what follows; never held during I/O
  std::condition_variable settled_;
  std::optional<Timer> timer_;
  std::thread thread_;
  bool stopping_ = false;
  Clock::time_point waking_at_ = Kept::never;  // what the timer is set to
  std::atomic<bool> nudged_{false};            // it was set to go off at once
  Leases<ByDue, EarlierDue> by_due_;           // those that are to be renewed
  Leases<ByEnd, EarlierEnd> by_end_;           // all of them; some end later than it says here
  std::deque<Request> requests_;               // under way, oldest first
  std::vector<store::Renewal> renewals_;       // of the request that is being made
};

}  // namespace redlease::inline v1::runtime

#endif
