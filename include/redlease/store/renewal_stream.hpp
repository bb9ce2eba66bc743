#ifndef REDLEASE_STORE_RENEWAL_STREAM_HPP
#define REDLEASE_STORE_RENEWAL_STREAM_HPP

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <redlease/clock.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/wire/connector.hpp>

namespace redlease::inline v1::store {

struct Renewal {
  std::string_view key;
  std::string_view token;
  std::chrono::milliseconds ttl{};
};

/// What became of one request.
struct RenewalAnswer {
  Clock::time_point sent{};                                 ///< the instant before it was sent
  std::vector<std::pair<std::size_t, Ownership>> not_ours;  ///< by their place in the request
  std::optional<Failure> failure;  ///< if set, of all of them; its text is the cause alone
  bool unknown_script = false;     ///< nothing ran: send it again
};

/// Renews many leases of one server with one request (lua/renew_many.lua), over a connection of
/// its own, and never waits: what it waits for is polled by the one thread that uses it, which has
/// other things to do meanwhile.
class RenewalStream {
 public:
  static constexpr std::size_t most_renewals = 100;  // in a request

  explicit RenewalStream(wire::Connector& connector) : connector_(connector) {}

  bool connected() const noexcept { return connection_ != nullptr; }
  bool connecting() const noexcept { return opening_.has_value(); }
  bool idle() const noexcept { return under_way_.empty(); }
  /// Begins to connect. Throws Error.
  void connect(Clock::time_point deadline) { opening_.emplace(connector_.begin(deadline)); }

  /// Whether one more request may be sent: connected, and not too many are under way.
  bool has_room() const noexcept;
  /// Queues a request, to be sent by advance(). If it isn't answered by then it is given up, and so
  /// is the connection, since replies come in order; unless the server was slower than that before:
  /// then it gets some more time.
  void send(std::span<const Renewal> renewals, Clock::time_point now, Clock::time_point give_up_at);

  /// Goes on with connecting and writing. Throws Error when connecting failed.
  void advance();
  /// The answer to the oldest request, if it is there by now.
  std::optional<RenewalAnswer> next_answer(Clock::time_point now);
  /// False if there is nothing to be read that came with the latest answer.
  bool may_have_answer() const noexcept;

  /// What to poll, if anything: a descriptor or -1, and the events of poll(2).
  int fd() const noexcept;
  short events() const noexcept;
  /// When to go on even if nothing happens there.
  Clock::time_point wake_at(Clock::time_point now) const noexcept;

  /// In a child process: closes the inherited descriptor, and nothing else.
  void abandon() noexcept;

 private:
  struct UnderWay {
    Clock::time_point sent;
    Clock::time_point deadline;
    std::size_t renewals;
    bool with_text;  // of the script
  };

  void write();
  std::optional<RenewalAnswer> read(Clock::time_point now);
  void time_out(Clock::time_point now);
  void break_off(errc code, const std::string& cause);
  RenewalAnswer answer_of(const wire::Reply& reply, const UnderWay& request);

  wire::Connector& connector_;
  std::optional<wire::Opening> opening_;
  std::unique_ptr<wire::Connection> connection_;
  bool proven_ = false;                   // this connection has answered
  bool has_script_ = false;               // a request on this connection brought the script's text
  std::chrono::nanoseconds patience_{0};  // several times what answers took lately
  std::string outbox_;
  std::deque<UnderWay> under_way_;  // oldest first; of a connection that broke: failed, all of them
  Failure broken_;                  // how the latest connection broke
};

}  // namespace redlease::inline v1::store

#endif
