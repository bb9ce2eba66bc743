#include "support/fault_proxy.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <utility>

#include "support/resp_frames.hpp"

namespace redlease::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t remembered_bytes = 4096;

enum class Fate { deliver, swallow, swallow_and_close };

// Answers no request.
bool is_push(const std::string& reply) {
  return reply.starts_with('>') || reply.starts_with("*3\r\n$7\r\nmessage\r\n");
}

constexpr short events(bool readable, bool writable) {
  return static_cast<short>((readable ? POLLIN : 0) | (writable ? POLLOUT : 0));
}

// A descriptor of which nothing is asked must not be polled: its hang-up would be reported again
// and again.
pollfd poll_for(const Fd& fd, short wanted) { return {wanted == 0 ? -1 : fd.get(), wanted, 0}; }

}  // namespace

struct FaultProxy::Chunk {
  Clock::time_point due;
  std::string bytes;
  bool then_close = false;
  std::size_t sent = 0;
};

struct FaultProxy::Drop {
  std::string needle;
  bool request;  // or its reply
  bool then_close;
  std::size_t left;
};

// One direction of a connection.
struct FaultProxy::Lane {
  RespFrames frames{};
  std::deque<Chunk> queue{};
  Clock::time_point not_before{};  // the next bite of a trickle
  bool blocked = false;            // the receiver's buffer is full
  bool ended = false;              // the sender has closed

  void hold(std::string bytes, milliseconds delay, bool then_close = false) {
    queue.push_back({Clock::now() + delay, std::move(bytes), then_close});
  }
  Clock::time_point due() const {
    if (queue.empty() || blocked) return Clock::time_point::max();
    return std::max(queue.front().due, not_before);
  }
  bool finished() const { return ended && queue.empty(); }

  // Sends what is due, at most `bite` bytes at once. False: the connection is to be closed here.
  bool send_due(const Fd& to, std::size_t bite, milliseconds interval);
};

struct FaultProxy::Link {
  Fd client;
  Fd server{};
  Lane requests{};
  Lane replies{};
  std::deque<Fate> fates{};  // of the replies to come
  bool stranded = false;
  bool client_gone = false;
  bool server_told = false;  // that the client has closed
  bool reset = false;
  bool closed = false;
};

bool FaultProxy::Lane::send_due(const Fd& to, std::size_t bite, milliseconds interval) {
  blocked = false;
  while (due() <= Clock::now()) {
    Chunk& chunk = queue.front();
    if (const std::size_t left = chunk.bytes.size() - chunk.sent; left > 0) {
      const char* rest = chunk.bytes.data() + chunk.sent;
      const ssize_t sent = ::send(to.get(), rest, bite ? std::min(bite, left) : left, MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN) {
        blocked = true;
        return true;
      }
      if (sent < 0) {
        queue.clear();  // the receiver has gone
        return true;
      }
      chunk.sent += static_cast<std::size_t>(sent);
      if (bite) not_before = Clock::now() + interval;
    }
    if (chunk.sent < chunk.bytes.size()) continue;
    if (chunk.then_close) return false;
    queue.pop_front();
  }
  return true;
}

FaultProxy::FaultProxy(std::uint16_t target_port) : FaultProxy(target_port, {}) {}
FaultProxy::FaultProxy(std::string target_socket) : FaultProxy(0, std::move(target_socket)) {}

FaultProxy::FaultProxy(std::uint16_t target_port, std::string target_socket)
    : target_port_(target_port),
      target_socket_(std::move(target_socket)),
      listener_(listen_on_loopback()),
      thread_([this] { run(); }) {}

FaultProxy::~FaultProxy() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.signal();
  thread_.join();
}

void FaultProxy::run() {
  std::vector<pollfd> fds;
  while (true) {
    int timeout = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      timeout = prepare_poll(fds);
    }
    ::poll(fds.data(), fds.size(), timeout);
    const std::lock_guard lock(mutex_);
    wake_.drain();
    std::size_t next = 2;
    for (Link& link : links_) {
      serve(link, fds[next], fds[next + 1]);
      next += 2;
    }
    links_.remove_if([](const Link& link) { return link.closed; });
    accept_new();
  }
}

