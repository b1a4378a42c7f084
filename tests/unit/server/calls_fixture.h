// CallsFixture: the parts of a coordinator, for tests that make calls without a server.
#ifndef SHARDMESH_TESTS_UNIT_SERVER_CALLS_FIXTURE_H_
#define SHARDMESH_TESTS_UNIT_SERVER_CALLS_FIXTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/attach/coordinator_parts.h"
#include "server/state/session.h"
#include "sharding/mesh.h"
#include "tests/unit/server/define_mesh.h"
#include "tests/unit/server/worker_streams_fixture.h"

namespace shardmesh::server {

// The first two workers serve the mesh `m` (x=2). The registry is not notified when workers are
// lost, as in the moment before a real coordinator notifies it.
class CallsFixture : public WorkerStreamsFixture {
 protected:
  explicit CallsFixture(const std::vector<std::string>& identities) {
    for (const std::string& identity : identities) {
      const auto attachment = members_.Attach({.identity = identity,
                                               .incarnation = 1,
                                               .build_version = "1",
                                               .endpoints = {"10.0.0.1:1"},
                                               .host = "host"});
      EXPECT_THAT(attachment, ::shardmesh::test::IsOk());
      attachments_.push_back(attachment.value_or(0));
    }
    DefineMesh(definition_store_.get(), "m", *Mesh::Parse("x=2"));
    EXPECT_THAT(members_.AddMesh("m", 2, {identities[0], identities[1]}),
                ::shardmesh::test::IsOk());
  }

  CoordinatorParts Parts() {
    CoordinatorParts parts;
    parts.clock = &clock_;
    parts.definition_store = definition_store_.get();
    parts.membership = &members_;
    parts.hub = streams_.get();
    parts.registry = registry_.get();
    parts.sessions = &sessions_;
    parts.links = &link_table_;
    parts.recovery = &recovery_;
    parts.token_key = "key";
    parts.term = 7;
    return parts;
  }

  std::vector<uint64_t> attachments_;  // of the workers, in the order of the identities
  SessionTable sessions_{&clock_, [](const EndedSession&) {}};
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_TESTS_UNIT_SERVER_CALLS_FIXTURE_H_
