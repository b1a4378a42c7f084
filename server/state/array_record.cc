// Encodes and decodes records. Only this file of the registry uses the store's messages.
#include "server/state/array_record.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "rpc/codec/spec_codec.h"
#include "sharding/mesh.h"
#include "sharding/tile.h"
#include "shardmesh/store/v1/definition.pb.h"
#include "shardmesh/store/v1/store.pb.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

namespace proto = ::shardmesh::store::v1;

absl::Status Damaged(std::string_view key, std::string_view what) {
  return WithReason(absl::DataLossError(StrCat("the record \"", key, "\" of the store ", what,
                                               "; restore a copy of the data folder")),
                    Reason::kStoreFailed);
}

template <typename Message>
absl::StatusOr<Message> Parse(std::string_view key, const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return Damaged(key, "cannot be read");
  return message;
}

void Encode(absl::Time from, google::protobuf::Timestamp* to) {
  const int64_t seconds = absl::ToUnixSeconds(from);
  to->set_seconds(seconds);
  to->set_nanos(
      static_cast<int32_t>((from - absl::FromUnixSeconds(seconds)) / absl::Nanoseconds(1)));
}

absl::Time Decode(const google::protobuf::Timestamp& from) {
  return absl::FromUnixSeconds(from.seconds()) + absl::Nanoseconds(from.nanos());
}

void Encode(const PartitionSpec& from, proto::SpecRecord* to) {
  for (const SpecEntry& entry : from.entries()) {
    proto::SpecEntryRecord* record = to->add_entries();
    record->set_unconstrained(entry.is_unconstrained());
    for (const AxisName& axis : entry.axes()) record->add_axes(axis.value_or(""));
  }
  for (const std::string& axis : from.unreduced()) to->add_unreduced(axis);
}

PartitionSpec Decode(const proto::SpecRecord& from) {
  std::vector<SpecEntry> entries;
  for (const proto::SpecEntryRecord& record : from.entries()) {
    if (record.unconstrained()) {
      entries.push_back(SpecEntry::Unconstrained());
      continue;
    }
    std::vector<AxisName> axes;
    for (const std::string& axis : record.axes()) {
      axes.push_back(axis.empty() ? AxisName() : AxisName(axis));
    }
    entries.push_back(SpecEntry::Axes(std::move(axes)));
  }
  return PartitionSpec(std::move(entries), {from.unreduced().begin(), from.unreduced().end()});
}

void Encode(const Mesh& from, proto::ArrayRecord* to) {
  for (const MeshAxis& axis : from.axes()) {
    proto::MeshAxisRecord* record = to->add_axes();
    record->set_name(axis.name);
    record->set_size(axis.size);
    record->set_type(static_cast<uint32_t>(axis.type));
  }
  bool in_order = true;
  for (DeviceId device = 0; device < from.size(); ++device) {
    in_order = in_order && from.GlobalIdOf(device) == device;
  }
  for (DeviceId device = 0; !in_order && device < from.size(); ++device) {
    to->add_device_ids(from.GlobalIdOf(device));
  }
}

void Encode(const SourceConversion& from, proto::SourceConversionRecord* to) {
  const std::string_view dtype = DtypeName(from.dtype);
  to->set_dtype(dtype.data(), dtype.size());
  for (const size_t dim : from.permutation) to->add_permutation(static_cast<uint32_t>(dim));
}

absl::StatusOr<SourceConversion> Decode(const proto::SourceConversionRecord& from) {
  SHARDMESH_ASSIGN_OR_RETURN(const Dtype dtype, ParseDtype(from.dtype()));
  return SourceConversion{.dtype = dtype,
                          .permutation = {from.permutation().begin(), from.permutation().end()}};
}

