// The folder of a checkpoint that is being saved, as one worker sees it.
#ifndef SHARDMESH_WORKER_SAVE_SAVE_FOLDER_H_
#define SHARDMESH_WORKER_SAVE_SAVE_FOLDER_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "process/file.h"
#include "tensor/checkpoint_manifest.h"
#include "worker/save/kept_files.h"
#include "worker/save/verified_links.h"
#include "worker/save/write_root.h"

namespace shardmesh::worker {

// Where a checkpoint is saved: in `folder` itself, or in the folder of the step below it.
struct SaveTarget {
  std::string folder;  // absolute path
  std::optional<int64_t> step = {};
  // Files of a save that ended early are kept for the next one from this size on, of all of them
  // together; 0: never.
  int64_t min_kept_bytes = 0;
};

// A file to create.
struct FileToSave {
  std::string name;
  int64_t size_bytes = 0;
  std::string content_key;  // files with equal keys have equal bytes
  // The SHA-256 of the header, 32 bytes; empty if it is not known.
  std::string header_sha256 = {};
};

// Checksums of a file that the leader has read whole.
struct FilePieces {
  uint32_t file = 0;  // index of the file in the order to make files
  // The CRC-32C of each piece of each tile (kSavedPieceBytes), in the order of the manifest:
  // tensors by rising offset, and the tiles of each.
  std::vector<uint32_t> piece_crc32c;
};

// What SaveFolder::Validate finds.
struct FolderFacts {
  bool is_there = false;
  uint64_t inode = 0;      // of the folder, or of the nearest folder above it that is there
  int64_t need_bytes = 0;  // of the given files, but for those that would be links
};

// In `folder`:
//
// clang-format off
//   .shardmesh-save.lock        locked by the leader while the save runs
//   .shardmesh-save/            the staging folder: the files, and `probe`
//     .aside/                     a checkpoint that is being replaced file by file
//     .next/                      the folder of a step that takes the place of another in one step
//     .kept-KEY                   files of a save that ended early, by their content keys
//   step-00000007/ or nothing   where the files go at the end
//     shardmesh.manifest.json     first, so that a half-moved checkpoint shows as one
//     model-...safetensors, ...   the files with the tensors
//     model.safetensors.index.json
//     shardmesh.complete          last: the commit marker
// clang-format on
//
// One worker of a save, the leader, opens the folder with Lead; the others open it with Join. The
// kernel releases the lock when the leader's process ends in any way. The next save then finds the
// staging folder. It keeps the files that the manifest there lists until MakeFiles, which takes
// those of equal content and compares their tiles with the checksums, and removes all others. A
// checkpoint that a lost save was replacing is put back first, unless the new one is complete.
//
// Not thread-safe. Destruction calls Abandon.
class SaveFolder {
 public:
  // The name of the probe file, by which the other workers recognise the staging folder.
  static constexpr std::string_view kProbe = "probe";
  // Maximum number of steps that Publish lists.
  static constexpr size_t kMostKeptSteps = 1000;

  // Opens the folder as the leader: creates and locks it, checks that the save may write its
  // checkpoint, and creates the staging folder with a probe file. `*took_over`: whether a dead save
  // had left files.
  //   INVALID_ARGUMENT  (BAD_FIELD) errors of WriteRoots::OpenFolder; or a file of the checkpoint
  //                     would replace one that no save wrote.
  //   ALREADY_EXISTS    (ALREADY_EXISTS) another save has the lock; the message names its process.
  //                     Or the checkpoint is there already, and `overwrite` is false.
  //   other errors      as FileError; also if files of a dead save cannot be removed.
  static absl::StatusOr<std::unique_ptr<SaveFolder>> Lead(const WriteRoots& roots,
                                                          const SaveTarget& target, bool overwrite,
                                                          std::string_view probe, bool* took_over);
  // Opens the folder as another worker. NOT_FOUND: the folder or its probe is not there, or the
  // probe has another content: this worker sees another folder. PERMISSION_DENIED: this worker may
  // not write there. Other errors: as Lead.
  static absl::StatusOr<std::unique_ptr<SaveFolder>> Join(const WriteRoots& roots,
                                                          const SaveTarget& target,
                                                          std::string_view probe);
  // Checks what Lead, MakeFiles and Publish would refuse, and changes nothing. `files`: some files
  // of the checkpoint; `needed_bytes`: of those that were given in earlier calls. Reads no file
  // that would be linked. Errors: as Lead and MakeFiles.
  static absl::StatusOr<FolderFacts> Validate(const WriteRoots& roots, const SaveTarget& target,
                                              bool overwrite, absl::Span<const FileToSave> files,
                                              int64_t needed_bytes);
  // Returns the files of the checkpoint whose files MakeFiles may link: the newest complete one. No
  // files if there is none, or if it is damaged. Reads only its manifest, and changes nothing.
  // Errors: those of WriteRoots::OpenNearest.
  static absl::StatusOr<std::vector<ManifestFile>> EarlierFiles(const WriteRoots& roots,
                                                                const SaveTarget& target);
  ~SaveFolder();
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;

