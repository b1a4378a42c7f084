// Measures the upper bound that loopback TCP sets for the speed of a pairwise all-reduce. The
// processes only send each other as many bytes as the all-reduce does.
//
// clang-format off
//   tcp_bench RANKS [--ops OP,...] [--sizes BYTES,...]
// clang-format on
//
// For vectors of S bytes, every rank sends 2 S / P bytes to each of the P - 1 other ranks and
// receives as many. The benchmark uses one connection per pair of ranks, at the sockets' full
// speed. An all-reduce of S bytes has to move as many bytes. If all-reduce is among the ops, prints
// one JSON object for each size from 64 KiB on, with the slowest rank's times:
//
// clang-format off
//   {"system": "tcp", "op": "all-reduce", "algorithm", "ranks", "bytes", "calls", "p50_us", ...}
// clang-format on
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "bench/collective_calls.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxRanks = 16;
constexpr int64_t kLeastBytes = 65'536;

pid_t first_rank = 0;

// Ends all ranks, because each other rank would wait for this one for ever. When rank 0 dies, the
// kernel kills its child processes (PR_SET_PDEATHSIG).
[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "tcp_bench: %s: %s\n", what, std::strerror(errno));
  if (getpid() != first_rank) kill(first_rank, SIGTERM);
  std::exit(1);
}

