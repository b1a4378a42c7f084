// MeshGate: answers come once the change is applied, and not before.
#include "server/watch/mesh_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace shardmesh::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(MeshGateTest, AnswersWaitForTheirRevision) {
  MeshGate gate;
  std::vector<int> answered;
  gate.Applied(4);
  gate.After(4, [&] { answered.push_back(4); });
  EXPECT_THAT(answered, ElementsAre(4)) << "it is applied already";
  gate.After(9, [&] { answered.push_back(9); });
  gate.After(7, [&] { answered.push_back(7); });
  gate.After(7, [&] { answered.push_back(70); });
  gate.Applied(6);
  EXPECT_THAT(answered, ElementsAre(4));
  gate.Applied(8);
  EXPECT_THAT(answered, ElementsAre(4, 7, 70));
  gate.Applied(5);  // an older one takes nothing back
  gate.After(8, [&] { answered.push_back(8); });
  EXPECT_THAT(answered, ElementsAre(4, 7, 70, 8));
  gate.Applied(9);
  EXPECT_THAT(answered, ElementsAre(4, 7, 70, 8, 9));
}

TEST(MeshGateTest, AnOpenGateLetsAllThrough) {
  MeshGate gate;
  std::vector<int> answered;
  gate.After(9, [&] { answered.push_back(9); });
  EXPECT_THAT(answered, IsEmpty());
  gate.Open();
  gate.After(1'000, [&] { answered.push_back(1'000); });
  EXPECT_THAT(answered, ElementsAre(9, 1'000));
}

TEST(MeshGateTest, EachAnswerIsGivenOnceWhateverThreadsDo) {
  MeshGate gate;
  constexpr int kAnswers = 1'000;
  std::atomic<int> answered{0};
  std::thread applying([&] {
    for (int revision = 1; revision <= kAnswers; ++revision) gate.Applied(revision);
  });
  for (int revision = 1; revision <= kAnswers; ++revision) {
    gate.After(revision, [&] { ++answered; });
  }
  applying.join();
  EXPECT_EQ(answered, kAnswers);
}

}  // namespace
}  // namespace shardmesh::server
