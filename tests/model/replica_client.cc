// Changes arrays with two replicas, and verifies them after the loss of a worker.
#include "tests/model/replica_client.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "shardmesh/v1/session_service.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/expectations.h"
#include "tests/model/process_cluster.h"
#include "tests/model/remains.h"

namespace shardmesh::model {
namespace {

constexpr absl::Duration kReplicaCallTimeout = absl::Seconds(20);
constexpr absl::Duration kReplicaPoll = absl::Milliseconds(50);
// Time after a kill in which calls may still fail.
constexpr absl::Duration kSettledWithin = absl::Seconds(20);
constexpr absl::Duration kNoticedWithin = absl::Seconds(5);
// Time for repairs and copies. One that failed begins again after five seconds, then after ten.
constexpr absl::Duration kTwiceWithin = absl::Seconds(30);
// The coordinator looks for auxiliary meshes that nothing needs every ten seconds.
constexpr absl::Duration kTidiedWithin = absl::Seconds(30);
constexpr char kReplicaPrefix[] = "r/";
constexpr char kAuxiliaryMark[] = ".replicas-";

// All shapes divide the tensors: a dimension is a multiple of six.
Shape DrawShape(Dice& dice) {
  if (dice.OneIn(6)) return {516, 1026};  // more than a piece of a tile
  return {6 * (1 + dice.Below(3)), 6 * (1 + dice.Below(3))};
}

v1::PartitionSpec DrawSpec(Dice& dice) {
  return dice.Of(std::vector<v1::PartitionSpec>{SpecOf({"tp"}), SpecOf({"tp"}), SpecOf({"", "tp"}),
                                                SpecOf({})});
}

// Whether the call fails only because processes have not come back, or changes have not ended, yet.
bool PassesByItself(const absl::Status& status) {
  const Reason reason = ReasonOf(status);
  return HasNoAnswer(status) || absl::IsAborted(status) || reason == Reason::kMeshInUse ||
         reason == Reason::kMeshIncomplete || reason == Reason::kArrayDegraded;
}

}  // namespace

std::string ReplicaClient::AnyName(Dice& dice) {
  return StrCat(kReplicaPrefix, "t", dice.Below(6));
}

std::string ReplicaClient::AnyUsedName(Dice& dice) const {
  std::vector<std::string> names;
  for (const auto& [name, each] : names_) names.push_back(name);
  return names.empty() ? "" : dice.Of(names);
}

absl::Status ReplicaClient::Persist(std::string_view method, const Message& request,
                                    Message* answer) const {
  const absl::Time deadline = absl::Now() + kSettledWithin;
  for (;;) {
    const absl::Status status = coordinator_.Call(method, request, answer, kReplicaCallTimeout);
    if (!PassesByItself(status) || absl::Now() > deadline) return status;
    absl::SleepFor(kReplicaPoll);
  }
}

absl::Status ReplicaClient::PersistStream(std::string_view method,
                                          const std::vector<std::string>& requests,
                                          std::vector<std::string>* answers) const {
  Caller::Limits limits;
  limits.timeout = kReplicaCallTimeout;
  const absl::Time deadline = absl::Now() + kSettledWithin;
  for (;;) {
    answers->clear();
    const absl::Status status =
        coordinator_.CallBytes(FindMethod(method), requests, answers, limits);
    if (!PassesByItself(status) || absl::Now() > deadline) return status;
    absl::SleepFor(kReplicaPoll);
  }
}

absl::StatusOr<std::string> ReplicaClient::Session() {
  if (!session_.empty()) {
    v1::RenewSessionRequest request;
    v1::RenewSessionResponse response;
    request.set_session_id(session_);
    if (Persist("SessionService.RenewSession", request, &response).ok()) return session_;
  }
  v1::OpenSessionRequest request;
  v1::OpenSessionResponse response;
  request.set_request_id(NewRequestId());
  request.mutable_ttl()->set_seconds(3600);
  const absl::Status status = Persist("SessionService.OpenSession", request, &response);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "OpenSession", request, status, "OK"));
  session_ = response.session_id();
  return session_;
}

