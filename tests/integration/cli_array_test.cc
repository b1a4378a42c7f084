// Checkpoints, arrays and tiles on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/remote/worker_client.h"
#include "rpc/call.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CommandLineTest, MakesTheSameCheckpointFromTheSameSeed) {
  for (const char* name : {"a", "b"}) {
    const CommandResult result =
        Run({"make-checkpoint", "--out", folder_ + "/" + name, "--seed", "7"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("104 tensors"));
  }
  EXPECT_TRUE(ReadFile(folder_ + "/a") == ReadFile(folder_ + "/b"));
}

// Options that other tests do not use with their commands.
TEST_F(ClusterCommandTest, AnswersWithEachOption) {
  const std::string x = Path("x.npy");
  const std::string rules = WriteFile(Path("w.yaml"), "rules:\n- {pattern: w, spec: [fsdp, tp]}\n");
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape=8,8", StrCat("--out=", x)}), Succeeded());
  const struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string text;  // of either stream
  } kCases[] = {
      {{"put", x, "--as=w", StrCat("--rules=", rules), "--mesh=default"}, 0, "spec fsdp,tp"},
      {{"put", x, "--as=h", "--axes=__EMBED__,-", "--mode=train", "--exact"}, 0, "Put h"},
      {{"put", x, "--as=i", "--spec=sp,-", "--strict"}, 1, "AXIS_NOT_IN_MESH"},
      {{"put", x, "--as=i", "--spec=sp,-", "--strict"}, 1, "; to mend it, ask for "},
      {{"put", x, "--as=i", "--spec=sp,-", "--strict"}, 1, "\n  fix: --spec '()'\n"},
      {{"put", x, x, "--as=i", "--as=j", "--spec=sp,-", "--strict"},
       1,
       "\n2 specs need corrections:\n  i and 1 more: dimension 0: 'sp' dropped"},
      {{"put", x, "--as=i", "--spec=fdsp,-"}, 2, "has no axis \"fdsp\"; did you mean \"fsdp\"?"},
      {{"put", x, "--as=i", "--spec=sp,-", "--exact"}, 0, "corrected: dimension 0: 'sp' dropped"},
      {{"put", x, "--as=i", "--spec=fsdp,tp,-", "--validate-only"},
       0,
       "\nThe spec has 3 entries and the tensor 2 dimensions: the entries at the end, which are "
       "empty, have no effect\n"},
      {{"put", x, "--as=i", "--spec=-,-", "--mesh=nope"}, 1, "there is no mesh named \"nope\""},
      {{"shardings", "w", "--mesh=fsdp=-1", "--devices=4"}, 0, "fsdp,tp  fsdp=2,tp=2"},
      {{"shardings", "w", "--mesh=fsdp=0", "--exact"}, 1, "NO_MESH"},
      {{"collective", "all-reduce", "w", "--axes=tp", "--order=fastest"}, 0, "spec fsdp,-"},
      {{"collective", "all-reduce", "w", "--axes=tp", "--result-spec=fsdp,tp"}, 0, "spec fsdp,tp"},
      {{"linear", "--input=w", "--weight=w", "--scale=2", "--result-spec=fsdp,-"},
       0,
       "spec fsdp,-"},
      {{"catalog", "put", "rules", "option", rules}, 0, "version 1"},
      {{"catalog", "rm", "rules", "option", "--if-version=7"}, 1, "VERSION_MISMATCH"},
      {{"catalog", "rm", "rules", "option", "--if-version=1"}, 0, "Removed rules option"},
      {{"health", "ready", "--wait"}, 0, "ready"},
      {{"admin", "quarantine", "list", "--worker=worker-1"}, 0, "Nothing is in quarantine"},
  };
  for (const Case& c : kCases) {
    const CommandResult result = cluster_->Run(c.arguments);
    const std::string words = StrJoin(c.arguments, " ");
    EXPECT_EQ(result.exit_code, c.exit_code) << words << "\n" << result.err;
    EXPECT_THAT(result.out + result.err, HasSubstr(c.text)) << words;
  }
}

