// Loads, moves and deletes while processes are killed.
#include "tests/model/durable_client.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "rpc/codec/array_codec.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/compute_service.pb.h"
#include "shardmesh/v1/session_service.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/expectations.h"

namespace shardmesh::model {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(50);
// Time for copies once all workers are ready: one that failed begins again after five seconds.
constexpr absl::Duration kCopiedWithin = absl::Seconds(30);

int32_t DrawReplicas(Dice& dice) { return dice.Of(std::vector<int32_t>{0, 0, 1, 2, 2}); }

void AddIfNew(std::vector<std::optional<std::string>>* values, std::optional<std::string> value) {
  if (std::find(values->begin(), values->end(), value) == values->end()) {
    values->push_back(std::move(value));
  }
}

}  // namespace

std::string DurableClient::NewRequestId(Dice& dice) {
  return StrCat("d", number_, "-", ++requests_, "-", dice.Next());
}

std::string DurableClient::AnyName(Dice& dice) const {
  return StrCat("d", number_, "/t", dice.Below(6));
}

std::string DurableClient::AnyCertainName(Dice& dice) const {
  std::vector<std::string> names;
  for (const auto& [name, possible] : names_) {
    if (possible.size() == 1 && possible[0].has_value()) names.push_back(name);
  }
  return names.empty() ? "" : dice.Of(names);
}

void DurableClient::SetName(const std::string& name, std::optional<Named> named, bool is_certain) {
  Possible& possible = names_[name];
  if (possible.empty()) possible.push_back(std::nullopt);
  if (is_certain) {
    possible = {std::move(named)};
    ++acknowledged_;
  } else {
    possible.push_back(std::move(named));
    ++without_answer_;
  }
}

absl::Status DurableClient::Persist(std::string_view method, const Message& request,
                                    Message* answer) {
  const absl::Time deadline = absl::Now() + patience_;
  for (;;) {
    const absl::Status status = coordinator_.Call(method, request, answer, kCallTimeout);
    if (!HasNoAnswer(status) || absl::Now() > deadline) return status;
    absl::SleepFor(kRetryDelay);
  }
}

absl::Status DurableClient::OpenSession() {
  if (!session_.empty()) {
    v1::RenewSessionRequest request;
    v1::RenewSessionResponse response;
    request.set_session_id(session_);
    if (Persist("SessionService.RenewSession", request, &response).ok()) return absl::OkStatus();
    session_.clear();
  }
  v1::OpenSessionRequest request;
  v1::OpenSessionResponse response;
  request.set_request_id(StrCat("d", number_, "-session-", ++requests_));
  request.mutable_ttl()->set_seconds(600);
  const absl::Status status = Persist("SessionService.OpenSession", request, &response);
  session_ = response.session_id();
  return status;
}

absl::Status DurableClient::Step(Dice& dice) {
  switch (dice.Below(12)) {
    case 0:
      return Move(dice);
    case 1:
      return Delete(dice);
    case 2:
      return Multiply(dice);
    case 3:
    case 4:
      return Define(dice);
    case 5:
    case 6:
      return Reshard(dice);
    case 7:
      return Save(dice);
    case 8:
    case 9:
      return Put(dice, 1 + dice.Below(3), dice.OneIn(10), DrawReplicas(dice), Reader::kWorkers);
    default:
      return Put(dice, 1 + dice.Below(3), dice.OneIn(10), DrawReplicas(dice));
  }
}

absl::Status DurableClient::Script() {
  Dice dice(static_cast<uint64_t>(number_) + 7);
  for (int round = 0; round < 2; ++round) {
    SHARDMESH_RETURN_IF_ERROR(Put(dice, 3, round == 1, /*replicas=*/2));
    SHARDMESH_RETURN_IF_ERROR(Move(dice));
    SHARDMESH_RETURN_IF_ERROR(Multiply(dice));
    SHARDMESH_RETURN_IF_ERROR(Define(dice));
    SHARDMESH_RETURN_IF_ERROR(Delete(dice));
    SHARDMESH_RETURN_IF_ERROR(Put(dice, 2, false, /*replicas=*/round, Reader::kWorkers));
    SHARDMESH_RETURN_IF_ERROR(Reshard(dice));
    SHARDMESH_RETURN_IF_ERROR(Save(dice));
  }
  // A put that is taken back.
  SHARDMESH_RETURN_IF_ERROR(OpenSession().code() == absl::StatusCode::kInternal
                                ? Violation("OpenSession is broken")
                                : absl::OkStatus());
  v1::AbortTransferRequest request;
  v1::AbortTransferResponse response;
  request.set_transfer_id("none");
  Persist("ArrayService.AbortTransfer", request, &response).IgnoreError();
  return absl::OkStatus();
}

