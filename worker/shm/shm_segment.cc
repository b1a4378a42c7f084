// Shared memory with memfd_create and seals. Passes descriptors with SCM_RIGHTS.
#include "worker/shm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "process/descriptor_limit.h"
#include "process/failpoint.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
constexpr int F_SEAL_FUTURE_WRITE = 0x0010;  // as in linux/fcntl.h; not every libc has it
#endif
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
constexpr size_t kMaxDescriptors = 16;
constexpr size_t kMaxTextBytes = 4096;

std::atomic<int64_t> mapped_views = 0;
std::atomic<int64_t> max_mapped_views = -1;  // if negative, half of the host's limit applies

// Returns errno as an error with the given code. `what` says what failed.
absl::Status KernelError(absl::StatusCode code, std::string_view what) {
  return absl::Status(code, StrCat(what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Create(const std::string& name,
                                                               int64_t size_bytes, bool prefault) {
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
                           : mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE,
                                  MAP_SHARED | (prefault ? MAP_POPULATE : 0), fd.get(), 0);
  if (memory == MAP_FAILED) {
    return KernelError(absl::StatusCode::kResourceExhausted,
                       StrCat(size_bytes, " bytes of shared memory cannot be mapped"));
  }
  const absl::Span<char> bytes(static_cast<char*>(memory), static_cast<size_t>(size_bytes));
  auto segment = std::unique_ptr<ShmSegment>(new ShmSegment(std::move(fd), bytes));
  if (fcntl(segment->fd(), F_ADD_SEALS, kSeals) != 0) {
    return KernelError(absl::StatusCode::kUnimplemented,
                       "this kernel cannot seal shared memory against writing");
  }
  return segment;
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

absl::Status SendDescriptors(int socket, std::string_view text, absl::Span<const int> fds) {
  if (text.empty() || text.size() > kMaxTextBytes || fds.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(StrCat("a message of ", text.size(), " bytes with ",
                                             fds.size(), " descriptors; it has 1 to ",
                                             kMaxTextBytes, ", with at most ", kMaxDescriptors));
  }
  iovec data = {.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size())
             ? absl::OkStatus()
             : KernelError(absl::StatusCode::kUnavailable, "a peer on this host is not there");
}

absl::StatusOr<ReceivedDescriptors> ReceiveDescriptors(int socket) {
  ReceivedDescriptors received;
  received.text.resize(kMaxTextBytes);
  iovec data = {.iov_base = received.text.data(), .iov_len = received.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t size = 0;
  do {
    size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  for (cmsghdr* header = size < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    std::vector<int> fds((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
    for (const int fd : fds) {
      received.fds.emplace_back(fd);
    }
  }
  if (size <= 0) {
    return size == 0 ? absl::UnavailableError("a peer on this host has hung up")
                     : KernelError(absl::StatusCode::kUnavailable,
                                   "cannot receive from a peer on this host");
  }
  // If the message has more descriptors than this process has free, the kernel drops descriptors of
  // the message. The kernel reports this only by the flag MSG_CTRUNC.
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == MSG_CTRUNC &&
      received.fds.size() < kMaxDescriptors) {
    return absl::ResourceExhaustedError(
        "a peer on this host shares memory, and this process is out of file descriptors for it; "
        "raise its limit (ulimit -n)");
  }
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(StrCat("a peer on this host sent more than ", kMaxTextBytes,
                                             " bytes or ", kMaxDescriptors,
                                             " descriptors at once"));
  }
  received.text.resize(static_cast<size_t>(size));
  return received;
}

}  // namespace shardmesh::worker
