// PutPlan: what a put makes of its tensors, and why it is refused.
#include "server/steps/put_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "server/resolve/tree_resolver.h"
#include "server/state/array_record.h"
#include "sharding/presets.h"
#include "sharding/rules/rule_set.h"
#include "shardmesh/store/v1/store.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/unit/server/steps/keeping_fill.h"
#include "tests/unit/server/steps/ready_cluster.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string FieldOf(const absl::Status& status) {
  const auto violations = rpc::FieldViolationsOf(status);
  return violations.empty() ? "" : violations.front().field;
}

class PutPlanTest : public ReadyCluster {
 protected:
  ~PutPlanTest() override { sequencer_.reset(); }

  PutPlan NewPlan() {
    return PutPlan({.clock = &clock_,
                    .definition_store = definition_store_.get(),
                    .membership = &members_,
                    .registry = registry_.get(),
                    .endpoints = &endpoints_,
                    .sessions = &sessions_,
                    .transfers = &transfers_,
                    .fill = &fill_,
                    .term = 7});
  }
  PutHeader Header() const { return {.request_id = "r", .session_id = session_, .mesh_id = "m"}; }
  absl::Status TakeHeader(PutPlan* plan, PutHeader header) {
    return plan->TakeHeader(
        std::move(header), caller_, [this](const Definitions&) { return rules_; },
        [this](const Definitions&) { return profile_; });
  }
  static PutTensor Tensor(const std::string& name) {
    return {.name = name, .shape = {8, 4}, .spec = OverX()};
  }
  // The same of a matrix, as correction writes it.
  static PartitionSpec RowsOverX() { return PartitionSpec({SpecEntry::Axis("x"), SpecEntry()}); }
  static PartitionSpec OverX() { return PartitionSpec({SpecEntry::Axis("x")}); }
  // A plan that has taken the header and one tensor.
  absl::Status TakeOne(PutPlan* plan, PutTensor tensor, bool strict = false) {
    PutHeader header = Header();
    header.strict = strict;
    EXPECT_THAT(TakeHeader(plan, header), IsOk());
    return plan->TakeTensor(std::move(tensor));
  }

  KeepingFill fill_;
  OperationTable operations_{&clock_, &sessions_};
  Transfers transfers_{&clock_, registry_.get(), &sessions_, sequencer_.get(), &operations_};
  absl::StatusOr<std::optional<RuleSetDefinition>> rules_{std::nullopt};
  absl::StatusOr<PartitionAxis> profile_{PartitionAxis()};
};

