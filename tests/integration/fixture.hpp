// What every integration test has: a server of its own, its MONITOR feed, and a client. At the end
// of each test the feed must be free of writes that could hit somebody else's key (promise 1).
#ifndef REDLEASE_TESTS_INTEGRATION_FIXTURE_HPP
#define REDLEASE_TESTS_INTEGRATION_FIXTURE_HPP

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <vector>

#include <redlease/redlease.hpp>

#include "support/monitor.hpp"
#include "support/process.hpp"
#include "support/redis_server.hpp"

namespace redlease::test {

// Keeps what it is told.
class Recorder : public Observer {
 public:
  void on_event(const Event& event) override {
    const std::lock_guard lock{mutex_};
    events_.push_back(event);
  }

  std::vector<Event> all(Event::Kind kind) const {
    const std::lock_guard lock{mutex_};
    std::vector<Event> found;
    for (const auto& event : events_) {
      if (event.kind == kind) found.push_back(event);
    }
    return found;
  }

  // Waits for the first event of a kind; throws if none comes.
  Event first(Event::Kind kind) const {
    if (!eventually(std::chrono::seconds{10}, [&] { return !all(kind).empty(); })) {
      throw std::runtime_error(std::string{"no event of kind "} + to_string(kind));
    }
    return all(kind).front();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Event> events_;
};

class IntegrationTest : public testing::Test {
 protected:
  void TearDown() override {
    monitor.sync();
    EXPECT_THAT(monitor.violations(), testing::IsEmpty());
  }

  std::size_t scripts_run() {
    monitor.sync();
    return monitor.count([](const MonitorLine& line) {
      return line.source != "lua" && (line.args[0] == "EVAL" || line.args[0] == "EVALSHA");
    });
  }

  RedisServer server;
  Monitor monitor{server};
  std::shared_ptr<Recorder> events = std::make_shared<Recorder>();
  Client client{server.url(), {.observer = events}};
};

}  // namespace redlease::test

#endif
