// An interface to send workers the orders to fill tiles themselves, and to ask whether they can
// read files.
#ifndef SHARDMESH_SERVER_STEPS_FILL_TRANSPORT_H_
#define SHARDMESH_SERVER_STEPS_FILL_TRANSPORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"

namespace shardmesh::server {

// A worker's answer to the question whether it can read some files.
struct FileVerdict {
  // OK: the worker can read all files, and finds each in the expected state.
  absl::Status status = {};
  // The file of an error of the worker, as an index into the list of files.
  int64_t file = 0;
};

// Reaches attached workers. fill_codec.h makes the messages. Thread-safe. No call blocks.
class FillTransport {
 public:
  using FilesChecked = absl::AnyInvocable<void(const FileVerdict&) &&>;

  virtual ~FillTransport() = default;

  // OK if the worker is attached and knows orders to fill tiles. UNAVAILABLE (WORKER_LOST), with a
  // retry delay: it is not attached, or has attached again and gets no orders yet.
  // FAILED_PRECONDITION (NOT_AVAILABLE): it runs an older build.
  virtual absl::Status CheckCanFill(std::string_view identity) const = 0;
  // The same for a worker that is to transpose or convert tensors of files. NOT_AVAILABLE also if
  // the worker's build fills tiles, but does not convert.
  virtual absl::Status CheckCanConvert(std::string_view identity) const {
    return CheckCanFill(identity);
  }

  // Asks the worker whether it can read files. `files`: from EncodeFiles. Calls `checked` once,
  // without a lock, perhaps before this function returns. Returns the number of the question.
  //
  // Errors beside those of the worker: those of CheckCanFill, also if the worker's stream ends
  // before the answer. RESOURCE_EXHAUSTED (OVERLOADED), with a retry delay: too many questions wait
  // for answers.
  virtual int64_t CheckFiles(const std::string& identity, std::string_view files,
                             FilesChecked checked) = 0;
  // Drops a question whose answer the caller no longer wants. Its `checked` is not called, unless
  // that call has begun.
  virtual void ForgetFileCheck(int64_t number) = 0;

  // Sends the worker a message of FillEncoder. Messages to one worker arrive in the order of the
  // calls. The worker reports each tile and its first failure, which the Sequencer gets as reports
  // on the transfer. UNAVAILABLE (WORKER_LOST), with a retry delay: the worker is not attached, or
  // has attached again and gets no orders yet. The message is lost then, and no report follows: the
  // caller aborts the transfer.
  virtual absl::Status SendFill(std::string_view identity, std::string_view message) = 0;
  // The same for a message in two parts. Messages to many workers share the tail without a copy.
  virtual absl::Status SendFillParts(std::string_view identity, std::string_view head,
                                     const std::shared_ptr<const std::string>& tail) {
    return SendFill(identity, std::string(head) + *tail);
  }
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_FILL_TRANSPORT_H_