TEST_F(PutPlanTest, BeginsATransferOfAllTensors) {
  PutPlan plan = NewPlan();
  EXPECT_FALSE(plan.has_header());
  ASSERT_THAT(TakeHeader(&plan, Header()), IsOk());
  EXPECT_TRUE(plan.has_header());
  ASSERT_THAT(plan.TakeTensor(Tensor("a")), IsOk());
  ASSERT_THAT(plan.TakeTensor(Tensor("")), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  ASSERT_THAT(put->items, SizeIs(2));
  EXPECT_EQ(put->items[0].name, "a");
  const ArrayDescriptor& array = put->items[0].definition.descriptor;
  EXPECT_EQ(array.mesh_id, "m");
  EXPECT_EQ(array.mesh, mesh_);
  EXPECT_EQ(array.spec, RowsOverX());
  EXPECT_THAT(put->corrections, ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_THAT(put->devices, SizeIs(2));
  EXPECT_EQ(put->session_id, session_);
  EXPECT_EQ(put->expire_time, clock_.Now() + Transfers::kTimeout);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TransferProgress progress,
                                 transfers_.Progress(put->transfer_id));
  EXPECT_EQ(progress.total_tiles, 4);
  EXPECT_EQ(registry_->CountArrays().staging, 2);
}

TEST_F(PutPlanTest, APutOfACheckpointIsALoadForThoseWhoSeeIt) {
  for (const std::string& checkpoint : {std::string(), std::string("/models/m.safetensors")}) {
    PutPlan plan = NewPlan();
    PutHeader header = Header();
    header.checkpoint = checkpoint;
    ASSERT_THAT(TakeHeader(&plan, header), IsOk());
    ASSERT_THAT(plan.TakeTensor(Tensor("a")), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const TransferProgress progress,
                                   transfers_.Progress(put->transfer_id));
    const OperationProgress operation = AsOperation(progress);
    EXPECT_EQ(operation.kind, checkpoint.empty() ? OperationKind::kPut : OperationKind::kLoad);
    EXPECT_EQ(operation.description, checkpoint.empty()
                                         ? "put of 1 tensor on mesh \"m\""
                                         : "load of /models/m.safetensors: 1 tensor on mesh \"m\"");
  }
}

TEST_F(PutPlanTest, RefusesAMeshThatIsNotThere) {
  PutPlan plan = NewPlan();
  PutHeader header = Header();
  header.mesh_id = "none";
  EXPECT_THAT(TakeHeader(&plan, header), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(plan.has_header());
}

TEST_F(PutPlanTest, RefusesAVersionOfAMesh) {
  PutPlan plan = NewPlan();
  PutHeader header = Header();
  header.mesh_id = "m@1";
  const absl::Status refused = TakeHeader(&plan, header);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(refused), "header.mesh");
}

TEST_F(PutPlanTest, RefusesASessionThatIsGoneAndAMeshThatIsNotReady) {
  PutPlan plan = NewPlan();
  PutHeader header = Header();
  header.session_id = "none";
  EXPECT_THAT(TakeHeader(&plan, header),
              StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  endpoints_.ready = WithReason(absl::FailedPreconditionError("away"), Reason::kMeshIncomplete);
  EXPECT_THAT(TakeHeader(&plan, Header()),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
}

TEST_F(PutPlanTest, ErrorsOfRulesNameTheirField) {
  PutPlan plan = NewPlan();
  rules_ = rpc::BadField("name", "is wrong");
  const absl::Status refused = TakeHeader(&plan, Header());
  EXPECT_EQ(FieldOf(refused), "header.rule_set.name");
}

TEST_F(PutPlanTest, RulesGiveTheSpecOfATensorThatHasNone) {
  auto rules = RuleSet::Create({{.pattern = "kernel", .spec = OverX()}});
  ASSERT_THAT(rules, IsOk());
  rules_ = RuleSetDefinition{.rules = *std::move(rules)};
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("dense/kernel");
  tensor.spec = std::nullopt;
  ASSERT_THAT(TakeOne(&plan, tensor), IsOk());
  // A tensor that no rule can match needs a spec.
  tensor.name = "";
  const absl::Status refused = plan.TakeTensor(tensor);
  EXPECT_EQ(FieldOf(refused), "spec");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  EXPECT_EQ(put->items[0].definition.descriptor.spec, RowsOverX());
}

TEST_F(PutPlanTest, AxesAreResolvedAsATreeResolvesThem) {
  auto profile = PartitionAxis::Create({{"batch_axis", AxisValue::Name("x")}});
  ASSERT_THAT(profile, IsOk());
  profile_ = *profile;
  const std::vector<AxisValue> axes = {AxisValue::Name("__BATCH__"), AxisValue::None()};
  PutHeader header = Header();
  header.mode = RuntimeMode::kPrefill;
  PutPlan plan = NewPlan();
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  PutTensor tensor = Tensor("a");
  tensor.spec = std::nullopt;
  tensor.axes = axes;
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  tensor.name = "";  // needs no rule, and hence no name
  tensor.shape = {7, 4};
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());

  TreeQuestion question;
  question.profile = *profile;
  question.mode = header.mode;
  question.mesh = mesh_;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto tree, TreeResolver::Create(std::move(question)));
  const Shape even = {8, 4};
  const Shape odd = {7, 4};
  const std::vector<TreeTensor> tensors = {{.name = "a", .shape = even, .axes = &axes},
                                           {.name = "b", .shape = odd, .axes = &axes}};
  ASSERT_THAT(tree->Add(tensors), IsOk());
  ASSERT_THAT(tree->specs(), SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(put->items[i].definition.descriptor.spec, tree->specs()[i].effective);
    EXPECT_EQ(put->corrections[i].size(), tree->specs()[i].corrections.size());
  }
  EXPECT_EQ(put->items[0].definition.descriptor.spec, RowsOverX());
  EXPECT_THAT(put->corrections, ElementsAre(IsEmpty(), SizeIs(1)));
}

TEST_F(PutPlanTest, APresetBringsAxesAndAMode) {
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("a");
  tensor.spec = std::nullopt;
  tensor.shape = {8, 4, 2, 2};
  tensor.preset = Presets().front().name;
  ASSERT_THAT(TakeOne(&plan, tensor), IsOk());
  tensor.name = "b";
  tensor.preset = "NoSuchSharding";
  const absl::Status refused = plan.TakeTensor(tensor);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownPreset));
  EXPECT_EQ(FieldOf(refused), "preset");
}

TEST_F(PutPlanTest, ErrorsOfAxesAndOfTheProfileNameTheirFields) {
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("a");
  tensor.spec = std::nullopt;
  tensor.axes = {{AxisValue::Name("__BATCHES__"), AxisValue::None()}};
  const absl::Status refused = TakeOne(&plan, tensor);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kUnknownAxis));
  EXPECT_EQ(FieldOf(refused), "axes");
  PutPlan other = NewPlan();
  profile_ = rpc::BadField("name", "is wrong");
  EXPECT_EQ(FieldOf(TakeHeader(&other, Header())), "header.profile.name");
}

