// Verdicts on steps and workers, from what is known of the ranks.
#include "server/diagnosis/diagnosis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "process/cpu_time.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kStep = 12;
constexpr char kReduce[] = "op 0 (linear): all-reduce over tp";
constexpr char kGather[] = "op 1 (reshard): all-gather over tp";
constexpr char kMatmul[] = "op 0 (linear): matmul";

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(1000 + seconds); }

// What a rank is seen to do.
using Doing = std::function<void(ObservedRank&)>;

FlightRecord Instruction(int64_t op, const char* what, double began) {
  return {.step = kStep, .op = op, .what = what, .started = At(began)};
}

// Waits in an instruction for the data of a rank.
Doing Waits(int64_t op, const char* what, DeviceId for_rank, double began = 0) {
  return [=](ObservedRank& rank) {
    FlightRecord instruction = Instruction(op, what, began);
    for (DeviceId peer = 0; peer < 4; ++peer) {
      if (peer != rank.rank) instruction.peers.push_back({.rank = peer});
    }
    instruction.waits_for = for_rank;
    rank.progress = {.step = kStep, .started = At(began), .instruction = std::move(instruction)};
  };
}
// Waits for all whose data is missing; whom it asked is not known.
Doing Misses(int64_t op, const char* what, std::vector<DeviceId> missing) {
  return [=](ObservedRank& rank) {
    FlightRecord instruction = Instruction(op, what, 0);
    for (DeviceId peer = 0; peer < 4; ++peer) {
      if (peer == rank.rank) continue;
      const bool is_missing = std::find(missing.begin(), missing.end(), peer) != missing.end();
      instruction.peers.push_back(
          {.rank = peer, .data_came = is_missing ? absl::InfiniteFuture() : At(0)});
    }
    rank.progress = {.step = kStep, .started = At(0), .instruction = std::move(instruction)};
  };
}
Doing Works(int64_t op, const char* what, double began = 0) {
  return [=](ObservedRank& rank) {
    rank.progress = {
        .step = kStep, .started = At(began), .instruction = Instruction(op, what, began)};
  };
}
Doing HasEnded(int64_t op, const char* what, const Doing& then) {
  return [=](ObservedRank& rank) {
    FlightRecord record = Instruction(op, what, 0);
    record.ended = At(1);
    rank.ended.push_back(std::move(record));
    then(rank);
  };
}
Doing Idle() {
  return [](ObservedRank&) {};
}
Doing Done() {
  return [](ObservedRank& rank) { rank.is_done = true; };
}
Doing InStep(int64_t step) {
  return [=](ObservedRank& rank) { rank.progress = {.step = step, .started = At(0)}; };
}
Doing Lost(const Doing& before) {
  return [=](ObservedRank& rank) {
    before(rank);
    rank.lost_because = "its stream broke";
    rank.lost = absl::UnixEpoch() + absl::Hours(14) + absl::Minutes(3) + absl::Seconds(11);
  };
}
Doing Silent(const Doing& before, double last_heartbeat = 0.9) {
  return [=](ObservedRank& rank) {
    before(rank);
    rank.last_heartbeat = At(last_heartbeat);
  };
}
Doing Unreached(std::vector<std::string> identities, const Doing& besides) {
  return [=](ObservedRank& rank) {
    besides(rank);
    rank.unreached = identities;
  };
}

Doing Mute(const Doing& before) {
  return [=](ObservedRank& rank) {
    before(rank);
    rank.is_mute = true;
  };
}

// Seen three seconds after the step began.
constexpr double kNow = 3;

ObservedStep Observed(const std::vector<Doing>& ranks) {
  ObservedStep step{.sequence = kStep, .op = "linear", .mesh_id = "default", .started = At(0)};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ObservedRank observed{.rank = static_cast<int64_t>(rank),
                          .identity = StrCat("worker-", rank),
                          .last_heartbeat = At(kNow - 0.5)};
    ranks[rank](observed);
    step.ranks.push_back(std::move(observed));
  }
  return step;
}

