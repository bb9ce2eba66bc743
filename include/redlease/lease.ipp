#ifndef REDLEASE_LEASE_IPP
#define REDLEASE_LEASE_IPP

#include <algorithm>
#include <stdexcept>

#include <redlease/lease.hpp>
#include <redlease/options.hpp>
#include <redlease/runtime/lease_core.hpp>

namespace redlease::inline v1 {
namespace {

detail::LeaseCore& require(const std::unique_ptr<detail::LeaseCore>& core, const char* operation) {
  if (core) return *core;
  throw std::invalid_argument(std::string{operation} + ": this lease was moved from");
}

// Runs one of the throwing verbs for those that must not throw.
template <class Verb>
std::error_code code_of(Verb&& verb) noexcept {
  try {
    verb();
    return {};
  } catch (const Error& error) {
    return error.code();
  } catch (const std::invalid_argument&) {
    return std::make_error_code(std::errc::invalid_argument);
  } catch (const std::bad_alloc&) {
    return std::make_error_code(std::errc::not_enough_memory);
  } catch (...) {
    return make_error_code(errc::unavailable);
  }
}

}  // namespace

Lease::Lease(std::unique_ptr<detail::LeaseCore> core) noexcept : core_(std::move(core)) {}
Lease::Lease(Lease&& other) noexcept = default;

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    if (core_) detail::LeaseCore::let_go(std::move(core_));
    core_ = std::move(other.core_);
  }
  return *this;
}

Lease::~Lease() {
  if (core_) detail::LeaseCore::let_go(std::move(core_));
}

const std::string& Lease::key() const noexcept {
  static const std::string none;
  return core_ ? core_->keys().first() : none;
}

std::span<const std::string> Lease::keys() const noexcept {
  if (!core_) return {};
  return core_->keys().all();
}

FencingToken Lease::fencing_token() const {
  const auto numbers = require(core_, "fencing_token").numbers();
  if (numbers.size() == 1) return numbers.front();
  throw std::invalid_argument("fencing_token: " + detail::quote(key()) +
                              (numbers.empty() ? ": the lease was acquired without fencing"
                                               : ": there is one for each of several keys"));
}

FencingToken Lease::fencing_token(std::string_view key) const {
  const auto& core = require(core_, "fencing_token");
  const auto keys = core.keys().all();
  const auto found = std::find(keys.begin(), keys.end(), key);
  if (found != keys.end() && !core.numbers().empty()) {
    return core.numbers()[static_cast<std::size_t>(found - keys.begin())];
  }
  throw std::invalid_argument("fencing_token: " + detail::quote(key) +
                              (found == keys.end() ? ": is no key of this lease"
                                                   : ": the lease was acquired without fencing"));
}

const Token& Lease::token() const { return require(core_, "token").token(); }

std::chrono::nanoseconds Lease::remaining() const noexcept {
  return core_ ? core_->remaining() : std::chrono::nanoseconds{0};
}

bool Lease::held() const noexcept { return core_ && core_->held(); }

void Lease::ensure_held(Duration min) const {
  auto& core = require(core_, "ensure_held");
  if (min < Duration{std::chrono::nanoseconds{0}}) {
    throw std::invalid_argument("ensure_held: min = " + detail::to_text(min) +
                                ": must not be negative");
  }
  core.ensure_held(min);
}

std::stop_token Lease::stop_token() const { return require(core_, "stop_token").stop_token(); }

std::optional<Loss> Lease::loss() const { return core_ ? core_->loss() : std::nullopt; }

void Lease::renew() {
  auto& core = require(core_, "renew");
  core.renew(core.ttl());
}

void Lease::renew(Duration ttl) {
  auto& core = require(core_, "renew");
  detail::check_ttl("renew: ttl", ttl);
  core.renew(ttl.ceil_ms());
}

void Lease::renew(std::error_code& error) noexcept {
  error = code_of([this] { renew(); });
}

void Lease::release() { require(core_, "release").release(); }

void Lease::release(std::error_code& error) noexcept {
  error = code_of([this] { release(); });
}

}  // namespace redlease::inline v1

#endif