TEST_F(ClusterCommandTest, PutsWhatComesThroughAPipe) {
  const std::string x = Path("x.npy");
  const std::string log = Path("pipe.log");
  const std::string program =
      StrCat(SHARDMESH_BINARY_DIR "/shardmesh --address=", cluster_->address());
  // More than a pipe holds at once.
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape=512,1024", StrCat("--out=", x)}), Succeeded());
  const auto run = [&](const std::string& command) {
    const int ended = std::system(StrCat(command, " > ", log, " 2>&1").c_str());
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
  };
  ASSERT_EQ(run(StrCat("cat ", x, " | ", program, " put - --as=piped --spec=fsdp,tp")), 0)
      << ReadFile(log);
  EXPECT_THAT(ReadFile(log), HasSubstr("Put piped: F32 512x1024, spec fsdp,tp"));
  const std::string back = Path("back.npy");
  ASSERT_THAT(cluster_->Run({"get", "piped", "--out", back}), Succeeded());
  EXPECT_TRUE(ReadFile(back) == ReadFile(x));

  // A writer that ends too soon leaves no array, nor does one that writes nothing.
  for (const char* const begin : {"head -c 100000 ", "head -c 0 "}) {
    EXPECT_EQ(run(StrCat(begin, x, " | ", program, " put - --as=cut --spec=fsdp,tp")), 1);
    EXPECT_THAT(ReadFile(log), HasSubstr("standard input"));
  }
  EXPECT_EQ(cluster_->Run({"describe", "cut"}).exit_code, 1);
}