absl::Status ReplicaClient::Change(Dice& dice) {
  ++changes_;
  const std::string used = AnyUsedName(dice);
  const int64_t kind = used.empty() ? 9 : dice.Below(10);
  if (kind == 0) return Move(dice);
  if (kind == 1) return Delete(used);
  if (kind <= 3) return Reshard(dice);
  if (kind == 4) return Resize(dice);
  return Put(dice);
}

absl::Status ReplicaClient::Put(Dice& dice) {
  v1::BeginPutRequest first;
  v1::BeginPutRequest second;
  v1::BeginPutHeader& header = *first.mutable_header();
  header.set_request_id(NewRequestId());
  SHARDMESH_ASSIGN_OR_RETURN(*header.mutable_session_id(), Session());
  header.set_replicas(dice.Of(std::vector<int32_t>{0, 1, 2, 2, 2}));
  if (dice.OneIn(3)) header.mutable_mesh()->set_name(kTurnedMesh);
  std::vector<std::string> names;
  std::vector<Content> contents;
  for (int64_t i = 1 + dice.Below(3); i > 0; --i) {
    const std::string name = AnyName(dice);
    if (std::count(names.begin(), names.end(), name) > 0) continue;
    names.push_back(name);
    contents.push_back(MakeContent(Dtype::kF32, DrawShape(dice), dice.Next()));
    v1::PutTensor& tensor = *second.mutable_tensors()->add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(v1::DTYPE_F32);
    for (const int64_t size : contents.back().shape) tensor.add_shape(size);
    *tensor.mutable_spec() = DrawSpec(dice);
  }
  // The file goes after the put, so that a lost tile can only come from another worker.
  const bool by_workers = dice.OneIn(3);
  const std::string path = StrCat(files_, "/source-", requests_, ".bin");
  const absl::Cleanup remove = [&path] {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  };
  if (by_workers) {
    SHARDMESH_ASSIGN_OR_RETURN(const SourceOnDisk source, WriteSource(path, contents));
    SetSource(source, &header, second.mutable_tensors());
  }
  std::vector<std::string> answers;
  const absl::Status status = PersistStream(
      "ArrayService.BeginPut", {first.SerializeAsString(), second.SerializeAsString()}, &answers);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "BeginPut", first, status, "OK"));
  v1::BeginPutResponse begun;
  for (const std::string& answer : answers) {
    v1::BeginPutResponse part;
    part.ParseFromString(answer);
    begun.MergeFrom(part);
  }
  if (!by_workers) {
    const absl::Status sent = SendTiles(begun, contents, kReplicaCallTimeout);
    if (!sent.ok()) return Violation(StrCat("PutTiles answered ", sent.ToString()));
  }
  if (dice.OneIn(8)) {
    v1::AbortTransferRequest abort;
    v1::AbortTransferResponse aborted;
    abort.set_transfer_id(begun.transfer_id());
    abort.set_session_id(session_);
    const absl::Status ended = Persist("ArrayService.AbortTransfer", abort, &aborted);
    return Want(ended.ok(), "AbortTransfer", abort, ended, "OK");
  }
  v1::CommitTransferRequest commit;
  v1::CommitTransferResponse committed;
  commit.set_request_id(NewRequestId());
  commit.set_transfer_id(begun.transfer_id());
  commit.set_session_id(session_);
  const absl::Status done = Persist("ArrayService.CommitTransfer", commit, &committed);
  SHARDMESH_RETURN_IF_ERROR(Want(done.ok(), "CommitTransfer", commit, done, "OK"));
  for (size_t i = 0; i < names.size(); ++i) {
    Name& name = names_[names[i]];
    name.content = contents[i];
    if (header.replicas() > 0) name.replicas = header.replicas();
  }
  return absl::OkStatus();
}

