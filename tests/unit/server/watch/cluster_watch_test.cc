// Watches of the cluster over gRPC: their start, their order, their limits, and who is cut off.
#include "server/watch/cluster_watch.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/time/clock.h"
#include "process/clock.h"
#include "rpc/codec/status.h"
#include "server/state/cluster_changes.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "tests/testing/eventually.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::EndsWith;

class WatchService final : public v1::ClusterService::CallbackService {
 public:
  WatchService(ClusterChanges* changes, const WatchLimits& limits)
      : watches_(changes, limits, [](v1::WatchStarted* to) {
          to->set_term(3);
          to->set_epoch(7);
          to->set_revision(9);
        }) {}

  grpc::ServerWriteReactor<v1::WatchClusterResponse>* WatchCluster(
      grpc::CallbackServerContext* context, const v1::WatchClusterRequest* request) override {
    return watches_.Open(context, *request);
  }
  void EndWatches() { watches_.EndAll(); }

 private:
  ClusterWatches watches_;
};

class ClusterWatchTest : public ::testing::Test {
 protected:
  explicit ClusterWatchTest(const WatchLimits& limits = {.max_watches = 3,
                                                         .max_watches_per_caller = 2})
      : service_(&changes_, limits) {
    // Over a socket: within a process a long message is not copied, and ThreadSanitizer does not
    // see how gRPC hands it on.
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::ClusterService::NewStub(
        grpc::CreateChannel(StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  }
  ~ClusterWatchTest() override {
    service_.EndWatches();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  }

  // A watch that has read its confirmation.
  struct Watch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::WatchClusterResponse>> stream;
    v1::WatchClusterResponse last;

    ~Watch() {
      if (stream == nullptr) return;
      context.TryCancel();
      static_cast<void>(stream->Finish());
    }
    bool Read() { return stream->Read(&last); }
    absl::Status End() {
      while (Read()) {
      }
      const absl::Status status = rpc::FromGrpc(stream->Finish());
      stream = nullptr;
      return status;
    }
  };
  std::unique_ptr<Watch> Begin(const std::vector<v1::ClusterSubject>& subjects = {}) {
    auto watch = std::make_unique<Watch>();
    v1::WatchClusterRequest request;
    for (const v1::ClusterSubject subject : subjects) request.add_subjects(subject);
    watch->stream = stub_->WatchCluster(&watch->context, request);
    return watch;
  }
  absl::Status EndOf(const std::vector<v1::ClusterSubject>& subjects) {
    return Begin(subjects)->End();
  }

  RealClock clock_;
  ClusterChanges changes_{&clock_};
  WatchService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ClusterService::Stub> stub_;
};

TEST_F(ClusterWatchTest, ConfirmsItsStartAndThenTellsEachChangeInOrder) {
  const auto watch = Begin();
  ASSERT_TRUE(watch->Read());
  EXPECT_EQ(watch->last.started().term(), 3);
  EXPECT_EQ(watch->last.started().epoch(), 7);
  EXPECT_EQ(watch->last.started().revision(), 9);
  EXPECT_FALSE(watch->last.has_time());

  changes_.Add(WorkerChange{.kind = WorkerChange::Kind::kLost,
                            .identity = "w1",
                            .incarnation = 5,
                            .epoch = 8,
                            .reason = "no heartbeat"});
  changes_.Add(ArrayChange{.array_id = "a", .mesh_id = "m"});
  changes_.Add(NameChange{.name = "n", .array_id = "a", .version = 10});
  changes_.Add(NameChange{.name = "n", .array_id = "", .version = 11});
  changes_.Add(ArrayChange{.array_id = "a", .mesh_id = "m", .is_deleted = true});

  ASSERT_TRUE(watch->Read());
  EXPECT_EQ(watch->last.worker().kind(), v1::WORKER_CHANGE_KIND_LOST);
  EXPECT_EQ(watch->last.worker().identity(), "w1");
  EXPECT_EQ(watch->last.worker().incarnation(), 5u);
  EXPECT_EQ(watch->last.worker().epoch(), 8);
  EXPECT_EQ(watch->last.worker().reason(), "no heartbeat");
  EXPECT_TRUE(watch->last.has_time());
  ASSERT_TRUE(watch->Read());
  EXPECT_EQ(watch->last.array().kind(), v1::ARRAY_CHANGE_KIND_CREATED);
  EXPECT_EQ(watch->last.array().array_id(), "a");
  EXPECT_EQ(watch->last.array().mesh_id(), "m");
  ASSERT_TRUE(watch->Read());
  EXPECT_EQ(watch->last.name().kind(), v1::NAME_CHANGE_KIND_SET);
  EXPECT_EQ(watch->last.name().array_id(), "a");
  EXPECT_EQ(watch->last.name().version(), 10);
  ASSERT_TRUE(watch->Read());
  EXPECT_EQ(watch->last.name().kind(), v1::NAME_CHANGE_KIND_DELETED);
  EXPECT_EQ(watch->last.name().version(), 11);
  ASSERT_TRUE(watch->Read());
  EXPECT_EQ(watch->last.array().kind(), v1::ARRAY_CHANGE_KIND_DELETED);
}

TEST_F(ClusterWatchTest, TellsOnlyOfTheSubjectsThatWereAskedFor) {
  const auto watch = Begin({v1::CLUSTER_SUBJECT_NAMES});
  ASSERT_TRUE(watch->Read());
  changes_.Add(WorkerChange{.identity = "w1", .reason = ""});
  changes_.Add(ArrayChange{.array_id = "a", .mesh_id = "m"});
  changes_.Add(NameChange{.name = "n", .array_id = "a", .version = 10});
  ASSERT_TRUE(watch->Read());
  EXPECT_EQ(watch->last.name().name(), "n");
  for (const int subject : {0, 9}) {
    EXPECT_THAT(EndOf({static_cast<v1::ClusterSubject>(subject)}),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField))
        << subject;
  }
}

