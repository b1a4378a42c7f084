// Decodes orders to fill tiles without looking into the descriptors of arrays.
#include "worker/service/attach_fill_codec.h"

#include <string>
#include <string_view>
#include <utility>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/source_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/worker_error_codec.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::worker {
namespace {

// The id of the array that the bytes describe; empty if they describe none.
std::string ArrayIdOf(const std::string& descriptor) {
  const auto array = rpc::ParseArrayDescriptorBytes(descriptor);
  return array.ok() ? array->array_id : "";
}

DeviceId RankOf(const internal::v1::FillTiles& order, const internal::v1::FillTile& tile) {
  return order.has_rank() ? order.rank() : tile.rank();
}

absl::StatusOr<FileRange> DecodePlace(const internal::v1::FileSource& from, int files,
                                      std::string_view field) {
  if (from.file() >= static_cast<uint32_t>(files)) {
    return rpc::BadField(StrCat(field, ".file"),
                         StrCat("is ", from.file(), "; the order has ", files, " files"));
  }
  if (from.offset_bytes() < 0) {
    return rpc::BadField(StrCat(field, ".offset_bytes"),
                         StrCat("is ", from.offset_bytes(), "; an offset is at least 0"));
  }
  return FileRange{.file = from.file(), .offset_bytes = from.offset_bytes()};
}

absl::StatusOr<FillTile> Decode(internal::v1::FillTile& from, DeviceId rank, int files,
                                bool has_devices) {
  FillTile tile{.array_descriptor = {}, .rank = rank, .source = {}};
  switch (from.source_case()) {
    case internal::v1::FillTile::kFile: {
      SHARDMESH_ASSIGN_OR_RETURN(tile.source, DecodePlace(from.file(), files, "file"));
      tile.array_descriptor = std::move(*from.mutable_array_descriptor());
      return tile;
    }
    case internal::v1::FillTile::kConvertedFile: {
      SHARDMESH_ASSIGN_OR_RETURN(
          FileRange range, DecodePlace(from.converted_file().file(), files, "converted_file.file"));
      auto conversion = rpc::Decode(from.converted_file().conversion());
      if (!conversion.ok()) {
        return rpc::WithField(conversion.status(), "converted_file.conversion");
      }
      range.conversion = *std::move(conversion);
      tile.source = std::move(range);
      tile.array_descriptor = std::move(*from.mutable_array_descriptor());
      return tile;
    }
    case internal::v1::FillTile::kArray:
      if (!has_devices) {
        return rpc::BadField("devices", "is not set, but a tile comes from another array");
      }
      tile.source = FillFromArray{
          .array_descriptor = std::move(*from.mutable_array()->mutable_array_descriptor()),
          .token = std::move(*from.mutable_array()->mutable_token()),
          .second_array_id = std::move(*from.mutable_array()->mutable_second_array_id()),
          .second_token = std::move(*from.mutable_array()->mutable_second_token())};
      tile.array_descriptor = std::move(*from.mutable_array_descriptor());
      return tile;
    case internal::v1::FillTile::kZeros:
      tile.source = FillZeros();
      tile.array_descriptor = std::move(*from.mutable_array_descriptor());
      return tile;
    case internal::v1::FillTile::SOURCE_NOT_SET:
      break;
  }
  return rpc::BadField("source", "has no source that this build knows; update the worker");
}

std::vector<FillSource> Decode(const google::protobuf::RepeatedPtrField<v1::DeviceEndpoint>& from) {
  std::vector<FillSource> sources;
  sources.reserve(static_cast<size_t>(from.size()));
  for (const v1::DeviceEndpoint& source : from) {
    FillSource& to = sources.emplace_back(
        FillSource{.rank = source.rank(), .identity = source.identity(), .endpoints = {}});
    for (const v1::Endpoint& endpoint : source.endpoints()) {
      to.endpoints.push_back(endpoint.address());
    }
  }
  return sources;
}

FillDevices Decode(const internal::v1::FillDevices& from) {
  FillDevices devices;
  devices.sources = Decode(from.sources());
  devices.second_sources = Decode(from.second_sources());
  devices.source_ids.assign(from.source_ids().begin(), from.source_ids().end());
  devices.destination_ids.assign(from.destination_ids().begin(), from.destination_ids().end());
  return devices;
}

}  // namespace

std::variant<FillOrder, FillFailure> Decode(internal::v1::FillTiles from) {
  const auto failure = [&from](const absl::Status& status, int tile) {
    FillFailure failed{.transfer_id = from.transfer_id(),
                       .term = from.term(),
                       .array_id = "",
                       .rank = 0,
                       .status = WithContext(status, "the order to fill tiles is malformed")};
    if (tile < from.tiles_size()) {
      failed.array_id = ArrayIdOf(from.tiles(tile).array_descriptor());
      failed.rank = RankOf(from, from.tiles(tile));
    }
    return failed;
  };
  FillOrder order{
      .transfer_id = from.transfer_id(),
      .term = from.term(),
      .files = {},
      .tiles = {},
      .devices = std::nullopt,
      .unloaded_array_ids = {from.unloaded_array_ids().begin(), from.unloaded_array_ids().end()},
      .move_memory_bytes = from.move_memory_bytes()};
  size_t file = 0;
  auto files = Decode(from.files(), /*needs_time=*/false, &file);
  if (!files.ok()) {
    return failure(files.status(), 0);
  }
  order.files = *std::move(files);
  order.tiles.reserve(static_cast<size_t>(from.tiles_size()));
  for (int i = 0; i < from.tiles_size(); ++i) {
    auto tile = Decode(*from.mutable_tiles(i), RankOf(from, from.tiles(i)), from.files_size(),
                       from.has_devices());
    if (!tile.ok()) {
      return failure(rpc::WithField(tile.status(), "tiles", static_cast<size_t>(i)), i);
    }
    order.tiles.push_back(*std::move(tile));
  }
  if (from.has_devices()) order.devices = Decode(from.devices());
  return order;
}

absl::StatusOr<std::vector<SourceFile>> Decode(
    const google::protobuf::RepeatedPtrField<v1::SourceFile>& from, bool needs_time, size_t* file) {
  std::vector<SourceFile> files;
  files.reserve(static_cast<size_t>(from.size()));
  for (const v1::SourceFile& each : from) {
    *file = files.size();
    auto decoded = rpc::Decode(each, needs_time);
    if (!decoded.ok()) {
      return rpc::WithField(decoded.status(), "files", *file);
    }
    files.push_back(*std::move(decoded));
  }
  return files;
}

internal::v1::AttachRequest Encode(const FillFailure& from) {
  internal::v1::AttachRequest request;
  internal::v1::FillFailed* failed = request.mutable_fill_failed();
  failed->set_transfer_id(from.transfer_id);
  failed->set_term(from.term);
  failed->set_array_id(from.array_id);
  failed->set_rank(static_cast<int32_t>(from.rank));
  rpc::Encode(from.status, failed->mutable_error());
  return request;
}

internal::v1::AttachRequest EncodeFilesChecked(int64_t order_id, const absl::Status& status,
                                               size_t file) {
  internal::v1::AttachRequest request;
  internal::v1::FilesChecked* checked = request.mutable_files_checked();
  checked->set_order_id(order_id);
  if (!status.ok()) {
    rpc::Encode(status, checked->mutable_error());
    checked->set_file(static_cast<uint32_t>(file));
  }
  return request;
}

}  // namespace shardmesh::worker
