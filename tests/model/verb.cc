// Puts by meaning, loads, reshards, saves, copies, repairs, resizes and replacements of workers by
// one client.
#include "tests/model/verb.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/time/clock.h"
#include "process/random_bytes.h"
#include "rpc/codec/status.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "shardmesh/v1/compute_service.pb.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "shardmesh/v1/save_service.pb.h"
#include "shardmesh/v1/session_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tests/model/expectations.h"
#include "tests/model/process_cluster.h"

namespace shardmesh::model {
namespace {

constexpr absl::Duration kVerbCallTimeout = absl::Seconds(30);
constexpr absl::Duration kReadAgainDelay = absl::Milliseconds(50);
// The time in which copies, repairs and resizes end. A copy that failed begins again after five
// seconds, then after ten.
constexpr absl::Duration kWorkEndsWithin = absl::Seconds(30);
constexpr absl::Duration kProgressDelay = absl::Milliseconds(50);
// Shapes of the mesh "default" of two workers.
constexpr char kOldShape[] = "fsdp=1,tp=2";
constexpr char kNewShape[] = "fsdp=2,tp=1";
// A shape of one worker.
constexpr char kSmallShape[] = "fsdp=1,tp=1";
// The rows and columns of the array of kUnload, 32 MiB: see kShortMemory.
constexpr int64_t kShortRows = 2048;
constexpr int64_t kShortColumns = 4096;
// The time after which the change time of a new file is certain, in any file system.
constexpr absl::Duration kFileSettlesWithin = absl::Seconds(5);
// The step of the old checkpoint; the new one has the next step, or the same with kOverwrite.
constexpr int64_t kOldStep = 1;

bool HasColumnsCut(const v1::PartitionSpec& spec) {
  return spec.dimensions_size() > 1 && !spec.dimensions(1).name().empty();
}

}  // namespace

const std::vector<std::pair<std::string, Verb>>& AllVerbs() {
  static const auto* const verbs = new std::vector<std::pair<std::string, Verb>>{
      {"put", Verb::kPut},
      {"handover", Verb::kHandOver},
      {"load", Verb::kLoad},
      {"reuse", Verb::kReuse},
      {"reshard-step", Verb::kReshardStep},
      {"reshard-disk", Verb::kReshardDisk},
      {"reshard-mesh", Verb::kReshardMesh},
      {"reshard-tree", Verb::kReshardTree},
      {"unload", Verb::kUnload},
      {"save", Verb::kSave},
      {"overwrite", Verb::kOverwrite},
      {"replicate", Verb::kReplicate},
      {"repair", Verb::kRepair},
      {"repair-file", Verb::kRepairFile},
      {"repair-saved", Verb::kRepairSaved},
      {"replace", Verb::kReplace},
      {"resize", Verb::kResize},
      {"grow", Verb::kGrow},
      {"shrink", Verb::kShrink},
  };
  return *verbs;
}

bool IsRepair(Verb verb) {
  return verb == Verb::kRepair || verb == Verb::kRepairFile || verb == Verb::kRepairSaved;
}

absl::Status ReplaceWorker(const Caller& coordinator, const std::string& identity,
                           const std::string& replacement) {
  const absl::Time deadline = absl::Now() + kWorkEndsWithin;
  for (;;) {
    v1::ReplaceWorkerRequest request;
    v1::ReplaceWorkerResponse response;
    request.set_identity(identity);
    request.set_replacement(replacement);
    absl::Status replaced =
        coordinator.Call("ClusterService.ReplaceWorker", request, &response, kVerbCallTimeout);
    // A coordinator that started after the replacement does not know a worker without ranks.
    if (absl::IsNotFound(replaced) && FactOf(replaced, fact::kName) == identity) {
      return absl::OkStatus();
    }
    const bool is_passing = absl::IsUnavailable(replaced) || absl::IsAborted(replaced) ||
                            absl::IsNotFound(replaced) ||
                            ReasonOf(replaced) == Reason::kWorkerAttached;
    if (!is_passing || absl::Now() > deadline) return replaced;
    absl::SleepFor(kReadAgainDelay);
  }
}

VerbClient::VerbClient(Verb verb, uint64_t seed, const std::string& address,
                       const std::string& files, absl::Duration ttl)
    : verb_(verb),
      seed_(seed),
      files_(files),
      ttl_(ttl),
      coordinator_(address),
      unique_(RandomId()) {
  // The first tile has more than one piece, and is large enough to be handed over as memory.
  std::vector<Shape> shapes = {{1024, 516}, {64, 34}};
  if (verb == Verb::kUnload) shapes = {{kShortRows, kShortColumns}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    Name& name = names_[StrCat(prefix(), i == 0 ? "large" : "small")];
    name.old_content = MakeContent(Dtype::kF32, shapes[i], seed * 4 + i);
    const bool changes = verb == Verb::kPut || verb == Verb::kHandOver || verb == Verb::kLoad ||
                         verb == Verb::kSave || verb == Verb::kOverwrite ||
                         verb == Verb::kReplicate;
    name.new_content =
        changes ? MakeContent(Dtype::kF32, shapes[i], seed * 4 + 2 + i) : name.old_content;
  }
}

std::string VerbClient::NewRequestId() { return StrCat(unique_.substr(0, 16), "-", ++requests_); }

absl::StatusOr<std::string> VerbClient::Session() {
  if (!session_.empty()) {
    v1::RenewSessionRequest request;
    v1::RenewSessionResponse response;
    request.set_session_id(session_);
    if (coordinator_.Call("SessionService.RenewSession", request, &response, kVerbCallTimeout)
            .ok()) {
      return session_;
    }
    session_.clear();
  }
  v1::OpenSessionRequest request;
  v1::OpenSessionResponse response;
  request.set_request_id(NewRequestId());
  request.mutable_ttl()->set_seconds(absl::ToInt64Seconds(ttl_));
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("SessionService.OpenSession", request, &response, kVerbCallTimeout));
  session_ = response.session_id();
  return session_;
}

