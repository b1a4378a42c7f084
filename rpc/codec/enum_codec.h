// Converts enums between messages and the types of the domain.
#ifndef SHARDMESH_RPC_CODEC_ENUM_CODEC_H_
#define SHARDMESH_RPC_CODEC_ENUM_CODEC_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "rpc/codec/status.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {

// The wire's enums reserve 0 for "not set". The functions below require that their other values are
// those of the domain's enum plus one.
template <typename Wire, typename Domain>
Wire EncodeEnum(Domain from) {
  return static_cast<Wire>(static_cast<int>(from) + 1);
}

// `is_known`: whether this build's messages have the value. INVALID_ARGUMENT (BAD_FIELD) for an
// unknown value, and for 0.
template <typename Domain, typename Wire>
absl::StatusOr<Domain> DecodeEnum(Wire from, bool is_known, std::string_view field) {
  const int value = static_cast<int>(from);
  if (!is_known || value == 0) {
    return BadField(field, StrCat(field, " ", value, value == 0 ? " is not set" : " is not known"));
  }
  return static_cast<Domain>(value - 1);
}

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_ENUM_CODEC_H_
