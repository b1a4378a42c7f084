// ArrayClient: gathers into files, in bounded memory.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "client/arrays.h"
#include "client/client_core.h"
#include "client/get_report.h"
#include "client/held_arrays.h"
#include "client/remote/coordinator_connection.h"
#include "process/file.h"
#include "process/steady_deadline.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tensor/npy.h"
#include "tensor/safetensors.h"

namespace shardmesh::client {
namespace {

constexpr char kOneFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// A tensor of a file with the array that it is of: a name that is moved later changes nothing.
struct PlannedTensor {
  SafetensorsWriter::Tensor tensor;
  Array array;
  std::optional<ArraySlice> slice;
  std::optional<Tile> part;  // that the slice means
  int64_t size_bytes = 0;
};

// How often the arrays are found anew because one was released before it was pinned, or because
// names were moved meanwhile.
constexpr int kMaxSelections = 10;

// Whether the name of the tensor's array may be moved to another one.
bool MayMove(const FileTensor& tensor) {
  return !tensor.array.name.empty() && tensor.array.version == 0;
}

std::string CommonPrefix(absl::Span<const FileTensor> tensors) {
  std::string prefix = tensors.front().array.name;
  for (const FileTensor& tensor : tensors) {
    const auto [end, other] = std::mismatch(prefix.begin(), prefix.end(), tensor.array.name.begin(),
                                            tensor.array.name.end());
    prefix.erase(end, prefix.end());
  }
  return prefix;
}

// Returns the arrays of all tensors, as one answer of the coordinator lists them. An empty list: no
// one answer has all of them.
absl::StatusOr<std::vector<Array>> ListAtOnce(ClientCore& core,
                                              absl::Span<const FileTensor> tensors,
                                              const CallLimit& limit) {
  if (!std::all_of(tensors.begin(), tensors.end(), MayMove)) return std::vector<Array>();
  v1::ListArraysRequest request;
  v1::ListArraysResponse response;
  request.set_prefix(CommonPrefix(tensors));
  request.set_page_size(1'000);  // the coordinator returns no larger pages
  SHARDMESH_RETURN_IF_ERROR(core.connection().Call(
      core.connection().arrays, &v1::ArrayService::Stub::ListArrays, request, limit, &response));
  std::map<std::string_view, const v1::Array*> by_name;
  for (const v1::Array& array : response.arrays()) by_name.emplace(array.name(), &array);
  std::vector<Array> arrays;
  for (const FileTensor& tensor : tensors) {
    const auto found = by_name.find(tensor.array.name);
    if (found == by_name.end()) return std::vector<Array>();
    SHARDMESH_ASSIGN_OR_RETURN(arrays.emplace_back(), DecodeArray(*found->second));
  }
  return arrays;
}

absl::StatusOr<std::vector<Array>> DescribeEach(ArrayClient& client,
                                                absl::Span<const FileTensor> tensors,
                                                const CallOptions& options) {
  std::vector<Array> arrays;
  arrays.reserve(tensors.size());
  for (const FileTensor& tensor : tensors) {
    SHARDMESH_ASSIGN_OR_RETURN(arrays.emplace_back(), client.DescribeArray(tensor.array, options));
  }
  return arrays;
}

bool AreSame(absl::Span<const Array> a, absl::Span<const Array> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Array& x, const Array& y) {
    return x.descriptor.array_id == y.descriptor.array_id && x.name_version == y.name_version;
  });
}

absl::StatusOr<std::vector<PlannedTensor>> PlanOf(absl::Span<const FileTensor> tensors,
                                                  absl::Span<const Array> arrays) {
  std::vector<PlannedTensor> plan;
  plan.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    Tile part = Tile::Whole(arrays[i].descriptor.shape);
    if (tensors[i].slice.has_value()) {
      absl::StatusOr<Tile> tile = TileOf(*tensors[i].slice, arrays[i].descriptor);
      if (!tile.ok() && tensors.size() > 1) {
        return WithContext(tile.status(), StrCat("\"", tensors[i].name, "\""));
      }
      SHARDMESH_ASSIGN_OR_RETURN(part, std::move(tile));
    }
    const absl::StatusOr<int64_t> size_bytes =
        WholeSizeBytes(arrays[i].descriptor.dtype, part.element_count());
    if (!size_bytes.ok()) {
      return WithContext(size_bytes.status(),
                         StrCat("a safetensors file cannot hold \"", tensors[i].name,
                                "\", leave it out or take a slice of whole bytes"));
    }
    plan.push_back({.tensor = {.name = tensors[i].name,
                               .dtype = arrays[i].descriptor.dtype,
                               .shape = part.shape()},
                    .array = arrays[i],
                    .slice = tensors[i].slice,
                    .part = tensors[i].slice.has_value() ? std::optional(part) : std::nullopt,
                    .size_bytes = *size_bytes});
  }
  return plan;
}

