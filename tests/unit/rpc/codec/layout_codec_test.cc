// Reports, reshards and held leaves across the wire: round trips, bounds, and the path of each
// field that is refused.
#include "rpc/codec/layout_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;

// The path of the field at fault.
std::string PathOf(const absl::Status& status) {
  const auto violations = FieldViolationsOf(status);
  return violations.size() == 1 ? violations[0].field : "";
}

PartitionSpec Over(const std::string& axis) { return PartitionSpec({SpecEntry::Axis(axis)}); }

TensorUsage Usage(const std::string& name, int64_t first) {
  return {.name = name,
          .shape = {first, 3},
          .spec = Over("tp"),
          .bytes = first + 1,
          .device_bytes = first + 2,
          .held_bytes = first + 3,
          .wasted_bytes = first + 4};
}

// Each number is another one.
LayoutReport SomeReport() {
  LayoutReport report;
  report.tensors = 1;
  report.parameters = 2;
  report.sharded_parameters = 3;
  report.bytes = 4;
  report.sharded_bytes = 5;
  report.held_bytes = 6;
  report.wasted_bytes = 7;
  report.least_device_bytes = 8;
  report.most_device_bytes = 9;
  report.least_loaded_device = 10;
  report.most_loaded_device = 11;
  report.mean_device_bytes = 12.5;
  report.balance_score = 0.125;
  report.specs = {{.spec = Over("tp"), .tensors = 13, .parameters = 14, .bytes = 15},
                  {.spec = PartitionSpec(), .tensors = 16, .parameters = 17, .bytes = 18}};
  report.worst = {Usage("w0", 20), Usage("w1", 30)};
  report.largest = {Usage("l0", 40)};
  return report;
}

TEST(LayoutCodecTest, ReportsCrossTheWire) {
  for (const LayoutReport& report : {SomeReport(), LayoutReport()}) {
    v1::LayoutReport wire;
    Encode(report, &wire);
    const auto back = Decode(wire);
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->tensors, report.tensors);
    EXPECT_EQ(back->parameters, report.parameters);
    EXPECT_EQ(back->sharded_parameters, report.sharded_parameters);
    EXPECT_EQ(back->bytes, report.bytes);
    EXPECT_EQ(back->sharded_bytes, report.sharded_bytes);
    EXPECT_EQ(back->held_bytes, report.held_bytes);
    EXPECT_EQ(back->wasted_bytes, report.wasted_bytes);
    EXPECT_EQ(back->least_device_bytes, report.least_device_bytes);
    EXPECT_EQ(back->most_device_bytes, report.most_device_bytes);
    EXPECT_EQ(back->least_loaded_device, report.least_loaded_device);
    EXPECT_EQ(back->most_loaded_device, report.most_loaded_device);
    EXPECT_EQ(back->mean_device_bytes, report.mean_device_bytes);
    EXPECT_EQ(back->balance_score, report.balance_score);
    EXPECT_TRUE(back->specs == report.specs);
    EXPECT_TRUE(back->worst == report.worst);
    EXPECT_TRUE(back->largest == report.largest);
  }
}

TEST(LayoutCodecTest, AReportHasTheFirstSpecsUpToItsBound) {
  for (const size_t count : {kMaxReportedSpecs - 1, kMaxReportedSpecs, kMaxReportedSpecs + 1}) {
    LayoutReport report;
    for (size_t i = 0; i < count; ++i) {
      report.specs.push_back({.spec = Over(StrCat("a", i)), .tensors = static_cast<int64_t>(i)});
    }
    v1::LayoutReport wire;
    Encode(report, &wire);
    ASSERT_EQ(wire.specs_size(), static_cast<int>(std::min(count, kMaxReportedSpecs)));
    EXPECT_EQ(wire.specs(0).tensors(), 0);
    EXPECT_EQ(wire.specs(wire.specs_size() - 1).tensors(), wire.specs_size() - 1);
  }
}

TEST(LayoutCodecTest, NamesTheWholePathOfABadSpecOrShapeOfAReport) {
  const auto path_after = [](const std::function<void(v1::LayoutReport*)>& change) {
    v1::LayoutReport wire;
    Encode(SomeReport(), &wire);
    change(&wire);
    const absl::Status status = Decode(wire).status();
    EXPECT_THAT(status, StatusIs(kInvalid));
    return PathOf(status);
  };
  const auto spoil = [](v1::PartitionSpec* spec) {
    while (spec->dimensions_size() < 17) spec->add_dimensions();
  };
  EXPECT_EQ(path_after([&](auto* report) { spoil(report->mutable_specs(1)->mutable_spec()); }),
            "specs[1].spec.dimensions");
  EXPECT_EQ(path_after([&](auto* report) { spoil(report->mutable_worst(1)->mutable_spec()); }),
            "worst[1].spec.dimensions");
  EXPECT_EQ(path_after([&](auto* report) { spoil(report->mutable_largest(0)->mutable_spec()); }),
            "largest[0].spec.dimensions");
  EXPECT_EQ(path_after([](auto* report) { report->mutable_worst(0)->set_shape(1, -1); }),
            "worst[0].shape");
  EXPECT_EQ(path_after([](auto* report) { report->mutable_largest(0)->set_shape(0, -1); }),
            "largest[0].shape");
}

