// Reads SQLite's write-ahead log without SQLite. SQLite itself ends the log at the first damaged
// frame, and drops all later frames without an error.
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

// The content of one log at the time of Read. The format is that of
// https://sqlite.org/fileformat2.html#walformat: a header, then frames of one page each. A frame
// that ends a commit also holds the database's page count after the commit. The checksum of each
// frame continues that of the frame before.
//
// Definition of damage. A commit is acknowledged when its frames are synced, and the frames of the
// next commit continue its checksum. If a frame continues the checksum of a commit's last frame,
// all frames up to that last frame were therefore on the disk. This holds even if the page in that
// last frame is damaged. If the frame's header lies in one sector, it still shows that the frame
// ends a commit, and still holds the frame's checksum.
//
// The log is damaged if SQLite would end it before a commit that is proven in this way to be
// acknowledged. Three things are not damage. First, a commit that was being written when the
// process or the machine died: no frame follows it. Second, frames after the end that are left from
// an earlier pass over the file. Third, frames after the end of a transaction that was rolled back.
//
// SQLite syncs the header before it writes the first frame. If frames follow a changed header, the
// log is therefore damaged.
//
// Movable; immutable and thread-safe.
class WalFile {
 public:
  // Reads the log at `path`. A missing or empty file is a log without frames. `page_bytes` is the
  // page size to try if the header is damaged. INTERNAL: the disk failed to read the file.
  static absl::StatusOr<WalFile> Read(const std::string& path, int64_t page_bytes = 4096);

  // Returns DATA_LOSS (STORE_FAILED) if SQLite would drop acknowledged commits. The message names
  // file, frame and byte, and the number of commits after the damage.
  absl::Status damage() const;
  // Returns the number of commits after the damage, as far as the commits can be distinguished; 0
  // without damage.
  int64_t lost_commits() const { return lost_commits_; }
  // Returns whether all committed data is known for certain. This is so if the log is not damaged,
  // or if checksums determine the damaged bytes. Checksums usually determine one wrong bit of a
  // frame.
  bool is_whole() const { return is_whole_; }

  // Writes the newest version of each page to the database file `to`, which must have no log of its
  // own. Sets the file's size to the database's size after the last commit. A damaged frame that
  // cannot be repaired is written as it is, unless a newer frame has its page. Does not sync.
  absl::Status ApplyTo(const std::string& to) const;

 private:
  // The two running sums of SQLite's checksum.
  struct Sums {
    uint32_t first = 0;
    uint32_t second = 0;
    bool operator==(const Sums&) const = default;
  };
  struct Frame {
    uint32_t page = 0;         // page number, from 1
    uint32_t pages = 0;        // database size in pages if the frame ends a commit, else 0
    bool ends_commit = false;  // whether `pages` was not 0 in the file, before any repair
    uint64_t salts = 0;
    Sums start;             // sums before the frame, computed back from `end`
    Sums end;               // the sums stored in the frame
    uint32_t content = 0;   // CRC-32C of the page; set if `pages` is not 0
    bool is_sound = false;  // the frame continues the frame before, or was repaired
  };

  // Forward advances the sums over `bytes`. Backward returns the sums before `bytes` from those
  // after them. Both process 32-bit words in the log's byte order, two at a time.
  static Sums Forward(Sums sums, std::string_view bytes, bool is_big_endian);
  static Sums Backward(Sums sums, std::string_view bytes, bool is_big_endian);

  int64_t OffsetOf(int64_t frame) const;
  // Reads all frames. Does not yet check whether each continues the checksum of the frame before.
  absl::Status ReadFrames(int fd);
  // Returns the bytes that a frame's checksum covers: the first eight bytes of its header, then its
  // page.
  absl::StatusOr<std::string> ReadFrame(int fd, int64_t frame) const;
  bool RunsOn(int64_t frame, Sums from) const;
  // Returns the number of frames that continue the checksum of the frame before.
  int64_t CountLinks() const;
  bool MendHeader();
  // Repairs a frame: finds the original bytes, for which the sums lead from `from` to `to`. Returns
  // false if these bytes are not certain.
  absl::StatusOr<bool> Mend(int fd, int64_t frame, Sums from, Sums to);
  // Returns whether the frame is a copy of the frame before, added to fill a commit up to a whole
  // sector. SQLite adds such copies only on disks where a torn write may damage neighbouring data.
  // Our disks do not report that.
  bool IsPadding(int64_t frame) const;
  // Returns whether the stored page number and database size of a frame certainly belong to its
  // checksum. If the frame's header spans two sectors, a torn write may leave the numbers of an
  // earlier frame.
  bool HasOwnNumbers(int64_t frame) const;
  // Returns whether it is certain that the frame ends a commit. The stored database size alone does
  // not prove it, because it may be damaged.
  bool EndsCommit(int64_t frame) const;
  absl::Status LookBehind(int fd, int64_t bad, Sums from);

  std::string path_;
  int64_t bytes_ = 0;
  int64_t page_bytes_ = 0;
  bool is_big_endian_ = false;
  uint64_t salts_ = 0;
  std::vector<Frame> frames_;
  std::map<int64_t, std::string> mended_;  // repaired frames, as ReadFrame returns them
  int64_t end_ = 0;                        // number of frames up to the last valid commit
  bool is_damaged_ = false;
  bool is_whole_ = true;
  int64_t bad_frame_ = 0;  // first damaged frame, from 1; 0: the header
  int64_t lost_commits_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_WAL_FILE_H_
