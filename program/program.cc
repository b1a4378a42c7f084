// The names of ops, and of the kinds and algorithms of collectives.
#include "program/program.h"

#include <array>

#include "sharding/shape.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

template <typename Enum>
struct Named {
  Enum value;
  std::string_view name;
};

// The names, in the order of the enums.
constexpr std::array kKindNames = {
    Named<Kind>{Kind::kAllReduce, "all-reduce"},
    Named<Kind>{Kind::kAllGather, "all-gather"},
    Named<Kind>{Kind::kReduceScatter, "reduce-scatter"},
    Named<Kind>{Kind::kAllToAll, "all-to-all"},
    Named<Kind>{Kind::kBroadcast, "broadcast"},
    Named<Kind>{Kind::kReduce, "reduce"},
    Named<Kind>{Kind::kGather, "gather"},
    Named<Kind>{Kind::kScatter, "scatter"},
    Named<Kind>{Kind::kPermute, "permute"},
    Named<Kind>{Kind::kBarrier, "barrier"},
};
constexpr std::array kAlgorithmNames = {
    Named<Algorithm>{Algorithm::kAuto, "auto"},
    Named<Algorithm>{Algorithm::kPairwise, "pairwise"},
    Named<Algorithm>{Algorithm::kDirect, "direct"},
    Named<Algorithm>{Algorithm::kDoubling, "doubling"},
    Named<Algorithm>{Algorithm::kHalving, "halving"},
    Named<Algorithm>{Algorithm::kRing, "ring"},
    Named<Algorithm>{Algorithm::kBinomial, "binomial"},
    Named<Algorithm>{Algorithm::kChain, "chain"},
};

template <typename Enum, size_t kCount>
constexpr std::array<Enum, kCount> ValuesOf(const std::array<Named<Enum>, kCount>& names) {
  std::array<Enum, kCount> values = {};
  for (size_t i = 0; i < kCount; ++i) {
    values[i] = names[i].value;
  }
  return values;
}

constexpr auto kKinds = ValuesOf(kKindNames);
constexpr auto kAlgorithms = ValuesOf(kAlgorithmNames);

}  // namespace

absl::Span<const CollectiveKind> AllCollectiveKinds() { return kKinds; }

std::string_view CollectiveKindName(CollectiveKind kind) {
  return kKindNames[static_cast<size_t>(kind)].name;
}

absl::Span<const CollectiveAlgorithm> AllCollectiveAlgorithms() { return kAlgorithms; }

std::string_view CollectiveAlgorithmName(CollectiveAlgorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)].name;
}

absl::Status CheckProductTypes(Dtype lhs, Dtype rhs, bool has_scales, bool rhs_is_weight) {
  const bool is_float = lhs == Dtype::kF32 || lhs == Dtype::kBF16 || lhs == Dtype::kF16;
  const bool is_quantised = rhs == Dtype::kI8 && has_scales;
  if (is_float && (is_quantised || (lhs == rhs && !has_scales))) return absl::OkStatus();
  const bool lacks_scales = is_float && rhs == Dtype::kI8;
  const std::string_view advice =
      is_quantised                    ? "; a weight of I8 needs an input of F32, BF16 or F16"
      : has_scales                    ? "; only weights of I8 have scales"
      : lacks_scales && rhs_is_weight ? "; weights of I8 need their scales"
      : lacks_scales                  ? "; only linear layers have weights of I8, with scales"
                                      : "; both must be F32, both BF16 or both F16";
  return InvalidArgument(Reason::kUnsupportedDtype,
                         StrCat("cannot multiply ", DtypeName(lhs), " by ", DtypeName(rhs),
                                has_scales ? " with scales" : "", advice),
                         {{fact::kDtype, DtypeName(is_float ? rhs : lhs)}});
}

absl::Status CheckScales(const TensorType& scales, int64_t columns) {
  const Shape need = {columns};
  if (scales.shape != need) {
    return InvalidArgument(
        Reason::kShapeMismatch,
        StrCat("the scales have shape ", ShapeToString(scales.shape), "; it must be ",
               ShapeToString(need), ", one factor for each output feature"),
        {{fact::kHave, ShapeToString(scales.shape)}, {fact::kNeed, ShapeToString(need)}});
  }
  if (scales.dtype == Dtype::kF32) return absl::OkStatus();
  return InvalidArgument(Reason::kUnsupportedDtype,
                         StrCat("the scales are ", DtypeName(scales.dtype), "; they must be F32"),
                         {{fact::kDtype, DtypeName(scales.dtype)}});
}

std::vector<ValueIndex> InputsOfOp(const ProgramOp& op) {
  struct Visitor {
    std::vector<ValueIndex> operator()(const LinearOp& linear) const {
      std::vector<ValueIndex> inputs = {linear.input, linear.weight};
      if (linear.bias.has_value()) inputs.push_back(*linear.bias);
      if (linear.scales.has_value()) inputs.push_back(*linear.scales);
      return inputs;
    }
    std::vector<ValueIndex> operator()(const MatmulOp& matmul) const {
      return {matmul.lhs, matmul.rhs};
    }
    std::vector<ValueIndex> operator()(const CollectiveOp& collective) const {
      return {collective.input};
    }
    std::vector<ValueIndex> operator()(const ReshardOp& reshard) const { return {reshard.input}; }
    std::vector<ValueIndex> operator()(const TensorOp& tensor) const { return InputsOf(tensor); }
  };
  return std::visit(Visitor{}, op);
}

std::string_view ProgramOpName(const ProgramOp& op) {
  struct Visitor {
    std::string_view operator()(const LinearOp& /*linear*/) const { return "linear"; }
    std::string_view operator()(const MatmulOp& /*matmul*/) const { return "matmul"; }
    std::string_view operator()(const CollectiveOp& /*collective*/) const { return "collective"; }
    std::string_view operator()(const ReshardOp& /*reshard*/) const { return "reshard"; }
    std::string_view operator()(const TensorOp& tensor) const { return TensorOpName(tensor); }
  };
  return std::visit(Visitor{}, op);
}

}  // namespace shardmesh
