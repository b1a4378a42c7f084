// Arrays whose tiles have unequal sizes, some of them none, with real processes: put, read, listed,
// exchanged, and read back after restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sharding/uneven.h"
#include "status/str_cat.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"
#include "tensor/view.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string BytesOfSize(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class UnevenArraysTest : public ::testing::Test {
 protected:
  void StartCluster(const std::string& mesh, bool durable = false) {
    cluster_.reset();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        cluster_,
        TestCluster::Start(
            {.mesh = mesh, .durable = durable, .coordinator_flags = {}, .worker_flags = {}}));
  }
  client::ArrayClient& arrays() { return cluster_->client().arrays(); }

  // An array that was put, and what it holds.
  struct Kept {
    std::string name;
    Dtype dtype = Dtype::kF32;
    Shape shape = {};
    std::vector<CutPoints> cut_points = {};
    std::string bytes = {};
  };

  // Returns random cut points of `parts` parts of a dimension; some parts are empty.
  CutPoints RandomCuts(int64_t extent, int64_t parts) {
    CutPoints points = {0, extent};
    for (int64_t part = 1; part < parts; ++part) {
      points.push_back(static_cast<int64_t>(random_() % static_cast<uint64_t>(extent + 1)));
    }
    std::sort(points.begin(), points.end());
    return points;
  }

  absl::StatusOr<client::PutResult> Put(const Kept& kept, const PartitionSpec& spec,
                                        client::PutOptions options = {}) {
    const client::PutTensor tensor{.name = kept.name,
                                   .view = *TensorView::Create(kept.dtype, kept.shape, kept.bytes),
                                   .spec = spec,
                                   .cut_points = kept.cut_points};
    return arrays().PutTensors({&tensor, 1}, options);
  }

  // Expects the array and random slices of it as they were put.
  void ExpectKept(const Kept& kept) {
    SCOPED_TRACE(kept.name);
    const client::ArraySelector name = client::ArraySelector::ByName(kept.name);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::Array array, arrays().DescribeArray(name));
    EXPECT_EQ(array.descriptor.cut_points, kept.cut_points);
    EXPECT_EQ(array.state, client::ArrayState::kAvailable);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor whole, arrays().Gather(name));
    EXPECT_TRUE(whole.view().bytes() == absl::MakeConstSpan(kept.bytes));
    const auto element_bytes = static_cast<size_t>(BitsPerElement(kept.dtype) / 8);
    for (int round = 0; round < 4; ++round) {
      client::ArraySlice slice;
      for (const int64_t extent : kept.shape) {
        const auto start = static_cast<int64_t>(random_() % static_cast<uint64_t>(extent));
        const auto size =
            1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(extent - start));
        slice.push_back({start, start + size});
      }
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor part,
                                     arrays().Gather(name, slice));
      std::string expected;
      for (int64_t row = slice[0].start; row < *slice[0].stop; ++row) {
        expected += kept.bytes.substr(
            static_cast<size_t>(row * kept.shape[1] + slice[1].start) * element_bytes,
            static_cast<size_t>(*slice[1].stop - slice[1].start) * element_bytes);
      }
      EXPECT_TRUE(part.view().bytes() == absl::MakeConstSpan(expected)) << part.part().ToString();
    }
  }

  std::mt19937 random_{17};
  std::unique_ptr<TestCluster> cluster_;
};

TEST_F(UnevenArraysTest, TilesOfAllSizesAndOfNoneComeBackAsTheyWerePut) {
  struct Case {
    std::string mesh;
    PartitionSpec spec;
    std::vector<int64_t> parts;
  };
  const SpecEntry a = SpecEntry::Axis("a");
  const SpecEntry b = SpecEntry::Axis("b");
  for (const Case& c : std::vector<Case>{{"a=2", PartitionSpec({a}), {2, 1}},
                                         {"a=3", PartitionSpec({SpecEntry::None(), a}), {1, 3}},
                                         {"a=2,b=2", PartitionSpec({b, a}), {2, 2}},
                                         {"a=5", PartitionSpec({a}), {5, 1}}}) {
    SCOPED_TRACE(c.mesh);
    ASSERT_NO_FATAL_FAILURE(StartCluster(c.mesh));
    std::vector<Kept> all;
    for (const Dtype dtype : {Dtype::kF32, Dtype::kI8, Dtype::kBF16}) {
      for (int round = 0; round < 3; ++round) {
        Kept kept{.name = StrCat(DtypeName(dtype), round), .dtype = dtype, .shape = {7, 9}};
        for (size_t dim = 0; dim < 2; ++dim) {
          kept.cut_points.push_back(RandomCuts(kept.shape[dim], c.parts[dim]));
        }
        kept.cut_points = WithoutEqualParts(std::move(kept.cut_points));
        if (kept.cut_points.empty()) continue;
        kept.bytes = BytesOfSize(63 * static_cast<size_t>(BitsPerElement(dtype) / 8),
                                 static_cast<uint32_t>(all.size()));
        ASSERT_THAT(Put(kept, c.spec), IsOk());
        all.push_back(std::move(kept));
      }
    }
    for (const Kept& kept : all) ASSERT_NO_FATAL_FAILURE(ExpectKept(kept));
    EXPECT_THAT(arrays().ListArrays(), IsOkAndHolds(SizeIs(all.size())));
  }
}

