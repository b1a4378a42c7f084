// Plans the files of a save, and writes their headers, the index and the manifest.
#include "server/save/save_plan.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "absl/strings/escaping.h"
#include "process/crc32c.h"
#include "sharding/digest.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"
#include "tensor/view.h"

namespace shardmesh::server {
namespace {

using Json = nlohmann::ordered_json;

// Pieces of a tile begin at multiples of this, so that their writes stay long.
constexpr int64_t kPieceAlignment = int64_t{1} << 20;
constexpr int kManifestFormat = 1;

// Workers write whole blocks of this size past the page cache. Most large tensors have whole blocks
// too, so they are aligned if the first of them is.
constexpr int64_t kFileDataAlignment = 4096;

const ArrayDescriptor& DescriptorOf(const TensorToSave& tensor) {
  return tensor.array->definition.descriptor;
}

int64_t PartBytes(const SavePlan& plan, size_t tensor, size_t part) {
  // Create has checked the layout.
  return DescriptorOf(plan.tensors[tensor])
      .TileSizeBytes(plan.tensors[tensor].parts[part].tile)
      .value_or(0);
}

std::string FileName(size_t file, size_t count) {
  if (count == 1) return std::string(kSingleCheckpointFile);
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", file + 1, count);
  return name;
}

// Tensors of one file, as indexes into SavePlan::tensors.
using Group = std::vector<size_t>;

int64_t SizeOf(const SavePlan& plan, const Group& tensors) {
  int64_t size_bytes = 0;
  for (const size_t tensor : tensors) size_bytes += plan.places[tensor].size_bytes;
  return size_bytes;
}

// Adds files that these tensors fill in the order of their names.
void AddFiles(const SavePlan& plan, const SaveLayout& layout, Group tensors,
              std::vector<Group>* files) {
  std::sort(tensors.begin(), tensors.end());
  int64_t filled_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t size_bytes = plan.places[tensors[i]].size_bytes;
    const bool is_full = !layout.single_file && filled_bytes > 0 &&
                         size_bytes > layout.max_file_bytes - filled_bytes;
    if (i == 0 || is_full) {
      files->emplace_back();
      filled_bytes = 0;
    }
    files->back().push_back(tensors[i]);
    filled_bytes += size_bytes;
  }
}

// The tensors of a save beside those of an earlier checkpoint.
struct SortedTensors {
  std::vector<Group> kept;  // files that stay as they are
  Group unchanged;          // of other files
  Group changed;
};

SortedTensors SortTensors(const SavePlan& plan, const SaveLayout& layout,
                          absl::Span<const EarlierTensors> earlier) {
  // Both digests are of the name too, so each belongs to one tensor.
  absl::flat_hash_map<uint64_t, size_t> tensor_of;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorToSave& tensor = plan.tensors[i];
    const ArrayDescriptor& array = DescriptorOf(tensor);
    ManifestTensor listed{.name = tensor.name,
                          .dtype = array.dtype,
                          .shape = array.shape,
                          .size_bytes = plan.places[i].size_bytes,
                          .tiles = {},
                          .array_id = array.array_id};
    for (const HeldPart& part : tensor.parts) {
      listed.tiles.push_back({.tile = part.tile, .crc32c = part.crc32c});
    }
    const TensorDigests digests = DigestsOf(listed);
    tensor_of.emplace(digests.array, i);
    tensor_of.emplace(digests.content, i);
  }
  SortedTensors sorted;
  std::vector<bool> is_unchanged(plan.tensors.size());
  const int64_t max_kept_bytes =
      layout.max_kept_bytes == 0 ? layout.max_file_bytes : layout.max_kept_bytes;
  for (const EarlierTensors& file : earlier) {
    Group found;
    for (const TensorDigests& each : file) {
      auto tensor = tensor_of.find(each.array);
      if (tensor == tensor_of.end()) tensor = tensor_of.find(each.content);
      if (tensor == tensor_of.end() || is_unchanged[tensor->second]) continue;
      is_unchanged[tensor->second] = true;
      found.push_back(tensor->second);
    }
    const bool fits = found.size() == 1 || SizeOf(plan, found) <= max_kept_bytes;
    if (!found.empty() && found.size() == file.size() && fits) {
      std::sort(found.begin(), found.end());
      sorted.kept.push_back(std::move(found));
    } else {
      sorted.unchanged.insert(sorted.unchanged.end(), found.begin(), found.end());
    }
  }
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    if (!is_unchanged[i]) sorted.changed.push_back(i);
  }
  return sorted;
}