absl::Status VerbClient::Put(bool is_new, bool by_workers) {
  v1::BeginPutRequest first;
  v1::BeginPutRequest second;
  v1::BeginPutHeader& header = *first.mutable_header();
  header.set_request_id(NewRequestId());
  SHARDMESH_ASSIGN_OR_RETURN(*header.mutable_session_id(), Session());
  const bool is_twice =
      verb_ == Verb::kRepair || verb_ == Verb::kReplace || (verb_ == Verb::kReplicate && is_new);
  header.set_replicas(is_twice ? 2 : 1);
  // Each worker has a half of each new tile in its own old tile.
  const bool is_copied = verb_ == Verb::kReuse && is_new;
  header.set_reuse(is_copied);
  // A tensor without axes lies by the rules.
  header.mutable_rule_set()->mutable_value()->add_rules()->set_pattern("small$");
  *header.mutable_rule_set()->mutable_value()->mutable_rules(0)->mutable_spec() = SpecOf({"tp"});
  header.mutable_mode()->set_name("__train__");
  std::vector<Content> contents;
  for (const auto& [name, each] : names_) {
    contents.push_back(is_new ? each.new_content : each.old_content);
    v1::PutTensor& tensor = *second.mutable_tensors()->add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(v1::DTYPE_F32);
    for (const int64_t size : contents.back().shape) tensor.add_shape(size);
    if (is_copied) {
      *tensor.mutable_spec() = name.ends_with("small") ? SpecOf({"", "tp"}) : SpecOf({"tp"});
    } else if (!name.ends_with("small")) {
      tensor.mutable_axes()->add_axes()->set_name("__BATCH__");
      tensor.mutable_axes()->add_axes()->set_name("__HEAD__");
    }
  }
  if (by_workers) {
    // The tensors of kLoad are other ones each time.
    SHARDMESH_ASSIGN_OR_RETURN(const SourceOnDisk source,
                               verb_ == Verb::kLoad
                                   ? WriteSource(StrCat(files_, "/", unique_, ".bin"), contents)
                                   : SharedSource(contents));
    SetSource(source, &header, second.mutable_tensors());
  }
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.timeout = kVerbCallTimeout;
  SHARDMESH_RETURN_IF_ERROR(coordinator_.CallBytes(
      FindMethod("ArrayService.BeginPut"), {first.SerializeAsString(), second.SerializeAsString()},
      &answers, limits));
  v1::BeginPutResponse begun;
  for (const std::string& answer : answers) {
    v1::BeginPutResponse part;
    part.ParseFromString(answer);
    begun.MergeFrom(part);
  }
  if (!by_workers) {
    const bool is_handed_over = verb_ == Verb::kHandOver && is_new;
    SHARDMESH_RETURN_IF_ERROR(
        SendTiles(begun, contents, kVerbCallTimeout,
                  is_handed_over ? client::Handover::kOn : client::Handover::kOff));
  }
  v1::CommitTransferRequest commit;
  v1::CommitTransferResponse committed;
  commit.set_request_id(NewRequestId());
  commit.set_transfer_id(begun.transfer_id());
  commit.set_session_id(session_);
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("ArrayService.CommitTransfer", commit, &committed, kVerbCallTimeout));
  if (committed.durability() == v1::DURABILITY_DISK) return absl::OkStatus();
  return Violation("a put onto workers with --data-dir is not on disk");
}

