// Ranks that die, stop or come late in the middle of a collective: who it is, is said to the
// client, on the other ranks and by `shardmesh doctor`, in time; and the next collective is right.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <system_error>

#include "absl/strings/str_split.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/status_macros.h"
#include "tests/integration/collective_cluster.h"
#include "tests/integration/opposite_orders.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

using Kind = client::ClusterFinding::Kind;

// Of a broken stream.
constexpr absl::Duration kBreakNoticedWithin = absl::Seconds(1);

// Tiles large enough for memory of their own, and small enough to be returned with a result.
constexpr int64_t kRows = 128;
constexpr int64_t kColumns = 1024;
constexpr size_t kTileElements = kRows * kColumns;

std::vector<float> RandomTiles(size_t count, std::mt19937& random) {
  std::uniform_real_distribution<float> between(-1, 1);
  std::vector<float> elements(count * kTileElements);
  std::generate(elements.begin(), elements.end(), [&] { return between(random); });
  return elements;
}

// The sum of three or four tiles, in the one order in which the parts of a sum are added.
std::vector<float> SumOfTiles(const std::vector<float>& elements) {
  std::vector<float> sums(kTileElements);
  for (size_t i = 0; i < kTileElements; ++i) {
    const auto part = [&](size_t tile) { return elements[tile * kTileElements + i]; };
    const bool has_fourth = elements.size() > 3 * kTileElements;
    sums[i] = (part(0) + part(1)) + (has_fourth ? part(2) + part(3) : part(2));
  }
  return sums;
}

// The inodes of the sockets that are bound to a name without a file.
std::set<std::string> AbstractSockets() {
  std::set<std::string> inodes;
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() == 8 && words[7][0] == '@') inodes.insert(words[6]);
  }
  return inodes;
}

// Those that a process has.
std::set<std::string> AbstractSocketsOf(int64_t pid) {
  const std::set<std::string> all = AbstractSockets();
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(StrCat("/proc/", pid, "/fd"), error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    constexpr std::string_view kSocket = "socket:[";
    if (error || target.rfind(kSocket, 0) != 0) continue;
    const std::string inode = target.substr(kSocket.size(), target.size() - kSocket.size() - 1);
    if (all.contains(inode)) inodes.insert(inode);
  }
  return inodes;
}

// The inodes of the memory without a name that a process has mapped: all, or what it writes to.
std::set<std::string> SegmentsOf(int64_t pid, bool writable_only = false) {
  std::set<std::string> inodes;
  std::ifstream file(StrCat("/proc/", pid, "/maps"));
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const bool is_segment = words.size() > 5 && words[5].rfind("/memfd:", 0) == 0;
    if (is_segment && (!writable_only || words[1][1] == 'w')) inodes.insert(words[4]);
  }
  return inodes;
}

std::set<std::string> FilesBelow(const std::string& folder) {
  std::set<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    paths.insert(entry.path().string());
  }
  return paths;
}

std::set<std::string> Both(const std::set<std::string>& a, const std::set<std::string>& b) {
  std::set<std::string> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.begin()));
  return both;
}

// By how data goes between the workers.
class StuckTest : public CollectiveCluster, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(
        {.coordinator_flags = {}, .worker_flags = {StrCat("--transport=", GetParam())}}));
  }

  std::map<std::string, int64_t> Pids() {
    std::map<std::string, int64_t> pids;
    const absl::StatusOr<client::ClusterStatus> status = client().cluster().GetStatus();
    for (const client::WorkerStatus& worker : status->workers) pids[worker.identity] = worker.pid;
    return pids;
  }
  absl::StatusOr<std::vector<FlightRecord>> RecordsOf(const std::string& identity) {
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<client::WorkerFlight> flights,
                               client().cluster().ListFlightRecords({.identity = identity}));
    return std::move(flights.front().records);
  }
};

