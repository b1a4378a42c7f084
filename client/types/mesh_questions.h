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

// A mesh as the user wrote it, not validated: the coordinator validates it. See Mesh::Create.
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
  // The required number of devices, from which the coordinator infers a size of -1.
  std::optional<int64_t> device_count = std::nullopt;
  // Whether an empty mesh is an error (FAILED_PRECONDITION, NO_MESH).
  bool required = false;
  // kExact accepts all meshes that JAX accepts; see MeshOptions::allow_degenerate.
  Compatibility compatibility = Compatibility::kDefault;
};

struct MeshAnswer {
  Mesh mesh;
  // The workers' identities by rank, if the mesh is in the catalog and workers are assigned to it.
  std::vector<std::string> workers;
  int64_t revision = 0;
};

// Asks about some axes of a mesh.
struct MeshAxesQuestion {
  enum class Kind {
    kPresent,     // whether the axes exist
    kSize,        // AxesSize
    kMappedSize,  // MappedAxesSize
    kIndex,       // SubmeshIndices
    kGroups,      // DeviceGroup of each given device; DeviceGroups if none is given
    kSubmesh,     // SubmeshOf
  };
  Kind kind = Kind::kPresent;
  MeshSelector mesh = {};
  // At most 64.
  std::vector<std::string> axes = {};
  // For kIndex and kGroups: at most 65,536 positions; empty means all devices. For kSubmesh: one
  // position; empty means 0.
  std::vector<DeviceId> devices = {};
  Compatibility compatibility = Compatibility::kDefault;
};

struct MeshAxesAnswer {
  // kPresent.
  bool present = false;
  std::vector<std::string> absent_axes;
  // For kSize and kMappedSize.
  int64_t size = 0;
  // For kIndex: one index for each device.
  std::vector<int64_t> indexes;
  // For kGroups: the positions of each group's devices, at most 65,536 in all. The groups have the
  // order of the question's devices; without devices, they are sorted by least member.
  std::vector<std::vector<DeviceId>> groups;
  // kSubmesh.
  Mesh submesh;
  int64_t revision = 0;
};

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_TYPES_MESH_QUESTIONS_H_
