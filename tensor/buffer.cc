// Aligned memory for tensor bytes: the budget's counter, and blocks that are mapped, faulted in and
// pooled.
#include "tensor/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "process/failpoint.h"
#include "process/file.h"
#include "process/pages.h"
#include "process/sealed/sealed_memory.h"
#include "status/byte_text.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t RoundUp(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

// Returns the allocated size for a request of size_bytes > 0.
size_t CapacityFor(size_t size_bytes) {
  return RoundUp(size_bytes, size_bytes < kPageBytes ? Buffer::kAlignment : kPageBytes);
}

bool IsMapped(size_t capacity_bytes) { return capacity_bytes >= kPageBytes; }

// Maps pages that start at a multiple of `alignment`; returns null if the kernel refuses.
char* MapAligned(size_t capacity_bytes, size_t alignment) {
  const size_t mapped_bytes = capacity_bytes + (alignment > kPageBytes ? alignment : 0);
  void* mapped = SHARDMESH_FAILS("memory.map") ? MAP_FAILED
                                               : mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                                                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return nullptr;
  }
  char* begin = static_cast<char*>(mapped);
  char* data = begin + (RoundUp(reinterpret_cast<uintptr_t>(begin), alignment) -
                        reinterpret_cast<uintptr_t>(begin));
  if (data != begin) {
    munmap(begin, static_cast<size_t>(data - begin));
  }
  char* end = begin + mapped_bytes;
  if (data + capacity_bytes != end) {
    munmap(data + capacity_bytes, static_cast<size_t>(end - data) - capacity_bytes);
  }
  return data;
}

// Memory that only this process maps.
class PrivateBlocks final : public BlockSource {
 public:
  char* Allocate(size_t capacity_bytes) override {
    if (!IsMapped(capacity_bytes)) {
      return static_cast<char*>(std::aligned_alloc(Buffer::kAlignment, capacity_bytes));
    }
    const bool huge = capacity_bytes >= kHugePageBytes;
    char* data = MapAligned(capacity_bytes, huge ? kHugePageBytes : kPageBytes);
    if (data == nullptr) {
      return nullptr;
    }
    if (huge) {
      madvise(data, capacity_bytes, MADV_HUGEPAGE);  // best effort: a host may lack huge pages
    }
    if (!PopulatePages(data, capacity_bytes)) {
      munmap(data, capacity_bytes);
      errno = ENOMEM;
      return nullptr;
    }
    return data;
  }

  char* Adopt(FileDescriptor& memory, size_t size_bytes) override {
    if (!IsMapped(size_bytes)) {
      errno = EINVAL;
      return nullptr;
    }
    return MapForReading(memory.get(), size_bytes);
  }

  void Free(char* data, size_t capacity_bytes) override {
    if (data == nullptr) {
      return;
    }
    if (IsMapped(capacity_bytes)) {
      munmap(data, capacity_bytes);
    } else {
      std::free(data);
    }
  }
};

}  // namespace

char* BlockSource::Adopt(FileDescriptor&, size_t) {
  errno = ENOTSUP;
  return nullptr;
}

char* BlockSource::AllocateUnfilled(size_t) {
  errno = ENOTSUP;
  return nullptr;
}

bool BlockSource::Write(char*, absl::Span<const absl::Span<const char>>) {
  errno = ENOTSUP;
  return false;
}

bool IsHostShortage(const absl::Status& refused) {
  return ReasonOf(refused) == Reason::kMemoryLimit && !FactOf(refused, fact::kHave).has_value();
}

int64_t BytesToFreeFor(int64_t piece_bytes, int64_t missing_bytes) {
  // Few pieces of a large buffer ask, and each takes little from a cache.
  constexpr int64_t kAtOnceBytes = int64_t{64} << 20;
  return std::min(std::max(piece_bytes, kAtOnceBytes), missing_bytes);
}

