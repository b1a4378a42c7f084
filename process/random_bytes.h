// Unpredictable bytes for keys, nonces and ids.
#ifndef SHARDMESH_PROCESS_RANDOM_BYTES_H_
#define SHARDMESH_PROCESS_RANDOM_BYTES_H_

#include <cstddef>
#include <string>

namespace shardmesh::rpc {

// Returns `size` bytes from the system's cryptographic generator. Thread-safe.
std::string RandomBytes(size_t size);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_PROCESS_RANDOM_BYTES_H_
