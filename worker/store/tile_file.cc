// Writes a tile's description as metadata of a safetensors file, and parses this metadata.
#include "worker/store/tile_file.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "process/crc32c.h"
#include "process/failpoint.h"
#include "process/file.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/safetensors.h"
#include "tensor/view.h"

namespace shardmesh::worker {
namespace {

constexpr size_t kMaxArrayIdBytes = 64;
constexpr char kTensorName[] = "tile";
// Format 2 is for tiles whose last byte is not full, which no tensor of a safetensors file may be.
// Their tensor is the bytes of the tile, padding included, and the metadata has their element type.
constexpr char kFormat[] = "1";
constexpr char kPaddedFormat[] = "2";

// Keys of the metadata, as docs/formats.md lists them.
constexpr char kFormatKey[] = "shardmesh.format";
constexpr char kArrayIdKey[] = "shardmesh.array_id";
constexpr char kArrayShapeKey[] = "shardmesh.array_shape";
constexpr char kTileKey[] = "shardmesh.tile";
constexpr char kDtypeKey[] = "shardmesh.dtype";
constexpr char kChecksumKey[] = "shardmesh.crc32c";
constexpr char kClusterIdKey[] = "shardmesh.cluster_id";
constexpr char kTransferIdKey[] = "shardmesh.transfer_id";
constexpr char kDescriptorKey[] = "shardmesh.array_descriptor";

// Returns the tile's index ranges as text, such as "0:4,8:16"; empty for a scalar.
std::string EncodeTile(const Tile& tile) {
  return StrJoin(tile.ranges, ",", [](std::string* out, const IndexRange& range) {
    StrAppend(out, range.start, ":", range.stop);
  });
}

std::optional<std::vector<int64_t>> ParseNumbers(std::string_view text, char separator) {
  std::vector<int64_t> numbers;
  if (text.empty()) {
    return numbers;
  }
  for (const absl::string_view part : absl::StrSplit(ToAbsl(text), separator)) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) {
      return std::nullopt;
    }
  }
  return numbers;
}

bool ParseTile(std::string_view text, Tile* tile) {
  if (text.empty()) {
    return true;
  }
  for (const absl::string_view part : absl::StrSplit(ToAbsl(text), ',')) {
    const std::optional<std::vector<int64_t>> ends = ParseNumbers(ToStd(part), ':');
    if (!ends.has_value() || ends->size() != 2) {
      return false;
    }
    tile->ranges.push_back({(*ends)[0], (*ends)[1]});
  }
  return true;
}

absl::Status Damaged(std::string_view path, std::string_view what) {
  return WithReason(absl::DataLossError(StrCat("tile file ", path, " is damaged: ", what)),
                    Reason::kBadFile, {{fact::kFile, path}});
}

// Parses the metadata of a tile file.
class MetadataReader {
 public:
  MetadataReader(std::string_view path, const SafetensorsMetadata& metadata)
      : path_(path), metadata_(metadata) {}

  absl::StatusOr<std::string> Text(const char* key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) {
      return Damaged(path_, StrCat("the metadata has no ", key));
    }
    return found->second;
  }

  absl::Status Malformed(const char* key, std::string_view value) const {
    return Damaged(path_, StrCat("the metadata has a malformed ", key, " \"", value, "\""));
  }

 private:
  const std::string_view path_;
  const SafetensorsMetadata& metadata_;
};

// Returns whether the last byte of the tile is not full.
bool IsPadded(const TileDescription& description) {
  return !WholeSizeBytes(description.dtype, description.tile.element_count()).ok();
}

std::vector<SafetensorsWriter::Tensor> TensorsOf(const TileDescription& description) {
  if (IsPadded(description)) return {{kTensorName, Dtype::kU8, {TileSizeBytes(description)}}};
  return {{kTensorName, description.dtype, description.tile.shape()}};
}

