// Arrays, literals and plans across the wire.
#include "rpc/codec/array_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <variant>

#include "process/random_bytes.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/status.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::rpc {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;

std::string FieldOf(const absl::Status& status) {
  const auto violations = FieldViolationsOf(status);
  return violations.size() == 1 ? violations[0].field : "";
}

// A field with number 100 and value 42. An encoder writes unknown fields last: at the front it
// shows whether a message was encoded again.
const std::string kUnknownField = "\xa0\x06\x2a";

ArrayDescriptor SomeArray() {
  ArrayDescriptor array;
  array.array_id = "a1";
  array.dtype = Dtype::kBF16;
  array.shape = {8, 48};
  array.spec = PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")});
  array.mesh_id = "default";
  array.mesh_revision = 3;
  array.mesh = *Mesh::Parse("dp=2,tp=3");
  array.cut_points = {{}, {0, 20, 40, 48}};
  return array;
}

TEST(ArrayCodecTest, EveryElementTypeHasItsOwnNumber) {
  for (const Dtype dtype : AllDtypes()) {
    // Names of the wire tell the encoding; those of files are the names of safetensors.
    const std::string name = dtype == Dtype::kF8E4M3Fn    ? "F8_E4M3FN"
                             : dtype == Dtype::kF8E8M0Fnu ? "F8_E8M0FNU"
                                                          : std::string(DtypeName(dtype));
    EXPECT_EQ(v1::Dtype_Name(Encode(dtype)), "DTYPE_" + name);
    EXPECT_THAT(Decode(Encode(dtype)), IsOkAndHolds(dtype));
  }
  EXPECT_EQ(AllDtypes().size() + 1, static_cast<size_t>(v1::Dtype_descriptor()->value_count()));
  EXPECT_THAT(Decode(v1::DTYPE_UNSPECIFIED).status(), StatusIs(kInvalid, Reason::kUnknownDtype));
  EXPECT_THAT(Decode(static_cast<v1::Dtype>(63)).status(),
              StatusIs(kInvalid, Reason::kUnknownDtype));
}

TEST(ArrayCodecTest, DescriptionsCrossTheWire) {
  v1::ArrayDescriptor wire;
  Encode(SomeArray(), &wire);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(SomeArray()));
}

TEST(ArrayCodecTest, DescriptionsCrossAsBytes) {
  const std::string bytes = ArrayDescriptorBytes(SomeArray());
  EXPECT_THAT(ParseArrayDescriptorBytes(bytes), IsOkAndHolds(SomeArray()));
  EXPECT_THAT(ParseArrayDescriptorBytes(kUnknownField + bytes), IsOkAndHolds(SomeArray()));
  EXPECT_EQ(FieldOf(ParseArrayDescriptorBytes("\xff").status()), "array_descriptor");
  EXPECT_EQ(FieldOf(ParseArrayDescriptorBytes("").status()), "array_id");
}

TEST(ArrayCodecTest, DescriptionsThatDoNotFitThemselvesAreRefused) {
  const auto refused = [](ArrayDescriptor array) {
    v1::ArrayDescriptor wire;
    Encode(array, &wire);
    return Decode(wire).status();
  };
  ArrayDescriptor array = SomeArray();
  array.array_id = "";
  EXPECT_EQ(FieldOf(refused(array)), "array_id");
  array = SomeArray();
  array.cut_points.clear();
  array.shape = {8, 47};
  EXPECT_THAT(refused(array), StatusIs(kInvalid, Reason::kNotDivisible));
  array = SomeArray();
  array.cut_points = {{}, {0, 20, 48}};
  EXPECT_EQ(FieldOf(refused(array)), "cut_points");
  array = SomeArray();
  array.mesh = Mesh();
  EXPECT_EQ(FieldOf(refused(array)), "mesh");
  array = SomeArray();
  array.shape = {-1, 48};
  EXPECT_EQ(FieldOf(refused(array)), "shape");
}

