// Tensors on their ways to workers and back.
#include "tests/model/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/time/clock.h"
#include "client/remote/transfer.h"
#include "client/types/cancellation.h"
#include "process/file.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/source_codec.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/array_descriptor.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/safetensors.h"
#include "tensor/view.h"
#include "tests/model/dice.h"

namespace shardmesh::model {
namespace {

// The beginning of a file that WriteSource writes.
constexpr std::string_view kSourceHead = "head of tensors";

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
                       absl::Duration timeout, client::Handover handover) {
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
  options.handover = handover;
  return client::Upload(DevicesOf(begun.devices()), tensors, &cancellation, options).status();
}

absl::StatusOr<std::string> FetchTiles(const v1::BeginGetResponse& begun, absl::Duration timeout) {
  const auto& shape = begun.array().array_descriptor().shape();
  return FetchPart(begun, Tile::Whole(Shape(shape.begin(), shape.end())), timeout);
}

absl::StatusOr<std::string> FetchPart(const v1::BeginGetResponse& begun, const Tile& part,
                                      absl::Duration timeout) {
  SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor array,
                             rpc::Decode(begun.array().array_descriptor()));
  std::string bytes(static_cast<size_t>(part.element_count() * BitsPerElement(array.dtype) / 8),
                    '\x5a');
  SHARDMESH_ASSIGN_OR_RETURN(
      const MutableTensorView view,
      MutableTensorView::Create(array.dtype, part.shape(), absl::MakeSpan(bytes)));
  client::TransferOptions options;
  options.deadline = SteadyDeadline::After(timeout);
  const client::SecondCopy copy = {.array_id = begun.second_copy().array_id(),
                                   .token = begun.second_copy().token(),
                                   .devices = DevicesOf(begun.second_copy().devices())};
  if (begun.has_second_copy()) options.second_copy = &copy;
  SHARDMESH_RETURN_IF_ERROR(client::Download(array, part, begun.token(), DevicesOf(begun.devices()),
                                             view, nullptr, options));
  return bytes;
}

Content PartOf(const Content& content, const Tile& part) {
  Content cut{content.dtype, part.shape(), {}};
  const auto element_bytes = static_cast<size_t>(BitsPerElement(content.dtype) / 8);
  // The row-major offset of each element of the part, by plain indexing.
  std::vector<int64_t> index;
  for (const IndexRange& range : part.ranges) index.push_back(range.start);
  for (int64_t left = part.element_count(); left > 0; --left) {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) offset = offset * content.shape[d] + index[d];
    cut.bytes.append(content.bytes, static_cast<size_t>(offset) * element_bytes, element_bytes);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < part.ranges[d].stop) break;
      index[d] = part.ranges[d].start;
    }
  }
  return cut;
}

absl::StatusOr<SourceOnDisk> WriteSource(const std::string& path,
                                         const std::vector<Content>& contents) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  {
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file << kSourceHead;
    for (const Content& content : contents) file << content.bytes;
    if (!file.flush()) return absl::InternalError(StrCat("cannot write ", path));
  }
  return FindSource(path, contents);
}

absl::StatusOr<SourceOnDisk> FindSource(const std::string& path,
                                        const std::vector<Content>& contents) {
  SourceOnDisk source;
  auto offset_bytes = static_cast<int64_t>(kSourceHead.size());
  for (const Content& content : contents) {
    source.offsets_bytes.push_back(offset_bytes);
    offset_bytes += static_cast<int64_t>(content.bytes.size());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  SHARDMESH_ASSIGN_OR_RETURN(source.file, IdentifyFile(file, path, kSourceHead));
  return source;
}

void SetSource(const SourceOnDisk& source, v1::BeginPutHeader* header, v1::PutTensors* tensors) {
  rpc::Encode(source.file, header->add_files());
  for (int i = 0; i < tensors->tensors_size(); ++i) {
    rpc::Encode(FileRange{.file = 0, .offset_bytes = source.offsets_bytes[static_cast<size_t>(i)]},
                tensors->mutable_tensors(i)->mutable_source());
  }
}

absl::StatusOr<SavedTensors> ReadCheckpoint(const std::string& folder,
                                            std::optional<int64_t> step) {
  const absl::StatusOr<std::string> found = FindCheckpointFolder(folder, step);
  if (!found.ok()) return absl::NotFoundError(found.status().message());
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder, step);
  if (!checkpoint.ok()) {
    return absl::InternalError(StrCat("the checkpoint in ", folder,
                                      " looks complete, but: ", checkpoint.status().ToString()));
  }
  SavedTensors tensors;
  for (const Checkpoint::Entry& entry : checkpoint->tensors()) {
    const absl::Span<const char> bytes = checkpoint->View(entry).bytes();
    tensors[entry.tensor->name] =
        Content{entry.tensor->dtype, entry.tensor->shape, std::string(bytes.data(), bytes.size())};
  }
  return tensors;
}

bool IsSetAside(const std::string& folder, int64_t step) {
  std::error_code ignored;
  return std::filesystem::exists(
      StrCat(folder, "/", kSaveStaging, "/", kSaveAside, "-", StepFolderName(step)), ignored);
}

std::string Difference(const SavedTensors& have, const SavedTensors& want) {
  for (const auto& [name, content] : want) {
    const auto found = have.find(name);
    if (found == have.end()) return StrCat("it lacks ", name);
    if (!content.has_value()) continue;
    if (found->second->dtype != content->dtype || found->second->shape != content->shape) {
      return StrCat(name, " has another type or shape");
    }
    if (!HasBytes(*content, found->second->bytes)) return StrCat(name, " has other bytes");
  }
  for (const auto& [name, content] : have) {
    if (!want.contains(name)) return StrCat("it has ", name, " too");
  }
  return "";
}

}  // namespace shardmesh::model
