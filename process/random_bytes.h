// Bytes and ids that no one can guess: keys, nonces, names of arrays and sessions.
#ifndef SHARDMESH_PROCESS_RANDOM_BYTES_H_
#define SHARDMESH_PROCESS_RANDOM_BYTES_H_

#include <cstddef>
#include <string>

namespace shardmesh {

// Returns `size` bytes from the system's cryptographic generator. Thread-safe.
std::string RandomBytes(size_t size);

// Returns 128 random bits as 32 hexadecimal digits: an id for an array, a transfer or a session.
// Thread-safe.
std::string RandomId();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_RANDOM_BYTES_H_
