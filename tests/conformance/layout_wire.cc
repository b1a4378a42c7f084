// A coordinator's answers about layouts.
#include <utility>

#include "sharding/rules/rule_set_definition.h"
#include "status/status_macros.h"
#include "tests/conformance/layout_subject.h"

namespace shardmesh::conformance {
namespace {

class Layout final : public LayoutSubject {
 public:
  explicit Layout(client::MeshClient& client) : client_(client) {}

  absl::StatusOr<client::SpecAnswer> ResolveSpec(const LogicalArguments& arguments,
                                                 const Mesh& mesh) const override {
    client::ResolveSpecQuestion question;
    question.profile = arguments.profile;
    question.mesh = mesh;
    question.shape = arguments.shape;
    question.compatibility = Compatibility::kExact;
    // A request brings axes and mode or names a preset; dynamic axes of another make are their own
    // axes and mode.
    if (!arguments.axes.has_value() || !arguments.mode.has_value()) {
      if (!arguments.preset.empty()) {
        question.preset = arguments.preset;
        return client_.layouts().ResolveSpec(question);
      }
      if (arguments.dynamic_axes.has_value()) {
        question.axes = arguments.dynamic_axes->axes;
        question.mode = arguments.dynamic_axes->mode;
        return client_.layouts().ResolveSpec(question);
      }
    }
    if (arguments.axes.has_value()) question.axes = *arguments.axes;
    question.mode = arguments.mode;
    return client_.layouts().ResolveSpec(question);
  }

  absl::StatusOr<PartitionSpec> CorrectSpec(const PartitionSpec& spec, const Shape& shape,
                                            const Mesh& mesh) const override {
    SHARDMESH_ASSIGN_OR_RETURN(
        client::SpecAnswer answer,
        client_.layouts().CorrectSpec(
            {.spec = spec, .shape = shape, .mesh = mesh, .compatibility = Compatibility::kExact}));
    return std::move(answer.effective);
  }

  absl::StatusOr<client::TilingAnswer> DescribeTiling(
      const PartitionSpec& spec, const Shape& shape, const Mesh& mesh,
      absl::Span<const DeviceId> devices) const override {
    return client_.layouts().DescribeTiling({.mesh = mesh,
                                             .spec = spec,
                                             .shape = shape,
                                             .devices = {devices.begin(), devices.end()},
                                             .compatibility = Compatibility::kExact});
  }

  absl::StatusOr<client::TreeAnswer> ResolveTree(const RuleSet& rules,
                                                 absl::Span<const client::TreeTensor> tensors,
                                                 const std::optional<Mesh>& mesh) const override {
    client::TreeQuestion question;
    question.rules = RuleSetDefinition{.rules = rules, .slashes = false};
    question.match_only = !mesh.has_value();
    if (mesh.has_value()) question.mesh = *mesh;
    question.compatibility = Compatibility::kExact;
    return client_.layouts().ResolveTree(question, tensors);
  }

  absl::StatusOr<std::vector<AxisValue>> ResolveAxes(const PartitionAxis& profile,
                                                     absl::Span<const AxisValue> axes,
                                                     const Mode& mode) const override {
    return client_.layouts().ResolveAxes({.axes = {axes.begin(), axes.end()},
                                          .mode = mode,
                                          .profile = profile,
                                          .compatibility = Compatibility::kExact});
  }

  absl::StatusOr<client::ConstraintAnswer> ApplyLogicalSharding(const LogicalArguments& arguments,
                                                                const Mesh& mesh,
                                                                bool auto_correct) const override {
    client::ConstrainQuestion question;
    question.profile = arguments.profile;
    question.shape = arguments.shape.value_or(Shape());
    question.mesh = mesh;
    question.auto_correct = auto_correct;
    question.compatibility = Compatibility::kExact;
    question.mode = arguments.mode;
    if (arguments.axes.has_value() && arguments.mode.has_value()) {
      question.layout = *arguments.axes;
    } else if (!arguments.preset.empty()) {
      question.layout = arguments.preset;
      question.mode.reset();
    } else if (arguments.dynamic_axes.has_value()) {
      question.layout = arguments.dynamic_axes->axes;
      question.mode = arguments.dynamic_axes->mode;
    } else {
      question.layout = arguments.axes.value_or(std::vector<AxisValue>());
    }
    return client_.layouts().ConstrainArray(question);
  }

  absl::StatusOr<client::ConstraintAnswer> Constrain(const PartitionSpec& spec, const Shape& shape,
                                                     const Mesh& mesh) const override {
    return client_.layouts().ConstrainArray(
        {.layout = spec, .shape = shape, .mesh = mesh, .compatibility = Compatibility::kExact});
  }

  absl::StatusOr<client::Comparison> CompareSpecs(const PartitionSpec& a, const PartitionSpec& b,
                                                  const Mesh& mesh, int64_t rank) const override {
    return client_.layouts().CompareSpecs(
        {.a = a, .b = b, .mesh = mesh, .rank = rank, .compatibility = Compatibility::kExact});
  }

 private:
  client::MeshClient& client_;
};

}  // namespace

std::shared_ptr<const LayoutSubject> WireLayout(client::MeshClient& client) {
  return std::make_shared<Layout>(client);
}

}  // namespace shardmesh::conformance
