// Encodes files, devices and tiles, and cuts lists of tiles into messages.
#include "server/steps/fill_codec.h"

#include <map>
#include <utility>

#include "rpc/codec/source_codec.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

// The largest size of the tiles and files of a message with more than one tile. With the devices,
// which take about 1 KiB each at most, a message for 2,048 devices stays below the limit of 4 MiB.
constexpr size_t kMaxFillBytes = size_t{1} << 20;
constexpr size_t kMaxAddressBytes = 900;  // of one device
// More than the tag and the length of a tile or file take in a message.
constexpr size_t kFieldHeadBytes = 6;

void EncodeSource(const RankEndpoint& source, v1::DeviceEndpoint* to) {
  to->set_rank(static_cast<int32_t>(source.rank));
  to->set_identity(source.identity);
  to->set_incarnation(source.incarnation);
  size_t bytes = 0;
  for (const std::string& address : source.endpoints) {
    bytes += address.size() + kFieldHeadBytes;
    if (bytes > kMaxAddressBytes && to->endpoints_size() > 0) break;
    to->add_endpoints()->set_address(address);
  }
}

// The place of a tile that comes from a file.
internal::v1::FileSource* PlaceOf(internal::v1::FillTile* tile) {
  return tile->has_converted_file() ? tile->mutable_converted_file()->mutable_file()
                                    : tile->mutable_file();
}

}  // namespace

std::string EncodeFiles(absl::Span<const SourceFile> files) {
  internal::v1::CheckFiles message;
  for (const SourceFile& file : files) rpc::Encode(file, message.add_files());
  return message.SerializeAsString();
}

internal::v1::FillDevices EncodeFillDevices(absl::Span<const RankEndpoint> sources,
                                            absl::Span<const std::string> source_identities,
                                            absl::Span<const std::string> destination_identities) {
  internal::v1::FillDevices devices;
  for (const RankEndpoint& source : sources) EncodeSource(source, devices.add_sources());
  std::map<std::string_view, int64_t> ids;
  const auto id_of = [&ids](std::string_view identity) {
    return ids.emplace(identity, static_cast<int64_t>(ids.size())).first->second;
  };
  for (const std::string& identity : source_identities) devices.add_source_ids(id_of(identity));
  for (const std::string& identity : destination_identities) {
    devices.add_destination_ids(id_of(identity));
  }
  return devices;
}

void AddSecondSources(absl::Span<const RankEndpoint> second_sources,
                      internal::v1::FillDevices* devices) {
  for (const RankEndpoint& source : second_sources) {
    EncodeSource(source, devices->add_second_sources());
  }
}

FillEncoder::FillEncoder(std::string_view transfer_id, int64_t term,
                         const internal::v1::FillDevices* devices, Send send)
    : devices_(devices),
      empty_bytes_(transfer_id.size() + 2 * kFieldHeadBytes + 10),
      bytes_(empty_bytes_),
      send_(std::move(send)) {
  message_.set_transfer_id(std::string(transfer_id));
  message_.set_term(term);
}

void FillEncoder::AddFromFile(std::string_view array, int64_t rank, const SourceFile* file,
                              int64_t offset_bytes,
                              const std::optional<SourceConversion>& conversion) {
  internal::v1::FillTile tile;
  tile.set_array_descriptor(std::string(array));
  tile.set_rank(static_cast<int32_t>(rank));
  if (conversion.has_value()) {
    rpc::Encode(*conversion, tile.mutable_converted_file()->mutable_conversion());
  }
  PlaceOf(&tile)->set_offset_bytes(offset_bytes);
  Add(std::move(tile), file);
}

void FillEncoder::AddZeros(std::string_view array, int64_t rank) {
  internal::v1::FillTile tile;
  tile.set_array_descriptor(std::string(array));
  tile.set_rank(static_cast<int32_t>(rank));
  tile.mutable_zeros();
  Add(std::move(tile), nullptr);
}

void FillEncoder::AddFromArray(std::string_view array, int64_t rank, std::string_view source,
                               std::string_view token, const SecondSource& second) {
  internal::v1::FillTile tile;
  tile.set_array_descriptor(std::string(array));
  tile.set_rank(static_cast<int32_t>(rank));
  tile.mutable_array()->set_array_descriptor(std::string(source));
  tile.mutable_array()->set_token(std::string(token));
  tile.mutable_array()->set_second_array_id(std::string(second.array_id));
  tile.mutable_array()->set_second_token(std::string(second.token));
  Add(std::move(tile), nullptr);
}

void FillEncoder::Add(internal::v1::FillTile tile, const SourceFile* file) {
  // The index of the file takes up to 5 bytes more, which are not in `tile` yet.
  const size_t tile_bytes = tile.ByteSizeLong() + 2 * kFieldHeadBytes;
  v1::SourceFile encoded;
  size_t file_bytes = 0;
  if (file != nullptr) {
    rpc::Encode(*file, &encoded);
    file_bytes = encoded.ByteSizeLong() + kFieldHeadBytes;
  }
  const bool is_known = file != nullptr && in_message_.contains(file);
  if (message_.tiles_size() > 0 &&
      bytes_ + tile_bytes + (is_known ? 0 : file_bytes) > kMaxFillBytes) {
    Flush();
  }
  if (file != nullptr) {
    const auto [place, is_new] =
        in_message_.emplace(file, static_cast<uint32_t>(in_message_.size()));
    if (is_new) {
      *message_.add_files() = std::move(encoded);
      bytes_ += file_bytes;
    }
    PlaceOf(&tile)->set_file(place->second);
  }
  *message_.add_tiles() = std::move(tile);
  bytes_ += tile_bytes;
}

void FillEncoder::Flush() {
  if (message_.tiles_size() == 0) return;
  if (devices_ != nullptr) *message_.mutable_devices() = *devices_;
  send_(message_.SerializeAsString());
  message_.clear_files();
  message_.clear_tiles();
  in_message_.clear();
  bytes_ = empty_bytes_;
}

SharedFill::SharedFill(std::string_view transfer_id, int64_t term,
                       const internal::v1::FillDevices* devices)
    : transfer_id_(transfer_id),
      term_(term),
      encoder_(/*transfer_id=*/"", /*term=*/0, devices, [this](std::string_view tail) {
        tails_.push_back(std::make_shared<const std::string>(tail));
      }) {}

absl::Status SharedFill::SendTo(std::string_view identity, int64_t rank, FillTransport* transport) {
  encoder_.Flush();
  // Messages may be cut between fields: a parser takes both parts as one message.
  internal::v1::FillTiles own;
  own.set_transfer_id(transfer_id_);
  own.set_term(term_);
  own.set_rank(static_cast<int32_t>(rank));
  for (const std::string& id : unloaded_array_ids_) own.add_unloaded_array_ids(id);
  own.set_move_memory_bytes(move_memory_bytes_);
  const std::string head = own.SerializeAsString();
  for (const std::shared_ptr<const std::string>& tail : tails_) {
    SHARDMESH_RETURN_IF_ERROR(transport->SendFillParts(identity, head, tail));
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
