// Questions to workers whether they can read files, and the answers.
#ifndef SHARDMESH_SERVER_ATTACH_FILE_CHECKS_H_
#define SHARDMESH_SERVER_ATTACH_FILE_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/attach/order_table.h"
#include "server/attach/worker_stream.h"
#include "server/steps/fill_transport.h"

namespace shardmesh::server {

// The questions that wait for the answers of workers. Thread-safe.
class FileChecks {
 public:
  using FilesChecked = FillTransport::FilesChecked;

  // Maximum number of questions that wait for answers. A put asks each worker of its mesh once.
  static constexpr size_t kMaxChecks = 10'000;

  // Sends the question and moves from `*checked`. Returns the question's number. RESOURCE_EXHAUSTED
  // (OVERLOADED), with a retry delay: kMaxChecks questions wait for answers. In that case
  // `*checked` is unchanged.
  absl::StatusOr<int64_t> Send(WorkerStream* stream, std::string_view files, FilesChecked* checked);
  // Calls `checked` of the question, if the question went over this stream and still waits.
  void Answer(const WorkerStream* stream, int64_t number, const FileVerdict& verdict);
  void Forget(int64_t number) { table_.Forget(number); }
  // Removes and returns the callbacks of the questions that went over this stream. Afterwards the
  // caller calls each with the error NotAttached, without holding its own lock.
  std::vector<FilesChecked> TakeAllOf(const WorkerStream* stream) {
    return table_.TakeAllOf(stream);
  }

 private:
  OrderTable<FilesChecked> table_;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_ATTACH_FILE_CHECKS_H_
