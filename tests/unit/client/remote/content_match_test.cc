// MatchContent: claims about arrays, by digests of tiles that lie in several layouts.
#include "client/remote/content_match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
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
using ::testing::IsEmpty;
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

TEST(ContentMatchTest, ADifferentTensorCostsTwoTilesOfEachLayout) {
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
  EXPECT_EQ(other->bytes, 2 * 192 / 2 + 2 * 192 / 3);
  // One byte in the last tile differs.
  values.back() += 1;
  const auto close = std::make_shared<const CountingProducer>(ViewOf(values));
  const auto claim = MatchContent({MadeBy(close)}, candidates, {})[0];
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->array_id, "columns") << "two of its three tiles are equal";
  EXPECT_THAT(claim->equal_tiles, ElementsAre(0, 1));
  EXPECT_THAT(claim->tile_sha256, SizeIs(2));
  EXPECT_EQ(close->bytes, 192 + 192 + 2 * 192 / 3) << "checksums, and digests of equal tiles";
}

TEST(ContentMatchTest, AnArrayThatIsEqualAsAWholeGoesBeforeOneThatSharesTiles) {
  const std::vector<float> values = Values(1);
  std::vector<float> changed = values;
  changed.back() += 1;
  const std::vector<ContentCandidate> candidates = {
      CandidateOf("changed", ViewOf(changed), kByRows),
      CandidateOf("equal", ViewOf(values), PartitionSpec()),
      CandidateOf("rows", ViewOf(values), kByRows)};
  const auto claim = MatchContent({ViewOf(values)}, candidates, {})[0];
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->array_id, "rows");
  EXPECT_THAT(claim->equal_tiles, IsEmpty());
}

TEST(ContentMatchTest, ClaimsExactlyTheTilesThatAreEqualOfTheArrayWithMostOfThem) {
  std::mt19937 random(7);
  const std::vector<float> values = Values(1);
  const TensorView view = ViewOf(values);
  const PartitionSpec both({SpecEntry::Axis("x"), SpecEntry::Axis("y")});
  const std::vector<CutPoints> uneven = {{0, 1, 8}, {0, 3, 3, 6}};  // one part is empty
  for (int round = 0; round < 200; ++round) {
    // Each candidate differs from the tensor in some bytes.
    std::vector<ContentCandidate> candidates;
    std::vector<std::vector<int64_t>> equal_tiles;
    std::vector<int64_t> equal_elements;
    std::optional<Tiling> tiling;
    for (int i = 0; i < 3; ++i) {
      std::vector<float> changed = values;
      const int changes = std::uniform_int_distribution<int>(1, 6)(random);
      for (int change = 0; change < changes; ++change) {
        const auto at = std::uniform_int_distribution<size_t>(0, changed.size() - 1)(random);
        changed[at] = -static_cast<float>(i + 1);
      }
      const TensorView other = ViewOf(changed);
      ContentCandidate candidate = CandidateOf(StrCat("c", i), other, both);
      if (round % 2 == 1) candidate.array.cut_points = uneven;
      tiling = *candidate.array.Tiling();
      candidate.tile_crc32c.clear();
      std::vector<int64_t>& tiles = equal_tiles.emplace_back();
      int64_t& elements = equal_elements.emplace_back();
      for (int64_t tile = 0; tile < tiling->DistinctTileCount(); ++tile) {
        const Tile box = tiling->ReplicaGroup(tile).tile;
        candidate.tile_crc32c.push_back(Crc32c(BytesOf(other, box)));
        if (BytesOf(other, box) != BytesOf(view, box)) continue;
        tiles.push_back(tile);
        elements += box.element_count();
      }
      // It is compared no further if none of its first tiles is equal.
      if (tiles.empty() || tiles.front() >= kFirstTiles) elements = 0;
      candidates.push_back(std::move(candidate));
    }
    const auto claim = MatchContent({view}, candidates, {})[0];
    const auto best = std::max_element(equal_elements.begin(), equal_elements.end());
    ASSERT_EQ(claim.has_value(), *best > 0) << round;
    if (!claim.has_value()) continue;
    const auto number = static_cast<size_t>(best - equal_elements.begin());
    EXPECT_EQ(claim->array_id, StrCat("c", number)) << round;
    EXPECT_EQ(claim->equal_tiles, equal_tiles[number]) << round;
    ASSERT_EQ(claim->tile_sha256.size(), equal_tiles[number].size());
    for (size_t i = 0; i < claim->tile_sha256.size(); ++i) {
      EXPECT_EQ(claim->tile_sha256[i],
                Sha256(BytesOf(view, tiling->ReplicaGroup(equal_tiles[number][i]).tile)));
    }
  }
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