absl::StatusOr<SourceOnDisk> VerbClient::SharedSource(const std::vector<Content>& contents) const {
  const std::string path = source_path();
  if (!std::filesystem::exists(path)) {
    SHARDMESH_RETURN_IF_ERROR(WriteSource(path, contents).status());
  }
  const absl::Time deadline = absl::Now() + kFileSettlesWithin;
  for (;;) {
    SHARDMESH_ASSIGN_OR_RETURN(SourceOnDisk source, FindSource(path, contents));
    if (source.file.change_time != absl::InfinitePast() || absl::Now() > deadline) return source;
    absl::SleepFor(kProgressDelay);
  }
}

absl::Status VerbClient::Save(int64_t step, bool overwrite, int32_t keep) {
  v1::BeginSaveRequest request;
  v1::BeginSaveResponse begun;
  request.set_request_id(NewRequestId());
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_session_id(), Session());
  request.set_prefix(prefix());
  request.set_folder(folder());
  request.set_step(step);
  request.set_overwrite(overwrite);
  request.set_keep(keep);
  request.set_max_file_bytes(int64_t{1} << 20);
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("SaveService.BeginSave", request, &begun, kVerbCallTimeout));
  v1::WaitSaveRequest wait;
  v1::WaitSaveResponse result;
  wait.set_operation_id(begun.operation_id());
  return coordinator_.Call("SaveService.WaitSave", wait, &result, kVerbCallTimeout);
}

absl::Status VerbClient::AwaitRecordOfSave() {
  // The coordinator's store writes in order: once this later name is acknowledged, the record of
  // the save is on the disk too.
  const std::string name = StrCat(prefix(), "later");
  v1::DescribeArrayRequest describe;
  v1::DescribeArrayResponse described;
  describe.mutable_array()->set_name(StrCat(prefix(), "small"));
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("ArrayService.DescribeArray", describe, &described, kVerbCallTimeout));
  v1::MoveNameRequest move;
  v1::MoveNameResponse moved;
  move.set_request_id(NewRequestId());
  move.set_name(name);
  move.set_array_id(described.array().array_descriptor().array_id());
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("ArrayService.MoveName", move, &moved, kVerbCallTimeout));
  v1::DeleteNameRequest remove;
  v1::DeleteNameResponse removed;
  remove.set_request_id(NewRequestId());
  remove.set_name(name);
  return coordinator_.Call("ArrayService.DeleteName", remove, &removed, kVerbCallTimeout);
}

