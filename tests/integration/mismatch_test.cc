// A rank that takes part in a collective with another element type than the others. A coordinator
// plans one program for all, so here the test is the coordinator of real workers, and gives one of
// them a plan of its own.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/local/child_process.h"
#include "process/host_port.h"
#include "program/step_plan.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/time_codec.h"
#include "rpc/codec/worker_error_codec.h"
#include "rpc/server_lifecycle.h"
#include "sharding/digest.h"
#include "sharding/mesh.h"
#include "shardmesh/internal/v1/attach_service.grpc.pb.h"
#include "status/str_cat.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace shardmesh::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int64_t kEpoch = 1;
constexpr int64_t kTerm = 1;
constexpr absl::Duration kStartTimeout = absl::Seconds(60);
// Far beyond what a mismatch may take.
constexpr absl::Duration kStepTimeout = absl::Seconds(60);
constexpr absl::Duration kNamedWithin = absl::Seconds(2);
// Tiles that are large enough to be read where they lie.
constexpr int64_t kRows = 16;
constexpr int64_t kColumns = 32;

// Takes in kRanks workers, and sends each what the test says.
class OwnPlansCoordinator final : public internal::v1::AttachService::Service {
 public:
  using Stream =
      grpc::ServerReaderWriter<internal::v1::AttachResponse, internal::v1::AttachRequest>;

  // Waits until all workers are there and reach each other.
  bool AwaitReady() {
    absl::MutexLock lock(&mutex_);
    const auto are_there = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return CountIf([](const Worker& worker) { return worker.brought_inventory; }) == kRanks;
    };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&are_there), kStartTimeout)) return false;
    const internal::v1::AttachResponse membership = Membership();
    for (auto& [identity, worker] : workers_) worker.stream->Write(membership);
    const auto reach_all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return CountIf([](const Worker& worker) { return worker.reaches_all; }) == kRanks;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&reach_all), kStartTimeout);
  }

  void Send(int rank, const internal::v1::AttachResponse& message) {
    absl::MutexLock lock(&mutex_);
    workers_.at(IdentityOf(rank)).stream->Write(message);
  }
  // A rank's next report.
  internal::v1::StepReport AwaitReport(int rank) {
    absl::MutexLock lock(&mutex_);
    std::vector<internal::v1::StepReport>& reports = workers_.at(IdentityOf(rank)).reports;
    const auto has_report = [&] { return !reports.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&has_report), kStepTimeout)) {
      ADD_FAILURE() << "rank " << rank << " reports nothing";
      return {};
    }
    internal::v1::StepReport report = std::move(reports.front());
    reports.erase(reports.begin());
    return report;
  }
  void EndStreams() {
    absl::MutexLock lock(&mutex_);
    for (auto& [identity, worker] : workers_) worker.context->TryCancel();
  }

  grpc::Status Attach(grpc::ServerContext* context, Stream* stream) override {
    internal::v1::AttachRequest message;
    if (!stream->Read(&message)) return grpc::Status::OK;
    const std::string identity = message.hello().identity();
    {
      absl::MutexLock lock(&mutex_);
      workers_[identity] = {.stream = stream, .context = context, .hello = message.hello()};
    }
    internal::v1::AttachResponse welcome;
    welcome.mutable_welcome()->set_cluster_id("of one test");
    welcome.mutable_welcome()->set_term(kTerm);
    welcome.mutable_welcome()->set_protocol(1);
    welcome.mutable_welcome()->set_token_key(std::string(32, 'k'));
    rpc::Encode(absl::Seconds(1), welcome.mutable_welcome()->mutable_heartbeat_interval());
    stream->Write(welcome);
    while (stream->Read(&message)) {
      if (message.has_inventory() && message.inventory().last()) {
        internal::v1::AttachResponse verdict;
        verdict.mutable_inventory_verdict()->set_last(true);
        stream->Write(verdict);
      }
      absl::MutexLock lock(&mutex_);
      Worker& worker = workers_[identity];
      worker.brought_inventory |= message.has_inventory() && message.inventory().last();
      worker.reaches_all |= message.has_peers() && message.peers().epoch() == kEpoch &&
                            message.peers().unreached().empty();
      if (message.has_step_report()) worker.reports.push_back(message.step_report());
    }
    absl::MutexLock lock(&mutex_);
    workers_.erase(identity);
    return grpc::Status::OK;
  }

  static std::string IdentityOf(int rank) { return StrCat("worker-", rank); }

 private:
  struct Worker {
    Stream* stream = nullptr;
    grpc::ServerContext* context = nullptr;
    internal::v1::Hello hello = {};
    bool brought_inventory = false;
    bool reaches_all = false;
    std::vector<internal::v1::StepReport> reports = {};
  };

  int CountIf(const std::function<bool(const Worker&)>& holds) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int count = 0;
    for (const auto& [identity, worker] : workers_) count += holds(worker) ? 1 : 0;
    return count;
  }

  internal::v1::AttachResponse Membership() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    internal::v1::AttachResponse response;
    internal::v1::Membership* membership = response.mutable_membership();
    membership->set_epoch(kEpoch);
    membership->set_term(kTerm);
    internal::v1::MeshMembership* mesh = membership->add_meshes();
    mesh->set_mesh_id("default");
    mesh->set_mesh_revision(1);
    v1::MeshAxis* axis = mesh->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      const internal::v1::Hello& hello = workers_.at(IdentityOf(rank)).hello;
      mesh->add_identities(hello.identity());
      internal::v1::LiveWorker* worker = membership->add_workers();
      worker->set_identity(hello.identity());
      worker->set_incarnation(hello.incarnation());
      for (const v1::Endpoint& endpoint : hello.endpoints()) {
        worker->add_endpoints()->set_address(WithPort(endpoint.address(), hello.exchange_port()));
      }
    }
    membership->set_snapshot(true);
    membership->set_last(true);
    return response;
  }

  absl::Mutex mutex_;
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mutex_);  // by identity
};