std::optional<int64_t> DurableClient::WishOf(const std::string& name) const {
  const auto found = names_.find(name);
  if (found == names_.end() || found->second.empty()) return 1;
  const auto wish_of = [](const std::optional<Named>& each) -> std::optional<int64_t> {
    return each.has_value() ? each->replicas : 1;  // a new name wants one
  };
  const std::optional<int64_t> first = wish_of(found->second.front());
  for (const std::optional<Named>& each : found->second) {
    if (wish_of(each) != first) return std::nullopt;
  }
  return first;
}

absl::Status DurableClient::Put(Dice& dice, int64_t count, bool large, int32_t replicas,
                                Reader reader) {
  if (!OpenSession().ok()) return absl::OkStatus();
  v1::BeginPutRequest first;
  v1::BeginPutRequest second;
  first.mutable_header()->set_request_id(NewRequestId(dice));
  first.mutable_header()->set_session_id(session_);
  first.mutable_header()->set_replicas(replicas);
  std::vector<Content> contents;
  std::vector<std::string> names;
  std::vector<std::optional<int64_t>> wishes;
  std::set<std::string> used;
  for (int64_t i = 0; i < count; ++i) {
    const std::string name = AnyName(dice);
    if (!used.insert(name).second) continue;
    v1::PutTensor& tensor = *second.mutable_tensors()->add_tensors();
    const Shape shape = large ? Shape{512, 1030} : Shape{1 + dice.Below(6), 2 + dice.Below(6)};
    contents.push_back(MakeContent(Dtype::kF32, shape, dice.Next()));
    names.push_back(name);
    wishes.push_back(replicas == 0 ? WishOf(name) : replicas);
    tensor.set_name(name);
    tensor.set_dtype(v1::DTYPE_F32);
    for (const int64_t size : shape) tensor.add_shape(size);
    if (dice.OneIn(2)) {
      tensor.mutable_axes()->add_axes()->set_name("__BATCH__");
      tensor.mutable_axes()->add_axes()->set_name("__HEAD__");
    } else {
      tensor.mutable_spec();
      if (dice.OneIn(2)) tensor.mutable_spec()->add_dimensions()->set_name("tp");
    }
  }
  // A file of its own, since the workers may still read the last one.
  const std::string source_path = StrCat(files_, "/source-d", number_, "-", requests_, ".bin");
  if (reader == Reader::kWorkers) {
    SHARDMESH_ASSIGN_OR_RETURN(const SourceOnDisk source, WriteSource(source_path, contents));
    SetSource(source, first.mutable_header(), second.mutable_tensors());
  }
  const absl::Cleanup remove = [&source_path] {
    std::error_code ignored;
    std::filesystem::remove(source_path, ignored);
  };
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.timeout = kCallTimeout;
  const absl::Status status = coordinator_.CallBytes(
      FindMethod("ArrayService.BeginPut"), {first.SerializeAsString(), second.SerializeAsString()},
      &answers, limits);
  if (!status.ok()) {
    if (IsExplained(status)) return absl::OkStatus();
    return Violation(StrCat("BeginPut answered ", status.ToString()));
  }
  v1::BeginPutResponse begun;
  for (const std::string& answer : answers) {
    v1::BeginPutResponse part;
    part.ParseFromString(answer);
    begun.MergeFrom(part);
  }
  const absl::Status sent =
      reader == Reader::kWorkers ? absl::OkStatus() : SendTiles(begun, contents, kCallTimeout);
  if (!sent.ok() || dice.OneIn(12)) {
    v1::AbortTransferRequest abort;
    v1::AbortTransferResponse aborted;
    abort.set_transfer_id(begun.transfer_id());
    SetIfThere(&abort, "session_id", first.header().session_id());
    Persist("ArrayService.AbortTransfer", abort, &aborted).IgnoreError();
    return absl::OkStatus();
  }
  v1::CommitTransferRequest commit;
  v1::CommitTransferResponse committed;
  commit.set_request_id(NewRequestId(dice));
  commit.set_transfer_id(begun.transfer_id());
  SetIfThere(&commit, "session_id", first.header().session_id());
  const absl::Status outcome = Persist("ArrayService.CommitTransfer", commit, &committed);
  // NOT_FOUND after a restart: no journal has it. After any other error without an answer the
  // outcome is unknown.
  const bool is_done = outcome.ok();
  const bool is_unknown = HasNoAnswer(outcome) || absl::IsInternal(outcome);
  if (!is_done && !is_unknown && !IsExplained(outcome)) {
    return Violation(StrCat("CommitTransfer answered ", outcome.ToString()));
  }
  if (is_done && committed.durability() != v1::DURABILITY_DISK) {
    return Violation(StrCat("CommitTransfer answered ", committed.ShortDebugString(),
                            ", not on disk, from processes with --data-dir"));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& id = begun.assignments(static_cast<int>(i)).array_descriptor().array_id();
    if (is_done || is_unknown) SetName(names[i], Named{id, contents[i], true, wishes[i]}, is_done);
  }
  return absl::OkStatus();
}

