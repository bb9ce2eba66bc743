#ifndef REDLEASE_RUNTIME_WAITING_ROOM_HPP
#define REDLEASE_RUNTIME_WAITING_ROOM_HPP

#include <atomic>
#include <boost/intrusive/set.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <redlease/clock.hpp>
#include <redlease/core/handoff_run.hpp>
#include <redlease/runtime/timer.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/store/line_store.hpp>
#include <redlease/token.hpp>

namespace redlease::inline v1::detail {
class LeaseCore;
}

namespace redlease::inline v1::runtime {

/// What a waiter is told.
struct News {
  News() noexcept;
  News(News&& other) noexcept;
  News& operator=(News&& other) noexcept;
  ~News();

  std::optional<store::Grant> grant;         ///< the lease is his
  std::unique_ptr<detail::LeaseCore> baton;  ///< it will be when he swaps the token in this one
  bool called = false;                       ///< he was woken, be it for nothing of these
};

/// A call that waits for a key. Guarded by the room's mutex, but for the word.
class Waiter {
 public:
  explicit Waiter(const store::Demand& terms, const store::Ticket* ticket = nullptr)
      : demand(terms),
        number(ticket != nullptr ? ticket->number : 0),
        token(ticket != nullptr ? std::optional{ticket->token} : std::nullopt) {}

  const store::Demand demand;
  std::vector<std::string> keys{};  // all that he wants, if he watches one of several
  const std::uint64_t number;       // of his ticket, if he stands in line
  const std::optional<Token> token;
  std::uint64_t place = std::numeric_limits<std::uint64_t>::max();  // there, as far as is known
  News news;
  bool claimed = false;  // somebody is about to give him the lease
  bool gone = false;
  std::atomic<std::uint32_t> word{0};  // 1: there is news; he sleeps on it
};

/// All those of one client who wait for one key, first come, first served. Those in line are served
/// by the server, which knows of all processes. Those who watch want it together with other keys:
/// they are told when it is free, and then try for all of them.
struct KeyQueue : boost::intrusive::set_base_hook<boost::intrusive::optimize_size<true>> {
  using Instant = Clock::time_point;
  static constexpr Instant never = Instant::max();

  std::string_view key;  // the map's
  std::list<std::shared_ptr<Waiter>> waiters;
  std::list<std::shared_ptr<Waiter>> line;
  std::list<std::shared_ptr<Waiter>> watchers;
  bool heads_line = false;  // the first of them is the first of all clients', as far as is known
  Instant granted_at{};     // when the line last granted the lease to one of them
  bool empty() const noexcept { return waiters.empty() && line.empty() && watchers.empty(); }
  /// Somebody needs to know how long the key has to live: the server doesn't see to him by itself.
  bool is_looked_at() const noexcept { return !waiters.empty() || !watchers.empty(); }

  Instant look_at = never;   // when to ask the server
  Instant not_before{};      // others have the key for themselves until then
  bool asking = false;       // that is under way; one question at a time for all waiters
  bool seen_free = false;    // the next thing to ask for is the lease itself
  bool changed = false;      // there is news since the question
  bool gave_back = false;    // and stepped back: the key was ours before
  bool others_came = false;  // since then
  double credit = 0;         // for looks after changes: they are spent faster than they grow
  Instant credited_at{};
  std::shared_ptr<Waiter> candidate;  // for whom an attempt is under way

  core::HandoffRun run;
  Instant handed_on_at{};
  Instant ours_until{};  // one of our leases holds the key, as far as is known
  Instant empty_since = never;

  Instant answered_at{};                  // the latest definite answer about the key
  std::optional<store::Failure> trouble;  // that came after it
};

/// Where the calls of one client wait for keys that are held: a queue for each key. Those who give
/// a lease back hand it on to the first in its queue; Wakeups asks the server on behalf of all.
/// Nothing here does I/O. Thread-safe.
class WaitingRoom {
 public:
  using Instant = Clock::time_point;

  WaitingRoom() = default;
  ~WaitingRoom();
  WaitingRoom(const WaitingRoom&) = delete;
  WaitingRoom& operator=(const WaitingRoom&) = delete;

