// Puts by logical axes, slices of arrays, and results that lie as asked for, with real workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "status/reason.h"
#include "tensor/npy.h"
#include "tensor/view.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ArrayOptionsTest : public ::testing::Test {
 protected:
  // Four workers on fsdp=2,tp=2.
  void SetUp() override {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_, TestCluster::Start({}));
    std::iota(values_.begin(), values_.end(), 0.0F);
  }

  client::MeshClient& client() { return cluster_->client(); }
  TensorView View() const {
    return *TensorView::Create(Dtype::kF32, {8, 12},
                               {reinterpret_cast<const char*>(values_.data()), 4 * values_.size()});
  }
  client::PutTensor Tensor(const std::string& name) const { return {.name = name, .view = View()}; }
  // The elements of rows [r0, r1) and columns [c0, c1).
  std::vector<float> Cut(size_t r0, size_t r1, size_t c0, size_t c1) const {
    std::vector<float> cut;
    for (size_t r = r0; r < r1; ++r) {
      cut.insert(cut.end(), values_.begin() + static_cast<ptrdiff_t>(12 * r + c0),
                 values_.begin() + static_cast<ptrdiff_t>(12 * r + c1));
    }
    return cut;
  }

  std::vector<float> values_ = std::vector<float>(96);
  std::unique_ptr<TestCluster> cluster_;
};

const PartitionSpec& Both() {
  static const auto* const spec =
      new PartitionSpec({SpecEntry::Axis("fsdp"), SpecEntry::Axis("tp")});
  return *spec;
}

TEST_F(ArrayOptionsTest, APutByAxesLiesAsResolveTreeSays) {
  client::PutTensor tensor = Tensor("a");
  tensor.axes = {{AxisValue::Name("__BATCH__"), AxisValue::Name("__EMBED__")}};
  const client::PutOptions options = {.mode = RuntimeMode::kPrefill};
  const client::TreeTensor in_tree = {.name = "a", .shape = {8, 12}, .axes = tensor.axes};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::TreeAnswer tree,
      client().layouts().ResolveTree({.mode = options.mode, .mesh = "default"}, {&in_tree, 1}));
  ASSERT_THAT(tree.specs, SizeIs(1));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutResult put,
                                 client().arrays().PutTensors({&tensor, 1}, options));
  EXPECT_EQ(put.arrays[0].descriptor.spec, tree.specs[0].effective);
  EXPECT_EQ(put.arrays[0].corrections.size(), tree.specs[0].corrections.size());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor back,
                                 client().arrays().Gather(client::ArraySelector::ByName("a")));
  EXPECT_EQ(FloatsOf(back.view().bytes()), values_);
}

