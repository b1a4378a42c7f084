// The version of this build.
#ifndef SHARDMESH_PROCESS_VERSION_H_
#define SHARDMESH_PROCESS_VERSION_H_

#include <string_view>

namespace shardmesh {

// Returns the project's version, such as "0.1.0".
std::string_view BuildVersion();

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_VERSION_H_
