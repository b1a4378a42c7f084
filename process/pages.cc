// Faults in pages by madvise(2), piece by piece.
#include "process/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older headers lack the name
#endif

namespace shardmesh {
namespace {

constexpr size_t kPageBytes = 4096;
// Bytes of one madvise call: a multiple of a huge page's size. A call takes about ten milliseconds
// if memory is slow.
constexpr size_t kPieceBytes = size_t{16} << 20;

}  // namespace

bool PopulatePages(char* data, size_t size_bytes) {
  char* const end = data + size_bytes;
  // madvise needs a page boundary, so begin with the whole first page, even if it also contains
  // other memory.
  for (char* begin = data - reinterpret_cast<uintptr_t>(data) % kPageBytes; begin < end;) {
    const size_t length = std::min(kPieceBytes, static_cast<size_t>(end - begin));
    if (madvise(begin, length, MADV_POPULATE_WRITE) != 0) {
      if (errno != ENOMEM && errno != EFAULT) return true;
      errno = ENOMEM;
      return false;
    }
    begin += length;
  }
  return true;
}

}  // namespace shardmesh