TEST(ArrayCodecTest, LiteralsCrossTheWireAndAreChecked) {
  const Literal literal{Dtype::kI16, {2, 3}, std::string("0123456789ab")};
  v1::Literal wire;
  Encode(literal, &wire);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(literal));
  v1::Literal moved;
  Encode(Literal(literal), &moved);
  EXPECT_THAT(Decode(std::move(moved)), IsOkAndHolds(literal));
  wire.mutable_data()->pop_back();
  EXPECT_EQ(FieldOf(Decode(wire).status()), "data");
  Literal huge{Dtype::kU8,
               {kMaxLiteralBytes + 1},
               std::string(static_cast<size_t>(kMaxLiteralBytes) + 1, 'x')};
  Encode(std::move(huge), &moved);
  EXPECT_FALSE(Decode(moved).ok());
  v1::Literal lying;  // promises 2^40 elements and has none
  lying.set_dtype(v1::DTYPE_F32);
  lying.add_shape(int64_t{1} << 40);
  EXPECT_THAT(Decode(lying).status(), StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(RandomBytesTest, AreNotTheSameTwice) {
  EXPECT_EQ(RandomBytes(32).size(), 32U);
  EXPECT_NE(RandomBytes(32), RandomBytes(32));
}

Program SomeProgram() {
  Program program;
  program.operand_count = 3;
  program.ops = {
      LinearOp{0, 1, 2, WeightLayout::kInOut, Activation::kGelu, 0.5f, 1},
      MatmulOp{3, 1, true, false},
      CollectiveOp{4, CollectiveKind::kReduceScatter, {"tp", "dp"}, 1, Reduction::kMax},
      ReshardOp{5, PartitionSpec({SpecEntry::Axis("dp")}), {{}, {2, 7}}},
      CollectiveOp{.input = 6,
                   .kind = CollectiveKind::kPermute,
                   .axes = {"tp"},
                   .permutation = {{0, 1}, {1, 0}}},
      CollectiveOp{.input = 7,
                   .kind = CollectiveKind::kReduce,
                   .axes = {"tp"},
                   .root = 3,
                   .algorithm = CollectiveAlgorithm::kBinomial,
                   .order = CollectiveOrder::kFastest},
      CollectiveOp{.input = 8,
                   .kind = CollectiveKind::kAllToAll,
                   .axes = {"dp", "tp"},
                   .dimension = 2,
                   .split_dimension = 1},
  };
  program.outputs = {6, 0};
  return program;
}

TEST(PlanCodecTest, ProgramsCrossTheWire) {
  v1::Program wire;
  Encode(SomeProgram(), &wire);
  EXPECT_THAT(Decode(wire), IsOkAndHolds(SomeProgram()));
}

TEST(PlanCodecTest, MalformedProgramsNameTheirField) {
  v1::Program good;
  Encode(SomeProgram(), &good);
  v1::Program wire = good;
  wire.mutable_ops(1)->mutable_matmul()->set_lhs(4);  // its own result
  EXPECT_EQ(FieldOf(Decode(wire).status()), "ops[1]");
  wire = good;
  wire.set_outputs(0, 10);
  EXPECT_EQ(FieldOf(Decode(wire).status()), "outputs[0]");
  wire = good;
  wire.mutable_ops(2)->mutable_collective()->clear_kind();
  EXPECT_EQ(FieldOf(Decode(wire).status()), "ops[2].collective.kind");
  wire = good;
  wire.mutable_ops(5)->mutable_collective()->set_root(-1);
  EXPECT_EQ(FieldOf(Decode(wire).status()), "ops[5].collective.root");
  wire = good;
  wire.mutable_ops(6)->mutable_collective()->set_split_dimension(-1);
  EXPECT_EQ(FieldOf(Decode(wire).status()), "ops[6].collective.split_dimension");
  wire = good;
  wire.mutable_ops(5)->mutable_collective()->set_algorithm(
      static_cast<v1::CollectiveAlgorithm>(31));
  EXPECT_EQ(FieldOf(Decode(wire).status()), "ops[5].collective.algorithm");
  wire = good;
  wire.mutable_ops(5)->mutable_collective()->set_order(static_cast<v1::CollectiveOrder>(9));
  EXPECT_EQ(FieldOf(Decode(wire).status()), "ops[5].collective.order");
  const auto with_cuts = [&good](const std::vector<std::pair<int, std::vector<int>>>& cuts) {
    v1::Program program = good;
    v1::ReshardOp* const reshard = program.mutable_ops(3)->mutable_reshard();
    reshard->clear_cut_points();
    for (const auto& [dimension, starts] : cuts) {
      v1::CutPoints* const added = reshard->add_cut_points();
      added->set_dimension(dimension);
      added->mutable_starts()->Add(starts.begin(), starts.end());
    }
    return program;
  };
  EXPECT_THAT(Decode(with_cuts({{3, {1, 2}}, {0, {5}}})), IsOk());
  EXPECT_THAT(Decode(with_cuts({{3, {0, 2, 2}}, {0, {0, 0}}})), IsOk()) << "some parts are empty";
  for (const auto& wrong :
       {with_cuts({{-1, {1}}}), with_cuts({{kMaxRank, {1}}}), with_cuts({{0, {}}}),
        with_cuts({{0, {-1}}}), with_cuts({{0, {2, 1}}})}) {
    EXPECT_EQ(FieldOf(Decode(wrong).status()), "ops[3].reshard.cut_points[0]");
    EXPECT_THAT(Decode(wrong).status(), StatusIs(kInvalid, Reason::kInvalidCutPoints));
  }
  EXPECT_EQ(FieldOf(Decode(with_cuts({{0, {1}}, {0, {2}}})).status()),
            "ops[3].reshard.cut_points[1]");
  wire = good;
  wire.mutable_ops(0)->clear_op();
  EXPECT_EQ(FieldOf(Decode(wire).status()), "ops[0].op");
  wire = good;
  wire.set_operand_count(kMaxProgramSize + 1);
  EXPECT_THAT(Decode(wire).status(), StatusIs(kInvalid, Reason::kLimitExceeded));
}

TEST(PlanCodecTest, ACollectiveHasTheFieldsOfItsKindAndNoOthers) {
  using Kind = CollectiveKind;
  const std::set<Kind> with_dimension = {Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll,
                                         Kind::kGather, Kind::kScatter};
  const std::set<Kind> with_root = {Kind::kBroadcast, Kind::kReduce, Kind::kGather, Kind::kScatter};
  for (const Kind kind : AllCollectiveKinds()) {
    SCOPED_TRACE(CollectiveKindName(kind));
    v1::Program good;
    Encode(Program{.operand_count = 1,
                   .ops = {CollectiveOp{.kind = kind, .axes = {"tp"}}},
                   .outputs = {1}},
           &good);
    const v1::CollectiveOp& op = good.ops(0).collective();
    EXPECT_EQ(op.has_dimension(), with_dimension.count(kind) > 0);
    EXPECT_EQ(op.has_root(), with_root.count(kind) > 0);
    EXPECT_EQ(op.has_split_dimension(), kind == Kind::kAllToAll);
    EXPECT_THAT(Decode(good), IsOk());
    const auto field_of = [&](const auto& change) {
      v1::Program wire = good;
      change(wire.mutable_ops(0)->mutable_collective());
      return FieldOf(Decode(wire).status());
    };
    // Set where it is not, and the other way round.
    EXPECT_EQ(field_of([&](v1::CollectiveOp* c) {
                c->has_dimension() ? c->clear_dimension() : c->set_dimension(0);
              }),
              "ops[0].collective.dimension");
    EXPECT_EQ(
        field_of([&](v1::CollectiveOp* c) { c->has_root() ? c->clear_root() : c->set_root(0); }),
        "ops[0].collective.root");
    EXPECT_EQ(field_of([&](v1::CollectiveOp* c) {
                c->has_split_dimension() ? c->clear_split_dimension() : c->set_split_dimension(0);
              }),
              "ops[0].collective.split_dimension");
  }
}

TEST(PlanCodecTest, EnumsOfCollectivesCrossTheWireAndUnsetMeansTheDefault) {
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    EXPECT_THAT(Decode(Encode(kind)), IsOkAndHolds(kind));
  }
  for (const CollectiveAlgorithm algorithm : AllCollectiveAlgorithms()) {
    EXPECT_THAT(Decode(Encode(algorithm)), IsOkAndHolds(algorithm));
  }
  EXPECT_THAT(Decode(v1::COLLECTIVE_ALGORITHM_UNSPECIFIED),
              IsOkAndHolds(CollectiveAlgorithm::kAuto));
  EXPECT_THAT(Decode(v1::COLLECTIVE_ORDER_UNSPECIFIED),
              IsOkAndHolds(CollectiveOrder::kReproducible));
  EXPECT_THAT(Decode(v1::COLLECTIVE_ORDER_FASTEST), IsOkAndHolds(CollectiveOrder::kFastest));
}

