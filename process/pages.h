// Memory as the kernel gives it: pages.
#ifndef SHARDMESH_PROCESS_PAGES_H_
#define SHARDMESH_PROCESS_PAGES_H_

#include <cstddef>

namespace shardmesh {

// Faults in the pages of mapped memory, so that a lack of memory shows here and not in a write.
// False, with errno ENOMEM, if the host has none for them. A kernel that cannot (before Linux 5.14)
// faults them in as they are written.
//
// This takes a second or more for each GiB: not for threads that others wait for. The process can
// map and unmap meanwhile: the kernel's lock on that is let go of every few megabytes.
bool PopulatePages(char* data, size_t size_bytes);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_PAGES_H_