SafetensorsMetadata MetadataOf(const TileFileHeader& header) {
  const TileDescription& description = header.description;
  const bool is_padded = IsPadded(description);
  SafetensorsMetadata metadata = {
      {kFormatKey, is_padded ? kPaddedFormat : kFormat},
      {kArrayIdKey, description.array_id},
      {kArrayShapeKey, StrJoin(description.array_shape, ",")},
      {kTileKey, EncodeTile(description.tile)},
      {kChecksumKey, StrCat(absl::Hex(header.crc32c, absl::kZeroPad8))},
      {kClusterIdKey, header.cluster_id},
      {kTransferIdKey, description.transfer_id},
      {kDescriptorKey, absl::Base64Escape(description.array_descriptor)},
  };
  if (is_padded) metadata[kDtypeKey] = std::string(DtypeName(description.dtype));
  return metadata;
}

absl::Status WrongChecksum(std::string_view path, uint32_t have, uint32_t need) {
  return WithReason(
      absl::DataLossError(absl::StrFormat("tile file %s is damaged: its bytes have CRC-32C %08x, "
                                          "its metadata says %08x",
                                          path, have, need)),
      Reason::kChecksumMismatch,
      {{fact::kHave, absl::StrFormat("%08x", have)},
       {fact::kNeed, absl::StrFormat("%08x", need)},
       {fact::kFile, path}});
}

absl::StatusOr<TileFileHeader> DecodeHeader(std::string_view path, const SafetensorsHeader& file) {
  const MetadataReader reader(path, file.metadata());
  SHARDMESH_ASSIGN_OR_RETURN(const std::string format, reader.Text(kFormatKey));
  if (format != kFormat && format != kPaddedFormat) {
    return Damaged(path, StrCat("its format is \"", format, "\"; this build knows ", kFormat,
                                " and ", kPaddedFormat));
  }
  TileFileHeader header;
  TileDescription& description = header.description;
  SHARDMESH_ASSIGN_OR_RETURN(description.array_id, reader.Text(kArrayIdKey));
  SHARDMESH_ASSIGN_OR_RETURN(header.cluster_id, reader.Text(kClusterIdKey));
  SHARDMESH_ASSIGN_OR_RETURN(description.transfer_id, reader.Text(kTransferIdKey));

  SHARDMESH_ASSIGN_OR_RETURN(const std::string shape_text, reader.Text(kArrayShapeKey));
  const std::optional<std::vector<int64_t>> shape = ParseNumbers(shape_text, ',');
  if (!shape.has_value()) {
    return reader.Malformed(kArrayShapeKey, shape_text);
  }
  description.array_shape.assign(shape->begin(), shape->end());

  SHARDMESH_ASSIGN_OR_RETURN(const std::string tile_text, reader.Text(kTileKey));
  if (!ParseTile(tile_text, &description.tile)) {
    return reader.Malformed(kTileKey, tile_text);
  }

  SHARDMESH_ASSIGN_OR_RETURN(const std::string descriptor, reader.Text(kDescriptorKey));
  if (!absl::Base64Unescape(descriptor, &description.array_descriptor)) {
    return reader.Malformed(kDescriptorKey, descriptor);
  }

  SHARDMESH_ASSIGN_OR_RETURN(const std::string checksum, reader.Text(kChecksumKey));
  if (checksum.size() != 8 || !absl::SimpleHexAtoi(checksum, &header.crc32c)) {
    return reader.Malformed(kChecksumKey, checksum);
  }

  const SafetensorsTensor* tensor = file.Find(kTensorName);
  if (tensor == nullptr || file.tensors().size() != 1) {
    return Damaged(path, StrCat("it does not hold one tensor named ", kTensorName));
  }
  description.dtype = tensor->dtype;
  if (format == kPaddedFormat) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string dtype_text, reader.Text(kDtypeKey));
    const absl::StatusOr<Dtype> dtype = ParseDtype(dtype_text);
    if (!dtype.ok()) return reader.Malformed(kDtypeKey, dtype_text);
    description.dtype = *dtype;
  }
  if (const absl::Status status = CheckTileDescription(description); !status.ok()) {
    return Damaged(path, ToStd(status.message()));
  }
  const SafetensorsWriter::Tensor expected = std::move(TensorsOf(description).front());
  if (tensor->shape != expected.shape || tensor->dtype != expected.dtype) {
    return Damaged(path, StrCat("its tensor has shape ", ShapeToString(tensor->shape),
                                ", its tile ", description.tile.ToString()));
  }
  return header;
}

