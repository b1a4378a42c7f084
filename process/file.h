// Files read through a mapping, and files that appear complete or not at all.
#ifndef SHARDMESH_PROCESS_FILE_H_
#define SHARDMESH_PROCESS_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh {

// An open file descriptor, closed when destroyed. Movable.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

// Returns the status for the errno value `error`, such as NOT_FOUND "cannot open a/b: No such file
// or directory" for verb "open". A full disk or quota gives RESOURCE_EXHAUSTED (STORE_FULL). An I/O
// error gives DATA_LOSS. A file larger than the process or the file system allows gives
// INVALID_ARGUMENT (BAD_FILE). A lack of descriptors or of kernel memory gives RESOURCE_EXHAUSTED
// without STORE_FULL, since deleting files would not help.
absl::Status FileError(std::string_view verb, std::string_view path, int error);

// Makes a folder, and the missing folders above it. Returns OK if the folder already exists, else
// errors as FileError.
absl::Status MakeFolders(const std::string& path);

// A regular file opened for reading, with its size.
struct InputFile {
  FileDescriptor descriptor;
  int64_t size_bytes = 0;
};
// Opens a file for reading. Returns INVALID_ARGUMENT (BAD_FILE) if the path is not a regular file;
// other errors as FileError.
absl::StatusOr<InputFile> OpenInputFile(const std::string& path);

// Fills `out` with the file's bytes from `offset_bytes` on. Returns INVALID_ARGUMENT (BAD_FILE) if
// the file ends before `out` is full.
absl::Status ReadExactly(const InputFile& file, std::string_view path, int64_t offset_bytes,
                         absl::Span<char> out);

// A whole file mapped read-only. Movable; spans of its bytes stay valid when the object is moved.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Map(const InputFile& file, std::string_view path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  absl::Span<const char> bytes() const { return bytes_; }

 private:
  explicit MappedFile(absl::Span<const char> bytes) : bytes_(bytes) {}

  absl::Span<const char> bytes_;
};

// Writes a file under a temporary name beside `path`. Finish syncs the file, renames it to `path`
// and syncs the folder. A writer destroyed before Finish leaves nothing behind. Movable. Not
// thread-safe.
class AtomicFileWriter {
 public:
  // `mode`: permissions of the file, before the process's umask applies.
  static absl::StatusOr<AtomicFileWriter> Create(const std::string& path, mode_t mode = 0666);
  AtomicFileWriter(AtomicFileWriter&& other) noexcept;
  AtomicFileWriter& operator=(AtomicFileWriter&& other) = delete;
  ~AtomicFileWriter();

  absl::Status Append(absl::Span<const char> bytes);
  absl::Status Finish();

 private:
  AtomicFileWriter(FileDescriptor descriptor, std::string path, std::string temporary_path);

  FileDescriptor descriptor_;
  std::string path_;
  std::string temporary_path_;  // empty after the rename, or after a move from this writer
};

// Suffix of temporary files. A reader of a folder ignores or removes files with this suffix.
inline constexpr std::string_view kTemporarySuffix = ".partial";

// Syncs a folder to disk: files created, renamed or removed in it stay so after a crash.
absl::Status SyncFolder(const std::string& path);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_FILE_H_
