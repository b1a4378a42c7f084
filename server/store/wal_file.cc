// Reads, checks and applies a write-ahead log.
#include "server/store/wal_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/types/span.h"
#include "process/crc32c.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kHeaderBytes = 32;
constexpr int64_t kFrameHeaderBytes = 24;
// The bytes of a frame's header that the checksum covers: page number and database size.
constexpr size_t kSummedBytes = 8;
constexpr uint32_t kMagic = 0x377f0682;  // lowest bit set: sums over big-endian words
constexpr uint32_t kVersion = 3'007'000;
constexpr int64_t kLeastPageBytes = 512;
constexpr int64_t kMostPageBytes = 65'536;

// A disk writes this many bytes atomically.
constexpr int64_t kSectorBytes = 512;

// The maximum number of frames that are repaired, because each repaired frame is kept in memory.
constexpr size_t kMostMended = 1024;

absl::Status StoreError(absl::StatusCode code, std::string_view message, const std::string& path) {
  return WithReason(absl::Status(code, ToAbsl(message)), Reason::kStoreFailed,
                    {{fact::kFile, path}});
}

absl::Status SystemError(std::string_view doing, const std::string& path) {
  const int error = errno;
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return WithReason(
      absl::Status(is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                   StrCat("cannot ", doing, " ", path, ": ", std::strerror(error))),
      is_full ? Reason::kStoreFull : Reason::kStoreFailed, {{fact::kFile, path}});
}