TEST_F(PutPlanTest, ValidatesAndBeginsNothing) {
  AddArray(Descriptor(), "taken");
  PutHeader header = Header();
  header.validate_only = true;
  PutPlan plan = NewPlan();
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  ASSERT_THAT(plan.TakeTensor(Tensor("a")), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  EXPECT_EQ(put->transfer_id, "");
  EXPECT_THAT(put->devices, SizeIs(2));
  EXPECT_EQ(put->items[0].definition.descriptor.spec, RowsOverX());
  EXPECT_EQ(registry_->CountArrays().staging, 0);
  EXPECT_EQ(transfers_.LivePuts().puts, 0);

  PutPlan other = NewPlan();
  ASSERT_THAT(TakeHeader(&other, header), IsOk());
  PutTensor tensor = Tensor("taken");
  tensor.expected_version = 0;
  ASSERT_THAT(other.TakeTensor(tensor), IsOk());
  EXPECT_THAT(other.Begin(), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
}

TEST_F(PutPlanTest, ValidatesAllThatBeginningChecks) {
  // Returns how the same put is refused when it is validated and when it begins.
  const auto refusals = [this](const std::string& name) {
    std::vector<absl::Status> refused;
    for (const bool validate_only : {true, false}) {
      PutHeader header = Header();
      header.validate_only = validate_only;
      PutPlan plan = NewPlan();
      EXPECT_THAT(TakeHeader(&plan, header), IsOk());
      EXPECT_THAT(plan.TakeTensor(Tensor(name)), IsOk());
      refused.push_back(plan.Begin().status());
    }
    return refused;
  };
  const auto both = [](const auto& matcher) { return ElementsAre(matcher, matcher); };
  ASSERT_THAT(registry_->BeginMeshChange("m"), IsOk());
  EXPECT_THAT(refusals("w"), both(StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch)));
  registry_->EndMeshChange("m", std::nullopt);

  registry_->SetMaxNames(0);
  EXPECT_THAT(refusals("w"),
              both(StatusIs(absl::StatusCode::kResourceExhausted, Reason::kLimitExceeded)));
  registry_->SetMaxNames(1);

  while (sessions_.BeginStep(session_).ok()) {
  }
  const std::vector<absl::Status> refused = refusals("w");
  EXPECT_THAT(refused, both(StatusIs(absl::StatusCode::kResourceExhausted)));
  EXPECT_EQ(refused[0].message(), refused[1].message());
}

TEST_F(PutPlanTest, CorrectsASpecThatDoesNotFit) {
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("odd");
  tensor.shape = {7, 4};
  ASSERT_THAT(TakeOne(&plan, tensor), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  const ArrayDefinition& definition = put->items[0].definition;
  EXPECT_NE(definition.descriptor.spec, OverX());
  EXPECT_EQ(definition.requested_spec, OverX());
  ASSERT_THAT(put->corrections, ElementsAre(SizeIs(1)));
  EXPECT_EQ(put->corrections[0][0].reason, Reason::kNotDivisible);
}

TEST_F(PutPlanTest, RefusesTheFirstCorrectionUnderStrictAndNamesTheFixes) {
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("odd");
  tensor.shape = {7, 4};
  const absl::Status refused = TakeOne(&plan, tensor, /*strict=*/true);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kNotDivisible));
  EXPECT_THAT(
      refused.message(),
      HasSubstr("; to mend it, ask for no axis along dimension 0, or pad dimension 0 from"));
}

