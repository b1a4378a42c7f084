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
  std::atomic<int64_t> sent_bytes = 0;  // that gRPC has taken
};

// A worker that sends tiles of any size, whose bytes are all the same.
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

  grpc::Status GetTiles(grpc::ServerContext*, const v1::GetTilesRequest* request,
                        grpc::ServerWriter<v1::GetTilesResponse>* writer) override {
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
      return calls_.most_open >= kMaxStreams;
    };
    calls_.mutex.AwaitWithTimeout(absl::Condition(&are_many), absl::Seconds(20));
  }
  void Send(const v1::TileSelector& selector, grpc::ServerWriter<v1::GetTilesResponse>* writer) {
    const int64_t size_bytes = selector.tile().ranges(0).stop();
    v1::GetTilesResponse response;
    v1::TileOpening& opening = *response.mutable_opening();
    opening.set_array_id(selector.array_id());
    *opening.mutable_tile() = selector.tile();
    opening.set_size_bytes(size_bytes);
    writer->Write(response);
    uint32_t tile_crc = 0;
    for (int64_t offset = 0; offset < size_bytes; offset += kMiB) {
      v1::TilePiece& piece = *response.mutable_piece();
      piece.set_offset_bytes(offset);
      piece.set_data(std::string(static_cast<size_t>(std::min(kMiB, size_bytes - offset)), 'x'));
      piece.set_crc32c(Crc32c(piece.data()));
      tile_crc = ConcatCrc32c(tile_crc, piece.crc32c(), static_cast<int64_t>(piece.data().size()));
      if (offset + kMiB >= size_bytes) piece.set_tile_crc32c(tile_crc);
      if (!writer->Write(response)) return;
      calls_.sent_bytes += static_cast<int64_t>(piece.data().size());
    }
  }

  Calls& calls_;
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

  Calls calls_;
  std::vector<std::unique_ptr<Holder>> holders_;
  std::vector<FillSource> sources_;
};

TEST_F(PeerReaderTest, FewStreamsAreOpenAtOnceAndTheHoldersAfterThisWorkerComeFirst) {
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
  EXPECT_THAT(first, ElementsAre("a5", "a6", "a7"));
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
