// Handles the coordinator's messages to this worker, in the order of their arrival.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_HANDLER_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_HANDLER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "process/clock.h"
#include "process/thread_pool.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "worker/exchange/membership_view.h"
#include "worker/exchange/peer_links.h"
#include "worker/save/save_orders.h"
#include "worker/service/attach_memory_requests.h"
#include "worker/service/attach_reports.h"
#include "worker/service/attach_sink.h"
#include "worker/service/attach_tile_digests.h"
#include "worker/service/membership_book.h"
#include "worker/service/term_keeper.h"
#include "worker/service/tile_filler.h"
#include "worker/service/tile_gate.h"
#include "worker/step/step_executor.h"
#include "worker/store/shard_store.h"

namespace shardmesh::worker {

// Owns the membership (which worker serves which rank), and the key of transfer tokens from the
// last attach. Also owns a thread for orders that wait for the disk. Passes each message to the
// part of the worker that the message concerns. Makes no gRPC calls.
//
// Not thread-safe: one message is passed in at a time, one stream after the other.
class AttachHandler {
 public:
  // The objects to which pointers refer outlive the handler.
  struct Options {
    std::string coordinator;  // host:port, for the log
    std::string identity;     // this worker's
    Clock* clock = nullptr;
    ShardStore* store = nullptr;
    MemoryRequests* memory = nullptr;  // null: the worker asks for no memory
    TileGate* gate = nullptr;
    PeerLinks* links = nullptr;
    StepExecutor* executor = nullptr;
    SaveOrders* saves = nullptr;  // null: the worker takes part in no save
    TermKeeper* terms = nullptr;
    AttachReports* reports = nullptr;
    TileFiller* filler = nullptr;
  };

  explicit AttachHandler(Options options)
      : options_(std::move(options)), digests_(options_.store) {}
  // Waits for the store's file work and for orders in progress. Requires that no call of Take is in
  // progress.
  ~AttachHandler();
  AttachHandler(const AttachHandler&) = delete;
  AttachHandler& operator=(const AttachHandler&) = delete;

  // Handles a message that came on the stream whose write side is `stream`. The first message must
  // be the welcome, which makes the worker attached. After an error the caller ends the stream.
  absl::Status Take(internal::v1::AttachResponse message, const AttachSinkPtr& stream);

  // Handles a message that another thread than the stream's may handle, because it does not block:
  // the order of a step. Returns false, and leaves the message as it is, for all others and before
  // the welcome. The caller prevents that two messages are handled at the same time.
  bool TakeAtOnce(internal::v1::AttachResponse* message, const AttachSinkPtr& stream);

  // Returns whether the coordinator's last Detach message gave no time for a retry. If so, the
  // worker must not attach again.
  bool is_detached_for_good() const { return detached_for_good_; }

 private:
  absl::Status TakeWelcome(const internal::v1::Welcome& welcome, const AttachSinkPtr& stream);
  absl::Status TakeCoordinatorTime(const google::protobuf::Timestamp& time);
  absl::Status TakeVerdict(const internal::v1::InventoryVerdict& verdict);
  absl::Status TakeMembership(const internal::v1::Membership& membership);
  void TakeRunStep(internal::v1::RunStep step, const AttachSinkPtr& stream);
  absl::Status TakeEndStep(const internal::v1::EndStep& end);
  absl::Status TakeEndTransfer(const internal::v1::EndTransfer& end);
  absl::Status TakeDetach(const internal::v1::Detach& detach);
  void Drop(const google::protobuf::RepeatedPtrField<std::string>& array_ids);
  void TakeSaveOrder(internal::v1::SaveOrder order, const AttachSinkPtr& stream);
  void TakeQuarantineOrder(internal::v1::QuarantineOrder order, const AttachSinkPtr& stream);
  void TakeFillTiles(internal::v1::FillTiles order, const AttachSinkPtr& stream);
  void TakeCheckFiles(const internal::v1::CheckFiles& order, const AttachSinkPtr& stream);

  const Options options_;

  MembershipBook book_;                         // the membership pages of this attach
  std::shared_ptr<const MembershipView> view_;  // the last membership view
  Attachment attachment_;                       // term and token key of the last attach
  bool detached_for_good_ = false;

  TileDigests digests_;
  // Runs orders that wait for the disk. Last member, because its thread uses the other members.
  ThreadPool orders_{1};
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_HANDLER_H_