INSTANTIATE_TEST_SUITE_P(Over, StuckTest, ::testing::Values("stream", "shm"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(StuckTest, ARankThatIsKilledInACollectiveIsNamedEverywhere) {
  std::map<std::string, int64_t> before = Pids();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult done,
                                 client().compute().Collective(Sum()));
  ASSERT_TRUE(Eventually([&] {
    const auto records = RecordsOf("worker-1");
    return records.ok() && std::any_of(records->begin(), records->end(), [&](const auto& record) {
             return record.step == done.sequence;
           });
  })) << "no heartbeat of worker-1 brings what it did";
  // Stopped, so that the others surely wait when it is killed.
  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  auto sum = SumWithin(absl::Seconds(60));
  const client::ClusterFinding stuck =
      AwaitBlame("worker-1", Kind::kStuck, "ranks 0, 2 and 3 wait in");
  EXPECT_THAT(stuck.waiting_ranks, ElementsAre(0, 2, 3)) << stuck.summary;
  EXPECT_THAT(stuck.summary,
              AllOf(HasSubstr(StrCat("step ", stuck.step.value_or(0))), HasSubstr("rank 1"),
                    HasSubstr("all-reduce"), HasSubstr("no heartbeat")));
  const absl::Time killed = absl::Now();
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  const auto result = sum.get();
  EXPECT_LT(absl::Now() - killed, kBreakNoticedWithin);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
  EXPECT_THAT(std::string(result.status().message()),
              AllOf(HasSubstr("worker-1"), HasSubstr(StrCat("step ", stuck.step.value_or(0))),
                    HasSubstr("all-reduce over fsdp,tp")));
  AwaitBlame("worker-1", Kind::kFailed);
  ExpectNamedByTheOthers("worker-1", stuck.step.value_or(0), killed + kBreakNoticedWithin);
  ExpectDoctorNames("worker-1");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<FlightRecord> told_by_the_dead,
                                 RecordsOf("worker-1"));
  EXPECT_THAT(told_by_the_dead, Contains(Field(&FlightRecord::step, done.sequence)))
      << "what it told survives it";

  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ASSERT_NO_FATAL_FAILURE(PutMatrix());
  ExpectSumSoon();
  std::map<std::string, int64_t> after = Pids();
  before.erase("worker-1");
  after.erase("worker-1");
  EXPECT_EQ(after, before) << "the others were not started again";
}

