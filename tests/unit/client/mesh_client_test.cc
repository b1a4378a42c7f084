// The facade against a small cluster in the same process.
#include "client/mesh_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/remote/coordinator_connection.h"
#include "client/remote/session_keeper.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/thread_pool.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "sharding/digest.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/retry.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint/tensor_map.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/npy.h"
#include "tensor/tensor_elements.h"
#include "tests/testing/eventually.h"
#include "tests/testing/replacing_saves.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/client/small_cluster.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::Eventually;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::ReplaceCheckpoint;
using ::shardmesh::test::SavedFiles;
using ::shardmesh::test::ScopedMaxReplaceTime;
using ::shardmesh::test::StatusIs;
using test::Elements;
using test::HeldCall;
using test::SmallCoordinator;
using test::SmallWorker;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class MeshClientTest : public ::testing::Test {
 protected:
  MeshClientTest() {
    std::vector<SmallWorker*> workers;
    for (auto& worker : workers_) {
      worker = std::make_unique<SmallWorker>();
      workers.push_back(worker.get());
    }
    coordinator_ = std::make_unique<SmallCoordinator>(*Mesh::Parse("tp=2"), workers);
    client_ = *MeshClient::Connect(coordinator_->address(), {.session_ttl = absl::Seconds(60)});
  }

  // Makes a client whose end waits for the coordinator however busy the machine is.
  void ConnectWithPatience() {
    client_ =
        *MeshClient::Connect(coordinator_->address(), {.session_ttl = absl::Minutes(10),
                                                       .session_release_time = absl::Minutes(10),
                                                       .session_close_time = absl::Minutes(10)});
  }

  // A tensor of 16 MiB, by columns.
  PutTensor Large(const std::string& name) {
    bytes_.resize(size_t{16} << 20, 'b');
    return {.name = name,
            .view = *TensorView::Create(Dtype::kU8, {4096, 4096}, bytes_),
            .spec = PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})};
  }

  // Puts a tensor of U8, all of it on each worker, whose elements are all `fill`.
  void PutFilled(const std::string& name, const Shape& shape, char fill) {
    const std::string bytes(static_cast<size_t>(shape[0] * shape[1]), fill);
    const PutTensor tensor{.name = name,
                           .view = *TensorView::Create(Dtype::kU8, shape, bytes),
                           .spec = PartitionSpec()};
    ASSERT_THAT(client_->arrays().PutTensors({tensor}), IsOk());
  }

  // Puts a tensor without a name; returns the array's id.
  absl::StatusOr<std::string> PutNameless() {
    const std::string bytes(12, 'b');
    const PutTensor tensor{.name = "",
                           .view = *TensorView::Create(Dtype::kU8, {2, 6}, bytes),
                           .spec = PartitionSpec()};
    SHARDMESH_ASSIGN_OR_RETURN(const PutResult put, client_->arrays().PutTensors({tensor}));
    return put.arrays[0].descriptor.array_id;
  }

  std::string bytes_;
  std::unique_ptr<SmallWorker> workers_[2];
  std::unique_ptr<SmallCoordinator> coordinator_;
  std::unique_ptr<MeshClient> client_;
};

TEST_F(MeshClientTest, NamesACoordinatorThatIsNotThereWithinThreeSeconds) {
  const std::string address = coordinator_->address();
  client_.reset();
  coordinator_.reset();
  const absl::Time start = absl::Now();
  const auto client = MeshClient::Connect(address);
  EXPECT_THAT(client, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(client.status().ToString(), HasSubstr(address));
  EXPECT_LT(absl::Now() - start, absl::Seconds(3.5));
}

TEST_F(MeshClientTest, RefusesWhatIsNoAddress) {
  EXPECT_THAT(MeshClient::Connect("nowhere"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(MeshClientTest, LoadsACheckpointAndGathersItsTensors) {
  const std::string path = ::testing::TempDir() + "/mesh_client_test.safetensors";
  const std::string data(2 * 6 * 4 + 3 * 8, 'q');
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(path, {{"w", Dtype::kF32, {2, 6}}, {"i", Dtype::kI64, {3}}}, {}));
    ASSERT_THAT(writer.Append(data), IsOk());
    ASSERT_THAT(writer.Finish(), IsOk());
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult loaded, client_->arrays().LoadCheckpoint(path));
  EXPECT_EQ(loaded.arrays.size(), 2u);
  EXPECT_EQ(loaded.revision, 42);
  EXPECT_EQ(loaded.durability, Durability::kMemory);
  EXPECT_EQ(loaded.sent_bytes, static_cast<int64_t>(2 * data.size()));  // both hold everything

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<Array> arrays, client_->arrays().ListArrays());
  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_EQ(arrays[0].name, "i");
  EXPECT_EQ(arrays[1].name, "w");

  SHARDMESH_ASSERT_OK_AND_ASSIGN(const GatheredTensor tensor,
                                 client_->arrays().Gather(ArraySelector::ByName("w")));
  EXPECT_EQ(tensor.array().descriptor.shape, (Shape{2, 6}));
  EXPECT_EQ(std::string(tensor.view().bytes().data(), tensor.view().bytes().size()),
            data.substr(0, 2 * 6 * 4));

  const std::string npy = ::testing::TempDir() + "/mesh_client_test.npy";
  ASSERT_THAT(client_->arrays().GatherToNpy(ArraySelector::ByName("i"), npy), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const NpyFile file, NpyFile::Open(npy));
  EXPECT_EQ(file.View().dtype(), Dtype::kI64);
}

TEST_F(MeshClientTest, ALimitOfThreadsEndsNoMoreThanTheCall) {
  const std::string bytes(96, 'b');
  int refused = 0;
  bool is_armed = false;
  for (int start = 1; !is_armed; ++start) {
    SCOPED_TRACE(start);
    ASSERT_LT(start, 20);
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto client, MeshClient::Connect(coordinator_->address()));
    const PutTensor tensor{.name = StrCat("w", start),
                           .view = *TensorView::Create(Dtype::kU8, {8, 12}, bytes),
                           .spec = PartitionSpec({SpecEntry::Axis("tp")})};
    ASSERT_THAT(ArmFailpoints(StrCat("thread.start=emfile:", start)), IsOk());
    absl::Status status = client->arrays().PutTensors({tensor}).status();
    if (status.ok()) {
      status = client->arrays().Gather(ArraySelector::ByName(tensor.name)).status();
    }
    // The last round needs fewer threads than it takes to meet the limit.
    is_armed = IsArmed("thread.start");
    if (is_armed) {
      EXPECT_THAT(status, IsOk());
      ASSERT_THAT(ArmFailpoints("thread.start=emfile"), IsOk());
      EXPECT_THAT(StartThread([] {}).status(), StatusIs(absl::StatusCode::kResourceExhausted));
    }
    if (!status.ok()) {
      ++refused;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
      EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -u"));
    }
    EXPECT_THAT(client->arrays().PutTensors({tensor}), IsOk());
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const GatheredTensor gathered,
                                   client->arrays().Gather(ArraySelector::ByName(tensor.name)));
    EXPECT_EQ(std::string(gathered.view().bytes().data(), gathered.view().bytes().size()), bytes);
  }
  EXPECT_GT(refused, 0);
}

// A checkpoint of one tensor of 48 bytes.
Checkpoint OneTensor(const std::string& name) {
  const std::string path = StrCat(::testing::TempDir(), "/", name, ".safetensors");
  auto writer = SafetensorsWriter::Create(path, {{"w", Dtype::kF32, {2, 6}}}, {});
  EXPECT_THAT(writer, IsOk());
  EXPECT_THAT(writer->Append(std::string(48, 'q')), IsOk());
  EXPECT_THAT(writer->Finish(), IsOk());
  return *Checkpoint::Open(path);
}

// The tensor of a checkpoint, which must outlive it, with its place there.
PutTensor WithSource(const Checkpoint& checkpoint) {
  const Checkpoint::Entry& entry = checkpoint.tensors().front();
  return {.name = entry.tensor->name,
          .view = checkpoint.View(entry),
          .source = FileSource{.file = std::make_shared<const SourceFile>(entry.file->state()),
                               .offset_bytes = entry.file->header().data_offset_bytes() +
                                               entry.tensor->begin_bytes}};
}

// A saved checkpoint of one tensor of 48 bytes, of which the manifest lists another checksum.
Checkpoint DamagedTensor(const std::string& name) {
  const std::string folder = StrCat(::testing::TempDir(), "/", name);
  std::filesystem::create_directories(folder);
  const std::string file = folder + "/model.safetensors";
  std::filesystem::rename(OneTensor(name).path(), file);
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const size_t header = text.size() - 48;
  const std::string manifest = StrCat(
      R"({"files":[{"name":"model.safetensors","size_bytes":)", text.size(),
      R"(,"content_key":"k","header_bytes":)", header, R"(,"header_crc32c":)",
      Crc32c(text.substr(0, header)),
      R"(}],"tensors":[{"name":"w","file":"model.safetensors","offset_bytes":)", header,
      R"(,"size_bytes":48,"dtype":"F32","shape":[2,6],)",
      R"("tiles":[{"ranges":[[0,2],[0,6]],"crc32c":)", Crc32c(std::string(48, 'r')), "}]}]}");
  std::ofstream(StrCat(folder, "/", kCheckpointManifest)) << manifest;
  std::ofstream(StrCat(folder, "/", kCheckpointMarker)) << CheckpointMarkerText(manifest);
  return *Checkpoint::Open(folder);
}

TEST_F(MeshClientTest, ComparesASavedCheckpointWithItsChecksumsIfItSendsTheElements) {
  const Checkpoint checkpoint = DamagedTensor("damaged");
  const absl::Status refused =
      client_->arrays().LoadCheckpoint(checkpoint, {.reader = PutReader::kClient}).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(refused.message(), HasSubstr("tensor \"w\""));
  EXPECT_THAT(*client_->arrays().ListArrays(), IsEmpty());
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  // The client also compares a mapped checkpoint, and one that it sends because no worker reads it.
  EXPECT_THAT(client_->arrays().LoadCheckpoint(checkpoint.path()),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(*client_->arrays().ListArrays(), IsEmpty());
  // A put of one of its tensors, by the place in the file.
  const PutTensor put = WithSource(checkpoint);
  EXPECT_THAT(client_->arrays().PutTensors({&put, 1}, {.reader = PutReader::kClient}),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(*client_->arrays().ListArrays(), IsEmpty());

  const PutOptions check{.validate_only = true, .reader = PutReader::kClient};
  EXPECT_THAT(client_->arrays().LoadCheckpoint(checkpoint, check), IsOk());
  coordinator_->GetElements(Elements::kReused);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PutResult reused,
      client_->arrays().LoadCheckpoint(checkpoint, {.reader = PutReader::kClient}));
  EXPECT_EQ(reused.reused_tensors, 1);
  coordinator_->GetElements(Elements::kRead);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult read,
                                 client_->arrays().LoadCheckpoint(checkpoint));
  EXPECT_EQ(read.reader, PutReader::kWorkers);
}

