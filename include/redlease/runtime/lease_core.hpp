#ifndef REDLEASE_RUNTIME_LEASE_CORE_HPP
#define REDLEASE_RUNTIME_LEASE_CORE_HPP

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <redlease/core/lease_state.hpp>
#include <redlease/error.hpp>
#include <redlease/observer.hpp>
#include <redlease/runtime/backend.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/token.hpp>

namespace redlease::inline v1::detail {

/// What stands behind a Lease handle: the key and token, what may be believed of them, and the
/// verbs, which take turns. See lease.hpp for what each of them promises.
class LeaseCore {
 public:
  LeaseCore(std::shared_ptr<runtime::ClientState> client, std::string_view key,
            const store::Grant& grant, std::chrono::milliseconds ttl, std::string label);

  const std::string& key() const noexcept { return key_; }
  const Token& token() const noexcept { return token_; }
  std::chrono::milliseconds ttl() const noexcept { return ttl_; }

  std::chrono::nanoseconds remaining() noexcept;
  bool held() noexcept;
  std::optional<Loss> loss();
  void ensure_held(std::chrono::nanoseconds min);

  void renew(std::chrono::milliseconds ttl);
  void release();

  /// Gives the lease back without waiting for the answer. The core then deletes itself, at once
  /// or when it knows how that ended.
  static void let_go(std::unique_ptr<LeaseCore> core) noexcept;

 private:
  bool ours() const noexcept;
  Loss make_loss(LossReason reason) const;
  [[noreturn]] void throw_not_held(const char* operation) const;
  void require_held(const char* operation, Clock::time_point now);
  void tell(Event::Kind kind, Clock::time_point now,
            std::optional<LossReason> reason = {}) noexcept;
  void tell_of_trouble(Event::Kind kind, const store::Failure& failure) noexcept;
  void tell_of_loss(LossReason reason) noexcept;
  static void on_answer(void* context, wire::Outcome&& outcome) noexcept;
  bool answered(const wire::Outcome& outcome);

  std::shared_ptr<runtime::ClientState> client_;
  runtime::Backend* backend_;  // of the process that took the lease; alive while client_ is
  const std::string key_;
  const Token token_;
  const std::chrono::milliseconds ttl_;
  const std::string label_;

  std::mutex turn_;   // one renewal or release at a time
  std::mutex mutex_;  // guards what follows; never held during I/O
  core::LeaseState state_;
  bool loss_told_ = false;
  bool doubted_ = false;  // a release may have run, or may run yet
  int tries_ = 0;         // of a posted release that failed
};

}  // namespace redlease::inline v1::detail

#endif
