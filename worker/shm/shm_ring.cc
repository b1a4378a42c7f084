// RingWriter and RingReader. Each side needs one release store and one acquire load per note.
#include "worker/shm/shm_ring.h"

#include <cstring>

#include "status/str_cat.h"

namespace shardmesh::worker {

std::optional<uint64_t> RingWriter::TryWrite(std::string_view note) {
  if (note.size() > kMaxNoteBytes || !HasRoom()) {
    return std::nullopt;
  }
  RingSlots::Slot& slot = slots_->slots[next_ % kRingSlots];
  slot.size_bytes = static_cast<uint32_t>(note.size());
  std::memcpy(slot.note.data(), note.data(), note.size());
  slot.written.store(next_ + 1, std::memory_order_release);
  return next_++;
}

bool RingWriter::HasRoom() {
  if (next_ < free_until_) {
    return true;
  }
  const uint64_t limit = next_ + kRingSlots / 4;
  while (free_until_ < limit && IsReleased(free_until_ - kRingSlots)) {
    ++free_until_;
  }
  return next_ < free_until_;
}

bool RingWriter::IsReleased(uint64_t number) const {
  // The reader's memory is untrusted. A reader that claims a release too early reads memory that
  // has changed, and so harms only itself.
  return reads_->released[number % kRingSlots].load(std::memory_order_acquire) > number;
}

absl::StatusOr<bool> RingReader::TryRead(Note* note) {
  const RingSlots::Slot& slot = slots_->slots[next_ % kRingSlots];
  if (slot.written.load(std::memory_order_acquire) != next_ + 1) {
    return false;
  }
  // Read the size only once, because the writer may change it at any time.
  const uint32_t size_bytes = *const_cast<const volatile uint32_t*>(&slot.size_bytes);
  if (size_bytes > kMaxNoteBytes) {
    return absl::DataLossError(StrCat("a note from a peer on this host says that it has ",
                                      size_bytes, " bytes; the limit is ", kMaxNoteBytes));
  }
  note->number = next_++;
  note->size_bytes = size_bytes;
  std::memcpy(note->bytes.data(), slot.note.data(), size_bytes);
  return true;
}

bool RingReader::HasNote(uint64_t number) const {
  return slots_->slots[number % kRingSlots].written.load(std::memory_order_acquire) == number + 1;
}

void RingReader::Release(uint64_t number) {
  reads_->released[number % kRingSlots].store(number + 1, std::memory_order_release);
}

}  // namespace shardmesh::worker