TEST(LayoutCodecTest, PatternsCrossTheWireAndUnknownOnesAreGeneral) {
  std::set<int> numbers;
  for (int i = 0; i <= static_cast<int>(ReshardPattern::kGeneral); ++i) {
    const auto pattern = static_cast<ReshardPattern>(i);
    EXPECT_TRUE(Decode(Encode(pattern)) == pattern) << ReshardPatternName(pattern);
    numbers.insert(Encode(pattern));
  }
  EXPECT_EQ(static_cast<int>(numbers.size()) + 1, v1::ReshardPattern_descriptor()->value_count());
  EXPECT_EQ(numbers.count(v1::RESHARD_PATTERN_UNSPECIFIED), 0u);
  for (const int number : {0, 99}) {
    EXPECT_TRUE(Decode(static_cast<v1::ReshardPattern>(number)) == ReshardPattern::kGeneral);
  }
}

TEST(LayoutCodecTest, StepsOfReshardsCrossTheWire) {
  const ReshardStep steps[] = {
      {.pattern = ReshardPattern::kAllToAll,
       .axes = {"tp", "dp"},
       .from_dim = 0,
       .to_dim = 15,
       .group_size = int64_t{1} << 31},
      {.pattern = ReshardPattern::kSlice,
       .axes = {"tp"},
       .from_dim = std::nullopt,
       .to_dim = 0,
       .group_size = 2},
      {.pattern = ReshardPattern::kAllGather,
       .axes = {},
       .from_dim = 0,
       .to_dim = std::nullopt,
       .group_size = 1},
  };
  for (const ReshardStep& step : steps) {
    v1::ReshardStep wire;
    Encode(step, &wire);
    EXPECT_EQ(wire.has_from_dimension(), step.from_dim.has_value());
    EXPECT_EQ(wire.has_to_dimension(), step.to_dim.has_value());
    EXPECT_TRUE(Decode(wire) == step);
  }
}

TEST(LayoutCodecTest, CriteriaCrossTheWireAndOthersAreRefused) {
  std::set<int> numbers;
  for (const MeshCriterion criterion : {MeshCriterion::kFit, MeshCriterion::kDeviceBytes,
                                        MeshCriterion::kWastedBytes, MeshCriterion::kCorrections}) {
    EXPECT_THAT(Decode(Encode(criterion)), IsOkAndHolds(criterion));
    numbers.insert(Encode(criterion));
  }
  EXPECT_EQ(static_cast<int>(numbers.size()) + 1,
            v1::SearchMeshesHeader::Criterion_descriptor()->value_count());
  for (const int number : {0, 99, -1}) {
    const auto refused = Decode(static_cast<v1::SearchMeshesHeader::Criterion>(number));
    EXPECT_THAT(refused, StatusIs(kInvalid, Reason::kBadField));
    EXPECT_THAT(refused, CarriesFacts(Reason::kBadField, {{fact::kValue, number}}));
  }
}

bool HasMesh(HeldLeaf::Kind kind) { return kind == HeldLeaf::Kind::kSharded; }
bool HasSpec(HeldLeaf::Kind kind) { return HasMesh(kind) || kind == HeldLeaf::Kind::kSpecOnly; }

std::vector<HeldLeaf::Kind> AllLeafKinds() {
  std::vector<HeldLeaf::Kind> kinds;
  for (int i = 0; i <= static_cast<int>(HeldLeaf::Kind::kOther); ++i) {
    kinds.push_back(static_cast<HeldLeaf::Kind>(i));
  }
  return kinds;
}

// Has a mesh and a spec, whatever its kind.
HeldLeaf LeafOf(HeldLeaf::Kind kind) {
  return {.name = "leaf", .kind = kind, .mesh = *Mesh::Parse("dp=2,tp=3"), .spec = Over("tp")};
}

compat::v1::ArrayLeaf WireLeaf(const HeldLeaf& leaf) {
  compat::v1::ArrayLeaf wire;
  Encode(leaf, &wire);
  return wire;
}

absl::StatusOr<HeldLeaf> Back(const compat::v1::ArrayLeaf& wire) {
  return Decode(wire, Compatibility::kDefault);
}

