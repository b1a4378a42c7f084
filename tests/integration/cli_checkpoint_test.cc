// Checkpoints that a map changes on their way to real workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/mesh_client.h"
#include "tensor/float_convert.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/zip_text.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;

// A matrix of F32 whose elements all differ as BF16 or round.
std::vector<float> Matrix(int64_t rows, int64_t columns) {
  std::vector<float> values;
  for (int64_t i = 0; i < rows * columns; ++i) {
    values.push_back(static_cast<float>(i * 7919 % 100'003) / 13.0f - 4000.0f);
  }
  return values;
}

TEST_F(ClusterCommandTest, LoadsATransposedBF16MatrixByColumnsAsTheMapSays) {
  constexpr int64_t kRows = 1030;  // of the file; more than one piece on each device
  constexpr int64_t kColumns = 2052;
  const std::vector<float> values = Matrix(kRows, kColumns);
  const std::string bytes(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(float));
  const std::string file =
      WriteFile(Path("torch.npz"),
                ZipText({{.name = "h.0.weight.npy", .data = NpyText("<f4", "(1030, 2052)", bytes)},
                         {.name = "ids.npy", .data = NpyText("|u1", "(3,)", "abc")}}));
  const std::string map = WriteFile(Path("map.yaml"), R"(tensors:
  - {pattern: '^h\.(\d+)\.weight$', replace: 'h_\1.kernel', transpose: true, dtype: BF16}
  - {pattern: ids, skip: true}
unmatched: error
)");
  const std::string rules =
      WriteFile(Path("columns.yaml"), "rules:\n- {pattern: kernel, spec: [null, tp]}\n");
  const CommandResult planned =
      cluster_->Run({"plan", file, "--map", map, "--rules", rules, "--output=json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  const CommandResult loaded =
      cluster_->Run({"load", file, "--map", map, "--rules", rules, "--output=json"});
  ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
  const json told = json::parse(loaded.out);
  EXPECT_EQ(json::parse(planned.out)["mapping"], told["mapping"]);
  EXPECT_EQ(told["mapping"]["renamed"], 1);
  EXPECT_EQ(told["mapping"]["transposed"], 1);
  EXPECT_EQ(told["mapping"]["converted"], 1);
  EXPECT_EQ(told["mapping"]["skipped"], json::array({"ids"}));
  EXPECT_EQ(told["mapping"]["changes"][0]["source"], "h.0.weight");

  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::GatheredTensor kernel,
      cluster_->client().arrays().Gather(client::ArraySelector::ByName("h_0.kernel")));
  ASSERT_EQ(kernel.view().dtype(), Dtype::kBF16);
  ASSERT_EQ(kernel.view().shape(), (Shape{kColumns, kRows}));
  EXPECT_EQ(kernel.array().descriptor.spec.ToString(), "P(None, 'tp')");
  int64_t wrong = 0;
  for (int64_t row = 0; row < kColumns; ++row) {
    for (int64_t column = 0; column < kRows; ++column) {
      uint16_t have = 0;
      std::memcpy(&have, kernel.view().bytes().data() + (row * kRows + column) * 2, 2);
      wrong += have == F32ToBF16(values[static_cast<size_t>(column * kColumns + row)]) ? 0 : 1;
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(ClusterCommandTest, RefusesAMapThatDoesNotFitBeforeAnythingMoves) {
  const auto load = [this](const std::string& rule) {
    return std::vector<std::string>{"load",    checkpoint_,
                                    "--rules", kRules,
                                    "--map",   WriteFile(Path("m.yaml"), "tensors:\n" + rule)};
  };
  const auto refused = [this](const std::string& what, const std::vector<std::string>& command,
                              const std::string& error) {
    ExpectRefused({{what, command, error}});
  };
  refused("a name twice", load("- {pattern: '^.*bias$', replace: b}\n"), "both get the name \"b\"");
  refused("another rank", load("- {pattern: bias, transpose: [1, 0]}\n"), "m.yaml:2:3: tensor ");
  refused("another shape", load("- {pattern: bias, shape: [7]}\n"), "but the rule expects (7,)");
  refused("a type", load("- {pattern: position_ids, dtype: F16}\n"), "I64 cannot be converted");
  refused("a key", load("- {pattern: bias, rename: b}\n"), "m.yaml:2:19: unknown key \"rename\"");
  refused("unmatched", load("- {pattern: bias}\nunmatched: error\n"), "UNMATCHED_TENSOR");
  const CommandResult wrong_type =
      cluster_->Run({"load", checkpoint_, "--rules", kRules, "--dtype", "I32"});
  EXPECT_EQ(wrong_type.exit_code, 2);
  EXPECT_THAT(wrong_type.err, HasSubstr("I32 is none of F32, F16 and BF16"));
}

}  // namespace
}  // namespace shardmesh::test
