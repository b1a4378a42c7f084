// Programs on the wire: operands in, a step through the sequencer, results out.
#include "server/service/compute_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "process/failpoint.h"
#include "process/random_bytes.h"
#include "rpc/call.h"
#include "rpc/caller.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/plan_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/service/array_view_codec.h"
#include "server/state/request_memory.h"
#include "server/state/session_pins.h"
#include "server/state/step_memory.h"
#include "sharding/digest.h"
#include "shardmesh/v1/attach_service.pb.h"
#include "shardmesh/v1/compute_service.grpc.pb.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/view.h"

namespace shardmesh::server {
namespace {

constexpr absl::Duration kMaxStepTimeout = absl::Minutes(5);
// Of an operand that only its donor holds: the session's pin and the step's own.
constexpr int64_t kDonorsPins = 2;
// How long to wait before a step is run again whose worker was lost and is expected back.
constexpr absl::Duration kRunAgainDelay = absl::Milliseconds(200);

// An operand that was found: an array, kept alive by a pin, or a literal of the request.
struct FoundOperand {
  ArrayPtr array;  // null: the literal
  ValueDescriptor described;
  bool donate = false;
  bool overwritten = false;  // donated, and a result is made in its memory
};

// The operands of a request and the mesh on which they lie.
struct FoundOperands {
  std::vector<FoundOperand> operands;
  PlanTarget target;
};

// A step's request, whichever RPC it came by.
struct StepCall {
  v1::ExecuteRequest request;  // of an equivalent Execute
  std::string_view method;     // by which it came
  rpc::Caller caller;
  absl::Duration time_left;  // of the call
};

// What a step came to, and the operands whose pins it held.
using StepAnswer = absl::StatusOr<v1::ExecuteResponse>;
using StepCallback = absl::AnyInvocable<void(StepAnswer) &&>;

// The first op's name, for people: "linear", "matmul", "program" for several.
std::string NameOf(const v1::Program& program) {
  if (program.ops_size() != 1) {
    return "program";
  }
  switch (program.ops(0).op_case()) {
    case v1::ProgramOp::kLinear:
      return "linear";
    case v1::ProgramOp::kMatmul:
      return "matmul";
    case v1::ProgramOp::kCollective:
      return "collective";
    case v1::ProgramOp::kReshard:
      return "reshard";
    case v1::ProgramOp::OP_NOT_SET:
      break;
  }
  return "program";
}

// Of a long name so much that a message has room for the rest.
std::string Beginning(const std::string& name) {
  constexpr size_t kMaxBytes = 96;
  if (name.size() <= kMaxBytes) return name;
  size_t end = kMaxBytes;
  while (end > 0 && (name[end] & 0xC0) == 0x80) --end;  // not within a character
  return StrCat(name.substr(0, end), "...");
}

// The same with its operands as the client calls them: `linear of "x", "w"`; the first few of many.
std::string DescribeWork(const v1::ExecuteRequest& request) {
  constexpr int kNamed = 3;
  std::vector<std::string> operands;
  for (const v1::Operand& operand : request.operands()) {
    if (!operand.has_array()) {
      operands.push_back("a literal");
    } else if (operand.array().has_name()) {
      operands.push_back(StrCat("\"", Beginning(operand.array().name()), "\""));
    } else {
      operands.push_back(StrCat("array ", operand.array().array_id()));
    }
    if (std::ssize(operands) == kNamed) break;
  }
  const int more = request.operands_size() - static_cast<int>(operands.size());
  return StrCat(NameOf(request.program()), operands.empty() ? "" : " of ", StrJoin(operands, ", "),
                more == 0 ? "" : StrCat(" and ", more, " more"));
}

// Runs steps. One object for the service; Run may be called by any thread.
class StepRunner {
 public:
  StepRunner(const CoordinatorParts& context, Planner* planner, Sequencer* sequencer,
             rpc::Metrics* metrics)
      : context_(context),
        planner_(planner),
        sequencer_(sequencer),
        committed_(metrics, "committed"),
        failed_(metrics, "failed"),
        cancelled_(metrics, "cancelled"),
        recent_(context.step_memory) {}

  absl::StatusOr<v1::CompileResponse> Compile(const v1::CompileRequest& request,
                                              const rpc::Caller& caller) {
    SHARDMESH_ASSIGN_OR_RETURN(const FoundOperands found,
                               FindOperands(request.operands(), request.mesh_id()));
    SHARDMESH_ASSIGN_OR_RETURN(const auto prepared, Prepare(caller, request.program(), found));
    v1::CompileResponse response;
    response.set_plan_hash(prepared->hash);
    rpc::Encode(prepared->plan, response.mutable_plan());
    return response;
  }

  // Calls back once, from any thread, perhaps before it returns. The ticket, if there is one, is
  // for Cancel.
  std::optional<Sequencer::StepTicket> Run(StepCall call, StepCallback callback);
  void Cancel(Sequencer::StepTicket ticket) { sequencer_->Cancel(ticket); }

 private:
  // A step between its admission and its end.
  struct Running {
    v1::ExecuteRequest request;
    std::shared_ptr<const PreparedPlan> prepared;
    std::vector<FoundOperand> operands;
    std::vector<ArrayDescriptor> outputs;
    absl::Time started;
    Revision revision = 0;
  };
  using RunningPtr = std::shared_ptr<Running>;

