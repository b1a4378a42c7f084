// SQLite's write-ahead log, read past SQLite. SQLite ends the log at the first frame that is not as
// it was written, and drops all behind it without an error.
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
// that ends a commit says how many pages the database then has. The checksum of each frame runs on
// from the frame before.
//
// What counts as damage. A commit is acknowledged when its frames are synced, and the frames of the
// next commit run on from its checksum. So a frame that runs on from a commit's last frame proves
// that all frames up to that one were on the disk, also where that last frame is damaged: its
// header tells that it ends a commit, and its checksum, in one sector. The log is damaged if SQLite
// ends it before a commit of which there is such a proof. A commit that was being written when
// process or machine died has no frame behind it, so it is no damage. Nor is what an earlier pass
// over the file, or a transaction that was rolled back, left behind the end. SQLite syncs the
// header before it writes the first frame, so a header that is not as it was written is damage
// where frames follow.
//
// Movable; immutable, hence safe to share between threads.
class WalFile {
 public:
  // Reads the log at `path`. A file that is not there, or is empty, is a log without frames.
  // `page_bytes` is the page size for a log whose header does not tell. INTERNAL: the disk did not
  // give the file.
  static absl::StatusOr<WalFile> Read(const std::string& path, int64_t page_bytes = 4096);

  // DATA_LOSS (STORE_FAILED): SQLite would drop commits that were acknowledged. The message names
  // file, frame and byte, and how many commits lie behind.
  absl::Status damage() const;
  // Commits behind the damage, as far as they can be told apart; 0 without damage.
  int64_t lost_commits() const { return lost_commits_; }
  // Whether all that was committed is known for certain: the log is not damaged, or what is damaged
  // follows from the checksums around it. Mostly a wrong bit of a frame does.
  bool is_whole() const { return is_whole_; }

  // Writes the newest page of each number into the database file `to`, without its log, and gives
  // the file the size that the last commit says. Pages of frames that are damaged and do not follow
  // from their checksums are written as they stand, if there is no newer one. Does not sync.
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
    uint32_t pages = 0;        // of the database, where it ends a commit; 0: it ends none
    bool ends_commit = false;  // as it stands in the file
    uint64_t salts = 0;
    Sums start;             // what its bytes need before them to have `end`
    Sums end;               // as it says
    uint32_t content = 0;   // CRC-32C of the page
    bool is_sound = false;  // runs on from the frame before, or follows from those around it
  };

  // Over 32-bit words of the log's byte order, two at a time.
  static Sums Forward(Sums sums, std::string_view bytes, bool is_big_endian);
  static Sums Backward(Sums sums, std::string_view bytes, bool is_big_endian);

  int64_t OffsetOf(int64_t frame) const;
  // Reads all frames. Which of them run on from the one before is not told yet.
  absl::Status ReadFrames(int fd);
  // What a frame's checksum is over: the first eight bytes of its header, and its page.
  absl::StatusOr<std::string> ReadFrame(int fd, int64_t frame) const;
  bool RunsOn(int64_t frame, Sums from) const;
  // How many frames run on from the one before.
  int64_t CountLinks() const;
  bool MendHeader();
  // Finds what the frame was, so that it runs from `from` to `to`. False if that is not certain.
  absl::StatusOr<bool> Mend(int fd, int64_t frame, Sums from, Sums to);
  // Whether the frame is a copy of the one before, which pads a commit to a whole sector. SQLite
  // does so only where a torn write may spoil what lies beside it, of which our disks say nothing.
  bool IsPadding(int64_t frame) const;
  // Whether page number and size of a frame were written with its checksum, for certain: where the
  // header lies in two sectors of a disk, a torn write may leave those of an earlier frame.
  bool HasOwnNumbers(int64_t frame) const;
  // As it stands in the file, where that is for certain.
  bool EndsCommit(int64_t frame) const;
  absl::Status LookBehind(int fd, int64_t bad, Sums from);

  std::string path_;
  int64_t bytes_ = 0;
  int64_t page_bytes_ = 0;
  bool is_big_endian_ = false;
  uint64_t salts_ = 0;
  std::vector<Frame> frames_;
  std::map<int64_t, std::string> mended_;  // by frame: its bytes as ReadFrame has them
  int64_t end_ = 0;                        // frames that count
  bool is_damaged_ = false;
  bool is_whole_ = true;
  int64_t bad_frame_ = 0;  // from 1; 0: the header
  int64_t lost_commits_ = 0;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STORE_WAL_FILE_H_
