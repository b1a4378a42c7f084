// A small cluster in this process: services that do what the contract says, simply, in memory.
//
// Workers take in and give out tiles; the coordinator keeps sessions, arrays, entries and
// transfers. Each can be told to fail in a way that a test is about.
#ifndef SHARDMESH_TESTS_UNIT_CLIENT_SMALL_CLUSTER_H_
#define SHARDMESH_TESTS_UNIT_CLIENT_SMALL_CLUSTER_H_

#include <grpcpp/server.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "client/remote/transfer.h"
#include "sharding/mesh.h"
#include "shardmesh/v1/array_service.grpc.pb.h"
#include "shardmesh/v1/catalog_service.grpc.pb.h"
#include "shardmesh/v1/cluster_service.grpc.pb.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "shardmesh/v1/layout_service.grpc.pb.h"
#include "shardmesh/v1/operation_service.grpc.pb.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"
#include "shardmesh/v1/session_service.grpc.pb.h"
#include "shardmesh/v1/tile_service.grpc.pb.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::client::test {

// The tokens that the small cluster gives out and accepts.
std::string PutToken(const std::string& array_id);
std::string GetToken(const std::string& array_id);

// One worker, serving on a port of its own. Thread-safe.
class SmallWorker final : public v1::TileService::Service {
 public:
  SmallWorker();
  ~SmallWorker() override;

  const std::string& address() const { return address_; }
  // Ends every call and refuses new connections.
  void Stop();

  // Fails every put with this error once it has taken so many bytes.
  void FailPutsAfter(int64_t bytes, absl::Status error);
  // The same for the next one alone.
  void FailNextPutAfter(int64_t bytes, absl::Status error);
  // From now on puts are not read on, until the worker stops or the call ends.
  void StallPuts();
  // Flips a bit in every piece that goes out.
  void CorruptGets();
  // Ends every get with UNAVAILABLE after its first piece, or after that of the tile with this
  // index in the request.
  void BreakGets(int64_t tile = 0);
  // From now on, gets send their first piece, and no more until ResumeGets.
  void StallGets();
  void ResumeGets();

  // Bytes of the tile of an array that came for a rank; nullopt if none did.
  std::optional<std::string> TileOf(const std::string& array_id, int32_t rank) const;
  int64_t gets() const;
  // Tiles whose pieces were all sent, by all gets.
  int64_t sent_tiles() const;
  // Traces of all puts and gets, without repetition.
  std::set<std::string> traces() const;
  // Waits until a put is stalled; false after a generous time.
  bool AwaitStalledPut();

  grpc::Status PutTiles(grpc::ServerContext* context,
                        grpc::ServerReader<v1::PutTilesRequest>* reader,
                        v1::PutTilesResponse* response) override;
  grpc::Status GetTiles(grpc::ServerContext* context, const v1::GetTilesRequest* request,
                        grpc::ServerWriter<v1::GetTilesResponse>* writer) override;
  grpc::Status Identify(grpc::ServerContext* context, const v1::IdentifyRequest* request,
                        v1::IdentifyResponse* response) override;

 private:
  struct Stored {
    v1::TileHeader header;
    std::string bytes;
  };

  absl::Status Take(const v1::PutTilesRequest& request, Stored* open) ABSL_LOCKS_EXCLUDED(mutex_);
  // The bytes of a tile, or of a part of one.
  absl::StatusOr<std::string> Cut(const v1::TileSelector& selector) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<Stored> tiles_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::pair<int64_t, absl::Status>> put_failure_ ABSL_GUARDED_BY(mutex_);
  bool fails_one_put_ ABSL_GUARDED_BY(mutex_) = false;
  bool stalls_puts_ ABSL_GUARDED_BY(mutex_) = false;
  bool corrupts_gets_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<int64_t> broken_tile_ ABSL_GUARDED_BY(mutex_);  // BreakGets
  bool stalls_gets_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t gets_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t sent_tiles_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string> traces_ ABSL_GUARDED_BY(mutex_);
  absl::Notification put_is_stalled_;
  absl::Notification stopping_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// Calls of the small coordinator that a test can hold.
enum class HeldCall { kOpenSession, kBeginGet, kCommit, kStep };

// How the elements of puts come to the workers of the small coordinator. kPartlyReused: the client
// sends the tile of rank 0 only. kRead: the workers read the tensors that have sources, and the
// client sends the others.
enum class Elements { kSent, kReused, kPartlyReused, kRead };

// A coordinator of one mesh, "default", over `workers` by rank. Thread-safe.
class SmallCoordinator final : public v1::ArrayService::Service {
 public:
  SmallCoordinator(Mesh mesh, std::vector<SmallWorker*> workers);
  ~SmallCoordinator() override;

  const std::string& address() const { return address_; }
  std::vector<TransferDevice> devices() const;

