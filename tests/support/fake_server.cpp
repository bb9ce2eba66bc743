#include "support/fake_server.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "support/resp_frames.hpp"

namespace redlease::test {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct FakeServer::Peer {
  Fd fd;
  RespFrames frames{};
  std::string output;
  Clock::time_point next_byte{};
  bool blocked = false;
  bool closed = false;
};

FakeServer::FakeServer(FakeServerOptions options)
    : options_(std::move(options)), listener_(listen_on_loopback()), thread_([this] { run(); }) {}

FakeServer::~FakeServer() {
  stopping_ = true;
  wake_.signal();
  thread_.join();
}

void FakeServer::run() {
  std::list<Peer> peers;
  while (!stopping_) {
    std::vector<pollfd> fds = {{wake_.fd(), POLLIN, 0}, {listener_.fd.get(), POLLIN, 0}};
    auto until = Clock::time_point::max();
    for (const Peer& peer : peers) {
      const int wanted = peer.blocked ? POLLIN | POLLOUT : POLLIN;
      fds.push_back({peer.fd.get(), static_cast<short>(wanted), 0});
      if (!peer.output.empty() && !peer.blocked) until = std::min(until, peer.next_byte);
    }
    ::poll(fds.data(), fds.size(), poll_timeout(until));
    std::size_t next = 2;
    for (Peer& peer : peers) serve(peer, fds[next++].revents != 0);
    accept_new(peers);
    peers.remove_if([](const Peer& peer) { return peer.closed; });
    open_ = peers.size();
  }
}

void FakeServer::accept_new(std::list<Peer>& peers) {
  while (Fd fd = accept_from(listener_.fd)) {
    ++accepted_;
    peers.push_back({std::move(fd), {}, options_.greeting});
    serve(peers.back(), false);
  }
}

void FakeServer::serve(Peer& peer, bool readable) {
  if (readable) {
    const Received received = receive(peer.fd, peer.frames.buffer());
    while (const auto request = peer.frames.next()) {
      ++requests_;
      if (options_.answer) peer.output += options_.answer(*request);
    }
    if (received == Received::end) peer.closed = true;
  }
  send_due(peer);
  if (options_.close_on_connect && peer.output.empty()) peer.closed = true;
}

void FakeServer::send_due(Peer& peer) const {
  const bool slowly = options_.byte_interval.count() > 0;
  peer.blocked = false;
  while (!peer.output.empty() && peer.next_byte <= Clock::now()) {
    const std::size_t size = slowly ? 1 : peer.output.size();
    const ssize_t sent = ::send(peer.fd.get(), peer.output.data(), size, MSG_NOSIGNAL);
    if (sent < 0) {
      peer.blocked = errno == EAGAIN;
      peer.closed = !peer.blocked;
      return;
    }
    peer.output.erase(0, static_cast<std::size_t>(sent));
    if (slowly) peer.next_byte = Clock::now() + options_.byte_interval;
  }
}

}  // namespace redlease::test
