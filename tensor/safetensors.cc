// Checkpoints in the safetensors format: mapped and validated reading, streamed writing.
#include "tensor/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "process/failpoint.h"
#include "process/json_error.h"
#include "process/steady_deadline.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

uint64_t DecodeLength(const char* bytes) {
  uint64_t length = 0;
  for (int i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  }
  return length;
}

std::string EncodeLength(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<char>(length >> (8 * i) & 0xFF));
  }
  return bytes;
}

// Returns a name as error messages show it: quoted, escaped and shortened. Names from a file can be
// of any length and contain any bytes.
std::string Quoted(std::string_view name) {
  constexpr size_t kLongest = 200;
  const bool cut = name.size() > kLongest;
  return StrCat("\"", absl::Utf8SafeCHexEscape(ToAbsl(name.substr(0, kLongest))), cut ? "..." : "",
                "\"");
}

absl::Status BadFile(std::string_view source, std::string_view what) {
  return InvalidArgument(Reason::kBadFile, StrCat(source, ": ", what), {{fact::kFile, source}});
}

// Parses the header's JSON as a stream: it builds no tree, and detects repeated keys.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(std::string_view source, std::vector<SafetensorsTensor>* tensors,
               absl::flat_hash_map<std::string, size_t>* index, SafetensorsMetadata* metadata)
      : source_(source), tensors_(tensors), index_(index), metadata_(metadata) {}

  // Returns the error that ended parsing early, else OK.
  const absl::Status& status() const { return status_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool value) override { return Unexpected(value ? "true" : "false"); }
  bool number_float(double, const std::string& text) override { return Unexpected(text); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_integer(int64_t value) override {
    return Unexpected(absl::StrCat("the negative number ", value));
  }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) {
      return Unexpected(absl::StrCat(value));
    }
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Fail(StrCat("tensor ", Quoted(name_), ": ", key_, " has ", value,
                         ", which is more than 63 bits hold"));
    }
    const int64_t number = static_cast<int64_t>(value);
    if (place_ == Place::kShape) {
      if (static_cast<int64_t>(tensors_->back().shape.size()) == kMaxRank) {
        return Fail(StrCat("tensor ", Quoted(name_), " has more than ", kMaxRank, " dimensions"));
      }
      tensors_->back().shape.push_back(number);
      return true;
    }
    if (offset_count_ == 0) {
      tensors_->back().begin_bytes = number;
    } else {
      tensors_->back().end_bytes = number;
    }
    if (++offset_count_ > 2) {
      return Fail(StrCat("tensor ", Quoted(name_), ": data_offsets has more than two numbers"));
    }
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      if (!metadata_->emplace(key_, value).second) {
        return Fail(StrCat("the key ", Quoted(key_), " occurs twice in ", kMetadataKey));
      }
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") {
      return Unexpected(StrCat("the text ", Quoted(value)));
    }
    absl::StatusOr<Dtype> dtype = ParseDtype(value);
    if (!dtype.ok()) {
      status_ = InvalidArgument(
          Reason::kUnknownDtype,
          StrCat(source_, ": tensor ", Quoted(name_), ": dtype ", ToStd(dtype.status().message())),
          {{fact::kDtype, value}, {fact::kTensor, name_}});
      return false;
    }
    tensors_->back().dtype = *dtype;
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = name_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
        if (place_ == Place::kTensor) {
          has_dtype_ = has_shape_ = has_offsets_ = false;
          index_->emplace(name_, tensors_->size());
          tensors_->emplace_back().name = name_;
        }
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(std::string& value) override {
    key_ = value;
    switch (place_) {
      case Place::kTop:
        name_ = value;
        if (value == kMetadataKey ? std::exchange(has_metadata_, true) : index_->contains(value)) {
          return Fail(StrCat("the name ", Quoted(value), " occurs twice"));
        }
        return true;
      case Place::kTensor: {
        bool* seen = value == "dtype"          ? &has_dtype_
                     : value == "shape"        ? &has_shape_
                     : value == "data_offsets" ? &has_offsets_
                                               : nullptr;
        if (seen == nullptr) {
          return Fail(StrCat("tensor ", Quoted(name_), " has the unknown key ", Quoted(value)));
        }
        if (std::exchange(*seen, true)) {
          return Fail(StrCat("tensor ", Quoted(name_), ": the key ", value, " occurs twice"));
        }
        return true;
      }
      default:
        return true;
    }
  }

  bool end_object() override {
    if (place_ == Place::kTensor && !(has_dtype_ && has_shape_ && has_offsets_)) {
      return Fail(StrCat("tensor ", Quoted(name_), " has no ",
                         !has_dtype_   ? "dtype"
                         : !has_shape_ ? "shape"
                                       : "data_offsets"));
    }
    place_ = place_ == Place::kTop ? Place::kStart : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") {
      return Unexpected("a list");
    }
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    offset_count_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offset_count_ != 2) {
      return Fail(StrCat("tensor ", Quoted(name_), ": data_offsets has ", offset_count_,
                         " numbers instead of two"));
    }
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(StrCat("the header is not JSON in UTF-8, at byte ", kLengthBytes + position, ": ",
                       JsonErrorText(error.what())));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };

  bool Fail(std::string_view what) {
    status_ = BadFile(source_, what);
    return false;
  }

  bool Unexpected(std::string_view what) {
    switch (place_) {
      case Place::kStart:
        return Fail(StrCat("the header is not a JSON object but ", what));
      case Place::kTop:
        return Fail(StrCat(Quoted(name_), " is not an object but ", what));
      case Place::kMetadata:
        return Fail(StrCat(kMetadataKey, ": ", Quoted(key_), " is not a text but ", what));
      default:
        return Fail(StrCat("tensor ", Quoted(name_), ": ", key_, " cannot have ", what));
    }
  }

  const std::string_view source_;
  std::vector<SafetensorsTensor>* const tensors_;
  absl::flat_hash_map<std::string, size_t>* const index_;
  SafetensorsMetadata* const metadata_;
  absl::Status status_;
  Place place_ = Place::kStart;
  std::string name_;  // last key of the outermost object: a tensor's name or the metadata key
  std::string key_;   // last key that was read, at any depth
  int offset_count_ = 0;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