TEST_F(PutPlanTest, CutPointsFitAsTheyAreOrNotAtAll) {
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("cut");
  tensor.shape = {7, 4};
  tensor.cut_points = {{0, 3, 7}, {}};
  ASSERT_THAT(TakeOne(&plan, tensor), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  const ArrayDescriptor& array = put->items[0].definition.descriptor;
  EXPECT_EQ(array.spec, OverX());
  EXPECT_EQ(array.Tiling()->TileOf(0).shape(), Shape({3, 4}));
  EXPECT_THAT(put->corrections, ElementsAre(IsEmpty()));

  PutPlan other = NewPlan();
  tensor.cut_points = {{0, 3, 5, 7}, {}};  // three parts for two devices
  EXPECT_THAT(TakeOne(&other, tensor), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(PutPlanTest, RulesChooseTheSpecOfATensorWithCutPoints) {
  auto rules = RuleSet::Create({{.pattern = "kernel", .spec = OverX()}});
  ASSERT_THAT(rules, IsOk());
  rules_ = RuleSetDefinition{.rules = *std::move(rules)};
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("kernel/a");
  tensor.spec = std::nullopt;
  tensor.shape = {7, 4};
  tensor.cut_points = {{0, 7, 7}, {}};
  ASSERT_THAT(TakeOne(&plan, tensor), IsOk());
  tensor.name = "kernel/b";
  tensor.cut_points = {};
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  const ArrayDescriptor& cut = put->items[0].definition.descriptor;
  EXPECT_EQ(cut.spec, RowsOverX());
  EXPECT_THAT(cut.cut_points, ElementsAre(ElementsAre(0, 7, 7), IsEmpty()));
  EXPECT_EQ(put->items[1].definition.descriptor.spec, PartitionSpec());
  EXPECT_THAT(put->corrections, ElementsAre(IsEmpty(), SizeIs(1)));
}

TEST_F(PutPlanTest, ARuleCutsWhatCorrectionWouldReplicate) {
  struct Row {
    PutHeader header;
    Shape shape;
    std::vector<int64_t> points;  // of dimension 0; empty: equal parts
  };
  const auto with = [this](UnevenCuts uneven, std::vector<int64_t> weights = {}) {
    PutHeader header = Header();
    header.uneven = uneven;
    header.weights = std::move(weights);
    return header;
  };
  const std::vector<Row> rows = {
      {with(UnevenCuts::kCeilChunks), {7, 4}, {0, 4, 7}},
      {with(UnevenCuts::kCeilChunks), {1, 4}, {0, 1, 1}},
      {with(UnevenCuts::kCeilChunks), {8, 4}, {}},
      {with(UnevenCuts::kCeilChunks), {0, 4}, {}},
      {with(UnevenCuts::kByWeights, {1, 3}), {8, 4}, {0, 2, 8}},
      {with(UnevenCuts::kByWeights, {0, 5}), {8, 4}, {0, 0, 8}},
      {with(UnevenCuts::kByWeights, {2, 2}), {8, 4}, {}},
      {with(UnevenCuts::kByWeights, {2, 2}), {7, 4}, {0, 4, 7}},
      {with(UnevenCuts::kByMemory), {7, 4}, {0, 4, 7}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(StrCat(static_cast<int>(row.header.uneven), " ", ShapeToString(row.shape)));
    for (const bool strict : {false, true}) {
      PutHeader header = row.header;
      header.strict = strict;
      header.validate_only = true;
      PutPlan plan = NewPlan();
      ASSERT_THAT(TakeHeader(&plan, header), IsOk());
      PutTensor tensor = Tensor("odd");
      tensor.shape = row.shape;
      ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
      const ArrayDescriptor& array = put->items[0].definition.descriptor;
      EXPECT_EQ(array.spec, RowsOverX());
      EXPECT_THAT(put->corrections, ElementsAre(IsEmpty()));
      EXPECT_EQ(array.cut_points, row.points.empty() ? std::vector<CutPoints>()
                                                     : (std::vector<CutPoints>{row.points, {}}));
    }
  }
}

TEST_F(PutPlanTest, ARuleLeavesAllOtherCorrections) {
  PutHeader header = Header();
  header.uneven = UnevenCuts::kCeilChunks;
  PutPlan plan = NewPlan();
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  PutTensor tensor = Tensor("odd");
  tensor.shape = {7, 5};
  tensor.spec = PartitionSpec({SpecEntry::Axis("x"), SpecEntry::Axis("nope")});
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  ASSERT_THAT(put->corrections, ElementsAre(SizeIs(1)));
  EXPECT_EQ(put->corrections[0][0].reason, Reason::kAxisNotInMesh);
  EXPECT_THAT(put->items[0].definition.descriptor.cut_points,
              ElementsAre(ElementsAre(0, 4, 7), IsEmpty()));
}

TEST_F(PutPlanTest, CutsByTheMemoryAndTheSpeedOfTheWorkers) {
  for (const char* identity : {"large", "slow"}) {
    const bool is_large = identity == std::string_view("large");
    EXPECT_THAT(members_.Attach({.identity = identity,
                                 .incarnation = 1,
                                 .build_version = "1",
                                 .endpoints = {"127.0.0.1:1"},
                                 .host = "host",
                                 .capacity_bytes = is_large ? 3 << 20 : 1 << 20,
                                 .kernels = {.f32_flops_per_second = is_large ? 4e9 : 1e9}}),
                IsOk());
  }
  endpoints_.endpoints[0].identity = "large";
  endpoints_.endpoints[1].identity = "slow";
  const auto points_by = [this](UnevenCuts rule) {
    PutHeader header = Header();
    header.uneven = rule;
    header.validate_only = true;
    PutPlan plan = NewPlan();
    EXPECT_THAT(TakeHeader(&plan, header), IsOk());
    EXPECT_THAT(plan.TakeTensor(Tensor("a")), IsOk());
    return (*plan.Begin())->items[0].definition.descriptor.cut_points.at(0);
  };
  EXPECT_THAT(points_by(UnevenCuts::kByMemory), ElementsAre(0, 6, 8));
  EXPECT_THAT(points_by(UnevenCuts::kBySpeed), ElementsAre(0, 6, 8));  // 6.4 and 1.6
}

TEST_F(PutPlanTest, RefusesWeightsThatDoNotFitTheMeshAndSpeedsThatNobodyMeasured) {
  PutHeader header = Header();
  header.uneven = UnevenCuts::kByWeights;
  header.weights = {1, 2, 3};
  PutPlan plan = NewPlan();
  absl::Status refused = TakeHeader(&plan, header);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidCutPoints));
  EXPECT_EQ(FieldOf(refused), "header.weights");
  EXPECT_FALSE(plan.has_header());
  header.uneven = UnevenCuts::kBySpeed;
  header.weights = {};
  refused = TakeHeader(&plan, header);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 0 (worker \"w0\") has not measured"));
}

// Arrays that a reader holds count, although their workers have taken them out of memory.
TEST_F(PutPlanTest, NoLessThanNothingIsLeftOnAWorker) {
  ArrayDescriptor held = Descriptor();
  held.shape = {1 << 20};  // two mebibytes on each worker, which has room for one
  AddArray(held, "held");
  PutHeader header = Header();
  header.validate_only = true;
  PutTensor large = Tensor("a");
  large.shape = {1 << 20, 1};
  large.dtype = Dtype::kBF16;
  PutPlan plan = NewPlan();
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  ASSERT_THAT(plan.TakeTensor(large), IsOk());
  const absl::Status refused = plan.Begin().status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("has 0 B of 1.00 MiB left, and the put needs 1.00 MiB there"));
  EXPECT_EQ(FactOf(refused, fact::kHave), "0");
  // A put that needs nothing fits.
  Beat(2 << 20);
  PutPlan empty = NewPlan();
  ASSERT_THAT(TakeHeader(&empty, header), IsOk());
  large.shape = {0, 1};
  ASSERT_THAT(empty.TakeTensor(large), IsOk());
  EXPECT_THAT(empty.Begin(), IsOk());
}

