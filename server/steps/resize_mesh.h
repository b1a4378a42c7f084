// The auxiliary mesh on which arrays lie while their mesh gets another shape.
#ifndef SHARDMESH_SERVER_STEPS_RESIZE_MESH_H_
#define SHARDMESH_SERVER_STEPS_RESIZE_MESH_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "server/state/definitions.h"
#include "status/str_cat.h"

namespace shardmesh::server {

inline constexpr std::string_view kResizeMeshMark = ".resize-";
inline constexpr size_t kResizeUidCharacters = 12;
// Maximum length of the name of a mesh that can be resized.
inline constexpr size_t kMaxResizedName = 255 - kResizeMeshMark.size() - kResizeUidCharacters;

// Returns the name of the auxiliary mesh of `mesh`. It depends on the name and the uid alone, so a
// coordinator that starts again finds the mesh.
inline std::string ResizeMeshName(const Definition& mesh) {
  return StrCat(mesh.name, kResizeMeshMark, mesh.uid.substr(0, kResizeUidCharacters));
}

// Returns the name of the mesh for which `name` is the auxiliary mesh; empty if it is none.
inline std::string_view ResizedMeshOf(std::string_view name) {
  const size_t mark = name.rfind(kResizeMeshMark);
  const bool is_resize_mesh =
      mark != std::string_view::npos &&
      name.size() == mark + kResizeMeshMark.size() + kResizeUidCharacters &&
      name.find_first_not_of("0123456789abcdef", mark + kResizeMeshMark.size()) ==
          std::string_view::npos;
  return is_resize_mesh ? name.substr(0, mark) : std::string_view();
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_RESIZE_MESH_H_
