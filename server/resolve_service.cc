// Pure questions: decodes them, asks the algebra, encodes the answers. No lock on the way.
#include "server/resolve_service.h"

#include <grpcpp/grpcpp.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rpc/array_codec.h"
#include "rpc/metrics.h"
#include "rpc/spec_codec.h"
#include "rpc/status.h"
#include "server/tree_resolver.h"
#include "sharding/correction.h"
#include "sharding/logical_sharding.h"
#include "sharding/presets.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "sharding/tile.h"
#include "shardmesh/v1/resolve_service.grpc.pb.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kDefaultMesh = "default";
constexpr int kMaxListedDevices = 65'536;

// Decodes a field, and names it in the error.
#define SHARDMESH_DECODE(lhs, field, decoded)                   \
  auto lhs##_or = (decoded);                                    \
  if (!lhs##_or.ok()) {                                         \
    return rpc::WithField(std::move(lhs##_or).status(), field); \
  }                                                             \
  auto lhs = *std::move(lhs##_or)

absl::StatusOr<Mesh> SelectMesh(const ClusterState& state, const v1::MeshSelector& selector,
                                Compatibility compatibility) {
  if (selector.has_inline_()) {
    auto mesh = rpc::Decode(selector.inline_(), std::nullopt, compatibility);
    return mesh.ok() ? mesh : rpc::WithField(mesh.status(), "inline");
  }
  const std::string_view name =
      selector.mesh_case() == v1::MeshSelector::kName ? selector.name() : kDefaultMesh;
  SHARDMESH_ASSIGN_OR_RETURN(const rpc::MeshDefinition* mesh, state.FindMesh(name));
  return mesh->mesh;
}

absl::StatusOr<PartitionAxis> SelectProfile(const ClusterState& state,
                                            const v1::ProfileSelector& selector) {
  switch (selector.profile_case()) {
    case v1::ProfileSelector::kInline: {
      auto profile = rpc::Decode(selector.inline_());
      return profile.ok() ? profile : rpc::WithField(profile.status(), "inline");
    }
    case v1::ProfileSelector::kName: {
      SHARDMESH_ASSIGN_OR_RETURN(const PartitionAxis* profile, state.FindProfile(selector.name()));
      return *profile;
    }
    case v1::ProfileSelector::PROFILE_NOT_SET:
      break;
  }
  static const PartitionAxis* const kDefaults = new PartitionAxis();
  return *kDefaults;
}

absl::Status FirstCorrection(const std::vector<Correction>& corrections) {
  const Correction& first = corrections.front();
  return InvalidArgument(first.reason, first.ToString());
}

// Corrections by reason, as a metric.
class CorrectionCounter {
 public:
  explicit CorrectionCounter(rpc::Metrics* metrics) {
    if (metrics == nullptr) {
      return;
    }
    for (const Reason reason : kReasons) {
      counters_.push_back(metrics->AddCounter("shardmesh_corrections_total",
                                              "Changes made to requested specs so that they fit.",
                                              {{"reason", std::string(ReasonName(reason))}}));
    }
  }

  void Count(const std::vector<Correction>& corrections) const {
    for (const Correction& correction : corrections) {
      for (size_t i = 0; i < counters_.size(); ++i) {
        if (kReasons[i] == correction.reason) {
          counters_[i].Add();
        }
      }
    }
  }

 private:
  static constexpr std::array kReasons = {Reason::kNotDivisible, Reason::kAxisNotInMesh,
                                          Reason::kRankTruncated, Reason::kBelowMinSize,
                                          Reason::kUnconstrained};
  std::vector<rpc::Counter> counters_;
};

absl::Status ResolveOne(const ClusterState& state, const CorrectionCounter& counter,
                        const v1::ResolveSpecRequest& request, v1::ResolveSpecResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(request.policy()));
  SHARDMESH_DECODE(axes, "axes", rpc::DecodeAxes(request.axes()));
  SHARDMESH_DECODE(mode, "mode", rpc::Decode(request.mode(), compatibility));
  SHARDMESH_DECODE(profile, "profile", SelectProfile(state, request.profile()));

  LogicalQuestion question;
  question.mode = mode;
  question.compatibility = compatibility;
  if (!request.preset().empty()) {
    if (!axes.empty()) {
      return rpc::BadField("axes", "must be empty where a preset is given");
    }
    SHARDMESH_DECODE(preset, "preset", FindPreset(request.preset()));
    if (mode.has_value()) {
      question.axes = absl::MakeConstSpan(preset->dynamic_axes.axes);
    } else {
      question.dynamic_axes = &preset->dynamic_axes;
    }
  } else {
    question.axes = absl::MakeConstSpan(axes);
    if (!mode.has_value() && compatibility == Compatibility::kDefault) {
      question.mode = RuntimeMode::kTrain;
    }
  }
  Shape shape;
  Mesh mesh;
  if (request.has_shape()) {
    SHARDMESH_DECODE(sizes, "shape.sizes", rpc::DecodeShape(request.shape().sizes()));
    shape = std::move(sizes);
    question.shape = absl::MakeConstSpan(shape);
    SHARDMESH_DECODE(selected, "mesh", SelectMesh(state, request.mesh(), compatibility));
    mesh = std::move(selected);
  }
  // A mesh without axes stands for none; the shape then serves the mode alone.
  const bool corrects = request.has_shape() && !mesh.empty();

  PartitionSpec requested;
  CorrectionResult corrected;
  if (request.explain()) {
    SHARDMESH_ASSIGN_OR_RETURN(Explanation explanation, Explain(profile, question, mesh));
    for (const ExplanationStep& step : explanation.steps) {
      rpc::Encode(step, response->add_explanation());
    }
    requested = std::move(explanation.requested);
    corrected = {.effective = std::move(explanation.effective),
                 .corrections = std::move(explanation.corrections)};
  } else {
    SHARDMESH_ASSIGN_OR_RETURN(requested, ResolveSpec(profile, question));
    if (corrects) {
      SHARDMESH_ASSIGN_OR_RETURN(corrected, Correct(requested, shape, mesh));
    } else {
      corrected.effective = requested;
    }
  }
  counter.Count(corrected.corrections);
  if (strict && !corrected.corrections.empty()) {
    return FirstCorrection(corrected.corrections);
  }
  rpc::Encode(requested, response->mutable_requested());
  rpc::Encode(corrected.effective, response->mutable_effective());
  for (const Correction& correction : corrected.corrections) {
    rpc::Encode(correction, response->add_corrections());
  }
  if (corrects) {
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling,
                               Tiling::Create(mesh, corrected.effective, shape));
    rpc::Encode(tiling.ShardShape(), response->mutable_shard_shape());
  }
  response->set_revision(state.revision());
  return absl::OkStatus();
}

absl::Status CorrectOne(const ClusterState& state, const CorrectionCounter& counter,
                        const v1::CorrectSpecRequest& request, v1::CorrectSpecResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(request.policy()));
  SHARDMESH_DECODE(spec, "spec", rpc::Decode(request.spec()));
  if (!request.has_shape()) {
    return rpc::BadField("shape", "is not set; a spec is corrected against a shape");
  }
  SHARDMESH_DECODE(shape, "shape.sizes", rpc::DecodeShape(request.shape().sizes()));
  SHARDMESH_DECODE(mesh, "mesh", SelectMesh(state, request.mesh(), compatibility));
  SHARDMESH_ASSIGN_OR_RETURN(const CorrectionResult corrected, Correct(spec, shape, mesh));
  counter.Count(corrected.corrections);
  if (strict && !corrected.corrections.empty()) {
    return FirstCorrection(corrected.corrections);
  }
  rpc::Encode(corrected.effective, response->mutable_effective());
  for (const Correction& correction : corrected.corrections) {
    rpc::Encode(correction, response->add_corrections());
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, Tiling::Create(mesh, corrected.effective, shape));
  rpc::Encode(tiling.ShardShape(), response->mutable_shard_shape());
  response->set_revision(state.revision());
  return absl::OkStatus();
}

