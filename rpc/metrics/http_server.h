// A small HTTP server for rare reads, such as metrics: one GET for each connection.
#ifndef SHARDMESH_RPC_METRICS_HTTP_SERVER_H_
#define SHARDMESH_RPC_METRICS_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "process/file.h"
#include "rpc/tls/certificate_watch.h"

namespace shardmesh::rpc {

// Answers `GET PATH` in HTTP/1.1, without keep-alive. With a CertificateWatch it speaks TLS, to
// callers that present a certificate of the current authorities. Each connection uses the
// certificates that are current at its first byte.
//
// One thread serves all connections and blocks on none: a caller that is silent, slow, or stops
// halfway delays no other. Each connection has kPatience from start to end. At most kMaxConnections
// are open at a time, or fewer if the process may have less than 2,048 descriptors; one more ends
// the oldest. A client that opens many connections can therefore end those of others.
//
// Thread-safe.
class HttpServer {
 public:
  static constexpr size_t kMaxConnections = 256;
  static constexpr absl::Duration kPatience = absl::Seconds(5);
  static constexpr size_t kMaxRequestBytes = 8192;

  struct Answer {
    std::string content_type;
    std::string body;
  };
  // Returns nullopt for an unknown path. Called on the server's thread, so it must not block.
  using Handler = std::function<std::optional<Answer>(std::string_view path)>;

  // `address`: `IP:port`, port 0 for a free port. `watch` is null for plaintext. The watch, and
  // objects that the handler uses, must outlive the server.
  // Errors: INVALID_ARGUMENT for other text; ALREADY_EXISTS if the port is in use or cannot be
  // bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           const CertificateWatch* watch,
                                                           Handler handler);
  // Ends all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }

 private:
  class Connection;

  HttpServer(FileDescriptor listener, FileDescriptor stop, int port, const CertificateWatch* watch,
             Handler handler);

  void Run();

  const FileDescriptor listener_;
  const FileDescriptor stop_;  // readable once the destructor runs
  const int port_;
  const CertificateWatch* const watch_;
  const Handler handler_;
  const size_t max_connections_;

  std::thread thread_;  // last: it uses all members above
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_METRICS_HTTP_SERVER_H_