// Takes small files of about the same size apart, if there are many. A byte is written again about
// once for each factor of four by which its file grows.
void MergeSmallFiles(const SavePlan& plan, const SaveLayout& layout, SortedTensors* sorted) {
  std::map<int, std::vector<size_t>> alike;  // indexes into kept, by the magnitude of the size
  for (size_t i = 0; i < sorted->kept.size(); ++i) {
    const int64_t size_bytes = SizeOf(plan, sorted->kept[i]);
    if (size_bytes >= layout.max_file_bytes / 2) continue;
    alike[std::bit_width(static_cast<uint64_t>(size_bytes) >> 20) / 2].push_back(i);
  }
  for (const auto& [magnitude, files] : alike) {
    if (files.size() < kMergedFiles) continue;
    for (const size_t file : files) {
      Group tensors = std::exchange(sorted->kept[file], {});
      sorted->unchanged.insert(sorted->unchanged.end(), tensors.begin(), tensors.end());
    }
  }
  std::erase_if(sorted->kept, [](const Group& file) { return file.empty(); });
}

// Gives each tensor a file.
void FillFiles(const SaveLayout& layout, absl::Span<const EarlierTensors> earlier, SavePlan* plan) {
  SortedTensors sorted =
      SortTensors(*plan, layout, layout.single_file ? absl::Span<const EarlierTensors>() : earlier);
  MergeSmallFiles(*plan, layout, &sorted);
  if (SizeOf(*plan, sorted.unchanged) < kMinApartBytes) {
    sorted.changed.insert(sorted.changed.end(), sorted.unchanged.begin(), sorted.unchanged.end());
    sorted.unchanged.clear();
  }
  std::vector<Group> files = std::move(sorted.kept);
  AddFiles(*plan, layout, std::move(sorted.unchanged), &files);
  AddFiles(*plan, layout, std::move(sorted.changed), &files);
  std::sort(files.begin(), files.end(),
            [](const Group& a, const Group& b) { return a.front() < b.front(); });
  for (size_t i = 0; i < files.size(); ++i) {
    for (const size_t tensor : files[i]) plan->places[tensor].file = i;
    plan->files.emplace_back().tensors = std::move(files[i]);
  }
}

absl::Status MakeHeaders(const SaveLayout& layout, SavePlan* plan) {
  for (size_t i = 0; i < plan->files.size(); ++i) {
    FileInPlan& file = plan->files[i];
    file.name = FileName(i, plan->files.size());
    std::vector<SafetensorsWriter::Tensor> listed;
    std::string ids;
    for (const size_t tensor : file.tensors) {
      const ArrayDescriptor& array = DescriptorOf(plan->tensors[tensor]);
      listed.push_back(
          {.name = plan->tensors[tensor].name, .dtype = array.dtype, .shape = array.shape});
      StrAppend(&ids, array.array_id, "\n");
    }
    // Some readers, such as those of the library transformers, require this key.
    SHARDMESH_ASSIGN_OR_RETURN(
        EncodedSafetensorsHeader header,
        EncodeSafetensorsHeader(file.name, listed, {{"format", "pt"}}, kFileDataAlignment));
    file.header = std::move(header.bytes);
    file.size_bytes = static_cast<int64_t>(file.header.size()) + header.data_size_bytes;
    int64_t offset_bytes = static_cast<int64_t>(file.header.size());
    for (const size_t tensor : file.tensors) {
      plan->places[tensor].offset_bytes = offset_bytes;
      offset_bytes += plan->places[tensor].size_bytes;
    }
    file.content_key = absl::BytesToHexString(
        Sha256(StrCat("shardmesh file 1\n", layout.cluster_id, "\n", ids, file.header)));
  }
  return absl::OkStatus();
}

