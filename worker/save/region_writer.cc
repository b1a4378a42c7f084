// Writes long runs as they are, past the page cache where it can, and short runs in ranges that it
// reads, changes and writes back under a lock.
#include "worker/save/region_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/view.h"

namespace shardmesh::worker {
namespace {

// The bytes of the tile between two calls of `progress`. Checksum and write of these bytes follow
// each other, so the write finds them in the cache.
constexpr int64_t kChunkBytes = 4 << 20;
static_assert(kChunkBytes % kSavedPieceBytes == 0);
// Pauses between two attempts to lock a range that another writer holds. Each pause is twice as
// long as the one before. A writer holds a range for one write of at most some MiB.
constexpr absl::Duration kFirstLockPause = absl::Microseconds(50);
constexpr absl::Duration kLastLockPause = absl::Milliseconds(5);

// Direct writes need offset, size and memory in multiples of a block. All disks have blocks of this
// size or of a part of it; and with whole pages, no page is written both ways.
constexpr int64_t kBlockBytes = 4096;
// The shortest run that is written directly. A direct write waits for the disk.
constexpr int64_t kDirectRunBytes = 256 << 10;

int64_t RoundUpToBlock(int64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

absl::Status SaveCancelled() {
  return WithReason(absl::CancelledError("the save was cancelled"), Reason::kCancelled);
}

// A run of the tile in the file.
struct Run {
  int64_t offset_bytes = 0;
  absl::Span<const char> bytes;

  int64_t end_bytes() const { return offset_bytes + static_cast<int64_t>(bytes.size()); }
};

class Writer {
 public:
  Writer(const FileDescriptor& file, std::string_view path, const RegionWriterOptions& options)
      : file_(file), path_(path), options_(options), locks_work_(options.locks_work) {}
  ~Writer() { SetDirect(false); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Adds a run to the current span, or writes the span first if the run does not fit to it.
  absl::Status Add(const Run& run) {
    if (!span_.empty() && !Continues(run)) SHARDMESH_RETURN_IF_ERROR(Flush());
    span_.push_back(run);
    return absl::OkStatus();
  }

  absl::Status Flush() {
    const std::vector<Run> runs = std::exchange(span_, {});
    if (runs.size() > 1) {
      const int64_t begin = runs.front().offset_bytes;
      const int64_t size = runs.back().end_bytes() - begin;
      bool is_locked = false;
      SHARDMESH_RETURN_IF_ERROR(Lock(F_WRLCK, begin, size, &is_locked));
      if (is_locked) {
        absl::Status patched = Patch(runs, begin, size);
        SHARDMESH_RETURN_IF_ERROR(Lock(F_UNLCK, begin, size, &is_locked));
        return patched;
      }
    }
    for (const Run& run : runs) SHARDMESH_RETURN_IF_ERROR(WriteAlone(run));
    return absl::OkStatus();
  }

 private:
  bool Continues(const Run& run) const {
    const Run& last = span_.back();
    const int64_t gap = run.offset_bytes - last.end_bytes();
    return locks_work_ && gap >= 0 && gap < kShortGapBytes &&
           static_cast<int64_t>(run.bytes.size()) < kLongRunBytes &&
           static_cast<int64_t>(last.bytes.size()) < kLongRunBytes &&
           run.end_bytes() - span_.front().offset_bytes <= kMaxSpanBytes;
  }

  // Locks or unlocks a range of the file. `*is_locked` becomes false, and all further runs are
  // written alone, if the file system has no locks. While another writer holds the range, asks
  // `progress` whether to go on: that writer may be a worker that was frozen, and a wait in the
  // kernel could not be ended.
  absl::Status Lock(short type, int64_t begin, int64_t size, bool* is_locked) {
    struct flock range = {};
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = begin;
    range.l_len = size;
    *is_locked = true;
    absl::Duration pause = kFirstLockPause;
    while (fcntl(file_.get(), F_OFD_SETLK, &range) != 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EACCES) {
        if (options_.progress && !options_.progress(0)) return SaveCancelled();
        absl::SleepFor(pause);
        pause = std::min(2 * pause, kLastLockPause);
        continue;
      }
      if (type == F_WRLCK &&
          (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK)) {
        *is_locked = locks_work_ = false;
        return absl::OkStatus();
      }
      return FileError("lock a range of", path_, errno);
    }
    return absl::OkStatus();
  }

  // A run that is written alone needs the lock too: another worker may be about to write back the
  // bytes that it read here before.
  absl::Status WriteAlone(const Run& run) {
    bool is_locked = false;
    const int64_t size = static_cast<int64_t>(run.bytes.size());
    if (locks_work_) {
      SHARDMESH_RETURN_IF_ERROR(Lock(F_WRLCK, run.offset_bytes, size, &is_locked));
    }
    absl::Status written = WriteRun(run.offset_bytes, run.bytes);
    if (is_locked) {
      SHARDMESH_RETURN_IF_ERROR(Lock(F_UNLCK, run.offset_bytes, size, &is_locked));
    }
    return written;
  }

  absl::Status Patch(const std::vector<Run>& runs, int64_t begin, int64_t size) {
    buffer_.resize(static_cast<size_t>(size));
    for (int64_t done = 0; done < size;) {
      const ssize_t count =
          pread(file_.get(), buffer_.data() + done, static_cast<size_t>(size - done), begin + done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return FileError("read", path_, errno);
      if (count == 0) {
        return InvalidArgument(Reason::kBadFile,
                               StrCat(path_, " is too short: somebody else changed it"),
                               {{fact::kFile, path_}});
      }
      done += count;
    }
    for (const Run& run : runs) {
      std::memcpy(buffer_.data() + (run.offset_bytes - begin), run.bytes.data(), run.bytes.size());
    }
    return Write(begin, buffer_);
  }

  // Writes the whole blocks of a long run directly: the page cache would cost the processor several
  // times the work, and the disk's rate. What is not aligned in file and memory alike cannot be
  // written so.
  absl::Status WriteRun(int64_t offset_bytes, absl::Span<const char> bytes) {
    const auto size = static_cast<int64_t>(bytes.size());
    const int64_t head = RoundUpToBlock(offset_bytes) - offset_bytes;
    const bool is_aligned =
        reinterpret_cast<uintptr_t>(bytes.data() + head) % uintptr_t{kBlockBytes} == 0;
    if (size < kDirectRunBytes || !is_aligned || !SetDirect(true)) {
      return Write(offset_bytes, bytes);
    }
    const int64_t end = head + (size - head) / kBlockBytes * kBlockBytes;
    SHARDMESH_RETURN_IF_ERROR(
        Write(offset_bytes + head, bytes.subspan(static_cast<size_t>(head), end - head)));
    SetDirect(false);
    SHARDMESH_RETURN_IF_ERROR(Write(offset_bytes, bytes.subspan(0, static_cast<size_t>(head))));
    return Write(offset_bytes + end, bytes.subspan(static_cast<size_t>(end)));
  }

  // Switches direct writes on or off. Returns whether the file is as asked: many file systems have
  // no direct writes.
  bool SetDirect(bool on) {
    if (is_direct_ == on) return true;
    if (on && !direct_works_) return false;
    const int flags = fcntl(file_.get(), F_GETFL);
    direct_works_ =
        flags >= 0 && fcntl(file_.get(), F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
    if (direct_works_) is_direct_ = on;
    return direct_works_;
  }

  absl::Status Write(int64_t offset_bytes, absl::Span<const char> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = SHARDMESH_FAILS("save.write")
                                ? -1
                                : pwrite(file_.get(), bytes.data(), bytes.size(), offset_bytes);
      if (count < 0 && errno == EINTR) continue;
      // Larger blocks than expected, or a part of a block was written.
      if (count < 0 && errno == EINVAL && is_direct_ && SetDirect(false)) {
        direct_works_ = false;
        continue;
      }
      if (count < 0) return FileError("write", path_, errno);
      bytes.remove_prefix(static_cast<size_t>(count));
      offset_bytes += count;
    }
    return absl::OkStatus();
  }

  const FileDescriptor& file_;
  const std::string_view path_;
  const RegionWriterOptions& options_;
  bool locks_work_;
  bool direct_works_ = true;
  bool is_direct_ = false;
  std::vector<Run> span_;  // by rising offset, with short gaps
  std::string buffer_;
};

}  // namespace

absl::StatusOr<TileRegion> RegionOf(const RegionPlace& place, int64_t tile_bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                             TileRegion::Create(place.dtype, place.tensor_shape, place.tile));
  if (place.begin_bytes >= 0 && place.begin_bytes <= place.end_bytes &&
      place.end_bytes <= region.size_bytes() && region.size_bytes() == tile_bytes) {
    return region;
  }
  return InvalidArgument(
      Reason::kBadTile,
      StrCat("bytes [", place.begin_bytes, ", ", place.end_bytes, ") are not within the ",
             tile_bytes, " bytes of the tile ", place.tile.ToString()),
      {{fact::kHave, place.end_bytes}, {fact::kNeed, tile_bytes}});
}

absl::StatusOr<uint32_t> WriteRegion(const FileDescriptor& file, std::string_view path,
                                     absl::Span<const char> tile_bytes, const RegionPlace& place,
                                     const RegionWriterOptions& options,
                                     std::vector<uint32_t>* piece_crc32c) {
  SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                             RegionOf(place, static_cast<int64_t>(tile_bytes.size())));
  Writer writer(file, path, options);
  uint32_t crc32c = 0;
  for (int64_t begin = place.begin_bytes; begin < place.end_bytes;) {
    const int64_t end = std::min(place.end_bytes, begin + kChunkBytes);
    absl::Span<const char> left =
        tile_bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    for (absl::Span<const char> rest = left; !rest.empty();) {
      const absl::Span<const char> piece = rest.subspan(0, kSavedPieceBytes);
      const uint32_t sum = Crc32c(piece);
      crc32c = ConcatCrc32c(crc32c, sum, static_cast<int64_t>(piece.size()));
      if (piece_crc32c != nullptr) piece_crc32c->push_back(sum);
      rest.remove_prefix(piece.size());
    }
    absl::Status written;
    region.ForEachRun(begin, end, [&](int64_t tensor_offset, int64_t size) {
      if (!written.ok()) return;
      written = writer.Add({.offset_bytes = place.offset_bytes + tensor_offset,
                            .bytes = left.subspan(0, static_cast<size_t>(size))});
      left.remove_prefix(static_cast<size_t>(size));
    });
    SHARDMESH_RETURN_IF_ERROR(written);
    SHARDMESH_RETURN_IF_ERROR(writer.Flush());
    if (options.progress && !options.progress(end - begin)) return SaveCancelled();
    begin = end;
  }
  return crc32c;
}

}  // namespace shardmesh::worker
