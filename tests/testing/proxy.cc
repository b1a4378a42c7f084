// One thread that moves bytes between sockets.
#include "tests/testing/proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "status/str_cat.h"

namespace shardmesh::test {
namespace {

// Most bytes that wait in one direction; beyond it TCP applies back-pressure to the sender.
constexpr int64_t kMostWaiting = int64_t{1} << 20;
constexpr int kPollMilliseconds = 2;

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void MakeQuick(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

// Both sides see a reset, not an end.
void Reset(int fd) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close(fd);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Proxy>> Proxy::Start(const std::string& target) {
  std::unique_ptr<Proxy> proxy(new Proxy());
  proxy->target_ = target;
  proxy->listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (proxy->listener_ < 0 ||
      bind(proxy->listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(proxy->listener_, 64) != 0 ||
      getsockname(proxy->listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::ErrnoToStatus(errno, "the proxy cannot listen");
  }
  proxy->address_ = StrCat("127.0.0.1:", ntohs(address.sin_port));
  proxy->thread_ = std::thread([raw = proxy.get()] { raw->Run(); });
  return proxy;
}

Proxy::~Proxy() {
  is_over_ = true;
  if (thread_.joinable()) thread_.join();
  if (listener_ >= 0) close(listener_);
}

void Proxy::Set(Mode mode, absl::Duration delay) {
  absl::MutexLock lock(&mutex_);
  mode_ = mode;
  delay_ = delay;
}

void Proxy::CutAfter(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  cut_after_ = bytes;
}

void Proxy::CutNoMore() {
  absl::MutexLock lock(&mutex_);
  cut_after_ = kNever;
  const auto is_taken = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return cut_after_ == kNoChange;
  };
  mutex_.Await(absl::Condition(&is_taken));
}

void Proxy::Accept() {
  const int from = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (from < 0) return;
  int port = 0;
  const bool has_port = absl::SimpleAtoi(target_.substr(target_.rfind(':') + 1), &port);
  const int to = has_port ? socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  const sockaddr_in address = Loopback(port);
  // On loopback this is answered at once: by the server, or by its absence.
  if (to < 0 || connect(to, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (to >= 0) close(to);
    return Reset(from);
  }
  fcntl(to, F_SETFL, fcntl(to, F_GETFL) | O_NONBLOCK);
  MakeQuick(from);
  MakeQuick(to);
  Connection& added = connections_.emplace_back();
  added.up.from = added.down.to = from;
  added.up.to = added.down.from = to;
}

void Proxy::Read(Connection& connection, Pipe& pipe, Mode mode, absl::Time due) {
  if (pipe.has_ended || pipe.waiting_bytes >= kMostWaiting) return;
  char bytes[64 << 10];
  const ssize_t count = recv(pipe.from, bytes, sizeof(bytes), 0);
  if (count < 0) {
    if (errno != EAGAIN && errno != EINTR) connection.is_broken = true;
  } else if (count == 0) {
    pipe.has_ended = true;
  } else if (mode == Mode::kSwallow) {
    connection.has_lost_bytes = true;
    swallowed_bytes_ += count;
  } else {
    pipe.waiting.push_back({due, std::string(bytes, static_cast<size_t>(count))});
    pipe.waiting_bytes += count;
  }
}

void Proxy::Write(Connection& connection, Pipe& pipe, absl::Time now) {
  while (!connection.is_broken && !pipe.waiting.empty() && pipe.waiting.front().due <= now) {
    std::string& bytes = pipe.waiting.front().bytes;
    size_t size = bytes.size();
    if (connection.left_bytes >= 0) {
      size = std::min(size, static_cast<size_t>(connection.left_bytes));
    }
    const ssize_t count = size == 0 ? 0 : send(pipe.to, bytes.data(), size, MSG_NOSIGNAL);
    if (count < 0) {
      if (errno != EAGAIN && errno != EINTR) connection.is_broken = true;
      return;
    }
    if (connection.left_bytes >= 0) {
      connection.left_bytes -= count;
      connection.is_broken = connection.left_bytes == 0;
    }
    pipe.waiting_bytes -= count;
    bytes.erase(0, static_cast<size_t>(count));
    if (bytes.empty()) pipe.waiting.pop_front();
  }
  if (pipe.has_ended && pipe.waiting.empty() && !pipe.is_done) {
    shutdown(pipe.to, SHUT_WR);
    pipe.is_done = true;
  }
}

void Proxy::Run() {
  std::vector<pollfd> polled;
  while (!is_over_) {
    Mode mode;
    absl::Duration delay;
    int64_t cut_after;
    {
      absl::MutexLock lock(&mutex_);
      mode = mode_;
      delay = mode_ == Mode::kDelay ? delay_ : absl::ZeroDuration();
      cut_after = cut_after_;
      if (cut_after == kNever) {
        for (Connection& each : connections_) each.left_bytes = -1;
      }
      cut_after_ = kNoChange;
    }
    polled.assign(1, {listener_, POLLIN, 0});
    for (const Connection& each : connections_) {
      for (const Pipe* pipe : {&each.up, &each.down}) {
        const bool reads = !pipe->has_ended && pipe->waiting_bytes < kMostWaiting;
        polled.push_back({reads ? pipe->from : -1, POLLIN, 0});
      }
    }
    poll(polled.data(), polled.size(), kPollMilliseconds);
    const absl::Time now = absl::Now();
    // A connection that hangs is one whose first bytes do not arrive.
    Accept();
    for (auto each = connections_.begin(); each != connections_.end();) {
      Connection& connection = *each;
      if (cut_after == 0) connection.is_broken = true;
      if (cut_after > 0 && connection.left_bytes < 0) connection.left_bytes = cut_after;
      if (mode != Mode::kSwallow && connection.has_lost_bytes) connection.is_broken = true;
      for (Pipe* pipe : {&connection.up, &connection.down}) {
        Read(connection, *pipe, mode, now + delay);
        if (mode != Mode::kHold && mode != Mode::kSwallow) Write(connection, *pipe, now);
      }
      const bool is_done = connection.up.is_done && connection.down.is_done;
      if (!connection.is_broken && !is_done) {
        ++each;
        continue;
      }
      const int fds[] = {connection.up.from, connection.up.to};
      for (const int fd : fds) is_done ? static_cast<void>(close(fd)) : Reset(fd);
      each = connections_.erase(each);
    }
  }
  for (Connection& each : connections_) {
    close(each.up.from);
    close(each.up.to);
  }
}

}  // namespace shardmesh::test