MemoryBudget::Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MemoryBudget::Reservation& MemoryBudget::Reservation::operator=(Reservation&& other) noexcept {
  std::swap(budget_, other.budget_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MemoryBudget::Reservation::~Reservation() {
  if (budget_ != nullptr) {
    budget_->GiveBack(size_bytes_);
  }
}

absl::StatusOr<MemoryBudget::Reservation> MemoryBudget::Reserve(int64_t size_bytes,
                                                                std::string_view what) {
  absl::StatusOr<Reservation> reserved = TryReserve(size_bytes, what);
  if (reserved.ok()) {
    return reserved;
  }
  absl::ReaderMutexLock lock(&reclaims_mutex_);
  for (const auto& [owner, reclaim] : reclaims_) {
    if (reserved.ok()) {
      break;
    }
    if (reclaim(size_bytes)) {
      reserved = TryReserve(size_bytes, what);
    }
  }
  return reserved;
}

void MemoryBudget::AddReclaim(const void* owner, Reclaim reclaim) {
  absl::MutexLock lock(&reclaims_mutex_);
  reclaims_[owner] = std::move(reclaim);
}

void MemoryBudget::RemoveReclaim(const void* owner) {
  absl::MutexLock lock(&reclaims_mutex_);
  reclaims_.erase(owner);
}

absl::StatusOr<MemoryBudget::Reservation> MemoryBudget::TryReserve(int64_t size_bytes,
                                                                   std::string_view what) {
  absl::MutexLock lock(&mutex_);
  const int64_t left_bytes = limit_bytes_ - used_bytes_;
  if (size_bytes > left_bytes) {
    const auto [need, left] = FormatBytesApart(size_bytes, left_bytes);
    return WithReason(
        absl::ResourceExhaustedError(StrCat(need, " are needed for ", what, ", but ", left,
                                            " of the limit of ", FormatBytes(limit_bytes_),
                                            " are left; release arrays or raise the memory limit")),
        Reason::kMemoryLimit, {{fact::kHave, left_bytes}, {fact::kNeed, size_bytes}});
  }
  used_bytes_ += size_bytes;
  return Reservation(this, size_bytes);
}

int64_t MemoryBudget::used_bytes() const {
  absl::MutexLock lock(&mutex_);
  return used_bytes_;
}

void MemoryBudget::GiveBack(int64_t size_bytes) {
  absl::MutexLock lock(&mutex_);
  used_bytes_ -= size_bytes;
}

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      reservation_(std::move(other.reservation_)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      capacity_bytes_(std::exchange(other.capacity_bytes_, 0)),
      is_read_only_(std::exchange(other.is_read_only_, false)),
      pages_(std::exchange(other.pages_, BlockPages::kMapped)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(pool_, taken.pool_);
  std::swap(reservation_, taken.reservation_);
  std::swap(data_, taken.data_);
  std::swap(size_bytes_, taken.size_bytes_);
  std::swap(capacity_bytes_, taken.capacity_bytes_);
  std::swap(is_read_only_, taken.is_read_only_);
  std::swap(pages_, taken.pages_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    pool_->Return({std::move(reservation_), data_, capacity_bytes_, is_read_only_, pages_});
  }
}

absl::Status Buffer::Write(size_t offset_bytes, absl::Span<const absl::Span<const char>> parts) {
  if (!is_unfilled()) {
    char* to = data_ + offset_bytes;
    for (const absl::Span<const char> part : parts) to = std::copy(part.begin(), part.end(), to);
    return absl::OkStatus();
  }
  size_t end_bytes = offset_bytes;
  for (const absl::Span<const char> part : parts) end_bytes += part.size();
  if (!pool_->source_->Write(data_ + offset_bytes, parts)) {
    return RefusedByHost(offset_bytes, end_bytes);
  }
  if (end_bytes == size_bytes_) {
    pool_->source_->EndWriting(data_);
    pages_ = BlockPages::kFilled;
  }
  return absl::OkStatus();
}

absl::Status Buffer::FaultIn() {
  if (!is_unfilled()) return absl::OkStatus();
  if (SHARDMESH_FAILS("memory.fault_in") || !PopulatePages(data_, capacity_bytes_)) {
    return RefusedByHost(0, size_bytes_);
  }
  pool_->source_->EndWriting(data_);
  pages_ = BlockPages::kMapped;
  return absl::OkStatus();
}

absl::Status Buffer::RefusedByHost(size_t begin_bytes, size_t end_bytes) const {
  return WithReason(
      absl::ResourceExhaustedError(StrCat(
          "the host refuses memory for bytes ", begin_bytes, " to ", end_bytes, " of ", size_bytes_,
          " (", std::strerror(errno), "); lower the memory limit or free memory on the host")),
      Reason::kMemoryLimit, {{fact::kNeed, static_cast<int64_t>(end_bytes - begin_bytes)}});
}

std::shared_ptr<BufferPool> BufferPool::Create(MemoryBudget* budget, int64_t max_idle_bytes,
                                               std::shared_ptr<BlockSource> source) {
  if (source == nullptr) source = std::make_shared<PrivateBlocks>();
  return std::shared_ptr<BufferPool>(new BufferPool(budget, max_idle_bytes, std::move(source)));
}

BufferPool::~BufferPool() { Trim(); }

absl::StatusOr<Buffer> BufferPool::Allocate(int64_t size_bytes, std::string_view what) {
  return AllocateWith(&MemoryBudget::Reserve, size_bytes, what);
}

absl::StatusOr<Buffer> BufferPool::TryAllocate(int64_t size_bytes, std::string_view what) {
  return AllocateWith(&MemoryBudget::TryReserve, size_bytes, what);
}

absl::StatusOr<Buffer> BufferPool::AllocateUnfilled(int64_t size_bytes, std::string_view what) {
  return AllocateWith(&MemoryBudget::Reserve, size_bytes, what, /*unfilled=*/true);
}

BufferPool::Block BufferPool::AllocateBlock(size_t capacity_bytes, bool unfilled) {
  Block block;
  block.capacity_bytes = capacity_bytes;
  if (unfilled) {
    block.data = source_->AllocateUnfilled(capacity_bytes);
    if (block.data != nullptr) block.pages = BlockPages::kMissing;
  }
  if (block.data == nullptr) block.data = source_->Allocate(capacity_bytes);
  return block;
}

absl::StatusOr<Buffer> BufferPool::AllocateWith(ReserveFunction reserve, int64_t size_bytes,
                                                std::string_view what, bool unfilled) {
  if (size_bytes < 0 || size_bytes > std::numeric_limits<int64_t>::max() - int64_t{kPageBytes}) {
    return InvalidArgument(Reason::kInvalidShape,
                           StrCat("cannot allocate ", size_bytes, " bytes for ", what),
                           {{fact::kValue, size_bytes}});
  }
  if (size_bytes == 0) {
    return Buffer();
  }
  const size_t capacity_bytes = CapacityFor(static_cast<size_t>(size_bytes));
  Block block = TakeIdle(capacity_bytes);
  if (block.pages == BlockPages::kFilled) {
    MapPresentPages(block.data, block.capacity_bytes);
    block.pages = BlockPages::kMapped;
  }
  if (block.data == nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(MemoryBudget::Reservation reservation,
                               ReserveFor(reserve, capacity_bytes, what));
    block = AllocateBlock(capacity_bytes, unfilled);
    if (block.data == nullptr && idle_bytes() > 0) {
      // The host may need the memory of idle buffers of other sizes.
      Trim();
      block = AllocateBlock(capacity_bytes, unfilled);
    }
    block.reservation = std::move(reservation);
    if (block.data == nullptr) {
      return WithReason(
          absl::ResourceExhaustedError(StrCat(
              FormatBytes(size_bytes), " are needed for ", what, ", but the host refuses them (",
              std::strerror(errno), "); lower the memory limit or free memory on the host")),
          Reason::kMemoryLimit, {{fact::kNeed, size_bytes}});
    }
  }
  return Hold(std::move(block), size_bytes);
}

Buffer BufferPool::Hold(Block block, int64_t size_bytes) {
  Buffer buffer;
  buffer.pool_ = shared_from_this();
  buffer.reservation_ = std::move(block.reservation);
  buffer.data_ = block.data;
  buffer.size_bytes_ = static_cast<size_t>(size_bytes);
  buffer.capacity_bytes_ = block.capacity_bytes;
  buffer.is_read_only_ = block.is_read_only;
  buffer.pages_ = block.pages;
  return buffer;
}

absl::StatusOr<MemoryBudget::Reservation> BufferPool::ReserveFor(ReserveFunction reserve,
                                                                 size_t capacity_bytes,
                                                                 std::string_view what) {
  auto reservation = (budget_->*reserve)(static_cast<int64_t>(capacity_bytes), what);
  if (!reservation.ok()) {
    Trim();
    reservation = (budget_->*reserve)(static_cast<int64_t>(capacity_bytes), what);
  }
  return reservation;
}

absl::StatusOr<Buffer> BufferPool::Adopt(FileDescriptor memory, int64_t size_bytes,
                                         std::string_view what) {
  const size_t capacity_bytes = CapacityFor(static_cast<size_t>(size_bytes));
  {
    Block block{.reservation = {}, .capacity_bytes = capacity_bytes, .is_read_only = true};
    SHARDMESH_ASSIGN_OR_RETURN(block.reservation,
                               ReserveFor(&MemoryBudget::Reserve, capacity_bytes, what));
    block.data = source_->Adopt(memory, static_cast<size_t>(size_bytes));
    if (block.data != nullptr) return Hold(std::move(block), size_bytes);
  }
  SHARDMESH_ASSIGN_OR_RETURN(Buffer copy, Allocate(size_bytes, what));
  SHARDMESH_RETURN_IF_ERROR(ReadSealed(memory, copy.mutable_bytes()));
  return copy;
}

void BufferPool::Trim() {
  IdleBlocks dropped;
  {
    absl::MutexLock lock(&mutex_);
    dropped.swap(idle_);
    idle_by_age_.clear();
    idle_bytes_ = 0;
  }
  for (auto& [capacity_bytes, block] : dropped) {
    source_->Free(block.data, capacity_bytes);
  }
}

int64_t BufferPool::idle_bytes() const {
  absl::MutexLock lock(&mutex_);
  return idle_bytes_;
}

BufferPool::Block BufferPool::TakeIdle(size_t capacity_bytes) {
  absl::MutexLock lock(&mutex_);
  // Accept a block that is larger by at most an eighth: the waste is cheaper than a new mapping.
  const auto found = idle_.lower_bound(capacity_bytes);
  if (found == idle_.end() || found->first > capacity_bytes + capacity_bytes / 8) {
    return {};
  }
  return RemoveIdle(found);
}

BufferPool::Block BufferPool::RemoveIdle(IdleBlocks::iterator idle) {
  Block block = std::move(idle->second);
  idle_by_age_.erase(block.returned);
  idle_.erase(idle);
  idle_bytes_ -= static_cast<int64_t>(block.capacity_bytes);
  return block;
}

void BufferPool::FreeOnReturn(const Buffer& buffer) {
  if (buffer.data() == nullptr) return;
  absl::MutexLock lock(&mutex_);
  freed_on_return_.insert(buffer.data());
}

void BufferPool::Return(Block block) {
  std::vector<Block> dropped;
  const auto capacity_bytes = static_cast<int64_t>(block.capacity_bytes);
  const bool may_be_idle = !block.is_read_only && block.pages != BlockPages::kMissing &&
                           capacity_bytes <= max_idle_bytes_;
  {
    absl::MutexLock lock(&mutex_);
    if (freed_on_return_.erase(block.data) > 0 || !may_be_idle) {
      dropped.push_back(std::move(block));
    } else {
      while (idle_bytes_ + capacity_bytes > max_idle_bytes_) {
        dropped.push_back(RemoveIdle(idle_by_age_.begin()->second));
      }
      block.returned = returns_++;
      const auto idle = idle_.emplace(block.capacity_bytes, std::move(block));
      idle_by_age_.emplace(idle->second.returned, idle);
      idle_bytes_ += capacity_bytes;
    }
  }
  for (const Block& each : dropped) source_->Free(each.data, each.capacity_bytes);
}

}  // namespace shardmesh
