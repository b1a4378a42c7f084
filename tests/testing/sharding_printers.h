// Prints meshes, specs, tiles and similar values for GoogleTest. Include this file wherever a test
// compares such values.
#ifndef SHARDMESH_TESTS_TESTING_SHARDING_PRINTERS_H_
#define SHARDMESH_TESTS_TESTING_SHARDING_PRINTERS_H_

#include <ostream>

#include "sharding/axis_value.h"
#include "sharding/correction.h"
#include "sharding/mesh.h"
#include "sharding/spec.h"
#include "sharding/tile.h"
#include "status/reason.h"

namespace shardmesh {

inline void PrintTo(const AxisValue& value, std::ostream* out) { *out << value.ToString(); }
inline void PrintTo(const Correction& value, std::ostream* out) { *out << value.ToString(); }
inline void PrintTo(const IndexRange& value, std::ostream* out) {
  *out << "[" << value.start << "," << value.stop << ")";
}
inline void PrintTo(const Mesh& value, std::ostream* out) { *out << value.ToString(); }
inline void PrintTo(const MeshAxis& value, std::ostream* out) {
  *out << value.name << "=" << value.size << ":" << AxisTypeName(value.type);
}
inline void PrintTo(const PartitionSpec& value, std::ostream* out) { *out << value.ToString(); }
inline void PrintTo(Reason value, std::ostream* out) { *out << ReasonName(value); }
inline void PrintTo(const SpecEntry& value, std::ostream* out) { *out << value.ToString(); }
inline void PrintTo(const Tile& value, std::ostream* out) { *out << value.ToString(); }

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_TESTING_SHARDING_PRINTERS_H_
