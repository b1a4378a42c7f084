// Fuzzes the reading of .npz files: what is accepted lies within the file, member by member, and
// can be read to the last byte in any order.
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>

#include "tensor/checkpoint/tensor_map.h"
#include "tensor/checkpoint/tensor_source.h"
#include "tensor/checkpoint/zip_file.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {

void Check(std::string_view input) {
  const absl::Span<const char> bytes(input.data(), input.size());
  const absl::StatusOr<std::vector<ZipMember>> members = ParseZip("fuzz", bytes);
  if (!members.ok()) {
    Require(members.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  for (const ZipMember& member : *members) {
    Require(member.offset_bytes >= 0 && member.size_bytes >= 0 &&
            member.offset_bytes + member.size_bytes <= static_cast<int64_t>(input.size()));
  }
  if (!LooksLikeZip(bytes)) return;

  static const int fd = memfd_create("npz", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  Require(ftruncate(fd, 0) == 0);
  Require(pwrite(fd, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size()));
  absl::StatusOr<TensorSource> source = TensorSource::Open(path);
  if (!source.ok()) {
    Require(source.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const absl::StatusOr<MappedCheckpoint> mapped = MappedCheckpoint::Create(
      std::make_shared<const TensorSource>(*std::move(source)), {.float_dtype = Dtype::kBF16});
  if (!mapped.ok()) {
    Require(mapped.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const absl::StatusOr<std::vector<TensorElements>> elements = mapped->Elements();
  if (!elements.ok()) {
    Require(elements.status().code() == absl::StatusCode::kDataLoss);
    return;
  }
  for (const TensorElements& tensor : *elements) {
    if (tensor.producer() == nullptr) continue;
    std::string out(
        static_cast<size_t>(*PackedSizeBytes(tensor.dtype(), *ElementCount(tensor.shape()))), '\0');
    Require(tensor.producer()->Fill(Tile::Whole(tensor.shape()), 0, absl::MakeSpan(out)).ok());
  }
}

}  // namespace shardmesh::fuzz
