// Every collective by every algorithm, type, number of ranks and awkward size: bit for bit what a
// plain program of one thread makes. Ranks are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/testing/in_process_link.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/worker/collective/collective_data.h"
#include "worker/collective/chain.h"
#include "worker/collective/doubling.h"
#include "worker/collective/halving.h"
#include "worker/collective/pairwise.h"
#include "worker/collective/ring.h"
#include "worker/step/combiners.h"

// The numbers of ranks. Builds with sanitizers, which are slow, set fewer.
#ifndef SHARDMESH_MATRIX_RANKS
#define SHARDMESH_MATRIX_RANKS 1, 2, 3, 4, 5, 6, 7, 8, 9
#endif

namespace shardmesh::worker {
namespace {

using ::shardmesh::test::InProcessRanks;
using ::shardmesh::test::IsOk;
using ::testing::Each;

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16,
                             Dtype::kI8,  Dtype::kU8,  Dtype::kI32, Dtype::kI64};

// Elements: none, few, a prime number, about a page, and a MiB and three more: several chunks of
// every algorithm.
std::vector<int64_t> CountsOf(Dtype dtype) {
  const int64_t size = BitsPerElement(dtype) / 8;
  return {
      0, 1, 2, 1021, 4096 / size - 1, 4096 / size, 4096 / size + 1, (int64_t{1} << 20) / size + 3};
}

bool IsFloat(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF64 || dtype == Dtype::kF16 ||
         dtype == Dtype::kBF16;
}

struct AllReduceAlgorithm {
  const char* name;
  bool is_ring;  // combines in the ring's order
  std::function<absl::Status(const CollectiveCall&, const Combiner&, const OwnedBytes&,
                             const OwnedMutableBytes&)>
      run;
};

std::vector<AllReduceAlgorithm> AllReduceAlgorithms() {
  return {
      {"pairwise", false, PairwiseAllReduce},
      {"direct", false,
       [](const CollectiveCall& call, const Combiner& combiner, const OwnedBytes& operand,
          const OwnedMutableBytes& out) {
         return DirectAllReduce(call, combiner, operand, out.bytes);
       }},
      {"doubling", false,
       [](const CollectiveCall& call, const Combiner& combiner, const OwnedBytes& operand,
          const OwnedMutableBytes& out) {
         return DoublingAllReduce(call, combiner, operand, out.bytes);
       }},
      {"halving", false, HalvingAllReduce},
      {"ring", true, RingAllReduce},
  };
}

class CollectiveMatrix : public ::testing::TestWithParam<std::tuple<int64_t, Dtype>> {
 protected:
  int64_t ranks() const { return std::get<0>(GetParam()); }
  Dtype dtype() const { return std::get<1>(GetParam()); }
  int64_t size() const { return BitsPerElement(dtype()) / 8; }

  // Those of the type; of many elements the sum alone.
  std::vector<Reduction> ReductionsOf(int64_t count) const {
    if (count > 2000) return {Reduction::kSum};
    std::vector<Reduction> reductions = {Reduction::kSum, Reduction::kProduct, Reduction::kMin,
                                         Reduction::kMax};
    if (IsFloat(dtype())) reductions.push_back(Reduction::kMean);
    return reductions;
  }

  std::vector<Bytes> OperandsOf(int64_t count) const {
    std::vector<Bytes> operands;
    for (DeviceId rank = 0; rank < ranks(); ++rank) {
      operands.push_back(OperandOf(dtype(), count, rank));
    }
    return operands;
  }

  // Runs body(call, rank) on every rank, in a step of its own; all have to succeed. Messages come
  // in pieces that end within elements.
  void Run(const std::function<absl::Status(const CollectiveCall&, size_t)>& body,
           int64_t piece_bytes = 65'533) const {
    InProcessRanks world(ranks(), piece_bytes);
    ASSERT_THAT(world.OpenStep(1), IsOk());
    const auto outcomes = world.RunOnAll([&](DeviceId rank) {
      const DeviceGroup group = GroupOf(ranks(), rank);
      return body(CallOf(world.link(rank), group), static_cast<size_t>(rank));
    });
    EXPECT_THAT(outcomes, Each(IsOk()));
    for (DeviceId rank = 0; rank < ranks(); ++rank) {
      EXPECT_EQ(world.mailbox(rank).held_bytes(), 0) << "something was sent to nobody";
    }
  }

