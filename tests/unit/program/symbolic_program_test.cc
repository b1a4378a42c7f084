// Programs with a symbolic dimension: shapes that follow from it, errors, and programs of one
// length.
#include "program/graph/symbolic_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/graph/graph.h"
#include "program/graph/graph_builder.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

auto RefusesSymbol(Reason reason, std::string_view message) {
  return StatusIs(absl::StatusCode::kInvalidArgument, reason, HasSubstr(std::string(message)));
}

// The operands of the tests: seq is from 2 to 64.
struct Operands {
  explicit Operands(GraphBuilder* graph)
      : seq(graph->Symbol("seq", 2, 64)),
        x(graph->Parameter("x", Dtype::kF32, {seq, 8})),
        batch(graph->Parameter("batch", Dtype::kF32, {2, seq, 4, 8})),
        ids(graph->Parameter("ids", Dtype::kI32, {2, seq})),
        mask(graph->Parameter("mask", Dtype::kI32, {2, seq})),
        square(graph->Parameter("square", Dtype::kF32, {seq, seq})),
        w(graph->Parameter("w", Dtype::kF32, {8, 8})),
        v(graph->Parameter("v", Dtype::kF32, {8})),
        four(graph->Parameter("four", Dtype::kF32, {4})),
        cache(graph->Parameter("cache", Dtype::kF32, {2, 128, 4, 8})) {}

  GraphExtent seq;
  GraphValue x, batch, ids, mask, square, w, v, four, cache;
};

using BuildOp = std::function<GraphValue(GraphBuilder&, const Operands&)>;

