// Remains: what a cluster still holds when nothing is to be left.
#ifndef SHARDMESH_TESTS_MODEL_REMAINS_H_
#define SHARDMESH_TESTS_MODEL_REMAINS_H_

#include <string>

#include "absl/time/time.h"
#include "tests/model/contract_caller.h"

namespace shardmesh::model {

// Waits until the cluster has no array, staged ones included, and no worker uses memory for tiles.
// Workers tell their memory in each heartbeat. Returns what is left after `within`; empty if
// nothing is.
std::string AwaitNothingLeft(const Caller& coordinator, absl::Duration within = absl::Seconds(20));

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_REMAINS_H_
