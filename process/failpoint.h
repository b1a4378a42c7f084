// Failpoints: named places in the code where a test makes an operation fail, a process end or time
// pass.
#ifndef SHARDMESH_PROCESS_FAILPOINT_H_
#define SHARDMESH_PROCESS_FAILPOINT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

// Returns an error from the function around it when the failpoint is armed with `eio`, `enospc` or
// `emfile` and its hit has come. The function returns absl::Status or absl::StatusOr.
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

// True when a system call is to fail here; then errno is set.
//
// Example: const int fd = SHARDMESH_FAILS("file.open") ? -1 : open(path, O_RDONLY);
#define SHARDMESH_FAILS(name) \
  (::shardmesh::kFailpoint<name>.armed() && ::shardmesh::kFailpoint<name>.HitAsErrno())

// For a place that cannot fail: only `crash` and `delay` can be asked for.
#define SHARDMESH_PASSES(name)                                     \
  do {                                                             \
    if (::shardmesh::kPassage<name>.armed()) {                     \
      static_cast<void>(::shardmesh::kPassage<name>.HitAsErrno()); \
    }                                                              \
  } while (false)

namespace shardmesh {

// One named place. Registers itself when the program starts, in the programs that contain it.
//
// The programs that users run contain failpoints too: an unarmed one costs one relaxed load, and
// the tests then try the very programs that are shipped, without a build of their own.
// Thread-safe.
class Failpoint {
 public:
  // `fails`: whether it can make an operation fail, with `eio`, `enospc` and `emfile`.
  Failpoint(const char* name, bool fails);
  Failpoint(const Failpoint&) = delete;
  Failpoint& operator=(const Failpoint&) = delete;

  std::string_view name() const { return name_; }
  bool fails() const { return fails_; }
  bool armed() const { return armed_.load(std::memory_order_relaxed); }

  // Counts a hit; the armed one acts. `crash` does not return, `delay` returns OK.
  absl::Status HitAsStatus();
  // The same for system calls: whether to fail, with errno set.
  bool HitAsErrno();

 private:
  friend absl::Status ArmFailpoints(std::string_view text);

  enum class Action { kEio, kEnospc, kEmfile, kCrash, kDelay };

  // 0, or the error of this hit.
  int Hit();

  const char* const name_;
  const bool fails_;
  std::atomic<bool> armed_{false};
  // Written before armed_.
  Action action_ = Action::kEio;
  std::atomic<int64_t> hits_left_{0};
};

// Exit code of a process that a failpoint ended, and the length of a delay.
inline constexpr int kFailpointExitCode = 86;
inline constexpr int kFailpointDelayMilliseconds = 500;

// Arms failpoints: `NAME=ACTION[:N]`, separated by commas. ACTION is eio, enospc or emfile (the
// operation fails with that errno), crash (the process ends at once, as by SIGKILL) or delay. It
// happens once, at the N-th time that the place is passed; N is 1 unless given. INVALID_ARGUMENT
// (BAD_FIELD) for other text, unknown names, and errors at a place that cannot fail. Called before
// threads start.
absl::Status ArmFailpoints(std::string_view text);

// Whether a failpoint whose name begins so is armed and was not hit yet.
bool IsArmed(std::string_view prefix);

// All failpoints of this program, sorted by name.
std::vector<const Failpoint*> ListFailpoints();

// A name as a template argument.
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
