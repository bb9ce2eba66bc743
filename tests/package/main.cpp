// What a user of the installed package writes. It needs no server: nobody listens at that address.
#include <redlease/redlease.hpp>

#include <chrono>
#include <iostream>
#include <memory>

namespace {

using namespace std::chrono_literals;

class Log : public redlease::Observer {
 public:
  void on_event(const redlease::Event& event) override {
    std::cout << to_string(event.kind) << '\n';
  }
};

int try_to_work(redlease::Client& client) {
  const redlease::LeaseOptions options{.ttl = 3s, .fencing = true};
  const auto worked = client.with_lease("order:42", redlease::Wait{.at_most = 10ms}, options,
                                        [](redlease::Lease& lease) { lease.ensure_held(1s); });
  return worked ? 1 : 2;
}

}  // namespace

int main() {
  std::cout << "redlease " << redlease::version() << '\n';
  if (redlease::version() != redlease::header_version) return 3;
  redlease::SingleFlight<int> flight;
  redlease::Client client{"unix:///nowhere/redis.sock", {.observer = std::make_shared<Log>()}};
  try {
    return flight.run("order:42", [&] { return try_to_work(client); });
  } catch (const redlease::Error& error) {
    std::cout << error.what() << '\n';
    return error.code() == redlease::errc::unavailable ? 0 : 4;
  }
}
