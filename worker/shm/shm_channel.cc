// ShmChannel: writes and reads notes, gives access to the messages that they describe, and lets
// readers sleep.
#include "worker/shm/shm_channel.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <limits>
#include <new>
#include <utility>

#include "process/sealed/local_socket.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// How long a segment's descriptor may take to come over the socket, counted from the first note
// that refers to the segment.
constexpr absl::Duration kIntroduction = absl::Seconds(2);
// The start of a note. After this header comes the message itself, or the message's place in the
// arena. The header is small: the ring's fields, the header and a message of 8 bytes fit into one
// cache line.
struct NoteHeader {
  int64_t step = 0;
  int64_t epoch = 0;
  uint64_t signature_hash = 0;
  int32_t op = 0;
  int32_t round = 0;
  uint32_t signature_bytes = 0;
  uint32_t is_inline = 0;
};
struct NotePlace {
  uint64_t segment_id = 0;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};
static_assert(sizeof(NoteHeader) + ShmChannel::kInlineBytes <= kMaxNoteBytes);
static_assert(offsetof(RingSlots::Slot, note) + sizeof(NoteHeader) + 8 <= 64);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The longest sleep of a reader if something that it waits for may arrive without waking it.
constexpr absl::Duration kNap = absl::Milliseconds(1);

// Waits until `word` is no longer `expected`, or for `timeout`. Several processes map the word.
// Without the private flag, the kernel uses one futex for all of these processes, even for a
// read-only mapping.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, absl::Duration timeout) {
  const timespec limit = absl::ToTimespec(timeout);
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &limit, nullptr, 0);
}

// Same as struct futex_waitv of linux/futex.h, which exists since Linux 5.16.
struct FutexWaiter {
  uint64_t value = 0;
  uint64_t address = 0;
  uint32_t flags = 0;
  uint32_t reserved = 0;
};
constexpr long kFutexWaitv = 449;  // number of the system call futex_waitv on every architecture
constexpr uint32_t kFutex32 = 2;
constexpr uint32_t kFutexPrivate = 128;

// Waits until `shared` or `own` has changed, or for `timeout`. Another process writes `shared`;
// this process writes `own`.
void FutexWaitForEither(const std::atomic<uint32_t>& shared, uint32_t shared_value,
                        const std::atomic<uint32_t>& own, uint32_t own_value,
                        absl::Duration timeout) {
  static std::atomic<bool> waits_for_both = true;
  if (waits_for_both.load(std::memory_order_relaxed)) {
    const std::array<FutexWaiter, 2> words = {
        FutexWaiter{shared_value, reinterpret_cast<uintptr_t>(&shared), kFutex32},
        FutexWaiter{own_value, reinterpret_cast<uintptr_t>(&own), kFutex32 | kFutexPrivate}};
    // futex_waitv takes an absolute time limit.
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const timespec until = absl::ToTimespec(absl::DurationFromTimespec(now) + timeout);
    if (syscall(kFutexWaitv, words.data(), words.size(), 0, &until, CLOCK_MONOTONIC) >= 0 ||
        (errno != ENOSYS && errno != EPERM && errno != EINVAL)) {
      return;
    }
    waits_for_both.store(false, std::memory_order_relaxed);
  }
  if (own.load(std::memory_order_acquire) != own_value) return;
  FutexWait(shared, shared_value, std::min(timeout, kNap));
}
void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

absl::Status Wrong(std::string_view what) {
  return absl::DataLossError(StrCat("a note from a peer on this host ", what));
}

}  // namespace

