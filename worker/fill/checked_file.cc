// Compares files with the state in which a client found them.
#include "worker/fill/checked_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "process/failpoint.h"
#include "process/file.h"
#include "sharding/digest.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

constexpr int64_t kHeadPieceBytes = int64_t{1} << 20;
// How often a thread that waits for its turn asks whether it is to go on.
constexpr absl::Duration kTurnPollInterval = absl::Milliseconds(50);

absl::StatusOr<std::string> HeadDigest(const RootedFile& file, const SourceFile& source,
                                       const KeepGoing& keep_going) {
  Sha256Stream digest;
  std::vector<char> piece(
      static_cast<size_t>(std::min(kHeadPieceBytes, std::max<int64_t>(source.head_bytes, 1))));
  for (int64_t at = 0; at < source.head_bytes;) {
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    const auto want = static_cast<size_t>(
        std::min<int64_t>(static_cast<int64_t>(piece.size()), source.head_bytes - at));
    const ssize_t got =
        SHARDMESH_FAILS("fill.head") ? -1 : pread(file.descriptor.get(), piece.data(), want, at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", source.path, errno);
    if (got == 0) return Truncated(source.path, at, source.size_bytes);
    digest.Add({piece.data(), static_cast<size_t>(got)});
    at += got;
  }
  return digest.Finish();
}

absl::Status CheckHead(const RootedFile& file, const SourceFile& source,
                       const KeepGoing& keep_going) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string digest, HeadDigest(file, source, keep_going));
  if (digest != source.head_sha256) {
    return FileChanged(source.path, StrCat("SHA-256 of its first ", source.head_bytes, " bytes"),
                       absl::BytesToHexString(digest), absl::BytesToHexString(source.head_sha256));
  }
  return absl::OkStatus();
}

absl::StatusOr<RootedFile> OpenAsDescribed(const ReadRoots& roots, const SourceFile& source) {
  SHARDMESH_ASSIGN_OR_RETURN(RootedFile file, roots.OpenFile(source.path));
  if (file.state.size_bytes != source.size_bytes) {
    return FileChanged(source.path, "size", StrCat(file.state.size_bytes, " bytes"),
                       StrCat(source.size_bytes, " bytes"));
  }
  if (source.modify_time != absl::InfinitePast() && file.state.modify_time != source.modify_time) {
    return FileChanged(source.path, "modify time", FileTimeText(file.state.modify_time),
                       FileTimeText(source.modify_time));
  }
  return file;
}

}  // namespace

absl::Status FillTurn::Take(const KeepGoing& keep_going) {
  const auto is_free = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !is_taken_; };
  for (;;) {
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&is_free), kTurnPollInterval)) continue;
    is_taken_ = true;
    return absl::OkStatus();
  }
}

bool FillTurn::TryTake() {
  absl::MutexLock lock(&mutex_);
  return !std::exchange(is_taken_, true);
}

void FillTurn::End() {
  absl::MutexLock lock(&mutex_);
  is_taken_ = false;
}

absl::StatusOr<RootedFile> OpenChecked(const ReadRoots& roots, const SourceFile& source,
                                       const KeepGoing& keep_going) {
  SHARDMESH_ASSIGN_OR_RETURN(RootedFile file, OpenAsDescribed(roots, source));
  SHARDMESH_RETURN_IF_ERROR(CheckHead(file, source, keep_going));
  return file;
}

absl::Status CheckUnchanged(const RootedFile& file, std::string_view path) {
  SHARDMESH_ASSIGN_OR_RETURN(const FileState now, StateOf(file.descriptor, path));
  if (HasSameBytes(file.state, now)) return absl::OkStatus();
  if (now.size_bytes != file.state.size_bytes) {
    return FileChanged(path, "size", StrCat(now.size_bytes, " bytes"),
                       StrCat(file.state.size_bytes, " bytes"));
  }
  return FileChanged(path, "modify time", FileTimeText(now.modify_time),
                     FileTimeText(file.state.modify_time));
}

absl::Status Truncated(std::string_view path, int64_t size_bytes, int64_t need_bytes) {
  return FileChanged(path, "size", StrCat(size_bytes, " bytes"), StrCat(need_bytes, " bytes"));
}

std::shared_ptr<CheckedFiles::Entry> CheckedFiles::Touch(const SourceFile& source,
                                                         std::shared_ptr<Entry>* idle) {
  // Pages of one transfer describe a file alike; two descriptions of one path are two entries.
  const std::string key = StrCat(source.size_bytes, ",", absl::ToUnixNanos(source.modify_time), ",",
                                 source.head_bytes, ",", source.head_sha256, source.path);
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Entry>& entry = entries_[key];
  if (entry == nullptr) entry = std::make_shared<Entry>();
  if (const auto found = std::find(recent_.begin(), recent_.end(), key); found != recent_.end()) {
    recent_.splice(recent_.end(), recent_, found);
  } else {
    recent_.push_back(key);
  }
  if (recent_.size() > kMaxOpen) {
    *idle = entries_[recent_.front()];
    recent_.pop_front();
  }
  return entry;
}

absl::StatusOr<std::shared_ptr<const RootedFile>> CheckedFiles::Get(const SourceFile& source,
                                                                    const KeepGoing& keep_going) {
  std::shared_ptr<Entry> idle;
  const std::shared_ptr<Entry> entry = Touch(source, &idle);
  // A file that another thread is just opening stays open until the transfer ends.
  if (idle != nullptr && idle->turn.TryTake()) {
    idle->file.reset();
    idle->turn.End();
  }
  SHARDMESH_RETURN_IF_ERROR(entry->turn.Take(keep_going));
  const absl::Cleanup end = [&entry] { entry->turn.End(); };
  if (entry->file != nullptr) return entry->file;
  SHARDMESH_ASSIGN_OR_RETURN(RootedFile file, OpenAsDescribed(*roots_, source));
  if (!entry->was_checked || !(entry->checked == file.state)) {
    SHARDMESH_RETURN_IF_ERROR(CheckHead(file, source, keep_going));
    entry->checked = file.state;
    entry->was_checked = true;
  }
  entry->file = std::make_shared<const RootedFile>(std::move(file));
  return entry->file;
}

}  // namespace shardmesh::worker