TEST_F(UnevenArraysTest, EmptyTilesSurviveRestartsOfTheirWorkersAndOfTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("a=3", /*durable=*/true));
  const PartitionSpec rows({SpecEntry::Axis("a")});
  std::vector<Kept> all;
  for (const CutPoints& points :
       std::vector<CutPoints>{{0, 0, 6, 6}, {0, 6, 6, 6}, {0, 1, 1, 6}, {0, 0, 0, 6}}) {
    all.push_back({.name = StrCat("w", all.size()),
                   .shape = {6, 5},
                   .cut_points = {points, {}},
                   .bytes = BytesOfSize(120, static_cast<uint32_t>(all.size()))});
    ASSERT_THAT(Put(all.back(), rows), IsOk());
  }
  for (const std::string identity : {"worker-0", "worker-2", "coordinator", "worker-1"}) {
    SCOPED_TRACE(identity);
    ASSERT_THAT(cluster_->Kill(identity), IsOk());
    ASSERT_THAT(cluster_->Restart(identity), IsOk());
    ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
    for (const Kept& kept : all) ASSERT_NO_FATAL_FAILURE(ExpectKept(kept));
  }
  EXPECT_THAT(arrays().DeleteName("w0"), IsOk());
  EXPECT_THAT(arrays().ListArrays(), IsOkAndHolds(SizeIs(3)));
}

TEST_F(UnevenArraysTest, AnArrayIsReadWithoutTheWorkerOfAnEmptyTile) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("a=2"));
  const Kept kept{
      .name = "w", .shape = {4, 2}, .cut_points = {{0, 4, 4}, {}}, .bytes = BytesOfSize(32, 1)};
  ASSERT_THAT(Put(kept, PartitionSpec({SpecEntry::Axis("a")})), IsOk());
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const client::GatheredTensor part,
      arrays().Gather(client::ArraySelector::ByName("w"), client::ArraySlice{{0, 4}, {0, 2}}));
  EXPECT_TRUE(part.view().bytes() == absl::MakeConstSpan(kept.bytes));
}

TEST_F(UnevenArraysTest, RulesCutAndCollectivesJoinTheParts) {
  ASSERT_NO_FATAL_FAILURE(StartCluster("a=4"));
  const PartitionSpec rows({SpecEntry::Axis("a")});
  const auto points_of = [&](const std::string& name, int64_t extent, UnevenCuts rule,
                             std::vector<int64_t> weights = {}) {
    std::vector<float> elements(static_cast<size_t>(extent * 3));
    std::iota(elements.begin(), elements.end(), 0.0F);
    Kept kept{.name = name, .shape = {extent, 3}};
    kept.bytes.assign(reinterpret_cast<const char*>(elements.data()), elements.size() * 4);
    client::PutOptions options;
    options.uneven = rule;
    options.weights = std::move(weights);
    const absl::StatusOr<client::PutResult> put = Put(kept, rows, options);
    EXPECT_THAT(put, IsOk());
    if (!put.ok()) return CutPoints();
    EXPECT_THAT(put->arrays[0].corrections, IsEmpty());
    kept.cut_points = put->arrays[0].descriptor.cut_points;
    ExpectKept(kept);
    // Every device gets the rows of all others.
    const absl::StatusOr<client::StepResult> joined =
        cluster_->client().compute().Collective({.input = client::ArraySelector::ByName(name),
                                                 .kind = CollectiveKind::kAllGather,
                                                 .axes = {"a"},
                                                 .output = {.names = {StrCat(name, "-joined")}}});
    EXPECT_THAT(joined, IsOk());
    kept.name = StrCat(name, "-joined");
    kept.cut_points = {};
    ExpectKept(kept);
    return put->arrays[0].descriptor.cut_points.empty() ? CutPoints()
                                                        : put->arrays[0].descriptor.cut_points[0];
  };
  EXPECT_THAT(points_of("ceil10", 10, UnevenCuts::kCeilChunks), ElementsAre(0, 3, 6, 9, 10));
  EXPECT_THAT(points_of("ceil5", 5, UnevenCuts::kCeilChunks), ElementsAre(0, 2, 4, 5, 5));
  EXPECT_THAT(points_of("ceil1", 1, UnevenCuts::kCeilChunks), ElementsAre(0, 1, 1, 1, 1));
  EXPECT_THAT(points_of("ceil8", 8, UnevenCuts::kCeilChunks), IsEmpty());
  EXPECT_THAT(points_of("weights", 8, UnevenCuts::kByWeights, {1, 0, 2, 1}),
              ElementsAre(0, 2, 2, 6, 8));
  EXPECT_THAT(points_of("memory", 10, UnevenCuts::kByMemory), ElementsAre(0, 3, 6, 8, 10));
  const CutPoints by_speed = points_of("speed", 4000, UnevenCuts::kBySpeed);
  if (!by_speed.empty()) {  // empty: the workers measured equal speeds
    EXPECT_THAT(by_speed, SizeIs(5));
    EXPECT_EQ(by_speed.back(), 4000);
  }
  client::PutOptions options;
  options.uneven = UnevenCuts::kByWeights;
  options.weights = {1, 2};
  const auto refused = Put(
      {.name = "x", .shape = {4, 1}, .cut_points = {}, .bytes = BytesOfSize(16, 2)}, rows, options);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kInvalidCutPoints));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("there are 2 weights, and the mesh has 4 devices"));
}

