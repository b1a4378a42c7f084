// Settings of the C library's allocator for the memory that receives messages.
#ifndef SHARDMESH_PROCESS_ALLOCATOR_H_
#define SHARDMESH_PROCESS_ALLOCATOR_H_

namespace shardmesh {

// Makes glibc keep up to 64 MiB of freed memory per arena.
//
// gRPC receives into blocks of 128 KiB and more. By default glibc returns such a block to the
// kernel at each free, and the kernel clears every page again for the next block. That causes three
// times as many page faults as the tiles themselves need.
//
// Cost: at most 64 MiB per arena after a burst. There are up to eight arenas for each core, but no
// more than receiving threads. Call this first in the main of a program that moves tensors. It has
// no effect with another allocator.
void KeepMessageMemory();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_ALLOCATOR_H_
