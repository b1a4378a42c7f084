// Tests of sharding/reshard/plan.h: every element followed by hand on small meshes, patterns, and
// meshes too large to enumerate.
#include "sharding/reshard/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Mesh MeshOf(std::string_view text, std::vector<int64_t> ids = {}) {
  MeshOptions options;
  options.global_ids = std::move(ids);
  return *Mesh::Parse(text, options);
}

// "dp,-,fsdp+tp" is P('dp', None, ('fsdp', 'tp')).
PartitionSpec SpecOf(std::string_view text, std::vector<std::string> unreduced = {}) {
  std::vector<SpecEntry> entries;
  std::vector<AxisName> axes;
  std::string name;
  const auto end_name = [&] {
    if (!name.empty() && name != "-") axes.push_back(name);
    name.clear();
  };
  for (const char c : text) {
    if (c == '+') {
      end_name();
    } else if (c == ',') {
      end_name();
      entries.push_back(SpecEntry::Axes(std::move(axes)));
      axes.clear();
    } else {
      name += c;
    }
  }
  if (!text.empty()) {
    end_name();
    entries.push_back(SpecEntry::Axes(std::move(axes)));
  }
  return PartitionSpec(std::move(entries), std::move(unreduced));
}

Tiling TilingOf(const Mesh& mesh, const PartitionSpec& spec, const Shape& shape,
                std::vector<CutPoints> cuts = {}) {
  absl::StatusOr<Tiling> tiling = Tiling::Create(mesh, spec, shape, std::move(cuts));
  EXPECT_THAT(tiling, IsOk()) << spec.ToString() << " " << mesh.ToString();
  return *std::move(tiling);
}

ReshardPlan PlanOf(const Tiling& from, const Tiling& to) {
  absl::StatusOr<ReshardPlan> plan = ReshardPlan::Create(from, to);
  EXPECT_THAT(plan, IsOk());
  return *std::move(plan);
}

ReshardPlan PlanOf(std::string_view mesh, std::string_view from, std::string_view to,
                   const Shape& shape) {
  return PlanOf(TilingOf(MeshOf(mesh), SpecOf(from), shape),
                TilingOf(MeshOf(mesh), SpecOf(to), shape));
}

// The coordinates of a device along the axes that both layouts leave unreduced, or that the source
// alone does: which partial sum it has.
std::map<std::string, int64_t> Coordinates(const Tiling& tiling, DeviceId device,
                                           absl::Span<const std::string> axes) {
  std::map<std::string, int64_t> coordinates;
  for (const std::string& axis : axes) {
    coordinates[axis] = tiling.mesh().CoordinateOf(device, *tiling.mesh().FindAxis(axis));
  }
  return coordinates;
}

std::vector<std::vector<int64_t>> IndicesOf(const Tile& tile) {
  std::vector<std::vector<int64_t>> indices = {{}};
  for (const IndexRange& range : tile.ranges) {
    std::vector<std::vector<int64_t>> longer;
    for (const std::vector<int64_t>& index : indices) {
      for (int64_t i = range.start; i < range.stop; ++i) {
        longer.push_back(index);
        longer.back().push_back(i);
      }
    }
    indices = std::move(longer);
  }
  return indices;
}

// An element of the tensor, as one partial sum of it.
using Piece = std::pair<std::map<std::string, int64_t>, std::vector<int64_t>>;

std::set<Piece> HeldBy(const Tiling& tiling, DeviceId device, absl::Span<const std::string> axes) {
  std::set<Piece> held;
  for (std::vector<int64_t>& index : IndicesOf(tiling.TileOf(device))) {
    held.emplace(Coordinates(tiling, device, axes), std::move(index));
  }
  return held;
}

