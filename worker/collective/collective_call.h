// The arguments that every collective takes: this rank's part in the collective, and memory
// together with its owner.
#ifndef SHARDMESH_WORKER_COLLECTIVE_COLLECTIVE_CALL_H_
#define SHARDMESH_WORKER_COLLECTIVE_COLLECTIVE_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "sharding/device_group.h"
#include "sharding/mesh.h"
#include "worker/collective/combiner.h"
#include "worker/collective/link.h"

namespace shardmesh::worker {

// Memory for a result, with its owner. The owner keeps the memory valid, because a collective may
// send the result to further ranks directly from this memory.
struct OwnedMutableBytes {
  absl::Span<char> bytes;
  std::shared_ptr<const void> owner;
};

// Counts the bytes of messages that the collectives of one thread copied inside this process.
// Copies by the network stack and by the operating system do not count.
struct CopiedBytes {
  int64_t to_send = 0;   // copied to join scattered parts into one message
  int64_t received = 0;  // copied from a message to the result, without combining
};

// This rank's part in one collective. A place is the index of a rank in the group.
struct CollectiveCall {
  Link* link = nullptr;                // its rank is group->device_at(group->place())
  const DeviceGroup* group = nullptr;  // the group that contains this rank
  int64_t step = 0;
  int64_t op = 0;
  // The number of the first round that the called function uses. Each function documents how many
  // rounds it uses.
  int64_t round = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // If set: called when all data that `peer` sends to this rank in one round has arrived.
  std::function<void(DeviceId peer)> received = nullptr;
  // If set: called with the number of bytes that have arrived since its last call, for progress.
  // RunRegionMove calls it after each piece of a region; the others after each MiB of a message and
  // at its end, and not for messages of less than 64 KiB.
  std::function<void(int64_t bytes)> piece_received = nullptr;
  // Returns memory of `size_bytes` >= 1 bytes, for partial results that this rank sends to a peer;
  // or RESOURCE_EXHAUSTED. If not set, such memory comes from the heap.
  std::function<absl::StatusOr<OwnedMutableBytes>(int64_t size_bytes)> scratch = nullptr;
  // If set: called again and again while this rank waits without a receive. A status that is not
  // OK, such as that of an abort, ends the collective.
  std::function<absl::Status()> check = nullptr;
  // If set: called when this rank waits, without a receive, until `peer` has read messages.
  std::function<void(DeviceId peer)> waits_for = nullptr;
  // If set: the collectives add the bytes that they copy. A caller whose PlaceFn copies bytes adds
  // those bytes itself.
  CopiedBytes* copied = nullptr;
};

// Passes the bytes of messages that arrive on to call.piece_received, as that says. The call
// outlives the object.
class ArrivalCounter {
 public:
  // `message_bytes`: of all messages that are counted together.
  ArrivalCounter(const CollectiveCall& call, int64_t message_bytes)
      : report_(call.piece_received && message_bytes >= kMinBytes ? &call.piece_received : nullptr),
        left_bytes_(message_bytes) {}

  void Add(int64_t size_bytes) {
    if (report_ == nullptr) return;
    left_bytes_ -= size_bytes;
    counted_bytes_ += size_bytes;
    if (counted_bytes_ < kStepBytes && left_bytes_ > 0) return;
    (*report_)(std::exchange(counted_bytes_, 0));
  }

 private:
  static constexpr int64_t kMinBytes = int64_t{64} << 10;
  static constexpr int64_t kStepBytes = int64_t{1} << 20;