std::vector<int64_t> CulpritsOf(const Finding& finding) {
  std::vector<int64_t> ranks;
  for (const Culprit& culprit : finding.culprits) ranks.push_back(culprit.rank);
  return ranks;
}

TEST(DiagnosisTest, FollowsWaitingRanksToWhoKeepsThemWaiting) {
  struct Case {
    std::string name;
    std::vector<Doing> ranks;
    FindingKind kind;
    std::vector<int64_t> culprits;
    std::string explanation;
  };
  const Case cases[] = {
      {"not in the step",
       {Waits(3, kReduce, 3), Waits(3, kReduce, 3), Waits(3, kReduce, 3), Idle()},
       FindingKind::kStuck,
       {3},
       "ranks 0, 1 and 2 wait in \"op 0 (linear): all-reduce over tp\" for rank 3 "
       "(worker-3), which has not begun the step"},
      {"late, and one of the late ones only waits for the other, which told the same of it before",
       {Done(), Done(), Waits(3, kReduce, 3), Mute(Waits(3, kReduce, 2))},
       FindingKind::kStuck,
       {3},
       "rank 2 waits in \"op 0 (linear): all-reduce over tp\" for rank 3 (worker-3), which does "
       "not "
       "answer (its last heartbeat came 500ms ago), and was in \"op 0 (linear): all-reduce over "
       "tp\" then"},
      {"late, and the other late one waits for it",
       {Done(), Done(), Waits(3, kReduce, 3), Mute(Idle())},
       FindingKind::kStuck,
       {3},
       "rank 2 waits in \"op 0 (linear): all-reduce over tp\" for rank 3 (worker-3), which does "
       "not "
       "answer (its last heartbeat came 500ms ago)"},
      {"lost",
       {Waits(3, kReduce, 3), Waits(3, kReduce, 3), Done(), Lost(Waits(3, kReduce, 0))},
       FindingKind::kStuck,
       {3},
       "ranks 0 and 1 wait in \"op 0 (linear): all-reduce over tp\" for rank 3 "
       "(worker-3), which is lost since 14:03:11 UTC (its stream broke)"},
      {"silent, in the midst of the instruction",
       {Waits(3, kReduce, 3), Waits(3, kReduce, 3), Waits(3, kReduce, 3),
        Silent(Waits(3, kReduce, 2))},
       FindingKind::kStuck,
       {3},
       "for rank 3 (worker-3), which has sent no heartbeat for 2.1s, and was in \"op 0 "
       "(linear): all-reduce over tp\" then"},
      {"still in an earlier instruction",
       {Waits(3, kReduce, 3), Waits(3, kReduce, 3), Waits(3, kReduce, 3), Works(2, kMatmul, 1)},
       FindingKind::kStuck,
       {3},
       "for rank 3 (worker-3), which has not entered it: it is still in \"op 0 (linear): "
       "matmul\", for 2s"},
      {"still in an earlier step",
       {Waits(3, kReduce, 3), Waits(3, kReduce, 3), Waits(3, kReduce, 3), InStep(11)},
       FindingKind::kStuck,
       {3},
       "for rank 3 (worker-3), which is still in step 11, for 3s"},
      {"before its first instruction",
       {Waits(3, kReduce, 1), InStep(kStep), Waits(3, kReduce, 1), Waits(3, kReduce, 1)},
       FindingKind::kStuck,
       {1},
       "for rank 1 (worker-1), which has begun the step, but none of its instructions"},
      {"around a ring: each waits for the one before it",
       {Waits(3, kReduce, 3), Waits(3, kReduce, 0), Waits(3, kReduce, 1), Idle()},
       FindingKind::kStuck,
       {3},
       "ranks 0, 1 and 2 wait in \"op 0 (linear): all-reduce over tp\" for rank 3"},
      {"two at once",
       {Waits(3, kReduce, 1), Idle(), Waits(3, kReduce, 3), Lost(Idle())},
       FindingKind::kStuck,
       {1, 3},
       "for rank 1 (worker-1), which has not begun the step; and for rank 3 (worker-3), which is "
       "lost"},
      {"asked of nobody yet, one of the missing is idle",
       {Misses(3, kReduce, {1, 2, 3}), Misses(3, kReduce, {3}), Misses(3, kReduce, {0, 3}), Idle()},
       FindingKind::kStuck,
       {3},
       "for rank 3 (worker-3), which has not begun the step"},
      {"one that is done, whose data does not come",
       {Waits(3, kReduce, 2), Done(), Done(), Done()},
       FindingKind::kCutOff,
       {2},
       "rank 0 waits in \"op 0 (linear): all-reduce over tp\" for rank 2 (worker-2), "
       "which has done its part, but its data does not come"},
      {"different instructions",
       {Waits(3, kReduce, 1), Waits(4, kGather, 0), Done(), Done()},
       FindingKind::kDeadlock,
       {0, 1},
       "rank 0 (worker-0) waits for rank 1 in \"op 0 (linear): all-reduce over tp\" (instruction "
       "3), "
       "rank 1 (worker-1) waits for rank 0 in \"op 1 (reshard): all-gather over tp\" (instruction "
       "4): "
       "they do not run the same program"},
      {"different work as the same instruction",
       {Waits(3, kReduce, 1), Waits(3, kGather, 0), Waits(3, kReduce, 1), Waits(3, kReduce, 1)},
       FindingKind::kDeadlock,
       {0, 1},
       "they do not run the same program"},
      {"a circle through different programs",
       {Waits(5, kGather, 1), Waits(4, kReduce, 2), Waits(3, kMatmul, 0), Done()},
       FindingKind::kDeadlock,
       {0, 1, 2},
       "they do not run the same program"},
      {"the next instruction of the same program, after the one that the other waits in",
       {Waits(3, kReduce, 1), HasEnded(3, kReduce, Waits(4, kGather, 0)), Done(), Done()},
       FindingKind::kCutOff,
       {0, 1},
       "data does not get through among rank 0 (worker-0), rank 1 (worker-1)"},
      {"two that do not hear each other",
       {Waits(3, kReduce, 1), Waits(3, kReduce, 0), Done(), Done()},
       FindingKind::kCutOff,
       {0, 1},
       "ranks 0 and 1 wait in \"op 0 (linear): all-reduce over tp\" for each other: "
       "data does not get through among rank 0 (worker-0), rank 1 (worker-1)"},
      {"one whom nobody hears",
       {Waits(3, kReduce, 1), Waits(3, kReduce, 0), Waits(3, kReduce, 1), Waits(3, kReduce, 1)},
       FindingKind::kCutOff,
       {1},
       "data does not get through to or from rank 1 (worker-1)"},
      {"one whom nobody reaches, as they have noticed",
       {Unreached({"worker-2"}, Waits(3, kReduce, 1)), Waits(3, kReduce, 0),
        Unreached({"worker-0", "worker-3"}, Waits(3, kReduce, 0)), Waits(3, kReduce, 1)},
       FindingKind::kCutOff,
       {2},
       "data does not get through to or from rank 2 (worker-2)"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::optional<Finding> finding =
        DiagnoseStep(Observed(c.ranks), {.now = At(kNow), .heartbeat_interval = absl::Seconds(1)});
    ASSERT_TRUE(finding.has_value());
    EXPECT_EQ(finding->kind, c.kind);
    EXPECT_EQ(CulpritsOf(*finding), c.culprits);
    EXPECT_THAT(finding->explanation, HasSubstr(c.explanation));
    EXPECT_THAT(finding->summary, AllOf(testing::StartsWith("step 12 (linear) is "),
                                        testing::EndsWith(finding->explanation)));
    EXPECT_TRUE(finding->is_blocked);
    EXPECT_EQ(finding->sequence, kStep);
    EXPECT_EQ(finding->mesh_id, "default");
  }
}

TEST(DiagnosisTest, TellsWhoWaitsWhereAndSinceWhen) {
  const Finding finding = *DiagnoseStep(
      Observed({Waits(3, kReduce, 3, 1), Waits(3, kReduce, 3, 0.5), Works(2, kMatmul), Idle()}),
      {.now = At(kNow)});
  EXPECT_THAT(finding.waiting, ElementsAre(0, 1));
  EXPECT_EQ(finding.instruction, 3);
  EXPECT_EQ(finding.label, kReduce);
  EXPECT_EQ(finding.since, At(0.5));
}

TEST(DiagnosisTest, TellsASilentRankFromHeartbeatsThatAreLateForAll) {
  const absl::Duration interval = absl::Milliseconds(200);
  const auto seen = [&](double first, double others, double last) {
    const Doing waits = Silent(Waits(3, kReduce, 3), others);
    return DiagnoseStep(Observed({Silent(waits, first), waits, waits, Silent(Idle(), last)}),
                        {.now = At(kNow), .heartbeat_interval = interval});
  };
  struct Case {
    double first;
    double others;
    double last;
    std::string reason;
  };
  const Case cases[] = {
      {1.2, 1.2, 1.2, "which has not begun the step"},
      {2.9, 1.2, 1.2, "which has not begun the step"},  // one came when this was asked
      {1.2, 1.2, 0.8, "which has sent no heartbeat for 2.2s"},
      {2.9, 2.9, 2.5, "which has sent no heartbeat for 500ms"},
  };
  for (const Case& c : cases) {
    const std::optional<Finding> late = seen(c.first, c.others, c.last);
    ASSERT_TRUE(late.has_value());
    EXPECT_EQ(late->waiting, (std::vector<int64_t>{0, 1, 2}));
    EXPECT_THAT(CulpritsOf(*late), ElementsAre(3));
    EXPECT_THAT(late->explanation, HasSubstr(c.reason));
  }
  const std::optional<Finding> all_silent = seen(0.9, 0.9, 0.9);
  ASSERT_TRUE(all_silent.has_value());
  EXPECT_THAT(CulpritsOf(*all_silent), ElementsAre(0, 1, 2, 3));

  const auto workers = [&](const std::vector<Doing>& ranks) {
    return DiagnoseWorkers(Observed(ranks).ranks, "default",
                           {.now = At(kNow), .heartbeat_interval = interval});
  };
  EXPECT_THAT(workers({Silent(Idle(), 1.2), Silent(Idle(), 1.2)}), IsEmpty());
  EXPECT_THAT(workers({Silent(Idle(), 2.9), Silent(Idle(), 2.5)}), SizeIs(1));
  EXPECT_THAT(workers({Silent(Idle(), 2.6)}), SizeIs(1)) << "nobody is to be told apart from it";
  EXPECT_THAT(workers({Silent(Idle(), 2.6), Lost(Silent(Idle(), 2.9))}), SizeIs(2));
}

TEST(DiagnosisTest, NamesWhoHasNotDoneItsPartWhereNobodyWaits) {
  const auto diagnose = [](const std::vector<Doing>& ranks) {
    return DiagnoseStep(Observed(ranks), {.now = At(kNow)});
  };
  const std::optional<Finding> busy = diagnose({Done(), Works(2, kMatmul, 1)});
  ASSERT_TRUE(busy.has_value());
  EXPECT_FALSE(busy->is_blocked) << "it merely works";
  EXPECT_EQ(busy->explanation, "rank 1 (worker-1) is still in \"op 0 (linear): matmul\", for 2s");
  const std::optional<Finding> silent = diagnose({Works(2, kMatmul, 1), Silent(Idle())});
  ASSERT_TRUE(silent.has_value());
  EXPECT_TRUE(silent->is_blocked);
  EXPECT_THAT(silent->explanation, HasSubstr("rank 1 (worker-1) has sent no heartbeat for 2.1s"));

  EXPECT_FALSE(diagnose({Idle(), Idle()}).has_value()) << "no heartbeat has told of the step";
  EXPECT_FALSE(diagnose({Done(), Done()}).has_value());
  EXPECT_FALSE(diagnose({}).has_value());
}

TEST(DiagnosisTest, FindsALostASilentAndAnUnreachedWorkerOfAMesh) {
  const auto diagnose = [](const std::vector<Doing>& ranks) {
    return DiagnoseWorkers(Observed(ranks).ranks, "default", {.now = At(kNow)});
  };
  EXPECT_THAT(diagnose({Idle(), Works(2, kMatmul)}), IsEmpty());
  const std::vector<Finding> gone = diagnose({Lost(Idle()), Idle(), Silent(Idle())});
  ASSERT_THAT(gone, SizeIs(2));
  EXPECT_EQ(gone[0].summary,
            "rank 0 (worker-0) of mesh \"default\" is lost since 14:03:11 UTC (its stream broke)");
  EXPECT_EQ(gone[1].summary,
            "rank 2 (worker-2) of mesh \"default\" has sent no heartbeat for 2.1s");
  const auto never_there = [](ObservedRank& rank) { rank.lost_because = "it never attached"; };
  EXPECT_EQ(diagnose({never_there})[0].summary,
            "rank 0 (worker-0) of mesh \"default\" is not there: it never attached");
  EXPECT_THAT(diagnose({Unreached({"worker-1"}, Idle()), Lost(Idle())}), SizeIs(1))
      << "that a lost one is not reached is no news";

  const std::vector<Finding> apart = diagnose(
      {Unreached({"worker-2"}, Idle()), Idle(),
       Unreached({"worker-0", "worker-1", "worker-3"}, Idle()), Unreached({"worker-2"}, Idle())});
  ASSERT_THAT(apart, SizeIs(1));
  EXPECT_EQ(apart[0].summary,
            "rank 2 (worker-2) of mesh \"default\" and ranks 0, 1 and 3 do not reach each other");
  const std::vector<Finding> pairs =
      diagnose({Unreached({"worker-1"}, Idle()), Idle(), Unreached({"worker-3"}, Idle()), Idle()});
  ASSERT_THAT(pairs, SizeIs(2));
  EXPECT_THAT(pairs[0].summary, HasSubstr("rank 0 (worker-0)"));
  EXPECT_THAT(pairs[1].summary, HasSubstr("rank 2 (worker-2)"));
}

TEST(DiagnosisTest, AStepOfManyRanksIsExplainedByTheFirst) {
  constexpr size_t kRanks = 5'000;
  const auto diagnose = [](const std::vector<Doing>& ranks) {
    return DiagnoseStep(Observed(ranks), {.now = At(kNow)});
  };
  std::vector<Doing> ranks(kRanks, Lost(Idle()));
  std::optional<Finding> finding = diagnose(ranks);
  ASSERT_TRUE(finding.has_value());
  EXPECT_THAT(finding->culprits, SizeIs(kRanks)) << "who asks about each is told";
  EXPECT_LT(finding->summary.size(), 1'000u);
  EXPECT_THAT(finding->summary, HasSubstr("; 4992 more"));
  ranks[0] = Misses(0, kReduce, {1, 2, 3});
  ranks[17] = ranks[0];
  finding = diagnose(ranks);
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(CulpritsOf(*finding), std::vector<int64_t>({1, 2, 3}));
}

TEST(DiagnosisTest, WorkersOfALargeMeshAreLookedAtQuickly) {
  constexpr size_t kRanks = 20'000;
  std::vector<Doing> doing(kRanks, Idle());
  doing[7] = Unreached({"worker-11", "worker-19999", "of another mesh"}, Idle());
  const std::vector<ObservedRank> ranks = Observed(doing).ranks;
  const double started = ThreadCpuSeconds();
  const std::vector<Finding> apart = DiagnoseWorkers(ranks, "default", {.now = At(kNow)});
  // Each of all others for each took seconds.
  EXPECT_LT(ThreadCpuSeconds() - started, 0.3);
  ASSERT_THAT(apart, SizeIs(1));
  EXPECT_THAT(apart[0].summary, HasSubstr("and ranks 11 and 19999 do not reach each other"));
}

TEST(DiagnosisTest, ListsRanks) {
  EXPECT_EQ(DescribeRanks({3}), "rank 3");
  EXPECT_EQ(DescribeRanks({0, 3}), "ranks 0 and 3");
  EXPECT_EQ(DescribeRanks({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
            "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

}  // namespace
}  // namespace shardmesh::server