absl::Status VerbClient::Prepare() {
  if (verb_ == Verb::kGrow) SHARDMESH_RETURN_IF_ERROR(Resize(kSmallShape));
  const bool is_loaded = verb_ == Verb::kReuse || verb_ == Verb::kRepairFile;
  SHARDMESH_RETURN_IF_ERROR(Put(/*is_new=*/false, /*by_workers=*/is_loaded));
  if (verb_ == Verb::kRepair || verb_ == Verb::kReplace) return AwaitReplicas();
  if (verb_ == Verb::kRepairSaved) {
    SHARDMESH_RETURN_IF_ERROR(Save(kOldStep, /*overwrite=*/true, /*keep=*/0));
    return AwaitRecordOfSave();
  }
  if (verb_ != Verb::kSave && verb_ != Verb::kOverwrite) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(Save(kOldStep, /*overwrite=*/false, /*keep=*/0));
  return Put(/*is_new=*/true, /*by_workers=*/false);
}

absl::Status VerbClient::PrepareInMemory() {
  if (!is_in_memory()) return absl::OkStatus();
  // The product of a name's array and the identity is in memory only.
  const std::string name = StrCat(prefix(), "small");
  const Content& content = names_[name].old_content;
  const int64_t columns = content.shape[1];
  std::vector<float> identity(static_cast<size_t>(columns * columns), 0);
  for (int64_t i = 0; i < columns; ++i) identity[static_cast<size_t>(i * columns + i)] = 1;
  v1::MatmulRequest request;
  v1::MatmulResponse response;
  request.set_request_id(NewRequestId());
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_session_id(), Session());
  request.mutable_lhs()->mutable_array()->set_name(name);
  v1::Literal& literal = *request.mutable_rhs()->mutable_literal();
  literal.set_dtype(v1::DTYPE_F32);
  literal.add_shape(columns);
  literal.add_shape(columns);
  literal.set_data(FromFloats({columns, columns}, identity).bytes);
  request.mutable_output()->add_names(name);
  return coordinator_.Call("ComputeService.Matmul", request, &response, kVerbCallTimeout);
}

absl::Status VerbClient::Reshard() {
  v1::ReshardRequest request;
  request.set_request_id(NewRequestId());
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_session_id(), Session());
  const std::string name = StrCat(prefix(), verb_ == Verb::kReshardStep ? "small" : "large");
  request.mutable_array()->set_name(name);
  request.set_release_source(verb_ != Verb::kReshardMesh);
  if (verb_ == Verb::kReshardTree) {
    request.set_prefix(prefix());
    request.mutable_mesh()->set_name(kTurnedMesh);
    *request.mutable_spec() = SpecOf({"tp"});
  } else if (verb_ == Verb::kReshardMesh) {
    request.mutable_mesh()->set_name(kTurnedMesh);
  } else {
    // From rows to columns or back.
    v1::DescribeArrayRequest describe;
    v1::DescribeArrayResponse described;
    describe.mutable_array()->set_name(name);
    SHARDMESH_RETURN_IF_ERROR(
        coordinator_.Call("ArrayService.DescribeArray", describe, &described, kVerbCallTimeout));
    *request.mutable_spec() = HasColumnsCut(described.array().array_descriptor().spec())
                                  ? SpecOf({"tp"})
                                  : SpecOf({"", "tp"});
  }
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.timeout = kVerbCallTimeout;
  return coordinator_.CallBytes(FindMethod("ArrayService.Reshard"), {request.SerializeAsString()},
                                &answers, limits);
}

