// Opens checkpoints of each form, and lists their tensors in one way.
#include "tensor/checkpoint/tensor_source.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "process/folders/folder_entries.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint/zip_file.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/npy.h"

namespace shardmesh {
namespace {

constexpr std::string_view kNpySuffix = ".npy";

absl::Status BadSource(std::string_view file, std::string_view what) {
  return InvalidArgument(Reason::kBadFile, StrCat(file, ": ", what), {{fact::kFile, file}});
}

// Returns the names of the folder's files that end in `suffix`, sorted.
absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& folder,
                                                 std::string_view suffix) {
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(folder));
  std::erase_if(
      names, [suffix](const std::string& name) { return !absl::EndsWith(name, ToAbsl(suffix)); });
  return names;
}

// Returns BAD_FILE if a folder of .npy files also has a checkpoint of another form.
absl::Status CheckOneKind(const std::string& folder, const std::string& npy) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<std::string> others,
                             FilesOf(folder, ".safetensors"));
  if (!others.empty()) {
    return BadSource(folder, StrCat("the folder has both ", npy, " and ", others.front(),
                                    "; give one of the files, or a folder of one kind"));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, CompleteSteps(folder));
  if (!steps.empty()) {
    return BadSource(folder, StrCat("the folder has both ", npy, " and the checkpoint ",
                                    StepFolderName(steps.back()), "; give the step (--step ",
                                    steps.back(), "), or a folder of one kind"));
  }
  return absl::OkStatus();
}

// Identifies an open file by its state and its first bytes.
absl::StatusOr<std::shared_ptr<const SourceFile>> Identify(const InputFile& file,
                                                           const std::string& path,
                                                           absl::Span<const char> bytes) {
  constexpr size_t kHeadBytes = 4'096;
  SHARDMESH_ASSIGN_OR_RETURN(SourceFile identity,
                             IdentifyFile(file, path, bytes.subspan(0, kHeadBytes)));
  return std::make_shared<const SourceFile>(std::move(identity));
}

}  // namespace

absl::StatusOr<TensorSource> TensorSource::Open(const std::string& path,
                                                std::optional<int64_t> step,
                                                const std::function<absl::Status()>& keep_going) {
  TensorSource source(path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    std::vector<std::string> arrays;
    if (!step.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(arrays, FilesOf(path, kNpySuffix));
    }
    if (arrays.empty()) {
      SHARDMESH_RETURN_IF_ERROR(source.AddCheckpoint(step, keep_going));
    } else {
      SHARDMESH_RETURN_IF_ERROR(CheckOneKind(path, arrays.front()));
      SHARDMESH_RETURN_IF_ERROR(source.AddNpyFolder(arrays));
    }
    return source;
  }
  absl::StatusOr<InputFile> opened;
  const auto open = [&] {
    opened = OpenInputFile(path);
    return opened.ok();
  };
  SHARDMESH_RETURN_IF_ERROR(FindSteadily(FolderOfFile(path), open, keep_going).status());
  SHARDMESH_RETURN_IF_ERROR(opened.status());
  const InputFile& file = *opened;
  SHARDMESH_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Map(file, path));
  // A file has no steps: AddCheckpoint refuses one.
  if (LooksLikeZip(mapped.bytes()) && !step.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(source.AddNpz(file, std::move(mapped)));
  } else {
    SHARDMESH_RETURN_IF_ERROR(source.AddCheckpoint(step, keep_going));
  }
  return source;
}

void TensorSource::Add(SourceTensor tensor) {
  size_bytes_ += tensor.view.size_bytes();
  tensors_.push_back(std::move(tensor));
}

