// Puts that the workers of real clusters read from files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/mesh_client.h"
#include "process/failpoint.h"
#include "sharding/mesh_definition.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/safetensors.h"
#include "tensor/source_file.h"
#include "tests/integration/cli_fixture.h"
#include "tests/testing/eventually.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"
#include "tests/testing/zip_text.h"

namespace shardmesh::test {
namespace {

using ::nlohmann::json;
using ::shardmesh::client::ArraySelector;
using ::shardmesh::client::FileSource;
using ::shardmesh::client::PutReader;
using ::shardmesh::client::PutResult;
using ::shardmesh::client::PutTensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A tensor of a test's file, and the spec of its put on the mesh fsdp=2,tp=2.
struct Given {
  SafetensorsWriter::Tensor tensor;
  PartitionSpec spec = {};
};

PartitionSpec Over(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }

// Every kind of tile: of rows, of columns, of both, whole, of one element, of none.
std::vector<Given> AllKinds() {
  const SpecEntry fsdp = SpecEntry::Axis("fsdp");
  const SpecEntry tp = SpecEntry::Axis("tp");
  return {
      {{"rows", Dtype::kF32, {64, 33}}, Over({fsdp})},
      {{"columns", Dtype::kF32, {33, 64}}, Over({SpecEntry(), tp})},
      {{"both", Dtype::kBF16, {64, 64}}, Over({tp, fsdp})},
      {{"cube", Dtype::kF16, {3, 8, 10}}, Over({SpecEntry(), fsdp, tp})},
      {{"last", Dtype::kF8E4M3Fn, {5, 16}}, Over({SpecEntry(), SpecEntry::Axes({"fsdp", "tp"})})},
      {{"replicated", Dtype::kBF16, {7, 11}}, Over({})},
      {{"scalar", Dtype::kF32, {}}, Over({})},
      {{"empty", Dtype::kF32, {0, 4}}, Over({})},
      {{"bytes", Dtype::kU8, {4, 3}}, Over({fsdp})},
      {{"long", Dtype::kI64, {1'000'000}}, Over({SpecEntry::Axes({"fsdp", "tp"})})},
  };
}

// Workers tell their memory in each heartbeat.
constexpr absl::Duration kTwoHeartbeats = absl::Seconds(2);

class SourcesTest : public ::testing::Test {
 protected:
  ~SourcesTest() override { std::filesystem::remove_all(files_); }

  void StartCluster(bool durable = false) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(cluster_,
                                   TestCluster::Start({.durable = durable,
                                                       .coordinator_flags = {},
                                                       .worker_flags = {"--read-root=" + files_}}));
    AwaitIdle("default", 6);
  }
  client::MeshClient& client() { return cluster_->client(); }

