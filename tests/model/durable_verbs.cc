// DurableClient: reshards, saves and slices while processes are killed.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "rpc/codec/spec_codec.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/save_service.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/checkpoint_folder.h"
#include "tests/model/durable_client.h"
#include "tests/model/expectations.h"
#include "tests/model/process_cluster.h"

namespace shardmesh::model {
namespace {

constexpr absl::Duration kVerbTimeout = absl::Seconds(10);
constexpr int kKeptSteps = 2;
// As in a training run that starts again, a step may come a second time.
constexpr int64_t kRepeatedStepOneIn = 4;

}  // namespace

absl::Status DurableClient::Reshard(Dice& dice) {
  const std::string from = AnyCertainName(dice);
  if (from.empty() || !OpenSession().ok()) return absl::OkStatus();
  v1::ReshardRequest request;
  request.set_request_id(NewRequestId(dice));
  request.set_session_id(session_);
  const bool is_tree = dice.OneIn(3);
  if (is_tree) {
    request.set_prefix(StrCat("d", number_, "/"));
  } else {
    request.mutable_array()->set_name(from);
  }
  *request.mutable_spec() = dice.OneIn(2) ? SpecOf({"tp"}) : SpecOf({"", "tp"});
  // Products are of arrays on one mesh: all come back to the first mesh now and then.
  if (dice.OneIn(3)) request.mutable_mesh()->set_name(dice.OneIn(3) ? kTurnedMesh : "default");
  request.set_release_source(dice.OneIn(2));
  std::vector<std::string> answers;
  Caller::Limits limits;
  limits.timeout = kVerbTimeout;
  // Not repeated after a restart of the coordinator, which does not remember the answer.
  const absl::Status status = coordinator_.CallBytes(
      FindMethod("ArrayService.Reshard"), {request.SerializeAsString()}, &answers, limits);
  if (!status.ok() && !IsExplained(status)) {
    return Violation(
        StrCat("Reshard of ", request.ShortDebugString(), " answered ", status.ToString()));
  }
  v1::ReshardResponse whole;
  for (const std::string& answer : answers) {
    v1::ReshardResponse part;
    part.ParseFromString(answer);
    whole.MergeFrom(part);
  }
  v1::ReleaseArraysRequest release;
  release.set_session_id(session_);
  std::set<std::string> moved;
  for (const v1::ReshardedArray& array : whole.arrays()) {
    moved.insert(array.name());
    release.add_array_ids(array.source_array_id());
    Possible& possible = names_[array.name()];
    if (possible.size() != 1 || !possible[0].has_value()) {
      AllowOtherIds(&possible);
      continue;
    }
    Named named = *possible[0];
    named.array_id = array.array_descriptor().array_id();
    SetName(array.name(), std::move(named), /*is_certain=*/true);
  }
  if (release.array_ids_size() > 0 && !request.release_source()) {
    v1::ReleaseArraysResponse released;
    Persist("ArrayService.ReleaseArrays", release, &released).IgnoreError();
  }
  if (status.ok()) return absl::OkStatus();
  // An array may have moved without an answer. Its bytes are the same.
  for (auto& [name, possible] : names_) {
    if ((is_tree || name == from) && !moved.contains(name)) AllowOtherIds(&possible);
  }
  return absl::OkStatus();
}

void DurableClient::AllowOtherIds(Possible* possible) {
  Possible also;
  for (const std::optional<Named>& each : *possible) {
    if (!each.has_value()) continue;
    Named other = *each;
    other.array_id.clear();
    also.push_back(std::move(other));
  }
  possible->insert(possible->end(), std::make_move_iterator(also.begin()),
                   std::make_move_iterator(also.end()));
}

std::string DurableClient::SaveFolder() const { return StrCat(files_, "/saved-d", number_); }

absl::Status DurableClient::Save(Dice& dice) {
  if (!OpenSession().ok()) return absl::OkStatus();
  SavedTensors tensors;
  for (const auto& [name, possible] : names_) {
    if (possible.size() != 1) return absl::OkStatus();  // the snapshot would not be known
    if (possible[0].has_value()) tensors[name] = possible[0]->content;
  }
  if (tensors.empty()) return absl::OkStatus();
  const bool is_repeated = !saves_.empty() && dice.OneIn(kRepeatedStepOneIn);
  const int64_t step = is_repeated ? saves_.rbegin()->first : next_step_++;
  v1::BeginSaveRequest request;
  v1::BeginSaveResponse begun;
  request.set_request_id(NewRequestId(dice));
  request.set_session_id(session_);
  request.set_prefix(StrCat("d", number_, "/"));
  request.set_folder(SaveFolder());
  request.set_step(step);
  request.set_keep(kKeptSteps);
  request.set_overwrite(is_repeated);
  if (dice.OneIn(2)) request.set_max_file_bytes(int64_t{1} << 20);
  absl::Status status = coordinator_.Call("SaveService.BeginSave", request, &begun, kVerbTimeout);
  // Whether the save may have begun. A refusal says that it has not.
  bool may_have_begun = status.ok() || HasNoAnswer(status);
  if (status.ok()) {
    v1::WaitSaveRequest wait;
    v1::WaitSaveResponse result;
    wait.set_operation_id(begun.operation_id());
    status = coordinator_.Call("SaveService.WaitSave", wait, &result, kVerbTimeout);
  }
  // A save that was left by a killed process may still end: see VerifySaves.
  if (!status.ok() && !IsExplained(status) && !absl::IsAlreadyExists(status)) {
    return Violation(
        StrCat("a save of ", request.ShortDebugString(), " answered ", status.ToString()));
  }
  if (!may_have_begun) return absl::OkStatus();
  auto& possible = saves_[step];
  if (status.ok()) {
    possible = {std::move(tensors)};
    has_checkpoint_ = true;
    ++acknowledged_;
    while (std::ssize(saves_) > kKeptSteps) saves_.erase(saves_.begin());
    return absl::OkStatus();
  }
  // A checkpoint that is replaced stays until the new one is there.
  if (possible.empty()) possible.push_back(std::nullopt);
  possible.push_back(std::move(tensors));
  ++without_answer_;
  // It may have been complete, and have removed older steps.
  for (auto& [other, checkpoints] : saves_) {
    const auto later = std::distance(saves_.find(other), saves_.end());
    if (later > kKeptSteps) checkpoints.push_back(std::nullopt);
  }
  return absl::OkStatus();
}

absl::Status DurableClient::VerifySaves() {
  // The staging folder of a save that ended without an answer may still be moved.
  const bool is_settled = !std::filesystem::exists(StrCat(SaveFolder(), "/", kSaveStaging));
  std::set<std::string> known;
  int found = 0;
  for (auto next = saves_.begin(); next != saves_.end();) {
    const auto current = next++;
    auto& [step, possible] = *current;
    known.insert(StepFolderName(step));
    const absl::StatusOr<SavedTensors> have = ReadCheckpoint(SaveFolder(), step);
    const bool may_be_gone = std::any_of(possible.begin(), possible.end(),
                                         [](const auto& each) { return !each.has_value(); });
    if (absl::IsNotFound(have.status())) {
      // The next save puts it back.
      if (IsSetAside(SaveFolder(), step)) {
        ++found;
        continue;
      }
      if (!may_be_gone) return Violation(StrCat("the checkpoint of step ", step, " is lost"));
      if (is_settled) saves_.erase(current);
      continue;
    }
    if (!have.ok()) return Violation(ToStd(have.status().message()));
    ++found;
    std::string difference = "none";
    const bool is_known =
        std::any_of(possible.begin(), possible.end(), [&](const std::optional<SavedTensors>& each) {
          if (!each.has_value()) return false;
          difference = Difference(*have, *each);
          return difference.empty();
        });
    if (!is_known) {
      return Violation(StrCat("the checkpoint of step ", step,
                              " is none of those that it may be; for one of them ", difference));
    }
    if (is_settled) possible = {*have};
  }
  if (has_checkpoint_ && found == 0) return Violation("all checkpoints are lost");
  // A complete checkpoint that nobody saved.
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(SaveFolder(), ignored)) {
    const std::optional<int64_t> step = StepOfFolder(entry.path().filename().string());
    if (step.has_value() && !known.contains(StepFolderName(*step)) &&
        (saves_.empty() || *step > saves_.rbegin()->first) &&
        ReadCheckpoint(SaveFolder(), *step).ok()) {
      return Violation(StrCat("there is a checkpoint ", entry.path().string(), " of no save"));
    }
  }
  return absl::OkStatus();
}