// Checks one tensor: its bytes have the size that type and shape require, and lie within the data.
absl::Status CheckTensor(std::string_view source, const SafetensorsTensor& tensor,
                         int64_t data_size_bytes) {
  const std::string where = StrCat("tensor ", Quoted(tensor.name), ": ");
  const absl::StatusOr<int64_t> elements = ElementCount(tensor.shape);
  const absl::StatusOr<int64_t> need_bytes =
      elements.ok() ? WholeSizeBytes(tensor.dtype, *elements) : elements.status();
  if (!need_bytes.ok()) {
    return BadFile(source, StrCat(where, ToStd(need_bytes.status().message())));
  }
  if (tensor.begin_bytes > tensor.end_bytes || tensor.end_bytes > data_size_bytes) {
    return BadFile(source, StrCat(where, "data_offsets [", tensor.begin_bytes, ", ",
                                  tensor.end_bytes, "] are not a range within the ",
                                  data_size_bytes, " bytes of data that the file has"));
  }
  if (tensor.size_bytes() != *need_bytes) {
    return BadFile(source, StrCat(where, "data_offsets span ", tensor.size_bytes(), " bytes, but ",
                                  DtypeName(tensor.dtype), " of shape ",
                                  ShapeToString(tensor.shape), " takes ", *need_bytes));
  }
  return absl::OkStatus();
}

// Checks all tensors together: in the given order, they cover the data without gap or overlap.
absl::Status CheckCover(std::string_view source, const std::vector<SafetensorsTensor>& tensors,
                        int64_t data_size_bytes) {
  int64_t covered_bytes = 0;
  std::string before = "the start of the data";
  for (const SafetensorsTensor& tensor : tensors) {
    if (tensor.begin_bytes < covered_bytes) {
      return BadFile(source, StrCat("tensor ", Quoted(tensor.name), " overlaps ", before,
                                    ": it begins at byte ", tensor.begin_bytes, " of the data, ",
                                    before, " ends at ", covered_bytes));
    }
    if (tensor.begin_bytes > covered_bytes) {
      return BadFile(source, StrCat("bytes ", covered_bytes, " to ", tensor.begin_bytes,
                                    " of the data belong to no tensor (between ", before, " and ",
                                    Quoted(tensor.name), ")"));
    }
    covered_bytes = tensor.end_bytes;
    before = StrCat("tensor ", Quoted(tensor.name));
  }
  if (covered_bytes != data_size_bytes) {
    return BadFile(source, StrCat("the last ", data_size_bytes - covered_bytes,
                                  " bytes of the file belong to no tensor"));
  }
  return absl::OkStatus();
}