  // Commits fail with this error, and watched transfers count as failed from now on.
  void FailTransfers(absl::Status error);
  // The next commits fail with these errors, each with one, and change nothing.
  void FailNextCommits(std::vector<absl::Status> errors);
  // Commits are made, and this error is all that is heard of them.
  void LoseAnswersToCommits(absl::Status error);
  // Transfers are not aborted; this error is the answer.
  void RefuseAborts(absl::Status error);
  // The next call of GetVersion fails with this error.
  void FailNextGetVersion(absl::Status error);
  // The next `count` calls of GetVersion fail with this error.
  void FailGetVersions(absl::Status error, int count);
  // The next calls of BeginPut end with these errors, in order, once they have their header.
  void FailNextPuts(std::vector<absl::Status> errors);
  // Answers calls of FindContent so from now on. Before, it does not know them, as an older build.
  void AnswerContentWith(v1::FindContentResponse response);
  // Puts get their elements so from now on.
  void GetElements(Elements elements);
  // Runs in each call of BeginPut, once it has its header.
  void InEachPut(std::function<void()> run);
  // No session that was opened so far is known any more, and nothing is pinned.
  void ForgetSessions();
  // From now on, sessions take over at most so many of the arrays of each call; nullopt: all.
  void LimitTakeOvers(std::optional<int> arrays);
  // Sessions take over none of these arrays.
  void RefuseToTake(std::set<std::string> array_ids);
  // Fails calls that are to take arrays over with LIMIT_EXCEEDED, as older builds do.
  void FailTakeOvers();
  // Arrays are not released; this error is the answer.
  void RefuseReleases(absl::Status error);
  // Calls of this kind wait until they are let go, also if their client leaves.
  void Hold(HeldCall call);
  void LetGo(HeldCall call);
  // Waits until a call of this kind is held; false after a generous time.
  bool AwaitHeld(HeldCall call);
  // Offers this copy, as that of any array, to the gets that accept one.
  void OfferSecondCopy(v1::SecondCopy copy);
  // Runs once, when BeginGet was asked and has not looked for the array yet.
  void BeforeNextGet(std::function<void()> run);
  // Ends each watch of an operation with this error after the first report.
  void FailWatches(absl::Status error);
  // The array of the name wants two replicas. The operation `copy`, which does not end, copies it
  // and others. The array becomes complete when a watch of the operation begins. `reports_on`: the
  // watch reports until its call ends; otherwise it reports once.
  void CopyWhileWatched(const std::string& name, bool reports_on);
  // Points the name to the array of another name.
  void MoveName(const std::string& name, const std::string& to);
  // The next reports of gets end with these errors, in order: after their first message, or with
  // `at_result` after the message with the result.
  void EndNextReports(std::vector<absl::Status> errors, bool at_result = false);
  // The messages of all reports of gets so far, by call.
  std::vector<std::vector<v1::ReportGetRequest>> get_reports() const;
  // Watches of the cluster report these; a watch ends only with its call.
  void ReportChanges(std::vector<v1::WatchClusterResponse> changes);
  // The next call of ForgetWorker forgets the worker, and this error is all that is heard of it.
  void LoseNextAnswerToForget(absl::Status error);
  // Answers to batches of questions.
  void AnswerBatchesWith(v1::BatchResolveSpecsResponse response);
  // All steps fail with this error from now on.
  void FailSteps(absl::Status error);
  // Forgets the plans of all programs that clients have sent. Before the first call, steps may have
  // any hash.
  void ForgetPlans();
  // Programs that calls had so far.
  int64_t programs_sent() const;

  // Calls of GetVersion so far.
  int version_calls() const;
  int64_t opened_sessions() const;
  int64_t open_sessions() const;
  int64_t aborted_transfers() const;
  // The error of the last abort; OK: it had none.
  absl::Status last_abort() const;
  // Calls of BeginGet that were answered with an array.
  int64_t answered_gets() const;
  bool AwaitAnsweredGets(int64_t count);
  // Ids of arrays that a session pins.
  std::set<std::string> pinned_arrays() const;
  // Ids of arrays that sessions have taken over.
  std::set<std::string> taken_arrays() const;
  // Calls of RenewSession so far that listed arrays to take over.
  int64_t take_over_calls() const;
  // Ids of arrays whose release was asked for.
  std::set<std::string> released_arrays() const;
  // Traces of all calls of arrays, without repetition.
  std::set<std::string> traces() const;
  // Of all calls of BeginPut, in order.
  std::vector<std::string> put_request_ids() const;
  // Tensors of all calls of FindContent so far.
  int64_t content_questions() const;
  // PutTensor.content of all tensors that had it, in order.
  std::vector<v1::TensorContent> claims() const;
  // BeginPutHeader.checkpoint of each put, in their order.
  std::vector<std::string> put_checkpoints() const;
  // Waits until sessions were renewed so often; false after a generous time.
  bool AwaitRenewals(int64_t count);

