// MatchContent: claims about arrays, by digests of tiles that lie in several layouts.
#include "client/remote/content_match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "process/crc32c.h"
#include "sharding/digest.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::testing::ElementsAre;
using ::testing::SizeIs;

// The values of a tensor of 8 x 6 F32.
const Shape kMatchedShape = {8, 6};
std::vector<float> Values(float first) {
  std::vector<float> values(48);
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  return values;
}

TensorView ViewOf(const std::vector<float>& values, const Shape& shape = kMatchedShape) {
  const auto view = TensorView::Create(
      Dtype::kF32, shape,
      absl::MakeConstSpan(reinterpret_cast<const char*>(values.data()), values.size() * 4));
  EXPECT_THAT(view, IsOk());
  return *view;
}

std::string BytesOf(const TensorView& view, const Tile& tile) {
  const auto region = TileRegion::Create(view.dtype(), view.shape(), tile);
  EXPECT_THAT(region, IsOk());
  std::string bytes(static_cast<size_t>(region->size_bytes()), '\0');
  EXPECT_THAT(CopyTileBytes(view, tile, 0, absl::MakeSpan(bytes)), IsOk());
  return bytes;
}

// An array with these values, as the coordinator describes it.
ContentCandidate CandidateOf(const std::string& id, const TensorView& view,
                             const PartitionSpec& spec, const std::string& mesh_id = "m") {
  ContentCandidate candidate;
  candidate.array = {.array_id = id,
                     .dtype = view.dtype(),
                     .shape = view.shape(),
                     .spec = spec,
                     .mesh_id = mesh_id,
                     .mesh_revision = 1,
                     .mesh = *Mesh::Parse("x=2,y=3"),
                     .cut_points = {}};
  const Tiling tiling = *candidate.array.Tiling();
  for (int64_t tile = 0; tile < tiling.DistinctTileCount(); ++tile) {
    candidate.tile_crc32c.push_back(Crc32c(BytesOf(view, tiling.ReplicaGroup(tile).tile)));
  }
  return candidate;
}

const PartitionSpec kByRows({SpecEntry::Axis("x")});
const PartitionSpec kByColumns({SpecEntry(), SpecEntry::Axis("y")});

// Makes the elements of a view piece by piece, and counts the bytes; or fails.
class CountingProducer final : public TileProducer {
 public:
  explicit CountingProducer(TensorView view) : view_(std::move(view)) {}

  Dtype dtype() const override { return view_.dtype(); }
  const Shape& shape() const override { return view_.shape(); }
  absl::Status Fill(const Tile& tile, int64_t offset_bytes, absl::Span<char> out) const override {
    bytes += std::ssize(out);
    return error.ok() ? CopyTileBytes(view_, tile, offset_bytes, out) : error;
  }

  mutable std::atomic<int64_t> bytes = 0;
  absl::Status error;

 private:
  const TensorView view_;
};

TensorElements MadeBy(std::shared_ptr<const TileProducer> producer) { return producer; }

TEST(ContentMatchTest, FindsTheArrayWithTheTensorsElementsInAnyLayout) {
  const std::vector<float> values = Values(1);
  const std::vector<float> others = Values(2);
  const TensorView view = ViewOf(values);
  for (const PartitionSpec& spec : {PartitionSpec(), kByRows, kByColumns}) {
    const std::vector<ContentCandidate> candidates = {
        CandidateOf("other", ViewOf(others), spec), CandidateOf("equal", view, spec),
        CandidateOf("long", ViewOf(values, {48}), PartitionSpec())};
    const auto producer = std::make_shared<const CountingProducer>(view);
    const std::vector<TensorElements> tensors = {view, ViewOf(others, {48}), MadeBy(producer)};
    const auto claims = MatchContent(tensors, candidates, {.threads = 3});
    ASSERT_THAT(claims, SizeIs(3));
    EXPECT_FALSE(claims[1].has_value());
    const Tiling tiling = *candidates[1].array.Tiling();
    for (const size_t i : {size_t{0}, size_t{2}}) {
      ASSERT_TRUE(claims[i].has_value()) << spec.ToString();
      EXPECT_EQ(claims[i]->array_id, "equal");
      ASSERT_EQ(std::ssize(claims[i]->tile_sha256), tiling.DistinctTileCount());
      for (int64_t tile = 0; tile < tiling.DistinctTileCount(); ++tile) {
        EXPECT_EQ(claims[i]->tile_sha256[static_cast<size_t>(tile)],
                  Sha256(BytesOf(view, tiling.ReplicaGroup(tile).tile)));
      }
    }
  }
}

TEST(ContentMatchTest, ADifferentTensorCostsOneTileOfEachLayout) {
  std::vector<float> values = Values(1);
  const auto candidates = [&] {
    std::vector<ContentCandidate> made;
    for (int i = 0; i < 5; ++i) {
      made.push_back(CandidateOf(StrCat("rows", i), ViewOf(values), kByRows));
    }
    made.push_back(CandidateOf("columns", ViewOf(values), kByColumns));
    return made;
  }();
  const std::vector<float> others = Values(2);
  const auto other = std::make_shared<const CountingProducer>(ViewOf(others));
  EXPECT_FALSE(MatchContent({MadeBy(other)}, candidates, {})[0].has_value());
  EXPECT_EQ(other->bytes, 192 / 2 + 192 / 3);
  // One byte in the last tile differs.
  values.back() += 1;
  const auto close = std::make_shared<const CountingProducer>(ViewOf(values));
  EXPECT_FALSE(MatchContent({MadeBy(close)}, candidates, {})[0].has_value());
  EXPECT_EQ(close->bytes, 192 + 192) << "checksums only";
}

TEST(ContentMatchTest, PrefersTheMeshOfThePutAndArraysWithNames) {
  const std::vector<float> values = Values(1);
  const std::vector<ContentCandidate> candidates = {
      CandidateOf("there", ViewOf(values), kByRows, "n"),
      CandidateOf("here", ViewOf(values), kByRows, "m"),
      CandidateOf("columns", ViewOf(values), kByColumns, "m")};
  EXPECT_EQ(MatchContent({ViewOf(values)}, candidates, {.mesh = "m"})[0]->array_id, "here");
  EXPECT_EQ(MatchContent({ViewOf(values)}, candidates, {.mesh = "n"})[0]->array_id, "there");
  std::vector<ContentCandidate> named = candidates;
  named[0].has_name = true;
  named[2].has_name = true;
  EXPECT_EQ(MatchContent({ViewOf(values)}, named, {.mesh = "m"})[0]->array_id, "columns");
}

TEST(ContentMatchTest, ClaimsNothingOnceThePutIsOverOrTheElementsCannotBeMade) {
  const std::vector<float> values = Values(1);
  const std::vector<ContentCandidate> candidates = {CandidateOf("a", ViewOf(values), kByRows)};
  EXPECT_FALSE(
      MatchContent({ViewOf(values)}, candidates, {.is_over = [] { return true; }})[0].has_value());
  auto broken = std::make_shared<CountingProducer>(ViewOf(values));
  broken->error = absl::DataLossError("the file is damaged");
  EXPECT_FALSE(MatchContent({MadeBy(broken)}, candidates, {})[0].has_value());
  // A candidate whose checksums do not fit its layout is none.
  std::vector<ContentCandidate> short_ones = candidates;
  short_ones[0].tile_crc32c.pop_back();
  EXPECT_FALSE(MatchContent({ViewOf(values)}, short_ones, {})[0].has_value());
}

}  // namespace
}  // namespace shardmesh::client
