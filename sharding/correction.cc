// Correction of a requested spec, dimension by dimension.
#include "sharding/correction.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "sharding/shape.h"
#include "sharding/usual_axes.h"
#include "status/python_repr.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh {
namespace {

constexpr int64_t kSaturated = std::numeric_limits<int64_t>::max();

// Returns whether `entry`, which names axes, can partition a dimension of this extent.
bool Fits(const SpecEntry& entry, int64_t extent, const Mesh& mesh, PartSizes sizes) {
  int64_t parts = 1;
  for (const AxisName& name : entry.axes()) {
    const std::optional<int64_t> axis = name.has_value() ? mesh.FindAxis(*name) : std::nullopt;
    if (!axis.has_value()) {
      return false;
    }
    // A repeated axis counts each time, so the product can exceed int64_t: saturate it.
    const int64_t size = mesh.axes()[static_cast<size_t>(*axis)].size;
    parts = parts > kSaturated / size ? kSaturated : parts * size;
  }
  return !entry.is_unconstrained() && (sizes == PartSizes::kAny || extent % parts == 0);
}

// Returns why `entry` cannot partition dimension `dim` of this extent; nullopt if it can.
std::optional<Correction> Objection(const SpecEntry& entry, int64_t dim, int64_t extent,
                                    const Mesh& mesh) {
  if (entry.is_unconstrained()) {
    return Correction{dim, entry, Reason::kUnconstrained, 0, 0};
  }
  int64_t known = 0;
  int64_t parts = 1;
  std::vector<std::string> absent;
  for (const AxisName& name : entry.axes()) {
    const std::optional<int64_t> axis = name.has_value() ? mesh.FindAxis(*name) : std::nullopt;
    if (!axis.has_value()) {
      if (name.has_value()) {
        absent.push_back(*name);
      }
      continue;
    }
    ++known;
    // A repeated axis counts each time, so the product can exceed int64_t: saturate it.
    const int64_t size = mesh.axes()[static_cast<size_t>(*axis)].size;
    parts = parts > kSaturated / size ? kSaturated : parts * size;
  }
  const auto named = static_cast<int64_t>(entry.axes().size());
  if (known != named) {
    return Correction{dim, entry, Reason::kAxisNotInMesh, known, named, std::move(absent)};
  }
  if (extent % parts != 0) {
    return Correction{dim, entry, Reason::kNotDivisible, extent, parts};
  }
  return std::nullopt;
}

// Returns whether the entry is the single axis "". Correction drops it, as the Python original
// does: the original builds the corrected spec anew, and PartitionSpec makes "" none.
bool IsEmptyName(const SpecEntry& entry) {
  return entry.axes().size() == 1 && entry.axes()[0].has_value() && entry.axes()[0]->empty();
}

// Returns the text of a correction, in which the mesh is called `mesh`.
std::string TextOf(const Correction& correction, std::string_view mesh) {
  const int64_t have = correction.have;
  const int64_t need = correction.need;
  const std::string subject = correction.dim < 0
                                  ? std::string("not partitioned, ")
                                  : StrCat("dimension ", correction.dim, ": ",
                                           correction.requested.ToString(), " dropped, ");
  switch (correction.reason) {
    case Reason::kNotDivisible:
      return StrCat(subject, have, " is not divisible by ", need);
    case Reason::kAxisNotInMesh:
      if (need == 1) {
        return StrCat(subject, mesh, " has no such axis");
      }
      return correction.absent_axes.empty()
                 ? StrCat(subject, mesh, " has ", have, " of its ", need, " axes")
                 : StrCat(subject, mesh, " has no axis ",
                          StrJoin(correction.absent_axes, " and no axis ",
                                  [](std::string* out, const std::string& axis) {
                                    out->append(PythonRepr(axis));
                                  }));
    case Reason::kRankTruncated:
      return StrCat(subject, "the tensor has ", have, have == 1 ? " dimension" : " dimensions",
                    " and the spec ", need);
    case Reason::kBelowMinSize:
      return StrCat(subject, have, " elements are fewer than the least of ", need);
    case Reason::kUnconstrained:
      return StrCat(subject, "it asks for nothing definite");
    default:
      return StrCat(subject, ReasonName(correction.reason));
  }
}

}  // namespace

