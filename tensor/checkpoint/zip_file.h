// The directory of a zip file, such as NumPy's .npz, and the checksum of its members.
#ifndef SHARDMESH_TENSOR_CHECKPOINT_ZIP_FILE_H_
#define SHARDMESH_TENSOR_CHECKPOINT_ZIP_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace shardmesh {

// A file within a zip file.
struct ZipMember {
  std::string name;
  bool is_deflated = false;  // if false, the data are the member's bytes as they are
  int64_t offset_bytes = 0;  // of the data in the zip file
  int64_t size_bytes = 0;    // of the data in the zip file
  uint32_t crc32 = 0;        // of the member's bytes before compression
};

// Upper bound on the members of a zip file.
inline constexpr int64_t kMaxZipMembers = 1'000'000;

// Whether the bytes begin as a zip file does.
bool LooksLikeZip(absl::Span<const char> bytes);

// Parses the directory of a zip file, with or without zip64; `file` has the whole file. Checks that
// each member has a header of its own, and that its data are within the file and overlap no other
// member's; reads no data. `source` names the file in errors. INVALID_ARGUMENT (BAD_FILE): the file
// is cut off or damaged, a name occurs twice, or a member is encrypted or compressed otherwise than
// by deflate.
absl::StatusOr<std::vector<ZipMember>> ParseZip(std::string_view source,
                                                absl::Span<const char> file);

// Returns the CRC-32 of zip files (IEEE 802.3). That of "123456789" is 0xCBF43926.
uint32_t Crc32(absl::Span<const char> bytes);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_CHECKPOINT_ZIP_FILE_H_
