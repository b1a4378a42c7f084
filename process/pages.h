// Pages of memory, as the kernel allocates them.
#ifndef SHARDMESH_PROCESS_PAGES_H_
#define SHARDMESH_PROCESS_PAGES_H_

#include <cstddef>

namespace shardmesh {

// Faults in the pages of mapped memory, so that a lack of memory makes this call fail, and not a
// later write. Returns false, with errno ENOMEM, if the host has no memory for the pages. A kernel
// before Linux 5.14 lacks the call; pages are then faulted in when they are written.
//
// This takes a second or more for each GiB: do not call it on a thread that others wait for. Other
// threads can map and unmap memory during the call: the kernel's lock on the address space is
// released every few megabytes.
bool PopulatePages(char* data, size_t size_bytes);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_PAGES_H_
