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
  std::string host;
  bool done = false;
  int error = 0;
  std::vector<Address> found;
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

std::shared_ptr<const Resolver::Lookup> Resolver::begin(const std::string& host,
                                                        std::uint16_t port) {
  auto lookup = std::make_shared<Lookup>();
  lookup->host = host;
  lookup->done = look_up(host, port, AI_NUMERICHOST, lookup->found) == 0;
  if (lookup->done) return lookup;

  const std::lock_guard lock{state_->mutex};
  if (state_->current) return state_->current;
  try {
    std::thread{[state = state_, lookup, port] {
      std::vector<Address> found;
      const int error = look_up(lookup->host, port, 0, found);
      const std::lock_guard guard{state->mutex};
      lookup->error = error;
      lookup->found = std::move(found);
      lookup->done = true;
      state->current.reset();
      state->finished.notify_all();
    }}.detach();
  } catch (const std::system_error& e) {
    throw Error{errc::unavailable,
                fmt::format("cannot start resolving '{}': {}", host, e.code().message())};
  }
  return state_->current = lookup;
}

bool Resolver::wait(const Lookup& lookup, Clock::time_point deadline) const {
  std::unique_lock lock{state_->mutex};
  const auto done = [&lookup] { return lookup.done; };
  const auto now = Clock::now();
  if (deadline <= now) return done();
  return state_->finished.wait_until(lock, std::chrono::steady_clock::now() + (deadline - now),
                                     done);
}

const std::vector<Address>& Resolver::addresses(const Lookup& lookup) {
  if (lookup.error == 0) return lookup.found;
  throw Error{errc::unavailable,
              fmt::format("resolving '{}': {}", lookup.host, ::gai_strerror(lookup.error))};
}

}  // namespace redlease::inline v1::wire

#endif