  static void WriteTensors(const std::string& path, const std::vector<Given>& all) {
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const Given& each : all) tensors.push_back(each.tensor);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer,
                                   SafetensorsWriter::Create(path, tensors, {}));
    uint8_t next = 1;
    for (const Given& each : all) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t elements, ElementCount(each.tensor.shape));
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t size_bytes,
                                     PackedSizeBytes(each.tensor.dtype, elements));
      std::string bytes(static_cast<size_t>(size_bytes), '\0');
      for (char& byte : bytes) byte = static_cast<char>(next = next * 5 + 113);
      ASSERT_THAT(writer.Append(absl::MakeConstSpan(bytes)), IsOk());
    }
    ASSERT_THAT(writer.Finish(), IsOk());
  }
  // One tensor of 64 x 64 F32.
  std::string WriteOne(const std::string& name = "one.safetensors") {
    std::string path = files_ + "/" + name;
    WriteTensors(path, {{{"w", Dtype::kF32, {64, 64}}}});
    return path;
  }
  static FileSource SourceOf(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
    return {.file = AtRealPath(file.state()),
            .offset_bytes = file.header().data_offset_bytes() + tensor.begin_bytes};
  }
  // The tensor "w" of a file, over the axis x of the mesh "pair".
  static PutTensor OnPair(const SafetensorsFile& file) {
    const SafetensorsTensor& tensor = *file.header().Find("w");
    return {.name = "w",
            .view = file.View(tensor),
            .spec = Over({SpecEntry::Axis("x")}),
            .source = SourceOf(file, tensor)};
  }
  // The tensor "w" of a file, whole on each worker.
  static PutTensor Replicated(const SafetensorsFile& file) {
    PutTensor tensor = OnPair(file);
    tensor.spec = Over({});
    return tensor;
  }
  // Starts a worker "extra" with these flags, which serves the mesh "pair" with worker-0.
  void StartExtra(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--coordinator=" + cluster_->address(), "--listen=127.0.0.1:0",
                               "--identity=extra"});
    extra_ = std::make_unique<ServerProcess>("shardmesh-worker", flags);
    ASSERT_TRUE(Eventually([&] {
      return cluster_->Run({"status"}).out.find("extra") != std::string::npos;
    })) << extra_->Log();
    const MeshDefinition pair = {.mesh = *Mesh::Parse("x=2"), .workers = {"worker-0", "extra"}};
    if (!is_pair_defined_) {
      ASSERT_THAT(client().catalog().CreateEntry("pair", pair), IsOk());
      is_pair_defined_ = true;
    }
    AwaitIdle("pair", 1);
  }
  // Waits until the workers have connected to one another, and notes the memory that each of them
  // uses without any tile: what its peers may send unasked.
  void AwaitIdle(const std::string& mesh, size_t links) {
    std::map<std::string, int64_t> used;
    absl::Time since = absl::Now();
    EXPECT_TRUE(Eventually([&] {
      const auto measured = client().cluster().ListLinks(mesh);
      const auto status = client().cluster().GetStatus();
      if (!measured.ok() || measured->links.size() != links || !status.ok()) return false;
      std::map<std::string, int64_t> now;
      for (const client::WorkerStatus& worker : status->workers) {
        if (worker.state != client::WorkerState::kReady || worker.used_bytes == 0) return false;
        now[worker.identity] = worker.used_bytes;
      }
      if (now != used) since = absl::Now();
      used = std::move(now);
      return absl::Now() - since > kTwoHeartbeats;
    })) << "the memory of idle workers changes";
    for (const auto& [identity, bytes] : used) idle_bytes_[identity].insert(bytes);
  }
  // The bytes that all workers of the cluster read from files so far.
  int64_t ReadByWorkers() {
    int64_t sum = 0;
    const std::vector<std::string> addresses = cluster_->metrics_addresses();
    for (size_t i = 1; i < addresses.size(); ++i) {
      const auto values = MetricValues(addresses[i]);
      EXPECT_THAT(values, IsOk()) << addresses[i];
      if (!values.ok()) return -1;
      sum +=
          static_cast<int64_t>(values->at("shardmesh_worker_filled_bytes_total{from=\"files\"}"));
    }
    return sum;
  }
  // Whether no array is left, nor a tile on any worker, also in the heartbeats that follow.
  bool NothingIsLeft() {
    absl::Time since = absl::Now();
    return Eventually([&] {
      if (IsIdle()) return absl::Now() - since > kTwoHeartbeats;
      since = absl::Now();
      return false;
    });
  }
  // Drops the cache of released arrays.
  bool IsIdle() {
    if (!client().cluster().DropCache().ok()) return false;
    const auto arrays = client().arrays().ListArrays("", /*include_unnamed=*/true);
    const auto status = client().cluster().GetStatus();
    if (!arrays.ok() || !arrays->empty() || !status.ok()) return false;
    for (const client::WorkerStatus& worker : status->workers) {
      if (worker.quarantined_bytes > 0) return false;
      if (worker.state == client::WorkerState::kReady &&
          !idle_bytes_[worker.identity].contains(worker.used_bytes)) {
        return false;
      }
    }
    return true;
  }

  const std::string files_ = std::filesystem::canonical(MakeTestFolder("files")).string();
  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<ServerProcess> extra_;
  bool is_pair_defined_ = false;  // the mesh "pair"
  // By worker: the memory that it uses without any tile, among its first peers and among all.
  std::map<std::string, std::set<int64_t>> idle_bytes_;
};

