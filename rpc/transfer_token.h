// Transfer tokens: a token lets a client put or get the tiles of one array on any worker. A worker
// verifies it without stored state.
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
  std::string transfer_id;  // of a put; empty for a get
  std::string session_id;
  // The array's descriptor as ArrayDescriptorBytes makes it (rpc/codec/array_codec.h).
  std::string array_descriptor;
  // The coordinator's term at signing. A worker that knows a newer term refuses puts.
  int64_t term = 0;
  absl::Time expire_time = absl::InfinitePast();

  friend bool operator==(const TransferClaims&, const TransferClaims&) = default;
};

// The content of a token with a valid signature.
struct VerifiedToken {
  TransferClaims claims;  // its array_descriptor has the signed bytes, unknown fields among them
  ArrayDescriptor array;  // decoded from claims.array_descriptor

  friend bool operator==(const VerifiedToken&, const VerifiedToken&) = default;
};

// Bytes of a signing key.
inline constexpr size_t kTokenKeyBytes = 32;

// Identifies a key: the first 16 bytes of the SHA-256 of the key, as 32 hexadecimal digits. It may
// be logged and stored, because it does not reveal the key.
std::string TokenKeyDigest(std::string_view key);

// Returns the claims with their HMAC-SHA256 under `key`. The holder of a token has its rights:
// never log a token.
std::string SignToken(const TransferClaims& claims, std::string_view key);

// Returns the content of a token for `direction` that is valid at `now`. Errors, all BAD_TOKEN:
// UNAUTHENTICATED if the token is missing or not signed under `key`, or if the token or its array
// descriptor is malformed; PERMISSION_DENIED if it is expired or for the other direction. The
// caller must compare the content with its array and tile. Takes the same time for any wrong
// signature.
absl::StatusOr<VerifiedToken> VerifyToken(std::string_view token, std::string_view key,
                                          TransferDirection direction, absl::Time now);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TRANSFER_TOKEN_H_
