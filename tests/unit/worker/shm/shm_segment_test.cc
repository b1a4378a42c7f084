// Memory between processes: what a peer may do with it, and what it may not.
#include "worker/shm/shm_segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "process/sealed/local_socket.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

constexpr int64_t kBytes = 1 << 16;

FileDescriptor CopyOf(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

TEST(ShmSegmentTest, PeersSeeWhatTheOwnerWrites) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto segment, ShmSegment::Create("test", kBytes, true));
  EXPECT_EQ(segment->bytes().size(), static_cast<size_t>(kBytes));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto view, ShmView::Open(CopyOf(segment->fd()), kBytes));
  segment->bytes()[4'711] = 'x';
  EXPECT_EQ(view->bytes()[4'711], 'x');
  EXPECT_EQ(view->bytes()[4'712], '\0');
}

TEST(ShmSegmentTest, NobodyElseCanWriteShrinkOrGrowIt) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto segment, ShmSegment::Create("test", kBytes, false));
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd(), 0),
            MAP_FAILED);
  EXPECT_EQ(pwrite(segment->fd(), "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(segment->fd(), kBytes / 2), -1);
  EXPECT_EQ(ftruncate(segment->fd(), kBytes * 2), -1);
  void* const read_only = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, segment->fd(), 0);
  ASSERT_NE(read_only, MAP_FAILED);
  EXPECT_EQ(mprotect(read_only, kBytes, PROT_READ | PROT_WRITE), -1);
  munmap(read_only, kBytes);
  segment->bytes()[0] = 'o';  // the owner still can
}

TEST(ShmSegmentTest, PartsOfAnySizeAreWrittenAsTheyWouldBeCopied) {
  constexpr size_t kSize = size_t{1} << 20;
  std::mt19937 random(11);
  std::string source(kSize, '\0');
  for (char& byte : source) byte = static_cast<char>(random());
  for (int round = 0; round < 20; ++round) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto segment,
                                   ShmSegment::CreateUnfilled("test", int64_t{kSize}));
    std::string copied(kSize, '\0');
    // Small parts exceed what one system call takes. Others begin and end within pages.
    const size_t most = round % 3 == 0 ? 16 : round % 3 == 1 ? 5'000 : 200'000;
    for (size_t offset = 0; offset < kSize;) {
      std::vector<absl::Span<const char>> parts;
      const size_t begin = offset;
      for (size_t i = 0; i < 1 + random() % 3'000 && offset < kSize; ++i) {
        const size_t size = std::min(kSize - offset, size_t{random()} % most);
        parts.push_back(absl::MakeConstSpan(source).subspan(random() % (kSize - size), size));
        std::copy(parts.back().begin(), parts.back().end(), copied.begin() + offset);
        offset += size;
      }
      ASSERT_TRUE(segment->Write(begin, parts)) << std::strerror(errno);
      // Bytes that were written and mapped may be written around and over.
      ASSERT_EQ(segment->bytes()[begin], copied[begin]);
    }
    EXPECT_TRUE(segment->bytes() == absl::MakeConstSpan(copied)) << "round " << round;
  }
}

TEST(ShmSegmentTest, MemoryThatIsWrittenIsShownToPeersOnceItIsSealed) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto segment, ShmSegment::CreateUnfilled("test", kBytes));
  EXPECT_EQ(ftruncate(segment->fd(), kBytes / 2), -1) << "its owner has it mapped";
  const std::string bytes(kBytes, 'x');
  const absl::Span<const char> part(bytes);
  ASSERT_TRUE(segment->Write(0, absl::MakeConstSpan(&part, 1)));
  EXPECT_THAT(ShmView::Open(CopyOf(segment->fd()), kBytes).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_TRUE(segment->Seal());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto view, ShmView::Open(CopyOf(segment->fd()), kBytes));
  EXPECT_TRUE(view->bytes() == absl::MakeConstSpan(bytes));
  EXPECT_FALSE(segment->Write(0, absl::MakeConstSpan(&part, 1)));
  EXPECT_EQ(errno, EPERM);
  segment->bytes()[0] = 'o';  // in its mapping, the owner still can
  EXPECT_EQ(view->bytes()[0], 'o');
}

TEST(ShmSegmentTest, RefusesMemoryThatItsOwnerCouldTakeAway) {
  FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kBytes), 0);
  EXPECT_THAT(ShmView::Open(std::move(unsealed), kBytes).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  std::array<int, 2> pipe_ends = {};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  FileDescriptor reads(pipe_ends[0]);
  const FileDescriptor writes(pipe_ends[1]);
  EXPECT_THAT(ShmView::Open(std::move(reads), kBytes).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto segment, ShmSegment::Create("test", kBytes, false));
  EXPECT_THAT(ShmView::Open(CopyOf(segment->fd()), kBytes * 2).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ShmSegmentTest, GoesFromProcessToProcessOverASocket) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const FileDescriptor mine(ends[0]);
  FileDescriptor theirs(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    // Says in what it hands over that it is done, and waits to be let go.
    auto segment = ShmSegment::Create("child", kBytes, false);
    if (!segment.ok()) _exit(1);
    std::strcpy((*segment)->bytes().data(), "from the child");
    const std::array<int, 1> fds = {(*segment)->fd()};
    if (!SendDescriptors(theirs.get(), "here", fds).ok()) _exit(2);
    _exit(ReceiveDescriptors(theirs.get()).ok() ? 0 : 3);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(ReceivedDescriptors received, ReceiveDescriptors(mine.get()));
  EXPECT_EQ(received.text, "here");
  ASSERT_EQ(received.fds.size(), 1u);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto view,
                                 ShmView::Open(std::move(received.fds[0]), kBytes));
  EXPECT_STREQ(view->bytes().data(), "from the child");
  EXPECT_THAT(SendDescriptors(mine.get(), "go", {}), IsOk());
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_STREQ(view->bytes().data(), "from the child") << "what is mapped outlives its owner";
}

TEST(ShmSegmentTest, SaysThatAPeerIsGone) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const FileDescriptor mine(ends[0]);
  close(ends[1]);
  EXPECT_THAT(ReceiveDescriptors(mine.get()).status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(SendDescriptors(mine.get(), "x", {}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(SendDescriptors(mine.get(), std::string(4097, 'x'), {}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ShmSegmentTest, SaysThatThereIsNoPlaceForDescriptors) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const FileDescriptor mine(ends[0]);
  const FileDescriptor theirs(ends[1]);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto segment, ShmSegment::Create("test", kBytes, false));
  const std::array<int, 1> fds = {segment->fd()};
  ASSERT_THAT(SendDescriptors(theirs.get(), "here", fds), IsOk());
  rlimit old = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none = {.rlim_cur = 3, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status received = ReceiveDescriptors(mine.get()).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_THAT(received, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(std::string(received.message()), ::testing::HasSubstr("descriptors"));
}

}  // namespace
}  // namespace shardmesh::worker
