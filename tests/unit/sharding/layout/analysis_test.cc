// Tests of sharding/layout/analysis.h: sums against every device's tiles, uneven parts, the lists,
// and the original's answers beside ours.
#include "sharding/layout/analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

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
using ::testing::HasSubstr;

using ::shardmesh::test::kInvalid;

Mesh MeshOf(std::string_view text) { return *Mesh::Parse(text); }

PartitionSpec P(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }
SpecEntry Axis(std::string name) { return SpecEntry::Axis(std::move(name)); }

LayoutAnalysis AnalysisOf(const Mesh& mesh) { return *LayoutAnalysis::Create(mesh); }

TEST(TileBytesTest, FillsUpTheLastByte) {
  EXPECT_THAT(TileBytes(0, 4), IsOkAndHolds(0));
  EXPECT_THAT(TileBytes(3, 4), IsOkAndHolds(2));
  EXPECT_THAT(TileBytes(3, 32), IsOkAndHolds(12));
  // The bits alone would not fit.
  EXPECT_THAT(TileBytes(int64_t{1} << 60, 32), IsOkAndHolds(int64_t{1} << 62));
  EXPECT_THAT(TileBytes(int64_t{1} << 61, 32), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(TileBytes(-1, 32), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(TileBytes(1, 0), StatusIs(kInvalid, Reason::kInvalidShape));
}

TEST(LayoutAnalysisTest, AddsUpWhatTheHeaderSays) {
  LayoutAnalysis analysis = AnalysisOf(MeshOf("tp=4"));
  ASSERT_THAT(analysis.Add("w", {8, 8}, 32, P({Axis("tp")})), IsOk());
  ASSERT_THAT(analysis.Add("b", {8}, 32, P({})), IsOk());
  const absl::StatusOr<LayoutReport> report = analysis.Report();
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->tensors, 2);
  EXPECT_EQ(report->parameters, 72);
  EXPECT_EQ(report->sharded_parameters, 64);
  EXPECT_EQ(report->bytes, 288);
  EXPECT_EQ(report->sharded_bytes, 256);
  EXPECT_EQ(report->held_bytes, 384);
  EXPECT_EQ(report->wasted_bytes, 96);
  EXPECT_EQ(report->least_device_bytes, 96);
  EXPECT_EQ(report->most_device_bytes, 96);
  EXPECT_DOUBLE_EQ(report->mean_device_bytes, 96);
  EXPECT_DOUBLE_EQ(report->balance_score, 1);
  EXPECT_THAT(report->specs,
              ElementsAre(SpecUsage{P({Axis("tp")}), 1, 64, 256}, SpecUsage{P({}), 1, 8, 32}));
  EXPECT_THAT(report->worst, ElementsAre(TensorUsage{"b", {8}, P({}), 32, 32, 128, 96}));
  EXPECT_EQ(report->largest.front().name, "w");
}

TEST(LayoutAnalysisTest, ReportsNothingOfNothing) {
  const absl::StatusOr<LayoutReport> report = AnalysisOf(MeshOf("dp=2,tp=3")).Report();
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->held_bytes, 0);
  EXPECT_DOUBLE_EQ(report->balance_score, 1);
  EXPECT_DOUBLE_EQ(report->mean_device_bytes, 0);
}

TEST(LayoutAnalysisTest, CountsATensorAsShardedIfItIs) {
  // The original goes by whether the spec is P().
  const Mesh mesh = MeshOf("dp=2,tp=4,x=1");
  LayoutAnalysis analysis = AnalysisOf(mesh);
  const std::vector<AnalyzedTensor> tensors = {
      {"none", {8, 8}, P({SpecEntry::None(), SpecEntry::None()})},
      {"one device", {8, 8}, P({Axis("x")})},
      {"dp", {8, 8}, P({Axis("dp")})},
  };
  for (const AnalyzedTensor& tensor : tensors) {
    ASSERT_THAT(analysis.Add(tensor.name, tensor.shape, 32, tensor.spec), IsOk());
  }
  EXPECT_EQ(analysis.Report()->sharded_parameters, 64);
  EXPECT_EQ(AnalyzeAsOriginal(tensors, mesh)->sharded_parameters, (PythonCount{192, false}));
}