TEST_F(MeshClientTest, SaysOfALoadWhichCheckpointItIsAndOfAPutNothing) {
  const Checkpoint checkpoint = OneTensor("named");
  const PutOptions by_client{.reader = PutReader::kClient};
  ASSERT_THAT(client_->arrays().LoadCheckpoint(checkpoint, by_client), IsOk());
  EXPECT_THAT(coordinator_->put_checkpoints(),
              ElementsAre(std::filesystem::path(checkpoint.path()).lexically_normal().string()));
  const PutTensor tensor{.name = "w", .view = checkpoint.View(checkpoint.tensors().front())};
  ASSERT_THAT(client_->arrays().PutTensors({&tensor, 1}, by_client), IsOk());
  EXPECT_EQ(coordinator_->put_checkpoints().back(), "");
  // The end of a path that is too long for the contract, and no text that is no UTF-8.
  const std::string folders(1'024, 'd');
  for (const auto& [path, name] :
       std::vector<std::pair<std::string, std::string>>{{"/models/run/", "/models/run"},
                                                        {"/" + folders + "/run", "run"},
                                                        {"/" + folders + "d", "a checkpoint"},
                                                        {"/models/\xff", "a checkpoint"},
                                                        {"/models/../run", "/run"}}) {
    PutOptions options = by_client;
    options.checkpoint = path;
    ASSERT_THAT(client_->arrays().LoadCheckpoint(checkpoint, options), IsOk());
    EXPECT_EQ(coordinator_->put_checkpoints().back(), name);
  }
}

TEST_F(MeshClientTest, SendsTheTensorsIfWorkersCannotReadThem) {
  const Checkpoint checkpoint = OneTensor("refused");
  for (const Reason reason : {Reason::kNoReadRoot, Reason::kBadFile, Reason::kNotAvailable}) {
    const absl::Status refusal =
        WithReason(absl::FailedPreconditionError("worker \"w0\" cannot read it"), reason);
    coordinator_->FailNextPuts({refusal});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult put,
                                   client_->arrays().LoadCheckpoint(checkpoint));
    EXPECT_EQ(put.reader, PutReader::kClient);
    EXPECT_EQ(put.sent_bytes, 96);
    EXPECT_EQ(put.tile_bytes, 96);
    EXPECT_THAT(put.workers_refused, StatusIs(absl::StatusCode::kFailedPrecondition, reason));

    coordinator_->FailNextPuts({refusal});
    EXPECT_THAT(client_->arrays().LoadCheckpoint(checkpoint, {.reader = PutReader::kWorkers}),
                StatusIs(absl::StatusCode::kFailedPrecondition, reason));
  }
}

