// Admits, submits, commits and ends steps.
#include "server/steps/step_runner.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/synchronization/notification.h"
#include "process/failpoint.h"
#include "program/graph/symbolic_program.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/status.h"
#include "server/state/array_selection.h"
#include "server/state/request_index.h"
#include "server/state/session_pins.h"
#include "server/steps/step_codec.h"
#include "server/steps/step_outputs.h"
#include "server/steps/step_room.h"
#include "sharding/correction.h"
#include "sharding/shape.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr absl::Duration kMaxStepTimeout = absl::Minutes(5);
// Number of pins of an operand that only its donor needs: one pin of the session, one pin of the
// step.
constexpr int64_t kDonorsPins = 2;

const std::string& IdOf(const FoundOperand& operand) {
  return operand.array->definition.descriptor.array_id;
}

// Returns the name of the work for messages: the name of its op, such as "linear" or "matmul".
// Returns "program" for a program of several ops, or a plan given by its hash.
std::string_view NameOf(const std::variant<Program, PlanHash>& work) {
  const Program* const program = std::get_if<Program>(&work);
  if (program == nullptr || program->ops.size() != 1) {
    return "program";
  }
  struct Names {
    std::string_view operator()(const LinearOp&) const { return "linear"; }
    std::string_view operator()(const MatmulOp&) const { return "matmul"; }
    std::string_view operator()(const CollectiveOp&) const { return "collective"; }
    std::string_view operator()(const ReshardOp&) const { return "reshard"; }
    std::string_view operator()(const TensorOp&) const { return "tensor op"; }
  };
  return std::visit(Names(), program->ops.front());
}

// Shortens a long name to its beginning, so that a message has room for the rest of its text.
std::string Beginning(const std::string& name) {
  constexpr size_t kMaxBytes = 96;
  if (name.size() <= kMaxBytes) return name;
  size_t end = kMaxBytes;
  while (end > 0 && (name[end] & 0xC0) == 0x80) --end;  // do not cut inside a UTF-8 character
  return StrCat(name.substr(0, end), "...");
}

// Describes the work with the client's names of its operands: `linear of "x", "w"`. Names at most
// the first three operands.
std::string DescribeWork(const std::variant<Program, PlanHash>& work,
                         const std::vector<FoundOperand>& operands) {
  constexpr int64_t kNamed = 3;
  std::vector<std::string> names;
  for (const FoundOperand& operand : operands) {
    if (operand.array == nullptr) {
      names.push_back("a literal");
    } else if (!operand.name.empty()) {
      names.push_back(StrCat("\"", Beginning(operand.name), "\""));
    } else {
      names.push_back(StrCat("array ", IdOf(operand)));
    }
    if (std::ssize(names) == kNamed) break;
  }
  const size_t more = operands.size() - names.size();
  return StrCat(NameOf(work), names.empty() ? "" : " of ", StrJoin(names, ", "),
                more == 0 ? "" : StrCat(" and ", more, " more"));
}

std::vector<ValueDescriptor> DescriptionsOf(const std::vector<FoundOperand>& operands) {
  std::vector<ValueDescriptor> described;
  for (const FoundOperand& operand : operands) {
    described.push_back(operand.described);
  }
  return described;
}

// Returns the operands as they would be at another length: with the spec to which a put corrects
// theirs, and with equal parts along the symbolic dimensions.
absl::StatusOr<std::vector<FoundOperand>> OperandsAt(const Program& program,
                                                     const FoundOperands& found, int64_t length) {
  std::vector<FoundOperand> operands = found.operands;
  std::vector<std::vector<SymbolicNumber>> extents_of(operands.size());
  for (const auto& [operand, extent] : program.symbolic_extents) {
    if (operand < operands.size()) extents_of[operand].push_back(extent);
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    ValueDescriptor& described = operands[i].described;
    const std::vector<SymbolicNumber>& extents = extents_of[i];
    if (extents.empty()) continue;
    described.shape = ShapeAt(std::move(described.shape), extents, length);
    if (absl::Status error = CheckShape(described.shape); !error.ok()) {
      return rpc::WithField(WithContext(error, StrCat("at ", program.symbol->name, " ", length)),
                            "operands", i);
    }
    for (const SymbolicNumber& extent : extents) {
      const auto dimension = static_cast<size_t>(extent.index);
      if (dimension < described.cut_points.size()) described.cut_points[dimension].clear();
    }
    described.cut_points = WithoutEqualParts(std::move(described.cut_points));
    const PartSizes sizes = described.cut_points.empty() ? PartSizes::kEqual : PartSizes::kAny;
    SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected,
                               Correct(described.spec, described.shape, found.target.mesh, sizes));
    described.spec = std::move(corrected.effective);
  }
  return operands;
}