absl::Status DescribeOne(const ClusterState& state, const v1::DescribeTilingRequest& request,
                         v1::DescribeTilingResponse* response) {
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request.compatibility()));
  SHARDMESH_DECODE(spec, "spec", rpc::Decode(request.spec()));
  SHARDMESH_DECODE(shape, "shape.sizes", rpc::DecodeShape(request.shape().sizes()));
  SHARDMESH_DECODE(mesh, "mesh", SelectMesh(state, request.mesh(), compatibility));
  if (request.devices_size() > kMaxListedDevices) {
    return rpc::WithField(
        InvalidArgument(
            Reason::kLimitExceeded,
            StrCat(request.devices_size(), " devices are over the limit of ", kMaxListedDevices)),
        "devices");
  }
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, Tiling::Create(mesh, spec, shape));
  for (int i = 0; i < request.devices_size(); ++i) {
    const DeviceId device = request.devices(i);
    if (device < 0 || device >= mesh.size()) {
      return rpc::WithField(
          InvalidArgument(Reason::kBadField, StrCat("device ", device, " is not one of the ",
                                                    mesh.size(), " of ", mesh.ToString())),
          "devices", static_cast<size_t>(i));
    }
    v1::DeviceTile* tile = response->add_tiles();
    tile->set_device(device);
    rpc::Encode(tiling.TileOf(device), tile->mutable_tile());
    tile->set_replica_id(tiling.ReplicaIdOf(device));
  }
  rpc::Encode(tiling.ShardShape(), response->mutable_shard_shape());
  response->set_distinct_tiles(tiling.DistinctTileCount());
  response->set_fully_replicated(tiling.FullyReplicated());
  response->set_revision(state.revision());
  return absl::OkStatus();
}

