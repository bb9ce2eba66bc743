// How one waits for a key with raw hiredis. As elsewhere: no time-outs, no errors handled, the same
// token every time.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <redlease/store/lua_scripts.hpp>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "contenders.hpp"
#include "raw_redis.hpp"

namespace redlease::bench {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr auto ttl_ms = "10000";

class Random {
 public:
  std::chrono::microseconds between(Milliseconds least, Milliseconds most) {
    using std::chrono::microseconds;
    return microseconds{std::uniform_int_distribution{microseconds{least}.count(),
                                                      microseconds{most}.count()}(engine_)};
  }

 private:
  std::mt19937 engine_{std::random_device{}()};
};

// What all rivals have: a connection, and a token that is no other thread's.
class RawContender : public Contender {
 public:
  RawContender(const Settings& settings, int thread)
      : redis_(settings.host, settings.port),
        token_(fmt::format("{:018}{:018}", ::getpid(), thread)) {}

 protected:
  std::string load(std::string_view script) {
    return redis_.command({"SCRIPT", "LOAD", script})->str;
  }
  bool try_to_set() {
    const auto reply = redis_.command({"SET", contended_key, token_, "NX", "PX", ttl_ms});
    return reply->type == REDIS_REPLY_STATUS;
  }
  static void expect_given_back(const RawRedis::Reply& reply) {
    if (reply->integer != 1) throw std::runtime_error("the key was lost");
  }

  RawRedis redis_;
  const std::string token_;
};

// ---- polling -----------------------------------------------------------------------------------

class PollingContender : public RawContender {
 public:
  PollingContender(const Settings& settings, int thread)
      : RawContender(settings, thread), release_(load(lua::release.text)) {}

  void acquire() override {
    while (!try_to_set()) {
      std::this_thread::sleep_for(random_.between(Milliseconds{1}, Milliseconds{10}));
    }
  }
  void release() override {
    expect_given_back(redis_.command({"EVALSHA", release_, "1", contended_key, token_}));
  }

 private:
  const std::string release_;
  Random random_;
};

// ---- PUBLISH -----------------------------------------------------------------------------------

constexpr auto channel = "bench:contended:released";
constexpr auto publishing_release = R"(
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], '')
return 1
)";

// Wakes the first of the process's waiters whenever somebody, anywhere, has published a release.
class Subscriber {
 public:
  struct Waiter {
    std::condition_variable wake;
    bool registered = false;
  };
  enum class Place { front, back };

  explicit Subscriber(const Settings& settings) : redis_(settings.host, settings.port) {
    redis_.command({"SUBSCRIBE", channel});
    thread_ = std::jthread{[this] { listen(); }};
  }
  ~Subscriber() { redis_.shut_down(); }
  Subscriber(const Subscriber&) = delete;
  Subscriber& operator=(const Subscriber&) = delete;

  void add(Waiter& waiter, Place place) {
    const std::lock_guard lock{mutex_};
    if (std::exchange(waiter.registered, true)) return;  // its time was up before it was woken
    waiters_.insert(place == Place::front ? waiters_.begin() : waiters_.end(), &waiter);
  }
  void wait(Waiter& waiter, std::chrono::microseconds at_most) {
    std::unique_lock lock{mutex_};
    waiter.wake.wait_for(lock, at_most, [&] { return !waiter.registered; });
  }
  void remove(Waiter& waiter) {
    const std::lock_guard lock{mutex_};
    if (std::exchange(waiter.registered, false)) std::erase(waiters_, &waiter);
  }

 private:
  void listen() {
    try {
      for (;;) {
        redis_.next_reply();
        wake_one();
      }
    } catch (const std::runtime_error&) {
      // It was shut down.
    }
  }
  void wake_one() {
    const std::lock_guard lock{mutex_};
    if (waiters_.empty()) return;
    auto& first = *waiters_.front();
    waiters_.pop_front();
    first.registered = false;
    first.wake.notify_one();
  }

  RawRedis redis_;
  std::mutex mutex_;
  std::deque<Waiter*> waiters_;
  std::jthread thread_;
};

class PublishContender : public RawContender {
 public:
  PublishContender(const Settings& settings, int thread, Subscriber& subscriber)
      : RawContender(settings, thread),
        subscriber_(subscriber),
        release_(load(publishing_release)) {}

  // Registered before the attempt that decides whether to wait: no release goes unnoticed. Who was
  // woken and came too late is the next to be woken.
  void acquire() override {
    if (try_to_set()) return;
    subscriber_.add(waiter_, Subscriber::Place::back);
    while (!try_to_set()) {
      subscriber_.wait(waiter_, random_.between(Milliseconds{500}, Milliseconds{600}));
      subscriber_.add(waiter_, Subscriber::Place::front);
    }
    subscriber_.remove(waiter_);
  }
  void release() override {
    expect_given_back(redis_.command({"EVALSHA", release_, "2", contended_key, channel, token_}));
  }

 private:
  Subscriber& subscriber_;
  Subscriber::Waiter waiter_;
  const std::string release_;
  Random random_;
};

// ---- grants ------------------------------------------------------------------------------------

constexpr auto queue = "bench:contended:queue";
constexpr auto set_or_queue = R"(
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 0
)";
// The list through which a waiter is told has the name of its token.
constexpr auto granting_release = R"(
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local next = redis.call('LPOP', KEYS[2])
if not next then
  return redis.call('DEL', KEYS[1])
end
redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
redis.call('RPUSH', next, '')
redis.call('PEXPIRE', next, ARGV[2])
return 1
)";

class GrantsContender : public RawContender {
 public:
  GrantsContender(const Settings& settings, int thread)
      : RawContender(settings, thread),
        acquire_(load(set_or_queue)),
        release_(load(granting_release)) {}

  void acquire() override {
    const auto reply =
        redis_.command({"EVALSHA", acquire_, "2", contended_key, queue, token_, ttl_ms});
    if (reply->integer == 1) return;
    if (redis_.command({"BLPOP", token_, "10"})->type != REDIS_REPLY_ARRAY) {
      throw std::runtime_error("a thread waited in vain");
    }
  }
  void release() override {
    expect_given_back(
        redis_.command({"EVALSHA", release_, "2", contended_key, queue, token_, ttl_ms}));
  }

 private:
  const std::string acquire_;
  const std::string release_;
};

}  // namespace

Contenders polling_contenders(const Settings& settings) {
  return [&settings](int thread) { return std::make_unique<PollingContender>(settings, thread); };
}

Contenders publish_contenders(const Settings& settings) {
  return [&settings, subscriber = std::make_shared<Subscriber>(settings)](int thread) {
    return std::make_unique<PublishContender>(settings, thread, *subscriber);
  };
}

Contenders grants_contenders(const Settings& settings) {
  return [&settings](int thread) { return std::make_unique<GrantsContender>(settings, thread); };
}

}  // namespace redlease::bench