// Sets the step's time limits. They end before the client's own deadline, so that the client still
// gets an error that names the missing ranks. DEADLINE_EXCEEDED (DEADLINE): no time is left.
absl::Status SetTimeouts(const StepCall& call, StepRequest* step) {
  const auto to_tell = [](absl::Duration time) {
    return time - std::min(time / 10, absl::Milliseconds(100));
  };
  const absl::Duration time =
      std::min(call.time_left, call.timeout.value_or(absl::InfiniteDuration()));
  step->total_timeout = to_tell(time);
  step->timeout = to_tell(std::min(time, kMaxStepTimeout));
  if (step->timeout > absl::ZeroDuration()) return absl::OkStatus();
  return WithReason(absl::DeadlineExceededError("no time is left for the step"), Reason::kDeadline,
                    {{fact::kOp, NameOf(call.work)},
                     {fact::kLimit, absl::ToDoubleSeconds(std::max(time, absl::ZeroDuration()))}});
}

// The participants of a step: each rank of the mesh, which stages one tile of each output.
std::vector<Participant> ParticipantsOf(const MembershipView& view, const std::string& mesh_id,
                                        int64_t outputs) {
  std::vector<Participant> participants;
  const MeshRanks* const ranks = view.FindMesh(mesh_id);
  for (size_t rank = 0; ranks != nullptr && rank < ranks->identities.size(); ++rank) {
    participants.push_back({.rank = static_cast<int64_t>(rank),
                            .identity = ranks->identities[rank],
                            .expected_tiles = outputs});
  }
  return participants;
}

StepPrediction PredictionOf(const PreparedPlan& prepared) {
  StepPrediction prediction = {.sent_bytes = prepared.forecast.sent_bytes,
                               .peak_bytes = prepared.plan.cost.memory_bytes};
  if (prepared.kernels.is_measured) {
    prediction.kernel = absl::Seconds(prepared.forecast.kernel_seconds);
  }
  if (prepared.links.is_measured) {
    prediction.collective = absl::Seconds(prepared.forecast.exchange_seconds);
  }
  return prediction;
}

// Returns the timeline of a step of which the ranks have reported these parts.
StepTrace TraceOf(const Plan& plan, const std::vector<RankResult>& ranks) {
  StepTrace trace;
  for (const Instruction& instruction : plan.instructions) {
    trace.labels.push_back(instruction.label);
  }
  for (const RankResult& rank : ranks) {
    if (rank.detail.trace.has_value()) trace.ranks.push_back(*rank.detail.trace);
  }
  return trace;
}

}  // namespace

StepRunner::Outcome::Outcome(rpc::Metrics* metrics, const std::string& outcome)
    : steps(metrics->AddCounter("shardmesh_steps_total", "Steps by how they ended.",
                                {{"outcome", outcome}})),
      seconds(metrics->AddHistogram("shardmesh_step_duration_seconds",
                                    "From a step's admission to its end.",
                                    {{"outcome", outcome}})) {}

StepRunner::StepRunner(const StepRunnerParts& parts)
    : parts_(parts),
      finder_({.definition_store = parts.definition_store,
               .membership = parts.membership,
               .registry = parts.registry,
               .links = parts.links,
               .recovery = parts.recovery,
               .preferred_algorithms = parts.preferred_algorithms}),
      committed_(parts.metrics, "committed"),
      failed_(parts.metrics, "failed"),
      cancelled_(parts.metrics, "cancelled"),
      memory_(parts.memory) {}