absl::Status ReplicaClient::Move(Dice& dice) {
  const std::string from = AnyUsedName(dice);
  v1::DescribeArrayRequest describe;
  v1::DescribeArrayResponse described;
  describe.mutable_array()->set_name(from);
  const absl::Status found = Persist("ArrayService.DescribeArray", describe, &described);
  SHARDMESH_RETURN_IF_ERROR(Want(found.ok(), "DescribeArray", describe, found, "OK"));
  v1::MoveNameRequest request;
  v1::MoveNameResponse response;
  request.set_request_id(NewRequestId());
  request.set_name(AnyName(dice));
  request.set_array_id(described.array().array_descriptor().array_id());
  const absl::Status status = Persist("ArrayService.MoveName", request, &response);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "MoveName", request, status, "OK"));
  names_[request.name()] = Name(names_[from]);
  return dice.OneIn(2) && request.name() != from ? Delete(from) : absl::OkStatus();
}

absl::Status ReplicaClient::Delete(const std::string& name) {
  v1::DeleteNameRequest request;
  v1::DeleteNameResponse response;
  request.set_request_id(NewRequestId());
  request.set_name(name);
  const absl::Status status = Persist("ArrayService.DeleteName", request, &response);
  names_.erase(name);
  return Want(status.ok(), "DeleteName", request, status, "OK");
}

absl::Status ReplicaClient::Release(const std::string& array_id) {
  v1::ReleaseArraysRequest request;
  v1::ReleaseArraysResponse response;
  request.set_session_id(session_);
  request.add_array_ids(array_id);
  const absl::Status status = Persist("ArrayService.ReleaseArrays", request, &response);
  return Want(status.ok(), "ReleaseArrays", request, status, "OK");
}

absl::Status ReplicaClient::Reshard(Dice& dice) {
  v1::ReshardRequest request;
  request.set_request_id(NewRequestId());
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_session_id(), Session());
  if (dice.OneIn(3)) {
    request.set_prefix(kReplicaPrefix);
  } else {
    request.mutable_array()->set_name(AnyUsedName(dice));
  }
  *request.mutable_spec() = DrawSpec(dice);
  if (dice.OneIn(2)) request.mutable_mesh()->set_name(dice.OneIn(2) ? kTurnedMesh : "default");
  request.set_release_source(dice.OneIn(2));
  std::vector<std::string> answers;
  const absl::Status status =
      PersistStream("ArrayService.Reshard", {request.SerializeAsString()}, &answers);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "Reshard", request, status, "OK"));
  if (request.release_source()) return absl::OkStatus();
  std::set<std::string> sources;
  for (const std::string& answer : answers) {
    v1::ReshardResponse part;
    part.ParseFromString(answer);
    for (const v1::ReshardedArray& array : part.arrays()) sources.insert(array.source_array_id());
  }
  // The session keeps the old arrays.
  for (const std::string& id : sources) SHARDMESH_RETURN_IF_ERROR(Release(id));
  return absl::OkStatus();
}

absl::Status ReplicaClient::Resize(Dice& dice) {
  v1::ResizeMeshRequest request;
  v1::ResizeMeshResponse begun;
  request.set_request_id(NewRequestId());
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_session_id(), Session());
  request.set_mesh("default");
  request.set_shape(dice.Of(
      std::vector<std::string>{"fsdp=1,tp=2", "fsdp=1,tp=3", "fsdp=2,tp=1", "fsdp=3,tp=1"}));
  const absl::Status status = Persist("ArrayService.ResizeMesh", request, &begun);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "ResizeMesh", request, status, "OK"));
  if (begun.operation_id().empty()) return absl::OkStatus();  // it has the shape
  const absl::Time deadline = absl::Now() + kTwiceWithin;
  for (;;) {
    v1::GetOperationRequest ask;
    v1::GetOperationResponse told;
    ask.set_operation_id(begun.operation_id());
    const absl::Status asked = Persist("OperationService.GetOperation", ask, &told);
    const v1::Operation& operation = told.operation();
    if (operation.state() == v1::OPERATION_STATE_DONE) return absl::OkStatus();
    if (!asked.ok() || operation.state() != v1::OPERATION_STATE_RUNNING || absl::Now() > deadline) {
      return Violation(StrCat("the resize {", request.ShortDebugString(), "} is {",
                              operation.ShortDebugString(), "}: ", asked.ToString()));
    }
    absl::SleepFor(kReplicaPoll);
  }
}

