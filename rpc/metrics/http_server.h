// A small HTTP server for rare requests, such as reading metrics: one GET for each connection.
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

// Answers `GET PATH` in HTTP/1.1, without keep-alive. With a CertificateWatch, the server uses TLS
// and accepts only clients with a certificate of the current authorities. Each connection uses the
// certificates that are current at its first byte.
//
// One thread serves all connections and never blocks on one. A client that is silent, slow, or
// stops halfway does not delay other clients. A connection ends at the latest kPatience after its
// start. At most kMaxConnections are open at a time, or fewer if the process may have less than
// 2,048 descriptors. Beyond that number, each new connection closes the oldest connection. A client
// that opens many connections can therefore close the connections of other clients.
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
  // Returns the answer for a path; nullopt if the path is unknown. Called on the server's thread,
  // so it must not block.
  using Handler = std::function<std::optional<Answer>(std::string_view path)>;

  // `address`: `IP:port`; port 0: any free port. `watch`: null for plaintext. `watch`, and the
  // objects that the handler uses, must outlive the server.
  //
  // INVALID_ARGUMENT: `address` is other text. ALREADY_EXISTS: the port is in use or cannot be
  // bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& address,
                                                           const CertificateWatch* watch,
                                                           Handler handler);
  // Closes all connections.
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
  const FileDescriptor stop_;  // becomes readable when the destructor runs
  const int port_;
  const CertificateWatch* const watch_;
  const Handler handler_;
  const size_t max_connections_;

  std::thread thread_;  // last: the thread uses all members above
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_METRICS_HTTP_SERVER_H_