TEST(LeafCodecTest, ALeafOfEachKindCrossesTheWireWithThePartsOfItsKind) {
  std::set<int> numbers;
  for (const HeldLeaf::Kind kind : AllLeafKinds()) {
    SCOPED_TRACE(static_cast<int>(kind));
    const HeldLeaf leaf = LeafOf(kind);
    const compat::v1::ArrayLeaf wire = WireLeaf(leaf);
    numbers.insert(wire.kind());
    EXPECT_EQ(wire.has_mesh(), HasMesh(kind));
    EXPECT_EQ(wire.has_spec(), HasSpec(kind));
    const auto back = Back(wire);
    ASSERT_THAT(back, IsOk());
    EXPECT_EQ(back->name, "leaf");
    EXPECT_EQ(back->kind, kind);
    EXPECT_EQ(back->mesh, HasMesh(kind) ? leaf.mesh : Mesh());
    EXPECT_EQ(back->spec, HasSpec(kind) ? leaf.spec : PartitionSpec());
  }
  EXPECT_EQ(static_cast<int>(numbers.size()) + 1,
            compat::v1::ArrayLeaf::Kind_descriptor()->value_count());
}

TEST(LeafCodecTest, RefusesPartsThatTheKindDoesNotHaveAndRequiresThoseThatItHas) {
  for (const HeldLeaf::Kind kind : AllLeafKinds()) {
    SCOPED_TRACE(static_cast<int>(kind));
    compat::v1::ArrayLeaf wire = WireLeaf(LeafOf(kind));
    wire.has_mesh() ? wire.clear_mesh() : Encode(*Mesh::Parse("tp=2"), wire.mutable_mesh());
    EXPECT_THAT(Back(wire), CarriesFacts(Reason::kBadField, {{fact::kField, "mesh"}}));
    wire = WireLeaf(LeafOf(kind));
    wire.has_spec() ? wire.clear_spec() : Encode(Over("tp"), wire.mutable_spec());
    EXPECT_THAT(Back(wire), StatusIs(kInvalid));
    EXPECT_THAT(Back(wire), CarriesFacts(Reason::kBadField, {{fact::kField, "spec"}}));
  }
}

TEST(LeafCodecTest, RefusesAKindThatIsUnsetOrUnknown) {
  for (const int number : {0, 99}) {
    compat::v1::ArrayLeaf wire;
    wire.set_kind(static_cast<compat::v1::ArrayLeaf::Kind>(number));
    EXPECT_THAT(Back(wire), StatusIs(kInvalid));
    EXPECT_THAT(Back(wire), CarriesFacts(Reason::kBadField, {{fact::kField, "kind"}}));
  }
}

TEST(LeafCodecTest, ANameHasABound) {
  HeldLeaf leaf = LeafOf(HeldLeaf::Kind::kNumber);
  for (const size_t size : {size_t{0}, size_t{1}, kMaxLeafNameBytes}) {
    leaf.name = std::string(size, 'n');
    const auto back = Back(WireLeaf(leaf));
    ASSERT_THAT(back, IsOk()) << size;
    EXPECT_EQ(back->name, leaf.name);
  }
  leaf.name = std::string(kMaxLeafNameBytes + 1, 'n');
  EXPECT_THAT(Back(WireLeaf(leaf)), StatusIs(kInvalid));
  EXPECT_THAT(Back(WireLeaf(leaf)),
              CarriesFacts(Reason::kLimitExceeded,
                           {{fact::kField, "name"}, {fact::kHave, 1025}, {fact::kLimit, 1024}}));
}

TEST(LeafCodecTest, NamesTheFieldOfABadMeshAndOfABadSpec) {
  compat::v1::ArrayLeaf wire = WireLeaf(LeafOf(HeldLeaf::Kind::kSharded));
  while (wire.spec().dimensions_size() < 17) wire.mutable_spec()->add_dimensions();
  EXPECT_THAT(Back(wire), StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(PathOf(Back(wire).status()), "spec.dimensions");
  while (wire.mesh().axes_size() < 17) wire.mutable_mesh()->add_axes();
  EXPECT_THAT(Back(wire), StatusIs(kInvalid, Reason::kLimitExceeded));
  EXPECT_EQ(PathOf(Back(wire).status()), "mesh.axes");
}

TEST(LeafCodecTest, OnlyTheExactModeTakesAMeshThatOnlyJaxTakes) {
  compat::v1::ArrayLeaf wire = WireLeaf(LeafOf(HeldLeaf::Kind::kSharded));
  wire.mutable_mesh()->mutable_axes(0)->set_size(0);
  EXPECT_EQ(PathOf(Back(wire).status()), "mesh.axes");
  EXPECT_THAT(Decode(wire, Compatibility::kExact), IsOk());
}

}  // namespace
}  // namespace shardmesh::rpc