bool StepRunner::PlansLong(const Program& program, const StepOperands& operands) const {
  constexpr int64_t kMostOpsTimesDevices = int64_t{1} << 13;
  // The inputs of a concatenation take about as long as those of other ops.
  constexpr size_t kInputsOfOp = 4;
  size_t ops = program.ops.size();
  for (const ProgramOp& op : program.ops) {
    const auto* const tensor = std::get_if<TensorOp>(&op);
    const auto* const joined = tensor == nullptr ? nullptr : std::get_if<ConcatenateOp>(tensor);
    if (joined != nullptr) ops += joined->inputs.size() / kInputsOfOp;
  }
  return static_cast<int64_t>(ops) >
         kMostOpsTimesDevices / std::max(finder_.DevicesOf(operands), int64_t{1});
}

bool StepRunner::PlansLong(const StepCall& call) const {
  if (call.layer.has_value()) return true;
  const auto* const program = std::get_if<Program>(&call.work);
  if (program != nullptr) return PlansLong(*program, call.operands);
  const std::shared_ptr<const SymbolicProgram> symbolic = SymbolicOf(call);
  return symbolic != nullptr && PlansLong(symbolic->program, call.operands);
}

std::shared_ptr<const SymbolicProgram> StepRunner::SymbolicOf(const StepCall& call) const {
  const auto* const hash = std::get_if<PlanHash>(&call.work);
  if (hash == nullptr) return nullptr;
  if (const auto kept = call.kept_plan == nullptr ? nullptr : call.kept_plan->get();
      kept != nullptr && kept->symbolic != nullptr && kept->symbolic->hash == hash->bytes) {
    return kept->symbolic;
  }
  return parts_.planner->FindSymbolic(hash->bytes);
}

absl::Status StepRunner::CompileLengths(const rpc::Caller& caller, const Program& program,
                                        const FoundOperands& found, CompiledPlan* compiled) const {
  const auto shape_of = [&](ValueIndex operand) {
    return operand < found.operands.size() ? &found.operands[operand].described.shape : nullptr;
  };
  SHARDMESH_RETURN_IF_ERROR(LengthOf(program, shape_of).status());
  CompiledPlan::Lengths lengths = {.longest = program.symbol->max, .shortest = program.symbol->min};
  const auto at = [&](int64_t length, std::vector<FoundOperand>* operands)
      -> absl::StatusOr<std::shared_ptr<const PreparedPlan>> {
    SHARDMESH_ASSIGN_OR_RETURN(*operands, OperandsAt(program, found, length));
    auto prepared = Prepare(caller, program, *operands, found.target);
    if (prepared.ok()) return prepared;
    return WithContext(prepared.status(), StrCat("at ", program.symbol->name, " ", length));
  };
  std::vector<FoundOperand> operands;
  SHARDMESH_ASSIGN_OR_RETURN(lengths.at_shortest, at(lengths.shortest, &operands));
  SHARDMESH_ASSIGN_OR_RETURN(compiled->prepared, at(lengths.longest, &operands));
  compiled->lengths = std::move(lengths);
  return WithContext(CheckStepRoom(compiled->prepared->plan, operands, *parts_.membership->view(),
                                   *parts_.registry),
                     StrCat("at ", program.symbol->name, " ", program.symbol->max));
}

absl::StatusOr<StepRunner::CompiledPlan> StepRunner::Compile(const rpc::Caller& caller,
                                                             Program program, StepOperands operands,
                                                             size_t candidates,
                                                             const LayerCall* layer) const {
  SHARDMESH_ASSIGN_OR_RETURN(FoundOperands found, finder_.Find(std::move(operands)));
  if (layer != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(
        program, ProgramOfLayer(*layer, DescriptionsOf(found.operands), found.target.mesh));
  }
  CompiledPlan compiled;
  if (program.symbol.has_value()) {
    if (candidates > 0) {
      return rpc::BadField("candidates",
                           "are asked for a program with a symbolic dimension; give the program "
                           "of one length");
    }
    SHARDMESH_RETURN_IF_ERROR(CompileLengths(caller, program, found, &compiled));
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(compiled.prepared,
                               Prepare(caller, program, found.operands, found.target));
  }
  const Plan& plan = compiled.prepared->plan;
  if (plan.mesh.size() <= kMostRankPeaks) {
    compiled.rank_peak_bytes = NeedOfStep(plan, found.operands, plan.cost.memory_bytes);
  }
  if (parts_.endpoints->CheckReady(plan.mesh_id).ok()) {
    SHARDMESH_RETURN_IF_ERROR(CheckWorkersRun(plan, *parts_.membership->view()));
  }
  if (candidates > 0) {
    // A plan from the cache was made with figures that differ a little from those of now.
    found.target.links = compiled.prepared->links;
    found.target.kernels = compiled.prepared->kernels;
    SHARDMESH_ASSIGN_OR_RETURN(
        compiled.candidates,
        PlanCandidates(program, DescriptionsOf(found.operands), found.target, candidates));
  }
  return compiled;
}

