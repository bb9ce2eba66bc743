// LeaseState and RenewalPlan in a small world of their own: a server with one key, requests that
// take their time, get lost, or run when nobody expects them any more, answers that come late or
// never, other holders, an administrator, and a holder that sleeps. Thousands of random histories;
// after each event the promises of lease.hpp are checked against what the server really holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include <redlease/core/lease_state.hpp>
#include <redlease/core/renewal_plan.hpp>

namespace {

using namespace std::chrono_literals;
using redlease::LossReason;
using redlease::core::LeaseState;
using redlease::core::RenewalPlan;
using Instant = redlease::Clock::time_point;
using Span = std::chrono::nanoseconds;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int below(int n) { return std::uniform_int_distribution{0, n - 1}(engine_); }
  bool one_in(int n) { return below(n) == 0; }
  Span up_to(Span most) { return most * below(1001) / 1000; }

 private:
  std::mt19937 engine_;
};

enum class Found { ours, other, absent };

// What Redis does with the key. Its clock runs up to 1 % faster than the holder's.
struct Server {
  bool ours = true;
  bool exists = true;
  Instant expires;
  bool interfered = false;  // somebody took our key away: then the holder may be wrong for a while

  void pass(Instant now) {
    if (exists && now >= expires) exists = ours = false;
  }
  Found renew(Instant now, Span ttl) {
    pass(now);
    if (ours) expires = now + ttl - ttl / 100;
    return ours ? Found::ours : exists ? Found::other : Found::absent;
  }
  bool release(Instant now) {
    pass(now);
    const bool was_ours = ours;
    if (was_ours) exists = ours = false;
    return was_ours;
  }
};

// A renewal on its way. One that was given up may still run, long after.
struct Request {
  Instant sent;
  Span ttl;
  std::optional<Instant> runs;     // never, if it got lost
  std::optional<Instant> answers;  // never, if the answer got lost
  Instant given_up;
  Found found = Found::absent;
};

class History {
 public:
  explicit History(unsigned seed) : random_(seed) {
    ttl_ = 20ms + random_.up_to(2s);
    std::optional<Span> margin;
    if (random_.one_in(2)) margin = random_.up_to(ttl_ / 3);
    state_.emplace(now_, ttl_, margin);
    server_.expires = now_ + ttl_ - ttl_ / 100;
    if (random_.one_in(4)) return;  // without auto_renew
    renews_ = true;
    plan_ = {{.ttl = ttl_, .every = ttl_ / 3, .max_hold = {}}, now_};
    state_->warn_before_end();
  }

