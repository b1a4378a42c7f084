// CertificateWatch: certificate files that may be replaced while the process runs, the last good
// ones in use.
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

// Looks at the three files once in a while, on a thread of its own. What changed and passes
// CheckTls is in use from then on, and the log says so; what does not pass leaves the last good
// files in use, and is logged when it was found so twice running: between two looks a certificate
// may have been written and its key not yet. That the one in use has expired is logged too. Files
// may be replaced, written anew, or swapped by the folder that they are in, as Kubernetes does. A
// certificate for somebody else is not taken: who a process is does not change while it runs.
//
// Readers that take files only, as gRPC's provider does, find those in use under pair_path() and
// authorities_path(): memory of this process, replaced as a whole, so that certificate and key
// always belong together. The paths are valid in this process and while the watch lives.
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
  // What is in use; never null.
  std::shared_ptr<const State> state() const;
  // Certificate and key in one PEM text; the authorities in another.
  std::string pair_path() const { return pair_.path(); }
  std::string authorities_path() const { return authorities_.path(); }

 private:
  // A text in memory that can be opened by a path.
  class MemoryFile {
   public:
    // Replaces the text; whoever has opened the file before reads the old one to its end.
    absl::Status Set(std::string_view text);
    std::string path() const;

   private:
    FileDescriptor descriptor_;  // its number stays the same
    int64_t version_ = 0;
  };
  // Tells files that were changed from those that were not.
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

  // For the thread, once it runs.
  MemoryFile pair_;
  MemoryFile authorities_;
  Fingerprint taken_ = {};              // of the files in use
  std::optional<Fingerprint> refused_;  // of those that the last look did not take
  bool is_logged_ = false;              // whether that was logged
  bool is_expiry_logged_ = false;

  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<const State> state_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_CERTIFICATE_WATCH_H_
