// The topics, one line each.
#include "tests/conformance/all_questions.h"

#include <array>

#include "tests/conformance/analysis_subject.h"
#include "tests/conformance/compute_subject.h"
#include "tests/conformance/layout_subject.h"
#include "tests/conformance/linear_subject.h"
#include "tests/conformance/logical_subject.h"
#include "tests/conformance/mesh_subject.h"
#include "tests/conformance/profile_subject.h"
#include "tests/conformance/reshard_subject.h"
#include "tests/conformance/rules_subject.h"

namespace shardmesh::conformance {

Questions LibraryQuestions() {
  Questions questions;
  AddAnalysisQuestions(LibraryAnalysis(), &questions);
  AddComputeQuestions(LibraryCompute(), &questions);
  AddLayoutQuestions(LibraryLayout(), &questions);
  AddLinearQuestions(LibraryLinear(), &questions);
  AddLogicalQuestions(LibraryLogical(), &questions);
  AddMeshQuestions(LibraryMeshes(), &questions);
  AddProfileQuestions(LibraryProfiles(), &questions);
  AddReshardQuestions(LibraryReshard(), &questions);
  AddRulesQuestions(LibraryRules(), &questions);
  return questions;
}

Questions WireQuestions(client::MeshClient& client) {
  Questions questions;
  AddAnalysisQuestions(WireAnalysis(client), &questions);
  AddLayoutQuestions(WireLayout(client), &questions);
  AddLinearQuestions(WireLinear(client), &questions);
  AddLogicalQuestions(WireLogical(client), &questions);
  AddMeshQuestions(WireMeshes(client), &questions);
  AddProfileQuestions(WireProfiles(client), &questions);
  AddRulesQuestions(WireRules(client), &questions);
  AddReshardQuestions(WireReshard(client), &questions);
  return questions;
}

absl::Span<const std::string_view> AnsweredByTheRunner() {
  static constexpr auto kTexts = std::to_array<std::string_view>({
      // Layouts.
      "axes given as a string: the sequence of its characters",
      "axes given as None: no sequence, hence TypeError",
      "an instance of dynamic axes in the place of axes: the sequence of its two fields",
      "a preset in the place of axes: the preset, without axes",
      "a number or boolean among axes: its Python text, which is no known name",
      "a mode that is None, a float or any unknown text: training; a boolean: dimension 0 or 1",
      "something else than a spec as sharding constraint: TypeError",
      "raise_mesh_error=False: a missing mesh gives P() on an empty mesh instead of an error",
      "leaves of a tree that are no arrays (numbers, None, NumPy's arrays): left alone",
      // Profiles and hashes.
      "get_safe_hash_int of something else than a text: of its str()",
      "a partition manager of something else than a profile: TypeError",
      "a partition manager's str() and repr(), which show no value of the profile",
      // Meshes.
      "axis names given as None or a set: TypeError; None among them: the class of an absent name",
      "a tree of specs in dictionaries and lists: its specs; None among them: no spec",
      "a name in the place of a spec: a spec of that name; a number there: TypeError",
      // Linear layers.
      "out_features as text, or with something else than integers in it: TypeError",
      "a scale of None: TypeError when it is applied",
      "elements of products and layers, as a fill makes them; devices are simulated, not workers",
  });
  return kTexts;
}

}  // namespace shardmesh::conformance
