// Random bytes by libcrypto.
#include "process/random_bytes.h"

#include <openssl/rand.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "status/str_cat.h"

namespace shardmesh {

std::string RandomBytes(size_t size) {
  std::string bytes(size, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size)) != 1) {
    std::abort();  // Without randomness every key and id would be guessable.
  }
  return bytes;
}

std::string RandomId() { return absl::BytesToHexString(ToAbsl(RandomBytes(16))); }

}  // namespace shardmesh
