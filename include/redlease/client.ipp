#ifndef REDLEASE_CLIENT_IPP
#define REDLEASE_CLIENT_IPP

#include <stdexcept>

#include <redlease/client.hpp>
#include <redlease/runtime/acquirer.hpp>
#include <redlease/wire/url.hpp>

namespace redlease::inline v1 {
namespace {

// A value longer than this is application data, not some library's token.
constexpr std::size_t longest_token = 512;

wire::Endpoint endpoint_of(std::string_view url, const ClientOptions& options) {
  detail::check(options);
  auto endpoint = wire::parse_url(url);
  if (options.username) endpoint.username = *options.username;
  if (options.password) endpoint.password = *options.password;
  endpoint.authenticate = !endpoint.username.empty() || !endpoint.password.empty();
  if (options.database) endpoint.database = *options.database;
  endpoint.client_name = options.client_name;
  return endpoint;
}

[[noreturn]] void raise(store::Failure&& failure) { throw Error{failure.code, failure.what}; }

}  // namespace

Client::Client(std::string_view url, ClientOptions options) {
  auto endpoint = endpoint_of(url, options);
  state_ = std::make_shared<runtime::ClientState>(std::move(endpoint), std::move(options));
}

std::optional<Lease> Client::try_acquire(std::string_view key, const LeaseOptions& options) {
  detail::check_key(key, options);
  return wrap(detail::Acquirer{state_, store::Keys{key}, options}.try_once());
}

std::optional<Lease> Client::acquire(std::string_view key, const Wait& wait,
                                     const LeaseOptions& options) {
  detail::check_key(key, options);
  detail::check(wait);
  return wrap(detail::Acquirer{state_, store::Keys{key}, options, wait.order}.wait_for_it(wait));
}

std::optional<Lease> Client::try_acquire_all(const std::vector<std::string>& keys,
                                             const LeaseOptions& options) {
  detail::check_keys(keys, options);
  return wrap(detail::Acquirer{state_, store::Keys{keys}, options}.try_once());
}

std::optional<Lease> Client::acquire_all(const std::vector<std::string>& keys, const Wait& wait,
                                         const LeaseOptions& options) {
  detail::check_keys(keys, options);
  detail::check(wait);
  store::Keys all{keys};
  if (all.several() && wait.order == Order::fifo) {
    throw std::invalid_argument("order = fifo: is for one key, not for several");
  }
  return wrap(detail::Acquirer{state_, std::move(all), options, wait.order}.wait_for_it(wait));
}

std::optional<Lease> Client::wrap(std::unique_ptr<detail::LeaseCore> core) {
  if (!core) return std::nullopt;
  return Lease{std::move(core)};
}

void Client::conclude(Lease& lease) {
  std::error_code error;
  if (lease.held()) lease.release(error);
  // Other trouble than a loss has come after the work: the destructor and the ttl see to it.
  if (const auto loss = lease.loss()) {
    throw LeaseLost{detail::describe("with_lease", *loss), *loss};
  }
}

std::optional<Inspection> Client::inspect(std::string_view key) {
  detail::check_key(key);
  auto content = state_->here().store.inspect(key, Clock::time_point::max());
  if (!content) return std::nullopt;
  Inspection inspection;
  inspection.type_ = std::move(content->type);
  inspection.ttl_ = content->ttl;
  if (inspection.type_ == "string" && content->length > 0 && content->length <= longest_token) {
    inspection.fingerprint_ = detail::fingerprint_of(content->beginning);
    inspection.token_ = std::move(content->beginning);
  }
  inspection.fence_ = content->number;
  return inspection;
}

bool Client::break_lease(std::string_view key, const Inspection& inspection) {
  detail::check_key(key);
  if (!inspection.is_lease()) {
    throw std::invalid_argument("break_lease: inspection of " + detail::quote(key) +
                                ": the key holds no lease");
  }
  auto found = state_->here().store.release(key, inspection.token_, Clock::time_point::max());
  if (found.failure) raise(std::move(*found.failure));
  const bool broken = found.ownership == store::Ownership::ours;
  if (!broken && !found.confirmed) {
    throw Error{errc::in_doubt, "break_lease " + detail::quote(key) +
                                    ": the key holds another token by now, or none"};
  }
  return broken;
}

bool Client::fenced_write(std::string_view key, std::string_view value, FencingToken number) {
  detail::check_key(key);
  if (number.value() < 0) {
    throw std::invalid_argument("fenced_write: number = " + std::to_string(number.value()) +
                                ": must not be negative");
  }
  return state_->here().store.fenced_write(key, value, number);
}

void Client::ping() { state_->here().store.ping(); }

}  // namespace redlease::inline v1

#endif
