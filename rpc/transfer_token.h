// Transfer tokens. A token lets a client put or get the tiles of one array on any worker. A worker
// verifies a token without stored state.
#ifndef SHARDMESH_RPC_TRANSFER_TOKEN_H_
#define SHARDMESH_RPC_TRANSFER_TOKEN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tensor/array_descriptor.h"

namespace shardmesh::rpc {

enum class TransferDirection {
  kPut,  // tiles come in
  kGet,  // tiles go out
};

// The rights that a token grants.
struct TransferClaims {
  TransferDirection direction = TransferDirection::kGet;
  std::string transfer_id;  // id of a put; empty for a get
  std::string session_id;
  // The array's descriptor as ArrayDescriptorBytes (rpc/codec/array_codec.h) encodes it.
  std::string array_descriptor;
  // The coordinator's term (number of its start) when it signed the token. A worker that knows a
  // newer term refuses puts with this token.
  int64_t term = 0;
  absl::Time expire_time = absl::InfinitePast();

  friend bool operator==(const TransferClaims&, const TransferClaims&) = default;
};

// The content of a token whose signature is valid.
struct VerifiedToken {
  TransferClaims claims;  // array_descriptor has the signed bytes, including unknown fields
  ArrayDescriptor array;  // decoded from claims.array_descriptor

  friend bool operator==(const VerifiedToken&, const VerifiedToken&) = default;
};

// Size of a signing key.
inline constexpr size_t kTokenKeyBytes = 32;

// Returns an identifier of a key: the first 16 bytes of the key's SHA-256, as 32 hexadecimal
// digits. It may be logged and stored, because it does not reveal the key.
std::string TokenKeyDigest(std::string_view key);

// Returns a token: the claims with their HMAC-SHA256 under `key`. Every holder of a token has the
// rights that the token grants, so never log a token.
std::string SignToken(const TransferClaims& claims, std::string_view key);

// Verifies a token, and returns its content. The token must be for `direction` and valid at `now`.
// The caller must compare the content with the array and tile of its call. The function takes the
// same time for any wrong signature. Errors, all BAD_TOKEN:
//   - UNAUTHENTICATED: the token is missing or not signed under `key`, or the token or its array
//     descriptor is malformed;
//   - PERMISSION_DENIED: the token is expired or for the other direction.
absl::StatusOr<VerifiedToken> VerifyToken(std::string_view token, std::string_view key,
                                          TransferDirection direction, absl::Time now);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TRANSFER_TOKEN_H_