std::string Correction::ToString() const { return TextOf(*this, "the mesh"); }

std::string Correction::ToString(const Mesh& mesh) const {
  std::string text = TextOf(*this, StrCat("the mesh ", mesh.ToString()));
  for (const std::string& axis : absent_axes) {
    // A mesh often lacks a usual axis. `fsdp` is near `fspd`, but `sp` and `tp` are two axes.
    if (absl::c_linear_search(kUsualAxes, axis) &&
        (axis.size() <= 2 || absl::c_linear_search(kUsualAxes, mesh.NearestAxis(axis)))) {
      continue;
    }
    if (const std::string hint = mesh.DidYouMeanAxis(axis); !hint.empty()) {
      return text + hint;
    }
  }
  return text;
}

absl::StatusOr<CorrectionResult> Correct(const PartitionSpec& spec, absl::Span<const int64_t> shape,
                                         const Mesh& mesh, PartSizes sizes) {
  if (mesh.empty()) {
    return WithPythonType(
        WithReason(absl::FailedPreconditionError(
                       "there is no mesh to correct the spec against; name one in the request"),
                   Reason::kNoMesh),
        "AssertionError");
  }
  const auto rank = static_cast<int64_t>(shape.size());
  CorrectionResult result;
  // Note whether any entry remains, and which dimensions lose their request.
  bool any_kept = false;
  bool any_nameless = false;
  absl::InlinedVector<bool, kMaxRank> dropped(shape.size(), false);
  for (int64_t dim = 0; dim < std::min(rank, spec.size()); ++dim) {
    const auto place = static_cast<size_t>(dim);
    const SpecEntry& entry = spec.entries()[place];
    if (entry.is_none()) {
      continue;
    }
    if (Fits(entry, shape[place], mesh, sizes)) {
      dropped[place] = IsEmptyName(entry);
      any_nameless = any_nameless || dropped[place];
      any_kept = any_kept || !dropped[place];
      continue;
    }
    result.corrections.push_back(*Objection(entry, dim, shape[place], mesh));
    dropped[place] = true;
  }
  for (int64_t dim = rank; dim < spec.size(); ++dim) {
    if (!spec.entry(dim).is_none()) {
      result.corrections.push_back(
          {dim, spec.entry(dim), Reason::kRankTruncated, rank, spec.size()});
    }
  }
  if (any_kept && !any_nameless && result.corrections.empty() && spec.size() == rank) {
    result.effective = spec;
  } else {
    std::vector<SpecEntry> kept(any_kept ? shape.size() : 0);
    for (size_t dim = 0; dim < kept.size(); ++dim) {
      if (!dropped[dim]) {
        kept[dim] = spec.entry(static_cast<int64_t>(dim));
      }
    }
    result.effective =
        PartitionSpec(std::move(kept),
                      std::vector<std::string>(spec.unreduced().begin(), spec.unreduced().end()));
  }
  SHARDMESH_RETURN_IF_ERROR(CheckDistinctAxes(result.effective));
  return result;
}

absl::StatusOr<std::optional<CorrectionResult>> CorrectConstraint(const PartitionSpec& spec,
                                                                  absl::Span<const int64_t> shape,
                                                                  const Mesh& mesh) {
  if (mesh.empty() || spec.empty()) {
    return std::nullopt;
  }
  SHARDMESH_ASSIGN_OR_RETURN(CorrectionResult result, Correct(spec, shape, mesh));
  return std::optional<CorrectionResult>(std::move(result));
}

}  // namespace shardmesh
