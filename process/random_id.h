// Unpredictable ids that never repeat.
#ifndef SHARDMESH_PROCESS_RANDOM_ID_H_
#define SHARDMESH_PROCESS_RANDOM_ID_H_

#include <string>

namespace shardmesh::server {

// Returns 128 random bits of the system as 32 hexadecimal digits, for arrays, transfers and
// sessions. Thread-safe.
std::string RandomId();

}  // namespace shardmesh::server

#endif  // SHARDMESH_PROCESS_RANDOM_ID_H_
