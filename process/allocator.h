// How the allocator of the C library treats the memory that messages are received into.
#ifndef SHARDMESH_PROCESS_ALLOCATOR_H_
#define SHARDMESH_PROCESS_ALLOCATOR_H_

namespace shardmesh::rpc {

// Has glibc keep up to 64 MiB of freed memory per arena. gRPC receives into blocks of 128 KiB and
// more, which glibc by default gives back to the kernel at each free, so that the kernel clears
// every page anew for the next one: three times as many page faults as the tiles themselves need.
// Costs at most that much memory per arena after a burst, of which there are up to eight for each
// core, but no more than threads that receive. First thing in the main of a program that moves
// tensors; without effect with another allocator.
void KeepMessageMemory();

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_ALLOCATOR_H_
