// Preconditions of changes on the wire.
#ifndef SHARDMESH_CLIENT_REMOTE_PRECONDITION_H_
#define SHARDMESH_CLIENT_REMOTE_PRECONDITION_H_

#include <cstdint>

#include "client/types/array.h"
#include "shardmesh/v1/precondition.pb.h"

namespace shardmesh::client {

// Encodes kAnyVersion, kMustNotExist or a version.
inline void SetPrecondition(int64_t expected_version, v1::Precondition* to) {
  if (expected_version == kMustNotExist) {
    to->set_must_not_exist(true);
  } else if (expected_version != kAnyVersion) {
    to->set_version(expected_version);
  }
}

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_REMOTE_PRECONDITION_H_
