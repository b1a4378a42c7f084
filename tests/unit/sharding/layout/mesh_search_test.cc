// Tests of sharding/layout/mesh_search.h: every candidate against correction and analysis, the
// order, the bounds.
#include "sharding/layout/mesh_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sharding/correction.h"
#include "sharding/layout/analysis.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;

using ::shardmesh::test::kInvalid;

PartitionSpec P(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }
SpecEntry Axis(std::string name) { return SpecEntry::Axis(std::move(name)); }

MeshSearchOptions Options(int64_t devices, std::vector<SearchAxis> axes) {
  MeshSearchOptions options;
  options.device_count = devices;
  options.axes = std::move(axes);
  options.keep = kMaxKeptCandidates;
  return options;
}

TEST(MeshSearchTest, CountsOrderedFactorizations) {
  EXPECT_THAT(CountMeshes(Options(8, {{"dp"}, {"tp"}})), IsOkAndHolds(4));
  EXPECT_THAT(CountMeshes(Options(4096, {{"a"}, {"b"}, {"c"}, {"d"}, {"e"}})), IsOkAndHolds(1820));
  EXPECT_THAT(CountMeshes(Options(12, {{"a"}, {"b"}, {"c"}})), IsOkAndHolds(18));
  EXPECT_THAT(CountMeshes(Options(1, {{"a"}, {"b"}})), IsOkAndHolds(1));
  EXPECT_THAT(CountMeshes(Options(8, {{"a", 2}, {"b", 1, 2}})), IsOkAndHolds(2));
  EXPECT_THAT(CountMeshes(Options(8, {{"a", 2, 2}, {"b"}})), IsOkAndHolds(1));
  EXPECT_THAT(CountMeshes(Options(8, {{"a", 3, 3}, {"b"}})), IsOkAndHolds(0));
}

TEST(MeshSearchTest, TriesEachMeshOnceLargerSizesFirst) {
  const absl::StatusOr<MeshSearchResult> result = SearchMeshes({}, Options(8, {{"dp"}, {"tp"}}));
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->evaluated, 4);
  std::vector<std::vector<int64_t>> sizes;
  for (const MeshCandidate& candidate : result->best) sizes.push_back(candidate.sizes);
  EXPECT_THAT(sizes, ElementsAre(ElementsAre(8, 1), ElementsAre(4, 2), ElementsAre(2, 4),
                                 ElementsAre(1, 8)));
}

