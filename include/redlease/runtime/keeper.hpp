#ifndef REDLEASE_RUNTIME_KEEPER_HPP
#define REDLEASE_RUNTIME_KEEPER_HPP

#include <atomic>
#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <redlease/clock.hpp>
#include <redlease/runtime/notifier.hpp>
#include <redlease/runtime/timer.hpp>
#include <redlease/store/renewal_stream.hpp>
#include <redlease/wire/connector.hpp>

namespace redlease::inline v1::runtime {

/// A lease as its keeper sees it. The functions are called under the keeper's mutex; they must not
/// block and must not call the keeper. Plain links: a copy that came with fork() is destroyed as it
/// was.
class Kept : public boost::intrusive::set_base_hook<
                 boost::intrusive::optimize_size<true>,
                 boost::intrusive::link_mode<boost::intrusive::normal_link>>,
             public boost::intrusive::list_base_hook<
                 boost::intrusive::link_mode<boost::intrusive::normal_link>> {
 public:
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  virtual ~Kept() = default;

 protected:
  Kept() = default;
  using Instant = Clock::time_point;

  struct Step {
    Instant next;        ///< when to look again; Instant::max(): never
    bool renew = false;  ///< it is to be renewed now
  };

  /// Tells what is to be done now; an end that has come is noticed. `joining`: others are being
  /// renewed now anyway.
  virtual Step look(Instant now, bool joining) noexcept = 0;
  /// What to renew, and until when that makes sense; nothing if things have changed.
  virtual std::optional<Instant> begin_renewal(Instant now, store::Renewal& renewal) noexcept = 0;
  virtual void renewed(Instant sent, Instant now) noexcept = 0;
  virtual void not_ours(store::Ownership found, Instant now) noexcept = 0;
  /// Without a failure nothing has happened, and it is to be sent again.
  virtual void not_renewed(const store::Failure* failure, Instant now) noexcept = 0;

 private:
  friend class Keeper;
  enum class Place { nowhere, schedule, ready, request };

  Instant when_{};
  Place place_ = Place::nowhere;
};

/// Keeps the leases of one client: renews them in time, many with one request, and notices when
/// one ends. One thread, which starts when it is first needed, does both for any number of leases,
/// and it never waits for anything else than the next instant at which something is due: not for
/// a server, a connection or the user's code. Thread-safe.
class Keeper {
 public:
  Keeper(wire::Connector& connector, Notifier& notifier) : notifier_(notifier), stream_(connector) {
    answers_.reserve(8);  // more are never under way
  }
  ~Keeper() { stop(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Makes sure that the thread runs. Throws std::system_error.
  void start();

  /// Looks at the lease at that instant, and from then on whenever the lease says; also to move
  /// that instant. start() must have succeeded.
  void keep(Kept& lease, Clock::time_point when) noexcept;
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
  struct Earlier {
    bool operator()(const Kept& a, const Kept& b) const noexcept { return a.when_ < b.when_; }
  };
  using Schedule = boost::intrusive::multiset<Kept, boost::intrusive::compare<Earlier>>;
  using Ready = boost::intrusive::list<Kept>;
  using Request = std::vector<Kept*>;  // null: forgotten

  // The thread's.
  void run() noexcept;
  void communicate(Clock::time_point next) noexcept;

  // Under mutex_.
  void wake_at(Clock::time_point when) noexcept;
  void take_out(Kept& lease) noexcept;
  void place(Kept& lease, Kept::Place where, Clock::time_point when) noexcept;
  void look(Kept& lease, Clock::time_point now) noexcept;
  bool look_at_due(Schedule& tree, Clock::time_point now) noexcept;
  Clock::time_point next_instant(Clock::time_point now) noexcept;
  bool fail_ready(Clock::time_point now) noexcept;
  void connect(Clock::time_point now) noexcept;
  void send_requests(Clock::time_point now) noexcept;
  void fill_request(Clock::time_point now, Clock::time_point& until);
  std::size_t add_to_request(Kept& lease, Clock::time_point end, Clock::time_point now,
                             Clock::time_point& until) noexcept;
  void deliver(const store::RenewalAnswer& answer, Clock::time_point now) noexcept;
  void conclude(const Request& request, Clock::time_point now, auto&& tell) noexcept;

  Notifier& notifier_;

  store::RenewalStream stream_;                // the thread's, as are the next two
  std::vector<store::RenewalAnswer> answers_;  // to be delivered
  std::optional<store::Failure> trouble_;      // why those that are ready can't be sent

  std::mutex mutex_;  // guards what follows; never held during I/O
  std::condition_variable settled_;
  std::optional<Timer> timer_;
  std::thread thread_;
  bool stopping_ = false;
  Clock::time_point waking_at_ = Clock::time_point::max();  // what the timer is set to
  std::atomic<bool> nudged_{false};                         // it was set to go off at once
  Schedule schedule_;                     // those that wait to be renewed, or to end
  Schedule ends_;                         // those that are being renewed, by when they end
  Ready ready_;                           // of those the ones whose renewal is not sent yet
  std::deque<Request> requests_;          // under way, oldest first
  std::vector<store::Renewal> renewals_;  // of the request that is being made
};

}  // namespace redlease::inline v1::runtime

#endif
