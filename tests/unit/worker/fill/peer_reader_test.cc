// Reads from many workers: how many streams are open, in which order, and how many bytes wait.
#include "worker/fill/peer_reader.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "process/crc32c.h"
#include "rpc/transport_args.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;

constexpr size_t kHolders = 9;
constexpr size_t kMaxStreams = 3;
constexpr int64_t kMiB = int64_t{1} << 20;

// The calls of all holders.
struct Calls {
  absl::Mutex mutex;
  std::vector<std::string> order ABSL_GUARDED_BY(mutex);  // the arrays that were asked for
  size_t open ABSL_GUARDED_BY(mutex) = 0;
  size_t most_open ABSL_GUARDED_BY(mutex) = 0;
  // A call sends nothing until this number of calls is open at the same time.
  size_t begins_with ABSL_GUARDED_BY(mutex) = kMaxStreams;
  std::atomic<int64_t> sent_bytes = 0;  // that gRPC has taken
};

// A worker that sends tiles of any size, whose bytes are all the same, in pieces of one size.
class Holder final : public v1::TileService::Service {
 public:
  explicit Holder(Calls* calls) : calls_(*calls) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    for (const rpc::TransportArg& arg : rpc::kTransportArgs) {
      builder.AddChannelArgument(arg.name, arg.value);
    }
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = StrCat("127.0.0.1:", port);
  }
  ~Holder() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  const std::string& address() const { return address_; }

  // A silent worker answers nothing until the call is cancelled.
  void set_is_silent(bool is_silent) { is_silent_ = is_silent; }
  void set_piece_bytes(int64_t bytes) { piece_bytes_ = bytes; }
  int calls() const { return own_calls_; }

  grpc::Status GetTiles(grpc::ServerContext* context, const v1::GetTilesRequest* request,
                        grpc::ServerWriter<v1::GetTilesResponse>* writer) override {
    ++own_calls_;
    if (is_silent_) {
      while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(10));
      return grpc::Status::CANCELLED;
    }
    Begin(request->tiles(0).array_id());
    for (const v1::TileSelector& selector : request->tiles()) Send(selector, writer);
    absl::MutexLock lock(&calls_.mutex);
    --calls_.open;
    return grpc::Status::OK;
  }

 private:
  void Begin(const std::string& array_id) {
    absl::MutexLock lock(&calls_.mutex);
    calls_.order.push_back(array_id);
    calls_.most_open = std::max(calls_.most_open, ++calls_.open);
    // Streams that may be open at the same time are.
    const auto are_many = [this]() ABSL_SHARED_LOCKS_REQUIRED(calls_.mutex) {
      return calls_.most_open >= calls_.begins_with;
    };
    calls_.mutex.AwaitWithTimeout(absl::Condition(&are_many), absl::Seconds(20));
  }
  void Send(const v1::TileSelector& selector, grpc::ServerWriter<v1::GetTilesResponse>* writer) {
    const int64_t most_bytes = piece_bytes_;
    const int64_t size_bytes = selector.tile().ranges(0).stop();
    v1::GetTilesResponse response;
    v1::TileOpening& opening = *response.mutable_opening();
    opening.set_array_id(selector.array_id());
    *opening.mutable_tile() = selector.tile();
    opening.set_size_bytes(size_bytes);
    writer->Write(response);
    uint32_t tile_crc = 0;
    for (int64_t offset = 0; offset < size_bytes; offset += most_bytes) {
      v1::TilePiece& piece = *response.mutable_piece();
      piece.set_offset_bytes(offset);
      piece.set_data(
          std::string(static_cast<size_t>(std::min(most_bytes, size_bytes - offset)), 'x'));
      piece.set_crc32c(Crc32c(piece.data()));
      tile_crc = ConcatCrc32c(tile_crc, piece.crc32c(), static_cast<int64_t>(piece.data().size()));
      if (offset + most_bytes >= size_bytes) piece.set_tile_crc32c(tile_crc);
      if (!writer->Write(response)) return;
      calls_.sent_bytes += static_cast<int64_t>(piece.data().size());
    }
  }

  Calls& calls_;
  std::atomic<bool> is_silent_ = false;
  std::atomic<int> own_calls_ = 0;
  std::atomic<int64_t> piece_bytes_ = kMiB;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

