// Converts reshard plans, and reports on the layout of trees, between messages and the types of
// sharding/.
#include "rpc/codec/layout_codec.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

void Encode(const TensorUsage& from, v1::TensorUsage* to) {
  to->set_name(from.name);
  rpc::Encode(from.shape, to->mutable_shape());
  rpc::Encode(from.spec, to->mutable_spec());
  to->set_bytes(from.bytes);
  to->set_device_bytes(from.device_bytes);
  to->set_held_bytes(from.held_bytes);
  to->set_wasted_bytes(from.wasted_bytes);
}

absl::StatusOr<TensorUsage> Decode(const v1::TensorUsage& from) {
  auto spec = rpc::Decode(from.spec());
  if (!spec.ok()) {
    return WithField(std::move(spec).status(), "spec");
  }
  auto shape = DecodeShape(from.shape());
  if (!shape.ok()) {
    return WithField(std::move(shape).status(), "shape");
  }
  return TensorUsage{.name = from.name(),
                     .shape = *std::move(shape),
                     .spec = *std::move(spec),
                     .bytes = from.bytes(),
                     .device_bytes = from.device_bytes(),
                     .held_bytes = from.held_bytes(),
                     .wasted_bytes = from.wasted_bytes()};
}

}  // namespace

void Encode(const LayoutReport& from, v1::LayoutReport* to) {
  to->set_tensors(from.tensors);
  to->set_parameters(from.parameters);
  to->set_sharded_parameters(from.sharded_parameters);
  to->set_bytes(from.bytes);
  to->set_sharded_bytes(from.sharded_bytes);
  to->set_held_bytes(from.held_bytes);
  to->set_wasted_bytes(from.wasted_bytes);
  to->set_least_device_bytes(from.least_device_bytes);
  to->set_most_device_bytes(from.most_device_bytes);
  to->set_least_loaded_device(from.least_loaded_device);
  to->set_most_loaded_device(from.most_loaded_device);
  to->set_mean_device_bytes(from.mean_device_bytes);
  to->set_balance_score(from.balance_score);
  for (size_t i = 0; i < std::min(from.specs.size(), kMaxReportedSpecs); ++i) {
    v1::SpecUsage* usage = to->add_specs();
    rpc::Encode(from.specs[i].spec, usage->mutable_spec());
    usage->set_tensors(from.specs[i].tensors);
    usage->set_parameters(from.specs[i].parameters);
    usage->set_bytes(from.specs[i].bytes);
  }
  for (const TensorUsage& tensor : from.worst) {
    Encode(tensor, to->add_worst());
  }
  for (const TensorUsage& tensor : from.largest) {
    Encode(tensor, to->add_largest());
  }
}

absl::StatusOr<LayoutReport> Decode(const v1::LayoutReport& from) {
  LayoutReport report;
  report.tensors = from.tensors();
  report.parameters = from.parameters();
  report.sharded_parameters = from.sharded_parameters();
  report.bytes = from.bytes();
  report.sharded_bytes = from.sharded_bytes();
  report.held_bytes = from.held_bytes();
  report.wasted_bytes = from.wasted_bytes();
  report.least_device_bytes = from.least_device_bytes();
  report.most_device_bytes = from.most_device_bytes();
  report.least_loaded_device = from.least_loaded_device();
  report.most_loaded_device = from.most_loaded_device();
  report.mean_device_bytes = from.mean_device_bytes();
  report.balance_score = from.balance_score();
  for (int i = 0; i < from.specs_size(); ++i) {
    const v1::SpecUsage& wire = from.specs(i);
    auto spec = rpc::Decode(wire.spec());
    if (!spec.ok()) {
      return WithField(WithField(std::move(spec).status(), "spec"), "specs",
                       static_cast<size_t>(i));
    }
    report.specs.push_back({.spec = *std::move(spec),
                            .tensors = wire.tensors(),
                            .parameters = wire.parameters(),
                            .bytes = wire.bytes()});
  }
  for (int i = 0; i < from.worst_size(); ++i) {
    auto tensor = Decode(from.worst(i));
    if (!tensor.ok()) {
      return WithField(std::move(tensor).status(), "worst", static_cast<size_t>(i));
    }
    report.worst.push_back(*std::move(tensor));
  }
  for (int i = 0; i < from.largest_size(); ++i) {
    auto tensor = Decode(from.largest(i));
    if (!tensor.ok()) {
      return WithField(std::move(tensor).status(), "largest", static_cast<size_t>(i));
    }
    report.largest.push_back(*std::move(tensor));
  }
  return report;
}

