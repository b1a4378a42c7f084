// Cryptographic digests: hashes of plans, signatures of tokens, and digests as numbers.
#ifndef SHARDMESH_SHARDING_DIGEST_H_
#define SHARDMESH_SHARDING_DIGEST_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sharding/compatibility.h"

namespace shardmesh {

// Returns the SHA-256 of `bytes`, as 32 raw bytes.
std::string Sha256(std::string_view bytes);

// The SHA-256 of bytes that come in pieces. Not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;

  void Add(std::string_view bytes);
  // Returns the digest of all added bytes, as 32 raw bytes. Call it once, at the end.
  std::string Finish();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// Returns the HMAC-SHA256 of `bytes` under `key`, as 32 raw bytes.
std::string HmacSha256(std::string_view key, std::string_view bytes);

// Returns whether both texts are equal. The time does not depend on which byte differs, so that an
// attacker cannot guess a signature byte by byte.
bool EqualInConstantTime(std::string_view a, std::string_view b);

// Returns the digest of `text` as one decimal number; the first byte is the most significant.
// SafeHashInt("", "md5") is 281949768489412648962353822266799178366.
//
// `algorithm` is case-sensitive and named as an attribute of Python's hashlib: md5, sha1, sha224,
// sha256, sha384, sha512, sha3_224, sha3_256, sha3_384, sha3_512, blake2b, blake2s. kDefault also
// accepts every other digest of fixed length that this build's OpenSSL provides. Such a digest has
// OpenSSL's own name ("SHA512-256", "sm3"); `_` may replace `-`.
//
// Errors are INVALID_ARGUMENT (BAD_FIELD). The Python class of the error is Exception for shake_128
// and shake_256, which have no fixed length, and for attributes of hashlib that are no algorithms.
// The class is ValueError for any other name.
absl::StatusOr<std::string> SafeHashInt(std::string_view text, std::string_view algorithm = "md5",
                                        Compatibility compatibility = Compatibility::kDefault);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_DIGEST_H_
