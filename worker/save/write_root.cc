// Resolves paths below a root by the kernel, which itself refuses to leave the root.
#include "worker/save/write_root.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "process/failpoint.h"
#include "process/roots/open_beneath.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

constexpr size_t kMaxFolderPathBytes = 4096;
constexpr mode_t kNewFolderMode = 0777;  // before the umask

absl::Status BadFolder(std::string_view path, std::string_view what) {
  return InvalidArgument(Reason::kBadField, StrCat("the folder \"", path, "\" ", what),
                         {{fact::kField, "folder"}, {fact::kValue, path}});
}

// Splits a path at its slashes; empty parts and "." are left out.
std::vector<std::string> PartsOf(std::string_view path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") parts.emplace_back(part);
    begin = end + 1;
  }
  return parts;
}

// Returns the part of `path` below `root`; nullopt if the path is not under the root.
std::optional<std::string> Below(const std::string& root, std::string_view path) {
  const std::vector<std::string> root_parts = PartsOf(root);
  std::vector<std::string> parts = PartsOf(path);
  if (parts.size() < root_parts.size()) return std::nullopt;
  for (size_t i = 0; i < root_parts.size(); ++i) {
    if (parts[i] != root_parts[i]) return std::nullopt;
  }
  parts.erase(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(root_parts.size()));
  return parts.empty() ? "." : StrJoin(parts, "/");
}

// Folders that OpenFolder has created. Removes them unless Keep is called.
class NewFolders {
 public:
  NewFolders() = default;
  ~NewFolders() {
    for (; !folders_.empty(); folders_.pop_back()) {
      unlinkat(folders_.back().first.get(), folders_.back().second.c_str(), AT_REMOVEDIR);
    }
  }
  NewFolders(const NewFolders&) = delete;
  NewFolders& operator=(const NewFolders&) = delete;

  // Takes a folder that was created in `parent`, and syncs the parent: a checkpoint in a folder
  // that is not on the disk would be lost with it.
  absl::Status Add(FileDescriptor parent, const std::string& name, std::string_view parent_path) {
    folders_.emplace_back(std::move(parent), name);
    absl::StatusOr<FileDescriptor> readable =
        OpenBeneath(folders_.back().first, parent_path, ".", O_RDONLY | O_DIRECTORY);
    // Whoever may only write into the parent cannot sync it.
    if (absl::IsPermissionDenied(readable.status())) return absl::OkStatus();
    SHARDMESH_RETURN_IF_ERROR(readable.status());
    if (SHARDMESH_FAILS("write_root.sync") || fsync(readable->get()) != 0) {
      return FileError("sync", parent_path, errno);
    }
    return absl::OkStatus();
  }
  void Keep() { folders_.clear(); }

 private:
  std::vector<std::pair<FileDescriptor, std::string>> folders_;  // the parent and the name
};

}  // namespace

absl::StatusOr<WriteRoots> WriteRoots::Create(std::vector<std::string> paths) {
  WriteRoots roots;
  for (std::string& path : paths) {
    struct stat about = {};
    const bool is_folder = stat(path.c_str(), &about) == 0 && S_ISDIR(about.st_mode);
    if (path.empty() || path.front() != '/' || !is_folder) {
      return InvalidArgument(Reason::kBadField,
                             StrCat("--write-root \"", path, "\" is not ",
                                    is_folder ? "an absolute path; give one that begins with /"
                                              : "a folder; create it first, or name another"),
                             {{fact::kField, "--write-root"}, {fact::kValue, path}});
    }
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    roots.known_as_.push_back(path);
    // A caller may name a folder by the root's real path, or by a link to the root.
    std::error_code error;
    std::string real = std::filesystem::canonical(path, error).string();
    if (!error && real != path) roots.known_as_.push_back(std::move(real));
    roots.paths_.push_back(std::move(path));
  }
  return roots;
}

absl::StatusOr<FileDescriptor> OpenBeneath(const FileDescriptor& folder,
                                           std::string_view folder_path, const std::string& path,
                                           int flags, mode_t mode) {
  const std::string whole = StrCat(folder_path, "/", path);
  FileDescriptor opened = SHARDMESH_FAILS("write_root.open")
                              ? FileDescriptor()
                              : OpenPathBeneath(folder, path, flags, mode);
  if (opened.valid()) return opened;
  if (errno == EXDEV || errno == ELOOP) {
    return BadFolder(
        whole, errno == ELOOP ? "goes over a link that is not followed; name what it leads to"
                              : "leads out of its write root, by \"..\" or by a link; a link to an "
                                "absolute path is not followed, wherever it leads: name the folder "
                                "itself");
  }
  return FileError("open", whole, errno);
}