absl::StatusOr<std::shared_ptr<const PreparedPlan>> StepRunner::Prepare(
    const rpc::Caller& caller, const Program& program, const std::vector<FoundOperand>& operands,
    const PlanTarget& target) const {
  return parts_.planner->Prepare(caller.name, program, DescriptionsOf(operands), target);
}

absl::StatusOr<std::shared_ptr<const PreparedPlan>> StepRunner::PlanOf(
    const StepCall& call, const FoundOperands& found) const {
  if (const auto* const program = std::get_if<Program>(&call.work); program != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(const Program resharded, WithOutputSpecs(*program, call.outputs));
    return Prepare(call.caller, resharded, found.operands, found.target);
  }
  if (!call.outputs.specs.empty()) {
    return rpc::BadField("output.layouts",
                         "are given with a plan, which has its own; compile a program that ends "
                         "with a reshard");
  }
  if (const auto symbolic = SymbolicOf(call); symbolic != nullptr) {
    return Prepare(call.caller, symbolic->program, found.operands, found.target);
  }
  const std::string& hash = std::get<PlanHash>(call.work).bytes;
  std::shared_ptr<const PreparedPlan> prepared =
      call.kept_plan == nullptr ? nullptr : call.kept_plan->get();
  if (prepared == nullptr || prepared->hash != hash) {
    SHARDMESH_ASSIGN_OR_RETURN(prepared, parts_.planner->Find(hash));
  }
  const Plan& plan = prepared->plan;
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
  return prepared;
}

absl::Status StepRunner::StageOutputs(Running* running, Revision ranks_revision) const {
  const std::vector<ArrayDefinition>& definitions = running->options.definitions;
  for (ArrayDescriptor& descriptor : DescribeOutputs(running->prepared->plan, ranks_revision)) {
    ArrayDefinition definition;
    if (const size_t i = running->outputs.size(); i < definitions.size()) {
      definition = definitions[i];
    }
    definition.descriptor = descriptor;
    SHARDMESH_RETURN_IF_ERROR(parts_.registry->Stage(std::move(definition)));
    const std::string array_id = descriptor.array_id;
    running->outputs.push_back(std::move(descriptor));
    SHARDMESH_RETURN_IF_ERROR(
        PinForSession(*parts_.registry, *parts_.sessions, running->session_id, array_id).status());
  }
  return absl::OkStatus();
}

absl::Status StepRunner::PinOperands(Running* running) const {
  absl::Status result;
  for (FoundOperand& operand : running->operands) {
    if (operand.array == nullptr) {
      continue;
    }
    if (const absl::Status pinned = parts_.registry->Pin(IdOf(operand)); !pinned.ok()) {
      operand.array = nullptr;  // not pinned, so End must not unpin it
      result.Update(pinned);
    }
  }
  return result;
}

