// One client that issues every call of the contract, and a model of what each answer must be.
#include "tests/model/random_client.h"

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "process/crc32c.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "shardmesh/internal/v1/exchange_service.pb.h"
#include "shardmesh/v1/admin_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "shardmesh/v1/session_service.pb.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "status/detail.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/expectations.h"
#include "tests/model/process_cluster.h"
#include "tests/model/questions.h"

namespace shardmesh::model {
namespace {

using google::protobuf::TextFormat;

constexpr int kKeptVersions = 32;
constexpr size_t kMostTransfers = 6;
constexpr int64_t kSharedNames = 3;
// Time for the copy of one array, of which few wait at a time.
constexpr absl::Duration kReplicaTakes = absl::Seconds(15);

Shape RandomShape(Dice& dice) {
  static const auto* const sizes = new std::vector<int64_t>{1, 2, 2, 3, 4, 4, 4, 6, 8, 0};
  if (dice.OneIn(40)) return {512, 1026};  // more than a piece of a tile
  Shape shape;
  const int64_t rank = dice.OneIn(8) ? 0 : 1 + dice.Below(3);
  for (int64_t i = 0; i < rank; ++i) shape.push_back(dice.Of(*sizes));
  return shape;
}

std::vector<std::string> EntryTexts(int kind) {
  switch (kind) {
    case v1::ENTRY_KIND_MESH:
      return {R"(mesh { mesh { axes { name: "x" size: 4096 } } })",
              R"(mesh { mesh { axes { name: "x" size: 64 } axes { name: "y" size: 128 } } })"};
    case v1::ENTRY_KIND_PROFILE:
      return {R"(profile { tensor_parallel_axis { name: "tp" } })",
              R"(profile { head_axis { constant: AXIS_CONSTANT_NONE } })", "profile { }"};
    case v1::ENTRY_KIND_RULE_SET:
      return {R"(rule_set { rules { pattern: ".*" spec { dimensions { name: "tp" } } } })",
              R"(rule_set { rules { pattern: "a(b|c)+$" spec { } } strict: true min_size: 4 })"};
    case v1::ENTRY_KIND_LOGICAL_RULES:
      return {R"(logical_rules { rules { name: "a" value { name: "tp" } } })",
              R"(logical_rules { })"};
    default:
      return {
          R"(tree { tensors { names: "ab" name_sizes: 1 name_sizes: 1 ranks: 1 ranks: 0 sizes: 4 } })",
          R"(tree { tensors { names: "w" name_sizes: 1 ranks: 1 sizes: 9 dtypes: DTYPE_F32 } })"};
  }
}

std::vector<std::string> BadEntryTexts() {
  return {"",
          R"(mesh { mesh { axes { name: "" size: 4 } } })",
          R"(mesh { mesh { axes { name: "a" size: 0 } } })",
          R"(mesh { mesh { axes { name: "a" size: 2147483647 } axes { name: "b" size: 2 } } })",
          R"(mesh { mesh { axes { name: "a" size: 2 } } workers: "only-one" })",
          R"(rule_set { rules { pattern: "(" spec { } } })",
          R"(tree { })",
          R"(tree { tensors { names: "ab" name_sizes: 1 ranks: 1 sizes: 4 } })"};
}

v1::EntryValue ParseValue(const std::string& text) {
  v1::EntryValue value;
  if (!TextFormat::ParseFromString(text, &value)) std::abort();
  return value;
}

std::vector<float> Product(const std::vector<float>& lhs, const std::vector<float>& rhs, int64_t m,
                           int64_t k, int64_t n) {
  std::vector<float> out(static_cast<size_t>(m * n), 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) {
        out[static_cast<size_t>(i * n + j)] +=
            lhs[static_cast<size_t>(i * k + l)] * rhs[static_cast<size_t>(l * n + j)];
      }
    }
  }
  return out;
}

std::vector<float> Transposed(const std::vector<float>& in, int64_t rows, int64_t columns) {
  std::vector<float> out(in.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      out[static_cast<size_t>(j * rows + i)] = in[static_cast<size_t>(i * columns + j)];
    }
  }
  return out;
}

// Of the answer, and of the answers in it.
void ClearRevisions(Message* message) {
  const auto* const reflection = message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const auto* const field : fields) {
    if (field->name() == "revision") {
      reflection->ClearField(message, field);
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field->is_repeated()) {
        ClearRevisions(reflection->MutableMessage(message, field));
        continue;
      }
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        ClearRevisions(reflection->MutableRepeatedMessage(message, field, i));
      }
    }
  }
}

}  // namespace

float SharedNames::NewValue() {
  absl::MutexLock lock(&mutex_);
  return static_cast<float>(++values_);
}

bool SharedNames::IsValue(float value) const {
  absl::MutexLock lock(&mutex_);
  return value >= 1 && value <= static_cast<float>(values_) && std::floor(value) == value;
}

RandomClient::RandomClient(int number, const std::string& address, const std::string& files,
                           SharedNames* shared)
    : number_(number), address_(address), files_(files), shared_(shared), coordinator_(address) {}

RandomClient::~RandomClient() = default;

const std::map<std::string, RandomClient::Handler>& RandomClient::Handlers() {
  using C = RandomClient;
  static const auto* const handlers = new std::map<std::string, Handler>{
      {"SessionService.OpenSession", &C::OpenSession},
      {"SessionService.RenewSession", &C::RenewSession},
      {"SessionService.CloseSession", &C::CloseSession},
      {"SessionService.ListSessions", &C::ListSessions},
      {"CatalogService.CreateEntry", &C::CreateEntry},
      {"CatalogService.GetEntry", &C::GetEntry},
      {"CatalogService.ListEntries", &C::ListEntries},
      {"CatalogService.ListEntryVersions", &C::ListEntryVersions},
      {"CatalogService.UpdateEntry", &C::UpdateEntry},
      {"CatalogService.DeleteEntry", &C::DeleteEntry},
      {"CatalogService.Watch", &C::Watch},
      {"ArrayService.BeginPut", &C::BeginPut},
      {"ArrayService.FindContent", &C::FindContent},
      {"ArrayService.CommitTransfer", &C::CommitTransfer},
      {"ArrayService.AbortTransfer", &C::AbortTransfer},
      {"ArrayService.BeginGet", &C::BeginGet},
      {"ArrayService.DescribeArray", &C::DescribeArray},
      {"ArrayService.ListArrays", &C::ListArrays},
      {"ArrayService.MoveName", &C::MoveName},
      {"ArrayService.DeleteName", &C::DeleteName},
      {"ArrayService.ReleaseArrays", &C::ReleaseArrays},
      {"ArrayService.Reshard", &C::Reshard},
      {"SaveService.BeginSave", &C::BeginSave},
      {"SaveService.WaitSave", &C::WaitSave},
      {"TileService.PutTiles", &C::PutTiles},
      {"TileService.GetTiles", &C::GetTiles},
      {"TileService.Identify", &C::Identify},
      {"OperationService.GetOperation", &C::GetOperation},
      {"OperationService.ListOperations", &C::ListOperations},
      {"OperationService.WatchOperation", &C::WatchOperation},
      {"OperationService.CancelOperation", &C::CancelOperation},
      {"OperationService.ReportGet", &C::ReportGet},
      {"ComputeService.Compile", &C::Compile},
      {"ComputeService.Execute", &C::Execute},
      {"ComputeService.ExecuteStream", &C::ExecuteStream},
      {"ComputeService.Linear", &C::Linear},
      {"ComputeService.Matmul", &C::Matmul},
      {"ComputeService.Collective", &C::Collective},
      {"ClusterService.GetVersion", &C::GetVersion},
      {"ClusterService.GetStatus", &C::GetStatus},
      {"ClusterService.ListFlightRecords", &C::ListFlightRecords},
      {"ClusterService.Diagnose", &C::Diagnose},
      {"ClusterService.ListLinks", &C::ListLinks},
      {"ClusterService.WatchCluster", &C::WatchCluster},
      {"AdminService.Snapshot", &C::Snapshot},
      {"AdminService.ForceCancelOperation", &C::ForceCancelOperation},
      {"AttachService.Attach", &C::Attach},
      {"ExchangeService.Exchange", &C::Exchange},
  };
  return *handlers;
}

std::vector<std::string> RandomClient::MethodsWithoutCaller() {
  std::vector<std::string> missing;
  for (const auto& [name, method] : AllMethods()) {
    if (Handlers().count(name) == 0 && ValidQuestions(name).empty() &&
        RefusedRequests(name).empty()) {
      missing.push_back(name);
    }
  }
  return missing;
}

int RandomClient::WeightOf(const std::string& method) {
  for (const char* const questions : {"ResolveService.", "LayoutService.", "RuleService.",
                                      "MeshService.", "ReshardService.", "CompatService."}) {
    if (absl::StartsWith(method, questions)) return 1;
  }
  if (absl::StartsWith(method, "ArrayService.") || absl::StartsWith(method, "TileService.Put")) {
    return 8;
  }
  if (method == "AdminService.Snapshot" || method == "SessionService.CloseSession" ||
      method == "AttachService.Attach")
    return 1;
  return 3;
}

absl::Status RandomClient::Run(const Op& op) {
  Dice dice(op.seed);
  SHARDMESH_RETURN_IF_ERROR(FindWorkers());
  if (dice.OneIn(20)) return Junk(op.method, dice);
  const auto handler = Handlers().find(op.method);
  if (handler != Handlers().end()) return (this->*handler->second)(dice);
  return Ask(op.method, dice);
}

absl::Status RandomClient::Finish() {
  Dice dice(0);
  for (const Transfer& transfer : transfers_) {
    v1::AbortTransferRequest request;
    request.set_transfer_id(transfer.id);
    SetIfThere(&request, "session_id", transfer.session);
    v1::AbortTransferResponse response;
    coordinator_.Call("ArrayService.AbortTransfer", request, &response).IgnoreError();
    if (!transfer.source_path.empty()) std::filesystem::remove(transfer.source_path);
  }
  SHARDMESH_RETURN_IF_ERROR(CheckSaved(dice));
  saved_.clear();
  std::filesystem::remove_all(SaveFolder());
  while (!names_.empty()) {
    v1::DeleteNameRequest request;
    request.set_request_id(NewRequestId(dice));
    request.set_name(names_.begin()->first);
    SetIfThere(&request, "session_id", sessions_[0]);
    v1::DeleteNameResponse response;
    const absl::Status status = coordinator_.Call("ArrayService.DeleteName", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "DeleteName at the end", request, status, "OK"));
    DropName(request.name());
  }
  for (const auto& [key, versions] : entries_) {
    v1::DeleteEntryRequest request;
    request.set_request_id(NewRequestId(dice));
    request.set_kind(static_cast<v1::EntryKind>(key.first));
    request.set_name(key.second);
    v1::DeleteEntryResponse response;
    const absl::Status status = coordinator_.Call("CatalogService.DeleteEntry", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "DeleteEntry at the end", request, status, "OK"));
  }
  entries_.clear();
  for (int slot : {0, 1}) {
    if (sessions_[slot].empty()) continue;
    v1::CloseSessionRequest request;
    request.set_session_id(sessions_[slot]);
    v1::CloseSessionResponse response;
    const absl::Status status =
        coordinator_.Call("SessionService.CloseSession", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "CloseSession at the end", request, status, "OK"));
    SessionEnded(slot);
  }
  return absl::OkStatus();
}

// --- Expected content ------------------------------------------------------------------------

std::string RandomClient::NewRequestId(Dice& dice) {
  return StrCat("c", number_, "-", ++requests_, "-", dice.Next());
}

absl::StatusOr<std::string> RandomClient::Session(int slot, Dice& dice) {
  if (sessions_[slot].empty()) {
    v1::OpenSessionRequest request;
    request.set_request_id(NewRequestId(dice));
    request.mutable_ttl()->set_seconds(3600);
    v1::OpenSessionResponse response;
    const absl::Status status = coordinator_.Call("SessionService.OpenSession", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "OpenSession", request, status, "OK"));
    sessions_[slot] = response.session_id();
    session_requests_[slot] = request.request_id();
  }
  return sessions_[slot];
}

void RandomClient::SessionEnded(int slot) {
  sessions_[slot].clear();
  std::vector<std::string> ids;
  for (auto& [id, held] : arrays_) {
    held.pins.erase(slot);
    ids.push_back(id);
  }
  for (const std::string& id : ids) ReleaseIfUnheld(id);
  for (Transfer& transfer : transfers_) {
    if (transfer.slot == slot && transfer.state == TransferState::kRunning) {
      transfer.state = TransferState::kEnded;
    }
  }
}

absl::Status RandomClient::FindWorkers() {
  if (!workers_.empty()) return absl::OkStatus();
  v1::GetStatusResponse status;
  SHARDMESH_RETURN_IF_ERROR(
      coordinator_.Call("ClusterService.GetStatus", v1::GetStatusRequest(), &status));
  cluster_id_ = status.cluster_id();
  for (const v1::WorkerStatus& worker : status.workers()) {
    const std::string& address = worker.endpoints(0).address();
    worker_identities_.push_back(worker.identity());
    workers_.push_back(std::make_unique<Caller>(address));
    exchanges_.push_back(std::make_unique<Caller>(
        worker.has_exchange_port()
            ? StrCat(address.substr(0, address.rfind(':')), ":", worker.exchange_port())
            : address));
  }
  return workers_.empty() ? Violation("the cluster has no workers") : absl::OkStatus();
}

