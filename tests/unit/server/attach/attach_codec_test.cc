// Messages of workers that are read: what is taken from them, and what is left out.
#include "server/attach/attach_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/time_codec.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "tests/testing/row_array.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::RowArray;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

void AddTile(const std::string& id, const std::string& descriptor,
             internal::v1::InventoryPage* page) {
  internal::v1::HeldTile* const held = page->add_tiles();
  held->set_array_id(id);
  held->set_array_descriptor(descriptor);
  rpc::Encode(RowArray(id).Tiling()->TileOf(0), held->mutable_tile());
}

std::vector<size_t> All(const std::vector<InventoryTile>& tiles) {
  std::vector<size_t> indices(tiles.size());
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST(AttachCodecTest, OnlyReadableDescriptorsOfTheTilesArrayAreTaken) {
  internal::v1::InventoryPage page;
  AddTile("a", rpc::ArrayDescriptorBytes(RowArray("a")), &page);
  AddTile("b", "not a descriptor", &page);
  AddTile("c", "", &page);
  AddTile("d", rpc::ArrayDescriptorBytes(RowArray("a")), &page);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<InventoryTile> tiles, DecodeTiles(page, All));
  ASSERT_EQ(tiles.size(), 4u);
  EXPECT_EQ(tiles[0].array_id, "a");
  EXPECT_EQ(tiles[0].descriptor, RowArray("a"));
  for (const size_t i : {1, 2, 3}) {
    EXPECT_EQ(tiles[i].array_id, page.tiles(static_cast<int>(i)).array_id());
    EXPECT_FALSE(tiles[i].descriptor.has_value()) << i;
  }
  EXPECT_THAT(DecodeMeshIds(page), ElementsAre("m", "", "", "m"));
}

TEST(AttachCodecTest, ATileOfStateHasTheStepThatUpdatedIt) {
  internal::v1::InventoryPage page;
  for (const char* const id : {"weight", "kv"}) AddTile(id, "", &page);
  page.mutable_tiles(1)->set_state_step(7);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::vector<InventoryTile> tiles,
      DecodeTiles(page, [](const std::vector<InventoryTile>&) { return std::vector<size_t>(); }));
  ASSERT_EQ(tiles.size(), 2u);
  EXPECT_EQ(tiles[0].state_step, 0);
  EXPECT_EQ(tiles[1].state_step, 7);
}

TEST(AttachCodecTest, StagedResultsOfStepsDifferFromTilesOfPuts) {
  internal::v1::InventoryPage page;
  for (const char* const id : {"result", "put", "committed"}) AddTile(id, "", &page);
  page.mutable_tiles(0)->set_of_step(true);
  page.mutable_tiles(2)->set_of_step(true);
  page.mutable_tiles(2)->set_committed(true);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<InventoryTile> tiles, DecodeTiles(page, All));
  ASSERT_EQ(tiles.size(), 3u);
  EXPECT_TRUE(tiles[0].of_step);
  EXPECT_FALSE(tiles[1].of_step);
  EXPECT_FALSE(tiles[2].of_step);
}

TEST(AttachCodecTest, DescriptorsOfKnownArraysAreNotRead) {
  internal::v1::InventoryPage page;
  AddTile("a", rpc::ArrayDescriptorBytes(RowArray("a")), &page);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::vector<InventoryTile> tiles,
      DecodeTiles(page, [](const std::vector<InventoryTile>&) { return std::vector<size_t>(); }));
  ASSERT_EQ(tiles.size(), 1u);
  EXPECT_FALSE(tiles[0].descriptor.has_value());
}

internal::v1::StepReport Done() {
  internal::v1::StepReport report;
  report.set_rank(1);
  report.set_outcome(internal::v1::StepReport::OUTCOME_DONE);
  report.set_sent_bytes(7);
  rpc::Encode(absl::Milliseconds(3), report.mutable_kernel_time());
  rpc::Encode(absl::Milliseconds(5), report.mutable_collective_time());
  rpc::Encode(absl::Milliseconds(2), report.mutable_queue_time());
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
  EXPECT_EQ(report.detail.queued, absl::Milliseconds(2));
  EXPECT_THAT(report.detail.tile_bytes, ElementsAre(Pair("out", "data")));
  EXPECT_FALSE(report.detail.trace.has_value());
}

TEST(AttachCodecTest, AReportBringsWhatTheRankDid) {
  internal::v1::StepReport from = Done();
  from.mutable_trace()->set_rank(1);
  v1::TraceSpan* const span = from.mutable_trace()->add_spans();
  span->set_kind(v1::TRACE_SPAN_KIND_WAIT);
  span->set_peer_rank(3);
  const RankReport report = DecodeReport("w1", from);
  ASSERT_TRUE(report.detail.trace.has_value());
  EXPECT_EQ(report.detail.trace->rank, 1);
  ASSERT_EQ(report.detail.trace->spans.size(), 1u);
  EXPECT_EQ(report.detail.trace->spans[0].peer, 3);
  span->set_kind(static_cast<v1::TraceSpanKind>(77));
  EXPECT_THAT(DecodeReport("w1", from).status, IsOk()) << "a kind of a newer worker";
  span->set_kind(v1::TRACE_SPAN_KIND_UNSPECIFIED);
  EXPECT_THAT(DecodeReport("w1", from).status, StatusIs(absl::StatusCode::kInternal));
}

TEST(AttachCodecTest, AHelloBringsTheCostsOfKernels) {
  internal::v1::Hello from;
  EXPECT_EQ(DecodeHello(from).kernels, MeasuredKernels()) << "of an older build";
  const auto add = [&from](int kind, double seconds, int rows = 0) {
    internal::v1::KernelCost* const cost = from.mutable_capacity()->add_kernel_costs();
    cost->set_kind(static_cast<internal::v1::KernelCost::Kind>(kind));
    cost->set_seconds(seconds);
    cost->set_rows(rows);
  };
  from.mutable_capacity()->set_f32_flops_per_second(5e9);
  add(0, 1);
  add(internal::v1::KernelCost::KIND_PRODUCT_I8_BF16, 1e-9, 32);
  add(internal::v1::KernelCost::KIND_PRODUCT_I8_BF16, 1, 33);  // of a newer build
  add(internal::v1::KernelCost::KIND_PLAIN_BYTE, 4e-9);
  add(internal::v1::KernelCost::KIND_SOFTMAX_ELEMENT, 2e-9);
  add(internal::v1::KernelCost::KIND_SOFTMAX_ELEMENT, 3e-9);
  add(internal::v1::KernelCost::Kind_MAX + 1, 1);  // of a newer build
  add(-1, 1);
  MeasuredKernels expected = {.f32_flops_per_second = 5e9};
  expected.costs[ProductKind::kI8Bf16][3] = 1e-9;
  expected.costs[KernelCost::kPlainByte] = 4e-9;
  expected.costs[KernelCost::kSoftmaxElement] = 3e-9;
  EXPECT_EQ(DecodeHello(from).kernels, expected);
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
