#ifndef REDLEASE_CLIENT_IPP
#define REDLEASE_CLIENT_IPP

#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <stop_token>

#include <redlease/client.hpp>
#include <redlease/core/wait_plan.hpp>
#include <redlease/runtime/lease_core.hpp>
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

// Sleeps until `when`; false if `stop` was requested before.
bool sleep_until(Clock::time_point when, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock{mutex};
  while (!stop.stop_requested()) {
    const auto left = when - Clock::now();
    if (left <= std::chrono::nanoseconds{0}) return true;
    // In steps, since the clock that the wait counts on stands still while the machine sleeps.
    const auto step = std::min<std::chrono::nanoseconds>(left, std::chrono::hours{1});
    never.wait_for(lock, stop, step, [] { return false; });
  }
  return false;
}

/// One acquisition: what is asked for, and what its observers hear.
class Acquirer {
 public:
  Acquirer(std::shared_ptr<runtime::ClientState> client, std::string_view key,
           const LeaseOptions& options)
      : client_(std::move(client)),
        backend_(client_->here()),
        key_(key),
        terms_(options),
        start_(Clock::now()) {
    if (terms_.renewal) backend_.keeper.start();
  }

  std::unique_ptr<detail::LeaseCore> try_once() {
    auto acquisition = backend_.store.acquire(key_, terms_.span(), Clock::time_point::max());
    if (acquisition.failure) give_up(std::move(*acquisition.failure));
    if (!acquisition.grant) return contended();
    return acquired(*acquisition.grant);
  }

  std::unique_ptr<detail::LeaseCore> wait_for_it(const Wait& wait) {
    core::WaitPlan plan{{wait.at_most, wait.attempts, wait.backoff.min, wait.backoff.max}, start_};
    std::optional<store::Failure> trouble;  // what the latest attempt that had its time met
    std::optional<Clock::time_point> answered_at;
    while (!wait.stop.stop_requested()) {
      const auto began = Clock::now();
      auto acquisition = backend_.store.acquire(key_, terms_.span(), plan.deadline());
      if (acquisition.grant) return acquired(*acquisition.grant);
      if (acquisition.failure && !acquisition.failure->transient) {
        give_up(std::move(*acquisition.failure));
      }
      // An attempt that began at the last moment, and that the end of the wait cut short, says
      // nothing new: what was said just before still counts. (Its traces are removed already.)
      const bool cut =
          acquisition.failure && plan.is_last_moment(began) && Clock::now() >= plan.deadline();
      if (!cut || !answered_at || began - *answered_at > backend_.pipelines.timeouts().command) {
        trouble = std::move(acquisition.failure);
        answered_at = Clock::now();
      }
      if (!trouble) ask_for_expiry(plan);

      const auto next = plan.next_attempt(Clock::now(), detail::random_unit());
      if (!next && plan.has_attempts()) {
        if (listening()) hint_ = what_is_there(plan.deadline());
        sleep_until(plan.deadline(), wait.stop);
      }
      if (!next && trouble) give_up(std::move(*trouble));
      if (!next || !sleep_until(*next, wait.stop)) break;
      if (wait.still_needed && !wait.still_needed()) break;
    }
    return contended();
  }

 private:
  // A poll that is cut by the holder's expiry spares a waiter up to a whole back-off.
  void ask_for_expiry(core::WaitPlan& plan) {
    if (!plan.expects_more(Clock::now()) || !plan.wants_holder_expiry(Clock::now())) return;
    if (const auto ttl = backend_.store.time_to_live(key_, plan.deadline())) {
      plan.holder_expires_in(*ttl, Clock::now());
    }
  }

  std::unique_ptr<detail::LeaseCore> acquired(const store::Grant& grant) {
    std::unique_ptr<detail::LeaseCore> core;
    try {
      core = std::make_unique<detail::LeaseCore>(client_, key_, grant, terms_);
      if (listening()) {
        auto event = make_event(Event::Kind::acquired);
        event.fingerprint = grant.token.fingerprint();
        event.left = core->remaining();
        backend_.notifier.notify(std::move(event));
      }
    } catch (...) {
      // Out of memory. A core gives the lease back by itself; without one it is done here.
      if (core) {
        detail::LeaseCore::let_go(std::move(core));
      } else {
        backend_.store.give_back(key_, grant.token.reveal());
      }
      throw;
    }
    core->begin_keeping();
    return core;
  }

  std::unique_ptr<detail::LeaseCore> contended() {
    if (listening()) {
      auto event = make_event(Event::Kind::contended);
      event.message = hint_;
      backend_.notifier.notify(std::move(event));
    }
    return nullptr;
  }

  [[noreturn]] void give_up(store::Failure&& failure) {
    if (failure.in_doubt && listening()) {
      auto event = make_event(Event::Kind::in_doubt);
      event.error = make_error_code(failure.code);
      event.message = failure.what;
      backend_.notifier.notify(std::move(event));
    }
    raise(std::move(failure));
  }

  // For the observer, at the end of a wait: a key that holds no lease doesn't get free by waiting.
  std::string what_is_there(Clock::time_point limit) {
    try {
      const auto content = backend_.store.inspect(key_, limit);
      if (!content) return "the key is free by now";
      if (content->type != "string") return "not a lease: the key holds a " + content->type;
      if (!content->ttl) return "not a lease: the key never expires";
      return "held by " + detail::fingerprint_of(content->beginning);
    } catch (const Error& error) {
      return error.what();
    }
  }

  bool listening() const noexcept { return backend_.notifier.listening(); }

  Event make_event(Event::Kind kind) const {
    Event event;
    event.kind = kind;
    event.key = key_;
    event.label = terms_.label;
    event.server = backend_.store.server();
    event.waited = Clock::now() - start_;
    return event;
  }

  const std::shared_ptr<runtime::ClientState> client_;
  runtime::Backend& backend_;
  const std::string_view key_;
  const detail::Terms terms_;
  const Clock::time_point start_;
  std::string hint_;
};

}  // namespace

Client::Client(std::string_view url, ClientOptions options) {
  auto endpoint = endpoint_of(url, options);
  state_ = std::make_shared<runtime::ClientState>(std::move(endpoint), std::move(options));
}

std::optional<Lease> Client::try_acquire(std::string_view key, const LeaseOptions& options) {
  detail::check_key(key);
  detail::check(options);
  auto core = Acquirer{state_, key, options}.try_once();
  if (!core) return std::nullopt;
  return Lease{std::move(core)};
}

std::optional<Lease> Client::acquire(std::string_view key, const Wait& wait,
                                     const LeaseOptions& options) {
  detail::check_key(key);
  detail::check(wait);
  detail::check(options);
  auto core = Acquirer{state_, key, options}.wait_for_it(wait);
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

void Client::ping() { state_->here().store.ping(); }

}  // namespace redlease::inline v1

#endif
