// A small HTTPS server for what is read now and then, such as metrics: one GET a connection.
#ifndef SHARDMESH_RPC_HTTPS_SERVER_H_
#define SHARDMESH_RPC_HTTPS_SERVER_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/certificate_watch.h"
#include "tensor/file.h"

namespace shardmesh::rpc {

// Answers `GET PATH` over TLS, to callers that show a certificate of the authorities in use; each
// connection uses the certificates that are in use when it begins. HTTP/1.1 without keeping
// connections open.
//
// A thread serves one connection at a time, and a connection that is not through within kPatience
// is ended. So who opens many and says nothing delays those behind: the port is for a network in
// which that is an incident. Thread-safe.
class HttpsServer {
 public:
  static constexpr size_t kThreads = 4;
  static constexpr absl::Duration kPatience = absl::Seconds(2);
  static constexpr size_t kMaxRequestBytes = 8192;

  struct Answer {
    std::string content_type;
    std::string body;
  };
  // Nullopt: there is nothing of this path. Called on several threads.
  using Handler = std::function<std::optional<Answer>(std::string_view path)>;

  // `address`: `IP:port`, port 0 for a free one. What the handler touches and
  // the watch outlive the server.
  // Errors: INVALID_ARGUMENT for other text; ALREADY_EXISTS if the port is in use or cannot be
  // bound.
  static absl::StatusOr<std::unique_ptr<HttpsServer>> Start(const std::string& address,
                                                            const CertificateWatch* watch,
                                                            Handler handler);
  // Ends what is open.
  ~HttpsServer();
  HttpsServer(const HttpsServer&) = delete;
  HttpsServer& operator=(const HttpsServer&) = delete;

  int port() const { return port_; }

 private:
  HttpsServer(FileDescriptor listener, FileDescriptor stop, int port, const CertificateWatch* watch,
              Handler handler);

  void Run() const;

  const FileDescriptor listener_;
  const FileDescriptor stop_;  // readable from the destructor on
  const int port_;
  const CertificateWatch* const watch_;
  const Handler handler_;
  std::array<std::thread, kThreads> threads_;  // last: they use what is above
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_HTTPS_SERVER_H_