TEST_P(StuckTest, NothingIsLeftOfARankThatIsKilled) {
  ExpectSumSoon();
  std::map<std::string, int64_t> pids = Pids();
  const int64_t dead = pids["worker-1"];
  pids.erase("worker-1");
  const std::set<std::string> files = FilesBelow(cluster_->folder());
  const std::set<std::string> sockets = AbstractSocketsOf(dead);
  const std::set<std::string> segments = SegmentsOf(dead, /*writable_only=*/true);
  const auto mapped_by_others = [&] {
    std::set<std::string> mapped;
    for (const auto& [identity, pid] : pids) mapped.merge(SegmentsOf(pid));
    return Both(mapped, segments);
  };
  const bool shares_memory = GetParam() == std::string_view("shm");
  EXPECT_EQ(!sockets.empty(), shares_memory);
  EXPECT_EQ(!mapped_by_others().empty(), shares_memory);

  // In the middle of a sum.
  ASSERT_THAT(cluster_->Signal("worker-2", SIGSTOP), IsOk());
  auto sum = SumWithin(absl::Seconds(60));
  AwaitBlame("worker-2", Kind::kStuck, "ranks 0, 1 and 3 wait in");
  ASSERT_THAT(cluster_->Kill("worker-1"), IsOk());
  ASSERT_THAT(cluster_->Signal("worker-2", SIGCONT), IsOk());
  EXPECT_THAT(sum.get(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(Eventually([&] { return Both(AbstractSockets(), sockets).empty(); }));
  EXPECT_TRUE(Eventually([&] { return mapped_by_others().empty(); }))
      << "the others keep what it showed them";

  ASSERT_THAT(cluster_->Restart("worker-1"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  ASSERT_NO_FATAL_FAILURE(PutMatrix());
  ExpectSumSoon();
  EXPECT_EQ(FilesBelow(cluster_->folder()), files);
}

TEST_P(StuckTest, AStoppedRankIsNamedAtTheDeadlineAndGoesOnAfterwards) {
  ExpectSumSoon();
  ASSERT_THAT(cluster_->Signal("worker-3", SIGSTOP), IsOk());
  // Before its streams count as broken.
  constexpr absl::Duration kTimeout = absl::Milliseconds(2500);
  const absl::Time begun = absl::Now();
  const auto result = SumWithin(kTimeout).get();
  EXPECT_LT(absl::Now() - begun, kTimeout + kNamedWithin);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << result.status();
  const client::ClusterFinding failed = AwaitBlame("worker-3", Kind::kFailed);
  EXPECT_THAT(
      std::string(result.status().message()),
      AllOf(HasSubstr(StrCat("step ", failed.step.value_or(0))), HasSubstr("(collective of \"m\")"),
            HasSubstr("ranks 0, 1 and 2 wait in \"op 0 (collective): all-reduce"),
            HasSubstr("for rank 3 (worker-3)")));
  ExpectNamedByTheOthers("worker-3", failed.step.value_or(0), begun + kTimeout + kNamedWithin);
  ExpectDoctorNames("worker-3");

  ASSERT_THAT(cluster_->Signal("worker-3", SIGCONT), IsOk());
  ExpectSumSoon();
}

TEST_P(StuckTest, ARankThatIsAliveButNeverEntersIsNamedAtTheDeadline) {
  auto busy = KeepBusy("worker-3", absl::Seconds(10));
  constexpr absl::Duration kTimeout = absl::Milliseconds(1500);
  const absl::Time begun = absl::Now();
  const auto result = SumWithin(kTimeout).get();
  EXPECT_LT(absl::Now() - begun, kTimeout + kNamedWithin);
  EXPECT_EQ(busy.wait_for(std::chrono::seconds(0)), std::future_status::timeout)
      << "it was busy all the time";
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded) << result.status();
  const client::ClusterFinding failed = AwaitBlame("worker-3", Kind::kFailed);
  EXPECT_THAT(
      std::string(result.status().message()),
      AllOf(HasSubstr(StrCat("step ", failed.step.value_or(0))),
            HasSubstr("all-reduce over fsdp,tp"), HasSubstr("for rank 3 (worker-3), which ")));
  ExpectNamedByTheOthers("worker-3", failed.step.value_or(0), begun + kTimeout + kNamedWithin);
  ExpectDoctorNames("worker-3");
  // The next one is right as soon as the rank has time for it.
  ExpectSumSoon();
  EXPECT_THAT(busy.get(), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_P(StuckTest, ARankThatWakesAfterAnAbortHarmsNobody) {
  std::mt19937 random(5);
  const PartitionSpec by_row({SpecEntry::Axes({"fsdp", "tp"})});
  const PartitionSpec by_row_of_others({SpecEntry::Axis("x")});
  const Shape shape = {4 * kRows, kColumns};
  const Shape shape_of_others = {3 * kRows, kColumns};
  const std::vector<float> kept = RandomTiles(4, random);
  ASSERT_NO_FATAL_FAILURE(DefineMesh("others", {"worker-0", "worker-1", "worker-3"}));
  ASSERT_THAT(PutFloats(client(), "doomed", shape, RandomTiles(4, random), by_row), IsOk());
  ASSERT_THAT(PutFloats(client(), "kept", shape, kept, by_row), IsOk());
  std::map<std::string, std::vector<float>> of_others;
  for (const char* name : {"first", "second", "third"}) {
    of_others[name] = RandomTiles(3, random);
    ASSERT_THAT(
        PutFloats(client(), name, shape_of_others, of_others[name], by_row_of_others, "others"),
        IsOk());
  }
  std::vector<std::pair<std::string, std::vector<float>>> made;  // by array id
  const auto expect_sums_of_others = [&] {
    for (const auto& [name, elements] : of_others) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult result,
                                     client().compute().Collective(SumOf(name, {"x"})));
      EXPECT_TRUE(ElementsOf(result) == SumOfTiles(elements)) << name;
      made.emplace_back(result.outputs[0].array.descriptor.array_id, ElementsOf(result));
    }
  };

  // Stopped while it waits for another rank, it has told the others where its data lies, as they
  // told it of theirs.
  ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
  constexpr absl::Duration kTimeout = absl::Seconds(4);
  const absl::Time begun = absl::Now();
  auto sum = SumWithin(kTimeout, SumOf("doomed", {"fsdp", "tp"}));
  AwaitBlame("worker-1", Kind::kStuck, "ranks 0, 2 and 3 wait in");
  ASSERT_THAT(cluster_->Signal("worker-2", SIGSTOP), IsOk());
  ASSERT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
  const auto result = sum.get();
  EXPECT_LT(absl::Now() - begun, kTimeout + kNamedWithin);
  // On a busy machine its streams may count as broken before.
  EXPECT_THAT(result.status().code(),
              AnyOf(absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnavailable))
      << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("rank 2 (worker-2)"));

  // The others let go of the step's memory at once, and of what they showed to it when its streams
  // count as broken; other steps use it anew.
  ASSERT_THAT(client().arrays().DeleteName("doomed"), IsOk());
  expect_sums_of_others();
  ASSERT_TRUE(Eventually([&] {
    const absl::StatusOr<client::ClusterStatus> status = client().cluster().GetStatus();
    return status.ok() &&
           std::all_of(status->workers.begin(), status->workers.end(), [](const auto& worker) {
             return worker.identity == "worker-2" || worker.state == client::WorkerState::kJoining;
           });
  })) << "its peers do not miss it";
  absl::Status incomplete;
  EXPECT_TRUE(Eventually([&] {
    incomplete = client().compute().Collective(Sum()).status();
    return ReasonOf(incomplete) != Reason::kRecovering;
  })) << "a peer that is missed is expected back for some seconds only";
  EXPECT_THAT(incomplete, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete));
  EXPECT_EQ(FactOf(incomplete, fact::kIdentity), "worker-2");
  EXPECT_THAT(std::string(incomplete.message()),
              AllOf(HasSubstr("worker \"worker-2\" has sent no heartbeat for"),
                    HasSubstr("its peers do not reach it"), Not(HasSubstr("worker \"worker-0\"")),
                    Not(HasSubstr("worker \"worker-1\"")), Not(HasSubstr("worker \"worker-3\""))));
  expect_sums_of_others();
  ASSERT_THAT(cluster_->Signal("worker-2", SIGCONT), IsOk());
  expect_sums_of_others();
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  expect_sums_of_others();

  // Every tile is compared with the checksum that it was committed with, too.
  const auto expect_unchanged = [&](const client::ArraySelector& array,
                                    const std::vector<float>& elements) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                   client().arrays().Gather(array));
    EXPECT_TRUE(FloatsOf(gathered.view().bytes()) == elements) << array.name << array.array_id;
  };
  expect_unchanged(client::ArraySelector::ByName("m"), numbers_);
  expect_unchanged(client::ArraySelector::ByName("kept"), kept);
  for (const auto& [name, elements] : of_others) {
    expect_unchanged(client::ArraySelector::ByName(name), elements);
  }
  for (const auto& [id, elements] : made) {
    expect_unchanged(client::ArraySelector::ById(id), elements);
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult last,
                                 client().compute().Collective(SumOf("kept", {"fsdp", "tp"})));
  EXPECT_TRUE(ElementsOf(last) == SumOfTiles(kept));
}