TEST(SymbolicProgramTest, ShapesOfAllOpsFollow) {
  struct Case {
    std::string name;
    BuildOp build;
    GraphShape (*shape)(GraphExtent seq);
  };
  const CollectiveOp gather = {.kind = CollectiveKind::kAllGather, .axes = {"tp"}, .dimension = 1};
  const std::vector<Case> cases = {
      {"add", [](auto& g, auto& o) { return g.Add(o.x, o.v); },
       [](GraphExtent s) {
         return GraphShape{s, 8};
       }},
      {"add of a scalar", [](auto& g, auto& o) { return g.Add(o.x, 1.0); },
       [](GraphExtent s) {
         return GraphShape{s, 8};
       }},
      {"convert", [](auto& g, auto& o) { return g.Convert(o.x, Dtype::kBF16); },
       [](GraphExtent s) {
         return GraphShape{s, 8};
       }},
      {"norm", [](auto& g, auto& o) { return g.RmsNorm(o.x, {.weight = o.v}); },
       [](GraphExtent s) {
         return GraphShape{s, 8};
       }},
      {"softmax", [](auto& g, auto& o) { return g.Softmax(o.square); },
       [](GraphExtent s) {
         return GraphShape{s, s};
       }},
      {"reduce of the dimension", [](auto& g, auto& o) { return g.Sum(o.x, {0}); },
       [](GraphExtent) { return GraphShape{8}; }},
      {"reduce of another", [](auto& g, auto& o) { return g.Sum(o.x, {1}, true); },
       [](GraphExtent s) {
         return GraphShape{s, 1};
       }},
      {"rotary", [](auto& g, auto& o) { return g.Rotary(o.batch, o.ids, o.four); },
       [](GraphExtent s) {
         return GraphShape{2, s, 4, 8};
       }},
      {"embedding", [](auto& g, auto& o) { return g.Embedding(o.w, o.ids); },
       [](GraphExtent s) {
         return GraphShape{2, s, 8};
       }},
      {"attention",
       [](auto& g, auto& o) {
         return g.Attention(o.batch, o.batch, o.batch, {.positions = o.ids, .mask = o.mask});
       },
       [](GraphExtent s) {
         return GraphShape{2, s, 4, 8};
       }},
      {"top-k", [](auto& g, auto& o) { return g.TopK(o.square, 2); },
       [](GraphExtent s) {
         return GraphShape{s, 2};
       }},
      {"argmax", [](auto& g, auto& o) { return g.Argmax(o.square); },
       [](GraphExtent s) { return GraphShape{s}; }},
      {"reshape by the symbol",
       [](auto& g, auto& o) {
         return g.Reshape(o.batch, {2 * o.seq, 32});
       },
       [](GraphExtent s) {
         return GraphShape{2 * s, 32};
       }},
      {"reshape by -1",
       [](auto& g, auto& o) {
         return g.Reshape(o.batch, {-1, 16});
       },
       [](GraphExtent s) {
         return GraphShape{s * 4, 16};
       }},
      {"reshape by -1 beside the symbol",
       [](auto& g, auto& o) {
         return g.Reshape(o.batch, {o.seq, -1, 4});
       },
       [](GraphExtent s) {
         return GraphShape{s, 16, 4};
       }},
      {"transpose",
       [](auto& g, auto& o) {
         return g.Transpose(o.x, {1, 0});
       },
       [](GraphExtent s) {
         return GraphShape{8, s};
       }},
      {"slice of another dimension", [](auto& g, auto& o) { return g.Slice(o.x, 1, 2, 5); },
       [](GraphExtent s) {
         return GraphShape{s, 3};
       }},
      {"slice to a number", [](auto& g, auto& o) { return g.Slice(o.x, 0, 0, 2); },
       [](GraphExtent) {
         return GraphShape{2, 8};
       }},
      {"slice from the end", [](auto& g, auto& o) { return g.Slice(o.x, 0, -2, o.seq); },
       [](GraphExtent) {
         return GraphShape{2, 8};
       }},
      {"slice to before the end", [](auto& g, auto& o) { return g.Slice(o.x, 0, 1, -1); },
       [](GraphExtent s) {
         return GraphShape{s - 2, 8};
       }},
      {"concatenate of a constant",
       [](auto& g, auto& o) {
         return g.Concatenate({o.x, o.w}, 0);
       },
       [](GraphExtent s) {
         return GraphShape{s + 8, 8};
       }},
      {"concatenate with itself",
       [](auto& g, auto& o) {
         return g.Concatenate({o.x, o.x}, 0);
       },
       [](GraphExtent s) {
         return GraphShape{2 * s, 8};
       }},
      {"update-rows", [](auto& g, auto& o) { return g.UpdateRows(o.cache, o.batch, o.ids); },
       [](GraphExtent) {
         return GraphShape{2, 128, 4, 8};
       }},
      {"linear", [](auto& g, auto& o) { return g.Linear(o.x, o.w, {.bias = o.v}); },
       [](GraphExtent s) {
         return GraphShape{s, 8};
       }},
      {"matmul", [](auto& g, auto& o) { return g.Matmul(o.x, o.x, {.transpose_rhs = true}); },
       [](GraphExtent s) {
         return GraphShape{s, s};
       }},
      {"matmul that contracts the dimension",
       [](auto& g, auto& o) { return g.Matmul(o.x, o.x, {.transpose_lhs = true}); },
       [](GraphExtent) {
         return GraphShape{8, 8};
       }},
      {"reshard", [](auto& g, auto& o) { return g.Reshard(o.x, PartitionSpec()); },
       [](GraphExtent s) {
         return GraphShape{s, 8};
       }},
      {"all-gather", [&](auto& g, auto& o) { return g.Collective(o.x, gather); },
       [](GraphExtent s) {
         return GraphShape{s, 8};
       }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    GraphBuilder builder;
    const Operands operands(&builder);
    const GraphValue y = each.build(builder, operands);
    ASSERT_THAT(builder.status(), IsOk());
    std::vector<GraphExtent> extents;
    for (size_t i = 0; i < builder.ShapeOf(y).size(); ++i) {
      extents.push_back(builder.ExtentOf(y, static_cast<int64_t>(i)));
    }
    EXPECT_EQ(extents, each.shape(operands.seq).extents());
    builder.Output("y", y);
    const auto graph = builder.Build();
    ASSERT_THAT(graph, IsOk());
    // The graph satisfies the rules of graphs from files.
    EXPECT_THAT(CheckGraph(*graph), IsOkAndHolds(*graph));
    for (const int64_t length : {2, 3, 7, 64}) {
      const auto at_length = GraphAt(*graph, length);
      ASSERT_THAT(at_length, IsOk());
      EXPECT_FALSE(at_length->program.symbol.has_value());
      Shape expected;
      for (const GraphExtent extent : extents) {
        expected.push_back(extent.factor() * length + extent.offset());
      }
      EXPECT_EQ(at_length->outputs[0].type->shape, expected) << length;
    }
  }
}

TEST(SymbolicProgramTest, OpsThatDoNotFitAtSomeLengthAreRefusedByName) {
  struct Case {
    std::string op;
    BuildOp build;
  };
  const std::vector<Case> cases = {
      // It would fit at seq 8 only.
      {"add", [](auto& g, auto& o) { return g.Add(o.square, o.w); }},
      {"rms-norm", [](auto& g, auto& o) { return g.RmsNorm(o.square, {.weight = o.v}); }},
      {"softmax", [](auto& g, auto& o) { return g.Softmax(o.x, {.mask = o.mask}); }},
      {"rotary",
       [](auto& g, auto& o) {
         return g.Rotary(g.Reshape(o.batch, {2, 4, o.seq, 8}), o.ids, o.four);
       }},
      {"attention",
       [](auto& g, auto& o) {
         return g.Attention(o.batch, o.batch, o.batch, {.positions = o.four});
       }},
      {"top-k", [](auto& g, auto& o) { return g.TopK(o.square, 3); }},
      {"reshape",
       [](auto& g, auto& o) {
         return g.Reshape(o.x, {16, 8});
       }},
      {"reshape",
       [](auto& g, auto& o) {
         return g.Reshape(o.x, {o.seq + 1, 8});
       }},
      {"reshape",
       [](auto& g, auto& o) {
         return g.Reshape(o.x, {-1, 16});
       }},
      {"reshape", [](auto& g, auto& o) { return g.Reshape(o.square, {-1}); }},
      {"slice", [](auto& g, auto& o) { return g.Slice(o.x, 0, 0, 3); }},
      {"slice", [](auto& g, auto& o) { return g.Slice(o.x, 0, 0, o.seq + 1); }},
      {"slice", [](auto& g, auto& o) { return g.Slice(o.x, 0, -3, o.seq); }},
      {"concatenate",
       [](auto& g, auto& o) {
         return g.Concatenate({o.square, o.x}, 0);
       }},
      {"update-rows", [](auto& g, auto& o) { return g.UpdateRows(o.cache, o.cache, o.ids); }},
      {"linear", [](auto& g, auto& o) { return g.Linear(o.square, o.w); }},
      {"matmul", [](auto& g, auto& o) { return g.Matmul(o.square, o.w); }},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(StrCat(i, " ", cases[i].op));
    GraphBuilder builder;
    const Operands operands(&builder);
    cases[i].build(builder, operands);
    EXPECT_THAT(builder.status(), StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(std::string(builder.status().message()),
                AllOf(HasSubstr(StrCat("(", cases[i].op, "): ")), HasSubstr("seq")));
  }
}

TEST(SymbolicProgramTest, ErrorsShowSymbolicShapes) {
  GraphBuilder builder;
  const Operands operands(&builder);
  builder.Add(builder.Concatenate({operands.x, operands.x}, 0), operands.x);
  EXPECT_THAT(builder.status(), RefusesSymbol(Reason::kShapeMismatch,
                                              "op 1 (add): at seq 2: shapes (4, 8) and (2, 8)"));
  EXPECT_THAT(std::string(builder.status().message()),
              HasSubstr("op 0 (concatenate) F32 (2*seq, 8), \"x\" F32 (seq, 8)"));
}

TEST(SymbolicProgramTest, ALengthInBetweenDoesNotSlipThrough) {
  // 3 fits at the shortest length by broadcasting, and at the longest.
  GraphBuilder builder;
  const GraphExtent n = builder.Symbol("n", 1, 3);
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {n});
  builder.Add(x, builder.Parameter("y", Dtype::kF32, {3}));
  EXPECT_THAT(builder.status(), RefusesSymbol(Reason::kShapeMismatch, "at n 2"));
}

TEST(SymbolicProgramTest, MultiplesMakeDivisorsFit) {
  GraphBuilder builder;
  const GraphExtent n = builder.Symbol("n", 0, 64, 16);
  const GraphValue x = builder.Parameter("x", Dtype::kF32, {n, 3});
  const GraphValue y = builder.Reshape(x, {-1, 24});
  EXPECT_THAT(builder.status(), StatusIs(absl::StatusCode::kInvalidArgument))
      << "2 * n / 16 has no whole factor";
  GraphBuilder other;
  const GraphExtent m = other.Symbol("m", 0, 64, 16);
  const GraphValue z = other.Reshape(other.Parameter("z", Dtype::kF32, {m, 8}), {-1, 8});
  EXPECT_EQ(other.ExtentOf(z, 0), m);
  static_cast<void>(y);
}

TEST(SymbolicProgramTest, StateOfTheDimensionIsUpdated) {
  GraphBuilder builder;
  const GraphExtent n = builder.Symbol("n", 1, 9);
  const GraphValue x = builder.State("x", Dtype::kF32, {n});
  builder.Update(x, builder.Negate(x));
  EXPECT_THAT(builder.Build(), IsOk());
  GraphBuilder other;
  const GraphExtent m = other.Symbol("m", 1, 9);
  const GraphValue y = other.State("y", Dtype::kF32, {9});
  other.Update(y, other.Negate(other.Parameter("z", Dtype::kF32, {m})));
  EXPECT_THAT(other.status(), RefusesSymbol(Reason::kShapeMismatch, "a state keeps its type"));
}

TEST(SymbolicProgramTest, RefusesBadDimensions) {
  struct Case {
    std::string name;
    int64_t min, max, multiple;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"", 1, 2, 1, "0 bytes"},
      {std::string(65, 's'), 1, 2, 1, "65 bytes"},
      {"seq", -1, 2, 1, "-1 to 2"},
      {"seq", 3, 2, 1, "3 to 2"},
      {"seq", 1, kMaxLength + 1, 1, "1 to"},
      {"seq", 1, 2, 0, "multiple of seq is 0"},
      {"seq", 1, 32, 16, "multiples of 16"},
  };
  for (const Case& each : cases) {
    GraphBuilder builder;
    builder.Symbol(each.name, each.min, each.max, each.multiple);
    EXPECT_THAT(builder.status(), RefusesSymbol(Reason::kBadField, each.message));
  }
  GraphBuilder twice;
  twice.Symbol("a", 1, 2);
  twice.Symbol("b", 1, 2);
  EXPECT_THAT(twice.status(), RefusesSymbol(Reason::kBadField, "dimension a already"));
  GraphBuilder foreign;
  foreign.Parameter("x", Dtype::kF32, {GraphExtent(1, 0)});
  EXPECT_THAT(foreign.status(), RefusesSymbol(Reason::kBadField, "call Symbol"));
  GraphBuilder negative;
  negative.Parameter("x", Dtype::kF32, {8 - negative.Symbol("n", 1, 8)});
  EXPECT_THAT(negative.status(), RefusesSymbol(Reason::kBadField, "factor below 1"));
  GraphBuilder unused;
  unused.Symbol("n", 1, 8);
  unused.Output("y", unused.Negate(unused.Parameter("x", Dtype::kF32, {2})));
  EXPECT_THAT(unused.Build(), RefusesSymbol(Reason::kBadField, "no operand has"));
}

