// The streamed questions about the layout of a tree.
#include "server/resolve/tree_streams.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rpc/codec/layout_codec.h"
#include "server/resolve/tree_resolver.h"
#include "status/status_macros.h"

namespace shardmesh::server {
namespace {

using IsCancelled = std::function<bool()>;

// Answers ResolveTree.
class TreeAnswer {
 public:
  TreeAnswer(std::shared_ptr<const Definitions> state, const CorrectionCounter& counter)
      : state_(std::move(state)), counter_(&counter) {}

  bool BeginsLong(const v1::ResolveTreeHeader& header) const {
    return SearchesLong(*state_, header.rule_set());
  }
  bool AddsLong() const { return resolver_->SearchesLong(); }

  absl::Status Begin(const v1::ResolveTreeHeader& header, const IsCancelled& is_cancelled) {
    TreeQuestion question;
    SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(header.compatibility()));
    SHARDMESH_DECODE(strict, "policy", rpc::DecodeIsStrict(header.policy()));
    SHARDMESH_DECODE(mode, "mode", rpc::Decode(header.mode(), compatibility));
    SHARDMESH_DECODE(profile, "profile", SelectProfile(*state_, header.profile()));
    SHARDMESH_DECODE(rules, "rule_set",
                     SelectRules(*state_, header.rule_set(), compatibility, is_cancelled));
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
    SHARDMESH_ASSIGN_OR_RETURN(std::vector<TreePlacement> placements,
                               resolver_->Add(tensors, is_cancelled));
    if (suggest_fixes_) {
      SHARDMESH_RETURN_IF_ERROR(AddSpecsByShape(tensors, is_cancelled, &placements, response));
    } else {
      for (size_t i = known_specs; i < resolver_->specs().size(); ++i) {
        if (is_cancelled != nullptr && is_cancelled()) {
          return Cancelled();
        }
        Encode(resolver_->specs()[i], resolver_->specs()[i].shape, response->add_specs(), false);
      }
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
  // Limit on the encoded size, in bytes, of one call's specs. Once the specs exceed the limit, the
  // call leaves out further fixes. The limit bounds the size of messages and the time to find
  // fixes. Specs whose fixes were left out do not count.
  static constexpr size_t kMaxFixedBytes = size_t{1} << 20;

  static absl::Status Cancelled() {
    return absl::CancelledError("cancelled while the specs of the tree were written");
  }

  // Adds the tensors' specs to the answer's table. Fixes depend on the shape, so a corrected spec
  // gets one entry for each shape. Once the encoded entries exceed kMaxFixedBytes, all further
  // shapes of a corrected spec share one entry without fixes. Converts the resolver's spec indexes
  // into indexes of this table.
  absl::Status AddSpecsByShape(absl::Span<const TreeTensor> tensors,
                               const IsCancelled& is_cancelled,
                               std::vector<TreePlacement>* placements,
                               v1::ResolveTreeResponse* response) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      uint32_t& index = (*placements)[i].spec_index;
      const TreeSpec& spec = resolver_->specs()[index];
      const absl::Span<const int64_t> shape = tensors[i].shape;
      const Key with_fixes(index, MayHaveFixes(spec) ? Shape(shape.begin(), shape.end()) : Shape());
      const Key without(index, Shape());
      const auto next = static_cast<uint32_t>(indexes_by_shape_.size());
      if (const auto known = indexes_by_shape_.find(with_fixes); known != indexes_by_shape_.end()) {
        index = known->second;
        continue;
      }
      const bool leaves_out = MayHaveFixes(spec) && fixed_bytes_ > kMaxFixedBytes;
      const auto [place, is_new] =
          indexes_by_shape_.try_emplace(leaves_out ? without : with_fixes, next);
      index = place->second;
      if (is_new) {
        if (is_cancelled != nullptr && is_cancelled()) {
          return Cancelled();
        }
        v1::TreeSpec* const added = response->add_specs();
        Encode(spec, shape, added, !leaves_out);
        added->set_fixes_left_out(leaves_out);
        fixed_bytes_ += leaves_out ? 0 : added->ByteSizeLong();
      }
    }
    return absl::OkStatus();
  }

  // Whether the corrections of a spec may have fixes. A tensor that is too small to be sharded has
  // no fix.
  static bool MayHaveFixes(const TreeSpec& spec) {
    return std::any_of(
        spec.corrections.begin(), spec.corrections.end(),
        [](const Correction& correction) { return correction.reason != Reason::kBelowMinSize; });
  }

  void Encode(const TreeSpec& from, absl::Span<const int64_t> shape, v1::TreeSpec* to,
              bool with_fixes) const {
    rpc::Encode(from.requested, to->mutable_requested());
    rpc::Encode(from.effective, to->mutable_effective());
    EncodeCorrections(from.requested, shape, resolver_->question().mesh.value_or(Mesh()),
                      {.effective = from.effective, .corrections = from.corrections}, with_fixes,
                      to->mutable_corrections());
  }

  // Encodes the placements as columns. Omits a column without information.
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

  std::shared_ptr<const Definitions> state_;
  const CorrectionCounter* counter_;
  std::shared_ptr<const StoredTree> stored_tree_;
  bool suggest_fixes_ = false;
  std::unique_ptr<TreeResolver> resolver_;
  // Indexes into the answer's table of specs, by the resolver's index and the shape. The shape is
  // empty for a spec without fixes, and for the entry whose fixes were left out.
  using Key = std::pair<uint32_t, Shape>;
  absl::flat_hash_map<Key, uint32_t> indexes_by_shape_;
  size_t fixed_bytes_ = 0;  // encoded size of the specs whose fixes were not left out
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

std::unique_ptr<ResolveTreeCall> MakeResolveTreeCall(std::shared_ptr<const Definitions> state,
                                                     const CorrectionCounter& counter) {
  return std::make_unique<TreeFeeder<TreeAnswer, v1::ResolveTreeRequest, v1::ResolveTreeResponse>>(
      TreeAnswer(std::move(state), counter));
}

}  // namespace shardmesh::server
