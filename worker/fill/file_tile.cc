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

// Bytes of the tile that are read before their checksum is computed and they are passed on. They
// fit into the second level of the cache of most processors.
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

absl::Status CheckTensorInFile(const RootedFile& file, std::string_view path, int64_t offset_bytes,
                               const TileRegion& region) {
  if (offset_bytes > file.state.size_bytes ||
      region.tensor_size_bytes() > file.state.size_bytes - offset_bytes) {
    return InvalidArgument(
        Reason::kBadFile,
        StrCat(path, " has ", file.state.size_bytes, " bytes, but the tensor takes ",
               region.tensor_size_bytes(), " from byte ", offset_bytes, " on"),
        {{fact::kFile, path}, {fact::kPosition, offset_bytes}});
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

absl::Status FileTileReader::ReadPart(const RootedFile& file, std::string_view path,
                                      int64_t offset_bytes, const TileRegion& region,
                                      int64_t begin_bytes, absl::Span<char> out,
                                      const KeepGoing& keep_going) {
  SHARDMESH_RETURN_IF_ERROR(CheckTensorInFile(file, path, offset_bytes, region));
  const auto read = [&](const Group& group) -> absl::Status {
    SHARDMESH_RETURN_IF_ERROR(keep_going());
    const auto size = static_cast<size_t>(group.file_end - group.file_begin);
    const absl::Span<char> to = out.subspan(static_cast<size_t>(group.tile_begin - begin_bytes),
                                            static_cast<size_t>(group.tile_end - group.tile_begin));
    if (!group.has_gaps()) return ReadSpan(file, path, offset_bytes + group.file_begin, to);
    span_.resize(static_cast<size_t>(kSpanBytes));
    SHARDMESH_RETURN_IF_ERROR(
        ReadSpan(file, path, offset_bytes + group.file_begin, absl::MakeSpan(span_.data(), size)));
    char* next = to.data();
    region.ForEachRun(group.tile_begin, group.tile_end, [&](int64_t at, int64_t run_bytes) {
      std::memcpy(next, span_.data() + (at - group.file_begin), static_cast<size_t>(run_bytes));
      next += run_bytes;
    });
    return absl::OkStatus();
  };
  absl::Status status;
  Group group{.tile_begin = begin_bytes, .tile_end = begin_bytes};
  const int64_t end_bytes = begin_bytes + static_cast<int64_t>(out.size());
  region.ForEachRun(begin_bytes, end_bytes, [&](int64_t at, int64_t run_bytes) {
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
  return status;
}

absl::StatusOr<uint32_t> FileTileReader::Read(const RootedFile& file, std::string_view path,
                                              int64_t offset_bytes, const TileRegion& region,
                                              absl::Span<char> out, const KeepGoing& keep_going,
                                              const std::function<void(int64_t bytes)>& progress) {
  SHARDMESH_RETURN_IF_ERROR(CheckTensorInFile(file, path, offset_bytes, region));
  uint32_t crc = 0;
  for (absl::Span<char> left = out; !left.empty();) {
    const absl::Span<char> piece = left.subspan(0, static_cast<size_t>(kPieceBytes));
    SHARDMESH_RETURN_IF_ERROR(ReadPart(file, path, offset_bytes, region,
                                       static_cast<int64_t>(out.size() - left.size()), piece,
                                       keep_going));
    crc = ExtendCrc32c(crc, piece);
    if (progress) progress(static_cast<int64_t>(piece.size()));
    left.remove_prefix(piece.size());
  }
  SHARDMESH_RETURN_IF_ERROR(CheckUnchanged(file, path));
  return crc;
}

absl::StatusOr<uint32_t> FileTileReader::ReadPieces(const RootedFile& file, std::string_view path,
                                                    int64_t offset_bytes, const TileRegion& region,
                                                    const PieceSink& sink,
                                                    const KeepGoing& keep_going) {
  SHARDMESH_RETURN_IF_ERROR(CheckTensorInFile(file, path, offset_bytes, region));
  uint32_t crc = 0;
  piece_.resize(static_cast<size_t>(kPieceBytes));
  for (int64_t begin = 0; begin < region.size_bytes(); begin += kPieceBytes) {
    const int64_t size = std::min(kPieceBytes, region.size_bytes() - begin);
    const auto piece = absl::MakeSpan(piece_.data(), static_cast<size_t>(size));
    SHARDMESH_RETURN_IF_ERROR(ReadPart(file, path, offset_bytes, region, begin, piece, keep_going));
    crc = ExtendCrc32c(crc, piece);
    SHARDMESH_RETURN_IF_ERROR(sink(begin, piece));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckUnchanged(file, path));
  return crc;
}

}  // namespace shardmesh::worker
