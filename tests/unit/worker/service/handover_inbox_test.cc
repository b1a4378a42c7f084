// The inbox for memory of clients: what it keeps, for how long, and of whom.
#include "worker/service/handover_inbox.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "process/sealed/local_socket.h"
#include "rpc/stream/handover.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

std::string Id(char fill) { return std::string(rpc::kHandoverIdBytes, fill); }

FileDescriptor Memory(int64_t size_bytes = 4096) {
  FileDescriptor memory(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(memory.get(), size_bytes), 0);
  return memory;
}

// Waits for the inbox's answer; the error if it closed the connection.
absl::StatusOr<std::string> Answer(const FileDescriptor& socket) {
  pollfd readable = {socket.get(), POLLIN, 0};
  if (poll(&readable, 1, 60'000) != 1) return absl::DeadlineExceededError("no answer");
  auto received = ReceiveDescriptors(socket.get());
  if (!received.ok()) return received.status();
  return received->text;
}

class HandoverInboxTest : public ::testing::Test {
 protected:
  void Start(const HandoverInbox::Options& options = {}) {
    auto started = HandoverInbox::Start(options);
    ASSERT_THAT(started, IsOk());
    inbox_ = *std::move(started);
  }
  FileDescriptor Connect() {
    auto connected = ConnectLocally(inbox_->socket());
    EXPECT_THAT(connected, IsOk());
    return connected.ok() ? *std::move(connected) : FileDescriptor();
  }
  absl::StatusOr<std::string> Give(const FileDescriptor& socket, const std::string& id) {
    const FileDescriptor memory = Memory();
    const absl::Status sent = SendDescriptors(socket.get(), id, {memory.get()});
    if (!sent.ok()) return sent;
    return Answer(socket);
  }
  bool KeptFallTo(int64_t count) {
    return Eventually([&] { return inbox_->counters().kept == count; });
  }

  std::unique_ptr<HandoverInbox> inbox_;
};

TEST_F(HandoverInboxTest, GivesTheMemoryOutOnceUnderItsId) {
  Start();
  const FileDescriptor client = Connect();
  const FileDescriptor memory = Memory(12'345);
  ASSERT_THAT(SendDescriptors(client.get(), Id('a'), {memory.get()}), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string answer, Answer(client));
  EXPECT_EQ(answer, rpc::kHandoverKept);
  EXPECT_FALSE(inbox_->Take(Id('b')).valid());
  EXPECT_FALSE(inbox_->Take("").valid());
  const FileDescriptor taken = inbox_->Take(Id('a'));
  ASSERT_TRUE(taken.valid());
  struct stat facts = {};
  ASSERT_EQ(fstat(taken.get(), &facts), 0);
  EXPECT_EQ(facts.st_size, 12'345);
  EXPECT_FALSE(inbox_->Take(Id('a')).valid());
}

TEST_F(HandoverInboxTest, ClosesWhatAClientLeftThatHasEnded) {
  Start();
  FileDescriptor first = Connect();
  const FileDescriptor second = Connect();
  ASSERT_THAT(Give(first, Id('a')), IsOk());
  ASSERT_THAT(Give(first, Id('b')), IsOk());
  ASSERT_THAT(Give(second, Id('c')), IsOk());
  const FileDescriptor taken = inbox_->Take(Id('a'));
  EXPECT_EQ(inbox_->counters().kept, 2);
  first.Close();
  EXPECT_TRUE(KeptFallTo(1));
  EXPECT_FALSE(inbox_->Take(Id('b')).valid());
  EXPECT_TRUE(inbox_->Take(Id('c')).valid());
  EXPECT_GE(fcntl(taken.get(), F_GETFD), 0) << "what was taken stays";
}

TEST_F(HandoverInboxTest, KeepsSoMuchOfOneClientAndHasRoomAgainWhenItIsTaken) {
  HandoverInbox::Options options;
  options.max_kept = 2;
  Start(options);
  const FileDescriptor client = Connect();
  EXPECT_EQ(*Give(client, Id('a')), rpc::kHandoverKept);
  EXPECT_EQ(*Give(client, Id('b')), rpc::kHandoverKept);
  EXPECT_EQ(*Give(client, Id('c')), rpc::kHandoverFull);
  EXPECT_EQ(*Give(Connect(), Id('d')), rpc::kHandoverKept) << "others have room";
  EXPECT_EQ(inbox_->counters().refused, 1);
  EXPECT_TRUE(inbox_->Take(Id('a')).valid());
  EXPECT_FALSE(inbox_->Take(Id('c')).valid());
  EXPECT_EQ(*Give(client, Id('c')), rpc::kHandoverKept);
}

TEST_F(HandoverInboxTest, ClosesTheConnectionOfAClientThatDoesNotKeepToTheRules) {
  Start();
  {
    const FileDescriptor client = Connect();
    EXPECT_THAT(Give(client, "short"), StatusIs(absl::StatusCode::kUnavailable));
  }
  {
    const FileDescriptor client = Connect();
    ASSERT_THAT(SendDescriptors(client.get(), Id('a'), {}), IsOk());
    EXPECT_THAT(Answer(client), StatusIs(absl::StatusCode::kUnavailable)) << "no descriptor";
  }
  {
    const FileDescriptor client = Connect();
    const FileDescriptor memory = Memory();
    ASSERT_THAT(SendDescriptors(client.get(), Id('a'), {memory.get(), memory.get()}), IsOk());
    EXPECT_THAT(Answer(client), StatusIs(absl::StatusCode::kUnavailable)) << "two descriptors";
  }
  {
    const FileDescriptor client = Connect();
    EXPECT_EQ(*Give(client, Id('a')), rpc::kHandoverKept);
    EXPECT_THAT(Give(client, Id('a')), StatusIs(absl::StatusCode::kUnavailable)) << "an id twice";
  }
  EXPECT_TRUE(KeptFallTo(0));
  EXPECT_EQ(*Give(Connect(), Id('a')), rpc::kHandoverKept) << "it goes on";
}

// To this test's user, another user is what this test is to a worker of another user.
TEST_F(HandoverInboxTest, HearsNobodyOfAnotherUser) {
  HandoverInbox::Options options;
  options.user = geteuid() + 1;
  Start(options);
  const FileDescriptor client = Connect();
  const FileDescriptor memory = Memory();
  // The send fails if the inbox has closed the connection by then.
  SendDescriptors(client.get(), Id('a'), {memory.get()}).IgnoreError();
  EXPECT_THAT(Answer(client), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(inbox_->counters().kept, 0);
  EXPECT_EQ(inbox_->counters().refused, 1);
}

TEST_F(HandoverInboxTest, HasNoMoreConnectionsThanThereMayBe) {
  HandoverInbox::Options options;
  options.max_connections = 1;
  Start(options);
  FileDescriptor first = Connect();
  EXPECT_EQ(*Give(first, Id('a')), rpc::kHandoverKept);
  EXPECT_THAT(Answer(Connect()), StatusIs(absl::StatusCode::kUnavailable));
  first.Close();
  EXPECT_TRUE(Eventually([&] {
    const auto answer = Give(Connect(), Id('b'));
    return answer.ok() && *answer == rpc::kHandoverKept;
  }));
}

TEST_F(HandoverInboxTest, EndsWithConnectionsOpen) {
  Start();
  const FileDescriptor client = Connect();
  EXPECT_EQ(*Give(client, Id('a')), rpc::kHandoverKept);
  inbox_.reset();
  EXPECT_THAT(Answer(client), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace shardmesh::worker
