// Digests by libcrypto.
#include "sharding/digest.h"

#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "sharding/axis_value.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

unsigned char* Bytes(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }
const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

// An algorithm with its names in hashlib and in libcrypto.
struct Algorithm {
  std::string_view name;
  const char* libcrypto_name;
};

constexpr std::array kAlgorithms = {
    Algorithm{"blake2b", "BLAKE2B-512"},
    Algorithm{"blake2s", "BLAKE2S-256"},
    Algorithm{"md5", "MD5"},
    Algorithm{"sha1", "SHA1"},
    Algorithm{"sha224", "SHA2-224"},
    Algorithm{"sha256", "SHA2-256"},
    Algorithm{"sha384", "SHA2-384"},
    Algorithm{"sha512", "SHA2-512"},
    Algorithm{"sha3_224", "SHA3-224"},
    Algorithm{"sha3_256", "SHA3-256"},
    Algorithm{"sha3_384", "SHA3-384"},
    Algorithm{"sha3_512", "SHA3-512"},
};

// The attributes of Python 3.11's hashlib that are not algorithms. The original calls the attribute
// with the text: such a call raises, or gives no digest.
constexpr std::string_view kOtherAttributes[] = {
    "__all__",
    "__block_openssl_constructor",
    "__builtin_constructor_cache",
    "__builtins__",
    "__cached__",
    "__class__",
    "__delattr__",
    "__dict__",
    "__dir__",
    "__doc__",
    "__file__",
    "__format__",
    "__get_builtin_constructor",
    "__getattribute__",
    "__getstate__",
    "__hash__",
    "__init__",
    "__init_subclass__",
    "__loader__",
    "__name__",
    "__new__",
    "__package__",
    "__reduce__",
    "__reduce_ex__",
    "__repr__",
    "__setattr__",
    "__sizeof__",
    "__spec__",
    "__str__",
    "_hashlib",
    "algorithms_available",
    "algorithms_guaranteed",
    "file_digest",
    "new",
    "pbkdf2_hmac",
    "scrypt",
};

// Longest name to look up in libcrypto; libcrypto's own names are shorter.
constexpr size_t kMaxNameBytes = 64;

struct FreeDigest {
  void operator()(EVP_MD* digest) const { EVP_MD_free(digest); }
};
using Digest = std::unique_ptr<EVP_MD, FreeDigest>;

struct FreeNumber {
  void operator()(BIGNUM* number) const { BN_free(number); }
};

// Returns libcrypto's implementation; null if this build of libcrypto does not provide the
// algorithm.
Digest FetchDigest(const std::string& libcrypto_name) {
  ERR_set_mark();  // keeps the error of a failed lookup out of the thread's error queue
  Digest digest(EVP_MD_fetch(nullptr, libcrypto_name.c_str(), nullptr));
  ERR_pop_to_mark();
  return digest;
}

bool HasNoLengthOfItsOwn(const EVP_MD* digest) {
  return (EVP_MD_get_flags(digest) & EVP_MD_FLAG_XOF) != 0;
}

absl::Status NoLength(std::string_view algorithm) {
  return InvalidArgument(Reason::kBadField,
                         StrCat("digests of ", PythonRepr(algorithm),
                                " need a length, and none can be given here; use a sha3 instead"),
                         {{fact::kValue, algorithm}}, "Exception");
}

// Returns libcrypto's digest of that name, or of the name with `-` for each `_`.
Digest FetchByOwnName(std::string_view algorithm) {
  if (algorithm.empty() || algorithm.size() > kMaxNameBytes ||
      algorithm.find('\0') != std::string_view::npos) {
    return nullptr;
  }
  std::string name(algorithm);
  if (Digest digest = FetchDigest(name)) return digest;
  std::replace(name.begin(), name.end(), '_', '-');
  return FetchDigest(name);
}

// Returns whether the digest has a fixed length.
bool IsUsable(const EVP_MD* digest) {
  return digest != nullptr && !HasNoLengthOfItsOwn(digest) && EVP_MD_get_size(digest) > 0;
}