absl::StatusOr<std::map<std::string, v1::Array>> ReplicaClient::List() const {
  v1::ListArraysRequest request;
  v1::ListArraysResponse response;
  const absl::Status status = Persist("ArrayService.ListArrays", request, &response);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "ListArrays", request, status, "OK"));
  std::map<std::string, v1::Array> arrays;
  for (const v1::Array& array : response.arrays()) {
    if (!names_.contains(array.name())) {
      return Violation(StrCat("there is an array that nobody named: ", array.ShortDebugString()));
    }
    arrays[array.name()] = array;
  }
  for (const auto& [name, each] : names_) {
    if (!arrays.contains(name)) return Violation(StrCat("the name ", name, " is lost"));
  }
  return arrays;
}

absl::StatusOr<std::string> ReplicaClient::Read(const std::string& name) {
  v1::BeginGetRequest request;
  v1::BeginGetResponse response;
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_session_id(), Session());
  request.mutable_array()->set_name(name);
  request.set_accept_second_copy(true);
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("ArrayService.BeginGet", request, &response, kReplicaCallTimeout));
  absl::StatusOr<std::string> bytes = FetchTiles(response, kReplicaCallTimeout);
  if (response.pinned()) {
    SHARDMESH_RETURN_IF_ERROR(Release(response.array().array_descriptor().array_id()));
  }
  return bytes;
}

absl::Status ReplicaClient::AwaitReplicas() {
  const absl::Time deadline = absl::Now() + kTwiceWithin;
  for (std::string incomplete = "?"; !incomplete.empty();) {
    incomplete.clear();
    SHARDMESH_ASSIGN_OR_RETURN(const auto arrays, List());
    for (const auto& [name, array] : arrays) {
      const int64_t wanted = std::max(1, array.replicas().wanted());
      if (wanted != names_[name].replicas) {
        return Violation(StrCat("the array of ", name, " is to want ", names_[name].replicas,
                                " replicas: ", array.ShortDebugString()));
      }
      if (wanted > 1 && array.replicas().complete() < wanted) incomplete = array.ShortDebugString();
    }
    if (absl::Now() > deadline && !incomplete.empty()) {
      return Violation(StrCat("an array has no complete second replica: ", incomplete));
    }
    if (!incomplete.empty()) absl::SleepFor(kReplicaPoll);
  }
  for (const auto& [name, each] : names_) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::string bytes, Read(name));
    if (!HasBytes(each.content, bytes)) return Violation(StrCat(name, " has other bytes"));
  }
  return absl::OkStatus();
}

absl::Status ReplicaClient::PrepareForLoss() {
  SHARDMESH_ASSIGN_OR_RETURN(const auto arrays, List());
  for (auto& [name, each] : names_) {
    const v1::Array& array = arrays.at(name);
    each.must_survive = array.replicas().wanted() == 2 && array.replicas().complete() == 2;
  }
  return absl::OkStatus();
}