absl::Status TensorSource::AddCheckpoint(std::optional<int64_t> step,
                                         const std::function<absl::Status()>& keep_going) {
  SHARDMESH_ASSIGN_OR_RETURN(checkpoint_, Checkpoint::Open(path_, step, keep_going));
  absl::flat_hash_map<const SafetensorsFile*, std::shared_ptr<const SourceFile>> files;
  for (const Checkpoint::Entry& entry : checkpoint_->tensors()) {
    std::shared_ptr<const SourceFile>& file = files[entry.file];
    if (file == nullptr) file = std::make_shared<const SourceFile>(entry.file->state());
    Add({.name = entry.tensor->name,
         .dtype = entry.tensor->dtype,
         .shape = entry.tensor->shape,
         .view = checkpoint_->View(entry),
         .file = file,
         .offset_bytes = entry.file->header().data_offset_bytes() + entry.tensor->begin_bytes});
  }
  return absl::OkStatus();
}

absl::Status TensorSource::AddNpy(const std::string& source, std::string name,
                                  std::shared_ptr<const SourceFile> file, int64_t offset_bytes,
                                  absl::Span<const char> bytes) {
  SHARDMESH_ASSIGN_OR_RETURN(NpyHeader header,
                             ParseNpyHeader(source, bytes, static_cast<int64_t>(bytes.size())));
  Shape in_file = header.shape;
  if (header.fortran_order) std::reverse(in_file.begin(), in_file.end());
  SHARDMESH_ASSIGN_OR_RETURN(
      TensorView view,
      TensorView::Create(header.dtype, std::move(in_file),
                         bytes.subspan(static_cast<size_t>(header.data_offset_bytes))));
  Add({.name = std::move(name),
       .dtype = header.dtype,
       .shape = std::move(header.shape),
       .view = std::move(view),
       .is_reversed = header.fortran_order,
       .file = std::move(file),
       .offset_bytes = offset_bytes + header.data_offset_bytes});
  return absl::OkStatus();
}

absl::Status TensorSource::AddNpz(const InputFile& input, MappedFile file) {
  const absl::Span<const char> bytes =
      files_.emplace_back(std::make_unique<MappedFile>(std::move(file)))->bytes();
  SHARDMESH_ASSIGN_OR_RETURN(const auto identity, Identify(input, path_, bytes));
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, ParseZip(path_, bytes));
  for (const ZipMember& member : members) {
    if (!absl::EndsWith(member.name, ToAbsl(kNpySuffix))) {
      const bool is_torch = absl::EndsWith(member.name, "/data.pkl");
      return BadSource(
          path_,
          StrCat("member \"", member.name, "\" is no .npy file",
                 is_torch ? ": this is a file of torch.save; write the tensors with "
                            "safetensors.torch.save_file"
                          : "; a .npz file, as numpy.savez writes it, has only such members"));
    }
    const std::string source = StrCat(path_, ", member \"", member.name, "\"");
    if (member.is_deflated) {
      return BadSource(path_, StrCat("member \"", member.name,
                                     "\" is compressed; write the file with numpy.savez in place "
                                     "of numpy.savez_compressed"));
    }
    const absl::Span<const char> data = bytes.subspan(static_cast<size_t>(member.offset_bytes),
                                                      static_cast<size_t>(member.size_bytes));
    members_.push_back({member.name, data, member.crc32});
    SHARDMESH_RETURN_IF_ERROR(AddNpy(source,
                                     member.name.substr(0, member.name.size() - kNpySuffix.size()),
                                     identity, member.offset_bytes, data));
  }
  return absl::OkStatus();
}

absl::Status TensorSource::AddNpyFolder(const std::vector<std::string>& files) {
  for (const std::string& name : files) {
    const std::string path = (std::filesystem::path(path_) / name).string();
    SHARDMESH_ASSIGN_OR_RETURN(const InputFile file, OpenInputFile(path));
    SHARDMESH_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Map(file, path));
    const absl::Span<const char> bytes =
        files_.emplace_back(std::make_unique<MappedFile>(std::move(mapped)))->bytes();
    SHARDMESH_ASSIGN_OR_RETURN(auto identity, Identify(file, path, bytes));
    SHARDMESH_RETURN_IF_ERROR(AddNpy(path, name.substr(0, name.size() - kNpySuffix.size()),
                                     std::move(identity), 0, bytes));
  }
  return absl::OkStatus();
}

