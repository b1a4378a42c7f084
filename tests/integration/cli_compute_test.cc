// Collectives on the command line, and their times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/cli_fixture.h"
#include "tests/testing/read_file.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ClusterCommandTest, ExchangesTiles) {
  ASSERT_EQ(cluster_->Run({"make-tensor", "--shape", "8,4", "--out", Path("a.npy")}).exit_code, 0);
  const auto collective = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "collective");
    return cluster_->Run(std::move(arguments));
  };
  const auto expect = [&](std::vector<std::string> arguments, const std::string& spec) {
    const CommandResult result = collective(std::move(arguments));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("spec " + spec));
  };
  expect({"scatter", Path("a.npy"), "--axes", "fsdp,tp", "--root", "3", "--as", "rows"},
         "(fsdp,tp),-, named rows");
  expect({"all-to-all", "rows", "--axes", "tp", "--split-dimension", "1"}, "fsdp,tp");
  expect({"all-gather", "rows", "--axes", "tp", "--algorithm", "ring"}, "fsdp,-");
  expect({"permute", "rows", "--axes", "fsdp,tp", "--pairs", "0:1,1:2"}, "(fsdp,tp),-");
  expect({"send", "rows", "--axes", "tp", "--from", "1", "--to", "0"}, "(fsdp,tp),-");
  expect({"reduce", "rows", "--axes", "tp", "--root=1", "--algorithm", "binomial"},
         "fsdp,- unreduced tp");
  expect({"all-reduce", "rows", "--axes", "tp", "--order", "fastest", "--algorithm", "ring"},
         "fsdp,-");
  expect({"barrier", "rows", "--axes", "tp"}, "(fsdp,tp),-");
  expect({"scatter", Path("a.npy"), "--axes", "fsdp,tp", "--counts", "1,2,4,1", "--as", "uneven"},
         "(fsdp,tp),-, named uneven");
  EXPECT_THAT(cluster_->Run({"describe", "uneven"}).out, HasSubstr("[3,7)x[0,4)"));
  ASSERT_EQ(cluster_->Run({"get", "uneven", "--out", Path("b.npy")}).exit_code, 0);
  EXPECT_EQ(ReadFile(Path("a.npy")), ReadFile(Path("b.npy")));

  ExpectRefused(
      {{"a root that is no place",
        {"collective", "broadcast", "rows", "--axes", "tp", "--root", "2"},
        "root 2 is no place of a group; it has the places 0 to 1"},
       {"an algorithm that the kind does not have",
        {"collective", "gather", "rows", "--axes", "tp", "--algorithm", "chain"},
        "gather has no algorithm \"chain\"; those that fit: pairwise"},
       {"no pairs", {"collective", "permute", "rows", "--axes", "tp"}, "no pairs of places"},
       {"an axis that the mesh does not have",
        {"collective", "all-reduce", "rows", "--axes", "tpp"},
        "axis 'tpp' is not in the mesh fsdp=2,tp=2; did you mean \"tp\"?"},
       {"an array that there is not",
        {"collective", "all-reduce", "rosw", "--axes", "tp"},
        "no array is named \"rosw\"; did you mean \"rows\"?"},
       {"a file in a folder that there is not",
        {"collective", "all-reduce", "rows", "--axes", "tp", "--as", "unmade", "--out",
         Path("none/a.npy")},
        "cannot create " + Path("none/a.npy") + ": No such file"},
       {"a result that was not computed", {"describe", "unmade"}, "no array is named \"unmade\""},
       {"counts that do not add up",
        {"collective", "scatter", Path("a.npy"), "--axes", "tp", "--counts", "4,5"},
        "counts 4,5 do not add up to the 8 elements that dimension 0 of a tile has"},
       {"tiles of unequal size",
        {"collective", "all-reduce", "uneven", "--axes", "tp"},
        "dimension 0 is cut at 0,1,3,7,8"}});
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"permute", "rows", "--axes", "tp", "--pairs", "0-1"}, "is no pair of places, as in"},
      {{"send", "rows", "--axes", "tp", "--from", "1"}, "--to"},
      {{"send", "rows", "--axes", "tp", "--from=1", "--to=0", "--pairs", "0:1"}, "--pairs"},
      {{"broadcst", "rows", "--axes", "tp"}, "shardmesh: kind: \"broadcst\" is none of"},
      {{"broadcst", "rows", "--axes", "tp"}, "did you mean \"broadcast\"?"},
      {{"scatter", "rows", "--axes", "tp", "--counts", "4,x"}, "--counts"},
      {{"all-reduce", "rows", "--axes", "tp", "--order", "slowest"}, "reproducible, fastest"},
  };
  for (const auto& [arguments, error] : wrong) {
    const CommandResult result = collective(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(error));
  }
  EXPECT_EQ(cluster_->Run({"rm", "rows"}).exit_code, 0);
  EXPECT_EQ(cluster_->Run({"rm", "uneven"}).exit_code, 0);
}

TEST_F(ClusterCommandTest, TimesCollectivesAndChecksTheirResults) {
  const CommandResult result =
      cluster_->Run({"bench", "collectives", "--sizes", "100000", "--calls", "5", "--algorithms",
                     "auto,ring", "--output", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, int> rows;  // by op
  for (const json& row : json::parse(result.out)) {
    SCOPED_TRACE(row.dump());
    ++rows[row["op"]];
    EXPECT_EQ(row["system"], "shardmesh");
    EXPECT_EQ(row["calls"], 5);
    EXPECT_EQ(row["right"], true);
    EXPECT_GT(row["p50_us"], 0);
    EXPECT_GE(row["p99_us"], row["p50_us"]);
    EXPECT_NE(row["algorithm"], "auto");
  }
  const std::map<std::string, int> expected = {{"all-reduce", 2},     {"all-gather", 2},
                                               {"reduce-scatter", 2}, {"all-to-all", 1},
                                               {"broadcast", 1},      {"barrier", 1}};
  EXPECT_EQ(rows, expected);
  EXPECT_THAT(cluster_->Run({"ls"}).out, Not(HasSubstr("array-")));

  const CommandResult table = cluster_->Run(
      {"bench", "collectives", "--ops", "all-reduce", "--sizes", "1KiB", "--calls", "5"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("alg/s"), HasSubstr("bus/s"), HasSubstr("right")));
  const CommandResult unknown = cluster_->Run({"bench", "collectives", "--mesh", "nope"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("there is no mesh named \"nope\""));
  EXPECT_THAT(cluster_->Run({"bench", "collectives", "--axes", "dpp"}).err, HasSubstr("dpp"));
}

}  // namespace
}  // namespace shardmesh::test
