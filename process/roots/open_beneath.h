// Opens paths below an open folder, which no part of the path leaves.
#ifndef SHARDMESH_PROCESS_ROOTS_OPEN_BENEATH_H_
#define SHARDMESH_PROCESS_ROOTS_OPEN_BENEATH_H_

#include <sys/types.h>

#include <string>

#include "process/file.h"

namespace shardmesh {

// Opens what `path` names below the folder, by openat2(2) with RESOLVE_BENEATH: the kernel refuses
// `..` and links that lead out of the folder, links to absolute paths, and links of /proc.
// `flags` and `mode`: as for open(2); O_CLOEXEC is added. Returns an invalid descriptor, with errno
// set, if that fails: EXDEV if the path leads out, ELOOP if it goes over a link that is not
// followed, ENOSYS or EPERM if the host has no openat2. Thread-safe.
FileDescriptor OpenPathBeneath(const FileDescriptor& folder, const std::string& path, int flags,
                               mode_t mode = 0);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_ROOTS_OPEN_BENEATH_H_