absl::Status NoAlgorithm(std::string_view algorithm, Compatibility compatibility) {
  std::vector<std::string_view> known;
  for (const Algorithm& each : kAlgorithms) known.push_back(each.name);
  const bool is_exact = compatibility == Compatibility::kExact;
  const bool is_of_openssl = is_exact && IsUsable(FetchByOwnName(algorithm).get());
  return InvalidArgument(
      Reason::kBadField,
      StrCat(PythonRepr(algorithm),
             is_of_openssl
                 ? " is a name of OpenSSL's, which is known by default and not under EXACT"
                 : " is no digest algorithm",
             "; there are ", StrJoin(known, ", "),
             is_exact ? "" : ", and OpenSSL's others by its own names",
             is_of_openssl ? "" : DidYouMean(algorithm, known)),
      {{fact::kValue, algorithm},
       {fact::kNearest, is_of_openssl ? "" : NearestName(algorithm, known).value_or("")}});
}

std::string DigestAsDecimal(const EVP_MD* digest, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
  unsigned int size = 0;
  const bool digested =
      EVP_Digest(text.data(), text.size(), bytes.data(), &size, digest, nullptr) == 1;
  const std::unique_ptr<BIGNUM, FreeNumber> number(
      digested ? BN_bin2bn(bytes.data(), static_cast<int>(size), nullptr) : nullptr);
  char* const decimal = number == nullptr ? nullptr : BN_bn2dec(number.get());
  if (decimal == nullptr) std::abort();  // The call fails only for lack of memory.
  std::string result(decimal);
  OPENSSL_free(decimal);
  return result;
}

}  // namespace

std::string Sha256(std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(Bytes(bytes), bytes.size(), Bytes(digest));
  return digest;
}

struct Sha256Stream::State {
  EVP_MD_CTX* const context = EVP_MD_CTX_new();

  State() { EVP_DigestInit_ex(context, EVP_sha256(), nullptr); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256Stream::Sha256Stream() : state_(std::make_unique<State>()) {}
Sha256Stream::~Sha256Stream() = default;

void Sha256Stream::Add(std::string_view bytes) {
  EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
}

std::string Sha256Stream::Finish() {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  EVP_DigestFinal_ex(state_->context, Bytes(digest), nullptr);
  return digest;
}

std::string HmacSha256(std::string_view key, std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), Bytes(bytes), bytes.size(),
       Bytes(digest), &size);
  return digest;
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::StatusOr<std::string> SafeHashInt(std::string_view text, std::string_view algorithm,
                                        Compatibility compatibility) {
  if (algorithm == "shake_128" || algorithm == "shake_256") return NoLength(algorithm);
  if (std::find(std::begin(kOtherAttributes), std::end(kOtherAttributes), algorithm) !=
      std::end(kOtherAttributes)) {
    return InvalidArgument(Reason::kBadField,
                           StrCat(PythonRepr(algorithm),
                                  " is part of Python's hashlib but no digest algorithm; "
                                  "use one such as sha256"),
                           {{fact::kValue, algorithm}}, "Exception");
  }
  const auto* const known =
      std::find_if(kAlgorithms.begin(), kAlgorithms.end(),
                   [&](const Algorithm& each) { return each.name == algorithm; });
  Digest digest;
  if (known != kAlgorithms.end()) {
    digest = FetchDigest(known->libcrypto_name);
  } else if (compatibility == Compatibility::kDefault) {
    digest = FetchByOwnName(algorithm);
  }
  if (digest == nullptr) return NoAlgorithm(algorithm, compatibility);
  if (HasNoLengthOfItsOwn(digest.get())) return NoLength(algorithm);
  if (EVP_MD_get_size(digest.get()) <= 0) return NoAlgorithm(algorithm, compatibility);
  return DigestAsDecimal(digest.get(), text);
}

}  // namespace shardmesh