void Encode(const Array& from, proto::ArrayRecord* to) {
  const ArrayDescriptor& descriptor = from.definition.descriptor;
  to->set_array_id(descriptor.array_id);
  const std::string_view dtype = DtypeName(descriptor.dtype);
  to->set_dtype(dtype.data(), dtype.size());
  to->mutable_shape()->Add(descriptor.shape.begin(), descriptor.shape.end());
  Encode(descriptor.spec, to->mutable_spec());
  if (from.definition.requested_spec.has_value()) {
    Encode(*from.definition.requested_spec, to->mutable_requested_spec());
  }
  to->set_mesh_id(descriptor.mesh_id);
  to->set_mesh_revision(descriptor.mesh_revision);
  Encode(descriptor.mesh, to);
  for (const CutPoints& points : descriptor.cut_points) {
    to->add_cut_points()->mutable_points()->Add(points.begin(), points.end());
  }
  to->set_durability(from.durability == Durability::kDisk ? proto::DURABILITY_RECORD_DISK
                                                          : proto::DURABILITY_RECORD_MEMORY);
  to->mutable_tile_crc32c()->Add(from.tile_crc32c.begin(), from.tile_crc32c.end());
  Encode(from.created, to->mutable_create_time());
  const ArrayOrigin origin = from.definition.origin();
  if (const SourceFile* const file = origin.file.get(); file != nullptr) {
    to->set_source_path(file->path);
    to->set_source_size_bytes(file->size_bytes);
    Encode(file->modify_time, to->mutable_source_modify_time());
    to->set_source_head_sha256(file->head_sha256);
    to->set_source_head_bytes(file->head_bytes);
    to->set_source_offset_bytes(origin.offset_bytes);
    if (file->change_time != absl::InfinitePast()) {
      Encode(file->change_time, to->mutable_source_change_time());
    }
    to->set_source_inode(file->inode);
    const std::optional<SourceConversion>& read_as = from.definition.source.conversion;
    to->set_source_sent(from.definition.source.file == nullptr || read_as.has_value());
    to->set_source_conversion(origin.conversion);
    if (read_as.has_value()) Encode(*read_as, to->mutable_source_read_as());
  }
  to->set_replicas(from.definition.replicas > 1 ? from.definition.replicas : 0);
  to->set_replica_of(from.definition.replica_of);
}

absl::StatusOr<Array> Decode(std::string_view key, const proto::ArrayRecord& from) {
  const auto damaged = [&](const absl::Status& status) {
    return Damaged(key, StrCat("describes an impossible array: ", status.message()));
  };
  Array array;
  ArrayDescriptor& descriptor = array.definition.descriptor;
  descriptor.array_id = from.array_id();
  const absl::StatusOr<Dtype> dtype = ParseDtype(from.dtype());
  if (!dtype.ok()) return damaged(dtype.status());
  descriptor.dtype = *dtype;
  descriptor.shape.assign(from.shape().begin(), from.shape().end());
  descriptor.spec = Decode(from.spec());
  if (from.has_requested_spec()) array.definition.requested_spec = Decode(from.requested_spec());
  descriptor.mesh_id = from.mesh_id();
  descriptor.mesh_revision = from.mesh_revision();
  std::vector<MeshAxis> axes;
  for (const proto::MeshAxisRecord& axis : from.axes()) {
    axes.push_back({axis.name(), axis.size(), static_cast<AxisType>(axis.type())});
  }
  MeshOptions options;
  options.global_ids.assign(from.device_ids().begin(), from.device_ids().end());
  absl::StatusOr<Mesh> mesh = Mesh::Create(std::move(axes), std::move(options));
  if (!mesh.ok()) return damaged(mesh.status());
  descriptor.mesh = *std::move(mesh);
  for (const proto::CutPointsRecord& points : from.cut_points()) {
    descriptor.cut_points.emplace_back(points.points().begin(), points.points().end());
  }
  if (const absl::Status lies = descriptor.Tiling().status(); !lies.ok()) return damaged(lies);
  if (from.tile_crc32c_size() != descriptor.mesh.size()) {
    return damaged(absl::InternalError(
        StrCat(from.tile_crc32c_size(), " checksums for ", descriptor.mesh.size(), " ranks")));
  }
  array.tile_crc32c.assign(from.tile_crc32c().begin(), from.tile_crc32c().end());
  array.durability =
      from.durability() == proto::DURABILITY_RECORD_DISK ? Durability::kDisk : Durability::kMemory;
  array.created = Decode(from.create_time());
  if (!from.source_path().empty()) {
    auto file =
        std::make_shared<SourceFile>(SourceFile{.path = from.source_path(),
                                                .size_bytes = from.source_size_bytes(),
                                                .modify_time = Decode(from.source_modify_time()),
                                                .head_sha256 = from.source_head_sha256(),
                                                .head_bytes = from.source_head_bytes(),
                                                .inode = from.source_inode()});
    if (from.has_source_change_time()) file->change_time = Decode(from.source_change_time());
    if (from.has_source_read_as()) {
      auto read_as = Decode(from.source_read_as());
      if (!read_as.ok()) return damaged(read_as.status());
      const auto in_file = ShapeInFile(*read_as, descriptor.dtype, descriptor.shape);
      if (!in_file.ok()) return damaged(in_file.status());
      array.definition.source = {.file = std::move(file),
                                 .offset_bytes = from.source_offset_bytes(),
                                 .conversion = *std::move(read_as)};
    } else if (from.source_sent()) {
      array.definition.sent_from = {.file = std::move(file),
                                    .offset_bytes = from.source_offset_bytes(),
                                    .conversion = from.source_conversion()};
    } else {
      array.definition.source = {.file = std::move(file),
                                 .offset_bytes = from.source_offset_bytes()};
    }
  }
  array.definition.replicas = std::max<int64_t>(1, from.replicas());
  array.definition.replica_of = from.replica_of();
  array.state = ArrayState::kDegraded;
  for (int64_t rank = 0; rank < descriptor.mesh.size(); ++rank) {
    array.missing_ranks.push_back(rank);
  }
  return array;
}

}  // namespace