TEST_F(ClusterCommandTest, CutsTensorsUnevenlyAndShowsWhere) {
  const std::string x = Path("x.npy");
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape=5x6", StrCat("--out=", x)}), Succeeded());
  const struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string text;  // of either stream
  } kCases[] = {
      {{"put", x, "--as=a", "--spec=(fsdp,tp),-"}, 0, "corrected: dimension 0"},
      {{"put", x, "--as=b", "--spec=(fsdp,tp),-", "--uneven=ceil"}, 0, "cut at 0:2,4,5"},
      {{"array", "put", x, "--as=c", "--spec=fsdp,tp", "--cuts=0:0", "--cuts=1:6"},
       0,
       "cut at 0:0 1:6"},
      {{"put", x, "--as=d", "--spec=(fsdp,tp),-", "--weights=1,0,0,4"}, 0, "cut at 0:1,1,1"},
      {{"put", x, "--as=d", "--spec=(fsdp,tp),-", "--weights=1,0,0,4"},
       0,
       "Ranks 1, 2 hold nothing of d: their parts are empty\n"},
      {{"put", x, "--as=d", "--spec=(fsdp,tp),-", "--weights=1,0,0,4", "-ojson"},
       0,
       "\"empty_ranks\": ["},
      {{"reshard", "d", "--weights=1,1,0,4", "--plan-only"}, 0, "Rank 2 holds nothing of d: "},
      {{"put", x, "--as=e", "--spec=(fsdp,tp),-", "--uneven=memory"}, 0, "cut at 0:2,3,4"},
      {{"put", x, x, "--as=f", "--as=g", "--spec=-,tp"}, 0, "Put g"},
      {{"put", StrCat(checkpoint_, ":embeddings.position_embeddings.weight"), "--as=h",
        "--spec=tp,-"},
       0,
       "Put h: F32"},
      {{"ls", "-owide"}, 0, "0:2,4,5"},
      {{"array", "ls", "b", "-owide"}, 0, "0:2,4,5"},
      {{"describe", "b"}, 0, "cuts        0:2,4,5"},
      {{"array", "describe", "c"}, 0, "[0,0)x[0,6)"},
      {{"describe", "c", "-ojson"}, 0, "\"cut_points\""},
      {{"tiles", "--spec=x", "--shape=5", "--mesh=x=4", "--uneven=ceil", "--device=3"},
       0,
       "cuts            0:2,4,5"},
      {{"tiles", "--spec=x", "--shape=5", "--mesh=x=4", "--cuts=0:1,1,5", "--range=0:5"},
       0,
       "[1,5)"},
      {{"tiles", "--spec=x", "--shape=8", "--mesh=x=2", "--weights=1,3", "--device=1"}, 0, "[2,8)"},
      {{"put", x, "--as=z", "--spec=fsdp,-", "--cuts=0:2,3"}, 1, "INVALID_CUT_POINTS"},
      {{"put", x, "--as=z", "--spec=fsdp,-", "--weights=1,2"}, 1, "the mesh has 4 devices"},
      {{"put", x, "--as=z", "--spec=fsdp,-", "--weights=0,0,0,0"}, 1, "all weights are 0"},
      {{"put", x, "--as=z", "--spec=fsdp,-", "--uneven=ciel"}, 2, "is none of equal, ceil"},
      {{"put", x, "--as=z", "--spec=fsdp,-", "--cuts=2"}, 2, "as in \"0:100,300\""},
      {{"put", x, "--as=z", "--spec=fsdp,-", "--cuts=2:1"}, 2, "has 2 dimensions, counted from 0"},
      {{"put", x, "--as=z", "--spec=fsdp,-", "--cuts=0:2", "--uneven=ceil"}, 2, "not both"},
      {{"put", x, x, "--as=z", "--spec=fsdp,-"}, 2, "give --as once for each tensor"},
      {{"put", "-", "-", "--as=y", "--as=z", "--spec=-"}, 2, "give - once"},
      {{"put", checkpoint_, "--tensor=no", "--as=z", "--spec=-"}, 1, "has no tensor \"no\""},
      {{"tiles", "--spec=x", "--shape=5", "--mesh=x=4", "--uneven=memory"}, 1, "give weights"},
      {{"array", "rm", "a", "b", "c", "d", "e", "f", "g", "h"}, 0, "Removed h"},
      {{"array"}, 2, "a command is missing: "},
      {{"array", "pat"}, 2, "unknown command \"pat\""},
  };
  for (const Case& c : kCases) {
    const CommandResult result = cluster_->Run(c.arguments);
    const std::string words = StrJoin(c.arguments, " ");
    EXPECT_EQ(result.exit_code, c.exit_code) << words << "\n" << result.out << result.err;
    EXPECT_THAT(result.out + result.err, HasSubstr(c.text)) << words;
  }
}

