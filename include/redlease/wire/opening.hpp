#ifndef REDLEASE_WIRE_OPENING_HPP
#define REDLEASE_WIRE_OPENING_HPP

#include <memory>
#include <string>
#include <vector>

#include <redlease/clock.hpp>
#include <redlease/wire/connection.hpp>
#include <redlease/wire/resolver.hpp>
#include <redlease/wire/url.hpp>

namespace redlease::inline v1::wire {

/// A connection in the making: resolves, connects (each address in turn) and logs in, all before
/// one deadline, step by step, so that one who has other things to do isn't held up.
class Opening {
 public:
  /// `usual_wait`: see Socket. `cut_short`: the deadline leaves less time than usual.
  Opening(const Endpoint& endpoint, Resolver& resolver, std::chrono::nanoseconds usual_wait,
          Clock::time_point deadline, bool cut_short);

  /// Goes as far as it can without waiting. The connection when it is ready, null while it takes
  /// longer. Throws Error: unavailable, rejected (AUTH, SELECT, ... refused) or protocol; and
  /// then it is over.
  std::unique_ptr<Connection> advance();

  /// Waits until advance() can do something, or its time is over.
  void wait() const;
  /// What to poll instead, and for which event; -1 while a name is looked up.
  int fd() const noexcept { return step_ == Step::resolve ? -1 : connection_->fd(); }
  short events() const noexcept;

  /// When advance() has something to do even if nothing happens.
  Clock::time_point wake_at() const noexcept {
    return step_ == Step::connect ? address_until_ : deadline_;
  }

  /// See Connection::abandon().
  void abandon() noexcept {
    if (connection_) connection_->abandon();
  }

  Clock::time_point deadline() const noexcept { return deadline_; }
  bool is_cut_short() const noexcept { return cut_short_; }

 private:
  enum class Step { resolve, connect, log_in };

  bool resolve();
  bool connect();
  bool log_in();
  void next_address();
  void write_login();
  void check_login(const char* step, const Reply& reply) const;

  const Endpoint& endpoint_;
  Resolver& resolver_;
  const std::chrono::nanoseconds usual_wait_;
  const Clock::time_point deadline_;
  const bool cut_short_;

  Step step_ = Step::resolve;
  std::shared_ptr<const Resolver::Lookup> lookup_;  // none for a unix socket
  std::vector<Address> addresses_;
  std::size_t tried_ = 0;            // addresses
  Clock::time_point address_until_;  // a silent address must leave time for those behind it
  std::unique_ptr<Connection> connection_;
  std::string failure_ = "no address";
  std::string login_;                 // what is to be sent yet
  std::vector<const char*> awaited_;  // the steps whose replies are to come, last one first
};

}  // namespace redlease::inline v1::wire

#endif
