// Questions about meshes and their answers, in the client's form.
#ifndef SHARDMESH_CLIENT_TYPES_MESH_QUESTIONS_H_
#define SHARDMESH_CLIENT_TYPES_MESH_QUESTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "client/types/layout_questions.h"
#include "sharding/compatibility.h"
#include "sharding/mesh.h"

namespace shardmesh::client {

// A mesh as written, which the coordinator validates. See Mesh::Create.
struct MeshFields {
  std::vector<MeshAxis> axes;
  std::vector<int64_t> device_ids = {};
};
// `dp=2,tp=4`; see ParseMeshAxes. At most 8 KiB.
struct MeshText {
  std::string text;
};

// Asks for the facts of a mesh.
struct MeshQuestion {
  std::variant<MeshSelector, MeshFields, MeshText> mesh = {};
  // The required number of devices; a size of -1 is inferred.
  std::optional<int64_t> device_count = std::nullopt;
  // Turns an empty mesh into an error (FAILED_PRECONDITION, NO_MESH).
  bool required = false;
  // kExact accepts all that JAX accepts; see MeshOptions::allow_degenerate.
  Compatibility compatibility = Compatibility::kDefault;
};

struct MeshAnswer {
  Mesh mesh;
  // Identities by rank, if the mesh is in the catalog and has them.
  std::vector<std::string> workers;
  int64_t revision = 0;
};

// Asks about some axes of a mesh.
struct MeshAxesQuestion {
  enum class Kind {
    kPresent,     // do the axes exist?
    kSize,        // AxesSize
    kMappedSize,  // MappedAxesSize
    kIndex,       // SubmeshIndices
    kGroups,      // DeviceGroup of each device given, or all DeviceGroups
    kSubmesh,     // SubmeshOf
  };
  Kind kind = Kind::kPresent;
  MeshSelector mesh = {};
  // At most 64.
  std::vector<std::string> axes = {};
  // kIndex, kGroups: at most 65,536 positions; none: all. kSubmesh: one; none: 0.
  std::vector<DeviceId> devices = {};
  Compatibility compatibility = Compatibility::kDefault;
};

struct MeshAxesAnswer {
  // kPresent.
  bool present = false;
  std::vector<std::string> absent_axes;
  // kSize, kMappedSize.
  int64_t size = 0;
  // kIndex: one for each device.
  std::vector<int64_t> indexes;
  // kGroups: positions; in the order of the devices, else by least member. At most 65,536 in all.
  std::vector<std::vector<DeviceId>> groups;
  // kSubmesh.
  Mesh submesh;
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_MESH_QUESTIONS_H_
