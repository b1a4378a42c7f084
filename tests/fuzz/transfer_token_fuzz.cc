// Fuzzes transfer tokens: none is accepted that was not signed; claims that are accepted describe
// an array that lies as it says, and signed anew they are the same.
#include "rpc/transfer_token.h"

#include <string>
#include <string_view>

#include "sharding/digest.h"
#include "shardmesh/internal/v1/transfer_token.pb.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/quiet_protobuf.h"

namespace shardmesh::fuzz {

// The input is a token, then the claims of one that is signed here.
void Check(std::string_view input) {
  static const std::string key(rpc::kTokenKeyBytes, 'k');
  const absl::Time now = absl::UnixEpoch();
  Require(rpc::VerifyToken(input, key, rpc::TransferDirection::kGet, now).status().code() ==
          absl::StatusCode::kUnauthenticated);

  internal::v1::TransferToken token;
  token.set_claims(std::string(input));
  token.set_signature(HmacSha256(key, input));
  for (const auto direction : {rpc::TransferDirection::kGet, rpc::TransferDirection::kPut}) {
    const auto verified = rpc::VerifyToken(token.SerializeAsString(), key, direction, now);
    if (!verified.ok()) {
      continue;
    }
    const auto tiling = verified->array.Tiling();
    Require(tiling.ok());
    for (const DeviceId device : {DeviceId{0}, verified->array.mesh.size() - 1}) {
      Require(verified->array.TileSizeBytes(tiling->TileOf(device)).ok());
    }
    const auto again = rpc::VerifyToken(rpc::SignToken(verified->claims, key), key, direction, now);
    Require(again.ok() && *again == *verified);
  }
}

}  // namespace shardmesh::fuzz
