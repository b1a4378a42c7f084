// Reads manifests, and files in pieces, each once, for the checksums of all tiles.
#include "tensor/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "process/crc32c.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/view.h"

namespace shardmesh {
namespace {

using Json = nlohmann::json;

constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr std::string_view kDigestName = "sha256 ";
constexpr size_t kDigestDigits = 64;
constexpr size_t kPieceDigits = 8;  // of the checksum of a piece

absl::Status Damaged(std::string_view folder, std::string_view name, std::string_view what) {
  const std::string file = StrCat(folder, "/", name);
  return InvalidArgument(Reason::kBadFile,
                         StrCat(file, " ", what, "; take another checkpoint, or restore the file"),
                         {{fact::kFile, file}});
}

absl::Status OtherBytes(std::string_view path, std::string_view what, uint32_t have,
                        uint32_t need) {
  return WithReason(absl::DataLossError(StrCat(path, " is damaged: the checksum of ", what, " is ",
                                               have, ", and its manifest says ", need,
                                               "; restore the file, or take another checkpoint")),
                    Reason::kChecksumMismatch,
                    {{fact::kHave, have}, {fact::kNeed, need}, {fact::kFile, path}});
}

// A value of an object; null if it has no such member.
const Json& Member(const Json& object, const char* key) {
  static const Json* const none = new Json();
  const auto found = object.is_object() ? object.find(key) : object.end();
  return !object.is_object() || found == object.end() ? *none : *found;
}

std::optional<int64_t> Number(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const auto number = value.get<int64_t>();
  return number < 0 ? std::nullopt : std::optional<int64_t>(number);
}

std::optional<uint32_t> Checksum(const Json& value) {
  const std::optional<int64_t> number = Number(value);
  if (!number.has_value() || *number > int64_t{0xFFFFFFFF}) return std::nullopt;
  return static_cast<uint32_t>(*number);
}

// Returns no checksums if the text is not one of PieceText.
std::vector<uint32_t> PiecesFrom(const Json& value) {
  std::vector<uint32_t> pieces;
  if (!value.is_string()) return pieces;
  const std::string_view text = value.get_ref<const std::string&>();
  if (text.size() % kPieceDigits != 0) return pieces;
  for (size_t at = 0; at < text.size(); at += kPieceDigits) {
    uint32_t crc32c = 0;
    const char* const end = text.data() + at + kPieceDigits;
    const auto [parsed, error] = std::from_chars(text.data() + at, end, crc32c, 16);
    if (error != std::errc() || parsed != end) return {};
    pieces.push_back(crc32c);
  }
  return pieces;
}

std::optional<ManifestTile> TileFrom(const Json& from) {
  const Json& ranges = Member(from, "ranges");
  const std::optional<uint32_t> crc32c = Checksum(Member(from, "crc32c"));
  if (!ranges.is_array() || !crc32c.has_value()) return std::nullopt;
  ManifestTile tile{
      .tile = {}, .crc32c = *crc32c, .piece_crc32c = PiecesFrom(Member(from, "piece_crc32c"))};
  for (const Json& range : ranges) {
    if (!range.is_array() || range.size() != 2) return std::nullopt;
    const std::optional<int64_t> start = Number(range[0]);
    const std::optional<int64_t> stop = Number(range[1]);
    if (!start.has_value() || !stop.has_value()) return std::nullopt;
    tile.tile.ranges.push_back({*start, *stop});
  }
  return tile;
}

std::optional<ManifestTensor> TensorFrom(const Json& from) {
  const Json& name = Member(from, "name");
  const Json& dtype = Member(from, "dtype");
  const Json& shape = Member(from, "shape");
  const Json& tiles = Member(from, "tiles");
  const Json& array_id = Member(from, "array_id");
  const std::optional<int64_t> offset = Number(Member(from, "offset_bytes"));
  const std::optional<int64_t> size = Number(Member(from, "size_bytes"));
  if (!dtype.is_string() || !shape.is_array() || !tiles.is_array() || !offset.has_value() ||
      !size.has_value()) {
    return std::nullopt;
  }
  const absl::StatusOr<Dtype> parsed = ParseDtype(dtype.get_ref<const std::string&>());
  if (!parsed.ok()) return std::nullopt;
  ManifestTensor tensor{.name = name.is_string() ? name.get<std::string>() : "",
                        .dtype = *parsed,
                        .shape = {},
                        .offset_bytes = *offset,
                        .size_bytes = *size,
                        .tiles = {},
                        .array_id = array_id.is_string() ? array_id.get<std::string>() : ""};
  for (const Json& extent : shape) {
    const std::optional<int64_t> number = Number(extent);
    if (!number.has_value()) return std::nullopt;
    tensor.shape.push_back(*number);
  }
  for (const Json& each : tiles) {
    std::optional<ManifestTile> tile = TileFrom(each);
    if (!tile.has_value()) return std::nullopt;
    tensor.tiles.push_back(*std::move(tile));
  }
  return tensor;
}

// The checksum of a tile, over pieces of its tensor that come in order.
class TileSum {
 public:
  TileSum(const TileRegion& region, const ManifestTile& listed)
      : region_(region), listed_(&listed) {}