// By how data goes between the workers.
class MismatchTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    SHARDMESH_ASSERT_OK_AND_ASSIGN(
        server_, rpc::ServerLifecycle::Start(
                     {}, {{internal::v1::AttachService::service_full_name(), &coordinator_}}));
    folder_ = MakeTestFolder("mismatch");
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::string identity = OwnPlansCoordinator::IdentityOf(rank);
      client::ProcessOptions options;
      options.command = {SHARDMESH_BINARY_DIR "/shardmesh-worker",
                         "--coordinator=" + server_->address(), "--listen=127.0.0.1:0",
                         "--identity=" + identity, StrCat("--transport=", GetParam())};
      options.log_path = StrCat(folder_, "/", identity, ".log");
      options.parent_end_signal = SIGKILL;
      SHARDMESH_ASSERT_OK_AND_ASSIGN(client::ChildProcess worker,
                                     client::ChildProcess::Start(options));
      workers_.push_back(std::move(worker));
    }
    ASSERT_TRUE(coordinator_.AwaitReady());
  }
  void TearDown() override {
    for (const client::ChildProcess& worker : workers_) {
      client::SendSignal(worker.id(), SIGKILL).IgnoreError();
      client::WaitUntilGone(worker.id(), absl::Now() + kStartTimeout);
    }
    coordinator_.EndStreams();
    if (server_ != nullptr) server_->Drain(absl::Now() + kStartTimeout);
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  // The elements 0, 1, 2, ... of either type, which has 4 bytes.
  template <typename Element>
  static std::string Bytes() {
    std::vector<Element> elements(kRanks * kRows * kColumns);
    std::iota(elements.begin(), elements.end(), Element{0});
    return {reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(Element)};
  }

  // The sum of all ranks' rows, as a step for a rank whose elements are of this type.
  static internal::v1::AttachResponse SumStep(int64_t sequence, Dtype dtype) {
    const Mesh mesh = *Mesh::Parse(StrCat("x=", kRanks));
    const ValueDescriptor rows{.dtype = dtype,
                               .shape = {kRanks * kRows, kColumns},
                               .spec = PartitionSpec({SpecEntry::Axis("x"), SpecEntry::None()})};
    const Program sum{.operand_count = 1,
                      .ops = {CollectiveOp{.kind = CollectiveKind::kAllReduce, .axes = {"x"}}},
                      .outputs = {1}};
    const Plan plan =
        *PlanProgram(sum, {&rows, 1}, {.mesh_id = "default", .mesh_revision = 1, .mesh = mesh});
    internal::v1::AttachResponse response;
    internal::v1::RunStep* step = response.mutable_run_step();
    step->set_sequence(sequence);
    step->set_epoch(kEpoch);
    step->set_term(kTerm);
    step->set_plan(rpc::PlanBytes(plan));
    step->set_plan_hash(Sha256(step->plan()));
    rpc::Encode(Literal{.dtype = dtype,
                        .shape = rows.shape,
                        .bytes = dtype == Dtype::kF32 ? Bytes<float>() : Bytes<int32_t>()},
                step->add_operands()->mutable_literal());
    const ValueDescriptor& output = plan.values[plan.outputs[0]];
    step->add_outputs(rpc::ArrayDescriptorBytes({.array_id = StrCat("sum-", sequence),
                                                 .dtype = dtype,
                                                 .shape = output.shape,
                                                 .spec = output.spec,
                                                 .mesh_id = "default",
                                                 .mesh_revision = 1,
                                                 .mesh = mesh,
                                                 .cut_points = {}}));
    rpc::Encode(kStepTimeout, step->mutable_timeout());
    step->set_return_literals(true);
    return response;
  }

  OwnPlansCoordinator coordinator_;
  std::unique_ptr<rpc::ServerLifecycle> server_;
  std::string folder_;
  std::vector<client::ChildProcess> workers_;
};