TEST_F(MeshClientTest, SendsTheTensorsIfTheWorkersAreTooSlowOrTheFilesTooMany) {
  const Checkpoint checkpoint = OneTensor("slow");
  const std::vector<absl::Status> refusals = {
      WithReason(absl::DeadlineExceededError("worker \"w0\" did not say in time"),
                 Reason::kDeadline, {{fact::kLimit, 25}}),
      rpc::WithField(InvalidArgument(Reason::kLimitExceeded, "lists 10001 files",
                                     {{fact::kHave, 10'001}, {fact::kLimit, 10'000}}),
                     "header.files"),
      rpc::WithField(InvalidArgument(Reason::kLimitExceeded, "has 4097 bytes",
                                     {{fact::kHave, 4'097}, {fact::kLimit, 4'096}}),
                     "header.files[1].path")};
  for (const absl::Status& refusal : refusals) {
    coordinator_->FailNextPuts({refusal});
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult put,
                                   client_->arrays().LoadCheckpoint(checkpoint));
    EXPECT_EQ(put.reader, PutReader::kClient);
    EXPECT_THAT(put.workers_refused, StatusIs(refusal.code(), ReasonOf(refusal)));
    coordinator_->FailNextPuts({refusal});
    EXPECT_THAT(client_->arrays().LoadCheckpoint(checkpoint, {.reader = PutReader::kWorkers}),
                StatusIs(refusal.code(), ReasonOf(refusal)));
  }
  // A limit of the tensors is no reason to send them instead of letting workers read them.
  coordinator_->FailNextPuts(
      {rpc::WithField(InvalidArgument(Reason::kLimitExceeded, "has 17 dimensions",
                                      {{fact::kHave, 17}, {fact::kLimit, 16}}),
                      "tensors[0].shape")});
  EXPECT_THAT(client_->arrays().LoadCheckpoint(checkpoint),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

TEST_F(MeshClientTest, SendsTheTensorsIfTheNamesOfTheFilesFillAMessage) {
  const Checkpoint checkpoint = OneTensor("long_names");
  const TensorView view = checkpoint.View(checkpoint.tensors()[0]);
  std::vector<PutTensor> tensors;
  for (int i = 0; i < 1'100; ++i) {  // more than 4 MiB
    auto file = std::make_shared<SourceFile>(checkpoint.tensors()[0].file->state());
    file->path = StrCat("/", std::string(4'000, 'x'), i);
    tensors.push_back({.name = StrCat("w", i),
                       .view = view,
                       .spec = PartitionSpec(),
                       .source = FileSource{.file = file, .offset_bytes = 0}});
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult put, client_->arrays().PutTensors(tensors));
  EXPECT_EQ(put.reader, PutReader::kClient);
  EXPECT_THAT(put.workers_refused,
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(client_->arrays().PutTensors(tensors, {.reader = PutReader::kWorkers}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
}

TEST_F(MeshClientTest, SendsNothingOfAFileThatChanged) {
  coordinator_->FailNextPuts(
      {WithReason(absl::FailedPreconditionError("the file has changed"), Reason::kFileChanged)});
  EXPECT_THAT(client_->arrays().LoadCheckpoint(OneTensor("changed")),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_THAT(*client_->arrays().ListArrays(), IsEmpty());
}

TEST_F(MeshClientTest, OpensACheckpointAgainThatASaveHasReplaced) {
  const std::string path = OneTensor("replaced").path();
  const absl::Status changed =
      WithReason(absl::FailedPreconditionError("the file has changed"), Reason::kFileChanged);
  std::string bytes(48, 'a');
  coordinator_->InEachPut([&] {
    const std::string next = path + ".next";
    auto writer = SafetensorsWriter::Create(next, {{"w", Dtype::kF32, {2, 6}}}, {});
    ++bytes.front();
    EXPECT_THAT(writer->Append(bytes), IsOk());
    EXPECT_THAT(writer->Finish(), IsOk());
    std::filesystem::rename(next, path);
  });
  coordinator_->FailNextPuts({changed});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult loaded, client_->arrays().LoadCheckpoint(
                                                             path, {.reader = PutReader::kClient}));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 2u);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const GatheredTensor tensor,
                                 client_->arrays().Gather(ArraySelector::ByName("w")));
  EXPECT_EQ(tensor.view().bytes().front(), 'b') << "as the first save of the two wrote it";
  // It goes on so for a few times only.
  coordinator_->FailNextPuts(std::vector<absl::Status>(kMaxLoadAttempts, changed));
  EXPECT_THAT(client_->arrays().LoadCheckpoint(path),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 2u + kMaxLoadAttempts);
  // A file that is the same one has been written in its place.
  coordinator_->InEachPut(nullptr);
  coordinator_->FailNextPuts({changed});
  EXPECT_THAT(client_->arrays().LoadCheckpoint(path),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 3u + kMaxLoadAttempts);
  // Nothing can be opened while the save is under way.
  coordinator_->InEachPut([&] { std::filesystem::remove(path); });
  coordinator_->FailNextPuts({changed});
  EXPECT_THAT(client_->arrays().LoadCheckpoint(path),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
}

// The files of the two checkpoints have other names, so that each kind of error may be met.
TEST_F(MeshClientTest, OpensACheckpointAgainAfterEachErrorThatAReplacedOneLeadsTo) {
  const std::string folder = StrCat(::testing::TempDir(), "/replaced_names");
  const auto saved = [](const std::string& file, char byte) {
    const std::string path = OneTensor("made_to_replace").path();
    auto writer = SafetensorsWriter::Create(path, {{"w", Dtype::kF32, {2, 6}}}, {});
    EXPECT_THAT(writer->Append(std::string(48, byte)), IsOk());
    EXPECT_THAT(writer->Finish(), IsOk());
    std::ifstream stream(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    return SavedFiles{.manifest = R"({"files":[],"tensors":[]})", .files = {{file, text}}};
  };
  const SavedFiles first = saved("model-00001-of-00001.safetensors", 'a');
  const SavedFiles second = saved("model.safetensors", 'b');
  const absl::Status errors[] = {
      WithReason(absl::NotFoundError("there is no file"), Reason::kBadFile),
      WithReason(absl::FailedPreconditionError("a worker has no file"), Reason::kBadFile),
      WithReason(absl::InvalidArgumentError("the marker is damaged"), Reason::kBadFile),
      WithReason(absl::FailedPreconditionError("the file has changed"), Reason::kFileChanged),
      WithReason(absl::FailedPreconditionError("a link leads elsewhere"), Reason::kNoReadRoot),
      WithReason(absl::DataLossError("other bytes"), Reason::kChecksumMismatch),
      WithReason(absl::InvalidArgumentError("has no source"), Reason::kMissingArgument),
      absl::NotFoundError("cannot open the file"),
      absl::AbortedError("cannot read the file, which its server no longer has")};
  size_t puts = 0;
  for (const absl::Status& error : errors) {
    ReplaceCheckpoint(folder, "", first);
    bool is_replaced = false;
    coordinator_->InEachPut([&] {
      if (!std::exchange(is_replaced, true)) ReplaceCheckpoint(folder, "", second);
    });
    coordinator_->FailNextPuts({error});
    const PutOptions by_client{.reader = PutReader::kClient, .reuse = false};
    ASSERT_THAT(client_->arrays().LoadCheckpoint(folder, by_client), IsOk()) << error;
    EXPECT_EQ(coordinator_->put_request_ids().size(), puts += 2) << error;
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const GatheredTensor tensor,
                                   client_->arrays().Gather(ArraySelector::ByName("w")));
    EXPECT_EQ(tensor.view().bytes().front(), 'b') << error;
    // Without a save the error is what it is.
    coordinator_->FailNextPuts({error});
    EXPECT_THAT(client_->arrays().LoadCheckpoint(folder, by_client),
                StatusIs(error.code(), ReasonOf(error)));
    EXPECT_EQ(coordinator_->put_request_ids().size(), ++puts) << error;
  }
  // Other errors have nothing to do with the files.
  bool is_replaced = false;
  coordinator_->InEachPut([&] {
    if (!std::exchange(is_replaced, true)) ReplaceCheckpoint(folder, "", first);
  });
  coordinator_->FailNextPuts(
      {WithReason(absl::NotFoundError("there is no mesh"), Reason::kNotFound)});
  EXPECT_THAT(client_->arrays().LoadCheckpoint(folder),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(coordinator_->put_request_ids().size(), ++puts);
  coordinator_->InEachPut(nullptr);
}

TEST_F(MeshClientTest, ALoadEndsItsWaitForASaveAtItsTimeLimitAndWhenItIsCancelled) {
  const std::string folder = StrCat(::testing::TempDir(), "/always_replaced");
  std::filesystem::create_directories(StrCat(folder, "/", kSaveStaging, "/", kSaveAside));
  std::ofstream(StrCat(folder, "/", kCheckpointManifest)) << "x";
  const ScopedMaxReplaceTime patience(absl::InfiniteDuration());
  EXPECT_THAT(
      client_->arrays().LoadCheckpoint(folder, {}, CallOptions{.timeout = absl::Milliseconds(20)}),
      StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  Cancellation cancellation;
  PutAttempts attempts = client_->arrays().BeginAttempts({.cancellation = &cancellation});
  EXPECT_THAT(attempts.KeepOpening()(), IsOk());
  cancellation.Cancel();
  EXPECT_THAT(attempts.KeepOpening()(), StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_THAT(
      client_->arrays().LoadCheckpoint(folder, {}, CallOptions{.cancellation = &cancellation}),
      StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_THAT(coordinator_->put_request_ids(), IsEmpty());
}

TEST_F(MeshClientTest, TheAttemptsOfALoadShareItsTime) {
  const absl::Status changed =
      WithReason(absl::FailedPreconditionError("the file has changed"), Reason::kFileChanged);
  PutAttempts none = client_->arrays().BeginAttempts({.timeout = absl::ZeroDuration()});
  EXPECT_EQ(none.Options().timeout, absl::ZeroDuration());
  EXPECT_FALSE(none.MayOpenAgain(changed));
  EXPECT_FALSE(none.HasTime());
  PutAttempts some = client_->arrays().BeginAttempts({.timeout = absl::Hours(1)});
  EXPECT_LE(*some.Options().timeout, absl::Hours(1));
  EXPECT_TRUE(some.MayOpenAgain(changed));
  EXPECT_TRUE(some.HasTime());
  EXPECT_FALSE(some.MayOpenAgain(absl::OkStatus()));
}

// The small coordinator ignores sources, and gives tokens to send the tiles.
TEST_F(MeshClientTest, SendsTheTensorsToACoordinatorOfAnOlderBuild) {
  const Checkpoint checkpoint = OneTensor("older");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult put, client_->arrays().LoadCheckpoint(checkpoint));
  EXPECT_EQ(put.reader, PutReader::kClient);
  EXPECT_THAT(put.workers_refused,
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PutResult sent,
      client_->arrays().LoadCheckpoint(checkpoint, {.reader = PutReader::kClient}));
  EXPECT_THAT(sent.workers_refused, IsOk());
  EXPECT_THAT(client_->arrays().LoadCheckpoint(checkpoint, {.reader = PutReader::kWorkers}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
}

TEST_F(MeshClientTest, SendsOnlyTheTensorsOfAPutThatHaveNoSource) {
  const Checkpoint checkpoint = OneTensor("mixed");
  coordinator_->GetElements(Elements::kRead);
  const std::vector<PutTensor> tensors = {Large("a"), WithSource(checkpoint), Large("b")};
  const int64_t large = 2 * std::ssize(bytes_);
  const int64_t read = 2 * 48;  // on both workers
  std::pair<int64_t, int64_t> progress;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PutResult put,
      client_->arrays().PutTensors(tensors, {.progress = [&](int64_t done, int64_t total) {
                                     progress = {done, total};
                                   }}));
  EXPECT_EQ(put.reader, PutReader::kAuto);
  EXPECT_EQ(put.tile_bytes, large + read);
  EXPECT_EQ(put.sent_bytes, large);
  EXPECT_EQ(put.read_bytes, read);
  EXPECT_EQ(put.reused_bytes, 0);
  EXPECT_EQ(progress, std::pair(put.tile_bytes, put.tile_bytes));
  EXPECT_THAT(put.workers_refused, IsOk());
  EXPECT_EQ(coordinator_->put_request_ids().size(), 1u) << "one transfer has all tensors";
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<Array> arrays, client_->arrays().ListArrays());
  EXPECT_THAT(arrays, SizeIs(3));
  // Workers are not asked to read what only the client can make.
  EXPECT_THAT(client_->arrays().PutTensors(tensors, {.reader = PutReader::kWorkers}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult sent,
                                 client_->arrays().PutTensors({&tensors[0], 1}));
  EXPECT_EQ(sent.reader, PutReader::kClient);
  EXPECT_EQ(sent.read_bytes, 0);
}

TEST_F(MeshClientTest, SendsAllTensorsToACoordinatorThatTakesNoPutsOfBothKinds) {
  const Checkpoint checkpoint = OneTensor("both_kinds");
  const std::vector<PutTensor> tensors = {WithSource(checkpoint), Large("a")};
  coordinator_->FailNextPuts({rpc::BadField("tensors.tensors[1].source", "is not set, unlike")});
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult put, client_->arrays().PutTensors(tensors));
  EXPECT_EQ(put.reader, PutReader::kClient);
  EXPECT_EQ(put.sent_bytes, put.tile_bytes);
  EXPECT_THAT(put.workers_refused,
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kNotAvailable));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 2u);
  // Other fields of sources have nothing to do with it.
  coordinator_->FailNextPuts({rpc::BadField("tensors.tensors[0].source.file", "is 7")});
  EXPECT_THAT(client_->arrays().PutTensors(tensors),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
}

TEST_F(MeshClientTest, APutOfWhichTheClientFailsToSendItsPartIsAborted) {
  coordinator_->GetElements(Elements::kRead);
  const Checkpoint checkpoint = OneTensor("half_sent");
  const std::vector<PutTensor> tensors = {WithSource(checkpoint), Large("a")};
  workers_[0]->FailNextPutAfter(
      1, WithReason(absl::ResourceExhaustedError("too much"), Reason::kMemoryLimit));
  EXPECT_THAT(client_->arrays().PutTensors(tensors),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  EXPECT_THAT(*client_->arrays().ListArrays(), IsEmpty());
  // A worker hears that the put has ended because another one could not read its part.
  workers_[0]->FailNextPutAfter(
      1, WithReason(absl::AbortedError("the put has ended"), Reason::kStaleTerm));
  coordinator_->FailNextCommits(
      {WithReason(absl::DataLossError("rank 1 cannot read the file"), Reason::kChecksumMismatch)});
  EXPECT_THAT(client_->arrays().PutTensors(tensors),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
  EXPECT_THAT(*client_->arrays().ListArrays(), IsEmpty());
}

TEST_F(MeshClientTest, ComparesTensorsThatWorkersWouldReadOnlyIfThereIsNoRoomForThem) {
  const Checkpoint checkpoint = OneTensor("no_room");
  PutTensor tensor = Large("a");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult sent, client_->arrays().PutTensors({&tensor, 1}));
  v1::FindContentResponse answer;
  v1::ContentCandidate& candidate = *answer.add_candidates();
  rpc::Encode(sent.arrays[0].descriptor, candidate.mutable_array_descriptor());
  const std::string tile(bytes_.size() / 2, 'b');
  for (int i = 0; i < 2; ++i) candidate.add_tile_crc32c(Crc32c(tile));
  tensor.source = WithSource(checkpoint).source;
  coordinator_->AnswerContentWith(v1::FindContentResponse());
  coordinator_->GetElements(Elements::kRead);
  ASSERT_THAT(client_->arrays().PutTensors({&tensor, 1}), IsOk());
  EXPECT_EQ(coordinator_->content_questions(), 0) << "there is room";

  const absl::Status no_room =
      WithReason(absl::ResourceExhaustedError("rank 0 has 1 MiB left"), Reason::kMemoryLimit);
  coordinator_->FailNextPuts({no_room});
  size_t puts = coordinator_->put_request_ids().size();
  EXPECT_THAT(client_->arrays().PutTensors({&tensor, 1}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(coordinator_->content_questions(), 1) << "nothing has the type and the shape";
  EXPECT_EQ(coordinator_->put_request_ids().size(), puts + 1);
  coordinator_->FailNextPuts({no_room});
  EXPECT_THAT(client_->arrays().PutTensors({&tensor, 1}, {.reuse = false}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(coordinator_->content_questions(), 1);

  coordinator_->AnswerContentWith(answer);
  coordinator_->GetElements(Elements::kReused);
  coordinator_->FailNextPuts({no_room});
  puts = coordinator_->put_request_ids().size();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult reused,
                                 client_->arrays().PutTensors({&tensor, 1}));
  EXPECT_EQ(reused.reused_tensors, 1);
  EXPECT_EQ(reused.sent_bytes, 0);
  EXPECT_EQ(reused.read_bytes, 0);
  EXPECT_EQ(coordinator_->put_request_ids().size(), puts + 2);
  ASSERT_THAT(coordinator_->claims(), SizeIs(1));
  EXPECT_EQ(coordinator_->claims()[0].array_id(), sent.arrays[0].descriptor.array_id);

  // The file is written after the client compared it.
  coordinator_->FailNextPuts({no_room});
  coordinator_->InEachPut([&] { std::ofstream(checkpoint.path(), std::ios::app) << "more"; });
  EXPECT_THAT(client_->arrays().PutTensors({&tensor, 1}),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kFileChanged));
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
}

TEST_F(MeshClientTest, WorkersReadOnlyTensorsThatHaveASource) {
  const PutTensor tensor = Large("w");
  EXPECT_THAT(client_->arrays().PutTensors({tensor}, {.reader = PutReader::kWorkers}),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kMissingArgument));
}

// Makes the elements of a matrix of U8: the sum of row and column. Counts what is asked of it.
class SumProducer final : public TileProducer {
 public:
  explicit SumProducer(int64_t failing_offset = -1) : failing_offset_(failing_offset) {}

  Dtype dtype() const override { return Dtype::kU8; }
  const Shape& shape() const override { return shape_; }
  absl::Status Fill(const Tile& tile, int64_t offset_bytes, absl::Span<char> out) const override {
    if (offset_bytes == failing_offset_) return absl::DataLossError("the disk is gone");
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t place = offset_bytes + static_cast<int64_t>(i);
      const int64_t columns = tile.ranges[1].size();
      out[i] = static_cast<char>(tile.ranges[0].start + place / columns + tile.ranges[1].start +
                                 place % columns);
    }
    made_bytes += static_cast<int64_t>(out.size());
    int64_t before = largest_piece;
    while (before < static_cast<int64_t>(out.size()) &&
           !largest_piece.compare_exchange_weak(before, static_cast<int64_t>(out.size()))) {
    }
    return absl::OkStatus();
  }

  mutable std::atomic<int64_t> made_bytes = 0;
  mutable std::atomic<int64_t> largest_piece = 0;

 private:
  const int64_t failing_offset_;
  const Shape shape_ = {1500, 4096};
};

TEST_F(MeshClientTest, PutsWhatAProducerMakesInPiecesOfAMebibyte) {
  const auto producer = std::make_shared<SumProducer>();
  const PutTensor tensor{.name = "made",
                         .view = std::shared_ptr<const TileProducer>(producer),
                         .spec = PartitionSpec({SpecEntry::None(), SpecEntry::Axis("tp")})};
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult put, client_->arrays().PutTensors({tensor}));
  EXPECT_EQ(put.sent_bytes, 1500 * 4096);
  EXPECT_EQ(producer->made_bytes, put.sent_bytes);
  EXPECT_EQ(producer->largest_piece, int64_t{1} << 20);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const GatheredTensor gathered,
                                 client_->arrays().Gather(ArraySelector::ByName("made")));
  std::string expected(1500 * 4096, '\0');
  ASSERT_THAT(producer->Fill(Tile::Whole({1500, 4096}), 0, absl::MakeSpan(expected)), IsOk());
  EXPECT_TRUE(expected ==
              std::string(gathered.view().bytes().data(), gathered.view().bytes().size()));
}

TEST_F(MeshClientTest, AnErrorOfAProducerEndsThePut) {
  const PutTensor tensor{.name = "made",
                         .view = std::shared_ptr<const TileProducer>(
                             std::make_shared<SumProducer>(/*failing_offset=*/1 << 20)),
                         .spec = PartitionSpec({SpecEntry::Axis("tp"), SpecEntry::None()})};
  const absl::Status status = client_->arrays().PutTensors({tensor}).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(status.message(), HasSubstr("the disk is gone"));
  EXPECT_FALSE(client_->arrays().Gather(ArraySelector::ByName("made")).ok());
}

TEST_F(MeshClientTest, LoadsAMappedCheckpoint) {
  const std::string path = ::testing::TempDir() + "/mapped.safetensors";
  {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(path, {{"w", Dtype::kF32, {2, 3}}}, {}));
    const float values[] = {1, 2, 3, 4, 5, 6};
    ASSERT_THAT(writer.Append({reinterpret_cast<const char*>(values), sizeof(values)}), IsOk());
    ASSERT_THAT(writer.Finish(), IsOk());
  }
  TensorMap map;
  map.rules.push_back({*PatternReplacement::Create("w", "kernel")});
  map.rules.back().reverse = true;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(TensorSource source, TensorSource::Open(path));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const MappedCheckpoint mapped,
      MappedCheckpoint::Create(std::make_shared<const TensorSource>(std::move(source)),
                               {.map = &map, .float_dtype = Dtype::kBF16}));
  ASSERT_THAT(client_->arrays().LoadCheckpoint(mapped), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const GatheredTensor gathered,
                                 client_->arrays().Gather(ArraySelector::ByName("kernel")));
  EXPECT_EQ(gathered.array().descriptor.shape, (Shape{3, 2}));
  EXPECT_EQ(gathered.array().descriptor.dtype, Dtype::kBF16);
  EXPECT_EQ(std::string(gathered.view().bytes().data(), gathered.view().bytes().size()),
            std::string("\x80\x3F\x80\x40\x00\x40\xA0\x40\x40\x40\xC0\x40", 12));
}

TEST_F(MeshClientTest, KeepsTheServersErrorsWhole) {
  const auto tensor = client_->arrays().Gather(ArraySelector::ByName("nope"));
  EXPECT_THAT(tensor, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(tensor.status().message(), "no array is named 'nope'");
}

TEST_F(MeshClientTest, AsksAgainWhileTheCoordinatorDoesNotServe) {
  coordinator_->FailNextGetVersion(
      WithReason(absl::UnavailableError("starting"), Reason::kNotServing));
  EXPECT_THAT(client_->cluster().GetVersion(), IsOk());
}

TEST_F(MeshClientTest, AsksAgainWhenACallIsEndedWithoutAnAnswer) {
  // As gRPC does with a call that reaches a server while that one stops.
  coordinator_->FailNextGetVersion(absl::CancelledError("CANCELLED"));
  EXPECT_THAT(client_->cluster().GetVersion(), IsOk());
}

TEST_F(MeshClientTest, AsksOnceWhenWhatItAskedForWasCancelled) {
  coordinator_->FailNextGetVersion(
      WithReason(absl::CancelledError("by another client"), Reason::kCancelled));
  EXPECT_THAT(client_->cluster().GetVersion(),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
}

TEST_F(MeshClientTest, AsksOnceWhenAWorkerIsLost) {
  coordinator_->FailNextGetVersion(
      WithReason(absl::UnavailableError("rank 1"), Reason::kWorkerLost));
  EXPECT_THAT(client_->cluster().GetVersion(),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
}

TEST_F(MeshClientTest, AsksOnceWhereSomebodyMustActWhateverTheRetryDelay) {
  constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
  for (const auto& [code, reason] :
       {std::pair(kUnavailable, Reason::kWorkerLost), std::pair(kUnavailable, Reason::kStepAborted),
        std::pair(absl::StatusCode::kAborted, Reason::kStaleEpoch),
        std::pair(absl::StatusCode::kFailedPrecondition, Reason::kMeshIncomplete)}) {
    const int before = coordinator_->version_calls();
    coordinator_->FailNextGetVersion(
        WithRetryDelay(WithReason(absl::Status(code, "m"), reason), absl::Milliseconds(1)));
    const absl::Status answer = client_->cluster().GetVersion().status();
    EXPECT_THAT(answer, StatusIs(code, reason));
    EXPECT_EQ(RetryDelayOf(answer), absl::Milliseconds(1));
    EXPECT_EQ(coordinator_->version_calls() - before, 1) << ReasonName(reason);
  }
}

TEST_F(MeshClientTest, AsksAFewTimesWhereTheStateMayLast) {
  for (const absl::Status& error :
       {WithReason(absl::UnavailableError("draining"), Reason::kNotServing),
        WithReason(absl::ResourceExhaustedError("behind"), Reason::kOverloaded)}) {
    const absl::Status soon = WithRetryDelay(error, absl::Milliseconds(1));
    const int before = coordinator_->version_calls();
    coordinator_->FailGetVersions(soon, 1000);
    EXPECT_THAT(client_->cluster().GetVersion(), StatusIs(error.code(), ReasonOf(error)));
    EXPECT_EQ(coordinator_->version_calls() - before, kFewAttempts) << error;
    coordinator_->FailGetVersions(soon, kFewAttempts - 1);
    EXPECT_THAT(client_->cluster().GetVersion(), IsOk()) << error;
  }
}

TEST_F(MeshClientTest, AsksUntilTheDeadlineWhereTheStatePassesByItself) {
  const absl::Status recovering = WithRetryDelay(
      WithReason(absl::UnavailableError("recovering"), Reason::kRecovering), absl::Milliseconds(1));
  const int before = coordinator_->version_calls();
  coordinator_->FailGetVersions(recovering, kFewAttempts + 2);
  EXPECT_THAT(client_->cluster().GetVersion({.timeout = absl::Seconds(30)}), IsOk());
  EXPECT_EQ(coordinator_->version_calls() - before, kFewAttempts + 3);
}

TEST_F(MeshClientTest, AClientThatAwaitsTheCoordinatorAsksUntilTheDeadlineWhileItDoesNotServe) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_, MeshClient::Connect(coordinator_->address(), {.await_coordinator = true}));
  coordinator_->FailGetVersions(
      WithRetryDelay(WithReason(absl::UnavailableError("draining"), Reason::kNotServing),
                     absl::Milliseconds(1)),
      kFewAttempts + 2);
  EXPECT_THAT(client_->cluster().GetVersion({.timeout = absl::Seconds(30)}), IsOk());
}

// More than the time that a step and its answer may take, and less than the time for which a step
// could once be repeated.
constexpr absl::Duration kStepTime = absl::Milliseconds(300);
constexpr absl::Duration kStepEndsWithin = absl::Seconds(1);

TEST_F(MeshClientTest, AStepThatIsRepeatedEndsAtItsDeadlineAndNamesTheWorkerThatIsAway) {
  coordinator_->FailSteps(WithRetryDelay(
      WithReason(absl::UnavailableError("mesh \"m\" waits for rank 1 (w-1) to come back"),
                 Reason::kRecovering, {{fact::kIdentity, "w-1"}}),
      absl::Milliseconds(1)));
  const Operand x = ArraySelector::ByName("x");
  const std::function<absl::Status()> steps[] = {
      [&] {
        return client_->compute()
            .Collective({.input = x, .axes = {"tp"}}, {.timeout = kStepTime})
            .status();
      },
      [&] {
        return client_->compute().Matmul({.lhs = x, .rhs = x}, {.timeout = kStepTime}).status();
      }};
  for (const auto& step : steps) {
    const absl::Time begun = absl::Now();
    const absl::Status late = step();
    EXPECT_LT(absl::Now() - begun, kStepEndsWithin);
    EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
    EXPECT_EQ(FactOf(late, fact::kIdentity), "w-1");
    EXPECT_THAT(std::string(late.message()), HasSubstr("waits for rank 1 (w-1)"));
  }
}

TEST_F(MeshClientTest, AStepThatIsRefusedAtOnceKeepsItsErrorHoweverShortItsTime) {
  const auto refuse_with = [this](absl::Duration delay) {
    coordinator_->FailSteps(
        WithRetryDelay(WithReason(absl::UnavailableError("worker \"w-1\" is draining"),
                                  Reason::kNotServing, {{fact::kIdentity, "w-1"}}),
                       delay));
  };
  const auto run = [this](absl::Duration timeout) {
    return client_->compute()
        .Collective({.input = ArraySelector::ByName("x"), .axes = {"tp"}}, {.timeout = timeout})
        .status();
  };
  refuse_with(absl::Seconds(20));
  for (const absl::Duration timeout : {absl::Seconds(5), absl::Seconds(20)}) {
    const absl::Status refused = run(timeout);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
    EXPECT_EQ(FactOf(refused, fact::kIdentity), "w-1");
  }
  // The last attempt for which there is time comes more than a delay after the first.
  refuse_with(absl::Milliseconds(200));
  EXPECT_THAT(run(absl::Milliseconds(500)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
}

TEST_F(MeshClientTest, AStepWhoseCoordinatorHangsEndsAtItsDeadline) {
  coordinator_->Hold(HeldCall::kStep);
  const absl::Time begun = absl::Now();
  EXPECT_THAT(client_->compute().Collective({.input = ArraySelector::ByName("x"), .axes = {"tp"}},
                                            {.timeout = kStepTime}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(absl::Now() - begun, kStepEndsWithin);
  coordinator_->LetGo(HeldCall::kStep);
}

TEST_F(MeshClientTest, AStepOfACoordinatorOfAnOlderBuildHasNoPrediction) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const StepResult result,
      client_->compute().Execute({.work = std::string(32, 'h'), .operands = {}}));
  EXPECT_EQ(result.timings.sent_bytes, 12);
  EXPECT_FALSE(result.timings.predicted.has_value());
}

// y = -x
Program Negation() {
  return {.operand_count = 1,
          .ops = {TensorOp(MapOp{.function = MapFunction::kNegate, .inputs = {0}})},
          .outputs = {1}};
}

TEST_F(MeshClientTest, StepsByAHandleSendTheProgramOnlyWhenThePlanIsGone) {
  const Operand x = ArraySelector::ByName("x");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CompiledProgram compiled,
                                 client_->compute().Compile(Negation(), {x}));
  EXPECT_EQ(coordinator_->programs_sent(), 1);
  EXPECT_THAT(client_->compute().Execute(compiled.Call({x})), IsOk());
  EXPECT_EQ(coordinator_->programs_sent(), 1);
  coordinator_->ForgetPlans();
  // Another client has not compiled the program: the handle has it.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto other, MeshClient::Connect(coordinator_->address()));
  EXPECT_THAT(other->compute().Execute(compiled.Call({x})), IsOk());
  EXPECT_EQ(coordinator_->programs_sent(), 2);
  EXPECT_THAT(client_->compute().Execute(compiled.Call({x})), IsOk());
  EXPECT_EQ(coordinator_->programs_sent(), 2) << "the coordinator has the plan again";
  coordinator_->ForgetPlans();
  EXPECT_THAT(client_->compute().Execute({.work = std::string(32, 'u'), .operands = {x}}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound))
      << "nobody knows the program";
}

TEST_F(MeshClientTest, AStreamSendsItsStepsAgainIfThePlanOfTheFirstIsGone) {
  const Operand x = ArraySelector::ByName("x");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CompiledProgram compiled,
                                 client_->compute().Compile(Negation(), {x}));
  coordinator_->ForgetPlans();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto stream, client_->compute().OpenStream());
  for (int i = 0; i < 5; ++i) EXPECT_THAT(stream->Send(compiled.Call({x})), IsOk());
  for (int64_t i = 1; i <= 3; ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StreamedStep step, stream->Next());
    EXPECT_EQ(step.number, i);
    EXPECT_THAT(step.result, IsOk());
  }
  EXPECT_EQ(coordinator_->programs_sent(), 2) << "by Compile, and by the first step";
  EXPECT_THAT(stream->Send(compiled.Call({x})), IsOk());
  stream->EndSends();
  for (int64_t i = 4; i <= 6; ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const StreamedStep step, stream->Next());
    EXPECT_EQ(step.number, i);
    EXPECT_THAT(step.result, IsOk());
  }
  EXPECT_THAT(stream->Next(), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_F(MeshClientTest, AStreamThatHasEndedItsSendsSendsThemAgain) {
  const Operand x = ArraySelector::ByName("x");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CompiledProgram compiled,
                                 client_->compute().Compile(Negation(), {x}));
  coordinator_->ForgetPlans();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto stream, client_->compute().OpenStream());
  EXPECT_THAT(stream->Send(compiled.Call({x})), IsOk());
  stream->EndSends();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StreamedStep step, stream->Next());
  EXPECT_THAT(step.result, IsOk());
  EXPECT_THAT(stream->Next(), StatusIs(absl::StatusCode::kOutOfRange));
}

TEST_F(MeshClientTest, AnOlderCoordinatorGetsNoProgramWhoseOpsDependOnALength) {
  const ExecuteCall call = {
      .work =
          Program{
              .operand_count = 1,
              .ops = {TensorOp(SliceOp{
                  .input = 0, .starts = {0}, .limits = {4}, .symbolic_limits = {{.offset = -4}}})},
              .outputs = {1},
              .symbol = SymbolicDimension{.name = "n", .min = 4, .max = 8},
              .symbolic_extents = {{.operand = 0}}},
      .operands = {ArraySelector::ByName("x")}};
  const auto is_refused = StatusIs(absl::StatusCode::kUnimplemented, Reason::kNotAvailable);
  EXPECT_THAT(client_->compute().Execute(call), is_refused);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto stream, client_->compute().OpenStream());
  EXPECT_THAT(stream->Send(call), is_refused);
  EXPECT_EQ(coordinator_->programs_sent(), 0);
}