class PeerReaderTest : public testing::Test {
 protected:
  PeerReaderTest() {
    for (size_t i = 0; i < kHolders; ++i) {
      holders_.push_back(std::make_unique<Holder>(&calls_));
      sources_.push_back({.rank = static_cast<DeviceId>(i),
                          .identity = StrCat("w", i),
                          .endpoints = {holders_.back()->address()}});
    }
  }
  // A region of an array `aN` of each holder `wN`.
  std::vector<WantedRegion> Regions(int64_t size_bytes) {
    std::vector<WantedRegion> regions;
    for (size_t i = 0; i < kHolders; ++i) {
      regions.push_back({.array_id = StrCat("a", i),
                         .token = "token",
                         .region = Tile{.ranges = {{.start = 0, .stop = size_bytes}}},
                         .size_bytes = size_bytes,
                         .holders = {&sources_[i]}});
    }
    return regions;
  }

  // A region of an array, and those of the holders that have it.
  WantedRegion RegionOf(const std::string& array_id, const std::vector<size_t>& holders,
                        int64_t size_bytes) const {
    WantedRegion region{.array_id = array_id,
                        .token = "token",
                        .region = Tile{.ranges = {{.start = 0, .stop = size_bytes}}},
                        .size_bytes = size_bytes,
                        .holders = {}};
    for (const size_t holder : holders) region.holders.push_back(&sources_[holder]);
    return region;
  }
  // Calls that are open do not wait for others.
  void LetCallsBeginAlone() {
    absl::MutexLock lock(&calls_.mutex);
    calls_.begins_with = 0;
  }
  // Reads the regions, and drops their bytes.
  static absl::Status Read(PeerReader& reader, const std::vector<WantedRegion>& regions) {
    return reader
        .Read(
            regions, [](size_t, int64_t, absl::Span<const char>) { return absl::OkStatus(); },
            [] { return absl::OkStatus(); })
        .status;
  }

  Calls calls_;
  std::vector<std::unique_ptr<Holder>> holders_;
  std::vector<FillSource> sources_;
};

TEST_F(PeerReaderTest, FewStreamsAreOpenAtOnceAndTheHoldersTakeTurns) {
  PeerReader reader({.identity = "w4", .max_streams = kMaxStreams});
  int64_t received_bytes = 0;
  const PeerReader::Outcome outcome = reader.Read(
      Regions(3 * kMiB + 5),
      [&](size_t, int64_t, absl::Span<const char> bytes) {
        received_bytes += std::ssize(bytes);
        return absl::OkStatus();
      },
      [] { return absl::OkStatus(); });
  EXPECT_THAT(outcome.status, IsOk());
  EXPECT_EQ(received_bytes, static_cast<int64_t>(kHolders) * (3 * kMiB + 5));
  absl::MutexLock lock(&calls_.mutex);
  EXPECT_EQ(calls_.most_open, kMaxStreams);
  ASSERT_EQ(calls_.order.size(), kHolders);
  std::vector<std::string> first(calls_.order.begin(), calls_.order.begin() + kMaxStreams);
  std::sort(first.begin(), first.end());  // their calls may arrive in any order
  EXPECT_THAT(first, ElementsAre("a0", "a7", "a8")) << "the hash of w4 lets w7 come first";
}

TEST_F(PeerReaderTest, ATransferMayHaveFewerStreams) {
  LetCallsBeginAlone();
  PeerReader reader({.identity = "w4", .max_streams = kMaxStreams});
  for (const size_t most : {size_t{1}, size_t{0}}) {
    reader.BeginTransfer(most);
    EXPECT_THAT(Read(reader, Regions(kMiB)), IsOk());
    absl::MutexLock lock(&calls_.mutex);
    EXPECT_EQ(calls_.most_open, 1u);
  }
  {
    absl::MutexLock lock(&calls_.mutex);
    calls_.begins_with = kMaxStreams;
  }
  reader.BeginTransfer();
  EXPECT_THAT(Read(reader, Regions(kMiB)), IsOk());
  absl::MutexLock lock(&calls_.mutex);
  EXPECT_EQ(calls_.most_open, kMaxStreams);
}

// The workers of another mesh, such as one onto which an array moves.
TEST_F(PeerReaderTest, ReadersWhoseNamesComeAfterThoseOfAllHoldersBeginWithMostOfThem) {
  LetCallsBeginAlone();
  for (size_t i = 0; i < kHolders; ++i) {
    PeerReader reader({.identity = StrCat("z", i), .max_streams = 1});
    bool has_begun = false;
    const PeerReader::Outcome outcome = reader.Read(
        Regions(1),
        [&](size_t, int64_t, absl::Span<const char>) {
          has_begun = true;
          return absl::OkStatus();
        },
        [&] { return has_begun ? absl::CancelledError("enough") : absl::OkStatus(); });
    EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kCancelled));
    absl::MutexLock lock(&calls_.mutex);
    ASSERT_EQ(calls_.order.size(), i + 1);
  }
  absl::MutexLock lock(&calls_.mutex);
  const std::set<std::string> first(calls_.order.begin(), calls_.order.end());
  EXPECT_GE(first.size(), kHolders - 2);
}

