// Faults in pages by madvise(2), piece by piece, on several threads if there are many.
#include "process/pages.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_WRITE  // Linux 5.14; older headers lack the names
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace shardmesh {
namespace {

constexpr size_t kPageBytes = 4096;
// Bytes of one madvise call: a multiple of a huge page's size. A call takes about ten milliseconds
// if memory is slow.
constexpr size_t kPieceBytes = size_t{16} << 20;

// Above this many bytes, each further kBytesPerThread are worth a thread of their own: one thread
// faults in 1.5 GB/s of shared memory, less than a stream brings.
constexpr size_t kBytesPerThread = size_t{64} << 20;
constexpr size_t kMaxThreads = 4;

// Faults in [begin, begin + size_bytes) by this advice. Returns false if the host has no memory.
bool PopulatePiece(char* begin, size_t size_bytes, int advice) {
  return madvise(begin, size_bytes, advice) == 0 || (errno != ENOMEM && errno != EFAULT);
}

// Calls the std::function<void()> at this address.
void* Call(void* function) {
  (*static_cast<std::function<void()>*>(function))();
  return nullptr;
}

// Faults in pages by this advice to madvise. Returns false, with errno ENOMEM, if the host has no
// memory.
bool Populate(char* data, size_t size_bytes, int advice) {
  // madvise needs a page boundary, so begin with the whole first page, even if it also contains
  // other memory.
  const size_t before = reinterpret_cast<uintptr_t>(data) % kPageBytes;
  char* const begin = data - before;
  const size_t length = size_bytes == 0 ? 0 : before + size_bytes;
  std::atomic<size_t> next{0};
  std::atomic<bool> has_memory{true};
  std::function<void()> populate = [&] {
    while (has_memory.load(std::memory_order_relaxed)) {
      const size_t offset = next.fetch_add(kPieceBytes, std::memory_order_relaxed);
      if (offset >= length) return;
      if (!PopulatePiece(begin + offset, std::min(kPieceBytes, length - offset), advice)) {
        has_memory.store(false, std::memory_order_relaxed);
      }
    }
  };
  const size_t cores = std::max<size_t>(1, std::thread::hardware_concurrency());
  const size_t count = std::min({cores, kMaxThreads, length / kBytesPerThread});
  std::vector<pthread_t> others;
  for (size_t i = 1; i < count; ++i) {
    // Not std::thread, which throws where the host allows no more threads. This one then works
    // alone.
    pthread_t other = {};
    if (pthread_create(&other, nullptr, Call, &populate) != 0) break;
    others.push_back(other);
  }
  populate();
  for (const pthread_t other : others) pthread_join(other, nullptr);
  if (!has_memory.load(std::memory_order_relaxed)) {
    errno = ENOMEM;
    return false;
  }
  return true;
}

// Whether the setting of huge pages at this path below that of the kernel chooses one of them.
// The kernel writes all values, and the one that applies in brackets.
bool Chooses(const char* path, std::initializer_list<std::string_view> values) {
  std::ifstream file(std::string("/sys/kernel/mm/transparent_hugepage/") + path);
  std::string text;
  std::getline(file, text);
  return std::any_of(values.begin(), values.end(), [&](std::string_view value) {
    return text.find("[" + std::string(value) + "]") != std::string::npos;
  });
}

}  // namespace

bool PopulatePages(char* data, size_t size_bytes) {
  return Populate(data, size_bytes, MADV_POPULATE_WRITE);
}

void MapPresentPages(const char* data, size_t size_bytes) {
  constexpr size_t kFaultAroundBytes = 16 * kPageBytes;
  const volatile char* const bytes = data;
  for (size_t offset = 0; offset < size_bytes; offset += kFaultAroundBytes) {
    static_cast<void>(bytes[offset]);
  }
}

bool HasHugeSharedPages() {
  // The second setting, of newer kernels, is `inherit` unless the host says otherwise.
  static const bool has_them =
      Chooses("shmem_enabled", {"always", "within_size", "advise", "force"}) ||
      Chooses("hugepages-2048kB/shmem_enabled", {"always", "within_size", "advise"});
  return has_them;
}

char* MapForReading(int fd, size_t size_bytes) {
  void* const mapped = mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const data = static_cast<char*>(mapped);
  // Pages that are there cost less at the first read, because the kernel maps several at a fault.
  struct stat facts = {};
  constexpr size_t kBlockBytes = 512;
  if (fstat(fd, &facts) == 0 &&
      static_cast<size_t>(facts.st_blocks) >= (size_bytes + kBlockBytes - 1) / kBlockBytes &&
      lseek(fd, 0, SEEK_HOLE) >= static_cast<off_t>(size_bytes)) {
    return data;
  }
  if (!Populate(data, size_bytes, MADV_POPULATE_READ)) {
    munmap(mapped, size_bytes);
    errno = ENOMEM;
    return nullptr;
  }
  return data;
}

}  // namespace shardmesh