  absl::StatusOr<FoundOperands> FindOperands(
      const google::protobuf::RepeatedPtrField<v1::Operand>& operands,
      const std::string& mesh_id) const;
  absl::StatusOr<FoundOperand> FindOperand(const v1::Operand& operand) const;
  absl::StatusOr<std::shared_ptr<const PreparedPlan>> Prepare(const rpc::Caller& caller,
                                                              const v1::Program& program,
                                                              const FoundOperands& found) {
    auto decoded = rpc::Decode(program);
    if (!decoded.ok()) {
      return rpc::WithField(decoded.status(), "program");
    }
    std::vector<ValueDescriptor> described;
    for (const FoundOperand& operand : found.operands) {
      described.push_back(operand.described);
    }
    return planner_->Prepare(caller.name, *decoded, described, found.target);
  }

  absl::StatusOr<RunningPtr> Admit(StepCall* call, StepRequest* step);
  absl::Status CheckDonor(const std::string& session_id, FoundOperands* found) const;
  absl::Status CheckOutputs(const v1::ExecuteRequest& request, const Plan& plan) const;
  // INVALID_ARGUMENT (LIMIT_EXCEEDED): what workers have to be sent, or the answer, does not fit
  // into a message.
  static absl::Status CheckSize(const Running& running);
  // `outputs_bytes`: of the encoded descriptors.
  static absl::Status CheckAnswerSize(const Running& running, int64_t outputs_bytes);
  absl::Status StageOutputs(const RunningPtr& running);
  void Commit(const RunningPtr& running, const WorkOutcome& outcome,
              absl::AnyInvocable<void(absl::Status) &&> decided);
  // `began`: workers may have run some of it.
  void End(const RunningPtr& running, const absl::Status& status, bool began = false);
  // The error of a step that may be run again as it is, since its operands are untouched and there
  // again once the worker is that was lost, gets a retry delay. Another one stays as it is.
  absl::Status WithSecondRun(const Running& running, absl::Status status) const;
  // The error of a step, with the donated operands that are gone with it.
  static absl::Status WithLosses(const Running& running, const WorkOutcome& outcome);
  StepAnswer Answer(const RunningPtr& running, const WorkOutcome& outcome) const;

  const CoordinatorParts context_;
  Planner* const planner_;
  Sequencer* const sequencer_;
  // Steps that ended in one way.
  struct Outcome {
    Outcome(rpc::Metrics* metrics, const std::string& outcome)
        : steps(metrics->AddCounter("shardmesh_steps_total", "Steps by how they ended.",
                                    {{"outcome", outcome}})),
          seconds(metrics->AddHistogram("shardmesh_step_duration_seconds",
                                        "From a step's admission to its end.",
                                        {{"outcome", outcome}})) {}