TEST_F(SourcesTest, WorkersReadTheSameBytesAsTheClientSends) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::vector<Given> all = AllKinds();
  ASSERT_NO_FATAL_FAILURE(WriteTensors(files_ + "/all.safetensors", all));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                                 SafetensorsFile::Open(files_ + "/all.safetensors"));
  for (const PutReader reader : {PutReader::kWorkers, PutReader::kClient, PutReader::kAuto}) {
    std::vector<PutTensor> tensors;
    for (const Given& each : all) {
      const SafetensorsTensor& tensor = *file.header().Find(each.tensor.name);
      tensors.push_back({.name = each.tensor.name,
                         .view = file.View(tensor),
                         .spec = each.spec,
                         .source = SourceOf(file, tensor)});
    }
    int64_t done_bytes = 0;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const PutResult put,
        client().arrays().PutTensors(
            tensors, {.strict = true,
                      .reader = reader,
                      .reuse = false,
                      .progress = [&](int64_t done, int64_t) { done_bytes = done; }}));
    EXPECT_EQ(put.reader, reader == PutReader::kClient ? PutReader::kClient : PutReader::kWorkers);
    EXPECT_EQ(put.sent_bytes, put.reader == PutReader::kClient ? put.tile_bytes : 0);
    EXPECT_EQ(done_bytes, put.tile_bytes);
    EXPECT_THAT(put.workers_refused, IsOk());
    for (const Given& each : all) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(
          const client::GatheredTensor gathered,
          client().arrays().Gather(ArraySelector::ByName(each.tensor.name)));
      const TensorView expected = file.View(*file.header().Find(each.tensor.name));
      EXPECT_EQ(gathered.view().dtype(), each.tensor.dtype);
      EXPECT_TRUE(
          std::string_view(gathered.view().bytes().data(), gathered.view().bytes().size()) ==
          std::string_view(expected.bytes().data(), expected.bytes().size()))
          << each.tensor.name;
      EXPECT_EQ(gathered.array().source.has_value(), put.reader == PutReader::kWorkers);
    }
  }
}

