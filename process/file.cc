// Files read through a mapping, and files that appear complete or not at all.
#include "process/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "process/failpoint.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// Returns the error for a path at which no file can be written: BAD_FILE with advice if the path
// itself is the cause, else FileError.
absl::Status PathError(std::string_view verb, const std::string& path, int error) {
  const std::string_view advice = error == EISDIR    ? "name a file in it"
                                  : error == ENOENT  ? "make its folder first"
                                  : error == ENOTDIR ? "name a file in a folder"
                                  : error == ELOOP   ? "name another file, or remove the links"
                                                     : "";
  const absl::Status status = FileError(verb, path, error);
  if (advice.empty()) return status;
  return WithReason(
      absl::Status(absl::IsUnknown(status) ? absl::StatusCode::kFailedPrecondition : status.code(),
                   StrCat(ToStd(status.message()), "; ", advice)),
      Reason::kBadFile, {{fact::kFile, path}});
}

// Follows symbolic links, also to a file that does not exist yet, and returns the path of the last
// target. Returns `path` if it is no link.
absl::StatusOr<std::string> FollowLinks(const std::string& path) {
  constexpr int kMostLinks = 40;  // the kernel's own limit
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    if (links == kMostLinks) {
      return PathError("follow the link", path, ELOOP);
    }
    const std::filesystem::path next = std::filesystem::read_symlink(target, error);
    if (error) {
      return PathError("follow the link", path, error.value());
    }
    target = target.parent_path() / next;  // `next` itself if it is absolute
  }
  return target.string();
}

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() { Close(); }

void FileDescriptor::Close() {
  if (fd_ >= 0) {
    close(fd_);
    fd_ = -1;
  }
}

absl::Status FileError(std::string_view verb, std::string_view path, int error) {
  const std::string message = StrCat("cannot ", verb, " ", path);
  if (error == EIO) {
    return absl::DataLossError(StrCat(message, ": the disk reports an error"));
  }
  if (error == ENOSPC || error == EDQUOT) {
    return WithReason(
        absl::ResourceExhaustedError(
            StrCat(message, ": ", error == ENOSPC ? "the disk is full" : "the quota is used up",
                   "; free space and try again")),
        Reason::kStoreFull, {{fact::kFile, path}});
  }
  if (error == EFBIG) {
    // Do not return STORE_FULL here: a worker would then delete tiles in quarantine, which would
    // not help.
    return InvalidArgument(Reason::kBadFile,
                           StrCat(message,
                                  ": this process or file system allows no file of that size; "
                                  "raise the limit (ulimit -f) and try again"),
                           {{fact::kFile, path}});
  }
  return absl::ErrnoToStatus(error, message);
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? FileError("make folder", path, error.value()) : absl::OkStatus();
}

absl::StatusOr<InputFile> OpenInputFile(const std::string& path) {
  // O_NONBLOCK keeps open() from blocking on a named pipe; the check below refuses the pipe.
  FileDescriptor descriptor(
      SHARDMESH_FAILS("file.open") ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor.valid()) {
    return FileError("open", path, errno);
  }
  struct stat facts;
  if (SHARDMESH_FAILS("file.examine") || fstat(descriptor.get(), &facts) != 0) {
    return FileError("examine", path, errno);
  }
  if (!S_ISREG(facts.st_mode)) {
    return InvalidArgument(Reason::kBadFile, StrCat(path, " is not a regular file"),
                           {{fact::kFile, path}});
  }
  return InputFile{std::move(descriptor), facts.st_size};
}

