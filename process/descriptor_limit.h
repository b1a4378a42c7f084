// How many file descriptors this process may have, and which of them are kept for its files.
#ifndef SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_
#define SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_

#include "absl/status/status.h"

namespace shardmesh {

// The least limit with which a coordinator or a worker starts. Of these 30 are open in a worker
// that nobody calls, and 32 are in reserve.
inline constexpr int kMinDescriptors = 80;

// A process may be started with standard input, output or error closed. A file that it opens then
// must not get their numbers, or what is printed goes into it. Reading and writing the closed ones
// fails afterwards as before. Call it before anything opens a file.
void KeepStandardDescriptors();

// FAILED_PRECONDITION, with have and need, if the limit of this process is below kMinDescriptors.
absl::Status CheckDescriptorLimit();

// The first descriptor of the reserve, which is an eighth of the limit, 32 to 256: for files, and
// for connections that this process makes. The system gives the lowest descriptor that is free: a
// connection from outside or a block of shared memory that gets this one or a higher one gives it
// back.
int FirstReservedDescriptor();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_DESCRIPTOR_LIMIT_H_