absl::StatusOr<TreeQuestion> DecodeHeader(const ClusterState& state,
                                          const v1::ResolveTreeHeader& header) {
  TreeQuestion question;
  SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(header.compatibility()));
  SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(header.policy()));
  SHARDMESH_DECODE(mode, "mode", rpc::Decode(header.mode(), compatibility));
  SHARDMESH_DECODE(profile, "profile", SelectProfile(state, header.profile()));
  question.compatibility = compatibility;
  question.strict = strict;
  question.keep_unmatched = header.keep_unmatched();
  question.mode = mode;
  question.profile = std::move(profile);
  switch (header.rule_set().rule_set_case()) {
    case v1::RuleSetSelector::kName: {
      SHARDMESH_DECODE(rules, "rule_set.name", state.FindRuleSet(header.rule_set().name()));
      question.rules = *rules;
      break;
    }
    case v1::RuleSetSelector::kInline: {
      SHARDMESH_DECODE(rules, "rule_set.inline",
                       rpc::Decode(header.rule_set().inline_(), compatibility));
      question.rules = std::move(rules);
      break;
    }
    case v1::RuleSetSelector::RULE_SET_NOT_SET:
      break;
  }
  if (!header.match_only()) {
    SHARDMESH_DECODE(mesh, "mesh", SelectMesh(state, header.mesh(), compatibility));
    question.mesh = std::move(mesh);
  }
  return question;
}