TEST_F(MeshClientTest, OneThreadMaySendMoreStepsThanAreKeptBeforeItReads) {
  const Operand x = ArraySelector::ByName("x");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CompiledProgram compiled,
                                 client_->compute().Compile(Negation(), {x}));
  constexpr int64_t kSteps = 64 + 3;
  for (const bool is_forgotten : {false, true}) {
    SCOPED_TRACE(is_forgotten);
    if (is_forgotten) coordinator_->ForgetPlans();
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto stream, client_->compute().OpenStream());
    for (int64_t i = 1; i <= kSteps; ++i) EXPECT_THAT(stream->Send(compiled.Call({x})), IsOk());
    stream->EndSends();
    for (int64_t i = 1; i <= kSteps; ++i) {
      SHARDMESH_ASSERT_OK_AND_ASSIGN(const StreamedStep step, stream->Next());
      EXPECT_EQ(step.number, i);
      EXPECT_THAT(step.result, IsOk());
    }
    EXPECT_THAT(stream->Next(), StatusIs(absl::StatusCode::kOutOfRange));
  }
}

TEST_F(MeshClientTest, AStreamThatGoesOnAfterErrorsSendsNothingAgain) {
  const Operand x = ArraySelector::ByName("x");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const CompiledProgram compiled,
                                 client_->compute().Compile(Negation(), {x}));
  coordinator_->ForgetPlans();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto stream,
                                 client_->compute().OpenStream(/*continue_after_errors=*/true));
  EXPECT_THAT(stream->Send(compiled.Call({x})), IsOk());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const StreamedStep step, stream->Next());
  EXPECT_THAT(step.result, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(coordinator_->programs_sent(), 1);
}