TEST_F(SourcesTest, TheCommandLineSaysWhoReadAndFromWhere) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/true));
  const std::string model = files_ + "/model.safetensors";
  ASSERT_THAT(cluster_->Run({"make-checkpoint", "--out", model}), Succeeded());
  CommandResult result = cluster_->Run({"load", model, "--rules", kRules, "--quiet"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("read by the workers; on disk"));
  result =
      cluster_->Run({"load", model, "--rules", kRules, "--source=client", "--no-reuse", "-ojson"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  json answer = json::parse(result.out);
  EXPECT_EQ(answer["read_by"], "client");
  EXPECT_EQ(answer["sent_bytes"], answer["tile_bytes"]);
  result =
      cluster_->Run({"load", model, "--rules", kRules, "--source=workers", "--no-reuse", "-ojson"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  answer = json::parse(result.out);
  EXPECT_EQ(answer["read_by"], "workers");
  EXPECT_EQ(answer["sent_bytes"], 0);
  EXPECT_FALSE(answer.contains("workers_refused"));
  EXPECT_EQ(cluster_->Run({"load", model, "--rules", kRules, "--source=both"}).exit_code, 2);

  // Where the bytes came from outlives a restart of the coordinator.
  const std::string name = "encoder.layer.0.output.dense.weight";
  const json before = json::parse(cluster_->Run({"describe", name, "-ojson"}).out)["source"];
  EXPECT_EQ(before["path"], model);
  EXPECT_EQ(before["size_bytes"], std::filesystem::file_size(model));
  ASSERT_THAT(cluster_->Kill("coordinator"), IsOk());
  ASSERT_THAT(cluster_->Restart("coordinator"), IsOk());
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_EQ(json::parse(cluster_->Run({"describe", name, "-ojson"}).out)["source"], before);
  EXPECT_THAT(cluster_->Run({"describe", name}).out, HasSubstr(StrCat("source      ", model)));

  const std::string npy = files_ + "/x.npy";
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape=8,8", "--out", npy}), Succeeded());
  result = cluster_->Run({"put", npy, "--as=x", "--spec=fsdp,tp", "--source=workers"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("read by the workers"));
  result =
      cluster_->Run({"put", npy, "--as=x", "--spec=fsdp,tp", "--source=workers", "--no-reuse"});
  EXPECT_THAT(result.out, HasSubstr("read by the workers"));
  ASSERT_THAT(cluster_->Run({"get", "x", "--out", files_ + "/y.npy"}), Succeeded());
  EXPECT_TRUE(ReadFile(npy) == ReadFile(files_ + "/y.npy"));
}

TEST_F(SourcesTest, AFileThatChangedSinceItsHeaderWasReadIsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::string path = WriteOne();
  const auto changes = std::vector<std::function<void()>>{
      [&] { std::ofstream(path, std::ios::app | std::ios::binary) << "more"; },
      [&] {  // as long as before, but later
        std::filesystem::last_write_time(
            path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
      },
      [&] {  // another file under the same name, of the same time
        const auto time = std::filesystem::last_write_time(path);
        WriteTensors(path + ".new", {{{"v", Dtype::kF32, {64, 64}}}});
        std::filesystem::last_write_time(path + ".new", time);
        std::filesystem::rename(path + ".new", path);
      },
      [&] { std::filesystem::resize_file(path, 100); }};
  for (const auto& change : changes) {
    WriteOne();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
    change();
    const PutTensor tensor = Replicated(file);
    const absl::Status refused = client().arrays().PutTensors({&tensor, 1}).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(path));
    EXPECT_TRUE(NothingIsLeft());
  }
}

TEST_F(SourcesTest, AFileThatIsWrittenWhileTheClientSendsItIsRefused) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::string path = WriteOne();
  const auto changes = std::vector<std::function<void()>>{
      [&] { std::ofstream(path, std::ios::app | std::ios::binary) << "more"; },
      [&] {  // in place, as long as before
        std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(200) << "other";
        std::filesystem::last_write_time(
            path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
      }};
  for (const auto& change : changes) {
    WriteOne();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
    const PutTensor tensor = Replicated(file);
    client::PutOptions options;
    options.reader = PutReader::kClient;
    options.on_begun = [&](const std::string&) { change(); };
    const absl::Status refused = client().arrays().PutTensors({&tensor, 1}, options).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(path));
    EXPECT_TRUE(NothingIsLeft());
  }
  // If another file replaces the file, the client still reads the one that it has opened.
  WriteOne();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  const PutTensor tensor = Replicated(file);
  client::PutOptions options;
  options.reader = PutReader::kClient;
  options.on_begun = [&](const std::string&) {
    WriteTensors(path + ".new", {{{"v", Dtype::kF32, {64, 64}}}});
    std::filesystem::rename(path + ".new", path);
  };
  EXPECT_THAT(client().arrays().PutTensors({&tensor, 1}, options), IsOk());
}

TEST_F(SourcesTest, AFileThatChangesWhileWorkersReadItGivesItsOldBytesOrNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::string path = files_ + "/large.safetensors";
  const std::vector<Given> large = {{{"w", Dtype::kU8, {32 << 20}}}};
  const auto changes = std::vector<std::pair<std::string, std::function<void()>>>{
      {"corrupted, of the same size",
       [&] {
         std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
         file.seekp(-1, std::ios::end);
         file << "x";
       }},
      {"truncated", [&] { std::filesystem::resize_file(path, 1 << 20); }},
      {"growing",
       [&] { std::ofstream(path, std::ios::app | std::ios::binary) << std::string(4096, 'x'); }},
      {"swapped for another of the same size",
       [&] {
         WriteTensors(path + ".new", {{{"w", Dtype::kI8, {32 << 20}}}});
         std::filesystem::rename(path + ".new", path);
       }},
      {"removed", [&] { std::filesystem::remove(path); }}};
  int refused = 0;
  for (const auto& [name, change] : changes) {
    ASSERT_NO_FATAL_FAILURE(WriteTensors(path, large));
    std::string old_bytes;
    absl::Status put;
    {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
      const absl::Span<const char> bytes = file.View(*file.header().Find("w")).bytes();
      old_bytes.assign(bytes.data(), bytes.size());
      const PutTensor tensor = Replicated(file);
      put = client()
                .arrays()
                .PutTensors({&tensor, 1},
                            {.reader = PutReader::kWorkers,
                             .on_begun = [&, change = change](const std::string&) { change(); }})
                .status();
    }
    if (put.ok()) {  // all workers had read it before it changed
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                     client().arrays().Gather(ArraySelector::ByName("w")));
      EXPECT_TRUE(std::string_view(gathered.view().bytes().data(),
                                   gathered.view().bytes().size()) == old_bytes)
          << name;
      ASSERT_THAT(client().arrays().DeleteName("w"), IsOk());
    } else {
      // A worker that opens it only now no longer finds a removed file.
      EXPECT_TRUE(ReasonOf(put) == Reason::kFileChanged ||
                  (name == "removed" && ReasonOf(put) == Reason::kBadFile))
          << name << ": " << put;
      EXPECT_THAT(std::string(put.message()), HasSubstr(path)) << name;
      ++refused;
    }
    std::filesystem::remove(path);
  }
  EXPECT_GT(refused, 0) << "no file changed while it was read";
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(SourcesTest, ADeadlineNamesTheWorkerThatIsStopped) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::string model = files_ + "/model.safetensors";
  ASSERT_THAT(cluster_->Run({"make-checkpoint", "--out", model}), Succeeded());
  for (const char* const source : {"--source=workers", "--source=auto", "--source=client"}) {
    SCOPED_TRACE(source);
    ASSERT_THAT(cluster_->Signal("worker-1", SIGSTOP), IsOk());
    const CommandResult late =
        cluster_->Run({"load", model, "--rules", kRules, "--quiet", source, "--deadline=3s"});
    EXPECT_THAT(cluster_->Signal("worker-1", SIGCONT), IsOk());
    EXPECT_NE(late.exit_code, 0);
    EXPECT_THAT(late.err, HasSubstr("worker-1"));
  }
  EXPECT_TRUE(NothingIsLeft());
}

// The coordinator knows all corrections: workers that could not read the files do not hide them.
TEST_F(SourcesTest, AStrictPutNamesAllCorrectionsWithoutItsWorkers) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartExtra({}));  // without a root
  const std::string x = files_ + "/x.npy";
  ASSERT_THAT(cluster_->Run({"make-tensor", "--shape=8,8", "--out=" + x}), Succeeded());
  const CommandResult refused = cluster_->Run({"put", x, x, "--as=i", "--as=j", "--spec=sp,-",
                                               "--mesh=pair", "--strict", "--source=workers"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("AXIS_NOT_IN_MESH"),
                                 HasSubstr("\n2 specs need corrections:\n  i and 1 more: ")));
}

TEST_F(SourcesTest, AClientKilledWhileWorkersReadForItLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartExtra({"--read-root=" + files_, "--failpoints=fill.read=delay"}));
  const std::string path = files_ + "/large.safetensors";
  ASSERT_NO_FATAL_FAILURE(WriteTensors(path, {{{"w", Dtype::kU8, {32 << 20}}}}));
  std::ofstream(files_ + "/rules.yaml") << "rules:\n- {pattern: '.*', spec: [x]}\n";
  const std::vector<std::string> load = {"load",   path,   "--rules", files_ + "/rules.yaml",
                                         "--mesh", "pair", "--quiet", "--source=workers"};
  std::vector<std::string> flags = load;
  flags.insert(flags.end(), {"--address=" + cluster_->address()});
  {
    // It holds its call to BeginPut open until the transfer has ended.
    const ServerProcess killed("shardmesh", flags);
    EXPECT_TRUE(Eventually([&] {
      const auto operations = client().cluster().ListOperations({});
      return operations.ok() && !operations->empty();
    })) << killed.Log();
  }
  // If the client had asked for the commit before it was killed, the put goes on without it.
  EXPECT_TRUE(Eventually([&] {
    const auto running = client().cluster().ListOperations({client::OperationState::kRunning});
    return running.ok() && running->empty();
  }));
  if (client().arrays().DescribeArray(ArraySelector::ByName("w")).ok()) {
    ASSERT_THAT(client().arrays().DeleteName("w"), IsOk());
  }
  EXPECT_TRUE(NothingIsLeft());
  const CommandResult again = cluster_->Run(load);
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(SourcesTest, AWorkerWithoutARootIsNamedAndAutoSendsInstead) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartExtra({}));
  WriteOne();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                                 SafetensorsFile::Open(files_ + "/one.safetensors"));
  const PutTensor tensor = OnPair(file);
  for (const bool validate_only : {true, false}) {
    const absl::Status refused = client()
                                     .arrays()
                                     .PutTensors({&tensor, 1}, {.mesh = "pair",
                                                                .validate_only = validate_only,
                                                                .reader = PutReader::kWorkers})
                                     .status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("worker \"extra\""), HasSubstr("--read-root"),
                      HasSubstr("--source client"), Not(HasSubstr("worker-0"))));
    EXPECT_EQ(FactOf(refused, fact::kIdentity), "extra");
  }
  EXPECT_TRUE(NothingIsLeft());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult put,
                                 client().arrays().PutTensors({&tensor, 1}, {.mesh = "pair"}));
  EXPECT_EQ(put.reader, PutReader::kClient);
  EXPECT_THAT(put.workers_refused,
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  // The command says what it has done.
  const CommandResult loaded =
      cluster_->Run({"load", files_ + "/one.safetensors", "--spec=-", "--mesh=pair", "--quiet",
                     "--source=auto", "--no-reuse"});
  EXPECT_EQ(loaded.exit_code, 0) << loaded.err;
  EXPECT_THAT(loaded.out,
              AllOf(HasSubstr("The workers did not read the file, so this client did: "),
                    HasSubstr("--read-root")));
}