absl::Status CheckTerm(int64_t term) {
  if (term <= kMaxTerm) return absl::OkStatus();
  return WithReason(
      absl::FailedPreconditionError(
          StrCat("the state's next term would be ", term, ", the highest there can be is ",
                 kMaxTerm, "; begin with an empty data folder, and empty those of the workers")),
      Reason::kStoreFailed);
}

std::string EncodeCluster(const ClusterRecord& cluster) {
  proto::ClusterRecord record;
  record.set_cluster_id(cluster.cluster_id);
  record.set_term(cluster.term);
  return record.SerializeAsString();
}

absl::StatusOr<ClusterRecord> DecodeCluster(std::string_view key, const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::ClusterRecord>(key, bytes));
  if (record.cluster_id().empty() || record.term() < 1) return Damaged(key, "is incomplete");
  return ClusterRecord{record.cluster_id(), record.term()};
}

std::string EncodeRestored(const RestoredRecord& restored) {
  proto::RestoredRecord record;
  record.set_snapshot_sha256(restored.digest);
  record.set_may_lack_names(restored.may_lack_names);
  return record.SerializeAsString();
}

absl::StatusOr<RestoredRecord> DecodeRestored(std::string_view key, const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::RestoredRecord>(key, bytes));
  if (record.snapshot_sha256().empty()) return Damaged(key, "is incomplete");
  return RestoredRecord{record.snapshot_sha256(), record.may_lack_names()};
}

std::string EncodeArray(const Array& array, bool is_cached) {
  proto::ArrayRecord record;
  Encode(array, &record);
  record.set_cached(is_cached);
  return record.SerializeAsString();
}

absl::StatusOr<Array> DecodeArray(std::string_view key, const std::string& bytes, bool* is_cached) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::ArrayRecord>(key, bytes));
  if (is_cached != nullptr) *is_cached = record.cached();
  return Decode(key, record);
}

std::string EncodeName(std::string_view array_id) {
  proto::NameRecord record;
  record.set_array_id(std::string(array_id));
  return record.SerializeAsString();
}

absl::StatusOr<std::string> DecodeName(std::string_view key, const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::NameRecord>(key, bytes));
  return record.array_id();
}