TEST(MeshSearchPropertyTest, JudgesAsCorrectionAndAnalysisDo) {
  std::mt19937 random(3);
  const auto below = [&random](int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random);
  };
  const std::vector<std::string> names = {"dp", "fsdp", "tp", "nope"};
  for (int round = 0; round < 100; ++round) {
    TensorGroups groups;
    const int64_t tensors = 1 + below(8);
    for (int64_t tensor = 0; tensor < tensors; ++tensor) {
      std::vector<SpecEntry> entries;
      const int64_t length = below(4);
      for (int64_t dim = 0; dim < length; ++dim) {
        std::vector<AxisName> axes;
        while (below(2) == 0 && axes.size() < 3)
          axes.push_back(names[static_cast<size_t>(below(4))]);
        entries.push_back(below(12) == 0 ? SpecEntry::Unconstrained()
                                         : SpecEntry::Axes(std::move(axes)));
      }
      std::vector<std::string> unreduced;
      if (below(8) == 0) unreduced.push_back("dp");
      Shape shape;
      const int64_t rank = below(4);
      for (int64_t dim = 0; dim < rank; ++dim) shape.push_back(below(3) == 0 ? below(7) : 24);
      ASSERT_THAT(groups.Add(PartitionSpec(std::move(entries), std::move(unreduced)), shape,
                             below(2) == 0 ? 4 : 32, 1 + below(3)),
                  IsOk());
    }
    MeshSearchOptions options = Options(24, {{"dp"}, {"fsdp", 1, 4}, {"tp", 2}});
    options.device_memory_bytes = 1000 + below(20'000);
    const absl::StatusOr<MeshSearchResult> result = SearchMeshes(groups.groups(), options);
    ASSERT_THAT(result, IsOk());
    EXPECT_EQ(result->evaluated, static_cast<int64_t>(result->best.size()));
    int64_t fitting = 0;
    for (const MeshCandidate& candidate : result->best) {
      const Mesh mesh = *Mesh::Create(
          {{"dp", candidate.sizes[0]}, {"fsdp", candidate.sizes[1]}, {"tp", candidate.sizes[2]}});
      EXPECT_EQ(mesh.size(), 24);
      LayoutAnalysis analysis = *LayoutAnalysis::Create(mesh);
      int64_t corrected = 0;
      int64_t unplaceable = 0;
      for (const TensorGroup& group : groups.groups()) {
        const absl::StatusOr<CorrectionResult> correction = Correct(group.spec, group.shape, mesh);
        if (!correction.ok()) {
          EXPECT_THAT(correction, StatusIs(kInvalid, Reason::kDuplicateAxis));
          unplaceable += group.count;
        } else {
          corrected += correction->corrections.empty() ? 0 : group.count;
        }
        for (int64_t i = 0; i < group.count; ++i) {
          ASSERT_THAT(analysis.Add("w", group.shape, group.bits_per_element,
                                   correction.ok() ? correction->effective : PartitionSpec()),
                      IsOk());
        }
      }
      const absl::StatusOr<LayoutReport> report = analysis.Report();
      ASSERT_THAT(report, IsOk());
      EXPECT_EQ(candidate.device_bytes, report->most_device_bytes);
      EXPECT_EQ(candidate.wasted_bytes, report->wasted_bytes);
      EXPECT_EQ(candidate.sharded_bytes, report->sharded_bytes);
      EXPECT_EQ(candidate.unplaceable_tensors, unplaceable);
      if (unplaceable == 0) {
        EXPECT_EQ(candidate.corrected_tensors, corrected);
      }
      EXPECT_EQ(candidate.fits,
                unplaceable == 0 && candidate.device_bytes <= *options.device_memory_bytes);
      fitting += candidate.fits ? 1 : 0;
    }
    EXPECT_EQ(result->fitting, fitting);
    EXPECT_TRUE(std::is_sorted(
        result->best.begin(), result->best.end(),
        [](const MeshCandidate& a, const MeshCandidate& b) {
          return std::make_tuple(!a.fits, a.device_bytes, a.wasted_bytes, a.corrected_tensors) <
                 std::make_tuple(!b.fits, b.device_bytes, b.wasted_bytes, b.corrected_tensors);
        }));
    // Fewer are the first ones.
    options.keep = 3;
    const absl::StatusOr<MeshSearchResult> few = SearchMeshes(groups.groups(), options);
    ASSERT_THAT(few, IsOk());
    EXPECT_EQ(few->evaluated, result->evaluated);
    EXPECT_TRUE(std::equal(few->best.begin(), few->best.end(), result->best.begin()));
    EXPECT_EQ(few->best.size(), std::min<size_t>(3, result->best.size()));
  }
}

TEST(MeshSearchTest, RanksByWhatItIsTold) {
  TensorGroups groups;
  ASSERT_THAT(groups.Add(P({Axis("tp")}), {6}, 8), IsOk());
  ASSERT_THAT(groups.Add(P({Axis("dp")}), {64}, 8), IsOk());
  MeshSearchOptions options = Options(4, {{"dp"}, {"tp"}});
  options.keep = 1;
  EXPECT_THAT(SearchMeshes(groups.groups(), options)->best.front().sizes, ElementsAre(4, 1));
  options.ranking = {MeshCriterion::kWastedBytes};
  EXPECT_THAT(SearchMeshes(groups.groups(), options)->best.front().sizes, ElementsAre(4, 1));
  ASSERT_THAT(groups.Add(P({Axis("tp")}), {1000}, 8), IsOk());
  EXPECT_THAT(SearchMeshes(groups.groups(), options)->best.front().sizes, ElementsAre(1, 4));
  options.ranking = {MeshCriterion::kCorrections, MeshCriterion::kDeviceBytes};
  EXPECT_THAT(SearchMeshes(groups.groups(), options)->best.front().sizes, ElementsAre(2, 2));
}

