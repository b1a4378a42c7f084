// Tiles out to workers and back.
#include "client/remote/transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "client/remote/silence_watch.h"
#include "client/remote/worker_client.h"
#include "process/failpoint.h"
#include "process/thread_pool.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tests/testing/silent_socket.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/client/small_cluster.h"

namespace shardmesh::client {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using test::GetToken;
using test::PutToken;
using test::SmallCoordinator;
using test::SmallWorker;
using ::testing::HasSubstr;
using ::testing::Not;

// A tensor with bytes of its own, and the array that it becomes.
struct TestTensor {
  TestTensor(const std::string& id, const Mesh& mesh, PartitionSpec spec, Shape shape,
             Dtype dtype = Dtype::kF32) {
    array.array_id = id;
    array.dtype = dtype;
    array.shape = shape;
    array.spec = std::move(spec);
    array.mesh_id = "default";
    array.mesh = mesh;
    bytes.resize(static_cast<size_t>(*array.SizeBytes()));
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(i * 31 + i / 251);
    }
    token = PutToken(id);
  }
  TensorView view() const { return *TensorView::Create(array.dtype, array.shape, bytes); }
  UploadTensor upload() const { return {&array, token, view()}; }

  ArrayDescriptor array;
  std::string bytes;
  std::string token;
};

class TransferTest : public ::testing::Test {
 protected:
  TransferTest() {
    std::vector<SmallWorker*> workers;
    for (auto& worker : workers_) {
      worker = std::make_unique<SmallWorker>();
      workers.push_back(worker.get());
    }
    coordinator_ = std::make_unique<SmallCoordinator>(mesh_, workers);
    options_.deadline = SteadyDeadline::After(absl::Seconds(60));
    // Workers that a busy machine makes slow are not left.
    options_.patience = absl::InfiniteDuration();
  }

  absl::StatusOr<int64_t> UploadAll(const std::vector<TestTensor>& tensors) {
    std::vector<UploadTensor> uploads;
    for (const TestTensor& tensor : tensors) {
      uploads.push_back(tensor.upload());
    }
    return Upload(coordinator_->devices(), uploads, &cancellation_, options_);
  }
  absl::StatusOr<std::string> DownloadAll(const TestTensor& tensor,
                                          std::vector<TransferDevice> devices) {
    std::string bytes(tensor.bytes.size(), '\0');
    const absl::Status status = Download(
        tensor.array, Tile::Whole(tensor.array.shape), GetToken(tensor.array.array_id), devices,
        *MutableTensorView::Create(tensor.array.dtype, tensor.array.shape,
                                   absl::MakeSpan(bytes.data(), bytes.size())),
        &cancellation_, options_);
    if (!status.ok()) {
      return status;
    }
    return bytes;
  }

  const Mesh mesh_ = *Mesh::Parse("fsdp=2,tp=2");
  std::unique_ptr<SmallWorker> workers_[4];
  std::unique_ptr<SmallCoordinator> coordinator_;
  Cancellation cancellation_;
  TransferOptions options_;
};

PartitionSpec Spec(std::vector<SpecEntry> entries) { return PartitionSpec(std::move(entries)); }
const SpecEntry kNone = SpecEntry::None();
const SpecEntry kFsdp = SpecEntry::Axis("fsdp");
const SpecEntry kTp = SpecEntry::Axis("tp");

