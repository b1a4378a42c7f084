// Hashes of profiles: the one that tells profiles apart, and the one that eformer computes.
#ifndef SHARDMESH_SHARDING_PROFILE_HASH_H_
#define SHARDMESH_SHARDING_PROFILE_HASH_H_

#include <string>

#include "absl/status/statusor.h"
#include "sharding/partition_axis.h"
#include "sharding/python_value.h"

namespace shardmesh {

// 64 hexadecimal digits, equal for two profiles exactly if they are equal (but for SHA-256
// collisions); the same in every process and on every machine.
//
// It is the SHA-256 of a text that nothing else reads as: the line "shardmesh profile 1", then for
// each field in the order of AxisField its name and its value, then for each further semantic axis
// in the order given its name, its value, and its generation value or `-`. A name is written as its
// length in bytes, a colon and the bytes; a value as `_` (none), `*` (left open), `?` (not given,
// which a tuple may hide), a name, or `(` or `[`, the number of entries, a colon and the entries.
std::string Fingerprint(const PartitionAxis& profile);

// eformer's hash of the same object, for parity: only fields that hold a list count, so that most
// profiles share one hash. Further semantic axes, which eformer does not have, do not count.
// Error as HashFn.
absl::StatusOr<PythonHash> HashProfile(const PartitionAxis& profile);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PROFILE_HASH_H_