TEST_F(ClusterWatchTest, AChangeBehindTheConfirmationIsNotMissed) {
  constexpr int kChanges = 2'000;
  std::thread changer([this] {
    while (!changes_.is_watched()) absl::SleepFor(absl::Microseconds(50));
    for (int i = 1; i <= kChanges; ++i) {
      changes_.Add(NameChange{.name = "n", .array_id = "a", .version = i});
    }
  });
  const auto watch = Begin();
  ASSERT_TRUE(watch->Read());
  ASSERT_TRUE(watch->last.has_started()) << "the confirmation is first";
  for (int i = 1; i <= kChanges; ++i) {
    ASSERT_TRUE(watch->Read());
    ASSERT_EQ(watch->last.name().version(), i);
  }
  changer.join();
}

class LimitedInAllTest : public ClusterWatchTest {
 protected:
  LimitedInAllTest() : ClusterWatchTest({.max_watches = 1, .max_watches_per_caller = 2}) {}
};

TEST_F(LimitedInAllTest, WatchesAreLimitedInAll) {
  const auto first = Begin();
  ASSERT_TRUE(first->Read());
  const absl::Status refused = EndOf({});
  EXPECT_THAT(refused, test::CarriesFacts(Reason::kOverloaded, {{fact::kLimit, 1}}));
  EXPECT_THAT(std::string(refused.message()), EndsWith("with more --max-watches"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
}

TEST_F(ClusterWatchTest, WatchesAreLimitedForEachCaller) {
  {
    const auto first = Begin();
    const auto second = Begin();
    ASSERT_TRUE(first->Read());
    ASSERT_TRUE(second->Read());
    const absl::Status refused = EndOf({});
    EXPECT_THAT(refused, test::CarriesFacts(Reason::kOverloaded, {{fact::kLimit, 2}}));
    EXPECT_THAT(std::string(refused.message()), EndsWith("with more --max-watches-per-caller"));
    EXPECT_TRUE(RetryDelayOf(refused).has_value());
  }
  EXPECT_TRUE(test::Eventually([this] {
    const auto watch = Begin();
    return watch->Read();
  })) << "there is room again";
}

TEST_F(ClusterWatchTest, EndsWithTheCoordinatorAndSaysWhenToTryAgain) {
  const auto watch = Begin();
  ASSERT_TRUE(watch->Read());
  service_.EndWatches();
  const absl::Status ended = watch->End();
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kUnavailable, Reason::kNotServing));
  EXPECT_TRUE(RetryDelayOf(ended).has_value());
}

TEST_F(ClusterWatchTest, AWatcherThatDoesNotReadIsCutOffAndAnotherGoesOn) {
  const auto slow = Begin();
  ASSERT_TRUE(slow->Read());
  const auto reading = Begin();
  ASSERT_TRUE(reading->Read());
  const std::string name(1000, 'n');
  // More than the stream, the outbox and the feed hold.
  for (int i = 1; i <= 40'000; ++i) {
    changes_.Add(NameChange{.name = name, .array_id = "a", .version = i});
    ASSERT_TRUE(reading->Read()) << "one that reads goes on: " << reading->End();
    ASSERT_EQ(reading->last.name().version(), i);
  }
  const absl::Time start = absl::Now();
  const absl::Status ended = slow->End();
  if (absl::IsResourceExhausted(ended)) {
    EXPECT_THAT(ended, test::CarriesFacts(Reason::kSlowReader, {{fact::kLimit, 16 << 20}}));
  } else {
    EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_F(ClusterWatchTest, NobodyIsToldOnceTheWatchIsOver) {
  EXPECT_FALSE(changes_.is_watched());
  std::vector<int64_t> versions;
  {
    const auto watch = changes_.Begin([&versions](const ClusterChangePtr& change) {
      versions.push_back(std::get<NameChange>(change->value).version);
    });
    EXPECT_TRUE(changes_.is_watched());
    changes_.Add(NameChange{.name = "n", .array_id = "a", .version = 1});
  }
  EXPECT_FALSE(changes_.is_watched());
  changes_.Add(NameChange{.name = "n", .array_id = "a", .version = 2});
  EXPECT_THAT(versions, ElementsAre(1));
}

}  // namespace
}  // namespace shardmesh::server
