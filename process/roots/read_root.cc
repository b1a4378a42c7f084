// Opens files below read roots by openat2(2).
#include "process/roots/read_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "process/failpoint.h"
#include "process/roots/open_beneath.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr size_t kMaxPathBytes = 4096;

absl::Status BadFile(absl::StatusCode code, std::string_view message, std::string_view path) {
  return WithReason(absl::Status(code, ToAbsl(message)), Reason::kBadFile, {{fact::kFile, path}});
}

// The path without slashes at its end; empty for `/`.
std::string WithoutEndSlash(std::string path) {
  while (!path.empty() && path.back() == '/') path.pop_back();
  return path;
}

absl::Time TimeOf(const timespec& time) { return absl::TimeFromTimespec(time); }

FileState StateFrom(const struct stat& facts) {
  return {.size_bytes = facts.st_size,
          .modify_time = TimeOf(facts.st_mtim),
          .change_time = TimeOf(facts.st_ctim),
          .device = facts.st_dev,
          .inode = facts.st_ino};
}

}  // namespace

absl::StatusOr<FileState> StateOf(const FileDescriptor& file, std::string_view path) {
  struct stat facts;
  if (SHARDMESH_FAILS("read_root.examine") || fstat(file.get(), &facts) != 0) {
    return FileError("examine", path, errno);
  }
  return StateFrom(facts);
}

absl::StatusOr<ReadRoots> ReadRoots::Open(absl::Span<const std::string> folders) {
  ReadRoots opened;
  const auto add = [&opened](const std::string& path) -> absl::Status {
    for (const Root& root : opened.roots_) {
      if (root.path == path) return absl::OkStatus();
    }
    const std::string name = path.empty() ? "/" : path;
    FileDescriptor folder(open(name.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder.valid()) {
      return FileError("open the read root", name, errno);
    }
    const FileDescriptor tried = OpenPathBeneath(folder, ".", O_PATH);
    if (!tried.valid()) {
      return absl::UnimplementedError(
          StrCat("read roots need the system call openat2 of Linux 5.6, which this host refuses (",
                 std::strerror(errno), "); start without --read-root"));
    }
    opened.roots_.push_back({.path = path});
    return absl::OkStatus();
  };
  for (const std::string& folder : folders) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(folder, error);
    if (folder.empty() || error) {
      return FileError("open the read root", folder, folder.empty() ? ENOENT : error.value());
    }
    const std::string path = WithoutEndSlash(absolute.lexically_normal().string());
    SHARDMESH_RETURN_IF_ERROR(add(path));
    StrAppend(&opened.text_, opened.text_.empty() ? "" : ",", path.empty() ? "/" : path);
    // A caller may name a file by the folder's real path, or by a link to the folder.
    const std::filesystem::path real = std::filesystem::canonical(absolute, error);
    if (!error) {
      SHARDMESH_RETURN_IF_ERROR(add(WithoutEndSlash(real.string())));
    }
  }
  std::sort(opened.roots_.begin(), opened.roots_.end(),
            [](const Root& a, const Root& b) { return a.path.size() > b.path.size(); });
  return opened;
}

absl::Status ReadRoots::NoRoot(std::string_view path, std::string_view why) const {
  return WithReason(absl::FailedPreconditionError(StrCat(path, " ", why)), Reason::kNoReadRoot,
                    {{fact::kFile, path}, {fact::kHave, text_}});
}

absl::StatusOr<RootedFile> ReadRoots::OpenFile(const std::string& path) const {
  if (path.size() > kMaxPathBytes) {
    return BadFile(absl::StatusCode::kInvalidArgument,
                   StrCat("a path has ", path.size(), " bytes, more than ", kMaxPathBytes),
                   path.substr(0, kMaxPathBytes));
  }
  if (path.empty() || path[0] != '/' || path.find('\0') != std::string::npos) {
    return BadFile(absl::StatusCode::kInvalidArgument,
                   StrCat("\"", path, "\" is not an absolute path; name the file from / on"), path);
  }
  if (roots_.empty()) {
    return NoRoot(path,
                  "cannot be read: this worker was started without --read-root; start it with a "
                  "folder above the file");
  }
  absl::Status refused;
  for (const Root& root : roots_) {
    if (path.size() <= root.path.size() + 1 || path.compare(0, root.path.size(), root.path) != 0 ||
        path[root.path.size()] != '/') {
      continue;
    }
    absl::StatusOr<RootedFile> file = OpenBelow(root, path);
    // A link out of one root may lead to a file in a root above it.
    if (file.ok() || ReasonOf(file.status()) != Reason::kNoReadRoot) {
      return file;
    }
    refused = file.status();
  }
  return refused.ok()
             ? NoRoot(path, StrCat("is below no read root of this worker, which may read ", text_,
                                   "; start it with --read-root for a folder "
                                   "above the file"))
             : refused;
}

absl::StatusOr<RootedFile> ReadRoots::OpenBelow(const Root& root, const std::string& path) const {
  const size_t begin = path.find_first_not_of('/', root.path.size());
  const std::string below = begin == std::string::npos ? "." : path.substr(begin);
  const auto failed = [&]() -> absl::Status {
    switch (errno) {
      case EXDEV:
        return NoRoot(
            path, StrCat("leads out of the read root ", root.path.empty() ? "/" : root.path.c_str(),
                         ": a link or `..` on its way does; name a file in the root"));
      case ELOOP:
        return NoRoot(path,
                      "leads through too many links, or through a link of /proc; name the "
                      "file itself");
      case ENOENT:
      case ENOTDIR:
        return BadFile(absl::StatusCode::kNotFound,
                       StrCat("there is no file ", path, "; correct the path"), path);
      case EACCES:
      case EPERM:
        return BadFile(absl::StatusCode::kPermissionDenied,
                       StrCat("this process may not read ", path, "; let its user (uid ", geteuid(),
                              ") read the file and enter its folders"),
                       path);
      case ENAMETOOLONG:
        return BadFile(absl::StatusCode::kInvalidArgument,
                       StrCat(path, " has a name that is too long"), path);
      default:
        return FileError("open", path, errno);
    }
  };
  const FileDescriptor folder(
      open(root.path.empty() ? "/" : root.path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return failed();
  struct stat facts;
  // The first descriptor only looks at the file: opening a device for reading may have effects.
  const FileDescriptor seen =
      SHARDMESH_FAILS("read_root.open") ? FileDescriptor() : OpenPathBeneath(folder, below, O_PATH);
  if (!seen.valid() || fstat(seen.get(), &facts) != 0) {
    return failed();
  }
  const auto irregular = [&] {
    return BadFile(absl::StatusCode::kInvalidArgument,
                   StrCat(path, " is ", S_ISDIR(facts.st_mode) ? "a folder" : "not a regular file",
                          "; name a regular file"),
                   path);
  };
  if (!S_ISREG(facts.st_mode)) {
    return irregular();
  }
  FileDescriptor file = OpenPathBeneath(folder, below, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!file.valid() || fstat(file.get(), &facts) != 0) {
    return failed();
  }
  if (!S_ISREG(facts.st_mode)) {
    return irregular();
  }
  return RootedFile{std::move(file), StateFrom(facts)};
}

}  // namespace shardmesh