TEST_F(TransferTest, BringsBackWhatItHandedOverForEveryLayout) {
  std::vector<TestTensor> tensors;
  tensors.emplace_back("replicated", mesh_, Spec({}), Shape{7, 3});
  tensors.emplace_back("rows", mesh_, Spec({kTp}), Shape{64, 48});
  tensors.emplace_back("columns", mesh_, Spec({kNone, kTp}), Shape{64, 48});
  tensors.emplace_back("both", mesh_, Spec({kFsdp, kTp}), Shape{64, 48});
  tensors.emplace_back("scalar", mesh_, Spec({}), Shape{}, Dtype::kI64);
  tensors.emplace_back("empty", mesh_, Spec({kFsdp}), Shape{0, 5});
  // Several pieces of a MiB for each tile, in one run and in many.
  tensors.emplace_back("large", mesh_, Spec({kFsdp}), Shape{1026, 1031});
  tensors.emplace_back("large columns", mesh_, Spec({kNone, kFsdp}), Shape{1031, 1026});

  int64_t held_bytes = 0;
  for (const TestTensor& tensor : tensors) {
    const Tiling tiling = *tensor.array.Tiling();
    for (DeviceId rank = 0; rank < 4; ++rank) {
      held_bytes += *tensor.array.TileSizeBytes(tiling.TileOf(rank));
    }
  }
  int64_t last_done = 0;
  options_.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last_done);
    EXPECT_EQ(total, held_bytes);
    last_done = done;
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const int64_t sent, UploadAll(tensors));
  EXPECT_EQ(sent, held_bytes);
  EXPECT_EQ(last_done, held_bytes);

  options_.progress = nullptr;
  for (const TestTensor& tensor : tensors) {
    const Tiling tiling = *tensor.array.Tiling();
    for (int32_t rank = 0; rank < 4; ++rank) {
      const Tile tile = tiling.TileOf(rank);
      std::string expected(static_cast<size_t>(*tensor.array.TileSizeBytes(tile)), '\0');
      ASSERT_THAT(
          CopyTileBytes(tensor.view(), tile, 0, absl::MakeSpan(expected.data(), expected.size())),
          IsOk());
      EXPECT_TRUE(workers_[rank]->TileOf(tensor.array.array_id, rank) == expected)
          << tensor.array.array_id << " on rank " << rank;
    }
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                                   DownloadAll(tensor, coordinator_->devices()));
    EXPECT_TRUE(bytes == tensor.bytes) << tensor.array.array_id;
  }
}

TEST_F(TransferTest, SendsTheTilesOfSomeRanksOnly) {
  const TestTensor all("all", mesh_, Spec({kTp}), Shape{64, 48});
  const TestTensor some("some", mesh_, Spec({kFsdp, kTp}), Shape{64, 48});
  const std::vector<int64_t> ranks = {1, 2};
  UploadTensor partly = some.upload();
  partly.ranks = ranks;
  const int64_t tile_bytes = std::ssize(some.bytes) / 4;
  EXPECT_THAT(Upload(coordinator_->devices(), {partly}, &cancellation_, options_),
              IsOkAndHolds(2 * tile_bytes));
  EXPECT_THAT(Upload(coordinator_->devices(), {all.upload(), partly}, &cancellation_, options_),
              IsOkAndHolds(2 * std::ssize(all.bytes) + 2 * tile_bytes));
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(workers_[rank]->TileOf("some", rank).has_value(), rank == 1 || rank == 2) << rank;
    EXPECT_TRUE(workers_[rank]->TileOf("all", rank).has_value()) << rank;
  }
}

// These workers are of a build that knows no handover.
TEST_F(TransferTest, StreamsLargeTilesToWorkersThatTakeNoMemoryAndSaysSo) {
  std::vector<TestTensor> tensors;
  tensors.emplace_back("large", mesh_, Spec({kFsdp}), Shape{1026, 1031});
  HandoverOutcome outcome;
  options_.handover = Handover::kAuto;
  options_.handover_outcome = &outcome;
  ASSERT_THAT(UploadAll(tensors), IsOk());
  EXPECT_EQ(outcome.bytes, 0);
  EXPECT_FALSE(outcome.refusal.ok());
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                                 DownloadAll(tensors[0], coordinator_->devices()));
  EXPECT_TRUE(bytes == tensors[0].bytes);
  options_.handover = Handover::kOff;
  outcome = {};
  ASSERT_THAT(UploadAll(tensors), IsOk());
  EXPECT_THAT(outcome.refusal, IsOk()) << "nobody asked";
  options_.handover = Handover::kOn;
  EXPECT_FALSE(UploadAll(tensors).ok());
}