  // The next functions are for the leader.

  // Creates the files and reserves their bytes, or links them to files of the newest complete
  // checkpoint that have the same key and size, and whose bytes all have their checksums
  // (VerifiedLinks). Returns the indexes of the linked files. `keep_going` is called while files
  // are read; its error ends the work. It may be null.
  // If `found` is given and WriteText has written the manifest, files of a save that ended early
  // are taken where the manifest lists the same content key, and some of their tiles are intact:
  // `*found` gets these tiles. `*pieces`, if given, gets the checksums of linked and of taken
  // files. If `alike` is given and WriteText has written the manifest, further files are linked to
  // files of the newest complete checkpoint that have their header and equal checksums
  // (HaveEqualChecksums); `*alike` gets their indexes, which are not among the returned ones. The
  // bytes of these links must be compared, and ReplaceLinks called for those that differ. After an
  // error, files of a save that ended early are there for the next save, and those of an incomplete
  // checkpoint are in its place again. ALREADY_EXISTS: a file of this name is in the checkpoint's
  // place, and no save wrote it. RESOURCE_EXHAUSTED (STORE_FULL): the disk has too little space.
  // Failpoint: save.reserve.
  absl::StatusOr<std::vector<uint32_t>> MakeFiles(
      absl::Span<const FileToSave> files, const std::function<absl::Status()>& keep_going = {},
      std::vector<FoundTiles>* found = nullptr, std::vector<FilePieces>* pieces = nullptr,
      std::vector<uint32_t>* alike = nullptr);
  // Removes links that MakeFiles made, and creates files in their place. Errors: as MakeFiles.
  absl::Status ReplaceLinks(absl::Span<const FileToSave> files);
  // Writes bytes of a file in the staging folder, which it creates if it is missing.
  absl::Status WriteText(const std::string& name, int64_t offset_bytes, std::string_view text);
  // Moves the files, in this order, to the place of the checkpoint, and the marker after them. Sets
  // the files of a checkpoint that is there aside before. If it is that of a step, whose folder has
  // no other files, and the file system can exchange folders, readers see the old checkpoint and
  // then the new one. Then removes the oldest complete
  // checkpoints of lower steps, so that `keep` remain with this one; 0 keeps all. Returns the steps
  // that are no longer complete. `*kept`, if given, gets the steps that are complete after that, in
  // rising order, and at most the highest kMostKeptSteps of them. After an error the new checkpoint
  // is not complete, and one that was there before is there again. ALREADY_EXISTS: as MakeFiles.
  // INVALID_ARGUMENT (BAD_FILE): a manifest is there that this build cannot read. Failpoints:
  // save.aside, save.move, save.marker, save.noreplace, save.exchange, save.restore, save.unlink,
  // save.collect.
  absl::StatusOr<std::vector<int64_t>> Publish(absl::Span<const std::string> files,
                                               std::string_view marker, int keep,
                                               std::vector<int64_t>* kept = nullptr);

  // Returns a file of the staging folder, open for reading and writing. The pointer is valid until
  // the next call. ALREADY_EXISTS: the file has a second name, and may be one of another
  // checkpoint. FAILED_PRECONDITION (FILE_CHANGED): it is the file that OpenLink returned.
  absl::StatusOr<const FileDescriptor*> Open(const std::string& name);
  // Returns a file of the staging folder, or a link, open for reading only. Errors: as OpenToRead.
  absl::StatusOr<InputFile> OpenLink(const std::string& name);
  // Syncs all files that Open has returned. Failpoint: save.sync.
  absl::Status Sync();

  // Lets no save use the files in the staging folder, after an error of a disk: a page cache may
  // show bytes that the disk lacks. Removes their manifest; Leave then removes the staging folder.
  // A worker that has joined also removes it if the leader has kept it already.
  void Spoil();
  // As Abandon, but the leader keeps the staging folder for the next save, if MakeFiles has made at
  // least min_kept_bytes, and no worker has called Spoil.
  void Leave();
  // The leader removes the staging folder, and the folders that Lead created if they are empty, and
  // releases the lock. After Publish, only the lock is left to release. Other workers close files.
  // Files of an earlier save stay if MakeFiles has not taken or removed them.
  void Abandon();

 private:
  explicit SaveFolder(SaveTarget target) : target_(std::move(target)) {}

