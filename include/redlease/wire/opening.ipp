#ifndef REDLEASE_WIRE_OPENING_IPP
#define REDLEASE_WIRE_OPENING_IPP

#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <redlease/error.hpp>
#include <redlease/wire/command.hpp>
#include <redlease/wire/opening.hpp>
#include <redlease/wire/server_error.hpp>

namespace redlease::inline v1::wire {
namespace {

Address address_of_socket(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // The path's length was checked when it was parsed.
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  Address address;
  address.size = sizeof name;
  std::memcpy(&address.storage, &name, sizeof name);
  return address;
}

}  // namespace

Opening::Opening(const Endpoint& endpoint, Resolver& resolver, std::chrono::nanoseconds usual_wait,
                 Clock::time_point deadline, bool cut_short)
    : endpoint_(endpoint),
      resolver_(resolver),
      usual_wait_(usual_wait),
      deadline_(deadline),
      cut_short_(cut_short) {}

std::unique_ptr<Connection> Opening::advance() {
  if (step_ == Step::resolve && !resolve()) return nullptr;
  if (step_ == Step::connect && !connect()) return nullptr;
  if (!log_in()) return nullptr;
  return std::move(connection_);
}

void Opening::wait() const {
  if (step_ == Step::resolve) {
    (void)resolver_.wait(*lookup_, deadline_);
  } else {
    (void)connection_->socket_.wait(events(), wake_at());
  }
}

short Opening::events() const noexcept {
  return step_ == Step::connect || !login_.empty() ? POLLOUT : POLLIN;
}

bool Opening::resolve() {
  if (endpoint_.socket_path.empty()) {
    if (!lookup_) lookup_ = resolver_.begin(endpoint_.host, endpoint_.port);
    if (!resolver_.wait(*lookup_, {})) {
      if (Clock::now() < deadline_) return false;
      throw Error{errc::unavailable, fmt::format("resolving '{}' timed out", endpoint_.host)};
    }
    addresses_ = Resolver::addresses(*lookup_);
  } else {
    addresses_ = {address_of_socket(endpoint_.socket_path)};
  }
  connection_.reset(new Connection);
  step_ = Step::connect;
  next_address();
  return true;
}

// Throws when there is none.
void Opening::next_address() {
  for (; tried_ < addresses_.size(); failure_ = connection_->describe(Io::failed)) {
    const auto share = (deadline_ - Clock::now()) / static_cast<int>(addresses_.size() - tried_);
    address_until_ = Clock::now() + share;
    const auto& address = addresses_[tried_++];
    if (connection_->socket_.begin_connect(reinterpret_cast<const sockaddr&>(address.storage),
                                           address.size)) {
      return;
    }
    connection_->error_ = errno;
  }
  throw Error{errc::unavailable, fmt::format("connect: {}", failure_)};
}

bool Opening::connect() {
  for (;;) {
    const auto outcome = connection_->socket_.finish_connect(usual_wait_);
    connection_->error_ = errno;
    if (outcome == Io::done) break;
    if (outcome == Io::timeout && Clock::now() < address_until_) return false;
    failure_ = connection_->describe(outcome);
    next_address();
  }
  connection_->last_heard_ = Clock::now();
  step_ = Step::log_in;
  write_login();
  return true;
}

void Opening::write_login() {
  const auto add = [this](const char* step, std::initializer_list<std::string_view> arguments) {
    awaited_.push_back(step);
    login_ += Command{arguments}.bytes();
  };
  if (endpoint_.authenticate && endpoint_.username.empty()) {
    add("AUTH", {"AUTH", endpoint_.password});
  } else if (endpoint_.authenticate) {
    add("AUTH", {"AUTH", endpoint_.username, endpoint_.password});
  }
  if (endpoint_.database != 0) add("SELECT", {"SELECT", std::to_string(endpoint_.database)});
  if (!endpoint_.client_name.empty()) {
    add("CLIENT SETNAME", {"CLIENT", "SETNAME", endpoint_.client_name});
  }
  std::reverse(awaited_.begin(), awaited_.end());
}

bool Opening::log_in() {
  const auto pending = [this](Io outcome, const char* step) {
    if (outcome == Io::timeout && Clock::now() < deadline_) return true;
    throw Error{errc::unavailable, fmt::format("{}: {}", step, connection_->describe(outcome))};
  };
  if (!login_.empty()) {
    std::size_t sent = 0;
    const auto outcome = connection_->send(login_, {}, sent);
    login_.erase(0, sent);
    if (outcome != Io::done && pending(outcome, "log in")) return false;
  }
  Reply reply;
  while (!awaited_.empty()) {
    const auto* step = awaited_.back();
    switch (connection_->next_reply(reply)) {
      case Connection::Parsed::reply:
        check_login(step, reply);
        awaited_.pop_back();
        break;
      case Connection::Parsed::nonsense:
        throw Error{errc::protocol, fmt::format("{}: the reply is not the Redis protocol", step)};
      case Connection::Parsed::incomplete:
        // Bytes that trickle in must not keep it alive beyond its time.
        if (Clock::now() >= deadline_) pending(Io::timeout, step);
        const auto outcome = connection_->receive_available();
        if (outcome != Io::done && pending(outcome, step)) return false;
    }
  }
  return true;
}

void Opening::check_login(const char* step, const Reply& reply) const {
  if (!reply.is_error()) return;
  const auto text = printable(reply.text, {endpoint_.password, endpoint_.username});
  const bool passing = classify(reply.text) == ServerError::transient;
  throw Error{passing ? errc::unavailable : errc::rejected, fmt::format("{}: {}", step, text)};
}

}  // namespace redlease::inline v1::wire

#endif