TEST_F(SourcesTest, AnArrayThatNumpyCannotHoldIsWrittenAsSafetensors) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  WriteTensors(files_ + "/f8.safetensors", {{{"f8", Dtype::kF8E4M3Fn, {8, 8}}}});
  const CommandResult loaded =
      cluster_->Run({"load", files_ + "/f8.safetensors", "--spec=-", "--quiet"});
  ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
  const CommandResult refused = cluster_->Run({"get", "f8", "--out", files_ + "/f8.npy"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err,
              HasSubstr("write a .safetensors file instead: --out " + files_ + "/f8.safetensors"));
}

TEST_F(SourcesTest, ALinkOutOfTheRootIsNotFollowed) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::string outside = std::filesystem::canonical(MakeTestFolder("outside")).string();
  WriteTensors(outside + "/secret.safetensors", {{{"w", Dtype::kF32, {64, 64}}}});
  const std::string link = files_ + "/link.safetensors";
  std::filesystem::create_symlink(outside + "/secret.safetensors", link);
  ASSERT_NO_FATAL_FAILURE(StartExtra({"--read-root=" + files_}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(link));
  PutTensor tensor = OnPair(file);  // by its real path, outside of the root
  for (const bool by_link : {false, true}) {
    if (by_link) tensor.source->file = std::make_shared<const SourceFile>(file.state());
    EXPECT_THAT(
        client().arrays().PutTensors({&tensor, 1}, {.mesh = "pair", .reader = PutReader::kWorkers}),
        StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNoReadRoot));
  }
  EXPECT_TRUE(NothingIsLeft());
  std::filesystem::remove_all(outside);
}