std::vector<std::string> EncodeManifestChunks(const std::vector<ManifestEntry>& entries) {
  std::vector<std::string> chunks;
  proto::ManifestChunk chunk;
  size_t bytes = 0;
  const auto flush = [&] {
    chunks.push_back(chunk.SerializeAsString());
    chunk.Clear();
    bytes = 0;
  };
  for (const ManifestEntry& entry : entries) {
    proto::ManifestEntry record;
    record.set_name(entry.name);
    record.set_version(entry.version);
    Encode(*entry.array, record.mutable_array());
    // In the repeated field, the entry takes a tag and a length in addition to its own bytes.
    const size_t size = record.ByteSizeLong() + 6;
    if (bytes > 0 && bytes + size > kMaxChunkBytes) flush();
    bytes += size;
    *chunk.add_entries() = std::move(record);
  }
  if (bytes > 0) flush();
  return chunks;
}

absl::StatusOr<std::vector<ManifestEntry>> DecodeManifestChunk(std::string_view key,
                                                               const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto chunk, Parse<proto::ManifestChunk>(key, bytes));
  std::vector<ManifestEntry> entries;
  for (const proto::ManifestEntry& record : chunk.entries()) {
    SHARDMESH_ASSIGN_OR_RETURN(Array array, Decode(key, record.array()));
    entries.push_back(
        {record.name(), std::make_shared<const Array>(std::move(array)), record.version()});
  }
  return entries;
}

std::string EncodeManifest(int64_t chunks) {
  proto::ManifestRecord record;
  record.set_chunks(chunks);
  return record.SerializeAsString();
}

absl::StatusOr<int64_t> DecodeManifest(std::string_view key, const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::ManifestRecord>(key, bytes));
  if (record.chunks() < 1) return Damaged(key, "counts no chunks");
  return record.chunks();
}

absl::StatusOr<DefinitionOutline> DecodeDefinitionOutline(std::string_view key,
                                                          const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::Definition>(key, bytes));
  if (record.version() < 1) return Damaged(key, "has no version");
  return DefinitionOutline{.version = record.version(),
                           .has_ranks = record.value().mesh().workers_size() > 0};
}

absl::StatusOr<std::string> WithDefinitionVersion(std::string_view key, const std::string& bytes,
                                                  int64_t version) {
  SHARDMESH_ASSIGN_OR_RETURN(auto record, Parse<proto::Definition>(key, bytes));
  record.set_version(version);
  return record.SerializeAsString();
}

absl::StatusOr<RanksRecords> WithRanks(std::string_view key, const std::string* before,
                                       const Mesh& mesh, const std::vector<std::string>& workers,
                                       int64_t version, absl::Time now) {
  proto::Definition record;
  if (before != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(record, Parse<proto::Definition>(key, *before));
  }
  v1::MeshDefinition* const to = record.mutable_value()->mutable_mesh();
  const bool is_lost = to->mesh().axes().empty();
  if (is_lost) rpc::Encode(mesh, to->mutable_mesh());
  to->mutable_workers()->Assign(workers.begin(), workers.end());
  SHARDMESH_ASSIGN_OR_RETURN(const auto decoded, rpc::Decode(*to));
  if (decoded.mesh.size() != mesh.size() || std::ssize(workers) != mesh.size()) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("\"", key, "\" has ", mesh.size(), " ranks, ",
                                          workers.size(), " workers are given")),
        Reason::kInvalidMesh, {{fact::kValue, workers.size()}});
  }
  proto::MeshAssignment ranks;
  ranks.mutable_workers()->Swap(to->mutable_workers());
  RanksRecords records{.ranks = ranks.SerializeAsString()};
  if (!is_lost) return records;
  record.set_version(version);
  Encode(now, record.mutable_update_time());
  records.definition = record.SerializeAsString();
  return records;
}

std::string EncodeReleased(const ReleasedRecord& released) {
  proto::ReleasedRecord record;
  record.set_mesh_id(released.mesh_id);
  record.set_ranks(released.ranks);
  record.mutable_array_ids()->Add(released.array_ids.begin(), released.array_ids.end());
  return record.SerializeAsString();
}

absl::StatusOr<ReleasedRecord> DecodeReleased(std::string_view key, const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::ReleasedRecord>(key, bytes));
  if (record.ranks() < 1) return Damaged(key, "counts no ranks");
  return ReleasedRecord{
      record.mesh_id(), record.ranks(), {record.array_ids().begin(), record.array_ids().end()}};
}