// Cuts a tile among its holders, or gives it to the holder that has least to write so far.
void AssignPart(size_t tensor, size_t part, std::map<std::string, int64_t>* load, SavePlan* plan) {
  const HeldPart& held = plan->tensors[tensor].parts[part];
  const int64_t size_bytes = PartBytes(*plan, tensor, part);
  const auto count = static_cast<int64_t>(held.identities.size());
  const auto assign = [&](const std::string& identity, int64_t begin, int64_t end) {
    plan->regions[identity].push_back(
        {.tensor = tensor, .part = part, .begin_bytes = begin, .end_bytes = end});
    (*load)[identity] += end - begin;
  };
  if (count > 1 && size_bytes >= kMinSplitBytes) {
    const int64_t share =
        (size_bytes / count + kPieceAlignment) / kPieceAlignment * kPieceAlignment;
    int64_t begin = 0;
    for (const std::string& identity : held.identities) {
      const int64_t end = std::min(size_bytes, begin + share);
      if (begin < end) assign(identity, begin, end);
      begin = end;
    }
    return;
  }
  const std::string& least = *std::min_element(
      held.identities.begin(), held.identities.end(),
      [load](const std::string& a, const std::string& b) { return (*load)[a] < (*load)[b]; });
  assign(least, 0, size_bytes);
}

// Adds the checksums of a tile's pieces if the tile has several, and they make up its checksum.
void AddPieces(const SavePlan& plan, size_t tensor, size_t part, std::vector<uint32_t> sums,
               PieceChecksums* pieces) {
  const int64_t size_bytes = PartBytes(plan, tensor, part);
  const int64_t count = CountSavedPieces(size_bytes);
  if (count < 2 || static_cast<int64_t>(sums.size()) != count) return;
  uint32_t whole = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t piece_bytes = std::min(kSavedPieceBytes, size_bytes - i * kSavedPieceBytes);
    whole = ConcatCrc32c(whole, sums[static_cast<size_t>(i)], piece_bytes);
  }
  if (whole != plan.tensors[tensor].parts[part].crc32c) return;
  pieces->insert_or_assign({tensor, part}, std::move(sums));
}

// Refuses tensors whose parts share bytes of the file: several workers would write such a byte.
// Also refuses tensors that do not fill their last byte.
absl::Status CheckParts(const TensorToSave& tensor) {
  const ArrayDescriptor& array = DescriptorOf(tensor);
  if (BitsPerElement(array.dtype) % 8 == 0) return absl::OkStatus();
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(array.shape));
  if (!WholeSizeBytes(array.dtype, elements).ok()) {
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("tensor \"", tensor.name, "\" has ", elements, " ", DtypeName(array.dtype),
               " elements of ", BitsPerElement(array.dtype),
               " bits, which do not fill whole bytes; no safetensors file can hold it, in no "
               "layout: save the other tensors without it"),
        {{fact::kDtype, DtypeName(array.dtype)}});
  }
  for (const HeldPart& part : tensor.parts) {
    if (TileRegion::Create(array.dtype, array.shape, part.tile).ok()) continue;
    return InvalidArgument(
        Reason::kUnsupportedDtype,
        StrCat("tensor \"", tensor.name, "\" has ", DtypeName(array.dtype), " elements of ",
               BitsPerElement(array.dtype), " bits, and its tile ", part.tile.ToString(),
               " begins or ends within a byte of the file; reshard it to a layout whose tiles are "
               "of whole bytes, then save it"),
        {{fact::kDtype, DtypeName(array.dtype)}});
  }
  return absl::OkStatus();
}

}  // namespace

int64_t StepFileBytes(int64_t size_bytes) {
  constexpr int64_t kMinBytes = int64_t{16} << 20;
  constexpr int64_t kMaxBytes = int64_t{256} << 20;
  constexpr int64_t kMaxFiles = 4'096;
  return std::max(std::clamp(size_bytes / 16, kMinBytes, kMaxBytes), size_bytes / kMaxFiles);
}