    rpc::Counter steps;
    rpc::Histogram seconds;
  };
  const Outcome committed_;
  const Outcome failed_;
  const Outcome cancelled_;  // by its client, or because the coordinator stops
  StepMemory recent_;
};

absl::StatusOr<FoundOperand> StepRunner::FindOperand(const v1::Operand& operand) const {
  FoundOperand found;
  found.donate = operand.donate();
  switch (operand.operand_case()) {
    case v1::Operand::kArray: {
      SHARDMESH_ASSIGN_OR_RETURN(SelectedArray selected,
                                 Select(*context_.registry, operand.array()));
      const ArrayDescriptor& descriptor = selected.array->definition.descriptor;
      if (selected.array->state == ArrayState::kDegraded) {
        return Degraded(selected, *context_.membership->view(), *context_.recovery);
      }
      found.described = {.dtype = descriptor.dtype,
                         .shape = descriptor.shape,
                         .spec = descriptor.spec,
                         .cut_points = WithoutEqualParts(descriptor.cut_points)};
      found.array = std::move(selected.array);
      return found;
    }
    case v1::Operand::kLiteral: {
      auto literal = rpc::Decode(operand.literal());
      if (!literal.ok()) {
        return rpc::WithField(literal.status(), "literal");
      }
      found.described = {.dtype = literal->dtype, .shape = literal->shape, .spec = {}};
      return found;
    }
    case v1::Operand::OPERAND_NOT_SET:
      break;
  }
  return rpc::BadField("operand", "is neither an array nor a literal");
}

absl::StatusOr<FoundOperands> StepRunner::FindOperands(
    const google::protobuf::RepeatedPtrField<v1::Operand>& operands,
    const std::string& mesh_id) const {
  FoundOperands result;
  const ArrayDescriptor* first = nullptr;
  for (int i = 0; i < operands.size(); ++i) {
    auto found = FindOperand(operands.Get(i));
    if (!found.ok()) {
      return rpc::WithField(found.status(), "operands", static_cast<size_t>(i));
    }
    result.operands.push_back(*std::move(found));
    if (const ArrayPtr& array = result.operands.back().array; array != nullptr) {
      const ArrayDescriptor& descriptor = array->definition.descriptor;
      if (first == nullptr) {
        first = &descriptor;
      } else if (first->mesh_id != descriptor.mesh_id) {
        return rpc::WithField(
            WithReason(absl::FailedPreconditionError(StrCat(
                           "operands lie on different meshes: \"", first->mesh_id,
                           "\" at revision ", first->mesh_revision, " and \"", descriptor.mesh_id,
                           "\" at revision ", descriptor.mesh_revision, "; load them onto one")),
                       Reason::kShapeMismatch),
            "operands", static_cast<size_t>(i));
      }
    }
  }
  const std::string name = first != nullptr  ? first->mesh_id
                           : mesh_id.empty() ? "default"
                                             : mesh_id;
  SHARDMESH_ASSIGN_OR_RETURN(const auto definition,
                             context_.definition_store->state().Find(DefinitionKind::kMesh, name));
  const Mesh& mesh = std::get<rpc::MeshDefinition>(definition->value).mesh;
  // The mesh itself is compared, not its revision: a repair or a restore gives the same mesh
  // another revision. The array's state says whether each rank's worker has its tile.
  for (size_t i = 0; i < result.operands.size(); ++i) {
    const ArrayPtr& array = result.operands[i].array;
    if (array == nullptr || array->definition.descriptor.mesh == mesh) {
      continue;
    }
    const ArrayDescriptor& descriptor = array->definition.descriptor;
    return rpc::WithField(
        WithReason(absl::FailedPreconditionError(
                       StrCat("array ", descriptor.array_id, " lies on the mesh \"", name, "\" as ",
                              descriptor.mesh.ToString(), " of revision ", descriptor.mesh_revision,
                              ", which is ", mesh.ToString(), " of revision ", definition->revision,
                              " now; load it again")),
                   Reason::kVersionMismatch),
        "operands", i);
  }
  result.target = {.mesh_id = name,
                   .mesh_revision = definition->revision,
                   .mesh = mesh,
                   .links = context_.links->CostOf(*context_.membership->view(), name),
                   .preferred = context_.preferred_algorithms};
  return result;
}

absl::Status StepRunner::CheckSize(const Running& running) {
  // Tags, lengths and numbers of the message, and of each operand and output.
  constexpr int64_t kFramingBytes = 256;
  constexpr int64_t kItemFramingBytes = 16;
  const int64_t plan_bytes = std::ssize(running.prepared->bytes);
  int64_t literal_bytes = 0;
  int64_t other_bytes = kFramingBytes;
  int64_t outputs_bytes = 0;
  for (int i = 0; i < running.request.operands_size(); ++i) {
    const FoundOperand& operand = running.operands[static_cast<size_t>(i)];
    other_bytes += kItemFramingBytes;
    if (operand.array != nullptr) {
      other_bytes += std::ssize(operand.array->definition.descriptor.array_id);
    } else {
      literal_bytes += static_cast<int64_t>(running.request.operands(i).literal().ByteSizeLong());
    }
  }
  for (const ArrayDescriptor& output : running.outputs) {
    v1::ArrayDescriptor encoded;
    rpc::Encode(output, &encoded);
    outputs_bytes += static_cast<int64_t>(encoded.ByteSizeLong());
    other_bytes += kItemFramingBytes;
  }
  const int64_t size_bytes = plan_bytes + literal_bytes + outputs_bytes + other_bytes;
  if (size_bytes <= rpc::kMaxControlMessageBytes) {
    return CheckAnswerSize(running, outputs_bytes);
  }
  return InvalidArgument(
      Reason::kLimitExceeded,
      StrCat("the step has ", size_bytes, " bytes for each worker, ", literal_bytes,
             " of them literals and ", plan_bytes, " its plan; the limit is ",
             rpc::kMaxControlMessageBytes, ": put large literals as arrays, or split the program"));
}

absl::Status StepRunner::CheckAnswerSize(const Running& running, int64_t outputs_bytes) {
  // Tags, lengths and numbers of the answer, of each of its arrays and of each literal.
  constexpr int64_t kFramingBytes = 256;
  constexpr int64_t kItemFramingBytes = 96;
  constexpr int64_t kLiteralFramingBytes = 32 + 10 * kMaxRank;
  const v1::OutputOptions& options = running.request.output();
  int64_t names_bytes = 0;
  for (const std::string& name : options.names()) names_bytes += std::ssize(name);
  int64_t literals_bytes = 0;
  for (const ArrayDescriptor& output : running.outputs) {
    if (!options.return_literals()) break;
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t output_bytes, output.SizeBytes());
    literals_bytes += output_bytes + kLiteralFramingBytes;
  }
  const int64_t size_bytes = kFramingBytes + std::ssize(running.outputs) * kItemFramingBytes +
                             outputs_bytes + names_bytes + literals_bytes;
  if (size_bytes <= rpc::kMaxControlMessageBytes) return absl::OkStatus();
  return InvalidArgument(
      Reason::kLimitExceeded,
      StrCat("the answer may have ", size_bytes, " bytes, ", outputs_bytes,
             " of them the descriptors of ", running.outputs.size(), " results, ", names_bytes,
             " their names and ", literals_bytes, " their elements; the limit is ",
             rpc::kMaxControlMessageBytes,
             ": split the program, give shorter names, or get the arrays instead of literals"));
}

absl::Status StepRunner::CheckOutputs(const v1::ExecuteRequest& request, const Plan& plan) const {
  const v1::OutputOptions& options = request.output();
  if (plan.outputs.empty()) {
    return rpc::BadField("program.outputs", "is empty; a step makes at least one array");
  }
  if (options.names_size() > static_cast<int>(plan.outputs.size())) {
    return rpc::BadField("output.names", StrCat("has ", options.names_size(), " entries for ",
                                                plan.outputs.size(), " results"));
  }
  int64_t literal_bytes = 0;
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const ValueDescriptor& value = plan.values[plan.outputs[i]];
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(value.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, PackedSizeBytes(value.dtype, elements));
    literal_bytes += bytes;
    if (options.return_literals() && !value.spec.unreduced().empty()) {
      return rpc::BadField("output.return_literals",
                           StrCat("result ", i, " is a partial sum; reduce it first"));
    }
  }
  if (options.return_literals() && literal_bytes > kMaxLiteralBytes) {
    return rpc::BadField("output.return_literals",
                         StrCat("the results have ", literal_bytes, " bytes; at most ",
                                kMaxLiteralBytes, " are returned inline; get the arrays instead"));
  }
  for (int i = 0; i < options.names_size(); ++i) {
    if (!options.names(i).empty()) {
      if (const absl::Status checked = rpc::CheckArrayName(options.names(i), "output.names");
          !checked.ok()) {
        return checked;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StepRunner::StageOutputs(const RunningPtr& running) {
  const Plan& plan = running->prepared->plan;
  for (const ValueIndex output : plan.outputs) {
    const ValueDescriptor& value = plan.values[output];
    const ArrayDescriptor descriptor{.array_id = RandomId(),
                                     .dtype = value.dtype,
                                     .shape = value.shape,
                                     .spec = value.spec,
                                     .mesh_id = plan.mesh_id,
                                     .mesh_revision = plan.mesh_revision,
                                     .mesh = plan.mesh,
                                     .cut_points = value.cut_points};
    SHARDMESH_RETURN_IF_ERROR(context_.registry->Stage({.descriptor = descriptor}));
    running->outputs.push_back(descriptor);
    SHARDMESH_RETURN_IF_ERROR(PinForSession(*context_.registry, *context_.sessions,
                                            running->request.session_id(), descriptor.array_id)
                                  .status());
  }
  return absl::OkStatus();
}

// Only who keeps an array may give it away: what the session does not pin is not donated. It is
// lent where a name keeps it. PERMISSION_DENIED (NOT_OWNER) otherwise.
absl::Status StepRunner::CheckDonor(const std::string& session_id, FoundOperands* found) const {
  for (size_t i = 0; i < found->operands.size(); ++i) {
    FoundOperand& operand = found->operands[i];
    if (!operand.donate || operand.array == nullptr) {
      continue;
    }
    const std::string& array_id = operand.array->definition.descriptor.array_id;
    SHARDMESH_ASSIGN_OR_RETURN(operand.donate, context_.sessions->PinsArray(session_id, array_id));
    if (!operand.donate && !context_.registry->HasName(array_id)) {
      return rpc::WithField(
          WithReason(absl::PermissionDeniedError(StrCat(
                         "array \"", array_id, "\" is not kept by session \"", session_id,
                         "\", which may not donate it; begin a get of it in this session first, or "
                         "do not donate it")),
                     Reason::kNotOwner),
          "operands", i);
    }
  }
  return absl::OkStatus();
}

// Everything up to the submission; fills in what the sequencer needs.
absl::StatusOr<StepRunner::RunningPtr> StepRunner::Admit(StepCall* call, StepRequest* step) {
  const v1::ExecuteRequest& request = call->request;
  SHARDMESH_ASSIGN_OR_RETURN(FoundOperands found,
                             FindOperands(request.operands(), request.mesh_id()));
  SHARDMESH_RETURN_IF_ERROR(CheckDonor(request.session_id(), &found));
  auto running = std::make_shared<Running>();
  if (request.work_case() == v1::ExecuteRequest::kPlanHash) {
    SHARDMESH_ASSIGN_OR_RETURN(running->prepared, planner_->Find(request.plan_hash()));
    const Plan& plan = running->prepared->plan;
    const bool fits = plan.operand_count == found.operands.size() &&
                      plan.mesh_id == found.target.mesh_id &&
                      plan.mesh_revision == found.target.mesh_revision &&
                      std::equal(found.operands.begin(), found.operands.end(), plan.values.begin(),
                                 [](const FoundOperand& operand, const ValueDescriptor& value) {
                                   return operand.described == value;
                                 });
    if (!fits) {
      return rpc::BadField("plan_hash", "is of a plan for other operands; compile for these");
    }
  } else if (request.work_case() == v1::ExecuteRequest::kProgram) {
    SHARDMESH_ASSIGN_OR_RETURN(running->prepared, Prepare(call->caller, request.program(), found));
  } else {
    return rpc::BadField("work", "is neither a program nor a plan's hash");
  }
  const Plan& plan = running->prepared->plan;
  SHARDMESH_RETURN_IF_ERROR(CheckOutputs(request, plan));
  SHARDMESH_RETURN_IF_ERROR(context_.hub->CheckReady(plan.mesh_id));

  absl::Duration timeout = std::min(call->time_left, kMaxStepTimeout);
  if (request.has_timeout()) {
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Duration asked, rpc::Decode(request.timeout()));
    timeout = std::min(timeout, asked);
  }
  // The client is to hear who was missing before its own deadline.
  timeout -= std::min(timeout / 10, absl::Milliseconds(100));
  if (timeout <= absl::ZeroDuration()) {
    return WithReason(absl::DeadlineExceededError("no time is left for the step"),
                      Reason::kDeadline);
  }

  running->request = std::move(call->request);
  running->operands = std::move(found.operands);
  running->started = context_.clock->Now();
  absl::Status staged = StageOutputs(running);
  // From here on operands are pinned until End; one that went meanwhile ends the step.
  for (FoundOperand& operand : running->operands) {
    if (operand.array != nullptr) {
      if (const absl::Status pinned =
              context_.registry->Pin(operand.array->definition.descriptor.array_id);
          !pinned.ok()) {
        operand.array = nullptr;
        staged.Update(pinned);
      }
    }
  }
  if (staged.ok()) staged = CheckSize(*running);
  if (!staged.ok()) {
    End(running, staged);
    return staged;
  }

  v1::RunStep message;
  message.set_plan_hash(running->prepared->hash);
  message.set_plan(running->prepared->bytes);
  for (int i = 0; i < running->request.operands_size(); ++i) {
    FoundOperand& operand = running->operands[static_cast<size_t>(i)];
    v1::StepOperand* encoded = message.add_operands();
    if (operand.array != nullptr) {
      const std::string& array_id = operand.array->definition.descriptor.array_id;
      SHARDMESH_PASSES("compute.give");
      // What a name or another pin holds is lent, not given: the step leaves it alone.
      operand.donate = operand.donate && context_.registry->Give(array_id, kDonorsPins);
      // The session may have let go of it since it was asked for, and another keep it: that one's
      // pin was counted then. From Give on no pin comes.
      if (operand.donate &&
          !context_.sessions->PinsArray(running->request.session_id(), array_id).value_or(false)) {
        context_.registry->TakeBack(array_id);
        operand.donate = false;
      }
      // Workers make no result over what is on their disks.
      operand.overwritten = operand.donate && operand.array->durability == Durability::kMemory &&
                            ResultOverOperand(plan, static_cast<ValueIndex>(i)).has_value();
      encoded->set_array_id(array_id);
      encoded->set_donate(operand.donate);
      (operand.donate ? step->writes : step->reads).push_back(array_id);
    } else {
      *encoded->mutable_literal() = running->request.operands(i).literal();
    }
  }
  for (const ArrayDescriptor& output : running->outputs) {
    rpc::Encode(output, message.add_outputs());
    step->writes.push_back(output.array_id);
  }
  rpc::Encode(timeout, message.mutable_timeout());
  message.set_return_literals(running->request.output().return_literals());
  step->message = std::make_shared<const std::string>(message.SerializeAsString());
  step->op = DescribeWork(running->request);
  step->mesh_id = plan.mesh_id;
  step->timeout = timeout;
  const std::shared_ptr<const MembershipView> view = context_.membership->view();
  const MeshRanks* ranks = view->FindMesh(plan.mesh_id);
  for (size_t rank = 0; ranks != nullptr && rank < ranks->identities.size(); ++rank) {
    step->participants.push_back({.rank = static_cast<int64_t>(rank),
                                  .identity = ranks->identities[rank],
                                  .expected_tiles = static_cast<int64_t>(running->outputs.size())});
  }
  return running;
}

std::optional<Sequencer::StepTicket> StepRunner::Run(StepCall call, StepCallback callback) {
  const v1::ExecuteRequest& request = call.request;
  absl::Status checked = rpc::CheckRequestId(request.request_id(), "request_id");
  if (checked.ok()) {
    checked = context_.sessions->Check(request.session_id(), call.caller);
  }
  if (!checked.ok()) {
    std::move(callback)(checked);
    return std::nullopt;
  }
  const std::string key = RequestKey(request.session_id(), call.method, request.request_id());
  absl::StatusOr<StepMemory::Answer> remembered = recent_.Begin(
      call.caller.name, key, Sha256(request.SerializeAsString()), context_.clock->Now());
  if (!remembered.ok() || *remembered != nullptr) {
    std::move(callback)(remembered.ok() ? StepAnswer(**remembered) : remembered.status());
    return std::nullopt;
  }
  StepRequest step;
  const std::string session_id = request.session_id();
  absl::Status refused = context_.sessions->BeginStep(session_id);
  if (!refused.ok()) {
    recent_.Abandon(key);
    std::move(callback)(refused);
    return std::nullopt;
  }
  absl::StatusOr<RunningPtr> admitted = Admit(&call, &step);
  if (!admitted.ok()) {
    context_.sessions->EndStep(session_id);
    recent_.Abandon(key);
    std::move(callback)(admitted.status());
    return std::nullopt;
  }
  const RunningPtr running = *std::move(admitted);
  step.commit = [this, running](const WorkOutcome& outcome,
                                absl::AnyInvocable<void(absl::Status) &&> decided) {
    Commit(running, outcome, std::move(decided));
  };
  // The sequencer drops the callback if it refuses; the answer is then given here.
  auto shared_callback = std::make_shared<StepCallback>(std::move(callback));
  const absl::StatusOr<Sequencer::StepTicket> ticket = sequencer_->Submit(
      std::move(step), [this, running, key, shared_callback](const WorkOutcome& outcome) {
        context_.sessions->EndStep(running->request.session_id());
        End(running, outcome.status, /*began=*/outcome.sequence != 0);
        StepAnswer answer =
            outcome.status.ok() ? Answer(running, outcome) : WithLosses(*running, outcome);
        if (!answer.ok()) {
          answer = WithSecondRun(*running, answer.status());
        }
        if (answer.ok()) {
          recent_.Finish(key, *answer, context_.clock->Now());
        } else {
          recent_.Abandon(key);
        }
        std::move (*shared_callback)(std::move(answer));
      });
  if (!ticket.ok()) {
    context_.sessions->EndStep(session_id);
    recent_.Abandon(key);
    End(running, ticket.status());
    std::move (*shared_callback)(WithSecondRun(*running, ticket.status()));
    return std::nullopt;
  }
  return *ticket;
}

void StepRunner::Commit(const RunningPtr& running, const WorkOutcome& outcome,
                        absl::AnyInvocable<void(absl::Status) &&> decided) {
  CommitRequest commit;
  const v1::OutputOptions& options = running->request.output();
  absl::flat_hash_map<std::string_view, size_t> places;  // of the outputs, by array
  for (size_t i = 0; i < running->outputs.size(); ++i) {
    const std::string& array_id = running->outputs[i].array_id;
    places.emplace(array_id, i);
    ArrayCommit array{.array_id = array_id,
                      .durability = Durability::kMemory,
                      .tile_crc32c = std::vector<uint32_t>(outcome.ranks.size())};
    commit.arrays.push_back(std::move(array));
    const int index = static_cast<int>(i);
    if (index < options.names_size() && !options.names(index).empty()) {
      NameMove move{.name = options.names(index), .array_id = array_id, .expected_version = {}};
      if (index < options.expected_versions_size() && options.expected_versions(index) != 0) {
        move.expected_version = std::max<int64_t>(options.expected_versions(index), 0);
      }
      commit.moves.push_back(std::move(move));
    }
  }
  for (const RankResult& rank : outcome.ranks) {
    for (const StagedTileReport& tile : rank.tiles) {
      if (const auto place = places.find(tile.array_id); place != places.end()) {
        commit.arrays[place->second].tile_crc32c[static_cast<size_t>(rank.participant.rank)] =
            tile.crc32c;
      }
    }
  }
  context_.registry->Commit(std::move(commit), [running, decided = std::move(decided)](
                                                   absl::StatusOr<CommitResult> result) mutable {
    if (result.ok()) {
      running->revision = result->revision;
    }
    std::move(decided)(result.status());
  });
}

absl::Status StepRunner::WithSecondRun(const Running& running, absl::Status status) const {
  const Reason reason = ReasonOf(status);
  // A worker that does not know yet who is there says so by the latter two.
  const bool is_passing = reason == Reason::kMeshIncomplete || reason == Reason::kStaleEpoch;
  if (reason != Reason::kWorkerLost && !is_passing) return status;
  const std::shared_ptr<const MembershipView> view = context_.membership->view();
  const MeshRanks* const mesh = view->FindMesh(running.prepared->plan.mesh_id);
  if (mesh == nullptr) return status;
  for (const std::string& identity : mesh->identities) {
    const WorkerStatus* const worker = view->FindWorker(identity);
    if (worker == nullptr || !worker->info.durable) return status;
    if (!view->IsAlive(identity) && !context_.recovery->ComesBack(identity)) return status;
  }
  const bool is_untouched = std::all_of(
      running.operands.begin(), running.operands.end(), [](const FoundOperand& operand) {
        return operand.array == nullptr ||
               (operand.array->durability == Durability::kDisk && !operand.donate);
      });
  if (!is_untouched) return status;
  return is_passing ? Recovering(ToStd(status.message()))
                    : rpc::WithRetryDelay(std::move(status), kRunAgainDelay);
}

absl::Status StepRunner::WithLosses(const Running& running, const WorkOutcome& outcome) {
  std::vector<std::string> lost;
  for (const FoundOperand& operand : running.operands) {
    if (operand.overwritten) {
      lost.push_back(operand.array->definition.descriptor.array_id);
    }
  }
  if (lost.empty() || outcome.sequence == 0) {
    return outcome.status;
  }
  return WithContext(outcome.status,
                     StrCat("gone with the step, which was to make a result in its memory: array ",
                            StrJoin(lost, ", array ")));
}

void StepRunner::End(const RunningPtr& running, const absl::Status& status, bool began) {
  const Reason reason = ReasonOf(status);
  const bool is_cancelled = reason == Reason::kCancelled || reason == Reason::kNotServing;
  const Outcome& ended = status.ok() ? committed_ : is_cancelled ? cancelled_ : failed_;
  ended.steps.Add();
  ended.seconds.Observe(absl::ToDoubleSeconds(context_.clock->Now() - running->started));
  const std::string& session_id = running->request.session_id();
  std::vector<std::string> pinned;       // by the step
  std::vector<std::string> session_has;  // and shall have no longer
  std::vector<std::string> given;
  for (const FoundOperand& operand : running->operands) {
    if (operand.array == nullptr) {
      continue;
    }
    const std::string& array_id = operand.array->definition.descriptor.array_id;
    pinned.push_back(array_id);
    if ((operand.donate && status.ok()) || (operand.overwritten && began)) {
      session_has.push_back(array_id);
    } else if (operand.donate) {
      given.push_back(array_id);
    }
  }
  std::vector<std::string> outputs;
  for (const ArrayDescriptor& output : running->outputs) outputs.push_back(output.array_id);
  if (!status.ok()) session_has.insert(session_has.end(), outputs.begin(), outputs.end());
  context_.registry->Unpin(pinned);
  UnpinForSession(*context_.registry, *context_.sessions, session_id, session_has);
  for (const std::string& array_id : given) context_.registry->TakeBack(array_id);
  if (!status.ok()) context_.registry->Discard(outputs);
}

StepAnswer StepRunner::Answer(const RunningPtr& running, const WorkOutcome& outcome) const {
  v1::ExecuteResponse response;
  response.set_sequence(outcome.sequence);
  response.set_plan_hash(running->prepared->hash);
  absl::Duration kernel;
  absl::Duration collective;
  int64_t sent_bytes = 0;
  std::vector<v1::StepReport> reports(outcome.ranks.size());
  for (size_t i = 0; i < outcome.ranks.size(); ++i) {
    if (!reports[i].ParseFromString(outcome.ranks[i].detail)) {
      return absl::InternalError("a rank's report cannot be read again");
    }
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Duration in_kernels,
                               rpc::Decode(reports[i].kernel_time()));
    SHARDMESH_ASSIGN_OR_RETURN(const absl::Duration in_collectives,
                               rpc::Decode(reports[i].collective_time()));
    kernel = std::max(kernel, in_kernels);
    collective = std::max(collective, in_collectives);
    sent_bytes += reports[i].sent_bytes();
  }
  v1::StepTimings* timings = response.mutable_timings();
  rpc::Encode(context_.clock->Now() - running->started, timings->mutable_total());
  rpc::Encode(kernel, timings->mutable_kernel());
  rpc::Encode(collective, timings->mutable_collective());
  timings->set_sent_bytes(sent_bytes);

  for (size_t i = 0; i < running->outputs.size(); ++i) {
    const ArrayDescriptor& descriptor = running->outputs[i];
    v1::StepOutput* output = response.add_outputs();
    SHARDMESH_ASSIGN_OR_RETURN(const ArrayPtr array,
                               context_.registry->FindArray(descriptor.array_id));
    const v1::OutputOptions& options = running->request.output();
    NameEntry name;
    if (const int index = static_cast<int>(i);
        index < options.names_size() && !options.names(index).empty()) {
      name = {.name = options.names(index),
              .array_id = descriptor.array_id,
              .version = running->revision};
    }
    Encode(*array, &name, output->mutable_array());
    if (!options.return_literals()) {
      continue;
    }
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes, descriptor.SizeBytes());
    Literal literal{.dtype = descriptor.dtype,
                    .shape = descriptor.shape,
                    .bytes = std::string(static_cast<size_t>(size_bytes), '\0')};
    SHARDMESH_ASSIGN_OR_RETURN(
        const MutableTensorView whole,
        MutableTensorView::Create(literal.dtype, literal.shape, absl::MakeSpan(literal.bytes)));
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      if (tiling.ReplicaIdOf(static_cast<DeviceId>(rank)) != 0) {
        continue;
      }
      const auto& outputs = reports[rank].outputs();
      const auto staged = std::find_if(
          outputs.begin(), outputs.end(),
          [&](const v1::StagedOutput& each) { return each.array_id() == descriptor.array_id; });
      if (staged == outputs.end()) {
        return absl::InternalError(StrCat("rank ", rank, " returned no elements of its tile"));
      }
      SHARDMESH_RETURN_IF_ERROR(
          PasteTileBytes(staged->data(), tiling.TileOf(static_cast<DeviceId>(rank)), 0, whole));
    }
    rpc::Encode(std::move(literal), output->mutable_literal());
  }
  // Results whose workers were lost since: their ranks are not among what CheckAnswerSize counted,
  // and whoever asks for an array is told them.
  if (static_cast<int64_t>(response.ByteSizeLong()) > rpc::kMaxControlMessageBytes) {
    for (v1::StepOutput& output : *response.mutable_outputs()) {
      output.mutable_array()->clear_missing_ranks();
    }
  }
  return response;
}