// Follows every element.
void CheckByHand(const ReshardPlan& plan) {
  const Tiling& from = plan.from();
  const Tiling& to = plan.to();
  const auto partial = from.spec().unreduced();
  const std::vector<std::string> before(partial.begin(), partial.end());
  std::vector<std::string> reduced;
  std::vector<std::string> stay;
  for (const std::string& axis : before) {
    const auto after = to.spec().unreduced();
    (std::find(after.begin(), after.end(), axis) == after.end() ? reduced : stay).push_back(axis);
  }

  ReshardTotals expected;
  std::vector<int64_t> sent(static_cast<size_t>(from.mesh().size()), 0);
  std::vector<std::vector<ReshardLink>> links(sent.size());
  for (DeviceId device = 0; device < to.mesh().size(); ++device) {
    SCOPED_TRACE(StrCat("device ", device));
    // Every partial sum along the reduced axes, and its own along those that stay.
    std::set<Piece> wanted;
    std::vector<std::map<std::string, int64_t>> sums = {Coordinates(to, device, stay)};
    for (const std::string& axis : reduced) {
      std::vector<std::map<std::string, int64_t>> more;
      const int64_t size =
          from.mesh().axes()[static_cast<size_t>(*from.mesh().FindAxis(axis))].size;
      for (std::map<std::string, int64_t> sum : sums) {
        for (int64_t i = 0; i < size; ++i) {
          sum[axis] = i;
          more.push_back(sum);
        }
      }
      sums = std::move(more);
    }
    for (const std::map<std::string, int64_t>& sum : sums) {
      for (std::vector<int64_t>& index : IndicesOf(to.TileOf(device))) {
        wanted.emplace(sum, std::move(index));
      }
    }
    const std::optional<DeviceId> source = plan.SourceOf(device);
    EXPECT_EQ(source, from.mesh().DeviceOfGlobalId(to.mesh().GlobalIdOf(device)));
    const std::set<Piece> had =
        source.has_value() ? HeldBy(from, *source, before) : std::set<Piece>();
    std::set<Piece> missing;
    std::set_difference(wanted.begin(), wanted.end(), had.begin(), had.end(),
                        std::inserter(missing, missing.end()));

    const DeviceReshard part = plan.DeviceOf(device);
    EXPECT_EQ(part.dst, to.TileOf(device));
    EXPECT_EQ(part.src.has_value(), source.has_value());
    EXPECT_EQ(part.need, static_cast<int64_t>(missing.size()));
    EXPECT_EQ(part.kept, static_cast<int64_t>(wanted.size() - missing.size()));
    const absl::StatusOr<std::vector<FetchRegion>> regions = plan.RegionsOf(device);
    ASSERT_THAT(regions, IsOk());
    EXPECT_EQ(part.region_count, static_cast<int64_t>(regions->size()));
    std::set<DeviceId> sources;
    for (const FetchRegion& region : *regions) {
      EXPECT_EQ(region.elements, region.tile.element_count());
      EXPECT_TRUE(sources.insert(region.source).second) << "two regions from one device";
      EXPECT_NE(from.mesh().GlobalIdOf(region.source), to.mesh().GlobalIdOf(device));
      for (std::vector<int64_t>& index : IndicesOf(region.tile)) {
        const Piece piece(Coordinates(from, region.source, before), index);
        EXPECT_TRUE(HeldBy(from, region.source, before).count(piece) == 1);
        EXPECT_EQ(missing.erase(piece), 1u) << "fetched twice, or not needed";
      }
      sent[static_cast<size_t>(region.source)] += region.elements;
      links[static_cast<size_t>(region.source)].push_back(
          {region.source, device, region.tile, region.elements});
      expected.max_link = std::max(expected.max_link, region.elements);
      ++expected.links;
    }
    EXPECT_THAT(missing, IsEmpty()) << "not fetched";
    expected.kept += part.kept;
    expected.need += part.need;
    expected.max_need = std::max(expected.max_need, part.need);
    expected.receivers += part.need > 0 ? 1 : 0;
  }
  const absl::StatusOr<ReshardTotals> totals = plan.Totals();
  ASSERT_THAT(totals, IsOk());
  EXPECT_EQ(totals->noop, expected.need == 0);
  EXPECT_EQ(totals->kept, expected.kept);
  EXPECT_EQ(totals->need, expected.need);
  EXPECT_EQ(totals->max_need, expected.max_need);
  EXPECT_EQ(totals->receivers, expected.receivers);
  EXPECT_EQ(totals->links, expected.links);
  EXPECT_EQ(totals->max_link, expected.max_link);
  EXPECT_EQ(totals->max_sent, *std::max_element(sent.begin(), sent.end()));
  EXPECT_DOUBLE_EQ(totals->mean_sent,
                   static_cast<double>(expected.need) / static_cast<double>(sent.size()));
  const bool moves_nothing =
      plan.pattern() == ReshardPattern::kNoop || plan.pattern() == ReshardPattern::kSlice;
  EXPECT_EQ(moves_nothing, totals->noop) << ReshardPatternName(plan.pattern());
  for (DeviceId device = 0; device < from.mesh().size(); ++device) {
    const absl::StatusOr<std::vector<ReshardLink>> out = plan.LinksOutOf(device);
    ASSERT_THAT(out, IsOk());
    EXPECT_EQ(*out, links[static_cast<size_t>(device)]) << "out of device " << device;
  }
}

