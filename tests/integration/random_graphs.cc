// Puts the operands of random graphs, runs the graphs, and verifies their results.
#include "tests/integration/random_graphs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "client/inspect/verify_step.h"
#include "status/str_cat.h"
#include "tensor/view.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/program/random_programs.h"

namespace shardmesh::test {
namespace {

bool IsState(const Program& program, size_t operand) {
  return std::any_of(program.updates.begin(), program.updates.end(),
                     [&](const StateUpdate& update) { return update.operand == operand; });
}

// Puts the operands in their layouts. Some, which no step updates, stay literals. Adds the ids of
// the arrays to `arrays`.
absl::StatusOr<std::vector<client::Operand>> PutOperands(client::MeshClient& client,
                                                         const RandomProgram& graph,
                                                         std::mt19937& random,
                                                         std::vector<std::string>* arrays) {
  std::vector<client::Operand> operands;
  std::vector<client::PutTensor> tensors;
  std::vector<size_t> put;
  for (size_t i = 0; i < graph.operands.size(); ++i) {
    const Literal& content = graph.contents[i];
    operands.emplace_back(content);
    if (!IsState(graph.program, i) && random() % 4 == 0) continue;
    const absl::StatusOr<TensorView> view =
        TensorView::Create(content.dtype, content.shape, content.bytes);
    if (!view.ok()) return view.status();
    tensors.push_back({.name = "",
                       .view = *view,
                       .spec = graph.operands[i].spec,
                       .cut_points = graph.operands[i].cut_points});
    put.push_back(i);
  }
  if (tensors.empty()) return operands;
  client::PutOptions options;
  options.reuse = false;
  const absl::StatusOr<client::PutResult> result = client.arrays().PutTensors(tensors, options);
  if (!result.ok()) return result.status();
  for (size_t i = 0; i < put.size(); ++i) {
    arrays->push_back(result->arrays[i].descriptor.array_id);
    operands[put[i]] = client::ArraySelector::ById(arrays->back());
  }
  return operands;
}

void ExpectVerified(client::MeshClient& client, const RandomProgram& graph,
                    const std::vector<client::Operand>& operands,
                    std::vector<std::string>* arrays) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepVerifier verifier,
      client::StepVerifier::Create(&client, graph.program, operands, {.seed = 7}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::StepResult result,
      client.compute().Execute(
          {.work = graph.program, .operands = verifier.operands(), .mesh_id = "default"}));
  for (const client::StepOutput& output : result.outputs) {
    arrays->push_back(output.array.descriptor.array_id);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::VerifiedResult> verified,
                                 verifier.Verify(result));
  EXPECT_EQ(verified.size(), graph.program.outputs.size() + graph.program.updates.size());
  EXPECT_THAT(client::CheckVerified(verified), IsOk());
  ASSERT_TRUE(result.timings.predicted.has_value());
  ASSERT_TRUE(result.timings.predicted->sent_bytes.has_value());
  EXPECT_EQ(result.timings.sent_bytes, *result.timings.predicted->sent_bytes);
}

}  // namespace

void ExpectRandomGraphsVerified(client::MeshClient& client, const Mesh& mesh,
                                const RandomCases& cases) {
  for (int64_t i = 0; i < cases.count && !::testing::Test::HasFailure(); ++i) {
    const auto seed = static_cast<uint32_t>(cases.first_seed + i);
    std::mt19937 random(seed);
    const RandomProgram graph =
        RandomGraph(mesh, {.has_partial_sums = false, .has_collectives = false}, random);
    SCOPED_TRACE(StrCat("SHARDMESH_RANDOM_SEED=", seed, ": ", graph.ToString()));
    std::vector<std::string> arrays;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::Operand> operands,
                                   PutOperands(client, graph, random, &arrays));
    ExpectVerified(client, graph, operands, &arrays);
    if (arrays.empty()) continue;
    EXPECT_THAT(client.arrays().ReleaseArrays(arrays), IsOk());
  }
}

}  // namespace shardmesh::test