TEST(MeshSearchTest, GroupsTensorsThatAreAlike) {
  TensorGroups groups;
  ASSERT_THAT(groups.Add(P({Axis("tp")}), {6}, 8), IsOk());
  ASSERT_THAT(groups.Add(P({Axis("tp")}), {6}, 16), IsOk());
  ASSERT_THAT(groups.Add(P({Axis("tp")}), {6}, 8, 4), IsOk());
  ASSERT_THAT(groups.Add(P({Axis("tp"), {}}), {6}, 8), IsOk());
  ASSERT_EQ(groups.groups().size(), 3u);
  EXPECT_EQ(groups.groups()[0].count, 5);
  EXPECT_THAT(groups.Add(P({Axis("tp")}), {6}, 8, kMaxGroupCount),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(groups.Add(P({}), {6}, 8, 0), StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(groups.groups()[0].count, 5);
  EXPECT_THAT(groups.Add(P({}), {6}, 0), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(groups.Add(P({}), {-6}, 8), StatusIs(kInvalid, Reason::kInvalidShape));
}

TEST(MeshSearchTest, RefusesWhatHasNoCandidatesOrTooMany) {
  const auto search = [](const MeshSearchOptions& options) {
    return SearchMeshes({}, options).status();
  };
  EXPECT_THAT(search(Options(0, {{"a"}})), StatusIs(kInvalid, Reason::kInvalidMesh));
  EXPECT_THAT(search(Options(8, {})), StatusIs(kInvalid, Reason::kInvalidMesh));
  EXPECT_THAT(search(Options(8, {{""}})), StatusIs(kInvalid, Reason::kInvalidMesh));
  EXPECT_THAT(search(Options(8, {{"a"}, {"a"}})), StatusIs(kInvalid, Reason::kDuplicateAxis));
  EXPECT_THAT(search(Options(8, {{"a", 0}})), StatusIs(kInvalid, Reason::kInvalidMesh));
  EXPECT_THAT(search(Options(8, {{"a", 4, 2}})), StatusIs(kInvalid, Reason::kInvalidMesh));
  EXPECT_THAT(search(Options(8, {{"a", 3, 3}})), StatusIs(kInvalid, Reason::kInvalidMesh));
  EXPECT_THAT(search(Options(kMaxMeshDevices + 1, {{"a"}})),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_THAT(search(Options(8, std::vector<SearchAxis>(17, {"a"}))),
              StatusIs(kInvalid, Reason::kLimitExceeded));
  std::vector<SearchAxis> many;
  for (char name = 'a'; name < 'a' + 16; ++name) many.push_back({std::string(1, name)});
  EXPECT_THAT(search(Options(int64_t{1} << 31, many)), StatusIs(kInvalid, Reason::kLimitExceeded));
  MeshSearchOptions options = Options(8, {{"a"}});
  options.keep = 0;
  EXPECT_THAT(search(options), StatusIs(kInvalid, Reason::kLimitExceeded));
  options.keep = kMaxKeptCandidates + 1;
  EXPECT_THAT(search(options), StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(MeshSearchTest, StopsWhenCancelled) {
  MeshSearchOptions options = Options(4096, {{"a"}, {"b"}, {"c"}});
  int64_t asked = 0;
  options.is_cancelled = [&asked] { return ++asked == 5; };
  EXPECT_THAT(SearchMeshes({}, options),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_EQ(asked, 5);
}

TEST(MeshSearchTest, RefusesSumsBeyond63Bits) {
  const TensorGroup huge = {P({}), {int64_t{1} << 60}, 8, 16};
  EXPECT_THAT(SearchMeshes({huge}, Options(4, {{"a"}})),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  const TensorGroup most = {P({}), {int64_t{1} << 61}, 8, kMaxGroupCount};
  EXPECT_THAT(SearchMeshes({most, most}, Options(kMaxMeshDevices, {{"a"}})),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  // A repeated axis multiplies to anything and divides nothing.
  const TensorGroup repeated = {P({SpecEntry::Axes({"a", "a", "a", "a"})}), {1 << 20}, 8, 1};
  const auto result = SearchMeshes({repeated}, Options(int64_t{1} << 20, {{"a"}}));
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->best.front().corrected_tensors, 1);
}

TEST(MeshSearchTest, NamesItsCriteria) {
  for (const MeshCriterion criterion : {MeshCriterion::kFit, MeshCriterion::kDeviceBytes,
                                        MeshCriterion::kWastedBytes, MeshCriterion::kCorrections}) {
    EXPECT_EQ(MeshCriterionFromName(MeshCriterionName(criterion)), criterion);
  }
  EXPECT_EQ(MeshCriterionFromName("speed"), std::nullopt);
}

}  // namespace
}  // namespace shardmesh