class RandomLayouts {
 public:
  explicit RandomLayouts(uint32_t seed, bool makes_empty_parts = false)
      : random_(seed), makes_empty_parts_(makes_empty_parts) {}

  int64_t Below(int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_);
  }

  std::vector<int64_t> Shuffled(int64_t size, int64_t first) {
    std::vector<int64_t> ids(static_cast<size_t>(size));
    std::iota(ids.begin(), ids.end(), first);
    std::shuffle(ids.begin(), ids.end(), random_);
    return ids;
  }

  // Axes a, b, ... that multiply to `size`, or to anything small if that is 0.
  std::vector<MeshAxis> Axes(int64_t size) {
    std::vector<MeshAxis> axes;
    const int64_t count = 1 + Below(4);
    for (int64_t i = 0; i < count; ++i) {
      std::vector<int64_t> choices;
      for (int64_t choice = 1; choice <= (size == 0 ? 4 : size); ++choice) {
        if (size == 0 || size % choice == 0) choices.push_back(choice);
      }
      const bool last = size != 0 && i == count - 1;
      const int64_t extent =
          last ? size : choices[static_cast<size_t>(Below(static_cast<int64_t>(choices.size())))];
      axes.push_back({std::string(1, static_cast<char>('a' + i)), extent});
      if (size != 0) size /= extent;
    }
    return axes;
  }

  // A layout of a tensor of `shape`; cut unevenly now and then, and always where it must be.
  std::optional<Tiling> Layout(const Mesh& mesh, const Shape& shape,
                               std::vector<std::string> unreduced) {
    std::vector<std::vector<AxisName>> entries(shape.size());
    std::vector<MeshAxis> axes(mesh.axes().begin(), mesh.axes().end());
    std::shuffle(axes.begin(), axes.end(), random_);
    for (const MeshAxis& axis : axes) {
      const bool taken =
          std::find(unreduced.begin(), unreduced.end(), axis.name) != unreduced.end();
      if (!shape.empty() && !taken && Below(4) > 0) {
        entries[static_cast<size_t>(Below(static_cast<int64_t>(shape.size())))].push_back(
            axis.name);
      }
    }
    std::vector<SpecEntry> spec;
    std::vector<CutPoints> cuts(shape.size());
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      int64_t parts = 1;
      for (const AxisName& name : entries[dim]) {
        parts *= mesh.axes()[static_cast<size_t>(*mesh.FindAxis(*name))].size;
      }
      if (shape[dim] % parts != 0 || (parts > 1 && Below(3) == 0)) {
        if (makes_empty_parts_) {
          for (int64_t part = 1; part < parts; ++part) cuts[dim].push_back(Below(shape[dim] + 1));
        } else {
          if (parts > shape[dim]) return std::nullopt;
          std::vector<int64_t> inner = Shuffled(shape[dim] - 1, 1);
          cuts[dim].assign(inner.begin(), inner.begin() + static_cast<std::ptrdiff_t>(parts - 1));
        }
        cuts[dim].push_back(0);
        cuts[dim].push_back(shape[dim]);
        std::sort(cuts[dim].begin(), cuts[dim].end());
      }
      spec.push_back(SpecEntry::Axes(std::move(entries[dim])));
    }
    absl::StatusOr<Tiling> tiling =
        Tiling::Create(mesh, PartitionSpec(std::move(spec), std::move(unreduced)), shape, cuts);
    if (!tiling.ok()) return std::nullopt;
    return *std::move(tiling);
  }

  Shape AnyShape() {
    Shape shape;
    const int64_t rank = Below(4);
    const std::vector<int64_t> extents = {1, 2, 3, 4, 6, 8, 12};
    int64_t elements = 1;
    for (int64_t dim = 0; dim < rank; ++dim) {
      shape.push_back(extents[static_cast<size_t>(Below(7))]);
      elements *= shape.back();
      if (elements > 100) shape.back() = 1;
    }
    return shape;
  }

 private:
  std::mt19937 random_;
  const bool makes_empty_parts_;
};