TEST_F(ArrayOptionsTest, ShardDoesWhatAPutByAxesDoes) {
  const std::vector<AxisValue> axes = {AxisValue::Name("__BATCH__"), AxisValue::Name("__EMBED__")};
  client::PutTensor tensor = Tensor("a");
  tensor.axes = axes;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::PutResult put,
      client().arrays().PutTensors({&tensor, 1}, {.mode = RuntimeMode::kPrefill}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutArray sharded,
                                 client().arrays().Shard(View(), axes, RuntimeMode::kPrefill));
  EXPECT_EQ(sharded.descriptor.spec, put.arrays[0].descriptor.spec);
  EXPECT_EQ(sharded.corrections.size(), put.arrays[0].corrections.size());
  const std::string& id = sharded.descriptor.array_id;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor back,
                                 client().arrays().Gather(client::ArraySelector::ById(id)));
  EXPECT_EQ(FloatsOf(back.view().bytes()), values_);
  EXPECT_THAT(client().arrays().ReleaseArrays({id}), IsOkAndHolds(1));
  EXPECT_THAT(
      client().arrays().Shard(View(), axes, RuntimeMode::kTrain, {.mode = RuntimeMode::kPrefill}),
      StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(ArrayOptionsTest, AValidatedPutLeavesNothing) {
  client::PutTensor tensor = Tensor("a");
  tensor.spec = Both();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::PutResult put,
      client().arrays().PutTensors({&tensor, 1}, {.validate_only = true}));
  ASSERT_THAT(put.arrays, SizeIs(1));
  EXPECT_EQ(put.arrays[0].descriptor.spec, Both());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::Array> all,
                                 client().arrays().ListArrays("", /*include_unnamed=*/true));
  EXPECT_THAT(all, IsEmpty());
  tensor.spec = PartitionSpec({SpecEntry::Axis("none")});
  EXPECT_THAT(client().arrays().PutTensors({&tensor, 1}, {.strict = true, .validate_only = true}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
}

TEST_F(ArrayOptionsTest, ASliceIsTheCutOfTheWhole) {
  client::PutTensor tensor = Tensor("a");
  tensor.spec = Both();
  ASSERT_THAT(client().arrays().PutTensors({&tensor, 1}), IsOk());
  const auto a = client::ArraySelector::ByName("a");
  for (const auto& [r0, r1, c0, c1] : std::vector<std::array<size_t, 4>>{
           {0, 8, 0, 12}, {0, 4, 0, 6}, {3, 5, 5, 7}, {7, 8, 0, 12}, {1, 2, 11, 12}}) {
    const client::ArraySlice slice = {{static_cast<int64_t>(r0), static_cast<int64_t>(r1)},
                                      {static_cast<int64_t>(c0), static_cast<int64_t>(c1)}};
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor part,
                                   client().arrays().Gather(a, slice));
    EXPECT_EQ(FloatsOf(part.view().bytes()), Cut(r0, r1, c0, c1));
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor rows,
                                 client().arrays().Gather(a, client::ArraySlice{{2, 4}, {}}));
  EXPECT_EQ(FloatsOf(rows.view().bytes()), Cut(2, 4, 0, 12));
  for (const client::ArraySlice& wrong :
       std::vector<client::ArraySlice>{{{0, 9}, {}}, {{4, 4}, {}}, {{0, 1}}, {{}, {}, {}}}) {
    EXPECT_THAT(client().arrays().Gather(a, wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadTile));
  }
}

TEST_F(ArrayOptionsTest, AResultLiesAsAskedFor) {
  client::PutTensor tensor = Tensor("a");
  tensor.spec = Both();
  ASSERT_THAT(client().arrays().PutTensors({&tensor, 1}), IsOk());
  const auto a = client::ArraySelector::ByName("a");
  const auto multiply = [&](std::vector<std::optional<PartitionSpec>> specs) {
    return client().compute().Matmul(
        {.lhs = a, .rhs = a, .transpose_rhs = true, .output = {.specs = std::move(specs)}});
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult free, multiply({}));
  const PartitionSpec wanted({SpecEntry::Axis("tp"), SpecEntry::Axis("fsdp")});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult laid_out, multiply({wanted}));
  EXPECT_EQ(laid_out.outputs[0].array.descriptor.spec, wanted);
  const auto elements = [&](const client::StepResult& result) {
    const auto gathered = client().arrays().Gather(
        client::ArraySelector::ById(result.outputs[0].array.descriptor.array_id));
    return gathered.ok() ? FloatsOf(gathered->view().bytes()) : std::vector<float>();
  };
  EXPECT_THAT(elements(free), SizeIs(64));
  EXPECT_EQ(elements(free), elements(laid_out));
  EXPECT_THAT(multiply({PartitionSpec({SpecEntry::Axis("none")})}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kAxisNotInMesh));
}

TEST_F(ArrayOptionsTest, ListsArraysWithoutANameAfterThoseWithOne) {
  client::PutTensor tensors[] = {Tensor("b"), Tensor(""), Tensor("a")};
  for (client::PutTensor& tensor : tensors) tensor.spec = Both();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutResult put,
                                 client().arrays().PutTensors(tensors));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::Array> named,
                                 client().arrays().ListArrays());
  EXPECT_THAT(named, SizeIs(2));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<client::Array> all,
                                 client().arrays().ListArrays("", /*include_unnamed=*/true));
  std::vector<std::string> names;
  for (const client::Array& array : all) names.push_back(array.name);
  EXPECT_THAT(names, ElementsAre("a", "b", ""));
  EXPECT_EQ(all[2].descriptor.array_id, put.arrays[1].descriptor.array_id);
}