struct WriteRoots::Place {
  std::string root;
  std::string below;
  FileDescriptor top;  // the open root
};

absl::StatusOr<WriteRoots::Place> WriteRoots::Find(const std::string& path) const {
  if (path.empty() || path.front() != '/' || path.size() > kMaxFolderPathBytes ||
      path.find('\0') != std::string::npos) {
    return BadFolder(path,
                     StrCat("is not an absolute path of at most ", kMaxFolderPathBytes, " bytes"));
  }
  std::optional<std::string> below;
  const std::string* root = nullptr;
  for (const std::string& candidate : known_as_) {
    std::optional<std::string> part = Below(candidate, path);
    // The innermost root: another process may have made the outer one narrower.
    if (part.has_value() && (root == nullptr || candidate.size() > root->size())) {
      root = &candidate;
      below = std::move(part);
    }
  }
  if (root == nullptr) {
    return BadFolder(
        path, paths_.empty()
                  ? "cannot be written: the worker was started without --write-root; start it with "
                    "--write-root FOLDER, above the folder to save into (a cluster that `shardmesh "
                    "up` started: `shardmesh down`, then `shardmesh up --write-root FOLDER` with "
                    "the other flags as before)"
                  : StrCat("is under none of the worker's write roots: ", StrJoin(paths_, ", "),
                           "; name a folder below one of them, or start the worker with another "
                           "--write-root"));
  }
  FileDescriptor top(open(root->c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!top.valid()) return FileError("open", *root, errno);
  return Place{.root = *root, .below = *std::move(below), .top = std::move(top)};
}

absl::StatusOr<RootedFolder> WriteRoots::OpenNearest(const std::string& path) const {
  SHARDMESH_ASSIGN_OR_RETURN(const Place place, Find(path));
  std::vector<std::string> parts = PartsOf(place.below);
  if (std::find(parts.begin(), parts.end(), "..") != parts.end()) {
    return BadFolder(path, "must not contain \"..\"");
  }
  RootedFolder nearest;
  for (;; ++nearest.new_levels, parts.pop_back()) {
    absl::StatusOr<FileDescriptor> opened = OpenBeneath(
        place.top, place.root, parts.empty() ? "." : StrJoin(parts, "/"), O_RDONLY | O_DIRECTORY);
    if (opened.ok()) {
      nearest.descriptor = *std::move(opened);
      return nearest;
    }
    if (parts.empty() || !absl::IsNotFound(opened.status())) return opened.status();
    // A link that leads nowhere is in the place of a folder to create.
    const FileDescriptor link =
        OpenPathBeneath(place.top, StrJoin(parts, "/"), O_PATH | O_NOFOLLOW);
    if (link.valid()) return opened.status();
  }
}

absl::StatusOr<RootedFolder> WriteRoots::OpenFolder(const std::string& path, bool create) const {
  SHARDMESH_ASSIGN_OR_RETURN(const Place place, Find(path));
  const auto& [root, below, top] = place;
  RootedFolder folder;
  NewFolders created;
  if (create) {
    // Each level is opened and created by itself, so that a link cannot move the rest elsewhere.
    std::string made;
    for (const std::string& part : PartsOf(below)) {
      if (part == "..") return BadFolder(path, "must not contain \"..\"");
      absl::StatusOr<FileDescriptor> parent =
          OpenBeneath(top, root, made.empty() ? "." : made, O_PATH | O_DIRECTORY);
      SHARDMESH_RETURN_IF_ERROR(parent.status());
      const std::string parent_path = StrCat(root, made.empty() ? "" : "/", made);
      const int error = SHARDMESH_FAILS("write_root.create")                        ? errno
                        : mkdirat(parent->get(), part.c_str(), kNewFolderMode) != 0 ? errno
                                                                                    : 0;
      if (error == 0) {
        ++folder.new_levels;
        SHARDMESH_RETURN_IF_ERROR(created.Add(*std::move(parent), part, parent_path));
      } else if (error != EEXIST) {
        return FileError("create the folder", path, error);
      }
      StrAppend(&made, made.empty() ? "" : "/", part);
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(folder.descriptor,
                             OpenBeneath(top, root, below, O_RDONLY | O_DIRECTORY));
  created.Keep();
  return folder;
}

}  // namespace shardmesh::worker
