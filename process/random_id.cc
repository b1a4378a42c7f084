// Random ids from the kernel.
#include "process/random_id.h"

#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

#include "absl/strings/escaping.h"

namespace shardmesh::server {

std::string RandomId() {
  char bytes[16];
  // After the kernel has seeded its generator, a request of up to 256 bytes is never cut short.
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) std::abort();
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

}  // namespace shardmesh::server