absl::Status StepRunner::MakeState(Running* running, absl::Duration time_left) const {
  for (const FoundOperand& operand : running->operands) {
    if (operand.is_updated) running->updated.push_back(IdOf(operand));
  }
  if (running->updated.empty()) return absl::OkStatus();
  struct Recorded {
    absl::Notification is_known;
    absl::Status status;
  };
  const auto recorded = std::make_shared<Recorded>();
  parts_.registry->MakeState(running->updated, [recorded](absl::Status status) {
    recorded->status = std::move(status);
    recorded->is_known.Notify();
  });
  if (!recorded->is_known.WaitForNotificationWithTimeout(time_left)) {
    return WithReason(
        absl::DeadlineExceededError(
            "the store did not record in time that the step updates its operands; try again"),
        Reason::kDeadline, {{fact::kLimit, absl::ToDoubleSeconds(time_left)}});
  }
  SHARDMESH_RETURN_IF_ERROR(recorded->status);
  // The step would update the other ranks of a degraded array only.
  for (const std::string& id : running->updated) {
    SHARDMESH_ASSIGN_OR_RETURN(const ArrayPtr array, parts_.registry->FindArray(id));
    if (array->state == ArrayState::kAvailable) continue;
    return WithReason(
        absl::UnavailableError(StrCat("array ", id, " has lost tiles since the call began")),
        Reason::kArrayDegraded, {{fact::kArray, id}});
  }
  return absl::OkStatus();
}

void StepRunner::GiveOperands(Running* running, StepRequest* step) const {
  // Takes as long as the plan, so steps without a donated operand do not ask for it.
  std::optional<std::vector<std::optional<ValueIndex>>> results;
  for (size_t i = 0; i < running->operands.size(); ++i) {
    FoundOperand& operand = running->operands[i];
    if (operand.array == nullptr) {
      continue;
    }
    const std::string& array_id = IdOf(operand);
    if (operand.is_updated) {
      step->writes.push_back(array_id);
      continue;
    }
    SHARDMESH_PASSES("compute.give");
    // If the array has a name or another pin, the registry refuses Give. In that case the step only
    // reads the array and does not change it.
    operand.donate = operand.donate && parts_.registry->Give(array_id, kDonorsPins);
    // Give only counts the pins of the array: it does not check which session has them. If this
    // session released the array since CheckDonor, one of the two pins belongs to another session.
    // The step must then not take the array. After Give nobody can pin the array any more.
    if (operand.donate &&
        !parts_.sessions->PinsArray(running->session_id, array_id).value_or(false)) {
      parts_.registry->TakeBack(array_id);
      operand.donate = false;
    }
    // Workers never write a result over durable tiles, so a durable operand survives a failed step.
    if (operand.donate && operand.array->durability == Durability::kMemory) {
      if (!results.has_value()) results = ResultsOverOperands(running->prepared->plan);
      operand.overwritten = (*results)[i].has_value();
    }
    (operand.donate ? step->writes : step->reads).push_back(array_id);
  }
}

EncodedStep StepRunner::MessageOf(const Running& running, absl::Duration timeout) const {
  StepMessage message{.plan = running.prepared,
                      .outputs = &running.outputs,
                      .timeout = timeout,
                      .return_literals = running.options.return_literals};
  if (running.options.return_trace) {
    message.max_trace_spans = SpansOfEachRank(running.prepared->plan.mesh.size());
  }
  for (const FoundOperand& operand : running.operands) {
    if (operand.array != nullptr) {
      message.operands.push_back({.array_id = IdOf(operand), .donate = operand.donate});
    } else {
      message.operands.push_back({.literal = &operand.literal});
    }
  }
  return Encode(message);
}

absl::StatusOr<StepRunner::RunningPtr> StepRunner::AdmitNamed(StepCall call, StepRequest* step) {
  std::vector<ArrayReference> named;
  for (const StepOperand& operand : call.operands.operands) {
    const auto* const reference = std::get_if<ArrayReference>(&operand.value);
    if (reference != nullptr && !reference->name.empty()) named.push_back(*reference);
  }
  for (int attempt = 1; !named.empty() && attempt < kMaxSelections; ++attempt) {
    absl::StatusOr<RunningPtr> admitted = Admit(call, step);
    if (ReasonOf(admitted.status()) != Reason::kNotFound) return admitted;
    for (const ArrayReference& reference : named) {
      if (!Select(*parts_.registry, reference).ok()) return admitted;
    }
    *step = StepRequest();
  }
  return Admit(std::move(call), step);
}