// y = reshape(x, [2 * n]), where x is [n, 2] and z is [n + 1].
Program SmallProgram() {
  return {.operand_count = 2,
          .ops = {TensorOp(
              ReshapeOp{.input = 0, .shape = {16}, .symbolic_shape = {{.index = 0, .factor = 2}}})},
          .outputs = {2},
          .updates = {},
          .symbol = SymbolicDimension{.name = "n", .min = 2, .max = 8, .multiple = 2},
          .symbolic_extents = {{.operand = 0, .extent = {.index = 0}},
                               {.operand = 1, .extent = {.index = 0, .factor = 1, .offset = 1}}}};
}

TEST(SymbolicProgramTest, ChecksNumbersOfPrograms) {
  EXPECT_THAT(CheckSymbolicProgram(SmallProgram()), IsOk());
  const auto refused = [](const std::function<void(Program&)>& change) {
    Program program = SmallProgram();
    change(program);
    return CheckSymbolicProgram(program);
  };
  const auto numbers = [](Program& program) -> std::vector<SymbolicNumber>& {
    return std::get<ReshapeOp>(std::get<TensorOp>(program.ops[0])).symbolic_shape;
  };
  EXPECT_THAT(refused([&](Program& p) { numbers(p)[0].index = 1; }),
              RefusesSymbol(Reason::kBadField,
                            "op 0 (reshape): symbolic_shape: a symbolic number "
                            "replaces entry 1; there are 1"));
  EXPECT_THAT(refused([&](Program& p) { numbers(p)[0].factor = 0; }),
              RefusesSymbol(Reason::kBadField, "factor of the length is 0"));
  EXPECT_THAT(refused([&](Program& p) { numbers(p)[0].offset = kMaxLength + 1; }),
              RefusesSymbol(Reason::kBadField, "offset"));
  EXPECT_THAT(refused([&](Program& p) { numbers(p).push_back(numbers(p)[0]); }),
              RefusesSymbol(Reason::kBadField, "two symbolic numbers"));
  EXPECT_THAT(refused([](Program& p) { p.symbol = std::nullopt; }),
              RefusesSymbol(Reason::kBadField, "op 0 (reshape) depends on a length"));
  EXPECT_THAT(refused([](Program& p) {
                p.ops.clear();
                p.symbol = std::nullopt;
              }),
              RefusesSymbol(Reason::kBadField, "has no symbolic dimension"));
  EXPECT_THAT(refused([](Program& p) { p.symbolic_extents.clear(); }),
              RefusesSymbol(Reason::kBadField, "no operand has"));
  EXPECT_THAT(refused([](Program& p) { p.symbolic_extents[1].operand = 2; }),
              RefusesSymbol(Reason::kBadField, "no operand"));
  EXPECT_THAT(refused([](Program& p) { p.symbolic_extents[1].operand = 0; }),
              RefusesSymbol(Reason::kBadField, "two symbolic extents"));
  EXPECT_THAT(refused([](Program& p) { p.symbolic_extents[1].extent.factor = -1; }),
              RefusesSymbol(Reason::kBadField, "at least 1"));
}

