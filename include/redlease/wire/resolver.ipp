#ifndef REDLEASE_WIRE_RESOLVER_IPP
#define REDLEASE_WIRE_RESOLVER_IPP

#include <netdb.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <redlease/error.hpp>
#include <redlease/wire/resolver.hpp>

namespace redlease::inline v1::wire {

struct Resolver::Lookup {
  bool done = false;
  int error = 0;
  std::vector<Address> addresses;
};

struct Resolver::State {
  std::mutex mutex;
  std::condition_variable finished;
  std::shared_ptr<Lookup> current;
};

namespace {

int look_up(const std::string& host, std::uint16_t port, int flags, std::vector<Address>& out) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return error;
  for (const auto* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address address;
    address.size = entry->ai_addrlen;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    out.push_back(address);
  }
  ::freeaddrinfo(found);
  return 0;
}

}  // namespace

std::shared_ptr<Resolver::State> Resolver::make_state() { return std::make_shared<State>(); }

std::vector<Address> Resolver::resolve(const std::string& host, std::uint16_t port,
                                       Clock::time_point deadline) {
  std::vector<Address> literal;
  if (look_up(host, port, AI_NUMERICHOST, literal) == 0) return literal;

  std::unique_lock lock{state_->mutex};
  if (!state_->current) {
    auto lookup = state_->current = std::make_shared<Lookup>();
    try {
      std::thread{[state = state_, lookup, host, port] {
        std::vector<Address> addresses;
        const int error = look_up(host, port, 0, addresses);
        const std::lock_guard guard{state->mutex};
        *lookup = {true, error, std::move(addresses)};
        state->current.reset();
        state->finished.notify_all();
      }}.detach();
    } catch (const std::system_error& e) {
      state_->current.reset();
      throw Error{errc::unavailable,
                  fmt::format("cannot start resolving '{}': {}", host, e.code().message())};
    }
  }
  const auto lookup = state_->current;
  const auto until = std::chrono::steady_clock::now() + (deadline - Clock::now());
  if (!state_->finished.wait_until(lock, until, [&] { return lookup->done; })) {
    throw Error{errc::unavailable, fmt::format("resolving '{}' timed out", host)};
  }
  if (lookup->error != 0) {
    throw Error{errc::unavailable,
                fmt::format("resolving '{}': {}", host, ::gai_strerror(lookup->error))};
  }
  return lookup->addresses;
}

}  // namespace redlease::inline v1::wire

#endif