// A unary call that runs a step; cancelled with it. `fill` turns the step's answer into the RPC's.
template <typename Response>
class StepReactor final : public grpc::ServerUnaryReactor {
 public:
  using Fill = void (*)(v1::ExecuteResponse answer, Response* response);

  StepReactor(StepRunner* runner, Response* response, Fill fill)
      : runner_(runner), response_(response), fill_(fill) {}

  void Start(StepCall call) {
    std::optional<Sequencer::StepTicket> ticket =
        runner_->Run(std::move(call), [this](StepAnswer answer) { Answered(std::move(answer)); });
    StepRunner* const runner = runner_;  // from started_ on, OnDone may delete this
    bool is_over = false;
    {
      absl::MutexLock lock(&mutex_);
      started_ = true;
      ticket_ = ticket;
      is_over = done_;
      if (!is_over && !cancelled_) {
        return;
      }
    }
    if (is_over) {
      delete this;
    } else if (ticket.has_value()) {
      runner->Cancel(*ticket);
    }
  }

  void OnCancel() override {
    std::optional<Sequencer::StepTicket> ticket;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      ticket = ticket_;
    }
    if (ticket.has_value()) {
      runner_->Cancel(*ticket);
    }
  }

  // Start may still be running when the call is over: the later of the two deletes.
  void OnDone() override {
    {
      absl::MutexLock lock(&mutex_);
      done_ = true;
      if (!started_) {
        return;
      }
    }
    delete this;
  }

 private:
  void Answered(StepAnswer answer) {
    if (answer.ok()) {
      fill_(*std::move(answer), response_);
      Finish(grpc::Status::OK);
    } else {
      Finish(rpc::ToGrpc(answer.status()));
    }
  }

  StepRunner* const runner_;
  Response* const response_;
  const Fill fill_;
  absl::Mutex mutex_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Sequencer::StepTicket> ticket_ ABSL_GUARDED_BY(mutex_);
};

