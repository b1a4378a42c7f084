// The block of memory that the temporaries of one step share.
#ifndef SHARDMESH_WORKER_STEP_STEP_BLOCK_H_
#define SHARDMESH_WORKER_STEP_STEP_BLOCK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tensor/buffer.h"
#include "worker/collective/collective_call.h"

namespace shardmesh::worker {

// Hands out parts of one memory. A part belongs to its owner, like the owner of any message: copies
// of the owner go to the links together with the bytes. The part can be handed out again only after
// its last owner is gone. A result therefore never overwrites bytes that a peer has yet to read,
// whichever way the link lends them.
//
// The memory is released when the block and all owners are gone. A buffer then returns to its pool.
//
// One thread calls the functions. Any thread may release owners.
class StepBlock {
 public:
  explicit StepBlock(Buffer memory);
  explicit StepBlock(OwnedMutableBytes memory);
  StepBlock(const StepBlock&) = delete;
  StepBlock& operator=(const StepBlock&) = delete;

  // Returns the part [offset_bytes, offset_bytes + size_bytes) with a new owner; nullopt if a part
  // that overlaps it still has an owner. Requires a part within the memory. An empty part needs no
  // owner and is always free.
  std::optional<OwnedMutableBytes> Take(int64_t offset_bytes, int64_t size_bytes);

  // Returns the part with one more owner, whether or not the part is free: for bytes that the
  // caller goes on to read after it has released its own owner.
  OwnedMutableBytes Share(int64_t offset_bytes, int64_t size_bytes);

  // Whether any part has an owner.
  bool HasOwners() const;

  // Waits until an owner is released, at most for `timeout`. Returns at once if there is no owner.
  void Wait(absl::Duration timeout);

 private:
  struct Part {
    int64_t begin_bytes = 0;
    int64_t end_bytes = 0;

    friend bool operator==(const Part&, const Part&) = default;
  };
  // Owners share this, because they may outlive the block.
  struct Shared {
    explicit Shared(OwnedMutableBytes the_memory) : memory(std::move(the_memory)) {}

    const OwnedMutableBytes memory;
    absl::Mutex mutex;
    absl::CondVar released;
    std::vector<Part> owned ABSL_GUARDED_BY(mutex);  // one for each owner; few at a time
  };
  // The owner of a part. Removes the part from `owned` when the last copy is gone.
  struct Owner;

  OwnedMutableBytes Add(const Part& part);

  std::shared_ptr<Shared> shared_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_STEP_STEP_BLOCK_H_