TEST_F(ClusterCommandTest, MultipliesTransposedOperandsAndListsArraysWithoutAName) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "8x12", "--out", Path("x.npy")}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"put", Path("x.npy"), "--as", "x", "--spec", "fsdp,tp"}), Succeeded());
  CommandResult result = cluster_->Run({"matmul", "x", "x", "--transpose-a", "--as", "xtx"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  result = cluster_->Run({"ls", "--unnamed", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& array : nlohmann::json::parse(result.out)) {
    if (array["name"] == "xtx") shapes.push_back(array["shape"]);
  }
  EXPECT_THAT(shapes, ElementsAre(ElementsAre(12, 12)));
  // A weight as flax has it: inputs first.
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "12x4", "--out", Path("w.npy")}),
              Succeeded());
  ASSERT_THAT(cluster_->Run({"put", Path("w.npy"), "--as", "w", "--spec", "tp,-"}), Succeeded());
  result = cluster_->Run({"linear", "--input=x", "--weight=w", "--layout=in-out", "--as", "y"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  result = cluster_->Run({"linear", "--input=x", "--weight=w", "--layout=out-in", "--as", "z"});
  EXPECT_EQ(result.exit_code, 1) << "the weight has 4 inputs then, not 12";
}

TEST_F(ClusterCommandTest, PutsATensorAndGetsASliceOfIt) {
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "8x12", "--out", Path("x.npy")}),
              Succeeded());
  CommandResult result = cluster_->Run(
      {"put", Path("x.npy"), "--as", "x", "--axes", "__BATCH__,__EMBED__", "--validate-only"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Would put x"));
  EXPECT_EQ(cluster_->Run({"ls", "--unnamed", "-o", "name"}).out, "") << "it put nothing";
  result = cluster_->Run({"put", "--as", "x", Path("x.npy"), "--spec", "-,-", "--validate-only"});
  EXPECT_EQ(result.exit_code, 0) << "--as takes one name: " << result.err;
  result = cluster_->Run({"put", Path("x.npy"), "--as", "x", "--spec", "fsdp,tp"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Put x: F32"));
  result =
      cluster_->Run({"get", "x", "--out", Path("cut.npy"), "--slice", "2:4,:", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["slice"], "[2,4)x[0,12)");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile whole, NpyFile::Open(Path("x.npy")));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile cut, NpyFile::Open(Path("cut.npy")));
  EXPECT_THAT(cut.View().shape(), ElementsAre(2, 12));
  const absl::Span<const char> rows = whole.View().bytes().subspan(2 * 12 * sizeof(float));
  EXPECT_TRUE(cut.View().bytes() == rows.first(2 * 12 * sizeof(float)));
  result = cluster_->Run({"matmul", "x", "x", "--transpose-b", "--as", "xx", "--result-spec",
                          "tp,fsdp", "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["spec"], nlohmann::json::parse(R"(["tp","fsdp"])"))
      << result.out;
  ExpectRefused({{"a slice that reaches beyond the array",
                  {"get", "x", "--out", Path("y.npy"), "--slice", "0:9,:"},
                  "the range 0:9 of dimension 0 is not in the array: this dimension has the "
                  "indexes 0 to 7; write a range within 0:8 (BAD_TILE)"},
                 {"a slice that begins beyond the array",
                  {"get", "x", "--out", Path("y.npy"), "--slice", ":,12:"},
                  "the range 12: of dimension 1 is not in the array: this dimension has the "
                  "indexes 0 to 11"},
                 {"a slice without an index",
                  {"get", "x", "--out", Path("y.npy"), "--slice", "4:4,:"},
                  "the range 4:4 of dimension 0 has no index, since STOP itself is not in it; "
                  "write a STOP above 4, such as 4:5 (BAD_TILE)"},
                 {"a slice without a range for each dimension",
                  {"get", "x", "--out", Path("y.npy"), "--slice", "0:4"},
                  "the slice has 1 range, the array 2 dimensions; write 0:4,: (BAD_TILE)"}});
  result = cluster_->Run({"get", "x", "--out", Path("y.npy"), "--slice", "::2,:"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("\"::2\" has a step"));
  result = cluster_->Run({"put", Path("x.npy"), "--as", "y", "--spec", "-,-", "--preset", "p"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("give one of"));
  result = cluster_->Run({"put", Path("x.npy"), "--as", "y", "--spec", "-,-", "--profile", "p"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--profile is about --axes and --preset"));
  const std::string rules = WriteFile(Path("few.yaml"), "rules:\n- {pattern: b, spec: []}\n");
  result = cluster_->Run({"put", Path("x.npy"), "--as", "y", "--rules", rules});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("shardmesh: tensor 'y': none of the 1 rules matches"));
  result = cluster_->Run({"put", Path("x.npy"), "--as", "", "--spec", "-,-"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("the name is empty"));
}

TEST_F(ClusterCommandTest, RefusesMistypedOptionsOfArraysWithAdvice) {
  ASSERT_THAT(cluster_->Run({"load", checkpoint_, "--rules", kRules}), Succeeded());
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "8,12", "--out", Path("x.npy")}),
              Succeeded());
  const std::string before = Contents();
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{"load", checkpoint_, "--spec=fsdp:tp"}, 2, "has no axis \"fsdp:tp\"; a comma"},
      {{"load", checkpoint_, "--spec=fsdp,tpp", "-q"}, 2, "\"tpp\"; did you mean \"tp\"?"},
      {{"load", checkpoint_, "--spec=fsdpp", "--uneven=ceil"}, 2, "did you mean \"fsdp\"?"},
      {{"load", checkpoint_, "--spec=-", "--dtype=BF16", "--source=workers"}, 1, "(NO_READ_ROOT)"},
      {{"load", checkpoint_, "--spec=-", "--dtype=fp16"}, 2, "did you mean F16?"},
      {{"put", Path("x.npy"), "--as=q.npy", "--spec=-"}, 2, "name the array q"},
      {{"get", "--tree=encoder", "--out", Path("enc.npy")}, 2, "enc.safetensors or "},
      {{"get", "--tree=encoder", "--out", Path("enc.npz")}, 2, "enc.safetensors or "},
      {{"get", "encoder", "--out", Path("enc.safetensors")}, 1, "arrays begin so: --tree encoder"},
      {{"reshard", "encoder", "--to=-"}, 1, "arrays begin so: --tree encoder"},
      {{"get", "nothing", "--out", Path("enc.npy")}, 1, "no array is named \"nothing\""},
      {{"get", "encoder", "-o", "enc.npy"}, 2, "--out FILE writes to a file"},
      {{"rm"}, 2, "give the names of arrays, or --tree PREFIX"},
      {{"rm", "--tree=nothing"}, 1, "begins with \"nothing\""},
  };
  for (const Case& c : cases) {
    const CommandResult result = cluster_->Run(c.arguments);
    EXPECT_EQ(result.exit_code, c.exit_code) << c.error;
    EXPECT_THAT(result.err, HasSubstr(c.error));
  }
  EXPECT_EQ(Contents(), before);
  EXPECT_FALSE(std::filesystem::exists(Path("enc.npy")));
}

TEST_F(ClusterCommandTest, NamesAxesOfRulesThatTheMeshLacks) {
  const std::string rules = WriteFile(
      Path("mistyped.yaml"),
      "rules:\n- {pattern: 'word_embeddings', spec: [fsdq, tp]}\n"
      "- {pattern: 'position_embeddings', spec: [fsdq, tp]}\n- {pattern: '.*', spec: []}\n");
  const std::string axis = "'fsdq' dropped, the mesh fsdp=2,tp=2 has no such axis; did you mean ";
  const std::string advice = "`shardmesh rules lint " + rules + "` looks for such axes";
  for (const char* const flag : {"--validate-only", "--no-reuse"}) {
    const CommandResult result = cluster_->Run({"load", checkpoint_, "--rules", rules, flag, "-q"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const size_t line = result.out.find("corrected: 2 tensors, first ");
    ASSERT_NE(line, std::string::npos) << result.out;
    EXPECT_THAT(result.out.substr(line), AllOf(HasSubstr(axis + "\"fsdp\"?\n"), HasSubstr(advice)));
    EXPECT_EQ(result.out.find("corrected: ", line + 1), std::string::npos) << result.out;
  }
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "8,12", "--out", Path("x.npy")}),
              Succeeded());
  CommandResult result =
      cluster_->Run({"put", Path("x.npy"), "--as", "word_embeddings", "--rules", rules});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr(axis), HasSubstr(advice)));
  // Correct rules bring no advice.
  result = cluster_->Run({"load", checkpoint_, "--rules", kRules, "-q"});
  EXPECT_EQ(result.out.find("rules lint"), std::string::npos) << result.out;
}

