// A ring of notes (short messages) from one process to another, through shared memory. Each part of
// this memory is written by one of the two processes only.
//
// The ring has two parts. The writer's part, in the writer's segment, has the slots. The reader's
// part, in the reader's segment, records which slots were read and released. Neither side can block
// or harm the other side: each side treats the data of the other side as untrusted, and copies the
// data before it checks them.
//
// clang-format off
//   slot free -> TryWrite -> written -> TryRead -> taken -> Release -> free
// clang-format on
//
// A note has up to kMaxNoteBytes. The ring does not interpret a note. If a note refers to other
// memory, the sender of the note keeps that memory unchanged until the reader calls Release. Only
// one thread at a time may use the writer, and only one thread at a time may use the reader. Any
// thread may call Release and HasNote.
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

// The maximum number of notes in transit: written and not yet released. A power of two.
inline constexpr size_t kRingSlots = 256;
// The maximum number of bytes of a note.
inline constexpr size_t kMaxNoteBytes = 236;

// The writer's part. If all bytes are zero, the ring is empty.
struct RingSlots {
  struct alignas(64) Slot {
    // 1 + the note's number, stored when the note is complete. Until then, the value of an older
    // note, or 0.
    std::atomic<uint64_t> written;
    uint32_t size_bytes;
    std::array<char, kMaxNoteBytes> note;
  };
  std::array<Slot, kRingSlots> slots;
};
static_assert(sizeof(RingSlots::Slot) == 256);

// The reader's part. If all bytes are zero, no note was released.
struct RingReads {
  // For each slot: 1 + the number of the last released note of this slot.
  alignas(64) std::array<std::atomic<uint64_t>, kRingSlots> released;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The writing end of a ring.
class RingWriter {
 public:
  // `slots` belongs to this process. `reads` belongs to the reader, and only the reader writes it.
  // Both outlive the writer.
  RingWriter(RingSlots* slots, const RingReads* reads) : slots_(slots), reads_(reads) {}

  // Writes a note of at most kMaxNoteBytes and returns its number, counted from 0. Returns nullopt
  // if the next slot is not free; the caller may try again later. Notes arrive in the order of
  // their numbers.
  std::optional<uint64_t> TryWrite(std::string_view note);

  // Returns whether the slot that TryWrite would use is free.
  bool HasRoom();

  // Returns whether the reader has released the note of that number.
  bool IsReleased(uint64_t number) const;

  uint64_t written() const { return next_; }

 private:
  RingSlots* const slots_;
  const RingReads* const reads_;
  uint64_t next_ = 0;
  // Notes with a number below this one have a free slot. The reader writes its releases all the
  // time. Without this cached number, the writer would read the releases for each note, and each
  // read would move a cache line between the cores.
  uint64_t free_until_ = kRingSlots;
};

// The reading end of a ring.
class RingReader {
 public:
  // `slots` belongs to the writer, and only the writer writes it. `reads` belongs to this process.
  // Both outlive the reader.
  RingReader(const RingSlots* slots, RingReads* reads) : slots_(slots), reads_(reads) {}

  struct Note {
    uint64_t number = 0;
    size_t size_bytes = 0;
    std::array<char, kMaxNoteBytes> bytes;

    std::string_view text() const { return {bytes.data(), size_bytes}; }
  };

  // Copies the next note to `note`; returns false if there is none. DATA_LOSS if the note's size is
  // more than kMaxNoteBytes.
  absl::StatusOr<bool> TryRead(Note* note);

  // Releases a note that was read, so the writer may reuse its slot. Call it once for each note, on
  // any thread.
  void Release(uint64_t number);

  // next() returns the number of the next note to read. HasNote() returns whether the note with
  // that number has been written. Any thread may call HasNote.
  uint64_t next() const { return next_; }
  bool HasNote(uint64_t number) const;

 private:
  const RingSlots* const slots_;
  RingReads* const reads_;
  uint64_t next_ = 0;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_RING_H_