std::string EncodeState(const StateRecord& state) {
  proto::StateRecord record;
  record.set_array_id(state.array_id);
  record.set_step(state.step);
  return record.SerializeAsString();
}

absl::StatusOr<StateRecord> DecodeState(std::string_view key, const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::StateRecord>(key, bytes));
  if (record.array_id().empty()) return Damaged(key, "names no array");
  if (record.step() < 0) return Damaged(key, "has a negative step");
  return StateRecord{record.array_id(), record.step()};
}

std::vector<SavedPlacesRecord> EncodeSavedPlaces(absl::Span<const SavedPlace> places,
                                                 size_t max_bytes) {
  // Tags, lengths and numbers of a place, or of a file, take less than this.
  constexpr size_t kOtherBytes = 64;
  std::vector<SavedPlacesRecord> records;
  proto::SavedPlacesRecord record;
  std::map<const SourceFile*, uint32_t> file_of;
  size_t bytes = 0;
  const auto flush = [&] {
    records.push_back(
        {.places = static_cast<size_t>(record.places_size()), .bytes = record.SerializeAsString()});
    record.Clear();
    file_of.clear();
    bytes = 0;
  };
  for (const SavedPlace& place : places) {
    const SourceFile& file = *place.source.file;
    const size_t place_bytes = place.array_id.size() + kOtherBytes;
    const size_t file_bytes = file.path.size() + file.head_sha256.size() + kOtherBytes;
    if (bytes > 0 &&
        bytes + place_bytes + (file_of.count(&file) > 0 ? 0 : file_bytes) > max_bytes) {
      flush();
    }
    const auto [number, is_new] =
        file_of.emplace(&file, static_cast<uint32_t>(record.files_size()));
    if (is_new) {
      proto::SavedFileRecord& added = *record.add_files();
      added.set_path(file.path);
      added.set_size_bytes(file.size_bytes);
      added.set_head_sha256(file.head_sha256);
      added.set_head_bytes(file.head_bytes);
    }
    proto::SavedPlaceRecord& added = *record.add_places();
    added.set_array_id(place.array_id);
    added.set_file(number->second);
    added.set_offset_bytes(place.source.offset_bytes);
    bytes += place_bytes + (is_new ? file_bytes : 0);
  }
  if (bytes > 0) flush();
  return records;
}

absl::StatusOr<std::vector<SavedPlace>> DecodeSavedPlaces(std::string_view key,
                                                          const std::string& bytes) {
  constexpr size_t kDigestBytes = 32;
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::SavedPlacesRecord>(key, bytes));
  std::vector<std::shared_ptr<const SourceFile>> files;
  for (const proto::SavedFileRecord& file : record.files()) {
    if (file.path().empty() || file.size_bytes() < 0 || file.head_bytes() < 0 ||
        file.head_sha256().size() != kDigestBytes) {
      return Damaged(key, "describes an impossible file");
    }
    files.push_back(
        std::make_shared<const SourceFile>(SourceFile{.path = file.path(),
                                                      .size_bytes = file.size_bytes(),
                                                      .modify_time = absl::InfinitePast(),
                                                      .head_sha256 = file.head_sha256(),
                                                      .head_bytes = file.head_bytes()}));
  }
  std::vector<SavedPlace> places;
  for (const proto::SavedPlaceRecord& place : record.places()) {
    if (place.file() >= files.size() || place.offset_bytes() < 0) {
      return Damaged(key, "has an array in no file");
    }
    places.push_back(
        {.array_id = place.array_id(),
         .source = {.file = files[place.file()], .offset_bytes = place.offset_bytes()}});
  }
  return places;
}

std::string EncodeRequest(const RequestRecord& request) {
  proto::RequestRecord record;
  record.set_fingerprint(request.fingerprint);
  record.set_answer(request.answer);
  Encode(request.expires, record.mutable_expire_time());
  return record.SerializeAsString();
}

absl::StatusOr<RequestRecord> DecodeRequest(std::string_view key, const std::string& bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto record, Parse<proto::RequestRecord>(key, bytes));
  return RequestRecord{record.fingerprint(), record.answer(), Decode(record.expire_time())};
}

}  // namespace shardmesh::server
