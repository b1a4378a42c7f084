// LinkTable: what is kept of workers' measurements, for how long, and what follows for a mesh.
#include "server/state/link_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/cpu_time.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Workers "a", "b", ... of the incarnations given, 0 for one that is lost; a mesh "m" of them all.
MembershipView View(int64_t epoch, const std::vector<uint64_t>& incarnations) {
  MembershipView view{.epoch = epoch, .workers = {}, .meshes = {}};
  std::vector<std::string> identities;
  for (size_t i = 0; i < incarnations.size(); ++i) {
    const std::string identity(1, static_cast<char>('a' + i));
    WorkerStatus worker;
    worker.info.identity = identity;
    worker.info.incarnation = incarnations[i];
    worker.state = incarnations[i] == 0 ? WorkerState::kLost : WorkerState::kAttached;
    view.workers[identity] = std::make_shared<const WorkerStatus>(std::move(worker));
    identities.push_back(identity);
  }
  const auto size = static_cast<int64_t>(identities.size());
  view.meshes["m"] = std::make_shared<const MeshRanks>("m", std::move(identities), size);
  return view;
}

MeasuredLink To(const std::string& peer, uint64_t incarnation, int64_t latency_us,
                double bytes_per_second) {
  return {.peer = peer,
          .peer_incarnation = incarnation,
          .latency = absl::Microseconds(latency_us),
          .bytes_per_second = bytes_per_second};
}

std::vector<std::string> Pairs(const std::vector<WorkerLink>& links) {
  std::vector<std::string> pairs;
  for (const WorkerLink& link : links) {
    pairs.push_back(StrCat(link.identity, link.measured.peer));
  }
  return pairs;
}

// All links between these workers, as LinksOf has them.
std::vector<WorkerLink> Between(const LinkTable& table, const MembershipView& view,
                                const std::set<std::string, std::less<>>& identities) {
  std::vector<WorkerLink> links;
  for (const std::string& lower : identities) {
    for (WorkerLink& link : table.LinksOf(view, lower, identities)) links.push_back(link);
  }
  return links;
}

bool IsDefault(const LinkCost& cost) {
  return cost.latency_seconds == LinkCost().latency_seconds &&
         cost.seconds_per_byte == LinkCost().seconds_per_byte;
}

TEST(LinkTableTest, ListsEachPairOnceBetweenTheWorkersThatAreAskedAbout) {
  LinkTable table;
  table.Reported("a", 1, {To("b", 2, 10, 1e9), To("c", 3, 20, 1e9)});
  table.Reported("b", 2, {To("a", 1, 99, 1e9), To("c", 3, 30, 1e9)});
  const MembershipView view = View(1, {1, 2, 3});
  EXPECT_THAT(Pairs(Between(table, view, {"a", "b", "c"})), ElementsAre("ab", "ac", "bc"));
  EXPECT_THAT(Pairs(Between(table, view, {"c", "a"})), ElementsAre("ac"));
  EXPECT_THAT(Pairs(Between(table, view, {"a", "nobody"})), IsEmpty());
}

TEST(LinkTableTest, AReportTakesThePlaceOfTheOneBefore) {
  LinkTable table;
  const MembershipView view = View(1, {1, 2, 3});
  table.Reported("a", 1, {To("b", 2, 10, 1e9), To("c", 3, 20, 1e9)});
  table.Reported("a", 1, {To("c", 3, 15, 1e9)});
  const auto links = Between(table, view, {"a", "b", "c"});
  ASSERT_THAT(Pairs(links), ElementsAre("ac"));
  EXPECT_EQ(links[0].measured.latency, absl::Microseconds(15));
  table.Reported("c", 3, {To("a", 1, 40, 1e9), To("b", 2, 40, 1e9)});
  EXPECT_THAT(Pairs(Between(table, view, {"a", "b", "c"})), ElementsAre("ac", "cb"));
  table.Reported("c", 3, {});
  table.Reported("a", 1, {});
  EXPECT_THAT(Between(table, view, {"a", "b", "c"}), IsEmpty());
}

TEST(LinkTableTest, ALinkCountsOnlyBetweenTheProcessesThatMeasuredIt) {
  LinkTable table;
  table.Reported("a", 1, {To("b", 2, 10, 1e9)});
  EXPECT_THAT(Pairs(Between(table, View(1, {1, 2}), {"a", "b"})), ElementsAre("ab"));
  EXPECT_THAT(Between(table, View(2, {1, 0}), {"a", "b"}), IsEmpty()) << "b is lost";
  EXPECT_THAT(Between(table, View(3, {1, 5}), {"a", "b"}), IsEmpty()) << "b was started anew";
  EXPECT_THAT(Between(table, View(4, {7, 2}), {"a", "b"}), IsEmpty()) << "a was started anew";
  EXPECT_THAT(Pairs(Between(table, View(5, {1, 2}), {"a", "b"})), ElementsAre("ab"))
      << "b lost its coordinator for a while, and nobody else";
  table.Lost("a");
  table.Lost("nobody");
  EXPECT_THAT(Between(table, View(6, {1, 2}), {"a", "b"}), IsEmpty()) << "a left";
}