// Finds the arrays of all tensors at one moment, and holds them.
absl::StatusOr<std::vector<PlannedTensor>> Plan(ArrayClient& client, ClientCore& core,
                                                absl::Span<const FileTensor> tensors,
                                                const SteadyDeadline& deadline,
                                                const CallOptions& options, HeldArrays* held) {
  std::set<std::string> names;
  for (const FileTensor& tensor : tensors) {
    if (names.insert(tensor.name).second) continue;
    return InvalidArgument(Reason::kBadFile,
                           StrCat("two tensors of the file have the name \"", tensor.name,
                                  "\"; name each tensor once"),
                           {{fact::kTensor, tensor.name}});
  }
  if (tensors.empty()) return std::vector<PlannedTensor>();
  absl::Status why;
  for (int attempt = 0; attempt < kMaxSelections; ++attempt) {
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<Array> arrays,
                               ListAtOnce(core, tensors, ClientCore::LimitAt(deadline, options)));
    const bool is_at_once = !arrays.empty();
    if (!is_at_once) {
      SHARDMESH_ASSIGN_OR_RETURN(arrays, DescribeEach(client, tensors, options));
    }
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<PlannedTensor> plan, PlanOf(tensors, arrays));
    why = absl::OkStatus();
    for (const PlannedTensor& each : plan) {
      why = held->Add(each.array, each.part, deadline);
      if (!why.ok()) break;
    }
    if (why.ok() && !is_at_once) {
      // If no name has moved since, there was a moment at which all names meant these arrays.
      SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Array> now,
                                 DescribeEach(client, tensors, options));
      if (!AreSame(arrays, now)) why = absl::AbortedError("names were moved meanwhile");
    }
    if (why.ok()) return plan;
    held->LetGo();
    // An array was replaced and released before it was pinned: find the newer one.
    const bool may_find =
        absl::IsAborted(why) || (absl::IsNotFound(why) && ReasonOf(why) == Reason::kNotFound);
    if (!may_find || !std::any_of(tensors.begin(), tensors.end(), MayMove)) return why;
  }
  return absl::AbortedError(StrCat("the names change too fast: ", ToStd(why.message())));
}

// Counts the progress of several gathers as one.
class TotalProgress {
 public:
  TotalProgress(absl::Span<const PlannedTensor> plan, const ProgressCallback& callback)
      : callback_(callback) {
    for (const PlannedTensor& each : plan) total_bytes_ += each.size_bytes;
  }
  // The callback of the next gather, of `size_bytes`.
  ProgressCallback Next(int64_t size_bytes) {
    const int64_t before = begun_bytes_;
    begun_bytes_ += size_bytes;
    if (callback_ == nullptr) return nullptr;
    return [this, before](int64_t done, int64_t) { callback_(before + done, total_bytes_); };
  }

 private:
  const ProgressCallback& callback_;
  int64_t total_bytes_ = 0;
  int64_t begun_bytes_ = 0;
};

// Begins the report of a get of all tensors.
void BeginReportOf(absl::Span<const PlannedTensor> plan, GetReport& report) {
  if (plan.empty()) return;
  int64_t size_bytes = 0;
  for (const PlannedTensor& each : plan) size_bytes += each.size_bytes;
  const auto arrays = static_cast<int64_t>(plan.size());
  report.Begin(DescribeGet(plan.front().array, plan.front().part, arrays), arrays, size_bytes);
}

// Writes the tensors to one safetensors file, which the caller finishes.
absl::StatusOr<SafetensorsWriter> WriteFile(ClientCore& core, absl::Span<const PlannedTensor> plan,
                                            const std::string& path, TotalProgress& progress,
                                            GetReport& report, std::vector<Array>* arrays) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const PlannedTensor& each : plan) tensors.push_back(each.tensor);
  // Loaders of models expect to read which framework's tensors these are; any may read them.
  SHARDMESH_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                             SafetensorsWriter::Create(path, tensors, {{"format", "pt"}}));
  for (const PlannedTensor& each : plan) {
    const TensorSink sink{
        .begin = [](const Array&, const Tile&) { return absl::OkStatus(); },
        .append = [&writer](absl::Span<const char> bytes) { return writer.Append(bytes); }};
    const absl::StatusOr<Array> gathered =
        GatherPieces(core, ArraySelector::ById(each.array.descriptor.array_id), sink,
                     {.slice = each.slice, .progress = progress.Next(each.size_bytes)}, report);
    SHARDMESH_RETURN_IF_ERROR(gathered.status());
    report.CountArray();
    arrays->push_back(each.array);
  }
  return writer;
}

