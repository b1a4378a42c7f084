// Says what a file or folder is that is no checkpoint, and which command takes it.
#include "client/cli/inputs/file_kind.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "client/cli/shared_options.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"

namespace shardmesh::client {
namespace {

enum class FileKind { kOther, kMissing, kFolder, kNpyFolder, kNpy, kZip, kPickle, kYaml };

FileKind KindOfFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".npy") return FileKind::kNpyFolder;
  }
  return FileKind::kFolder;
}

FileKind KindOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return FileKind::kMissing;
  if (std::filesystem::is_directory(status)) return KindOfFolder(path);
  // Others may block a reader, such as pipes.
  if (!std::filesystem::is_regular_file(status)) return FileKind::kOther;
  char head[6] = {};
  std::ifstream(path, std::ios::binary).read(head, sizeof(head));
  const std::string_view bytes(head, sizeof(head));
  if (bytes == "\x93NUMPY") return FileKind::kNpy;
  if (bytes.starts_with("PK\x03\x04")) return FileKind::kZip;
  // The opcode PROTO, and the version of the protocol.
  if (bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 && bytes[2] != 0) {
    return FileKind::kPickle;
  }
  const std::string extension = std::filesystem::path(path).extension().string();
  return extension == ".yaml" || extension == ".yml" ? FileKind::kYaml : FileKind::kOther;
}

bool IsOfTheFile(const absl::Status& error) {
  return absl::IsNotFound(error) || ReasonOf(error) == Reason::kBadFile;
}

// Returns the path of the step's folder that `path` means with another number of digits, such as
// `ckpt/step-100`; nullopt if there is no such folder.
std::optional<std::string> StepFolderLike(const std::string& path) {
  constexpr std::string_view kPrefix = "step-";
  const std::filesystem::path file(path);
  const std::string name = file.filename().string();
  int64_t step = 0;
  if (!name.starts_with(kPrefix) || !absl::SimpleAtoi(name.substr(kPrefix.size()), &step) ||
      step < 0 || step > kMaxCheckpointStep) {
    return std::nullopt;
  }
  const std::filesystem::path folder = file.parent_path() / StepFolderName(step);
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return std::nullopt;
  return folder.string();
}

// Returns `; did you mean PATH?` with the path of a file or folder beside `path` whose name is
// similar; an empty string if there is none. `rest` follows that path: `:TENSOR`, or nothing.
// Looks at 1,000 names at most.
std::string DidYouMeanPath(const std::string& path, std::string_view rest = "") {
  constexpr size_t kMostNames = 1'000;
  const std::filesystem::path file(path);
  const std::string name = file.filename().string();
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(file.has_parent_path() ? file.parent_path() : ".",
                                            error);
  for (; !error && entry != std::filesystem::directory_iterator() && names.size() < kMostNames;
       entry.increment(error)) {
    std::string other = entry->path().filename().string();
    const bool is_hidden = other.starts_with('.') && !name.starts_with('.');
    // A link that leads nowhere has the name itself.
    if (!is_hidden && other != name) names.push_back(std::move(other));
  }
  std::sort(names.begin(), names.end());
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::optional<std::string_view> nearest = NearestName(name, known);
  if (!nearest.has_value()) return "";
  return StrCat("; did you mean ", (file.parent_path() / *nearest).string(), rest, "?");
}

std::string PickleText(const std::string& path) {
  return StrCat(path,
                " is a pickle, as torch.save writes it: read it with torch.load, and write its "
                "tensors with safetensors.torch.save_file");
}

}  // namespace

absl::Status ExplainCheckpoint(const absl::Status& error, const std::string& path) {
  if (!IsOfTheFile(error)) return error;
  switch (KindOf(path)) {
    case FileKind::kMissing:
      if (const auto folder = StepFolderLike(path); folder.has_value()) {
        return WithMessage(error, StrCat("there is no ", path, "; did you mean ", *folder, "?"));
      }
      return WithMessage(error, StrCat(ToStd(error.message()), DidYouMeanPath(path)));
    case FileKind::kNpy:
      return WithMessage(error, StrCat(path,
                                       " is a .npy file, one tensor without a name: "
                                       "`shardmesh put ",
                                       path, " --as NAME --spec SPEC` puts it"));
    case FileKind::kPickle:
      return WithMessage(error, PickleText(path));
    case FileKind::kYaml:
      return WithMessage(error, StrCat(path,
                                       " is a YAML file and no checkpoint; rules go after "
                                       "--rules, a map after --map"));
    case FileKind::kFolder:
      // Only for a folder without any checkpoint: other errors say what is wrong with it.
      if (!absl::IsNotFound(error)) return error;
      return WithMessage(error, StrCat(ToStd(error.message()),
                                       "; load takes a safetensors file, an index, a .npz file, or "
                                       "a folder of safetensors or .npy files"));
    case FileKind::kNpyFolder:
    case FileKind::kZip:
    case FileKind::kOther:
      break;
  }
  return error;
}

absl::Status ExplainTensor(const absl::Status& error, const std::string& path,
                           const std::string& tensor) {
  if (!IsOfTheFile(error)) return error;
  switch (KindOf(path)) {
    case FileKind::kNpy:
      if (tensor.empty()) return error;
      return WithMessage(error, StrCat(path, " is a .npy file, which holds one tensor: write ",
                                       path, " without :", tensor));
    case FileKind::kZip:
      return WithMessage(
          error, path.ends_with(".npz")
                     ? StrCat(path, " is a .npz file: `shardmesh load ", path,
                              "` loads its tensors, and a --map skips some of them; put takes "
                              ".npy and safetensors files")
                     : StrCat(path,
                              " is a zip file, as torch.save writes it: read it with "
                              "torch.load, and write its tensors with "
                              "safetensors.torch.save_file"));
    case FileKind::kPickle:
      return WithMessage(error, PickleText(path));
    case FileKind::kNpyFolder:
      return WithMessage(
          error, StrCat(path, " is a folder of .npy files: put one of them, such as ", path, "/",
                        tensor.empty() ? "NAME" : tensor,
                        ".npy, or load all of them with "
                        "`shardmesh load ",
                        path, "`"));
    case FileKind::kMissing: {
      // The path may be that of a checkpoint, and the rest the name of a tensor.
      const size_t end = tensor.empty() ? std::min(path.find(':'), path.size()) : path.size();
      return WithMessage(error, StrCat(ToStd(error.message()),
                                       DidYouMeanPath(path.substr(0, end), path.substr(end))));
    }
    case FileKind::kFolder:
    case FileKind::kYaml:
    case FileKind::kOther:
      break;
  }
  return error;
}

}  // namespace shardmesh::client