const Caller& RandomClient::CallerOf(const std::string& method, Dice& dice) {
  if (absl::StartsWith(method, "TileService.")) return *dice.Of(workers_);
  if (absl::StartsWith(method, "ExchangeService.")) return *dice.Of(exchanges_);
  return coordinator_;
}

std::string RandomClient::OwnName(Dice& dice) const {
  return StrCat("c", number_, "/t", dice.Below(6));
}

std::string RandomClient::EntryName(Dice& dice) const {
  return StrCat("c", number_, "-e", dice.Below(3));
}

std::string RandomClient::AnyArrayId(Dice& dice) const {
  if (dice.OneIn(8)) return "nosucharray";
  if (dice.OneIn(6) && !gone_.empty()) return dice.Of(gone_);
  std::vector<std::string> ids;
  for (const auto& [id, held] : arrays_) ids.push_back(id);
  return ids.empty() ? "nosucharray" : dice.Of(ids);
}

std::string RandomClient::AnyTransferId(Dice& dice) {
  if (transfers_.empty() || dice.OneIn(8)) return "nosuchtransfer";
  return dice.Of(transfers_).id;
}

RandomClient::Transfer* RandomClient::FindTransfer(const std::string& id) {
  for (Transfer& transfer : transfers_) {
    if (transfer.id == id) return &transfer;
  }
  return nullptr;
}

RandomClient::Held* RandomClient::FindHeld(const std::string& array_id) {
  const auto found = arrays_.find(array_id);
  return found == arrays_.end() ? nullptr : &found->second;
}

void RandomClient::PointName(const std::string& name, const std::string& array_id,
                             int64_t version) {
  Held& held = arrays_[array_id];
  held.names.insert(name);
  held.versions.insert({name, version});
  const auto old = names_.find(name);
  const std::string old_id = old == names_.end() ? "" : old->second.array_id;
  names_[name] = {array_id, version};
  if (!old_id.empty() && old_id != array_id) {
    arrays_[old_id].names.erase(name);
    ReleaseIfUnheld(old_id);
  }
}

void RandomClient::DropName(const std::string& name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return;
  const std::string id = found->second.array_id;
  names_.erase(found);
  arrays_[id].names.erase(name);
  ReleaseIfUnheld(id);
}

void RandomClient::ReleaseIfUnheld(const std::string& array_id) {
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end() || !found->second.names.empty() || !found->second.pins.empty()) return;
  // An array under a shared name lives as long as that name points to it.
  if (found->second.is_known) gone_.push_back(array_id);
  if (gone_.size() > 20) gone_.erase(gone_.begin());
  arrays_.erase(found);
}

// --- Any call -----------------------------------------------------------------------------------

absl::Status RandomClient::Junk(const std::string& method, Dice& dice) {
  const MethodDescriptor* descriptor = FindMethod(method);
  const Caller& caller = CallerOf(method, dice);
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.max_answers = 1;
  std::vector<std::string> requests = {""};
  const int64_t kind = dice.Below(4);
  if (kind == 0) {
    requests = {"\xff\xff\xff\xff\xff\x01junk"};
  } else if (kind == 1) {
    requests.clear();
  } else if (kind == 2) {
    limits.cancel_after = static_cast<int>(dice.Below(2));
  }
  // Attach and the like wait for more.
  limits.timeout = absl::Seconds(20);
  const absl::Status status = caller.CallBytes(descriptor, requests, &answers, limits);
  const bool refused = IsRefusal(status) || absl::IsDataLoss(status);  // frames have checksums
  const bool cancelled = kind == 2 && (absl::IsCancelled(status) || status.ok());
  // A unary call without a message is gRPC's to refuse.
  const bool without = kind == 1 && (absl::IsUnknown(status) || absl::IsInternal(status) ||
                                     absl::IsUnimplemented(status) || absl::IsCancelled(status));
  const bool holds = kind == 0 ? refused : refused || cancelled || without || status.ok();
  if (holds) return absl::OkStatus();
  return Violation(StrCat(method, " of junk of kind ", kind, " answered ", status.ToString()));
}

absl::Status RandomClient::Ask(const std::string& method, Dice& dice) {
  const MethodDescriptor* descriptor = FindMethod(method);
  auto questions = ValidQuestions(method);
  const bool is_refused = questions.empty();
  for (const std::string& text : RefusedRequests(method)) questions.push_back({text});
  if (questions.empty()) return Violation(StrCat(method, " has no caller"));
  const std::vector<std::string>& texts = dice.Of(questions);
  const bool is_valid = !is_refused && dice.OneIn(3);
  const auto* prototype =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor->input_type());
  std::vector<std::string> requests;
  std::string shown;
  const int64_t mutated = dice.Below(static_cast<int64_t>(texts.size()));
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::unique_ptr<Message> message(prototype->New());
    if (!TextFormat::ParseFromString(texts[i], message.get())) {
      return Violation(StrCat("the question of ", method, " does not parse: ", texts[i]));
    }
    if (!is_valid && !is_refused && static_cast<int64_t>(i) == mutated) Mutate(dice, message.get());
    requests.push_back(message->SerializeAsString());
    StrAppend(&shown, " {", message->ShortDebugString().substr(0, 800), "}");
  }
  std::pair<absl::Status, std::vector<std::string>> answer;
  answer.first = coordinator_.CallBytes(descriptor, requests, &answer.second);
  if (is_refused ? !IsRefusal(answer.first)
      : is_valid ? !answer.first.ok()
                 : !answer.first.ok() && !IsRefusal(answer.first)) {
    return Violation(StrCat(method, shown, " answered ", answer.first.ToString()));
  }
  // Tells how long each array has been aside.
  if (method == "ClusterService.ListQuarantine") return absl::OkStatus();
  // The same question has the same answer, whatever happened since. An answer that depends on the
  // catalog has a revision; such a question is repeated only at once.
  const bool has_revision = descriptor->output_type()->FindFieldByName("revision") != nullptr;
  const auto normalize = [&](std::vector<std::string>& bytes) {
    if (!has_revision) return;
    const auto* output = google::protobuf::MessageFactory::generated_factory()->GetPrototype(
        descriptor->output_type());
    for (std::string& each : bytes) {
      const std::unique_ptr<Message> message(output->New());
      message->ParseFromString(each);
      ClearRevisions(message.get());
      each = message->SerializeAsString();
    }
  };
  normalize(answer.second);
  const std::string key = StrCat(method, shown);
  const auto known = answers_.find(key);
  if (known == answers_.end()) {
    if (is_valid) answers_[key] = answer;
    return absl::OkStatus();
  }
  if (known->second.first.code() != answer.first.code() || known->second.second != answer.second) {
    return Violation(StrCat(key, " had another answer before: ", known->second.first.ToString(),
                            ", now ", answer.first.ToString()));
  }
  return absl::OkStatus();
}

// --- Sessions -----------------------------------------------------------------------------------

absl::Status RandomClient::OpenSession(Dice& dice) {
  v1::OpenSessionRequest request;
  v1::OpenSessionResponse response;
  if (dice.OneIn(3)) {
    request.set_request_id(NewRequestId(dice));
    switch (dice.Below(5)) {
      case 0:
        request.mutable_ttl()->set_nanos(999'999'999);
        break;
      case 1:
        request.mutable_ttl()->set_seconds(3601);
        break;
      case 2:
        request.mutable_ttl()->set_seconds(-1);
        break;
      case 3:
        request.set_client_name(std::string(256, 'n'));
        break;
      default:
        request.set_request_id(std::string(65, 'r'));
    }
    const absl::Status status = coordinator_.Call("SessionService.OpenSession", request, &response);
    return Want(absl::IsInvalidArgument(status), "OpenSession", request, status,
                "INVALID_ARGUMENT");
  }
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  request.set_request_id(session_requests_[slot]);
  request.mutable_ttl()->set_seconds(3600);
  const absl::Status status = coordinator_.Call("SessionService.OpenSession", request, &response);
  return Want(status.ok() && response.session_id() == session, "OpenSession again", request, status,
              StrCat("session ", session));
}

absl::Status RandomClient::RenewSession(Dice& dice) {
  v1::RenewSessionRequest request;
  v1::RenewSessionResponse response;
  if (dice.OneIn(3)) {
    request.set_session_id("nosuchsession");
    const absl::Status status =
        coordinator_.Call("SessionService.RenewSession", request, &response);
    return Want(absl::IsNotFound(status) && ReasonOf(status) == Reason::kSessionGone,
                "RenewSession", request, status, "SESSION_GONE");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session,
                             Session(static_cast<int>(dice.Below(2)), dice));
  request.set_session_id(session);
  const absl::Status status = coordinator_.Call("SessionService.RenewSession", request, &response);
  return Want(status.ok() && response.ttl().seconds() == 3600, "RenewSession", request, status,
              "OK with an hour");
}

absl::Status RandomClient::CloseSession(Dice& dice) {
  v1::CloseSessionRequest request;
  v1::CloseSessionResponse response;
  if (dice.OneIn(4)) {
    request.set_session_id("nosuchsession");
    const absl::Status status =
        coordinator_.Call("SessionService.CloseSession", request, &response);
    return Want(status.ok(), "CloseSession", request, status, "OK");
  }
  const int slot = static_cast<int>(dice.Below(2));
  if (sessions_[slot].empty()) return absl::OkStatus();
  request.set_session_id(sessions_[slot]);
  const absl::Status status = coordinator_.Call("SessionService.CloseSession", request, &response);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "CloseSession", request, status, "OK"));
  const std::string ended = sessions_[slot];
  SessionEnded(slot);
  v1::RenewSessionRequest renew;
  renew.set_session_id(ended);
  v1::RenewSessionResponse renewed;
  const absl::Status gone = coordinator_.Call("SessionService.RenewSession", renew, &renewed);
  return Want(absl::IsNotFound(gone), "RenewSession of a closed session", renew, gone, "NOT_FOUND");
}

