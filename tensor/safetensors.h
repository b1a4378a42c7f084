// Checkpoints in the safetensors format: mapped and validated reading, streamed writing.
#ifndef SHARDMESH_TENSOR_SAFETENSORS_H_
#define SHARDMESH_TENSOR_SAFETENSORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "sharding/shape.h"
#include "tensor/checkpoint_folder.h"
#include "tensor/dtype.h"
#include "tensor/source_file.h"
#include "tensor/view.h"

namespace shardmesh {

// The upper bound that the format sets on the bytes of a header.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// A tensor as the header describes it.
struct SafetensorsTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  Shape shape;
  // Half-open range of the tensor's bytes, counted from the end of the header.
  int64_t begin_bytes = 0;
  int64_t end_bytes = 0;

  int64_t size_bytes() const { return end_bytes - begin_bytes; }
};

// The free text in a file's header (`__metadata__`), by key.
using SafetensorsMetadata = absl::btree_map<std::string, std::string>;

// A validated header. Each tensor's bytes have the size that its type and shape require, and the
// tensors cover the data without gap or overlap.
// Immutable, and safe to share between threads.
class SafetensorsHeader {
 public:
  // Parses the JSON text of a header. The file has data_size_bytes of data after the header.
  // `source` names the file in errors. INVALID_ARGUMENT (BAD_FILE, or UNKNOWN_DTYPE) names the
  // tensor and the faulty value.
  static absl::StatusOr<SafetensorsHeader> Parse(std::string_view source, std::string_view json,
                                                 int64_t data_size_bytes);

  // The tensors in the order of their data.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  // Returns the tensor of that name; null if there is none.
  const SafetensorsTensor* Find(std::string_view name) const;
  const SafetensorsMetadata& metadata() const { return metadata_; }
  // Returns the offset of the data in the file.
  int64_t data_offset_bytes() const { return data_offset_bytes_; }

 private:
  SafetensorsHeader() = default;

  std::vector<SafetensorsTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
  SafetensorsMetadata metadata_;
  int64_t data_offset_bytes_ = 0;
};

// Reads and checks the header of the file at `path`, and checks the file's length; reads no data.
// Returns NOT_FOUND, PERMISSION_DENIED, ... for errors of the system, and INVALID_ARGUMENT
// (BAD_FILE) if the file is not a safetensors file.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path);
// Like ReadSafetensorsHeader above, for an open file.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const InputFile& file,
                                                        const std::string& path);

// A file whose data is mapped read-only. If the file is truncated while it is mapped, a process
// that reads the lost part is killed (SIGBUS), as with any mapped file.
// Immutable, and safe to share between threads. Views are valid as long as the file object.
class SafetensorsFile {
 public:
  // Errors of ReadSafetensorsHeader.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  // Returns the file's state when it was opened. The path is that of Open; the head is the header.
  const SourceFile& state() const { return state_; }

  // Returns the elements of `tensor`, which must be in header().tensors().
  TensorView View(const SafetensorsTensor& tensor) const;
  // Returns the elements of the tensor of that name; NOT_FOUND if there is none.
  absl::StatusOr<TensorView> View(std::string_view name) const;

 private:
  SafetensorsFile(std::string path, SafetensorsHeader header, SourceFile state, MappedFile file)
      : path_(std::move(path)),
        header_(std::move(header)),
        state_(std::move(state)),
        file_(std::move(file)) {}

  std::string path_;
  SafetensorsHeader header_;
  SourceFile state_;
  MappedFile file_;
};

// A model's tensors: from one safetensors file, or from several under a *.safetensors.index.json or
// in one folder.
// Immutable, and safe to share between threads. Views are valid as long as the checkpoint.
class Checkpoint {
 public:
  struct Entry {
    const SafetensorsFile* file;
    const SafetensorsTensor* tensor;
  };

  // `path` is a .safetensors file, an index (a name that ends in .json), or a folder. In a folder,
  // opens model.safetensors or model.safetensors.index.json, and if there is neither, all files
  // whose names end in .safetensors. Files of an index lie in its folder.
  // Errors of SafetensorsFile::Open. INVALID_ARGUMENT (BAD_FILE) for a malformed index, a file name
  // that leads out of the folder, a tensor that is not in the file that the index names, a name in
  // two files of a folder, or a folder that lacks some of the files that its names count
  // (model-00001-of-00003.safetensors).
  // A folder without any of these files may have the folders of steps (tensor/checkpoint_folder.h):
  // Open then takes the latest complete one, or the one of `step`.
  // While saves replace the checkpoint in the folder, or remove the step that was found, begins
  // anew, and opens no mixture of two checkpoints. All its waits together take at most
  // MaxReplaceTime (tensor/checkpoint_folder.h). After that, and after at least kMaxFolderAttempts
  // attempts or with a save still midway, returns the error of the last attempt, or else
  // FAILED_PRECONDITION (FILE_CHANGED): the files opened, and may be of two checkpoints.
  // RESOURCE_EXHAUSTED if the process has no descriptors left: an open checkpoint keeps two.
  // `keep_going` is called about every 5 ms while Open waits for a save, and before each further
  // attempt; its error ends the waits and becomes the result. It may be null.
  static absl::StatusOr<Checkpoint> Open(const std::string& path, std::optional<int64_t> step = {},
                                         const std::function<absl::Status()>& keep_going = {});