absl::StatusOr<SavePlan> PlanSave(std::vector<TensorToSave> tensors, const SaveLayout& layout,
                                  absl::Span<const EarlierTensors> earlier) {
  SavePlan plan;
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorToSave& a, const TensorToSave& b) { return a.name < b.name; });
  plan.tensors = std::move(tensors);
  for (const TensorToSave& tensor : plan.tensors) {
    SHARDMESH_RETURN_IF_ERROR(CheckParts(tensor));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, DescriptorOf(tensor).SizeBytes());
    plan.places.push_back({.size_bytes = size_bytes});
    plan.size_bytes += size_bytes;
  }
  FillFiles(layout, earlier, &plan);
  SHARDMESH_RETURN_IF_ERROR(MakeHeaders(layout, &plan));
  std::map<std::string, int64_t> load;
  for (const FileInPlan& file : plan.files) {
    for (const size_t tensor : file.tensors) {
      for (size_t part = 0; part < plan.tensors[tensor].parts.size(); ++part) {
        AssignPart(tensor, part, &load, &plan);
      }
    }
  }
  return plan;
}

std::string IndexText(const SavePlan& plan) {
  if (plan.files.size() == 1) return "";
  Json weight_map = Json::object();
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    // Appends to the list of pairs: each insertion by key would search all keys.
    weight_map.get_ref<Json::object_t&>().emplace_back(plan.tensors[i].name,
                                                       plan.files[plan.places[i].file].name);
  }
  return Json{{"metadata", {{"total_size", plan.size_bytes}}}, {"weight_map", weight_map}}.dump(2) +
         "\n";
}

std::string ManifestText(const SavePlan& plan, const SaveDescription& description,
                         const PieceChecksums& pieces) {
  Json manifest = {{"format", kManifestFormat},
                   {"cluster", description.cluster_id},
                   {"prefix", description.prefix},
                   {"revision", description.revision}};
  if (description.step.has_value()) manifest["step"] = *description.step;
  manifest["size_bytes"] = plan.size_bytes;
  if (!pieces.empty()) manifest["piece_bytes"] = kSavedPieceBytes;
  Json& files = manifest["files"] = Json::array();
  for (const FileInPlan& file : plan.files) {
    files.push_back({{"name", file.name},
                     {"size_bytes", file.size_bytes},
                     {"content_key", file.content_key},
                     {"header_bytes", file.header.size()},
                     {"header_crc32c", Crc32c(file.header)}});
  }
  Json& tensors = manifest["tensors"] = Json::array();
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorToSave& tensor = plan.tensors[i];
    const ArrayDescriptor& array = DescriptorOf(tensor);
    Json tiles = Json::array();
    for (size_t part = 0; part < tensor.parts.size(); ++part) {
      Json ranges = Json::array();
      for (const IndexRange& range : tensor.parts[part].tile.ranges) {
        ranges.push_back({range.start, range.stop});
      }
      Json tile = {{"ranges", std::move(ranges)}, {"crc32c", tensor.parts[part].crc32c}};
      if (const auto found = pieces.find({i, part}); found != pieces.end()) {
        tile["piece_crc32c"] = PieceText(found->second);
      }
      tiles.push_back(std::move(tile));
    }
    tensors.push_back({{"name", tensor.name},
                       {"file", plan.files[plan.places[i].file].name},
                       {"offset_bytes", plan.places[i].offset_bytes},
                       {"size_bytes", plan.places[i].size_bytes},
                       {"array_id", array.array_id},
                       {"dtype", std::string(DtypeName(array.dtype))},
                       {"shape", std::vector<int64_t>(array.shape.begin(), array.shape.end())},
                       {"spec", array.spec.ToString()},
                       {"mesh", array.mesh_id},
                       {"tiles", std::move(tiles)}});
  }
  // The prefix may end within a character.
  return manifest.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void AddFilePieces(const SavePlan& plan, size_t file, absl::Span<const uint32_t> piece_crc32c,
                   PieceChecksums* pieces) {
  for (const size_t tensor : plan.files[file].tensors) {
    for (size_t part = 0; part < plan.tensors[tensor].parts.size(); ++part) {
      const auto count = static_cast<size_t>(CountSavedPieces(PartBytes(plan, tensor, part)));
      if (count > piece_crc32c.size()) return;
      AddPieces(plan, tensor, part, {piece_crc32c.begin(), piece_crc32c.begin() + count}, pieces);
      piece_crc32c.remove_prefix(count);
    }
  }
}

