// Operations as clients see them: puts and operations of other kinds in one list.
#include "server/calls/all_operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "process/random_bytes.h"
#include "server/state/array_registry.h"
#include "server/steps/sequencer.h"
#include "server/store/local_store.h"
#include "status/reason.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SilentTransport final : public StepTransport {
 public:
  std::optional<Participant> Start(const WorkRef&, const EncodedStepPtr&) override { return {}; }
  void Commit(const WorkRef&) override {}
  void Abort(const WorkRef&, const absl::Status&) override {}
};

class AllOperationsTest : public ::testing::Test {
 protected:
  AllOperationsTest()
      : registry_(*ArrayRegistry::Open(store_.get(), &clock_, [](const auto&, const auto&) {})),
        sessions_(&clock_, [](const EndedSession&) {}),
        operations_(&clock_, &sessions_),
        session_(*sessions_.Open(caller_, "", absl::Hours(1))) {
    sequencer_ = std::make_unique<Sequencer>(&clock_, &transport_,
                                             Sequencer::Options{.term = registry_->term()});
    sequencer_->WorkerAttached("w0", 1);
    transfers_ = std::make_unique<Transfers>(&clock_, registry_.get(), &sessions_, sequencer_.get(),
                                             &operations_);
    calls_ = std::make_unique<AllOperations>(transfers_.get(), &operations_, &sessions_);
  }
  ~AllOperationsTest() override { sequencer_.reset(); }

  std::string BeginPut() {
    auto items = std::make_shared<std::vector<PutItem>>(1);
    items->front().definition.descriptor = {.array_id = RandomId(),
                                            .dtype = Dtype::kF32,
                                            .shape = {8, 4},
                                            .spec = PartitionSpec({SpecEntry::Axis("x")}),
                                            .mesh_id = "m",
                                            .mesh_revision = 3,
                                            .mesh = *Mesh::Parse("x=1"),
                                            .cut_points = {}};
    const auto begun = transfers_->Begin(session_.id, "m", {"w0"}, std::move(items));
    EXPECT_THAT(begun, IsOk());
    return begun.value_or("");
  }
  std::string BeginSave() {
    auto id = std::make_shared<std::string>();
    const auto begun = operations_.Begin(OperationKind::kSave, "save", session_.id, session_.number,
                                         [this, id](const absl::Status& reason) {
                                           operations_.End(*id, reason);
                                           return absl::OkStatus();
                                         });
    EXPECT_THAT(begun, IsOk());
    *id = begun.value_or("");
    return *id;
  }
  v1::Operation Get(const std::string& id) {
    v1::Operation operation;
    EXPECT_THAT(calls_->GetOperation(id, &operation), IsOk());
    return operation;
  }
  // The numbers of all listed operations, gathered in pages.
  std::vector<int64_t> List(int page_size, const std::vector<v1::OperationState>& states = {}) {
    v1::ListOperationsRequest request;
    request.set_page_size(page_size);
    for (const v1::OperationState state : states) request.add_states(state);
    std::vector<int64_t> numbers;
    for (int pages = 0; pages < 100; ++pages) {
      v1::ListOperationsResponse response;
      EXPECT_THAT(calls_->ListOperations(request, &response), IsOk());
      EXPECT_LE(response.operations_size(), page_size);
      for (const v1::Operation& operation : response.operations()) {
        numbers.push_back(operation.number());
      }
      if (response.next_page_token().empty()) return numbers;
      request.set_page_token(response.next_page_token());
    }
    ADD_FAILURE() << "the list has no end";
    return numbers;
  }
  absl::Status Cancel(const std::string& id, const std::string& session_id,
                      v1::Operation* operation) {
    v1::CancelOperationRequest request;
    request.set_operation_id(id);
    request.set_session_id(session_id);
    return calls_->CancelOperation(request, caller_, operation);
  }

  const rpc::Caller caller_{.name = "host:10.0.0.1"};
  test::FakeClock clock_;
  const std::unique_ptr<Store> store_ = CreateMemoryStore();
  SilentTransport transport_;
  const std::unique_ptr<ArrayRegistry> registry_;
  SessionTable sessions_;
  OperationTable operations_;
  const Session session_;
  std::unique_ptr<Transfers> transfers_;
  std::unique_ptr<Sequencer> sequencer_;
  std::unique_ptr<AllOperations> calls_;
};

