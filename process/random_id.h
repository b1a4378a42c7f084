// Ids that nobody can guess, and that never come twice.
#ifndef SHARDMESH_PROCESS_RANDOM_ID_H_
#define SHARDMESH_PROCESS_RANDOM_ID_H_

#include <string>

namespace shardmesh::server {

// 128 bits of the system's randomness as 32 hexadecimal digits: for arrays, transfers, sessions.
// Thread-safe.
std::string RandomId();

}  // namespace shardmesh::server

#endif  // SHARDMESH_PROCESS_RANDOM_ID_H_