// Reads the header's length from the file's first bytes, and checks it against the format's limit
// and the file's size.
absl::StatusOr<int64_t> ReadHeaderLength(const InputFile& file, const std::string& path) {
  if (file.size_bytes < kLengthBytes) {
    return BadFile(path, StrCat("the file has ", file.size_bytes,
                                " bytes; a safetensors file has at least 8"));
  }
  char bytes[kLengthBytes];
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, 0, absl::MakeSpan(bytes)));
  const uint64_t length = DecodeLength(bytes);
  if (length > uint64_t{kMaxSafetensorsHeaderBytes}) {
    return BadFile(path,
                   StrCat("the header claims ", length, " bytes; the format allows ",
                          kMaxSafetensorsHeaderBytes, " (is this a safetensors file at all?)"));
  }
  const int64_t length_bytes = static_cast<int64_t>(length);
  if (length_bytes > file.size_bytes - kLengthBytes) {
    return BadFile(path, StrCat("the header claims ", length_bytes, " bytes, but only ",
                                file.size_bytes - kLengthBytes,
                                " follow: the file is cut off or not a safetensors file"));
  }
  return length_bytes;
}

// The contents of an index: the names of the tensors in each safetensors file, by file name.
using WeightMap = absl::btree_map<std::string, std::vector<std::string>>;

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  if (file.size_bytes > kMaxSafetensorsHeaderBytes) {
    return BadFile(path, StrCat("an index of ", file.size_bytes, " bytes is over the limit of ",
                                kMaxSafetensorsHeaderBytes));
  }
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, 0, absl::MakeSpan(text)));
  const Json index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object()) {
    return BadFile(path, "the index is not a JSON object in UTF-8");
  }
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) {
    return BadFile(path, "the index has no object \"weight_map\"");
  }
  WeightMap files;
  for (const auto& [tensor, file_name] : weight_map->items()) {
    const std::string* name = file_name.get_ptr<const std::string*>();
    if (name == nullptr || name->empty() || *name == "." || *name == ".." ||
        name->find('/') != std::string::npos || name->find('\0') != std::string::npos) {
      return BadFile(path, StrCat("weight_map gives tensor ", Quoted(tensor), " the file ",
                                  name == nullptr ? "(not a text)" : Quoted(*name),
                                  ", which is not the name of a file beside the index"));
    }
    files[*name].push_back(tensor);
  }
  return files;
}

constexpr std::string_view kSuffix = ".safetensors";
constexpr char kIndexSuffix[] = ".json";

absl::Status NeverSteady(const std::string& folder) {
  return WithReason(
      absl::FailedPreconditionError(StrCat(
          "the checkpoint in ", folder, " was replaced each time while it was opened, or the save ",
          "that replaces it has ended midway; load it when no save writes it")),
      Reason::kFileChanged, {{fact::kFile, folder}});
}

// Returns the path of the model's file in a folder: one safetensors file, or an index. Empty if the
// folder has neither.
std::string FindModel(const std::string& folder) {
  for (const std::string_view name : {kSingleCheckpointFile, kCheckpointIndex}) {
    const std::filesystem::path candidate = std::filesystem::path(folder) / name;
    std::error_code ignored;
    if (std::filesystem::exists(candidate, ignored)) {
      return candidate.string();
    }
  }
  return "";
}

// A file name of the form STEM-00002-of-00005.safetensors.
struct ShardName {
  std::string stem;
  int64_t number = 0;
  int64_t count = 0;
};

std::optional<ShardName> ParseShardName(std::string_view name) {
  constexpr std::string_view kOf = "-of-";
  name.remove_suffix(kSuffix.size());
  const size_t of = name.rfind(kOf);
  const size_t dash = of == std::string_view::npos || of == 0 ? of : name.rfind('-', of - 1);
  ShardName shard;
  if (of == std::string_view::npos || dash == std::string_view::npos || dash >= of ||
      !absl::SimpleAtoi(ToAbsl(name.substr(dash + 1, of - dash - 1)), &shard.number) ||
      !absl::SimpleAtoi(ToAbsl(name.substr(of + kOf.size())), &shard.count)) {
    return std::nullopt;
  }
  shard.stem = std::string(name.substr(0, dash));
  return shard;
}