  // Takes the tensor's bytes from `begin` on.
  void Add(int64_t begin, absl::Span<const char> piece) {
    const int64_t end = begin + static_cast<int64_t>(piece.size());
    if (done_bytes_ == region_.size_bytes() || Next() >= end) return;
    int64_t taken = 0;
    // The piece has at most so many bytes of the tile.
    const int64_t limit = std::min(region_.size_bytes(), done_bytes_ + (end - begin));
    region_.ForEachRun(done_bytes_, limit, [&](int64_t offset, int64_t size) {
      if (offset >= end) return;
      const int64_t count = std::min(size, end - offset);
      Extend(piece.subspan(static_cast<size_t>(offset - begin), static_cast<size_t>(count)));
      taken += count;
    });
    done_bytes_ += taken;
  }
  // The next functions are for a tile whose bytes have all come.
  bool is_intact() const { return crc32c() == listed_->crc32c; }
  absl::Status Check(std::string_view path, std::string_view tensor) const {
    if (is_intact()) return absl::OkStatus();
    return OtherTileBytes(path, tensor, listed_->tile, crc32c(), listed_->crc32c);
  }
  // Returns the checksum of each piece.
  const std::vector<uint32_t>& piece_crc32c() const { return pieces_; }

 private:
  uint32_t crc32c() const {
    uint32_t whole = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      whole = ConcatCrc32c(whole, pieces_[i],
                           i + 1 < pieces_.size() ? kSavedPieceBytes : last_piece_bytes_);
    }
    return whole;
  }
  // Adds the next bytes to the checksums of the pieces.
  void Extend(absl::Span<const char> bytes) {
    while (!bytes.empty()) {
      if (pieces_.empty() || last_piece_bytes_ == kSavedPieceBytes) {
        pieces_.push_back(0);
        last_piece_bytes_ = 0;
      }
      const absl::Span<const char> next =
          bytes.subspan(0, static_cast<size_t>(kSavedPieceBytes - last_piece_bytes_));
      pieces_.back() = ExtendCrc32c(pieces_.back(), next);
      last_piece_bytes_ += static_cast<int64_t>(next.size());
      bytes.remove_prefix(next.size());
    }
  }
  // The offset of the tile's next byte in the tensor.
  int64_t Next() const {
    int64_t next = 0;
    region_.ForEachRun(done_bytes_, done_bytes_ + 1,
                       [&next](int64_t offset, int64_t) { next = offset; });
    return next;
  }

