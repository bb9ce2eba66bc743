#ifndef REDLEASE_WIRE_PIPELINES_IPP
#define REDLEASE_WIRE_PIPELINES_IPP

#include <algorithm>

#include <redlease/wire/pipelines.hpp>

namespace redlease::inline v1::wire {

Pipelines::Pipelines(Endpoint endpoint, Timeouts timeouts, std::size_t max_connections)
    : connector_(std::move(endpoint), timeouts) {
  for (std::size_t i = 0; i < max_connections; ++i) {
    pipelines_.push_back(std::make_unique<Pipeline>(connector_, debts_));
  }
}

void Pipelines::close() {
  const auto deadline = Clock::now() + timeouts().command;
  for (auto& pipeline : pipelines_) pipeline->drain(deadline);
  for (auto& debt : debts_.close()) {
    Outcome outcome;
    outcome.cause = "the client was closed before it could be sent";
    debt.done(debt.context, std::move(outcome));
  }
}

Outcome Pipelines::submit(const Pipeline::Request& request) {
  Pipeline& first = *pipelines_.front();
  Outcome outcome;
  // A crowd is one that the connections cannot serve one caller each.
  if (first.depth() <= pipelines_.size()) {
    for (auto& pipeline : pipelines_) {
      if (!pipeline->submit_if_idle(request, outcome)) continue;
      // No further connection is to be had: those that there are will do.
      const bool no_more = outcome.kind == Outcome::Kind::not_sent && !pipeline->connected() &&
                           request.done == nullptr && first.connected();
      if (!no_more) return outcome;
      break;
    }
  }
  return first.submit(request);
}

Outcome Pipelines::call(const Command& command, Clock::time_point deadline) {
  const Pipeline::Request request{command.bytes(), deadline, nullptr, nullptr};
  auto outcome = submit(request);
  // Not sent because a connection broke just then: a new one is worth one more try.
  if (outcome.kind == Outcome::Kind::not_sent && outcome.link && Clock::now() < deadline) {
    outcome = submit(request);
  }
  return outcome;
}

void Pipelines::post(const Command& command, Clock::time_point deadline, Completion done,
                     void* context) {
  submit({command.bytes(), deadline, done, context});
}

bool Pipelines::owe(std::string bytes, Clock::time_point until, Completion done, void* context) {
  return debts_.add({std::move(bytes), until, done, context});
}

void Pipelines::follow_up(const Outcome& in_doubt, const Command& command,
                          Clock::time_point deadline) {
  if (in_doubt.link) {
    in_doubt.link->pipeline.follow_up(in_doubt.link, command.bytes(), deadline);
  }
}

bool Pipelines::connected() const noexcept {
  return std::any_of(pipelines_.begin(), pipelines_.end(),
                     [](const auto& pipeline) { return pipeline->connected(); });
}

void Pipelines::abandon() noexcept {
  for (auto& pipeline : pipelines_) pipeline->abandon();
}

}  // namespace redlease::inline v1::wire

#endif