TEST_F(MeshClientTest, ACallMayHaveATimeLimitOfItsOwn) {
  const absl::Status late =
      client_->cluster().GetVersion({.timeout = absl::Nanoseconds(1)}).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr(coordinator_->address()));
  coordinator_->FailNextGetVersion(WithRetryDelay(
      WithReason(absl::UnavailableError("recovering"), Reason::kRecovering), absl::Seconds(20)));
  EXPECT_THAT(client_->cluster().GetVersion({.timeout = absl::Seconds(2)}),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering))
      << "the next attempt would come too late";
  EXPECT_THAT(client_->cluster().GetVersion(), IsOk()) << "the limit was that of one call";
}

TEST_F(MeshClientTest, ACancelledCallEndsAtOnce) {
  Cancellation cancellation;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_, MeshClient::Connect(coordinator_->address(), {.on_wait = [&](const absl::Status&) {
                                     cancellation.Cancel();
                                   }}));
  coordinator_->FailNextGetVersion(WithRetryDelay(
      WithReason(absl::UnavailableError("recovering"), Reason::kRecovering), absl::Seconds(20)));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(client_->cluster().GetVersion({.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10)) << "it waited for the next attempt";
  EXPECT_THAT(client_->cluster().GetVersion({.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled))
      << "a cancellation is permanent";
  EXPECT_THAT(client_->cluster().GetVersion(), IsOk());
}

TEST_F(MeshClientTest, ACancelledPutEndsAndIsAborted) {
  workers_[1]->StallPuts();
  Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(workers_[1]->AwaitStalledPut());
    cancellation.Cancel();
  });
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}, {}, {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  canceller.join();
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  EXPECT_THAT(coordinator_->last_abort(), IsOk()) << "a cancelled put has not failed";
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ByName("a")),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(MeshClientTest, ACancelledPutOfWhichWorkersReadAPartIsAborted) {
  const Checkpoint checkpoint = OneTensor("cancelled");
  coordinator_->GetElements(Elements::kRead);
  const std::vector<PutTensor> tensors = {WithSource(checkpoint), Large("a")};
  const auto cancel_when = [&](const std::function<bool()>& await) {
    Cancellation cancellation;
    std::thread canceller([&] {
      EXPECT_TRUE(await());
      cancellation.Cancel();
    });
    EXPECT_THAT(client_->arrays().PutTensors(tensors, {}, {.cancellation = &cancellation}),
                StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
    canceller.join();
  };
  // The client has sent its part, and waits for the workers.
  coordinator_->Hold(HeldCall::kCommit);
  cancel_when([&] { return coordinator_->AwaitHeld(HeldCall::kCommit); });
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  coordinator_->LetGo(HeldCall::kCommit);
  // The client still sends its part.
  workers_[1]->StallPuts();
  cancel_when([&] { return workers_[1]->AwaitStalledPut(); });
  EXPECT_EQ(coordinator_->aborted_transfers(), 2);
  EXPECT_THAT(coordinator_->last_abort(), IsOk()) << "a cancelled put has not failed";
}

TEST_F(MeshClientTest, APutThatIsCancelledWhileTheCoordinatorJudgesItIsAborted) {
  workers_[1]->FailPutsAfter(1, absl::UnavailableError("the connection broke"));
  coordinator_->Hold(HeldCall::kCommit);
  Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kCommit));
    cancellation.Cancel();
  });
  const absl::Time begin = absl::Now();
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}, {}, {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5)) << "it waited for the verdict";
  canceller.join();
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
}

TEST_F(MeshClientTest, ACancelledGatherLeavesNothingPinned) {
  PutFilled("a", {4, 6}, 'a');
  coordinator_->Hold(HeldCall::kBeginGet);
  Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kBeginGet));
    cancellation.Cancel();
    coordinator_->LetGo(HeldCall::kBeginGet);
  });
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), nullptr,
                                       {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  canceller.join();
  EXPECT_TRUE(coordinator_->AwaitAnsweredGets(1));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(MeshClientTest, AGatherWhoseTimeIsOverLeavesNothingPinned) {
  PutFilled("a", {4, 6}, 'a');
  coordinator_->Hold(HeldCall::kBeginGet);
  constexpr absl::Duration kTimeout = absl::Milliseconds(500);
  std::thread late([&] {
    EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kBeginGet));
    absl::SleepFor(kTimeout);  // the gather's time is over then
    coordinator_->LetGo(HeldCall::kBeginGet);
  });
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), nullptr, {.timeout = kTimeout}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  late.join();
  EXPECT_TRUE(coordinator_->AwaitAnsweredGets(1));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(MeshClientTest, ACancelledGatherDoesNotWaitForACoordinatorThatHangs) {
  PutFilled("a", {4, 6}, 'a');
  coordinator_->Hold(HeldCall::kBeginGet);
  Cancellation cancellation;
  std::thread canceller([&] {
    EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kBeginGet));
    cancellation.Cancel();
  });
  const absl::Time begin = absl::Now();
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), nullptr,
                                       {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  canceller.join();
}

TEST_F(MeshClientTest, AGatherLeavesNothingPinned) {
  PutFilled("a", {4, 6}, 'a');
  ASSERT_THAT(client_->arrays().Gather(ArraySelector::ByName("a")), IsOk());
  EXPECT_EQ(coordinator_->answered_gets(), 1);
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
}

TEST_F(MeshClientTest, ASliceIsOfTheArrayThatTheNameMeansThen) {
  PutFilled("tall", {8, 6}, 't');
  PutFilled("flat", {2, 6}, 'f');
  const std::vector<std::pair<std::string, Shape>> others = {{"tall", {8, 6}}, {"flat", {2, 6}}};
  for (const auto& [other, shape] : others) {
    PutFilled("a", {4, 6}, 'a');
    // Between the question for the shape and the beginning of the get.
    coordinator_->BeforeNextGet([this, to = other] { coordinator_->MoveName("a", to); });
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        const GatheredTensor tensor,
        client_->arrays().Gather(ArraySelector::ByName("a"), ArraySlice(2)));
    EXPECT_EQ(tensor.part(), Tile::Whole(shape));
    EXPECT_EQ(tensor.view().bytes()[0], other[0]);
    EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
  }
}