  TileRegion region_;
  const ManifestTile* listed_;
  int64_t done_bytes_ = 0;
  std::vector<uint32_t> pieces_;  // their checksums, up to done_bytes_
  int64_t last_piece_bytes_ = 0;
};

void AppendPieces(const std::vector<TileSum>& sums, std::vector<uint32_t>* piece_crc32c) {
  if (piece_crc32c == nullptr) return;
  for (const TileSum& sum : sums) {
    piece_crc32c->insert(piece_crc32c->end(), sum.piece_crc32c().begin(), sum.piece_crc32c().end());
  }
}

absl::Status NotCovered(std::string_view path) {
  return WithReason(
      absl::DataLossError(StrCat(path, " has bytes of which its manifest has no checksum")),
      Reason::kChecksumMismatch, {{fact::kFile, path}});
}

// Reads the file in pieces. Calls `take_header` with the checksum of the header, and `take_tensor`
// with the checksums of the tiles of each tensor that is wanted; all are if `is_wanted` is null.
absl::Status ReadSums(const InputFile& file, std::string_view path, const ManifestFile& listed,
                      const std::function<absl::Status()>& keep_going,
                      const std::function<bool(const ManifestTensor&)>& is_wanted,
                      const std::function<absl::Status(uint32_t)>& take_header,
                      const std::function<absl::Status(const ManifestTensor&,
                                                       const std::vector<TileSum>&)>& take_tensor) {
  if (file.size_bytes != listed.size_bytes) {
    return WithReason(
        absl::DataLossError(StrCat(path, " has ", file.size_bytes, " bytes, and its manifest says ",
                                   listed.size_bytes,
                                   "; restore the file, or take another checkpoint")),
        Reason::kChecksumMismatch,
        {{fact::kHave, file.size_bytes}, {fact::kNeed, listed.size_bytes}, {fact::kFile, path}});
  }
  std::string buffer;
  // Calls `take` with the pieces of a range of the file.
  const auto read = [&](int64_t begin, int64_t size, const auto& take) -> absl::Status {
    for (int64_t at = 0; at < size; at += kPieceBytes) {
      buffer.resize(static_cast<size_t>(std::min(kPieceBytes, size - at)));
      SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, begin + at, absl::MakeSpan(buffer)));
      take(at, absl::MakeConstSpan(buffer));
      if (keep_going) SHARDMESH_RETURN_IF_ERROR(keep_going());
    }
    return absl::OkStatus();
  };
  if (!listed.has_checksums || listed.header_bytes > listed.size_bytes) return NotCovered(path);
  uint32_t header_crc32c = 0;
  SHARDMESH_RETURN_IF_ERROR(
      read(0, listed.header_bytes, [&header_crc32c](int64_t, absl::Span<const char> piece) {
        header_crc32c = ExtendCrc32c(header_crc32c, piece);
      }));
  SHARDMESH_RETURN_IF_ERROR(take_header(header_crc32c));
  int64_t checked_bytes = listed.header_bytes;
  for (const ManifestTensor& tensor : listed.tensors) {
    // Sizes are not negative, so that no difference overflows.
    if (tensor.offset_bytes != checked_bytes ||
        tensor.size_bytes > listed.size_bytes - checked_bytes) {
      return NotCovered(path);
    }
    std::vector<TileSum> sums;
    int64_t tile_bytes = 0;
    for (const ManifestTile& tile : tensor.tiles) {
      SHARDMESH_ASSIGN_OR_RETURN(const TileRegion region,
                                 TileRegion::Create(tensor.dtype, tensor.shape, tile.tile));
      if (region.tensor_size_bytes() != tensor.size_bytes ||
          region.size_bytes() > tensor.size_bytes - tile_bytes) {
        return NotCovered(path);
      }
      tile_bytes += region.size_bytes();
      sums.emplace_back(region, tile);
    }
    if (tile_bytes != tensor.size_bytes) return NotCovered(path);
    checked_bytes += tensor.size_bytes;
    if (is_wanted && !is_wanted(tensor)) continue;
    SHARDMESH_RETURN_IF_ERROR(read(tensor.offset_bytes, tensor.size_bytes,
                                   [&sums](int64_t at, absl::Span<const char> piece) {
                                     for (TileSum& sum : sums) sum.Add(at, piece);
                                   }));
    SHARDMESH_RETURN_IF_ERROR(take_tensor(tensor, sums));
  }
  return checked_bytes == listed.size_bytes ? absl::OkStatus() : NotCovered(path);
}

// Returns the CRC-32C of the whole tensor; nullopt if its tiles are not runs that fill it.
std::optional<uint32_t> WholeCrc32c(const ManifestTensor& tensor) {
  struct Stretch {
    int64_t offset_bytes;
    int64_t size_bytes;
    uint32_t crc32c;
  };
  std::vector<Stretch> stretches;
  for (const ManifestTile& tile : tensor.tiles) {
    const absl::StatusOr<TileRegion> region =
        TileRegion::Create(tensor.dtype, tensor.shape, tile.tile);
    if (!region.ok() || !region->contiguous()) return std::nullopt;
    if (region->size_bytes() == 0) continue;
    stretches.push_back({.offset_bytes = region->offset_bytes(),
                         .size_bytes = region->size_bytes(),
                         .crc32c = tile.crc32c});
  }
  std::sort(stretches.begin(), stretches.end(),
            [](const Stretch& a, const Stretch& b) { return a.offset_bytes < b.offset_bytes; });
  int64_t end_bytes = 0;
  uint32_t whole = 0;
  for (const Stretch& stretch : stretches) {
    if (stretch.offset_bytes != end_bytes) return std::nullopt;
    whole = ConcatCrc32c(whole, stretch.crc32c, stretch.size_bytes);
    end_bytes += stretch.size_bytes;
  }
  if (end_bytes != tensor.size_bytes) return std::nullopt;
  return whole;
}

