// Memory with memfd_create, filled with write(2).
#include "process/sealed/sealed_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

#include "process/descriptor_limit.h"
#include "process/failpoint.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
constexpr int F_SEAL_FUTURE_WRITE = 0x0010;  // as in linux/fcntl.h; not every libc has it
#endif

struct Seal {
  int bit;
  std::string_view name;
};
// F_SEAL_WRITE covers F_SEAL_FUTURE_WRITE. Workers ask for the latter of any memory that one of
// them shows to another.
constexpr Seal kSeals[] = {{F_SEAL_SEAL, "seal"},
                           {F_SEAL_SHRINK, "shrink"},
                           {F_SEAL_GROW, "grow"},
                           {F_SEAL_WRITE, "write"},
                           {F_SEAL_FUTURE_WRITE, "future_write"}};
constexpr int kAllSeals =
    F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

// Returns errno as an error with the given code. `what` says what failed.
absl::Status KernelError(absl::StatusCode code, std::string_view what) {
  return absl::Status(code, StrCat(what, ": ", std::strerror(errno)));
}

std::string NamesOf(int seals) {
  std::string names;
  for (const Seal& seal : kSeals) {
    if ((seals & seal.bit) != 0) StrAppend(&names, names.empty() ? "" : ",", seal.name);
  }
  return names.empty() ? "none" : names;
}

}  // namespace

absl::StatusOr<SealedMemoryWriter> SealedMemoryWriter::Create(int64_t size_bytes) {
  errno = 0;
  FileDescriptor memory(SHARDMESH_FAILS("memory.sealed_create")
                            ? -1
                            : memfd_create("shardmesh-handover", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) {
    return KernelError(
        errno == ENOSYS ? absl::StatusCode::kUnimplemented : absl::StatusCode::kResourceExhausted,
        "no memory can be made that a worker takes");
  }
  if (memory.get() >= FirstReservedDescriptor()) {
    return absl::ResourceExhaustedError(
        "no memory can be made that a worker takes: the rest of the file descriptors is for files "
        "and connections; raise the limit (ulimit -n)");
  }
  if (ftruncate(memory.get(), size_bytes) != 0) {
    return KernelError(absl::StatusCode::kResourceExhausted,
                       StrCat("no ", size_bytes, " bytes of memory for a worker can be had"));
  }
  return SealedMemoryWriter(std::move(memory), size_bytes);
}

absl::Status SealedMemoryWriter::Append(absl::Span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = SHARDMESH_FAILS("memory.sealed_write")
                                ? -1
                                : pwrite(memory_.get(), bytes.data(), bytes.size(), written_bytes_);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return KernelError(
          absl::StatusCode::kResourceExhausted,
          StrCat("only ", written_bytes_, " of ", size_bytes_, " bytes of memory can be filled"));
    }
    written_bytes_ += written;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileDescriptor> SealedMemoryWriter::Seal() && {
  if (written_bytes_ != size_bytes_) {
    return absl::FailedPreconditionError(
        StrCat("only ", written_bytes_, " of ", size_bytes_, " bytes of memory are filled"));
  }
  if (fcntl(memory_.get(), F_ADD_SEALS, kAllSeals) != 0) {
    return KernelError(absl::StatusCode::kUnimplemented, "this kernel cannot seal memory");
  }
  return std::move(memory_);
}

absl::Status CheckSealed(const FileDescriptor& memory, int64_t size_bytes) {
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  struct statfs system = {};
  // Memory of huge pages has another file system. Its mappings must have other sizes, and their
  // pages may run out when they are read.
  if (seals < 0 || fstatfs(memory.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return InvalidArgument(Reason::kBadTile,
                           "the descriptor that was handed over is no memory of memfd_create with "
                           "pages of the ordinary size");
  }
  if ((seals & kAllSeals) != kAllSeals) {
    return InvalidArgument(
        Reason::kBadTile,
        StrCat("the memory that was handed over lacks the seals ", NamesOf(kAllSeals & ~seals),
               ": its bytes could change; seal it before it is handed over"),
        {{fact::kHave, NamesOf(seals)}, {fact::kNeed, NamesOf(kAllSeals)}});
  }
  struct stat facts = {};
  if (fstat(memory.get(), &facts) != 0 || facts.st_size != size_bytes || size_bytes <= 0) {
    return InvalidArgument(Reason::kBadTile,
                           StrCat("the memory that was handed over has ", facts.st_size,
                                  " bytes, and the tile ", size_bytes),
                           {{fact::kHave, int64_t{facts.st_size}}, {fact::kNeed, size_bytes}});
  }
  return absl::OkStatus();
}

absl::Status ReadSealed(const FileDescriptor& memory, absl::Span<char> to) {
  for (off_t offset_bytes = 0; !to.empty();) {
    const ssize_t got = pread(memory.get(), to.data(), to.size(), offset_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return KernelError(absl::StatusCode::kInternal, "memory that was handed over cannot be read");
    }
    to.remove_prefix(static_cast<size_t>(got));
    offset_bytes += got;
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