void AddWrittenPieces(const SavePlan& plan, const PresentBytes& present,
                      const std::map<std::string, std::vector<uint32_t>>& piece_crc32c,
                      PieceChecksums* pieces) {
  // The checksums of the regions of each tile, by the beginning of the region.
  std::map<std::pair<size_t, size_t>, std::map<int64_t, absl::Span<const uint32_t>>> regions_of;
  for (const auto& [identity, regions] : plan.regions) {
    const auto found = piece_crc32c.find(identity);
    if (found == piece_crc32c.end()) continue;
    absl::Span<const uint32_t> left = found->second;
    for (const RegionToWrite& region : regions) {
      if (present.Has(plan, region)) continue;
      const auto count = static_cast<size_t>(CountSavedPieces(region.size_bytes()));
      if (count > left.size()) break;
      regions_of[{region.tensor, region.part}][region.begin_bytes] = left.subspan(0, count);
      left.remove_prefix(count);
    }
  }
  for (const auto& [key, of_tile] : regions_of) {
    std::vector<uint32_t> sums;
    for (const auto& [begin, of_region] : of_tile) {
      sums.insert(sums.end(), of_region.begin(), of_region.end());
    }
    AddPieces(plan, key.first, key.second, std::move(sums), pieces);
  }
}

PresentBytes AllBut(const SavePlan& plan, const std::set<size_t>& files) {
  PresentBytes present;
  for (size_t file = 0; file < plan.files.size(); ++file) {
    if (!files.contains(file)) present.linked.insert(file);
  }
  return present;
}

absl::Status CheckWritten(const SavePlan& plan, const PresentBytes& present,
                          const std::map<std::string, std::vector<uint32_t>>& crc32c) {
  // The regions of each tile, by their beginning.
  struct Piece {
    int64_t begin_bytes;
    int64_t size_bytes;
    uint32_t crc32c;
    std::string_view identity;
  };
  std::map<std::pair<size_t, size_t>, std::vector<Piece>> pieces;
  for (const auto& [identity, regions] : plan.regions) {
    const auto found = crc32c.find(identity);
    size_t next = 0;
    for (const RegionToWrite& region : regions) {
      if (present.Has(plan, region)) continue;
      if (found == crc32c.end() || next == found->second.size()) {
        return absl::InternalError(
            StrCat("worker \"", identity, "\" reported too few checksums of a save"));
      }
      pieces[{region.tensor, region.part}].push_back({.begin_bytes = region.begin_bytes,
                                                      .size_bytes = region.size_bytes(),
                                                      .crc32c = found->second[next++],
                                                      .identity = identity});
    }
  }
  for (auto& [key, of_tile] : pieces) {
    std::sort(of_tile.begin(), of_tile.end(),
              [](const Piece& a, const Piece& b) { return a.begin_bytes < b.begin_bytes; });
    uint32_t whole = 0;
    std::set<std::string_view> identities;
    for (const Piece& piece : of_tile) {
      whole = ConcatCrc32c(whole, piece.crc32c, piece.size_bytes);
      identities.insert(piece.identity);
    }
    const TensorToSave& tensor = plan.tensors[key.first];
    const HeldPart& part = tensor.parts[key.second];
    if (whole == part.crc32c) continue;
    constexpr size_t kMostWorkersNamed = 8;
    return WithReason(
        absl::DataLossError(StrCat("tile ", part.tile.ToString(), " of \"", tensor.name,
                                   "\" has changed in the memory of ",
                                   StrJoinFirst(kMostWorkersNamed, identities, ", "),
                                   ": its checksum was ", part.crc32c, " and is ", whole,
                                   "; load the array again, and check that host's memory")),
        Reason::kChecksumMismatch,
        {{fact::kHave, whole},
         {fact::kNeed, part.crc32c},
         {fact::kArray, DescriptorOf(tensor).array_id}});
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
