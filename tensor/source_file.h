// The identity of a file from which several processes read tensors.
#ifndef SHARDMESH_TENSOR_SOURCE_FILE_H_
#define SHARDMESH_TENSOR_SOURCE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "tensor/source_conversion.h"

namespace shardmesh {

// A file, and the state in which it was found. A process that reads the file later refuses a file
// in another state.
struct SourceFile {
  // The largest number of bytes of a path.
  static constexpr size_t kMaxPathBytes = 4'096;
  // The largest value of `head_bytes`.
  static constexpr int64_t kMaxHeadBytes = 104'857'600;

  std::string path;  // absolute
  int64_t size_bytes = 0;
  absl::Time modify_time = absl::UnixEpoch();  // InfinitePast: any, if the digest is right
  std::string head_sha256;                     // digest of the first `head_bytes` bytes, 32 bytes
  int64_t head_bytes = 0;
  // When content or state of the file last changed. InfinitePast: not known, or the file changed so
  // recently that a further change might get the same time. Unlike the modify time, nobody can set
  // it.
  absl::Time change_time = absl::InfinitePast();
  uint64_t inode = 0;  // its number in its file system; 0: not known

  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

// A tensor in a file: all its elements, row-major and little-endian, without gaps.
struct FileRange {
  int64_t file = 0;  // the file, as an index into a list of files
  int64_t offset_bytes = 0;
  // How the tensor is made from the one in the file; nullopt: its elements are the bytes there.
  std::optional<SourceConversion> conversion = std::nullopt;

  friend bool operator==(const FileRange&, const FileRange&) = default;
};

// Whether a file with this change time could change again at `now` and keep the time, because the
// file system counts in coarse steps: 50 ms, or 2 s if the time has whole seconds.
bool MayChangeUnseen(absl::Time change_time, absl::Time now);

// Returns the identity of an open file. `path` is kept as it is. `head`: the first bytes of the
// file, over which the digest goes. Leaves the change time out if MayChangeUnseen. Errors are those
// of the file system.
absl::StatusOr<SourceFile> IdentifyFile(const InputFile& file, std::string path,
                                        absl::Span<const char> head);

// Returns FAILED_PRECONDITION (FILE_CHANGED): something about a file, such as its "size", is
// `have`, and was `need` when the file was opened.
absl::Status FileChanged(std::string_view path, std::string_view what, std::string_view have,
                         std::string_view need);
// A time as FileChanged shows it.
std::string FileTimeText(absl::Time time);

// For a process that has mapped the file and read from it: checks that nobody wrote into the file
// meanwhile, by its size and modify time. OK if the path leads to another file now or to none: the
// mapped file is as it was. Error: FileChanged.
absl::Status CheckNotWritten(const SourceFile& file);

// Whether the path leads to another file now, or to none. False if the file's number is not known.
bool WasReplaced(const SourceFile& file);

// Returns the file with its path made absolute and free of links, as realpath(3) does. Null if
// there is no such path.
std::shared_ptr<const SourceFile> AtRealPath(const SourceFile& file);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_SOURCE_FILE_H_
