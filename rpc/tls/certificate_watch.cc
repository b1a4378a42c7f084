// Polls certificate files, and keeps the current contents where gRPC reads them.
#include "rpc/tls/certificate_watch.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/time/clock.h"
#include "process/log.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {

absl::Status CertificateWatch::MemoryFile::Set(std::string_view text) {
  FileDescriptor fresh(memfd_create("shardmesh-tls", MFD_CLOEXEC));
  if (!fresh.valid()) {
    return FileError("make", "a file in memory", errno);
  }
  while (!text.empty()) {
    const ssize_t count = write(fresh.get(), text.data(), text.size());
    if (count < 0) {
      return FileError("write", "a file in memory", errno);
    }
    text.remove_prefix(static_cast<size_t>(count));
  }
  // Each version of the file gets a different modification time, in whole seconds. gRPC compares
  // modification times to detect a change between its two reads.
  const timespec time{.tv_sec = ++version_, .tv_nsec = 0};
  const timespec times[] = {time, time};
  if (futimens(fresh.get(), times) != 0) {
    return FileError("date", "a file in memory", errno);
  }
  if (!descriptor_.valid()) {
    descriptor_ = std::move(fresh);
  } else if (dup3(fresh.get(), descriptor_.get(), O_CLOEXEC) < 0) {
    return FileError("replace", "a file in memory", errno);
  }
  return absl::OkStatus();
}

std::string CertificateWatch::MemoryFile::path() const {
  return StrCat("/proc/self/fd/", descriptor_.get());
}

absl::StatusOr<std::unique_ptr<CertificateWatch>> CertificateWatch::Start(const TlsFiles& files,
                                                                          absl::Duration interval) {
  std::unique_ptr<CertificateWatch> watch(new CertificateWatch(files, interval));
  // Record the state of the files before reading them. The next poll then detects a change that
  // happens while they are read.
  watch->taken_ = watch->LookAtFiles();
  SHARDMESH_ASSIGN_OR_RETURN(State state, watch->Load());
  SHARDMESH_RETURN_IF_ERROR(watch->Use(std::move(state)));
  watch->thread_ = std::thread([watch = watch.get()] { watch->Run(); });
  return watch;
}

CertificateWatch::~CertificateWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::shared_ptr<const CertificateWatch::State> CertificateWatch::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

CertificateWatch::Fingerprint CertificateWatch::LookAtFiles() const {
  Fingerprint fingerprint = {};
  size_t index = 0;
  for (const std::string* path : {&files_.certificate, &files_.private_key, &files_.authorities}) {
    struct stat file = {};
    if (stat(path->c_str(), &file) == 0) {
      fingerprint[index] = {static_cast<int64_t>(file.st_dev), static_cast<int64_t>(file.st_ino),
                            file.st_mtim.tv_sec, file.st_mtim.tv_nsec, file.st_size};
    }
    ++index;
  }
  return fingerprint;
}

absl::StatusOr<CertificateWatch::State> CertificateWatch::Load() const {
  State state;
  SHARDMESH_ASSIGN_OR_RETURN(state.texts, ReadTlsFiles(files_));
  SHARDMESH_ASSIGN_OR_RETURN(state.facts, CheckTls(files_, state.texts, absl::Now()));
  return state;
}

absl::Status CertificateWatch::Use(State state) {
  SHARDMESH_RETURN_IF_ERROR(
      pair_.Set(StrCat(state.texts.certificate, "\n", state.texts.private_key)));
  SHARDMESH_RETURN_IF_ERROR(authorities_.Set(state.texts.authorities));
  absl::MutexLock lock(&mutex_);
  state_ = std::make_shared<const State>(std::move(state));
  return absl::OkStatus();
}

void CertificateWatch::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), interval_)) {
        return;
      }
    }
    Look();
  }
}

void CertificateWatch::Look() {
  const std::shared_ptr<const State> old = state();
  if (absl::Now() > old->facts.not_after && !std::exchange(is_expiry_logged_, true)) {
    LogError("the certificate in use has expired, and peers refuse new connections",
             {{"certificate", files_.certificate}});
  }
  const Fingerprint seen = LookAtFiles();
  if (seen == taken_) {
    refused_.reset();
    return;
  }
  absl::StatusOr<State> loaded = Load();
  absl::Status status = loaded.status();
  if (status.ok() && loaded->texts == old->texts) {
    taken_ = seen;  // the files were rewritten with the same content
    refused_.reset();
    return;
  }
  if (status.ok() && loaded->facts.name != old->facts.name) {
    status = absl::FailedPreconditionError(
        StrCat(files_.certificate, " is now the certificate of ", loaded->facts.name.ToUri(),
               ", and this process is ", old->facts.name.ToUri(),
               "; put this process's own certificate there, or restart the process"));
  }
  if (status.ok()) {
    const absl::Time not_after = loaded->facts.not_after;
    status = Use(*std::move(loaded));
    if (status.ok()) {
      taken_ = seen;
      refused_.reset();
      is_expiry_logged_ = false;
      LogInfo("certificates reloaded",
              {{"certificate", files_.certificate},
               {"valid_until",
                absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", not_after, absl::UTCTimeZone())}});
      return;
    }
  }
  if (refused_ != seen) {
    refused_ = seen;
    is_logged_ = false;
  } else if (!std::exchange(is_logged_, true)) {
    LogWarning("the changed certificate files cannot be used; the previous ones stay in use",
               {{"error", status}});
  }
}

}  // namespace shardmesh::rpc