TEST_F(ClusterCommandTest, LoadsGetsAndComputes) {
  CommandResult result = cluster_->Run({"load", checkpoint_, "--rules", kRules, "--mesh", "tp=2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is \"default\" fsdp=2,tp=2"));
  result = cluster_->Run({"load", checkpoint_, "--rules", kRules, "--quiet"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("Loaded 104 tensors"));
  EXPECT_THAT(result.err, IsEmpty());
  const std::string layer = "encoder.layer.0.";
  result = cluster_->Run({"ls", layer, "--output=json"});
  EXPECT_EQ(json::parse(result.out).size(), 16u);

  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape", "128,384", "--out", Path("x.npy")}),
              Succeeded());
  result = cluster_->Run(
      {"linear", "--input", Path("x.npy"), "--weight", layer + "intermediate.dense.weight",
       "--bias", layer + "intermediate.dense.bias", "--activation", "gelu", "--as", "hidden"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("named hidden (in memory)"));
  result = cluster_->Run({"linear", "--input", "hidden", "--weight", layer + "output.dense.weight",
                          "--bias", layer + "output.dense.bias", "--out", Path("y.npy"),
                          "--output=json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["shape"], json({128, 384}));
  EXPECT_TRUE(std::filesystem::exists(Path("y.npy")));

  EXPECT_EQ(cluster_->Run({"rm", "hidden", "--validate-only"}).out, "Would remove hidden\n");
  result = cluster_->Run({"rm", "hidden", "--validate-only", "-ojson"});
  EXPECT_EQ(json::parse(result.out), json({{"removed", {"hidden"}}, {"validate_only", true}}));
  // A name that is given twice is removed once.
  EXPECT_EQ(cluster_->Run({"rm", "hidden", "hidden", "--validate-only"}).out,
            "Would remove hidden\n");
  result = cluster_->Run({"rm", "hidden", "hidden", "-ojson"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out), json({{"removed", {"hidden"}}}));
  result = cluster_->Run({"describe", layer + "output.dense.weight"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("[0,192)x[0,768)"));
  result = cluster_->Run({"describe", layer + "output.dense.weight", "-ojson"});
  const std::string by_id = StrCat("@", json::parse(result.out)["array_id"].get<std::string>());
  EXPECT_THAT(cluster_->Run({"describe", by_id}).out,
              HasSubstr(StrCat("name        ", layer, "output.dense.weight version ")));
  EXPECT_EQ(json::parse(cluster_->Run({"describe", by_id, "-ojson"}).out)["names"],
            json::array({layer + "output.dense.weight"}));
  const std::string typo = WriteFile(Path("typo.yaml"), "rules:\n- {pattern: '.*', spec: [tpp]}\n");
  ExpectRefused(
      {{"a name that does not exist", {"get", "hidden", "--out", Path("h.npy")}, "hidden"},
       {"a name that does not exist", {"rm", "hidden"}, "hidden"},
       {"a prefix of names",
        {"rm", layer},
        StrCat("`shardmesh rm --tree ", layer, "` removes all names")},
       {"a name that does not exist beside one that does",
        {"rm", layer + "output.dense.weight", "hidden"},
        "hidden"},
       {"an axis that the mesh does not have",
        {"load", checkpoint_, "--rules", typo, "--quiet", "--strict"},
        "tpp"},
       {"a name that nearly exists",
        {"describe", "embeddings.word_embedings.weight"},
        "did you mean \"embeddings.word_embeddings.weight\"?"},
       {"no name", {"get", "", "--out", Path("h.npy")}, "no array is named"},
       {"shapes that do not multiply",
        {"matmul", layer + "output.dense.weight", layer + "output.dense.weight"},
        "SHAPE_MISMATCH"}});
  EXPECT_FALSE(std::filesystem::exists(Path("h.npy")));
  result = cluster_->Run({"load", checkpoint_, "--rules", typo, "--quiet", "--validate-only"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("Would load"), HasSubstr("of 104 tensors were corrected to fit")));
  result = cluster_->Run({"load", checkpoint_, "--rules", typo, "--quiet"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("of 104 tensors were corrected to fit"));
}

TEST_F(ClusterCommandTest, RefusesCheckpointsThatAreNotWhole) {
  const std::string tensor = R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})";
  const auto file = [this](const std::string& name, const std::string& text) {
    return std::vector<std::string>{"load", WriteFile(Path(name), text), "--rules", kRules};
  };
  ExpectRefused({
      {"missing", {"load", Path("nowhere.safetensors"), "--rules", kRules}, "nowhere.safetensors"},
      {"cut off", file("cut", Safetensors("{" + tensor + "}", 15)), "BAD_FILE"},
      {"overlapping",
       file("overlap",
            Safetensors("{" + tensor + R"(,"b":{"dtype":"F32","shape":[4],"data_offsets":[8,24]}})",
                        24)),
       "BAD_FILE"},
      {"out of bounds",
       file("beyond",
            Safetensors(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,32]}})", 16)),
       "BAD_FILE"},
      {"header longer than the file", file("long", Safetensors("{" + tensor + "}", 16, 1 << 20)),
       "BAD_FILE"},
      {"header over the limit", file("huge", Safetensors("{}", 0, int64_t{1} << 40)), "BAD_FILE"},
      {"not UTF-8",
       file("latin", Safetensors("{\"\xE4\":{\"dtype\":\"F32\",\"shape\":[4],"
                                 "\"data_offsets\":[0,16]}}",
                                 16)),
       "BAD_FILE"},
      {"unknown dtype",
       file("dtype", Safetensors(R"({"a":{"dtype":"F31","shape":[4],"data_offsets":[0,16]}})", 16)),
       "UNKNOWN_DTYPE"},
  });
}

TEST_F(ClusterCommandTest, RefusesATileWithoutAToken) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::ClusterStatus status,
                                 cluster_->client().cluster().GetStatus());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto worker, client::WorkerClient::Connect(
                             status.workers.front().identity, status.workers.front().addresses,
                             rpc::Credentials::Insecure(), absl::Now() + absl::Seconds(5)));
  const std::string bytes(16, 'x');
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TensorView view,
                                 TensorView::Create(Dtype::kF32, {4}, bytes));
  client::OutgoingTile tile{
      .token = "", .array_id = "anything", .rank = 0, .tile = Tile::Whole({4}), .tensor = view};
  client::Cancellation cancellation;
  const std::string before = Contents();
  EXPECT_THAT(
      worker->PutTiles(
          {&tile, 1}, [](int64_t) {}, &cancellation, rpc::CallOptions::Within(absl::Seconds(5))),
      StatusIs(absl::StatusCode::kUnauthenticated, Reason::kBadToken));
  EXPECT_EQ(Contents(), before);
}

}  // namespace
}  // namespace shardmesh::test
