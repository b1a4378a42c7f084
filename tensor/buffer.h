// Aligned memory for tensor bytes, drawn from a budget and pooled.
#ifndef SHARDMESH_TENSOR_BUFFER_H_
#define SHARDMESH_TENSOR_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"

namespace shardmesh {

class FileDescriptor;

// A limit on bytes and the count of reserved bytes. It only counts, and allocates no memory.
// Thread-safe. Must outlive its reservations.
class MemoryBudget {
 public:
  // Reserved bytes of a budget; the destructor releases them. Movable.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation();

    int64_t size_bytes() const { return size_bytes_; }

   private:
    friend class MemoryBudget;
    Reservation(MemoryBudget* budget, int64_t size_bytes)
        : budget_(budget), size_bytes_(size_bytes) {}

    MemoryBudget* budget_ = nullptr;
    int64_t size_bytes_ = 0;
  };

  // limit_bytes >= 0.
  explicit MemoryBudget(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Reserves size_bytes >= 0, all or nothing. If too few bytes are left, calls the Reclaim
  // functions and tries again. If that does not help, returns RESOURCE_EXHAUSTED (MEMORY_LIMIT).
  // The message states the purpose, the needed and the remaining bytes, and the limit. `what`
  // completes "... needed for <what>".
  absl::StatusOr<Reservation> Reserve(int64_t size_bytes, std::string_view what);
  // Like Reserve, without calling Reclaim functions: for optional memory, such as a cache.
  absl::StatusOr<Reservation> TryReserve(int64_t size_bytes, std::string_view what);

  // A function that releases dispensable memory so that size_bytes can be reserved. Returns whether
  // it released any memory. Reserve calls the function on its caller's thread, which may hold
  // locks. The function must not take a lock that any caller of Reserve holds, and must not reserve
  // memory.
  using Reclaim = std::function<bool(int64_t size_bytes)>;
  // Adds a function for Reserve to call; each owner can have one function. After RemoveReclaim
  // returns, the owner's function is not running and is never called again.
  void AddReclaim(const void* owner, Reclaim reclaim);
  void RemoveReclaim(const void* owner);

  int64_t limit_bytes() const { return limit_bytes_; }
  int64_t used_bytes() const;

 private:
  void GiveBack(int64_t size_bytes);

  const int64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Reserve holds this mutex for reading while it calls a Reclaim function. RemoveReclaim therefore
  // waits until the function returns.
  absl::Mutex reclaims_mutex_;
  std::map<const void*, Reclaim> reclaims_ ABSL_GUARDED_BY(reclaims_mutex_);
};

// Whether an error of a pool or a buffer says that the host refused memory that the budget allows.
// The budget's own error has the same reason, MEMORY_LIMIT.
bool IsHostShortage(const absl::Status& refused);

// Returns the bytes to free on a host that refused memory for a piece of `piece_bytes` of a buffer,
// which gets its memory piece by piece and lacks `missing_bytes`, those of the piece included.
// These are the piece and the following ones up to 64 MiB: the host may have memory for the others.
int64_t BytesToFreeFor(int64_t piece_bytes, int64_t missing_bytes);

// The source of a pool's memory. Thread-safe.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Returns memory of capacity_bytes > 0, a multiple of 64, faulted in, at an address that is a
  // multiple of 64. Returns null, with errno set, if the host refuses.
  virtual char* Allocate(size_t capacity_bytes) = 0;
  // Frees a block that Allocate, AllocateUnfilled or Adopt returned for that size.
  virtual void Free(char* data, size_t capacity_bytes) = 0;
  // Returns a block like Allocate, but without pages: the host gives them as Write fills them. The
  // kernel need not clear a page that Write fills. Returns null, with errno set, if the source has
  // no such blocks of this size, or if the host refuses. The base class has none.
  virtual char* AllocateUnfilled(size_t capacity_bytes);
  // Writes the parts, one after the other, into an unfilled block, from `to` on. Requires that
  // EndWriting was not called. Returns false, with errno set, if the host has no memory for them.
  virtual bool Write(char* to, absl::Span<const absl::Span<const char>> parts);
  // Says that all pages of an unfilled block are written. From now on the block is like others,
  // except that its pages, which are in memory, need not be mapped.
  virtual void EndWriting(char*) {}
  // Returns a block that is the first size_bytes > 0 of `memory`, sealed memory of another process
  // (process/sealed). The block may only be read. The caller frees it with the size that a block of
  // Allocate for size_bytes would have: rounded up to pages. May take the descriptor. Returns null,
  // with errno set, if the source or the host refuses; `memory` is then unchanged. The base class
  // refuses.
  virtual char* Adopt(FileDescriptor& memory, size_t size_bytes);
};

