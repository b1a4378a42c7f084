// Replacing workers while they come back, without gRPC and with a fake clock.
#include "server/calls/worker_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/codec/spec_codec.h"
#include "server/state/request_memory.h"
#include "server/store/local_store.h"
#include "sharding/mesh_definition.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Nothing follows the definitions here: the membership changes only by the calls.
class WorkerReplacementTest : public testing::Test {
 protected:
  WorkerReplacementTest() {
    members_.AddListener([this](const MembershipEvent& event) {
      if (event.kind == MembershipEvent::Kind::kRanksMoved && moved_) moved_();
    });
  }

  uint64_t Attach(const std::string& identity, uint64_t incarnation = 1) {
    const auto attachment = members_.Attach({.identity = identity,
                                             .incarnation = incarnation,
                                             .build_version = "1",
                                             .endpoints = {"10.0.0.1:1"},
                                             .host = "host"});
    EXPECT_THAT(attachment, IsOk());
    return attachment.ok() ? *attachment : 0;
  }
  // A mesh whose ranks these workers were assigned.
  void Define(const std::string& name, const std::vector<std::string>& workers) {
    v1::EntryValue value;
    rpc::Encode(MeshDefinition{.mesh = *Mesh::Parse(StrCat("x=", workers.size())), .workers = {}},
                value.mutable_mesh());
    Wait([&](DefinitionStore::Callback done) {
      definition_store_->Create({.request_id = "", .name = name}, value.SerializeAsString(),
                                std::move(done));
    });
    Wait([&](DefinitionStore::Callback done) {
      definition_store_->Assign(name, workers, std::move(done));
    });
    ASSERT_THAT(members_.AddMesh(name, std::ssize(workers), workers), IsOk());
  }
  void Wait(const std::function<void(DefinitionStore::Callback)>& change) {
    absl::Notification done;
    change([&done](const auto& written) {
      EXPECT_THAT(written.status(), IsOk());
      done.Notify();
    });
    done.WaitForNotification();
  }
  absl::Status Replace(const std::string& identity, const std::string& replacement) {
    v1::ReplaceWorkerRequest request;
    request.set_identity(identity);
    request.set_replacement(replacement);
    v1::ReplaceWorkerResponse response;
    absl::Status ended;
    absl::Notification done;
    calls_.ReplaceWorker(&request, &response, [&](const absl::Status& status) {
      ended = status;
      done.Notify();
    });
    done.WaitForNotification();
    return ended;
  }
  // By the membership and by the definitions, which agree.
  std::vector<std::string> RanksOf(const std::string& mesh_id) {
    const std::vector<std::string> ranks = members_.view()->FindMesh(mesh_id)->identities;
    EXPECT_EQ(WorkersOf(**definition_store_->shared_state()->Find(DefinitionKind::kMesh, mesh_id)),
              ranks);
    return ranks;
  }

  test::FakeClock clock_;
  const std::unique_ptr<Store> store_ = CreateMemoryStore({.history = DefinitionHistory()});
  const std::unique_ptr<RequestMemory> requests_ = *RequestMemory::Open(store_.get(), &clock_);
  const std::unique_ptr<DefinitionStore> definition_store_ =
      *DefinitionStore::Open(store_.get(), &clock_, requests_.get());
  Recovery recovery_{&clock_, absl::Seconds(60)};
  std::function<void()> moved_;  // called when ranks of a mesh have moved
  Membership members_{&clock_};
  const WorkerCalls calls_{&clock_,
                           &members_,
                           definition_store_.get(),
                           /*registry=*/nullptr,
                           &recovery_,
                           [] { return std::vector<Sequencer::LiveWork>(); }};
};

TEST_F(WorkerReplacementTest, TheOldWorkerServesNoRankOnceTheCallHasEnded) {
  const uint64_t old = Attach("old");
  Attach("new");
  Define("m", {"old"});
  Define("n", {"old"});
  members_.Detach(old, "it is gone");
  ASSERT_THAT(Replace("old", "new"), IsOk());
  EXPECT_THAT(members_.RanksOf("old"), IsEmpty());
  EXPECT_THAT(RanksOf("m"), ElementsAre("new"));
  EXPECT_THAT(RanksOf("n"), ElementsAre("new"));
  EXPECT_THAT(members_.Forget("old"), IsOk());
}