// Their memory may be given to a step, which must be able to write into it. No worker is asked.
TEST_F(TransferTest, StreamsTensorsWithoutANameUnlessMemoryIsAskedFor) {
  const TestTensor large("large", mesh_, Spec({kFsdp}), Shape{1026, 1031});
  const TestTensor small("small", mesh_, Spec({kFsdp}), Shape{64, 48});
  const auto upload = [&](const TestTensor& tensor, bool is_named) {
    UploadTensor unnamed = tensor.upload();
    unnamed.is_named = is_named;
    return Upload(coordinator_->devices(), {unnamed}, &cancellation_, options_);
  };
  HandoverOutcome outcome;
  options_.handover = Handover::kAuto;
  options_.handover_outcome = &outcome;
  ASSERT_THAT(upload(large, false), IsOk());
  EXPECT_THAT(outcome.refusal.ToString(), HasSubstr("without a name"));
  ASSERT_THAT(upload(small, false), IsOk());
  EXPECT_THAT(outcome.refusal, IsOk()) << "small tiles are always streamed";
  ASSERT_THAT(upload(large, true), IsOk());
  EXPECT_THAT(outcome.refusal.ToString(), Not(HasSubstr("without a name")));
  options_.handover = Handover::kOn;
  EXPECT_FALSE(upload(large, false).ok()) << "all tensors count, and these workers take none";
}

TEST_F(TransferTest, TheFirstFailureEndsAllStreamsAndNamesItsWorker) {
  for (int rank : {0, 1, 3}) {
    workers_[rank]->StallPuts();
  }
  workers_[2]->FailPutsAfter(
      int64_t{1} << 20,
      WithReason(absl::ResourceExhaustedError("have 1 byte, need 2"), Reason::kMemoryLimit));
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kNone, kTp}), Shape{2048, 2048});
  const absl::StatusOr<int64_t> sent = UploadAll(tensors);
  EXPECT_THAT(sent, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_THAT(sent.status().ToString(), HasSubstr("rank 2 (worker w-2): have 1 byte, need 2"));
}

TEST_F(TransferTest, ReadsNothingOfTheTensorsOnceCancelled) {
  workers_[1]->StallPuts();
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kTp}), Shape{4096, 2048});
  std::thread canceller([this] {
    EXPECT_TRUE(workers_[1]->AwaitStalledPut());
    cancellation_.Cancel();
  });
  EXPECT_THAT(UploadAll(tensors), StatusIs(absl::StatusCode::kCancelled));
  canceller.join();
  // A sanitizer would see a late read of the bytes that are freed here.
  tensors.clear();
}

TEST_F(TransferTest, AnUploadThatEndsWithItsTimeSaysSo) {
  std::vector<TestTensor> tensors;
  tensors.emplace_back("late", mesh_, Spec({kFsdp}), Shape{64, 48});
  options_.deadline = SteadyDeadline::After(absl::ZeroDuration());
  cancellation_.Cancel();  // as when the coordinator has ended the put
  const absl::Status status = UploadAll(tensors).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("the transfer's time is over: not all tiles of rank 0 (worker w-0), rank 1"));
}

// All streams end at the deadline. The first one to end need not be the late one's.
TEST_F(TransferTest, AnUploadWhoseTimeIsOverNamesThoseWhoseTilesAreNotSent) {
  workers_[1]->StallPuts();
  std::vector<TestTensor> tensors;
  tensors.emplace_back("late", mesh_, Spec({kFsdp}), Shape{64, 48});
  options_.deadline = SteadyDeadline::After(absl::Seconds(1));
  const absl::Status status = UploadAll(tensors).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, Reason::kDeadline));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("not all tiles of rank 1 (worker w-1) were sent"));
}

