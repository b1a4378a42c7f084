// The mesh axes of a profile that names none.
#ifndef SHARDMESH_SHARDING_USUAL_AXES_H_
#define SHARDMESH_SHARDING_USUAL_AXES_H_

#include <string_view>

namespace shardmesh {

// A mesh often lacks some of these, so a missing one does not count as a misspelt name.
inline constexpr std::string_view kUsualAxes[] = {"dp", "fsdp", "tp", "sp", "ep"};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_USUAL_AXES_H_