// Splits the tensors, in their order, into files of at most `max_bytes`, or of one larger tensor.
std::vector<std::vector<PlannedTensor>> Split(std::vector<PlannedTensor> plan, int64_t max_bytes) {
  std::vector<std::vector<PlannedTensor>> files(1);
  int64_t bytes = 0;
  for (PlannedTensor& each : plan) {
    if (!files.back().empty() && each.size_bytes > max_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    // A tensor larger than a file fills it.
    bytes = std::min(max_bytes,
                     each.size_bytes > max_bytes - bytes ? max_bytes : bytes + each.size_bytes);
    files.back().push_back(std::move(each));
  }
  return files;
}

std::string FileName(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

std::string ParentOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// Returns the folders above `path` that are missing, the lowest first.
std::vector<std::string> MissingFoldersAbove(const std::string& path) {
  std::vector<std::string> missing;
  std::error_code ignored;
  for (std::filesystem::path parent = std::filesystem::path(path).parent_path();
       !parent.empty() && !std::filesystem::exists(parent, ignored);
       parent = parent.parent_path()) {
    missing.push_back(parent.string());
  }
  return missing;
}

// A folder under a temporary name beside its path. Makes the missing folders above it. Commit syncs
// it and gives it its name. Destroyed before that, it leaves nothing behind.
class TemporaryFolder {
 public:
  // ALREADY_EXISTS: the path leads to a file, or to a folder with entries.
  static absl::StatusOr<TemporaryFolder> Create(std::string path) {
    if (path.empty()) {
      return InvalidArgument(Reason::kBadFile,
                             "the path of the folder to write is empty; name a folder",
                             {{fact::kFile, path}});
    }
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    std::error_code error;
    if (std::filesystem::exists(path, error)) {
      if (!std::filesystem::is_directory(path, error) || !std::filesystem::is_empty(path, error)) {
        return WithReason(
            absl::AlreadyExistsError(StrCat(path,
                                            " is there already and is not an empty folder; "
                                            "name a new folder, or remove this one")),
            Reason::kAlreadyExists, {{fact::kKind, "folder"}, {fact::kName, path}});
      }
      // A link stays, and leads to the files. No folder can be made beside ".".
      path = std::filesystem::canonical(path, error).string();
      if (error) return FileError("resolve", path, error.value());
    } else if (std::filesystem::is_symlink(path, error)) {
      return InvalidArgument(Reason::kBadFile,
                             StrCat(path,
                                    " is a link that leads to nothing; make the folder to which it "
                                    "leads, or name another"),
                             {{fact::kFile, path}});
    }
    // Its destructor removes the folders that were made before an error.
    TemporaryFolder folder(std::move(path));
    if (!folder.made_.empty()) SHARDMESH_RETURN_IF_ERROR(MakeFolders(folder.made_.front()));
    static std::atomic<uint64_t> next_number = 0;
    // A process of another container may have the same number, and one that was killed has left its
    // folder: such a name is not taken again.
    for (;;) {
      std::string temporary =
          StrCat(folder.path_, ".", getpid(), ".", next_number.fetch_add(1), kTemporarySuffix);
      if (mkdir(temporary.c_str(), 0777) == 0) {
        folder.temporary_ = std::move(temporary);
        return folder;
      }
      if (errno != EEXIST) return FileError("make the folder", folder.path_, errno);
    }
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})),
        made_(std::exchange(other.made_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
    // A folder into which somebody has written meanwhile stays.
    for (const std::string& folder : made_) rmdir(folder.c_str());
  }

  std::string File(const std::string& name) const { return StrCat(temporary_, "/", name); }
  absl::Status Commit() {
    SHARDMESH_RETURN_IF_ERROR(SyncFolder(temporary_));
    for (const std::string& made : made_) SHARDMESH_RETURN_IF_ERROR(SyncFolder(ParentOf(made)));
    // Takes the place of an empty folder, and of nothing else.
    if (rename(temporary_.c_str(), path_.c_str()) != 0) {
      return FileError("move the finished folder to", path_, errno);
    }
    temporary_.clear();
    made_.clear();
    return SyncFolder(ParentOf(path_));
  }

 private:
  explicit TemporaryFolder(std::string path)
      : path_(std::move(path)), made_(MissingFoldersAbove(path_)) {}

  std::string path_;
  std::string temporary_;  // empty before it is made, and once it has its name
  // The folders above it that were missing, the lowest first; empty once it has its name.
  std::vector<std::string> made_;
};

// Writes the tensors to a folder for `path`, which the caller commits: see
// ArrayClient::GatherToFolder.
absl::StatusOr<TemporaryFolder> WriteFolder(ClientCore& core, std::vector<PlannedTensor> plan,
                                            const std::string& path, int64_t max_file_bytes,
                                            TotalProgress& progress, GetReport& report,
                                            std::vector<Array>* arrays) {
  const std::vector<std::vector<PlannedTensor>> files =
      Split(std::move(plan), std::max<int64_t>(max_file_bytes, 1));
  SHARDMESH_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create(path));
  std::vector<SafetensorsIndexEntry> index;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = files.size() == 1 ? kOneFile : FileName(i, files.size());
    SHARDMESH_ASSIGN_OR_RETURN(
        SafetensorsWriter writer,
        WriteFile(core, files[i], folder.File(name), progress, report, arrays));
    SHARDMESH_RETURN_IF_ERROR(writer.Finish());
    for (const PlannedTensor& each : files[i]) {
      index.push_back({.tensor = each.tensor.name, .file = name, .size_bytes = each.size_bytes});
    }
  }
  if (files.size() > 1) {
    SHARDMESH_RETURN_IF_ERROR(WriteSafetensorsIndex(folder.File(kIndexFile), index));
  }
  return folder;
}

}  // namespace