TEST(LinkTableTest, AMeshIsAsSlowAsItsSlowestLinks) {
  LinkTable table;
  const MembershipView view = View(1, {1, 2, 3});
  EXPECT_TRUE(IsDefault(table.CostOf(view, "m"))) << "nothing is measured";
  EXPECT_TRUE(IsDefault(table.CostOf(view, "other"))) << "there is no such mesh";
  table.Reported("a", 1, {To("b", 2, 10, 4e9), To("c", 3, 25, 8e9)});
  table.Reported("b", 2, {To("c", 3, 5, 2e9)});
  EXPECT_DOUBLE_EQ(table.CostOf(view, "m").latency_seconds, 25e-6);
  EXPECT_DOUBLE_EQ(table.CostOf(view, "m").seconds_per_byte, 1 / 2e9);
  table.Reported("b", 2, {To("c", 3, 5, 3e9)});
  EXPECT_DOUBLE_EQ(table.CostOf(view, "m").seconds_per_byte, 1 / 3e9);
  EXPECT_DOUBLE_EQ(table.CostOf(View(2, {1, 2, 0}), "m").seconds_per_byte, 1 / 4e9);
  table.Lost("a");
  EXPECT_TRUE(IsDefault(table.CostOf(View(3, {0, 2, 0}), "m")));
}

TEST(LinkTableTest, AMeshSharesMemoryIfAllItsLinksDo) {
  LinkTable table;
  const MembershipView view = View(1, {1, 2, 3});
  MeasuredLink shared = To("b", 2, 1, 1e9);
  shared.shares_memory = true;
  table.Reported("a", 1, {shared});
  EXPECT_TRUE(table.CostOf(view, "m").shares_memory);
  table.Reported("a", 1, {shared, To("c", 3, 10, 1e9)});
  EXPECT_FALSE(table.CostOf(view, "m").shares_memory);
}

TEST(LinkTableTest, TheCostOfManyWorkersFollowsEachReportQuickly) {
  constexpr int kWorkers = 600;
  MembershipView view{.epoch = 1, .workers = {}, .meshes = {}};
  std::vector<std::string> identities;
  for (int i = 0; i < kWorkers; ++i) {
    WorkerStatus worker;
    worker.info.identity = StrCat("worker-", 1000 + i);
    worker.info.incarnation = 1;
    identities.push_back(worker.info.identity);
    view.workers[identities.back()] = std::make_shared<const WorkerStatus>(std::move(worker));
  }
  view.meshes["m"] = std::make_shared<const MeshRanks>("m", identities, kWorkers);
  const auto report = [&](LinkTable& table, int from, int64_t latency_us) {
    std::vector<MeasuredLink> links;
    for (int to = 0; to < kWorkers; ++to) {
      if (to != from) links.push_back(To(identities[static_cast<size_t>(to)], 1, latency_us, 1e9));
    }
    table.Reported(identities[static_cast<size_t>(from)], 1, std::move(links));
  };
  LinkTable table;
  for (int from = 0; from < kWorkers; ++from) report(table, from, 10);
  EXPECT_DOUBLE_EQ(table.CostOf(view, "m").latency_seconds, 10e-6);
  const absl::Time started = absl::Now();
  for (int round = 0; round < 100; ++round) {
    report(table, round, 20 + round);
    EXPECT_DOUBLE_EQ(table.CostOf(view, "m").latency_seconds, (20 + round) * 1e-6);
  }
  // Looking at all pairs each time took more than 10 s.
  EXPECT_LT(absl::Now() - started, absl::Seconds(4));
}