class BufferPool;

// The pages of a block: faulted in; in memory, but not mapped; or not all in memory.
enum class BlockPages { kMapped, kFilled, kMissing };

// A contiguous block of memory that starts at a multiple of 64 bytes. Its bytes are unspecified at
// first. Movable, not copyable. Several threads may use different buffers at the same time. One
// buffer has the thread safety of an array.
class Buffer {
 public:
  static constexpr size_t kAlignment = 64;

  // Empty.
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  // Returns the memory to its pool.
  ~Buffer();

  // Whether the memory may only be read: it is the memory of another process, see
  // BufferPool::Adopt. Writing to it ends this process.
  bool is_read_only() const { return is_read_only_; }
  // Whether Write has not yet filled all of a buffer that AllocateUnfilled returned.
  bool is_unfilled() const { return pages_ == BlockPages::kMissing; }

  // Writes the parts, one after the other, from offset_bytes on. Requires that the buffer has room
  // for them, and that is_read_only() is false. If is_unfilled(), requires that all bytes before
  // offset_bytes are written. RESOURCE_EXHAUSTED (MEMORY_LIMIT) if the host has no memory for the
  // parts; only an unfilled buffer returns this, and some of the parts may then be written. The
  // same call may follow once the host has memory again.
  absl::Status Write(size_t offset_bytes, absl::Span<const absl::Span<const char>> parts);
  // Makes an unfilled buffer like one of BufferPool::Allocate: faults in its pages. Bytes that were
  // not written are zero. RESOURCE_EXHAUSTED (MEMORY_LIMIT) if the host has no memory for them.
  absl::Status FaultIn();

  const char* data() const { return data_; }
  char* data() { return data_; }
  size_t size() const { return size_bytes_; }
  absl::Span<const char> bytes() const { return {data_, size_bytes_}; }
  absl::Span<char> mutable_bytes() { return {data_, size_bytes_}; }

 private:
  friend class BufferPool;

  // The error if the host has no memory for these bytes of an unfilled buffer.
  absl::Status RefusedByHost(size_t begin_bytes, size_t end_bytes) const;

  std::shared_ptr<BufferPool> pool_;
  MemoryBudget::Reservation reservation_;
  char* data_ = nullptr;
  size_t size_bytes_ = 0;      // as requested
  size_t capacity_bytes_ = 0;  // allocated and reserved
  bool is_read_only_ = false;
  BlockPages pages_ = BlockPages::kMapped;
};

