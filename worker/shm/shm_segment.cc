// Shared memory with memfd_create and seals.
#include "worker/shm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "process/descriptor_limit.h"
#include "process/failpoint.h"
#include "process/pages.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
constexpr int F_SEAL_FUTURE_WRITE = 0x0010;  // as in linux/fcntl.h; not every libc has it
#endif
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kSeals = kSizeSeals | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
// The most parts that one system call writes (IOV_MAX).
constexpr size_t kMaxParts = 1024;
constexpr size_t kHugePageBytes = size_t{2} << 20;

std::atomic<int64_t> mapped_views = 0;
std::atomic<int64_t> max_mapped_views = -1;  // if negative, half of the host's limit applies

// Maps shared memory, large memory at a multiple of a huge page, and asks for huge pages. The host
// gives them where `shmem_enabled` of its transparent huge pages is `advise` or more. Returns
// MAP_FAILED, with errno set, if the kernel refuses.
void* MapSegment(int fd, size_t size_bytes, bool prefault) {
  const int populate = prefault ? MAP_POPULATE : 0;
  if (size_bytes < kHugePageBytes) {
    return mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | populate, fd, 0);
  }
  const size_t reserved_bytes = size_bytes + kHugePageBytes;
  void* const reserved =
      mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  char* const begin = static_cast<char*>(reserved);
  const size_t over = reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  char* const data = over == 0 ? begin : begin + (kHugePageBytes - over);
  if (mmap(data, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, reserved_bytes);
    errno = error;
    return MAP_FAILED;
  }
  if (data != begin) munmap(begin, static_cast<size_t>(data - begin));
  char* const end = data + size_bytes;
  if (end != begin + reserved_bytes) {
    munmap(end, static_cast<size_t>(begin + reserved_bytes - end));
  }
  // The last part of a huge page stays in small pages: it would take memory beyond the segment.
  madvise(data, size_bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);  // best effort
  if (prefault && !PopulatePages(data, size_bytes)) {
    munmap(data, size_bytes);
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return data;
}

