// Bytes that nobody can guess: keys, nonces and ids.
#ifndef SHARDMESH_PROCESS_RANDOM_BYTES_H_
#define SHARDMESH_PROCESS_RANDOM_BYTES_H_

#include <cstddef>
#include <string>

namespace shardmesh::rpc {

// `size` bytes from the system's cryptographic generator. Safe to call from several threads.
std::string RandomBytes(size_t size);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_RANDOM_BYTES_H_