absl::Status RandomClient::ListSessions(Dice& dice) {
  v1::ListSessionsRequest request;
  if (dice.OneIn(3)) {
    if (dice.OneIn(2)) {
      request.set_page_size(-1);
    } else {
      request.set_page_token("nosuchpage");
    }
    v1::ListSessionsResponse response;
    const absl::Status status =
        coordinator_.Call("SessionService.ListSessions", request, &response);
    return Want(absl::IsInvalidArgument(status), "ListSessions", request, status,
                "INVALID_ARGUMENT");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session,
                             Session(static_cast<int>(dice.Below(2)), dice));
  request.set_page_size(static_cast<int32_t>(dice.Of(std::vector<int64_t>{0, 1, 2, 1000, 9999})));
  int64_t last = 0;
  bool is_listed = false;
  do {
    v1::ListSessionsResponse response;
    const absl::Status status =
        coordinator_.Call("SessionService.ListSessions", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "ListSessions", request, status, "OK"));
    for (const v1::OpenSessionInfo& each : response.sessions()) {
      if (each.number() <= last || each.id_prefix().size() != 8) {
        return Violation(StrCat("ListSessions has ", each.ShortDebugString(), " behind ", last));
      }
      last = each.number();
      is_listed |= session.starts_with(each.id_prefix());
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return is_listed ? absl::OkStatus() : Violation("ListSessions lacks an open session");
}

// --- Definitions --------------------------------------------------------------------------------

absl::Status RandomClient::CreateEntry(Dice& dice) {
  v1::CreateEntryRequest request;
  v1::CreateEntryResponse response;
  request.set_request_id(NewRequestId(dice));
  request.set_name(EntryName(dice));
  const int kind = 1 + static_cast<int>(dice.Below(5));
  *request.mutable_value() = ParseValue(dice.Of(EntryTexts(kind)));
  if (dice.OneIn(4)) {
    switch (dice.Below(4)) {
      case 0:
        request.set_name("");
        break;
      case 1:
        request.set_name(std::string(256, 'x'));
        break;
      case 2:
        request.set_name("a@1");
        break;
      default:
        *request.mutable_value() = ParseValue(dice.Of(BadEntryTexts()));
    }
    const absl::Status status = coordinator_.Call("CatalogService.CreateEntry", request, &response);
    return Want(absl::IsInvalidArgument(status), "CreateEntry", request, status,
                "INVALID_ARGUMENT");
  }
  const std::pair<int, std::string> key = {kind, request.name()};
  const absl::Status status = coordinator_.Call("CatalogService.CreateEntry", request, &response);
  if (entries_.count(key) > 0) {
    return Want(absl::IsAlreadyExists(status), "CreateEntry", request, status, "ALREADY_EXISTS");
  }
  SHARDMESH_RETURN_IF_ERROR(
      Want(status.ok() && response.entry().version() > deleted_versions_[kind] &&
               response.entry().name() == request.name() &&
               response.entry().revision() > last_entry_revision_,
           "CreateEntry", request, status,
           StrCat("OK with a version above ", deleted_versions_[kind], " and a later revision")));
  entries_[key] = {
      {response.entry().version(), response.entry().revision(), response.entry().value()}};
  last_entry_ = key;
  last_entry_revision_ = response.entry().revision();
  if (dice.OneIn(3)) {
    v1::CreateEntryResponse again;
    const absl::Status repeated = coordinator_.Call("CatalogService.CreateEntry", request, &again);
    SHARDMESH_RETURN_IF_ERROR(
        Want(repeated.ok() && again.entry().revision() == response.entry().revision(),
             "CreateEntry again", request, repeated, "the first answer"));
    request.set_name(request.name() + "x");
    const absl::Status reused = coordinator_.Call("CatalogService.CreateEntry", request, &again);
    SHARDMESH_RETURN_IF_ERROR(Want(IsRefusal(reused), "CreateEntry with another's request id",
                                   request, reused, "a refusal"));
  }
  return absl::OkStatus();
}

absl::Status RandomClient::GetEntry(Dice& dice) {
  v1::GetEntryRequest request;
  v1::GetEntryResponse response;
  const int kind = 1 + static_cast<int>(dice.Below(5));
  const std::string name = EntryName(dice);
  request.set_kind(static_cast<v1::EntryKind>(kind));
  request.set_name(name);
  const auto found = entries_.find({kind, name});
  const Version* wanted = found == entries_.end() ? nullptr : &found->second.back();
  if (dice.OneIn(3)) {
    const int64_t version = dice.Below(6);
    request.set_name(StrCat(name, "@", version));
    wanted = nullptr;
    if (found != entries_.end()) {
      const auto& versions = found->second;
      for (size_t i = 0; i < versions.size(); ++i) {
        if (versions[i].version == version && versions.size() - i <= kKeptVersions) {
          wanted = &versions[i];
        }
      }
    }
    if (version == 0) {
      const absl::Status status = coordinator_.Call("CatalogService.GetEntry", request, &response);
      return Want(IsRefusal(status), "GetEntry", request, status, "a refusal");
    }
  }
  const absl::Status status = coordinator_.Call("CatalogService.GetEntry", request, &response);
  if (wanted == nullptr) {
    return Want(absl::IsNotFound(status), "GetEntry", request, status, "NOT_FOUND");
  }
  const bool same =
      kind == v1::ENTRY_KIND_TREE ||
      google::protobuf::util::MessageDifferencer::Equals(response.entry().value(), wanted->value);
  return Want(status.ok() && response.entry().version() == wanted->version &&
                  response.entry().revision() == wanted->revision && same,
              "GetEntry", request, status, StrCat("version ", wanted->version));
}

absl::Status RandomClient::ListEntries(Dice& dice) {
  v1::ListEntriesRequest request;
  if (dice.OneIn(6)) {
    request.set_kind(dice.OneIn(2) ? v1::ENTRY_KIND_UNSPECIFIED : v1::ENTRY_KIND_MESH);
    if (request.kind() != v1::ENTRY_KIND_UNSPECIFIED) request.set_page_size(-1);
    v1::ListEntriesResponse response;
    const absl::Status status = coordinator_.Call("CatalogService.ListEntries", request, &response);
    return Want(absl::IsInvalidArgument(status), "ListEntries", request, status,
                "INVALID_ARGUMENT");
  }
  const int kind = 1 + static_cast<int>(dice.Below(5));
  request.set_kind(static_cast<v1::EntryKind>(kind));
  request.set_page_size(static_cast<int32_t>(dice.Of(std::vector<int64_t>{0, 1, 2, 1000, 5000})));
  std::map<std::string, int64_t> listed;
  const std::string own = StrCat("c", number_, "-");
  for (int page = 0; page < 200; ++page) {
    v1::ListEntriesResponse response;
    const absl::Status status = coordinator_.Call("CatalogService.ListEntries", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "ListEntries", request, status, "OK"));
    for (const v1::Entry& entry : response.entries()) {
      if (absl::StartsWith(entry.name(), own)) listed[entry.name()] = entry.version();
    }
    if (response.next_page_token().empty()) break;
    request.set_page_token(response.next_page_token());
  }
  std::map<std::string, int64_t> wanted;
  for (const auto& [key, versions] : entries_) {
    if (key.first == kind) wanted[key.second] = versions.back().version;
  }
  if (listed == wanted) return absl::OkStatus();
  return Violation(StrCat("ListEntries of kind ", kind, " has ", listed.size(),
                          " of this client's ", wanted.size(), " entries, or other versions"));
}

absl::Status RandomClient::ListEntryVersions(Dice& dice) {
  v1::ListEntryVersionsRequest request;
  v1::ListEntryVersionsResponse response;
  const int kind = 1 + static_cast<int>(dice.Below(5));
  request.set_kind(static_cast<v1::EntryKind>(kind));
  request.set_name(EntryName(dice));
  const auto found = entries_.find({kind, request.name()});
  if (dice.OneIn(6)) {
    request.set_name(request.name() + "@1");
    const absl::Status status =
        coordinator_.Call("CatalogService.ListEntryVersions", request, &response);
    return Want(absl::IsInvalidArgument(status), "ListEntryVersions", request, status,
                "INVALID_ARGUMENT");
  }
  const absl::Status status =
      coordinator_.Call("CatalogService.ListEntryVersions", request, &response);
  if (found == entries_.end()) {
    return Want(absl::IsNotFound(status), "ListEntryVersions", request, status, "NOT_FOUND");
  }
  const auto& versions = found->second;
  bool same = status.ok() && response.versions_size() ==
                                 static_cast<int>(std::min<size_t>(versions.size(), kKeptVersions));
  for (int i = 0; same && i < response.versions_size(); ++i) {
    const Version& version = versions[versions.size() - 1 - static_cast<size_t>(i)];
    same = response.versions(i).version() == version.version &&
           response.versions(i).revision() == version.revision;
  }
  return Want(same, "ListEntryVersions", request, status,
              StrCat(versions.size(), " versions, not ", response.ShortDebugString()));
}

absl::Status RandomClient::UpdateEntry(Dice& dice) {
  v1::UpdateEntryRequest request;
  v1::UpdateEntryResponse response;
  const int kind = 1 + static_cast<int>(dice.Below(5));
  request.set_request_id(NewRequestId(dice));
  request.set_name(EntryName(dice));
  *request.mutable_value() = ParseValue(dice.Of(EntryTexts(kind)));
  const auto found = entries_.find({kind, request.name()});
  const int64_t version = found == entries_.end() ? 0 : found->second.back().version;
  const int64_t expected = std::max<int64_t>(
      0, dice.Of(std::vector<int64_t>{0, 0, version, version + 1, version == 1 ? 7 : version - 1}));
  Expect(expected, request.mutable_precondition());
  const absl::Status status = coordinator_.Call("CatalogService.UpdateEntry", request, &response);
  if (found == entries_.end()) {
    return Want(absl::IsNotFound(status) || (expected != 0 && IsRefusal(status)), "UpdateEntry",
                request, status, "NOT_FOUND");
  }
  if (expected != 0 && expected != version) {
    return Want(absl::IsAborted(status), "UpdateEntry", request, status, "ABORTED");
  }
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && response.entry().version() == version + 1,
                                 "UpdateEntry", request, status, StrCat("version ", version + 1)));
  found->second.push_back({version + 1, response.entry().revision(), response.entry().value()});
  last_entry_ = found->first;
  last_entry_revision_ = response.entry().revision();
  if (dice.OneIn(3)) {
    v1::UpdateEntryResponse again;
    const absl::Status repeated = coordinator_.Call("CatalogService.UpdateEntry", request, &again);
    return Want(repeated.ok() && again.entry().version() == version + 1, "UpdateEntry again",
                request, repeated, "the first answer");
  }
  return absl::OkStatus();
}

absl::Status RandomClient::DeleteEntry(Dice& dice) {
  v1::DeleteEntryRequest request;
  v1::DeleteEntryResponse response;
  const int kind = 1 + static_cast<int>(dice.Below(5));
  request.set_request_id(NewRequestId(dice));
  request.set_kind(static_cast<v1::EntryKind>(kind));
  request.set_name(EntryName(dice));
  const auto found = entries_.find({kind, request.name()});
  const int64_t version = found == entries_.end() ? 0 : found->second.back().version;
  const int64_t expected = dice.Of(std::vector<int64_t>{0, 0, version, version + 1});
  Expect(expected, request.mutable_precondition());
  const absl::Status status = coordinator_.Call("CatalogService.DeleteEntry", request, &response);
  if (found == entries_.end()) {
    return Want(absl::IsNotFound(status) || (expected != 0 && IsRefusal(status)), "DeleteEntry",
                request, status, "NOT_FOUND");
  }
  if (expected != 0 && expected != version) {
    return Want(absl::IsAborted(status), "DeleteEntry", request, status, "ABORTED");
  }
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && response.revision() > last_entry_revision_,
                                 "DeleteEntry", request, status, "OK with a later revision"));
  last_entry_ = found->first;
  last_entry_revision_ = response.revision();
  deleted_versions_[kind] = std::max(deleted_versions_[kind], version);
  entries_.erase(found);
  return absl::OkStatus();
}

absl::Status RandomClient::Watch(Dice& dice) {
  if (last_entry_revision_ == 0) return absl::OkStatus();
  v1::WatchRequest request;
  request.set_start_revision(last_entry_revision_);
  if (dice.OneIn(2)) request.add_kinds(static_cast<v1::EntryKind>(last_entry_.first));
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.timeout = absl::Seconds(20);
  limits.max_answers = 2;
  const absl::Status status = coordinator_.CallBytes(
      FindMethod("CatalogService.Watch"), {request.SerializeAsString()}, &answers, limits);
  if (absl::IsOutOfRange(status)) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(
      Want(status.ok() && answers.size() == 2, "Watch", request, status, "two messages"));
  v1::WatchResponse change;
  change.ParseFromString(answers[1]);
  const bool has = std::any_of(
      change.changes().begin(), change.changes().end(), [&](const v1::EntryChange& each) {
        return each.name() == last_entry_.second && each.kind() == last_entry_.first;
      });
  return Want(has && change.revision() == last_entry_revision_, "Watch", request, status,
              StrCat("the change of ", last_entry_.second, ", not ", change.ShortDebugString()));
}

// --- Puts ---------------------------------------------------------------------------------------