TEST(PlanCodecTest, PlansOfEveryCollectiveCrossTheWireAndNameTheirAlgorithm) {
  for (const CollectiveKind kind : AllCollectiveKinds()) {
    CollectiveOp op = {.kind = kind, .axes = {"tp"}, .algorithm = CollectiveAlgorithm::kAuto};
    if (kind == CollectiveKind::kAllToAll) op.split_dimension = 1;
    if (kind == CollectiveKind::kPermute) op.permutation = {{0, 1}};
    const ValueDescriptor operand = {Dtype::kF32, {8, 16}, PartitionSpec({SpecEntry::Axis("tp")})};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const Plan plan, PlanProgram(Program{.operand_count = 1, .ops = {op}, .outputs = {1}},
                                     {operand}, {"default", 1, *Mesh::Parse("dp=2,tp=2")}));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan back, ParsePlanBytes(PlanBytes(plan)));
    EXPECT_TRUE(back == plan) << CollectiveKindName(kind);
    internal::v1::Plan wire;
    Encode(plan, &wire);
    wire.mutable_instructions(0)->mutable_collective()->clear_algorithm();
    EXPECT_THAT(Decode(wire).status(), StatusIs(kInvalid, Reason::kBadField));
  }
}

TEST(PlanCodecTest, FusedInstructionsCrossTheWire) {
  const auto spec = [](std::vector<std::string> axes) {
    std::vector<SpecEntry> entries;
    for (const std::string& axis : axes) {
      entries.push_back(axis.empty() ? SpecEntry::None() : SpecEntry::Axis(axis));
    }
    return PartitionSpec(std::move(entries));
  };
  const PlanTarget target = {
      .mesh_id = "default",
      .mesh_revision = 1,
      .mesh = *Mesh::Parse("tp=4"),
      .links = {.seconds_per_byte = 1e-3},
      .kernels = {.flops_per_second = 2e4, .may_overlap = true, .may_overlap_parts = true}};
  const MatmulOp matmul = {.lhs = 0, .rhs = 1};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Plan gather, PlanProgram(Program{.operand_count = 2, .ops = {matmul}, .outputs = {2}},
                                     {{Dtype::kF32, {16, 8}, spec({"tp", ""})},
                                      {Dtype::kF32, {8, 64}, spec({"", "tp"})}},
                                     target));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Plan scatter,
      PlanProgram(
          Program{.operand_count = 2,
                  .ops = {matmul, ReshardOp{.input = 2, .spec = spec({"tp", ""})}},
                  .outputs = {3}},
          {{Dtype::kBF16, {16, 64}, spec({"", "tp"})}, {Dtype::kBF16, {64, 16}, spec({"tp", ""})}},
          target));
  const CollectiveOp gather_right = {
      .input = 1, .kind = CollectiveKind::kAllGather, .axes = {"tp"}, .dimension = 1};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Plan right, PlanProgram(Program{.operand_count = 2,
                                            .ops = {gather_right, MatmulOp{.lhs = 0, .rhs = 2}},
                                            .outputs = {3}},
                                    {{Dtype::kF32, {64, 8}, spec({"tp", ""})},
                                     {Dtype::kF32, {8, 64}, spec({"", "tp"})}},
                                    target));
  ASSERT_TRUE(std::get<GatherMatmul>(right.instructions.back().kind).gathers_rhs);
  for (const Plan* plan : {&gather, &scatter, &right}) {
    ASSERT_TRUE(OverlapsExchanges(*plan));
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan back, ParsePlanBytes(PlanBytes(*plan)));
    EXPECT_TRUE(back == *plan);
  }
  internal::v1::Plan wire;
  Encode(gather, &wire);
  wire.mutable_instructions(0)->mutable_gather_matmul()->mutable_gather()->clear_algorithm();
  EXPECT_THAT(Decode(wire).status(), StatusIs(kInvalid, Reason::kBadField));
  wire.Clear();
  Encode(gather, &wire);
  wire.mutable_instructions(wire.instructions_size() - 1)
      ->mutable_gather_matmul()
      ->mutable_gathered()
      ->clear_dtype();
  EXPECT_THAT(FieldOf(Decode(wire).status()), ::testing::HasSubstr("gather_matmul.gathered.dtype"));
}

