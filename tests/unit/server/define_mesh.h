// DefineMesh: a mesh in the catalog of a coordinator under test.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_DEFINE_MESH_H_
#define SHARDMESH_TESTS_UNIT_SERVER_DEFINE_MESH_H_

#include <string>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "rpc/codec/spec_codec.h"
#include "server/state/definitions.h"
#include "sharding/mesh.h"
#include "sharding/mesh_definition.h"
#include "shardmesh/v1/catalog_service.pb.h"

namespace shardmesh::server {

// Writes a mesh without workers into the catalog, waits until it is there, and returns its
// revision.
inline Revision DefineMesh(DefinitionStore* definition_store, const std::string& name,
                           const Mesh& mesh) {
  v1::EntryValue value;
  rpc::Encode(MeshDefinition{.mesh = mesh, .workers = {}}, value.mutable_mesh());
  Revision revision = 0;
  absl::Notification defined;
  definition_store->Create({.request_id = "", .name = name}, value.SerializeAsString(),
                           [&](const auto& definition) {
                             EXPECT_TRUE(definition.ok()) << definition.status();
                             if (definition.ok()) revision = (*definition)->revision;
                             defined.Notify();
                           });
  defined.WaitForNotification();
  return revision;
}

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_DEFINE_MESH_H_