// The answer of an RPC whose program has one result.
template <typename Response>
void FillSingle(v1::ExecuteResponse answer, Response* response) {
  *response->mutable_output() = std::move(*answer.mutable_outputs(0));
  response->set_sequence(answer.sequence());
  *response->mutable_timings() = std::move(*answer.mutable_timings());
}

class ComputeService final : public v1::ComputeService::CallbackService {
 public:
  ComputeService(const CoordinatorParts& context, Planner* planner, Sequencer* sequencer,
                 rpc::Metrics* metrics)
      : runner_(context, planner, sequencer, metrics) {}

  grpc::ServerUnaryReactor* Compile(grpc::CallbackServerContext* context,
                                    const v1::CompileRequest* request,
                                    v1::CompileResponse* response) override {
    absl::StatusOr<v1::CompileResponse> compiled =
        runner_.Compile(*request, rpc::CallerOf(*context));
    if (compiled.ok()) {
      *response = *std::move(compiled);
    }
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(compiled.status()));
    return reactor;
  }

  grpc::ServerUnaryReactor* Execute(grpc::CallbackServerContext* context,
                                    const v1::ExecuteRequest* request,
                                    v1::ExecuteResponse* response) override {
    return Start<v1::ExecuteResponse>(
        context, "Execute", *request, response,
        [](v1::ExecuteResponse answer, v1::ExecuteResponse* to) { *to = std::move(answer); });
  }

  grpc::ServerUnaryReactor* Linear(grpc::CallbackServerContext* context,
                                   const v1::LinearRequest* request,
                                   v1::LinearResponse* response) override {
    v1::ExecuteRequest step = SingleOp(*request);
    *step.add_operands() = request->input();
    *step.add_operands() = request->weight();
    v1::LinearOp* op = step.mutable_program()->mutable_ops(0)->mutable_linear();
    op->set_input(0);
    op->set_weight(1);
    if (request->has_bias()) {
      *step.add_operands() = request->bias();
      op->set_bias(2);
    }
    op->set_weight_layout(request->weight_layout());
    op->set_activation(request->activation());
    if (request->has_scale()) {
      op->set_scale(request->scale());
    }
    return Start<v1::LinearResponse>(context, "Linear", Finished(std::move(step)), response,
                                     FillSingle);
  }

  grpc::ServerUnaryReactor* Matmul(grpc::CallbackServerContext* context,
                                   const v1::MatmulRequest* request,
                                   v1::MatmulResponse* response) override {
    v1::ExecuteRequest step = SingleOp(*request);
    *step.add_operands() = request->lhs();
    *step.add_operands() = request->rhs();
    v1::MatmulOp* op = step.mutable_program()->mutable_ops(0)->mutable_matmul();
    op->set_lhs(0);
    op->set_rhs(1);
    op->set_transpose_lhs(request->transpose_lhs());
    op->set_transpose_rhs(request->transpose_rhs());
    return Start<v1::MatmulResponse>(context, "Matmul", Finished(std::move(step)), response,
                                     FillSingle);
  }

  grpc::ServerUnaryReactor* Collective(grpc::CallbackServerContext* context,
                                       const v1::CollectiveRequest* request,
                                       v1::CollectiveResponse* response) override {
    v1::ExecuteRequest step = SingleOp(*request);
    *step.add_operands() = request->input();
    v1::CollectiveOp* op = step.mutable_program()->mutable_ops(0)->mutable_collective();
    op->set_input(0);
    op->set_kind(request->kind());
    *op->mutable_axes() = request->axes();
    op->set_dimension(request->dimension());
    op->set_reduction(request->reduction());
    op->set_root(request->root());
    op->set_split_dimension(request->split_dimension());
    *op->mutable_permutation() = request->permutation();
    op->set_algorithm(request->algorithm());
    op->set_order(request->order());
    *op->mutable_counts() = request->counts();
    return Start<v1::CollectiveResponse>(context, "Collective", Finished(std::move(step)), response,
                                         FillSingle);
  }

 private:
  // An Execute of a program of one op, which the caller fills in together with the operands.
  template <typename Request>
  static v1::ExecuteRequest SingleOp(const Request& request) {
    v1::ExecuteRequest step;
    step.set_request_id(request.request_id());
    step.set_session_id(request.session_id());
    *step.mutable_output() = request.output();
    if (request.has_timeout()) {
      *step.mutable_timeout() = request.timeout();
    }
    step.mutable_program()->add_ops();
    return step;
  }
  // The operands are all there: the op's result, which follows them, is the program's.
  static v1::ExecuteRequest Finished(v1::ExecuteRequest step) {
    const auto operands = static_cast<uint32_t>(step.operands_size());
    step.mutable_program()->set_operand_count(operands);
    step.mutable_program()->add_outputs(operands);
    return step;
  }

  template <typename Response>
  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context, std::string_view method,
                                  v1::ExecuteRequest request, Response* response,
                                  typename StepReactor<Response>::Fill fill) {
    auto* reactor = new StepReactor<Response>(&runner_, response, fill);
    reactor->Start({.request = std::move(request),
                    .method = method,
                    .caller = rpc::CallerOf(*context),
                    .time_left = rpc::TimeLeft(*context)});
    return reactor;
  }

  StepRunner runner_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeComputeService(const CoordinatorParts& context, Planner* planner,
                                                  Sequencer* sequencer, rpc::Metrics* metrics) {
  return std::make_unique<ComputeService>(context, planner, sequencer, metrics);
}

}  // namespace shardmesh::server