int Checked(int result, const char* what) {
  if (result < 0) Fail(what);
  return result;
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// Memory that all ranks share. It holds the barrier before each call, and the slowest rank's time.
struct Together {
  std::atomic<size_t> arrived = 0;
  std::atomic<uint16_t> ports[kMaxRanks] = {};
  std::atomic<int64_t> slowest_ns[2] = {};  // successive calls use the two in alternation

  void Meet(size_t ranks, size_t round) {
    arrived.fetch_add(1);
    while (arrived.load() < ranks * (round + 1)) sched_yield();
  }
};

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

class Rank {
 public:
  Rank(size_t rank, size_t ranks, Together* together)
      : rank_(rank), ranks_(ranks), together_(together), peers_(ranks, -1) {
    const int listener = Checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
    sockaddr_in address = Loopback(0);
    Checked(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), "bind");
    Checked(listen(listener, kMaxRanks), "listen");
    socklen_t size = sizeof(address);
    Checked(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
    together_->ports[rank].store(ntohs(address.sin_port));
    Meet();
    for (size_t peer = 0; peer < rank; ++peer) {
      const int fd = Checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
      const sockaddr_in there = Loopback(together_->ports[peer].load());
      Checked(connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof(there)), "connect");
      const uint8_t own = static_cast<uint8_t>(rank);
      Checked(static_cast<int>(write(fd, &own, 1)), "write");
      peers_[peer] = fd;
    }
    for (size_t i = rank + 1; i < ranks; ++i) {
      const int fd = Checked(accept(listener, nullptr, nullptr), "accept");
      uint8_t peer = 0;
      Checked(static_cast<int>(read(fd, &peer, 1)), "read");
      peers_[peer] = fd;
    }
    close(listener);
    for (const int fd : peers_) {
      if (fd < 0) continue;
      const int on = 1;
      Checked(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "setsockopt");
      Checked(fcntl(fd, F_SETFL, O_NONBLOCK), "fcntl");
    }
  }

  void Measure(int64_t bytes) {
    const auto part = static_cast<size_t>(2 * bytes / static_cast<int64_t>(ranks_));
    memory_.assign(2 * part * ranks_, 'x');
    const int64_t calls = shardmesh::bench::CallsFor(bytes);
    std::vector<double> times;
    for (int64_t call = -2; call < calls; ++call) {
      std::atomic<int64_t>& slowest = together_->slowest_ns[call & 1];
      Meet();
      const Clock::time_point start = Clock::now();
      Exchange(part);
      const int64_t took = std::chrono::nanoseconds(Clock::now() - start).count();
      for (int64_t known = slowest.load(); known < took;) {
        if (slowest.compare_exchange_weak(known, took)) break;
      }
      Meet();
      if (call >= 0) times.push_back(static_cast<double>(slowest.load()) / 1000);
      Meet();
      slowest.store(0);
    }
    if (rank_ != 0) return;
    std::sort(times.begin(), times.end());
    double sum = 0;
    for (const double time : times) sum += time;
    const auto at = [&](double share) {
      return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
    };
    std::printf(
        "{\"system\": \"tcp\", \"op\": \"all-reduce\", \"algorithm\": \"none\", \"ranks\": %zu, "
        "\"bytes\": %lld, \"calls\": %lld, \"p50_us\": %.3f, \"p99_us\": %.3f, "
        "\"mean_us\": %.3f}\n",
        ranks_, static_cast<long long>(bytes), static_cast<long long>(calls), at(0.5), at(0.99),
        sum / static_cast<double>(times.size()));
    std::fflush(stdout);
  }

 private:
  void Meet() { together_->Meet(ranks_, round_++); }

  // Sends `part` bytes to every peer, and receives `part` bytes from every peer.
  void Exchange(size_t part) {
    std::vector<size_t> sent(ranks_, 0);
    std::vector<size_t> received(ranks_, 0);
    for (bool is_done = false; !is_done;) {
      is_done = true;
      std::vector<pollfd> waits;
      for (size_t peer = 0; peer < ranks_; ++peer) {
        if (peers_[peer] < 0) continue;
        char* const out = memory_.data() + 2 * peer * part;
        char* const in = out + part;
        Move(sent[peer], part,
             [&](size_t at) { return send(peers_[peer], out + at, part - at, MSG_NOSIGNAL); });
        Move(received[peer], part,
             [&](size_t at) { return recv(peers_[peer], in + at, part - at, 0); });
        short events = 0;
        if (sent[peer] < part) events |= POLLOUT;
        if (received[peer] < part) events |= POLLIN;
        if (events != 0) waits.push_back({.fd = peers_[peer], .events = events, .revents = 0});
      }
      if (waits.empty()) break;
      is_done = false;
      if (poll(waits.data(), waits.size(), 60'000) <= 0) Fail("poll");
    }
  }
  template <typename Op>
  static void Move(size_t& done, size_t part, Op op) {
    while (done < part) {
      const ssize_t moved = op(done);
      if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (moved <= 0) Fail("a peer is gone");
      done += static_cast<size_t>(moved);
    }
  }

  const size_t rank_;
  const size_t ranks_;
  Together* const together_;
  size_t round_ = 0;
  std::vector<int> peers_;  // sockets by rank; -1 for this rank
  std::vector<char> memory_;
};

}  // namespace

int main(int argc, char** argv) {
  size_t ranks = argc > 1 ? static_cast<size_t>(std::atoi(argv[1])) : 0;
  std::vector<std::string> ops = {"all-reduce"};
  std::vector<std::string> sizes = {"1048576"};
  for (int i = 2; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--ops") ops = Split(argv[i + 1]);
    if (std::string(argv[i]) == "--sizes") sizes = Split(argv[i + 1]);
  }
  if (ranks < 2 || ranks > kMaxRanks) {
    std::fprintf(stderr, "tcp_bench RANKS [--ops OP,...] [--sizes BYTES,...], 2 to %zu ranks\n",
                 kMaxRanks);
    return 2;
  }
  if (std::find(ops.begin(), ops.end(), "all-reduce") == ops.end()) return 0;
  void* const shared =
      mmap(nullptr, sizeof(Together), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) Fail("mmap");
  auto* const together = new (shared) Together;
  first_rank = getpid();
  std::vector<pid_t> children;
  size_t own = 0;
  for (size_t rank = 1; rank < ranks && own == 0; ++rank) {
    const pid_t child = Checked(fork(), "fork");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // without rank 0, a rank would spin for ever
      own = rank;
    } else {
      children.push_back(child);
    }
  }
  Rank rank(own, ranks, together);
  for (const std::string& size : sizes) {
    const int64_t bytes = std::atoll(size.c_str());
    if (bytes >= kLeastBytes) rank.Measure(bytes);
  }
  if (own != 0) return 0;
  bool all_right = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    all_right = all_right && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return all_right ? 0 : 1;
}