TEST(SymbolicProgramTest, TheLengthFollowsFromTheOperands) {
  const Program program = SmallProgram();
  const auto length_of = [&](std::optional<Shape> x, std::optional<Shape> z) {
    return LengthOf(program, [&](ValueIndex operand) -> const Shape* {
      const std::optional<Shape>& shape = operand == 0 ? x : z;
      return shape.has_value() ? &*shape : nullptr;
    });
  };
  EXPECT_THAT(length_of(Shape{4, 2}, Shape{5}), IsOkAndHolds(4));
  EXPECT_THAT(length_of(std::nullopt, Shape{9}), IsOkAndHolds(8));
  EXPECT_THAT(
      length_of(Shape{4, 2}, Shape{4}),
      RefusesSymbol(Reason::kShapeMismatch,
                    "dimension 0 of operand 1 is 4, so n would be 3; by dimension 0 of operand "
                    "0 it is 4"));
  EXPECT_THAT(
      length_of(Shape{10, 2}, Shape{11}),
      RefusesSymbol(Reason::kShapeMismatch,
                    "dimension 0 of operand 0 is 10, so n is 10; the program is for n from 2 "
                    "to 8, a multiple of 2"));
  EXPECT_THAT(length_of(Shape{3, 2}, std::nullopt),
              RefusesSymbol(Reason::kShapeMismatch, "n is 3"));
  EXPECT_THAT(length_of(Shape{0, 2}, std::nullopt),
              RefusesSymbol(Reason::kShapeMismatch, "n is 0"));
  EXPECT_THAT(length_of(Shape{}, std::nullopt),
              RefusesSymbol(Reason::kShapeMismatch, "its dimension 0 must be n"));
  EXPECT_THAT(length_of(std::nullopt, std::nullopt),
              RefusesSymbol(Reason::kShapeMismatch, "no operand is known"));
}

