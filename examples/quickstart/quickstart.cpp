/// The README's code, as a program that runs:  quickstart [--redis URL]
///
/// The parts between two equal marks, such as [try], stand in the README; the test `readme` checks
/// that they still do.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <redlease/redlease.hpp>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>

namespace {

using namespace std::chrono_literals;

void say(const std::string& what) { std::printf("%s\n", what.c_str()); }

void rebuild_cache() { say("cache 42: rebuilt"); }

/// Stands for a transaction of the database: undone at the end of its scope, unless committed.
class Transaction {
 public:
  void reserve_stock() { ++lines_; }
  void commit() { say("order 10086: committed " + std::to_string(lines_) + " lines"); }

 private:
  int lines_ = 0;
};

/// The work may have overlapped with the next holder's: somebody has to look at it.
void report_overlap(const std::string& key) { say(key + ": to be reconciled"); }

void rebuild_unless_another_does(redlease::Client& redis) {
  // [try]
  // One attempt. A lease that another holds is an answer, not an error: an empty optional.
  if (auto lease = redis.try_acquire("cache:rebuild:42", {.ttl = 3s})) {
    rebuild_cache();
  }  // given back here: the key is deleted if it is still ours, and the scope doesn't wait for it
  // [try]
}

// [wait]
bool book_order(redlease::Client& redis) {
  // Waits for at most 2 s. Renewed while this works; should this process die, it ends within 8 s.
  auto lease = redis.acquire("order:lock:10086", {.at_most = 2s}, {.ttl = 8s, .auto_renew = true});
  if (!lease) return false;

  std::stop_token lost = lease->stop_token();  // requested in time, if the server keeps the key
  Transaction books;                           // rolls back unless it is committed
  for (int line = 0; line < 3 && !lost.stop_requested(); ++line) books.reserve_stock();
  lease->ensure_held(1s);  // throws LeaseLost unless 1 s is left for certain
  books.commit();          // the step that can't be undone
  std::error_code late;    // the commit stands, whatever becomes of the release
  lease->release(late);    // other trouble than a loss: the ttl frees the key
  if (late == redlease::errc::lost) report_overlap(lease->key());
  return true;
}
// [wait]

/// A holder that is paused for longer than its lease lasts.
bool book_too_late(redlease::Client& redis) {
  auto lease = redis.acquire("order:lock:10087", {.at_most = 2s}, {.ttl = 100ms});
  if (!lease) return false;
  Transaction books;
  books.reserve_stock();
  std::this_thread::sleep_for(150ms);
  lease->ensure_held(10ms);
  books.commit();
  lease->release();
  return true;
}

std::string outcome_of(const std::function<bool()>& work) {
  // [loss]
  try {
    return work() ? "booked" : "busy: another one held the lease to the end of the wait";
  } catch (const redlease::LeaseLost& lost) {
    // The next holder may be at work already. Stop, and leave the resource alone: what was not
    // committed is rolled back; whether a commit went through, the database knows.
    return std::string{"lost: "} + to_string(lost.loss().reason);
  } catch (const redlease::Error& error) {
    // No definite answer, or a refusal: what() names operation, key, server and cause.
    return std::string{"failed: "} + error.what();
  }
  // [loss]
}

int count_pieces(redlease::Lease& lease) {
  const int counted = 42;  // takes its time
  lease.ensure_held();
  return counted;
}

void count_stock(redlease::Client& redis) {
  // [with_lease]
  // Calls the function only if the lease is held, and releases behind it.
  std::optional<int> pieces =
      redis.with_lease("stock:lock:7", {.at_most = 2s}, {.ttl = 8s}, count_pieces);
  // [with_lease]
  say(pieces ? "stock 7: " + std::to_string(*pieces) + " pieces" : "stock 7: busy");
}

void print_in_turn(redlease::Client& redis) {
  // [fifo]
  // In order of arrival, over all processes that wait like this. Waiters who died are passed over;
  // a holder who died has the lease until its ttl ends.
  auto turn = redis.acquire("printer:3", {.at_most = 5s, .order = redlease::Order::fifo},
                            {.ttl = 2s, .auto_renew = true});
  // [fifo]
  say(turn ? "printer 3: printed" : "printer 3: busy");
}

/// Stands for `UPDATE stock SET available = available - 1, fence = :fence WHERE key = :key AND
/// fence <= :fence`: whether a row was changed.
bool deduct(const std::string& key, redlease::FencingToken fence) {
  say(key + ": one piece less, as number " + std::to_string(fence.value()));
  return true;
}

// [all]
bool ship_order(redlease::Client& redis) {
  // All keys or none, whatever their order here: orders over the same keys never deadlock. Each
  // key has a number that rises with every acquisition.
  auto lease = redis.acquire_all({"stock:lock:9", "stock:lock:7"}, {.at_most = 2s},
                                 {.ttl = 8s, .fencing = true});
  if (!lease) return false;
  for (const std::string& key : lease->keys()) {
    // UPDATE … SET fence = :fence WHERE … AND fence <= :fence: refuses one who comes too late.
    if (!deduct(key, lease->fencing_token(key))) return false;
  }
  lease->release();
  return true;
}
// [all]

}  // namespace

int main(int argc, char** argv) {
  try {
    CLI::App app{"The code of the README, at work."};
    std::string url = "redis://127.0.0.1:6379";
    app.add_option("--redis", url, "URL of the server")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    redlease::Client redis{url};
    redis.ping();  // fail now rather than at the first lease
    rebuild_unless_another_does(redis);
    say("order 10086: " + outcome_of([&] { return book_order(redis); }));
    say("order 10087: " + outcome_of([&] { return book_too_late(redis); }));
    say("order 10088: " + outcome_of([&] { return ship_order(redis); }));
    print_in_turn(redis);
    count_stock(redis);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quickstart: %s\n", error.what());
    return 1;
  }
}