TEST(LinkTableTest, TheCostOfManyWorkersFollowsEachEpochQuickly) {
  constexpr size_t kWorkers = 600;
  std::vector<std::string> identities;
  for (size_t i = 0; i < kWorkers; ++i) identities.push_back(StrCat("worker-", 1000 + i));
  const auto mesh = std::make_shared<const MeshRanks>("m", identities, kWorkers);
  MembershipView view{.epoch = 1, .workers = {}, .meshes = {{"m", mesh}}};
  const auto set = [&](size_t index, WorkerState state) {
    WorkerStatus worker;
    worker.info.identity = identities[index];
    worker.info.incarnation = 1;
    worker.state = state;
    view.workers[identities[index]] = std::make_shared<const WorkerStatus>(std::move(worker));
    ++view.epoch;
  };
  LinkTable table;
  for (size_t from = 0; from < kWorkers; ++from) {
    set(from, WorkerState::kAttached);
    std::vector<MeasuredLink> links;
    for (size_t to = 0; to < kWorkers; ++to) {
      // Those of the first worker are the slowest.
      const int64_t latency_us = from == 0 || to == 0 ? 50 : 10 + static_cast<int64_t>(to % 7);
      if (to != from) links.push_back(To(identities[to], 1, latency_us, 1e9));
    }
    table.Reported(identities[from], 1, std::move(links));
  }
  EXPECT_DOUBLE_EQ(table.CostOf(view, "m").latency_seconds, 50e-6);
  const double started = ThreadCpuSeconds();
  for (size_t round = 1; round <= 100; ++round) {
    set(round, WorkerState::kLost);
    EXPECT_DOUBLE_EQ(table.CostOf(view, "m").latency_seconds, 50e-6);
    set(round, WorkerState::kAttached);
    EXPECT_DOUBLE_EQ(table.CostOf(view, "m").latency_seconds, 50e-6);
  }
  // Looking at all links each time took many seconds.
  EXPECT_LT(ThreadCpuSeconds() - started, 2);
  set(0, WorkerState::kLost);
  EXPECT_DOUBLE_EQ(table.CostOf(view, "m").latency_seconds, 16e-6);
}

// What is kept along is what a look at all links gives.
TEST(LinkTableTest, TheCostIsThatOfTheLinksThatCountWhateverCameBefore) {
  std::mt19937 random(7);
  const auto draw = [&](int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
  };
  constexpr size_t kWorkers = 6;
  std::vector<uint64_t> incarnations(kWorkers, 1);
  LinkTable table;
  std::map<std::string, std::pair<uint64_t, std::vector<MeasuredLink>>> reports;
  for (int64_t step = 1; step <= 3'000; ++step) {
    const std::string identity(1, static_cast<char>('a' + draw(kWorkers)));
    if (draw(3) == 0) {
      std::vector<MeasuredLink> links;
      for (size_t to = 0; to < kWorkers + 1; ++to) {  // one of no mesh among them
        if (draw(2) == 0) continue;
        MeasuredLink link =
            To(std::string(1, static_cast<char>('a' + to)), static_cast<uint64_t>(1 + draw(2)),
               1 + draw(5), 1e9 * (1 + draw(3)));
        link.shares_memory = draw(4) > 0;
        links.push_back(link);
      }
      const auto incarnation = static_cast<uint64_t>(1 + draw(2));
      reports[identity] = {incarnation, links};
      table.Reported(identity, incarnation, links);
    } else if (draw(6) == 0) {
      reports.erase(identity);
      table.Lost(identity);
    } else {
      incarnations[static_cast<size_t>(draw(kWorkers))] = static_cast<uint64_t>(draw(3));
    }
    LinkTable fresh;
    for (const auto& [each, report] : reports) fresh.Reported(each, report.first, report.second);
    const MembershipView view = View(step, incarnations);
    const LinkCost kept = table.CostOf(view, "m");
    const LinkCost made = fresh.CostOf(view, "m");
    ASSERT_EQ(kept.latency_seconds, made.latency_seconds) << step;
    ASSERT_EQ(kept.seconds_per_byte, made.seconds_per_byte) << step;
    ASSERT_EQ(kept.shares_memory, made.shares_memory) << step;
  }
}

TEST(LinkTableTest, LinksOfManySmallMeshesAreListedQuickly) {
  constexpr int kWorkers = 2'048;
  constexpr int kOfAMesh = 8;
  MembershipView view{.epoch = 1, .workers = {}, .meshes = {}};
  std::set<std::string, std::less<>> identities;
  const auto name = [](int index) { return StrCat("worker-", 1000 + index); };
  LinkTable table;
  for (int i = 0; i < kWorkers; ++i) {
    WorkerStatus worker;
    worker.info.identity = name(i);
    worker.info.incarnation = 1;
    identities.insert(worker.info.identity);
    view.workers[name(i)] = std::make_shared<const WorkerStatus>(std::move(worker));
    std::vector<MeasuredLink> links;
    for (int peer = i / kOfAMesh * kOfAMesh; peer < i; ++peer) {
      links.push_back(To(name(peer), 1, 10, 1e9));
    }
    table.Reported(name(i), 1, std::move(links));
  }
  const std::clock_t started = std::clock();
  EXPECT_EQ(std::ssize(Between(table, view, identities)), kWorkers * (kOfAMesh - 1) / 2);
  // Looking at all pairs took more than a second.
  EXPECT_LT(static_cast<double>(std::clock() - started) / CLOCKS_PER_SEC, 0.25);
}

TEST(LinkTableTest, FiguresThatCannotBeAreBounded) {
  LinkTable table;
  table.Reported("a", 1, {To("b", 2, 0, 1e300)});
  const LinkCost cost = table.CostOf(View(1, {1, 2}), "m");
  EXPECT_GT(cost.latency_seconds, 0);
  EXPECT_GT(cost.seconds_per_byte, 0);
}

}  // namespace
}  // namespace shardmesh::server
