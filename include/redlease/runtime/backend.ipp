#ifndef REDLEASE_RUNTIME_BACKEND_IPP
#define REDLEASE_RUNTIME_BACKEND_IPP

#include <redlease/runtime/backend.hpp>
#include <redlease/token.hpp>

namespace redlease::inline v1::runtime {
namespace {

// Different from all others, on all machines.
std::string process_name() {
  const auto token = Token::generate();
  std::string name{token.reveal()};
  std::erase(name, '-');
  return name;
}

}  // namespace

Backend::Backend(const wire::Endpoint& endpoint, const ClientOptions& options)
    : generation(detail::process_generation()),
      notifier(options.observer),
      pipelines(endpoint, {options.connect_timeout, options.command_timeout},
                options.max_connections),
      store(pipelines, endpoint.address()),
      line(store, pipelines, process_name()),
      keeper(pipelines.connector(), notifier),
      wakeups(pipelines.connector(), store, line.process(), room) {}

Backend::~Backend() {
  wakeups.stop();
  keeper.stop();
  pipelines.close();
}

void Backend::abandon() noexcept {
  pipelines.abandon();
  keeper.abandon();
  wakeups.abandon();
}

ClientState::ClientState(wire::Endpoint endpoint, ClientOptions options)
    : endpoint_(std::move(endpoint)),
      options_(std::move(options)),
      backend_(new Backend{endpoint_, options_}) {}

ClientState::~ClientState() {
  Backend* backend = backend_.load(std::memory_order_acquire);
  if (backend->generation == detail::process_generation()) {
    delete backend;
  } else {
    backend->abandon();
  }
}

Backend& ClientState::here() {
  Backend* backend = backend_.load(std::memory_order_acquire);
  if (backend->generation == detail::process_generation()) return *backend;
  auto fresh = std::make_unique<Backend>(endpoint_, options_);
  fresh->inherited = backend;
  if (backend_.compare_exchange_strong(backend, fresh.get(), std::memory_order_acq_rel)) {
    fresh->inherited->abandon();
    return *fresh.release();
  }
  return *backend;
}

}  // namespace redlease::inline v1::runtime

#endif
