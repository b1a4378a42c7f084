// Cryptographic digests: the hashes of plans, and the signatures of tokens.
#ifndef SHARDMESH_RPC_DIGEST_H_
#define SHARDMESH_RPC_DIGEST_H_

#include <string>
#include <string_view>

namespace shardmesh::rpc {

// SHA-256 of `bytes`, as 32 raw bytes.
std::string Sha256(std::string_view bytes);

// HMAC-SHA256 of `bytes` under `key`, as 32 raw bytes.
std::string HmacSha256(std::string_view key, std::string_view bytes);

// Whether both are equal; takes as long whichever byte differs.
bool EqualInConstantTime(std::string_view a, std::string_view b);

// `size` bytes from the system's cryptographic generator.
std::string RandomBytes(size_t size);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_DIGEST_H_