std::string Describe(const ReshardPlan& plan) {
  std::string text;
  for (const Tiling* tiling : {&plan.from(), &plan.to()}) {
    StrAppend(&text, tiling->mesh().ToString(), " ", tiling->spec().ToString(), " ",
              ShapeToString(tiling->shape()), " [");
    for (int64_t dim = 0; dim < tiling->rank(); ++dim) {
      for (int64_t part = 0; part < tiling->PartCount(dim); ++part) {
        StrAppend(&text, tiling->PartRange(dim, part).stop, " ");
      }
    }
    StrAppend(&text, "] ");
  }
  return text;
}

void CheckOnOneMesh(RandomLayouts random, int64_t count) {
  int64_t checked = 0;
  while (checked < count) {
    const Mesh mesh = *Mesh::Create(random.Axes(0));
    const Shape shape = random.AnyShape();
    const std::optional<Tiling> from = random.Layout(mesh, shape, {});
    const std::optional<Tiling> to = random.Layout(mesh, shape, {});
    if (mesh.size() > 40 || !from.has_value() || !to.has_value()) continue;
    const ReshardPlan plan = PlanOf(*from, *to);
    SCOPED_TRACE(Describe(plan));
    CheckByHand(plan);
    ++checked;
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ReshardPlanPropertyTest, MovesEachMissingElementOnceOnOneMesh) {
  CheckOnOneMesh(RandomLayouts(20240817), 600);
}

TEST(ReshardPlanPropertyTest, MovesEachMissingElementOnceAmongEmptyTiles) {
  CheckOnOneMesh(RandomLayouts(20240818, /*makes_empty_parts=*/true), 900);
}

void CheckBetweenMeshes(RandomLayouts random, int64_t count) {
  int64_t checked = 0;
  while (checked < count) {
    // Of one size and of two, numbered by position, by one list and by two that share a part.
    std::vector<MeshAxis> axes = random.Axes(0);
    const int64_t size = Mesh::Create(axes)->size();
    std::vector<MeshAxis> other_axes = random.Axes(random.Below(2) == 0 ? size : 0);
    const int64_t other_size = Mesh::Create(other_axes)->size();
    if (size > 30 || other_size > 30) continue;
    MeshOptions options;
    MeshOptions other_options;
    const int64_t numbering = random.Below(4);
    if (numbering == 1) {
      options.global_ids = random.Shuffled(size, 5);
      if (size == other_size) other_options.global_ids = options.global_ids;
    } else if (numbering == 2) {
      options.global_ids = random.Shuffled(size, 0);
      other_options.global_ids = random.Shuffled(other_size, random.Below(4));
    }
    const Mesh mesh = *Mesh::Create(std::move(axes), std::move(options));
    const Mesh other = *Mesh::Create(std::move(other_axes), std::move(other_options));
    const Shape shape = random.AnyShape();
    const std::optional<Tiling> from = random.Layout(mesh, shape, {});
    const std::optional<Tiling> to = random.Layout(other, shape, {});
    if (!from.has_value() || !to.has_value()) continue;
    const ReshardPlan plan = PlanOf(*from, *to);
    SCOPED_TRACE(Describe(plan));
    CheckByHand(plan);
    ++checked;
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ReshardPlanPropertyTest, MovesEachMissingElementOnceBetweenMeshes) {
  CheckBetweenMeshes(RandomLayouts(7), 800);
}

TEST(ReshardPlanPropertyTest, MovesEachMissingElementOnceBetweenMeshesWithEmptyTiles) {
  CheckBetweenMeshes(RandomLayouts(8, /*makes_empty_parts=*/true), 1200);
}

void CheckPartialSums(RandomLayouts random, int64_t count) {
  int64_t checked = 0;
  while (checked < count) {
    const Mesh mesh = *Mesh::Create(random.Axes(0));
    const Shape shape = random.AnyShape();
    std::vector<std::string> before;
    std::vector<std::string> after;
    for (const MeshAxis& axis : mesh.axes()) {
      if (random.Below(2) == 0) {
        before.push_back(axis.name);
        if (random.Below(3) == 0) after.push_back(axis.name);
      }
    }
    const std::optional<Tiling> from = random.Layout(mesh, shape, before);
    const std::optional<Tiling> to = random.Layout(mesh, shape, after);
    if (mesh.size() > 30 || !from.has_value() || !to.has_value()) continue;
    const ReshardPlan plan = PlanOf(*from, *to);
    SCOPED_TRACE(Describe(plan));
    CheckByHand(plan);
    ++checked;
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ReshardPlanPropertyTest, CollectsEveryPartialSumOnce) {
  CheckPartialSums(RandomLayouts(99), 300);
}

TEST(ReshardPlanPropertyTest, CollectsEveryPartialSumOnceOfTilesSomeOfWhichAreEmpty) {
  CheckPartialSums(RandomLayouts(100, /*makes_empty_parts=*/true), 400);
}

TEST(ReshardPlanTest, MovesNothingWhereTheOnlyHolderStaysTheOnlyHolder) {
  const Mesh mesh = MeshOf("a=2");
  const ReshardPlan plan = PlanOf(TilingOf(mesh, SpecOf("a,-"), {6, 4}, {{0, 6, 6}, {}}),
                                  TilingOf(mesh, SpecOf("-,a"), {6, 4}, {{}, {0, 4, 4}}));
  EXPECT_EQ(plan.pattern(), ReshardPattern::kSlice);
  EXPECT_THAT(plan.steps(), IsEmpty());
  CheckByHand(plan);
}

TEST(ReshardPlanTest, TellsTheCollectiveOfLayoutsWithEmptyTiles) {
  const Mesh mesh = MeshOf("a=4");
  const std::vector<CutPoints> cuts = {{0, 2, 4, 4, 4}, {}};
  const Tiling rows = TilingOf(mesh, SpecOf("a,-"), {4, 4}, cuts);
  EXPECT_EQ(PlanOf(rows, TilingOf(mesh, SpecOf("-,-"), {4, 4})).pattern(),
            ReshardPattern::kAllGather);
  EXPECT_EQ(PlanOf(rows, TilingOf(mesh, SpecOf("-,a"), {4, 4})).pattern(),
            ReshardPattern::kAllToAll);
  EXPECT_EQ(PlanOf(rows, rows).pattern(), ReshardPattern::kNoop);
}

TEST(ReshardPlanTest, TellsTheCollectiveByItsAxes) {
  struct Row {
    std::string_view mesh, from, to;
    ReshardPattern pattern;
    std::vector<ReshardStep> steps;
  };
  using P = ReshardPattern;
  const std::vector<Row> rows = {
      {"tp=4", "tp,-", "tp,-", P::kNoop, {}},
      {"tp=4,x=1", "tp,-", "x+tp,-", P::kNoop, {}},
      {"tp=4", "-,-", "tp,-", P::kSlice, {{P::kSlice, {"tp"}, std::nullopt, 0, 4}}},
      {"tp=4", "tp,-", "-,-", P::kAllGather, {{P::kAllGather, {"tp"}, 0, std::nullopt, 4}}},
      {"dp=2,tp=4",
       "dp+tp,-",
       "-,-",
       P::kAllGather,
       {{P::kAllGather, {"dp", "tp"}, 0, std::nullopt, 8}}},
      {"dp=2,tp=4",
       "dp+tp,-",
       "dp,-",
       P::kAllGather,
       {{P::kAllGather, {"tp"}, 0, std::nullopt, 4}}},
      {"dp=2,tp=4",
       "tp,-",
       "-,dp",
       P::kAllGather,
       {{P::kAllGather, {"tp"}, 0, std::nullopt, 4}, {P::kSlice, {"dp"}, std::nullopt, 1, 2}}},
      {"tp=4", "tp,-", "-,tp", P::kAllToAll, {{P::kAllToAll, {"tp"}, 0, 1, 4}}},
      {"dp=2,tp=4", "dp,tp", "dp+tp,-", P::kAllToAll, {{P::kAllToAll, {"tp"}, 1, 0, 4}}},
      {"dp=4,tp=4", "dp,tp", "tp,dp", P::kPermute, {}},
      {"dp=2,tp=4", "dp+tp,-", "tp+dp,-", P::kPermute, {}},
      {"dp=2,tp=4", "dp+tp,-", "tp,-", P::kGeneral, {}},
      {"dp=2,tp=4,x=2", "tp,x", "-,tp", P::kGeneral, {}},
  };
  for (const Row& row : rows) {
    const ReshardPlan plan = PlanOf(row.mesh, row.from, row.to, {16, 16});
    SCOPED_TRACE(StrCat(row.from, " -> ", row.to));
    EXPECT_EQ(plan.pattern(), row.pattern) << ReshardPatternName(plan.pattern());
    EXPECT_TRUE(
        std::equal(plan.steps().begin(), plan.steps().end(), row.steps.begin(), row.steps.end()));
    CheckByHand(plan);
  }
}

// An axis of 8 that becomes axes of 4 and 2, of which only the minor changes its dimension.
TEST(ReshardPlanTest, TellsTheGroupWhereAFactorOfAnAxisMoves) {
  const Shape shape = {8, 8};
  const ReshardPlan plan = PlanOf(TilingOf(MeshOf("a=8"), SpecOf("a,-"), shape),
                                  TilingOf(MeshOf("b=4,c=2"), SpecOf("b,c"), shape));
  EXPECT_THAT(plan.steps(), ElementsAre(ReshardStep{ReshardPattern::kAllToAll, {"a"}, 0, 1, 2}));
  CheckByHand(plan);
}

TEST(ReshardPlanTest, ReducesUnreducedAxes) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  const Shape shape = {8, 8};
  const Tiling partial = TilingOf(mesh, SpecOf("dp,-", {"tp"}), shape);
  const ReshardPlan scatter = PlanOf(partial, TilingOf(mesh, SpecOf("dp,tp"), shape));
  EXPECT_EQ(scatter.pattern(), ReshardPattern::kReduceScatter);
  EXPECT_THAT(scatter.steps(),
              ElementsAre(ReshardStep{ReshardPattern::kReduceScatter, {"tp"}, std::nullopt, 1, 4}));
  EXPECT_EQ(scatter.DeviceOf(0).need, 3 * 8);
  CheckByHand(scatter);
  const ReshardPlan all = PlanOf(partial, TilingOf(mesh, SpecOf("dp,-"), shape));
  EXPECT_EQ(all.pattern(), ReshardPattern::kAllReduce);
  EXPECT_EQ(all.DeviceOf(0).need, 3 * 32);
  CheckByHand(all);
  const ReshardPlan none = PlanOf(partial, partial);
  EXPECT_EQ(none.pattern(), ReshardPattern::kNoop);
  CheckByHand(none);
}

TEST(ReshardPlanTest, FindsTheLargestLinkBesideUnevenCutsOfWholeDimensions) {
  const Mesh mesh = MeshOf("a=3,b=3");
  CheckByHand(PlanOf(TilingOf(mesh, SpecOf("-,b,-"), {2, 8, 4}, {{}, {0, 2, 5, 8}, {}}),
                     TilingOf(mesh, SpecOf("-,b,a"), {2, 8, 4}, {{}, {0, 3, 5, 8}, {0, 1, 2, 4}})));
}

TEST(ReshardPlanTest, RefusesToMakePartialSums) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  EXPECT_THAT(ReshardPlan::Create(TilingOf(mesh, SpecOf("dp"), {8}),
                                  TilingOf(mesh, SpecOf("dp", {"tp"}), {8})),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidSpec));
  EXPECT_THAT(ReshardPlan::Create(TilingOf(mesh, SpecOf("dp", {"tp"}), {8}),
                                  TilingOf(MeshOf("dp=2,tp=2"), SpecOf("dp", {"tp"}), {8})),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidSpec));
}