// The header of an opened tile file, and where its elements begin.
struct HeaderAtStart {
  TileFileHeader header;
  int64_t offset_bytes = 0;
};

absl::StatusOr<HeaderAtStart> ReadHeader(const InputFile& file, const std::string& path) {
  const absl::StatusOr<SafetensorsHeader> safetensors = ReadSafetensorsHeader(file, path);
  if (absl::IsInvalidArgument(safetensors.status())) {
    return Damaged(path, ToStd(safetensors.status().message()));
  }
  SHARDMESH_RETURN_IF_ERROR(safetensors.status());
  SHARDMESH_ASSIGN_OR_RETURN(TileFileHeader header, DecodeHeader(path, *safetensors));
  return HeaderAtStart{std::move(header), safetensors->data_offset_bytes()};
}

// Reads the elements with read calls, and compares them with the checksum of the header. Calls
// `read` after each piece of at most `piece_bytes`, and returns its error.
absl::Status CheckElements(const InputFile& file, const std::string& path,
                           const HeaderAtStart& start, int64_t piece_bytes,
                           const std::function<absl::Status(int64_t bytes)>& read) {
  const int64_t size_bytes = TileSizeBytes(start.header.description);
  std::vector<char> piece(static_cast<size_t>(std::min(piece_bytes, size_bytes)));
  uint32_t crc32c = 0;
  for (int64_t at = 0; at < size_bytes;) {
    const int64_t bytes = std::min(piece_bytes, size_bytes - at);
    const absl::Span<char> into = absl::MakeSpan(piece).first(static_cast<size_t>(bytes));
    SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, start.offset_bytes + at, into));
    crc32c = ExtendCrc32c(crc32c, into);
    at += bytes;
    SHARDMESH_RETURN_IF_ERROR(read(bytes));
  }
  return crc32c == start.header.crc32c ? absl::OkStatus()
                                       : WrongChecksum(path, crc32c, start.header.crc32c);
}

}  // namespace

absl::Status CheckTileDescription(const TileDescription& description) {
  const std::string& id = description.array_id;
  bool valid = !id.empty() && id.size() <= kMaxArrayIdBytes;
  for (const char c : id) {
    valid = valid && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-');
  }
  if (!valid) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("array id \"", absl::CHexEscape(id.substr(0, kMaxArrayIdBytes)),
                                  "\" is not 1 to 64 characters of [A-Za-z0-9_-]"),
                           {{fact::kField, "array_id"}, {fact::kValue, id}});
  }
  return TileBits::Create(description.dtype, description.array_shape, description.tile).status();
}

int64_t TileSizeBytes(const TileDescription& description) {
  const int64_t bits = description.tile.element_count() * BitsPerElement(description.dtype);
  return bits / 8 + (bits % 8 != 0 ? 1 : 0);  // bits + 7 may be too large for int64
}

std::string TileFileName(const Tile& tile) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (tile.ranges.empty()) {
    return StrCat("scalar", kSuffix);
  }
  std::string name = StrJoin(tile.ranges, "x", [](std::string* out, const IndexRange& range) {
    StrAppend(out, range.start, "-", range.stop);
  });
  // Only a tile without elements can have a longer name: the ranges of other tiles that fit into
  // memory are shorter. A file system may refuse a longer name. Therefore cut it, and add a
  // checksum of the whole name.
  constexpr size_t kLongestName = 160;
  if (name.size() > kLongestName) {
    name = StrCat(name.substr(0, kLongestName), "-", absl::Hex(Crc32c(name), absl::kZeroPad8));
  }
  return StrCat(name, kSuffix);
}

