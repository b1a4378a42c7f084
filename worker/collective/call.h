// What every collective takes: this rank's part in it, and memory together with its owner.
#ifndef SHARDMESH_WORKER_COLLECTIVE_CALL_H_
#define SHARDMESH_WORKER_COLLECTIVE_CALL_H_

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

// Memory to write a result to, and its owner, since results are sent on from where they lie.
struct OwnedMutableBytes {
  absl::Span<char> bytes;
  std::shared_ptr<const void> owner;
};

// Bytes of messages that were copied in memory here, beside what the network and the kernel do: by
// collectives over one thread.
struct CopiedBytes {
  int64_t to_send = 0;   // into one piece, since they lay apart
  int64_t received = 0;  // into place, where nothing was combined
};

// This rank's part in one collective.
struct CollectiveCall {
  Link* link = nullptr;                // its rank is the group's device at its place
  const DeviceGroup* group = nullptr;  // seen from this rank
  int64_t step = 0;
  int64_t op = 0;
  // First round to use; each function says how many it uses.
  int64_t round = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // If set: called when all data of one round has come from this rank.
  std::function<void(DeviceId peer)> received = nullptr;
  // Memory for partial results that are sent on, of at least one byte; RESOURCE_EXHAUSTED if there
  // is none. If not set, it comes from the heap.
  std::function<absl::StatusOr<OwnedMutableBytes>(int64_t size_bytes)> scratch = nullptr;
  // If set: counts what the functions copy. Who takes pieces in a function of its own (PlaceFn)
  // counts them itself.
  CopiedBytes* copied = nullptr;
};

// Copies what a peer sent into place, and counts it.
void CopyReceived(const CollectiveCall& call, absl::Span<const char> bytes, char* to);

// Copies what this rank has itself, of that size, to its result, unless it is the result's memory.
void CopyUnlessThere(absl::Span<const char> bytes, absl::Span<char> out);

// Where P parts of `count` elements begin and end: P+1 cut points from 0 to `count`, the parts of
// equal size but that the first count % P have one element more. count >= 0, P >= 1.
std::vector<int64_t> EvenCuts(int64_t count, int64_t parts);

// Takes the bytes [offset_bytes, offset_bytes + bytes.size()) of what the rank at `place` brings.
using PlaceFn =
    absl::FunctionRef<void(int64_t place, int64_t offset_bytes, absl::Span<const char> bytes)>;

// Elements as a message or memory has them: operands, or partial results.
enum class ElementForm { kOperand, kPartial };

// The pieces that algorithms are made of. Errors are those of the link, and of `call.scratch`.

// Sends to the rank at `place`, under the round call.round + round; nothing if `bytes` is empty.
absl::Status SendTo(const CollectiveCall& call, int64_t place, int64_t round, OwnedBytes bytes);

// Receives what the rank at `place` sent under that round, piece by piece in order; `take` is not
// called if the message is empty.
absl::Status ReceivePieces(
    const CollectiveCall& call, int64_t place, int64_t round, int64_t message_bytes,
    absl::FunctionRef<void(int64_t offset_bytes, absl::Span<const char> bytes)> take);

// The same, into place.
absl::Status ReceiveInto(const CollectiveCall& call, int64_t place, int64_t round,
                         absl::Span<char> out);

// One side of a combination.
struct CombineSide {
  absl::Span<const char> elements;  // as many as arrive
  ElementForm form = ElementForm::kOperand;
  bool is_left = true;  // stands first
};

// Combines what is `mine` with as many elements that the rank at `place` sent under that round, as
// they arrive, into partial results at `out`, which may be the memory of `mine`'s partial results.
absl::Status CombineArriving(const CollectiveCall& call, const Combiner& combiner,
                             const CombineSide& mine, int64_t place, int64_t round,
                             ElementForm arriving, char* out);

// Memory of this size to be sent on from.
absl::StatusOr<OwnedMutableBytes> Scratch(const CollectiveCall& call, int64_t size_bytes);

// The part [begin_bytes, end_bytes) of memory.
OwnedBytes PartOf(const OwnedBytes& whole, int64_t begin_bytes, int64_t end_bytes);
OwnedMutableBytes PartOf(const OwnedMutableBytes& whole, int64_t begin_bytes, int64_t end_bytes);

// Operands straight to results, as the combination of one rank's operands alone is.
// `results` overlaps no operand.
void CombineAlone(const Combiner& combiner, absl::Span<const char> operands, char* results);

// INVALID_ARGUMENT unless `operand` consists of whole elements, of which `result_bytes` is the size
// as results. `what` begins the message: "all-reduce".
absl::Status CheckReduction(std::string_view what, const Combiner& combiner,
                            absl::Span<const char> operand, size_t result_bytes);

inline int64_t SizeOf(const OwnedBytes& bytes) { return static_cast<int64_t>(bytes.bytes.size()); }
inline size_t Index(int64_t i) { return static_cast<size_t>(i); }

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_COLLECTIVE_CALL_H_
