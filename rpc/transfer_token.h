// Transfer tokens: with one a client may put or get the tiles of one array on any worker, and the
// worker needs no state to judge it.
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

// What a token grants.
struct TransferClaims {
  TransferDirection direction = TransferDirection::kGet;
  std::string transfer_id;  // of a put; empty for a get
  std::string session_id;
  ArrayDescriptor array;
  // The coordinator's when it was signed: a worker that knows a newer one refuses puts.
  int64_t term = 0;
  absl::Time expire_time = absl::InfinitePast();

  friend bool operator==(const TransferClaims&, const TransferClaims&) = default;
};

// Bytes of a key that tokens are signed under.
inline constexpr size_t kTokenKeyBytes = 32;

// Tells keys apart: the first 16 bytes of the SHA-256 of the key, as 32 hexadecimal digits. It may
// be logged and kept, since nobody can work out the key from it.
std::string TokenKeyDigest(std::string_view key);

// The claims and their HMAC-SHA256 under `key`. A token is as good as the right that it grants: it
// goes into no log.
std::string SignToken(const TransferClaims& claims, std::string_view key);

// The claims of a token for `direction` that is valid at `now`.
// Errors, all BAD_TOKEN: UNAUTHENTICATED if it is missing, malformed or not signed under `key`;
// PERMISSION_DENIED if it is expired or for the other direction. Whether it is for the array and
// the tile at hand is the caller's to ask of the claims. Takes as long for any wrong signature.
absl::StatusOr<TransferClaims> VerifyToken(std::string_view token, std::string_view key,
                                           TransferDirection direction, absl::Time now);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TRANSFER_TOKEN_H_
