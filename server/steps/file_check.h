// Asks the workers of a put whether they can read the put's files, before anything moves.
#ifndef SHARDMESH_SERVER_STEPS_FILE_CHECK_H_
#define SHARDMESH_SERVER_STEPS_FILE_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "process/clock.h"
#include "server/steps/fill_transport.h"
#include "tensor/source_file.h"

namespace shardmesh::server {

// Files, and the workers that are to read them. Each worker is listed once.
struct FileReaders {
  std::vector<std::string> identities = {};
  std::vector<SourceFile> files = {};
  bool convert = false;  // the workers are to transpose or convert tensors of the files
};

// A worker that cannot read the files.
struct FileRefusal {
  std::string identity;
  absl::Status status;    // an error
  std::string path = {};  // the file of the error; empty: the error is about no file
};

// Returns one error for all refusals, of which there is at least one. It has the reason of the
// worst one, lists the workers with that reason, and says what to do:
//   FAILED_PRECONDITION                the worker's reason: FILE_CHANGED before all others, then
//                                      other errors of a file, NO_READ_ROOT, NOT_AVAILABLE.
//   UNAVAILABLE, RESOURCE_EXHAUSTED,   no worker refused for good: the put may be repeated. Keeps
//   DEADLINE_EXCEEDED                  the retry delay.
absl::Status CannotRead(absl::Span<const FileRefusal> refusals);

// One question to all workers. Thread-safe.
class FileCheck : public std::enable_shared_from_this<FileCheck> {
 public:
  // Gets OK if all workers can read all files, or else the error of CannotRead. Called exactly
  // once, without a lock, on any thread, perhaps before Start returns.
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  // Time for the workers to answer. They look at the files' states and read their headers.
  static constexpr absl::Duration kTimeout = absl::Seconds(30);

  // Asks the workers, and waits for `timeout` at most. `transport` and `clock` outlive the check.
  static std::shared_ptr<FileCheck> Start(FillTransport* transport, Clock* clock,
                                          FileReaders readers, Done done,
                                          absl::Duration timeout = kTimeout);
  FileCheck(const FileCheck&) = delete;
  FileCheck& operator=(const FileCheck&) = delete;

  // Ends the check with CANCELLED, if it has not ended.
  void Cancel();

 private:
  struct Worker {
    int64_t number = 0;  // of the question; 0: not known yet, or answered
    bool is_answered = false;
  };

  FileCheck(FillTransport* transport, Clock* clock, FileReaders readers, Done done,
            absl::Duration timeout);

  void Ask();
  void Answered(size_t worker, const FileVerdict& verdict);
  void TimeIsOver();
  // Takes `done_` and the unanswered questions, unless the check has ended.
  struct Ended {
    Done done;
    std::vector<int64_t> unanswered;
  };
  std::optional<Ended> End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets the questions, and then calls `done`.
  void Finish(Ended ended, absl::Status status);

  FillTransport* const transport_;
  Clock* const clock_;
  const absl::Duration timeout_;
  const FileReaders readers_;

  absl::Mutex mutex_;
  Done done_ ABSL_GUARDED_BY(mutex_);                    // null after the end
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mutex_);  // like readers_.identities
  size_t waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<FileRefusal> refusals_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<Alarm> deadline_;  // last: its destructor waits for TimeIsOver
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_FILE_CHECK_H_
