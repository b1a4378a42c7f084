// Messages of workers that are read: what is taken from them, and what is left out.
#include "server/attach/attach_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "rpc/codec/time_codec.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

internal::v1::StepReport Done() {
  internal::v1::StepReport report;
  report.set_rank(1);
  report.set_outcome(internal::v1::StepReport::OUTCOME_DONE);
  report.set_sent_bytes(7);
  rpc::Encode(absl::Milliseconds(3), report.mutable_kernel_time());
  rpc::Encode(absl::Milliseconds(5), report.mutable_collective_time());
  internal::v1::StagedOutput* const output = report.add_outputs();
  output->set_array_id("out");
  output->set_crc32c(9);
  output->set_size_bytes(4);
  output->set_data("data");
  return report;
}

TEST(AttachCodecTest, AReportBringsTilesTimesAndElements) {
  const RankReport report = DecodeReport("w1", Done());
  EXPECT_THAT(report.status, IsOk());
  EXPECT_EQ(report.identity, "w1");
  EXPECT_EQ(report.rank, 1);
  EXPECT_TRUE(report.done);
  ASSERT_EQ(report.tiles.size(), 1u);
  EXPECT_EQ(report.tiles[0].crc32c, 9u);
  EXPECT_EQ(report.detail.sent_bytes, 7);
  EXPECT_EQ(report.detail.kernel, absl::Milliseconds(3));
  EXPECT_EQ(report.detail.collective, absl::Milliseconds(5));
  EXPECT_THAT(report.detail.tile_bytes, ElementsAre(Pair("out", "data")));
}

TEST(AttachCodecTest, AReportThatCannotBeReadIsAFailure) {
  internal::v1::StepReport from = Done();
  from.mutable_kernel_time()->set_nanos(2'000'000'000);
  const RankReport report = DecodeReport("w1", from);
  EXPECT_THAT(report.status, StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(std::string(report.status.message()), HasSubstr("its report cannot be read"));
  EXPECT_TRUE(report.tiles.empty());
}

}  // namespace
}  // namespace shardmesh::server