namespace {

// Pairs of the domain's and the wire's values of an enum.
constexpr std::array<std::pair<ReshardPattern, v1::ReshardPattern>, 9> kPatterns = {{
    {ReshardPattern::kNoop, v1::RESHARD_PATTERN_NOOP},
    {ReshardPattern::kSlice, v1::RESHARD_PATTERN_SLICE},
    {ReshardPattern::kAllGather, v1::RESHARD_PATTERN_ALL_GATHER},
    {ReshardPattern::kAllToAll, v1::RESHARD_PATTERN_ALL_TO_ALL},
    {ReshardPattern::kPermute, v1::RESHARD_PATTERN_PERMUTE},
    {ReshardPattern::kBroadcast, v1::RESHARD_PATTERN_BROADCAST},
    {ReshardPattern::kReduceScatter, v1::RESHARD_PATTERN_REDUCE_SCATTER},
    {ReshardPattern::kAllReduce, v1::RESHARD_PATTERN_ALL_REDUCE},
    {ReshardPattern::kGeneral, v1::RESHARD_PATTERN_GENERAL},
}};
constexpr std::array<std::pair<MeshCriterion, v1::SearchMeshesHeader::Criterion>, 4> kCriteria = {{
    {MeshCriterion::kFit, v1::SearchMeshesHeader::CRITERION_FIT},
    {MeshCriterion::kDeviceBytes, v1::SearchMeshesHeader::CRITERION_DEVICE_BYTES},
    {MeshCriterion::kWastedBytes, v1::SearchMeshesHeader::CRITERION_WASTED_BYTES},
    {MeshCriterion::kCorrections, v1::SearchMeshesHeader::CRITERION_CORRECTIONS},
}};
constexpr std::array<std::pair<HeldLeaf::Kind, compat::v1::ArrayLeaf::Kind>, 7> kLeafKinds = {{
    {HeldLeaf::Kind::kNone, compat::v1::ArrayLeaf::KIND_NONE},
    {HeldLeaf::Kind::kSharded, compat::v1::ArrayLeaf::KIND_SHARDED},
    {HeldLeaf::Kind::kSpecOnly, compat::v1::ArrayLeaf::KIND_SPEC_ONLY},
    {HeldLeaf::Kind::kSingle, compat::v1::ArrayLeaf::KIND_SINGLE_DEVICE},
    {HeldLeaf::Kind::kHostArray, compat::v1::ArrayLeaf::KIND_HOST},
    {HeldLeaf::Kind::kNumber, compat::v1::ArrayLeaf::KIND_NUMBER},
    {HeldLeaf::Kind::kOther, compat::v1::ArrayLeaf::KIND_OTHER},
}};

// Returns the wire's value for a value that must be in the table.
template <typename Table, typename Ours>
auto ToWire(const Table& table, Ours value) {
  return std::find_if(std::begin(table), std::end(table),
                      [&](const auto& entry) { return entry.first == value; })
      ->second;
}
// Returns the domain's value for a value of the wire; null if the table lacks it.
template <typename Table, typename Wire>
auto FromWire(const Table& table, Wire value) {
  const auto entry = std::find_if(std::begin(table), std::end(table),
                                  [&](const auto& each) { return each.second == value; });
  return entry == std::end(table) ? nullptr : &entry->first;
}

}  // namespace

v1::ReshardPattern Encode(ReshardPattern pattern) { return ToWire(kPatterns, pattern); }

ReshardPattern Decode(v1::ReshardPattern pattern) {
  const ReshardPattern* known = FromWire(kPatterns, pattern);
  return known == nullptr ? ReshardPattern::kGeneral : *known;
}

