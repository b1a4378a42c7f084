// Computes the costs of algorithms, and chooses algorithms by cost.
#include "program/collective_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

using Algorithm = CollectiveAlgorithm;
using Kind = CollectiveKind;

constexpr double kChunkBytes = 256 << 10;  // bytes of a piece that a chain forwards
constexpr double kWorkOfAMessage = 0.25;   // work of a rank for one message, in latencies
constexpr double kCrowdAtEase = 16;        // this many concurrent senders do not delay each other
// The time of a byte doubles with this number of concurrent senders above kCrowdAtEase.
constexpr double kCrowdToDouble = 128;
// Two figures are not alike (AreAlike) if one is at least this many times the other.
constexpr double kUnlike = 1.5;

constexpr Algorithm kOfAllReduce[] = {Algorithm::kPairwise, Algorithm::kDirect,
                                      Algorithm::kDoubling, Algorithm::kHalving, Algorithm::kRing};
constexpr Algorithm kOfReduceScatter[] = {Algorithm::kPairwise, Algorithm::kRing};
constexpr Algorithm kOfAllGather[] = {Algorithm::kPairwise, Algorithm::kDoubling, Algorithm::kRing};
constexpr Algorithm kOfBroadcast[] = {Algorithm::kPairwise, Algorithm::kBinomial,
                                      Algorithm::kChain};
constexpr Algorithm kOfReduce[] = {Algorithm::kPairwise, Algorithm::kDirect, Algorithm::kBinomial};
constexpr Algorithm kOfBarrier[] = {Algorithm::kPairwise, Algorithm::kDoubling};
constexpr Algorithm kOfOthers[] = {Algorithm::kPairwise};

bool Fits(Kind kind, Algorithm algorithm, CollectiveOrder order) {
  const absl::Span<const Algorithm> known = AlgorithmsOf(kind);
  if (std::find(known.begin(), known.end(), algorithm) == known.end()) {
    return false;
  }
  return algorithm != Algorithm::kRing || !IsReduction(kind) || order == CollectiveOrder::kFastest;
}

int64_t Whole(double x) {
  constexpr auto kMost = std::numeric_limits<int64_t>::max();
  return x < static_cast<double>(kMost) ? static_cast<int64_t>(x) : kMost;
}

// A row of the table in the header, as numbers for one load. If `way` is below 0, the value of
// `sent` applies. If `shared_way` is below 0, the value of `way` applies.
struct Row {
  double rounds = 0;
  double messages = 0;
  double crowd = 0;
  double sent = 0;
  double combined = 0;
  double way = -1;
  double shared_way = -1;
};

Row RowOf(Kind kind, Algorithm algorithm, const CollectiveLoad& load) {
  const auto p = static_cast<double>(load.ranks);
  const auto s = static_cast<double>(load.bytes);
  const auto w = static_cast<double>(load.partial_bytes);
  double l = 0;
  for (int64_t reached = 1; reached < load.ranks; reached *= 2) {
    ++l;
  }
  const double others = p - 1;
  const double half = std::max(1.0, std::floor(p / 2));
  const double most = s * others / p;  // bytes of all parts of the operand except one

  switch (algorithm) {
    case Algorithm::kAuto:
      break;
    case Algorithm::kPairwise:
      switch (kind) {
        case Kind::kAllReduce:
          return {2, 2 * others, others, 2 * s * others / p, most};
        case Kind::kReduceScatter:
          return {1, others, others, most, most};
        case Kind::kAllGather:
          return {1, others, others, s * others, 0};
        case Kind::kBroadcast:
          return {1, others, 1, s * others, 0, s * others, s};
        case Kind::kAllToAll:
          return {1, others, others, most, 0};
        case Kind::kReduce:
          return {2, 2 * others, others, s, most, 2 * s * others / p};
        case Kind::kGather:
          return {1, others, others, s, 0, s * others};
        case Kind::kScatter:
          return {1, others, 1, most, 0, most, s / p};
        case Kind::kPermute:
          return {1, 1, 1, s, 0};
        case Kind::kBarrier:
          return {1, others, others, others, 0};
      }
      break;
    case Algorithm::kDirect:
      return {1, others, others, kind == Kind::kReduce ? s : s * others, s * others, s * others};
    case Algorithm::kDoubling:
      if (kind == Kind::kAllReduce) {
        return {l, l, half, w * l, s * l};
      }
      return {l, l, half, kind == Kind::kBarrier ? l : s * others, 0};
    case Algorithm::kHalving:
      return {2 * l, 2 * l, half, s / 2 + w * (0.5 - 1 / p) + most, most};
    case Algorithm::kRing:
      if (kind == Kind::kAllReduce) {
        return {2 * others, 2 * others, 1, (w + s) * others / p, most};
      }
      if (kind == Kind::kReduceScatter) {
        return {others, others, 1, w * others / p, most};
      }
      return {others, others, 1, s * others, 0};
    case Algorithm::kBinomial:
      if (kind == Kind::kReduce) {
        return {l, l, half, w, s * l, w * l};
      }
      return {l, l, half, s * l, 0};
    case Algorithm::kChain:
      return {others, others, 1, s, 0, s + (p - 2) * std::min(s, kChunkBytes)};
  }
  return {};
}

}  // namespace