TEST_F(SourcesTest, AWorkerThatFailsOrDiesMidwayLeavesNothing) {
  struct Fault {
    std::string failpoint;
    absl::StatusCode code;
    std::string text;
  };
  for (const Fault& fault : {Fault{"fill.read=crash", absl::StatusCode::kUnavailable, "extra"},
                             Fault{"fill.read=eio", absl::StatusCode::kDataLoss, "rank 1"}}) {
    ASSERT_NO_FATAL_FAILURE(StartCluster());
    ASSERT_NO_FATAL_FAILURE(
        StartExtra({"--read-root=" + files_, "--failpoints=" + fault.failpoint}));
    WriteOne();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                                   SafetensorsFile::Open(files_ + "/one.safetensors"));
    const PutTensor tensor = OnPair(file);
    const absl::Status failed =
        client().arrays().PutTensors({&tensor, 1}, {.mesh = "pair"}).status();
    EXPECT_THAT(failed, StatusIs(fault.code)) << fault.failpoint;
    EXPECT_THAT(std::string(failed.message()), HasSubstr(fault.text));
    EXPECT_TRUE(NothingIsLeft()) << fault.failpoint;
    extra_.reset();
    cluster_.reset();
    is_pair_defined_ = false;
  }
}

TEST_F(SourcesTest, ALoadWorksOnceTheWorkerThatEndedWhileItReadIsBack) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartExtra({"--read-root=" + files_, "--failpoints=fill.read=crash"}));
  const std::vector<std::string> load = {"load",          WriteOne(), "--spec=x",
                                         "--mesh=pair",   "--quiet",  "--source=workers",
                                         "--deadline=20s"};
  const CommandResult failed = cluster_->Run(load);
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_THAT(failed.err, HasSubstr("extra"));
  EXPECT_EQ(extra_->AwaitEnd(), StrCat("exited with code ", kFailpointExitCode));
  EXPECT_FALSE(client().arrays().DescribeArray(ArraySelector::ByName("w")).ok());
  EXPECT_TRUE(NothingIsLeft());
  extra_.reset();
  ASSERT_NO_FATAL_FAILURE(StartExtra({"--read-root=" + files_}));
  const CommandResult loaded = cluster_->Run(load);
  ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                                 SafetensorsFile::Open(files_ + "/one.safetensors"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto gathered,
                                 client().arrays().Gather(ArraySelector::ByName("w")));
  EXPECT_TRUE(gathered.view().bytes() == file.View(*file.header().Find("w")).bytes());
}

