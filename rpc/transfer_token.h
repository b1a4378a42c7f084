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
  ArrayDescriptor array;
  // The coordinator's term at signing. A worker that knows a newer term refuses puts.
  int64_t term = 0;
  absl::Time expire_time = absl::InfinitePast();

  friend bool operator==(const TransferClaims&, const TransferClaims&) = default;
};

// Bytes of a signing key.
inline constexpr size_t kTokenKeyBytes = 32;

// Identifies a key: the first 16 bytes of the SHA-256 of the key, as 32 hexadecimal digits. It may
// be logged and stored, because it does not reveal the key.
std::string TokenKeyDigest(std::string_view key);

// Returns the claims with their HMAC-SHA256 under `key`. The holder of a token has its rights:
// never log a token.
std::string SignToken(const TransferClaims& claims, std::string_view key);

// Returns the claims of a token for `direction` that is valid at `now`. Errors, all BAD_TOKEN:
// UNAUTHENTICATED if it is missing, malformed or not signed under `key`; PERMISSION_DENIED if it is
// expired or for the other direction. The caller must compare the claims with its array and tile.
// Takes the same time for any wrong signature.
absl::StatusOr<TransferClaims> VerifyToken(std::string_view token, std::string_view key,
                                           TransferDirection direction, absl::Time now);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TRANSFER_TOKEN_H_