TEST_F(PutPlanTest, SecondReplicasAreCheckedAndCounted) {
  PutHeader header = Header();
  header.replicas = 2;
  const auto plan_of = [&](const PutTensor& tensor) -> absl::StatusOr<BegunPutPtr> {
    PutPlan plan = NewPlan();
    SHARDMESH_RETURN_IF_ERROR(TakeHeader(&plan, header));
    SHARDMESH_RETURN_IF_ERROR(plan.TakeTensor(tensor));
    return plan.Begin();
  };
  const absl::Status nameless = plan_of(Tensor("")).status();
  EXPECT_THAT(nameless, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(nameless), "name");
  header.validate_only = true;
  // Half a mebibyte on each worker, for each copy.
  PutTensor large = Tensor("a");
  large.shape = {1 << 19, 1};
  large.dtype = Dtype::kBF16;
  EXPECT_THAT(plan_of(large), IsOk());
  Beat((1 << 19) + 1);
  const absl::Status refused = plan_of(large).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("the put needs 1.00 MiB there, 512 KiB of it for second replicas"));
  // The spec puts each tile on both workers: there is no copy to count.
  PutTensor everywhere = Tensor("a");
  everywhere.shape = {1 << 16, 1};
  everywhere.spec = PartitionSpec({SpecEntry(), SpecEntry()});
  EXPECT_THAT(plan_of(everywhere), IsOk());
  header.replicas = 1;
  Beat(1 << 19);
  EXPECT_THAT(plan_of(large), IsOk());

  DefineMesh(definition_store_.get(), "one", *Mesh::Parse("x=1"));
  header.replicas = 2;
  header.mesh_id = "one";
  const absl::Status alone = plan_of(Tensor("a")).status();
  EXPECT_THAT(alone, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(alone), "header.replicas");
  EXPECT_THAT(std::string(alone.message()), HasSubstr("has one worker"));
  DefineMesh(definition_store_.get(), "m.replicas-0123456789ab", mesh_);
  header.mesh_id = "m.replicas-0123456789ab";
  const absl::Status auxiliary = plan_of(Tensor("a")).status();
  EXPECT_EQ(FieldOf(auxiliary), "header.mesh");
}

TEST_F(PutPlanTest, RefusesTheAuxiliaryMeshOfAResize) {
  const std::string name = "m.resize-0123456789ab";
  DefineMesh(definition_store_.get(), name, mesh_);
  PutHeader header = Header();
  header.mesh_id = name;
  PutPlan plan = NewPlan();
  const absl::Status refused = TakeHeader(&plan, header);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
  EXPECT_EQ(FieldOf(refused), "header.mesh");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("auxiliary mesh of a resize of \"m\""));
  header.may_be_resize_mesh = true;
  PutPlan own = NewPlan();
  const absl::Status taken = TakeHeader(&own, header);
  EXPECT_NE(ReasonOf(taken), Reason::kBadField) << taken;
}

TEST_F(PutPlanTest, ANewArrayWantsTheReplicasThatItsNameHad) {
  ArrayDefinition definition{.descriptor = Descriptor()};
  definition.replicas = 2;
  const std::string id = definition.descriptor.array_id;
  ASSERT_THAT(registry_->Stage(std::move(definition)), IsOk());
  CommitRequest commit;
  commit.arrays.push_back({.array_id = id, .tile_crc32c = {1, 2}});
  commit.moves.push_back({.name = "a", .array_id = id, .expected_version = {}});
  absl::Notification done;
  registry_->Commit(std::move(commit), [&done](const auto&) { done.Notify(); });
  done.WaitForNotification();
  for (const auto& [wanted, expected] : std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {1, 1}}) {
    PutPlan plan = NewPlan();
    PutHeader header = Header();
    header.replicas = wanted;
    ASSERT_THAT(TakeHeader(&plan, header), IsOk());
    ASSERT_THAT(plan.TakeTensor(Tensor("a")), IsOk());
    ASSERT_THAT(plan.TakeTensor(Tensor("b")), IsOk());
    const PutPlan::Planned planned = plan.TakePlanned();
    EXPECT_EQ(planned.items[0].definition.replicas, expected);
    EXPECT_EQ(planned.items[1].definition.replicas, 1);
  }
}

TEST_F(PutPlanTest, CountsTheMemoryThatEachRankNeeds) {
  PutHeader header = Header();
  header.uneven = UnevenCuts::kByWeights;
  header.weights = {1, 0};
  PutPlan plan = NewPlan();
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  PutTensor tensor = Tensor("large");
  tensor.shape = {256, 1024};  // a mebibyte, all of it on rank 0, which has just that
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  EXPECT_THAT(plan.Begin(), IsOk());
  PutPlan other = NewPlan();
  header.weights = {0, 1};
  ASSERT_THAT(TakeHeader(&other, header), IsOk());
  tensor.shape = {257, 1024};
  ASSERT_THAT(other.TakeTensor(tensor), IsOk());
  const absl::Status refused = other.Begin().status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("rank 1"));
}

TEST_F(PutPlanTest, RefusesANameThatComesTwiceOrIsTaken) {
  AddArray(Descriptor(), "taken");
  PutPlan plan = NewPlan();
  ASSERT_THAT(TakeOne(&plan, Tensor("a")), IsOk());
  EXPECT_EQ(FieldOf(plan.TakeTensor(Tensor("a"))), "name");

  PutPlan other = NewPlan();
  PutTensor tensor = Tensor("taken");
  tensor.expected_version = 0;
  ASSERT_THAT(TakeOne(&other, tensor), IsOk());
  EXPECT_THAT(other.Begin(), StatusIs(absl::StatusCode::kAborted, Reason::kVersionMismatch));
  EXPECT_EQ(registry_->CountArrays().staging, 0);
}

TEST_F(PutPlanTest, RefusesAPutForWhichAWorkerHasNoRoom) {
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("large");
  tensor.shape = {1 << 10, 1 << 10};  // two mebibytes a rank
  ASSERT_THAT(TakeOne(&plan, tensor), IsOk());
  const absl::Status refused = plan.Begin().status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("rank 0 (worker \"w0\") has 1.00 MiB of 1.00 MiB left"),
                    HasSubstr("needs 2.00 MiB"), HasSubstr("; release arrays,")));
  EXPECT_EQ(registry_->CountArrays().staging, 0);
}

