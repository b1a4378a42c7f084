// Copies between tensors' memory.
#ifndef SHARDMESH_TENSOR_COPY_H_
#define SHARDMESH_TENSOR_COPY_H_

#include <cstddef>
#include <cstring>

namespace shardmesh {

// From so many bytes on, CopyBytes writes past the caches: more than a core's own ones hold.
inline constexpr size_t kStreamedCopyBytes = size_t{2} << 20;

// CopyBytes of any number of bytes, past the caches where the processor can: the memory written to
// is not read first, and what was in the caches stays there.
void CopyBytesStreamed(char* to, const char* from, size_t size_bytes);

// As std::memcpy, but faster for large copies (1.15 to 1.25 times on one core of an EPYC, more when
// several copy at once). Null pointers are allowed for 0 bytes.
inline void CopyBytes(char* to, const char* from, size_t size_bytes) {
  if (size_bytes >= kStreamedCopyBytes) {
    CopyBytesStreamed(to, from, size_bytes);
  } else if (size_bytes > 0) {
    std::memcpy(to, from, size_bytes);
  }
}

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_COPY_H_
