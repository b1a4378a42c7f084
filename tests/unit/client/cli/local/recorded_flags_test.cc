// Which flags an `up` takes from the record, and which differ.
#include "client/cli/local/recorded_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/local/local_cluster.h"

namespace shardmesh::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Flags = std::vector<std::string>;

const std::map<std::string, std::string, std::less<>> kDefaults = {{"--transport", "auto"}};

TEST(RecordedFlagsTest, TakesTheFlagsThatAreNotGiven) {
  const Flags recorded = {"--memory=1048576", "--read-root=/a", "--read-root=/b"};
  RecordedFlags flags;
  EXPECT_EQ(flags.Merge("--data-dir", "/data", ""), "/data");
  EXPECT_EQ(flags.Merge("--tls", "", ""), "");
  EXPECT_EQ(flags.Merge(recorded, {}), recorded);
  EXPECT_THAT(flags.differences(), IsEmpty());
  EXPECT_THAT(flags.taken(),
              ElementsAre("--data-dir /data", "--memory 1MiB", "--read-root /a, /b"));
}

TEST(RecordedFlagsTest, AgreesWithTheSameFlagsInAnyOrder) {
  RecordedFlags flags;
  flags.Merge(Flags{"--read-root=/a", "--memory=1048576", "--read-root=/b"},
              {"--read-root=/b", "--read-root=/a", "--read-root=/b", "--memory=1048576"});
  EXPECT_THAT(flags.differences(), IsEmpty());
  EXPECT_THAT(flags.taken(), IsEmpty());
}

TEST(RecordedFlagsTest, NamesEachFlagThatDiffersWithBothValues) {
  RecordedFlags flags;
  flags.Merge("--mesh", "fsdp=2,tp=2", "fsdp=4");
  flags.Merge(Flags{"--memory=1048576", "--write-root=/w"},
              {"--memory=2097152", "--transport=shm", "--write-root=/w"});
  EXPECT_THAT(flags.differences(), ElementsAre("--mesh fsdp=4 (the cluster has fsdp=2,tp=2)",
                                               "--memory 2MiB (the cluster has 1MiB)",
                                               "--transport shm (the cluster has none)"));
}

TEST(RecordedFlagsTest, AgreesWithTheFormsOfOlderBuilds) {
  RecordedFlags flags;
  const Flags recorded = {"--memory=100663296", "--read-root=/a/", "--write-root=/w/./x/"};
  EXPECT_EQ(flags.Merge("--data-dir", "/data/", "/data"), "/data/");
  EXPECT_EQ(flags.Merge("--tls", "/tls/", "/tls"), "/tls/");
  EXPECT_EQ(flags.Merge(recorded, {"--memory=96MiB", "--read-root=/a", "--write-root=/w/x"}),
            recorded);
  EXPECT_EQ(flags.Merge(Flags{"--memory=96MiB"}, {"--memory=100663296"}), Flags{"--memory=96MiB"});
  EXPECT_THAT(flags.differences(), IsEmpty());
  EXPECT_THAT(flags.taken(), IsEmpty());
}

TEST(RecordedFlagsTest, LeavesValuesOfOtherFormsAsTheyAre) {
  EXPECT_EQ(RecordedForm("--memory", "1000"), "1000");
  EXPECT_EQ(RecordedForm("--memory", "100663296x"), "100663296x");
  EXPECT_EQ(RecordedForm("--memory", "99999999999999999999"), "99999999999999999999");
  EXPECT_EQ(RecordedForm("--min-sharding-size", "1024"), "1024");
  EXPECT_EQ(RecordedForm("--read-root", "/"), "/");
  EXPECT_EQ(RecordedForm("--data-dir", ""), "");
}

TEST(RecordedFlagsTest, KeepsTheGivenFlagsIfTheRecordIsOfAnOlderBuild) {
  RecordedFlags flags;
  EXPECT_THAT(flags.Merge(std::nullopt, {"--memory=1048576"}), ElementsAre("--memory=1048576"));
  EXPECT_THAT(flags.differences(), IsEmpty());
}

TEST(RecordedFlagsTest, ComparesAFlagThatOneSideLacksWithItsDefault) {
  RecordedFlags flags(kDefaults);
  const Flags recorded = {"--memory=1048576"};
  EXPECT_EQ(flags.Merge(recorded, {"--transport=auto", "--memory=1048576"}), recorded);
  EXPECT_THAT(flags.differences(), IsEmpty());
  flags.Merge(recorded, {"--transport=shm"});
  EXPECT_THAT(flags.differences(), ElementsAre("--transport shm (the cluster has auto)"));

  RecordedFlags of_shm(kDefaults);
  of_shm.Merge(Flags{"--transport=shm"}, {"--transport=auto"});
  EXPECT_THAT(of_shm.differences(), ElementsAre("--transport auto (the cluster has shm)"));
}

TEST(RecordedFlagsTest, PutsGivenFlagsInThePlaceOfRecordedOnes) {
  RecordedFlags flags(kDefaults, RecordedFlags::OnDifference::kTakeGiven);
  EXPECT_EQ(flags.Merge("--port", "7070", "7071"), "7071");
  EXPECT_EQ(flags.Merge("--tls", "/tls", ""), "/tls");
  EXPECT_THAT(
      flags.Merge(Flags{"--memory=1048576", "--transport=shm", "--read-root=/a"},
                  {"--transport=auto", "--read-root=/b", "--read-root=/a"}),
      ElementsAre("--memory=1048576", "--transport=auto", "--read-root=/b", "--read-root=/a"));
  EXPECT_THAT(flags.taken(), ElementsAre("--tls /tls", "--memory 1MiB"));
}

TEST(FollowedRestartsTest, NamesTheProcessesOfBothSides) {
  EXPECT_EQ(FollowedRestarts().Sentence(), "");
  const FollowedRestarts followed{
      .corrected = {"worker-0 (pid 12 has ended, pid 34 runs)"}, .elsewhere = {}, .unrecorded = {}};
  EXPECT_THAT(followed.Sentence(), HasSubstr("worker-0 (pid 12 has ended, pid 34 runs)"));
}

}  // namespace
}  // namespace shardmesh::client
