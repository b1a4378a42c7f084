// Looks up tensors by their origins, and lists arrays of their types and shapes.
#include "server/calls/content_calls.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/source_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

// A page is full once it has this many bytes, or this many arrays were looked at.
constexpr size_t kContentPageBytes = size_t{1} << 20;
constexpr int64_t kMaxSeen = 4'096;
// Arrays of one origin that are looked at, as for a put.
constexpr int64_t kMaxOfOrigin = 8;
// Arrays that are taken from the registry at a time.
constexpr int64_t kTaken = 128;

// The place in the answer at which a page begins: after this array among those that are like this
// tensor of the request.
struct PageStart {
  size_t tensor = 0;
  std::string start_after = {};
};

std::string Encode(const PageStart& from) { return StrCat(from.tensor, " ", from.start_after); }

absl::StatusOr<PageStart> DecodePageToken(const std::string& from) {
  PageStart start;
  if (from.empty()) return start;
  const char* const end = from.data() + from.size();
  const auto [rest, error] = std::from_chars(from.data(), end, start.tensor);
  if (error != std::errc() || rest == end || *rest != ' ') {
    return rpc::BadField("page_token", StrCat("is ", PythonRepr(from),
                                              "; give the next_page_token of the page before"));
  }
  start.start_after.assign(rest + 1, end);
  return start;
}

struct Asked {
  Dtype dtype = Dtype::kF32;
  Shape shape = {};
  ArrayOrigin origin = {};
};

absl::Status CheckContentCount(std::string_view field, int have, int limit) {
  if (have <= limit) return absl::OkStatus();
  return rpc::WithField(
      WithReason(absl::InvalidArgumentError(StrCat("lists ", have, "; a request has at most ",
                                                   limit, ": ask in several parts")),
                 Reason::kLimitExceeded, {{fact::kHave, have}, {fact::kLimit, limit}}),
      field);
}

absl::StatusOr<Asked> Decode(const v1::ContentTensor& from,
                             const std::vector<std::shared_ptr<const SourceFile>>& files) {
  Asked asked;
  const absl::StatusOr<Dtype> dtype = rpc::Decode(from.dtype());
  if (!dtype.ok()) return rpc::WithField(dtype.status(), "dtype");
  asked.dtype = *dtype;
  absl::StatusOr<Shape> shape = rpc::DecodeShape(from.shape());
  if (!shape.ok()) return rpc::WithField(shape.status(), "shape");
  asked.shape = *std::move(shape);
  if (!from.has_origin()) return asked;
  if (from.origin().file() >= files.size()) {
    return rpc::BadField("origin.file", StrCat("is ", from.origin().file(), ", and files has ",
                                               files.size(), ", counted from 0"));
  }
  asked.origin = {.file = files[from.origin().file()],
                  .offset_bytes = from.origin().offset_bytes(),
                  .conversion = from.origin().conversion()};
  return asked;
}

absl::StatusOr<std::vector<Asked>> Decode(const v1::FindContentRequest& from) {
  SHARDMESH_RETURN_IF_ERROR(CheckContentCount("files", from.files_size(), kMaxContentFiles));
  SHARDMESH_RETURN_IF_ERROR(CheckContentCount("tensors", from.tensors_size(), kMaxContentTensors));
  std::vector<std::shared_ptr<const SourceFile>> files;
  for (int i = 0; i < from.files_size(); ++i) {
    auto file = rpc::Decode(from.files(i));
    if (!file.ok()) return rpc::WithField(file.status(), "files", static_cast<size_t>(i));
    files.push_back(std::make_shared<const SourceFile>(*std::move(file)));
  }
  std::vector<Asked> tensors;
  for (int i = 0; i < from.tensors_size(); ++i) {
    auto asked = Decode(from.tensors(i), files);
    if (!asked.ok()) return rpc::WithField(asked.status(), "tensors", static_cast<size_t>(i));
    tensors.push_back(*std::move(asked));
  }
  return tensors;
}

