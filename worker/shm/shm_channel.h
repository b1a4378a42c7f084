// Messages between two workers of one host through memory that each maps of the other.
#ifndef SHARDMESH_WORKER_SHM_SHM_CHANNEL_H_
#define SHARDMESH_WORKER_SHM_SHM_CHANNEL_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/steady_deadline.h"
#include "tensor/buffer.h"
#include "worker/collective/link.h"
#include "worker/shm/shm_arena.h"
#include "worker/shm/shm_ring.h"
#include "worker/shm/shm_segment.h"

namespace shardmesh::worker {

// Most bytes of the text that says what an op is (Link::Begin).
inline constexpr size_t kShmSignatureBytes = 512;

// What one end of a channel shows the other: written by its owner alone.
struct ShmControl {
  // Of this layout; another one is not understood.
  static constexpr uint64_t kLayout = 0x73686d'0004;

  uint64_t layout = kLayout;
  // The owner's, as its hello on the Exchange stream had it: the memory is that of the worker
  // behind the stream.
  std::array<char, 16> token = {};
  // Notes written, modulo 2^32: what a reader that found none sleeps on.
  alignas(64) std::atomic<uint32_t> written = 0;
  // How many threads of the owner sleep until the other end writes a note.
  alignas(64) std::atomic<uint32_t> sleeps = 0;
  // The owner keeps its messages no longer: what is read from then on may be something else.
  alignas(64) std::atomic<uint32_t> closed = 0;
  RingReads reads = {};
  RingSlots slots = {};
  // By slot: what the note's op is, where the note has one.
  std::array<std::array<char, kShmSignatureBytes>, kRingSlots> signatures = {};

  static int64_t SizeBytes();  // in whole pages
};

// One end of a channel. A message of at most kInlineBytes travels inside its note. A larger one
// stays where it is, in the sender's arena, and the note says where: the receiver reads it there,
// and the sender keeps it until the receiver has let go of it, whatever becomes of the step, or
// until the channel is closed.
//
// Nothing here waits for the other end. What finds no room, or lies outside the arena, is not
// taken: it is for the stream. What the other end writes is copied, then judged; a wrong note is
// DATA_LOSS.
//
// Thread-safe.
class ShmChannel : public std::enable_shared_from_this<ShmChannel> {
 public:
  static constexpr size_t kInlineBytes = 160;

  // `control` is this end's, `theirs` the other's, each of ShmControl::SizeBytes(); `socket` the
  // one over which segments are handed over (kept). Messages that have to be copied are reserved
  // from `budget`, unless it is null. Arena and budget outlive the channel and its messages.
  ShmChannel(std::unique_ptr<ShmSegment> control, std::unique_ptr<ShmView> theirs,
             std::shared_ptr<const FileDescriptor> socket, const ShmArena* arena,
             MemoryBudget* budget = nullptr);
  ~ShmChannel();

  // Sends a message of at least one byte; `signature` may be empty. False if it was not taken.
  bool TrySend(const Tag& tag, int64_t epoch, std::string_view signature, uint64_t signature_hash,
               const OwnedBytes& message);

  struct Arrived {
    int64_t step = 0;
    int64_t op = 0;
    int64_t round = 0;
    int64_t epoch = 0;
    // In the sender's memory, or copied if it came inside the note.
    OwnedBytes message = {};
    // 0 where the note has no signature. The text is empty where the hash is the one expected.
    uint64_t signature_hash = 0;
    std::string signature = {};
  };
  // Takes the next message; false if there is none, if it lies in a segment that is still to come
  // over the socket, and once the channel is closed. What lies in a segment that could not be
  // mapped is copied. DATA_LOSS if the other end does not keep to the protocol, among others if a
  // segment takes longer than 2 s to come; RESOURCE_EXHAUSTED if there is no memory for a copy
  // (MEMORY_LIMIT: of the budget): close the channel and its stream.
  absl::StatusOr<bool> TryReceive(uint64_t expected_hash, Arrived* arrived);

