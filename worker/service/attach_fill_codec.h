// Converts the coordinator's orders to fill tiles and to check files, and the answers.
// spec_codec.h states the rules for all codecs.
#ifndef SHARDMESH_WORKER_SERVICE_ATTACH_FILL_CODEC_H_
#define SHARDMESH_WORKER_SERVICE_ATTACH_FILL_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "worker/service/tile_filler.h"

namespace shardmesh::worker {

// Moves the texts out of `from`. Does not decode descriptors: that takes time, and the filler's
// threads do so. Returns the failure to report for a malformed order.
std::variant<FillOrder, FillFailure> Decode(internal::v1::FillTiles from);

// Decodes files. `needs_time`: whether a file needs a modify time; a file without one has
// InfinitePast. Errors of rpc::Decode; `*file` is then the index of the malformed file.
absl::StatusOr<std::vector<SourceFile>> Decode(
    const google::protobuf::RepeatedPtrField<v1::SourceFile>& from, bool needs_time, size_t* file);

internal::v1::AttachRequest Encode(const FillFailure& from);
// `file` is encoded only with an error.
internal::v1::AttachRequest EncodeFilesChecked(int64_t order_id, const absl::Status& status,
                                               size_t file);

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SERVICE_ATTACH_FILL_CODEC_H_