bool TensorSource::WasReplaced() const {
  if (checkpoint_.has_value()) return checkpoint_->WasReplaced();
  const SourceFile* last = nullptr;
  return std::any_of(tensors_.begin(), tensors_.end(), [&last](const SourceTensor& tensor) {
    if (tensor.file.get() == last) return false;  // tensors of one file come together
    last = tensor.file.get();
    return shardmesh::WasReplaced(*last);
  });
}

absl::Status TensorSource::SplitRows(std::string_view name, absl::Span<const RowPart> parts) {
  const auto named = [](std::string_view wanted) {
    return [wanted](const SourceTensor& tensor) { return tensor.name == wanted; };
  };
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), named(name));
  if (found == tensors_.end()) {
    return WithReason(absl::NotFoundError(StrCat(path_, " has no tensor \"", name, "\"")),
                      Reason::kNotFound, {{fact::kKind, "tensor"}, {fact::kName, name}});
  }
  const SourceTensor whole = *found;
  const std::string which = StrCat(path_, ": the tensor \"", name, "\"");
  int64_t rows = 0;
  for (const RowPart& part : parts) {
    rows += part.rows;
    if (std::none_of(tensors_.begin(), tensors_.end(), named(part.name))) continue;
    return InvalidArgument(
        Reason::kBadFile,
        StrCat(which, " has the rows of \"", part.name, "\", which is there as well"),
        {{fact::kFile, path_}, {fact::kTensor, part.name}});
  }
  if (whole.shape.empty() || whole.shape.front() != rows) {
    return InvalidArgument(Reason::kShapeMismatch,
                           StrCat(which, " has the shape ", ShapeToString(whole.shape),
                                  ", and its parts have ", rows, " rows"),
                           {{fact::kHave, ShapeToString(whole.shape)}, {fact::kNeed, rows}});
  }
  const int64_t row_bytes = rows == 0 ? 0 : whole.view.size_bytes() / rows;
  if ((whole.is_reversed && whole.shape.size() > 1) ||
      row_bytes * rows != whole.view.size_bytes()) {
    return InvalidArgument(Reason::kBadFile,
                           StrCat(which, " cannot be split by rows: they are not one after the ",
                                  "other in the file, or begin within a byte"),
                           {{fact::kFile, path_}, {fact::kTensor, name}});
  }
  std::vector<SourceTensor> split;
  int64_t start_bytes = 0;
  for (const RowPart& part : parts) {
    SourceTensor tensor = whole;
    tensor.name = part.name;
    tensor.shape.front() = part.rows;
    tensor.offset_bytes += start_bytes;
    const int64_t size_bytes = part.rows * row_bytes;
    SHARDMESH_ASSIGN_OR_RETURN(
        tensor.view,
        TensorView::Create(whole.dtype, tensor.shape,
                           whole.view.bytes().subspan(static_cast<size_t>(start_bytes),
                                                      static_cast<size_t>(size_bytes))));
    start_bytes += size_bytes;
    split.push_back(std::move(tensor));
  }
  const auto place = tensors_.erase(found);
  tensors_.insert(place, std::make_move_iterator(split.begin()),
                  std::make_move_iterator(split.end()));
  return absl::OkStatus();
}

std::optional<SavedPart> TensorSource::SavedPartOf(const SourceTensor& tensor) const {
  if (!checkpoint_.has_value()) return std::nullopt;
  return SavedPart{.file = tensor.file,
                   .offset_bytes = tensor.offset_bytes,
                   .size_bytes = tensor.view.size_bytes()};
}

absl::Status TensorSource::CheckIntegrity() const {
  for (const CheckedMember& member : members_) {
    const uint32_t have = Crc32(member.bytes);
    if (have != member.crc32) {
      return WithReason(
          absl::DataLossError(StrCat(path_, ": the data of member \"", member.name,
                                     "\" have checksum ", have, ", not ", member.crc32,
                                     ": the file is damaged; copy or write it again")),
          Reason::kChecksumMismatch,
          {{fact::kHave, have}, {fact::kNeed, member.crc32}, {fact::kFile, path_}});
    }
  }
  return absl::OkStatus();
}

}  // namespace shardmesh