int64_t ShmControl::SizeBytes() {
  constexpr int64_t kPageBytes = 4096;
  return (static_cast<int64_t>(sizeof(ShmControl)) + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// Owner of a received message. Its destruction returns the message's memory to the sender.
struct ShmChannel::Pin {
  Pin(std::shared_ptr<ShmChannel> the_channel, std::shared_ptr<const ShmView> the_view,
      uint64_t the_number)
      : channel(std::move(the_channel)), view(std::move(the_view)), number(the_number) {}
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  ~Pin() {
    channel->own().reads.released[number % kRingSlots].store(number + 1, std::memory_order_release);
  }

  const std::shared_ptr<ShmChannel> channel;
  const std::shared_ptr<const ShmView> view;
  const uint64_t number;
};

// The copy of a message whose segment is not mapped.
struct ShmChannel::Copy {
  MemoryBudget::Reservation reservation;
  std::unique_ptr<char[]> bytes;
};

ShmChannel::ShmChannel(std::unique_ptr<ShmSegment> control, std::unique_ptr<ShmView> theirs,
                       std::shared_ptr<const FileDescriptor> socket, const ShmArena* arena,
                       MemoryBudget* budget)
    : control_(std::move(control)),
      theirs_(std::move(theirs)),
      socket_(std::move(socket)),
      arena_(arena),
      budget_(budget),
      writer_(&own().slots, &their().reads),
      reader_(&their().slots, &own().reads) {}

ShmChannel::~ShmChannel() = default;

bool ShmChannel::TrySend(const Tag& tag, int64_t epoch, std::string_view signature,
                         uint64_t signature_hash, const OwnedBytes& message) {
  if (signature.size() > kShmSignatureBytes) return false;
  const size_t size_bytes = message.bytes.size();
  const bool is_inline = size_bytes <= kInlineBytes;
  const NoteHeader header = {.step = tag.step(),
                             .epoch = epoch,
                             .signature_hash = signature.empty() ? 0 : signature_hash,
                             .op = static_cast<int32_t>(tag.op()),
                             .round = static_cast<int32_t>(tag.round()),
                             .signature_bytes = static_cast<uint32_t>(signature.size()),
                             .is_inline = is_inline ? 1U : 0U};
  std::array<char, sizeof(NoteHeader) + kInlineBytes> note;
  std::memcpy(note.data(), &header, sizeof(header));
  size_t note_bytes = sizeof(header);
  NotePlace place;
  if (is_inline) {
    std::memcpy(note.data() + note_bytes, message.bytes.data(), size_bytes);
    note_bytes += size_bytes;
  } else {
    const auto located = arena_->Locate(message.bytes.data(), size_bytes);
    if (!located.has_value()) return false;
    place = {.segment_id = located->segment_id,
             .offset_bytes = located->offset_bytes,
             .size_bytes = size_bytes};
    std::memcpy(note.data() + note_bytes, &place, sizeof(place));
    note_bytes += sizeof(place);
  }

  std::deque<Pinned> done;  // messages to release after the lock is released
  {
    absl::MutexLock lock(&send_mutex_);
    if (closed()) return false;
    ReapLocked(done);
    if (!writer_.HasRoom() || (!is_inline && !Introduce(place.segment_id))) return false;
    if (!signature.empty()) {
      std::memcpy(own().signatures[writer_.written() % kRingSlots].data(), signature.data(),
                  signature.size());
    }
    const auto number = writer_.TryWrite({note.data(), note_bytes});
    if (!number.has_value()) return false;
    if (!is_inline) pinned_.push_back({*number, message});
  }
  // The counters `written` and `sleeps` are sequentially consistent. If a thread of the other end
  // is about to sleep, one of two things therefore happens. Either the thread finds the note, or
  // this end sees in `sleeps` that the thread sleeps, and wakes it.
  own().written.fetch_add(1, std::memory_order_seq_cst);
  if (their().sleeps.load(std::memory_order_seq_cst) != 0) FutexWake(own().written);
  return true;
}

bool ShmChannel::Introduce(uint64_t segment_id) {
  if (introduced_.contains(segment_id)) return true;
  bool is_sent = false;
  arena_->WithSegment(segment_id, [&](int fd, int64_t size_bytes) {
    const ShmGreeting greeting = {
        .kind = ShmGreeting::Kind::kSegment, .segment_id = segment_id, .size_bytes = size_bytes};
    is_sent = SendDescriptors(socket_->get(), greeting.text(), {fd}).ok();
  });
  if (is_sent) introduced_.insert(segment_id);
  return is_sent;
}

absl::StatusOr<bool> ShmChannel::TryReceive(uint64_t expected_hash, Arrived* arrived) {
  absl::MutexLock lock(&receive_mutex_);
  if (closed()) return false;
  if (!introduction_.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(const bool is_there, reader_.TryRead(&note_));
    if (!is_there) return false;
  }
  NoteHeader header;
  if (note_.size_bytes < sizeof(header)) return Wrong("is too short");
  std::memcpy(&header, note_.bytes.data(), sizeof(header));
  arrived->step = header.step;
  arrived->op = header.op;
  arrived->round = header.round;
  arrived->epoch = header.epoch;
  arrived->signature_hash = header.signature_hash;
  if (!arrived->signature.empty()) arrived->signature.clear();
  if (header.signature_hash != 0 && header.signature_hash != expected_hash) {
    if (header.signature_bytes == 0 || header.signature_bytes > kShmSignatureBytes) {
      return Wrong(StrCat("has a signature of ", header.signature_bytes, " bytes"));
    }
    arrived->signature.assign(their().signatures[note_.number % kRingSlots].data(),
                              header.signature_bytes);
  }
  const size_t rest_bytes = note_.size_bytes - sizeof(header);
  if (header.is_inline != 0) {
    if (rest_bytes == 0 || rest_bytes > kInlineBytes) {
      return Wrong(StrCat("has a message of ", rest_bytes, " bytes in it"));
    }
    const auto copy = std::make_shared_for_overwrite<std::array<char, kInlineBytes>>();
    std::memcpy(copy->data(), note_.bytes.data() + sizeof(header), rest_bytes);
    reader_.Release(note_.number);
    arrived->message = {absl::MakeConstSpan(copy->data(), rest_bytes), copy};
    return true;
  }
  NotePlace place;
  if (rest_bytes != sizeof(place)) return Wrong(StrCat("says where in ", rest_bytes, " bytes"));
  std::memcpy(&place, note_.bytes.data() + sizeof(header), sizeof(place));
  const std::shared_ptr<const ShmView> view = ViewOf(place.segment_id);
  if (view == nullptr) {
    if (!introduction_.has_value()) introduction_ = SteadyDeadline::After(kIntroduction);
    if (!introduction_->is_over()) return false;
    return Wrong(StrCat("points into segment ", place.segment_id, ", which did not come"));
  }
  introduction_.reset();
  const auto segment_bytes = static_cast<size_t>(view->size_bytes());
  if (place.size_bytes == 0 || place.offset_bytes > segment_bytes ||
      place.size_bytes > segment_bytes - place.offset_bytes) {
    return Wrong(StrCat("points to ", place.size_bytes, " bytes at ", place.offset_bytes,
                        " of a segment of ", segment_bytes));
  }
  if (!view->is_mapped()) {
    const auto copy = std::make_shared<Copy>();
    if (budget_ != nullptr) {
      SHARDMESH_ASSIGN_OR_RETURN(
          copy->reservation,
          budget_->Reserve(static_cast<int64_t>(place.size_bytes),
                           "a message from a peer on this host, whose memory cannot be mapped"));
    }
    copy->bytes.reset(new (std::nothrow) char[place.size_bytes]);
    if (copy->bytes == nullptr) {
      return absl::ResourceExhaustedError(
          StrCat("there is no memory for a message of ", place.size_bytes,
                 " bytes from a peer on this host, whose memory cannot be mapped"));
    }
    const absl::Span<char> bytes(copy->bytes.get(), place.size_bytes);
    SHARDMESH_RETURN_IF_ERROR(view->Read(static_cast<int64_t>(place.offset_bytes), bytes));
    reader_.Release(note_.number);
    arrived->message = {bytes, copy};
    return true;
  }
  const absl::Span<const char> bytes = view->bytes().subspan(place.offset_bytes, place.size_bytes);
  arrived->message = {bytes, std::make_shared<Pin>(shared_from_this(), view, note_.number)};
  return true;
}

std::shared_ptr<const ShmView> ShmChannel::ViewOf(uint64_t segment_id) {
  absl::MutexLock lock(&views_mutex_);
  const auto found = views_.find(segment_id);
  return found == views_.end() ? nullptr : found->second;
}

void ShmChannel::Sleep(const std::atomic<uint32_t>& changes, uint32_t seen,
                       absl::Duration timeout) {
  ShmControl& own_end = own();
  uint64_t next = 0;
  {
    absl::MutexLock lock(&receive_mutex_);
    if (closed()) return;
    next = reader_.next();
    // The awaited segment comes over the socket, and its arrival does not wake this sleeper.
    if (introduction_.has_value()) timeout = std::min(timeout, kNap);
  }
  own_end.sleeps.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t written = their().written.load(std::memory_order_seq_cst);
  // The writer increments `written` right after it has written a note. If it writes a note after
  // the check here, `written` differs from the value read above, and the futex does not wait.
  if (!reader_.HasNote(next)) FutexWaitForEither(their().written, written, changes, seen, timeout);
  own_end.sleeps.fetch_sub(1, std::memory_order_relaxed);
}

void ShmChannel::Reap() {
  std::deque<Pinned> done;
  absl::MutexLock lock(&send_mutex_);
  ReapLocked(done);
  // The oldest message may wait for a step that begins late. Messages after it may be read already,
  // and their sender may wait for their memory.
  for (auto pinned = pinned_.begin(); pinned != pinned_.end();) {
    if (!writer_.IsReleased(pinned->number)) {
      ++pinned;
      continue;
    }
    done.push_back(std::move(*pinned));
    pinned = pinned_.erase(pinned);
  }
}

void ShmChannel::ReapLocked(std::deque<Pinned>& done) {
  if (!untold_.empty()) TellFreed();
  // The other end may release notes in any order, but soon releases all notes. Releasing messages
  // from the oldest on therefore delays little and is cheap.
  while (!pinned_.empty() && writer_.IsReleased(pinned_.front().number)) {
    done.push_back(std::move(pinned_.front()));
    pinned_.pop_front();
  }
}

void ShmChannel::Close() {
  std::deque<Pinned> done;
  {
    absl::MutexLock lock(&send_mutex_);
    closed_.store(true, std::memory_order_release);
    own().closed.store(1, std::memory_order_seq_cst);
    // Peers must see `closed` before the memory of these messages is reused.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    done.swap(pinned_);
  }
  absl::MutexLock lock(&views_mutex_);
  views_.clear();
}

absl::Status ShmChannel::AddView(uint64_t segment_id, std::shared_ptr<const ShmView> view) {
  absl::MutexLock lock(&views_mutex_);
  if (views_.size() >= kMaxViews) {
    return absl::ResourceExhaustedError(
        StrCat("a peer on this host shows more than ", kMaxViews, " segments of its memory"));
  }
  views_[segment_id] = std::move(view);
  return absl::OkStatus();
}

void ShmChannel::DropView(uint64_t segment_id) {
  absl::MutexLock lock(&views_mutex_);
  views_.erase(segment_id);
}

void ShmChannel::SegmentFreed(uint64_t segment_id) {
  absl::MutexLock lock(&send_mutex_);
  if (introduced_.erase(segment_id) == 0 || closed()) return;
  untold_.push_back(segment_id);
  TellFreed();
}

void ShmChannel::TellFreed() {
  while (!untold_.empty()) {
    const ShmGreeting greeting = {.kind = ShmGreeting::Kind::kFreed, .segment_id = untold_.front()};
    if (!SendDescriptors(socket_->get(), greeting.text(), {}).ok()) return;
    untold_.pop_front();
  }
}

}  // namespace shardmesh::worker
