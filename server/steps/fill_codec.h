// Encodes the orders that make workers fill tiles of a transfer: from files, or from other arrays.
#ifndef SHARDMESH_SERVER_STEPS_FILL_CODEC_H_
#define SHARDMESH_SERVER_STEPS_FILL_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/transfer_token.h"
#include "server/steps/fill_transport.h"
#include "server/steps/mesh_endpoints.h"
#include "shardmesh/internal/v1/fill.pb.h"
#include "tensor/source_conversion.h"
#include "tensor/source_file.h"

namespace shardmesh::server {

// Returns the question whether a worker can read these files, for FillTransport::CheckFiles: the
// bytes of an internal::v1::CheckFiles without `order_id`.
std::string EncodeFiles(absl::Span<const SourceFile> files);

// The workers between which a transfer moves arrays: see internal::v1::FillDevices. `sources`: the
// live workers of the source's mesh, by rank. The other two lists have the identity of the worker
// of each rank of the source's and of the destination's mesh. Of a worker's addresses, takes the
// first ones that fit about 1 KiB, so that the workers of large meshes fit a message.
internal::v1::FillDevices EncodeFillDevices(absl::Span<const RankEndpoint> sources,
                                            absl::Span<const std::string> source_identities,
                                            absl::Span<const std::string> destination_identities);

// Adds the workers from which tiles come that no worker in `devices` has, with as many addresses.
void AddSecondSources(absl::Span<const RankEndpoint> second_sources,
                      internal::v1::FillDevices* devices);

// The companion of an array from which tiles come: FillTile's ArraySource.second_array_id.
struct SecondSource {
  std::string_view array_id = {};  // empty: no tile comes from a companion
  std::string_view token = {};     // as that of the array
};

// Collects the tiles that one worker fills, and makes messages from them, each with at most 1 MiB
// of tiles and files beside the devices, or with one tile. For one worker of one transfer. Not
// thread-safe.
class FillEncoder {
 public:
  // Gets each complete message: the bytes of an internal::v1::FillTiles.
  using Send = absl::AnyInvocable<void(std::string_view message)>;

  // `devices` goes into every message; null if no tile comes from another array. It must outlive
  // this object.
  FillEncoder(std::string_view transfer_id, int64_t term, const internal::v1::FillDevices* devices,
              Send send);

  // Adds a tile of the array for the worker's rank. `array`: the bytes of the array's
  // v1::ArrayDescriptor. Its elements come from the tensor at this offset of a file. `file` must
  // stay in place until Flush: tiles of one object share one entry in the message's list of files.
  // `conversion`: how they are made from the tensor there; see CheckCanConvert.
  void AddFromFile(std::string_view array, int64_t rank, const SourceFile* file,
                   int64_t offset_bytes,
                   const std::optional<SourceConversion>& conversion = std::nullopt);
  // The same for elements that are all zero.
  void AddZeros(std::string_view array, int64_t rank);
  // The same for elements that come from the array `source`, again as bytes. `token` grants access
  // to that array: a token of rpc/transfer_token.h for gets.
  void AddFromArray(std::string_view array, int64_t rank, std::string_view source,
                    std::string_view token, const SecondSource& second = {});
  // Sends the tiles that no message has sent yet.
  void Flush();

 private:
  void Add(internal::v1::FillTile tile, const SourceFile* file);

  const internal::v1::FillDevices* const devices_;
  internal::v1::FillTiles message_;
  const size_t empty_bytes_;  // size of a message without tiles, files and devices
  size_t bytes_;
  absl::flat_hash_map<const SourceFile*, uint32_t> in_message_;  // index in the message's files
  Send send_;
};

// Returns the token with which workers fetch tiles of the array `source`, an encoded descriptor.
// `Fill` has the session, term and key of a transfer, and the time until which the token is valid:
// an ArrayFill or a ReuseFill.
template <typename Fill>
std::string SignFillToken(const Fill& fill, const std::string& source) {
  return rpc::SignToken({.direction = rpc::TransferDirection::kGet,
                         .transfer_id = "",
                         .session_id = fill.session_id,
                         .array_descriptor = source,
                         .term = fill.term,
                         .expire_time = fill.expire_time},
                        fill.token_key);
}

// The orders to all workers of a mesh to fill their tiles of a transfer. The tiles are encoded
// once: of each message, only a few bytes are different for each worker, and the transport shares
// the others. Not thread-safe.
class SharedFill {
 public:
  // `devices`: as for FillEncoder.
  SharedFill(std::string_view transfer_id, int64_t term, const internal::v1::FillDevices* devices);
  SharedFill(const SharedFill&) = delete;
  SharedFill& operator=(const SharedFill&) = delete;

  // Add the tiles of an array for all workers. Arguments as for FillEncoder; `file` must stay in
  // place until the first call of SendTo.
  void AddFromFile(std::string_view array, const SourceFile* file, int64_t offset_bytes,
                   const std::optional<SourceConversion>& conversion = std::nullopt) {
    encoder_.AddFromFile(array, /*rank=*/0, file, offset_bytes, conversion);
  }
  void AddZeros(std::string_view array) { encoder_.AddZeros(array, /*rank=*/0); }
  void AddFromArray(std::string_view array, std::string_view source, std::string_view token,
                    const SecondSource& second = {}) {
    encoder_.AddFromArray(array, /*rank=*/0, source, token, second);
  }
  // Makes each worker take these arrays out of its memory first: FillTiles.unloaded_array_ids. For
  // a transfer of one array.
  void UnloadFirst(std::vector<std::string> array_ids) {
    unloaded_array_ids_ = std::move(array_ids);
  }
  // Sets FillTiles.move_memory_bytes.
  void LimitMemory(int64_t move_memory_bytes) { move_memory_bytes_ = move_memory_bytes; }
  // Sends the worker of a rank the orders to fill its tiles of all arrays that were added. Errors:
  // those of FillTransport::SendFill.
  absl::Status SendTo(std::string_view identity, int64_t rank, FillTransport* transport);

 private:
  const std::string transfer_id_;
  const int64_t term_;
  std::vector<std::string> unloaded_array_ids_;
  int64_t move_memory_bytes_ = 0;
  std::vector<std::shared_ptr<const std::string>> tails_;
  FillEncoder encoder_;  // of the tails: its messages have neither transfer nor rank
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_STEPS_FILL_CODEC_H_