  grpc::Status BeginPut(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::BeginPutResponse, v1::BeginPutRequest>* stream) override;
  grpc::Status FindContent(grpc::ServerContext* context, const v1::FindContentRequest* request,
                           v1::FindContentResponse* response) override;
  grpc::Status CommitTransfer(grpc::ServerContext* context,
                              const v1::CommitTransferRequest* request,
                              v1::CommitTransferResponse* response) override;
  grpc::Status AbortTransfer(grpc::ServerContext* context, const v1::AbortTransferRequest* request,
                             v1::AbortTransferResponse* response) override;
  grpc::Status BeginGet(grpc::ServerContext* context, const v1::BeginGetRequest* request,
                        v1::BeginGetResponse* response) override;
  grpc::Status ReleaseArrays(grpc::ServerContext* context, const v1::ReleaseArraysRequest* request,
                             v1::ReleaseArraysResponse* response) override;
  grpc::Status DescribeArray(grpc::ServerContext* context, const v1::DescribeArrayRequest* request,
                             v1::DescribeArrayResponse* response) override;
  grpc::Status ListArrays(grpc::ServerContext* context, const v1::ListArraysRequest* request,
                          v1::ListArraysResponse* response) override;

 private:
  class Sessions;
  class Cluster;
  class Catalog;
  class Compute;
  class Layouts;
  class Operations;
  class Resolve;

  // Waits while calls of this kind are held.
  void Pass(HeldCall call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Trace(const grpc::ServerContext& context) ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the call ends; `mutex_` is free meanwhile.
  void AwaitEnd(const grpc::ServerContext& context) ABSL_LOCKS_EXCLUDED(mutex_);

  grpc::Status CheckSession(const std::string& session_id) const;
  std::map<std::string, v1::Array>::iterator Find(const v1::ArraySelector& wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Mesh mesh_;
  const std::vector<SmallWorker*> workers_;
  mutable absl::Mutex mutex_;
  std::set<std::string> sessions_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> released_ ABSL_GUARDED_BY(mutex_);
  int64_t opened_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t renewals_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t aborts_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status last_abort_ ABSL_GUARDED_BY(mutex_);
  absl::Status transfer_error_ ABSL_GUARDED_BY(mutex_);
  absl::Status commit_answer_ ABSL_GUARDED_BY(mutex_);
  std::deque<absl::Status> commit_errors_ ABSL_GUARDED_BY(mutex_);
  absl::Status abort_error_ ABSL_GUARDED_BY(mutex_);
  std::optional<int> most_taken_ ABSL_GUARDED_BY(mutex_);      // LimitTakeOvers
  std::set<std::string> never_taken_ ABSL_GUARDED_BY(mutex_);  // RefuseToTake
  bool fails_take_overs_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status release_error_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> taken_ ABSL_GUARDED_BY(mutex_);
  int64_t take_over_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status version_error_ ABSL_GUARDED_BY(mutex_);
  int version_errors_left_ ABSL_GUARDED_BY(mutex_) = 0;
  int version_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<absl::Status> put_errors_ ABSL_GUARDED_BY(mutex_);
  Elements elements_ ABSL_GUARDED_BY(mutex_) = Elements::kSent;
  std::function<void()> in_put_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> put_request_ids_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> put_checkpoints_ ABSL_GUARDED_BY(mutex_);
  std::optional<v1::FindContentResponse> content_answer_ ABSL_GUARDED_BY(mutex_);
  int64_t content_questions_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<v1::TensorContent> claims_ ABSL_GUARDED_BY(mutex_);
  std::set<HeldCall> held_ ABSL_GUARDED_BY(mutex_);
  std::multiset<HeldCall> waiting_ ABSL_GUARDED_BY(mutex_);  // calls that are held
  std::optional<v1::SecondCopy> second_copy_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> before_get_ ABSL_GUARDED_BY(mutex_);
  std::string copied_ ABSL_GUARDED_BY(mutex_);  // name of the array that a watch completes
  bool watches_report_on_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status watch_error_ ABSL_GUARDED_BY(mutex_);
  std::deque<absl::Status> report_errors_ ABSL_GUARDED_BY(mutex_);
  bool are_reports_ended_at_result_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::vector<v1::ReportGetRequest>> get_reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::WatchClusterResponse> changes_ ABSL_GUARDED_BY(mutex_);
  absl::Status forget_answer_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> workers_known_ ABSL_GUARDED_BY(mutex_) = {"lost"};
  v1::BatchResolveSpecsResponse batch_answer_ ABSL_GUARDED_BY(mutex_);
  absl::Status step_error_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> known_plans_ ABSL_GUARDED_BY(mutex_);  // hashes
  bool forgets_plans_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t programs_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t answered_gets_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string> pinned_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> traces_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t next_array_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<v1::Array> staged_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, v1::Array> arrays_ ABSL_GUARDED_BY(mutex_);  // by name
  std::vector<std::unique_ptr<grpc::Service>> others_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace shardmesh::client::test

#endif  // SHARDMESH_TESTS_UNIT_CLIENT_SMALL_CLUSTER_H_