TEST(LayoutAnalysisTest, TakesTuplesThatTheOriginalCannotLookUp) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  const PartitionSpec tuple = P({SpecEntry::Axes({"dp", "tp"})});
  LayoutAnalysis analysis = AnalysisOf(mesh);
  ASSERT_THAT(analysis.Add("w", {16}, 32, tuple), IsOk());
  EXPECT_EQ(analysis.Report()->most_device_bytes, 8);
  const absl::StatusOr<ExactAnalysis> exact = AnalyzeAsOriginal({{"w", {16}, tuple}}, mesh);
  EXPECT_THAT(exact, StatusIs(kInvalid, Reason::kAxisNotInMesh));
  EXPECT_EQ(PythonTypeOf(exact.status()), "KeyError");
}

TEST(LayoutAnalysisTest, CountsScalarsAsFloatsOnlyAsTheOriginal) {
  const Mesh mesh = MeshOf("dp=2");
  const std::vector<AnalyzedTensor> tensors = {{"s", {}, P({})}, {"w", {4}, P({Axis("dp")})}};
  const absl::StatusOr<ExactAnalysis> exact = AnalyzeAsOriginal(tensors, mesh);
  ASSERT_THAT(exact, IsOk());
  EXPECT_EQ(exact->total_parameters, (PythonCount{5, true}));
  EXPECT_EQ(exact->sharded_parameters, (PythonCount{4, false}));
  LayoutAnalysis analysis = AnalysisOf(mesh);
  for (const AnalyzedTensor& tensor : tensors) {
    ASSERT_THAT(analysis.Add(tensor.name, tensor.shape, 32, tensor.spec), IsOk());
  }
  EXPECT_EQ(analysis.Report()->parameters, 5);
}

