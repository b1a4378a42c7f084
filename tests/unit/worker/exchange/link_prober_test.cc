// Workers that measure their links beside steps, over both transports, and lose each other.
#include "worker/exchange/link_prober.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/exchange/linked_workers.h"
#include "worker/exchange/link_probe.h"

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::LinkedWorkers;
using ::shardmesh::test::TransportName;

constexpr int64_t kTagLimit = int64_t{4} << 20;

// Polls until it holds; false after a while.
bool Await(const std::function<bool()>& holds) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!holds()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

std::vector<std::string> PeersOf(const MeasuredLinks& measured) {
  std::vector<std::string> peers;
  for (const MeasuredLink& link : measured.links) peers.push_back(link.peer);
  return peers;
}

class LinkProberTest : public testing::TestWithParam<Transport> {};

INSTANTIATE_TEST_SUITE_P(All, LinkProberTest, testing::Values(Transport::kStream, Transport::kShm),
                         TransportName);

TEST_P(LinkProberTest, EveryPairIsMeasuredByTheWorkerThatDials) {
  LinkedWorkers workers("x=3", kTagLimit, GetParam(), /*measures=*/true);
  const absl::Time begin = absl::Now();
  ASSERT_TRUE(workers.Connect(1));
  ASSERT_TRUE(Await([&] {
    return PeersOf(workers.links(0).measured_links()).size() == 2 &&
           PeersOf(workers.links(1).measured_links()).size() == 1;
  }));
  EXPECT_EQ(PeersOf(workers.links(0).measured_links()),
            (std::vector<std::string>{"worker-1", "worker-2"}));
  EXPECT_EQ(PeersOf(workers.links(1).measured_links()), std::vector<std::string>{"worker-2"});
  EXPECT_TRUE(workers.links(2).measured_links().links.empty());
  for (const MeasuredLink& link : workers.links(0).measured_links().links) {
    EXPECT_EQ(link.peer_incarnation, link.peer == "worker-1" ? 101u : 102u);
    EXPECT_EQ(link.shares_memory, GetParam() == Transport::kShm);
    EXPECT_GT(link.latency, absl::ZeroDuration());
    EXPECT_GT(link.bytes_per_second, 0);
    EXPECT_GE(link.measured, begin);
    EXPECT_LE(link.measured, absl::Now());
  }
}

TEST_P(LinkProberTest, LaterProbesKeepTheBestFigures) {
  LinkedWorkers workers("x=2", kTagLimit, GetParam(), /*measures=*/true);
  ASSERT_TRUE(workers.Connect(1));
  ASSERT_TRUE(Await([&] { return workers.links(0).measured_links().revision >= 1; }));
  const MeasuredLinks measured = workers.links(0).measured_links();
  const MeasuredLink first = measured.links.at(0);
  ASSERT_TRUE(
      Await([&] { return workers.links(0).measured_links().revision > measured.revision; }));
  const MeasuredLink second = workers.links(0).measured_links().links.at(0);
  EXPECT_GT(second.measured, first.measured);
  EXPECT_LE(second.latency, first.latency);
  EXPECT_GE(second.bytes_per_second, first.bytes_per_second);
}

TEST_P(LinkProberTest, StepsRunBesideProbesAndKeepTheirMessages) {
  LinkedWorkers workers("x=2", kTagLimit, GetParam(), /*measures=*/true);
  ASSERT_TRUE(workers.Connect(1));
  // Steps from the start of the first probe to the end of the second one.
  int64_t sequence = kProbeStep;
  while (workers.links(0).measured_links().revision < 2) {
    ++sequence;
    std::vector<std::thread> ranks;
    for (DeviceId rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const absl::Time deadline = absl::Now() + absl::Seconds(20);
        const auto link = workers.links(rank).OpenLink("default", sequence, 1, deadline);
        ASSERT_THAT(link, IsOk());
        for (int64_t op = 0; op < 20; ++op) {
          const std::string mine(static_cast<size_t>(1 + op * op * 997),
                                 static_cast<char>('a' + rank));
          const Tag tag = *Tag::Create(sequence, op, 0);
          ASSERT_THAT((*link)->Send(1 - rank, tag, workers.Own(rank, mine)), IsOk());
          std::string got;
          while (got.size() < mine.size()) {
            const auto piece =
                (*link)->Receive(1 - rank, tag, static_cast<int64_t>(mine.size()), deadline);
            ASSERT_THAT(piece, IsOk());
            got.append(piece->bytes.data(), piece->bytes.size());
          }
          ASSERT_EQ(got, std::string(mine.size(), static_cast<char>('b' - rank)));
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

TEST_P(LinkProberTest, FiguresOfAPeerThatIsGoneGoAndTheOthersStay) {
  LinkedWorkers workers("x=3", kTagLimit, GetParam(), /*measures=*/true);
  ASSERT_TRUE(workers.Connect(1));
  ASSERT_TRUE(Await([&] { return workers.links(0).measured_links().links.size() == 2; }));
  const uint64_t revision = workers.links(0).measured_links().revision;
  workers.Kill(1);
  ASSERT_TRUE(Await([&] { return workers.links(0).measured_links().links.size() == 1; }));
  EXPECT_EQ(PeersOf(workers.links(0).measured_links()), std::vector<std::string>{"worker-2"});
  EXPECT_GT(workers.links(0).measured_links().revision, revision);
}

TEST_P(LinkProberTest, WorkersEndInTheMidstOfProbes) {
  for (int round = 0; round < 5; ++round) {
    LinkedWorkers workers("x=4", kTagLimit, GetParam(), /*measures=*/true);
    ASSERT_TRUE(workers.Connect(1));
    const absl::Time begin = absl::Now();
    for (DeviceId rank : {2, 0, 3, 1}) workers.Kill(rank);
    EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  }
}

TEST(LinkProberOfOneTest, APeerThatDoesNotMeasureLeavesTheLinkUnmeasured) {
  RealClock clock;
  test::LinkedWorker one("worker-0", 100, &clock, kTagLimit, "cluster", Transport::kStream,
                         /*measures=*/true);
  test::LinkedWorker two("worker-1", 101, &clock, kTagLimit, "cluster", Transport::kStream);
  MembershipView view{.epoch = 1, .term = 1, .meshes = {}};
  MeshMembers members{
      .mesh_id = "default", .revision = 1, .mesh = *Mesh::Parse("x=2"), .devices = {}};
  members.devices = {one.device(), two.device()};
  members.devices[1].rank = 1;
  view.meshes.push_back(members);
  one.links().SetMembership(view);
  two.links().SetMembership(view);
  ASSERT_TRUE(one.AwaitReached(1, absl::Now() + absl::Seconds(20)));
  // The call is dropped; steps go on.
  ASSERT_TRUE(Await([&] { return two.links().counters().dropped_frames == 1; }));
  EXPECT_TRUE(one.links().measured_links().links.empty());
  EXPECT_THAT(one.links().OpenLink("default", 1, 1, absl::Now() + absl::Seconds(20)), IsOk());
}

}  // namespace
}  // namespace shardmesh::worker
