#ifndef REDLEASE_WIRE_PIPELINES_IPP
#define REDLEASE_WIRE_PIPELINES_IPP

#include <algorithm>

#include <redlease/wire/pipelines.hpp>

namespace redlease::inline v1::wire {
namespace {

// With more callers waiting for one pipeline than this they do better together on one connection
// than spread over several.
constexpr unsigned largest_loose_crowd = 3;

// Each thread begins where it was served last, so that threads don't meet on one pipeline's lock.
thread_local std::size_t preferred = 0;

}  // namespace

Pipelines::Pipelines(Endpoint endpoint, Timeouts timeouts, std::size_t max_connections)
    : connector_(std::move(endpoint), timeouts) {
  for (std::size_t i = 0; i < max_connections; ++i) {
    pipelines_.push_back(std::make_unique<Pipeline>(connector_, debts_));
  }
}

void Pipelines::close() noexcept {
  const auto deadline = Clock::now() + timeouts().command;
  for (auto& pipeline : pipelines_) pipeline->drain(deadline);
  for (auto& debt : debts_.close()) {
    Outcome outcome;
    outcome.cause = "client closed";  // short enough to need no memory
    debt.done(debt.context, std::move(outcome));
  }
}

// An idle pipeline, or else the first one. Only a hint: it may be busy by the time it is used.
std::size_t Pipelines::idle_one() const noexcept {
  if (pipelines_.front()->depth() > largest_loose_crowd) return 0;
  for (std::size_t i = 0; i < pipelines_.size(); ++i) {
    const auto index = (preferred + i) % pipelines_.size();
    if (pipelines_[index]->connected() && pipelines_[index]->idle()) return index;
  }
  return 0;
}

bool Pipelines::submit_to_idle(const Request& request, Outcome& outcome) {
  const auto count = pipelines_.size();
  for (const bool connected : {true, false}) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto index = (preferred + i) % count;
      Pipeline& pipeline = *pipelines_[index];
      if (pipeline.connected() == connected && pipeline.submit_if_idle(request, outcome)) {
        preferred = index;
        return true;
      }
    }
  }
  return false;
}

Outcome Pipelines::submit(const Request& request, std::string_view key) {
  if (!key.empty()) {
    if (const auto index = routes_.of(key).pipeline()) return pipelines_[*index]->submit(request);
  }
  Pipeline& first = *pipelines_.front();
  Outcome outcome;
  if (first.depth() > largest_loose_crowd || !submit_to_idle(request, outcome)) {
    return first.submit(request);
  }
  // If no further connection was to be had, those that there are will do.
  if (outcome.kind == Outcome::Kind::not_sent && !outcome.link && first.connected()) {
    return first.submit(request);
  }
  return outcome;
}

Outcome Pipelines::call(const Command& command, Clock::time_point deadline, std::string_view key) {
  const Request request{command.bytes(), deadline};
  auto outcome = submit(request, key);
  // Not sent because a connection broke just then: a new one is worth one more try.
  if (outcome.kind == Outcome::Kind::not_sent && outcome.link && Clock::now() < deadline) {
    outcome = submit(request, key);
  }
  return outcome;
}

// Answers come in order: the one to a PING behind those of what was posted.
void Pipelines::await_posted(std::string_view key, Clock::time_point deadline) {
  if (const auto index = routes_.of(key).pipeline()) {
    (void)pipelines_[*index]->submit({Command{"PING"}.bytes(), deadline});
  }
}

void Pipelines::post(std::string_view key, const Command& command, Clock::time_point deadline,
                     Completion done, void* context) {
  Route& route = routes_.of(key);
  const auto index = route.enter(idle_one());
  try {
    pipelines_[index]->submit({command.bytes(), deadline, done, context, &route});
  } catch (...) {
    route.leave();  // it was not even queued
    throw;
  }
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