  // Sleeps until a message comes, or `changes` is no longer `seen`, at most for `timeout`. May wake
  // for nothing; wakes after 1 ms at the latest where the kernel cannot wait for both (before Linux
  // 5.16). Who changes `changes` wakes who sleeps on it, as Mailbox does. Any number of threads.
  void Sleep(const std::atomic<uint32_t>& changes, uint32_t seen, absl::Duration timeout);

  // Lets go of messages that the other end has read. To be called now and then.
  void Reap();

  // Takes and gives nothing from now on; messages that the other end did not read are let go of.
  void Close();
  bool closed() const { return closed_.load(std::memory_order_acquire); }
  // Whether the other end has closed: if not, all that was read of its messages before was theirs.
  bool peer_closed() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return their().closed.load(std::memory_order_relaxed) != 0;
  }

  // For ShmPeers, as its socket says and the arena: a segment of the other end, or no more; a
  // segment of this end went back to the host.
  // RESOURCE_EXHAUSTED beyond kMaxViews of them.
  static constexpr size_t kMaxViews = 32'768;
  absl::Status AddView(uint64_t segment_id, std::shared_ptr<const ShmView> view);
  void DropView(uint64_t segment_id);
  void SegmentFreed(uint64_t segment_id);

 private:
  struct Pinned {
    uint64_t number = 0;
    OwnedBytes message;
  };
  struct Pin;
  struct Copy;

  ShmControl& own() const { return *reinterpret_cast<ShmControl*>(control_->bytes().data()); }
  const ShmControl& their() const {
    return *reinterpret_cast<const ShmControl*>(theirs_->bytes().data());
  }
  // Whether the other end can map the segment.
  bool Introduce(uint64_t segment_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void ReapLocked(std::deque<Pinned>& done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  void TellFreed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(send_mutex_);
  // The segment's view; null if it has not come.
  std::shared_ptr<const ShmView> ViewOf(uint64_t segment_id);

  const std::unique_ptr<ShmSegment> control_;
  const std::unique_ptr<ShmView> theirs_;
  const std::shared_ptr<const FileDescriptor> socket_;
  const ShmArena* const arena_;
  MemoryBudget* const budget_;
  std::atomic<bool> closed_ = false;

  absl::Mutex send_mutex_;
  RingWriter writer_ ABSL_GUARDED_BY(send_mutex_);
  std::deque<Pinned> pinned_ ABSL_GUARDED_BY(send_mutex_);
  std::set<uint64_t> introduced_ ABSL_GUARDED_BY(send_mutex_);
  std::deque<uint64_t> untold_ ABSL_GUARDED_BY(send_mutex_);  // freed, the other end not told yet

  absl::Mutex receive_mutex_;
  RingReader reader_ ABSL_GUARDED_BY(receive_mutex_);
  RingReader::Note note_ ABSL_GUARDED_BY(receive_mutex_);
  // note_ was read, but the segment that it points into had not come; until when
  // it is waited for.
  std::optional<rpc::SteadyDeadline> introduction_ ABSL_GUARDED_BY(receive_mutex_);

  absl::Mutex views_mutex_;
  std::map<uint64_t, std::shared_ptr<const ShmView>> views_ ABSL_GUARDED_BY(views_mutex_);
};

// What ends say to each other over their socket (SOCK_SEQPACKET), each with at most one descriptor.
struct ShmGreeting {
  enum class Kind : uint32_t {
    kJoin = 1,  // from the one that connects: its control segment, the other's token
    kAccept,    // the answer: the control segment
    kReady,     // both have both
    kSegment,   // a segment of the arena
    kFreed,     // it went back to the host
  };
  static constexpr size_t kMaxIdentityBytes = 256;

  uint64_t layout = ShmControl::kLayout;
  Kind kind = Kind::kJoin;
  uint32_t identity_bytes = 0;  // kJoin: who connects
  uint64_t segment_id = 0;
  int64_t size_bytes = 0;
  std::array<char, 16> token = {};
  std::array<char, kMaxIdentityBytes> identity = {};

  std::string_view text() const {
    return {reinterpret_cast<const char*>(this), sizeof(ShmGreeting)};
  }
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SHM_SHM_CHANNEL_H_
