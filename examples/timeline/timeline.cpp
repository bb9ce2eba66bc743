/// What becomes of a lease whose holder is paused for longer than the lease lasts.
///
/// A takes the lease and is paused beyond its ttl. B, who waits for it, takes it over. When A wakes
/// up and releases, it is told that its lease is lost, and B's lease stays as it is. With a plain
/// "SET NX, work, DEL", A would have deleted B's key here, and a third one would have joined in.
///
/// Each step is checked; the exit code is 0 only if all of them came out as promised.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

namespace {

using namespace std::chrono_literals;
using std::chrono::floor;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr auto key = "order:lock:10086";
constexpr auto ttl = 1500ms;

/// Prints what happens, and when: a column for A, one for B and one for Redis.
class Timeline {
 public:
  Timeline() { print("ms", "A", "B", "Redis"); }

  void a(std::string_view text) const { print(instant(), text, "", ""); }
  void b(std::string_view text) const { print(instant(), "", text, ""); }
  void redis(std::string_view text) const { print(instant(), "", "", text); }

 private:
  std::string instant() const {
    return std::to_string(floor<milliseconds>(Clock::now() - start_).count());
  }

  static void print(std::string_view instant, std::string_view a, std::string_view b,
                    std::string_view redis) {
    auto line = fmt::format("{:>5}  {:<36}{:<36}{}", instant, a, b, redis);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
    std::fflush(stdout);  // each line at its instant, also into a pipe
  }

  Clock::time_point start_ = Clock::now();
};

void expect(bool as_promised, std::string_view what) {
  if (!as_promised) throw std::runtime_error(fmt::format("not as promised: {}", what));
}

std::string describe(const std::optional<redlease::Inspection>& found) {
  if (!found) return "the key is free";
  if (!found->ttl()) return fmt::format("a {} that never expires, so no lease", found->type());
  if (!found->is_lease()) return fmt::format("a {}, which is no lease", found->type());
  return fmt::format("token {}, {} ms left", found->fingerprint(), found->ttl()->count());
}

/// Prints what the key holds now, and checks that it is this lease.
void expect_in_redis(const redlease::Lease& lease, redlease::Client& client,
                     const Timeline& timeline) {
  const auto found = client.inspect(key);
  timeline.redis(describe(found));
  expect(found && found->fingerprint() == lease.token().fingerprint(),
         fmt::format("the key holds token {}", lease.token().fingerprint()));
}

/// A releases a lease that it lost while it was paused.
void release_too_late(redlease::Lease& lease, const Timeline& timeline) {
  timeline.a("wakes up and calls release()");
  try {
    lease.release();
  } catch (const redlease::LeaseLost& lost) {
    timeline.a(fmt::format("LeaseLost: {} after {} ms", to_string(lost.loss().reason),
                           floor<milliseconds>(lost.loss().held_for).count()));
    return;
  }
  expect(false, "release() throws LeaseLost when the lease is another's");
}

void run(const std::string& url) {
  // Two clients stand for two processes; they share nothing but the server.
  redlease::Client client_a{url, {.client_name = "timeline-a"}};
  redlease::Client client_b{url, {.client_name = "timeline-b"}};
  client_b.ping();  // a server that can't be reached is an error here, not in the middle

  auto lease_a = client_a.try_acquire(key, {.ttl = ttl});
  if (!lease_a) {
    throw std::runtime_error(fmt::format("{} is in use ({}); try again when it is free", key,
                                         describe(client_a.inspect(key))));
  }
  const Timeline timeline;
  timeline.a(fmt::format("takes {}", key));
  timeline.a(fmt::format("token {}, {} ms are certain", lease_a->token().fingerprint(),
                         floor<milliseconds>(lease_a->remaining()).count()));
  expect_in_redis(*lease_a, client_a, timeline);
  timeline.a("is paused");  // by a garbage collector, a hypervisor, a debugger …

  timeline.b("waits for it, 3 s at most");
  auto lease_b = client_b.acquire(key, {.at_most = 3s}, {.ttl = 5s});
  expect(lease_b.has_value(), "B takes the lease when A's ttl has run out");
  timeline.b(fmt::format("takes it, token {}", lease_b->token().fingerprint()));
  expect(!lease_a->held() && lease_a->remaining() == 0ms, "the two were never held at once");
  expect_in_redis(*lease_b, client_b, timeline);
  timeline.b("works");
  std::this_thread::sleep_for(500ms);

  release_too_late(*lease_a, timeline);
  expect_in_redis(*lease_b, client_b, timeline);

  timeline.b("goes on working, untouched");
  std::this_thread::sleep_for(500ms);
  lease_b->ensure_held(1s);
  timeline.b(fmt::format("commits, {} ms before its end",
                         floor<milliseconds>(lease_b->remaining()).count()));
  lease_b->release();
  timeline.b("release(): held to this very point");

  const auto left_over = client_b.inspect(key);
  timeline.redis(describe(left_over));
  expect(!left_over, "the key is free after the release");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string url = "redis://127.0.0.1:6379";
    CLI::App app{"A lease that is lost while its holder is paused."};
    app.add_option("--redis", url, "URL of the server")->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    run(url);
    fmt::print("\nAs promised: A was told of its loss, and B's lease was never touched.\n");
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "timeline: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
