// Memory that is filled, sealed and handed to another process, and what the taker refuses.
#include "process/sealed/sealed_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>

#include "process/sealed/local_socket.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::HasSubstr;

constexpr int64_t kBytes = 10'000;

#ifndef F_SEAL_FUTURE_WRITE
constexpr int F_SEAL_FUTURE_WRITE = 0x0010;
#endif

std::string Pattern(int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 251);
  return bytes;
}

absl::StatusOr<FileDescriptor> Sealed(const std::string& bytes) {
  auto writer = SealedMemoryWriter::Create(static_cast<int64_t>(bytes.size()));
  if (!writer.ok()) return writer.status();
  const absl::Status appended = writer->Append(bytes);
  if (!appended.ok()) return appended;
  return std::move(*writer).Seal();
}

// Memory of another program, with these seals.
FileDescriptor Foreign(int64_t size_bytes, int seals, unsigned int flags = 0) {
  FileDescriptor memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  EXPECT_TRUE(memory.valid());
  EXPECT_EQ(ftruncate(memory.get(), size_bytes), 0);
  if (seals != 0) {
    EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
  }
  return memory;
}

constexpr int kAll = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

TEST(SealedMemoryTest, HasTheBytesThatWereAppendedAndKeepsThem) {
  const std::string bytes = Pattern(kBytes);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(SealedMemoryWriter writer, SealedMemoryWriter::Create(kBytes));
  for (size_t at = 0; at < bytes.size(); at += 3'333) {
    ASSERT_THAT(writer.Append(absl::MakeConstSpan(bytes).subspan(at, 3'333)), IsOk());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FileDescriptor memory, std::move(writer).Seal());
  EXPECT_THAT(CheckSealed(memory, kBytes), IsOk());
  EXPECT_EQ(pwrite(memory.get(), "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(memory.get(), kBytes - 1), -1);
  EXPECT_EQ(ftruncate(memory.get(), kBytes + 1), -1);
  EXPECT_EQ(fallocate(memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0), MAP_FAILED);
  std::string read(bytes.size(), '\0');
  ASSERT_THAT(ReadSealed(memory, absl::MakeSpan(read)), IsOk());
  EXPECT_TRUE(read == bytes);
}

TEST(SealedMemoryTest, IsNotSealedBeforeAllBytesAreThere) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(SealedMemoryWriter writer, SealedMemoryWriter::Create(kBytes));
  ASSERT_THAT(writer.Append(Pattern(kBytes - 1)), IsOk());
  EXPECT_THAT(std::move(writer).Seal().status(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(SealedMemoryTest, RefusesMemoryThatLacksAnyOfTheSealsAndNamesThem) {
  const struct Case {
    int missing;
    const char* name;
  } kCases[] = {{F_SEAL_SEAL, "seal"},
                {F_SEAL_SHRINK, "shrink"},
                {F_SEAL_GROW, "grow"},
                {F_SEAL_WRITE, "write"},
                {F_SEAL_FUTURE_WRITE, "future_write"}};
  for (const Case& c : kCases) {
    const FileDescriptor memory = Foreign(kBytes, kAll & ~c.missing);
    const absl::Status refused = CheckSealed(memory, kBytes);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile)) << c.name;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(c.name));
    EXPECT_EQ(FactOf(refused, fact::kNeed), "seal,shrink,grow,write,future_write");
  }
  EXPECT_EQ(FactOf(CheckSealed(Foreign(kBytes, 0), kBytes), fact::kHave), "none");
  EXPECT_THAT(CheckSealed(Foreign(kBytes, kAll), kBytes), IsOk());
}

TEST(SealedMemoryTest, RefusesMemoryOfAnotherSize) {
  for (const int64_t size : {kBytes - 1, kBytes + 1, kBytes * 1'000, int64_t{0}}) {
    const absl::Status refused = CheckSealed(Foreign(size, kAll), kBytes);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile)) << size;
    EXPECT_EQ(FactOf(refused, fact::kHave), std::to_string(size));
    EXPECT_EQ(FactOf(refused, fact::kNeed), std::to_string(kBytes));
  }
  EXPECT_THAT(CheckSealed(Foreign(0, kAll), 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SealedMemoryTest, RefusesWhatIsNoMemory) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(pipe(ends.data()), 0);
  const FileDescriptor reads(ends[0]);
  const FileDescriptor writes(ends[1]);
  EXPECT_THAT(CheckSealed(reads, kBytes),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  const FileDescriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(CheckSealed(file, kBytes),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  // Pages of 2 MiB need no page to exist for a descriptor.
  const FileDescriptor huge(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge.valid()) {
    ASSERT_EQ(fcntl(huge.get(), F_ADD_SEALS, kAll), 0);
    EXPECT_THAT(CheckSealed(huge, kBytes),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  }
}

TEST(LocalSocketTest, CarriesMemoryToWhoeverKnowsTheName) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const LocalListener listener, ListenLocally(""));
  EXPECT_THAT(listener.name, ::testing::Not(::testing::IsEmpty()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FileDescriptor giver, ConnectLocally(listener.name));
  const FileDescriptor taker(accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(taker.valid());
  EXPECT_TRUE(IsOfUser(taker.get(), geteuid()));
  EXPECT_FALSE(IsOfUser(taker.get(), geteuid() + 1));
  const std::string bytes = Pattern(kBytes);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FileDescriptor memory, Sealed(bytes));
  ASSERT_THAT(SendDescriptors(giver.get(), "id", {memory.get()}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const ReceivedDescriptors received,
                                 ReceiveDescriptors(taker.get()));
  EXPECT_EQ(received.text, "id");
  ASSERT_EQ(received.fds.size(), 1u);
  ASSERT_THAT(CheckSealed(received.fds[0], kBytes), IsOk());
  std::string read(bytes.size(), '\0');
  ASSERT_THAT(ReadSealed(received.fds[0], absl::MakeSpan(read)), IsOk());
  EXPECT_TRUE(read == bytes);
}

TEST(LocalSocketTest, ANameHasOneListenerAndIsOfLimitedLength) {
  const std::string name = "shardmesh-test-" + std::to_string(getpid());
  EXPECT_THAT(ConnectLocally(name).status(), StatusIs(absl::StatusCode::kUnavailable));
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const LocalListener listener, ListenLocally(name));
    EXPECT_EQ(listener.name, name);
    EXPECT_THAT(ListenLocally(name).status(), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(ConnectLocally(name).status(), IsOk());
  }
  EXPECT_THAT(ConnectLocally(name).status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(ConnectLocally("").status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(ConnectLocally(std::string(108, 'x')).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(ListenLocally(std::string(108, 'x')).status(),
              StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace shardmesh
