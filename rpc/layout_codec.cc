// Reports on layouts of whole trees between wire and algebra.
#include "rpc/layout_codec.h"

#include <algorithm>
#include <utility>

#include "rpc/spec_codec.h"
#include "rpc/status.h"
#include "sharding/status_macros.h"

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
  SHARDMESH_ASSIGN_OR_RETURN(PartitionSpec spec, rpc::Decode(from.spec()));
  SHARDMESH_ASSIGN_OR_RETURN(Shape shape, DecodeShape(from.shape()));
  return TensorUsage{.name = from.name(),
                     .shape = std::move(shape),
                     .spec = std::move(spec),
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
      return WithField(std::move(spec).status(), "specs", static_cast<size_t>(i));
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

}  // namespace shardmesh::rpc
