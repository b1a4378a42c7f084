// Tiles that a client hands over as memory, and what it does when nobody takes them.
#include "client/remote/tile_handover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/sealed/local_socket.h"
#include "process/sealed/sealed_memory.h"
#include "rpc/stream/handover.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;

// Takes the memory of one client, as a worker's inbox does.
class Taker {
 public:
  // `answers`: what it answers to each message in turn; after the last one, it closes the
  // connection. An empty text: it says nothing to that message.
  explicit Taker(std::vector<std::string> answers)
      : listener_(*ListenLocally("")), answers_(std::move(answers)), thread_([this] { Run(); }) {}
  ~Taker() { thread_.join(); }

  const std::string& name() const { return listener_.name; }
  // The bytes that came under the id.
  std::string Bytes(const std::string& id) {
    absl::MutexLock lock(&mutex_);
    return taken_[id];
  }

 private:
  static bool AwaitReadable(const FileDescriptor& socket) {
    pollfd readable = {socket.get(), POLLIN, 0};
    return poll(&readable, 1, 60'000) == 1;
  }
  void Run() {
    if (!AwaitReadable(listener_.socket)) return;
    const FileDescriptor socket(accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    for (const std::string& answer : answers_) {
      if (!AwaitReadable(socket)) return;
      auto received = ReceiveDescriptors(socket.get());
      if (!received.ok() || received->fds.size() != 1) return;
      const off_t size = lseek(received->fds[0].get(), 0, SEEK_END);
      EXPECT_THAT(CheckSealed(received->fds[0], size), IsOk());
      std::string bytes(static_cast<size_t>(size), '\0');
      EXPECT_THAT(ReadSealed(received->fds[0], absl::MakeSpan(bytes)), IsOk());
      {
        absl::MutexLock lock(&mutex_);
        taken_[received->text] = std::move(bytes);
      }
      if (!answer.empty()) SendDescriptors(socket.get(), answer, {}).IgnoreError();
    }
    // Answers nothing more, and waits for the client to end if it said nothing at last.
    if (!answers_.empty() && answers_.back().empty()) AwaitReadable(socket);
  }

  const LocalListener listener_;
  const std::vector<std::string> answers_;
  absl::Mutex mutex_;
  std::map<std::string, std::string> taken_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

constexpr int64_t kRows = 1'500;
constexpr int64_t kColumns = 1'031;

class TileHandoverTest : public ::testing::Test {
 protected:
  TileHandoverTest() : bytes_(static_cast<size_t>(kRows * kColumns * 4), '\0') {
    for (size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i * 31 + i / 251);
  }
  TensorView view() const { return *TensorView::Create(Dtype::kF32, {kRows, kColumns}, bytes_); }
  std::string BytesOf(const Tile& tile) const {
    const TileRegion region = *TileRegion::Create(Dtype::kF32, {kRows, kColumns}, tile);
    std::string bytes(static_cast<size_t>(region.size_bytes()), '\0');
    EXPECT_THAT(CopyTileBytes(view(), tile, 0, absl::MakeSpan(bytes.data(), bytes.size())), IsOk());
    return bytes;
  }
  absl::StatusOr<std::optional<TileHandover::Handed>> Give(TileHandover& handover,
                                                           const TensorElements& tensor,
                                                           const Tile& tile) {
    return handover.HandOver(tensor, tile, *TileBits::Create(Dtype::kF32, {kRows, kColumns}, tile),
                             {.is_over = [this] { return is_over_; },
                              .on_bytes = [this](int64_t bytes) { told_bytes_ += bytes; },
                              .reply_time = reply_time_,
                              .copy_time = copy_time_});
  }

  const Tile whole_ = {{{0, kRows}, {0, kColumns}}};
  const Tile columns_ = {{{0, kRows}, {17, 1'000}}};
  std::string bytes_;
  bool is_over_ = false;
  int64_t told_bytes_ = 0;
  absl::Duration reply_time_ = absl::Seconds(60);
  absl::Duration copy_time_ = absl::Minutes(10);
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Makes the bytes of a tile of the test's tensor, as a conversion would.
class CutProducer final : public TileProducer {
 public:
  CutProducer(TensorView view, int64_t fails_at_bytes)
      : view_(std::move(view)), fails_at_bytes_(fails_at_bytes) {}
  Dtype dtype() const override { return view_.dtype(); }
  const Shape& shape() const override { return view_.shape(); }
  absl::Status Fill(const Tile& tile, int64_t offset_bytes, absl::Span<char> out) const override {
    if (offset_bytes >= fails_at_bytes_) return absl::DataLossError("the file is damaged");
    return CopyTileBytes(view_, tile, offset_bytes, out);
  }

 private:
  const TensorView view_;
  const int64_t fails_at_bytes_;
};

TEST_F(TileHandoverTest, HandsOverTheBytesOfEveryKindOfTileWithTheirChecksum) {
  Taker taker({"kept", "kept", "kept"});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name()));
  const std::shared_ptr<const TileProducer> producer =
      std::make_shared<const CutProducer>(view(), std::numeric_limits<int64_t>::max());
  const struct Case {
    TensorElements tensor;
    Tile tile;
  } kCases[] = {{view(), whole_}, {view(), columns_}, {producer, columns_}};
  int64_t all_bytes = 0;
  for (const Case& c : kCases) {
    const std::string expected = BytesOf(c.tile);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handed, Give(*handover, c.tensor, c.tile));
    ASSERT_TRUE(handed.has_value());
    EXPECT_THAT(handover->refusal(), IsOk());
    EXPECT_EQ(handed->crc32c, Crc32c(expected));
    EXPECT_TRUE(taker.Bytes(handed->id) == expected);
    all_bytes += static_cast<int64_t>(expected.size());
    EXPECT_EQ(told_bytes_, all_bytes);
  }
}

TEST_F(TileHandoverTest, AFullWorkerIsAskedAgainForTheNextTile) {
  Taker taker({"full", "kept"});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto handed, Give(*handover, view(), whole_));
  EXPECT_FALSE(handed.has_value());
  EXPECT_THAT(handover->refusal(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(told_bytes_, 0) << "the tile is sent in pieces, which count";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(handed, Give(*handover, view(), columns_));
  EXPECT_TRUE(handed.has_value());
  EXPECT_THAT(handover->refusal(), IsOk());
}

// Memory counts in the client's memory group as long as the worker keeps it.
TEST_F(TileHandoverTest, ATileWithoutRoomInTheClientsMemoryIsLeftToAStreamAndOthersAreNot) {
  const auto size_of = [this](const Tile& tile) {
    return static_cast<int64_t>(BytesOf(tile).size());
  };
  // Room for one whole tile and one of the columns, not for two whole ones.
  HandoverRoom room(2 * (size_of(whole_) + size_of(columns_)));
  Taker taker({"full", "kept", "kept"});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name(), &room));
  // The worker keeps nothing. The memory is freed, and the room is as it was.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(auto handed, Give(*handover, view(), whole_));
  EXPECT_FALSE(handed.has_value());
  EXPECT_THAT(room.refusal(), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(handed, Give(*handover, view(), whole_));
  EXPECT_TRUE(handed.has_value());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(handed, Give(*handover, view(), whole_));
  EXPECT_FALSE(handed.has_value());
  EXPECT_THAT(handover->refusal(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(told_bytes_, size_of(whole_)) << "nothing was copied for the tile without room";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(handed, Give(*handover, view(), columns_));
  EXPECT_TRUE(handed.has_value());
  EXPECT_THAT(handover->refusal(), IsOk());
  EXPECT_FALSE(room.refusal().ok()) << "the put tells of it";
}

TEST_F(TileHandoverTest, AWorkerThatHasEndedOrSaysSomethingElseIsAskedOnce) {
  for (const std::vector<std::string>& answers :
       {std::vector<std::string>{}, std::vector<std::string>{"what?"}}) {
    told_bytes_ = 0;
    Taker taker(answers);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name()));
    for (int i = 0; i < 2; ++i) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handed, Give(*handover, view(), whole_));
      EXPECT_FALSE(handed.has_value());
      EXPECT_FALSE(handover->refusal().ok());
      EXPECT_EQ(told_bytes_, 0);
    }
  }
}

TEST_F(TileHandoverTest, WaitsForAWorkerThatDoesNotAnswerNoLongerThanThat) {
  reply_time_ = absl::Milliseconds(50);
  Taker taker({""});
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name()));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handed, Give(*handover, view(), whole_));
    EXPECT_FALSE(handed.has_value());
    EXPECT_THAT(std::string(handover->refusal().message()), ::testing::HasSubstr("50ms"));
  }
}

