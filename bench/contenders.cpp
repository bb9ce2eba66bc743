#include "contenders.hpp"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <map>
#include <optional>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

#include "process.hpp"

namespace redlease::bench {
namespace {

using namespace std::chrono_literals;

constexpr auto held_for = 2ms;
constexpr auto ttl = 10s;
constexpr auto patience = 30s;

std::string url_of(const Settings& settings) {
  return fmt::format("redis://{}:{}", settings.host, settings.port);
}

enum class GivingBack { release, scope_exit };

class LeaseContender : public Contender {
 public:
  LeaseContender(Client& client, Order order, GivingBack giving_back)
      : client_(client), order_(order), giving_back_(giving_back) {}

  void acquire() override {
    lease_ = client_.acquire(contended_key, {.at_most = patience, .order = order_}, {.ttl = ttl});
    if (!lease_) throw std::runtime_error("a thread waited in vain");
  }
  void release() override {
    if (giving_back_ == GivingBack::release) lease_->release();
    lease_.reset();
  }

 private:
  Client& client_;
  const Order order_;
  const GivingBack giving_back_;
  std::optional<Lease> lease_;
};

// One Client for all threads of the process.
Contenders leases(const Settings& settings, Order order, GivingBack giving_back) {
  auto client = std::make_shared<Client>(url_of(settings));
  return [client, order, giving_back](int) {
    return std::make_unique<LeaseContender>(*client, order, giving_back);
  };
}

Contenders contenders(const Settings& settings, const std::string& subject) {
  const std::map<std::string, std::function<Contenders()>> all{
      {"redlease", [&] { return leases(settings, Order::any, GivingBack::release); }},
      {"redlease/scope_exit", [&] { return leases(settings, Order::any, GivingBack::scope_exit); }},
      {"redlease/fifo", [&] { return leases(settings, Order::fifo, GivingBack::release); }},
      {"hiredis/polling", [&] { return polling_contenders(settings); }},
      {"hiredis/publish", [&] { return publish_contenders(settings); }},
      {"hiredis/grants", [&] { return grants_contenders(settings); }},
  };
  const auto found = all.find(subject);
  if (found == all.end()) throw std::invalid_argument("there is no subject " + subject);
  return found->second();
}

// Holds the key again and again. When it is time to stop, all who wait still get their turn, but
// hold it no longer than they must.
void take_turns(Contender& contender, int thread, std::vector<Turn>& turns,
                const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    Turn turn{.thread = thread};
    turn.asked = steady_now();
    contender.acquire();
    turn.had = steady_now();
    if (!stop.load(std::memory_order_relaxed)) std::this_thread::sleep_for(held_for);
    turn.releasing = steady_now();
    contender.release();
    turns.push_back(turn);
  }
}

void write(const void* bytes, std::size_t size) {
  if (std::fwrite(bytes, 1, size, stdout) != size || std::fflush(stdout) != 0) {
    throw std::runtime_error("cannot write to standard output");
  }
}

}  // namespace

bool has_fifo(const Settings& settings) {
  try {
    (void)Client{url_of(settings)}.acquire(contended_key, {.at_most = 0ms, .order = Order::fifo});
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

std::int64_t steady_now() {
  return std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count();
}

void contend(const Settings& settings, const std::string& subject, int threads) {
  const auto make = contenders(settings, subject);
  std::vector<std::vector<Turn>> turns(static_cast<std::size_t>(threads));
  std::latch ready{threads};
  std::atomic<bool> stop{false};
  std::vector<std::jthread> workers;
  workers.reserve(turns.size());
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      try {
        const auto contender = make(i);
        auto& mine = turns[static_cast<std::size_t>(i)];
        mine.reserve(4096);
        ready.arrive_and_wait();
        take_turns(*contender, i, mine, stop);
      } catch (const std::exception& error) {
        fmt::print(stderr, "redlease_bench: {}: {}\n", subject, error.what());
        std::_Exit(1);  // the others may wait for what this thread holds
      }
    });
  }
  ready.wait();
  write("r", 1);
  await_end_of_input();
  stop = true;
  workers.clear();
  for (const auto& mine : turns) write(mine.data(), mine.size() * sizeof(Turn));
}

std::vector<Turn> turns_of(const std::string& written) {
  std::vector<Turn> turns(written.size() / sizeof(Turn));
  if (!turns.empty()) std::memcpy(turns.data(), written.data(), turns.size() * sizeof(Turn));
  return turns;
}

}  // namespace redlease::bench