absl::Status VerbClient::ReshardInShortMemory() {
  const absl::Time deadline = absl::Now() + kWorkEndsWithin;
  for (;;) {
    absl::Status moved = Reshard();
    if (ReasonOf(moved) != Reason::kMemoryLimit || absl::Now() > deadline) return moved;
    absl::SleepFor(kReadAgainDelay);
  }
}

bool VerbClient::is_resize() const {
  return verb_ == Verb::kResize || verb_ == Verb::kGrow || verb_ == Verb::kShrink;
}

const char* VerbClient::target_shape() const {
  if (verb_ == Verb::kGrow) return kOldShape;
  return verb_ == Verb::kShrink ? kSmallShape : kNewShape;
}

absl::Status VerbClient::Resize(const std::string& shape) {
  v1::ResizeMeshRequest request;
  v1::ResizeMeshResponse begun;
  request.set_request_id(NewRequestId());
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_session_id(), Session());
  request.set_mesh("default");
  request.set_shape(shape);
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("ArrayService.ResizeMesh", request, &begun, kVerbCallTimeout));
  if (begun.operation_id().empty()) return absl::OkStatus();  // it has the shape
  const absl::Time deadline = absl::Now() + kWorkEndsWithin;
  while (absl::Now() < deadline) {
    // The end of the session would cancel the resize.
    SHARDMESH_RETURN_IF_ERROR(Session().status());
    v1::GetOperationRequest ask;
    v1::GetOperationResponse told;
    ask.set_operation_id(begun.operation_id());
    const absl::Status asked =
        coordinator_.Call("OperationService.GetOperation", ask, &told, kVerbCallTimeout);
    if (absl::IsNotFound(asked)) return absl::UnavailableError("the coordinator has restarted");
    SHARDMESH_RETURN_IF_ERROR(asked);
    if (told.operation().state() == v1::OPERATION_STATE_DONE) return absl::OkStatus();
    if (told.operation().state() != v1::OPERATION_STATE_RUNNING) {
      return rpc::Decode(told.operation().error());
    }
    absl::SleepFor(kProgressDelay);
  }
  return absl::DeadlineExceededError("the resize does not end");
}

absl::Status VerbClient::AwaitArrays(
    const std::function<absl::StatusOr<bool>(const v1::Array&)>& is_ready) {
  const absl::Time deadline = absl::Now() + kWorkEndsWithin;
  for (const auto& [name, each] : names_) {
    for (;;) {
      v1::DescribeArrayRequest request;
      v1::DescribeArrayResponse response;
      request.mutable_array()->set_name(name);
      const absl::Status status =
          coordinator_.Call("ArrayService.DescribeArray", request, &response, kVerbCallTimeout);
      if (status.ok()) {
        SHARDMESH_ASSIGN_OR_RETURN(const bool is_over, is_ready(response.array()));
        if (is_over) break;
      }
      if (absl::Now() > deadline) {
        return absl::DeadlineExceededError(
            ToAbsl(StrCat("the array of ", name, " is not as it should become: ", status.ToString(),
                          " ", response.ShortDebugString())));
      }
      absl::SleepFor(kProgressDelay);
    }
  }
  return absl::OkStatus();
}

absl::Status VerbClient::AwaitReplicas() {
  return AwaitArrays([](const v1::Array& array) -> absl::StatusOr<bool> {
    if (array.replicas().wanted() != 2) {
      return Violation(StrCat("an array does not want two replicas: ", array.ShortDebugString()));
    }
    return array.replicas().complete() == 2;
  });
}

absl::Status VerbClient::AwaitTiles() {
  return AwaitArrays(
      [](const v1::Array& array) { return array.state() == v1::ARRAY_STATE_AVAILABLE; });
}