TEST_F(PutPlanTest, RefusalsForWantOfRoomSayWhichPutsTakeIt) {
  PutPlan first = NewPlan();
  ASSERT_THAT(TakeOne(&first, Tensor("a")), IsOk());
  ASSERT_THAT(first.Begin(), IsOk());
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("large");
  tensor.shape = {1 << 10, 1 << 10};
  ASSERT_THAT(TakeOne(&plan, tensor), IsOk());
  EXPECT_THAT(std::string(plan.Begin().status().message()),
              HasSubstr("wait for 1 put under way, which stage about 64 B on each rank"));
}

TEST_F(PutPlanTest, RefusesSizesThatCannotBeCounted) {
  PutPlan plan = NewPlan();
  PutTensor tensor = Tensor("endless");
  tensor.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THAT(TakeOne(&plan, tensor), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(PutPlanTest, APutWithoutTensorsIsRefused) {
  PutPlan plan = NewPlan();
  ASSERT_THAT(TakeHeader(&plan, Header()), IsOk());
  EXPECT_EQ(FieldOf(plan.Begin().status()), "tensors");
}

TEST_F(PutPlanTest, APutOnAMeshThatLostAWorkerMeanwhileIsToBeTriedAgain) {
  PutPlan plan = NewPlan();
  ASSERT_THAT(TakeOne(&plan, Tensor("a")), IsOk());
  endpoints_.endpoints.pop_back();
  const absl::Status refused = plan.Begin().status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
}

// The tensors of Tensor() have 128 bytes.
std::shared_ptr<const SourceFile> FileOf(std::string path, int64_t size_bytes) {
  return std::make_shared<const SourceFile>(SourceFile{.path = std::move(path),
                                                       .size_bytes = size_bytes,
                                                       .modify_time = absl::FromUnixSeconds(5),
                                                       .head_sha256 = std::string(32, 'h'),
                                                       .head_bytes = 8});
}

TEST_F(PutPlanTest, OrdersEachWorkerToFillItsTilesFromFiles) {
  PutPlan plan = NewPlan();
  PutHeader header = Header();
  header.files = {FileOf("/a", 264), FileOf("/unused", 1), FileOf("/b", 128)};
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  PutTensor tensor = Tensor("one");
  tensor.source = FileRange{.file = 0, .offset_bytes = 136};
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  tensor.name = "two";
  tensor.source = FileRange{.file = 2, .offset_bytes = 0};
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  EXPECT_TRUE(plan.reads_files());
  endpoints_.endpoints[1].identity = "w0";  // one worker for both ranks
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const FileReaders readers, plan.Readers());
  EXPECT_THAT(readers.identities, ElementsAre("w0"));
  ASSERT_THAT(readers.files, SizeIs(2));
  EXPECT_EQ(readers.files[1].path, "/b");
  endpoints_.endpoints[1].identity = "w1";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  for (int rank = 0; rank < 2; ++rank) {
    const auto sent = fill_.sent(StrCat("w", rank));
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(sent[0].transfer_id(), put->transfer_id);
    EXPECT_EQ(sent[0].term(), 7);
    ASSERT_EQ(sent[0].files_size(), 2);
    EXPECT_EQ(sent[0].files(1).path(), "/b");
    ASSERT_EQ(sent[0].tiles_size(), 2);
    EXPECT_EQ(sent[0].rank(), rank);
    EXPECT_EQ(sent[0].tiles(0).file().file(), 0u);
    EXPECT_EQ(sent[0].tiles(0).file().offset_bytes(), 136);
    EXPECT_EQ(sent[0].tiles(1).file().file(), 1u);
    EXPECT_EQ(sent[0].tiles(1).array_descriptor(),
              rpc::ArrayDescriptorBytes(put->items[1].definition.descriptor));
  }
  EXPECT_EQ(fill_.tails(), 1u) << "the workers share an encoding";
  EXPECT_EQ(put->items[0].definition.source.file->path, "/a");
  EXPECT_TRUE(transfers_.Progress(put->transfer_id)->is_filled);
}

TEST_F(PutPlanTest, RefusesSourcesBeyondTheirFiles) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  struct Case {
    FileRange source;
    std::string field;
  };
  for (const Case& each : {Case{{.file = 1, .offset_bytes = 0}, "source.file"},
                           Case{{.file = 0xffffffff, .offset_bytes = 0}, "source.file"},
                           Case{{.file = 0, .offset_bytes = 1}, "source.offset_bytes"},
                           Case{{.file = 0, .offset_bytes = 128}, "source.offset_bytes"},
                           Case{{.file = 0, .offset_bytes = 129}, "source.offset_bytes"},
                           Case{{.file = 0, .offset_bytes = kMax}, "source.offset_bytes"}}) {
    PutPlan plan = NewPlan();
    PutHeader header = Header();
    header.files = {FileOf("/a", 128)};
    ASSERT_THAT(TakeHeader(&plan, header), IsOk());
    PutTensor tensor = Tensor("one");
    tensor.source = each.source;
    EXPECT_EQ(FieldOf(plan.TakeTensor(tensor)), each.field) << each.source.offset_bytes;
  }
}

