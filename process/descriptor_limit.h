// The limit on file descriptors of this process, and the part of it that is reserved for files.
#ifndef SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_
#define SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_

#include "absl/status/status.h"

namespace shardmesh {

// The least limit with which a coordinator or a worker starts. An idle worker has 30 descriptors
// open, and 32 are in reserve.
inline constexpr int kMinDescriptors = 80;

// Opens placeholders for standard input, output or error if the process was started with one of
// them closed. Otherwise the next opened file gets that number, and printed text goes into the
// file. Reading from and writing to the placeholders fails, as on a closed descriptor. Call it
// before anything opens a file.
void KeepStandardDescriptors();

// Returns FAILED_PRECONDITION, with have and need, if the limit of this process is below
// kMinDescriptors.
absl::Status CheckDescriptorLimit();

// Returns the first descriptor of the reserve. The reserve is an eighth of the limit, 32 to 256. It
// is for files and for connections that this process opens.
//
// The system assigns the lowest free descriptor. An inbound connection or a block of shared memory
// that gets this descriptor or a higher one must close it again.
int FirstReservedDescriptor();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_
