// Cryptographic digests: the hashes of plans, the signatures of tokens, and digests read as
// numbers.
#ifndef SHARDMESH_SHARDING_DIGEST_H_
#define SHARDMESH_SHARDING_DIGEST_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sharding/compatibility.h"

namespace shardmesh {

// SHA-256 of `bytes`, as 32 raw bytes.
std::string Sha256(std::string_view bytes);

// HMAC-SHA256 of `bytes` under `key`, as 32 raw bytes.
std::string HmacSha256(std::string_view key, std::string_view bytes);

// Whether both are equal; takes as long whichever byte differs.
bool EqualInConstantTime(std::string_view a, std::string_view b);

// The digest of `text` read as one number, the first byte the most significant, in decimal:
// SafeHashInt("", "md5") is 281949768489412648962353822266799178366.
//
// `algorithm` is case-sensitive and named as an attribute of Python's hashlib: md5, sha1, sha224,
// sha256, sha384, sha512, sha3_224, sha3_256, sha3_384, sha3_512, blake2b, blake2s. kDefault also
// knows every other digest of fixed length that this build's OpenSSL provides, under OpenSSL's own
// names ("SHA512-256", "sm3") and with `_` in the place of `-`.
//
// Errors are INVALID_ARGUMENT (BAD_FIELD): class Exception for shake_128 and shake_256, whose
// digests have no length of their own, and for the attributes of hashlib that are no algorithms;
// ValueError for any other name.
absl::StatusOr<std::string> SafeHashInt(std::string_view text, std::string_view algorithm = "md5",
                                        Compatibility compatibility = Compatibility::kDefault);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_DIGEST_H_