TEST_F(ClusterCommandTest, ValidatesALoadAndRemovesATree) {
  const std::vector<std::string> load = {"load", checkpoint_, "--rules", kRules};
  const auto run = [&](std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    return cluster_->Run(command);
  };
  CommandResult result = run(load, {"--validate-only", "-q"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Would load 104 tensors"));
  result = run(load, {"--validate-only", "-ojson"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto checked = nlohmann::json::parse(result.out);
  EXPECT_EQ(checked["validate_only"], true);
  EXPECT_FALSE(checked.contains("tile_bytes"));
  EXPECT_EQ(cluster_->Run({"ls", "-o", "name"}).out, "");
  const std::string map = WriteFile(
      Path("quantise.yaml"), "tensors:\n- {pattern: 'word_embeddings', dtype: I8, channel: 0}\n");
  result = run({"load", checkpoint_, "--spec", "-"}, {"-ojson", "--source=auto", "--map=" + map});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(nlohmann::json::parse(result.out)["workers_refused"], HasSubstr("--read-root"))
      << "they were to read the other tensors";
  result = run(load, {"-ojson", "--source=auto", "--dtype=BF16"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(nlohmann::json::parse(result.out)["workers_refused"], HasSubstr("--read-root"));

  result = cluster_->Run({"rm", "--tree=encoder", "--validate-only"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Would remove 96 names, encoder."));
  result = cluster_->Run({"rm", "--tree=encoder"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(cluster_->Run({"ls", "encoder", "-o", "name"}).out, "");
  EXPECT_NE(cluster_->Run({"ls", "-o", "name"}).out, "");
}

TEST_F(ClusterCommandTest, ListsArraysWithoutANameByIdsThatCommandsTake) {
  const std::string bytes(4, 'x');
  const client::PutTensor unnamed{
      .name = "", .view = *TensorView::Create(Dtype::kU8, {4}, bytes), .spec = PartitionSpec()};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::PutResult put,
                                 cluster_->client().arrays().PutTensors({unnamed}));
  const std::string id = "@" + put.arrays[0].descriptor.array_id;
  EXPECT_EQ(cluster_->Run({"ls", "--unnamed", "-o", "name"}).out, id + "\n");
  EXPECT_THAT(cluster_->Run({"ls", "--unnamed"}).out, HasSubstr("\n" + id + " "));

  CommandResult result = cluster_->Run({"describe", id});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("name        -\narray       " + id.substr(1) + "\n"));
  result = cluster_->Run({"get", id, "--out", Path("x.npy")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(": " + id + ", U8 4, "));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile file, NpyFile::Open(Path("x.npy")));
  EXPECT_EQ(std::string(file.View().bytes().data(), file.View().bytes().size()), bytes);
  result = cluster_->Run({"collective", "barrier", id, "--axes", "fsdp"});
  EXPECT_EQ(result.exit_code, 0) << result.err;

  const std::string unknown = "@" + std::string(32, '0');
  ExpectRefused({
      {"an array without a name is not removed by hand",
       {"rm", id},
       "rm takes names; an array without a name goes when the session that holds it ends"},
      {"an id that no array has",
       {"describe", unknown},
       "no array \"" + unknown.substr(1) + "\"; it was released, or never existed"},
  });
  result = cluster_->Run({"describe", "@"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("\"@\" is no NAME@VERSION, and no @ID, "));
}

}  // namespace
}  // namespace shardmesh::test
