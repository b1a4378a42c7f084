// From the cases' trees to lists of leaves, and back.
//
// A tree is a dict of one level; its leaves are taken in the order of their keys, as the originals
// take them and as a JSON object gives them.
#include "tests/conformance/analysis_subject.h"

#include <string>
#include <utility>

#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/golden.h"

namespace shardmesh::conformance {
namespace {

using ::shardmesh::test::DecodeMesh;
using ::shardmesh::test::DecodeShape;
using ::shardmesh::test::DecodeSpec;
using ::shardmesh::test::EncodeSpec;
using Subject = std::shared_ptr<const AnalysisSubject>;

Json EncodeCount(const PythonCount& count) {
  if (count.is_float) {
    return {{"value", static_cast<double>(count.value)}, {"kind", "float"}};
  }
  return {{"value", count.value}, {"kind", "int"}};
}

absl::StatusOr<Json> Analyze(const AnalysisSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  std::vector<AnalyzedTensor> tensors;
  for (const auto& [name, leaf] : input.at("tree").items()) {
    // Two trees are walked at once in Python, which is an error where they differ. Here every
    // tensor comes with its spec.
    if (!input.at("specs").contains(name)) {
      return InvalidArgument(Reason::kInvalidSpec, StrCat(name, " has no spec"));
    }
    SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, DecodeSpec(input.at("specs").at(name)));
    tensors.push_back({name, DecodeShape(leaf.at("shape")), std::move(spec)});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const ExactAnalysis analysis, subject.Analyze(tensors, mesh));
  return Json{{"total_parameters", EncodeCount(analysis.total_parameters)},
              {"sharded_parameters", EncodeCount(analysis.sharded_parameters)},
              {"balance_score", {{"value", analysis.balance_score}, {"kind", "float"}}},
              // The original declares two tables and never fills them.
              {"memory_per_device", Json::object()},
              {"partition_stats", Json::object()}};
}

absl::StatusOr<Json> ShardAndGather(const AnalysisSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  std::vector<LeafToShard> leaves;
  for (const auto& [name, spec] : input.at("specs").items()) {
    SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec decoded, DecodeSpec(spec));
    leaves.push_back({name, DecodeShape(input.at("shapes").at(name)), std::move(decoded)});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<LeafPlacement> placements,
                             subject.ShardAndGather(leaves, mesh));
  Json keys = Json::array();
  Json answers = Json::object();
  for (const LeafPlacement& placement : placements) {
    keys.push_back(placement.name);
    // Of what was gathered only Python can tell that it is a numpy array; that it equals what was
    // placed follows from its being the whole, on every device.
    answers[placement.name] = {
        {"shard_spec",
         placement.shard.has_value() ? EncodeSpec(placement.shard->effective) : Json(nullptr)},
        {"gathered_equal", placement.gather == PartitionSpec()},
        {"gather_type", "numpy"}};
  }
  return Json{{"shard_keys", keys}, {"gather_keys", keys}, {"leaves", std::move(answers)}};
}

absl::StatusOr<std::vector<HeldLeaf>> DecodeLeaves(const Json& tree, const Mesh& mesh) {
  std::vector<HeldLeaf> leaves;
  for (const auto& [name, value] : tree.items()) {
    HeldLeaf leaf;
    leaf.name = name;
    const std::string kind = value.at("kind");
    if (kind == "sharded") {
      leaf.kind = HeldLeaf::Kind::kSharded;
      leaf.mesh = mesh;
      SHARDMESH_ASSIGN_OR_RETURN(leaf.spec, DecodeSpec(value.at("spec")));
    } else if (kind == "single") {
      leaf.kind = HeldLeaf::Kind::kSingle;
    } else if (kind == "numpy") {
      leaf.kind = HeldLeaf::Kind::kHostArray;
    } else if (kind == "value") {
      // A boolean is an integer in Python.
      const Json& held = value.at("value");
      leaf.kind =
          held.is_number() || held.is_boolean() ? HeldLeaf::Kind::kNumber : HeldLeaf::Kind::kOther;
    }
    leaves.push_back(std::move(leaf));
  }
  return leaves;
}

Json EncodeShardings(const std::vector<HeldLeaf>& leaves,
                     const std::vector<std::optional<NamedSharding>>& shardings) {
  Json tree = Json::object();
  for (size_t i = 0; i < leaves.size(); ++i) {
    Json& answer = tree[leaves[i].name];
    if (shardings[i].has_value()) {
      Json axes = Json::array();
      for (const MeshAxis& axis : shardings[i]->mesh.axes()) {
        axes.push_back(axis.name);
      }
      answer = {{"spec", EncodeSpec(shardings[i]->spec)}, {"mesh_axes", std::move(axes)}};
    }
  }
  return tree;
}

absl::StatusOr<Json> ShardingStructure(const AnalysisSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<HeldLeaf> leaves,
                             DecodeLeaves(input.at("tree"), mesh));
  SHARDMESH_ASSIGN_OR_RETURN(const auto shardings, subject.ShardingStructure(leaves));
  return EncodeShardings(leaves, shardings);
}

absl::StatusOr<Json> Shardings(const AnalysisSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<HeldLeaf> leaves,
                             DecodeLeaves(input.at("tree"), mesh));
  // Without `pass_mesh` the mesh is the context's, and there is none.
  SHARDMESH_ASSIGN_OR_RETURN(
      const auto shardings,
      subject.Shardings(leaves, input.value("pass_mesh", true) ? mesh : Mesh()));
  return EncodeShardings(leaves, shardings);
}

absl::StatusOr<Json> PartitionSpecs(const AnalysisSubject& subject, const Json& input) {
  SHARDMESH_ASSIGN_OR_RETURN(const Mesh mesh, DecodeMesh(input.at("mesh")));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<HeldLeaf> leaves,
                             DecodeLeaves(input.at("tree"), mesh));
  SHARDMESH_ASSIGN_OR_RETURN(const auto specs, subject.PartitionSpecs(leaves));
  Json tree = Json::object();
  for (size_t i = 0; i < leaves.size(); ++i) {
    tree[leaves[i].name] = specs[i].has_value() ? EncodeSpec(*specs[i]) : Json(nullptr);
  }
  return tree;
}

}  // namespace

void AddAnalysisQuestions(Subject subject, Questions* questions) {
  const auto add = [&](std::string_view name,
                       absl::StatusOr<Json> (*answer)(const AnalysisSubject&, const Json&)) {
    (*questions)[std::string(name)] = [subject, answer](const Json& input) {
      return answer(*subject, input);
    };
  };
  add("analyze_sharding_strategy", Analyze);
  add("make_shard_and_gather_fns", ShardAndGather);
  add("extract_sharding_structure", ShardingStructure);
  add("get_shardings_with_structure", ShardingStructure);
  add("extract_shardings", Shardings);
  add("get_partition_spec", PartitionSpecs);
}

}  // namespace shardmesh::conformance