// Returns the names of the safetensors files in a folder without an index, sorted. NOT_FOUND if
// there is none. BAD_FILE if the names say that files of the model are missing.
absl::StatusOr<std::vector<std::string>> FindShards(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, ToAbsl(kSuffix))) names.push_back(std::move(name));
  }
  if (error) {
    return FileError("read", folder, error.value());
  }
  if (names.empty()) {
    return absl::NotFoundError(
        StrCat("folder ", folder,
               " has no model.safetensors, no model.safetensors.index.json and no other file of "
               "safetensors, .npy or .npz"));
  }
  std::sort(names.begin(), names.end());
  absl::btree_map<std::pair<std::string, int64_t>, int64_t> found;  // by stem and count
  for (const std::string& name : names) {
    if (const std::optional<ShardName> shard = ParseShardName(name)) {
      ++found[{shard->stem, shard->count}];
    }
  }
  for (const auto& [shards, have] : found) {
    if (have != shards.second) {
      return BadFile(folder, StrCat("the folder has ", have, " of the ", shards.second,
                                    " files of ", shards.first,
                                    " that their names count, and no index; copy the others too"));
    }
  }
  return names;
}

}  // namespace

absl::StatusOr<SafetensorsHeader> SafetensorsHeader::Parse(std::string_view source,
                                                           std::string_view json,
                                                           int64_t data_size_bytes) {
  if (json.empty() || json.front() != '{') {
    return BadFile(source, "the header does not begin with '{'");
  }
  SafetensorsHeader header;
  header.data_offset_bytes_ = kLengthBytes + static_cast<int64_t>(json.size());
  HeaderReader reader(source, &header.tensors_, &header.index_, &header.metadata_);
  if (!Json::sax_parse(json, &reader)) {
    return reader.status();
  }
  for (const SafetensorsTensor& tensor : header.tensors_) {
    SHARDMESH_RETURN_IF_ERROR(CheckTensor(source, tensor, data_size_bytes));
  }
  std::stable_sort(header.tensors_.begin(), header.tensors_.end(),
                   [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
                     return std::pair(a.begin_bytes, a.end_bytes) <
                            std::pair(b.begin_bytes, b.end_bytes);
                   });
  SHARDMESH_RETURN_IF_ERROR(CheckCover(source, header.tensors_, data_size_bytes));
  for (size_t i = 0; i < header.tensors_.size(); ++i) {
    header.index_[header.tensors_[i].name] = i;
  }
  return header;
}

const SafetensorsTensor* SafetensorsHeader::Find(std::string_view name) const {
  const auto found = index_.find(ToAbsl(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  return ReadSafetensorsHeader(file, path);
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const InputFile& file,
                                                        const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t length_bytes, ReadHeaderLength(file, path));
  std::string json(static_cast<size_t>(length_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, kLengthBytes, absl::MakeSpan(json)));
  return SafetensorsHeader::Parse(path, json, file.size_bytes - kLengthBytes - length_bytes);
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  SHARDMESH_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadSafetensorsHeader(file, path));
  SHARDMESH_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Map(file, path));
  SHARDMESH_ASSIGN_OR_RETURN(
      SourceFile state,
      IdentifyFile(file, path,
                   mapped.bytes().first(static_cast<size_t>(header.data_offset_bytes()))));
  return SafetensorsFile(path, std::move(header), std::move(state), std::move(mapped));
}

TensorView SafetensorsFile::View(const SafetensorsTensor& tensor) const {
  const int64_t begin = header_.data_offset_bytes() + tensor.begin_bytes;
  // Create cannot fail: Open checked the header against the file.
  return *TensorView::Create(
      tensor.dtype, tensor.shape,
      file_.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(tensor.size_bytes())));
}

absl::StatusOr<TensorView> SafetensorsFile::View(std::string_view name) const {
  const SafetensorsTensor* tensor = header_.Find(name);
  if (tensor == nullptr) {
    return WithReason(absl::NotFoundError(StrCat(path_, " has no tensor ", Quoted(name))),
                      Reason::kNotFound, {{fact::kKind, "tensor"}, {fact::kName, name}});
  }
  return View(*tensor);
}

const SafetensorsFile& Checkpoint::Keep(SafetensorsFile file) {
  return *files_.emplace_back(std::make_unique<SafetensorsFile>(std::move(file)));
}

absl::Status Checkpoint::Add(const SafetensorsFile& file, const SafetensorsTensor& tensor) {
  const auto [place, is_new] = index_.emplace(tensor.name, tensors_.size());
  if (!is_new) {
    return BadFile(file.path(), StrCat("tensor ", Quoted(tensor.name), " is in ",
                                       tensors_[place->second].file->path(),
                                       " too; load the files one at a time, or keep one of them"));
  }
  tensors_.push_back({&file, &tensor});
  size_bytes_ += tensor.size_bytes();
  return absl::OkStatus();
}