TEST(LayoutAnalysisTest, ListsTheTenWorstByWasteAndTheTenLargestByTile) {
  LayoutAnalysis analysis = AnalysisOf(MeshOf("dp=2,tp=4"));
  for (int64_t i = 1; i <= 30; ++i) {
    ASSERT_THAT(analysis.Add(StrCat("replicated", i), {i}, 8, P({})), IsOk());
    ASSERT_THAT(
        analysis.Add(StrCat("sharded", i), {i * 1000 * 8}, 8, P({SpecEntry::Axes({"tp", "dp"})})),
        IsOk());
  }
  // Equal ones go by name.
  ASSERT_THAT(analysis.Add("a", {30}, 8, P({})), IsOk());
  const absl::StatusOr<LayoutReport> report = analysis.Report();
  ASSERT_THAT(report, IsOk());
  ASSERT_EQ(report->worst.size(), 10u);
  EXPECT_EQ(report->worst[0].name, "a");
  EXPECT_EQ(report->worst[1].name, "replicated30");
  EXPECT_EQ(report->worst[9].name, "replicated22");
  EXPECT_EQ(report->worst[1].wasted_bytes, 7 * 30);
  ASSERT_EQ(report->largest.size(), 10u);
  EXPECT_EQ(report->largest[0].name, "sharded30");
  EXPECT_EQ(report->largest[0].device_bytes, 30'000);
}

// Random tensors, cut evenly and not, summed device by device.
TEST(LayoutAnalysisPropertyTest, EqualsTheSumOverEveryDevicesTiles) {
  std::mt19937 random(11);
  const auto below = [&random](int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const Mesh mesh =
        *Mesh::Create({{"a", 1 + below(3)}, {"b", 1 + below(4)}, {"c", 1 + below(3)}});
    LayoutAnalysis analysis = AnalysisOf(mesh);
    std::vector<int64_t> held(static_cast<size_t>(mesh.size()), 0);
    const int64_t tensors = below(6);
    for (int64_t tensor = 0; tensor < tensors; ++tensor) {
      std::vector<std::vector<AxisName>> axes(2);
      for (const MeshAxis& axis : mesh.axes()) {
        if (below(3) > 0) axes[static_cast<size_t>(below(2))].push_back(axis.name);
      }
      Shape shape;
      std::vector<CutPoints> cuts(2);
      for (size_t dim = 0; dim < 2; ++dim) {
        int64_t parts = 1;
        for (const AxisName& name : axes[dim]) {
          parts *= mesh.axes()[static_cast<size_t>(*mesh.FindAxis(*name))].size;
        }
        if (below(2) == 0) {
          shape.push_back(parts * below(4));
          continue;
        }
        cuts[dim] = {0};
        for (int64_t part = 0; part < parts; ++part) {
          cuts[dim].push_back(cuts[dim].back() + 1 + below(3));
        }
        shape.push_back(cuts[dim].back());
      }
      const int64_t bits = below(2) == 0 ? 4 : 16;
      const absl::StatusOr<Tiling> tiling = Tiling::Create(
          mesh, P({SpecEntry::Axes(axes[0]), SpecEntry::Axes(axes[1])}), shape, cuts);
      ASSERT_THAT(tiling, IsOk());
      ASSERT_THAT(analysis.Add(StrCat(tensor), *tiling, bits), IsOk());
      for (DeviceId device = 0; device < mesh.size(); ++device) {
        held[static_cast<size_t>(device)] +=
            *TileBytes(tiling->TileOf(device).element_count(), bits);
      }
    }
    const absl::StatusOr<LayoutReport> report = analysis.Report();
    ASSERT_THAT(report, IsOk());
    int64_t sum = 0;
    for (const int64_t bytes : held) sum += bytes;
    const auto [least, most] = std::minmax_element(held.begin(), held.end());
    EXPECT_EQ(report->held_bytes, sum);
    EXPECT_EQ(report->least_device_bytes, *least);
    EXPECT_EQ(report->most_device_bytes, *most);
    EXPECT_EQ(held[static_cast<size_t>(report->least_loaded_device)], *least);
    EXPECT_EQ(held[static_cast<size_t>(report->most_loaded_device)], *most);
    EXPECT_DOUBLE_EQ(report->mean_device_bytes,
                     static_cast<double>(sum) / static_cast<double>(mesh.size()));
    if (*most > 0) {
      EXPECT_DOUBLE_EQ(report->balance_score,
                       static_cast<double>(*least) / static_cast<double>(*most));
    }
  }
}

TEST(LayoutAnalysisTest, AddsNothingOfWhatItRefuses) {
  const Mesh mesh = MeshOf("dp=2,tp=4");
  LayoutAnalysis analysis = AnalysisOf(mesh);
  EXPECT_THAT(analysis.Add("w", {7}, 32, P({Axis("dp")})),
              StatusIs(kInvalid, Reason::kNotDivisible));
  EXPECT_THAT(analysis.Add("w", {7}, 32, P({Axis("dp")})).message(), HasSubstr("w: "));
  EXPECT_THAT(analysis.Add("w", {7}, 0, P({})), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(analysis.Add("w", {-7}, 8, P({})), StatusIs(kInvalid, Reason::kInvalidShape));
  EXPECT_THAT(analysis.Add("w", *Tiling::Create(MeshOf("dp=2"), P({}), {8}), 8),
              StatusIs(kInvalid, Reason::kMeshMismatch));
  // One copy fits, eight do not.
  EXPECT_THAT(analysis.Add("w", {int64_t{1} << 61}, 8, P({})),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  EXPECT_EQ(analysis.Report()->tensors, 0);
  EXPECT_EQ(analysis.Report()->bytes, 0);
}

TEST(LayoutAnalysisTest, NeedsAMesh) {
  const absl::Status status = LayoutAnalysis::Create(Mesh()).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
  EXPECT_EQ(PythonTypeOf(status), "AssertionError");
  EXPECT_THAT(AnalyzeAsOriginal({}, Mesh()),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoMesh));
}

TEST(LayoutAnalysisTest, BoundsTheSumsOfUnevenParts) {
  const Mesh mesh = MeshOf("a=4096,b=2048");
  const auto uneven = [](int64_t parts) {
    CutPoints points = {0};
    for (int64_t part = 0; part < parts; ++part) points.push_back(points.back() + 1 + part % 2);
    return points;
  };
  const CutPoints a = uneven(4096);
  const CutPoints b = uneven(2048);
  const absl::StatusOr<Tiling> both =
      Tiling::Create(mesh, P({Axis("a"), Axis("b")}), {a.back(), b.back()}, {a, b});
  ASSERT_THAT(both, IsOk());
  LayoutAnalysis analysis = AnalysisOf(mesh);
  EXPECT_THAT(analysis.Add("w", *both, 8),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded));
  // Apart they cost the sum.
  ASSERT_THAT(analysis.Add("a", *Tiling::Create(mesh, P({Axis("a")}), {a.back()}, {a}), 8), IsOk());
  ASSERT_THAT(analysis.Add("b", *Tiling::Create(mesh, P({Axis("b")}), {b.back()}, {b}), 8), IsOk());
  const absl::StatusOr<LayoutReport> report = analysis.Report();
  ASSERT_THAT(report, IsOk());
  EXPECT_EQ(report->least_device_bytes, 2);
  EXPECT_EQ(report->most_device_bytes, 4);
  EXPECT_EQ(report->most_loaded_device, 2048 + 1);
  EXPECT_DOUBLE_EQ(report->balance_score, 0.5);
}

}  // namespace
}  // namespace shardmesh