// Whether a put finds an array by the tensor's origin.
bool HasOrigin(const ArrayRegistry& registry, const Asked& tensor) {
  const std::vector<ArrayPtr> found = registry.FindByOrigin(
      OriginKey(tensor.origin, tensor.dtype, tensor.shape), kMaxOfOrigin, /*is_use=*/false);
  return std::any_of(found.begin(), found.end(),
                     [](const ArrayPtr& array) { return array->state == ArrayState::kAvailable; });
}

// Returns the checksum of each distinct tile; nullopt if the array's elements may not be compared
// by them.
std::optional<std::vector<uint32_t>> TileChecksums(const Array& array) {
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  if (array.state != ArrayState::kAvailable || !tiling.ok() ||
      !descriptor.spec.unreduced().empty() ||
      std::ssize(array.tile_crc32c) != tiling->mesh().size()) {
    return std::nullopt;
  }
  std::vector<std::optional<uint32_t>> found(static_cast<size_t>(tiling->DistinctTileCount()));
  for (DeviceId rank = 0; rank < tiling->mesh().size(); ++rank) {
    std::optional<uint32_t>& tile = found[static_cast<size_t>(tiling->TileNumberOf(rank))];
    const uint32_t crc32c = array.tile_crc32c[static_cast<size_t>(rank)];
    if (tile.value_or(crc32c) != crc32c) return std::nullopt;  // replicas that differ
    tile = crc32c;
  }
  std::vector<uint32_t> checksums;
  checksums.reserve(found.size());
  for (const std::optional<uint32_t>& each : found) checksums.push_back(each.value_or(0));
  return checksums;
}

}  // namespace

absl::Status FindContent(const ArrayRegistry& registry, const v1::FindContentRequest& request,
                         const std::function<bool()>& is_cancelled,
                         v1::FindContentResponse* response) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Asked> tensors, Decode(request));
  SHARDMESH_ASSIGN_OR_RETURN(PageStart place, DecodePageToken(request.page_token()));
  std::set<std::pair<Dtype, Shape>> listed;  // of the tensors before `place.tensor`
  size_t bytes = 0;
  int64_t seen = 0;
  const bool is_first = request.page_token().empty();
  std::optional<PageStart> next;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (is_cancelled()) return absl::CancelledError("the client left");
    const Asked& tensor = tensors[i];
    if (HasOrigin(registry, tensor)) {
      if (is_first) response->add_found_by_origin(static_cast<uint32_t>(i));
      continue;
    }
    if (i < place.tensor) {
      listed.emplace(tensor.dtype, tensor.shape);
      continue;
    }
    // The first page lists all tensors that are found, also after its last candidate.
    if (next.has_value() || !listed.emplace(tensor.dtype, tensor.shape).second) continue;
    if (i > place.tensor) place = {.tensor = i, .start_after = {}};
    std::vector<ArrayPtr> alike;
    do {
      alike = registry.ListAlike(tensor.dtype, tensor.shape, place.start_after, kTaken);
      for (const ArrayPtr& array : alike) {
        place.start_after = array->definition.descriptor.array_id;
        ++seen;
        const std::optional<std::vector<uint32_t>> checksums = TileChecksums(*array);
        if (!checksums.has_value()) continue;
        v1::ContentCandidate& to = *response->add_candidates();
        rpc::Encode(array->definition.descriptor, to.mutable_array_descriptor());
        to.mutable_tile_crc32c()->Add(checksums->begin(), checksums->end());
        to.set_has_name(registry.HasName(place.start_after));
        bytes += to.ByteSizeLong();
        if (bytes >= kContentPageBytes) break;
      }
      if (bytes >= kContentPageBytes || seen >= kMaxSeen) next = place;
    } while (!next.has_value() && std::ssize(alike) == kTaken);
    if (next.has_value() && !is_first) break;
  }
  if (next.has_value()) response->set_next_page_token(Encode(*next));
  return absl::OkStatus();
}

}  // namespace shardmesh::server
