// Reports a get to the coordinator, so that others see its progress and can cancel it.
#ifndef SHARDMESH_CLIENT_GET_REPORT_H_
#define SHARDMESH_CLIENT_GET_REPORT_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/arrays.h"
#include "client/client_core.h"
#include "client/remote/operation_calls.h"
#include "client/types/array.h"
#include "client/types/call_options.h"
#include "client/types/cancellation.h"

namespace shardmesh::client {

// One get, of one array or of several. From MeshClientOptions::min_reported_get_bytes on, the get
// is an operation of the coordinator between Begin and Conclude. If somebody cancels the operation,
// the calls with options() end. The get does not depend on its report: it goes on if the
// coordinator is not reached, or is too old to know reports, or if the host allows no more threads.
//
// Example:
//   GetReport report(core, options);
//   report.Begin(name, /*arrays=*/1, size_bytes);
//   return report.Conclude(Read(report.Counting(progress), report.options()));
// Begin, Counting and Conclude must not run at the same time. Callbacks may run on any thread.
class GetReport {
 public:
  // `core` and the cancellation of `options` outlive this object.
  GetReport(ClientCore* core, const CallOptions& options);
  // Ends the report as that of a cancelled get, unless Conclude has ended it.
  ~GetReport();
  GetReport(const GetReport&) = delete;
  GetReport& operator=(const GetReport&) = delete;

  // The options for the calls of the get.
  const CallOptions& options() const { return options_; }
  // Begins the report of `size_bytes` in `arrays` arrays. Only the first call has an effect.
  // `description`: of the arrays, for people.
  void Begin(const std::string& description, int64_t arrays, int64_t size_bytes);
  // Returns a callback that notes the progress and passes it on to `progress`, which may be null.
  // This object outlives the callback.
  ProgressCallback Counting(ProgressCallback progress);
  // Notes that one more array was read.
  void CountArray() { ++done_; }
  // Ends the report, which takes at most MeshClientOptions::report_end_time. Returns `result`, the
  // result of the get. But if the get was cancelled through its operation: CANCELLED (CANCELLED),
  // with the reason, also if `result` is OK. Files must therefore get their names after this call.
  absl::Status Conclude(const absl::Status& result);
  template <typename Value>
  absl::StatusOr<Value> Conclude(absl::StatusOr<Value> result) {
    const absl::Status status = Conclude(result.status());
    return status.ok() ? std::move(result) : absl::StatusOr<Value>(status);
  }

 private:
  void Report();
  // Returns what to report next. Waits for the end of the get before that, at most
  // kReportInterval, unless `is_first`.
  GetProgress Next(bool is_first) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const absl::Status& result) ABSL_LOCKS_EXCLUDED(mutex_);

  ClientCore* const core_;
  Cancellation cancel_;  // of the get
  std::optional<Cancellation::Registration> by_caller_;
  CallOptions options_;

  // Constant once Begin was called.
  bool has_begun_ = false;
  ReportedGet get_;

  std::atomic<int64_t> done_ = 0;        // arrays
  std::atomic<int64_t> done_bytes_ = 0;  // falls when a read starts again

  absl::Mutex mutex_;
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mutex_);       // once has_ended_
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);    // not OK: the reason of the cancellation
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = false;   // to report again
  bool is_reported_ ABSL_GUARDED_BY(mutex_) = false;  // the thread has nothing more to do
  Cancellation stop_;                                 // of the report
  std::thread thread_;  // declared last: the thread uses the members above
};

// Returns what to call the arrays of a get: the first one, and how many there are besides.
std::string DescribeGet(const Array& first, const std::optional<Tile>& part, int64_t arrays);

// Gathers as ArrayClient::GatherTo, as a part of a get that `report` reports. If the report has not
// begun, it begins with this array as its only one.
absl::StatusOr<Array> GatherPieces(ClientCore& core, const ArraySelector& array,
                                   const TensorSink& sink, const GatherOptions& gather_options,
                                   GetReport& report);

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_GET_REPORT_H_