// Allocates buffers, and keeps returned buffers for later requests of about the same size.
//
// A pool without a `source` maps buffers of a page or more from the kernel and faults the pages in
// at once, so that the first writer causes no page faults. Its large buffers use huge pages if the
// host allows. Idle buffers count against the budget; the pool frees them before it refuses an
// allocation. A returned buffer takes the place of those that were returned longest ago.
//
// Thread-safe. Buffers keep their pool alive; the budget must outlive the pool and its buffers.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  // Keeps at most max_idle_bytes in idle buffers.
  static std::shared_ptr<BufferPool> Create(MemoryBudget* budget, int64_t max_idle_bytes,
                                            std::shared_ptr<BlockSource> source = nullptr);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  // Returns a buffer of size_bytes >= 0 (no memory for 0). Returns RESOURCE_EXHAUSTED if the budget
  // does not allow the size (checked before any allocation), or if the source returns no memory,
  // also after the pool has freed its idle buffers.
  // `what` as in MemoryBudget::Reserve.
  absl::StatusOr<Buffer> Allocate(int64_t size_bytes, std::string_view what);
  // Like Allocate, without calling Reclaim functions: for memory that can wait.
  absl::StatusOr<Buffer> TryAllocate(int64_t size_bytes, std::string_view what);
  // Like Allocate, for a buffer whose bytes all come by Buffer::Write. If the source can do so, the
  // pages of a large buffer are then neither faulted in nor cleared. The budget counts all of the
  // buffer at once. If the host has too little memory, Buffer::Write says so.
  absl::StatusOr<Buffer> AllocateUnfilled(int64_t size_bytes, std::string_view what);

  // Returns a buffer that is `memory`: sealed memory of another process (process/sealed), which has
  // size_bytes > 0. Copies the bytes into a buffer of this pool instead if the source cannot use
  // the memory as it is, for example because it is smaller than a page. Errors as Allocate. The
  // memory counts against the budget and never becomes an idle buffer.
  absl::StatusOr<Buffer> Adopt(FileDescriptor memory, int64_t size_bytes, std::string_view what);

  // Frees the idle buffers.
  void Trim();
  // Frees a buffer of this pool when it is returned, and does not keep it as an idle one. Serves
  // large buffers whose size is not soon asked for again. The holder of the buffer does not matter.
  void FreeOnReturn(const Buffer& buffer);

  int64_t idle_bytes() const;
  MemoryBudget& budget() const { return *budget_; }

 private:
  struct Block {
    MemoryBudget::Reservation reservation;
    char* data = nullptr;
    size_t capacity_bytes = 0;
    bool is_read_only = false;
    BlockPages pages = BlockPages::kMapped;
    uint64_t returned = 0;  // the number of the Return that made the block idle
  };
  using IdleBlocks = std::multimap<size_t, Block>;  // by capacity
  friend class Buffer;

  BufferPool(MemoryBudget* budget, int64_t max_idle_bytes, std::shared_ptr<BlockSource> source)
      : budget_(budget), max_idle_bytes_(max_idle_bytes), source_(std::move(source)) {}

  // Removes and returns an idle block that fits without much waste. If there is none, the returned
  // block's data is null.
  Block TakeIdle(size_t capacity_bytes);
  Block RemoveIdle(IdleBlocks::iterator idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // MemoryBudget::Reserve or MemoryBudget::TryReserve.
  using ReserveFunction = absl::StatusOr<MemoryBudget::Reservation> (MemoryBudget::*)(
      int64_t size_bytes, std::string_view what);
  // BlockSource::Allocate, or BlockSource::AllocateUnfilled if `unfilled` and the source can.
  Block AllocateBlock(size_t capacity_bytes, bool unfilled);
  // Allocates memory that `reserve` reserves.
  absl::StatusOr<Buffer> AllocateWith(ReserveFunction reserve, int64_t size_bytes,
                                      std::string_view what, bool unfilled = false);
  // Reserves memory, of idle buffers too if need be. Errors as `reserve`.
  absl::StatusOr<MemoryBudget::Reservation> ReserveFor(ReserveFunction reserve,
                                                       size_t capacity_bytes,
                                                       std::string_view what);
  Buffer Hold(Block block, int64_t size_bytes);
  // Keeps the block as an idle one, or frees it.
  void Return(Block block);

  MemoryBudget* const budget_;
  const int64_t max_idle_bytes_;
  const std::shared_ptr<BlockSource> source_;
  mutable absl::Mutex mutex_;
  IdleBlocks idle_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, IdleBlocks::iterator> idle_by_age_ ABSL_GUARDED_BY(mutex_);  // by `returned`
  int64_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<const char*> freed_on_return_ ABSL_GUARDED_BY(mutex_);  // Buffer::data()
  uint64_t returns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_BUFFER_H_