// ResolveTree, written straight:
//   resolver = TreeResolver(header of read())
//   while (piece = read()) write(resolver.Add(piece))   // new specs, placements
//   write(totals); finish
// A reaction answers one piece of at most 1 MiB.
class ResolveTreeReactor final
    : public grpc::ServerBidiReactor<v1::ResolveTreeRequest, v1::ResolveTreeResponse> {
 public:
  ResolveTreeReactor(std::shared_ptr<const ClusterState> state, const CorrectionCounter& counter)
      : state_(std::move(state)), counter_(counter) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      return Close();
    }
    const absl::StatusOr<bool> has_answer = Take();
    if (!has_answer.ok()) {
      return FinishOnce(has_answer.status());
    }
    if (*has_answer) {
      StartWrite(&response_);
    } else {
      StartRead(&request_);
    }
  }
  void OnWriteDone(bool ok) override {
    if (closing_ || !ok) {
      return FinishOnce(absl::OkStatus());
    }
    StartRead(&request_);
  }
  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override { delete this; }

 private:
  // Answers the message just read into response_; false if there is nothing to answer.
  absl::StatusOr<bool> Take() {
    switch (request_.piece_case()) {
      case v1::ResolveTreeRequest::kHeader: {
        if (resolver_.has_value()) {
          return rpc::BadField("header", "comes a second time; it is the first message alone");
        }
        SHARDMESH_DECODE(question, "header", DecodeHeader(*state_, request_.header()));
        resolver_.emplace(std::move(question));
        return false;
      }
      case v1::ResolveTreeRequest::kTensors:
        if (!resolver_.has_value()) {
          return rpc::BadField("header", "is missing; it must be the first message");
        }
        SHARDMESH_RETURN_IF_ERROR(Answer());
        return true;
      case v1::ResolveTreeRequest::PIECE_NOT_SET:
        break;
    }
    return rpc::BadField("piece", "is neither a header nor tensors");
  }

  absl::Status Answer() {
    std::vector<TreeTensor> tensors;
    tensors.reserve(static_cast<size_t>(request_.tensors().tensors_size()));
    for (int i = 0; i < request_.tensors().tensors_size(); ++i) {
      auto tensor = DecodeTensor(request_.tensors().tensors(i));
      if (!tensor.ok()) {
        return rpc::WithField(tensor.status(), "tensors.tensors", static_cast<size_t>(i));
      }
      tensors.push_back(*std::move(tensor));
    }
    const size_t known_specs = resolver_->specs().size();
    SHARDMESH_ASSIGN_OR_RETURN(
        const std::vector<TreePlacement> placements,
        resolver_->Add(tensors, [this] { return cancelled_.load(std::memory_order_relaxed); }));
    response_.Clear();
    for (size_t i = known_specs; i < resolver_->specs().size(); ++i) {
      const TreeSpec& spec = resolver_->specs()[i];
      v1::TreeSpec* encoded = response_.add_specs();
      rpc::Encode(spec.requested, encoded->mutable_requested());
      rpc::Encode(spec.effective, encoded->mutable_effective());
      for (const Correction& correction : spec.corrections) {
        rpc::Encode(correction, encoded->add_corrections());
      }
    }
    for (const TreePlacement& placement : placements) {
      v1::TreePlacement* encoded = response_.add_placements();
      encoded->set_spec_index(placement.spec_index);
      encoded->set_rule_index(static_cast<int32_t>(placement.rule.value_or(-1)));
      encoded->set_bytes_per_device(placement.bytes_per_device);
      encoded->set_unmatched(placement.unmatched);
      counter_.Count(resolver_->specs()[placement.spec_index].corrections);
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<TreeTensor> DecodeTensor(const v1::TreeTensor& from) {
    TreeTensor tensor;
    tensor.name = from.name();
    if (from.name().empty()) {
      return rpc::BadField("name", "is empty; rules go by the tensor's name");
    }
    if (from.name().size() > kMaxTensorNameBytes) {
      return rpc::BadField("name", StrCat("has ", from.name().size(), " bytes; at most ",
                                          kMaxTensorNameBytes, " are allowed"));
    }
    SHARDMESH_DECODE(shape, "shape", rpc::DecodeShape(from.shape()));
    tensor.shape = std::move(shape);
    if (from.dtype() != v1::DTYPE_UNSPECIFIED) {
      SHARDMESH_DECODE(dtype, "dtype", rpc::Decode(from.dtype()));
      tensor.dtype = dtype;
    }
    SHARDMESH_DECODE(axes, "axes", rpc::DecodeAxes(from.axes()));
    tensor.axes = std::move(axes);
    return tensor;
  }

  // The client has sent everything: totals, and the end.
  void Close() {
    if (!resolver_.has_value()) {
      return FinishOnce(rpc::BadField("header", "is missing; it must be the first message"));
    }
    closing_ = true;
    response_.Clear();
    const LayoutSummary& summary = resolver_->summary();
    v1::LayoutSummary* encoded = response_.mutable_summary();
    encoded->set_tensors(summary.tensors);
    encoded->set_total_bytes(summary.total_bytes);
    encoded->set_min_bytes_per_device(summary.min_bytes_per_device);
    encoded->set_max_bytes_per_device(summary.max_bytes_per_device);
    encoded->set_replicated_bytes(summary.replicated_bytes);
    encoded->set_replicated_tensors(summary.replicated_tensors);
    encoded->set_corrected_tensors(summary.corrected_tensors);
    encoded->set_devices(summary.devices);
    response_.set_revision(state_->revision());
    StartWrite(&response_);
  }

  void FinishOnce(const absl::Status& status) { Finish(rpc::ToGrpc(status)); }

  static constexpr size_t kMaxTensorNameBytes = 1024;

  const std::shared_ptr<const ClusterState> state_;
  const CorrectionCounter& counter_;
  std::atomic<bool> cancelled_ = false;

  // Reads and writes alternate: one reaction at a time touches these.
  v1::ResolveTreeRequest request_;
  v1::ResolveTreeResponse response_;
  std::optional<TreeResolver> resolver_;
  bool closing_ = false;
};

class ResolveService final : public v1::ResolveService::CallbackService {
 public:
  ResolveService(const StatePublisher* publisher, rpc::Metrics* metrics)
      : publisher_(publisher), counter_(metrics) {}

  grpc::ServerUnaryReactor* ResolveSpec(grpc::CallbackServerContext* context,
                                        const v1::ResolveSpecRequest* request,
                                        v1::ResolveSpecResponse* response) override {
    return Answer(context, ResolveOne(publisher_->state(), counter_, *request, response));
  }
  grpc::ServerUnaryReactor* CorrectSpec(grpc::CallbackServerContext* context,
                                        const v1::CorrectSpecRequest* request,
                                        v1::CorrectSpecResponse* response) override {
    return Answer(context, CorrectOne(publisher_->state(), counter_, *request, response));
  }
  grpc::ServerUnaryReactor* DescribeTiling(grpc::CallbackServerContext* context,
                                           const v1::DescribeTilingRequest* request,
                                           v1::DescribeTilingResponse* response) override {
    return Answer(context, DescribeOne(publisher_->state(), *request, response));
  }
  grpc::ServerUnaryReactor* ListPresets(grpc::CallbackServerContext* context,
                                        const v1::ListPresetsRequest*,
                                        v1::ListPresetsResponse* response) override {
    for (const Preset& preset : Presets()) {
      rpc::Encode(preset, response->add_presets());
    }
    return Answer(context, absl::OkStatus());
  }
  grpc::ServerBidiReactor<v1::ResolveTreeRequest, v1::ResolveTreeResponse>* ResolveTree(
      grpc::CallbackServerContext*) override {
    return new ResolveTreeReactor(publisher_->shared_state(), counter_);
  }

 private:
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status.ok() ? grpc::Status::OK : rpc::ToGrpc(status));
    return reactor;
  }

  const StatePublisher* const publisher_;
  const CorrectionCounter counter_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeResolveService(const StatePublisher* publisher,
                                                  rpc::Metrics* metrics) {
  return std::make_unique<ResolveService>(publisher, metrics);
}

}  // namespace shardmesh::server