uint32_t BigEndian(const char* bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

uint32_t Word(const char* bytes, bool is_big_endian) {
  uint32_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return is_big_endian == (std::endian::native == std::endian::big) ? value
                                                                    : __builtin_bswap32(value);
}

void PutWord(uint32_t value, bool is_big_endian, char* bytes) {
  value = Word(reinterpret_cast<const char*>(&value), is_big_endian);
  std::memcpy(bytes, &value, sizeof(value));
}

// Reads `size` bytes, or fewer at the end of the file. Returns their number.
absl::StatusOr<size_t> ReadAt(int fd, int64_t offset, char* to, size_t size,
                              const std::string& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = pread(fd, to + done, size - done, offset + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return SystemError("read", path);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

bool IsPageSize(int64_t bytes) {
  return bytes >= kLeastPageBytes && bytes <= kMostPageBytes &&
         std::has_single_bit(static_cast<uint64_t>(bytes));
}

}  // namespace

WalFile::Sums WalFile::Forward(Sums sums, std::string_view bytes, bool is_big_endian) {
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    sums.first += Word(bytes.data() + i, is_big_endian) + sums.second;
    sums.second += Word(bytes.data() + i + 4, is_big_endian) + sums.first;
  }
  return sums;
}

WalFile::Sums WalFile::Backward(Sums sums, std::string_view bytes, bool is_big_endian) {
  for (size_t i = bytes.size(); i >= 8; i -= 8) {
    sums.second -= Word(bytes.data() + i - 4, is_big_endian) + sums.first;
    sums.first -= Word(bytes.data() + i - 8, is_big_endian) + sums.second;
  }
  return sums;
}

int64_t WalFile::OffsetOf(int64_t frame) const {
  return kHeaderBytes + (frame - 1) * (kFrameHeaderBytes + page_bytes_);
}

absl::StatusOr<std::string> WalFile::ReadFrame(int fd, int64_t frame) const {
  if (const auto found = mended_.find(frame); found != mended_.end()) return found->second;
  std::string bytes(static_cast<size_t>(kFrameHeaderBytes + page_bytes_), '\0');
  SHARDMESH_ASSIGN_OR_RETURN(const size_t size,
                             ReadAt(fd, OffsetOf(frame), bytes.data(), bytes.size(), path_));
  if (size < bytes.size()) {
    return StoreError(absl::StatusCode::kInternal, StrCat(path_, " became shorter"), path_);
  }
  return bytes.erase(kSummedBytes, kFrameHeaderBytes - kSummedBytes);
}

absl::Status WalFile::ReadFrames(int fd) {
  const int64_t frame_bytes = kFrameHeaderBytes + page_bytes_;
  const int64_t count = (bytes_ - kHeaderBytes) / frame_bytes;
  frames_.clear();
  frames_.reserve(static_cast<size_t>(count));
  std::string bytes(static_cast<size_t>(frame_bytes), '\0');
  for (int64_t i = 1; i <= count; ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(const size_t size,
                               ReadAt(fd, OffsetOf(i), bytes.data(), bytes.size(), path_));
    if (size < bytes.size()) break;
    Frame frame;
    frame.page = BigEndian(bytes.data());
    frame.pages = BigEndian(bytes.data() + 4);
    frame.ends_commit = frame.pages != 0;
    std::memcpy(&frame.salts, bytes.data() + 8, sizeof(frame.salts));
    frame.end = {BigEndian(bytes.data() + 16), BigEndian(bytes.data() + 20)};
    const std::string_view page = std::string_view(bytes).substr(kFrameHeaderBytes);
    frame.start = Backward(Backward(frame.end, page, is_big_endian_),
                           std::string_view(bytes).substr(0, kSummedBytes), is_big_endian_);
    if (frame.pages != 0) frame.content = Crc32c(absl::MakeConstSpan(page.data(), page.size()));
    frames_.push_back(frame);
  }
  return absl::OkStatus();
}

bool WalFile::RunsOn(int64_t frame, Sums from) const {
  const Frame& it = frames_[static_cast<size_t>(frame - 1)];
  return it.salts == salts_ && it.page != 0 && it.start == from;
}

int64_t WalFile::CountLinks() const {
  int64_t links = 0;
  for (size_t i = 1; i < frames_.size(); ++i) {
    if (frames_[i].salts == frames_[i - 1].salts && frames_[i].start == frames_[i - 1].end) ++links;
  }
  return links;
}

bool WalFile::IsPadding(int64_t frame) const {
  const Frame& it = frames_[static_cast<size_t>(frame - 1)];
  const Frame& before = frames_[static_cast<size_t>(frame - 2)];
  return before.is_sound && it.pages != 0 && it.page == before.page && it.pages == before.pages &&
         it.content == before.content;
}

bool WalFile::HasOwnNumbers(int64_t frame) const {
  const int64_t begin = OffsetOf(frame);
  const int64_t last = begin + kFrameHeaderBytes - 1;
  return begin / kSectorBytes == last / kSectorBytes;
}

bool WalFile::EndsCommit(int64_t frame) const {
  const Frame& it = frames_[static_cast<size_t>(frame - 1)];
  return it.ends_commit && (HasOwnNumbers(frame) || (it.is_sound && !mended_.contains(frame)));
}

bool WalFile::MendHeader() {
  // All fields of the header are known except the count of checkpoints, which the checksum
  // determines. The header is repaired if the checksum also yields the known page size.
  char bytes[8];
  PutWord(BigEndian("\x37\x7f\x06\x82") | (is_big_endian_ ? 1 : 0), true, bytes);
  PutWord(kVersion, true, bytes + 4);
  const Sums before = Forward({}, {bytes, 8}, is_big_endian_);
  std::memcpy(bytes, &salts_, sizeof(salts_));
  const Sums behind = Backward(frames_.front().start, {bytes, 8}, is_big_endian_);
  PutWord(behind.first - before.first - before.second, is_big_endian_, bytes);
  return BigEndian(bytes) == static_cast<uint32_t>(page_bytes_);
}

absl::StatusOr<bool> WalFile::Mend(int fd, int64_t frame, Sums from, Sums to) {
  Frame& it = frames_[static_cast<size_t>(frame - 1)];
  SHARDMESH_ASSIGN_OR_RETURN(std::string bytes, ReadFrame(fd, frame));
  // Each frame of a transaction can add at most one page to the database. This bounds plausible
  // page numbers.
  constexpr uint32_t kManyPages = 1 << 20;
  uint32_t most_pages = 0;
  for (const Frame& each : frames_) {
    if (each.is_sound) most_pages = std::max(most_pages, each.pages);
  }
  const uint64_t limit = uint64_t{most_pages == 0 ? kManyPages : most_pages} + frames_.size();
  // For each group of eight bytes: the sums after the group, if all later bytes are right. The sums
  // before and after a group determine the bytes of the group.
  std::vector<Sums> behind(bytes.size() / 8 + 1);
  behind.back() = to;
  for (size_t i = behind.size() - 1; i > 0; --i) {
    behind[i - 1] =
        Backward(behind[i], std::string_view(bytes).substr(8 * (i - 1), 8), is_big_endian_);
  }
  // For each group there are bytes that make the sums fit. Search for the smallest change: one bit,
  // then one byte, and as a last resort the frame's header, if its new numbers are valid. Take the
  // change only if no other group fits after a change of the same kind. A change in the highest
  // byte of a word often has several fits, because the sums carry nothing from that byte.
  struct Fit {
    int places = 0;
    size_t place = 0;
    char bytes[8] = {};
  };
  Fit same;
  Fit by_bit;
  Fit by_byte;
  Fit header;
  for (size_t i = 0; i + 1 < behind.size(); ++i) {
    char wanted[8];
    PutWord(behind[i + 1].first - from.first - from.second, is_big_endian_, wanted);
    PutWord(behind[i + 1].second - from.second - behind[i + 1].first, is_big_endian_, wanted + 4);
    int wrong_bytes = 0;
    int wrong_bits = 0;
    for (size_t k = 0; k < 8; ++k) {
      wrong_bytes += wanted[k] != bytes[8 * i + k] ? 1 : 0;
      wrong_bits += std::popcount(static_cast<uint8_t>(wanted[k] ^ bytes[8 * i + k]));
    }
    const auto note = [&](Fit& fit) {
      ++fit.places;
      fit.place = i;
      std::memcpy(fit.bytes, wanted, sizeof(fit.bytes));
    };
    if (wrong_bytes == 0) {  // only the frame's own checksum or salts are wrong
      note(same);
      break;
    }
    if (wrong_bits == 1) note(by_bit);
    if (wrong_bytes == 1) note(by_byte);
    if (i == 0 && BigEndian(wanted) != 0 && BigEndian(wanted) <= limit &&
        BigEndian(wanted + 4) <= limit) {
      note(header);
    }
    from = Forward(from, std::string_view(bytes).substr(8 * i, 8), is_big_endian_);
  }
  const Fit& fit = same.places > 0      ? same
                   : by_bit.places > 0  ? by_bit
                   : by_byte.places > 0 ? by_byte
                                        : header;
  if (fit.places != 1 || mended_.size() >= kMostMended) return false;
  bytes.replace(8 * fit.place, 8, fit.bytes, 8);
  if (BigEndian(bytes.data()) == 0) return false;
  it.page = BigEndian(bytes.data());
  it.pages = BigEndian(bytes.data() + 4);
  it.end = to;
  it.content = Crc32c(absl::MakeConstSpan(bytes).subspan(kSummedBytes));
  mended_[frame] = std::move(bytes);
  return true;
}

absl::Status WalFile::LookBehind(int fd, int64_t bad, Sums from) {
  const auto count = std::ssize(frames_);
  const auto has_salts = [&](int64_t frame) {
    return frame <= count && frames_[static_cast<size_t>(frame - 1)].salts == salts_;
  };
  const bool is_header_damaged = is_damaged_;
  int64_t last = end_;      // the frame that ends the last valid commit
  int64_t last_in_run = 0;  // like `last`, but in the current run of sound frames
  bool is_proven = false;   // some commits of the run were acknowledged
  const auto end_run = [&] {
    if (is_proven) last = std::max(last, last_in_run);
    last_in_run = 0;
    is_proven = false;
  };
  for (int64_t i = bad; i <= count; ++i) {
    Frame& frame = frames_[static_cast<size_t>(i - 1)];
    frame.is_sound = RunsOn(i, from);
    if (!frame.is_sound && has_salts(i + 1)) {
      const Sums to = frames_[static_cast<size_t>(i)].start;
      SHARDMESH_ASSIGN_OR_RETURN(frame.is_sound, Mend(fd, i, from, to));
    }
    from = frame.end;
    if (!frame.is_sound) {
      end_run();
      continue;
    }
    if (i > 1) {
      const Frame& before = frames_[static_cast<size_t>(i - 2)];
      // A repaired frame is no proof of an acknowledged commit: a frame that was rolled back may
      // look valid after the repair.
      if (EndsCommit(i - 1) && i - 1 > end_ && mended_.count(i) == 0 && !IsPadding(i)) {
        is_proven = true;
        last = i - 1;
      }
      is_proven = is_proven || (is_header_damaged && before.is_sound);
    }
    if (frame.pages != 0) last_in_run = i;
  }
  end_run();
  if (last == end_ && !is_header_damaged) return absl::OkStatus();
  is_damaged_ = true;
  bad_frame_ = is_header_damaged ? 0 : bad;
  is_whole_ = last > 0;
  for (int64_t i = end_ + 1; i <= last; ++i) {
    const Frame& frame = frames_[static_cast<size_t>(i - 1)];
    const bool is_one = frame.is_sound || frame.salts == salts_;
    if (is_one && (frame.is_sound ? frame.pages != 0 : EndsCommit(i)) && !(i > 1 && IsPadding(i)))
      ++lost_commits_;
    is_whole_ = is_whole_ && frame.is_sound;
  }
  end_ = last;
  return absl::OkStatus();
}

absl::StatusOr<WalFile> WalFile::Read(const std::string& path, int64_t page_bytes) {
  WalFile log;
  log.path_ = path;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return log;
  if (fd < 0) return SystemError("open", path);
  const absl::Cleanup close_file = [fd] { close(fd); };
  struct stat found;
  if (fstat(fd, &found) != 0) return SystemError("look at", path);
  log.bytes_ = found.st_size;
  char header[kHeaderBytes] = {};
  SHARDMESH_ASSIGN_OR_RETURN(const size_t size, ReadAt(fd, 0, header, sizeof(header), path));
  if (size < sizeof(header) || log.bytes_ == kHeaderBytes) return log;

  const uint32_t magic = BigEndian(header);
  const int64_t stored_page_bytes = BigEndian(header + 8);
  const Sums header_sums = {BigEndian(header + 24), BigEndian(header + 28)};
  std::memcpy(&log.salts_, header + 16, sizeof(log.salts_));
  log.is_big_endian_ = (magic & 1) != 0;
  log.page_bytes_ = stored_page_bytes;
  const bool is_header_sound = (magic & ~1u) == kMagic && IsPageSize(stored_page_bytes) &&
                               Forward({}, {header, 24}, log.is_big_endian_) == header_sums;
  if (is_header_sound) {
    if (BigEndian(header + 4) != kVersion) return log;  // SQLite refuses the log, and keeps it
    SHARDMESH_RETURN_IF_ERROR(log.ReadFrames(fd));
    Sums from = header_sums;
    int64_t next = 1;
    for (; next <= std::ssize(log.frames_) && log.RunsOn(next, from); ++next) {
      Frame& frame = log.frames_[static_cast<size_t>(next - 1)];
      frame.is_sound = true;
      from = frame.end;
      if (frame.pages != 0) log.end_ = next;
    }
    SHARDMESH_RETURN_IF_ERROR(log.LookBehind(fd, next, from));
    return log;
  }
  // The header is unreadable. Try page sizes and byte orders: with the right size and order, frames
  // continue each other's checksums.
  WalFile best;
  int64_t most_links = -1;
  for (const int64_t bytes : {stored_page_bytes, page_bytes}) {
    if (!IsPageSize(bytes)) continue;
    for (const bool is_big_endian : {false, true}) {
      log.page_bytes_ = bytes;
      log.is_big_endian_ = is_big_endian;
      SHARDMESH_RETURN_IF_ERROR(log.ReadFrames(fd));
      if (log.CountLinks() <= most_links) continue;
      most_links = log.CountLinks();
      best = log;
    }
  }
  best.is_damaged_ = true;
  if (most_links <= 0) {
    best.is_whole_ = false;
    return best;
  }
  for (size_t i = 0; i + 1 < best.frames_.size(); ++i) {
    best.salts_ = best.frames_[i].salts;
    if (best.salts_ == best.frames_[i + 1].salts) break;
  }
  // If the header cannot be repaired, treat the first frame as possibly damaged.
  const bool is_mended = best.MendHeader();
  Sums from = best.frames_.front().start;
  if (!is_mended) ++from.first;
  SHARDMESH_RETURN_IF_ERROR(best.LookBehind(fd, 1, from));
  return best;
}

absl::Status WalFile::damage() const {
  if (!is_damaged_) return absl::OkStatus();
  const std::string where = bad_frame_ == 0
                                ? "its header is not as it was written"
                                : StrCat("frame ", bad_frame_, " at byte ", OffsetOf(bad_frame_),
                                         " is not as it was written");
  return StoreError(
      absl::StatusCode::kDataLoss,
      StrCat("the write-ahead log ", path_, " is damaged: ", where, ", and ",
             lost_commits_ == 0 ? "what was committed"
                                : StrCat(lost_commits_, " commits that were acknowledged"),
             " behind it would be lost; `shardmesh admin check FOLDER --set-aside` brings back ",
             is_whole_ ? "all of them" : "those of them that can be read",
             ", or restore a snapshot"),
      path_);
}

absl::Status WalFile::ApplyTo(const std::string& to) const {
  if (end_ == 0) return absl::OkStatus();
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("open", path_);
  const absl::Cleanup close_log = [fd] { close(fd); };
  const int database = open(to.c_str(), O_WRONLY | O_CLOEXEC);
  if (database < 0) return SystemError("open", to);
  const absl::Cleanup close_database = [database] { close(database); };
  // The page count of the last commit. If that count is damaged, a size that has room for all
  // frames.
  uint32_t pages = 0;
  bool is_certain = false;
  for (int64_t i = 1; i <= end_; ++i) {
    const Frame& frame = frames_[static_cast<size_t>(i - 1)];
    is_certain = frame.is_sound && frame.pages != 0;
    if (is_certain) {
      pages = frame.pages;
    } else if (frame.is_sound) {
      pages = std::max(pages, frame.page);
    }
  }
  if (!is_certain) {
    struct stat found;
    if (fstat(database, &found) != 0) return SystemError("look at", to);
    pages = std::max(pages, static_cast<uint32_t>(found.st_size / page_bytes_));
  }
  std::map<uint32_t, int64_t> newest;  // newest frame, by page number
  for (int64_t i = 1; i <= end_; ++i) {
    const Frame& frame = frames_[static_cast<size_t>(i - 1)];
    const bool is_one = frame.is_sound || (frame.salts == salts_ && HasOwnNumbers(i));
    if (is_one && frame.page >= 1 && frame.page <= pages) {
      newest[frame.page] = i;
    }
  }
  for (const auto& [page, frame] : newest) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string bytes, ReadFrame(fd, frame));
    size_t done = kSummedBytes;
    while (done < bytes.size()) {
      const int64_t offset =
          int64_t{page - 1} * page_bytes_ + static_cast<int64_t>(done - kSummedBytes);
      const ssize_t count = pwrite(database, bytes.data() + done, bytes.size() - done, offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return SystemError("write", to);
      done += static_cast<size_t>(count);
    }
  }
  if (ftruncate(database, int64_t{pages} * page_bytes_) != 0) return SystemError("write", to);
  return absl::OkStatus();
}

}  // namespace shardmesh::server
