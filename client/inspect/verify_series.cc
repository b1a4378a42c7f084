// SeriesVerifier: carries state from step to step.
#include "client/inspect/verify_series.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

#include "client/inspect/reference_program.h"
#include "program/tensor_op.h"
#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {

absl::StatusOr<std::string> SeriesVerifier::Hold(const Operand& operand,
                                                 const CallOptions& options) {
  const ArraySelector& selector = std::get<ArraySelector>(operand.value);
  const std::string name = StrCat(selector.name, "@", selector.version);
  std::string id = selector.array_id;
  if (!selector.name.empty()) {
    const auto found = ids_.find(name);
    id = found == ids_.end() ? "" : found->second;
  }
  if (held_.contains(id)) return id;
  SHARDMESH_ASSIGN_OR_RETURN(KnownOperand known, FindOperandOf(client_, operand, options));
  id = std::get<ArraySelector>(known.operand.value).array_id;
  if (!selector.name.empty()) ids_[name] = id;
  if (held_.contains(id)) return id;
  SHARDMESH_ASSIGN_OR_RETURN(BoundedTensorPtr elements, ElementsOf(client_, known, options));
  held_.emplace(id, Held{.known = std::move(known), .elements = std::move(elements)});
  return id;
}

absl::Status SeriesVerifier::Begin(const Program& program, absl::Span<const Operand> operands,
                                   const CallOptions& options) {
  std::vector<std::string> ids;  // by operand; empty for a literal
  std::vector<BoundedTensorPtr> values;
  std::vector<TensorType> types;
  for (const Operand& operand : operands) {
    std::string& id = ids.emplace_back();
    if (std::holds_alternative<ArraySelector>(operand.value)) {
      SHARDMESH_ASSIGN_OR_RETURN(id, Hold(operand, options));
      values.push_back(held_.at(id).elements);
    } else {
      SHARDMESH_ASSIGN_OR_RETURN(const KnownOperand literal,
                                 FindOperandOf(client_, operand, options));
      SHARDMESH_ASSIGN_OR_RETURN(values.emplace_back(), ElementsOf(client_, literal, options));
    }
    const Dtype dtype = values.back()->dtype;
    types.push_back({dtype, values.back()->shape});
    if (IsFloat(dtype)) tolerance_ = std::max(tolerance_, ToleranceOf(dtype));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Program fixed, ProgramOfTypes(program, types));
  SHARDMESH_ASSIGN_OR_RETURN(types, TypesOfValues(fixed, types));
  SHARDMESH_RETURN_IF_ERROR(CheckReferenceSize(fixed, types));
  const double tolerance = uses_tolerance_ ? tolerance_ : std::numeric_limits<double>::infinity();
  SHARDMESH_ASSIGN_OR_RETURN(values, ReferenceValues(fixed, types, std::move(values), tolerance));
  std::vector<BoundedTensorPtr> results;
  for (const ValueIndex output : program.outputs) results.push_back(values[output]);
  for (const StateUpdate& update : program.updates) {
    if (ids[update.operand].empty()) continue;  // the step will be refused
    Held& held = held_.at(ids[update.operand]);
    held.elements = values[update.value];
    held.is_moved = true;
  }
  open_.push_back(std::move(results));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<VerifiedResult>> SeriesVerifier::VerifyState(
    const CallOptions& options) {
  std::vector<VerifiedResult> verified;
  for (auto& [id, held] : held_) {
    if (!held.is_moved) continue;
    SHARDMESH_ASSIGN_OR_RETURN(BoundedTensorPtr elements, ElementsOf(client_, held.known, options));
    verified.push_back(
        CompareElements(StrCat("the new elements of array ", id), *elements, *held.elements));
    held.elements = std::move(elements);
    held.is_moved = false;
  }
  return verified;
}

absl::StatusOr<std::vector<VerifiedResult>> SeriesVerifier::End(const StepResult& result,
                                                                const CallOptions& options) {
  if (open_.empty()) return absl::FailedPreconditionError("no step is open; begin it first");
  const std::vector<BoundedTensorPtr> expected = std::move(open_.front());
  open_.pop_front();
  if (result.outputs.size() != expected.size()) {
    return InvalidArgument(Reason::kBadField,
                           StrCat("the step has ", result.outputs.size(), " results, and not ",
                                  expected.size(), "; end the steps in the order of their begins"),
                           {{fact::kField, "outputs"}});
  }
  std::vector<VerifiedResult> verified;
  for (size_t i = 0; i < expected.size(); ++i) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const BoundedTensorPtr elements,
        ResultElementsOf(client_, result.outputs[i].array.descriptor, options));
    if (elements->shape != expected[i]->shape || elements->dtype != expected[i]->dtype) {
      return InvalidArgument(
          Reason::kBadField,
          StrCat("output ", i, " is ", DtypeName(elements->dtype), " ",
                 ShapeToString(elements->shape), ", and not ", DtypeName(expected[i]->dtype), " ",
                 ShapeToString(expected[i]->shape), "; end the steps in the order of their begins"),
          {{fact::kField, "outputs"}});
    }
    verified.push_back(CompareElements(StrCat("output ", i), *elements, *expected[i]));
  }
  if (!open_.empty()) return verified;
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<VerifiedResult> state, VerifyState(options));
  std::move(state.begin(), state.end(), std::back_inserter(verified));
  return verified;
}

double ToleranceOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return 0.1;
    case Dtype::kF16:
      return 0.01;
    default:
      return 0.001;
  }
}

void AddVerified(const VerifiedResult& step, VerifiedResult* total) {
  total->checked += step.checked;
  total->undetermined += step.undetermined;
  total->outside += step.outside;
  if (step.largest_error > total->largest_error) {
    total->largest_error = step.largest_error;
    total->bound = step.bound;
  }
  if (!total->first_outside.has_value()) total->first_outside = step.first_outside;
}

absl::Status VerifyingObserver::AfterStep(const StepResult& result, const CallOptions& options) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<VerifiedResult> verified,
                             verifier_.End(result, options));
  ++steps_;
  for (size_t i = 0; i < verified.size(); ++i) {
    // The results of the step come first.
    const std::string what = i < result.outputs.size() ? verified[i].what : "state";
    auto total = std::find_if(verified_.begin(), verified_.end(),
                              [&](const VerifiedResult& each) { return each.what == what; });
    if (total == verified_.end()) {
      total = verified_.insert(verified_.end(), VerifiedResult{.what = what});
    }
    AddVerified(verified[i], &*total);
  }
  return WithContext(CheckVerified(verified), StrCat("step ", result.sequence));
}

}  // namespace shardmesh::client
