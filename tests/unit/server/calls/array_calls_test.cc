// Gets from workers that were lost a moment ago, without gRPC.
#include "server/calls/array_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "process/random_bytes.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "shardmesh/v1/array_service.pb.h"
#include "status/reason.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/calls_fixture.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;

class BeginGetTest : public CallsFixture {
 protected:
  BeginGetTest()
      : CallsFixture({"w0", "w1"}),
        session_(sessions_.Open({.name = "host:10.0.0.1"}, "", absl::Hours(1))->id) {}

  // An array of that spec under a name.
  ArrayDescriptor AddArray(const std::string& name, const PartitionSpec& spec) {
    const ArrayDescriptor descriptor{.array_id = RandomId(),
                                     .dtype = Dtype::kF32,
                                     .shape = {8},
                                     .spec = spec,
                                     .mesh_id = "m",
                                     .mesh_revision = 1,
                                     .mesh = *Mesh::Parse("x=2"),
                                     .cut_points = {}};
    EXPECT_THAT(registry_->Stage({.descriptor = descriptor}), IsOk());
    CommitRequest commit;
    commit.arrays.push_back({.array_id = descriptor.array_id, .tile_crc32c = {1, 2}});
    commit.moves.push_back(
        {.name = name, .array_id = descriptor.array_id, .expected_version = std::nullopt});
    absl::Notification done;
    registry_->Commit(std::move(commit), [&done](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, IsOk());
      done.Notify();
    });
    done.WaitForNotification();
    return descriptor;
  }
  absl::StatusOr<v1::BeginGetResponse> Get(const std::string& name,
                                           const std::optional<Tile>& slice) {
    v1::BeginGetRequest request;
    request.set_session_id(session_);
    request.mutable_array()->set_name(name);
    if (slice.has_value()) rpc::Encode(*slice, request.mutable_slice());
    v1::BeginGetResponse response;
    const absl::Status status = BeginGet(Parts(), request, &response);
    if (!status.ok()) return status;
    return response;
  }

  const std::string session_;
};

TEST_F(BeginGetTest, ASliceNamesOnlyRanksThatCanBeAsked) {
  const ArrayDescriptor rows = AddArray("rows", PartitionSpec({SpecEntry::Axis("x")}));
  AddArray("copies", PartitionSpec());
  const Tile whole = Tile::Whole({8});
  const auto before = Get("copies", whole);
  ASSERT_THAT(before, IsOk());
  EXPECT_THAT(before->tiles(0).ranks(), ElementsAre(0, 1));

  members_.Detach(attachments_[1], "it is gone");
  const auto copies = Get("copies", whole);
  ASSERT_THAT(copies, IsOk());
  ASSERT_EQ(copies->tiles_size(), 1);
  EXPECT_THAT(copies->tiles(0).ranks(), ElementsAre(0));
  ASSERT_EQ(copies->devices_size(), 1);
  EXPECT_EQ(copies->devices(0).rank(), 0);

  const auto first = Get("rows", rows.Tiling()->TileOf(0));
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(first->tiles(0).ranks(), ElementsAre(0));
  EXPECT_THAT(Get("rows", rows.Tiling()->TileOf(1)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(Get("rows", whole).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
}

// The arrays count as kept in memory, as when some of their workers have no data folder.
TEST_F(BeginGetTest, AGetWaitsForTheWorkersOfItsTilesThatComeBack) {
  const ArrayDescriptor rows = AddArray("rows", PartitionSpec({SpecEntry::Axis("x")}));
  AddArray("copies", PartitionSpec());
  const Tile whole = Tile::Whole({8});
  const Tile first = rows.Tiling()->TileOf(0);
  const Tile second = rows.Tiling()->TileOf(1);
  const auto recovering = StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering);
  const auto degraded = StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded);

  members_.Detach(attachments_[1], "it is gone");
  recovery_.Lost("w1");  // its tiles are on its disk
  EXPECT_THAT(Get("rows", first), IsOk());
  EXPECT_THAT(Get("rows", second).status(), recovering);
  EXPECT_THAT(Get("rows", whole).status(), recovering);

  members_.Detach(attachments_[0], "it is gone");  // its tiles were in memory
  EXPECT_THAT(Get("rows", first).status(), degraded);
  EXPECT_THAT(Get("rows", second).status(), recovering);
  EXPECT_THAT(Get("rows", whole).status(), degraded);
  EXPECT_THAT(Get("copies", whole).status(), recovering) << "one replica is enough";

  clock_.Advance(Recovery::kDefaultReturnGrace);
  EXPECT_THAT(Get("rows", second).status(), degraded);
  EXPECT_THAT(Get("copies", whole).status(), degraded);
}

TEST_F(BeginGetTest, AGetOfAWholeArrayListsNoTiles) {
  AddArray("rows", PartitionSpec({SpecEntry::Axis("x")}));
  const auto got = Get("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->tiles_size(), 0);
  EXPECT_EQ(got->devices_size(), 2);
}

}  // namespace
}  // namespace shardmesh::server
