// Encodes definitions and their changes, and decodes their kinds.
#include "server/codec/catalog_codec.h"

#include <memory>
#include <variant>

#include "process/log.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"

namespace shardmesh::server {

v1::EntryKind Encode(DefinitionKind kind) {
  switch (kind) {
    case DefinitionKind::kMesh:
      return v1::ENTRY_KIND_MESH;
    case DefinitionKind::kProfile:
      return v1::ENTRY_KIND_PROFILE;
    case DefinitionKind::kRuleSet:
      return v1::ENTRY_KIND_RULE_SET;
    case DefinitionKind::kLogicalRules:
      return v1::ENTRY_KIND_LOGICAL_RULES;
    case DefinitionKind::kTree:
      return v1::ENTRY_KIND_TREE;
  }
  return v1::ENTRY_KIND_UNSPECIFIED;
}

absl::StatusOr<DefinitionKind> Decode(v1::EntryKind kind) {
  switch (kind) {
    case v1::ENTRY_KIND_MESH:
      return DefinitionKind::kMesh;
    case v1::ENTRY_KIND_PROFILE:
      return DefinitionKind::kProfile;
    case v1::ENTRY_KIND_RULE_SET:
      return DefinitionKind::kRuleSet;
    case v1::ENTRY_KIND_LOGICAL_RULES:
      return DefinitionKind::kLogicalRules;
    case v1::ENTRY_KIND_TREE:
      return DefinitionKind::kTree;
    default:
      return rpc::BadField("kind",
                           "must be a mesh, a profile, a rule set, logical rules or a tree");
  }
}

void Encode(const Definition& definition, Tensors tensors, v1::Entry* to) {
  to->set_name(definition.name);
  const auto* const tree = std::get_if<std::shared_ptr<const StoredTree>>(&definition.value);
  if (tree == nullptr || tensors == Tensors::kWithTree) {
    to->mutable_value()->ParseFromString(definition.wire_value);
  }
  if (tree != nullptr) {
    (*tree)->EncodeSummary(to->mutable_value()->mutable_tree());
  }
  to->set_version(definition.version);
  to->set_revision(definition.revision);
  rpc::Encode(definition.updated, to->mutable_update_time());
  to->set_uid(definition.uid);
  if (!std::holds_alternative<rpc::MeshDefinition>(definition.value)) return;
  if (const std::vector<std::string>& workers = WorkersOf(definition); !workers.empty()) {
    to->mutable_mesh_assignment()->mutable_workers()->Assign(workers.begin(), workers.end());
    to->mutable_mesh_assignment()->set_revision(
        definition.assigned != nullptr ? definition.assigned->revision : definition.revision);
  }
}

void Encode(const Definitions::Version& version, v1::EntryVersion* to) {
  to->set_version(version.version);
  to->set_revision(version.revision);
  rpc::Encode(version.updated, to->mutable_update_time());
  to->set_size_bytes(version.size_bytes);
  to->set_uid(version.uid);
}

void Encode(const DefinitionStore::Event& event, const DefinitionStore& definition_store,
            v1::EntryChange* to) {
  to->set_kind(Encode(event.kind));
  to->set_name(event.name);
  if (event.record == nullptr) {
    return;
  }
  const auto definition = definition_store.Describe(event);
  if (definition.ok()) {
    Encode(**definition, Tensors::kLeftOut, to->mutable_entry());
    return;
  }
  rpc::LogWarning(
      "a change of a definition cannot be read, and watchers get it without its value",
      {{"name", event.name}, {"revision", event.revision}, {"error", definition.status()}});
  to->mutable_entry()->set_name(event.name);
  to->mutable_entry()->set_revision(event.revision);
}

}  // namespace shardmesh::server
