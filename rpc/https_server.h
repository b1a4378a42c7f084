// A small HTTPS server for what is read now and then, such as metrics: one GET a connection.
#ifndef SHARDMESH_RPC_HTTPS_SERVER_H_
#define SHARDMESH_RPC_HTTPS_SERVER_H_

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/certificate_watch.h"
#include "tensor/file.h"

namespace shardmesh::rpc {

// Answers `GET PATH` over TLS, to callers that show a certificate of the authorities in use; each
// connection uses the certificates that are in use when it begins. HTTP/1.1 without keeping
// connections open.
//
// A caller that says nothing occupies no thread: kMaxSilent of them are waited for, each for
// kPatience, and of more the oldest is ended. Who has said something is served by one of kThreads
// threads, once one is free, and is ended when it is not through within kPatience; kMaxWaiting wait
// for a thread, and of more the oldest is ended. So who opens many and begins to speak on each
// delays those behind: the port is for a network in which that is an incident. Thread-safe.
class HttpsServer {
 public:
  static constexpr size_t kThreads = 4;
  static constexpr size_t kMaxSilent = 64;
  static constexpr size_t kMaxWaiting = 64;
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

  // Waits for callers, and for each to say something.
  void Listen();
  void HandOver(FileDescriptor caller);
  // Serves those that have said something, one at a time.
  void ServeCallers();

  const FileDescriptor listener_;
  const FileDescriptor stop_;  // readable from the destructor on
  const int port_;
  const CertificateWatch* const watch_;
  const Handler handler_;

  absl::Mutex mutex_;
  std::deque<FileDescriptor> callers_ ABSL_GUARDED_BY(mutex_);  // that wait for a thread
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Last: they use what is above.
  std::thread listening_;
  std::array<std::thread, kThreads> serving_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_HTTPS_SERVER_H_
