// Fuzzes the reading of safetensors files: what is accepted covers its data, and can be read to the
// last byte.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "tensor/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {
namespace {

// A whole file; or, where the input begins as a header does, a header up to the first zero byte and
// the data after it, so that a mutation of the header need not guess its length.
std::string FileOf(std::string_view input) {
  if (input.substr(0, 1) != "{") {
    return std::string(input);
  }
  const uint64_t header_bytes = std::min(input.find('\0'), input.size());
  std::string file(sizeof(header_bytes), '\0');
  std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
  file.append(input.substr(0, header_bytes));
  return file.append(input.substr(std::min(header_bytes + 1, input.size())));
}

}  // namespace

void Check(std::string_view input) {
  static const int fd = memfd_create("safetensors", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const std::string bytes = FileOf(input);
  Require(ftruncate(fd, 0) == 0);
  Require(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));

  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) {
    Require(file.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  std::string data;
  for (const SafetensorsTensor& tensor : file->header().tensors()) {
    Require(file->header().Find(tensor.name) == &tensor);
    const absl::Span<const char> view = file->View(tensor).bytes();
    data.append(view.data(), view.size());
  }
  Require(bytes.substr(static_cast<size_t>(file->header().data_offset_bytes())) == data);
}

}  // namespace shardmesh::fuzz
