// Opens files so that no link and no pipe in the folder of a checkpoint is followed.
#include "worker/save/folder_manifest.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "worker/save/write_root.h"

namespace shardmesh::worker {

absl::StatusOr<FileDescriptor> OpenRegular(const FileDescriptor& folder, std::string_view path,
                                           const std::string& name, int flags, mode_t mode) {
  SHARDMESH_ASSIGN_OR_RETURN(
      FileDescriptor file,
      OpenBeneath(folder, path, name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode));
  struct stat about = {};
  const std::string whole = StrCat(path, "/", name);
  if (fstat(file.get(), &about) != 0) return FileError("examine", whole, errno);
  if (!S_ISREG(about.st_mode)) {
    return InvalidArgument(Reason::kBadFile,
                           StrCat(whole,
                                  " is not a regular file; move it away, or save into "
                                  "another folder"),
                           {{fact::kFile, whole}});
  }
  return file;
}

absl::StatusOr<InputFile> OpenToRead(const FileDescriptor& folder, std::string_view path,
                                     const std::string& name) {
  SHARDMESH_ASSIGN_OR_RETURN(FileDescriptor file, OpenRegular(folder, path, name, O_RDONLY));
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) {
    return FileError("examine", StrCat(path, "/", name), errno);
  }
  return InputFile{.descriptor = std::move(file), .size_bytes = about.st_size};
}

absl::StatusOr<std::string> ReadText(const FileDescriptor& folder, std::string_view path,
                                     std::string_view name) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenToRead(folder, path, std::string(name)));
  const std::string whole = StrCat(path, "/", name);
  if (file.size_bytes > kMaxCheckpointManifestBytes) {
    return InvalidArgument(Reason::kBadFile, StrCat(whole, " is too large"),
                           {{fact::kFile, whole}});
  }
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, whole, 0, absl::MakeSpan(text)));
  return text;
}

absl::StatusOr<std::optional<std::vector<ManifestFile>>> ReadManifest(const FileDescriptor& folder,
                                                                      std::string_view path) {
  const absl::StatusOr<std::string> text = ReadText(folder, path, kCheckpointManifest);
  if (absl::IsNotFound(text.status())) return std::nullopt;
  SHARDMESH_RETURN_IF_ERROR(text.status());
  const std::string file = StrCat(path, "/", kCheckpointManifest);
  absl::StatusOr<std::vector<ManifestFile>> files = ParseManifest(file, *text);
  if (files.ok()) return *std::move(files);
  return InvalidArgument(Reason::kBadFile,
                         StrCat(file,
                                " is no manifest that this build can read, so it does not "
                                "say which files are the checkpoint's; move them away, or "
                                "save into another folder"),
                         {{fact::kFile, file}});
}

}  // namespace shardmesh::worker