  absl::Status Lock();
  // Whether the staging folder has the probe file of this save.
  absl::StatusOr<bool> HasProbe() const;
  // ALREADY_EXISTS if another save has the lock.
  absl::Status CheckLock() const;
  absl::Status CheckTarget(bool overwrite) const;
  absl::StatusOr<FileDescriptor> OpenTarget() const;
  absl::StatusOr<FileDescriptor> MakeTarget() const;
  // Gives the files that a save left in the staging folder their kept names. Those in the target
  // are only counted: no save that is refused takes an incomplete checkpoint apart.
  absl::Status KeepLeftovers();
  // Gives those files of an incomplete checkpoint in the target their kept names that have one of
  // the content keys.
  absl::Status TakeFromTarget(const std::set<std::string, std::less<>>& keys);
  void GiveBackToTarget();  // undoes TakeFromTarget, and logs errors
  // The same for the files that a save has moved in the place of a checkpoint that is aside.
  absl::Status KeepMoved(const FileDescriptor& target, std::string_view path) const;
  absl::StatusOr<VerifiedLinks> OpenBase() const;
  // Returns what the manifest in the staging folder lists, by name, if there are kept files or
  // `is_wanted`. Removes those kept files that it does not list.
  absl::StatusOr<std::map<std::string, ManifestFile>> ReadOwnManifest(bool is_wanted);
  absl::StatusOr<std::vector<uint32_t>> LinkAndReserve(
      absl::Span<const FileToSave> files, const std::function<absl::Status()>& keep_going,
      std::vector<FoundTiles>* found, std::vector<FilePieces>* pieces,
      std::vector<uint32_t>* alike);
  // Creates a file, and reserves its bytes. `free_bytes`: of the disk, before the files whose bytes
  // are `total_bytes` took any.
  absl::Status Reserve(const FileToSave& file, std::optional<int64_t> free_bytes,
                       int64_t total_bytes);
  // CheckTarget and CheckNames, and whether the target can be written.
  absl::Status ValidateTarget(bool overwrite, absl::Span<const FileToSave> files) const;
  // Returns the bytes on the disk of what earlier saves left: this one frees or uses them.
  int64_t LeftoverBytes() const;
  std::string TargetPath() const;
  absl::StatusOr<std::vector<int64_t>> CompleteSteps() const;
  // ALREADY_EXISTS if the target has one of the names, and not as a file of its checkpoint.
  absl::Status CheckNames(const FileDescriptor& target, absl::Span<const std::string> names) const;
  // Empties the target of the files of its checkpoint. Keeps those of a complete one aside.
  absl::Status SetAside(const FileDescriptor& target);
  absl::Status MoveIn(const FileDescriptor& target, absl::Span<const std::string> names,
                      std::vector<std::string>* moved_names);
  // Replaces the complete checkpoint of a step by another folder with the files `names`, in one
  // step for readers. Returns false, with the files in the staging folder, if that is not possible.
  absl::StatusOr<bool> Exchange(const FileDescriptor& target, absl::Span<const std::string> names);
  // Whether the folder of a step has a complete checkpoint and nothing else.
  absl::StatusOr<bool> IsOnlyCheckpoint(const FileDescriptor& target) const;
  // Removes what is no longer needed, and old steps. Returns these steps, and sets `*kept`, as
  // Publish does.
  std::vector<int64_t> EndPublish(int keep, std::vector<int64_t>* kept);
  // Undoes MoveIn and SetAside.
  void TakeBack(const FileDescriptor& target, absl::Span<const std::string> moved_names);
  // Puts back what is aside, unless the new checkpoint is complete; then removes the folder aside.
  absl::Status Restore(const std::string& aside_name);
  absl::Status RestoreAll();
  std::string AsideName() const;
  void RemoveAside();
  // Removes the staging folder with all files but those that are kept or set aside. An error leaves
  // some of the others.
  absl::Status RemoveStaging();
  void TryRemoveStaging();  // logs the error
  absl::Status Collect(int keep, std::vector<int64_t>* removed);

  const SaveTarget target_;
  FileDescriptor folder_;
  FileDescriptor lock_;
  FileDescriptor staging_;
  bool is_leader_ = false;
  int new_levels_ = 0;  // folders that Lead created
  std::string probe_;
  bool is_published_ = false;
  bool has_kept_ = false;       // the staging folder may have kept files
  bool has_made_ = false;       // MakeFiles has succeeded
  bool keeps_staging_ = false;  // for the next save
  int64_t made_bytes_ = 0;      // of the files that are not linked
  std::vector<std::pair<std::string, std::string>> reused_;  // kept files: name and content key
  std::vector<ManifestFile> taken_;                          // from the target
  std::set<uint64_t> links_;                                 // inodes of files of OpenLink
  // Open files, the last used first; bounded. A file that is closed for lack of room is synced.
  std::list<std::pair<std::string, FileDescriptor>> files_;
};

}  // namespace shardmesh::worker

#endif  // SHARDMESH_WORKER_SAVE_SAVE_FOLDER_H_
