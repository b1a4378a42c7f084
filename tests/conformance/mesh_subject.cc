// Decodes the questions about meshes, asks, and encodes the answers.
#include "tests/conformance/mesh_subject.h"

#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "status/reason.h"
#include "status/status_macros.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::DecodeMesh;
using ::shardmesh::test::DecodeSpec;

absl::Status PythonTypeError(std::string_view message) {
  return InvalidArgument(Reason::kBadField, message, "TypeError");
}

// Axis names as Python takes them: one name, or a list or tuple of names. None, a set and what else
// there is are refused here, and so is an entry that is no name; looked up in a mesh, one that
// cannot be a key (a list) is a TypeError, and one that is only absent has the class of an absent
// name.
absl::StatusOr<std::vector<std::string>> DecodeAxes(const Json& axes,
                                                    std::string_view absent_class) {
  if (axes.is_string()) return std::vector<std::string>{axes.get<std::string>()};
  const bool is_tuple = axes.is_object() && axes.contains("__tuple__");
  const Json& entries = is_tuple ? axes.at("__tuple__") : axes;
  if (!entries.is_array()) return PythonTypeError("axis names are a name, a list or a tuple");
  std::vector<std::string> names;
  for (const Json& entry : entries) {
    if (entry.is_array()) return PythonTypeError("a list is no axis name");
    if (!entry.is_string()) {
      return InvalidArgument(Reason::kAxisNotInMesh, "only a text can be the name of an axis",
                             absent_class);
    }
    names.push_back(entry.get<std::string>());
  }
  return names;
}

absl::Status NotIterable() { return PythonTypeError("neither a spec nor a tree of specs"); }

// Collects the specs of a tree: a dictionary or list of trees and specs, None among them. A name in
// the place of a spec counts as a spec of that name.
absl::Status CollectSpecs(const Json& tree, std::vector<PartitionSpec>& specs) {
  if (tree.is_null()) return absl::OkStatus();
  if (tree.is_string()) {
    specs.emplace_back(std::vector<SpecEntry>{SpecEntry::Axis(tree.get<std::string>())});
    return absl::OkStatus();
  }
  if (!tree.is_object() && !tree.is_array()) return NotIterable();
  if (tree.is_object() && tree.size() == 1 && tree.contains("spec")) {
    // A number there is no axis name: Python would iterate over it.
    for (const Json& entry : tree.at("spec")) {
      if (entry.is_number() || entry.is_boolean()) return NotIterable();
    }
    SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, DecodeSpec(tree.at("spec")));
    specs.push_back(std::move(spec));
    return absl::OkStatus();
  }
  if (tree.is_object() && tree.size() == 1) {
    for (const char* const sequence : {"__list__", "__tuple__"}) {
      if (tree.contains(sequence)) return CollectSpecs(tree.at(sequence), specs);
    }
  }
  for (const auto& [key, child] : tree.items()) {
    SHARDMESH_RETURN_IF_ERROR(CollectSpecs(child, specs));
  }
  return absl::OkStatus();
}

Json EncodeAxes(const Mesh& mesh) {
  Json axes = Json::array();
  for (const MeshAxis& axis : mesh.axes()) axes.push_back({axis.name, axis.size});
  return axes;
}

// The mesh that a function uses which takes one or none: the one given, else the context's.
absl::StatusOr<Mesh> DecodeUsedMesh(const MeshSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  if (!input.at("mesh").is_null() && !input.value("via_context", false)) return mesh;
  return subject.Context({mesh}, /*required=*/true);
}

}  // namespace

void AddMeshQuestions(std::shared_ptr<const MeshSubject> subject, Questions* questions) {
  (*questions)["mesh"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    const Json& given = input.at("mesh");
    std::vector<MeshAxis> axes;
    for (const Json& axis : given.at("axes")) axes.push_back({axis.at(0), axis.at(1)});
    const auto device_ids = given.value("device_ids", std::vector<int64_t>{});
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, subject->Make(axes, device_ids));
    return Json{{"size", mesh.size()}, {"empty", mesh.empty()}, {"axes", EncodeAxes(mesh)}};
  };
  (*questions)["get_incontext_mesh"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh entered, DecodeMesh(input.at("mesh")));
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh,
                               subject->Context({entered}, input.value("raise_error", true)));
    return Json{{"empty", mesh.empty()}, {"axes", EncodeAxes(mesh)}};
  };
  // The axis names after each mesh is entered, then whether none is in force after all are left.
  (*questions)["nested_mesh_context"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    Json answer = Json::array();
    std::vector<Mesh> entered;
    for (const Json& given : input.at("meshes")) {
      SHARDMESH_ASSIGN_OR_RETURN(Mesh mesh, DecodeMesh(given));
      entered.push_back(std::move(mesh));
      SHARDMESH_ASSIGN_OR_RETURN(const Mesh innermost, subject->Context(entered, true));
      SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                                 subject->AxisNames(innermost));
      answer.push_back(names);
    }
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh outside, subject->Context({}, false));
    answer.push_back(outside.empty());
    return answer;
  };
  // A name that is no text is the name of no axis.
  (*questions)["names_in_current_mesh"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
    std::vector<std::string> names;
    for (const Json& name : input.at("names")) {
      if (name.is_array() || name.is_object()) return PythonTypeError("a list is no axis name");
      if (!name.is_string()) return false;
      names.push_back(name.get<std::string>());
    }
    SHARDMESH_ASSIGN_OR_RETURN(const bool found, subject->HasAxes(mesh, names));
    return found;
  };
  (*questions)["get_mesh_axis_names"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeUsedMesh(*subject, input));
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, subject->AxisNames(mesh));
    return names;
  };
  (*questions)["get_names_from_partition_spec"] =
      [subject](const Json& input) -> absl::StatusOr<Json> {
    const Json& tree = input.at("partition_specs");
    // Within a tree None is a spec without names, in its place it cannot be iterated over; a text
    // is iterated by character.
    if (tree.is_null()) return NotIterable();
    if (tree.is_string()) {
      std::set<std::string> characters;
      for (const char character : tree.get<std::string>()) characters.emplace(1, character);
      return characters;
    }
    std::vector<PartitionSpec> specs;
    SHARDMESH_RETURN_IF_ERROR(CollectSpecs(tree, specs));
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, subject->NamesOf(specs));
    return names;
  };
  (*questions)["get_axes_size_in_mesh"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeUsedMesh(*subject, input));
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> axes,
                               DecodeAxes(input.at("axis_names"), "KeyError"));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size, subject->AxesSize(mesh, axes));
    return size;
  };
  (*questions)["get_mesh_axis_size"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> axes,
                               DecodeAxes(input.at("axis_names"), "NameError"));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size, subject->MappedAxesSize(mesh, axes));
    return size;
  };
  // One index for each device. Outside of a mapped computation there is no device: only a question
  // without axes has an answer, one number.
  (*questions)["get_submesh_device_index"] = [subject](const Json& input) -> absl::StatusOr<Json> {
    SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> axes,
                               DecodeAxes(input.at("axis_names"), "NameError"));
    if (input.at("mesh").is_null()) {
      SHARDMESH_RETURN_IF_ERROR(subject->MappedAxesSize(mesh, axes).status());
      return 0;
    }
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                               subject->SubmeshIndices(mesh, axes));
    return indices;
  };
}

}  // namespace shardmesh::conformance