void Encode(const ReshardStep& from, v1::ReshardStep* to) {
  to->set_pattern(Encode(from.pattern));
  to->mutable_axes()->Add(from.axes.begin(), from.axes.end());
  if (from.from_dim.has_value()) {
    to->set_from_dimension(static_cast<int32_t>(*from.from_dim));
  }
  if (from.to_dim.has_value()) {
    to->set_to_dimension(static_cast<int32_t>(*from.to_dim));
  }
  to->set_group_size(from.group_size);
}

ReshardStep Decode(const v1::ReshardStep& from) {
  ReshardStep step;
  step.pattern = Decode(from.pattern());
  step.axes.assign(from.axes().begin(), from.axes().end());
  if (from.has_from_dimension()) {
    step.from_dim = from.from_dimension();
  }
  if (from.has_to_dimension()) {
    step.to_dim = from.to_dimension();
  }
  step.group_size = from.group_size();
  return step;
}

v1::SearchMeshesHeader::Criterion Encode(MeshCriterion criterion) {
  return ToWire(kCriteria, criterion);
}

absl::StatusOr<MeshCriterion> Decode(v1::SearchMeshesHeader::Criterion from) {
  if (const MeshCriterion* known = FromWire(kCriteria, from); known != nullptr) {
    return *known;
  }
  return InvalidArgument(Reason::kBadField,
                         StrCat("the number ", static_cast<int>(from),
                                " is no criterion; meshes are compared by CRITERION_FIT, "
                                "_DEVICE_BYTES, _WASTED_BYTES and _CORRECTIONS"),
                         {{fact::kValue, static_cast<int>(from)}});
}

void Encode(const HeldLeaf& from, compat::v1::ArrayLeaf* to) {
  to->set_name(from.name);
  to->set_kind(ToWire(kLeafKinds, from.kind));
  if (from.kind == HeldLeaf::Kind::kSharded) {
    Encode(from.mesh, to->mutable_mesh());
  }
  if (from.kind == HeldLeaf::Kind::kSharded || from.kind == HeldLeaf::Kind::kSpecOnly) {
    Encode(from.spec, to->mutable_spec());
  }
}

absl::StatusOr<HeldLeaf> Decode(const compat::v1::ArrayLeaf& from, Compatibility compatibility) {
  HeldLeaf leaf;
  leaf.name = from.name();
  if (leaf.name.size() > kMaxLeafNameBytes) {
    return WithField(
        InvalidArgument(Reason::kLimitExceeded,
                        StrCat("the name has ", leaf.name.size(), " bytes; at most ",
                               kMaxLeafNameBytes, " are allowed"),
                        {{fact::kHave, leaf.name.size()}, {fact::kLimit, kMaxLeafNameBytes}}),
        "name");
  }
  const HeldLeaf::Kind* kind = FromWire(kLeafKinds, from.kind());
  if (kind == nullptr) {
    return BadField("kind", "is not set, or none that this build knows");
  }
  leaf.kind = *kind;
  const bool has_mesh = leaf.kind == HeldLeaf::Kind::kSharded;
  const bool has_spec = has_mesh || leaf.kind == HeldLeaf::Kind::kSpecOnly;
  if (from.has_mesh() != has_mesh) {
    return BadField("mesh", has_mesh ? "is not set; a sharded array has one"
                                     : "is set, and a leaf of this kind has none");
  }
  if (from.has_spec() != has_spec) {
    return BadField("spec", has_spec ? "is not set; a leaf of this kind has one"
                                     : "is set, and a leaf of this kind has none");
  }
  if (has_mesh) {
    auto mesh = Decode(from.mesh(), std::nullopt, compatibility);
    if (!mesh.ok()) {
      return WithField(std::move(mesh).status(), "mesh");
    }
    leaf.mesh = *std::move(mesh);
  }
  if (has_spec) {
    auto spec = Decode(from.spec());
    if (!spec.ok()) {
      return WithField(std::move(spec).status(), "spec");
    }
    leaf.spec = *std::move(spec);
  }
  return leaf;
}

}  // namespace shardmesh::rpc