absl::Status RandomClient::BeginPut(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::BeginPutRequest first;
  v1::BeginPutRequest second;
  v1::BeginPutHeader& header = *first.mutable_header();
  header.set_request_id(NewRequestId(dice));
  header.set_session_id(session);
  Transfer transfer;
  transfer.slot = slot;
  transfer.session = session;
  std::set<std::string> used;
  bool mismatch = false;
  const bool has_rules = dice.OneIn(3);
  if (has_rules) {
    v1::RuleSet& rules = *header.mutable_rule_set()->mutable_value();
    rules.add_rules()->set_pattern(".*");
    if (dice.OneIn(2))
      *rules.mutable_rules(0)->mutable_spec() = SpecOf({"tp"});
    else
      rules.mutable_rules(0)->mutable_spec();
  }
  if (dice.OneIn(3)) header.mutable_mesh()->set_name(dice.OneIn(2) ? "default" : kTurnedMesh);
  int32_t replicas = dice.Of(std::vector<int32_t>{0, 0, 1, 2, 2});
  // An array without a name cannot have two replicas.
  const bool all_named = replicas == 2 && !dice.OneIn(8);
  const int64_t count = 1 + dice.Below(3);
  for (int64_t i = 0; i < count; ++i) {
    PutItem item;
    v1::PutTensor& tensor = *second.mutable_tensors()->add_tensors();
    const bool is_shared = dice.OneIn(8);
    if (is_shared) {
      item.name = StrCat("shared/s", dice.Below(kSharedNames));
      item.content = FromFloats({4, 4}, std::vector<float>(16, shared_->NewValue()));
    } else {
      if (all_named || !dice.OneIn(4)) item.name = OwnName(dice);
      static const auto* const dtypes = new std::vector<Dtype>{
          Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kU8, Dtype::kI64, Dtype::kC64};
      item.content = MakeContent(dice.Of(*dtypes), RandomShape(dice), dice.Next());
    }
    if (!item.name.empty() && !used.insert(item.name).second) item.name.clear();
    if (!item.name.empty() && !is_shared) {
      const auto named = names_.find(item.name);
      const int64_t version = named == names_.end() ? 0 : named->second.version;
      item.expected_version = dice.Of(
          std::vector<int64_t>{0, 0, 0, 0, version == 0 ? -1 : version, version == 0 ? 3 : -1});
      mismatch = mismatch || (version == 0 ? item.expected_version > 0 : item.expected_version < 0);
    }
    tensor.set_name(item.name);
    tensor.set_dtype(rpc::Encode(item.content.dtype));
    for (const int64_t size : item.content.shape) tensor.add_shape(size);
    DrawLayout(dice, item.content.shape.size(), has_rules && !item.name.empty(), &tensor);
    Expect(item.expected_version, tensor.mutable_precondition());
    transfer.items.push_back(std::move(item));
  }
  const bool has_nameless = std::any_of(transfer.items.begin(), transfer.items.end(),
                                        [](const PutItem& each) { return each.name.empty(); });
  if (all_named && has_nameless) replicas = 1;  // two tensors have drawn the same name
  header.set_replicas(replicas);
  bool is_bad = replicas == 2 && has_nameless;
  for (PutItem& item : transfer.items) {
    const auto named = names_.find(item.name);
    const Held* const before = named == names_.end() ? nullptr : FindHeld(named->second.array_id);
    item.replicas = replicas > 0 ? replicas : before == nullptr ? 1 : before->replicas;
  }
  if (!is_bad && dice.OneIn(3)) {
    is_bad = dice.OneIn(4);
    SHARDMESH_RETURN_IF_ERROR(
        DrawSource(dice, is_bad, &transfer, &header, second.mutable_tensors()));
  }
  if (!is_bad && dice.OneIn(4)) {
    is_bad = true;
    switch (dice.Below(10)) {
      case 0:
        header.set_session_id("nosuchsession");
        break;
      case 1:
        header.mutable_mesh()->set_name("nosuchmesh");
        break;
      case 2:
        header.mutable_mesh()->set_name("default@1");
        break;
      case 8:
        header.set_replicas(dice.OneIn(2) ? 3 : -1);
        break;
      case 3:
        second.mutable_tensors()->mutable_tensors(0)->set_dtype(v1::DTYPE_UNSPECIFIED);
        break;
      case 4:
        second.mutable_tensors()->mutable_tensors(0)->add_shape(-1);
        break;
      case 5:
        for (int i = 0; i < 17; ++i) second.mutable_tensors()->mutable_tensors(0)->add_shape(1);
        break;
      case 6:
        second.mutable_tensors()->mutable_tensors(0)->set_name(std::string(1025, 'n'));
        break;
      case 7:
        second.clear_tensors();
        break;
      default:
        // More than the workers have.
        second.mutable_tensors()->mutable_tensors(0)->clear_shape();
        second.mutable_tensors()->mutable_tensors(0)->clear_spec();
        second.mutable_tensors()->mutable_tensors(0)->mutable_spec();
        second.mutable_tensors()->mutable_tensors(0)->add_shape(int64_t{1} << 40);
    }
  }
  const std::vector<std::string> requests = {first.SerializeAsString(), second.SerializeAsString()};
  const MethodDescriptor* method = FindMethod("ArrayService.BeginPut");
  std::vector<std::string> answers;
  const absl::Status status = coordinator_.CallBytes(method, requests, &answers);
  if (is_bad) {
    return Want(IsRefusal(status), "BeginPut", second, status, "a refusal");
  }
  if (mismatch) return Want(absl::IsAborted(status), "BeginPut", second, status, "ABORTED");
  if (absl::IsResourceExhausted(status) && ReasonOf(status) == Reason::kMemoryLimit) {
    return absl::OkStatus();  // workers report released memory with their heartbeats
  }
  SHARDMESH_RETURN_IF_ERROR(
      Want(status.ok() && !answers.empty(), "BeginPut", second, status, "OK"));
  for (const std::string& answer : answers) {
    v1::BeginPutResponse part;
    part.ParseFromString(answer);
    transfer.begun.MergeFrom(part);
  }
  transfer.id = transfer.begun.transfer_id();
  bool fits = transfer.begun.assignments_size() == count &&
              transfer.begun.devices_size() == static_cast<int>(workers_.size());
  for (int i = 0; fits && i < count; ++i) {
    const v1::ArrayDescriptor& array = transfer.begun.assignments(i).array_descriptor();
    PutItem& item = transfer.items[static_cast<size_t>(i)];
    item.array_id = array.array_id();
    item.mesh_id = array.mesh_id();
    item.spec = array.spec();
    SHARDMESH_RETURN_IF_ERROR(
        CheckLayout(second.tensors().tensors(i),
                    header.has_mesh() ? header.mesh().name() : std::string("default"), array));
    fits = Shape(array.shape().begin(), array.shape().end()) == item.content.shape;
  }
  SHARDMESH_RETURN_IF_ERROR(
      Want(fits, "BeginPut", second, status, transfer.begun.ShortDebugString()));
  if (dice.OneIn(4)) {
    std::vector<std::string> again;
    const absl::Status repeated = coordinator_.CallBytes(method, requests, &again);
    v1::BeginPutResponse part;
    if (!again.empty()) part.ParseFromString(again[0]);
    SHARDMESH_RETURN_IF_ERROR(Want(repeated.ok() && part.transfer_id() == transfer.id,
                                   "BeginPut again", second, repeated, transfer.id));
  }
  if (transfers_.size() == kMostTransfers) {
    v1::AbortTransferRequest abort;
    abort.set_transfer_id(transfers_.front().id);
    SetIfThere(&abort, "session_id", transfers_.front().session);
    v1::AbortTransferResponse aborted;
    const absl::Status ended = coordinator_.Call("ArrayService.AbortTransfer", abort, &aborted);
    SHARDMESH_RETURN_IF_ERROR(
        Want(ended.ok() || transfers_.front().state != TransferState::kRunning, "AbortTransfer",
             abort, ended, "OK"));
    const std::string& source_path = transfers_.front().source_path;
    if (!source_path.empty()) std::filesystem::remove(source_path);
    transfers_.erase(transfers_.begin());
  }
  transfers_.push_back(std::move(transfer));
  return absl::OkStatus();
}

absl::Status RandomClient::PutTiles(Dice& dice) {
  Transfer* transfer = nullptr;
  for (Transfer& each : transfers_) {
    if (each.state == TransferState::kRunning && !each.is_sent) transfer = &each;
  }
  if (transfer == nullptr) return absl::OkStatus();
  if (!dice.OneIn(3)) {
    std::vector<Content> contents;
    for (const PutItem& item : transfer->items) contents.push_back(item.content);
    const absl::Status sent = SendTiles(transfer->begun, contents, absl::Seconds(60));
    if (absl::IsResourceExhausted(sent)) {
      return absl::OkStatus();  // several puts were begun that have no room together
    }
    if (!sent.ok()) return Violation(StrCat("PutTiles answered ", sent.ToString()));
    transfer->is_sent = true;
    return absl::OkStatus();
  }
  // Something that must be refused, and leaves nothing.
  const int64_t at = dice.Below(transfer->begun.assignments_size());
  const v1::PutAssignment& assignment = transfer->begun.assignments(static_cast<int>(at));
  SHARDMESH_ASSIGN_OR_RETURN(const ArrayDescriptor array,
                             rpc::Decode(assignment.array_descriptor()));
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, array.Tiling());
  const v1::DeviceEndpoint& device =
      transfer->begun.devices(static_cast<int>(dice.Below(transfer->begun.devices_size())));
  const Tile tile = tiling.TileOf(device.rank());
  v1::PutTilesRequest header;
  v1::TileHeader& opened = *header.mutable_header();
  opened.set_token(assignment.token());
  opened.set_array_id(array.array_id);
  for (const IndexRange& range : tile.ranges) {
    v1::IndexRange* to = opened.mutable_tile()->add_ranges();
    to->set_start(range.start);
    to->set_stop(range.stop);
  }
  opened.set_rank(device.rank());
  opened.set_size_bytes(tile.element_count() * BitsPerElement(array.dtype) / 8);
  v1::PutTilesRequest piece;
  const std::string bytes(static_cast<size_t>(std::min<int64_t>(opened.size_bytes(), 1000)), 'x');
  piece.mutable_piece()->set_data(bytes);
  piece.mutable_piece()->set_crc32c(Crc32c(bytes));
  piece.mutable_piece()->set_tile_crc32c(Crc32c(bytes) ^ 1);
  std::vector<v1::PutTilesRequest> messages = {header, piece};
  switch (dice.Below(8)) {
    case 0:
      messages[0].mutable_header()->set_token("no token");
      break;
    case 1:
      messages[0].mutable_header()->clear_token();
      break;
    case 2:
      messages[0].mutable_header()->set_size_bytes(opened.size_bytes() + 1);
      break;
    case 3:
      messages[0].mutable_header()->set_rank(device.rank() + 100);
      break;
    case 4:
      messages[1].mutable_piece()->set_offset_bytes(5);
      break;
    case 5:
      messages[0].mutable_header()->set_array_id("nosucharray");
      break;
    case 6:
      messages.erase(messages.begin());
      break;
    default:
      break;  // the checksum of the whole is wrong
  }
  std::vector<std::string> requests;
  for (const v1::PutTilesRequest& message : messages) {
    requests.push_back(message.SerializeAsString());
  }
  std::vector<std::string> answers;
  const Caller worker(device.endpoints(0).address());
  const absl::Status status =
      worker.CallBytes(FindMethod("TileService.PutTiles"), requests, &answers);
  return Want(IsRefusal(status) || absl::IsDataLoss(status), "PutTiles", messages[0], status,
              "a refusal");
}

absl::Status RandomClient::CommitTransfer(Dice& dice) {
  v1::CommitTransferRequest request;
  v1::CommitTransferResponse response;
  request.set_request_id(NewRequestId(dice));
  request.set_transfer_id(AnyTransferId(dice));
  Transfer* const transfer = FindTransfer(request.transfer_id());
  if (transfer == nullptr) {
    const absl::Status status =
        coordinator_.Call("ArrayService.CommitTransfer", request, &response);
    return Want(absl::IsNotFound(status), "CommitTransfer", request, status, "NOT_FOUND");
  }
  SetIfThere(&request, "session_id", transfer->session);
  if (transfer->state == TransferState::kDone) {
    if (dice.OneIn(2)) request = transfer->commit;
    const absl::Status status =
        coordinator_.Call("ArrayService.CommitTransfer", request, &response);
    if (sessions_[transfer->slot] != transfer->session && IsRefusal(status)) {
      return absl::OkStatus();
    }
    // Arrays that were released since are not to be promised again.
    bool is_gone = false;
    bool has_shared = false;
    for (const PutItem& item : transfer->items) {
      const bool is_shared = absl::StartsWith(item.name, "shared/");
      has_shared = has_shared || is_shared;
      is_gone = is_gone || (!is_shared && FindHeld(item.array_id) == nullptr);
    }
    if (is_gone || (has_shared && absl::IsNotFound(status))) {
      return Want(absl::IsNotFound(status), "CommitTransfer again", request, status,
                  "NOT_FOUND of arrays that were released");
    }
    const bool same =
        std::equal(response.array_ids().begin(), response.array_ids().end(),
                   transfer->result.array_ids().begin(), transfer->result.array_ids().end());
    return Want(status.ok() && same && response.revision() == transfer->result.revision(),
                "CommitTransfer again", request, status, "the first answer");
  }
  if (transfer->state == TransferState::kRunning && !transfer->is_sent) {
    return CommitWithoutTiles(request, transfer);
  }
  const absl::Status status = coordinator_.Call("ArrayService.CommitTransfer", request, &response);
  if (transfer->state == TransferState::kEnded) {
    return Want(!status.ok() && !absl::IsInternal(status) && !absl::IsUnknown(status),
                "CommitTransfer of an ended one", request, status, "why it ended");
  }
  bool mismatch = false;
  bool has_shared = false;
  for (const PutItem& item : transfer->items) {
    if (absl::StartsWith(item.name, "shared/")) has_shared = true;
    if (item.name.empty() || item.expected_version == 0) continue;
    const auto named = names_.find(item.name);
    const int64_t version = named == names_.end() ? 0 : named->second.version;
    mismatch = mismatch || version != std::max<int64_t>(item.expected_version, 0);
  }
  if (mismatch || (has_shared && !status.ok())) {
    transfer->state = TransferState::kEnded;
    return Want(absl::IsAborted(status), "CommitTransfer", request, status, "ABORTED");
  }
  if (!transfer->source_path.empty() && ReasonOf(status) == Reason::kMemoryLimit) {
    transfer->state = TransferState::kEnded;  // several puts were begun that have no room together
    return absl::OkStatus();
  }
  SHARDMESH_RETURN_IF_ERROR(
      Want(status.ok() && response.array_ids_size() == static_cast<int>(transfer->items.size()),
           "CommitTransfer", request, status, "OK"));
  transfer->state = TransferState::kDone;
  transfer->commit = request;
  transfer->result = response;
  for (const PutItem& item : transfer->items) {
    if (absl::StartsWith(item.name, "shared/")) continue;
    Held& held = arrays_[item.array_id];
    held.content = item.content;
    held.spec = item.spec;
    held.mesh_id = item.mesh_id;
    held.replicas = item.replicas;
    if (item.name.empty()) {
      held.pins.insert(transfer->slot);
    } else {
      PointName(item.name, item.array_id, response.revision());
    }
  }
  return absl::OkStatus();
}

absl::Status RandomClient::CommitWithoutTiles(const v1::CommitTransferRequest& request,
                                              Transfer* transfer) {
  // On a busy machine the time may be over before the coordinator has heard of the call.
  for (const absl::Duration patience : {absl::Milliseconds(400), absl::Seconds(5)}) {
    v1::CommitTransferResponse response;
    const absl::Status status =
        coordinator_.Call("ArrayService.CommitTransfer", request, &response, patience);
    // The second call may also learn that the first one ended it meanwhile.
    const bool is_second = patience > absl::Seconds(1);
    SHARDMESH_RETURN_IF_ERROR(
        Want(absl::IsDeadlineExceeded(status) || (is_second && IsRefusal(status)),
             "CommitTransfer without tiles", request, status, "DEADLINE_EXCEEDED"));
    const absl::Time end = absl::Now() + absl::Seconds(1);
    do {
      v1::GetOperationRequest ask;
      v1::GetOperationResponse told;
      ask.set_operation_id(transfer->id);
      const absl::Status asked = coordinator_.Call("OperationService.GetOperation", ask, &told);
      SHARDMESH_RETURN_IF_ERROR(Want(asked.ok(), "GetOperation", ask, asked, "OK"));
      if (told.operation().state() != v1::OPERATION_STATE_RUNNING) {
        transfer->state = TransferState::kEnded;
        return absl::OkStatus();
      }
      absl::SleepFor(absl::Milliseconds(10));
    } while (absl::Now() < end);
  }
  return Violation(StrCat("the commit of ", transfer->id, " was over twice, and it still runs"));
}

