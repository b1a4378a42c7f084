// The version that the build was configured with.
#include "rpc/version.h"

namespace shardmesh::rpc {

std::string_view BuildVersion() { return SHARDMESH_VERSION; }

}  // namespace shardmesh::rpc
