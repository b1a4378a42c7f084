// Random graphs on the workers of a cluster.
#ifndef SHARDMESH_TESTS_INTEGRATION_RANDOM_GRAPHS_H_
#define SHARDMESH_TESTS_INTEGRATION_RANDOM_GRAPHS_H_

#include "client/mesh_client.h"
#include "sharding/mesh.h"
#include "tests/testing/random_cases.h"

namespace shardmesh::test {

// Runs random graphs, one after the other, on the mesh "default", which is `mesh`. Expects that
// all results are within the bounds of a recomputation in F64, and that each step sends the bytes
// that were predicted. Ends with the first failure.
void ExpectRandomGraphsVerified(client::MeshClient& client, const Mesh& mesh,
                                const RandomCases& cases);

}  // namespace shardmesh::test

#endif  // SHARDMESH_TESTS_INTEGRATION_RANDOM_GRAPHS_H_
