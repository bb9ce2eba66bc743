#ifndef REDLEASE_RUNTIME_KEPT_HPP
#define REDLEASE_RUNTIME_KEPT_HPP

#include <boost/intrusive/set.hpp>
#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include <redlease/clock.hpp>
#include <redlease/store/renewal_stream.hpp>

namespace redlease::inline v1::runtime {

/// A hook for one of the keeper's orders. A plain link: the copy of a lease that came with fork()
/// is destroyed as it was.
template <class Tag>
using Hook =
    boost::intrusive::set_base_hook<boost::intrusive::tag<Tag>,
                                    boost::intrusive::optimize_size<true>,
                                    boost::intrusive::link_mode<boost::intrusive::normal_link>>;
struct ByDue;
struct ByEnd;

/// A lease as its keeper sees it. The functions are called under the keeper's mutex; they must not
/// block and must not call the keeper.
class Kept : public Hook<ByDue>, public Hook<ByEnd> {
 public:
  using Instant = Clock::time_point;
  static constexpr Instant never = Instant::max();

  /// What comes next for a lease.
  struct Step {
    Instant due = never;  ///< when to renew it
    Instant end = never;  ///< when it ends, unless it is renewed; never: it is over
  };
  /// A renewal that begins.
  struct Try {
    std::span<const std::string> keys;
    std::string_view token;
    std::chrono::milliseconds ttl{};
    Instant give_up_at;
  };

  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  virtual ~Kept() = default;

 protected:
  Kept() = default;

  /// Tells what comes next. An end that has come is noticed.
  virtual Step look(Instant now) noexcept = 0;
  /// Begins to renew the lease, if that is due; `joining`: or nearly so, since others are being
  /// renewed anyway. False if it isn't.
  virtual bool begin_renewal(Instant now, bool joining, Try& begun) noexcept = 0;
  /// How that went.
  virtual Step renewed(Instant sent, Instant now) noexcept = 0;
  virtual Step not_ours(store::Ownership found, Instant now) noexcept = 0;
  /// Without a failure nothing has happened, and it is to be sent again.
  virtual Step not_renewed(const store::Failure* failure, Instant now) noexcept = 0;

 private:
  friend class Keeper;
  Instant due_ = never;  // its place in the orders; never: in none
  Instant end_ = never;
  bool in_request_ = false;
  bool alone_ = false;  // in its request: one with others was refused
};

}  // namespace redlease::inline v1::runtime

#endif
