// Failpoints: named places in the code where a test makes an operation fail, ends the process or
// delays a thread.
#ifndef SHARDMESH_PROCESS_FAILPOINT_H_
#define SHARDMESH_PROCESS_FAILPOINT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

// Returns an error from the enclosing function if the failpoint is armed with `eio`, `enospc` or
// `emfile` and this is its N-th hit (see ArmFailpoints). The enclosing function must return
// absl::Status or absl::StatusOr.
//
// Example:
//   absl::Status Commit() {
//     SHARDMESH_FAILPOINT("store.commit");
#define SHARDMESH_FAILPOINT(name)                                                      \
  do {                                                                                 \
    if (::shardmesh::kFailpoint<name>.armed()) {                                       \
      if (absl::Status failpoint_status = ::shardmesh::kFailpoint<name>.HitAsStatus(); \
          !failpoint_status.ok()) {                                                    \
        return failpoint_status;                                                       \
      }                                                                                \
    }                                                                                  \
  } while (false)

// Returns true, with errno set, if the failpoint's action makes the system call fail.
//
// Example: const int fd = SHARDMESH_FAILS("file.open") ? -1 : open(path, O_RDONLY);
#define SHARDMESH_FAILS(name) \
  (::shardmesh::kFailpoint<name>.armed() && ::shardmesh::kFailpoint<name>.HitAsErrno())

// A failpoint at a place where no operation can fail. It supports only `crash` and `delay`.
#define SHARDMESH_PASSES(name)                                     \
  do {                                                             \
    if (::shardmesh::kPassage<name>.armed()) {                     \
      static_cast<void>(::shardmesh::kPassage<name>.HitAsErrno()); \
    }                                                              \
  } while (false)

namespace shardmesh {

// One named place in the code. It registers itself when a program that contains it starts.
//
// Shipped programs contain failpoints too, since an unarmed failpoint costs only one relaxed load.
// Tests can therefore run the shipped programs and need no separate build. Thread-safe.
class Failpoint {
 public:
  // `fails` says whether the place supports `eio`, `enospc` and `emfile`.
  Failpoint(const char* name, bool fails);
  Failpoint(const Failpoint&) = delete;
  Failpoint& operator=(const Failpoint&) = delete;

  std::string_view name() const { return name_; }
  bool fails() const { return fails_; }
  bool armed() const { return armed_.load(std::memory_order_relaxed); }

  // Counts a hit. Performs the action if this is the N-th hit since ArmFailpoints, and returns the
  // error of `eio`, `enospc` and `emfile`. `crash` does not return; `delay` returns OK.
  absl::Status HitAsStatus();
  // Like HitAsStatus, for system calls: returns true, with errno set, if the call must fail.
  bool HitAsErrno();

 private:
  friend absl::Status ArmFailpoints(std::string_view text);

  enum class Action { kEio, kEnospc, kEmfile, kCrash, kDelay };

  // Returns 0, or the error number of this hit.
  int Hit();

  const char* const name_;
  const bool fails_;
  std::atomic<bool> armed_{false};
  // ArmFailpoints writes the action before it sets armed_. Atomic, since a test may arm a failpoint
  // again while threads pass it.
  std::atomic<Action> action_ = Action::kEio;
  std::atomic<int64_t> hits_left_{0};
};

// Exit code of a process that `crash` ended, and the length of a `delay`.
inline constexpr int kFailpointExitCode = 86;
inline constexpr int kFailpointDelayMilliseconds = 500;

// Arms failpoints. `text` is a list of `NAME=ACTION[:N]`, separated by commas. ACTION is one of:
// - eio, enospc, emfile: the operation fails with that errno;
// - crash: the process ends at once, as by SIGKILL;
// - delay: the calling thread sleeps for kFailpointDelayMilliseconds.
// The action happens once, at the N-th hit of the failpoint; N is 1 by default.
//
// Returns INVALID_ARGUMENT (BAD_FIELD) for malformed text, an unknown name, or `eio`, `enospc` or
// `emfile` at a place that cannot fail. Call this function before threads start.
absl::Status ArmFailpoints(std::string_view text);

// Returns whether a failpoint whose name begins with `prefix` is armed and has not acted yet.
bool IsArmed(std::string_view prefix);

// Returns all failpoints of this program, sorted by name.
std::vector<const Failpoint*> ListFailpoints();

// A text that can be a template argument: the name of a failpoint.
template <size_t kSize>
struct FailpointName {
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is the name.
  consteval FailpointName(const char (&literal)[kSize]) {
    for (size_t i = 0; i < kSize; ++i) text[i] = literal[i];
  }
  char text[kSize] = {};
};

template <FailpointName kName>
inline constexpr FailpointName kFailpointText = kName;

template <FailpointName kName>
inline Failpoint kFailpoint{kFailpointText<kName>.text, /*fails=*/true};

template <FailpointName kName>
inline Failpoint kPassage{kFailpointText<kName>.text, /*fails=*/false};

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_FAILPOINT_H_