bool HaveEqualTensorChecksums(const ManifestTensor& a, const ManifestTensor& b) {
  if (a.name != b.name || a.dtype != b.dtype || a.shape != b.shape ||
      a.offset_bytes != b.offset_bytes || a.size_bytes != b.size_bytes) {
    return false;
  }
  const bool has_equal_tiles =
      std::equal(a.tiles.begin(), a.tiles.end(), b.tiles.begin(), b.tiles.end(),
                 [](const ManifestTile& x, const ManifestTile& y) {
                   return x.tile == y.tile && x.crc32c == y.crc32c;
                 });
  if (has_equal_tiles) return true;
  const std::optional<uint32_t> whole = WholeCrc32c(a);
  return whole.has_value() && whole == WholeCrc32c(b);
}

uint64_t FirstBytes(std::string_view digest) {
  uint64_t number = 0;
  for (const char byte : digest.substr(0, sizeof(number))) {
    number = number << 8 | static_cast<unsigned char>(byte);
  }
  return number;
}

absl::Status NoManifest(std::string_view name) {
  return InvalidArgument(Reason::kBadFile, StrCat(name, " is no manifest of a checkpoint"),
                         {{fact::kFile, name}});
}

}  // namespace

std::string CheckpointMarkerText(std::string_view manifest) {
  return StrCat(kDigestName, absl::BytesToHexString(Sha256(manifest)), "  ", kCheckpointManifest,
                "\n");
}

absl::Status CheckMarker(std::string_view folder, std::string_view manifest,
                         std::string_view marker) {
  const std::string need = CheckpointMarkerText(manifest);
  if (marker == need) return absl::OkStatus();
  const std::string_view rest = std::string_view(need).substr(kDigestName.size() + kDigestDigits);
  const bool is_marker =
      marker.size() == need.size() && marker.substr(0, kDigestName.size()) == kDigestName &&
      marker.substr(kDigestName.size() + kDigestDigits) == rest &&
      marker.substr(kDigestName.size(), kDigestDigits).find_first_not_of("0123456789abcdef") ==
          std::string_view::npos;
  return is_marker ? Damaged(folder, kCheckpointManifest,
                             StrCat("was changed: its digest is not the one that ",
                                    kCheckpointMarker, " names"))
                   : Damaged(folder, kCheckpointMarker,
                             "is damaged: it is not the line with the digest of the manifest");
}

std::string PieceText(absl::Span<const uint32_t> piece_crc32c) {
  std::string text;
  text.reserve(piece_crc32c.size() * kPieceDigits);
  for (const uint32_t crc32c : piece_crc32c) {
    char digits[kPieceDigits + 1];
    std::snprintf(digits, sizeof(digits), "%08x", static_cast<unsigned>(crc32c));
    text += digits;
  }
  return text;
}

bool IsCheckpointFileName(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.size() <= 255 &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

absl::StatusOr<std::vector<ManifestFile>> ParseManifest(std::string_view name,
                                                        std::string_view manifest) {
  const Json parsed = Json::parse(manifest, nullptr, /*allow_exceptions=*/false);
  const Json& listed = Member(parsed, "files");
  if (!listed.is_array()) return NoManifest(name);
  std::map<std::string, ManifestFile, std::less<>> by_name;
  for (const Json& from : listed) {
    const Json& file_name = Member(from, "name");
    const Json& key = Member(from, "content_key");
    const std::optional<int64_t> size = Number(Member(from, "size_bytes"));
    const std::optional<int64_t> header = Number(Member(from, "header_bytes"));
    const std::optional<uint32_t> crc32c = Checksum(Member(from, "header_crc32c"));
    if (!file_name.is_string() || !size.has_value() ||
        !IsCheckpointFileName(file_name.get_ref<const std::string&>())) {
      return NoManifest(name);
    }
    by_name.insert_or_assign(
        file_name.get<std::string>(),
        ManifestFile{.name = file_name.get<std::string>(),
                     .size_bytes = *size,
                     .content_key = key.is_string() ? key.get<std::string>() : "",
                     .has_checksums = header.has_value() && crc32c.has_value(),
                     .header_bytes = header.value_or(0),
                     .header_crc32c = crc32c.value_or(0),
                     .tensors = {}});
  }
  const bool has_pieces = Number(Member(parsed, "piece_bytes")) == kSavedPieceBytes;
  const Json& tensors = Member(parsed, "tensors");
  for (const Json& from : tensors.is_array() ? tensors : Json::array()) {
    const Json& of = Member(from, "file");
    const auto file =
        of.is_string() ? by_name.find(of.get_ref<const std::string&>()) : by_name.end();
    if (file == by_name.end()) continue;
    std::optional<ManifestTensor> tensor = TensorFrom(from);
    if (tensor.has_value()) {
      if (!has_pieces) {
        for (ManifestTile& tile : tensor->tiles) tile.piece_crc32c.clear();
      }
      file->second.tensors.push_back(*std::move(tensor));
    } else {
      file->second.has_checksums = false;
    }
  }
  std::vector<ManifestFile> files;
  for (auto& [key, file] : by_name) {
    std::stable_sort(file.tensors.begin(), file.tensors.end(),
                     [](const ManifestTensor& a, const ManifestTensor& b) {
                       return a.offset_bytes < b.offset_bytes;
                     });
    files.push_back(std::move(file));
  }
  return files;
}

bool HaveEqualChecksums(const ManifestFile& a, const ManifestFile& b) {
  return a.has_checksums && b.has_checksums && a.size_bytes == b.size_bytes &&
         a.header_bytes == b.header_bytes && a.header_crc32c == b.header_crc32c &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    HaveEqualTensorChecksums);
}

