// Asks the workers whether arrays have the content that the client of a put claims.
#ifndef SHARDMESH_SERVER_CONTENT_CONTENT_CHECK_H_
#define SHARDMESH_SERVER_CONTENT_CONTENT_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "process/clock.h"
#include "server/content/digest_transport.h"
#include "server/steps/mesh_endpoints.h"
#include "server/steps/put_reuse.h"
#include "sharding/tile.h"

namespace shardmesh::server {

// Compares the claims of one put with the digests of the workers. Each rank is asked for its own
// tile, so that also each replica is compared. Each worker gets kOrders questions at a time, and
// the next one with each answer. Thread-safe.
class ContentCheck : public std::enable_shared_from_this<ContentCheck> {
 public:
  // Gets, for each claim, whether the workers found it true. Called exactly once, without a lock,
  // on any thread, perhaps before Start returns.
  using Done = absl::AnyInvocable<void(std::vector<bool> is_true) &&>;

  // The check ends if no worker has answered for so long. The claims that are open by then count as
  // false. A worker may compute the digest of one large tile for some seconds, after those of other
  // puts.
  static constexpr absl::Duration kIdleLimit = absl::Seconds(30);
  // Bounds of a question, as DigestTiles of fill.proto states them.
  static constexpr size_t kMaxTiles = 256;
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;
  // Questions that one worker has at a time, for one check: as many as it has threads for digests.
  static constexpr int kOrders = 2;

  // Asks the workers. `claims` must not change before `done` is called. `transport`, `endpoints`
  // and `clock` outlive the check. `idle_limit`: in place of kIdleLimit, for a put that has little
  // time.
  static std::shared_ptr<ContentCheck> Start(DigestTransport* transport,
                                             const MeshEndpoints& endpoints, Clock* clock,
                                             const std::vector<ClaimedArray>& claims, Done done,
                                             absl::Duration idle_limit = kIdleLimit);
  ContentCheck(const ContentCheck&) = delete;
  ContentCheck& operator=(const ContentCheck&) = delete;

  // Ends the check, if it has not ended. The claims that are open count as false.
  void Cancel();

 private:
  // A tile of a claim.
  struct ClaimedTile {
    size_t claim = 0;
    Tile tile;
    int64_t number = 0;  // among the distinct tiles of the array
    int64_t size_bytes = 0;
  };
  // The tiles that one worker has not been asked for yet. Only the places are kept, since the tiles
  // of many tensors on a large mesh are very many.
  struct Queue {
    struct Place {
      size_t mesh = 0;  // index in claims_by_mesh_
      int64_t rank = 0;
    };
    std::vector<Place> places = {};
    size_t place = 0;  // of the next tile
    size_t next = 0;   // claim of the next tile, as an index in the mesh's claims
  };
  // A place for one question to a worker.
  struct Lane {
    std::string identity;
    int64_t questions = 0;                // so far
    int64_t number = 0;                   // of the last question; 0: not known yet
    std::vector<ClaimedTile> tiles = {};  // of the last question; empty: none waits
  };

  ContentCheck(DigestTransport* transport, Clock* clock, const std::vector<ClaimedArray>& claims,
               Done done, absl::Duration idle_limit)
      : transport_(transport),
        clock_(clock),
        idle_limit_(idle_limit),
        claims_(&claims),
        done_(std::move(done)) {}

  // Sorts the claims by mesh, and makes the queues.
  void Plan(const MeshEndpoints& endpoints);
  void Ask();
  // Sends the next question of the lane's worker, or ends the check if no lane waits.
  void AskNext(size_t lane);
  void Answered(size_t lane, const absl::StatusOr<DigestTransport::Digests>& digests);
  void TimeIsOver();
  // Moves the next tiles of the worker to `lane`, without those of claims that are false already.
  void FillLane(Lane& lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the next claimed tile of a claim that may be true; nullopt: there is none.
  std::optional<ClaimedTile> NextOf(Queue& queue) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Make claims false: those of the tiles, and those of the rest of the queue.
  void Refuse(const std::vector<ClaimedTile>& tiles) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RefuseRest(Queue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes `done_` and the unanswered questions, unless the check has ended. Claims of tiles that
  // were not compared become false.
  struct Ended {
    Done done;
    std::vector<bool> is_true;
    std::vector<int64_t> unanswered;
  };
  std::optional<Ended> End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(std::optional<Ended> ended);

  DigestTransport* const transport_;
  Clock* const clock_;
  const absl::Duration idle_limit_;

  const std::vector<ClaimedArray>* const claims_;  // not used after the end

  absl::Mutex mutex_;
  Done done_ ABSL_GUARDED_BY(mutex_);  // null after the end
  // Constant from Plan on: the layouts of the arrays, by claim; and the claims of each mesh.
  std::vector<absl::StatusOr<Tiling>> tilings_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<size_t>> claims_by_mesh_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> is_true_ ABSL_GUARDED_BY(mutex_);  // by claim: not refuted yet
  std::map<std::string, Queue, std::less<>> queues_ ABSL_GUARDED_BY(mutex_);  // by identity
  std::vector<Lane> lanes_ ABSL_GUARDED_BY(mutex_);
  absl::Time idle_since_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<Alarm> deadline_;  // last: its destructor waits for TimeIsOver
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_CONTENT_CONTENT_CHECK_H_