TEST(SymbolicProgramTest, AProgramOfOneLengthHasNumbers) {
  const Program at = ProgramAt(SmallProgram(), 6);
  EXPECT_THAT(at.ops, ElementsAre(ProgramOp(TensorOp(ReshapeOp{.input = 0, .shape = {12}}))));
  EXPECT_FALSE(at.symbol.has_value());
  EXPECT_TRUE(at.symbolic_extents.empty());
  const SliceOp slice = {.starts = {0, 0},
                         .limits = {0, 3},
                         .symbolic_starts = {{.index = 0, .factor = 1, .offset = -1}},
                         .symbolic_limits = {{.index = 0}}};
  EXPECT_EQ(OpAt(TensorOp(slice), 5),
            ProgramOp(TensorOp(SliceOp{.starts = {4, 0}, .limits = {5, 3}})));
  EXPECT_THAT(ResultTypeOf(slice, {{.dtype = Dtype::kF32, .shape = {5, 3}}}),
              RefusesSymbol(Reason::kBadField, "depends on a length"));
}

TEST(SymbolicProgramTest, ChecksTheFirstLengthsAndTheLast) {
  const auto lengths = [](int64_t min, int64_t max, int64_t multiple) {
    return LengthsToCheck({.name = "n", .min = min, .max = max, .multiple = multiple});
  };
  EXPECT_THAT(lengths(1, 1, 1), ElementsAre(1));
  EXPECT_THAT(lengths(0, 3, 1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(lengths(1, 5, 1), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(lengths(16, 512, 16), ElementsAre(16, 32, 48, 64, 80, 512));
}

TEST(SymbolicProgramTest, FindsTheNumberThatHasTheValues) {
  EXPECT_EQ(NumberThatHas(3, {1, 2, 9}, {5, 7, 21}),
            (SymbolicNumber{.index = 3, .factor = 2, .offset = 3}));
  EXPECT_EQ(NumberThatHas(0, {1, 2, 9}, {5, 5, 5}),
            (SymbolicNumber{.index = 0, .factor = 0, .offset = 5}));
  EXPECT_EQ(NumberThatHas(0, {4}, {5}), (SymbolicNumber{.index = 0, .factor = 0, .offset = 5}));
  EXPECT_EQ(NumberThatHas(0, {1, 2, 3}, {1, 4, 9}), std::nullopt);
  EXPECT_EQ(NumberThatHas(0, {2, 4}, {1, 2}), std::nullopt);
}

}  // namespace
}  // namespace shardmesh