  const std::function<void(int64_t bytes)>* const report_;  // null: counts nothing
  int64_t left_bytes_;
  int64_t counted_bytes_ = 0;
};

// Copies `bytes`, which a peer sent, to the memory at `to`, and counts them in
// call.copied->received.
void CopyReceived(const CollectiveCall& call, absl::Span<const char> bytes, char* to);

// Copies this rank's own bytes to this rank's result, unless `bytes` and `out` are the same memory.
// Requires equal sizes.
void CopyUnlessThere(absl::Span<const char> bytes, absl::Span<char> out);

// Returns the P+1 cut points of `count` elements in P parts, from 0 to `count`. The first count % P
// parts have one element more than the others. Requires count >= 0 and P >= 1.
std::vector<int64_t> EvenCuts(int64_t count, int64_t parts);

// A function that gets the bytes [offset_bytes, offset_bytes + bytes.size()) of the data that comes
// from the rank at `place`.
using PlaceFn =
    absl::FunctionRef<void(int64_t place, int64_t offset_bytes, absl::Span<const char> bytes)>;

// Form of the elements in a message or in memory: operands, or partial results.
enum class ElementForm { kOperand, kPartial };

// The functions below are the building blocks of the algorithms. Their errors are those of the link
// and of `call.scratch`.

// Sends `bytes` to the rank at `place` under the round call.round + round. Sends nothing if `bytes`
// is empty.
absl::Status SendTo(const CollectiveCall& call, int64_t place, int64_t round, OwnedBytes bytes);

// Receives the message under the round call.round + round from the rank at `place`. Passes its
// pieces to `take` in order. Does not call `take` if the message is empty.
absl::Status ReceivePieces(
    const CollectiveCall& call, int64_t place, int64_t round, int64_t message_bytes,
    absl::FunctionRef<void(int64_t offset_bytes, absl::Span<const char> bytes)> take);

// Like ReceivePieces, but copies the message to `out`.
absl::Status ReceiveInto(const CollectiveCall& call, int64_t place, int64_t round,
                         absl::Span<char> out);

// This rank's operand of a combination. The other operand arrives from a peer.
struct CombineSide {
  absl::Span<const char> elements;  // as many as the arriving message has
  ElementForm form = ElementForm::kOperand;
  bool is_left = true;  // `elements` are the left operands of the combination
};

// Combines `mine` with the message that the rank at `place` sent under the round call.round +
// round, while the message arrives. `mine` and the message have equally many elements. Writes
// partial results to `out`. `out` may be the memory of mine.elements if mine.elements are partial
// results.
absl::Status CombineArriving(const CollectiveCall& call, const Combiner& combiner,
                             const CombineSide& mine, int64_t place, int64_t round,
                             ElementForm arriving, char* out);

// Returns memory of `size_bytes` from which this rank can send partial results. See
// CollectiveCall::scratch for its source and errors.
absl::StatusOr<OwnedMutableBytes> Scratch(const CollectiveCall& call, int64_t size_bytes);

// Returns the part [begin_bytes, end_bytes) of `whole`, with the same owner.
OwnedBytes PartOf(const OwnedBytes& whole, int64_t begin_bytes, int64_t end_bytes);
OwnedMutableBytes PartOf(const OwnedMutableBytes& whole, int64_t begin_bytes, int64_t end_bytes);

// Computes the result of a reduction over one rank: converts operands directly to results.
// `results` may not overlap the operands.
void CombineAlone(const Combiner& combiner, absl::Span<const char> operands, char* results);

// Returns INVALID_ARGUMENT unless `operand` consists of whole elements whose results take
// `result_bytes`. `what` begins the message, such as "all-reduce".
absl::Status CheckReduction(std::string_view what, const Combiner& combiner,
                            absl::Span<const char> operand, size_t result_bytes);

// Returns INVALID_ARGUMENT unless `sizes_bytes` has the size of each place's part of an all-gather,
// and `mine` the size of this rank's place.
absl::Status CheckAllGather(const CollectiveCall& call, const OwnedBytes& mine,
                            absl::Span<const int64_t> sizes_bytes);

inline int64_t SizeOf(const OwnedBytes& bytes) { return static_cast<int64_t>(bytes.bytes.size()); }
inline size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_COLLECTIVE_CALL_H_
