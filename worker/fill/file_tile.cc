// Reads runs by pread(2), straight into the tile or in spans of many runs.
#include "worker/fill/file_tile.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/file.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// Bytes of the tile that are read before their checksum is computed. They fit into the second level
// of the cache of most processors.
constexpr int64_t kPieceBytes = int64_t{1} << 20;

// Fills `out` with the file's bytes from `at` on.
absl::Status ReadSpan(const RootedFile& file, std::string_view path, int64_t at,
                      absl::Span<char> out) {
  while (!out.empty()) {
    const ssize_t got = SHARDMESH_FAILS("fill.read")
                            ? -1
                            : pread(file.descriptor.get(), out.data(), out.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path, errno);
    if (got == 0) return Truncated(path, at, file.state.size_bytes);
    out.remove_prefix(static_cast<size_t>(got));
    at += got;
  }
  return absl::OkStatus();
}

// Consecutive runs of a tile that one read covers.
struct Group {
  int64_t file_begin = 0;  // in the tensor
  int64_t file_end = 0;
  int64_t tile_begin = 0;
  int64_t tile_end = 0;

  bool empty() const { return tile_begin == tile_end; }
  bool has_gaps() const { return file_end - file_begin != tile_end - tile_begin; }
};

}  // namespace

absl::StatusOr<uint32_t> FileTileReader::Read(const RootedFile& file, std::string_view path,
                                              int64_t offset_bytes, const TileRegion& region,
                                              absl::Span<char> out, const KeepGoing& keep_going,
                                              const std::function<void(int64_t bytes)>& progress) {
  if (offset_bytes > file.state.size_bytes ||
      region.tensor_size_bytes() > file.state.size_bytes - offset_bytes) {
    return InvalidArgument(
        Reason::kBadFile,
        StrCat(path, " has ", file.state.size_bytes, " bytes, but the tensor takes ",
               region.tensor_size_bytes(), " from byte ", offset_bytes, " on"),
        {{fact::kFile, path}, {fact::kPosition, offset_bytes}});
  }
  const auto read = [&](const Group& group) -> absl::Status {
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    const auto size = static_cast<size_t>(group.file_end - group.file_begin);
    if (!group.has_gaps()) {
      return ReadSpan(file, path, offset_bytes + group.file_begin,
                      out.subspan(static_cast<size_t>(group.tile_begin), size));
    }
    span_.resize(static_cast<size_t>(kSpanBytes));
    SHARDMESH_RETURN_IF_ERROR(
        ReadSpan(file, path, offset_bytes + group.file_begin, absl::MakeSpan(span_.data(), size)));
    char* to = out.data() + group.tile_begin;
    region.ForEachRun(group.tile_begin, group.tile_end, [&](int64_t at, int64_t run_bytes) {
      std::memcpy(to, span_.data() + (at - group.file_begin), static_cast<size_t>(run_bytes));
      to += run_bytes;
    });
    return absl::OkStatus();
  };
  uint32_t crc = 0;
  const auto size_bytes = static_cast<int64_t>(out.size());
  for (int64_t begin = 0; begin < size_bytes; begin += kPieceBytes) {
    const int64_t end = std::min(size_bytes, begin + kPieceBytes);
    absl::Status status;
    Group group{.tile_begin = begin, .tile_end = begin};
    region.ForEachRun(begin, end, [&](int64_t at, int64_t run_bytes) {
      if (!status.ok()) return;
      if (!group.empty() &&
          (at - group.file_end > kMaxGapBytes || at + run_bytes - group.file_begin > kSpanBytes)) {
        status = read(group);
        group = {.tile_begin = group.tile_end, .tile_end = group.tile_end};
      }
      if (group.empty()) group.file_begin = at;
      group.file_end = at + run_bytes;
      group.tile_end += run_bytes;
    });
    if (status.ok() && !group.empty()) status = read(group);
    SHARDMESH_RETURN_IF_ERROR(status);
    crc = ExtendCrc32c(crc,
                       out.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    if (progress) progress(end - begin);
  }
  SHARDMESH_RETURN_IF_ERROR(CheckUnchanged(file, path));
  return crc;
}

}  // namespace shardmesh::worker
