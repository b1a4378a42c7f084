// Reads SQLite's write-ahead log without SQLite. SQLite ends the log at the first damaged frame,
// and drops all frames after it without an error.
#ifndef SHARDMESH_SERVER_STORE_WAL_FILE_H_
#define SHARDMESH_SERVER_STORE_WAL_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardmesh::server {

// One log, as it was when it was read. The format is that of
// https://sqlite.org/fileformat2.html#walformat: a header, then frames of one page each. A frame
// that ends a commit holds the database's page count after it. The checksum of each frame continues
// that of the frame before.
//
// Definition of damage. A commit is acknowledged when its frames are synced, and the frames of the
// next commit continue its checksum. A frame that continues a commit's last frame therefore proves
// that all frames up to that one were on the disk. This holds even if the last frame is damaged:
// its header, in one sector, shows that it ends a commit, and holds its checksum.
//
// The log is damaged if SQLite ends it before a commit with such a proof. Three things are no
// damage. A commit being written when process or machine died has no frame after it. Frames of an
// earlier pass over the file may follow the end. Frames of a transaction that was rolled back may
// follow it too.
//
// SQLite syncs the header before it writes the first frame. A changed header is therefore damage
// where frames follow.
//
// Movable; immutable and thread-safe.
class WalFile {
 public:
  // Reads the log at `path`. A file that is missing or empty is a log without frames. `page_bytes`
  // is the page size for a log whose header does not contain it. INTERNAL: the disk failed to read
  // the file.
  static absl::StatusOr<WalFile> Read(const std::string& path, int64_t page_bytes = 4096);

  // DATA_LOSS (STORE_FAILED): SQLite would drop acknowledged commits. The message names file, frame
  // and byte, and the number of commits after it.
  absl::Status damage() const;
  // Returns the number of commits after the damage, if they can be distinguished; 0 without
  // damage.
  int64_t lost_commits() const { return lost_commits_; }
  // Returns whether all committed data is known for certain: the log is not damaged, or the
  // checksums around the damage determine it. They usually determine one wrong bit of a frame.
  bool is_whole() const { return is_whole_; }

  // Writes the newest page of each number into the database file `to`, without its log. Sets the
  // file to the size in the last commit. Damaged frames whose content does not follow from
  // checksums are written unchanged if there is no newer page. Does not sync.
  absl::Status ApplyTo(const std::string& to) const;

 private:
  // The two sums of SQLite's checksum.
  struct Sums {
    uint32_t first = 0;
    uint32_t second = 0;
    bool operator==(const Sums&) const = default;
  };
  struct Frame {
    uint32_t page = 0;         // its number, from 1
    uint32_t pages = 0;        // database size, if it ends a commit; else 0
    bool ends_commit = false;  // as stored in the file
    uint64_t salts = 0;
    Sums start;             // the sums before its bytes that lead to `end`
    Sums end;               // as it says
    uint32_t content = 0;   // CRC-32C of the page
    bool is_sound = false;  // continues the frame before, or is determined by its neighbours
  };

  // Over 32-bit words of the log's byte order, two at a time.
  static Sums Forward(Sums sums, std::string_view bytes, bool is_big_endian);
  static Sums Backward(Sums sums, std::string_view bytes, bool is_big_endian);

  int64_t OffsetOf(int64_t frame) const;
  // Reads all frames. Does not yet check which of them continue the one before.
  absl::Status ReadFrames(int fd);
  // Returns the bytes that a frame's checksum covers: the first eight bytes of its header, and its
  // page.
  absl::StatusOr<std::string> ReadFrame(int fd, int64_t frame) const;
  bool RunsOn(int64_t frame, Sums from) const;
  // The number of frames that continue the one before them.
  int64_t CountLinks() const;
  bool MendHeader();
  // Finds the frame's original bytes, whose sums lead from `from` to `to`. Returns false if they
  // are not certain.
  absl::StatusOr<bool> Mend(int fd, int64_t frame, Sums from, Sums to);
  // Returns whether the frame is a copy of the one before, which pads a commit to a whole sector.
  // SQLite pads only where a torn write may damage neighbouring data, which our disks do not
  // report.
  bool IsPadding(int64_t frame) const;
  // Returns whether page number and size of a frame were certainly written with its checksum. If
  // the header spans two sectors, a torn write may leave those of an earlier frame.
  bool HasOwnNumbers(int64_t frame) const;
  // Whether the frame ends a commit: the value in the file, if that is certain.
  bool EndsCommit(int64_t frame) const;
  absl::Status LookBehind(int fd, int64_t bad, Sums from);

  std::string path_;
  int64_t bytes_ = 0;
  int64_t page_bytes_ = 0;
  bool is_big_endian_ = false;
  uint64_t salts_ = 0;
  std::vector<Frame> frames_;
  std::map<int64_t, std::string> mended_;  // by frame: its bytes in the form of ReadFrame
  int64_t end_ = 0;                        // frames that count
  bool is_damaged_ = false;
  bool is_whole_ = true;
  int64_t bad_frame_ = 0;  // from 1; 0: the header
  int64_t lost_commits_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_WAL_FILE_H_