bool IsReduction(CollectiveKind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
}

absl::Span<const CollectiveAlgorithm> AlgorithmsOf(CollectiveKind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return kOfAllReduce;
    case Kind::kReduceScatter:
      return kOfReduceScatter;
    case Kind::kAllGather:
      return kOfAllGather;
    case Kind::kBroadcast:
      return kOfBroadcast;
    case Kind::kReduce:
      return kOfReduce;
    case Kind::kBarrier:
      return kOfBarrier;
    case Kind::kAllToAll:
    case Kind::kGather:
    case Kind::kScatter:
    case Kind::kPermute:
      break;
  }
  return kOfOthers;
}

absl::Status CheckAlgorithm(CollectiveKind kind, CollectiveAlgorithm algorithm,
                            CollectiveOrder order) {
  if (Fits(kind, algorithm, order)) {
    return absl::OkStatus();
  }
  std::vector<std::string_view> fitting;
  for (const Algorithm known : AlgorithmsOf(kind)) {
    if (Fits(kind, known, order)) {
      fitting.push_back(CollectiveAlgorithmName(known));
    }
  }
  const std::string_view name = CollectiveAlgorithmName(algorithm);
  std::string why = StrCat(CollectiveKindName(kind), " has no algorithm \"", name, "\"");
  if (algorithm == Algorithm::kAuto) {
    why = StrCat("the algorithm of ", CollectiveKindName(kind), " is not chosen yet");
  } else if (Fits(kind, algorithm, CollectiveOrder::kFastest)) {
    why = StrCat("a ", name, " sums in an order of its own, and ", CollectiveKindName(kind),
                 " allows that only with the order \"fastest\"");
  }
  return InvalidArgument(Reason::kBadField,
                         StrCat(why, "; those that fit: ", StrJoin(fitting, ", ")),
                         {{fact::kField, "algorithm"}, {fact::kValue, name}});
}

bool MayOverwriteOperand(CollectiveKind kind, CollectiveAlgorithm algorithm) {
  if (kind == Kind::kAllReduce) {
    return algorithm == Algorithm::kPairwise || algorithm == Algorithm::kHalving ||
           algorithm == Algorithm::kRing;
  }
  return kind == Kind::kBroadcast || kind == Kind::kBarrier;
}

CollectiveCost CostOf(CollectiveKind kind, CollectiveAlgorithm algorithm,
                      const CollectiveLoad& load) {
  if (load.ranks <= 1) {
    return {};
  }
  const Row row = RowOf(kind, algorithm, load);
  const double way = row.way < 0 ? row.sent : row.way;
  return {.rounds = Whole(row.rounds),
          .messages = Whole(row.messages),
          .crowd = Whole(row.crowd),
          .sent_bytes = Whole(row.sent),
          .way_bytes = Whole(way),
          .combined_bytes = Whole(row.combined),
          .shared_way_bytes = Whole(row.shared_way < 0 ? way : row.shared_way)};
}

