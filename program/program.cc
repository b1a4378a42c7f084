// The names of ops, and of the kinds and algorithms of collectives.
#include "program/program.h"

#include <array>

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

std::vector<ValueIndex> InputsOfOp(const ProgramOp& op) {
  struct Visitor {
    std::vector<ValueIndex> operator()(const LinearOp& linear) const {
      std::vector<ValueIndex> inputs = {linear.input, linear.weight};
      if (linear.bias.has_value()) inputs.push_back(*linear.bias);
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