  // Returns all tensors. Files are sorted by name; within a file, tensors are in the order of their
  // data.
  const std::vector<Entry>& tensors() const { return tensors_; }
  // Returns the tensor of that name; null if there is none.
  const Entry* Find(std::string_view name) const;
  TensorView View(const Entry& entry) const { return entry.file->View(*entry.tensor); }
  // Returns the sum of the sizes of all tensors.
  int64_t size_bytes() const { return size_bytes_; }
  // The file, index or folder that was opened. Differs from the path that Open got if Open took the
  // folder of a step.
  const std::string& path() const { return path_; }
  // Whether a save replaces the checkpoint or has replaced or removed it since it was opened, or
  // the path of one of its files leads to another file or to none. The checkpoint itself stays as
  // it was opened.
  bool WasReplaced() const;

 private:
  explicit Checkpoint(std::string path) : path_(std::move(path)) {}

  // OpenFolder opens the checkpoint in the folder itself, OpenFile that of a file or an index. Both
  // take the files as they are at this moment.
  static absl::StatusOr<Checkpoint> OpenFolder(const std::string& folder);
  static absl::StatusOr<Checkpoint> OpenFile(const std::string& path);
  const SafetensorsFile& Keep(SafetensorsFile file);
  // Adds a tensor of a kept file. BAD_FILE if another file has a tensor of that name.
  absl::Status Add(const SafetensorsFile& file, const SafetensorsTensor& tensor);
  // Adds all tensors of the file at `path`.
  absl::Status AddFile(const std::string& path);

  std::string path_;
  std::shared_ptr<const HeldFolder> folder_;  // of the files
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::vector<Entry> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
  int64_t size_bytes_ = 0;
};

// Writes a file tensor by tensor, without keeping the tensors' bytes. Until Finish, the bytes are
// in a temporary file. Finish syncs the complete file and renames it to `path`. Destroying the
// writer before Finish removes the temporary file.
//
// Example:
//   auto writer = SafetensorsWriter::Create(path, {{"w", Dtype::kF32, {4, 8}}}, {{"by", "me"}});
//   writer->Append(bytes);  // in pieces of any size, tensor after tensor in the order given
//   writer->Finish();
// Not thread-safe.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    Dtype dtype = Dtype::kF32;
    Shape shape;
  };

  // Aligns the data to 64 bytes in the file. INVALID_ARGUMENT for a bad shape, a repeated or
  // non-UTF-8 name, or metadata that is not UTF-8; else errors of the file system.
  static absl::StatusOr<SafetensorsWriter> Create(const std::string& path,
                                                  const std::vector<Tensor>& tensors,
                                                  const SafetensorsMetadata& metadata);

  // Appends the next bytes of the data. INVALID_ARGUMENT if they exceed the size of the tensors.
  absl::Status Append(absl::Span<const char> bytes);

  // Syncs the file and renames it to its path. Returns FAILED_PRECONDITION if bytes are still
  // missing.
  absl::Status Finish();

 private:
  SafetensorsWriter(AtomicFileWriter file, int64_t data_size_bytes)
      : file_(std::move(file)), missing_bytes_(data_size_bytes) {}

  AtomicFileWriter file_;
  int64_t missing_bytes_;
};

// The first bytes of a file, up to its data, and the size of the data that they announce.
struct EncodedSafetensorsHeader {
  std::string bytes;
  int64_t data_size_bytes = 0;
};
// The default alignment of a file's data, in bytes.
inline constexpr int64_t kSafetensorsDataAlignment = 64;
// Encodes the header of a file with these tensors, in this order and without gaps. The data begin
// at a multiple of `data_alignment_bytes`, at least 1. Errors of SafetensorsWriter::Create; `path`
// names the file in them.
absl::StatusOr<EncodedSafetensorsHeader> EncodeSafetensorsHeader(
    std::string_view path, const std::vector<SafetensorsWriter::Tensor>& tensors,
    const SafetensorsMetadata& metadata, int64_t data_alignment_bytes = kSafetensorsDataAlignment);

// A tensor of a checkpoint of several files.
struct SafetensorsIndexEntry {
  std::string tensor;
  std::string file;  // in the folder of the index
  int64_t size_bytes = 0;
};

// Writes the index of a checkpoint of several files, complete or not at all. Names must be UTF-8:
// INVALID_ARGUMENT (BAD_FILE).
absl::Status WriteSafetensorsIndex(const std::string& path,
                                   absl::Span<const SafetensorsIndexEntry> entries);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_SAFETENSORS_H_