TEST_F(MeshClientTest, AllCallsOfATransferHaveItsTraceContext) {
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  ASSERT_THAT(client_->arrays().PutTensors({Large("a")}, {}, {.traceparent = trace}), IsOk());
  ASSERT_THAT(client_->arrays().Gather(ArraySelector::ByName("a"), nullptr, {.traceparent = trace}),
              IsOk());
  workers_[0]->FailNextPutAfter(
      1, WithReason(absl::ResourceExhaustedError("too much"), Reason::kMemoryLimit));
  EXPECT_FALSE(client_->arrays().PutTensors({Large("b")}, {}, {.traceparent = trace}).ok());
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  workers_[0]->FailNextPutAfter(1, absl::UnavailableError("the connection broke"));
  coordinator_->FailTransfers(WithReason(absl::UnavailableError("lost"), Reason::kWorkerLost));
  EXPECT_THAT(client_->arrays().PutTensors({Large("b")}, {}, {.traceparent = trace}),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost))
      << "by the coordinator's verdict";
  EXPECT_THAT(coordinator_->traces(), ElementsAre(trace));
  EXPECT_THAT(workers_[0]->traces(), ElementsAre(trace));
  EXPECT_THAT(workers_[1]->traces(), ElementsAre(trace));
}

TEST_F(MeshClientTest, AsksForTheContentOfTensorsThatItWouldSendAndClaimsTheArrayThatHasIt) {
  const PutTensor large = Large("a");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult sent, client_->arrays().PutTensors({large}));
  EXPECT_GT(sent.sent_bytes, 0) << "by an older coordinator";
  v1::FindContentResponse answer;
  v1::ContentCandidate& candidate = *answer.add_candidates();
  rpc::Encode(sent.arrays[0].descriptor, candidate.mutable_array_descriptor());
  const Tiling tiling = *sent.arrays[0].descriptor.Tiling();
  const auto tiles = static_cast<size_t>(tiling.DistinctTileCount());
  const std::string tile(bytes_.size() / tiles, 'b');
  for (size_t i = 0; i < tiles; ++i) candidate.add_tile_crc32c(Crc32c(tile));
  coordinator_->AnswerContentWith(answer);
  coordinator_->GetElements(Elements::kReused);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult reused, client_->arrays().PutTensors({large}));
  EXPECT_EQ(reused.sent_bytes, 0);
  EXPECT_EQ(reused.reused_tensors, 1);
  EXPECT_EQ(coordinator_->content_questions(), 1);
  ASSERT_THAT(coordinator_->claims(), SizeIs(1));
  const v1::TensorContent claim = coordinator_->claims()[0];
  EXPECT_EQ(claim.array_id(), sent.arrays[0].descriptor.array_id);
  ASSERT_EQ(claim.tile_sha256_size(), static_cast<int>(tiles));
  for (const std::string& digest : claim.tile_sha256()) EXPECT_EQ(digest, Sha256(tile));
  EXPECT_EQ(claim.equal_tiles_size(), 0) << "all are equal";
  // A tensor that an origin finds needs no claim.
  answer.add_found_by_origin(0);
  coordinator_->AnswerContentWith(answer);
  ASSERT_THAT(client_->arrays().PutTensors({large}), IsOk());
  EXPECT_THAT(coordinator_->claims(), SizeIs(1));
  EXPECT_EQ(coordinator_->content_questions(), 2);
  // Nor are these worth a question.
  PutTensor unnamed = large;
  unnamed.name = "";
  ASSERT_THAT(client_->arrays().PutTensors({unnamed}), IsOk());
  ASSERT_THAT(client_->arrays().PutTensors({large}, {.reuse = false}), IsOk());
  ASSERT_THAT(client_->arrays().PutTensors({large}, {.validate_only = true}), IsOk());
  const PutTensor small{.name = "small",
                        .view = *TensorView::Create(Dtype::kU8, {2, 2}, std::string_view("abcd"))};
  ASSERT_THAT(client_->arrays().PutTensors({small}), IsOk());
  EXPECT_EQ(coordinator_->content_questions(), 2);
}

TEST_F(MeshClientTest, SendsOnlyTheTilesThatTheWorkersDoNotCopy) {
  const PutTensor large = Large("a");
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const PutResult sent, client_->arrays().PutTensors({large}));
  v1::FindContentResponse answer;
  v1::ContentCandidate& candidate = *answer.add_candidates();
  rpc::Encode(sent.arrays[0].descriptor, candidate.mutable_array_descriptor());
  const Tiling tiling = *sent.arrays[0].descriptor.Tiling();
  const auto tiles = static_cast<size_t>(tiling.DistinctTileCount());
  ASSERT_GE(tiles, 2u);
  const std::string tile(bytes_.size() / tiles, 'b');
  for (size_t i = 0; i < tiles; ++i) candidate.add_tile_crc32c(Crc32c(tile) + (i == 0 ? 1 : 0));
  coordinator_->AnswerContentWith(answer);
  coordinator_->GetElements(Elements::kPartlyReused);
  std::vector<std::pair<int64_t, int64_t>> progress;
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const PutResult reused,
      client_->arrays().PutTensors({large}, {.progress = [&](int64_t done, int64_t total) {
                                     progress.emplace_back(done, total);
                                   }}));
  const int64_t tile_bytes = std::ssize(tile);
  EXPECT_EQ(reused.sent_bytes, tile_bytes);
  EXPECT_EQ(reused.reused_bytes, sent.tile_bytes - tile_bytes);
  EXPECT_EQ(reused.reused_tensors, 0);
  EXPECT_FALSE(reused.arrays[0].is_reused);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back(), std::pair(sent.tile_bytes, sent.tile_bytes));
  ASSERT_THAT(coordinator_->claims(), SizeIs(1));
  const v1::TensorContent claim = coordinator_->claims()[0];
  ASSERT_EQ(claim.equal_tiles_size(), static_cast<int>(tiles) - 1);
  EXPECT_EQ(claim.equal_tiles(0), 1);
  ASSERT_EQ(claim.tile_sha256_size(), claim.equal_tiles_size());
  for (const std::string& digest : claim.tile_sha256()) EXPECT_EQ(digest, Sha256(tile));
}

TEST_F(MeshClientTest, RefusesATensorWithSeveralLayouts) {
  PutTensor tensor = Large("a");
  tensor.preset = "activations";
  const auto put = client_->arrays().PutTensors({tensor});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(put.status().message(), HasSubstr("give one of spec, axes and preset"));
}

// The operation goes on with other arrays, so that its watch ends only with the time of the call.
TEST_F(MeshClientTest, AWaitForReplicasSucceedsIfTheyBecomeCompleteInItsLastSecond) {
  ASSERT_NO_FATAL_FAILURE(PutFilled("w", {4, 4}, 'w'));
  const std::vector<std::string> names = {"w"};
  for (const bool reports_on : {true, false}) {
    SCOPED_TRACE(reports_on);
    // A busy machine may take longer for the calls before the watch.
    absl::Status status = absl::UnknownError("not called");
    for (int attempt = 0; attempt < 10 && !status.ok(); ++attempt) {
      coordinator_->CopyWhileWatched("w", reports_on);
      const auto arrays =
          client_->arrays().AwaitReplicas(names, nullptr, {.timeout = absl::Milliseconds(1400)});
      status = arrays.status();
      if (arrays.ok()) {
        EXPECT_EQ((*arrays)[0].replicas->complete, 2);
      }
    }
    EXPECT_THAT(status, IsOk());
  }
}

