/// A job that takes longer than its lease's ttl:  long_job [--redis URL] [--fault FAULT]
///
/// The lease is renewed while the job works, so that the ttl can be short: should this process die,
/// another one may start after 1.5 s and not after an hour. And when the lease is lost, the job
/// hears of it and stops between two chunks of its work.
///
/// The faults, in the middle of the job:
///   none          the job ends and gives the lease back
///   delete-key    an operator takes the lease away: noticed by the next renewal. Another one may
///                 have begun by then
///   stop-process  this process is stopped for longer than the ttl, as by a debugger or a
///                 hypervisor: noticed at the first look when it goes on
///   pause-redis   the redis-server of --redis-pid stops answering for longer than the ttl: a timer
///                 in this process ends the lease, before anybody else may begin
/// To try them by hand, run the job with --chunks 600 and use redis-cli or kill.
///
/// The exit code is 0 if the job ended as it should: done without a fault, and with one stopped
/// in time.

#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <redlease/redlease.hpp>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

namespace {

using namespace std::chrono_literals;
using std::chrono::floor;
using std::chrono::milliseconds;

constexpr auto key = "job:nightly-report";
constexpr auto ttl = 1500ms;
constexpr auto chunk_time = 100ms;
constexpr auto outage = 2500ms;  // longer than the ttl

struct Options {
  std::string url = "redis://127.0.0.1:6379";
  std::string fault = "none";
  int chunks = 40;
  int redis_pid = 0;
};

const auto start = std::chrono::steady_clock::now();

void say(std::string_view text) {
  const auto ms = floor<milliseconds>(std::chrono::steady_clock::now() - start);
  fmt::print("{:>6} ms  {}\n", ms.count(), text);
  std::fflush(stdout);
}

/// What the keeper does in the background shows here.
class Log : public redlease::Observer {
 public:
  void on_event(const redlease::Event& event) override {
    if (event.kind == redlease::Event::Kind::renewed) ++renewals;
    if (event.kind == redlease::Event::Kind::renew_failed) {
      say(fmt::format("not renewed, {} ms are left: {}", floor<milliseconds>(event.left).count(),
                      event.message));
    }
  }

  std::atomic<int> renewals{0};
};

/// Resumes a stopped process after the outage, even if it is this one.
class Resumer {
 public:
  void stop(pid_t process) {
    child_ = ::fork();
    if (child_ < 0) throw std::runtime_error("fork failed");
    if (child_ == 0) {
      // No lease and no client is used in here. And nothing keeps this from resuming.
      sigset_t all;
      ::sigfillset(&all);
      ::sigprocmask(SIG_BLOCK, &all, nullptr);
      ::kill(process, SIGSTOP);
      ::usleep(static_cast<useconds_t>(std::chrono::microseconds{outage}.count()));
      ::kill(process, SIGCONT);
      ::_exit(0);
    }
  }
  void wait() {
    if (child_ > 0) ::waitpid(child_, nullptr, 0);
  }

 private:
  pid_t child_ = 0;
};

void take_away_by_hand(const std::string& url) {
  redlease::Client operators{url};
  if (const auto found = operators.inspect(key)) (void)operators.break_lease(key, *found);
}

void strike(const Options& options, Resumer& resumer) {
  say(fmt::format("--- fault: {} ---", options.fault));
  if (options.fault == "delete-key") take_away_by_hand(options.url);
  if (options.fault == "stop-process") resumer.stop(::getpid());
  if (options.fault == "pause-redis") resumer.stop(options.redis_pid);
}

/// Works chunk by chunk, and returns how many are done: all of them, unless the lease is lost.
int work(const Options& options, const redlease::Lease& lease, Resumer& resumer) {
  for (int done = 0; done < options.chunks; ++done) {
    if (!lease.held()) return done;
    if (done == options.chunks / 2 && options.fault != "none") strike(options, resumer);
    std::this_thread::sleep_for(chunk_time);
    if ((done + 1) % 10 == 0) say(fmt::format("{} of {} chunks", done + 1, options.chunks));
  }
  return options.chunks;
}

bool run(const Options& options) {
  const auto log = std::make_shared<Log>();
  redlease::Client redis{options.url, {.command_timeout = 500ms, .observer = log}};
  Resumer resumer;

  auto lease = redis.try_acquire(key, {.ttl = ttl, .auto_renew = true});
  if (!lease) {
    say("another process is at it");
    return false;
  }
  say(fmt::format("{} is ours for {} ms, and renewed while we work", key, ttl.count()));

  // A callback hears of the loss even while the work is busy with something else.
  const std::stop_callback on_loss{lease->stop_token(), [] { say("the lease is lost: stop!"); }};

  const int done = work(options, *lease, resumer);
  if (const auto loss = lease->loss()) {
    // The next holder may begin from now on. What is done is done; nothing more is written.
    say(fmt::format("stopped after {} of {} chunks; lost: {}, held for {} ms", done, options.chunks,
                    to_string(loss->reason), floor<milliseconds>(loss->held_for).count()));
    resumer.wait();
    return options.fault != "none";
  }
  lease->release();  // throws LeaseLost unless the lease was held to this very point
  say(fmt::format("done; {} renewals", log->renewals.load()));
  return options.fault == "none" && log->renewals > 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Options options;
    CLI::App app{"A job that takes longer than its lease's ttl, and what it does on a loss."};
    app.add_option("--redis", options.url, "URL of the server")->capture_default_str();
    app.add_option("--chunks", options.chunks, "of work, 100 ms each")
        ->check(CLI::Range(20, 100'000))
        ->capture_default_str();
    auto* pid = app.add_option("--redis-pid", options.redis_pid, "of a redis-server of your own")
                    ->check(CLI::PositiveNumber);
    app.add_option("--fault", options.fault, "what happens in the middle of the job")
        ->check(CLI::IsMember({"none", "delete-key", "stop-process", "pause-redis"}))
        ->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    if (options.fault == "pause-redis" && pid->empty()) {
      throw std::runtime_error("--fault pause-redis needs --redis-pid");
    }
    return run(options) ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "long_job: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
