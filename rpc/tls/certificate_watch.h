// CertificateWatch: certificate files that may be replaced while the process runs. The last valid
// contents stay in use.
#ifndef SHARDMESH_RPC_TLS_CERTIFICATE_WATCH_H_
#define SHARDMESH_RPC_TLS_CERTIFICATE_WATCH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/file.h"
#include "rpc/tls/certificate.h"

namespace shardmesh::rpc {

// Polls the three files on its own thread. If changed files pass CheckTls, the watch uses their new
// contents and logs the change. If they do not pass, the previous contents stay in use. The watch
// logs invalid files after two consecutive failures, because certificate and key may be replaced
// one after the other. It also logs that the current certificate has expired.
//
// Files may be replaced or rewritten. Their folder may be swapped, as Kubernetes does. A
// certificate with another name is refused, because the identity of a process does not change while
// the process runs.
//
// Readers that accept only files, such as gRPC's certificate provider, use pair_path() and
// authorities_path(). These paths lead to memory files that are replaced as a whole, so certificate
// and key always belong together. The paths are valid in this process while the watch lives.
//
// Thread-safe.
class CertificateWatch {
 public:
  struct State {
    TlsTexts texts;
    CertificateFacts facts;
  };

  static constexpr absl::Duration kInterval = absl::Seconds(1);

  // Errors: those of ReadTlsFiles and CheckTls. RESOURCE_EXHAUSTED: no file descriptor is left.
  static absl::StatusOr<std::unique_ptr<CertificateWatch>> Start(
      const TlsFiles& files, absl::Duration interval = kInterval);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  const TlsFiles& files() const { return files_; }
  // Returns the current certificates; never null.
  std::shared_ptr<const State> state() const;
  // Paths of the current contents: certificate and key in one PEM text, the authorities in another.
  std::string pair_path() const { return pair_.path(); }
  std::string authorities_path() const { return authorities_.path(); }

 private:
  // A text in memory that readers open by a path.
  class MemoryFile {
   public:
    // Replaces the text. Readers that opened the file before read the old text to its end.
    absl::Status Set(std::string_view text);
    std::string path() const;

   private:
    FileDescriptor descriptor_;  // keeps its number, which is part of the path
    int64_t version_ = 0;
  };
  // State of the three files (device, inode, time and size), to detect changes.
  using Fingerprint = std::array<std::array<int64_t, 5>, 3>;

  CertificateWatch(const TlsFiles& files, absl::Duration interval)
      : files_(files), interval_(interval) {}

  Fingerprint LookAtFiles() const;
  absl::StatusOr<State> Load() const;
  absl::Status Use(State state);
  void Run();
  void Look();

  const TlsFiles files_;
  const absl::Duration interval_;

  // While the thread runs, only the thread uses the following members, up to the mutex.
  MemoryFile pair_;
  MemoryFile authorities_;
  Fingerprint taken_ = {};              // state of the files in use
  std::optional<Fingerprint> refused_;  // state of the files that the last poll refused
  bool is_logged_ = false;              // whether the refusal was logged
  bool is_expiry_logged_ = false;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const State> state_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: the thread uses all members above
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_CERTIFICATE_WATCH_H_