// Returns errno as an error with the given code. `what` says what failed.
absl::Status KernelError(absl::StatusCode code, std::string_view what) {
  return absl::Status(code, StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Create(const std::string& name,
                                                               int64_t size_bytes, bool prefault) {
  return CreateWith(name, size_bytes, prefault, kSeals);
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::CreateUnfilled(const std::string& name,
                                                                       int64_t size_bytes) {
  return CreateWith(name, size_bytes, /*prefault=*/false, kSizeSeals);
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::CreateWith(const std::string& name,
                                                                   int64_t size_bytes,
                                                                   bool prefault, int seals) {
  FileDescriptor fd(SHARDMESH_FAILS("shm.create")
                        ? -1
                        : memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    return KernelError(absl::StatusCode::kResourceExhausted, "no shared memory can be made");
  }
  if (fd.get() >= FirstReservedDescriptor()) {
    return absl::ResourceExhaustedError(
        "no shared memory can be made: the rest of the file descriptors is for files and "
        "connections; raise the limit (ulimit -n)");
  }
  if (SHARDMESH_FAILS("shm.resize") || ftruncate(fd.get(), size_bytes) != 0) {
    return KernelError(absl::StatusCode::kResourceExhausted,
                       StrCat("no ", size_bytes, " bytes of shared memory can be had"));
  }
  void* const memory = SHARDMESH_FAILS("shm.map")
                           ? MAP_FAILED
                           : MapSegment(fd.get(), static_cast<size_t>(size_bytes), prefault);
  if (memory == MAP_FAILED) {
    return KernelError(absl::StatusCode::kResourceExhausted,
                       StrCat(size_bytes, " bytes of shared memory cannot be mapped"));
  }
  const absl::Span<char> bytes(static_cast<char*>(memory), static_cast<size_t>(size_bytes));
  auto segment = std::unique_ptr<ShmSegment>(new ShmSegment(std::move(fd), bytes));
  if (fcntl(segment->fd(), F_ADD_SEALS, seals) != 0) {
    return KernelError(absl::StatusCode::kUnimplemented,
                       "this kernel cannot seal shared memory against writing");
  }
  return segment;
}

std::unique_ptr<ShmSegment> ShmSegment::Adopt(FileDescriptor& memory, size_t size_bytes) {
  char* const data =
      SHARDMESH_FAILS("shm.adopt") ? nullptr : MapForReading(memory.get(), size_bytes);
  if (data == nullptr) return nullptr;
  return std::unique_ptr<ShmSegment>(
      new ShmSegment(std::move(memory), absl::Span<char>(data, size_bytes)));
}

bool ShmSegment::Write(size_t offset_bytes, absl::Span<const absl::Span<const char>> parts) const {
  std::array<iovec, kMaxParts> vectors;
  size_t skipped_bytes = 0;  // of the first part, which are written
  while (true) {
    while (!parts.empty() && skipped_bytes >= parts[0].size()) {
      skipped_bytes -= parts[0].size();
      parts.remove_prefix(1);
    }
    if (parts.empty()) return true;
    int count = 0;
    for (absl::Span<const char> part : parts.subspan(0, kMaxParts)) {
      if (count == 0) part.remove_prefix(skipped_bytes);
      vectors[static_cast<size_t>(count++)] = {const_cast<char*>(part.data()), part.size()};
    }
    const ssize_t written =
        SHARDMESH_FAILS("shm.write")
            ? -1
            : pwritev(fd_.get(), vectors.data(), count, static_cast<off_t>(offset_bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) return false;
    offset_bytes += static_cast<size_t>(written);
    skipped_bytes += static_cast<size_t>(written);
  }
}

bool ShmSegment::Seal() const {
  return !SHARDMESH_FAILS("shm.seal") && fcntl(fd_.get(), F_ADD_SEALS, kSeals) == 0;
}

ShmSegment::~ShmSegment() { munmap(bytes_.data(), bytes_.size()); }

absl::StatusOr<std::unique_ptr<ShmView>> ShmView::Open(FileDescriptor fd, int64_t size_bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        "the memory that a peer hands over is not sealed against shrinking and writing");
  }
  struct stat known = {};
  if (fstat(fd.get(), &known) != 0 || known.st_size != size_bytes || size_bytes <= 0) {
    return absl::InvalidArgumentError(
        StrCat("a peer's memory has ", known.st_size, " bytes, not ", size_bytes, " as it says"));
  }
  void* memory = MAP_FAILED;
  if (mapped_views.fetch_add(1, std::memory_order_relaxed) < MaxMapped() &&
      !SHARDMESH_FAILS("shm.map_peer")) {
    memory = mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ, MAP_SHARED, fd.get(), 0);
  }
  if (memory == MAP_FAILED) {
    mapped_views.fetch_sub(1, std::memory_order_relaxed);
    return std::unique_ptr<ShmView>(new ShmView(std::move(fd), {}, size_bytes));
  }
  return std::unique_ptr<ShmView>(new ShmView(
      FileDescriptor(),
      absl::Span<const char>(static_cast<const char*>(memory), static_cast<size_t>(size_bytes)),
      size_bytes));
}

ShmView::~ShmView() {
  if (!is_mapped()) return;
  munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  mapped_views.fetch_sub(1, std::memory_order_relaxed);
}

int64_t ShmView::MaxMapped() {
  const int64_t set = max_mapped_views.load(std::memory_order_relaxed);
  if (set >= 0) return set;
  static const int64_t half_of_hosts = [] {
    int64_t allowed = 65'530;  // the kernel's default
    std::ifstream("/proc/sys/vm/max_map_count") >> allowed;
    return allowed / 2;
  }();
  return half_of_hosts;
}

void ShmView::SetMaxMapped(int64_t views) { max_mapped_views.store(views); }

absl::Status ShmView::Read(int64_t offset_bytes, absl::Span<char> to) const {
  while (!to.empty()) {
    const ssize_t got = pread(fd_.get(), to.data(), to.size(), offset_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return KernelError(absl::StatusCode::kInternal, "a peer's memory cannot be read");
    to.remove_prefix(static_cast<size_t>(got));
    offset_bytes += got;
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::worker
