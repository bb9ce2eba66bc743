#ifndef EXAMPLES_ORDER_SERVICE_WORKER_HPP
#define EXAMPLES_ORDER_SERVICE_WORKER_HPP

/// A worker process: takes deliveries from the queue, and says what became of them.

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <redlease/redlease.hpp>
#include <string>
#include <variant>

#include "messages.hpp"
#include "orders.hpp"
#include "probe.hpp"
#include "process.hpp"
#include "processor.hpp"

namespace order_service {

struct WorkerOptions {
  std::string redis;
  std::string database;
  Layers layers{};
};

class Worker final : public Probe {
 public:
  Worker(int number, const WorkerOptions& options, const Shop& shop, const Channel<Message>& queue)
      : shop_(shop),
        queue_(queue),
        redis_(options.redis, {.command_timeout = std::chrono::milliseconds{200},
                               .client_name = fmt::format("order-service-{}", number)}),
        processor_(number, options.layers, options.database, redis_, shop, *this) {}

  /// Works until the queue has no more.
  void run() {
    for (;;) {
      const auto message = queue_.receive();
      const auto* delivery = std::get_if<Delivery>(&message);
      if (delivery == nullptr) return;
      stand_ = delivery->stand;
      answer_ = {};
      answer_.settled = processor_.handle(shop_.orders[delivery->order]);
      queue_.send(answer_);
    }
  }

  void count(Fact fact, std::int64_t times) override { answer_.counts[fact] += times; }

  void waited(std::chrono::nanoseconds time) override {
    answer_.longest_wait = std::chrono::ceil<std::chrono::microseconds>(time);
  }

  /// Stands still where the queue wants it; there the parent stops or ends this process.
  void pass(const Place& place) override {
    if (place.step == Place::Step::nowhere || place != stand_) return;
    stand_ = {};
    queue_.send(Standing{});
    queue_.receive();
  }

 private:
  const Shop& shop_;
  const Channel<Message>& queue_;
  redlease::Client redis_;
  Processor processor_;
  Place stand_;
  Answer answer_;
};

}  // namespace order_service

#endif