absl::Status DurableClient::Move(Dice& dice) {
  const std::string from = AnyCertainName(dice);
  if (from.empty()) return absl::OkStatus();
  v1::MoveNameRequest request;
  v1::MoveNameResponse response;
  request.set_request_id(NewRequestId(dice));
  request.set_name(AnyName(dice));
  const Named named = *names_[from][0];
  request.set_array_id(named.array_id);
  const absl::Status status = Persist("ArrayService.MoveName", request, &response);
  if (status.ok() || HasNoAnswer(status) || absl::IsInternal(status)) {
    SetName(request.name(), named, status.ok());
  } else if (absl::IsNotFound(status) || !IsExplained(status)) {
    return Violation(StrCat("MoveName of ", from, " answered ", status.ToString()));
  }
  return absl::OkStatus();
}

absl::Status DurableClient::Delete(Dice& dice) {
  const std::string name = AnyCertainName(dice);
  if (name.empty()) return absl::OkStatus();
  v1::DeleteNameRequest request;
  v1::DeleteNameResponse response;
  request.set_request_id(NewRequestId(dice));
  request.set_name(name);
  const absl::Status status = Persist("ArrayService.DeleteName", request, &response);
  if (status.ok() || HasNoAnswer(status) || absl::IsInternal(status)) {
    SetName(name, std::nullopt, status.ok());
  } else if (absl::IsNotFound(status) || !IsExplained(status)) {
    return Violation(StrCat("DeleteName of ", name, " answered ", status.ToString()));
  }
  return absl::OkStatus();
}

absl::Status DurableClient::Multiply(Dice& dice) {
  const std::string from = AnyCertainName(dice);
  if (from.empty() || !OpenSession().ok()) return absl::OkStatus();
  const Named named = *names_[from][0];
  const Shape& shape = named.content.shape;
  if (shape[0] * shape[1] > 1000 || !IsSmall(named.content)) return absl::OkStatus();
  const Content identity = [&] {
    std::vector<float> values(static_cast<size_t>(shape[1] * shape[1]), 0);
    for (int64_t i = 0; i < shape[1]; ++i) values[static_cast<size_t>(i * shape[1] + i)] = 2;
    return FromFloats({shape[1], shape[1]}, values);
  }();
  std::vector<float> doubled = FloatsOf(named.content);
  for (float& value : doubled) value = value * 2 == 0 ? 0 : value * 2;
  v1::MatmulRequest request;
  v1::MatmulResponse response;
  request.set_request_id(NewRequestId(dice));
  request.set_session_id(session_);
  request.mutable_lhs()->mutable_array()->set_array_id(named.array_id);
  v1::Literal& literal = *request.mutable_rhs()->mutable_literal();
  literal.set_dtype(v1::DTYPE_F32);
  literal.add_shape(shape[1]);
  literal.add_shape(shape[1]);
  literal.set_data(identity.bytes);
  const std::string name = AnyName(dice);
  request.mutable_output()->add_names(name);
  // A step's answer is remembered only in memory: a repetition after a restart is not safe.
  const absl::Status status =
      coordinator_.Call("ComputeService.Matmul", request, &response, kCallTimeout);
  if (!status.ok() && !IsExplained(status) && !absl::IsInternal(status)) {
    return Violation(StrCat("Matmul answered ", status.ToString()));
  }
  const bool may_be = status.ok() || HasNoAnswer(status) || absl::IsInternal(status);
  if (may_be) {
    SetName(name,
            Named{response.output().array().array_descriptor().array_id(),
                  FromFloats(shape, doubled), false, 1},
            status.ok());
  }
  return absl::OkStatus();
}

