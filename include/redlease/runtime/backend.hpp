#ifndef REDLEASE_RUNTIME_BACKEND_HPP
#define REDLEASE_RUNTIME_BACKEND_HPP

#include <atomic>
#include <memory>

#include <redlease/options.hpp>
#include <redlease/runtime/fence_memory.hpp>
#include <redlease/runtime/keeper.hpp>
#include <redlease/runtime/notifier.hpp>
#include <redlease/runtime/turns.hpp>
#include <redlease/runtime/waiting_room.hpp>
#include <redlease/runtime/wakeups.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/store/line_store.hpp>
#include <redlease/wire/pipelines.hpp>
#include <redlease/wire/url.hpp>

namespace redlease::inline v1::runtime {

/// What a client and its leases share within one process: connections, threads, and those who
/// wait.
struct Backend {
  Backend(const wire::Endpoint& endpoint, const ClientOptions& options);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  /// In a child process: closes the inherited descriptors, and nothing else.
  void abandon() noexcept;

  const unsigned generation;  // of the process: see process_generation()
  Notifier notifier;
  wire::Pipelines pipelines;
  store::LeaseStore store;
  store::LineStore line;
  Keeper keeper;
  WaitingRoom room;
  Turns turns;
  FenceMemory fences;
  Wakeups wakeups;
  Backend* inherited = nullptr;  // in a child process: what the parent's threads may have locked
};

/// Kept alive by the client and by each of its leases. In a child process the first use starts
/// afresh, with connections of its own; what was inherited is left alone for good, for its locks
/// may be held by threads that exist in the parent only.
class ClientState {
 public:
  ClientState(wire::Endpoint endpoint, ClientOptions options);
  ~ClientState();
  ClientState(const ClientState&) = delete;
  ClientState& operator=(const ClientState&) = delete;

  Backend& here();

 private:
  const wire::Endpoint endpoint_;
  const ClientOptions options_;
  std::atomic<Backend*> backend_;
};

}  // namespace redlease::inline v1::runtime

#endif
