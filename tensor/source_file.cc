// Reads the state of files.
#include "tensor/source_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/time/clock.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {

bool MayChangeUnseen(absl::Time change_time, absl::Time now) {
  const bool has_whole_seconds =
      absl::ToUnixNanos(change_time) % absl::ToInt64Nanoseconds(absl::Seconds(1)) == 0;
  return now - change_time < (has_whole_seconds ? absl::Seconds(2) : absl::Milliseconds(50));
}

absl::StatusOr<SourceFile> IdentifyFile(const InputFile& file, std::string path,
                                        absl::Span<const char> head) {
  struct stat state = {};
  if (::fstat(file.descriptor.get(), &state) != 0) return FileError("examine", path, errno);
  SourceFile source{.path = std::move(path),
                    .size_bytes = file.size_bytes,
                    .modify_time = absl::TimeFromTimespec(state.st_mtim),
                    .head_sha256 = Sha256(std::string_view(head.data(), head.size())),
                    .head_bytes = static_cast<int64_t>(head.size()),
                    .inode = state.st_ino};
  const absl::Time changed = absl::TimeFromTimespec(state.st_ctim);
  if (!MayChangeUnseen(changed, absl::Now())) source.change_time = changed;
  return source;
}

absl::Status FileChanged(std::string_view path, std::string_view what, std::string_view have,
                         std::string_view need) {
  return WithReason(absl::FailedPreconditionError(
                        StrCat(path, " has changed since the client opened it: its ", what, " is ",
                               have, ", not ", need, "; load it again when nobody writes it")),
                    Reason::kFileChanged,
                    {{fact::kFile, path}, {fact::kHave, have}, {fact::kNeed, need}});
}

std::string FileTimeText(absl::Time time) {
  return absl::FormatTime(absl::RFC3339_full, time, absl::UTCTimeZone());
}

absl::Status CheckNotWritten(const SourceFile& file) {
  struct stat state = {};
  if (::stat(file.path.c_str(), &state) != 0) return absl::OkStatus();
  if (file.inode != 0 && state.st_ino != file.inode) return absl::OkStatus();
  if (state.st_size != file.size_bytes) {
    return FileChanged(file.path, "size", StrCat(state.st_size, " bytes"),
                       StrCat(file.size_bytes, " bytes"));
  }
  const absl::Time modify_time = absl::TimeFromTimespec(state.st_mtim);
  if (file.modify_time != absl::InfinitePast() && modify_time != file.modify_time) {
    return FileChanged(file.path, "modify time", FileTimeText(modify_time),
                       FileTimeText(file.modify_time));
  }
  return absl::OkStatus();
}

bool WasReplaced(const SourceFile& file) {
  struct stat about = {};
  if (stat(file.path.c_str(), &about) != 0) return errno == ENOENT || errno == ENOTDIR;
  return file.inode != 0 && about.st_ino != file.inode;
}

std::shared_ptr<const SourceFile> AtRealPath(const SourceFile& file) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(file.path, error);
  if (error) return nullptr;
  auto real = std::make_shared<SourceFile>(file);
  real->path = path.string();
  return real;
}

}  // namespace shardmesh
