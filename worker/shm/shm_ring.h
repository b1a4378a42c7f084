// Notes from one process to another through memory that each of them alone writes.
//
// For each direction there are two parts: the writer's, in the writer's segment, with the slots;
// and the reader's, in the reader's segment, which says how far the slots were read and let go of.
// Neither side can block or harm the other: what comes from the other side is checked as if anybody
// had written it, and is copied before it is checked.
//
//   slot free -> TryWrite -> written -> TryRead -> taken -> Release -> free
//
// A note has up to kMaxNoteBytes; what it says, and whether it points to memory that must stay as
// it is until Release, is its user's business. One thread at a time on each side, but Release,
// which any thread may call.
#ifndef SHARDMESH_WORKER_SHM_SHM_RING_H_
#define SHARDMESH_WORKER_SHM_SHM_RING_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh::worker {

// How many notes may be under way, a power of two.
inline constexpr size_t kRingSlots = 256;
// Most bytes of a note.
inline constexpr size_t kMaxNoteBytes = 236;

// The writer's part. Zeros are the empty ring.
struct RingSlots {
  struct alignas(64) Slot {
    // 1 + the note's number once it is written; that of an older note, or 0, before.
    std::atomic<uint64_t> written;
    uint32_t size_bytes;
    std::array<char, kMaxNoteBytes> note;
  };
  std::array<Slot, kRingSlots> slots;
};
static_assert(sizeof(RingSlots::Slot) == 256);

// The reader's part. Zeros belong to the empty ring.
struct RingReads {
  // By slot: 1 + the number of the last note that was let go of there.
  alignas(64) std::array<std::atomic<uint64_t>, kRingSlots> released;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The writing end.
class RingWriter {
 public:
  // `slots` is this process's, `reads` the reader's, which only it writes. Both outlive the writer.
  RingWriter(RingSlots* slots, const RingReads* reads) : slots_(slots), reads_(reads) {}

  // Writes a note of at most kMaxNoteBytes; its number, counted from 0, or nullopt if the slot that
  // is next is not free: try again later. Notes arrive in the order of their numbers.
  std::optional<uint64_t> TryWrite(std::string_view note);

  // Whether TryWrite would find its slot free.
  bool HasRoom();

  // Whether the reader has let go of the note of that number.
  bool IsReleased(uint64_t number) const;

  uint64_t written() const { return next_; }

 private:
  RingSlots* const slots_;
  const RingReads* const reads_;
  uint64_t next_ = 0;
  // Notes below this number have their slots: the reader writes what it let go of all the time, and
  // looking there for each note would have the memory go to and fro.
  uint64_t free_until_ = kRingSlots;
};

// The reading end.
class RingReader {
 public:
  // `slots` is the writer's, which only it writes, `reads` this process's. Both outlive the reader.
  RingReader(const RingSlots* slots, RingReads* reads) : slots_(slots), reads_(reads) {}

  struct Note {
    uint64_t number = 0;
    size_t size_bytes = 0;
    std::array<char, kMaxNoteBytes> bytes;

    std::string_view text() const { return {bytes.data(), size_bytes}; }
  };

  // Copies the next note to `note`; false if there is none. DATA_LOSS for a note that says it is
  // longer than notes are.
  absl::StatusOr<bool> TryRead(Note* note);

  // Lets go of a note that was read, once. Any thread.
  void Release(uint64_t number);

  // The number of the note to be read next, and whether a note is written. HasNote: any thread.
  uint64_t next() const { return next_; }
  bool HasNote(uint64_t number) const;

 private:
  const RingSlots* const slots_;
  RingReads* const reads_;
  uint64_t next_ = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_RING_H_