  /// A waiter's place in the queue, which he leaves with it.
  class Place {
   public:
    ~Place();
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    /// There were others before him, or one of our own leases holds the key: an attempt is of no
    /// use.
    bool is_behind() const noexcept { return behind_; }
    /// Sleeps until there is news, `until` comes, a stop is requested, or he is asked to try
    /// himself, unless it is too `late` for that.
    News wait(Instant until, const std::stop_token& stop, bool late);
    /// What an attempt of his own brought.
    void attempt_ended(const store::Acquisition& acquisition, Instant began) noexcept;
    /// What others heard of the key, if that is news to him.
    void heard(std::optional<Instant>& answered_at, std::optional<store::Failure>& trouble) const;
    /// He is, so that it is his part to ask the server now and then.
    bool is_first() const noexcept;
    /// The server told his place in line: those of this client stand in the same order.
    /// `first`: of all clients. Then it pays to look after each change, unless the line has granted
    /// leases lately: a holder who doesn't know of it won't.
    void stands_at(const std::string& where, bool first) noexcept;
    /// He goes: if he is the first, it is for the next one to ask the server now and then.
    /// `served`: with the lease; then that matters only where leases are not granted by the line.
    void wake_next(bool served) noexcept;
    /// The others of his line are to give a sign of life.
    void wake_others() noexcept;
    /// Others have the key for themselves until then.
    Instant not_before() const noexcept;
    /// After a lease that came to nothing: he is in the queue as before.
    void back_in_line() noexcept;
    /// Leaves; returns what came too late.
    News leave() noexcept;

   private:
    friend class WaitingRoom;
    using List = std::list<std::shared_ptr<Waiter>>;
    Place(WaitingRoom& room, KeyQueue& queue, List& list, bool behind)
        : room_(room),
          queue_(queue),
          list_(list),
          self_(std::prev(list.end())),
          waiter_(*self_),
          behind_(behind) {}

    WaitingRoom& room_;
    KeyQueue& queue_;
    List& list_;
    const List::iterator self_;
    const std::shared_ptr<Waiter> waiter_;
    const bool behind_;
    bool left_ = false;
  };

  /// The next holder, chosen by one who gives the lease back. He waits for what is said to him,
  /// or is in the queue as before when this is destroyed.
  class Heir {
   public:
    ~Heir();
    Heir(Heir&& other) noexcept = default;
    Heir& operator=(Heir&&) = delete;

    const store::Demand& demand() const noexcept { return waiter_->demand; }
    /// False if he doesn't wait any more.
    bool grant(const store::Grant& grant) noexcept;
    /// Takes the lease if he still waits.
    void pass(std::unique_ptr<detail::LeaseCore>& baton) noexcept;

   private:
    friend class WaitingRoom;
    Heir(WaitingRoom& room, std::string key, std::shared_ptr<Waiter> waiter)
        : room_(&room), key_(std::move(key)), waiter_(std::move(waiter)) {}
    WaitingRoom* room_;
    std::string key_;
    std::shared_ptr<Waiter> waiter_;
  };

  /// Whether somebody asks and hears on behalf of those who wait; and of grants, too.
  bool watching() const noexcept { return watching_.load(std::memory_order_relaxed); }
  bool hears_grants() const noexcept { return hears_grants_.load(std::memory_order_relaxed); }
  /// Waits until that has come about, or will not, at the latest until then. For those who have
  /// entered: nobody watches for an empty room.
  void await_watch(Instant until) noexcept;
  bool empty() const noexcept { return queues_made_.load(std::memory_order_relaxed) == 0; }
  bool has_queue(std::string_view key) noexcept;
  Place enter(std::string_view key, const store::Demand& demand);
  /// The same for one who watches the key, one of `all` that he wants.
  Place enter_watchers(std::string_view key, std::span<const std::string> all,
                       const store::Demand& demand);
  /// The same for one who stands in line with that ticket.
  Place enter_line(std::string_view key, const store::Demand& demand, const store::Ticket& ticket);
  std::uint64_t next_number() noexcept { return numbers_.fetch_add(1) + 1; }
  /// The server granted the lease to the ticket with that number: he has to accept it.
  void called(std::uint64_t number) noexcept;
  /// The server granted the lease to a ticket of this process: by a request that was sent then.
  void granted(const store::LineGrant& grant, Instant sent) noexcept;
  /// For a lease that is given back: to whom to hand it on, if to anybody.
  std::optional<Heir> next_for(std::string_view key);
  /// For a lease on several keys: to one who wants the same ones, if nobody waits for a single one.
  std::optional<Heir> next_for_all(std::span<const std::string> keys);
  /// The key was really given back, so that others have their turn.
  void released(std::string_view key) noexcept;
  /// The key was given back together with others: nobody has to step back.
  void freed(std::string_view key) noexcept;
  /// A lease was obtained otherwise than by a handoff.
  void obtained(std::string_view key, std::chrono::nanoseconds ttl) noexcept;