  // Parts of uneven sizes, of which some are empty.
  std::vector<int64_t> UnevenCuts(int64_t count) const {
    std::vector<int64_t> cuts = {0};
    for (int64_t place = 1; place < ranks(); ++place) {
      cuts.push_back(count * place * (place + 1) / (ranks() * (ranks() + 1)));
    }
    cuts.push_back(count);
    return cuts;
  }

  std::vector<OwnedBytes> PartsOf(const Bytes& whole, const std::vector<int64_t>& cuts) const {
    std::vector<OwnedBytes> parts;
    for (size_t place = 0; place + 1 < cuts.size(); ++place) {
      parts.push_back(PartOf(Owned(whole), cuts[place] * size(), cuts[place + 1] * size()));
    }
    return parts;
  }
};

TEST_P(CollectiveMatrix, AllReduceGivesThePlainReduction) {
  for (const int64_t count : CountsOf(dtype())) {
    const std::vector<Bytes> operands = OperandsOf(count);
    for (const Reduction reduction : ReductionsOf(count)) {
      const auto canonical = PlainReduction(reduction, dtype(), operands, count);
      const auto ring =
          PlainReduction(reduction, dtype(), operands, count, EvenCuts(count, ranks()));
      for (const AllReduceAlgorithm& algorithm : AllReduceAlgorithms()) {
        SCOPED_TRACE(StrCat(algorithm.name, " reduction ", static_cast<int>(reduction), " of ",
                            count, " elements"));
        std::vector<Bytes> results(operands.size());
        for (Bytes& result : results) result = MakeBytes(count * size());
        Run(
            [&](const CollectiveCall& call, size_t rank) {
              SHARDMESH_ASSIGN_OR_RETURN(const Combiner combiner,
                                         CombinerFor(reduction, dtype(), dtype(), ranks()));
              return algorithm.run(call, combiner, Owned(operands[rank]),
                                   OwnedMutable(results[rank]));
            },
            count > 2000 ? 65'533 : 1001);
        for (const Bytes& result : results) {
          EXPECT_TRUE(*result == (algorithm.is_ring ? ring : canonical));
        }
      }
    }
  }
}

TEST_P(CollectiveMatrix, AllReduceIntoTheOperandGivesThePlainReduction) {
  const Reduction reduction = IsFloat(dtype()) ? Reduction::kMean : Reduction::kSum;
  for (const int64_t count : CountsOf(dtype())) {
    const std::vector<Bytes> operands = OperandsOf(count);
    const auto canonical = PlainReduction(reduction, dtype(), operands, count);
    const auto ring = PlainReduction(reduction, dtype(), operands, count, EvenCuts(count, ranks()));
    for (const AllReduceAlgorithm& algorithm : AllReduceAlgorithms()) {
      if (algorithm.name == std::string_view("direct") ||
          algorithm.name == std::string_view("doubling")) {
        continue;  // peers may still read the operand
      }
      SCOPED_TRACE(StrCat(algorithm.name, " of ", count, " elements"));
      std::vector<Bytes> tiles;
      for (const Bytes& operand : operands) {
        tiles.push_back(std::make_shared<std::vector<char>>(*operand));
      }
      Run([&](const CollectiveCall& call, size_t rank) {
        SHARDMESH_ASSIGN_OR_RETURN(const Combiner combiner,
                                   CombinerFor(reduction, dtype(), dtype(), ranks()));
        return algorithm.run(call, combiner, Owned(tiles[rank]), OwnedMutable(tiles[rank]));
      });
      for (const Bytes& tile : tiles) EXPECT_TRUE(*tile == (algorithm.is_ring ? ring : canonical));
    }
  }
}

TEST_P(CollectiveMatrix, ReduceGivesTheRootThePlainReduction) {
  using Reduce = absl::Status (*)(const CollectiveCall&, const Combiner&, int64_t,
                                  const OwnedBytes&, absl::Span<char>);
  for (const int64_t count : CountsOf(dtype())) {
    const std::vector<Bytes> operands = OperandsOf(count);
    for (const Reduction reduction : ReductionsOf(count)) {
      const auto expected = PlainReduction(reduction, dtype(), operands, count);
      const bool is_sum = reduction == Reduction::kSum;
      for (const Reduce reduce : {&DirectReduce, &PairwiseReduce, &BinomialReduce}) {
        for (int64_t root = is_sum ? 0 : ranks() / 2; root < ranks();
             root += is_sum && count <= 2000 ? 1 : ranks()) {
          SCOPED_TRACE(StrCat("reduction ", static_cast<int>(reduction), " of ", count,
                              " elements to ", root));
          const Bytes result = MakeBytes(count * size());
          Run([&](const CollectiveCall& call, size_t rank) {
            SHARDMESH_ASSIGN_OR_RETURN(const Combiner combiner,
                                       CombinerFor(reduction, dtype(), dtype(), ranks()));
            return reduce(
                call, combiner, root, Owned(operands[rank]),
                static_cast<int64_t>(rank) == root ? absl::MakeSpan(*result) : absl::Span<char>());
          });
          EXPECT_TRUE(*result == expected);
        }
      }
    }
  }
}

TEST_P(CollectiveMatrix, ReduceScatterGivesEachRankItsPartOfThePlainReduction) {
  using ReduceScatter = absl::Status (*)(const CollectiveCall&, const Combiner&,
                                         absl::Span<const OwnedBytes>, absl::Span<char>);
  for (const int64_t count : CountsOf(dtype())) {
    const std::vector<Bytes> operands = OperandsOf(count);
    for (const Reduction reduction : ReductionsOf(count)) {
      const auto canonical = PlainReduction(reduction, dtype(), operands, count);
      for (const auto& cuts : {EvenCuts(count, ranks()), UnevenCuts(count)}) {
        for (const auto& [run, ring_cuts] :
             {std::pair<ReduceScatter, std::vector<int64_t>>(&PairwiseReduceScatter, {}),
              std::pair<ReduceScatter, std::vector<int64_t>>(&RingReduceScatter, cuts)}) {
          SCOPED_TRACE(StrCat("reduction ", static_cast<int>(reduction), " of ", count, " elements",
                              ring_cuts.empty() ? "" : " by ring"));
          std::vector<Bytes> results;
          for (size_t rank = 0; rank < operands.size(); ++rank) {
            results.push_back(MakeBytes((cuts[rank + 1] - cuts[rank]) * size()));
          }
          Run([&, run = run](const CollectiveCall& call, size_t rank) {
            SHARDMESH_ASSIGN_OR_RETURN(const Combiner combiner,
                                       CombinerFor(reduction, dtype(), dtype(), ranks()));
            return run(call, combiner, PartsOf(operands[rank], cuts),
                       absl::MakeSpan(*results[rank]));
          });
          std::vector<char> together;
          for (const Bytes& result : results) {
            together.insert(together.end(), result->begin(), result->end());
          }
          EXPECT_TRUE(together == (ring_cuts.empty() ? canonical
                                                     : PlainReduction(reduction, dtype(), operands,
                                                                      count, ring_cuts)));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RanksAndTypes, CollectiveMatrix,
                         ::testing::Combine(::testing::Values(SHARDMESH_MATRIX_RANKS),
                                            ::testing::ValuesIn(kDtypes)),
                         [](const auto& tested) {
                           return StrCat(std::get<0>(tested.param), "Ranks",
                                         DtypeName(std::get<1>(tested.param)));
                         });

// Collectives that move bytes as they are.
class MovingMatrix : public CollectiveMatrix {
 protected:
  // Where the part of each place begins in all of them together, and a function that puts it there.
  static auto PlaceInto(std::vector<char>& together, const std::vector<int64_t>& cuts) {
    return [&together, &cuts](int64_t place, int64_t offset_bytes, absl::Span<const char> bytes) {
      std::memcpy(together.data() + cuts[static_cast<size_t>(place)] + offset_bytes, bytes.data(),
                  bytes.size());
    };
  }
  static std::vector<int64_t> SizesOf(const std::vector<int64_t>& cuts) {
    std::vector<int64_t> sizes;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) sizes.push_back(cuts[i + 1] - cuts[i]);
    return sizes;
  }
};

TEST_P(MovingMatrix, AllGatherAndGatherJoinWhatEachBrings) {
  using AllGather = absl::Status (*)(const CollectiveCall&, const OwnedBytes&,
                                     absl::Span<const int64_t>, PlaceFn);
  for (const int64_t count : CountsOf(dtype())) {
    const Bytes whole = OperandOf(dtype(), count, 0);
    for (const auto& cuts : {EvenCuts(count, ranks()), UnevenCuts(count)}) {
      const std::vector<OwnedBytes> parts = PartsOf(whole, cuts);
      const std::vector<int64_t> sizes = SizesOf(cuts);
      for (const AllGather gather : {&PairwiseAllGather, &DoublingAllGather, &RingAllGather}) {
        std::vector<std::vector<char>> results(parts.size(), std::vector<char>(whole->size()));
        Run([&](const CollectiveCall& call, size_t rank) {
          return gather(call, parts[rank], sizes, PlaceInto(results[rank], cuts));
        });
        EXPECT_THAT(results, Each(*whole)) << count;
      }
      for (int64_t root = 0; root < ranks(); ++root) {
        std::vector<char> result(whole->size());
        Run([&](const CollectiveCall& call, size_t rank) {
          return PairwiseGather(call, root, parts[rank], sizes, PlaceInto(result, cuts));
        });
        EXPECT_TRUE(result == *whole) << count << " to " << root;
      }
    }
  }
}

TEST_P(MovingMatrix, BroadcastGivesAllWhatTheRootHas) {
  for (const int64_t count : CountsOf(dtype())) {
    for (int64_t root = 0; root < ranks(); ++root) {
      const Bytes whole = OperandOf(dtype(), count, root);
      for (const char* algorithm : {"pairwise", "binomial", "chain"}) {
        SCOPED_TRACE(StrCat(algorithm, " of ", count, " from ", root));
        std::vector<Bytes> results(static_cast<size_t>(ranks()));
        for (Bytes& result : results) result = MakeBytes(count);
        Run([&](const CollectiveCall& call, size_t rank) {
          const OwnedBytes mine = static_cast<int64_t>(rank) == root ? Owned(whole) : OwnedBytes();
          const OwnedMutableBytes out = OwnedMutable(results[rank]);
          return *algorithm == 'p'   ? PairwiseBroadcast(call, root, mine, out.bytes)
                 : *algorithm == 'b' ? BinomialBroadcast(call, root, mine, out)
                                     : ChainBroadcast(call, root, mine, out);
        });
        for (const Bytes& result : results) EXPECT_TRUE(*result == *whole);

        // Into the operand, which is the root's result.
        for (Bytes& result : results) {
          result = &result - results.data() == root ? std::make_shared<std::vector<char>>(*whole)
                                                    : MakeBytes(count);
        }
        Run([&](const CollectiveCall& call, size_t rank) {
          const OwnedBytes mine = Owned(results[rank]);
          const OwnedMutableBytes out = OwnedMutable(results[rank]);
          return *algorithm == 'p'   ? PairwiseBroadcast(call, root, mine, out.bytes)
                 : *algorithm == 'b' ? BinomialBroadcast(call, root, mine, out)
                                     : ChainBroadcast(call, root, mine, out);
        });
        for (const Bytes& result : results) EXPECT_TRUE(*result == *whole);
      }
    }
  }
}

TEST_P(MovingMatrix, ScatterGivesEachItsPartOfWhatTheRootHas) {
  for (const int64_t count : CountsOf(dtype())) {
    for (int64_t root = 0; root < ranks(); ++root) {
      const Bytes whole = OperandOf(dtype(), count, root);
      const std::vector<int64_t> cuts = UnevenCuts(count);
      std::vector<char> together(whole->size());
      Run([&](const CollectiveCall& call, size_t rank) {
        const bool is_root = static_cast<int64_t>(rank) == root;
        return PairwiseScatter(
            call, root, is_root ? PartsOf(whole, cuts) : std::vector<OwnedBytes>(),
            absl::MakeSpan(together).subspan(static_cast<size_t>(cuts[rank]),
                                             static_cast<size_t>(cuts[rank + 1] - cuts[rank])));
      });
      EXPECT_TRUE(together == *whole) << count << " from " << root;
    }
  }
}

TEST_P(MovingMatrix, AllToAllGivesEachWhatOthersHaveForIt) {
  for (const int64_t count : CountsOf(dtype())) {
    // The rank r has count * (r + p) / (2 P) bytes for the rank p.
    const auto bytes_for = [&](int64_t from, int64_t to) {
      return count * (from + to) / (2 * ranks());
    };
    const std::vector<Bytes> operands = OperandsOf(count);
    std::vector<std::vector<char>> results(operands.size());
    std::vector<std::vector<char>> expected(operands.size());
    Run([&](const CollectiveCall& call, size_t rank) {
      const auto self = static_cast<int64_t>(rank);
      std::vector<OwnedBytes> parts;
      std::vector<int64_t> cuts = {0};
      for (int64_t place = 0; place < ranks(); ++place) {
        parts.push_back(PartOf(Owned(operands[rank]), 0, bytes_for(self, place)));
        cuts.push_back(cuts.back() + bytes_for(place, self));
        const auto& theirs = *operands[static_cast<size_t>(place)];
        expected[rank].insert(expected[rank].end(), theirs.begin(),
                              theirs.begin() + bytes_for(place, self));
      }
      results[rank].resize(static_cast<size_t>(cuts.back()));
      return PairwiseAllToAll(call, parts, SizesOf(cuts), PlaceInto(results[rank], cuts));
    });
    EXPECT_TRUE(results == expected) << count;
  }
}

TEST_P(MovingMatrix, PermuteMovesAndLeavesZerosWhereNothingComes) {
  for (const int64_t count : CountsOf(dtype())) {
    const std::vector<Bytes> operands = OperandsOf(count);
    for (int64_t shift = 0; shift < ranks(); ++shift) {
      // Around by `shift`, but for the first rank, which hands nothing on.
      std::vector<std::optional<int64_t>> targets(operands.size());
      for (int64_t place = 1; place < ranks(); ++place) {
        targets[static_cast<size_t>(place)] = (place + shift) % ranks();
      }
      std::vector<Bytes> results(operands.size());
      for (Bytes& result : results) {
        result = MakeBytes(count);
        std::fill(result->begin(), result->end(), 'x');
      }
      Run([&](const CollectiveCall& call, size_t rank) {
        return Permute(call, targets, Owned(operands[rank]), absl::MakeSpan(*results[rank]));
      });
      for (int64_t place = 0; place < ranks(); ++place) {
        const int64_t source = (place - shift + ranks()) % ranks();
        EXPECT_TRUE(*results[static_cast<size_t>(place)] ==
                    (source == 0 ? *MakeBytes(count) : *operands[static_cast<size_t>(source)]))
            << count << " by " << shift << " at " << place;
      }
    }
  }
}

TEST_P(MovingMatrix, NoRankLeavesABarrierBeforeAllHaveEntered) {
  for (const auto barrier : {&PairwiseBarrier, &DoublingBarrier}) {
    std::atomic<int64_t> entered = 0;
    Run([&](const CollectiveCall& call, size_t) {
      ++entered;
      const absl::Status status = barrier(call);
      EXPECT_EQ(entered, ranks());
      return status;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MovingMatrix,
                         ::testing::Combine(::testing::Values(SHARDMESH_MATRIX_RANKS),
                                            ::testing::Values(Dtype::kU8)),
                         [](const auto& tested) {
                           return StrCat(std::get<0>(tested.param), "Ranks");
                         });

}  // namespace
}  // namespace shardmesh::worker