// The order: wake-up, listener, then client and server of each link. Returns the time-out.
int FaultProxy::prepare_poll(std::vector<pollfd>& fds) const {
  fds.clear();
  fds.push_back({wake_.fd(), POLLIN, 0});
  fds.push_back(poll_for(listener_.fd, refuse_ ? 0 : POLLIN));
  auto until = Clock::time_point::max();
  for (const Link& link : links_) {
    if (link.reset || (!silent(link) && !link.server)) until = Clock::time_point::min();
    if (silent(link)) {
      fds.push_back(poll_for(link.client, link.client_gone ? 0 : POLLRDHUP));
      fds.push_back(poll_for(link.server, 0));
    } else {
      until = std::min({until, link.requests.due(), link.replies.due()});
      fds.push_back(poll_for(link.client, events(!link.requests.ended, link.replies.blocked)));
      fds.push_back(poll_for(link.server, events(!link.replies.ended, link.requests.blocked)));
    }
  }
  return poll_timeout(until);
}

void FaultProxy::accept_new() {
  while (!refuse_) {
    Fd client = accept_from(listener_.fd);
    if (!client) return;
    ++accepted_;
    links_.push_back({std::move(client)});
  }
}

bool FaultProxy::silent(const Link& link) const { return black_hole_ || link.stranded; }

