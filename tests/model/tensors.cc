// Tensors on their ways to workers and back.
#include "tests/model/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "client/remote/transfer.h"
#include "client/types/cancellation.h"
#include "rpc/codec/array_codec.h"
#include "status/status_macros.h"
#include "tensor/array_descriptor.h"
#include "tensor/view.h"
#include "tests/model/dice.h"

namespace shardmesh::model {
namespace {

template <typename Devices>
std::vector<client::TransferDevice> DevicesOf(const Devices& devices) {
  std::vector<client::TransferDevice> decoded;
  for (const v1::DeviceEndpoint& device : devices) {
    client::TransferDevice one{device.rank(), device.identity(), device.incarnation(), {}};
    for (const v1::Endpoint& endpoint : device.endpoints()) {
      one.addresses.push_back(endpoint.address());
    }
    decoded.push_back(std::move(one));
  }
  return decoded;
}

}  // namespace

Content MakeContent(Dtype dtype, const Shape& shape, uint64_t seed) {
  Content content{dtype, shape, {}};
  const int64_t elements = *ElementCount(shape);
  Dice dice(seed);
  if (dtype == Dtype::kF32) {
    std::vector<float> values(static_cast<size_t>(elements));
    for (float& value : values) value = static_cast<float>(dice.Below(7) - 3);
    return FromFloats(shape, values);
  }
  content.bytes.resize(static_cast<size_t>(elements * BitsPerElement(dtype) / 8));
  for (char& byte : content.bytes) byte = static_cast<char>(dice.Below(2));
  return content;
}

std::vector<float> FloatsOf(const Content& content) {
  std::vector<float> values(content.bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), content.bytes.data(), content.bytes.size());
  return values;
}

Content FromFloats(const Shape& shape, const std::vector<float>& values) {
  Content content{Dtype::kF32, shape, {}};
  content.bytes.resize(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(content.bytes.data(), values.data(), content.bytes.size());
  return content;
}

bool HasBytes(const Content& content, const std::string& bytes) {
  if (content.dtype != Dtype::kF32 || bytes.size() != content.bytes.size()) {
    return content.bytes == bytes;
  }
  return FloatsOf(content) == FloatsOf({content.dtype, content.shape, bytes});
}

bool IsSmall(const Content& content) {
  const std::vector<float> values = FloatsOf(content);
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::abs(value) <= 1'000; });
}

absl::Status SendTiles(const v1::BeginPutResponse& begun, const std::vector<Content>& contents,
                       absl::Duration timeout) {
  std::vector<ArrayDescriptor> arrays;
  for (const v1::PutAssignment& assignment : begun.assignments()) {
    SHARDMESH_ASSIGN_OR_RETURN(ArrayDescriptor array, rpc::Decode(assignment.array_descriptor()));
    arrays.push_back(std::move(array));
  }
  if (arrays.size() != contents.size()) {
    return absl::InternalError("there are not as many assignments as tensors");
  }
  std::vector<client::UploadTensor> tensors;
  for (size_t i = 0; i < arrays.size(); ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const TensorView view,
        TensorView::Create(contents[i].dtype, contents[i].shape, contents[i].bytes));
    tensors.push_back({&arrays[i], begun.assignments(static_cast<int>(i)).token(), view});
  }
  client::Cancellation cancellation;
  client::TransferOptions options;
  options.deadline = SteadyDeadline::After(timeout);
  return client::Upload(DevicesOf(begun.devices()), tensors, &cancellation, options).status();
}

absl::StatusOr<std::string> FetchTiles(const v1::BeginGetResponse& begun, absl::Duration timeout) {
  SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor array,
                             rpc::Decode(begun.array().array_descriptor()));
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(array.shape));
  std::string bytes(static_cast<size_t>(elements * BitsPerElement(array.dtype) / 8), '\x5a');
  SHARDMESH_ASSIGN_OR_RETURN(
      const MutableTensorView view,
      MutableTensorView::Create(array.dtype, array.shape, absl::MakeSpan(bytes)));
  client::TransferOptions options;
  options.deadline = SteadyDeadline::After(timeout);
  SHARDMESH_RETURN_IF_ERROR(client::Download(array, Tile::Whole(array.shape), begun.token(),
                                             DevicesOf(begun.devices()), view, nullptr, options));
  return bytes;
}

}  // namespace shardmesh::model