absl::Status RandomClient::AbortTransfer(Dice& dice) {
  v1::AbortTransferRequest request;
  v1::AbortTransferResponse response;
  request.set_transfer_id(AnyTransferId(dice));
  request.set_reason("the model wants it");
  Transfer* const transfer = FindTransfer(request.transfer_id());
  if (transfer != nullptr) SetIfThere(&request, "session_id", transfer->session);
  const absl::Status status = coordinator_.Call("ArrayService.AbortTransfer", request, &response);
  if (transfer == nullptr || transfer->state != TransferState::kRunning) {
    return Want(status.ok() || IsRefusal(status), "AbortTransfer", request, status, "OK");
  }
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "AbortTransfer", request, status, "OK"));
  transfer->state = TransferState::kEnded;
  return absl::OkStatus();
}

// --- Gets and names -----------------------------------------------------------------------------

absl::Status RandomClient::ReadAndCompare(const std::string& array_id, int slot, Dice& dice) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::BeginGetRequest request;
  v1::BeginGetResponse response;
  request.set_session_id(session);
  request.mutable_array()->set_array_id(array_id);
  request.set_accept_second_copy(dice.OneIn(2));
  const absl::Status status = coordinator_.Call("ArrayService.BeginGet", request, &response);
  Held* const held = FindHeld(array_id);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() == (held != nullptr), "BeginGet", request, status,
                                 held == nullptr ? "NOT_FOUND" : "OK"));
  if (held == nullptr) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(Want(response.pinned() == (held->pins.count(slot) == 0), "BeginGet",
                                 request, status, "the right `pinned`"));
  held->pins.insert(slot);
  if (!held->spec.unreduced_axes().empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> bytes = FetchTiles(response, absl::Seconds(60));
  if (!bytes.ok()) {
    return Violation(StrCat("GetTiles of ", array_id, ": ", bytes.status().ToString()));
  }
  if (held->bytes_known && !HasBytes(held->content, *bytes)) {
    return Violation(StrCat("array ", array_id, " has other bytes than were put"));
  }
  return absl::OkStatus();
}

absl::Status RandomClient::BeginGet(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  v1::BeginGetRequest request;
  v1::BeginGetResponse response;
  if (dice.OneIn(8)) {
    request.set_session_id("nosuchsession");
    request.mutable_array()->set_array_id(AnyArrayId(dice));
    const absl::Status status = coordinator_.Call("ArrayService.BeginGet", request, &response);
    return Want(absl::IsNotFound(status), "BeginGet", request, status, "NOT_FOUND");
  }
  if (dice.OneIn(3)) return ReadAndCompare(AnyArrayId(dice), slot, dice);
  if (dice.OneIn(3)) return ReadSlice(dice);
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  request.set_session_id(session);
  if (dice.OneIn(4)) {
    // A shared name: its content must be one complete tensor.
    request.mutable_array()->set_name(StrCat("shared/s", dice.Below(kSharedNames)));
    const absl::Status status = coordinator_.Call("ArrayService.BeginGet", request, &response);
    // Others replace the array of the name at any time, and nobody takes the name away.
    if (absl::IsNotFound(status) && !seen_.contains(request.array().name())) {
      return absl::OkStatus();
    }
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "BeginGet", request, status, "OK"));
    seen_.insert(request.array().name());
    const absl::StatusOr<std::string> bytes = FetchTiles(response, absl::Seconds(60));
    if (!bytes.ok()) return Violation(StrCat("GetTiles: ", bytes.status().ToString()));
    const std::vector<float> values = FloatsOf({Dtype::kF32, {4, 4}, *bytes});
    for (const float value : values) {
      if (value != values[0] || !shared_->IsValue(value)) {
        return Violation(StrCat("the shared name has ", values[0], " and ", value));
      }
    }
    if (response.pinned()) {
      v1::ReleaseArraysRequest release;
      v1::ReleaseArraysResponse released;
      release.set_session_id(session);
      release.add_array_ids(response.array().array_descriptor().array_id());
      const absl::Status done = coordinator_.Call("ArrayService.ReleaseArrays", release, &released);
      return Want(done.ok() && released.released() == 1, "ReleaseArrays", release, done, "1");
    }
    return absl::OkStatus();
  }
  request.mutable_array()->set_name(OwnName(dice));
  const auto named = names_.find(request.array().name());
  std::string wanted = named == names_.end() ? "" : named->second.array_id;
  if (dice.OneIn(4)) {
    // An older version exists as long as its array.
    wanted.clear();
    int64_t version = 1 + dice.Below(5);
    for (const auto& [id, held] : arrays_) {
      for (const auto& [name, at] : held.versions) {
        if (name == request.array().name() && dice.OneIn(2)) {
          wanted = id;
          version = at;
        }
      }
    }
    for (const auto& [id, held] : arrays_) {
      if (wanted.empty() && held.versions.count({request.array().name(), version}) > 0) wanted = id;
    }
    request.mutable_array()->set_version(version);
  }
  const absl::Status status = coordinator_.Call("ArrayService.BeginGet", request, &response);
  if (wanted.empty()) {
    return Want(absl::IsNotFound(status), "BeginGet", request, status, "NOT_FOUND");
  }
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() &&
                                     response.array().array_descriptor().array_id() == wanted &&
                                     response.pinned() == (arrays_[wanted].pins.count(slot) == 0),
                                 "BeginGet", request, status, StrCat("array ", wanted)));
  arrays_[wanted].pins.insert(slot);
  return ReadAndCompare(wanted, slot, dice);
}

bool RandomClient::HasWish(const v1::Array& array, int64_t replicas) {
  if (replicas < 2) return !array.has_replicas();
  // An array that is available is complete itself.
  const int32_t least = array.state() == v1::ARRAY_STATE_AVAILABLE ? 1 : 0;
  const int32_t complete = array.replicas().complete();
  return array.replicas().wanted() == replicas && complete >= least && complete <= replicas;
}

absl::Status RandomClient::AwaitReplicas(const std::string& array_id) const {
  v1::DescribeArrayRequest request;
  request.mutable_array()->set_array_id(array_id);
  const absl::Time deadline = absl::Now() + kReplicaTakes;
  for (;;) {
    v1::DescribeArrayResponse response;
    const absl::Status status = coordinator_.Call("ArrayService.DescribeArray", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "DescribeArray", request, status, "OK"));
    const v1::ArrayReplicas& replicas = response.array().replicas();
    // Other clients may have taken the memory since the put began.
    if (replicas.complete() == 2 || absl::StrContains(replicas.failure(), "MEMORY_LIMIT")) {
      return absl::OkStatus();
    }
    if (absl::Now() > deadline) {
      return Violation(StrCat("array ", array_id, " has no second replica: ",
                              response.ShortDebugString().substr(0, 800)));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
}

absl::Status RandomClient::DescribeArray(Dice& dice) {
  v1::DescribeArrayRequest request;
  v1::DescribeArrayResponse response;
  std::string wanted;
  if (dice.OneIn(2)) {
    request.mutable_array()->set_name(OwnName(dice));
    const auto named = names_.find(request.array().name());
    if (named != names_.end()) wanted = named->second.array_id;
  } else {
    request.mutable_array()->set_array_id(AnyArrayId(dice));
    if (FindHeld(request.array().array_id()) != nullptr) wanted = request.array().array_id();
  }
  const absl::Status status = coordinator_.Call("ArrayService.DescribeArray", request, &response);
  if (wanted.empty()) {
    return Want(absl::IsNotFound(status), "DescribeArray", request, status, "NOT_FOUND");
  }
  const v1::Array& array = response.array();
  const Held& held = arrays_[wanted];
  const Shape shape(array.array_descriptor().shape().begin(),
                    array.array_descriptor().shape().end());
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && array.array_descriptor().array_id() == wanted &&
                                     array.state() == v1::ARRAY_STATE_AVAILABLE &&
                                     shape == held.content.shape &&
                                     array.array_descriptor().mesh_id() == held.mesh_id &&
                                     google::protobuf::util::MessageDifferencer::Equals(
                                         array.array_descriptor().spec(), held.spec) &&
                                     HasWish(array, held.replicas),
                                 "DescribeArray", request, status,
                                 StrCat("available ", wanted, " that wants ", held.replicas,
                                        " replicas, not ", array.ShortDebugString())));
  // Arrays without names are not copied.
  if (held.replicas < 2 || held.names.empty() || !dice.OneIn(3)) return absl::OkStatus();
  return AwaitReplicas(wanted);
}

absl::Status RandomClient::FindContent(Dice& dice) {
  const std::string id = AnyArrayId(dice);
  const Held* const held = FindHeld(id);
  v1::FindContentRequest request;
  v1::ContentTensor& tensor = *request.add_tensors();
  tensor.set_dtype(held == nullptr ? v1::DTYPE_I8 : rpc::Encode(held->content.dtype));
  if (held == nullptr) {
    tensor.add_shape(1'234'567);
  } else {
    tensor.mutable_shape()->Add(held->content.shape.begin(), held->content.shape.end());
  }
  if (dice.OneIn(8)) request.set_page_token("nosuchtoken");
  bool is_listed = false;
  for (int page = 0; page < 100; ++page) {
    v1::FindContentResponse response;
    const absl::Status status = coordinator_.Call("ArrayService.FindContent", request, &response);
    if (request.page_token() == "nosuchtoken") {
      return Want(absl::IsInvalidArgument(status), "FindContent", request, status,
                  "INVALID_ARGUMENT");
    }
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && response.found_by_origin().empty(), "FindContent",
                                   request, status, "OK"));
    for (const v1::ContentCandidate& candidate : response.candidates()) {
      is_listed = is_listed || candidate.array_descriptor().array_id() == id;
    }
    request.set_page_token(response.next_page_token());
    if (request.page_token().empty()) break;
  }
  if (held != nullptr && !held->is_known) return absl::OkStatus();
  // A partial sum has no elements of its own.
  const bool is_wanted = held != nullptr && held->spec.unreduced_axes().empty();
  return Want(is_listed == is_wanted, "FindContent", request, absl::OkStatus(),
              StrCat(id, is_wanted ? " in the list" : " not in the list"));
}

absl::Status RandomClient::ListArrays(Dice& dice) {
  v1::ListArraysRequest request;
  if (dice.OneIn(8)) {
    request.set_page_size(-1);
    v1::ListArraysResponse response;
    const absl::Status status = coordinator_.Call("ArrayService.ListArrays", request, &response);
    return Want(absl::IsInvalidArgument(status), "ListArrays", request, status, "INVALID_ARGUMENT");
  }
  request.set_prefix(StrCat("c", number_, "/"));
  request.set_page_size(static_cast<int32_t>(dice.Of(std::vector<int64_t>{0, 1, 2, 1000, 9999})));
  std::map<std::string, std::pair<std::string, int64_t>> listed;
  for (int page = 0; page < 100; ++page) {
    v1::ListArraysResponse response;
    const absl::Status status = coordinator_.Call("ArrayService.ListArrays", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "ListArrays", request, status, "OK"));
    for (const v1::Array& array : response.arrays()) {
      listed[array.name()] = {array.array_descriptor().array_id(), array.name_version()};
      const auto own = names_.find(array.name());
      const Held* const held = own == names_.end() ? nullptr : FindHeld(own->second.array_id);
      if (held != nullptr && !HasWish(array, held->replicas)) {
        return Violation(StrCat("ListArrays has an array that is to want ", held->replicas,
                                " replicas: ", array.ShortDebugString().substr(0, 800)));
      }
    }
    if (response.next_page_token().empty()) break;
    request.set_page_token(response.next_page_token());
  }
  std::map<std::string, std::pair<std::string, int64_t>> wanted;
  for (const auto& [name, at] : names_) wanted[name] = {at.array_id, at.version};
  if (listed == wanted) return absl::OkStatus();
  return Violation(
      StrCat("ListArrays has ", listed.size(), " names of ", wanted.size(), ", or other arrays"));
}

