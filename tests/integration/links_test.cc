// Links of real processes: measured at start, shown, forgotten with their worker, measured again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "collective_cluster.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class LinksTest : public CollectiveCluster, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    TestCluster::Options options;
    options.worker_flags = {StrCat("--transport=", GetParam())};
    StartCluster(options);
  }
  bool SharesMemory() const { return std::string(GetParam()) == "shm"; }
  // Waits until so many links are known.
  client::ClusterLinks Await(size_t count, const std::string& mesh_id = "") {
    absl::StatusOr<client::ClusterLinks> links;
    EXPECT_TRUE(Eventually([&] {
      links = client().cluster().ListLinks(mesh_id);
      return links.ok() && links->links.size() == count;
    })) << count
        << " links of " << GetParam() << ": " << links.status();
    return links.ok() ? *std::move(links) : client::ClusterLinks();
  }
};
INSTANTIATE_TEST_SUITE_P(All, LinksTest, testing::Values("stream", "shm"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(LinksTest, ArePresentForEveryPairSoonAfterTheStart) {
  const client::ClusterLinks links = Await(6, "default");
  ASSERT_EQ(links.workers.size(), 4u);
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(links.workers[static_cast<size_t>(rank)].rank, rank);
  }
  for (const client::ClusterLinks::Link& link : links.links) {
    EXPECT_LT(link.identity, link.measured.peer);
    EXPECT_EQ(link.measured.shares_memory, SharesMemory());
    EXPECT_GT(link.measured.latency, absl::ZeroDuration());
    EXPECT_LT(link.measured.latency, absl::Seconds(1));
    EXPECT_GT(link.measured.bytes_per_second, 1e6);
    EXPECT_EQ(links.Find(link.measured.peer, link.identity), &link.measured);
  }
  ExpectSumSoon();

  const CommandResult table = cluster_->Run({"links"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("6 of 6 links measured"), HasSubstr("latency"),
                               HasSubstr("bandwidth"), HasSubstr("worker-3"),
                               HasSubstr(SharesMemory() ? "shared memory" : "stream")));
  const CommandResult json = cluster_->Run({"links", "--mesh=default", "--output=json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const Json parsed = Json::parse(json.out);
  ASSERT_EQ(parsed["workers"].size(), 4u);
  EXPECT_EQ(parsed["workers"][2]["rank"], 2);
  ASSERT_EQ(parsed["links"].size(), 6u);
  for (const Json& link : parsed["links"]) {
    EXPECT_EQ(link["measured"], true);
    EXPECT_EQ(link["transport"], SharesMemory() ? "shared memory" : "stream");
    EXPECT_GT(link["latency_s"].get<double>(), 0);
    EXPECT_GT(link["bytes_per_second"].get<double>(), 0);
  }
}

TEST_P(LinksTest, OfAWorkerThatIsGoneGoAndAreMeasuredAgainWhenItIsBack) {
  Await(6);
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  const client::ClusterLinks rest = Await(3);
  EXPECT_EQ(rest.workers.size(), 3u);
  EXPECT_EQ(rest.Find("worker-0", "worker-1"), nullptr);
  EXPECT_THAT(client().cluster().ListLinks("default"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  const CommandResult incomplete = cluster_->Run({"links", "--mesh=default"});
  EXPECT_EQ(incomplete.exit_code, 1);
  EXPECT_THAT(incomplete.err, HasSubstr("worker-1"));
  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  Await(6);
}

TEST_P(LinksTest, OfAMeshThatIsNotThereAreRefused) {
  const CommandResult unknown = cluster_->Run({"links", "--mesh=other"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("no mesh \"other\"; there is \"default\""));
}

}  // namespace
}  // namespace shardmesh::test
