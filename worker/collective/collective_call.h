// Arguments of every collective: this rank's part in it, and memory together with its owner.
#ifndef SHARDMESH_WORKER_COLLECTIVE_COLLECTIVE_CALL_H_
#define SHARDMESH_WORKER_COLLECTIVE_COLLECTIVE_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
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

// Memory to write a result to, with its owner: results are sent on from where they lie.
struct OwnedMutableBytes {
  absl::Span<char> bytes;
  std::shared_ptr<const void> owner;
};

// Bytes of messages that collectives on one thread copied in memory here. Copies by the network and
// the kernel do not count.
struct CopiedBytes {
  int64_t to_send = 0;   // to join scattered parts into one piece
  int64_t received = 0;  // into place, without combining
};

// This rank's part in one collective.
struct CollectiveCall {
  Link* link = nullptr;                // its rank is the group's device at its place
  const DeviceGroup* group = nullptr;  // seen from this rank
  int64_t step = 0;
  int64_t op = 0;
  // First round to use. Each function documents how many rounds it uses.
  int64_t round = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // If set: called when all data of one round has arrived from `peer`.
  std::function<void(DeviceId peer)> received = nullptr;
  // Returns memory of at least one byte for partial results that are sent on, or
  // RESOURCE_EXHAUSTED. If not set, this memory comes from the heap.
  std::function<absl::StatusOr<OwnedMutableBytes>(int64_t size_bytes)> scratch = nullptr;
  // If set: counts the bytes that the functions copy. A caller that takes pieces in its own PlaceFn
  // counts its copies itself.
  CopiedBytes* copied = nullptr;
};

// Copies a peer's bytes into place, and counts them.
void CopyReceived(const CollectiveCall& call, absl::Span<const char> bytes, char* to);

// Copies this rank's own bytes to its result, unless both are the same memory. Requires equal
// sizes.
void CopyUnlessThere(absl::Span<const char> bytes, absl::Span<char> out);

// Returns the P+1 cut points of `count` elements in P parts, from 0 to `count`. The first count % P
// parts have one element more than the others. Requires count >= 0 and P >= 1.
std::vector<int64_t> EvenCuts(int64_t count, int64_t parts);

// Takes the bytes [offset_bytes, offset_bytes + bytes.size()) of the data from the rank at `place`.
using PlaceFn =
    absl::FunctionRef<void(int64_t place, int64_t offset_bytes, absl::Span<const char> bytes)>;

// Form of the elements in a message or in memory: operands, or partial results.
enum class ElementForm { kOperand, kPartial };

// The building blocks of the algorithms. They return the errors of the link and of `call.scratch`.

// Sends `bytes` to the rank at `place` under the round call.round + round. Sends nothing if `bytes`
// is empty.
absl::Status SendTo(const CollectiveCall& call, int64_t place, int64_t round, OwnedBytes bytes);

// Receives the message of that round from the rank at `place`, piece by piece in order. Does not
// call `take` if the message is empty.
absl::Status ReceivePieces(
    const CollectiveCall& call, int64_t place, int64_t round, int64_t message_bytes,
    absl::FunctionRef<void(int64_t offset_bytes, absl::Span<const char> bytes)> take);

// Like ReceivePieces, but copies the message into place.
absl::Status ReceiveInto(const CollectiveCall& call, int64_t place, int64_t round,
                         absl::Span<char> out);

// One operand of a combination.
struct CombineSide {
  absl::Span<const char> elements;  // all elements that arrive
  ElementForm form = ElementForm::kOperand;
  bool is_left = true;  // its elements are the left operands
};

// Combines `mine` with as many elements from the rank at `place`, sent under that round, as they
// arrive. Writes partial results to `out`, which may be the memory of the partial results of
// `mine`.
absl::Status CombineArriving(const CollectiveCall& call, const Combiner& combiner,
                             const CombineSide& mine, int64_t place, int64_t round,
                             ElementForm arriving, char* out);

// Returns memory of this size to be sent on from.
absl::StatusOr<OwnedMutableBytes> Scratch(const CollectiveCall& call, int64_t size_bytes);

// Returns the part [begin_bytes, end_bytes) of `whole`, with the same owner.
OwnedBytes PartOf(const OwnedBytes& whole, int64_t begin_bytes, int64_t end_bytes);
OwnedMutableBytes PartOf(const OwnedMutableBytes& whole, int64_t begin_bytes, int64_t end_bytes);

// Converts operands directly to results, as a combination of one rank's operands. `results` may not
// overlap the operands.
void CombineAlone(const Combiner& combiner, absl::Span<const char> operands, char* results);

// Returns INVALID_ARGUMENT unless `operand` consists of whole elements, and `result_bytes` is their
// size as results. `what` begins the message: "all-reduce".
absl::Status CheckReduction(std::string_view what, const Combiner& combiner,
                            absl::Span<const char> operand, size_t result_bytes);

inline int64_t SizeOf(const OwnedBytes& bytes) { return static_cast<int64_t>(bytes.bytes.size()); }
inline size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_COLLECTIVE_CALL_H_
