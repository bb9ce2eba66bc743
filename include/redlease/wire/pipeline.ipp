#ifndef REDLEASE_WIRE_PIPELINE_IPP
#define REDLEASE_WIRE_PIPELINE_IPP

#include <algorithm>
#include <exception>
#include <limits>

#include <redlease/wire/futex.hpp>
#include <redlease/wire/pipeline.hpp>

namespace redlease::inline v1::wire {
namespace {

// A deadline for those who don't want to wait.
constexpr Clock::time_point in_the_past{};

constexpr int everybody = std::numeric_limits<int>::max();

// A connection that has been quiet for longer is looked at before it is used: the server may have
// closed it, and a command written to it would be in doubt for nothing.
constexpr std::chrono::milliseconds trusted_silence{2};

// With more batches unread than this, one who only posts reads the replies that are there.
constexpr std::size_t many_unread = 16;

// A caller who has its own reply doesn't wait for longer to get posted commands written.
constexpr std::chrono::milliseconds patience_for_others{10};

}  // namespace

// ---- joining -----------------------------------------------------------------------------------

Batch& Pipeline::unused_batch() {
  const auto unused = std::find_if(batches_.begin(), batches_.end(), [](const auto& batch) {
    return batch->users.load(std::memory_order_acquire) == 0;
  });
  Batch& batch =
      unused != batches_.end() ? **unused : *batches_.emplace_back(std::make_unique<Batch>());
  batch.reset();
  batch.users.store(1, std::memory_order_relaxed);
  return batch;
}

Pipeline::Ticket Pipeline::join(const Request& request) {
  if (open_ == nullptr) open_ = &unused_batch();
  Batch& batch = *open_;
  const auto index = batch.add(request);
  batch.users.fetch_add(1, std::memory_order_relaxed);
  return {&batch, index, request.done == nullptr};
}

Outcome Pipeline::submit(const Request& request) {
  std::unique_lock lock{mutex_};
  const auto mine = join(request);
  if (!driven_.load(std::memory_order_relaxed)) {
    driven_.store(true, std::memory_order_relaxed);
    lock.unlock();
    return drive(mine, request.deadline);
  }
  lock.unlock();
  if (mine.awaited) return follow(mine, request.deadline);
  mine.batch->users.fetch_sub(1, std::memory_order_release);
  return {};
}

bool Pipeline::submit_if_idle(const Request& request, Outcome& outcome) {
  if (!idle()) return false;
  std::unique_lock lock{mutex_, std::try_to_lock};
  if (!lock.owns_lock() || driven_.load(std::memory_order_relaxed)) return false;
  const auto mine = join(request);
  driven_.store(true, std::memory_order_relaxed);
  lock.unlock();
  outcome = drive(mine, request.deadline);
  return true;
}

// ---- sleeping ----------------------------------------------------------------------------------

Outcome Pipeline::follow(const Ticket& mine, Clock::time_point deadline) {
  Batch& batch = *mine.batch;
  for (;;) {
    auto state = batch.state.load(std::memory_order_acquire);
    if (state == Batch::done) {
      auto outcome = batch.outcome(mine.index, nullptr);
      leave(batch, outcome);
      return outcome;
    }
    if (state == Batch::vacant) {
      if (batch.state.compare_exchange_strong(state, Batch::waiting, std::memory_order_acq_rel)) {
        return drive(mine, deadline);
      }
    } else if (!futex_wait(batch.state, state, deadline)) {
      return give_up(mine);
    }
  }
}

Outcome Pipeline::give_up(const Ticket& mine) {
  Batch& batch = *mine.batch;
  std::unique_lock lock{mutex_};
  auto state = batch.state.load(std::memory_order_acquire);
  // Its slot is the driver's; of a batch that is not over it must not be looked at.
  Outcome outcome;
  outcome.cause = "timed out";
  if (state == Batch::done) {
    outcome = batch.outcome(mine.index, nullptr);
  } else if (batch.closed) {
    outcome.kind = Outcome::Kind::in_doubt;
    outcome.sent = batch.sent;
    outcome.link = link_ ? link_ : failing_;
    --batch.awaiting;
  } else {
    batch.withdraw(mine.index);
  }
  const bool has_seat =
      state == Batch::vacant &&
      batch.state.compare_exchange_strong(state, Batch::waiting, std::memory_order_acq_rel);
  lock.unlock();
  // Somebody woke this one to drive: pass that on, or nobody else would be woken.
  if (has_seat) hand_over({mine.batch, mine.index, false});
  leave(batch, outcome);
  return outcome;
}

// Those who have nothing to do with a retired connection any more must not keep it open.
void Pipeline::leave(Batch& batch, const Outcome& outcome) {
  std::unique_lock<std::mutex> lock;
  if (outcome.link) {
    lock = std::unique_lock{mutex_};
    if (batch.users.load(std::memory_order_acquire) == 1) batch.link.reset();
  }
  batch.users.fetch_sub(1, std::memory_order_release);
}

// ---- driving -----------------------------------------------------------------------------------

Outcome Pipeline::drive(const Ticket& mine, Clock::time_point deadline) {
  Batch& batch = *mine.batch;
  Outcome outcome;
  outcome.cause = "timed out";
  std::exception_ptr trouble;
  try {
    auto now = Clock::now();
    if (!batch.closed && ensure_link(mine, deadline, now)) {
      transmit(batch, deadline, now);
      if (!mine.awaited && in_flight_.size() > many_unread) read_outstanding(in_the_past);
    }
    if (batch.closed && mine.awaited) collect(mine, deadline);
    // While it is open, others may be adding to it; the own command was taken out again then.
    if (batch.closed && mine.awaited) outcome = batch.outcome(mine.index, link_);
  } catch (...) {
    // Out of memory, most likely. Whatever is half done ends here, so that the others can go on.
    trouble = std::current_exception();
    if (!batch.closed) fail_unsent(batch, errc::unavailable, "no memory");
    if (link_) fail_link(errc::unavailable, "no memory");
  }
  hand_over(mine);
  leave(batch, outcome);
  // Who posted a command hears of this by its completion.
  if (trouble && mine.awaited) std::rethrow_exception(trouble);
  return outcome;
}

bool Pipeline::ensure_link(const Ticket& mine, Clock::time_point deadline, Clock::time_point& now) {
  if (link_ && now - link_->connection->last_heard() > trusted_silence) check_link();
  if (link_) return true;
  try {
    auto fresh = std::make_shared<Link>(*this, connector_.open(deadline));
    now = Clock::now();
    const std::lock_guard lock{mutex_};
    link_ = std::move(fresh);
    connected_.store(true, std::memory_order_relaxed);
    return true;
  } catch (const Error& error) {
    Batch& batch = *mine.batch;
    std::unique_lock lock{mutex_};
    if (mine.awaited && batch.awaiting > 1 && Clock::now() >= deadline) {
      // Only this caller's time is over: let the others try on.
      batch.withdraw(mine.index);
      return false;
    }
    lock.unlock();
    fail_unsent(batch, static_cast<errc>(error.code().value()), error.what());
    return false;
  }
}

void Pipeline::check_link() {
  const auto found = link_->connection->peek();
  if (found == Socket::Look::closed) {
    fail_link(errc::unavailable, "the server closed the connection");
  } else if (found == Socket::Look::readable && in_flight_.empty()) {
    fail_link(errc::protocol, "there was a reply that nobody asked for");
  }
}

void Pipeline::transmit(Batch& batch, Clock::time_point deadline, Clock::time_point now) {
  pay_debts(now, deadline);
  if (!link_) return fail_unsent(batch, errc::unavailable, "the connection broke");
  in_flight_.reserve(in_flight_.size() + 1);
  {
    const std::lock_guard lock{mutex_};
    batch.close(now);
    open_ = nullptr;
    measure_crowd(batch);
  }
  send(batch, deadline);
}

void Pipeline::send(Batch& batch, Clock::time_point deadline) {
  if (batch.complete()) {  // all of it was withdrawn
    batch.users.fetch_sub(1, std::memory_order_release);
    return;
  }
  in_flight_.push_back(&batch);
  auto& connection = *link_->connection;
  const auto sent = connection.send(batch.bytes, deadline, batch.written);
  if (sent != Io::done) fail_link(errc::unavailable, "send: " + connection.describe(sent));
}

// Ahead of the batch that comes next: who left a scope and comes back finds it given back.
void Pipeline::pay_debts(Clock::time_point due_by, Clock::time_point deadline) {
  if (!debts_.due(due_by)) return;
  const auto now = Clock::now();
  Batch* batch = nullptr;
  {
    const std::lock_guard lock{mutex_};
    batch = &unused_batch();
  }
  in_flight_.reserve(in_flight_.size() + 1);
  for (auto& debt : debts_.take_due(due_by)) {
    try {
      if (debt.until > now) {
        batch->add({debt.bytes, debt.until, debt.done, debt.context});
        continue;
      }
    } catch (const std::bad_alloc&) {
      // Its owner hears that it was not sent.
    }
    Outcome late;
    late.cause = "too late";
    debt.done(debt.context, std::move(late));
  }
  batch->close(now);
  send(*batch, deadline);
}

void Pipeline::measure_crowd(const Batch& batch) {
  const auto crowd = static_cast<unsigned>(batch.members);
  const auto before = depth_.load(std::memory_order_relaxed);
  depth_.store(std::max(crowd, before - (before + 7) / 8), std::memory_order_relaxed);
}

void Pipeline::collect(const Ticket& mine, Clock::time_point deadline) {
  Batch& batch = *mine.batch;
  Reply reply;
  while (!batch.over()) {
    auto& connection = *link_->connection;
    const auto parsed = connection.next_reply(reply);
    if (parsed == Connection::Parsed::reply) {
      deliver(std::move(reply));
      continue;
    }
    if (parsed == Connection::Parsed::nonsense) {
      return fail_link(errc::protocol, "the reply is not the Redis protocol");
    }
    if (batch.answered > mine.index) return;  // the rest is for those who wait for it
    const auto received = connection.receive(deadline);
    if (received == Io::done) continue;
    if (received != Io::timeout || silent_for_too_long()) {
      fail_link(errc::unavailable, connection.describe(received));
    }
    return;
  }
  if (in_flight_.empty() && link_ && link_->connection->has_unparsed()) {
    fail_link(errc::protocol, "there was a reply that nobody asked for");
  }
}

// Reads the replies that are outstanding, for as long as there are any.
void Pipeline::read_outstanding(Clock::time_point deadline) {
  Reply reply;
  while (!in_flight_.empty()) {
    auto& connection = *link_->connection;
    switch (connection.next_reply(reply)) {
      case Connection::Parsed::reply:
        deliver(std::move(reply));
        break;
      case Connection::Parsed::nonsense:
        return fail_link(errc::protocol, "the reply is not the Redis protocol");
      case Connection::Parsed::incomplete:
        const auto received = connection.receive(deadline);
        if (received == Io::timeout) return;
        if (received != Io::done) fail_link(errc::unavailable, connection.describe(received));
    }
  }
}

void Pipeline::deliver(Reply&& reply) {
  if (!std::exchange(link_->proven, true)) connector_.worked();
  Batch& batch = *in_flight_.front();
  batch.answer(std::move(reply));
  if (batch.complete()) {
    in_flight_.erase(in_flight_.begin());
    batch.users.fetch_sub(1, std::memory_order_release);
  }
}

// Wakes those who have their replies, and finds the next driver.
void Pipeline::hand_over(const Ticket& mine) noexcept {
  Batch* batch = mine.batch;
  batch->users.fetch_add(1, std::memory_order_relaxed);
  int self = mine.awaited ? 1 : 0;
  for (;;) {
    const bool over = batch->closed && batch->over();
    if (over) {
      batch->state.store(Batch::done, std::memory_order_release);
      if (batch->members > self) futex_wake(batch->state, everybody);
    }
    if (link_ && debts_.any()) write_posted(nullptr);
    std::unique_lock lock{mutex_};
    Batch* next = open_;
    if (batch->closed && !over) {
      batch->awaiting -= self;
      // When nobody waits for the rest, its replies are matched and dropped by later drivers.
      if (batch->awaiting > 0) next = batch;
    }
    if (next == nullptr) {
      driven_.store(false, std::memory_order_relaxed);
    } else if (next->awaiting > 0) {
      next->state.store(Batch::vacant, std::memory_order_release);
      lock.unlock();
      futex_wake(next->state, 1);
      next = nullptr;
    } else {
      next->users.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
    }
    batch->users.fetch_sub(1, std::memory_order_release);
    if (next == nullptr) return;
    write_posted(next);
    batch = next;
    self = 0;
  }
}

// Writes what nobody waits for: there is no one else to do it. Without a batch, debts only.
void Pipeline::write_posted(Batch* batch) noexcept {
  const auto now = Clock::now();
  try {
    if (batch == nullptr) {
      pay_debts(now, now + patience_for_others);
    } else if (link_) {
      transmit(*batch, now + patience_for_others, now);
    } else {
      fail_unsent(*batch, errc::unavailable, "not connected");
    }
  } catch (...) {
    if (batch != nullptr && !batch->closed) fail_unsent(*batch, errc::unavailable, "no memory");
    if (link_) fail_link(errc::unavailable, "no memory");
  }
}

// ---- failing -----------------------------------------------------------------------------------

bool Pipeline::silent_for_too_long() const {
  const auto since = std::max(link_->connection->last_heard(), in_flight_.front()->sent);
  return Clock::now() - since >= connector_.timeouts().command * 3 / 4;
}

void Pipeline::fail(Batch& batch, const std::shared_ptr<Link>& link, errc code,
                    const std::string& cause) {
  batch.fail(code, cause);
  // Kept for the members who have yet to see their result; without any, nobody needs it.
  const bool members_left = batch.users.load(std::memory_order_acquire) > 1;
  if (members_left) batch.link = link;
  batch.users.fetch_sub(1, std::memory_order_release);
}

void Pipeline::fail_unsent(Batch& batch, errc code, const std::string& cause) {
  {
    const std::lock_guard lock{mutex_};
    open_ = nullptr;
    batch.close_unsent();
  }
  fail(batch, nullptr, code, cause);
}

void Pipeline::fail_link(errc code, const std::string& cause) {
  std::shared_ptr<Link> link;
  std::string pinned;
  {
    const std::lock_guard lock{mutex_};
    link = failing_ = std::exchange(link_, nullptr);
    connected_.store(false, std::memory_order_relaxed);
    if (open_ != nullptr) pinned = open_->take_pinned();
  }
  if (!link->proven) connector_.failed(code, cause);
  say(*link, pinned);
  for (auto* batch : std::exchange(in_flight_, {})) fail(*batch, link, code, cause);
  const std::lock_guard lock{mutex_};
  failing_ = nullptr;
}

// ---- last words, and the end -------------------------------------------------------------------

void Pipeline::say(Link& retired, std::string_view bytes) {
  if (bytes.empty()) return;
  const std::lock_guard lock{retired.last_words};
  std::size_t sent = 0;
  // What doesn't fit into the socket's buffer is lost; the callers know that it may be.
  (void)retired.connection->send(bytes, in_the_past, sent);
}

void Pipeline::follow_up(const std::shared_ptr<Link>& link, std::string_view bytes,
                         Clock::time_point deadline) {
  std::unique_lock lock{mutex_};
  if (link_ != link) {
    lock.unlock();
    return say(*link, bytes);
  }
  const auto mine = join({bytes, deadline, [](void*, Outcome&&) noexcept {}, nullptr});
  mine.batch->slots[mine.index].pinned = true;
  if (driven_.load(std::memory_order_relaxed)) {
    mine.batch->users.fetch_sub(1, std::memory_order_release);
    return;
  }
  driven_.store(true, std::memory_order_relaxed);
  lock.unlock();
  drive(mine, deadline);
}

void Pipeline::drain(Clock::time_point deadline) noexcept {
  driven_.store(true, std::memory_order_relaxed);
  try {
    if (!link_ && debts_.any()) link_ = std::make_shared<Link>(*this, connector_.open(deadline));
    // All debts are due now. What is refused at once gets one more try, with the script's text.
    for (auto due_by : {Clock::time_point::max(), Clock::now()}) {
      while (link_ && debts_.due(due_by) && Clock::now() < deadline) {
        pay_debts(due_by, deadline);
        if (due_by != Clock::time_point::max()) break;
      }
      if (link_) read_outstanding(deadline);
    }
  } catch (...) {
    // Not connected, or out of memory: the owners of what is left hear of it below or by close().
  }
  if (link_) fail_link(errc::unavailable, "client closed");
}

void Pipeline::abandon() noexcept {
  if (link_) link_->connection->abandon();
}

}  // namespace redlease::inline v1::wire

#endif
