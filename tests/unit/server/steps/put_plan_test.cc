// PutPlan: what a put makes of its tensors, and why it is refused.
#include "server/steps/put_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rpc/codec/status.h"
#include "server/resolve/tree_resolver.h"
#include "sharding/presets.h"
#include "sharding/rules/rule_set.h"
#include "status/detail.h"
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
                    .endpoints = &endpoints_,
                    .sessions = &sessions_,
                    .transfers = &transfers_});
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

  Transfers transfers_{&clock_, registry_.get(), &sessions_, sequencer_.get()};
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
              AllOf(HasSubstr("rank 0 (worker \"w0\") has 1048576 of 1048576 bytes left"),
                    HasSubstr("needs 2097152"), HasSubstr("; release arrays,")));
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
              HasSubstr("wait for 1 put under way, which stage about 64 bytes on each rank"));
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

}  // namespace
}  // namespace shardmesh::server