TEST_F(MeshClientTest, WatchesEndAtTheirTimeLimit) {
  const auto watch = [&](absl::Duration until, const CallOptions& options) {
    return client_->catalog().Watch(
        {}, std::nullopt, absl::Now() + until, [](const CatalogChanges&) { return true; }, options);
  };
  const absl::Duration soon = absl::Milliseconds(100);
  const absl::Duration late = absl::Seconds(60);
  EXPECT_THAT(watch(late, {.timeout = soon}), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(watch(soon, {.timeout = late}), IsOk());
  EXPECT_THAT(watch(soon, {}), IsOk());
  EXPECT_THAT(client_->cluster().WatchChanges({}, [](const ClusterChange&) { return true; },
                                              {.timeout = soon}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(MeshClientTest, LeavesOutChangesOfAKindThatItDoesNotKnow) {
  std::vector<v1::WatchClusterResponse> changes(3);
  changes[0].mutable_array()->set_kind(static_cast<v1::ArrayChangeKind>(77));
  changes[1].mutable_name()->set_kind(static_cast<v1::NameChangeKind>(77));
  changes[2].mutable_array()->set_kind(v1::ARRAY_CHANGE_KIND_CREATED);
  changes[2].mutable_array()->set_array_id("known");
  coordinator_->ReportChanges(changes);
  std::vector<std::string> reported;
  EXPECT_THAT(
      client_->cluster().WatchChanges(
          {},
          [&](const ClusterChange& change) {
            const auto* const array = std::get_if<ArrayChange>(&change.event);
            reported.push_back(array == nullptr ? StrCat(change.event.index()) : array->array_id);
            return array == nullptr;
          },
          {.timeout = absl::Seconds(30)}),
      IsOk());
  EXPECT_THAT(reported, ElementsAre("0", "known"));
}

TEST_F(MeshClientTest, ForgetsAWorkerOnceThoughTheAnswerWasLost) {
  coordinator_->LoseNextAnswerToForget(absl::UnavailableError("the connection broke"));
  EXPECT_THAT(client_->cluster().ForgetWorker("lost"), IsOk());
  EXPECT_THAT(client_->cluster().ForgetWorker("lost"),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(MeshClientTest, DropsTheCacheOfReleasedArrays) {
  const auto dropped = client_->cluster().DropCache();
  ASSERT_THAT(dropped, IsOk());
  EXPECT_EQ(dropped->arrays, 3);
  EXPECT_EQ(dropped->bytes, 96);
}

TEST_F(MeshClientTest, AMalformedResultOfABatchIsAnErrorOfItsQuestion) {
  v1::BatchResolveSpecsResponse response;
  response.add_results()->mutable_response();
  response.add_results();
  response.add_results()->mutable_error();  // OK
  coordinator_->AnswerBatchesWith(response);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const auto answers, client_->layouts().BatchResolveSpecs(
                                                         std::vector<ResolveSpecQuestion>(3)));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_THAT(answers[1], StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(answers[2], StatusIs(absl::StatusCode::kInternal));
}

TEST_F(MeshClientTest, ACallThatWaitsForAnothersSessionKeepsItsOwnLimits) {
  coordinator_->Hold(HeldCall::kOpenSession);
  std::thread opener([this] { EXPECT_THAT(client_->arrays().PutTensors({}), IsOk()); });
  EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kOpenSession));
  const absl::Time begin = absl::Now();
  EXPECT_THAT(client_->arrays().PutTensors({}, {}, {.timeout = absl::Milliseconds(100)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  Cancellation cancellation;
  std::thread canceller([&] {
    absl::SleepFor(absl::Milliseconds(100));  // the call waits by then, on most machines
    cancellation.Cancel();
  });
  EXPECT_THAT(client_->arrays().PutTensors({}, {}, {.cancellation = &cancellation}),
              StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
  canceller.join();
  std::thread waiter([this] { EXPECT_THAT(client_->arrays().PutTensors({}), IsOk()); });
  coordinator_->LetGo(HeldCall::kOpenSession);
  opener.join();
  waiter.join();
  EXPECT_EQ(coordinator_->opened_sessions(), 1);
}

TEST_F(MeshClientTest, AnotherCallOpensTheSessionWhenTheFirstOneIsCancelled) {
  coordinator_->Hold(HeldCall::kOpenSession);
  Cancellation cancellation;
  std::thread opener([&] {
    EXPECT_THAT(client_->arrays().PutTensors({}, {}, {.cancellation = &cancellation}),
                StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  });
  EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kOpenSession));
  std::thread waiter([this] { EXPECT_THAT(client_->arrays().PutTensors({}), IsOk()); });
  cancellation.Cancel();
  opener.join();
  coordinator_->LetGo(HeldCall::kOpenSession);
  waiter.join();
}

TEST_F(MeshClientTest, OpensOneSessionRenewsItAndClosesIt) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_,
      MeshClient::Connect(coordinator_->address(), {.session_ttl = absl::Milliseconds(60)}));
  EXPECT_EQ(coordinator_->opened_sessions(), 0);
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  EXPECT_EQ(coordinator_->opened_sessions(), 1);
  EXPECT_TRUE(coordinator_->AwaitRenewals(3));
  client_.reset();
  EXPECT_EQ(coordinator_->open_sessions(), 0);
}

TEST_F(MeshClientTest, OpensAnotherSessionWhenItsOwnIsGone) {
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  coordinator_->ForgetSessions();
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  EXPECT_EQ(coordinator_->opened_sessions(), 2);
}

TEST_F(MeshClientTest, ItsNextSessionTakesOverArraysWithoutNames) {
  PutFilled("named", {2, 6}, 'n');
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());
  coordinator_->ForgetSessions();
  // The session does not hold an array again that the client has released.
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string released, PutNameless());
  EXPECT_THAT(coordinator_->pinned_arrays(), ElementsAre(id));
  ASSERT_THAT(client_->arrays().ReleaseArrays({released}), IsOk());
  coordinator_->ForgetSessions();
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  EXPECT_THAT(coordinator_->pinned_arrays(), ElementsAre(id));
  // A release is the first call that hears of the end of the session.
  coordinator_->ForgetSessions();
  EXPECT_THAT(client_->arrays().ReleaseArrays({id}), IsOkAndHolds(1));
  EXPECT_THAT(coordinator_->pinned_arrays(), IsEmpty());
  EXPECT_EQ(coordinator_->opened_sessions(), 4);
}

TEST_F(MeshClientTest, ItsNextSessionTakesArraysOverThoughItMakesNoCall) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_,
      MeshClient::Connect(coordinator_->address(), {.session_ttl = absl::Milliseconds(60)}));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());
  coordinator_->ForgetSessions();
  EXPECT_TRUE(Eventually([&] { return coordinator_->pinned_arrays().contains(id); }));
}

TEST_F(MeshClientTest, ReleasesArraysOfALostSessionWhenItEnds) {
  ConnectWithPatience();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());
  const int64_t opened = coordinator_->opened_sessions();
  coordinator_->ForgetSessions();
  client_.reset();
  EXPECT_TRUE(coordinator_->released_arrays().contains(id));
  EXPECT_EQ(coordinator_->opened_sessions(), opened + 1);
  EXPECT_EQ(coordinator_->open_sessions(), 0);
}

TEST_F(MeshClientTest, ItsEndReleasesNoArraysThatItHasNoTimeFor) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_,
      MeshClient::Connect(coordinator_->address(), {.session_release_time = absl::ZeroDuration(),
                                                    .session_close_time = absl::Minutes(10)}));
  ASSERT_THAT(PutNameless(), IsOk());
  client_.reset();
  EXPECT_THAT(coordinator_->released_arrays(), IsEmpty());
  EXPECT_EQ(coordinator_->open_sessions(), 0);
}

TEST_F(MeshClientTest, DoesNotAskInEachCallForRoomToTakeArraysOver) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());
  coordinator_->LimitTakeOvers(0);
  coordinator_->ForgetSessions();
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 100; ++i) ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  const int64_t calls = coordinator_->take_over_calls();
  // Two at once: one in the first call, and one in the background. Then one each half second.
  EXPECT_LE(calls, 3 + (absl::Now() - begin) / absl::Milliseconds(500));
  EXPECT_GE(calls, 1);
  coordinator_->LimitTakeOvers({});
  EXPECT_TRUE(Eventually([&] { return coordinator_->pinned_arrays().contains(id); }));
}

TEST_F(MeshClientTest, ReleasesAnArrayLaterThatItsSessionCouldNotTakeOverYet) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());
  coordinator_->LimitTakeOvers(0);
  coordinator_->ForgetSessions();
  EXPECT_THAT(client_->arrays().ReleaseArrays({id}), IsOkAndHolds(0));
  coordinator_->LimitTakeOvers({});
  EXPECT_TRUE(Eventually([&] {
    return coordinator_->taken_arrays().contains(id) && coordinator_->pinned_arrays().empty();
  }));
}

TEST_F(MeshClientTest, HoldsTheArraysThatItsSessionCouldTakeOver) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string one, PutNameless());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string other, PutNameless());
  const std::string& first = std::min(one, other);  // in the order of the call
  const std::string& second = std::max(one, other);
  coordinator_->LimitTakeOvers(1);
  coordinator_->ForgetSessions();
  // The release of the first array has an effect. The session then has room for the second one.
  EXPECT_THAT(client_->arrays().ReleaseArrays({first}), IsOkAndHolds(1));
  EXPECT_TRUE(
      Eventually([&] { return coordinator_->pinned_arrays() == std::set<std::string>{second}; }));
}

TEST_F(MeshClientTest, RefusedArraysDoNotKeepTheLaterOnesFromBeingTakenOver) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const auto connection,
      CoordinatorConnection::Connect(coordinator_->address(), rpc::Credentials::Insecure(),
                                     absl::Seconds(10)));
  SessionKeeper session(connection.get(), absl::Minutes(1), "test");
  const auto in_time = [] { return CallLimit::Within(absl::Minutes(1)); };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string first, session.Get(in_time()));
  std::set<std::string> refused;  // more than one call has
  for (int i = 0; i < 10'001; ++i) refused.insert(StrCat("a", i));
  session.Keep(first, std::vector<std::string>(refused.begin(), refused.end()));
  session.Keep(first, {"b"});
  coordinator_->RefuseToTake(refused);
  coordinator_->ForgetSessions();
  EXPECT_THAT(session.Replace(first, in_time()), IsOkAndHolds(true));
  EXPECT_THAT(coordinator_->taken_arrays(), ElementsAre("b"));
  session.Drop(std::vector<std::string>(refused.begin(), refused.end()));
}

TEST_F(MeshClientTest, CallsGoOnThoughAnOlderCoordinatorTakesNoArraysOver) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string kept, PutNameless());
  coordinator_->FailTakeOvers();
  coordinator_->ForgetSessions();
  EXPECT_THAT(PutNameless(), IsOk());
  EXPECT_THAT(coordinator_->taken_arrays(), IsEmpty());
}

TEST_F(MeshClientTest, AReadDoesNotReleaseAnArrayThatTheClientKeeps) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());
  coordinator_->LimitTakeOvers(0);
  coordinator_->ForgetSessions();
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ById(id)), IsOk());
  EXPECT_THAT(coordinator_->released_arrays(), IsEmpty());
  EXPECT_THAT(coordinator_->pinned_arrays(), ElementsAre(id));
}

TEST_F(MeshClientTest, CallsThatNameAnArrayByItsIdWaitUntilTheNextSessionHasIt) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());
  coordinator_->Hold(HeldCall::kOpenSession);
  coordinator_->ForgetSessions();
  std::thread opener([this] { EXPECT_THAT(client_->arrays().PutTensors({}), IsOk()); });
  EXPECT_TRUE(coordinator_->AwaitHeld(HeldCall::kOpenSession));
  const CallOptions brief = {.timeout = absl::Milliseconds(100)};
  EXPECT_THAT(client_->arrays().DescribeArray(ArraySelector::ById(id), brief),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(client_->arrays().MoveName("kept", id, {}, /*validate_only=*/false, brief),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  coordinator_->LetGo(HeldCall::kOpenSession);
  EXPECT_THAT(client_->arrays().DescribeArray(ArraySelector::ById(id)), IsOk());
  EXPECT_THAT(coordinator_->pinned_arrays(), ElementsAre(id));
  opener.join();
}

TEST_F(MeshClientTest, ItsNextSessionTakesOverNoArrayThatIsGone) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string gone, PutNameless());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());  // takes its place
  EXPECT_THAT(client_->arrays().Gather(ArraySelector::ById(gone)),
              StatusIs(absl::StatusCode::kNotFound));
  coordinator_->ForgetSessions();
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  EXPECT_THAT(coordinator_->taken_arrays(), ElementsAre(id));
}

TEST_F(MeshClientTest, ACallThatFindsNoArrayOfItsIdLooksWhetherItsSessionIsGone) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string awaited, PutNameless());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());  // takes its place
  EXPECT_THAT(client_->arrays().DescribeArray(ArraySelector::ById(awaited)),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(coordinator_->opened_sessions(), 1);
  coordinator_->ForgetSessions();
  EXPECT_THAT(client_->arrays().DescribeArray(ArraySelector::ById(awaited)),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(coordinator_->opened_sessions(), 2);
  EXPECT_TRUE(coordinator_->taken_arrays().contains(awaited));
}

TEST_F(MeshClientTest, ClosesItsSessionThoughItCannotReleaseItsArrays) {
  ConnectWithPatience();
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string id, PutNameless());
  coordinator_->RefuseReleases(absl::InternalError("no"));
  client_.reset();
  EXPECT_EQ(coordinator_->open_sessions(), 0);
}

