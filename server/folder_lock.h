// The lock on a data folder that one process at a time can have.
#ifndef SHARDMESH_SERVER_FOLDER_LOCK_H_
#define SHARDMESH_SERVER_FOLDER_LOCK_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tensor/file.h"

namespace shardmesh::server {

// Takes the lock of a folder that is there: an advisory lock on its file LOCK, which holds the
// process's id and its host's name. It lasts as long as the descriptor; the kernel releases it when
// the process dies, however it dies.
//
// Where another process has it, waits up to `timeout` for its end, as it may be about to stop, and
// logs for whom. FAILED_PRECONDITION then, naming the holder; other errors if the file cannot be
// opened or written.
absl::StatusOr<FileDescriptor> LockFolder(const std::string& folder, absl::Duration timeout);

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_FOLDER_LOCK_H_