absl::Status ReadExactly(const InputFile& file, std::string_view path, int64_t offset_bytes,
                         absl::Span<char> out) {
  while (!out.empty()) {
    const ssize_t count = SHARDMESH_FAILS("file.read")
                              ? -1
                              : pread(file.descriptor.get(), out.data(), out.size(), offset_bytes);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      return FileError("read", path, errno);
    }
    if (count == 0) {
      return InvalidArgument(
          Reason::kBadFile,
          StrCat(path, " ends at byte ", offset_bytes, ", ", out.size(), " bytes too early"),
          {{fact::kFile, path}, {fact::kPosition, offset_bytes}});
    }
    offset_bytes += count;
    out.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<MappedFile> MappedFile::Map(const InputFile& file, std::string_view path) {
  if (file.size_bytes == 0) {
    return MappedFile({});
  }
  const size_t size = static_cast<size_t>(file.size_bytes);
  void* mapped = SHARDMESH_FAILS("file.map")
                     ? MAP_FAILED
                     : mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor.get(), 0);
  if (mapped == MAP_FAILED) {
    return FileError("map", path, errno);
  }
  return MappedFile({static_cast<const char*>(mapped), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
}

AtomicFileWriter::AtomicFileWriter(FileDescriptor descriptor, std::string path,
                                   std::string temporary_path)
    : descriptor_(std::move(descriptor)),
      path_(std::move(path)),
      temporary_path_(std::move(temporary_path)) {}

absl::StatusOr<AtomicFileWriter> AtomicFileWriter::Create(const std::string& path, mode_t mode) {
  static std::atomic<uint64_t> next_number = 0;
  if (path.empty()) {
    return InvalidArgument(Reason::kBadFile, "the path of the file to write is empty; name a file",
                           {{fact::kFile, path}});
  }
  std::string target = path;
  if (struct stat status = {}; stat(path.c_str(), &status) == 0) {
    // The final rename onto a folder would also fail, but only after all bytes are written.
    if (S_ISDIR(status.st_mode)) {
      return PathError("write", path, EISDIR);
    }
    // A rename would replace a device such as /dev/null for every process of the host.
    if (!S_ISREG(status.st_mode)) {
      return InvalidArgument(Reason::kBadFile,
                             StrCat("cannot write ", path,
                                    ": it is a device, a pipe or a socket, which a file would "
                                    "replace; name a regular file"),
                             {{fact::kFile, path}});
    }
    // Keep a symbolic link: replace or create the file that the link leads to.
    std::error_code error;
    if (std::filesystem::is_symlink(path, error)) {
      target = std::filesystem::canonical(path, error).string();
      if (error) {
        return PathError("follow the link", path, error.value());
      }
    }
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(target, FollowLinks(path));
  }
  // A process of another host or container may have the same number, and one that was killed has
  // left its file: such a name is not taken again.
  for (;;) {
    std::string temporary_path =
        StrCat(target, ".", getpid(), ".", next_number.fetch_add(1), kTemporarySuffix);
    FileDescriptor descriptor(
        SHARDMESH_FAILS("file.create")
            ? -1
            : open(temporary_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (descriptor.valid()) {
      return AtomicFileWriter(std::move(descriptor), std::move(target), std::move(temporary_path));
    }
    if (errno != EEXIST) return PathError("create", target, errno);
  }
}

AtomicFileWriter::AtomicFileWriter(AtomicFileWriter&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      path_(std::move(other.path_)),
      temporary_path_(std::exchange(other.temporary_path_, {})) {}

AtomicFileWriter::~AtomicFileWriter() {
  if (!temporary_path_.empty()) {
    unlink(temporary_path_.c_str());
  }
}

absl::Status AtomicFileWriter::Append(absl::Span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        SHARDMESH_FAILS("file.write") ? -1 : write(descriptor_.get(), bytes.data(), bytes.size());
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      return FileError("write", path_, errno);
    }
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status AtomicFileWriter::Finish() {
  if (SHARDMESH_FAILS("file.sync") || fsync(descriptor_.get()) != 0) {
    return FileError("sync", path_, errno);
  }
  descriptor_.Close();
  if (SHARDMESH_FAILS("file.rename") || rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return FileError("move the finished file to", path_, errno);
  }
  temporary_path_.clear();
  SHARDMESH_FAILPOINT("file.renamed");
  return SyncFolder(FolderOf(path_));
}

absl::Status SyncFolder(const std::string& path) {
  const FileDescriptor folder(SHARDMESH_FAILS("file.open_folder")
                                  ? -1
                                  : open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) {
    return FileError("open folder", path, errno);
  }
  if (SHARDMESH_FAILS("file.sync_folder") || fsync(folder.get()) != 0) {
    return FileError("sync folder", path, errno);
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
