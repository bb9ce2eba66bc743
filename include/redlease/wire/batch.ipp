#ifndef REDLEASE_WIRE_BATCH_IPP
#define REDLEASE_WIRE_BATCH_IPP

#include <algorithm>
#include <utility>

#include <redlease/wire/batch.hpp>

namespace redlease::inline v1::wire {
namespace {

// A buffer that grew beyond this is given back.
constexpr std::size_t largest_kept_buffer = 1 << 20;

}  // namespace

void Batch::Slot::complete(Outcome&& outcome) {
  if (route != nullptr) route->leave();
  done(context, std::move(outcome));
}

void Batch::reset() {
  state.store(waiting, std::memory_order_relaxed);
  if (bytes.capacity() > largest_kept_buffer) bytes = {};
  bytes.clear();
  slots.clear();
  awaiting = members = 0;
  closed = failed = false;
  answered = needed = written = 0;
  link.reset();
}

std::size_t Batch::add(const Request& request) {
  // Nothing of it stays behind when memory runs out: a command without a slot would take another
  // one's reply.
  if (slots.size() == slots.capacity()) slots.reserve(std::max<std::size_t>(8, 2 * slots.size()));
  bytes.append(request.bytes);
  auto& slot = slots.emplace_back();
  slot.end = bytes.size();
  slot.done = request.done;
  slot.context = request.context;
  slot.route = request.route;
  if (request.done == nullptr) ++awaiting;
  return slots.size() - 1;
}

void Batch::withdraw(std::size_t index) {
  slots[index].withdrawn = true;
  --awaiting;
}

std::string Batch::take_pinned() {
  std::string pinned;
  std::size_t begin = 0;
  for (auto& slot : slots) {
    if (slot.pinned && !slot.withdrawn) {
      pinned.append(bytes, begin, slot.end - begin);
      slot.withdrawn = true;
    }
    begin = slot.end;
  }
  return pinned;
}

void Batch::close(Clock::time_point now) {
  drop_withdrawn();
  closed = true;
  sent = now;
  members = awaiting;
  skip_withdrawn();
  const auto last_awaited = std::find_if(slots.rbegin(), slots.rend(), [](const Slot& slot) {
    return slot.done == nullptr && !slot.withdrawn;
  });
  needed = static_cast<std::size_t>(slots.rend() - last_awaited);
}

void Batch::close_unsent() noexcept {
  closed = true;
  members = awaiting;
}

void Batch::drop_withdrawn() {
  const auto gone = [](const Slot& slot) { return slot.withdrawn; };
  if (std::none_of(slots.begin(), slots.end(), gone)) return;
  std::string kept;
  std::size_t begin = 0;
  for (auto& slot : slots) {
    const auto end = slot.end;
    if (!slot.withdrawn) kept.append(bytes, begin, end - begin);
    slot.end = kept.size();
    begin = end;
  }
  bytes = std::move(kept);
}

void Batch::skip_withdrawn() {
  while (answered < slots.size() && slots[answered].withdrawn) ++answered;
}

void Batch::answer(Reply&& reply) {
  auto& slot = slots[answered];
  slot.kind = Outcome::Kind::answered;
  if (slot.done != nullptr) {
    Outcome outcome;
    outcome.kind = slot.kind;
    outcome.reply = std::move(reply);
    outcome.sent = sent;
    slot.complete(std::move(outcome));
  } else {
    slot.reply = std::move(reply);
  }
  ++answered;
  skip_withdrawn();
}

void Batch::fail(errc why, const std::string& words) {
  failed = true;
  code = why;
  cause = words;
  for (auto i = answered; i < slots.size(); ++i) {
    auto& slot = slots[i];
    if (slot.withdrawn) continue;
    slot.kind = slot.end <= written ? Outcome::Kind::in_doubt : Outcome::Kind::not_sent;
    if (slot.done == nullptr) continue;
    Outcome outcome;
    outcome.kind = slot.kind;
    outcome.sent = sent;
    outcome.code = code;
    outcome.cause = cause;
    slot.complete(std::move(outcome));
  }
}

Outcome Batch::outcome(std::size_t index, const std::shared_ptr<Link>& present) {
  auto& slot = slots[index];
  Outcome outcome;
  outcome.kind = slot.kind;
  outcome.sent = sent;
  if (slot.kind == Outcome::Kind::answered) {
    outcome.reply = std::move(slot.reply);
  } else if (failed) {
    outcome.code = code;
    outcome.cause = cause;
    outcome.link = link;
  } else {
    outcome.cause = "timed out";
    if (closed) {
      outcome.kind = Outcome::Kind::in_doubt;
      outcome.link = present;
    }
  }
  return outcome;
}

}  // namespace redlease::inline v1::wire

#endif
