// Opens single tensors for commands.
#include "client/cli/inputs/single_tensor.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "client/cli/inputs/file_kind.h"
#include "client/cli/table.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/source_conversion.h"
#include "tensor/source_file.h"

namespace shardmesh::client {
namespace {

// Also finds a file of a checkpoint that a save replaces at this moment.
absl::StatusOr<bool> Exists(const std::string& path,
                            const std::function<absl::Status()>& keep_going) {
  const auto exists = [&path] {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  return FindSteadily(FolderOfFile(path), exists, keep_going);
}

bool IsCheckpoint(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".safetensors") || path.ends_with(".json") ||
         std::filesystem::is_directory(path, ignored);
}

absl::StatusOr<std::vector<char>> ReadNpyInput() {
  std::vector<char> bytes;
  try {
    char piece[size_t{64} << 10];
    while (std::cin.read(piece, sizeof(piece)), std::cin.gcount() > 0) {
      bytes.insert(bytes.end(), piece, piece + std::cin.gcount());
    }
  } catch (const std::bad_alloc&) {
    return WithReason(absl::ResourceExhaustedError(ToAbsl(
                          StrCat("this host has no memory for more than ",
                                 FormatBytes(static_cast<int64_t>(bytes.size())),
                                 " of standard input; write them to a file, and put the file"))),
                      Reason::kMemoryLimit, {{fact::kHave, bytes.size()}});
  }
  return bytes;
}

std::vector<std::string_view> TensorNamesOf(const Checkpoint& checkpoint) {
  std::vector<std::string_view> names;
  for (const Checkpoint::Entry& entry : checkpoint.tensors()) names.push_back(entry.tensor->name);
  return names;
}

}  // namespace

absl::StatusOr<SingleTensor> SingleTensor::OfCheckpoint(
    const std::string& path, const std::string& tensor, OpenCheckpoints* opened,
    const std::function<absl::Status()>& keep_going) {
  std::shared_ptr<const Checkpoint> shared;
  if (opened != nullptr) {
    if (const auto found = opened->find(path); found != opened->end()) shared = found->second;
  }
  if (shared == nullptr || shared->WasReplaced()) {
    absl::StatusOr<Checkpoint> anew = Checkpoint::Open(path, {}, keep_going);
    if (!anew.ok()) return ExplainTensor(anew.status(), path, tensor);
    shared = std::make_shared<const Checkpoint>(*std::move(anew));
    if (opened != nullptr) (*opened)[path] = shared;
  }
  const Checkpoint& checkpoint = *shared;
  const Checkpoint::Entry* entry = nullptr;
  if (!tensor.empty()) {
    entry = checkpoint.Find(tensor);
    if (entry == nullptr) {
      const std::vector<std::string_view> names = TensorNamesOf(checkpoint);
      const auto nearest = NearestName(tensor, names);
      return WithReason(
          absl::NotFoundError(
              ToAbsl(StrCat(path, " has no tensor \"", tensor, "\"", DidYouMean(tensor, names)))),
          Reason::kNotFound,
          {{fact::kKind, "tensor"}, {fact::kName, tensor}, {fact::kNearest, nearest.value_or("")}});
    }
  } else if (checkpoint.tensors().size() == 1) {
    entry = &checkpoint.tensors().front();
  } else {
    return InvalidArgument(
        Reason::kMissingArgument,
        StrCat(path, " has ", FormatCount(checkpoint.tensors().size(), "tensor"), "; name one, as ",
               path, ":TENSOR, or load all of them with `shardmesh load`"),
        {{fact::kField, "tensor"}});
  }
  return SingleTensor(TensorOfCheckpoint{std::move(shared), entry});
}

absl::StatusOr<SingleTensor> SingleTensor::Open(const std::string& text, const std::string& tensor,
                                                OpenCheckpoints* opened,
                                                const std::function<absl::Status()>& keep_going) {
  if (!tensor.empty()) {
    return OfCheckpoint(text, tensor, opened, keep_going);
  }
  if (text == "-") {
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<char> bytes, ReadNpyInput());
    SHARDMESH_ASSIGN_OR_RETURN(NpyFile file, NpyFile::Read("standard input", std::move(bytes)));
    return SingleTensor(std::move(file));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const bool is_file, Exists(text, keep_going));
  if (!is_file) {
    for (size_t colon = text.find(':'); colon != std::string::npos;
         colon = text.find(':', colon + 1)) {
      if (colon + 1 == text.size()) continue;
      const std::string path = text.substr(0, colon);
      SHARDMESH_ASSIGN_OR_RETURN(const bool is_checkpoint, Exists(path, keep_going));
      if (is_checkpoint) return OfCheckpoint(path, text.substr(colon + 1), opened, keep_going);
    }
  } else if (IsCheckpoint(text)) {
    return OfCheckpoint(text, "", opened, keep_going);
  }
  absl::StatusOr<NpyFile> file = NpyFile::Open(text);
  if (!file.ok()) return ExplainTensor(file.status(), text, "");
  return SingleTensor(*std::move(file));
}

TensorView SingleTensor::view() const {
  if (const auto* const part = std::get_if<TensorOfCheckpoint>(&source_)) {
    return part->checkpoint->View(*part->entry);
  }
  return std::get<NpyFile>(source_).View();
}

bool SingleTensor::WasReplaced() const {
  if (const auto* const part = std::get_if<TensorOfCheckpoint>(&source_)) {
    return part->checkpoint->WasReplaced();
  }
  const std::optional<SourceFile>& state = std::get<NpyFile>(source_).state();
  return state.has_value() && shardmesh::WasReplaced(*state);
}

std::optional<FileSource> SingleTensor::source() const {
  std::shared_ptr<const SourceFile> file;
  int64_t offset_bytes = 0;
  std::optional<SourceConversion> conversion;
  if (const auto* const part = std::get_if<TensorOfCheckpoint>(&source_)) {
    file = AtRealPath(part->entry->file->state());
    offset_bytes =
        part->entry->file->header().data_offset_bytes() + part->entry->tensor->begin_bytes;
  } else {
    const NpyFile& npy = std::get<NpyFile>(source_);
    if (!npy.state().has_value()) return std::nullopt;
    file = AtRealPath(*npy.state());
    offset_bytes = npy.header().data_offset_bytes;
    if (npy.header().fortran_order && npy.header().shape.size() > 1) {
      conversion = SourceConversion{.dtype = npy.header().dtype,
                                    .permutation = std::vector<size_t>(npy.header().shape.size())};
      std::iota(conversion->permutation.rbegin(), conversion->permutation.rend(), size_t{0});
    }
  }
  if (file == nullptr) return std::nullopt;
  return FileSource{
      .file = std::move(file), .offset_bytes = offset_bytes, .conversion = std::move(conversion)};
}

std::optional<SavedPart> SingleTensor::saved() const {
  const auto* const part = std::get_if<TensorOfCheckpoint>(&source_);
  if (part == nullptr) return std::nullopt;
  const Checkpoint::Entry& entry = *part->entry;
  return SavedPart{
      .file = std::make_shared<const SourceFile>(entry.file->state()),
      .offset_bytes = entry.file->header().data_offset_bytes() + entry.tensor->begin_bytes,
      .size_bytes = entry.tensor->size_bytes()};
}

}  // namespace shardmesh::client
