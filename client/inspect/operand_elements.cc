// Gets elements of arrays, and reads those of literals.
#include "client/inspect/operand_elements.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "client/types/array.h"
#include "status/status_macros.h"
#include "tensor/literal.h"
#include "tensor/view.h"

namespace shardmesh::client {
namespace {

ArraySlice SliceOf(const Tile& tile) {
  ArraySlice slice;
  for (const IndexRange& range : tile.ranges) {
    slice.push_back({.start = range.start, .stop = range.stop});
  }
  return slice;
}

absl::StatusOr<BoundedTensorPtr> ElementsOf(const TensorView& view) {
  SHARDMESH_ASSIGN_OR_RETURN(BoundedTensor elements, ExactTensor(view));
  return std::make_shared<const BoundedTensor>(std::move(elements));
}

absl::StatusOr<BoundedTensorPtr> LiteralElements(const Literal& literal,
                                                 const std::optional<Tile>& part) {
  SHARDMESH_ASSIGN_OR_RETURN(const TensorView whole,
                             TensorView::Create(literal.dtype, literal.shape, literal.bytes));
  if (!part.has_value()) return ElementsOf(whole);
  SHARDMESH_ASSIGN_OR_RETURN(const int64_t size_bytes,
                             PackedSizeBytes(literal.dtype, part->element_count()));
  std::string bytes(static_cast<size_t>(size_bytes), '\0');
  SHARDMESH_RETURN_IF_ERROR(CopyTileBytes(whole, *part, 0, absl::MakeSpan(bytes)));
  SHARDMESH_ASSIGN_OR_RETURN(const TensorView view,
                             TensorView::Create(literal.dtype, part->shape(), bytes));
  return ElementsOf(view);
}

}  // namespace

absl::StatusOr<KnownOperand> FindOperandOf(MeshClient* client, const Operand& operand,
                                           const CallOptions& options) {
  if (const auto* const literal = std::get_if<Literal>(&operand.value)) {
    ValueDescriptor described;
    described.dtype = literal->dtype;
    described.shape = literal->shape;
    return KnownOperand{.operand = operand, .described = std::move(described)};
  }
  SHARDMESH_ASSIGN_OR_RETURN(
      const Array array,
      client->arrays().DescribeArray(std::get<ArraySelector>(operand.value), options));
  KnownOperand known = KnownArray(array.descriptor);
  known.operand.donate = operand.donate;
  return known;
}

KnownOperand KnownArray(const ArrayDescriptor& array) {
  return {.operand = ArraySelector::ById(array.array_id),
          .described = {.dtype = array.dtype,
                        .shape = array.shape,
                        .spec = array.spec,
                        .cut_points = array.cut_points},
          .mesh = array.mesh};
}

absl::StatusOr<std::vector<BoundedTensorPtr>> PartialSumsOf(MeshClient* client,
                                                            const KnownOperand& known,
                                                            const CallOptions& options,
                                                            const std::optional<Tile>& part) {
  std::vector<BoundedTensorPtr> sums;
  if (const auto* const literal = std::get_if<Literal>(&known.operand.value)) {
    SHARDMESH_ASSIGN_OR_RETURN(sums.emplace_back(), LiteralElements(*literal, part));
    return sums;
  }
  std::optional<ArraySlice> slice;
  if (part.has_value()) slice = SliceOf(*part);
  const int64_t count =
      known.mesh.has_value() ? PartialSumCount(DescriptorOf(*known.mesh, known.described)) : 1;
  for (int64_t number = 0; number < count; ++number) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const GatheredTensor gathered,
        client->arrays().GatherPartialSum(std::get<ArraySelector>(known.operand.value), number,
                                          slice, options));
    SHARDMESH_ASSIGN_OR_RETURN(sums.emplace_back(), ElementsOf(gathered.view()));
  }
  return sums;
}

absl::StatusOr<BoundedTensorPtr> ElementsOf(MeshClient* client, const KnownOperand& known,
                                            const CallOptions& options,
                                            const std::optional<Tile>& part) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<BoundedTensorPtr> sums,
                             PartialSumsOf(client, known, options, part));
  return SumOf(sums);
}

absl::StatusOr<BoundedTensorPtr> ResultElementsOf(MeshClient* client, const ArrayDescriptor& result,
                                                  const CallOptions& options,
                                                  const std::optional<Tile>& part) {
  SHARDMESH_ASSIGN_OR_RETURN(const std::vector<BoundedTensorPtr> sums,
                             PartialSumsOf(client, KnownArray(result), options, part));
  return RoundedSumOf(sums);
}

}  // namespace shardmesh::client
