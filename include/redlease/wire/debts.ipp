#ifndef REDLEASE_WIRE_DEBTS_IPP
#define REDLEASE_WIRE_DEBTS_IPP

#include <algorithm>
#include <iterator>
#include <utility>

#include <redlease/wire/debts.hpp>

namespace redlease::inline v1::wire {
namespace {

// So many that a batch of them is worth it, and so few that nobody notices having sent them.
constexpr std::ptrdiff_t most_at_once = 100;

}  // namespace

bool Debts::add(Debt debt) {
  const std::lock_guard lock{mutex_};
  if (closed_) return false;
  debts_.push_back(std::move(debt));
  note_first();
  return true;
}

std::vector<Debt> Debts::take_due(Clock::time_point by) {
  const std::lock_guard lock{mutex_};
  auto rest = std::partition(debts_.begin(), debts_.end(),
                             [by](const Debt& debt) { return debt.from <= by; });
  if (rest - debts_.begin() > most_at_once) rest = debts_.begin() + most_at_once;
  std::vector<Debt> taken{std::make_move_iterator(debts_.begin()), std::make_move_iterator(rest)};
  debts_.erase(debts_.begin(), rest);
  note_first();
  return taken;
}

std::vector<Debt> Debts::close() {
  const std::lock_guard lock{mutex_};
  closed_ = true;
  auto taken = std::exchange(debts_, {});
  note_first();
  return taken;
}

void Debts::note_first() {
  auto first = never;
  for (const auto& debt : debts_) first = std::min(first, debt.from.time_since_epoch().count());
  first_.store(first, std::memory_order_release);
}

}  // namespace redlease::inline v1::wire

#endif
