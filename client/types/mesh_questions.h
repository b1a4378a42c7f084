// Questions about meshes and their answers, as types of the client library.
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

// A mesh as the user wrote it. The coordinator, and not the client, validates the mesh. See
// Mesh::Create.
struct MeshFields {
  std::vector<MeshAxis> axes;
  std::vector<int64_t> device_ids = {};
};
// A mesh as text, such as `dp=2,tp=4`; see ParseMeshAxes. At most 8 KiB.
struct MeshText {
  std::string text;
};

// Asks for a validated mesh and its workers.
struct MeshQuestion {
  std::variant<MeshSelector, MeshFields, MeshText> mesh = {};
  // The number of devices that the mesh must have. The coordinator infers the size of an axis given
  // as -1 from this number.
  std::optional<int64_t> device_count = std::nullopt;
  // Whether an empty mesh is an error (FAILED_PRECONDITION, NO_MESH).
  bool required = false;
  // kExact accepts all meshes that JAX accepts; see MeshOptions::allow_degenerate.
  Compatibility compatibility = Compatibility::kDefault;
};

struct MeshAnswer {
  Mesh mesh;
  // The workers' identities by rank. Empty unless the mesh is in the catalog and workers are
  // assigned to it.
  std::vector<std::string> workers;
  int64_t revision = 0;
};

// Asks about some axes of a mesh.
struct MeshAxesQuestion {
  enum class Kind {
    kPresent,     // whether the axes exist
    kSize,        // the product of the axes' sizes; see AxesSize
    kMappedSize,  // the product as in a mapped computation; see MappedAxesSize
    kIndex,       // the index of each device along the axes; see SubmeshIndices
    kGroups,      // the DeviceGroup of each device; all DeviceGroups if `devices` is empty
    kSubmesh,     // the mesh over the axes through a device; see SubmeshOf
  };
  Kind kind = Kind::kPresent;
  MeshSelector mesh = {};
  // At most 64 axes.
  std::vector<std::string> axes = {};
  // The devices to ask about, as positions in the mesh. kIndex and kGroups take at most 65,536
  // devices; an empty list means all devices of a mesh that has at most 65,536 devices. kSubmesh
  // takes one device; an empty list means device 0. For questions of all other kinds, the list must
  // be empty.
  std::vector<DeviceId> devices = {};
  Compatibility compatibility = Compatibility::kDefault;
};

struct MeshAxesAnswer {
  // For kPresent: whether the mesh has all of the question's axes, and the axes that it lacks.
  bool present = false;
  std::vector<std::string> absent_axes;
  // For kSize and kMappedSize: the product of the sizes of the question's axes.
  int64_t size = 0;
  // For kIndex: the index of each device along the question's axes.
  std::vector<int64_t> indexes;
  // For kGroups: the positions of each group's devices, at most 65,536 in all. The groups have the
  // order of the question's devices. If the question has no devices, the groups are sorted by the
  // lowest position in each.
  std::vector<std::vector<DeviceId>> groups;
  // For kSubmesh: the mesh over the question's axes.
  Mesh submesh;
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_MESH_QUESTIONS_H_