TEST_F(SourcesTest, ACoordinatorThatDiesMidwayLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*durable=*/true));
  const std::string path = files_ + "/large.safetensors";
  ASSERT_NO_FATAL_FAILURE(WriteTensors(path, {{{"w", Dtype::kU8, {64 << 20}}}}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(path));
  const PutTensor tensor = Replicated(file);
  const absl::Status failed =
      client()
          .arrays()
          .PutTensors({&tensor, 1}, {.reader = PutReader::kWorkers,
                                     .on_begun =
                                         [&](const std::string&) {
                                           EXPECT_THAT(cluster_->Kill("coordinator"), IsOk());
                                           EXPECT_THAT(cluster_->Restart("coordinator"), IsOk());
                                         }})
          .status();
  EXPECT_THAT(failed, Not(IsOk()));
  ASSERT_THAT(cluster_->WaitUntilHealthy(), IsOk());
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(SourcesTest, WorkersTransposeAndConvertToTheBitsThatTheClientSends) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  WriteTensors(files_ + "/torch.safetensors", {{{"wide.weight", Dtype::kF32, {1030, 516}}},
                                               {{"cube.weight", Dtype::kF16, {6, 8, 10}}},
                                               {{"double.weight", Dtype::kF64, {40, 12}}},
                                               {{"half", Dtype::kBF16, {64, 4}}},
                                               {{"ids", Dtype::kI64, {16, 6}}},
                                               {{"empty.weight", Dtype::kF32, {0, 4}}},
                                               {{"vector", Dtype::kF32, {64}}}});
  const std::string map = WriteFile(files_ + "/map.yaml", R"(tensors:
- {pattern: '\.weight$', replace: '.kernel', transpose: true}
- {pattern: '^ids', transpose: [1, 0]}
- {pattern: '^half', dtype: F32}
- {pattern: '^vector'}
unmatched: error
)");
  const std::string rules = WriteFile(files_ + "/rules.yaml", R"(rules:
- {pattern: 'empty|vector', spec: []}
- {pattern: 'cube', spec: [null, tp, fsdp]}
- {pattern: '.*', spec: [tp, fsdp]}
)");
  const std::vector<std::string> names = {"wide.kernel", "cube.kernel",  "double.kernel", "half",
                                          "ids",         "empty.kernel", "vector"};
  std::map<std::string, std::string> first;
  for (const std::string source : {"client", "workers", "auto"}) {
    const CommandResult loaded =
        cluster_->Run({"load", files_ + "/torch.safetensors", "--map", map, "--rules", rules,
                       "--dtype=BF16", "--no-reuse", "--quiet", "-ojson", "--source=" + source});
    ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
    const json answer = json::parse(loaded.out);
    EXPECT_EQ(answer["read_by"], source == "client" ? "client" : "workers") << answer;
    EXPECT_TRUE(source == "client" || answer["sent_bytes"] == 0) << answer;
    for (const std::string& name : names) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                     client().arrays().Gather(ArraySelector::ByName(name)));
      const absl::Span<const char> view = gathered.view().bytes();
      const std::string bytes(view.data(), view.size());
      const auto [place, is_first] = first.emplace(name, bytes);
      EXPECT_TRUE(is_first || place->second == bytes) << name << " by " << source;
    }
  }
  const json described = json::parse(cluster_->Run({"describe", "wide.kernel", "-ojson"}).out);
  EXPECT_EQ(described["source"]["dtype_in_file"], "F32");
  EXPECT_EQ(described["source"]["permutation"], json::array({1, 0}));
  EXPECT_THAT(cluster_->Run({"describe", "wide.kernel"}).out,
              HasSubstr(", F32 there, dimensions 1,0; the file had"));
}