absl::Status VerbClient::VerifyShape(const std::string& shape) const {
  v1::GetEntryRequest request;
  v1::GetEntryResponse response;
  request.set_kind(v1::ENTRY_KIND_MESH);
  request.set_name("default");
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("CatalogService.GetEntry", request, &response, kVerbCallTimeout));
  std::string have;
  for (const v1::MeshAxis& axis : response.entry().value().mesh().mesh().axes()) {
    StrAppend(&have, have.empty() ? "" : ",", axis.name(), "=", axis.size());
  }
  if (have == shape) return absl::OkStatus();
  return Violation(StrCat("the resize to ", shape, " was acknowledged, and the mesh is ", have));
}

absl::Status VerbClient::Do(bool is_again) {
  switch (verb_) {
    case Verb::kPut:
    case Verb::kHandOver:
      return Put(/*is_new=*/true, /*by_workers=*/false);
    case Verb::kLoad:
    case Verb::kReuse:
      return Put(/*is_new=*/true, /*by_workers=*/true);
    case Verb::kSave:
      return Save(kOldStep + 1, /*overwrite=*/is_again, /*keep=*/1);
    case Verb::kOverwrite:
      return Save(kOldStep, /*overwrite=*/true, /*keep=*/0);
    case Verb::kReplicate:
      SHARDMESH_RETURN_IF_ERROR(Put(/*is_new=*/true, /*by_workers=*/false));
      return AwaitReplicas();
    case Verb::kRepair:
      return AwaitReplicas();
    case Verb::kRepairFile:
    case Verb::kRepairSaved:
      return AwaitTiles();
    case Verb::kReplace:
      SHARDMESH_RETURN_IF_ERROR(ReplaceWorker(coordinator_, kReplacedWorker, kReplacingWorker));
      return AwaitReplicas();
    case Verb::kResize:
    case Verb::kGrow:
    case Verb::kShrink:
      return Resize(target_shape());
    case Verb::kUnload:
      return ReshardInShortMemory();
    default:
      return Reshard();
  }
}

absl::StatusOr<std::string> VerbClient::ReadName(const std::string& name) {
  v1::BeginGetRequest request;
  v1::BeginGetResponse response;
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_session_id(), Session());
  request.mutable_array()->set_name(name);
  request.set_accept_second_copy(true);
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("ArrayService.BeginGet", request, &response, kVerbCallTimeout));
  absl::StatusOr<std::string> bytes = FetchTiles(response, kVerbCallTimeout);
  if (response.pinned()) {
    v1::ReleaseArraysRequest release;
    v1::ReleaseArraysResponse released;
    release.set_session_id(request.session_id());
    release.add_array_ids(response.array().array_descriptor().array_id());
    coordinator_.Call("ArrayService.ReleaseArrays", release, &released, kVerbCallTimeout)
        .IgnoreError();
  }
  return bytes;
}