absl::StatusOr<std::vector<Array>> ArrayClient::GatherToSafetensors(
    absl::Span<const FileTensor> tensors, const std::string& path, const ProgressCallback& progress,
    const CallOptions& options) {
  GetReport report(core_, options);
  std::vector<Array> arrays;
  const auto gather = [&]() -> absl::StatusOr<SafetensorsWriter> {
    HeldArrays held(core_, report.options());
    SHARDMESH_ASSIGN_OR_RETURN(
        const std::vector<PlannedTensor> plan,
        Plan(*this, *core_, tensors, core_->TransferDeadline(options), report.options(), &held));
    const ProgressCallback counting = report.Counting(progress);
    TotalProgress total(plan, counting);
    BeginReportOf(plan, report);
    return WriteFile(*core_, plan, path, total, report, &arrays);
  };
  SHARDMESH_ASSIGN_OR_RETURN(SafetensorsWriter writer, report.Conclude(gather()));
  SHARDMESH_RETURN_IF_ERROR(writer.Finish());
  return arrays;
}

absl::StatusOr<std::vector<Array>> ArrayClient::GatherToFolder(absl::Span<const FileTensor> tensors,
                                                               const std::string& path,
                                                               int64_t max_file_bytes,
                                                               const ProgressCallback& progress,
                                                               const CallOptions& options) {
  GetReport report(core_, options);
  std::vector<Array> arrays;
  const auto gather = [&]() -> absl::StatusOr<TemporaryFolder> {
    HeldArrays held(core_, report.options());
    SHARDMESH_ASSIGN_OR_RETURN(
        std::vector<PlannedTensor> plan,
        Plan(*this, *core_, tensors, core_->TransferDeadline(options), report.options(), &held));
    const ProgressCallback counting = report.Counting(progress);
    TotalProgress total(plan, counting);
    BeginReportOf(plan, report);
    return WriteFolder(*core_, std::move(plan), path, max_file_bytes, total, report, &arrays);
  };
  SHARDMESH_ASSIGN_OR_RETURN(TemporaryFolder folder, report.Conclude(gather()));
  SHARDMESH_RETURN_IF_ERROR(folder.Commit());
  return arrays;
}

absl::StatusOr<Array> ArrayClient::GatherToNpy(const ArraySelector& array, const std::string& path,
                                               const GatherOptions& gather_options,
                                               const CallOptions& options) {
  std::optional<AtomicFileWriter> file;
  const TensorSink sink{
      .begin = [&](const Array& read, const Tile& part) -> absl::Status {
        SHARDMESH_ASSIGN_OR_RETURN(const std::string header,
                                   EncodeNpyHeader(read.descriptor.dtype, part.shape()));
        SHARDMESH_ASSIGN_OR_RETURN(AtomicFileWriter created, AtomicFileWriter::Create(path));
        file.emplace(std::move(created));
        return file->Append(header);
      },
      .append = [&file](absl::Span<const char> bytes) { return file->Append(bytes); }};
  SHARDMESH_ASSIGN_OR_RETURN(Array gathered, GatherTo(array, sink, gather_options, options));
  SHARDMESH_RETURN_IF_ERROR(file->Finish());
  return gathered;
}

absl::StatusOr<Array> ArrayClient::GatherToNpy(const ArraySelector& array, const std::string& path,
                                               const ProgressCallback& progress,
                                               const CallOptions& options) {
  return GatherToNpy(array, path, GatherOptions{.progress = progress}, options);
}

absl::StatusOr<Array> ArrayClient::GatherToNpy(const ArraySelector& array, const ArraySlice& slice,
                                               const std::string& path,
                                               const ProgressCallback& progress,
                                               const CallOptions& options) {
  return GatherToNpy(array, path, GatherOptions{.slice = slice, .progress = progress}, options);
}

}  // namespace shardmesh::client
