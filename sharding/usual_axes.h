// The mesh axes of a profile that sets no field.
#ifndef SHARDMESH_SHARDING_USUAL_AXES_H_
#define SHARDMESH_SHARDING_USUAL_AXES_H_

#include <string_view>

namespace shardmesh {

// The usual mesh axes. A mesh often lacks some of them, so error messages do not take a missing
// usual axis for a misspelt name.
inline constexpr std::string_view kUsualAxes[] = {"dp", "fsdp", "tp", "sp", "ep"};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_USUAL_AXES_H_