TEST_F(TileHandoverTest, APutThatHasEndedEndsTheCopyAndTheWait) {
  Taker taker({""});
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name()));
    std::thread later([this] {
      absl::SleepFor(absl::Milliseconds(100));
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    });
    const auto handed = handover->HandOver(
        view(), whole_, *TileBits::Create(Dtype::kF32, {kRows, kColumns}, whole_),
        {.is_over =
             [this] {
               absl::MutexLock lock(&mutex_);
               return ended_;
             },
         .on_bytes = [](int64_t) {}});
    later.join();
    EXPECT_THAT(handed.status(), StatusIs(absl::StatusCode::kCancelled));
  }
  is_over_ = true;
  Taker other({});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(other.name()));
  EXPECT_THAT(Give(*handover, view(), whole_).status(), StatusIs(absl::StatusCode::kCancelled));
}

TEST_F(TileHandoverTest, AHostWithoutMemoryOrDescriptorsLeavesTheTileToAStream) {
  for (const char* failpoint : {"memory.sealed_create=emfile", "memory.sealed_write=enospc:2"}) {
    told_bytes_ = 0;
    Taker taker({});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name()));
    ASSERT_THAT(ArmFailpoints(failpoint), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handed, Give(*handover, view(), whole_));
    EXPECT_FALSE(handed.has_value());
    EXPECT_THAT(handover->refusal(), StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_EQ(told_bytes_, 0);
  }
}