absl::Status DurableClient::VerifySlice(const std::string& name, const Content& content) {
  Dice dice(static_cast<uint64_t>(++requests_));
  Tile part;
  for (const int64_t size : content.shape) {
    const int64_t start = dice.Below(size);
    part.ranges.push_back({start, start + 1 + dice.Below(size - start)});
  }
  v1::BeginGetRequest request;
  v1::BeginGetResponse response;
  request.set_session_id(session_);
  request.mutable_array()->set_name(name);
  rpc::Encode(part, request.mutable_slice());
  const absl::Status status = Persist("ArrayService.BeginGet", request, &response);
  absl::StatusOr<std::string> bytes = absl::UnavailableError("not read yet");
  if (status.ok()) bytes = FetchPart(response, part, kVerbTimeout);
  if (response.pinned()) {
    v1::ReleaseArraysRequest release;
    v1::ReleaseArraysResponse released;
    release.set_session_id(session_);
    release.add_array_ids(response.array().array_descriptor().array_id());
    Persist("ArrayService.ReleaseArrays", release, &released).IgnoreError();
  }
  // A failpoint may be passed by this read, after the whole array was read.
  if (!bytes.ok()) return absl::OkStatus();
  return HasBytes(PartOf(content, part), *bytes)
             ? absl::OkStatus()
             : Violation(StrCat("the slice ", part.ToString(), " of ", name, " has other bytes"));
}

}  // namespace shardmesh::model
