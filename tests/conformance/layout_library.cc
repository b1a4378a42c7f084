// The library's answers about layouts.
#include <utility>

#include "sharding/correction.h"
#include "sharding/layout/logical_sharding.h"
#include "sharding/shape.h"
#include "sharding/tile.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"
#include "tests/conformance/layout_subject.h"

namespace shardmesh::conformance {
namespace {

// A view of `arguments`, which must outlive it.
absl::StatusOr<LogicalQuestion> QuestionOf(const LogicalArguments& arguments) {
  LogicalQuestion question;
  question.compatibility = Compatibility::kExact;
  question.axes = arguments.axes;
  question.mode = arguments.mode;
  if (arguments.dynamic_axes.has_value()) question.dynamic_axes = &*arguments.dynamic_axes;
  if (!arguments.preset.empty()) {
    SHARDMESH_ASSIGN_OR_RETURN(const Preset* preset, FindPreset(arguments.preset));
    question.dynamic_axes = &preset->dynamic_axes;
  }
  if (arguments.shape.has_value()) {
    SHARDMESH_RETURN_IF_ERROR(CheckShape(*arguments.shape));
    question.shape = *arguments.shape;
  }
  return question;
}

class Layout final : public LayoutSubject {
 public:
  absl::StatusOr<client::SpecAnswer> ResolveSpec(const LogicalArguments& arguments,
                                                 const Mesh& mesh) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const LogicalQuestion question, QuestionOf(arguments));
    client::SpecAnswer answer;
    SHARDMESH_ASSIGN_OR_RETURN(answer.requested,
                               shardmesh::ResolveSpec(arguments.profile, question));
    answer.effective = answer.requested;
    if (!mesh.empty()) {
      if (!arguments.shape.has_value()) {
        return InvalidArgument(Reason::kMissingArgument, "no shape to correct the spec against");
      }
      SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected,
                                 Correct(answer.requested, *arguments.shape, mesh));
      answer.effective = std::move(corrected.effective);
      answer.corrections = std::move(corrected.corrections);
    }
    return answer;
  }

  absl::StatusOr<PartitionSpec> CorrectSpec(const PartitionSpec& spec, const Shape& shape,
                                            const Mesh& mesh) const override {
    SHARDMESH_RETURN_IF_ERROR(CheckShape(shape));
    SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected, Correct(spec, shape, mesh));
    return std::move(corrected.effective);
  }

  absl::StatusOr<client::TilingAnswer> DescribeTiling(
      const PartitionSpec& spec, const Shape& shape, const Mesh& mesh,
      absl::Span<const DeviceId> devices) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, Tiling::Create(mesh, spec, shape));
    client::TilingAnswer answer;
    answer.shard_shape = tiling.ShardShape();
    answer.distinct_tiles = tiling.DistinctTileCount();
    answer.fully_replicated = tiling.FullyReplicated();
    for (const DeviceId device : devices) {
      answer.tiles.push_back({device, tiling.TileOf(device), tiling.ReplicaIdOf(device)});
    }
    return answer;
  }

  absl::StatusOr<client::TreeAnswer> ResolveTree(const RuleSet& rules,
                                                 absl::Span<const client::TreeTensor> tensors,
                                                 const std::optional<Mesh>& mesh) const override {
    std::vector<NamedShape> shapes;
    for (const client::TreeTensor& tensor : tensors) {
      shapes.push_back({.name = tensor.name, .shape = absl::MakeConstSpan(tensor.shape)});
    }
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<RuleMatch> matches, rules.MatchTree(shapes));
    client::TreeAnswer answer;
    for (size_t i = 0; i < tensors.size(); ++i) {
      client::TreePlacement placement{.spec_index = i, .rule_index = matches[i].rule};
      client::TreeSpec spec{matches[i].spec, matches[i].spec, {}, {}};
      if (mesh.has_value()) {
        SHARDMESH_RETURN_IF_ERROR(Place(tensors[i], *mesh, &spec, &placement, &answer.report));
      }
      answer.specs.push_back(std::move(spec));
      answer.placements.push_back(placement);
    }
    return answer;
  }

  absl::StatusOr<std::vector<AxisValue>> ResolveAxes(const PartitionAxis& profile,
                                                     absl::Span<const AxisValue> axes,
                                                     const Mode& mode) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const RuntimeMode resolved, mode.Resolve(std::nullopt));
    return profile.ResolveAxis(axes, resolved, Compatibility::kExact);
  }

  absl::StatusOr<client::ConstraintAnswer> ApplyLogicalSharding(const LogicalArguments& arguments,
                                                                const Mesh& mesh,
                                                                bool auto_correct) const override {
    SHARDMESH_ASSIGN_OR_RETURN(const LogicalQuestion question, QuestionOf(arguments));
    SHARDMESH_ASSIGN_OR_RETURN(
        LogicalSharding sharding,
        shardmesh::ApplyLogicalSharding(arguments.profile, question, mesh, auto_correct));
    return client::ConstraintAnswer{.requested = std::move(sharding.requested),
                                    .constraint = std::move(sharding.constraint),
                                    .corrections = std::move(sharding.corrections)};
  }

  absl::StatusOr<client::ConstraintAnswer> Constrain(const PartitionSpec& spec, const Shape& shape,
                                                     const Mesh& mesh) const override {
    SHARDMESH_RETURN_IF_ERROR(CheckShape(shape));
    SHARDMESH_ASSIGN_OR_RETURN(std::optional<CorrectionResult> corrected,
                               CorrectConstraint(spec, shape, mesh));
    client::ConstraintAnswer answer;
    answer.requested = spec;
    if (corrected.has_value()) answer.constraint = std::move(corrected->effective);
    return answer;
  }

  absl::StatusOr<client::Comparison> CompareSpecs(const PartitionSpec& a, const PartitionSpec& b,
                                                  const Mesh& mesh, int64_t rank) const override {
    // Compared are specs that an array of that rank may have; any axes divide an extent of 0.
    if (rank < 0 || rank > kMaxRank) {
      return InvalidArgument(Reason::kInvalidShape,
                             StrCat("a rank is from 0 to ", kMaxRank, ", not ", rank));
    }
    const Shape empty(static_cast<size_t>(rank), 0);
    for (const PartitionSpec* spec : {&a, &b}) {
      SHARDMESH_RETURN_IF_ERROR(Tiling::Create(mesh, *spec, empty).status());
    }
    return client::Comparison{.equal = a == b,
                              .equivalent = Equivalent(a, b, mesh, rank),
                              .a_fully_replicated = FullyReplicated(a, mesh),
                              .b_fully_replicated = FullyReplicated(b, mesh)};
  }

 private:
  static absl::Status Place(const client::TreeTensor& tensor, const Mesh& mesh,
                            client::TreeSpec* spec, client::TreePlacement* placement,
                            client::TreeReport* report) {
    SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult corrected,
                               Correct(spec->effective, tensor.shape, mesh));
    spec->effective = std::move(corrected.effective);
    spec->corrections = std::move(corrected.corrections);
    SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling,
                               Tiling::Create(mesh, spec->effective, tensor.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t held, ElementCount(tiling.ShardShape()));
    ++report->layout.tensors;
    report->devices = mesh.size();
    if (tensor.dtype.has_value()) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t bytes, PackedSizeBytes(*tensor.dtype, elements));
      SHARDMESH_ASSIGN_OR_RETURN(placement->bytes_per_device, PackedSizeBytes(*tensor.dtype, held));
      report->layout.bytes += bytes;
      report->layout.least_device_bytes += placement->bytes_per_device;
      report->layout.most_device_bytes += placement->bytes_per_device;
    }
    return absl::OkStatus();
  }
};

}  // namespace

std::shared_ptr<const LayoutSubject> LibraryLayout() { return std::make_shared<Layout>(); }

}  // namespace shardmesh::conformance