// The worker would end a stream on which nothing comes meanwhile. The time is looked at before each
// piece of a tile, the first one too.
TEST_F(TileHandoverTest, ATensorThatIsReadSlowlyIsLeftToStreams) {
  class SlowProducer final : public TileProducer {
   public:
    explicit SlowProducer(TensorView view) : view_(std::move(view)) {}
    Dtype dtype() const override { return view_.dtype(); }
    const Shape& shape() const override { return view_.shape(); }
    absl::Status Fill(const Tile& tile, int64_t offset_bytes, absl::Span<char> out) const override {
      if (offset_bytes > 0) absl::SleepFor(absl::Milliseconds(300));
      return CopyTileBytes(view_, tile, offset_bytes, out);
    }

   private:
    const TensorView view_;
  };
  const std::shared_ptr<const TileProducer> slow = std::make_shared<const SlowProducer>(view());
  const std::pair<TensorElements, absl::Duration> kCases[] = {{slow, absl::Milliseconds(200)},
                                                              {view(), absl::ZeroDuration()}};
  for (const auto& [tensor, copy_time] : kCases) {
    told_bytes_ = 0;
    copy_time_ = copy_time;
    Taker taker({});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name()));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handed, Give(*handover, tensor, whole_));
    EXPECT_FALSE(handed.has_value());
    EXPECT_THAT(handover->refusal(), StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(std::string(handover->refusal().message()),
                ::testing::HasSubstr(absl::FormatDuration(copy_time)));
    EXPECT_EQ(told_bytes_, 0) << "the tile is sent in pieces, which count";
    // The rest of the put does not wait for so long again.
    copy_time_ = absl::Minutes(1);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto next, Give(*handover, view(), columns_));
    EXPECT_FALSE(next.has_value());
    EXPECT_THAT(handover->refusal(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
}

TEST_F(TileHandoverTest, AnErrorOfTheProducerIsThePutsError) {
  Taker taker({});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto handover, TileHandover::Connect(taker.name()));
  const std::shared_ptr<const TileProducer> producer =
      std::make_shared<const CutProducer>(view(), int64_t{2} << 20);
  EXPECT_THAT(Give(*handover, TensorElements(producer), whole_).status(),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST_F(TileHandoverTest, NobodyListensUnderTheNameOfAWorkerOfAnotherHost) {
  EXPECT_THAT(TileHandover::Connect("shardmesh-handover-elsewhere").status(),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(TileHandoverTest, OnlyTilesOfAMebibyteAndMoreFit) {
  EXPECT_FALSE(TileHandover::Fits(0));
  EXPECT_FALSE(TileHandover::Fits((int64_t{1} << 20) - 1));
  EXPECT_TRUE(TileHandover::Fits(int64_t{1} << 20));
  EXPECT_TRUE(TileHandover::Fits(int64_t{8} << 30));
  EXPECT_FALSE(TileHandover::Fits((int64_t{8} << 30) + 1));
}

}  // namespace
}  // namespace shardmesh::client