INSTANTIATE_TEST_SUITE_P(Over, MismatchTest, ::testing::Values("stream", "shm"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(MismatchTest, AnotherElementTypeOnOneRankFailsOnAllWithBothSignatures) {
  int64_t sequence = 0;
  for (int odd = 0; odd < kRanks; ++odd) {
    SCOPED_TRACE(StrCat("rank ", odd, " has whole numbers"));
    ++sequence;
    const absl::Time begun = absl::Now();
    for (int rank = 0; rank < kRanks; ++rank) {
      coordinator_.Send(rank, SumStep(sequence, rank == odd ? Dtype::kI32 : Dtype::kF32));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const internal::v1::StepReport report = coordinator_.AwaitReport(rank);
      EXPECT_EQ(report.sequence(), sequence);
      EXPECT_EQ(report.outcome(), internal::v1::StepReport::OUTCOME_FAILED);
      const absl::Status error = rpc::Decode(report.error());
      EXPECT_THAT(error,
                  StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kCollectiveMismatch));
      EXPECT_THAT(std::string(error.message()),
                  AllOf(HasSubstr(StrCat("step ", sequence)), HasSubstr("all-reduce (sum) of F32["),
                        HasSubstr("all-reduce (sum) of I32["), HasSubstr(StrCat("rank ", odd))));
    }
    EXPECT_LT(absl::Now() - begun, kNamedWithin);

    // The same workers, all with one type.
    ++sequence;
    for (int rank = 0; rank < kRanks; ++rank) {
      coordinator_.Send(rank, SumStep(sequence, Dtype::kF32));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const internal::v1::StepReport report = coordinator_.AwaitReport(rank);
      EXPECT_EQ(report.sequence(), sequence);
      ASSERT_EQ(report.outcome(), internal::v1::StepReport::OUTCOME_DONE)
          << report.error().message();
      ASSERT_EQ(report.outputs_size(), 1);
      if (rank != 0) continue;  // rank 0 has the first replica, hence sends it
      const std::vector<float> sums = FloatsOf(report.outputs(0).data());
      ASSERT_EQ(sums.size(), static_cast<size_t>(kRows * kColumns));
      for (size_t i = 0; i < sums.size(); ++i) {
        // i + (i + n) + (i + 2n) with n elements in a tile
        ASSERT_EQ(sums[i], static_cast<float>(3 * i + 3 * sums.size())) << i;
      }
    }
  }
}

}  // namespace
}  // namespace shardmesh::test