absl::StatusOr<StepRunner::RunningPtr> StepRunner::Admit(StepCall call, StepRequest* step) {
  SHARDMESH_ASSIGN_OR_RETURN(FoundOperands found, finder_.Find(std::move(call.operands)));
  if (call.layer.has_value()) {
    SHARDMESH_ASSIGN_OR_RETURN(
        call.work, ProgramOfLayer(*call.layer, DescriptionsOf(found.operands), found.target.mesh));
  }
  SHARDMESH_RETURN_IF_ERROR(
      CheckDonor(*parts_.registry, *parts_.sessions, call.session_id, &found.operands));
  auto running = std::make_shared<Running>();
  SHARDMESH_ASSIGN_OR_RETURN(running->prepared, PlanOf(call, found));
  if (call.kept_plan != nullptr) call.kept_plan->Set(running->prepared);
  const Plan& plan = running->prepared->plan;
  SHARDMESH_RETURN_IF_ERROR(CheckOutputs(call.outputs, plan));
  SHARDMESH_RETURN_IF_ERROR(MarkUpdates(plan, &found.operands));
  SHARDMESH_RETURN_IF_ERROR(parts_.endpoints->CheckReady(plan.mesh_id));
  SHARDMESH_RETURN_IF_ERROR(CheckWorkersRun(plan, *parts_.membership->view()));
  SHARDMESH_RETURN_IF_ERROR(SetTimeouts(call, step));
  step->op = DescribeWork(call.work, found.operands);
  step->mesh_id = plan.mesh_id;
  step->received = std::move(call.received);
  step->operation_id = call.operation_id;
  step->chain = std::move(call.chain);

  running->session_id = call.session_id;
  running->options = std::move(call.outputs);
  running->operands = std::move(found.operands);
  running->started = parts_.clock->Now();
  // If an operation from here on fails, End undoes the operations that have succeeded.
  absl::Status staged = StageOutputs(running.get(), found.ranks_revision);
  staged.Update(PinOperands(running.get()));
  if (staged.ok()) {
    staged = CheckMessageSizes(*running->prepared, running->operands, running->outputs,
                               running->options);
  }
  if (staged.ok()) {
    staged = CheckStepRoom(plan, running->operands, *parts_.membership->view(), *parts_.registry);
  }
  if (staged.ok()) staged = MakeState(running.get(), step->timeout);
  if (!staged.ok()) {
    End(*running, staged);
    return staged;
  }
  GiveOperands(running.get(), step);
  for (const ArrayDescriptor& output : running->outputs) {
    step->writes.push_back(output.array_id);
  }
  step->message = std::make_shared<const EncodedStep>(MessageOf(*running, step->timeout));
  step->participants =
      ParticipantsOf(*parts_.membership->view(), plan.mesh_id, std::ssize(running->outputs));
  return running;
}

