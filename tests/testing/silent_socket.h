// An address that never answers, as if all packets to it were lost.
#ifndef SHARDMESH_TESTS_TESTING_SILENT_SOCKET_H_
#define SHARDMESH_TESTS_TESTING_SILENT_SOCKET_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "process/file.h"
#include "rpc/tls/dial.h"
#include "status/str_cat.h"

namespace shardmesh::test {

// Binds a socket to a free port of 127.0.0.1. Returns its address.
inline std::string BindToLoopback(int socket) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  return StrCat("127.0.0.1:", ntohs(address.sin_port));
}

// A socket of this host that listens with a full queue and accepts no connection: the kernel drops
// further SYNs.
class SilentSocket {
 public:
  SilentSocket() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_ = BindToLoopback(socket_.get());
    Listen();
  }
  // Listens at `port` of the IPv6 loopback address, ::1.
  explicit SilentSocket(int port) : socket_(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    address_ = StrCat("[::1]:", port);
    Listen();
  }

  const std::string& address() const { return address_; }

 private:
  void Listen() {
    EXPECT_EQ(listen(socket_.get(), 0), 0);
    // Fill the socket's queue of connections, so that the kernel drops further SYNs.
    while (true) {
      auto queued = rpc::Dial(this->address(), absl::Now() + absl::Milliseconds(200));
      if (!queued.ok()) break;
      queued_.push_back(*std::move(queued));
    }
  }

  FileDescriptor socket_;
  std::string address_;
  std::vector<FileDescriptor> queued_;
};

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_TESTING_SILENT_SOCKET_H_
