// Fuzzes the reading of .npy files: the elements of what is accepted are all there and no more, and
// the header that we write for them is read as the same.
#include <string>
#include <string_view>

#include "tensor/npy.h"
#include "tests/fuzz/fuzz.h"

namespace shardmesh::fuzz {

void Check(std::string_view input) {
  const int64_t size_bytes = static_cast<int64_t>(input.size());
  const absl::StatusOr<NpyHeader> header =
      ParseNpyHeader("fuzz", {input.data(), input.size()}, size_bytes);
  if (!header.ok()) {
    Require(header.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  const int64_t data_bytes = size_bytes - header->data_offset_bytes;
  Require(data_bytes >= 0);
  const absl::Span<const char> data(input.data() + header->data_offset_bytes,
                                    static_cast<size_t>(data_bytes));
  Require(TensorView::Create(header->dtype, header->shape, data).ok());

  const absl::StatusOr<std::string> ours = EncodeNpyHeader(header->dtype, header->shape);
  Require(ours.ok());
  const absl::StatusOr<NpyHeader> again =
      ParseNpyHeader("ours", *ours, static_cast<int64_t>(ours->size()) + data_bytes);
  Require(again.ok() && again->dtype == header->dtype && again->shape == header->shape);
}

}  // namespace shardmesh::fuzz