absl::Status Checkpoint::AddFile(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  const SafetensorsFile& kept = Keep(std::move(file));
  for (const SafetensorsTensor& tensor : kept.header().tensors()) {
    SHARDMESH_RETURN_IF_ERROR(Add(kept, tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> Checkpoint::OpenFolder(const std::string& folder) {
  if (const std::string model = FindModel(folder); !model.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(Checkpoint opened, OpenFile(model));
    opened.path_ = folder;
    return opened;
  }
  Checkpoint checkpoint(folder);
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> names, FindShards(folder));
  for (const std::string& name : names) {
    SHARDMESH_RETURN_IF_ERROR(checkpoint.AddFile((std::filesystem::path(folder) / name).string()));
  }
  return checkpoint;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path, std::optional<int64_t> step,
                                            const std::function<absl::Status()>& keep_going) {
  const SteadyDeadline deadline = ReplaceDeadline();
  bool has_searched_again = false;
  for (int attempt = 1;; ++attempt) {
    std::error_code ignored;
    const bool is_folder = std::filesystem::is_directory(path, ignored);
    if (!is_folder && step.has_value() && std::filesystem::exists(path, ignored)) {
      return BadFile(path, StrCat("step ", *step, " was asked of a file; name the folder that has ",
                                  StepFolderName(*step)));
    }
    std::string folder = FolderOfFile(path);
    if (is_folder) {
      SHARDMESH_ASSIGN_OR_RETURN(folder, FindCheckpointFolder(path, step, deadline, keep_going));
      SHARDMESH_PASSES("checkpoint.found");
    }
    auto held = std::make_shared<const HeldFolder>(folder);
    SHARDMESH_RETURN_IF_ERROR(held->status());
    absl::StatusOr<Checkpoint> opened = is_folder ? OpenFolder(folder) : OpenFile(path);
    if (opened.ok()) opened->folder_ = held;
    // A later save of another step may have removed the folder of a step since the search. Without
    // a step that is asked for, a search finds no folder without a marker twice. The folder of a
    // step that is asked for may never have had one.
    const bool was_removed = !opened.ok() && is_folder && folder != path && !HasMarker(folder) &&
                             (!step.has_value() || !std::exchange(has_searched_again, true));
    if (!was_removed && held->IsSteady()) return opened;
    if (deadline.is_over() && (attempt >= kMaxFolderAttempts || IsBeingReplaced(folder))) {
      // A single file is renamed to its place, and is no mixture.
      const bool may_be_mixed = is_folder || absl::EndsWith(path, kIndexSuffix);
      if (opened.ok() && may_be_mixed) return NeverSteady(folder);
      return opened;
    }
    SHARDMESH_RETURN_IF_ERROR(AwaitReplaced(folder, deadline, keep_going));
  }
}

bool Checkpoint::WasReplaced() const {
  return !folder_->IsSteady() || std::any_of(files_.begin(), files_.end(), [](const auto& file) {
    return shardmesh::WasReplaced(file->state());
  });
}

absl::StatusOr<Checkpoint> Checkpoint::OpenFile(const std::string& path) {
  Checkpoint checkpoint(path);
  if (!absl::EndsWith(path, kIndexSuffix)) {
    SHARDMESH_RETURN_IF_ERROR(checkpoint.AddFile(path));
    return checkpoint;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const WeightMap weight_map, ReadIndex(path));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const auto& [file_name, names] : weight_map) {
    SHARDMESH_ASSIGN_OR_RETURN(SafetensorsFile file,
                               SafetensorsFile::Open((folder / file_name).string()));
    const SafetensorsFile& kept = checkpoint.Keep(std::move(file));
    std::vector<const SafetensorsTensor*> tensors;
    for (const std::string& name : names) {
      const SafetensorsTensor* tensor = kept.header().Find(name);
      if (tensor == nullptr) {
        return BadFile(path, StrCat("the index says that tensor ", Quoted(name), " is in ",
                                    file_name, ", but it is not"));
      }
      tensors.push_back(tensor);
    }
    // The header has its tensors in one vector, in the order of their data. Sorting the pointers
    // therefore sorts the tensors in that order.
    std::sort(tensors.begin(), tensors.end());
    for (const SafetensorsTensor* tensor : tensors) {
      SHARDMESH_RETURN_IF_ERROR(checkpoint.Add(kept, *tensor));
    }
  }
  return checkpoint;
}

const Checkpoint::Entry* Checkpoint::Find(std::string_view name) const {
  const auto found = index_.find(ToAbsl(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<EncodedSafetensorsHeader> EncodeSafetensorsHeader(
    std::string_view path, const std::vector<SafetensorsWriter::Tensor>& tensors,
    const SafetensorsMetadata& metadata, int64_t data_alignment_bytes) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    nlohmann::ordered_json& texts = header[std::string(kMetadataKey)];
    for (const auto& [key, value] : metadata) {
      texts[key] = value;
    }
  }
  absl::flat_hash_map<std::string, size_t> names;
  int64_t offset_bytes = 0;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    if (tensor.name == kMetadataKey || !names.emplace(tensor.name, names.size()).second) {
      return BadFile(
          path, StrCat("cannot write tensor ", Quoted(tensor.name), ": the name is taken already"));
    }
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, WholeSizeBytes(tensor.dtype, elements));
    int64_t end_bytes = 0;
    if (__builtin_add_overflow(offset_bytes, size_bytes, &end_bytes)) {
      return BadFile(path, "the tensors together have more bytes than 63 bits count");
    }
    // Append to the object's own list of pairs: nlohmann's ordered_json searches all keys at each
    // insertion, which would be quadratic.
    header.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        tensor.name, nlohmann::ordered_json{
                         {"dtype", std::string(DtypeName(tensor.dtype))},
                         {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
                         {"data_offsets", std::vector<int64_t>{offset_bytes, end_bytes}}});
    offset_bytes = end_bytes;
  }
  std::string json;
  try {
    json = header.dump();
  } catch (const Json::exception&) {
    return BadFile(path, "cannot write a tensor name or metadata that is not UTF-8");
  }
  const int64_t unpadded_bytes = kLengthBytes + static_cast<int64_t>(json.size());
  json.append(static_cast<size_t>((data_alignment_bytes - unpadded_bytes % data_alignment_bytes) %
                                  data_alignment_bytes),
              ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeaderBytes) {
    return BadFile(path, StrCat("the header would take ", json.size(), " bytes; the format allows ",
                                kMaxSafetensorsHeaderBytes));
  }
  EncodedSafetensorsHeader encoded{.bytes = EncodeLength(json.size()),
                                   .data_size_bytes = offset_bytes};
  encoded.bytes += json;
  return encoded;
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path,
                                                            const std::vector<Tensor>& tensors,
                                                            const SafetensorsMetadata& metadata) {
  SHARDMESH_ASSIGN_OR_RETURN(const EncodedSafetensorsHeader header,
                             EncodeSafetensorsHeader(path, tensors, metadata));
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path));
  SHARDMESH_RETURN_IF_ERROR(file.Append(header.bytes));
  return SafetensorsWriter(std::move(file), header.data_size_bytes);
}