TEST_F(TransferTest, AWorkerThatIsNotThereIsNamedWithItsAddress) {
  workers_[3]->Stop();
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kTp}), Shape{4, 4});
  const absl::StatusOr<int64_t> sent = UploadAll(tensors);
  EXPECT_THAT(sent, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(sent.status().ToString(), HasSubstr("rank 3 (worker w-3)"));
  EXPECT_THAT(sent.status().ToString(), HasSubstr(workers_[3]->address()));
}

TEST_F(TransferTest, TakesAnotherHolderWhenOneIsLostMidway) {
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kTp}), Shape{64, 64});  // ranks 0, 2 and 1, 3 hold alike
  ASSERT_THAT(UploadAll(tensors), IsOk());
  workers_[0]->BreakGets();
  workers_[1]->Stop();
  int64_t done_bytes = 0;
  options_.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, done_bytes);
    EXPECT_LE(done, total);  // what came twice counts once
    done_bytes = done;
  };
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                                 DownloadAll(tensors[0], coordinator_->devices()));
  EXPECT_TRUE(bytes == tensors[0].bytes);
  EXPECT_EQ(done_bytes, static_cast<int64_t>(bytes.size()));
  options_.progress = nullptr;

  workers_[3]->Stop();
  const absl::StatusOr<std::string> degraded = DownloadAll(tensors[0], coordinator_->devices());
  EXPECT_THAT(degraded, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(degraded, shardmesh::test::CarriesFacts(Reason::kArrayDegraded,
                                                      {{fact::kArray, tensors[0].array.array_id}}));
  EXPECT_THAT(degraded.status().ToString(), HasSubstr("[32,64)x[0,64)"));
}

// The copy of the tile of each rank is on the worker of the next rank.
TEST_F(TransferTest, TakesTheSecondCopyOfTilesThatTheOwnHoldersDoNotGive) {
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kFsdp, kTp}), Shape{64, 64});
  ASSERT_THAT(UploadAll(tensors), IsOk());
  const TestTensor copied("copy", mesh_, Spec({kFsdp, kTp}), Shape{64, 64});
  std::vector<TransferDevice> next = coordinator_->devices();
  std::rotate(next.begin(), next.begin() + 1, next.end());
  for (size_t rank = 0; rank < next.size(); ++rank) next[rank].rank = static_cast<int32_t>(rank);
  ASSERT_THAT(Upload(next, {copied.upload()}, &cancellation_, options_), IsOk());
  const SecondCopy copy{.array_id = "copy", .token = GetToken("copy"), .devices = next};
  const std::vector<TransferDevice> devices = coordinator_->devices();
  const auto download = [&](std::vector<TransferDevice> from) {
    return DownloadAll(tensors[0], std::move(from));
  };
  options_.second_copy = &copy;

  // All four are alive: the copy is not asked.
  for (auto& worker : workers_) EXPECT_EQ(worker->gets(), 0);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(std::string bytes, download(devices));
  EXPECT_TRUE(bytes == tensors[0].bytes);
  for (auto& worker : workers_) EXPECT_EQ(worker->gets(), 1);

  // The coordinator knows that the worker of rank 1 is lost, or learns it later.
  workers_[1]->Stop();
  std::vector<TransferDevice> known = devices;
  known.erase(known.begin() + 1);
  for (const std::vector<TransferDevice>& from : {known, devices}) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(bytes, download(from));
    EXPECT_TRUE(bytes == tensors[0].bytes);
  }

  // A part that lies within the lost tile needs one worker only.
  const Tile part{{{3, 20}, {40, 41}}};
  std::string column(17 * sizeof(float), '\0');
  std::string expected = column;
  ASSERT_THAT(CopyTileBytes(tensors[0].view(), part, 0, absl::MakeSpan(expected)), IsOk());
  const int64_t before = workers_[2]->gets();
  ASSERT_THAT(Download(tensors[0].array, part, GetToken("a"), known,
                       *MutableTensorView::Create(Dtype::kF32, {17, 1}, absl::MakeSpan(column)),
                       &cancellation_, options_),
              IsOk());
  EXPECT_TRUE(column == expected);
  EXPECT_EQ(workers_[2]->gets(), before + 1);

  workers_[2]->Stop();  // it has the copy of the tile of rank 1
  const absl::StatusOr<std::string> degraded = download(devices);
  EXPECT_THAT(degraded, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(degraded.status().ToString(), HasSubstr("tile [0,32)x[32,64) of array a"));

  // An error names the worker of a copy by its rank in the mesh of the array.
  workers_[3]->CorruptGets();  // it has the copy of the tile of rank 2
  known.erase(known.begin() + 1);
  std::string corner(8 * 8 * sizeof(float), '\0');
  const absl::Status corrupt =
      Download(tensors[0].array, Tile{{{32, 40}, {0, 8}}}, GetToken("a"), known,
               *MutableTensorView::Create(Dtype::kF32, {8, 8}, absl::MakeSpan(corner)),
               &cancellation_, options_);
  EXPECT_EQ(corrupt.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(corrupt.message()), HasSubstr("rank 3 (worker w-3)"));
}

