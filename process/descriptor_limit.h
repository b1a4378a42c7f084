// The limit on file descriptors of this process, and the part of it that is reserved for files.
#ifndef SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_
#define SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_

#include "absl/status/status.h"

namespace shardmesh {

// The least limit with which a coordinator or a worker starts. An idle worker has 30 descriptors
// open, and 32 are in reserve.
inline constexpr int kMinDescriptors = 80;

// Opens placeholders for standard input, output or error if the process was started with one of
// them closed. Without placeholders, the next opened file would get that descriptor, and printed
// text would go into the file. Reading from and writing to a placeholder fails, as on a closed
// descriptor. Call this function before anything opens a file.
void KeepStandardDescriptors();

// Returns FAILED_PRECONDITION if the descriptor limit of this process is below kMinDescriptors. The
// message contains the limit and kMinDescriptors.
absl::Status CheckDescriptorLimit();

// Returns the lowest descriptor number of the reserve. The reserve is an eighth of the limit, but
// at least 32 and at most 256 descriptors. Only files, and connections that this process opens, may
// use the reserve.
//
// The kernel assigns the lowest free descriptor. Code that accepts a connection or maps shared
// memory must close its new descriptor if that descriptor is at or above the returned number.
int FirstReservedDescriptor();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_
