// Logs that SQLite wrote, sound and damaged, judged as SQLite judges them and behind its end.
#include "server/store/wal_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/store_folder.h"

namespace shardmesh::server {
namespace {

namespace fs = std::filesystem;

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kHeaderBytes = 32;
constexpr size_t kFrameBytes = 24 + 4096;

void Write(const std::string& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// A database with a log, written as the store writes its own: one sync a commit, and copied only
// when it is asked for.
class Writer {
 public:
  explicit Writer(const std::string& file) : file_(file) {
    EXPECT_EQ(sqlite3_open(file.c_str(), &database_), SQLITE_OK);
    Run("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
        "PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = 10;"
        "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, value BLOB)");
  }
  ~Writer() { sqlite3_close(database_); }
  void Run(const std::string& sql) {
    EXPECT_EQ(sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sql << ": " << sqlite3_errmsg(database_);
  }
  void Add(int bytes) { Run(StrCat("INSERT INTO t (value) VALUES (randomblob(", bytes, "))")); }
  void Checkpoint() {
    EXPECT_EQ(
        sqlite3_wal_checkpoint_v2(database_, nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr),
        SQLITE_OK);
  }
  // The files as they would be if the process died now.
  std::string Copy() const {
    const std::string copy = NewFolder() + "/state.db";
    fs::copy_file(file_, copy);
    if (fs::exists(file_ + "-wal")) fs::copy_file(file_ + "-wal", copy + "-wal");
    return copy;
  }

 private:
  const std::string file_;
  sqlite3* database_ = nullptr;
};

// What a database holds, read by SQLite, which takes its log in.
std::string ContentOf(const std::string& file) {
  sqlite3* database = nullptr;
  EXPECT_EQ(sqlite3_open(file.c_str(), &database), SQLITE_OK);
  std::string content;
  sqlite3_exec(
      database, "SELECT id, hex(value) FROM t ORDER BY id",
      [](void* to, int, char** values, char**) {
        *static_cast<std::string*>(to) += StrCat(values[0], " ", values[1], "\n");
        return 0;
      },
      &content, nullptr);
  sqlite3_close(database);
  return content;
}

absl::Status DamageOf(const std::string& file) {
  const absl::StatusOr<WalFile> log = WalFile::Read(file + "-wal");
  EXPECT_THAT(log, IsOk());
  return log.ok() ? log->damage() : log.status();
}

// Three commits of some frames each; the log alone has them.
struct Young {
  std::string file;
  std::string log;           // bytes
  std::string content;       // of all
  std::vector<size_t> ends;  // frames, of the three
};

Young ThreeCommits() {
  Young young;
  young.file = NewFolder() + "/state.db";
  Writer writer(young.file);
  for (int i = 0; i < 3; ++i) {
    writer.Add(9000);
    young.ends.push_back((fs::file_size(young.file + "-wal") - kHeaderBytes) / kFrameBytes);
  }
  young.file = writer.Copy();
  young.log = test::ReadFile(young.file + "-wal");
  const std::string copy = writer.Copy();
  young.content = ContentOf(copy);
  return young;
}

TEST(WalFileTest, AMissingOrEmptyLogIsSound) {
  const std::string file = NewFolder() + "/state.db";
  EXPECT_THAT(DamageOf(file), IsOk());
  Write(file + "-wal", "");
  EXPECT_THAT(DamageOf(file), IsOk());
  Write(file + "-wal", std::string(kHeaderBytes, '\0'));
  EXPECT_THAT(DamageOf(file), IsOk()) << "the header is written before any frame";
}

// However much of the newest commit is on the disk, the log has ended by itself.
TEST(WalFileTest, EveryTruncationOfTheNewestCommitIsATornTail) {
  const Young young = ThreeCommits();
  for (size_t bytes = kHeaderBytes + young.ends[1] * kFrameBytes; bytes <= young.log.size();
       bytes += 97) {
    Write(young.file + "-wal", young.log.substr(0, bytes));
    ASSERT_THAT(DamageOf(young.file), IsOk()) << bytes;
  }
}

// As a machine that dies may leave it: any of the unsynced blocks is there or is not.
TEST(WalFileTest, AnyPartOfTheNewestCommitMayBeMissing) {
  const Young young = ThreeCommits();
  const size_t begin = kHeaderBytes + young.ends[1] * kFrameBytes;
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::string log = young.log;
    for (size_t at = begin; at < log.size(); ++at) {
      if (at != begin && at % 512 != 0) continue;
      if (random() % 2 == 0) continue;
      const size_t end = std::min(log.size(), at / 512 * 512 + 512);
      log.replace(at, end - at, end - at, random() % 2 == 0 ? '\0' : '\x5a');
    }
    Write(young.file + "-wal", log);
    ASSERT_THAT(DamageOf(young.file), IsOk()) << round;
  }
}

TEST(WalFileTest, AWrongBitBeforeACommitThatAnotherFollowedIsDamageAndIsMended) {
  const Young young = ThreeCommits();
  std::mt19937 random(2);
  const size_t end = kHeaderBytes + young.ends[1] * kFrameBytes;
  int uncertain = 0;
  for (int round = 0; round < 300; ++round) {
    std::string log = young.log;
    const size_t at = round < 32 ? static_cast<size_t>(round) : random() % end;
    const size_t bit = random() % 8;
    log[at] = static_cast<char>(log[at] ^ (1 << bit));
    SCOPED_TRACE(StrCat("byte ", at, ", bit ", bit));
    Write(young.file + "-wal", log);
    const absl::StatusOr<WalFile> read = WalFile::Read(young.file + "-wal");
    ASSERT_THAT(read, IsOk());
    ASSERT_THAT(read->damage(), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    ASSERT_GE(read->lost_commits(), 1);
    // SQLite's checksum carries little from the highest byte of a word: for three of four wrong
    // bits there another place fits as well. That is about one of five.
    if (!read->is_whole()) {
      ++uncertain;
      continue;
    }
    const std::string copy = NewFolder() + "/state.db";
    fs::copy_file(young.file, copy);
    ASSERT_THAT(read->ApplyTo(copy), IsOk());
    ASSERT_TRUE(ContentOf(copy) == young.content);
  }
  EXPECT_LT(uncertain, 100);
}

TEST(WalFileTest, SaysWhereTheDamageIsAndWhatLiesBehindIt) {
  const Young young = ThreeCommits();
  std::string log = young.log;
  log[156] = static_cast<char>(log[156] ^ 1);
  Write(young.file + "-wal", log);
  EXPECT_THAT(DamageOf(young.file).ToString(),
              AllOf(HasSubstr(young.file + "-wal"), HasSubstr("frame 1 at byte 32"),
                    HasSubstr("4 commits"), HasSubstr("--set-aside"), HasSubstr("snapshot")));
  for (size_t i = 0; i < kHeaderBytes; ++i) log[i] = '\0';
  Write(young.file + "-wal", log);
  EXPECT_THAT(DamageOf(young.file).ToString(), HasSubstr("its header"));
}

// More than a few bits: what is behind is there, but not all of it is certain.
TEST(WalFileTest, AFrameThatIsOverwrittenIsDamageOfWhichNotAllIsKnown) {
  const Young young = ThreeCommits();
  for (size_t frame = 1; frame <= young.ends[1]; ++frame) {
    SCOPED_TRACE(frame);
    std::string log = young.log;
    log.replace(kHeaderBytes + (frame - 1) * kFrameBytes + 24 + 1000, 512, 512, '\x5a');
    Write(young.file + "-wal", log);
    const absl::StatusOr<WalFile> read = WalFile::Read(young.file + "-wal");
    ASSERT_THAT(read, IsOk());
    EXPECT_THAT(read->damage(), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
    EXPECT_FALSE(read->is_whole());
  }
}

// Most commits of the store are one frame of the same page, and the database stays as large.
TEST(WalFileTest, ALostSectorOfTheLastCommitButOneIsDamage) {
  const std::string file = NewFolder() + "/state.db";
  Writer writer(file);
  writer.Add(50);
  for (int i = 0; i < 5; ++i) writer.Run("UPDATE t SET value = randomblob(50)");
  const std::string copy = writer.Copy();
  std::string log = test::ReadFile(copy + "-wal");
  const size_t frames = (log.size() - kHeaderBytes) / kFrameBytes;
  log.replace(kHeaderBytes + (frames - 2) * kFrameBytes + 24 + 1000, 512, 512, '\x5a');
  Write(copy + "-wal", log);
  const absl::StatusOr<WalFile> read = WalFile::Read(copy + "-wal");
  ASSERT_THAT(read, IsOk());
  EXPECT_THAT(read->damage(), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_FALSE(read->is_whole());
  const auto size = fs::file_size(copy);
  EXPECT_THAT(read->ApplyTo(copy), IsOk());
  EXPECT_GE(fs::file_size(copy), size) << "nothing is cut off where the size is not certain";
}

// The header of frame 42 lies in two sectors. The first of them was not written when the machine
// died: there stand page number and size of an earlier pass, where that frame ended a commit.
TEST(WalFileTest, ATornHeaderOfTheNewestCommitIsNoDamage) {
  const std::string file = NewFolder() + "/state.db";
  Writer writer(file);
  writer.Add(50);
  writer.Checkpoint();
  for (int i = 0; i < 60; ++i) writer.Run("UPDATE t SET value = randomblob(50) WHERE id = 1");
  const std::string older = test::ReadFile(writer.Copy() + "-wal");
  writer.Checkpoint();
  for (int i = 0; i < 40; ++i) writer.Run("UPDATE t SET value = randomblob(50) WHERE id = 1");
  writer.Add(30'000);
  const std::string copy = writer.Copy();
  std::string log = test::ReadFile(copy + "-wal");
  const size_t header = kHeaderBytes + 41 * kFrameBytes;
  ASSERT_EQ(header % 512, 504);
  ASSERT_NE(older.substr(header + 4, 4), std::string(4, '\0')) << "it ended a commit";
  ASSERT_EQ(log.substr(header + 4, 4), std::string(4, '\0')) << "it is within the newest one";
  log.replace(header - 504, 512, older, header - 504, 512);
  Write(copy + "-wal", log);
  EXPECT_THAT(DamageOf(copy), IsOk());
}

TEST(WalFileTest, ALogThatIsAllZeroIsDamage) {
  const Young young = ThreeCommits();
  Write(young.file + "-wal", std::string(young.log.size(), '\0'));
  const absl::StatusOr<WalFile> read = WalFile::Read(young.file + "-wal");
  ASSERT_THAT(read, IsOk());
  EXPECT_THAT(read->damage(), StatusIs(absl::StatusCode::kDataLoss, Reason::kStoreFailed));
  EXPECT_FALSE(read->is_whole());
}

// What earlier passes over the file, transactions that were rolled back after their pages had gone
// to the log, and torn commits leave there is never taken for damage; and what is read is what
// SQLite reads.
TEST(WalFileTest, NoLogOfASoundWriterIsDamaged) {
  std::mt19937 random(3);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    std::string file = NewFolder() + "/state.db";
    auto writer = std::make_unique<Writer>(file);
    for (int step = 0; step < 40; ++step) {
      switch (random() % 6) {
        case 0:
          writer->Checkpoint();
          break;
        case 1:  // more pages than the cache has
          writer->Run("BEGIN");
          for (int i = 0; i < 8; ++i) writer->Add(9000);
          if (random() % 2 == 0) writer->Run("UPDATE t SET value = randomblob(3000)");
          writer->Run(random() % 2 == 0 ? "ROLLBACK" : "COMMIT");
          break;
        case 2: {
          // The process dies while it commits, and another goes on where it ended.
          const std::string before = writer->Copy();
          const size_t synced = fs::exists(before + "-wal") ? fs::file_size(before + "-wal") : 0;
          const std::string old = synced == 0 ? "" : test::ReadFile(before + "-wal");
          writer->Add(static_cast<int>(random() % 20'000));
          file = writer->Copy();
          const std::string log = test::ReadFile(file + "-wal");
          size_t same = 0;
          while (same < old.size() && same < log.size() && old[same] == log[same]) ++same;
          same = std::max(same, kHeaderBytes);  // which is synced before a frame
          if (same < log.size()) {
            const size_t kept = same + random() % (log.size() - same);
            std::string torn = log.substr(0, kept);
            if (kept < old.size()) torn += old.substr(kept);
            Write(file + "-wal", torn);
          }
          writer = nullptr;
          ASSERT_THAT(DamageOf(file), IsOk());
          writer = std::make_unique<Writer>(file);
          break;
        }
        default:
          writer->Add(static_cast<int>(random() % 6000));
      }
      const std::string copy = writer->Copy();
      const absl::StatusOr<WalFile> log = WalFile::Read(copy + "-wal");
      ASSERT_THAT(log, IsOk());
      ASSERT_THAT(log->damage(), IsOk()) << step;
      ASSERT_TRUE(log->is_whole());
      if (step % 8 != 0) continue;
      const std::string applied = NewFolder() + "/state.db";
      fs::copy_file(copy, applied);
      ASSERT_THAT(log->ApplyTo(applied), IsOk());
      ASSERT_TRUE(ContentOf(applied) == ContentOf(copy));
    }
  }
}

}  // namespace
}  // namespace shardmesh::server