TEST_P(StuckTest, ARankThatIsBusyIsNamedAndWaitedFor) {
  ExpectALateRankIsNamedAndWaitedFor(absl::Seconds(8));
}

TEST_P(StuckTest, ARankThatIsLateIsWaitedFor) {
  ASSERT_THAT(cluster_->Signal("worker-2", SIGSTOP), IsOk());
  auto sum = SumWithin(absl::Seconds(60));
  AwaitBlame("worker-2", Kind::kStuck);
  ASSERT_THAT(cluster_->Signal("worker-2", SIGCONT), IsOk());
  const auto result = sum.get();
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(ElementsOf(*result), Expected());
  // And with it the finding goes.
  EXPECT_TRUE(Eventually([&] {
    const absl::StatusOr<client::Diagnosis> diagnosis = client().cluster().Diagnose();
    return diagnosis.ok() && diagnosis->healthy;
  }));
  const CommandResult doctor = cluster_->Run({"doctor"});
  EXPECT_EQ(doctor.exit_code, 0) << doctor.out << doctor.err;
  EXPECT_THAT(doctor.out, HasSubstr("nothing is stuck"));
}

TEST_P(StuckTest, DoctorShowsWhatEachRankDidLast) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::StepResult result,
                                 client().compute().Collective(Sum()));
  // Heartbeats bring the records.
  std::vector<client::WorkerFlight> flights;
  ASSERT_TRUE(Eventually([&] {
    auto listed = client().cluster().ListFlightRecords({.step = result.sequence});
    if (listed.ok()) flights = *std::move(listed);
    return flights.size() == 4 && std::none_of(flights.begin(), flights.end(),
                                               [](const auto& f) { return f.records.empty(); });
  }));
  for (const client::WorkerFlight& flight : flights) {
    const FlightRecord& record = flight.records.front();
    EXPECT_EQ(record.what, "op 0 (collective): all-reduce over fsdp,tp");
    EXPECT_THAT(record.outcome, IsOk());
    EXPECT_LE(record.started, record.ended);
    EXPECT_EQ(record.peers.size(), 3u);
    for (const FlightRecord::Peer& peer : record.peers) {
      EXPECT_LE(peer.data_came, record.ended) << "of rank " << peer.rank;
    }
  }

  const CommandResult json =
      cluster_->Run({"doctor", "--worker=worker-2", "--records=1", "--output=json"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const nlohmann::json document = nlohmann::json::parse(json.out);
  EXPECT_EQ(document["healthy"], true);
  ASSERT_EQ(document["workers"].size(), 1u);
  EXPECT_EQ(document["workers"][0]["identity"], "worker-2");
  ASSERT_EQ(document["workers"][0]["records"].size(), 1u);
  EXPECT_EQ(document["workers"][0]["records"][0]["step"], result.sequence);
  const CommandResult table = cluster_->Run({"doctor", StrCat("--step=", result.sequence)});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("all-reduce over fsdp,tp"), HasSubstr("worker-3")));
  const CommandResult unknown = cluster_->Run({"doctor", "--worker=worker-9"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("worker-9"), HasSubstr("NOT_FOUND")));
}

TEST_P(StuckTest, ClientsThatUseGroupsInOppositeOrdersNeverDeadlock) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t done,
                                 RunInOppositeOrders(cluster_->address(), absl::Seconds(3)));
  EXPECT_GT(done, 10);
}

}  // namespace
}  // namespace shardmesh::test
