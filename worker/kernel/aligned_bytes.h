// Memory for packed weights and for working data of kernels.
#ifndef SHARDMESH_WORKER_KERNEL_ALIGNED_BYTES_H_
#define SHARDMESH_WORKER_KERNEL_ALIGNED_BYTES_H_

#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>

namespace shardmesh::worker {

struct FreeAligned {
  std::align_val_t alignment{64};
  void operator()(char* data) const { ::operator delete[](data, alignment); }
};
using AlignedBytes = std::unique_ptr<char[], FreeAligned>;

// Returns memory that begins at a cache line. Throws std::bad_alloc.
//
// Large blocks use huge pages if the host allows. The host then provides the pages of packed
// weights in a fraction of the time, and products spend less time on address translation.
inline AlignedBytes AllocateAligned(size_t size_bytes) {
  constexpr size_t kHugePageBytes = size_t{2} << 20;
  const bool huge = size_bytes >= kHugePageBytes;
  const FreeAligned free{std::align_val_t{huge ? kHugePageBytes : size_t{64}}};
  AlignedBytes block(static_cast<char*>(::operator new[](size_bytes, free.alignment)), free);
  if (huge) {
    // Best effort. The pages at the end stay small, so the block takes no more memory.
    madvise(block.get(), size_bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  }
  return block;
}

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_KERNEL_ALIGNED_BYTES_H_
