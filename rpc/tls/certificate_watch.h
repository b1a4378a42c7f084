// CertificateWatch: certificate files that may be replaced while the process runs. The last valid
// ones stay in use.
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

// Polls the three files on its own thread. Changed files that pass CheckTls are used from then on,
// and the log reports it. Invalid files keep the previous ones in use. They are logged after two
// consecutive failures, because certificate and key may be replaced non-atomically. An expired
// current certificate is logged too.
//
// Files may be replaced, rewritten, or swapped with their folder, as Kubernetes does. A certificate
// with another name is refused: the identity of a process does not change while it runs.
//
// Readers that accept only files, as gRPC's provider does, use pair_path() and authorities_path().
// These name memory of this process that is replaced as a whole, so certificate and key always
// belong together. The paths are valid in this process while the watch lives.
//
// Thread-safe.
class CertificateWatch {
 public:
  struct State {
    TlsTexts texts;
    CertificateFacts facts;
  };

  static constexpr absl::Duration kInterval = absl::Seconds(1);

  // Errors of ReadTlsFiles and CheckTls; RESOURCE_EXHAUSTED if there is no descriptor left.
  static absl::StatusOr<std::unique_ptr<CertificateWatch>> Start(
      const TlsFiles& files, absl::Duration interval = kInterval);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  const TlsFiles& files() const { return files_; }
  // Returns the current certificates; never null.
  std::shared_ptr<const State> state() const;
  // Certificate and key in one PEM text; the authorities in another.
  std::string pair_path() const { return pair_.path(); }
  std::string authorities_path() const { return authorities_.path(); }

 private:
  // A text in memory that can be opened by a path.
  class MemoryFile {
   public:
    // Replaces the text. Readers with the file already open read the old text to its end.
    absl::Status Set(std::string_view text);
    std::string path() const;

   private:
    FileDescriptor descriptor_;  // its number stays the same
    int64_t version_ = 0;
  };
  // Detects changed files.
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

  // Used only by the thread after it starts.
  MemoryFile pair_;
  MemoryFile authorities_;
  Fingerprint taken_ = {};              // of the files in use
  std::optional<Fingerprint> refused_;  // of the files that the last poll refused
  bool is_logged_ = false;              // whether the refusal was logged
  bool is_expiry_logged_ = false;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const State> state_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: starts when all members above exist
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_CERTIFICATE_WATCH_H_