TEST(PlanCodecTest, FusedOpsCrossTheWire) {
  const ValueDescriptor rows = {.dtype = Dtype::kF32, .shape = {4, 6}, .spec = PartitionSpec()};
  const Program program = {.operand_count = 2,
                           .ops = {TensorOp(MapOp{MapFunction::kAdd, {0, 1}}),
                                   TensorOp(ConvertOp{.input = 2, .dtype = Dtype::kBF16}),
                                   TensorOp(MapOp{MapFunction::kSilu, {3}})},
                           .outputs = {4}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan plan, PlanProgram(program, {rows, rows},
                                                              {.mesh_id = "default",
                                                               .mesh_revision = 1,
                                                               .mesh = *Mesh::Parse("tp=2"),
                                                               .kernels = {.may_fuse_ops = true}}));
  ASSERT_TRUE(HasFusedOps(plan));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan back, ParsePlanBytes(PlanBytes(plan)));
  EXPECT_TRUE(back == plan);
  const auto error_with = [&plan](const std::function<void(internal::v1::FusedCompute*)>& tamper) {
    internal::v1::Plan wire;
    Encode(plan, &wire);
    tamper(wire.mutable_instructions(0)->mutable_fused_compute());
    return Decode(wire).status();
  };
  EXPECT_THAT(error_with([](auto* fused) { fused->clear_inputs(); }),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(error_with([](auto* fused) { fused->mutable_ops(2)->clear_op(); }),
              StatusIs(kInvalid, Reason::kBadField));
  EXPECT_THAT(FieldOf(error_with([](auto* fused) { fused->mutable_ops(2)->clear_op(); })),
              ::testing::HasSubstr("fused_compute.ops[2]"));
  EXPECT_THAT(error_with([](auto* fused) {
                for (size_t i = 0; i < kMaxFusedOps; ++i) *fused->add_ops() = fused->ops(2);
              }),
              StatusIs(kInvalid, Reason::kBadField));
}