absl::Status RandomClient::MoveName(Dice& dice) {
  v1::MoveNameRequest request;
  v1::MoveNameResponse response;
  request.set_request_id(NewRequestId(dice));
  request.set_name(OwnName(dice));
  request.set_array_id(AnyArrayId(dice));
  const auto named = names_.find(request.name());
  const int64_t version = named == names_.end() ? 0 : named->second.version;
  const int64_t expected =
      dice.Of(std::vector<int64_t>{0, 0, 0, version == 0 ? -1 : version, version + 1, -1});
  Expect(expected, request.mutable_precondition());
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  SetIfThere(&request, "session_id", session);
  if (dice.OneIn(10)) {
    request.set_name(dice.OneIn(2) ? "" : std::string(1025, 'n'));
    const absl::Status status = coordinator_.Call("ArrayService.MoveName", request, &response);
    return Want(absl::IsInvalidArgument(status), "MoveName", request, status, "INVALID_ARGUMENT");
  }
  const absl::Status status = coordinator_.Call("ArrayService.MoveName", request, &response);
  const bool mismatch = expected != 0 && version != std::max<int64_t>(expected, 0);
  const bool is_there = FindHeld(request.array_id()) != nullptr;
  if (mismatch || !is_there) {
    return Want((mismatch && absl::IsAborted(status)) || (!is_there && absl::IsNotFound(status)),
                "MoveName", request, status,
                StrCat(mismatch ? "ABORTED " : "", is_there ? "" : "NOT_FOUND"));
  }
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && response.version() > version, "MoveName", request,
                                 status, "OK with a later version"));
  PointName(request.name(), request.array_id(), response.version());
  if (dice.OneIn(3)) {
    v1::MoveNameResponse again;
    const absl::Status repeated = coordinator_.Call("ArrayService.MoveName", request, &again);
    SHARDMESH_RETURN_IF_ERROR(Want(repeated.ok() && again.version() == response.version(),
                                   "MoveName again", request, repeated, "the first answer"));
    request.set_name(request.name() + "x");
    const absl::Status reused = coordinator_.Call("ArrayService.MoveName", request, &again);
    return Want(IsRefusal(reused), "MoveName with another's request id", request, reused,
                "a refusal");
  }
  return absl::OkStatus();
}

absl::Status RandomClient::DeleteName(Dice& dice) {
  v1::DeleteNameRequest request;
  v1::DeleteNameResponse response;
  request.set_request_id(NewRequestId(dice));
  request.set_name(OwnName(dice));
  const auto named = names_.find(request.name());
  const int64_t version = named == names_.end() ? 0 : named->second.version;
  const int64_t expected = dice.Of(std::vector<int64_t>{0, 0, version, version + 1});
  Expect(expected, request.mutable_precondition());
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session,
                             Session(static_cast<int>(dice.Below(2)), dice));
  SetIfThere(&request, "session_id", session);
  const absl::Status status = coordinator_.Call("ArrayService.DeleteName", request, &response);
  const bool mismatch = expected != 0 && expected != version;
  if (version == 0 || mismatch) {
    return Want((version == 0 && absl::IsNotFound(status)) || (mismatch && absl::IsAborted(status)),
                "DeleteName", request, status, version == 0 ? "NOT_FOUND" : "ABORTED");
  }
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && response.revision() > version, "DeleteName",
                                 request, status, "OK with a later revision"));
  DropName(request.name());
  if (dice.OneIn(3)) {
    v1::DeleteNameResponse again;
    const absl::Status repeated = coordinator_.Call("ArrayService.DeleteName", request, &again);
    return Want(repeated.ok() && again.revision() == response.revision(), "DeleteName again",
                request, repeated, "the first answer");
  }
  return absl::OkStatus();
}

absl::Status RandomClient::ReleaseArrays(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::ReleaseArraysRequest request;
  v1::ReleaseArraysResponse response;
  request.set_session_id(session);
  if (dice.OneIn(8)) {
    if (dice.OneIn(2)) {
      request.set_session_id("nosuchsession");
    } else {
      for (int i = 0; i < 10'001; ++i) request.add_array_ids("a");
    }
    const absl::Status status = coordinator_.Call("ArrayService.ReleaseArrays", request, &response);
    return Want(IsRefusal(status), "ReleaseArrays", request, status, "a refusal");
  }
  std::set<std::string> pinned;
  const int64_t count = dice.Below(4);
  for (int64_t i = 0; i < count; ++i) {
    const std::string id = AnyArrayId(dice);
    request.add_array_ids(id);
    const Held* held = FindHeld(id);
    if (held != nullptr && held->pins.count(slot) > 0) pinned.insert(id);
  }
  const absl::Status status = coordinator_.Call("ArrayService.ReleaseArrays", request, &response);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && response.released() == std::ssize(pinned),
                                 "ReleaseArrays", request, status,
                                 StrCat(pinned.size(), " released, not ", response.released())));
  for (const std::string& id : pinned) {
    arrays_[id].pins.erase(slot);
    ReleaseIfUnheld(id);
  }
  return absl::OkStatus();
}

// --- Workers ------------------------------------------------------------------------------------

absl::Status RandomClient::GetTiles(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  const std::string id = AnyArrayId(dice);
  Held* const held = FindHeld(id);
  if (held == nullptr) return ReadAndCompare(id, slot, dice);
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::BeginGetRequest begin;
  v1::BeginGetResponse begun;
  begin.set_session_id(session);
  begin.mutable_array()->set_array_id(id);
  const absl::Status status = coordinator_.Call("ArrayService.BeginGet", begin, &begun);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "BeginGet", begin, status, "OK"));
  held->pins.insert(slot);
  const v1::DeviceEndpoint& device =
      begun.devices(static_cast<int>(dice.Below(begun.devices_size())));
  v1::GetTilesRequest request;
  v1::TileSelector& tile = *request.add_tiles();
  tile.set_array_id(id);
  tile.set_token(begun.token());
  bool is_bad = true;
  switch (dice.Below(6)) {
    case 0:
      tile.set_token("no token");
      break;
    case 1:
      tile.clear_token();
      break;
    case 2:
      tile.set_array_id("nosucharray");
      break;
    case 3:
      for (int i = 0; i < 10'001; ++i) request.add_tiles()->set_array_id("a");
      break;
    case 4:
      for (size_t i = 0; i < held->content.shape.size() + 1; ++i) {
        tile.mutable_tile()->add_ranges()->set_stop(int64_t{1} << 40);
      }
      break;
    default:
      is_bad = false;
  }
  std::vector<std::string> answers;
  const Caller worker(device.endpoints(0).address());
  const absl::Status got =
      worker.CallBytes(FindMethod("TileService.GetTiles"), {request.SerializeAsString()}, &answers);
  return Want(is_bad ? IsRefusal(got) : got.ok(), "GetTiles", request, got,
              is_bad ? "a refusal" : "OK");
}

absl::Status RandomClient::Identify(Dice& dice) {
  const size_t at = static_cast<size_t>(dice.Below(std::ssize(workers_)));
  v1::IdentifyRequest request;
  v1::IdentifyResponse response;
  const absl::Status status = workers_[at]->Call("TileService.Identify", request, &response);
  return Want(status.ok() && response.identity() == worker_identities_[at] &&
                  response.cluster_id() == cluster_id_,
              "Identify", request, status, worker_identities_[at]);
}

absl::Status RandomClient::Attach(Dice& dice) {
  internal::v1::AttachRequest request;
  switch (dice.Below(4)) {
    case 0:
      request.mutable_heartbeat();
      break;
    case 1:
      request.mutable_hello();
      break;
    default: {
      // A complete hello whose endpoint leads elsewhere, under an identity that is taken or is not.
      internal::v1::Hello& hello = *request.mutable_hello();
      hello.set_identity(dice.OneIn(2) ? worker_identities_[0] : "stranger");
      hello.set_incarnation(dice.Next() | 1);
      hello.mutable_protocol()->set_min(1);
      hello.mutable_protocol()->set_max(1);
      hello.add_endpoints()->set_address(address_);
      hello.set_nonce(std::string(16, 'n'));
      hello.mutable_capacity()->set_memory_bytes(1 << 20);
      if (dice.OneIn(3)) hello.set_term(int64_t{1} << 40);
      if (dice.OneIn(3)) hello.set_cluster_id("another");
      if (dice.OneIn(3)) hello.mutable_protocol()->set_min(99);
    }
  }
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.timeout = absl::Seconds(30);
  limits.max_answers = 1;
  const absl::Status status = coordinator_.CallBytes(
      FindMethod("AttachService.Attach"), {request.SerializeAsString()}, &answers, limits);
  return Want(IsRefusal(status) || absl::IsUnavailable(status), "Attach", request, status,
              "a refusal");
}

absl::Status RandomClient::Exchange(Dice& dice) {
  internal::v1::ExchangeRequest request;
  request.set_kind(static_cast<internal::v1::FrameKind>(dice.Below(7)));
  request.set_epoch(dice.Below(3));
  if (dice.OneIn(2)) Mutate(dice, &request);
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.timeout = absl::Seconds(30);
  const absl::Status status = dice.Of(exchanges_)
                                  ->CallBytes(FindMethod("ExchangeService.Exchange"),
                                              {request.SerializeAsString()}, &answers, limits);
  return Want(IsRefusal(status) || absl::IsDataLoss(status), "Exchange", request, status,
              "a refusal");
}

// --- Operations ---------------------------------------------------------------------------------

absl::Status RandomClient::GetOperation(Dice& dice) {
  v1::GetOperationRequest request;
  v1::GetOperationResponse response;
  request.set_operation_id(AnyTransferId(dice));
  const Transfer* transfer = FindTransfer(request.operation_id());
  const absl::Status status =
      coordinator_.Call("OperationService.GetOperation", request, &response);
  if (transfer == nullptr) {
    return Want(absl::IsNotFound(status), "GetOperation", request, status, "NOT_FOUND");
  }
  const v1::OperationState state = response.operation().state();
  const bool holds = transfer->state == TransferState::kDone ? state == v1::OPERATION_STATE_DONE
                     : transfer->state == TransferState::kRunning
                         ? state == v1::OPERATION_STATE_RUNNING
                         : state != v1::OPERATION_STATE_DONE;
  return Want(status.ok() && holds && response.operation().done() <= response.operation().total(),
              "GetOperation", request, status, response.ShortDebugString());
}

absl::Status RandomClient::ListOperations(Dice& dice) {
  v1::ListOperationsRequest request;
  if (dice.OneIn(3)) {
    if (dice.OneIn(3)) {
      request.set_page_size(-1);
    } else if (dice.OneIn(2)) {
      request.set_page_token("nosuchpage");
    } else {
      request.add_states(v1::OPERATION_STATE_UNSPECIFIED);
    }
    v1::ListOperationsResponse response;
    const absl::Status status =
        coordinator_.Call("OperationService.ListOperations", request, &response);
    return Want(absl::IsInvalidArgument(status), "ListOperations", request, status,
                "INVALID_ARGUMENT");
  }
  request.set_page_size(static_cast<int32_t>(dice.Of(std::vector<int64_t>{0, 1, 2, 1000, 9999})));
  const bool is_of_state = dice.OneIn(2);
  if (is_of_state) request.add_states(v1::OPERATION_STATE_DONE);
  int64_t last = 0;
  do {
    v1::ListOperationsResponse response;
    const absl::Status status =
        coordinator_.Call("OperationService.ListOperations", request, &response);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "ListOperations", request, status, "OK"));
    for (const v1::Operation& each : response.operations()) {
      if (each.number() <= last || (is_of_state && each.state() != v1::OPERATION_STATE_DONE)) {
        return Violation(StrCat("ListOperations has ", each.ShortDebugString(), " behind ", last));
      }
      last = each.number();
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

// Only the confirmation: other clients change the cluster as they like.
absl::Status RandomClient::WatchCluster(Dice& dice) {
  v1::WatchClusterRequest request;
  const bool is_refused = dice.OneIn(3);
  if (is_refused) {
    request.add_subjects(v1::CLUSTER_SUBJECT_UNSPECIFIED);
  } else if (dice.OneIn(2)) {
    request.add_subjects(v1::CLUSTER_SUBJECT_NAMES);
  }
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.max_answers = 1;
  const absl::Status status = coordinator_.CallBytes(
      FindMethod("ClusterService.WatchCluster"), {request.SerializeAsString()}, &answers, limits);
  if (is_refused) {
    return Want(absl::IsInvalidArgument(status), "WatchCluster", request, status,
                "INVALID_ARGUMENT");
  }
  v1::WatchClusterResponse first;
  if (!answers.empty()) first.ParseFromString(answers.front());
  return Want(status.ok() && first.has_started(), "WatchCluster", request, status,
              first.ShortDebugString());
}

absl::Status RandomClient::WatchOperation(Dice& dice) {
  v1::WatchOperationRequest request;
  request.set_operation_id(AnyTransferId(dice));
  const Transfer* transfer = FindTransfer(request.operation_id());
  std::vector<std::string> answers;
  Caller::Limits limits;
  // A running transfer is watched only for its first message.
  if (transfer != nullptr && transfer->state == TransferState::kRunning) limits.max_answers = 1;
  const absl::Status status =
      coordinator_.CallBytes(FindMethod("OperationService.WatchOperation"),
                             {request.SerializeAsString()}, &answers, limits);
  if (transfer == nullptr) {
    return Want(absl::IsNotFound(status), "WatchOperation", request, status, "NOT_FOUND");
  }
  v1::WatchOperationResponse last;
  if (!answers.empty()) last.ParseFromString(answers.back());
  const v1::OperationState state = last.operation().state();
  const bool holds =
      transfer->state == TransferState::kDone ? state == v1::OPERATION_STATE_DONE
      : transfer->state == TransferState::kRunning
          ? state == v1::OPERATION_STATE_RUNNING
          : state == v1::OPERATION_STATE_FAILED || state == v1::OPERATION_STATE_CANCELLED;
  return Want(status.ok() && holds, "WatchOperation", request, status, last.ShortDebugString());
}

// A get that reads nothing, and reports that it did.
absl::Status RandomClient::ReportGet(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::ReportGetRequest first;
  v1::ReportGetRequest last;
  v1::ReportGetHeader& header = *first.mutable_header();
  header.set_session_id(session);
  header.set_description(OwnName(dice));
  header.set_total(2);
  header.set_total_bytes(dice.Below(1'000'000));
  last.set_done(2);
  last.set_done_bytes(header.total_bytes());
  const bool is_failed = dice.OneIn(3);
  if (is_failed) {
    rpc::Encode(absl::DataLossError("a tile is broken"), last.mutable_result());
  } else {
    last.mutable_result();
  }
  const bool is_bad = dice.OneIn(4);
  if (is_bad) {
    switch (dice.Below(3)) {
      case 0:
        header.set_session_id("nosuchsession");
        break;
      case 1:
        header.set_total_bytes(-1);
        break;
      default:
        first.clear_header();
    }
  }
  std::vector<std::string> answers;
  const absl::Status status =
      coordinator_.CallBytes(FindMethod("OperationService.ReportGet"),
                             {first.SerializeAsString(), last.SerializeAsString()}, &answers);
  if (is_bad) return Want(IsRefusal(status), "ReportGet", first, status, "a refusal");
  v1::ReportGetResponse response;
  if (!answers.empty()) response.ParseFromString(answers.front());
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && !response.operation_id().empty(), "ReportGet",
                                 first, status, "the id of an operation"));
  v1::GetOperationRequest request;
  v1::GetOperationResponse shown;
  request.set_operation_id(response.operation_id());
  const absl::Status found = coordinator_.Call("OperationService.GetOperation", request, &shown);
  const v1::Operation& operation = shown.operation();
  return Want(
      found.ok() && operation.kind() == v1::OPERATION_KIND_GET &&
          operation.done_bytes() == last.done_bytes() &&
          operation.state() == (is_failed ? v1::OPERATION_STATE_FAILED : v1::OPERATION_STATE_DONE),
      "GetOperation", request, found, operation.ShortDebugString());
}

