// Which algorithms a collective has, what they cost, and which one is predicted to be fastest.
#ifndef SHARDMESH_PROGRAM_COLLECTIVE_CHOICE_H_
#define SHARDMESH_PROGRAM_COLLECTIVE_CHOICE_H_

#include <cstdint>
#include <map>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "program/program.h"

namespace shardmesh {

// all-reduce, reduce-scatter and reduce: those that combine elements.
bool IsReduction(CollectiveKind kind);

// The algorithms of a kind, kAuto not among them, kPairwise first. Never empty.
absl::Span<const CollectiveAlgorithm> AlgorithmsOf(CollectiveKind kind);

// INVALID_ARGUMENT (BAD_FIELD), naming the algorithms that fit, unless the algorithm is one of the
// kind's. A ring combines in an order of its own, hence fits a reduction in the order kFastest
// alone. kAuto fits nothing: it is to be chosen first.
absl::Status CheckAlgorithm(CollectiveKind kind, CollectiveAlgorithm algorithm,
                            CollectiveOrder order);

// Whether a rank's result may be made in the memory of its operand, if both have one size: nothing
// of the operand is overwritten before whoever it was sent to has used it. all-reduce by pairwise,
// halving or ring, where the result of a part comes back from who combined it; broadcast, where
// only the root sends its operand, which is its result; barrier.
bool MayOverwriteOperand(CollectiveKind kind, CollectiveAlgorithm algorithm);

// What a collective moves. `bytes` is the operand of one rank: of all-gather and gather what one
// rank brings, of all-to-all and scatter all parts together.
struct CollectiveLoad {
  int64_t ranks = 1;  // of a group, at least 1
  int64_t bytes = 0;
  // Bytes of the operand as partial results: `bytes`, or twice that for F16 and BF16.
  int64_t partial_bytes = 0;
};

// What one rank has to do, the busiest of the group. For P ranks, S = bytes, W = partial_bytes,
// L = ceil(log2 P) and c = min(S, 256 KiB):
//
//   kind, algorithm           rounds  messages  crowd  sent          on the way   combined
//   all-reduce     pairwise   2       2 (P-1)   P-1    2 S (P-1)/P   = sent       S (P-1)/P
//                  direct     1       P-1       P-1    S (P-1)       = sent       S (P-1)
//                  doubling   L       L         P/2    W L           = sent       S L
//                  halving    2 L     2 L       P/2    see below     = sent       S (P-1)/P
//                  ring       2(P-1)  2 (P-1)   1      (W+S)(P-1)/P  = sent       S (P-1)/P
//   reduce-scatter pairwise   1       P-1       P-1    S (P-1)/P     = sent       S (P-1)/P
//                  ring       P-1     P-1       1      W (P-1)/P     = sent       S (P-1)/P
//   all-gather     pairwise   1       P-1       P-1    S (P-1)       = sent       0
//                  doubling   L       L         P/2    S (P-1)       = sent       0
//                  ring       P-1     P-1       1      S (P-1)       = sent       0
//   all-to-all     pairwise   1       P-1       P-1    S (P-1)/P     = sent       0
//   broadcast      pairwise   1       P-1       1      S (P-1)       = sent       0
//                  binomial   L       L         P/2    S L           = sent       0
//                  chain      P-1     P-1       1      S             S + (P-2) c  0
//   reduce         pairwise   2       2 (P-1)   P-1    S             2 S (P-1)/P  S (P-1)/P
//                  direct     1       P-1       P-1    S             S (P-1)      S (P-1)
//                  binomial   L       L         P/2    W             W L          S L
//   gather         pairwise   1       P-1       P-1    S             S (P-1)      0
//   scatter        pairwise   1       P-1       1      S (P-1)/P     = sent       0
//   permute        pairwise   1       1         1      S             = sent       0
//   barrier        pairwise   1       P-1       P-1    P-1           = sent       0
//                  doubling   L       L         P/2    L             = sent       0
//
// Halving sends the operand at the first level and partial results from the second on, then
// results: S/2 + W (1/2 - 1/P) + S (P-1)/P. One rank alone does nothing of all this.
//
// Where memory is shared, a message costs its receiver alone, who reads it where it lies: on the
// way through the busiest rank of a pairwise broadcast are S then, of a scatter S/P.
struct CollectiveCost {
  int64_t rounds = 0;            // each waits for the one before it
  int64_t messages = 0;          // sent or received, the larger
  int64_t crowd = 0;             // whose messages may share a link: a rank's, or between hosts
  int64_t sent_bytes = 0;        // to peers
  int64_t way_bytes = 0;         // that follow one another through the busiest rank, either way
  int64_t combined_bytes = 0;    // of operands that are combined with others
  int64_t shared_way_bytes = 0;  // as way_bytes, where all ranks share memory

  friend bool operator==(const CollectiveCost&, const CollectiveCost&) = default;
};

// Numbers beyond 64 bits are cut off there. Requires an algorithm of the kind.
CollectiveCost CostOf(CollectiveKind kind, CollectiveAlgorithm algorithm,
                      const CollectiveLoad& load);

// Rates of the links between ranks. The defaults hold where workers have measured nothing: those of
// gRPC streams on loopback. A core reads and writes operands at about 10 GB/s.
struct LinkCost {
  // Time of a round in which two ranks send 8 bytes to each other and wait for the other's.
  double latency_seconds = 20e-6;
  // While they send long messages to each other and copy what comes into its place.
  double seconds_per_byte = 1 / 2.5e9;
  double seconds_per_byte_combined = 1 / 10e9;
  bool shares_memory = false;  // each rank with each
  bool is_measured = false;    // false: all rates are the defaults
};

// The time predicted:
//     latency * (rounds + (messages - rounds) / 4)
//   + seconds per byte * bytes on the way * (1 + max(0, crowd - 16) / 128)
//   + seconds per byte combined * combined_bytes
// A quarter of a message's latency is taken to be work of the rank, which further messages of the
// same round add, and the rest waiting. More than 16 senders at once are taken to be in each
// other's way: all of the group's at a rank to which all send; half of them where ranks half the
// group apart exchange. Both numbers are assumed, not measured.
double PredictedSeconds(const CollectiveCost& cost, const LinkCost& link);

// Whether memory is shared in both or in neither, and no figure differs by a factor of 1.5 or more.
bool AreAlike(const LinkCost& a, const LinkCost& b);

// The algorithm of each kind, whatever its predicted cost. Kinds that are missing go by cost.
using PreferredAlgorithms = std::map<CollectiveKind, CollectiveAlgorithm>;

// Reads KIND=ALGORITHM,..., none for an empty text. INVALID_ARGUMENT (BAD_FIELD), naming what there
// is, for a kind or an algorithm of it that there is not, and for a kind that is named twice.
// Example: "all-reduce=halving,broadcast=chain".
absl::StatusOr<PreferredAlgorithms> ParsePreferredAlgorithms(std::string_view text);

// The preferred algorithm if `order` allows it, otherwise that of the least predicted time that
// `order` allows; of equals, the first that AlgorithmsOf names. Never kAuto.
// Example: all-reduce over 4 ranks, 8 bytes -> direct; 16 MiB -> pairwise.
CollectiveAlgorithm ChooseAlgorithm(CollectiveKind kind, const CollectiveLoad& load,
                                    CollectiveOrder order, const LinkCost& link = {},
                                    const PreferredAlgorithms& preferred = {});

}  // namespace shardmesh

#endif  // SHARDMESH_PROGRAM_COLLECTIVE_CHOICE_H_
