// Hashes of profiles: a fingerprint that distinguishes profiles, and eformer's hash.
#ifndef SHARDMESH_SHARDING_PROFILE_HASH_H_
#define SHARDMESH_SHARDING_PROFILE_HASH_H_

#include <string>

#include "absl/status/statusor.h"
#include "sharding/partition_axis.h"
#include "sharding/python_value.h"

namespace shardmesh {

// Returns 64 hexadecimal digits, equal for two profiles exactly if the profiles are equal (apart
// from SHA-256 collisions). The digits are the same in every process and on every machine.
//
// The digits are the SHA-256 of an unambiguous text:
//   - the line "shardmesh profile 1";
//   - for each field in the order of AxisField: its name and its value;
//   - for each user-defined semantic axis in the order given: its name, its value, and its
//     generation value or `-`.
// A name is written as its length in bytes, a colon and the bytes. A value is one of:
//   - `_` (none), `*` (left open), `?` (not given, possible within a tuple), or a name;
//   - `(` or `[`, the number of entries, a colon and the entries.
std::string Fingerprint(const PartitionAxis& profile);

// Returns the hash that eformer computes for the same profile. The hash covers only fields whose
// value is a list, so most profiles share one hash. It ignores user-defined semantic axes, which
// eformer does not have. The only error is that of HashFn.
absl::StatusOr<PythonHash> HashProfile(const PartitionAxis& profile);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PROFILE_HASH_H_
