// Source files: opened below the read roots and compared with the state in which a client found
// them.
#ifndef SHARDMESH_WORKER_FILL_CHECKED_FILE_H_
#define SHARDMESH_WORKER_FILL_CHECKED_FILE_H_

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "process/roots/read_root.h"
#include "tensor/source_file.h"

namespace shardmesh::worker {

// Called between pieces of work. An error ends the work and becomes its error.
using KeepGoing = std::function<absl::Status()>;

// Lets one thread at a time do slow work, such as reading a file. Thread-safe.
class FillTurn {
 public:
  // Waits until no thread has the turn, and takes it. Calls `keep_going` at the beginning and
  // several times a second; an error of it ends the wait, and is returned.
  absl::Status Take(const KeepGoing& keep_going);
  // Takes the turn if no thread has it.
  bool TryTake();
  // Requires that the calling thread has the turn.
  void End();

 private:
  absl::Mutex mutex_;
  bool is_taken_ ABSL_GUARDED_BY(mutex_) = false;
};

// Opens a file and compares size, modify time and the digest of its head with `source`. Reads the
// head in pieces and calls `keep_going` before each.
// - FAILED_PRECONDITION (FILE_CHANGED): the file is not as `source` describes it.
// - Errors of ReadRoots::OpenFile; DATA_LOSS for an error of the disk.
absl::StatusOr<RootedFile> OpenChecked(const ReadRoots& roots, const SourceFile& source,
                                       const KeepGoing& keep_going);

// FAILED_PRECONDITION (FILE_CHANGED) if the bytes of the open file changed since it was opened
// (HasSameBytes). A file that was linked, renamed or removed is still the same.
absl::Status CheckUnchanged(const RootedFile& file, std::string_view path);

// FILE_CHANGED: the file now ends at `size_bytes`, before the bytes that it had when it was opened.
absl::Status Truncated(std::string_view path, int64_t size_bytes, int64_t need_bytes);

// The source files of one transfer. Each is checked at its first use, and again whenever it was
// closed in between. Keeps at most kMaxOpen files open. Thread-safe.
class CheckedFiles {
 public:
  // Enough for a checkpoint's files to stay open, and few next to the limit on descriptors.
  static constexpr size_t kMaxOpen = 32;

  // `roots` outlives the object.
  explicit CheckedFiles(const ReadRoots* roots) : roots_(roots) {}
  CheckedFiles(const CheckedFiles&) = delete;
  CheckedFiles& operator=(const CheckedFiles&) = delete;

  // Errors of OpenChecked; an error of `keep_going` also ends the wait for a thread that opens the
  // file. The file stays open as long as anyone holds the pointer.
  absl::StatusOr<std::shared_ptr<const RootedFile>> Get(const SourceFile& source,
                                                        const KeepGoing& keep_going);

 private:
  // Used by the thread that has the turn, which opens the file and reads its head.
  struct Entry {
    FillTurn turn;
    std::shared_ptr<const RootedFile> file;  // null: not open
    FileState checked;                       // the state in which its head was right
    bool was_checked = false;
  };

  // Returns the file's entry, the last in use now. Moves the entry to be closed to `*idle`.
  std::shared_ptr<Entry> Touch(const SourceFile& source, std::shared_ptr<Entry>* idle);

  const ReadRoots* const roots_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>, std::less<>> entries_ ABSL_GUARDED_BY(mutex_);
  std::list<std::string> recent_ ABSL_GUARDED_BY(mutex_);  // keys of files that may be open
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_FILL_CHECKED_FILE_H_