void FaultProxy::serve(Link& link, const pollfd& client, const pollfd& server) {
  if (link.reset) {
    reset_on_close(link.client);
    if (link.server) reset_on_close(link.server);
    link.closed = true;
    return;
  }
  if (silent(link)) {
    if ((client.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) link.client_gone = true;
    return;
  }
  if (!link.server) {
    link.server =
        target_socket_.empty() ? connect_to_port(target_port_) : connect_to_socket(target_socket_);
    link.closed = !link.server;
    return;
  }
  if (client.revents != 0) take_requests(link);
  if (server.revents != 0) take_replies(link);
  flush(link);
}

void FaultProxy::take_requests(Link& link) {
  RespFrames& frames = link.requests.frames;
  if (link.requests.ended) return;
  if (receive(link.client, frames.buffer()) == Received::end) {
    link.requests.ended = link.client_gone = true;
  }
  while (auto request = frames.next()) judge(link, std::move(*request));
  if (link.requests.ended) link.requests.hold(std::exchange(frames.buffer(), {}), milliseconds(0));
}

void FaultProxy::judge(Link& link, std::string request) {
  seen_.push_back(request.substr(0, remembered_bytes));
  const bool delayed = request.find(request_delay_needle_) != std::string::npos;
  const milliseconds delay = delayed ? request_delay_ : milliseconds(0);
  const std::optional<Drop> drop = take_drop(request);
  if (drop && drop->request) {
    if (drop->then_close) link.requests.hold({}, delay, true);
    return;
  }
  if (!drop) {
    link.fates.push_back(Fate::deliver);
  } else {
    link.fates.push_back(drop->then_close ? Fate::swallow_and_close : Fate::swallow);
  }
  link.requests.hold(std::move(request), delay);
}

std::optional<FaultProxy::Drop> FaultProxy::take_drop(const std::string& request) {
  const auto found = std::find_if(drops_.begin(), drops_.end(), [&request](const Drop& drop) {
    return request.find(drop.needle) != std::string::npos;
  });
  if (found == drops_.end()) return std::nullopt;
  Drop taken = *found;
  if (--found->left == 0) drops_.erase(found);
  return taken;
}

void FaultProxy::take_replies(Link& link) {
  RespFrames& frames = link.replies.frames;
  if (link.replies.ended) return;
  link.replies.ended = receive(link.server, frames.buffer()) == Received::end;
  while (auto reply = frames.next()) {
    Fate fate = Fate::deliver;
    if (!is_push(*reply) && !link.fates.empty()) {
      fate = link.fates.front();
      link.fates.pop_front();
    }
    if (fate == Fate::deliver) link.replies.hold(std::move(*reply), reply_delay_);
    if (fate == Fate::swallow_and_close) link.replies.hold({}, reply_delay_, true);
  }
  if (link.replies.ended) link.replies.hold(std::exchange(frames.buffer(), {}), milliseconds(0));
}

void FaultProxy::flush(Link& link) {
  link.closed = !link.requests.send_due(link.server, 0, milliseconds(0)) ||
                !link.replies.send_due(link.client, trickle_bytes_, trickle_interval_) ||
                link.replies.finished();
  if (!link.closed && !link.server_told && link.requests.finished()) {
    ::shutdown(link.server.get(), SHUT_WR);
    link.server_told = true;
  }
}

void FaultProxy::pass_through() {
  refuse(false);
  const std::lock_guard lock(mutex_);
  drops_.clear();
  request_delay_ = reply_delay_ = milliseconds(0);
  trickle_bytes_ = 0;
  black_hole_ = false;
  wake_.signal();
}

void FaultProxy::delay_requests(milliseconds delay, std::string needle) {
  const std::lock_guard lock(mutex_);
  request_delay_ = delay;
  request_delay_needle_ = std::move(needle);
}

void FaultProxy::delay_replies(milliseconds delay) {
  const std::lock_guard lock(mutex_);
  reply_delay_ = delay;
}

void FaultProxy::drop_replies(std::size_t n, bool then_close) {
  const std::lock_guard lock(mutex_);
  if (n > 0) drops_.push_back({{}, false, then_close, n});
}

void FaultProxy::drop_reply_matching(std::string needle, bool then_close) {
  const std::lock_guard lock(mutex_);
  drops_.push_back({std::move(needle), false, then_close, 1});
}

void FaultProxy::drop_request_matching(std::string needle, bool then_close) {
  const std::lock_guard lock(mutex_);
  drops_.push_back({std::move(needle), true, then_close, 1});
}

void FaultProxy::black_hole(bool on) {
  const std::lock_guard lock(mutex_);
  black_hole_ = on;
  wake_.signal();
}

void FaultProxy::strand_open_connections() {
  const std::lock_guard lock(mutex_);
  for (Link& link : links_) link.stranded = true;
  wake_.signal();
}

void FaultProxy::trickle(std::size_t bytes, milliseconds interval) {
  const std::lock_guard lock(mutex_);
  trickle_bytes_ = bytes;
  trickle_interval_ = interval;
}

// A socket that is bound but does not listen refuses, and keeps the port from others.
void FaultProxy::refuse(bool on) {
  const std::lock_guard lock(mutex_);
  if (on == refuse_) return;
  refuse_ = on;
  if (on) {
    ::shutdown(listener_.fd.get(), SHUT_RD);
  } else {
    ::listen(listener_.fd.get(), SOMAXCONN);
  }
  wake_.signal();
}

void FaultProxy::reset_all() {
  const std::lock_guard lock(mutex_);
  for (Link& link : links_) link.reset = true;
  wake_.signal();
}

std::size_t FaultProxy::accepted() const {
  const std::lock_guard lock(mutex_);
  return accepted_;
}

std::size_t FaultProxy::open_connections() const {
  const std::lock_guard lock(mutex_);
  const auto open = [](const Link& link) { return !link.client_gone && !link.reset; };
  return static_cast<std::size_t>(std::count_if(links_.begin(), links_.end(), open));
}

std::size_t FaultProxy::requests_seen(std::string_view needle) const {
  const std::lock_guard lock(mutex_);
  const auto matches = [needle](const std::string& request) {
    return request.find(needle) != std::string::npos;
  };
  return static_cast<std::size_t>(std::count_if(seen_.begin(), seen_.end(), matches));
}

}  // namespace redlease::test