absl::Status ReplicaClient::VerifyDuringLoss() {
  // The coordinator may take a moment to notice that the worker is gone.
  const absl::Time deadline = absl::Now() + kNoticedWithin;
  for (const auto& [name, each] : names_) {
    if (!each.must_survive) continue;
    absl::StatusOr<std::string> bytes = Read(name);
    while (!bytes.ok() && absl::Now() < deadline) {
      absl::SleepFor(kReplicaPoll);
      bytes = Read(name);
    }
    if (!bytes.ok() || !HasBytes(each.content, *bytes)) {
      return Violation(StrCat("while a worker is gone, ", name, " with two replicas ",
                              bytes.ok() ? "has other bytes" : bytes.status().ToString()));
    }
  }
  return absl::OkStatus();
}

absl::Status ReplicaClient::VerifyAfterLoss() {
  const absl::Time deadline = absl::Now() + kTwiceWithin;
  std::vector<std::string> lost;
  for (const auto& [name, each] : names_) {
    v1::DescribeArrayRequest request;
    v1::DescribeArrayResponse response;
    request.mutable_array()->set_name(name);
    absl::StatusOr<std::string> bytes = absl::UnavailableError("not read yet");
    for (;;) {
      const absl::Status status = Persist("ArrayService.DescribeArray", request, &response);
      SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "DescribeArray", request, status, "OK"));
      const bool is_twice = response.array().replicas().complete() == 2;
      const bool is_there = response.array().state() == v1::ARRAY_STATE_AVAILABLE;
      if (is_there && (is_twice || !each.must_survive)) bytes = Read(name);
      if (bytes.ok() || !each.must_survive || absl::Now() > deadline) break;
      absl::SleepFor(kReplicaPoll);
    }
    if (bytes.ok() && !HasBytes(each.content, *bytes)) {
      return Violation(
          StrCat("after the loss ", name, " has other bytes: ", response.ShortDebugString()));
    }
    if (!bytes.ok() && each.must_survive) {
      return Violation(StrCat("after the loss ", name, " does not come back: ",
                              bytes.status().ToString(), ", ", response.ShortDebugString()));
    }
    if (!bytes.ok()) lost.push_back(name);
    survived_ += each.must_survive ? 1 : 0;
  }
  lost_ += std::ssize(lost);
  for (const std::string& name : lost) SHARDMESH_RETURN_IF_ERROR(Delete(name));
  return absl::OkStatus();
}

absl::Status ReplicaClient::AwaitNoAuxiliaryMesh() const {
  const absl::Time deadline = absl::Now() + kTidiedWithin;
  for (;;) {
    v1::ListEntriesRequest request;
    v1::ListEntriesResponse response;
    request.set_kind(v1::ENTRY_KIND_MESH);
    const absl::Status status = Persist("CatalogService.ListEntries", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "ListEntries", request, status, "OK"));
    const bool is_left = std::any_of(
        response.entries().begin(), response.entries().end(),
        [](const v1::Entry& entry) { return absl::StrContains(entry.name(), kAuxiliaryMark); });
    if (!is_left) return absl::OkStatus();
    if (absl::Now() > deadline) {
      return Violation(StrCat("without arrays there are the meshes ", response.ShortDebugString()));
    }
    absl::SleepFor(kReplicaPoll);
  }
}

absl::Status ReplicaClient::CleanUp() {
  while (!names_.empty()) {
    const std::string name = names_.begin()->first;
    SHARDMESH_RETURN_IF_ERROR(Delete(name));
  }
  if (!session_.empty()) {
    v1::CloseSessionRequest request;
    v1::CloseSessionResponse response;
    request.set_session_id(std::exchange(session_, ""));
    const absl::Status status = Persist("SessionService.CloseSession", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "CloseSession", request, status, "OK"));
  }
  if (const std::string left = AwaitNothingLeft(coordinator_); !left.empty()) {
    return Violation(StrCat("without names ", left));
  }
  return AwaitNoAuxiliaryMesh();
}

std::string ReplicaClient::Summary() const {
  return StrCat(changes_, " changes; ", survived_, " times an array with two replicas survived, ",
                lost_, " times another was lost");
}

}  // namespace shardmesh::model
