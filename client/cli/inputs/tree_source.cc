// The sources of a model's tensors for commands.
#include "client/cli/inputs/tree_source.h"

#include <filesystem>
#include <iostream>
#include <iterator>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "client/cli/inputs/checkpoint_source.h"
#include "process/file.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/tree_file.h"

namespace shardmesh::client {
namespace {

std::vector<TreeTensor> TensorsOf(std::vector<TreeFileTensor> tree) {
  std::vector<TreeTensor> tensors;
  tensors.reserve(tree.size());
  for (TreeFileTensor& tensor : tree) {
    tensors.push_back({.name = std::move(tensor.name),
                       .shape = std::move(tensor.shape),
                       .dtype = tensor.dtype,
                       .axes = std::move(tensor.axes),
                       .spec = std::move(tensor.spec)});
  }
  return tensors;
}

absl::StatusOr<std::string> ReadStandardInput() {
  std::string text;
  char piece[size_t{64} << 10];
  while (std::cin.read(piece, sizeof(piece)), std::cin.gcount() > 0) {
    text.append(piece, static_cast<size_t>(std::cin.gcount()));
    if (static_cast<int64_t>(text.size()) > kMaxTreeFileBytes) {
      return InvalidArgument(
          Reason::kLimitExceeded,
          StrCat("standard input has more than the ", kMaxTreeFileBytes, " bytes of a tree"),
          {{fact::kField, "-"}, {fact::kHave, text.size()}, {fact::kLimit, kMaxTreeFileBytes}});
    }
  }
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
  if (file.size_bytes > kMaxTreeFileBytes) {
    return InvalidArgument(
        Reason::kLimitExceeded,
        StrCat(path, ": ", file.size_bytes, " bytes are more than the ", kMaxTreeFileBytes,
               " of a tree"),
        {{fact::kField, path}, {fact::kHave, file.size_bytes}, {fact::kLimit, kMaxTreeFileBytes}});
  }
  std::string text(static_cast<size_t>(file.size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(ReadExactly(file, path, 0, absl::MakeSpan(text.data(), text.size())));
  return text;
}

// Whether the text of a .json file looks like the index of a checkpoint, and not like a tree file.
bool LooksLikeIndex(std::string_view text) {
  return text.find("\"weight_map\"") != std::string_view::npos;
}

absl::StatusOr<std::vector<TreeTensor>> ReadAnyTree(const std::string& path) {
  if (path == "-") {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadStandardInput());
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<TreeFileTensor> tree,
                               ParseTreeLines("standard input", text));
    return TensorsOf(std::move(tree));
  }
  const bool is_lines = absl::EndsWith(path, ".jsonl");
  const bool is_json = absl::EndsWith(path, ".json") && !absl::EndsWith(path, ".index.json");
  std::error_code ignored;
  if ((is_lines || is_json) && !std::filesystem::is_directory(path, ignored)) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    auto tree = is_lines ? ParseTreeLines(path, text) : ParseTree(path, text);
    if (tree.ok() || !LooksLikeIndex(text)) {
      SHARDMESH_RETURN_IF_ERROR(tree.status());
      return TensorsOf(*std::move(tree));
    }
  }
  absl::StatusOr<MappedCheckpoint> opened = OpenMapped(path);
  const bool is_text =
      absl::EndsWith(path, ".yaml") || absl::EndsWith(path, ".yml") || absl::EndsWith(path, ".txt");
  if (!opened.ok() && is_text && ReasonOf(opened.status()) == Reason::kBadFile) {
    return InvalidArgument(Reason::kBadFile,
                           StrCat(path,
                                  ": is no safetensors file; the name of a file of names and "
                                  "shapes ends in .json or .jsonl"),
                           {{fact::kFile, path}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const MappedCheckpoint checkpoint, std::move(opened));
  return client::TensorsOf(checkpoint);
}

}  // namespace

absl::StatusOr<std::vector<TreeTensor>> ReadTree(const std::string& path) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<TreeTensor> tensors, ReadAnyTree(path));
  if (tensors.empty()) {
    const std::string_view example = absl::EndsWith(path, ".json")
                                         ? R"({"w": {"shape": [8, 8], "dtype": "F32"}})"
                                         : R"({"name": "w", "shape": [8, 8], "dtype": "F32"})";
    return InvalidArgument(Reason::kBadFile,
                           StrCat(path == "-" ? "standard input" : path,
                                  ": has no tensors; a tree has one at least, such as ", example),
                           {{fact::kFile, path}});
  }
  return tensors;
}

absl::StatusOr<std::vector<TreeTensor>> FetchTree(MeshClient* client, const std::string& name) {
  SHARDMESH_ASSIGN_OR_RETURN(Entry entry, client->catalog().GetEntry(EntryKind::kTree, name));
  return std::move(std::get<StoredTree>(entry.value).tensors);
}

}  // namespace shardmesh::client