// One worker has all tiles of the array, another has all of the copy.
TEST_F(TransferTest, KeepsTheTilesThatALostWorkerHasSent) {
  const Mesh rows = *Mesh::Parse("rows=8");
  const TestTensor own("a", rows, Spec({SpecEntry::Axis("rows")}), Shape{64, 64});
  const TestTensor copied("copy", rows, Spec({SpecEntry::Axis("rows")}), Shape{64, 64});
  const auto all_on = [&](size_t worker) {
    std::vector<TransferDevice> devices(8, coordinator_->devices()[worker]);
    for (size_t rank = 0; rank < 8; ++rank) devices[rank].rank = static_cast<int32_t>(rank);
    return devices;
  };
  ASSERT_THAT(Upload(all_on(0), {own.upload()}, &cancellation_, options_), IsOk());
  ASSERT_THAT(Upload(all_on(1), {copied.upload()}, &cancellation_, options_), IsOk());
  const SecondCopy copy{.array_id = "copy", .token = GetToken("copy"), .devices = all_on(1)};
  options_.second_copy = &copy;
  int64_t done_bytes = 0;
  options_.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, done_bytes);
    EXPECT_LE(done, total);
    done_bytes = done;
  };
  workers_[0]->BreakGets(/*tile=*/5);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string bytes, DownloadAll(own, all_on(0)));
  EXPECT_TRUE(bytes == own.bytes);
  EXPECT_EQ(done_bytes, std::ssize(bytes));
  EXPECT_EQ(workers_[0]->sent_tiles(), 5);
  EXPECT_EQ(workers_[1]->sent_tiles(), 3) << "the others are there";
}

// The copy of the tile of each rank is on the worker of the next rank. Workers fall silent, and are
// there all the same.
class SilentWorkerTest : public TransferTest {
 protected:
  SilentWorkerTest() {
    EXPECT_THAT(UploadAll({own_}), IsOk());
    std::rotate(next_.begin(), next_.begin() + 1, next_.end());
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      next_[rank].rank = static_cast<int32_t>(rank);
    }
    EXPECT_THAT(Upload(next_, {copied_.upload()}, &cancellation_, options_), IsOk());
    copy_ = {.array_id = "copy", .token = GetToken("copy"), .devices = next_};
    options_.second_copy = &copy_;
    options_.lost_workers = &lost_;
    options_.silent_workers = &silent_;
    options_.patience = absl::Milliseconds(500);
  }
  void ExpectDownload(const std::vector<TransferDevice>& devices) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string bytes, DownloadAll(own_, devices));
    EXPECT_TRUE(bytes == own_.bytes);
  }

  // Several pieces for each tile.
  const TestTensor own_{"a", mesh_, Spec({kFsdp, kTp}), Shape{130, 262}};
  const TestTensor copied_{"copy", mesh_, Spec({kFsdp, kTp}), Shape{130, 262}};
  std::vector<TransferDevice> next_ = coordinator_->devices();
  SecondCopy copy_;
  absl::flat_hash_set<std::string> lost_;
  absl::flat_hash_map<std::string, int> silent_;
};