TEST(ReshardPlanTest, RefusesSizesBeyond63Bits) {
  const Mesh mesh = MeshOf("dp=4,tp=4");
  const Shape shape = {int64_t{1} << 62};
  EXPECT_THAT(ReshardPlan::Create(TilingOf(mesh, SpecOf("dp", {"tp"}), shape),
                                  TilingOf(mesh, SpecOf("dp"), shape)),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  const ReshardPlan gather =
      PlanOf(TilingOf(mesh, SpecOf("dp"), shape), TilingOf(mesh, SpecOf(""), shape));
  EXPECT_EQ(gather.DeviceOf(5).need, (int64_t{1} << 62) / 4 * 3);
  EXPECT_THAT(gather.Totals(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
}

TEST(ReshardPlanTest, RefusesAnotherShape) {
  const Mesh mesh = MeshOf("dp=2");
  EXPECT_THAT(
      ReshardPlan::Create(TilingOf(mesh, SpecOf("dp"), {8}), TilingOf(mesh, SpecOf("dp"), {8, 1})),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kShapeMismatch));
}

TEST(ReshardPlanTest, SpreadsToNewDevices) {
  const Mesh one = MeshOf("x=1");
  const Mesh eight = MeshOf("x=8");
  const ReshardPlan broadcast =
      PlanOf(TilingOf(one, SpecOf(""), {8}), TilingOf(eight, SpecOf(""), {8}));
  EXPECT_EQ(broadcast.pattern(), ReshardPattern::kBroadcast);
  CheckByHand(broadcast);
  EXPECT_EQ(broadcast.Totals()->max_sent, 7 * 8);
  // To eight that are others altogether.
  const ReshardPlan away =
      PlanOf(TilingOf(eight, SpecOf("x"), {8}),
             TilingOf(MeshOf("x=8", {8, 9, 10, 11, 12, 13, 14, 15}), SpecOf("x"), {8}));
  EXPECT_EQ(away.pattern(), ReshardPattern::kPermute);
  CheckByHand(away);
  EXPECT_EQ(away.Totals()->need, 8);
  // The same devices under other axes keep what they have.
  const ReshardPlan renamed = PlanOf(TilingOf(MeshOf("dp=2,tp=4"), SpecOf("dp+tp"), {8}),
                                     TilingOf(eight, SpecOf("x"), {8}));
  EXPECT_EQ(renamed.pattern(), ReshardPattern::kNoop);
  CheckByHand(renamed);
}

TEST(ReshardPlanTest, MovesNothingOfTensorsWithoutElements) {
  const ReshardPlan plan = PlanOf("dp=2,tp=4", "dp,tp", "tp,dp", {0, 8});
  EXPECT_EQ(plan.pattern(), ReshardPattern::kNoop);
  CheckByHand(plan);
}

TEST(ReshardPlanTest, LetsReplicasTakeTurns) {
  // Half of the tensor lies on each dp row's tp; every device wants all of it in columns.
  const Mesh mesh = MeshOf("dp=4,tp=8");
  const ReshardPlan plan = PlanOf(TilingOf(mesh, SpecOf("tp,-"), {64, 64}),
                                  TilingOf(MeshOf("x=32"), SpecOf("-,x"), {64, 64}));
  std::vector<int64_t> sent(32, 0);
  for (DeviceId device = 0; device < 32; ++device) {
    const absl::StatusOr<std::vector<FetchRegion>> regions = plan.RegionsOf(device);
    ASSERT_THAT(regions, IsOk());
    for (const FetchRegion& region : *regions) {
      sent[static_cast<size_t>(region.source)] += region.elements;
    }
  }
  EXPECT_LE(*std::max_element(sent.begin(), sent.end()),
            2 * *std::min_element(sent.begin(), sent.end()));
}

TEST(ReshardPlanTest, FetchesWithinARowOfTheMesh) {
  const ReshardPlan plan = PlanOf("dp=4,tp=8", "tp", "", {64});
  for (DeviceId device = 0; device < 32; ++device) {
    const absl::StatusOr<std::vector<FetchRegion>> regions = plan.RegionsOf(device);
    ASSERT_THAT(regions, IsOk());
    for (const FetchRegion& region : *regions) {
      EXPECT_EQ(region.source / 8, device / 8);
    }
  }
}

TEST(ReshardPlanTest, BoundsWhatItReturns) {
  const ReshardPlan plan = PlanOf("tp=64", "tp", "", {64});
  EXPECT_THAT(plan.RegionsOf(5, 63), IsOk());
  EXPECT_THAT(plan.RegionsOf(5, 62),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_THAT(plan.LinksOutOf(5, 63), IsOk());
  EXPECT_THAT(plan.LinksOutOf(5, 62),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
}

TEST(ReshardPlanTest, AddsUpForMoreDevicesThanAnyoneHas) {
  // 2^31 devices, without walking them.
  const Shape shape = {1 << 16, 1 << 16};
  struct Row {
    std::string_view from, to;
    int64_t max_need, links;
  };
  const int64_t devices = int64_t{1} << 31;
  const std::vector<Row> rows = {
      // An all-gather of 2^15 devices.
      {"a,b", "a,-", (1 << 16) - 2, devices * ((1 << 15) - 1)},
      {"a,b", "a,b", 0, 0},
      {"-,-", "a,b", 0, 0},
      // Swapping dimensions of different sizes.
      {"a,-", "-,a", (1 << 16) - 1, devices * ((1 << 16) - 1)},
      // Axes that nothing ties together in one dimension: most had nothing of their new part.
      {"a", "b", 2, devices * 2 - devices / (1 << 15) * 1},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(StrCat(row.from, " -> ", row.to));
    const ReshardPlan plan =
        PlanOf("a=65536,b=32768", row.from, row.to, row.from.size() > 1 ? shape : Shape{1 << 16});
    const absl::StatusOr<ReshardTotals> totals = plan.Totals();
    ASSERT_THAT(totals, IsOk());
    EXPECT_EQ(totals->max_need, row.max_need);
    EXPECT_EQ(totals->links, row.links);
    EXPECT_EQ(totals->noop, row.max_need == 0);
    const DeviceReshard last = plan.DeviceOf(devices - 1);
    EXPECT_LE(last.need, totals->max_need);
  }
}

TEST(ReshardPlanTest, StopsWhenCancelledAndBeyondItsBounds) {
  const ReshardPlan walk = PlanOf("a=512,b=512", "a+b", "b+a", {1 << 18});
  EXPECT_THAT(walk.Totals([] { return true; }),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_THAT(walk.Totals(), IsOk());
  const ReshardPlan endless = PlanOf("a=32768,b=32768", "a+b", "b+a", {int64_t{1} << 30});
  EXPECT_THAT(endless.Totals(),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_EQ(endless.DeviceOf(1).need, 1);
}

}  // namespace
}  // namespace shardmesh
