// The calls of ResolveService that stream trees: what each does with the tensors.
#include "server/tree_streams.h"

#include <string>
#include <utility>
#include <vector>

#include "rpc/layout_codec.h"
#include "server/tree_resolver.h"
#include "sharding/status_macros.h"

namespace shardmesh::server {
namespace {

using IsCancelled = std::function<bool()>;

// ResolveTree.
class TreeAnswer {
 public:
  TreeAnswer(std::shared_ptr<const ClusterState> state, const CorrectionCounter& counter)
      : state_(std::move(state)), counter_(&counter) {}

  absl::Status Begin(const v1::ResolveTreeHeader& header) {
    TreeQuestion question;
    SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(header.compatibility()));
    SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(header.policy()));
    SHARDMESH_DECODE(mode, "mode", rpc::Decode(header.mode(), compatibility));
    SHARDMESH_DECODE(profile, "profile", SelectProfile(*state_, header.profile()));
    SHARDMESH_DECODE(rules, "rule_set", SelectRules(*state_, header.rule_set(), compatibility));
    question.compatibility = compatibility;
    question.strict = strict;
    question.keep_unmatched = header.keep_unmatched();
    question.own_specs_must_suit_mesh = header.own_specs_must_suit_mesh();
    question.mode = mode;
    question.profile = std::move(profile);
    question.rules = std::move(rules);
    if (!header.match_only()) {
      SHARDMESH_DECODE(mesh, "mesh", SelectMesh(*state_, header.mesh(), compatibility));
      question.mesh = std::move(mesh);
    }
    SHARDMESH_ASSIGN_OR_RETURN(stored_tree_, SelectTree(*state_, header.stored_tree()));
    suggest_fixes_ = header.suggest_fixes();
    SHARDMESH_ASSIGN_OR_RETURN(resolver_, TreeResolver::Create(std::move(question)));
    return absl::OkStatus();
  }

  const StoredTree* stored_tree() const { return stored_tree_.get(); }

  absl::Status Add(absl::Span<const TreeTensor> tensors, const IsCancelled& is_cancelled,
                   v1::ResolveTreeResponse* response) {
    const size_t known_specs = resolver_->specs().size();
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<TreePlacement> placements,
                               resolver_->Add(tensors, is_cancelled));
    for (size_t i = known_specs; i < resolver_->specs().size(); ++i) {
      if (is_cancelled != nullptr && is_cancelled()) {
        return absl::CancelledError("cancelled while the specs of the tree were written");
      }
      Encode(resolver_->specs()[i], response->add_specs());
    }
    Encode(placements, response->mutable_placements());
    return absl::OkStatus();
  }

  absl::Status End(v1::ResolveTreeResponse* response, const IsCancelled&) {
    CorrectionTally corrections;
    for (uint32_t i = 0; i < resolver_->specs().size(); ++i) {
      corrections.Add(resolver_->specs()[i].corrections, resolver_->UsesOf(i));
    }
    counter_->Count(corrections);
    response->set_revision(state_->revision());
    return EncodeReport(*resolver_, response->mutable_report());
  }

 private:
  void Encode(const TreeSpec& from, v1::TreeSpec* to) const {
    rpc::Encode(from.requested, to->mutable_requested());
    rpc::Encode(from.effective, to->mutable_effective());
    EncodeCorrections(from.requested, from.shape, resolver_->question().mesh.value_or(Mesh()),
                      {.effective = from.effective, .corrections = from.corrections},
                      suggest_fixes_, to->mutable_corrections());
  }

  // Columns that say nothing stay away.
  static void Encode(const std::vector<TreePlacement>& from, v1::TreePlacements* to) {
    const auto count = static_cast<int>(from.size());
    to->mutable_spec_indexes()->Reserve(count);
    bool has_rules = false;
    bool has_bytes = false;
    for (const TreePlacement& placement : from) {
      to->mutable_spec_indexes()->AddAlreadyReserved(placement.spec_index);
      has_rules = has_rules || placement.rule.has_value();
      has_bytes = has_bytes || placement.bytes_per_device != 0;
    }
    to->mutable_rules()->Reserve(has_rules ? count : 0);
    to->mutable_bytes_per_device()->Reserve(has_bytes ? count : 0);
    for (int i = 0; i < count; ++i) {
      const TreePlacement& placement = from[static_cast<size_t>(i)];
      if (has_rules) {
        to->mutable_rules()->AddAlreadyReserved(
            placement.rule.has_value() ? static_cast<uint32_t>(*placement.rule) + 1 : 0);
      }
      if (has_bytes) {
        to->mutable_bytes_per_device()->AddAlreadyReserved(placement.bytes_per_device);
      }
      if (placement.unmatched) {
        to->add_unmatched(static_cast<uint32_t>(i));
      }
    }
  }

  std::shared_ptr<const ClusterState> state_;
  const CorrectionCounter* counter_;
  std::shared_ptr<const StoredTree> stored_tree_;
  bool suggest_fixes_ = false;
  std::unique_ptr<TreeResolver> resolver_;
};

}  // namespace

absl::Status EncodeReport(const TreeResolver& from, v1::LayoutReport* to) {
  if (from.analysis() != nullptr) {
    SHARDMESH_ASSIGN_OR_RETURN(const LayoutReport report, from.analysis()->Report());
    rpc::Encode(report, to);
    to->set_devices(from.question().mesh->size());
  }
  to->set_tensors(from.counts().tensors);
  to->set_parameters(from.counts().parameters);
  to->set_sharded_parameters(from.counts().sharded_parameters);
  to->set_corrected_tensors(from.counts().corrected);
  to->set_replicated_tensors(from.counts().replicated);
  to->set_unmatched_tensors(from.counts().unmatched);
  return absl::OkStatus();
}

std::unique_ptr<ResolveTreeCall> MakeResolveTreeCall(std::shared_ptr<const ClusterState> state,
                                                     const CorrectionCounter& counter) {
  return std::make_unique<TreeFeeder<TreeAnswer, v1::ResolveTreeRequest, v1::ResolveTreeResponse>>(
      TreeAnswer(std::move(state), counter));
}

}  // namespace shardmesh::server