TEST_F(MeshClientTest, ReleasesArraysOfAPutWhoseOutcomeItDoesNotKnow) {
  coordinator_->LoseAnswersToCommits(absl::InternalError("the answer was lost"));
  EXPECT_THAT(PutNameless(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_TRUE(Eventually([&] { return coordinator_->released_arrays().size() == 1; }));
}

TEST_F(MeshClientTest, AsksForOnePutByOneRequest) {
  coordinator_->FailNextPuts(
      {absl::UnavailableError("the stream was cut"), absl::CancelledError("CANCELLED")});
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  const std::vector<std::string> first = coordinator_->put_request_ids();
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(first[1], first[0]);
  EXPECT_EQ(first[2], first[0]);
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  EXPECT_NE(coordinator_->put_request_ids().back(), first[0]) << "another put";
}

TEST_F(MeshClientTest, BeginsAnewWhereAPutEndedBeforeItsAnswerCame) {
  coordinator_->FailNextPuts(
      {absl::UnavailableError("the stream was cut"),
       WithReason(absl::FailedPreconditionError("has ended"), Reason::kRequestIdReused)});
  ASSERT_THAT(client_->arrays().PutTensors({}), IsOk());
  const std::vector<std::string> ids = coordinator_->put_request_ids();
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids[1], ids[0]);
  EXPECT_NE(ids[2], ids[0]);
}

TEST_F(MeshClientTest, AWorkerLostWhilePuttingIsTheCoordinatorsToName) {
  workers_[1]->FailPutsAfter(1, absl::UnavailableError("the connection broke"));
  coordinator_->FailTransfers(
      WithReason(absl::UnavailableError("worker w-1 of rank 1 is lost"), Reason::kWorkerLost));
  const auto put = client_->arrays().PutTensors({Large("a")});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  EXPECT_EQ(put.status().message(), "worker w-1 of rank 1 is lost");
}

TEST_F(MeshClientTest, StopsSendingToAWorkerThatTakesNothingOnceTheTransferFailed) {
  workers_[1]->StallPuts();
  std::thread failer([this] {
    EXPECT_TRUE(workers_[1]->AwaitStalledPut());
    coordinator_->FailTransfers(
        WithReason(absl::UnavailableError("worker w-1 is lost"), Reason::kWorkerLost));
  });
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kWorkerLost));
  failer.join();
}

TEST_F(MeshClientTest, AbortsATransferThatAWorkerRefuses) {
  workers_[0]->FailPutsAfter(
      1, WithReason(absl::ResourceExhaustedError("too much"), Reason::kMemoryLimit));
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}),
              StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  const absl::Status abort = coordinator_->last_abort();
  EXPECT_THAT(abort, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit))
      << "the operation fails with the error that the caller gets";
  EXPECT_THAT(abort.message(), HasSubstr("too much"));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<Array> arrays, client_->arrays().ListArrays());
  EXPECT_TRUE(arrays.empty());
}

// As gRPC ends a call when the other side's memory for calls is used up.
absl::Status ShortOfCallMemory() {
  return absl::ResourceExhaustedError("Received RST_STREAM with error code 11");
}

TEST_F(MeshClientTest, PutsAgainWhenAWorkerIsShortOfMemoryForCalls) {
  workers_[0]->FailNextPutAfter(1, ShortOfCallMemory());
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}), IsOk());
  EXPECT_EQ(coordinator_->aborted_transfers(), 1);
  EXPECT_EQ(coordinator_->put_request_ids().size(), 2u);
}

// The error of a coordinator that was restarted while a put ran.
absl::Status NoTransfer() {
  return WithReason(absl::NotFoundError("there is no transfer \"transfer\""), Reason::kNotFound,
                    {{fact::kKind, "transfer"}, {fact::kName, "transfer"}});
}
// The error of a worker that has lost its coordinator.
absl::Status WorkerWithoutCoordinator() {
  return WithRetryDelay(WithReason(absl::UnavailableError("this worker has lost its coordinator"),
                                   Reason::kNotServing, {{fact::kIdentity, "w-0"}}),
                        absl::Milliseconds(10));
}

TEST_F(MeshClientTest, PutsAgainWhenTheCoordinatorWasRestarted) {
  // While the tiles were sent.
  workers_[0]->FailNextPutAfter(1, WorkerWithoutCoordinator());
  coordinator_->FailNextCommits({NoTransfer()});
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}), IsOk());
  EXPECT_EQ(coordinator_->put_request_ids().size(), 2u);
  // The worker has attached to the new process, which signs with another key.
  workers_[0]->FailNextPutAfter(
      1, WithReason(absl::PermissionDeniedError("another key"), Reason::kBadToken));
  coordinator_->FailNextCommits({NoTransfer()});
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}), IsOk());
  EXPECT_EQ(coordinator_->put_request_ids().size(), 4u);
  // The coordinator is not back yet.
  workers_[0]->FailNextPutAfter(1, WorkerWithoutCoordinator());
  coordinator_->FailNextCommits(
      std::vector<absl::Status>(kFewAttempts, absl::UnavailableError("connection refused")));
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}), IsOk());
  EXPECT_EQ(coordinator_->put_request_ids().size(), 6u);
  // After the tiles were sent.
  coordinator_->FailNextCommits({NoTransfer(), NoTransfer()});
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}), IsOk());
  EXPECT_EQ(coordinator_->put_request_ids().size(), 9u);
  // While the workers read the file.
  const Checkpoint checkpoint = OneTensor("restarted");
  coordinator_->GetElements(Elements::kRead);
  coordinator_->FailNextCommits({NoTransfer()});
  EXPECT_THAT(client_->arrays().LoadCheckpoint(checkpoint), IsOk());
  EXPECT_EQ(coordinator_->put_request_ids().size(), 11u);
  // While the workers read one tensor, and the client sends the other.
  workers_[0]->FailNextPutAfter(
      1, WithReason(absl::PermissionDeniedError("another key"), Reason::kBadToken));
  coordinator_->FailNextCommits({NoTransfer()});
  EXPECT_THAT(client_->arrays().PutTensors({WithSource(checkpoint), Large("b")}), IsOk());
  EXPECT_EQ(coordinator_->put_request_ids().size(), 13u);
}

TEST_F(MeshClientTest, DoesNotPutAgainWhatWasCommittedAndReleased) {
  coordinator_->FailNextCommits(
      {WithReason(absl::NotFoundError("it was committed, and 1 of its arrays is gone"),
                  Reason::kNotFound, {{fact::kKind, "array"}})});
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 1u);
}

TEST_F(MeshClientTest, APutThatFailsAtItsDeadlineNamesTheLateWorkers) {
  workers_[1]->StallPuts();
  coordinator_->FailNextCommits({WithReason(
      absl::DeadlineExceededError("rank 1 (w-1) has not answered yet"), Reason::kDeadline)});
  const auto put = client_->arrays().PutTensors({Large("a")}, {}, {.timeout = absl::Seconds(2)});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(put.status().message(), HasSubstr("(w-1)"));
}

// After the deadline, the coordinator may have aborted the put because its client had gone.
TEST_F(MeshClientTest, APutThatFailsAtItsDeadlineNamesTheWorkersThatItsWatchHasNamed) {
  coordinator_->FailWatches(WithReason(absl::DeadlineExceededError("\"w-1\" does not answer"),
                                       Reason::kDeadline, {{fact::kIdentity, "w-1"}}));
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}), IsOk()) << "it has answered since";
  workers_[1]->StallPuts();
  coordinator_->FailNextCommits(
      {WithReason(absl::CancelledError("the client has gone"), Reason::kCancelled)});
  const auto put = client_->arrays().PutTensors({Large("a")}, {}, {.timeout = absl::Seconds(2)});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_EQ(FactOf(put.status(), fact::kIdentity), "w-1");
  EXPECT_THAT(put.status().message(), HasSubstr("\"w-1\" does not answer"));
}

// The coordinator knows of no worker that is silent.
TEST_F(MeshClientTest, APutThatFailsAtItsDeadlineNamesAllWorkersWhoseTilesAreNotSent) {
  workers_[0]->StallPuts();
  workers_[1]->StallPuts();
  coordinator_->FailWatches(
      WithReason(absl::DeadlineExceededError("give it more time"), Reason::kDeadline));
  coordinator_->FailNextCommits(
      {WithReason(absl::CancelledError("the client has gone"), Reason::kCancelled)});
  const auto put = client_->arrays().PutTensors({Large("a")}, {}, {.timeout = absl::Seconds(2)});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(put.status().message(), AllOf(HasSubstr("(worker w-0)"), HasSubstr("(worker w-1)")));
}

TEST_F(MeshClientTest, PutsOnceWhenTheCommitIsNotAnswered) {
  coordinator_->LoseAnswersToCommits(ShortOfCallMemory());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      client_,
      MeshClient::Connect(coordinator_->address(), {.transfer_timeout = absl::Seconds(2)}));
  const auto put = client_->arrays().PutTensors({Large("a")});
  EXPECT_THAT(put, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(put.status().message(), HasSubstr("may be committed"));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 1u);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::vector<Array> arrays, client_->arrays().ListArrays());
  EXPECT_EQ(arrays.size(), 1u) << "it was committed all the same";

  // The same if the workers read some of the tensors.
  const Checkpoint checkpoint = OneTensor("not_answered");
  coordinator_->GetElements(Elements::kRead);
  const auto mixed = client_->arrays().PutTensors({WithSource(checkpoint), Large("b")});
  EXPECT_THAT(mixed, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(mixed.status().message(), HasSubstr("may be committed"));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 2u);
  EXPECT_THAT(*client_->arrays().ListArrays(), SizeIs(3));
}

TEST_F(MeshClientTest, PutsOnceWhenTheAbortIsNotAnswered) {
  workers_[0]->FailNextPutAfter(1, ShortOfCallMemory());
  coordinator_->RefuseAborts(absl::FailedPreconditionError("it is being committed"));
  EXPECT_THAT(client_->arrays().PutTensors({Large("a")}),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(coordinator_->put_request_ids().size(), 1u);
}

TEST_F(MeshClientTest, ResolvesATreeOfManyMessages) {
  std::vector<TreeTensor> tensors;
  for (int i = 0; i < 50'000; ++i) {
    tensors.push_back({.name = StrCat("model.layers.", i, ".self_attention.query.weight"),
                       .shape = {1024, 1024},
                       .dtype = Dtype::kBF16});
  }
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const TreeAnswer answer,
                                 client_->layouts().ResolveTree({.match_only = true}, tensors));
  EXPECT_EQ(answer.placements.size(), tensors.size());
  ASSERT_EQ(answer.specs.size(), 1u);
  EXPECT_EQ(answer.specs[0].requested, PartitionSpec({SpecEntry::Axis("tp")}));
  EXPECT_EQ(answer.placements[0].rule_index, std::nullopt);
  EXPECT_EQ(answer.placements[8].rule_index, 0);
  EXPECT_EQ(answer.report.layout.tensors, 50'000);
  EXPECT_EQ(answer.revision, 5);
}

TEST_F(MeshClientTest, DoesNotSendATreeThatIsTooLargeToBeKept) {
  StoredTree tree;
  for (int i = 0; i < 200'000; ++i) {  // over 4 MiB, which no message may have
    tree.tensors.push_back({.name = StrCat("model.layers.", i, ".query"), .shape = {8}});
  }
  const absl::Status status = client_->catalog().CreateEntry("large", tree).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kLimitExceeded));
  EXPECT_THAT(status.ToString(), HasSubstr("give a tree as large as this with each question"));
}

}  // namespace
}  // namespace shardmesh::client