absl::Status DurableClient::Define(Dice& dice) {
  const std::string name = StrCat("d", number_, "-e", dice.Below(3));
  auto& values = entries_[name];
  if (values.empty()) values.push_back(std::nullopt);
  const bool is_certain = values.size() == 1;
  const bool is_there = is_certain && values[0].has_value();
  const std::string field = StrCat("axis", dice.Below(1000));
  v1::EntryValue value;
  value.mutable_profile()->mutable_head_axis()->set_name(field);
  absl::Status status;
  std::optional<std::string> after = value.SerializeAsString();
  if (!is_there) {
    v1::CreateEntryRequest request;
    v1::CreateEntryResponse response;
    request.set_request_id(NewRequestId(dice));
    request.set_name(name);
    *request.mutable_value() = value;
    status = Persist("CatalogService.CreateEntry", request, &response);
    if (absl::IsAlreadyExists(status) && !is_certain) return absl::OkStatus();
  } else if (dice.OneIn(3)) {
    v1::DeleteEntryRequest request;
    v1::DeleteEntryResponse response;
    request.set_request_id(NewRequestId(dice));
    request.set_kind(v1::ENTRY_KIND_PROFILE);
    request.set_name(name);
    status = Persist("CatalogService.DeleteEntry", request, &response);
    after = std::nullopt;
  } else {
    v1::UpdateEntryRequest request;
    v1::UpdateEntryResponse response;
    request.set_request_id(NewRequestId(dice));
    request.set_name(name);
    *request.mutable_value() = value;
    status = Persist("CatalogService.UpdateEntry", request, &response);
  }
  if (status.ok()) {
    values = {after};
    ++acknowledged_;
  } else if (HasNoAnswer(status) || absl::IsInternal(status)) {
    AddIfNew(&values, after);
    ++without_answer_;
  } else if (absl::IsNotFound(status) || absl::IsAlreadyExists(status) || !IsExplained(status)) {
    return Violation(StrCat("a change of the definition ", name, " answered ", status.ToString()));
  }
  return absl::OkStatus();
}

absl::Status DurableClient::VerifyReplicas(absl::Time deadline) {
  for (;;) {
    v1::ListArraysRequest list;
    list.set_prefix(StrCat("d", number_, "/"));
    v1::ListArraysResponse arrays;
    const absl::Status status = Persist("ArrayService.ListArrays", list, &arrays);
    if (!status.ok()) return Violation(StrCat("ListArrays answered ", status.ToString()));
    std::string incomplete;
    for (const v1::Array& array : arrays.arrays()) {
      const auto found = names_.find(array.name());
      if (found == names_.end() || found->second.size() != 1 || !found->second[0].has_value()) {
        return Violation(StrCat("the name ", array.name(), " has come back"));
      }
      Named& named = *found->second[0];
      const int64_t wanted = std::max(1, array.replicas().wanted());
      if (named.replicas.value_or(wanted) != wanted) {
        return Violation(StrCat("the array of ", array.name(), " wants ", wanted,
                                " replicas, and another number was asked for"));
      }
      named.replicas = wanted;
      // Others may have taken the memory since the put began.
      const bool has_no_room = absl::StrContains(array.replicas().failure(), "MEMORY_LIMIT");
      if (wanted > 1 && array.replicas().complete() < wanted && !has_no_room) {
        incomplete = array.ShortDebugString().substr(0, 600);
      }
    }
    if (incomplete.empty()) return absl::OkStatus();
    if (absl::Now() > deadline) {
      return Violation(StrCat("an array has no complete second replica: ", incomplete));
    }
    absl::SleepFor(kRetryDelay);
  }
}

