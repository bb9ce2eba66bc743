#ifndef REDLEASE_STORE_WATCH_STREAM_HPP
#define REDLEASE_STORE_WATCH_STREAM_HPP

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <redlease/clock.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/token.hpp>
#include <redlease/wire/connector.hpp>

struct pollfd;

namespace redlease::inline v1::store {

/// What a server says of keys that are waited for.
struct Sighting {
  enum class Kind {
    changed,      ///< `key` was written, expired or was evicted: look again
    all_changed,  ///< so was every key
    granted,      ///< the lease was granted to the ticket with that `number`: see LineStore
    looked,       ///< how long `key` has to live; none: it is free
    tried,        ///< the attempt ended: see `acquisition`
    failed,       ///< the look did: nothing is known
    unreleased,   ///< `key` may hold `token` still, though it was given back
  };

  Kind kind = Kind::changed;
  std::string key;
  std::uint64_t number = 0;
  std::optional<std::chrono::milliseconds> ttl;  ///< max() if it never expires
  std::optional<Token> token;                    ///< of the attempt, or what was given back
  Demand demand;                                 ///< so are these
  Clock::time_point sent{};                      ///< the instant before it was sent
  Acquisition acquisition;  ///< in doubt: last words have been sent, and the token is burnt
};

/// Tells when keys of one server change, over two connections of its own: one on which keys are
/// looked at and tried for, which makes the server remember that they interest us, and one that
/// hears of their changes (CLIENT TRACKING with REDIRECT; redis.io, "Client-side caching in
/// Redis"). Works with RESP2, and so with every hiredis. Never waits: it is polled by the one
/// thread that uses it.
///
/// A look reports one change at most: after that, look again. What changes between the look and
/// its answer is reported, too, so none is missed while the connections last.
class WatchStream {
 public:
  /// `process`: whose grants to hear of.
  WatchStream(wire::Connector& connector, std::string_view process)
      : connector_(connector), grants_("redlease:" + std::string{process}) {}

  /// Begins to connect. Throws Error.
  void open(Clock::time_point deadline);
  /// What is under way comes out of next(), as failed.
  void close() noexcept;
  bool closed() const noexcept { return step_ == Step::closed; }
  bool idle() const noexcept { return under_way_.empty(); }
  /// Keys may be looked at.
  bool ready() const noexcept { return step_ == Step::ready; }

  /// And grants are heard, which a server may refuse.
  bool hears_grants() const noexcept { return ready() && hears_grants_; }

  /// Queues a look, or an attempt (SET NX PX), to be sent by advance().
  void look(std::string_view key, Clock::time_point now);
  void attempt(std::string_view key, const Demand& demand, Clock::time_point now);
  /// Queues the release of what an attempt got.
  void give_back(std::string_view key, const Token& token, const Demand& demand,
                 Clock::time_point now);

  /// Goes on with connecting, writing and reading. Throws Error when connecting failed, or the
  /// connections broke: it is closed then, and what was under way comes out of next().
  void advance(Clock::time_point now);
  std::optional<Sighting> next();

  /// What to poll; unused ones have the descriptor -1.
  std::array<pollfd, 2> polled() const noexcept;
  /// When to go on even if nothing happens there.
  Clock::time_point wake_at(Clock::time_point now) const noexcept;

  /// In a child process: closes the inherited descriptors, and nothing else.
  void abandon() noexcept;

 private:
  enum class Step { closed, connecting_ear, subscribing, connecting_eye, asking, ready };
  struct Asked {
    Sighting::Kind kind;  // looked, tried or unreleased; changed: the answer is of no interest
    std::string key;
    std::optional<Token> token;
    Demand demand;
    Clock::time_point sent;
  };
  struct Line {
    std::unique_ptr<wire::Connection> connection;
    std::string outbox;
  };

  void connect(Clock::time_point now);
  void write(Line& line);
  bool read(Line& line, wire::Reply& reply);
  void hear(wire::Reply&& reply);
  void listen(const wire::Reply& reply);
  void see(const wire::Reply& reply);
  void ask(Asked asked, std::initializer_list<std::string_view> command);
  void check_silence(Clock::time_point now);
  [[noreturn]] void break_off(errc code, const std::string& cause);
  void end(const std::string& cause);

  wire::Connector& connector_;
  const std::string grants_;  // a channel
  bool hears_grants_ = false;
  Step step_ = Step::closed;
  std::optional<wire::Opening> opening_;
  Line ear_;                       // hears of changes
  Line eye_;                       // looks and tries
  int to_come_ = 0;                // answers to the ear's first commands
  std::string ear_id_;             // of its connection, at the server
  Clock::time_point ear_asked_{};  // when a PING was sent that is not answered yet; max(): none is
  Clock::time_point deadline_{};   // of connecting
  std::deque<Asked> under_way_;
  std::deque<Sighting> sightings_;
};

}  // namespace redlease::inline v1::store

#endif
