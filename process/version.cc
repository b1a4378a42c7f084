// The version that the build was configured with.
#include "process/version.h"

namespace shardmesh {

std::string_view BuildVersion() { return SHARDMESH_VERSION; }

}  // namespace shardmesh