int64_t TileFileHeaderBytes(const TileFileHeader& header) {
  const absl::StatusOr<EncodedSafetensorsHeader> encoded =
      EncodeSafetensorsHeader("", TensorsOf(header.description), MetadataOf(header));
  return encoded.ok() ? static_cast<int64_t>(encoded->bytes.size()) : 0;
}

absl::Status WriteTileFile(const std::string& path, const TileFileHeader& header,
                           absl::Span<const char> bytes) {
  SHARDMESH_FAILPOINT("tile_file.write");
  SHARDMESH_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(path, TensorsOf(header.description), MetadataOf(header)));
  SHARDMESH_RETURN_IF_ERROR(writer.Append(bytes));
  return writer.Finish();
}

absl::StatusOr<TileFileHeader> ReadTileFileHeader(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  SHARDMESH_ASSIGN_OR_RETURN(HeaderAtStart start, ReadHeader(file, path));
  return std::move(start.header);
}

absl::StatusOr<TileFileContents> ReadTileFile(const std::string& path, BufferPool& pool) {
  SHARDMESH_FAILPOINT("tile_file.read");
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  SHARDMESH_ASSIGN_OR_RETURN(HeaderAtStart start, ReadHeader(file, path));
  TileFileContents contents;
  contents.header = std::move(start.header);
  const int64_t size_bytes = TileSizeBytes(contents.header.description);
  SHARDMESH_ASSIGN_OR_RETURN(contents.bytes, pool.Allocate(size_bytes, StrCat("tile file ", path)));
  SHARDMESH_RETURN_IF_ERROR(
      ReadExactly(file, path, start.offset_bytes, contents.bytes.mutable_bytes()));
  const uint32_t found = Crc32c(contents.bytes.bytes());
  if (found != contents.header.crc32c) return WrongChecksum(path, found, contents.header.crc32c);
  return contents;
}

absl::StatusOr<MappedTileFile> MapTileFile(const std::string& path, int64_t piece_bytes,
                                           const std::function<absl::Status(int64_t bytes)>& read) {
  SHARDMESH_FAILPOINT("tile_file.map");
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  // As in CheckTileFile: the disk must have the bytes, and not only the kernel's cache.
  posix_fadvise(file.descriptor.get(), 0, 0, POSIX_FADV_DONTNEED);
  SHARDMESH_ASSIGN_OR_RETURN(HeaderAtStart start, ReadHeader(file, path));
  // The read calls report an error of the disk, which would end the process if the mapped bytes
  // were read first.
  SHARDMESH_RETURN_IF_ERROR(CheckElements(file, path, start, piece_bytes, read));
  SHARDMESH_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Map(file, path));
  const absl::Span<const char> bytes =
      mapped.bytes().subspan(static_cast<size_t>(start.offset_bytes),
                             static_cast<size_t>(TileSizeBytes(start.header.description)));
  return MappedTileFile(std::move(start.header), std::move(mapped), bytes);
}

absl::Status CheckTileFile(const std::string& path, const TileFileHeader& expected,
                           int64_t piece_bytes,
                           const std::function<absl::Status(int64_t bytes)>& read) {
  SHARDMESH_FAILPOINT("tile_file.check");
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  // Best effort: pages that another process has mapped stay in the cache.
  posix_fadvise(file.descriptor.get(), 0, 0, POSIX_FADV_DONTNEED);
  SHARDMESH_ASSIGN_OR_RETURN(const HeaderAtStart start, ReadHeader(file, path));
  const TileFileHeader& header = start.header;
  if (!(header.description == expected.description) || header.cluster_id != expected.cluster_id ||
      header.crc32c != expected.crc32c) {
    return Damaged(path, "its metadata are those of another tile");
  }
  const absl::Status checked = CheckElements(file, path, start, piece_bytes, read);
  posix_fadvise(file.descriptor.get(), 0, 0, POSIX_FADV_DONTNEED);
  return checked;
}

}  // namespace shardmesh::worker