absl::Status WriteSafetensorsIndex(const std::string& path,
                                   absl::Span<const SafetensorsIndexEntry> entries) {
  int64_t total_bytes = 0;
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  for (const SafetensorsIndexEntry& entry : entries) {
    total_bytes += entry.size_bytes;
    // As in SafetensorsWriter::Create: an insertion by key would search all keys.
    weight_map.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(entry.tensor, entry.file);
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total_bytes;
  index["weight_map"] = std::move(weight_map);
  std::string json;
  try {
    json = index.dump(2);
  } catch (const Json::exception&) {
    return BadFile(path, "cannot write the name of a tensor that is not UTF-8");
  }
  json.push_back('\n');
  SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter file, AtomicFileWriter::Create(path));
  SHARDMESH_RETURN_IF_ERROR(file.Append(json));
  return file.Finish();
}

absl::Status SafetensorsWriter::Append(absl::Span<const char> bytes) {
  const int64_t size_bytes = static_cast<int64_t>(bytes.size());
  if (size_bytes > missing_bytes_) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat(size_bytes, " bytes of data, but the tensors lack only ", missing_bytes_),
        {{fact::kHave, size_bytes}, {fact::kNeed, missing_bytes_}});
  }
  SHARDMESH_RETURN_IF_ERROR(file_.Append(bytes));
  missing_bytes_ -= size_bytes;
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (missing_bytes_ != 0) {
    return absl::FailedPreconditionError(
        StrCat("the tensors still lack ", missing_bytes_, " bytes of data"));
  }
  return file_.Finish();
}

}  // namespace shardmesh