TEST(PlanCodecTest, CountsAndCutPointsCrossTheWire) {
  const Program program = {.operand_count = 1,
                           .ops = {CollectiveOp{.kind = CollectiveKind::kAllToAll,
                                                .axes = {"tp"},
                                                .split_dimension = 1,
                                                .counts = {5, 11}}},
                           .outputs = {1}};
  v1::Program message;
  Encode(program, &message);
  EXPECT_THAT(Decode(message), IsOkAndHolds(program));
  const ValueDescriptor operand = {
      Dtype::kF32, {8, 16}, PartitionSpec({SpecEntry::Axis("tp")}), {{0, 3, 8}, {}}};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Plan plan, PlanProgram(program, {operand}, {"default", 1, *Mesh::Parse("tp=2")}));
  EXPECT_EQ(plan.values[1].cut_points, (std::vector<CutPoints>{{}, {0, 5, 16}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan back, ParsePlanBytes(PlanBytes(plan)));
  EXPECT_TRUE(back == plan);
}

TEST(PlanCodecTest, PlansCrossTheWireAsTheSameBytes) {
  Program program;
  program.operand_count = 3;
  program.ops = {LinearOp{0, 1, 2, WeightLayout::kOutIn, Activation::kGelu}};
  program.outputs = {3};
  const ValueDescriptor operands[] = {
      {Dtype::kF32, {8, 16}, PartitionSpec()},
      {Dtype::kF32, {32, 16}, PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})},
      {Dtype::kF32, {32}, PartitionSpec()},
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Plan plan, PlanProgram(program, operands, {"default", 1, *Mesh::Parse("dp=2,tp=2")}));
  const std::string bytes = PlanBytes(plan);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan back, ParsePlanBytes(bytes));
  EXPECT_TRUE(back == plan);
  EXPECT_EQ(PlanBytes(back), bytes);
  Program scaled = program;
  std::get<LinearOp>(scaled.ops[0]).scales = 2;
  std::vector<ValueDescriptor> quantised(std::begin(operands), std::end(operands));
  quantised[1].dtype = Dtype::kI8;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const Plan of_i8, PlanProgram(scaled, quantised, {"default", 1, *Mesh::Parse("dp=2,tp=2")}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const Plan again, ParsePlanBytes(PlanBytes(of_i8)));
  EXPECT_TRUE(again == of_i8);
  EXPECT_FALSE(ParsePlanBytes("\xff").ok());
  Plan broken = plan;
  broken.outputs = {99};
  EXPECT_FALSE(ParsePlanBytes(PlanBytes(broken)).ok());
  broken = plan;
  broken.mesh = Mesh();
  const absl::Status status = ParsePlanBytes(PlanBytes(broken)).status();
  EXPECT_THAT(status, StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(FieldOf(status), "mesh");
}

}  // namespace
}  // namespace shardmesh::rpc