absl::Status VerbClient::Read() {
  for (const auto& [name, each] : names_) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string bytes, ReadName(name));
    if (!HasBytes(each.old_content, bytes) && !HasBytes(each.new_content, bytes)) {
      return Violation(StrCat("a reader of ", name, " has neither the old nor the new bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status VerbClient::Verify(bool is_done, absl::Time deadline) {
  const bool is_save = verb_ == Verb::kSave || verb_ == Verb::kOverwrite;
  size_t old_names = 0;
  size_t new_names = 0;
  for (const auto& [name, each] : names_) {
    absl::StatusOr<std::string> bytes = absl::UnavailableError("not read yet");
    for (;;) {
      bytes = ReadName(name);
      if (bytes.ok() || absl::Now() > deadline) break;
      absl::SleepFor(kReadAgainDelay);
    }
    if (!bytes.ok()) {
      return Violation(StrCat(name, " cannot be read: ", bytes.status().ToString()));
    }
    const bool is_old = HasBytes(each.old_content, *bytes);
    const bool is_new = HasBytes(each.new_content, *bytes);
    if (!is_old && !is_new) return Violation(StrCat(name, " has neither old nor new bytes"));
    if (is_new && !is_old) ++new_names;
    if (is_old && !is_new) ++old_names;
    if (!is_new && (is_done || is_save)) {
      return Violation(StrCat("the put of ", name, " was acknowledged and is lost"));
    }
  }
  if (old_names > 0 && new_names > 0) {
    return Violation("some names of one put are old and others are new");
  }
  const bool has_copies =
      verb_ == Verb::kRepair || ((verb_ == Verb::kReplicate || verb_ == Verb::kReplace) && is_done);
  if (has_copies || IsRepair(verb_)) {
    const absl::Status whole = has_copies ? AwaitReplicas() : AwaitTiles();
    if (!whole.ok()) return Violation(ToStd(whole.message()));
  }
  if (is_resize() && is_done) return VerifyShape(target_shape());
  return is_save ? VerifySaves(is_done) : absl::OkStatus();
}

SavedTensors VerbClient::Wanted(bool is_new) const {
  SavedTensors wanted;
  for (const auto& [name, each] : names_)
    wanted[name] = is_new ? each.new_content : each.old_content;
  return wanted;
}

absl::Status VerbClient::VerifySaves(bool is_done) const {
  bool is_any = false;
  const int64_t last_step = verb_ == Verb::kSave ? kOldStep + 1 : kOldStep;
  for (int64_t step = kOldStep; step <= last_step; ++step) {
    const absl::StatusOr<SavedTensors> have = ReadCheckpoint(folder(), step);
    if (absl::IsNotFound(have.status())) {
      // A save that died while it replaced the checkpoint keeps the old one for the next save. Only
      // an overwrite replaces one, and the folder of a step loses it only where the file system
      // cannot exchange folders.
      is_any = is_any || (!is_done && verb_ == Verb::kOverwrite && IsSetAside(folder(), step));
      continue;
    }
    if (!have.ok()) return Violation(ToStd(have.status().message()));
    const std::string from_new = Difference(*have, Wanted(true));
    const std::string from_old = Difference(*have, Wanted(false));
    const bool may_be_old = step == kOldStep && !(is_done && verb_ == Verb::kOverwrite);
    const bool may_be_new = step == last_step;
    if (!(may_be_old && from_old.empty()) && !(may_be_new && from_new.empty())) {
      return Violation(StrCat("step ", step, " is neither the old nor the new checkpoint: ",
                              may_be_new ? from_new : from_old));
    }
    if (is_done && step == last_step && !from_new.empty()) {
      return Violation(StrCat("the save was acknowledged, but ", from_new));
    }
    is_any = is_any || !is_done || step == last_step;
  }
  if (!is_any) return Violation("an acknowledged checkpoint is lost");
  if (!is_done) return absl::OkStatus();
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().filename() != StepFolderName(last_step)) {
      return Violation(StrCat(entry.path().string(), " is left after the save"));
    }
  }
  return absl::OkStatus();
}

absl::Status VerbClient::CleanUp() {
  for (const auto& [name, each] : names_) {
    v1::DeleteNameRequest request;
    v1::DeleteNameResponse response;
    request.set_request_id(NewRequestId());
    request.set_name(name);
    const absl::Status status =
        coordinator_.Call("ArrayService.DeleteName", request, &response, kVerbCallTimeout);
    if (!absl::IsNotFound(status)) SHARDMESH_RETURN_IF_ERROR(status);
  }
  if (is_resize()) SHARDMESH_RETURN_IF_ERROR(Resize(kOldShape));
  std::error_code ignored;
  std::filesystem::remove_all(folder(), ignored);
  std::filesystem::remove(StrCat(files_, "/", unique_, ".bin"), ignored);
  std::filesystem::remove(source_path(), ignored);
  if (session_.empty()) return absl::OkStatus();
  v1::CloseSessionRequest request;
  v1::CloseSessionResponse response;
  request.set_session_id(session_);
  session_.clear();
  return coordinator_.Call("SessionService.CloseSession", request, &response, kVerbCallTimeout);
}

}  // namespace shardmesh::model