  void run() {
    for (int i = 0; i < 200 && !over_; ++i) {
      step();
      check();
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  int renewals = 0;
  int losses = 0;
  int releases = 0;

 private:
  void step() {
    now_ += random_.one_in(30) ? random_.up_to(ttl_ * 2) : random_.up_to(ttl_ / 20);
    run_requests();
    server_.pass(now_);
    if (random_.one_in(300)) {
      server_.ours = false;
      server_.interfered = true;
      server_.exists = random_.one_in(2);
      server_.expires = now_ + 1h;
    }
    hear();
    if (!state_->held(now_)) return;
    if (random_.one_in(60)) {
      release();
    } else if (!request_ && renews_ &&
               now_ >= plan_.due(state_->valid_until(), state_->counted_ttl(), now_)) {
      send(ttl_, RenewalPlan::try_until(now_, state_->ends_at()));
    } else if (!request_ && random_.one_in(50)) {
      send(10ms + random_.up_to(ttl_ * 3), now_ + random_.up_to(ttl_));  // renew(ttl), by hand
    }
  }

  void send(Span ttl, Instant given_up) {
    ASSERT_FALSE(released_) << "no renewal after the release";
    ++renewals;
    state_->begin_renewal(now_, ttl);
    Request request{now_, ttl, {}, {}, given_up};
    if (!random_.one_in(8)) {
      request.runs = now_ + random_.up_to(random_.one_in(8) ? ttl_ * 2 : ttl_ / 10);
      if (!random_.one_in(8)) request.answers = *request.runs + random_.up_to(ttl_ / 4);
    }
    request_ = request;
  }

  // On the server, in any order when several are late.
  void run_requests() {
    if (request_ && request_->runs && now_ >= *request_->runs) {
      request_->found = server_.renew(*request_->runs, request_->ttl);
      request_->runs.reset();
      ran_ = true;
    }
    for (auto& [runs, ttl] : stray_) {
      if (now_ >= runs) server_.renew(now_, ttl);
    }
    std::erase_if(stray_, [&](const auto& stray) { return now_ >= stray.first; });
  }

  // What the holder learns.
  void hear() {
    if (!request_) return;
    if (ran_ && request_->answers && now_ >= *request_->answers) {
      if (request_->found == Found::ours) {
        const bool too_late = now_ >= state_->ends_at();
        state_->renewed(request_->sent, request_->ttl, now_);
        plan_.succeeded();
        ASSERT_FALSE(too_late && state_->held(now_)) << "revived by a late answer";
      } else {
        state_->lost(request_->found == Found::other ? LossReason::taken : LossReason::missing,
                     now_);
      }
    } else if (now_ >= request_->given_up) {
      if (!ran_ && request_->runs) stray_.emplace_back(*request_->runs, request_->ttl);
      state_->renewal_in_doubt(request_->ttl);
      plan_.failed(now_, state_->ends_at());
    } else {
      return;
    }
    request_.reset();
    ran_ = false;
  }

  void release() {
    if (request_) {  // settled first: it may run yet, but its answer means nothing
      if (!ran_ && request_->runs) stray_.emplace_back(*request_->runs, request_->ttl);
      state_->renewal_in_doubt(request_->ttl);
      request_.reset();
      ran_ = false;
    }
    ASSERT_TRUE(state_->may_release(now_));
    state_->begin_release();
    if (random_.one_in(3)) {
      state_->release_refused();
      return;
    }
    released_ = true;
    if (server_.release(now_)) {
      ++releases;
      state_->released();
    } else {
      state_->lost(LossReason::missing, now_);
    }
  }

  void check() {
    const bool held = state_->held(now_);
    const auto loss = state_->loss(now_);
    server_.pass(now_);
    if (held) {
      ASSERT_FALSE(lost_) << "held again after a loss";
      ASSERT_FALSE(released_) << "held after a release";
      ASSERT_FALSE(loss.has_value());
      ASSERT_LE(state_->tell_end_at(), state_->ends_at());
      ASSERT_LE(state_->ends_at(), state_->valid_until());
      if (!server_.interfered) {
        ASSERT_TRUE(server_.ours) << "held, but the key is not ours";
        ASSERT_LE(now_ + state_->remaining(now_), server_.expires) << "optimistic";
      }
    } else {
      ASSERT_EQ(state_->remaining(now_), Span::zero());
    }
    if (loss) {
      if (!lost_) ++losses;
      if (lost_) {
        ASSERT_EQ(*lost_, *loss) << "one loss, and it stays the same";
        ASSERT_EQ(lost_at_, state_->ended_at());
      }
      lost_ = loss;
      lost_at_ = state_->ended_at();
      ASSERT_FALSE(state_->may_release(now_)) << "a lost lease sends nothing";
      after_ += 1;
      over_ = after_ > 20;
    }
    if (state_->is_released()) {
      ASSERT_FALSE(loss.has_value());
      after_ += 1;
      over_ = after_ > 20;
    }
  }

  Random random_;
  Instant now_ = Instant{} + 1h;
  Span ttl_{};
  bool renews_ = false;
  std::optional<LeaseState> state_;
  RenewalPlan plan_;
  Server server_;
  std::optional<Request> request_;
  bool ran_ = false;
  std::vector<std::pair<Instant, Span>> stray_;
  std::optional<LossReason> lost_;
  Instant lost_at_;
  bool released_ = false;
  int after_ = 0;
  bool over_ = false;
};

TEST(LeaseProperties, HoldInThousandsOfRandomHistories) {
  int renewals = 0;
  int losses = 0;
  int releases = 0;
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    History history{seed};
    history.run();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    ASSERT_LE(history.losses, 1);
    renewals += history.renewals;
    losses += history.losses;
    releases += history.releases;
  }
  // The histories were worth it.
  EXPECT_GT(renewals, 20'000);
  EXPECT_GT(losses, 2'000);
  EXPECT_GT(releases, 2'000);
}

}  // namespace
