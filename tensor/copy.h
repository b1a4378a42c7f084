// Copies between tensors' memory.
#ifndef SHARDMESH_TENSOR_COPY_H_
#define SHARDMESH_TENSOR_COPY_H_

#include <cstddef>
#include <cstring>

namespace shardmesh {

// CopyBytes bypasses the caches from this size on. The caches of one core hold less than this size.
inline constexpr size_t kStreamedCopyBytes = size_t{2} << 20;

// Copies like CopyBytes, but bypasses the caches at every size, if the processor can. The processor
// then does not read the destination first, and evicts nothing from the caches.
void CopyBytesStreamed(char* to, const char* from, size_t size_bytes);

// Copies like std::memcpy, but large copies are faster: 1.15 to 1.25 times as fast on one core of
// an EPYC, and more for several concurrent copies. Null pointers are allowed for 0 bytes.
inline void CopyBytes(char* to, const char* from, size_t size_bytes) {
  if (size_bytes >= kStreamedCopyBytes) {
    CopyBytesStreamed(to, from, size_bytes);
  } else if (size_bytes > 0) {
    std::memcpy(to, from, size_bytes);
  }
}

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_COPY_H_