TEST_F(PutPlanTest, WorkersReadNoTilesThatBeginWithinAByte) {
  const auto taken = [&](const PartitionSpec& spec, bool has_source) {
    PutPlan plan = NewPlan();
    PutHeader header = Header();
    if (has_source) header.files = {FileOf("/a", 128)};
    EXPECT_THAT(TakeHeader(&plan, header), IsOk());
    PutTensor tensor = Tensor("small");
    tensor.dtype = Dtype::kF4;
    tensor.shape = {4, 6};
    tensor.spec = spec;
    if (has_source) tensor.source = FileRange{.file = 0, .offset_bytes = 0};
    return plan.TakeTensor(tensor);
  };
  const PartitionSpec columns({SpecEntry(), SpecEntry::Axis("x")});
  EXPECT_THAT(taken(RowsOverX(), true), IsOk());
  EXPECT_THAT(taken(columns, false), IsOk());
  const absl::Status refused = taken(columns, true);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("workers cannot read tile [0,4)x[0,"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--source client"));
}

TEST_F(PutPlanTest, TakesAnEmptyTensorAtTheEndOfItsFile) {
  PutPlan plan = NewPlan();
  PutHeader header = Header();
  header.files = {FileOf("/a", 128)};
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  PutTensor tensor = Tensor("empty");
  tensor.shape = {0, 4};
  tensor.source = FileRange{.file = 0, .offset_bytes = 128};
  EXPECT_THAT(plan.TakeTensor(tensor), IsOk());
}

TEST_F(PutPlanTest, OrdersOnlyTheTensorsWithSourcesOfAPutOfBothKinds) {
  for (const size_t read : {0, 1}) {
    PutPlan plan = NewPlan();
    PutHeader header = Header();
    header.files = {FileOf("/a", 128)};
    ASSERT_THAT(TakeHeader(&plan, header), IsOk());
    std::vector<PutTensor> tensors = {Tensor("one"), Tensor("two")};
    tensors[read].source = FileRange{};
    // The client makes the other one from the same file.
    tensors[1 - read].origin = FileRange{};
    tensors[1 - read].conversion = "by the client";
    for (const PutTensor& tensor : tensors) ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
    EXPECT_TRUE(plan.reads_files());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const FileReaders readers, plan.Readers());
    EXPECT_THAT(readers.files, SizeIs(1));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
    for (const std::string worker : {"w0", "w1"}) {
      ASSERT_FALSE(fill_.sent(worker).empty());
      const internal::v1::FillTiles order = fill_.sent(worker).back();
      EXPECT_EQ(order.transfer_id(), put->transfer_id);
      ASSERT_EQ(order.tiles_size(), 1);
      EXPECT_EQ(order.tiles(0).array_descriptor(),
                rpc::ArrayDescriptorBytes(put->items[read].definition.descriptor));
    }
    EXPECT_TRUE(put->items[read].is_read());
    EXPECT_FALSE(put->items[1 - read].is_read());
    const TransferProgress progress = *transfers_.Progress(put->transfer_id);
    EXPECT_TRUE(progress.is_filled);
    EXPECT_EQ(progress.total_tiles, 4) << "of both tensors on both ranks";
    ASSERT_THAT(transfers_.Abort(put->transfer_id, absl::CancelledError("done")), IsOk());
    EXPECT_EQ(registry_->CountArrays().staging, 0) << "both tensors end together";
  }
}

TEST_F(PutPlanTest, OrdersNoFillIfThePutDoesNotBegin) {
  for (const bool validate_only : {true, false}) {
    PutPlan plan = NewPlan();
    PutHeader header = Header();
    header.files = {FileOf("/a", int64_t{1} << 30)};
    header.validate_only = validate_only;
    ASSERT_THAT(TakeHeader(&plan, header), IsOk());
    PutTensor tensor = Tensor("large");
    if (!validate_only) tensor.shape = {1 << 10, 1 << 10};  // two mebibytes a rank
    tensor.source = FileRange{};
    ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
    EXPECT_EQ(plan.Begin().ok(), validate_only);
    EXPECT_THAT(fill_.sent("w0"), IsEmpty());
    EXPECT_EQ(registry_->CountArrays().staging, 0);
  }
}

TEST_F(PutPlanTest, EndsIfAWorkerAttachesAgainBeforeItsOrder) {
  fill_.unreachable = "w1";
  PutPlan plan = NewPlan();
  PutHeader header = Header();
  header.files = {FileOf("/a", 128)};
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  PutTensor tensor = Tensor("one");
  tensor.source = FileRange{};
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  EXPECT_THAT(plan.Begin(), StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_THAT(sequencer_->Live(), IsEmpty());
  EXPECT_EQ(registry_->CountArrays().staging, 0);
}

TEST_F(PutPlanTest, TheSourceOfAnArrayIsKeptAndOutlivesARestart) {
  // An array that a client sent has no source.
  const std::string sent = AddArray(Descriptor(), "sent");
  EXPECT_EQ((*registry_->FindArray(sent))->definition.source.file, nullptr);
  PutPlan plan = NewPlan();
  PutHeader header = Header();
  header.files = {FileOf("/a", 300)};
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  PutTensor tensor = Tensor("one");
  tensor.source = FileRange{.file = 0, .offset_bytes = 100};
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  absl::Notification done;
  transfers_.Commit(put->transfer_id, "", clock_.Now() + absl::Minutes(1),
                    [&](const absl::StatusOr<TransferResult>& result) {
                      EXPECT_THAT(result, IsOk());
                      done.Notify();
                    });
  const std::string array_id = put->items[0].definition.descriptor.array_id;
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(sequencer_->ReportTransfer(put->transfer_id, 7,
                                           {.identity = StrCat("w", rank),
                                            .rank = rank,
                                            .tiles = {{.array_id = array_id, .crc32c = 7}}}),
                IsOk());
  }
  done.WaitForNotification();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto reopened,
      ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {}));
  for (const ArrayRegistry* const registry : {registry_.get(), reopened.get()}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const ArrayPtr array, registry->FindArray(array_id));
    ASSERT_NE(array->definition.source.file, nullptr);
    EXPECT_EQ(*array->definition.source.file, *header.files[0]);
    EXPECT_EQ(array->definition.source.offset_bytes, 100);
  }
}