std::optional<Sequencer::StepTicket> StepRunner::Run(StepCall call, Callback callback) {
  absl::Status checked;
  if (call.is_remembered) checked = rpc::CheckRequestId(call.request_id, "request_id");
  if (checked.ok()) {
    checked = parts_.sessions->Check(call.session_id, call.caller);
  }
  if (!checked.ok()) {
    std::move(callback)(checked);
    return std::nullopt;
  }
  // Empty: the answer is not kept.
  const std::string key = call.is_remembered
                              ? RequestKey(call.session_id, call.method, call.request_id)
                              : std::string();
  if (call.is_remembered) {
    absl::StatusOr<StepMemory::Answer> remembered =
        memory_.Begin(call.caller.name, key, call.fingerprint, parts_.clock->Now());
    if (!remembered.ok() || *remembered != nullptr) {
      std::move(callback)(remembered.ok() ? StepAnswer(**remembered) : remembered.status());
      return std::nullopt;
    }
  }
  const std::string session_id = call.session_id;
  if (const absl::Status refused = parts_.sessions->BeginStep(session_id); !refused.ok()) {
    memory_.Abandon(key);
    std::move(callback)(refused);
    return std::nullopt;
  }
  StepRequest step;
  absl::StatusOr<RunningPtr> admitted = AdmitNamed(std::move(call), &step);
  if (!admitted.ok()) {
    parts_.sessions->EndStep(session_id);
    memory_.Abandon(key);
    std::move(callback)(admitted.status());
    return std::nullopt;
  }
  const RunningPtr running = *std::move(admitted);
  running->submitted = parts_.clock->Now();
  step.commit = [this, running](const WorkOutcome& outcome,
                                absl::AnyInvocable<void(absl::Status) &&> decided) {
    Commit(running, outcome, std::move(decided));
  };
  // If the sequencer refuses the step, it drops its copy of the callback, and this function calls
  // the callback.
  auto shared_callback = std::make_shared<Callback>(std::move(callback));
  const absl::StatusOr<Sequencer::StepTicket> ticket = parts_.sequencer->Submit(
      std::move(step), [this, running, key, shared_callback](const WorkOutcome& outcome) {
        parts_.sessions->EndStep(running->session_id);
        End(*running, outcome.status, /*began=*/outcome.sequence != 0);
        absl::StatusOr<StepResult> result =
            outcome.status.ok() ? ResultOf(*running, outcome) : WithLosses(*running, outcome);
        if (!result.ok()) {
          memory_.Abandon(key);
          return std::move(*shared_callback)(WithSecondRun(*running, result.status()));
        }
        v1::ExecuteResponse answer = Encode(*std::move(result));
        if (!key.empty()) memory_.Finish(key, answer, parts_.clock->Now());
        std::move (*shared_callback)(std::move(answer));
      });
  if (!ticket.ok()) {
    parts_.sessions->EndStep(session_id);
    memory_.Abandon(key);
    End(*running, ticket.status());
    std::move (*shared_callback)(WithSecondRun(*running, ticket.status()));
    return std::nullopt;
  }
  return *ticket;
}

void StepRunner::Commit(const RunningPtr& running, const WorkOutcome& outcome,
                        absl::AnyInvocable<void(absl::Status) &&> decided) {
  parts_.registry->Commit(
      CommitOf(running->outputs, running->options, outcome, running->updated),
      [running, decided = std::move(decided)](absl::StatusOr<CommitResult> result) mutable {
        if (result.ok()) {
          running->revision = result->revision;
        }
        std::move(decided)(result.status());
      });
}

absl::Status StepRunner::WithSecondRun(const Running& running, absl::Status status) const {
  const Reason reason = ReasonOf(status);
  // A worker reports one of these two reasons if it does not have the current list of members yet.
  const bool is_passing = reason == Reason::kMeshIncomplete || reason == Reason::kStaleEpoch;
  if (reason != Reason::kWorkerLost && !is_passing) return status;
  const std::shared_ptr<const MembershipView> view = parts_.membership->view();
  const MeshRanks* const mesh = view->FindMesh(running.prepared->plan.mesh_id);
  if (mesh == nullptr) return status;
  for (const std::string& identity : mesh->identities) {
    const WorkerStatus* const worker = view->FindWorker(identity);
    if (worker == nullptr || !worker->info.durable) return status;
    if (!view->IsAlive(identity) && !parts_.recovery->ComesBack(identity)) return status;
  }
  const bool is_untouched = std::all_of(
      running.operands.begin(), running.operands.end(), [](const FoundOperand& operand) {
        // The worker has removed the file of an array that the step updates.
        return operand.array == nullptr || (operand.array->durability == Durability::kDisk &&
                                            !operand.donate && !operand.is_updated);
      });
  if (!is_untouched) return status;
  // A client retries by itself after RECOVERING, but not after the reason of `status`.
  const absl::Status recovering = Recovering(ToStd(status.message()));
  return is_passing ? recovering : WithFactsOf(recovering, status);
}

absl::Status StepRunner::WithLosses(const Running& running, const WorkOutcome& outcome) {
  std::vector<std::string> lost;
  for (const FoundOperand& operand : running.operands) {
    if (operand.overwritten) {
      lost.push_back(IdOf(operand));
    }
  }
  if (lost.empty() || outcome.sequence == 0) {
    return outcome.status;
  }
  return WithContext(outcome.status,
                     StrCat("gone with the step, which was to make a result in its memory: array ",
                            StrJoin(lost, ", array ")));
}