absl::Status RandomClient::CancelOperation(Dice& dice) {
  v1::CancelOperationRequest request;
  v1::CancelOperationResponse response;
  request.set_operation_id(AnyTransferId(dice));
  Transfer* const transfer = FindTransfer(request.operation_id());
  if (transfer != nullptr) SetIfThere(&request, "session_id", transfer->session);
  const absl::Status status =
      coordinator_.Call("OperationService.CancelOperation", request, &response);
  if (transfer == nullptr) {
    return Want(absl::IsNotFound(status), "CancelOperation", request, status, "NOT_FOUND");
  }
  if (transfer->state != TransferState::kRunning) {
    return Want(status.ok() || IsRefusal(status), "CancelOperation", request, status, "OK");
  }
  transfer->state = TransferState::kEnded;
  return Want(status.ok(), "CancelOperation", request, status, "OK");
}

absl::Status RandomClient::ForceCancelOperation(Dice& dice) {
  v1::ForceCancelOperationRequest request;
  v1::ForceCancelOperationResponse response;
  request.set_operation_id(AnyTransferId(dice));
  Transfer* const transfer = FindTransfer(request.operation_id());
  const absl::Status status =
      coordinator_.Call("AdminService.ForceCancelOperation", request, &response);
  if (transfer == nullptr) {
    return Want(absl::IsNotFound(status), "ForceCancelOperation", request, status, "NOT_FOUND");
  }
  if (transfer->state == TransferState::kRunning) transfer->state = TransferState::kEnded;
  return Want(status.ok(), "ForceCancelOperation", request, status, "OK");
}

// --- Steps --------------------------------------------------------------------------------------

absl::StatusOr<v1::Operand> RandomClient::AnyMatrix(Dice& dice, Content* content) {
  v1::Operand operand;
  std::vector<std::string> ids;
  for (const auto& [id, held] : arrays_) {
    const Shape& shape = held.content.shape;
    if (held.content.dtype == Dtype::kF32 && shape.size() == 2 && shape[0] > 0 && shape[1] > 0 &&
        shape[0] * shape[1] < 1000 && held.bytes_known && held.spec.unreduced_axes().empty() &&
        held.mesh_id == "default" &&  // the operands of a step lie on one mesh
        IsSmall(held.content)) {
      ids.push_back(id);
    }
  }
  if (!ids.empty() && !dice.OneIn(3)) {
    const std::string id = dice.Of(ids);
    operand.mutable_array()->set_array_id(id);
    *content = arrays_[id].content;
    return operand;
  }
  *content = MakeContent(Dtype::kF32, {1 + dice.Below(6), 1 + dice.Below(6)}, dice.Next());
  operand.mutable_literal()->set_dtype(v1::DTYPE_F32);
  for (const int64_t size : content->shape) operand.mutable_literal()->add_shape(size);
  operand.mutable_literal()->set_data(content->bytes);
  return operand;
}

absl::Status RandomClient::TakeOutput(const v1::StepOutput& output, const Content& expected,
                                      bool bytes_known, int slot, const std::string& name) {
  const v1::ArrayDescriptor& array = output.array().array_descriptor();
  Held& held = arrays_[array.array_id()];
  held.content = expected;
  held.content.shape = Shape(array.shape().begin(), array.shape().end());
  held.spec = array.spec();
  held.bytes_known = bytes_known;
  held.pins.insert(slot);
  if (bytes_known && held.content.shape != expected.shape) {
    return Violation(StrCat("a step made ", array.ShortDebugString(), " instead of shape ",
                            ShapeToString(expected.shape)));
  }
  if (bytes_known && output.has_literal() && !HasBytes(expected, output.literal().data())) {
    return Violation(
        StrCat("a step returned other elements than expected: ", array.ShortDebugString()));
  }
  if (!name.empty()) PointName(name, array.array_id(), output.array().name_version());
  return absl::OkStatus();
}

namespace {

const v1::StepOutput& OutputOf(const v1::ExecuteResponse& response) { return response.outputs(0); }
template <typename Response>
const v1::StepOutput& OutputOf(const Response& response) {
  return response.output();
}

}  // namespace

template <typename Request, typename Response>
absl::Status RandomClient::RunStep(const std::string& method, Request request,
                                   const Content& expected, bool must_work, bool bytes_known,
                                   Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  request.set_request_id(NewRequestId(dice));
  request.set_session_id(session);
  request.mutable_output()->set_return_literals(bytes_known && dice.OneIn(2));
  std::string name;
  bool mismatch = false;
  if (dice.OneIn(2)) {
    name = OwnName(dice);
    request.mutable_output()->add_names(name);
    const auto named = names_.find(name);
    const int64_t version = named == names_.end() ? 0 : named->second.version;
    const int64_t wanted =
        dice.Of(std::vector<int64_t>{0, 0, 0, version == 0 ? -1 : version, version == 0 ? 5 : -1});
    Expect(wanted, request.mutable_output()->add_preconditions());
    mismatch = wanted != 0 && version != std::max<int64_t>(wanted, 0);
  }
  if (dice.OneIn(10)) {
    request.set_session_id("nosuchsession");
    Response response;
    const absl::Status status = coordinator_.Call(method, request, &response);
    return Want(IsRefusal(status), method, request, status, "a refusal");
  }
  Response response;
  const absl::Status status = coordinator_.Call(method, request, &response);
  if (mismatch && must_work) {
    return Want(absl::IsAborted(status), method, request, status, "ABORTED");
  }
  if (!must_work && !status.ok()) {
    return Want(IsRefusal(status), method, request, status, "a refusal, or OK");
  }
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), method, request, status, "OK"));
  v1::StepOutput output = OutputOf(response);
  if (!name.empty() && output.array().name_version() == 0) {
    // The version is the revision of its commit; DescribeArray of the name returns it.
    v1::DescribeArrayRequest describe;
    v1::DescribeArrayResponse described;
    describe.mutable_array()->set_name(name);
    const absl::Status found =
        coordinator_.Call("ArrayService.DescribeArray", describe, &described);
    SHARDMESH_RETURN_IF_ERROR(Want(found.ok() && described.array().array_descriptor().array_id() ==
                                                     output.array().array_descriptor().array_id(),
                                   "DescribeArray of a result", describe, found, "the result"));
    output.mutable_array()->set_name_version(described.array().name_version());
  }
  SHARDMESH_RETURN_IF_ERROR(TakeOutput(output, expected, bytes_known, slot, name));
  if (dice.OneIn(4)) {
    Response again;
    const absl::Status repeated = coordinator_.Call(method, request, &again);
    return Want(repeated.ok() && OutputOf(again).array().array_descriptor().array_id() ==
                                     output.array().array_descriptor().array_id(),
                StrCat(method, " again"), request, repeated, "the first answer");
  }
  return absl::OkStatus();
}

absl::Status RandomClient::Matmul(Dice& dice) {
  Content lhs;
  Content rhs;
  v1::MatmulRequest request;
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_lhs(), AnyMatrix(dice, &lhs));
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_rhs(), AnyMatrix(dice, &rhs));
  std::vector<float> a = FloatsOf(lhs);
  std::vector<float> b = FloatsOf(rhs);
  Shape left = lhs.shape;
  Shape right = rhs.shape;
  request.set_transpose_lhs(dice.OneIn(3));
  request.set_transpose_rhs(dice.OneIn(3));
  int64_t batch = 0;  // number of right matrices; 0: the right operand is one matrix
  if (left[request.transpose_lhs() ? 0 : 1] != right[request.transpose_rhs() ? 1 : 0] &&
      !dice.OneIn(6)) {
    // Mostly one that fits, which may be a batch.
    const int64_t k = left[request.transpose_lhs() ? 0 : 1];
    const int64_t n = 1 + dice.Below(5);
    if (dice.OneIn(3)) batch = 1 + dice.Below(3);
    request.set_transpose_rhs(false);
    rhs = MakeContent(Dtype::kF32, {std::max<int64_t>(batch, 1) * k, n}, dice.Next());
    right = {k, n};
    b = FloatsOf(rhs);
    v1::Literal& literal = *request.mutable_rhs()->mutable_literal();
    literal.Clear();
    literal.set_dtype(v1::DTYPE_F32);
    if (batch > 0) literal.add_shape(batch);
    for (const int64_t size : right) literal.add_shape(size);
    literal.set_data(rhs.bytes);
  }
  if (request.transpose_lhs()) {
    a = Transposed(a, left[0], left[1]);
    std::swap(left[0], left[1]);
  }
  if (request.transpose_rhs()) {
    b = Transposed(b, right[0], right[1]);
    std::swap(right[0], right[1]);
  }
  const bool fits = left[1] == right[0];
  Content expected;
  if (fits) {
    const auto matrix = static_cast<std::ptrdiff_t>(right[0] * right[1]);
    std::vector<float> products;
    for (auto from = b.begin(); from != b.end(); from += matrix) {
      const std::vector<float> product =
          Product(a, {from, from + matrix}, left[0], left[1], right[1]);
      products.insert(products.end(), product.begin(), product.end());
    }
    Shape shape = {left[0], right[1]};
    if (batch > 0) shape.insert(shape.begin(), batch);
    expected = FromFloats(std::move(shape), products);
  }
  // Two literals lie on no mesh but "default".
  return RunStep<v1::MatmulRequest, v1::MatmulResponse>("ComputeService.Matmul", request, expected,
                                                        fits, fits, dice);
}

absl::Status RandomClient::Linear(Dice& dice) {
  Content input;
  v1::LinearRequest request;
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_input(), AnyMatrix(dice, &input));
  const int64_t in = input.shape[1];
  const int64_t out = 1 + dice.Below(5);
  const Content weight = MakeContent(Dtype::kF32, {out, in}, dice.Next());
  v1::Literal& literal = *request.mutable_weight()->mutable_literal();
  literal.set_dtype(v1::DTYPE_F32);
  literal.add_shape(out);
  literal.add_shape(in);
  literal.set_data(weight.bytes);
  const bool relu = dice.OneIn(2);
  if (relu) request.set_activation(v1::ACTIVATION_RELU);
  std::vector<float> values =
      Product(FloatsOf(input), Transposed(FloatsOf(weight), out, in), input.shape[0], in, out);
  for (float& value : values) {
    if (relu && !(value > 0)) value = 0;
    if (value == 0) value = 0;  // no negative zero
  }
  return RunStep<v1::LinearRequest, v1::LinearResponse>("ComputeService.Linear", request,
                                                        FromFloats({input.shape[0], out}, values),
                                                        true, true, dice);
}