  // ---- for Wakeups ----

  struct Question {
    std::string key;
    std::optional<store::Demand> attempt;  ///< ask for the lease; otherwise look
  };

  /// Has `alarm` go off when there is something to do. Once, before there are waiters to wait for.
  void use(Timer& alarm) noexcept;
  /// Sets the alarm to the earliest of `at_latest` and what is due here, and returns that.
  /// `went_off`: it has done so.
  Instant set_alarm(Instant at_latest, bool went_off) noexcept;
  /// Has it go off now.
  void ring() noexcept;

  /// Takes a question that is due.
  std::optional<Question> next_question(Instant now);
  void changed(std::string_view key, Instant now) noexcept;
  void all_changed(Instant now) noexcept;
  void looked(std::string_view key, std::optional<std::chrono::milliseconds> ttl,
              Instant now) noexcept;
  /// An attempt ended. Returns false if it was granted and nobody takes it.
  bool tried(std::string_view key, const store::Acquisition& acquisition, Instant now) noexcept;
  /// A look did, without an answer.
  void failed(std::string_view key) noexcept;
  /// Whether anybody asks and hears on behalf of the waiters. If not they are on their own.
  void watch(bool on, bool hears_grants, Instant now) noexcept;
  /// Whether it is known by now if that will be so.
  void decide_watch(bool decided) noexcept;
  /// Forgets queues in which nobody was for a while. False if there is none left.
  bool sweep(Instant now) noexcept;

 private:
  struct EarlierLook {
    bool operator()(const KeyQueue& a, const KeyQueue& b) const noexcept {
      return a.look_at < b.look_at;
    }
  };
  using Schedule = boost::intrusive::multiset<KeyQueue, boost::intrusive::compare<EarlierLook>>;
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  // A lease of our own that was just handed on mostly changes hands again soon. Only one that stays
  // is looked at, so that its end by another hand is noticed.
  static constexpr std::chrono::milliseconds own_lease_settles{5};
  // A queue that nobody is in is kept for that long, since its key is likely to be wanted again.
  static constexpr std::chrono::seconds linger{1};

  // Under mutex_.
  KeyQueue* find(std::string_view key) noexcept;
  void set_look(KeyQueue& queue, Instant when) noexcept;
  void look_after_change(KeyQueue& queue, Instant now) noexcept;
  Waiter* granted_to(std::uint64_t number) noexcept;
  void answered(KeyQueue& queue, Instant now) noexcept;
  KeyQueue& make_queue(std::string_view key);
  static std::shared_ptr<Waiter> first_of(const Place::List& list) noexcept;
  static void wake(Waiter& waiter) noexcept;
  void tell_first(KeyQueue& queue) noexcept;
  static void tell_watchers(KeyQueue& queue) noexcept;
  static bool run_goes_on(KeyQueue& queue, Instant now) noexcept;
  void ring_by(Instant when) noexcept;
  static void note_trouble(KeyQueue& queue, const store::Failure& failure) noexcept;
  void begin_holding(KeyQueue& queue, std::chrono::nanoseconds ttl, Instant now) noexcept;
  void handed_on(KeyQueue& queue, std::chrono::nanoseconds ttl, Instant now) noexcept;
  bool deliver(Waiter& waiter, const store::Grant& grant) noexcept;

  std::atomic<std::size_t> queues_made_{0};
  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<KeyQueue>, Hash, std::equal_to<>> queues_;
  Schedule schedule_;
  std::atomic<bool> watching_{false};
  std::atomic<bool> hears_grants_{false};
  std::atomic<std::uint32_t> watch_decided_{0};  // 1: on, or not to be had now
  std::atomic<std::uint64_t> numbers_{0};
  struct InLine {
    Waiter* waiter;
    KeyQueue* queue;
  };
  std::unordered_map<std::uint64_t, InLine> in_line_;
  Instant sweep_at_ = KeyQueue::never;
  Timer* alarm_ = nullptr;
  Instant rings_at_ = KeyQueue::never;
};

}  // namespace redlease::inline v1::runtime

#endif