void StepRunner::End(const Running& running, const absl::Status& status, bool began) {
  const Reason reason = ReasonOf(status);
  const bool is_cancelled = reason == Reason::kCancelled || reason == Reason::kNotServing;
  const Outcome& ended = status.ok() ? committed_ : is_cancelled ? cancelled_ : failed_;
  ended.steps.Add();
  ended.seconds.Observe(absl::ToDoubleSeconds(parts_.clock->Now() - running.started));
  std::vector<std::string> pinned;       // arrays that the step pins
  std::vector<std::string> session_has;  // arrays whose pin the session loses
  std::vector<std::string> given;
  for (const FoundOperand& operand : running.operands) {
    if (operand.array == nullptr) {
      continue;
    }
    const std::string& array_id = IdOf(operand);
    pinned.push_back(array_id);
    if ((operand.donate && status.ok()) || (operand.overwritten && began)) {
      session_has.push_back(array_id);
    } else if (operand.donate) {
      given.push_back(array_id);
    }
  }
  std::vector<std::string> outputs;
  for (const ArrayDescriptor& output : running.outputs) outputs.push_back(output.array_id);
  if (!status.ok()) session_has.insert(session_has.end(), outputs.begin(), outputs.end());
  parts_.registry->Unpin(pinned);
  UnpinForSession(*parts_.registry, *parts_.sessions, running.session_id, session_has);
  for (const std::string& array_id : given) parts_.registry->TakeBack(array_id);
  if (!status.ok()) parts_.registry->Discard(outputs);
}

std::optional<absl::Duration> StepRunner::LearnOverhead(const PreparedPlan& prepared,
                                                        absl::Duration overhead) {
  constexpr size_t kMostMeshes = 1024;
  const size_t instructions = prepared.plan.instructions.size();
  absl::MutexLock lock(&overheads_mutex_);
  // Meshes that are gone have entries as well.
  if (overheads_.size() >= kMostMeshes && !overheads_.contains(prepared.plan.mesh_id)) {
    overheads_.clear();
  }
  StepOverhead& of_mesh = overheads_[prepared.plan.mesh_id];
  const std::optional<absl::Duration> predicted = of_mesh.Predict(instructions);
  of_mesh.Learn(overhead, instructions);
  return predicted;
}

absl::StatusOr<StepResult> StepRunner::ResultOf(const Running& running,
                                                const WorkOutcome& outcome) {
  StepResult result{.sequence = outcome.sequence, .plan_hash = running.prepared->hash};
  absl::Duration busy;                               // of the rank that is busy longest
  absl::Duration queued = absl::InfiniteDuration();  // of the rank where the step waited least
  for (const RankResult& rank : outcome.ranks) {
    result.kernel = std::max(result.kernel, rank.detail.kernel);
    result.collective = std::max(result.collective, rank.detail.collective);
    result.sent_bytes += rank.detail.sent_bytes;
    busy = std::max(busy, rank.detail.kernel + rank.detail.collective);
    queued = std::min(queued, rank.detail.queued);
  }
  const absl::Time ended = parts_.clock->Now();
  result.total = ended - running.started;
  result.predicted = PredictionOf(*running.prepared);
  result.predicted.overhead =
      LearnOverhead(*running.prepared,
                    OverheadOf({.admitted = running.started,
                                .submitted = running.submitted,
                                .started = outcome.started,
                                .ended = ended,
                                .busy = busy,
                                .queued = outcome.ranks.empty() ? absl::ZeroDuration() : queued}));
  if (running.options.return_trace) result.trace = TraceOf(running.prepared->plan, outcome.ranks);
  for (size_t i = 0; i < running.outputs.size(); ++i) {
    const ArrayDescriptor& descriptor = running.outputs[i];
    StepResult::Output& output = result.outputs.emplace_back();
    SHARDMESH_ASSIGN_OR_RETURN(output.array, parts_.registry->FindArray(descriptor.array_id));
    if (const std::string& name = running.options.NameOf(i); !name.empty()) {
      output.name = {.name = name, .array_id = descriptor.array_id, .version = running.revision};
    }
    if (running.options.return_literals) {
      SHARDMESH_ASSIGN_OR_RETURN(output.literal, AssembleLiteral(descriptor, outcome.ranks));
    }
  }
  return result;
}

}  // namespace shardmesh::server