TEST_F(SilentWorkerTest, TheSecondCopyIsTakenOfTilesInWhoseMiddleAWorkerFallsSilent) {
  workers_[1]->StallGets();
  int64_t done_bytes = 0;
  options_.progress = [&](int64_t done, int64_t total) {
    EXPECT_GT(done, done_bytes);
    EXPECT_LE(done, total);
    done_bytes = done;
  };
  ASSERT_NO_FATAL_FAILURE(ExpectDownload(coordinator_->devices()));
  EXPECT_EQ(done_bytes, static_cast<int64_t>(own_.bytes.size()));
  EXPECT_THAT(silent_, testing::Contains(testing::Key("w-1")));
  EXPECT_THAT(lost_, testing::IsEmpty());

  // The next download of the same get does not ask the worker first.
  options_.progress = nullptr;
  silent_ = {{"w-1", 3}};
  const int64_t before = workers_[1]->gets();
  ASSERT_NO_FATAL_FAILURE(ExpectDownload(coordinator_->devices()));
  EXPECT_EQ(workers_[1]->gets(), before);
}

TEST_F(SilentWorkerTest, TheSecondCopyIsTakenOfTilesOfAWorkerThatAcceptsNoConnection) {
  const ::shardmesh::test::SilentSocket silent;
  std::vector<TransferDevice> devices = coordinator_->devices();
  devices[1].addresses = {silent.address()};
  ASSERT_NO_FATAL_FAILURE(ExpectDownload(devices));
  EXPECT_THAT(silent_, testing::Contains(testing::Key("w-1")));
  EXPECT_THAT(lost_, testing::IsEmpty()) << "the connection had 10 s to fail";
}

TEST_F(SilentWorkerTest, AnAddressThatDoesNotAnswerIsNotASilentWorker) {
  const ::shardmesh::test::SilentSocket silent;
  std::vector<TransferDevice> devices = coordinator_->devices();
  // Each takes half a second, and all together take longer than the patience.
  std::vector<std::string> addresses(6, silent.address());
  addresses.push_back(devices[1].addresses.front());
  devices[1].addresses = addresses;
  options_.patience = absl::Seconds(2);
  ASSERT_NO_FATAL_FAILURE(ExpectDownload(devices));
  EXPECT_THAT(silent_, testing::IsEmpty());
  EXPECT_THAT(lost_, testing::IsEmpty());
}

TEST_F(SilentWorkerTest, WorkersAreNotSilentWhileTheCallerTakesTheirBytes) {
  options_.patience = absl::Seconds(2);
  int calls = 0;
  options_.progress = [&](int64_t, int64_t) {
    // All streams wait for this call of the callback.
    if (++calls == 1) absl::SleepFor(2 * options_.patience);
  };
  int64_t before = 0;
  for (auto& worker : workers_) before += worker->gets();
  ASSERT_NO_FATAL_FAILURE(ExpectDownload(coordinator_->devices()));
  EXPECT_GE(calls, 1);
  EXPECT_THAT(silent_, testing::IsEmpty());
  EXPECT_THAT(lost_, testing::IsEmpty());
  int64_t after = 0;
  for (auto& worker : workers_) after += worker->gets();
  EXPECT_EQ(after, before + 4) << "no tile is asked for again";
}