absl::Status DurableClient::Verify(absl::Time deadline) {
  if (const absl::Status status = OpenSession(); !status.ok()) {
    return Violation(StrCat("OpenSession answered ", status.ToString()));
  }
  std::set<std::string> listed;
  v1::ListArraysRequest list;
  list.set_prefix(StrCat("d", number_, "/"));
  v1::ListArraysResponse arrays;
  if (const absl::Status status = Persist("ArrayService.ListArrays", list, &arrays); !status.ok()) {
    return Violation(StrCat("ListArrays answered ", status.ToString()));
  }
  for (const v1::Array& array : arrays.arrays()) listed.insert(array.name());
  for (const std::string& name : listed) {
    if (names_.count(name) == 0) {
      return Violation(StrCat("there is a name ", name, " that nobody gave"));
    }
  }
  for (auto& [name, possible] : names_) {
    const bool may_be_gone = std::any_of(possible.begin(), possible.end(),
                                         [](const auto& each) { return !each.has_value(); });
    if (listed.count(name) == 0) {
      if (!may_be_gone) return Violation(StrCat("the name ", name, " is lost"));
      possible = {std::nullopt};
      continue;
    }
    v1::BeginGetRequest request;
    v1::BeginGetResponse response;
    request.set_session_id(session_);
    request.mutable_array()->set_name(name);
    absl::Status status;
    absl::StatusOr<std::string> bytes = absl::UnavailableError("not read yet");
    bool is_lost = false;
    for (;;) {
      response.Clear();
      status = Persist("ArrayService.BeginGet", request, &response);
      if (status.ok()) bytes = FetchTiles(response, kCallTimeout);
      // A coordinator that ended during the call, at a failpoint, no longer knows the session.
      if (ReasonOf(status) == Reason::kSessionGone && OpenSession().ok()) {
        request.set_session_id(session_);
      }
      const bool on_disk = std::all_of(possible.begin(), possible.end(), [](const auto& each) {
        return !each.has_value() || each->on_disk;
      });
      if (!on_disk && response.array().durability() != v1::DURABILITY_DISK &&
          (absl::IsFailedPrecondition(status) ||
           response.array().state() == v1::ARRAY_STATE_DEGRADED)) {
        is_lost = true;
        break;
      }
      const bool is_whole =
          status.ok() && bytes.ok() && response.array().state() == v1::ARRAY_STATE_AVAILABLE;
      if (is_whole || absl::Now() > deadline) break;
      absl::SleepFor(kRetryDelay);
    }
    if (is_lost) {
      // A result in memory went with its worker; its name is taken away, so that nothing builds on
      // it.
      v1::DeleteNameRequest remove;
      v1::DeleteNameResponse removed;
      remove.set_request_id(StrCat("d", number_, "-lost-", ++requests_));
      remove.set_name(name);
      const absl::Status gone = Persist("ArrayService.DeleteName", remove, &removed);
      if (!gone.ok()) return Violation(StrCat("DeleteName answered ", gone.ToString()));
      possible = {std::nullopt};
      continue;
    }
    if (!status.ok() || !bytes.ok() || response.array().state() != v1::ARRAY_STATE_AVAILABLE) {
      return Violation(StrCat("the array of ", name, " cannot be read whole: ", status.ToString(),
                              ", ", bytes.status().ToString(), ", ",
                              response.array().ShortDebugString().substr(0, 400)));
    }
    const std::string& id = response.array().array_descriptor().array_id();
    const auto found =
        std::find_if(possible.begin(), possible.end(), [&](const std::optional<Named>& each) {
          return each.has_value() && (each->array_id == id || each->array_id.empty()) &&
                 HasBytes(each->content, *bytes);
        });
    if (found == possible.end()) {
      return Violation(StrCat("the name ", name, " points to array ", id,
                              ", which is none of those that it may be, or has other bytes"));
    }
    SHARDMESH_RETURN_IF_ERROR(VerifySlice(name, (*found)->content));
    Named named = **found;
    named.array_id = id;
    named.on_disk = response.array().durability() == v1::DURABILITY_DISK;
    possible = {std::move(named)};
    if (response.pinned()) {
      v1::ReleaseArraysRequest release;
      v1::ReleaseArraysResponse released;
      release.set_session_id(session_);
      release.add_array_ids(id);
      Persist("ArrayService.ReleaseArrays", release, &released).IgnoreError();
    }
  }
  SHARDMESH_RETURN_IF_ERROR(VerifyReplicas(std::max(deadline, absl::Now() + kCopiedWithin)));
  SHARDMESH_RETURN_IF_ERROR(VerifySaves());
  for (auto& [name, values] : entries_) {
    v1::GetEntryRequest request;
    v1::GetEntryResponse response;
    request.set_kind(v1::ENTRY_KIND_PROFILE);
    request.set_name(name);
    const absl::Status status = Persist("CatalogService.GetEntry", request, &response);
    std::optional<std::string> value;
    if (status.ok()) {
      value = response.entry().value().SerializeAsString();
    } else if (!absl::IsNotFound(status)) {
      return Violation(StrCat("GetEntry of ", name, " answered ", status.ToString()));
    }
    if (std::find(values.begin(), values.end(), value) == values.end()) {
      return Violation(StrCat("the definition ", name, " is ",
                              value.has_value() ? "another than it may be" : "lost"));
    }
    values = {value};
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::model