absl::Status RandomClient::Compile(Dice& dice) {
  v1::CompileRequest request;
  v1::CompileResponse response;
  v1::Program& program = *request.mutable_program();
  program.set_operand_count(2);
  v1::MatmulOp& op = *program.add_ops()->mutable_matmul();
  op.set_rhs(1);
  program.add_outputs(2);
  Content lhs;
  Content rhs;
  SHARDMESH_ASSIGN_OR_RETURN(*request.add_operands(), AnyMatrix(dice, &lhs));
  SHARDMESH_ASSIGN_OR_RETURN(*request.add_operands(), AnyMatrix(dice, &rhs));
  const bool fits = lhs.shape[1] == rhs.shape[0];
  bool is_bad = !fits;
  if (dice.OneIn(3)) {
    is_bad = true;
    switch (dice.Below(5)) {
      case 0:
        program.set_operand_count(1025);
        break;
      case 1:
        op.set_rhs(2);
        break;
      case 2:
        program.set_outputs(0, 17);
        break;
      case 3:
        request.mutable_operands()->RemoveLast();
        break;
      default:
        program.mutable_ops(0)->clear_op();
    }
  }
  const absl::Status status = coordinator_.Call("ComputeService.Compile", request, &response);
  return Want(is_bad ? IsRefusal(status) : status.ok() && response.plan_hash().size() == 32,
              "Compile", request, status, is_bad ? "a refusal" : "OK");
}

absl::Status RandomClient::Execute(Dice& dice) {
  v1::ExecuteRequest request;
  Content lhs;
  SHARDMESH_ASSIGN_OR_RETURN(*request.add_operands(), AnyMatrix(dice, &lhs));
  const Content rhs = MakeContent(Dtype::kF32, {lhs.shape[1], 1 + dice.Below(5)}, dice.Next());
  v1::Literal& literal = *request.add_operands()->mutable_literal();
  literal.set_dtype(v1::DTYPE_F32);
  for (const int64_t size : rhs.shape) literal.add_shape(size);
  literal.set_data(rhs.bytes);
  v1::Program program;
  program.set_operand_count(2);
  program.add_ops()->mutable_matmul()->set_rhs(1);
  program.add_outputs(2);
  bool must_work = true;
  if (dice.OneIn(3)) {
    v1::CompileRequest compile;
    v1::CompileResponse compiled;
    *compile.mutable_program() = program;
    *compile.mutable_operands() = request.operands();
    const absl::Status status = coordinator_.Call("ComputeService.Compile", compile, &compiled);
    SHARDMESH_RETURN_IF_ERROR(Want(status.ok(), "Compile", compile, status, "OK"));
    request.set_plan_hash(compiled.plan_hash());
    must_work = false;  // the plans of others may have taken its place
  } else if (dice.OneIn(8)) {
    request.set_plan_hash(std::string(32, 'h'));
    must_work = false;
  } else {
    *request.mutable_program() = program;
  }
  const Content expected =
      FromFloats({lhs.shape[0], rhs.shape[1]},
                 Product(FloatsOf(lhs), FloatsOf(rhs), lhs.shape[0], lhs.shape[1], rhs.shape[1]));
  return RunStep<v1::ExecuteRequest, v1::ExecuteResponse>("ComputeService.Execute", request,
                                                          expected, must_work, true, dice);
}

absl::Status RandomClient::ExecuteStream(Dice& dice) {
  const int slot = static_cast<int>(dice.Below(2));
  SHARDMESH_ASSIGN_OR_RETURN(const std::string session, Session(slot, dice));
  v1::ExecuteStreamRequest request;
  v1::ExecuteRequest& step = *request.mutable_step();
  step.set_session_id(session);
  Content lhs;
  SHARDMESH_ASSIGN_OR_RETURN(*step.add_operands(), AnyMatrix(dice, &lhs));
  const Content rhs = MakeContent(Dtype::kF32, {lhs.shape[1], 1 + dice.Below(5)}, dice.Next());
  v1::Literal& literal = *step.add_operands()->mutable_literal();
  literal.set_dtype(v1::DTYPE_F32);
  for (const int64_t size : rhs.shape) literal.add_shape(size);
  literal.set_data(rhs.bytes);
  step.mutable_program()->set_operand_count(2);
  step.mutable_program()->add_ops()->mutable_matmul()->set_rhs(1);
  step.mutable_program()->add_outputs(2);
  const Content expected =
      FromFloats({lhs.shape[0], rhs.shape[1]},
                 Product(FloatsOf(lhs), FloatsOf(rhs), lhs.shape[0], lhs.shape[1], rhs.shape[1]));
  const int64_t count = 1 + dice.Below(4);
  const int64_t bad = dice.OneIn(4) ? 1 + dice.Below(count) : 0;
  const bool goes_on = dice.OneIn(2);
  request.set_continue_after_errors(goes_on);
  std::vector<std::string> requests;
  for (int64_t number = 1; number <= count; ++number) {
    v1::ExecuteStreamRequest sent = request;
    // The first request that can be planned is followed by ones without the program.
    if (number > 1) sent.set_continue_after_errors(false);
    if (number > 1 && bad != 1) sent.mutable_step()->clear_work();
    if (number > 1) sent.mutable_step()->clear_session_id();
    if (number == bad) sent.mutable_step()->mutable_operands()->RemoveLast();
    requests.push_back(sent.SerializeAsString());
  }
  std::vector<std::string> answers;
  const absl::Status status =
      coordinator_.CallBytes(FindMethod("ComputeService.ExecuteStream"), requests, &answers);
  SHARDMESH_RETURN_IF_ERROR(Want(status.ok() && std::ssize(answers) == count, "ExecuteStream",
                                 request, status, "an answer to each request"));
  for (const std::string& answer : answers) {
    v1::ExecuteStreamResponse response;
    const bool is_read = response.ParseFromString(answer);
    const bool must_fail =
        bad > 0 && (response.number() == bad || (response.number() > bad && !goes_on));
    SHARDMESH_RETURN_IF_ERROR(Want(is_read && (must_fail ? response.has_error() : true),
                                   "ExecuteStream", request, status,
                                   "errors of the bad step and those after it"));
    if (!response.has_response()) {
      const bool may_fail = bad > 0 && !goes_on;  // an earlier step that was still on its way
      SHARDMESH_RETURN_IF_ERROR(Want(must_fail || may_fail, "ExecuteStream", request,
                                     rpc::Decode(response.error()), "OK"));
      continue;
    }
    SHARDMESH_RETURN_IF_ERROR(
        TakeOutput(response.response().outputs(0), expected, /*bytes_known=*/true, slot, ""));
  }
  return absl::OkStatus();
}

absl::Status RandomClient::Collective(Dice& dice) {
  v1::CollectiveRequest request;
  Content input;
  SHARDMESH_ASSIGN_OR_RETURN(*request.mutable_input(), AnyMatrix(dice, &input));
  if (!request.input().has_array()) return absl::OkStatus();
  const Held& held = arrays_[request.input().array().array_id()];
  int partitioned = -1;
  for (int i = 0; i < held.spec.dimensions_size(); ++i) {
    if (held.spec.dimensions(i).name() == "tp") partitioned = i;
  }
  request.add_axes("tp");
  bool must_work = true;
  bool bytes_known = true;
  if (partitioned >= 0 && dice.OneIn(2)) {
    request.set_kind(v1::COLLECTIVE_KIND_ALL_GATHER);
    request.set_dimension(partitioned);
  } else if (partitioned < 0 && dice.OneIn(2)) {
    request.set_kind(v1::COLLECTIVE_KIND_ALL_REDUCE);
    request.set_reduction(v1::REDUCTION_MAX);
  } else {
    must_work = false;
    bytes_known = false;
    request.set_kind(static_cast<v1::CollectiveKind>(dice.Below(12)));
    request.set_reduction(static_cast<v1::Reduction>(dice.Below(7)));
    if (dice.OneIn(2)) request.set_dimension(static_cast<int32_t>(dice.Below(4)) - 1);
    if (dice.OneIn(4)) request.set_split_dimension(static_cast<int32_t>(dice.Below(3)));
    if (dice.OneIn(2)) request.set_root(dice.Below(4) - 1);
    request.set_algorithm(static_cast<v1::CollectiveAlgorithm>(dice.Below(10)));
    if (dice.OneIn(3)) request.set_axes(0, dice.OneIn(2) ? "fsdp" : "nosuchaxis");
    if (dice.OneIn(6)) request.add_axes("tp");
    if (dice.OneIn(6)) request.add_counts(dice.Below(5));
    if (dice.OneIn(4)) {
      v1::PermutePair& pair = *request.add_permutation();
      pair.set_source(dice.Below(3));
      pair.set_target(dice.Below(3));
    }
  }
  return RunStep<v1::CollectiveRequest, v1::CollectiveResponse>(
      "ComputeService.Collective", request, input, must_work, bytes_known, dice);
}

// --- The cluster --------------------------------------------------------------------------------

absl::Status RandomClient::GetVersion(Dice& dice) {
  v1::GetVersionRequest request;
  v1::GetVersionResponse response;
  const absl::Status status = coordinator_.Call("ClusterService.GetVersion", request, &response);
  return Want(status.ok() && response.cluster_id() == cluster_id_, "GetVersion", request, status,
              cluster_id_);
}

absl::Status RandomClient::GetStatus(Dice& dice) {
  v1::GetStatusRequest request;
  v1::GetStatusResponse response;
  const absl::Status status = coordinator_.Call("ClusterService.GetStatus", request, &response);
  const bool all_ready = std::all_of(response.workers().begin(), response.workers().end(),
                                     [](const v1::WorkerStatus& worker) {
                                       return worker.state() == v1::WORKER_STATE_READY &&
                                              worker.used_bytes() <= worker.capacity_bytes();
                                     });
  return Want(status.ok() && all_ready && response.workers_size() == std::ssize(workers_),
              "GetStatus", request, status, StrCat("ready workers: ", response.ShortDebugString()));
}

absl::Status RandomClient::ListFlightRecords(Dice& dice) {
  v1::ListFlightRecordsRequest request;
  v1::ListFlightRecordsResponse response;
  request.set_max_records(
      static_cast<int32_t>(dice.Of(std::vector<int64_t>{0, 1, 1024, 1025, -1})));
  if (dice.OneIn(3)) request.set_identity(dice.Of(worker_identities_));
  if (dice.OneIn(8)) request.set_identity("nobody");
  if (dice.OneIn(8)) request.set_sequence(dice.OneIn(2) ? -1 : 1);
  const bool is_bad =
      request.max_records() < 0 || request.sequence() < 0 || request.identity() == "nobody";
  const absl::Status status =
      coordinator_.Call("ClusterService.ListFlightRecords", request, &response);
  const bool may_refuse = request.max_records() > 1024;
  return Want(is_bad ? IsRefusal(status) : status.ok() || (may_refuse && IsRefusal(status)),
              "ListFlightRecords", request, status, is_bad ? "a refusal" : "OK");
}

absl::Status RandomClient::Diagnose(Dice& dice) {
  v1::DiagnoseRequest request;
  v1::DiagnoseResponse response;
  if (dice.OneIn(2)) request.set_sequence(dice.Of(std::vector<int64_t>{0, 1, -1}));
  const absl::Status status = coordinator_.Call("ClusterService.Diagnose", request, &response);
  const bool is_bad = request.has_sequence() && request.sequence() < 1;
  return Want(is_bad ? absl::IsInvalidArgument(status) : status.ok(), "Diagnose", request, status,
              is_bad ? "INVALID_ARGUMENT" : "OK");
}

absl::Status RandomClient::ListLinks(Dice& dice) {
  v1::ListLinksRequest request;
  v1::ListLinksResponse response;
  request.set_mesh_id(dice.Of(std::vector<std::string>{"", "default", "nosuchmesh"}));
  const bool is_bad = request.mesh_id() == "nosuchmesh";
  const absl::Status status = coordinator_.Call("ClusterService.ListLinks", request, &response);
  return Want(is_bad ? absl::IsNotFound(status)
                     : status.ok() && response.workers_size() == std::ssize(workers_),
              "ListLinks", request, status, is_bad ? "NOT_FOUND" : "all workers");
}

absl::Status RandomClient::Snapshot(Dice& dice) {
  v1::SnapshotRequest request;
  std::vector<std::string> answers;
  Caller::Limits limits;
  if (dice.OneIn(4)) limits.max_answers = 1;
  const absl::Status status = coordinator_.CallBytes(
      FindMethod("AdminService.Snapshot"), {request.SerializeAsString()}, &answers, limits);
  // Another client's call may be running.
  if (absl::IsResourceExhausted(status) && RetryDelayOf(status).has_value())
    return absl::OkStatus();
  v1::SnapshotHeader header;
  int64_t size_bytes = 0;
  uint32_t whole = 0;
  bool is_whole = false;
  for (const std::string& answer : answers) {
    v1::SnapshotResponse response;
    if (!response.ParseFromString(answer) || response.has_header() != (&answer == &answers[0])) {
      return Want(false, "Snapshot", request, status, "a header, then pieces");
    }
    if (response.has_header()) {
      header = response.header();
      continue;
    }
    const v1::SnapshotPiece& piece = response.piece();
    if (piece.offset_bytes() != size_bytes || Crc32c(piece.payload()) != piece.crc32c()) {
      return Want(false, "Snapshot", request, status, "pieces in order, with their checksums");
    }
    size_bytes += static_cast<int64_t>(piece.payload().size());
    whole = ExtendCrc32c(whole, piece.payload());
    is_whole = piece.has_whole_crc32c() && piece.whole_crc32c() == whole;
  }
  const bool is_cut = limits.max_answers == 1;
  return Want(status.ok() && header.revision() > 0 &&
                  (is_cut || (is_whole && size_bytes == header.size_bytes())),
              "Snapshot", request, status, "a whole snapshot");
}

}  // namespace shardmesh::model