TEST_F(SilentWorkerTest, DownloadsThatShareAWatchShareItsThread) {
  const TestTensor whole("whole", mesh_, Spec({}), Shape{8, 8});  // on each worker
  ASSERT_THAT(Upload(coordinator_->devices(), {whole.upload()}, &cancellation_, options_), IsOk());
  options_.second_copy = nullptr;
  options_.patience = absl::Seconds(30);
  SilenceWatch watch;
  options_.silence_watch = &watch;
  ASSERT_THAT(DownloadAll(whole, coordinator_->devices()), IsOk());
  ASSERT_THAT(ArmFailpoints("thread.start=emfile"), IsOk());
  EXPECT_THAT(DownloadAll(whole, coordinator_->devices()), IsOk());
  EXPECT_TRUE(IsArmed("thread.start")) << "the second download started a thread";
  EXPECT_FALSE(StartThread([] {}).ok()) << "disarms the failpoint";
}

TEST_F(SilentWorkerTest, AWorkerThatIsTheOnlyHolderIsWaitedFor) {
  options_.second_copy = nullptr;
  workers_[1]->StallGets();
  std::thread resume([this] {
    absl::SleepFor(absl::Milliseconds(1500));  // longer than a worker with other holders may take
    workers_[1]->ResumeGets();
  });
  ExpectDownload(coordinator_->devices());
  resume.join();
  EXPECT_THAT(silent_, testing::IsEmpty());
}

TEST_F(SilentWorkerTest, OfTwoSilentHoldersTheOneThatGoesOnIsWaitedFor) {
  workers_[1]->StallGets();
  workers_[2]->StallGets();  // it has the copy
  std::atomic<bool> is_over = false;
  std::thread resume([&] {
    while (workers_[1]->gets() < 2 && !is_over) absl::SleepFor(absl::Milliseconds(10));
    workers_[1]->ResumeGets();
  });
  ExpectDownload(coordinator_->devices());
  is_over = true;
  resume.join();
  EXPECT_THAT(lost_, testing::IsEmpty());
}

TEST_F(SilentWorkerTest, TheDeadlineNamesASilentWorker) {
  for (auto& worker : workers_) worker->StallGets();
  options_.deadline = SteadyDeadline::After(absl::Seconds(3));
  const absl::Status late = DownloadAll(own_, coordinator_->devices()).status();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(std::string(late.message()), HasSubstr("(worker w-"));
}

TEST_F(TransferTest, DoesNotAskAWorkerAgainThatAnEarlierDownloadHasLost) {
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kTp}), Shape{64, 64});  // ranks 0, 2 and 1, 3 hold alike
  ASSERT_THAT(UploadAll(tensors), IsOk());
  workers_[0]->BreakGets();
  absl::flat_hash_set<std::string> lost;
  options_.lost_workers = &lost;
  for (int i = 0; i < 3; ++i) {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                                   DownloadAll(tensors[0], coordinator_->devices()));
    EXPECT_TRUE(bytes == tensors[0].bytes);
  }
  EXPECT_EQ(workers_[0]->gets(), 1);
  EXPECT_THAT(lost, testing::UnorderedElementsAre("w-0"));
}

TEST_F(TransferTest, AGetOfPartialSumsNamesTheCommandThatReducesThem) {
  const TestTensor tensor("a", mesh_, PartitionSpec({kFsdp}, {"tp"}), Shape{64, 64});
  EXPECT_THAT(DownloadAll(tensor, coordinator_->devices()).status().message(),
              HasSubstr("@a holds partial sums along tp; reduce it first: `shardmesh collective "
                        "all-reduce @a --axes tp --as NAME`"));
  options_.array = "partial";
  const absl::Status named = DownloadAll(tensor, coordinator_->devices()).status();
  EXPECT_THAT(named, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kInvalidSpec));
  EXPECT_THAT(named.message(), HasSubstr("all-reduce partial --axes tp --as NAME`"));
}

TEST_F(TransferTest, SpreadsAReplicatedTensorsTilesOverTheirHolders) {
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kTp}), Shape{64, 64});
  ASSERT_THAT(UploadAll(tensors), IsOk());
  ASSERT_THAT(DownloadAll(tensors[0], coordinator_->devices()), IsOk());
  EXPECT_EQ(workers_[0]->gets() + workers_[2]->gets(), 1);
  EXPECT_EQ(workers_[1]->gets() + workers_[3]->gets(), 1);
}