TEST_F(ClusterCommandTest, LoadsByOneSpecByATreeOfAxesAndByRules) {
  const std::string model = Path("small.safetensors");
  const std::string data(static_cast<size_t>(4 * (6 * 5 + 3)), 'x');
  auto writer =
      SafetensorsWriter::Create(model, {{"w", Dtype::kF32, {6, 5}}, {"b", Dtype::kF32, {3}}}, {});
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT(writer->Append(data), IsOk());
  ASSERT_THAT(writer->Finish(), IsOk());
  const std::string tree = WriteFile(
      Path("axes.json"),
      R"({"w": {"shape": [6, 5], "axes": ["__BATCH__", null]}, "b": {"shape": [3], "spec": ["tp"]}})");
  const std::string half =
      WriteFile(Path("half.json"), R"({"w": {"shape": [6, 5], "spec": ["tp", null]}})");
  const std::string other = WriteFile(Path("other.json"), R"({"v": {"shape": [6, 5]}})");
  const std::string turned = WriteFile(Path("turned.json"), R"({"w": {"shape": [5, 6]}})");
  const std::string rules = WriteFile(Path("b.yaml"), "rules:\n- {pattern: b, spec: []}\n");
  const struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string text;  // of either stream
  } kCases[] = {
      {{"load", model, "--spec=tp,-"}, 0, "Loaded 2 tensors"},
      {{"load", model, "--spec=tp,-", "--uneven=ceil"},
       0,
       "1 of 2 tensors lie in parts of unequal"},
      {{"load", model, "--spec=tp,-", "--uneven=ceil"}, 0, "a device holds "},
      {{"load", model, StrCat("--tree=", tree)}, 0, "Loaded 2 tensors"},
      {{"load", model, StrCat("--tree=", tree), "--mode=prefill", "--weights=1,1,0,2", "-ojson"},
       0,
       "\"cut_points\""},
      {{"array", "load", model, StrCat("--tree=", half), StrCat("--rules=", rules)},
       0,
       "Loaded 2 tensors"},
      {{"load", model, StrCat("--tree=", half)}, 1, "first \"b\", have neither axes nor a spec"},
      {{"load", model, StrCat("--tree=", other)}, 1, "the checkpoint has no tensor \"v\""},
      {{"load", model, StrCat("--tree=", turned)}, 1, "has the shape 5x6, and 6x5 in the"},
      {{"load", model, StrCat("--tree=", tree), "--profile=nope"}, 1, "nope"},
      {{"load", model, StrCat("--tree=", tree), "--mesh=nope", "--strict"}, 1, "no mesh named"},
      {{"load", model}, 2, "give --rules, --spec for all tensors, or --tree"},
      {{"load", model, "--spec=tp,-", StrCat("--rules=", rules)}, 2, "give no --rules"},
      {{"load", model, "--spec=tp,-", "--mode=train"}, 2, "are about the axes of a --tree"},
  };
  for (const Case& c : kCases) {
    const CommandResult result = cluster_->Run(c.arguments);
    const std::string words = StrJoin(c.arguments, " ");
    EXPECT_EQ(result.exit_code, c.exit_code) << words << "\n" << result.out << result.err;
    EXPECT_THAT(result.out + result.err, HasSubstr(c.text)) << words;
  }
  const nlohmann::json described =
      nlohmann::json::parse(cluster_->Run({"describe", "w", "--output=json"}).out);
  EXPECT_EQ(described["spec"], nlohmann::json::parse(R"(["tp",null])"));
}

}  // namespace
}  // namespace shardmesh::test
