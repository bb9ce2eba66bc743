#ifndef REDLEASE_RUNTIME_LEASE_CORE_HPP
#define REDLEASE_RUNTIME_LEASE_CORE_HPP

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <redlease/core/lease_state.hpp>
#include <redlease/core/renewal_plan.hpp>
#include <redlease/error.hpp>
#include <redlease/fencing.hpp>
#include <redlease/observer.hpp>
#include <redlease/options.hpp>
#include <redlease/runtime/backend.hpp>
#include <redlease/runtime/kept.hpp>
#include <redlease/store/keys.hpp>
#include <redlease/store/lease_store.hpp>
#include <redlease/token.hpp>

namespace redlease::inline v1::detail {

/// How a lease is to be held: LeaseOptions, as checked, with the defaults filled in.
struct Terms {
  Terms(const LeaseOptions& options, store::KeyView keys, Order order);

  store::Demand demand;
  std::optional<core::RenewalPlan::Terms> renewal;  // with auto_renew
  std::optional<std::chrono::nanoseconds> safety_margin;
  const std::string& label;
  bool in_line;  // others may wait for it in line
};

/// A mutex that takes little room, for those who mostly needn't wait.
class Turn {
 public:
  void lock() noexcept {
    while (taken_.exchange(1, std::memory_order_acquire) != 0) taken_.wait(1);
  }
  void unlock() noexcept {
    taken_.store(0, std::memory_order_release);
    taken_.notify_one();
  }

 private:
  std::atomic<int> taken_{0};
};

/// What stands behind a Lease handle: the key and token, what may be believed of them, and the
/// verbs, which take turns. See lease.hpp for what each of them promises.
class LeaseCore final : public runtime::Kept {
 public:
  /// Keys and grant are left as they are if this throws.
  LeaseCore(std::shared_ptr<runtime::ClientState> client, store::Keys&& keys, store::Grant&& grant,
            const Terms& terms);

  /// With auto_renew: has the keeper keep it from now on. To be called once, when the lease is
  /// handed out; the keeper must have been started.
  void begin_keeping() noexcept;

  const store::Keys& keys() const noexcept { return keys_; }
  const Token& token() const noexcept { return token_; }
  /// One for each key; empty without fencing.
  std::span<const FencingToken> numbers() const noexcept {
    if (!numbers_) return {};
    return *numbers_;
  }
  std::chrono::milliseconds ttl() const noexcept { return ttl_; }

  std::chrono::nanoseconds remaining() noexcept;
  bool held() noexcept;
  std::optional<Loss> loss();
  void ensure_held(std::chrono::nanoseconds min);
  std::stop_token stop_token();

  void renew(std::chrono::milliseconds ttl);
  void release();

  /// Gives the lease back without waiting for the answer. The core then deletes itself, at once
  /// or when it knows how that ended.
  static void let_go(std::unique_ptr<LeaseCore> core) noexcept;
  /// The second half of that: gives the lease to the next one who waits in this client, or else
  /// posts its release.
  static void hand_on_or_post(std::unique_ptr<LeaseCore> core) noexcept;
  /// Hands a lease that was let go on to `heir`, who calls this. Null if it was lost, or could only
  /// be given back.
  static std::optional<store::Grant> pass_on(std::unique_ptr<LeaseCore> core,
                                             const store::Demand& heir, Clock::time_point limit);

 private:
  /// While a verb is at work the keeper doesn't renew, but it notices the end.
  class ByHand {
   public:
    explicit ByHand(LeaseCore& core);
    ~ByHand();
    ByHand(const ByHand&) = delete;
    ByHand& operator=(const ByHand&) = delete;

   private:
    LeaseCore& core_;
    const std::lock_guard<Turn> turn_;
  };

  // For the keeper.
  Step look(Clock::time_point now) noexcept override;
  bool begin_renewal(Clock::time_point now, bool joining, Try& begun) noexcept override;
  Step renewed(Clock::time_point sent, Clock::time_point now) noexcept override;
  Step not_ours(store::Ownership found, Clock::time_point now) noexcept override;
  Step not_renewed(const store::Failure* failure, Clock::time_point now) noexcept override;

  bool ours() const noexcept;
  bool may_renew() const noexcept;
  Step look_further(Clock::time_point now) noexcept;
  bool is_lost(Clock::time_point now) noexcept;
  void leave_keeper() noexcept;
  Loss make_loss(LossReason reason) const;
  [[noreturn]] void throw_not_held(const char* operation) const;
  void require_held(const char* operation, Clock::time_point now);
  Event event(Event::Kind kind, Clock::time_point now) const;
  void tell(Event::Kind kind, Clock::time_point now,
            std::optional<LossReason> reason = {}) noexcept;
  void tell_of_failed_renewal(const store::Failure& failure) noexcept;
  void tell_of_trouble(Event::Kind kind, const store::Failure& failure) noexcept;
  static void on_answer(void* context, wire::Outcome&& outcome) noexcept;
  store::Comparison give_back();
  store::Comparison give_back_in_line();
  store::Comparison give_back_all(Clock::time_point limit);
  bool conclude(const store::Comparison& found);

  std::shared_ptr<runtime::ClientState> client_;
  runtime::Backend* backend_;  // of the process that took the lease; alive while client_ is
  const std::unique_ptr<const std::string> label_;                  // mostly there is none
  const std::unique_ptr<const std::vector<FencingToken>> numbers_;  // mostly there are none, either
  const store::Keys keys_;
  const Token token_;
  Turn turn_;  // one renewal or release at a time
  const std::chrono::milliseconds ttl_;
  const bool in_line_;

  std::mutex mutex_;  // guards what follows; never held during I/O
  core::LeaseState state_;
  core::RenewalPlan plan_;
  std::unique_ptr<runtime::StopRequest> stop_request_;  // if stop_token() was asked for
  bool kept_ = false;                                   // by the keeper
  bool renewing_ = false;                               // so is the keeper
  bool by_hand_ = false;  // one of the verbs is at work: the keeper must not renew
  bool loss_told_ = false;
  bool doubted_ = false;  // a release may have run, or may run yet
  int tries_ = 0;         // of a posted release that failed
};

}  // namespace redlease::inline v1::detail

#endif
