// Pages of memory, as the kernel allocates them.
#ifndef SHARDMESH_PROCESS_PAGES_H_
#define SHARDMESH_PROCESS_PAGES_H_

#include <cstddef>

namespace shardmesh {

// Faults in the pages of mapped memory, so that a lack of memory makes this call fail, and not a
// later write. Returns false, with errno ENOMEM, if the host has no memory for the pages. A kernel
// before Linux 5.14 lacks the call; pages are then faulted in when they are written.
//
// This takes up to a second for each GiB: do not call it on a thread that others wait for. From 128
// MiB on, up to four threads share the work, as many as there are cores. Other threads can map and
// unmap memory during the call: the kernel's lock on the address space is released every few
// megabytes.
bool PopulatePages(char* data, size_t size_bytes);

// Maps pages of shared memory that are in memory already, so that later reads and writes cause few
// faults. Takes a quarter of the time of PopulatePages: the kernel maps 16 pages at each fault.
void MapPresentPages(const char* data, size_t size_bytes);

// Maps the first size_bytes > 0 of memory that its descriptor gives (a memfd), shared with all who
// map it, for reading only. If pages are missing in the memory, faults all of them in, as
// PopulatePages does. Returns null, with errno set, if the kernel refuses. The caller unmaps the
// memory (munmap).
char* MapForReading(int fd, size_t size_bytes);

// Whether the host gives huge pages to shared memory whose owner asks for them: `shmem_enabled` of
// its transparent huge pages is `advise` or more. Only faults in a mapping get them, and write(2)
// does not. Looked up once.
bool HasHugeSharedPages();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_PAGES_H_