TEST_F(PeerReaderTest, ASilentHolderIsAskedLastForTheRestOfTheTransfer) {
  LetCallsBeginAlone();
  PeerReader reader({.identity = "w4", .max_streams = 1, .idle_limit = absl::Seconds(3)});
  const std::vector<WantedRegion> both = {RegionOf("both", {0, 1}, 5)};
  holders_[0]->set_is_silent(true);
  EXPECT_THAT(Read(reader, both), IsOk());
  EXPECT_EQ(holders_[0]->calls(), 1);
  EXPECT_EQ(holders_[1]->calls(), 1);
  EXPECT_THAT(Read(reader, both), IsOk());
  EXPECT_EQ(holders_[0]->calls(), 1) << "the other holder comes first";
  EXPECT_EQ(holders_[1]->calls(), 2);
  // It is asked again for what no other holder has.
  holders_[0]->set_is_silent(false);
  EXPECT_THAT(Read(reader, {RegionOf("own", {0}, 5)}), IsOk());
  EXPECT_EQ(holders_[0]->calls(), 2);
  reader.BeginTransfer();
  EXPECT_THAT(Read(reader, both), IsOk());
  EXPECT_EQ(holders_[0]->calls(), 3);
}

// The reader always has a message of the busy holder to handle.
TEST_F(PeerReaderTest, ABusyHolderDoesNotProtectASilentOne) {
  constexpr int64_t kPieces = 16'384;
  constexpr int64_t kPieceBytes = 1024;
  LetCallsBeginAlone();
  holders_[0]->set_piece_bytes(kPieceBytes);
  holders_[1]->set_is_silent(true);
  PeerReader reader({.identity = "w4", .max_streams = 2, .idle_limit = absl::Seconds(2)});
  const std::vector<WantedRegion> regions = {RegionOf("busy", {0}, kPieces * kPieceBytes),
                                             RegionOf("silent", {1, 2}, 5)};
  bool is_replaced = false;
  int64_t busy_bytes = 0;  // when the silent holder was replaced
  int64_t received_bytes = 0;
  const PeerReader::Outcome outcome = reader.Read(
      regions,
      [&](size_t index, int64_t, absl::Span<const char> bytes) {
        if (index == 1) {
          is_replaced = true;
          busy_bytes = received_bytes;
        } else {
          received_bytes += std::ssize(bytes);
          if (!is_replaced) absl::SleepFor(absl::Milliseconds(2));
        }
        return absl::OkStatus();
      },
      [] { return absl::OkStatus(); });
  EXPECT_THAT(outcome.status, IsOk());
  EXPECT_EQ(holders_[2]->calls(), 1);
  EXPECT_GT(busy_bytes, 0);
  EXPECT_LT(busy_bytes, kPieces * kPieceBytes) << "the silent holder was kept until then";
}

TEST_F(PeerReaderTest, BytesThatWaitForASlowWorkerAreBounded) {
  PeerReader reader({.identity = "w4", .max_streams = kMaxStreams});
  const auto may_send = static_cast<int64_t>(kMaxStreams) * PeerReader::kStreamBytes;
  bool is_over = false;
  int64_t waiting_bytes = 0;
  const PeerReader::Outcome outcome = reader.Read(
      Regions(64 * kMiB),
      [&](size_t, int64_t, absl::Span<const char>) {
        if (is_over) return absl::OkStatus();
        // The thread stands still. All holders whose streams are open send what they can.
        int64_t before = -1;
        EXPECT_TRUE(Eventually([&] {
          absl::SleepFor(absl::Milliseconds(300));
          const int64_t now = calls_.sent_bytes.load();
          // On a busy machine, the holders may not have begun yet.
          const bool is_still = now == before && now > kMiB;
          before = now;
          return is_still;
        }));
        waiting_bytes = calls_.sent_bytes.load();
        is_over = true;
        return absl::OkStatus();
      },
      [&] { return is_over ? absl::CancelledError("enough") : absl::OkStatus(); });
  EXPECT_THAT(outcome.status, StatusIs(absl::StatusCode::kCancelled));
  // Each sender may hold a message that its transport has taken and not sent.
  EXPECT_LE(waiting_bytes, may_send + static_cast<int64_t>(kMaxStreams) * kMiB);
  EXPECT_GT(waiting_bytes, kMiB);
}

}  // namespace
}  // namespace shardmesh::worker