double PredictedSeconds(const CollectiveCost& cost, const LinkCost& link) {
  const auto rounds = static_cast<double>(cost.rounds);
  const double starts = rounds + (static_cast<double>(cost.messages) - rounds) * kWorkOfAMessage;
  const double crowding =
      1 + std::max(0.0, static_cast<double>(cost.crowd) - kCrowdAtEase) / kCrowdToDouble;
  const int64_t way_bytes = link.shares_memory ? cost.shared_way_bytes : cost.way_bytes;
  return link.latency_seconds * starts +
         link.seconds_per_byte * static_cast<double>(way_bytes) * crowding +
         link.seconds_per_byte_combined * static_cast<double>(cost.combined_bytes);
}

bool AreAlike(const LinkCost& a, const LinkCost& b) {
  const auto are_alike = [](double x, double y) {
    return std::max(x, y) < kUnlike * std::min(x, y);
  };
  return a.shares_memory == b.shares_memory && are_alike(a.latency_seconds, b.latency_seconds) &&
         are_alike(a.seconds_per_byte, b.seconds_per_byte) &&
         are_alike(a.seconds_per_byte_combined, b.seconds_per_byte_combined);
}

absl::StatusOr<PreferredAlgorithms> ParsePreferredAlgorithms(std::string_view text) {
  const auto named = [](const auto& values, const auto& name_of, std::string_view name) {
    return std::find_if(values.begin(), values.end(),
                        [&](const auto value) { return name_of(value) == name; });
  };
  const auto names = [](const auto& values, const auto& name_of) {
    return StrJoin(values, ", ",
                   [&](std::string* out, const auto value) { *out += name_of(value); });
  };
  const auto refused = [text](std::string why) {
    return InvalidArgument(Reason::kBadField, std::move(why), {{fact::kValue, text}});
  };
  PreferredAlgorithms preferred;
  for (const absl::string_view part : absl::StrSplit(ToAbsl(text), ',', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(part, '=');
    if (words.size() != 2) {
      return refused(
          StrCat("\"", ToStd(part), "\" is not KIND=ALGORITHM, such as all-reduce=halving"));
    }
    const absl::Span<const Kind> kinds = AllCollectiveKinds();
    const auto kind = named(kinds, CollectiveKindName, words[0]);
    if (kind == kinds.end()) {
      return refused(StrCat("there is no collective \"", words[0], "\"; there are ",
                            names(kinds, CollectiveKindName)));
    }
    const absl::Span<const Algorithm> algorithms = AlgorithmsOf(*kind);
    const auto algorithm = named(algorithms, CollectiveAlgorithmName, words[1]);
    if (algorithm == algorithms.end()) {
      return refused(StrCat(words[0], " has no algorithm \"", words[1], "\"; there are ",
                            names(algorithms, CollectiveAlgorithmName)));
    }
    if (!preferred.emplace(*kind, *algorithm).second) {
      return refused(StrCat(words[0], " is given twice"));
    }
  }
  return preferred;
}

CollectiveAlgorithm ChooseAlgorithm(CollectiveKind kind, const CollectiveLoad& load,
                                    CollectiveOrder order, const LinkCost& link,
                                    const PreferredAlgorithms& preferred) {
  if (const auto found = preferred.find(kind);
      found != preferred.end() && Fits(kind, found->second, order)) {
    return found->second;
  }
  Algorithm best = Algorithm::kPairwise;
  double least = PredictedSeconds(CostOf(kind, best, load), link);
  for (const Algorithm algorithm : AlgorithmsOf(kind)) {
    const double seconds = PredictedSeconds(CostOf(kind, algorithm, load), link);
    if (Fits(kind, algorithm, order) && seconds < least) {
      best = algorithm;
      least = seconds;
    }
  }
  return best;
}

}  // namespace shardmesh
