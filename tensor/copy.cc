// CopyBytesStreamed with SSE2, which every x86-64 has; elsewhere memcpy.
#include "tensor/copy.h"

#if defined(__SSE2__)
#include <emmintrin.h>

#include <cstdint>
#endif

namespace shardmesh {

void CopyBytesStreamed(char* to, const char* from, size_t size_bytes) {
#if defined(__SSE2__)
  constexpr size_t kLineBytes = 64;
  const size_t head_bytes = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
  if (size_bytes >= head_bytes + kLineBytes) {
    std::memcpy(to, from, head_bytes);
    to += head_bytes;
    from += head_bytes;
    size_bytes -= head_bytes;
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    for (size_t line = 0; line < size_bytes / kLineBytes; ++line, source += 4, target += 4) {
      const __m128i a = _mm_loadu_si128(source);
      const __m128i b = _mm_loadu_si128(source + 1);
      const __m128i c = _mm_loadu_si128(source + 2);
      const __m128i d = _mm_loadu_si128(source + 3);
      _mm_stream_si128(target, a);
      _mm_stream_si128(target + 1, b);
      _mm_stream_si128(target + 2, c);
      _mm_stream_si128(target + 3, d);
    }
    _mm_sfence();  // streamed stores are weakly ordered: make them visible before later stores
    to += size_bytes / kLineBytes * kLineBytes;
    from += size_bytes / kLineBytes * kLineBytes;
    size_bytes %= kLineBytes;
  }
#endif
  std::memcpy(to, from, size_bytes);
}

}  // namespace shardmesh