TEST_F(AllOperationsTest, ShowsWhatABarNeeds) {
  const std::string put = BeginPut();
  const std::string save = BeginSave();
  EXPECT_EQ(Get(put).kind(), v1::OPERATION_KIND_PUT);
  EXPECT_EQ(Get(put).total_bytes(), 8 * 4 * 4);
  EXPECT_EQ(Get(save).kind(), v1::OPERATION_KIND_SAVE);
  EXPECT_FALSE(Get(save).has_time_left());
  operations_.SetTotal(save, 4, 4000);
  clock_.Advance(absl::Seconds(1));
  operations_.Add(save, 1, 1000);
  EXPECT_NEAR(static_cast<double>(Get(save).bytes_per_second()), 1000, 10);
  ASSERT_TRUE(Get(save).has_time_left());
  EXPECT_NEAR(static_cast<double>(Get(save).time_left().seconds()), 3, 1);
  transfers_->TileStaged(put, "worker-0", 64);
  EXPECT_GT(Get(put).bytes_per_second(), 0);
  EXPECT_TRUE(Get(put).has_time_left());
  operations_.End(save, absl::OkStatus());
  EXPECT_EQ(Get(save).state(), v1::OPERATION_STATE_DONE);
  EXPECT_FALSE(Get(save).has_time_left());
}

TEST_F(AllOperationsTest, PutsAndOthersAreInOneOrderWhateverThePageSize) {
  std::vector<int64_t> all;
  std::vector<int64_t> running;
  // Runs of one kind longer than a page, and single ones between them.
  const std::string kinds = "sppsspppppsspspssssssp";
  for (const char kind : kinds) {
    const std::string id = kind == 'p' ? BeginPut() : BeginSave();
    all.push_back(static_cast<int64_t>(all.size()) + 1);
    EXPECT_EQ(Get(id).number(), all.back());
    if (kind == 's' && all.size() % 3 == 0) {
      operations_.End(id, absl::OkStatus());
    } else {
      running.push_back(all.back());
    }
  }
  for (const int page_size : {1, 2, 3, 4, 7, 21, 22, 23, 1000}) {
    EXPECT_EQ(List(page_size), all) << page_size;
    EXPECT_EQ(List(page_size, {v1::OPERATION_STATE_RUNNING}), running) << page_size;
  }
}

TEST_F(AllOperationsTest, KnowsTheWorkersOfBothKinds) {
  const std::string put = BeginPut();
  EXPECT_THAT(calls_->WorkersOf(put).taking_part, ElementsAre("w0"));
  EXPECT_THAT(calls_->WorkersOf(put).waiting_for, ElementsAre()) << "the client sends the tiles";
  transfers_->Commit(put, "", absl::InfiniteFuture(), [](const auto&) {});
  EXPECT_THAT(calls_->WorkersOf(put).waiting_for, ElementsAre("w0"));

  const std::string save = BeginSave();
  EXPECT_THAT(calls_->WorkersOf(save).waiting_for, ElementsAre());
  operations_.SetWorkers(save, [] { return OperationWorkers{.waiting_for = {"w1"}}; });
  EXPECT_THAT(calls_->WorkersOf(save).waiting_for, ElementsAre("w1"));
}

TEST_F(AllOperationsTest, CancelsBothKindsForTheirOwnerOnly) {
  const Session other = *sessions_.Open(caller_, "", absl::Hours(1));
  v1::Operation operation;
  for (const std::string& id : {BeginPut(), BeginSave()}) {
    EXPECT_THAT(Cancel(id, other.id, &operation),
                StatusIs(absl::StatusCode::kPermissionDenied, Reason::kNotOwner));
    EXPECT_THAT(Cancel(id, "nobody", &operation),
                StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
    EXPECT_EQ(Get(id).state(), v1::OPERATION_STATE_RUNNING);
    EXPECT_THAT(Cancel(id, session_.id, &operation), IsOk());
    EXPECT_EQ(operation.state(), v1::OPERATION_STATE_CANCELLED);
    EXPECT_THAT(Cancel(id, session_.id, &operation), IsOk());
  }
  EXPECT_THAT(Cancel("nothing", session_.id, &operation),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

TEST_F(AllOperationsTest, AnAdministratorCancelsOperationsOfOthers) {
  const rpc::Caller admin{.name = "host:10.0.0.9"};
  const std::string repair = *operations_.Begin(OperationKind::kRepair, "repair", "", 0, nullptr);
  v1::Operation operation;
  for (const std::string& id : {BeginPut(), BeginSave()}) {
    ASSERT_THAT(calls_->ForceCancelOperation(id, admin, &operation), IsOk());
    EXPECT_EQ(operation.state(), v1::OPERATION_STATE_CANCELLED);
    EXPECT_THAT(operation.error().message(), HasSubstr("host:10.0.0.9"));
  }
  EXPECT_THAT(calls_->ForceCancelOperation(repair, admin, &operation),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(calls_->ForceCancelOperation("nothing", admin, &operation),
              StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

}  // namespace
}  // namespace shardmesh::server