TEST_F(WorkerReplacementTest, TheCoordinatorReplacesAWorkerAsACallDoes) {
  const uint64_t old = Attach("old");
  Attach("new");
  Define("m", {"old"});
  std::vector<absl::StatusCode> ended;
  absl::Notification refused;
  calls_.ReplaceWorker("old", "new", [&](const absl::Status& status) {
    ended.push_back(status.code());
    refused.Notify();
  });
  refused.WaitForNotification();
  EXPECT_THAT(ended, ElementsAre(absl::StatusCode::kFailedPrecondition)) << "it is attached";
  members_.Detach(old, "it is gone");
  absl::Notification done;
  calls_.ReplaceWorker("old", "new", [&](const absl::Status& status) {
    ended.push_back(status.code());
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_THAT(ended, ElementsAre(absl::StatusCode::kFailedPrecondition, absl::StatusCode::kOk));
  EXPECT_THAT(RanksOf("m"), ElementsAre("new"));
}

TEST_F(WorkerReplacementTest, SwappedNamesAreToldApart) {
  const uint64_t old = Attach("old");
  Attach("spare");
  Define("m", {"old"});
  EXPECT_THAT(std::string(Replace("old", "spare").message()),
              HasSubstr("worker \"old\" is attached and keeps its ranks; stop it first"));
  members_.Detach(old, "it is gone");
  const absl::Status swapped = Replace("spare", "old");
  EXPECT_THAT(swapped, CarriesFacts(Reason::kWorkerAttached, {{fact::kIdentity, "spare"}}));
  EXPECT_THAT(std::string(swapped.message()),
              HasSubstr("worker \"spare\" is attached and serves no rank; name the lost worker "
                        "first, and then its replacement"));
  EXPECT_THAT(RanksOf("m"), ElementsAre("old"));
}

TEST_F(WorkerReplacementTest, AReplacementThatWasJustLostMayAttachAgain) {
  const uint64_t old = Attach("old");
  const uint64_t spare = Attach("spare");
  Define("m", {"old"});
  members_.Detach(old, "it is gone");
  members_.Detach(spare, "its ranks have moved");
  EXPECT_THAT(Replace("old", "spare"),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  clock_.Advance(absl::Seconds(11));
  EXPECT_THAT(Replace("old", "spare"), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  Attach("spare");
  EXPECT_THAT(Replace("old", "spare"), IsOk());
}

TEST_F(WorkerReplacementTest, AWorkerThatMayStillAttachAfterTheStartKeepsItsRanks) {
  Attach("new");
  Define("m", {"old"});
  recovery_.Begin({"old"});
  EXPECT_THAT(Replace("old", "new"), StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  EXPECT_THAT(Replace("old", "new"), CarriesFacts(Reason::kRecovering, {{fact::kIdentity, "old"}}));
  EXPECT_THAT(RanksOf("m"), ElementsAre("old"));
  clock_.Advance(absl::Seconds(60));
  Attach("new");  // it was silent for that long
  EXPECT_THAT(Replace("old", "new"), IsOk()) << "the old worker had its time";
  EXPECT_THAT(RanksOf("m"), ElementsAre("new"));
}

TEST_F(WorkerReplacementTest, AWorkerThatComesBackMeanwhileKeepsTheRanksThatItStillHas) {
  const uint64_t old = Attach("old");
  Attach("new");
  Define("m", {"old"});
  Define("n", {"old"});
  members_.Detach(old, "it is gone");
  moved_ = [this] { Attach("old", 2); };
  EXPECT_THAT(Replace("old", "new"),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kWorkerAttached));
  EXPECT_THAT(RanksOf("m"), ElementsAre("new")) << "moved before it came back";
  EXPECT_THAT(RanksOf("n"), ElementsAre("old"));
}

}  // namespace
}  // namespace shardmesh::server