// A tensor of Tensor(), which has 32 F32 elements, from the transposed tensor of BF16 elements.
FileRange Transposed(int64_t offset_bytes = 0) {
  return {.file = 0,
          .offset_bytes = offset_bytes,
          .conversion = SourceConversion{.dtype = Dtype::kBF16, .permutation = {1, 0}}};
}

TEST_F(PutPlanTest, TheConversionOfASourceIsOrderedAndRecorded) {
  PutPlan plan = NewPlan();
  PutHeader header = Header();
  header.files = {FileOf("/a", 300)};
  ASSERT_THAT(TakeHeader(&plan, header), IsOk());
  PutTensor tensor = Tensor("one");
  tensor.source = Transposed(236);  // 64 bytes are left, and the elements would have 128
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  tensor.name = "plain";
  tensor.source = {.file = 0,
                   .offset_bytes = 172,
                   .conversion = SourceConversion{.dtype = tensor.dtype, .permutation = {0, 1}}};
  ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
  EXPECT_TRUE(plan.Readers()->convert);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const BegunPutPtr put, plan.Begin());
  for (int rank = 0; rank < 2; ++rank) {
    const auto sent = fill_.sent(StrCat("w", rank));
    ASSERT_THAT(sent, SizeIs(1));
    ASSERT_EQ(sent[0].tiles_size(), 2);
    const internal::v1::ConvertedFileSource& source = sent[0].tiles(0).converted_file();
    EXPECT_EQ(source.file().file(), 0u);
    EXPECT_EQ(source.file().offset_bytes(), 236);
    EXPECT_EQ(source.conversion().dtype(), v1::DTYPE_BF16);
    EXPECT_THAT(source.conversion().permutation(), ElementsAre(1, 0));
    EXPECT_EQ(sent[0].tiles(1).file().offset_bytes(), 172) << "nothing is to be converted";
  }
  // The record outlives a restart, and the origin is that of an array that a client made so.
  Array array;
  array.definition = put->items[0].definition;
  array.tile_crc32c = {7, 7};
  bool is_cached = false;
  const std::string record = EncodeArray(array, is_cached);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Array read, DecodeArray("key", record, &is_cached));
  ASSERT_NE(read.definition.source.file, nullptr);
  EXPECT_EQ(read.definition.source.conversion, Transposed().conversion);
  EXPECT_EQ(read.definition.source.offset_bytes, 236);
  EXPECT_EQ(
      read.definition.origin().conversion,
      ConversionText(Dtype::kBF16, *PermutedShape(tensor.shape, {1, 0}), {1, 0}, tensor.dtype));
  // A coordinator of an older build must not read a lost tile from the file as it is.
  store::v1::ArrayRecord stored;
  ASSERT_TRUE(stored.ParseFromString(record));
  EXPECT_TRUE(stored.source_sent());
  EXPECT_EQ(stored.source_conversion(), read.definition.origin().conversion);
}

TEST_F(PutPlanTest, RefusesConversionsThatDoNotFitTheTensor) {
  struct Case {
    FileRange source;
    Reason reason;
    std::string field;
  };
  const auto with = [](Dtype dtype, std::vector<size_t> permutation) {
    FileRange source;
    source.conversion = SourceConversion{.dtype = dtype, .permutation = std::move(permutation)};
    return source;
  };
  const std::string field = "converted_source.conversion";
  for (const Case& each :
       {Case{with(Dtype::kF32, {0}), Reason::kShapeMismatch, field},
        Case{with(Dtype::kF32, {1, 1}), Reason::kShapeMismatch, field},
        Case{with(Dtype::kI32, {}), Reason::kUnsupportedDtype, field},
        Case{with(Dtype::kF64, {}), Reason::kBadField, "converted_source.range.offset_bytes"},
        Case{Transposed(65), Reason::kBadField, "converted_source.range.offset_bytes"}}) {
    PutPlan plan = NewPlan();
    PutHeader header = Header();
    header.files = {FileOf("/a", 128)};
    ASSERT_THAT(TakeHeader(&plan, header), IsOk());
    PutTensor tensor = Tensor("one");
    tensor.source = each.source;
    const absl::Status refused = plan.TakeTensor(tensor);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, each.reason)) << refused;
    EXPECT_EQ(FieldOf(refused), each.field);
  }
}

TEST_F(PutPlanTest, AWorkerThatDoesNotConvertGetsNoOrder) {
  fill_.can_convert = WithReason(absl::FailedPreconditionError("an older build"),
                                 Reason::kNotAvailable, {{fact::kField, "converted_source"}});
  for (const bool is_converted : {false, true}) {
    PutPlan plan = NewPlan();
    PutHeader header = Header();
    header.files = {FileOf("/a", 128)};
    ASSERT_THAT(TakeHeader(&plan, header), IsOk());
    PutTensor tensor = Tensor(is_converted ? "converted" : "plain");
    tensor.source = is_converted ? Transposed() : FileRange{};
    ASSERT_THAT(plan.TakeTensor(tensor), IsOk());
    EXPECT_EQ(plan.Begin().ok(), !is_converted);
  }
  EXPECT_THAT(fill_.sent("w0"), SizeIs(1));
}

}  // namespace
}  // namespace shardmesh::server