TEST_F(TransferTest, RefusesBytesThatDifferFromTheirChecksum) {
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kFsdp, kTp}), Shape{8, 8});
  ASSERT_THAT(UploadAll(tensors), IsOk());
  workers_[2]->CorruptGets();
  EXPECT_THAT(DownloadAll(tensors[0], coordinator_->devices()),
              StatusIs(absl::StatusCode::kDataLoss, Reason::kChecksumMismatch));
}

TEST_F(TransferTest, RefusesPartialSums) {
  const TestTensor tensor("a", mesh_, PartitionSpec({kTp}, {"fsdp"}), Shape{8});
  EXPECT_THAT(DownloadAll(tensor, coordinator_->devices()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(TransferTest, AWorkerSaysWhoItIs) {
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<WorkerClient> worker,
      WorkerClient::Connect(workers_[0]->address(), {workers_[0]->address()},
                            rpc::Credentials::Insecure(), options_.deadline.wall()));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const WorkerIdentity identity,
                                 worker->Identify({options_.deadline.wall(), {}}));
  EXPECT_EQ(identity.identity, workers_[0]->address());
  EXPECT_EQ(identity.incarnation, 7u);
}

TEST_F(TransferTest, ACancellationEndsAttemptsToConnect) {
  const ::shardmesh::test::SilentSocket silent;
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kTp}), Shape{64, 64});
  ASSERT_THAT(UploadAll(tensors), IsOk());
  std::vector<TransferDevice> devices = coordinator_->devices();
  for (TransferDevice& device : devices) device.addresses = {silent.address()};
  const absl::Time begin = absl::Now();
  std::thread canceller([this] {
    absl::SleepFor(absl::Milliseconds(200));  // they have begun by then, on most machines
    cancellation_.Cancel();
  });
  EXPECT_THAT(DownloadAll(tensors[0], devices), StatusIs(absl::StatusCode::kCancelled));
  canceller.join();
  EXPECT_THAT(Upload(devices, {tensors[0].upload()}, &cancellation_, options_),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5)) << "and not the 10 s of each address";
}

TEST_F(TransferTest, ADownloadEndsWithItsTimeThoughAHolderIsLeft) {
  const ::shardmesh::test::SilentSocket silent;
  std::vector<TestTensor> tensors;
  tensors.emplace_back("a", mesh_, Spec({kTp}), Shape{64, 64});
  std::vector<TransferDevice> devices = coordinator_->devices();
  for (TransferDevice& device : devices) device.addresses = {silent.address()};
  options_.deadline = SteadyDeadline::After(absl::Milliseconds(500));
  absl::flat_hash_set<std::string> lost;
  options_.lost_workers = &lost;
  EXPECT_THAT(DownloadAll(tensors[0], devices), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(lost, testing::IsEmpty()) << "they had too little time to answer";
}

TEST_F(TransferTest, ASilentAddressOfAWorkerHoldsNobodyUpForLong) {
  const ::shardmesh::test::SilentSocket silent;
  const std::string& good = workers_[0]->address();
  const auto connect = [&](const std::vector<std::string>& addresses, absl::Duration within) {
    return WorkerClient::Connect(good, addresses, rpc::Credentials::Insecure(),
                                 absl::Now() + within)
        .status();
  };
  const absl::Time start = absl::Now();
  EXPECT_THAT(connect({silent.address(), silent.address(), good}, absl::Seconds(60)), IsOk());
  EXPECT_LT(absl::Now() - start, absl::Seconds(5)) << "and not the 10 s of each";
  // Where no other answers it has the rest of the time.
  const absl::Status failed = connect({silent.address(), "127.0.0.1:1"}, absl::Seconds(2));
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(failed.message()),
              ::testing::AllOf(HasSubstr(silent.address()), HasSubstr("127.0.0.1:1")));
}

}  // namespace
}  // namespace shardmesh::client