// I8 with scales needs the client, and all else is read by the workers in the same put.
TEST_F(SourcesTest, OneTensorThatWorkersCannotMakeIsTheOnlyOneThatTheClientSends) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  const std::string path = files_ + "/model.safetensors";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(
            path, {{"plain", Dtype::kF32, {64, 64}}, {"wide", Dtype::kF32, {256, 128}}}, {}));
    for (const size_t elements : {size_t{64 * 64}, size_t{256 * 128}}) {
      std::vector<float> values(elements);
      for (size_t i = 0; i < elements; ++i) {
        values[i] = static_cast<float>(i % 1001) / 8 - 60;
      }
      const auto* bytes = reinterpret_cast<const char*>(values.data());
      ASSERT_THAT(writer.Append(absl::MakeConstSpan(bytes, elements * sizeof(float))), IsOk());
    }
    ASSERT_THAT(writer.Finish(), IsOk());
  }
  const std::string map =
      WriteFile(files_ + "/map.yaml", "tensors:\n- {pattern: '^wide', dtype: I8, channel: 0}\n");
  const std::string rules =
      WriteFile(files_ + "/rules.yaml",
                "rules:\n- {pattern: 'scale', spec: []}\n- {pattern: '.*', spec: [tp, fsdp]}\n");
  const std::vector<std::string> load = {"load",    path,  "--map",      map,
                                         "--rules", rules, "--no-reuse", "--quiet"};
  const auto run = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), load.begin(), load.end());
    return cluster_->Run(flags);
  };
  constexpr int64_t kRead = int64_t{64} * 64 * 4;
  constexpr int64_t kSent = int64_t{256} * 128 + int64_t{4} * 256 * 4;  // scales on four workers
  std::map<std::string, std::string> first;
  for (const std::string source : {"client", "auto"}) {
    const int64_t before = ReadByWorkers();
    const CommandResult loaded = run({"-ojson", "--source=" + source});
    ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
    const json answer = json::parse(loaded.out);
    const bool is_mixed = source == "auto";
    EXPECT_EQ(answer["read_by"], is_mixed ? "both" : "client");
    EXPECT_EQ(answer["tile_bytes"], kRead + kSent);
    EXPECT_EQ(answer["sent_bytes"], is_mixed ? kSent : kRead + kSent);
    EXPECT_EQ(answer["read_bytes"], is_mixed ? kRead : 0);
    EXPECT_EQ(answer["reused_bytes"], 0);
    EXPECT_EQ(ReadByWorkers() - before, is_mixed ? kRead : 0);
    EXPECT_EQ(answer.contains("workers_refused"), is_mixed);
    for (const std::string name : {"plain", "wide", "wide.scale"}) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const client::GatheredTensor gathered,
                                     client().arrays().Gather(ArraySelector::ByName(name)));
      const absl::Span<const char> view = gathered.view().bytes();
      const std::string bytes(view.data(), view.size());
      const auto [place, is_first] = first.emplace(name, bytes);
      EXPECT_TRUE(is_first || place->second == bytes) << name;
      EXPECT_EQ(gathered.array().source.has_value(), is_mixed && name == "plain") << name;
    }
  }
  const CommandResult text = run({"--source=auto"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out,
              AllOf(HasSubstr(", 16.0 KiB read by the workers, 36.0 KiB sent by this client; "),
                    HasSubstr("The workers did not read all tensors, so this client did: only the "
                              "client makes I8")));
  const CommandResult refused = run({"--source=workers"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("only the client makes I8 with scales"));
}

// The client sends its tensor well, and the put ends with the worker that cannot read the other.
TEST_F(SourcesTest, APutOfBothKindsOfWhichAWorkerFailsToReadItsPartLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  ASSERT_NO_FATAL_FAILURE(StartExtra({"--read-root=" + files_, "--failpoints=fill.read=eio"}));
  WriteOne();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const SafetensorsFile file,
                                 SafetensorsFile::Open(files_ + "/one.safetensors"));
  std::vector<PutTensor> tensors = {OnPair(file), OnPair(file)};
  tensors[1].name = "sent";
  tensors[1].source.reset();
  const absl::Status failed =
      client().arrays().PutTensors(tensors, {.mesh = "pair", .reuse = false}).status();
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("rank 1"));
  for (const char* const name : {"w", "sent"}) {
    EXPECT_FALSE(client().arrays().DescribeArray(ArraySelector::ByName(name)).ok()) << name;
  }
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(SourcesTest, WorkersReadNumpyFilesInFortranOrderAndMembersOfNpzFiles) {
  ASSERT_NO_FATAL_FAILURE(StartCluster());
  std::string values(6 * 8 * 4, '\0');
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(i * 37 % 61);
  const std::string fortran = NpyText("<f4", "(6, 8)", values, /*fortran_order=*/true);
  const std::string npy = WriteFile(files_ + "/f.npy", fortran);
  const std::string npz = WriteFile(
      files_ + "/a.npz", ZipText({{.name = "f.npy", .data = fortran},
                                  {.name = "c.npy", .data = NpyText("<f4", "(6, 8)", values)}}));
  const auto bytes_of = [&](const std::string& name) {
    const auto gathered = client().arrays().Gather(ArraySelector::ByName(name));
    EXPECT_THAT(gathered, IsOk());
    if (!gathered.ok()) return std::string();
    return std::string(gathered->view().bytes().data(), gathered->view().bytes().size());
  };
  std::string turned;  // row-major
  for (size_t row = 0; row < 6; ++row) {
    for (size_t column = 0; column < 8; ++column) {
      turned += values.substr((column * 6 + row) * 4, 4);
    }
  }
  for (const std::string source : {"client", "workers"}) {
    const CommandResult loaded = cluster_->Run(
        {"load", npz, "--spec=fsdp,tp", "--no-reuse", "--quiet", "-ojson", "--source=" + source});
    ASSERT_EQ(loaded.exit_code, 0) << loaded.err;
    EXPECT_EQ(json::parse(loaded.out)["read_by"], source);
    EXPECT_TRUE(bytes_of("f") == turned) << source;
    EXPECT_TRUE(bytes_of("c") == values) << source;
    const CommandResult put = cluster_->Run(
        {"put", npy, "--as=put", "--spec=fsdp,tp", "--no-reuse", "-ojson", "--source=" + source});
    ASSERT_EQ(put.exit_code, 0) << put.err;
    EXPECT_TRUE(bytes_of("put") == turned) << source;
  }
  // Both say where the elements come from alike.
  const CommandResult again =
      cluster_->Run({"put", npy, "--as=again", "--spec=fsdp,tp", "--source=client"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(bytes_of("again") == turned);
}

}  // namespace
}  // namespace shardmesh::test