TensorDigests DigestsOf(const ManifestTensor& tensor) {
  std::string about = StrCat(tensor.name.size(), " ", tensor.name, " ", DtypeName(tensor.dtype));
  for (const int64_t extent : tensor.shape) StrAppend(&about, " ", extent);
  std::string content;
  if (const std::optional<uint32_t> whole = WholeCrc32c(tensor); whole.has_value()) {
    StrAppend(&content, "whole ", *whole);
  } else {
    for (const ManifestTile& tile : tensor.tiles) {
      StrAppend(&content, tile.tile.ToString(), " ", tile.crc32c, "\n");
    }
  }
  return {.array = FirstBytes(Sha256(StrCat(about, "\narray ", tensor.array_id))),
          .content = FirstBytes(Sha256(StrCat(about, "\ncontent ", content)))};
}

absl::Status OtherTileBytes(std::string_view path, std::string_view tensor, const Tile& tile,
                            uint32_t have, uint32_t need) {
  return OtherBytes(path, StrCat("the tile ", tile.ToString(), " of tensor \"", tensor, "\""), have,
                    need);
}

absl::Status OtherPieceBytes(std::string_view path, std::string_view tensor, const Tile& tile,
                             int64_t begin_bytes, int64_t end_bytes, uint32_t have, uint32_t need) {
  return OtherBytes(path,
                    StrCat("bytes [", begin_bytes, ", ", end_bytes, ") of the tile ",
                           tile.ToString(), " of tensor \"", tensor, "\""),
                    have, need);
}

absl::Status CheckChecksums(const InputFile& file, std::string_view path,
                            const ManifestFile& listed,
                            const std::function<absl::Status()>& keep_going,
                            const std::function<bool(const ManifestTensor&)>& is_wanted,
                            std::vector<uint32_t>* piece_crc32c) {
  return ReadSums(
      file, path, listed, keep_going, is_wanted,
      [&](uint32_t header_crc32c) {
        return header_crc32c == listed.header_crc32c
                   ? absl::OkStatus()
                   : OtherBytes(path, "the header", header_crc32c, listed.header_crc32c);
      },
      [&](const ManifestTensor& tensor, const std::vector<TileSum>& sums) -> absl::Status {
        for (const TileSum& sum : sums) {
          SHARDMESH_RETURN_IF_ERROR(sum.Check(path, tensor.name));
        }
        AppendPieces(sums, piece_crc32c);
        return absl::OkStatus();
      });
}

absl::StatusOr<std::vector<bool>> FindIntactTiles(const InputFile& file, std::string_view path,
                                                  const ManifestFile& listed,
                                                  const std::function<absl::Status()>& keep_going,
                                                  std::vector<uint32_t>* piece_crc32c) {
  std::vector<bool> intact;
  SHARDMESH_RETURN_IF_ERROR(ReadSums(
      file, path, listed, keep_going, /*is_wanted=*/nullptr,
      [](uint32_t) { return absl::OkStatus(); },
      [&](const ManifestTensor&, const std::vector<TileSum>& sums) {
        for (const TileSum& sum : sums) intact.push_back(sum.is_intact());
        AppendPieces(sums, piece_crc32c);
        return absl::OkStatus();
      }));
  return intact;
}

}  // namespace shardmesh
