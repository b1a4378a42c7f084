// The streamed questions that lint rules or compare layouts over a tree.
#include "server/resolve/rule_streams.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "rpc/codec/lint_codec.h"
#include "server/resolve/resolve_answers.h"
#include "server/resolve/tree_resolver.h"
#include "server/resolve/tree_streams.h"
#include "sharding/layout/diff.h"
#include "sharding/rules/rule_lint.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

using IsCancelled = std::function<bool()>;

// Answers LintRules. Lints the rules at the end of the stream, when all tensors have come.
class LintAnswer {
 public:
  LintAnswer(std::shared_ptr<const Definitions> state, const ArrayRegistry* registry)
      : state_(std::move(state)), registry_(registry) {}

  bool BeginsLong(const v1::LintRulesHeader& header) const {
    return SearchesLong(*state_, header.rule_set());
  }

  absl::Status Begin(const v1::LintRulesHeader& header, const IsCancelled& is_cancelled) {
    SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(header.compatibility()));
    // Uses EXACT, because the linter reports unusable patterns as findings, not as errors.
    SHARDMESH_DECODE(rules, "rule_set",
                     SelectRules(*state_, header.rule_set(), Compatibility::kExact, is_cancelled));
    if (!rules.has_value()) {
      return rpc::BadField("rule_set", "is not set; give the rules to lint");
    }
    SHARDMESH_DECODE(profile, "profile", SelectProfile(*state_, header.profile()));
    SHARDMESH_RETURN_IF_ERROR(SelectMeshes(header, compatibility));
    SHARDMESH_RETURN_IF_ERROR(SelectTrees(header));
    SHARDMESH_RETURN_IF_ERROR(SetGivenTrees(header));
    if (header.max_findings() < 0 || header.max_findings() > kMaxFindings) {
      return rpc::BadField("max_findings", StrCat("is ", header.max_findings(),
                                                  "; it must be from 0 to ", kMaxFindings));
    }
    rules_ = std::move(rules);
    profile_ = std::move(profile);
    if (header.has_held_prefix()) {
      held_prefix_ = header.held_prefix();
    }
    options_.compatibility = compatibility;
    if (header.max_findings() != 0) {
      options_.max_findings_per_kind = header.max_findings();
    }
    return absl::OkStatus();
  }

  absl::Status Add(absl::Span<const TreeTensor> tensors, const IsCancelled&) {
    if (of_catalog_) {
      return TensorsBesideStoredTree(stored_field_);
    }
    SHARDMESH_RETURN_IF_ERROR(CheckCount(tensors_.size() + tensors.size()));
    for (const TreeTensor& tensor : tensors) {
      if (tensor.spec != nullptr) {
        return rpc::BadField("spec_indexes",
                             StrCat("gives tensor ", PythonRepr(tensor.name),
                                    " a spec, but only rules and axes are linted; leave it out"));
      }
      if (!given_trees_.empty() && trees_.size() == given_trees_.size()) {
        return InvalidArgument(
            Reason::kBadField,
            StrCat(
                "tensor ", PythonRepr(tensor.name), " comes after the ", tensors_.size(),
                " that header.given_trees announces; raise `tensors` of its tree, or leave it out"),
            {{fact::kValue, tensor.name}});
      }
      AddTensor(tensor);
      if (!given_trees_.empty() && ++of_given_tree_ == given_trees_[trees_.size()].tensors()) {
        EndGivenTree(given_trees_[trees_.size()].name());
        of_given_tree_ = 0;
      }
    }
    return absl::OkStatus();
  }

  absl::Status End(v1::LintRulesResponse* response, const IsCancelled& is_cancelled) {
    SHARDMESH_RETURN_IF_ERROR(AddStored(is_cancelled));
    SHARDMESH_RETURN_IF_ERROR(AddHeld(is_cancelled));
    options_.is_cancelled = is_cancelled;
    SHARDMESH_ASSIGN_OR_RETURN(const LintReport report,
                               LintRules(rules_->rules, tensors_, &profile_, meshes_, options_));
    std::array<size_t, kFindingKindCount> bytes = {};
    for (const Finding& finding : report.findings) {
      v1::LintFinding* const added = response->add_findings();
      rpc::Encode(finding, added);
      size_t& of_kind = bytes[static_cast<size_t>(finding.kind)];
      if ((of_kind += added->ByteSizeLong()) > kMaxBytesOfAKind) {
        response->mutable_findings()->RemoveLast();
      }
    }
    for (size_t kind = 0; kind < report.counts.size(); ++kind) {
      if (report.counts[kind] > 0) {
        v1::LintCount* const count = response->add_counts();
        count->set_kind(rpc::Encode(static_cast<Finding::Kind>(kind)));
        count->set_findings(report.counts[kind]);
      }
    }
    for (size_t tree = 0; tree < trees_.size(); ++tree) {
      const LintTreeReport& from = report.trees[tree];
      trees_[tree].set_tensors(from.tensors);
      trees_[tree].set_dead_rules(from.dead_rules);
      trees_[tree].set_shadowed_rules(from.shadowed_rules);
      trees_[tree].set_unmatched_tensors(from.unmatched_tensors);
      trees_[tree].set_scalars(from.scalars);
      *response->add_trees() = trees_[tree];
    }
    response->set_tensors(static_cast<int64_t>(tensors_.size()));
    response->set_meshes(static_cast<int32_t>(meshes_.size()));
    response->set_revision(state_->revision());
    return absl::OkStatus();
  }

 private:
  static constexpr int kMaxFindings = 1'000;
  // Maximum number of bytes of findings of one kind in an answer. The findings of all kinds
  // together stay well below the size limit of a message.
  static constexpr size_t kMaxBytesOfAKind = size_t{256} << 10;
  static constexpr int kMaxMeshes = 256;
  static constexpr size_t kMaxStoredTrees = 1'000;
  static constexpr int kMaxGivenTrees = 1'000;
  static constexpr size_t kMaxGivenNameBytes = 4'096;
  static constexpr int64_t kNamesPerPage = 1'000;

  static absl::Status CheckCount(size_t tensors) {
    if (tensors <= static_cast<size_t>(TreeResolver::kMaxTensors)) {
      return absl::OkStatus();
    }
    return WithReason(absl::ResourceExhaustedError(
                          StrCat("the tree has more than ", TreeResolver::kMaxTensors, " tensors")),
                      Reason::kLimitExceeded,
                      {{fact::kHave, tensors}, {fact::kLimit, TreeResolver::kMaxTensors}});
  }

  absl::Status SelectMeshes(const v1::LintRulesHeader& header, Compatibility compatibility) {
    if (header.meshes_size() > kMaxMeshes) {
      return rpc::WithField(
          InvalidArgument(
              Reason::kLimitExceeded,
              StrCat(header.meshes_size(), " meshes; at most ", kMaxMeshes, " are allowed"),
              {{fact::kHave, header.meshes_size()}, {fact::kLimit, kMaxMeshes}}),
          "meshes");
    }
    for (int i = 0; i < header.meshes_size(); ++i) {
      const v1::MeshSelector& selector = header.meshes(i);
      absl::StatusOr<Mesh> mesh = SelectMesh(*state_, selector, compatibility);
      if (mesh.ok() && mesh->empty()) {
        mesh = WithReason(absl::FailedPreconditionError(
                              "the mesh has no axes, and nothing can be asked of it; leave it out"),
                          Reason::kNoMesh);
      }
      if (!mesh.ok()) {
        return rpc::WithField(std::move(mesh).status(), "meshes", static_cast<size_t>(i));
      }
      std::string name = selector.has_value() ? mesh->ToString() : selector.name();
      meshes_.push_back({.name = std::move(name), .mesh = *std::move(mesh)});
    }
    if (header.meshes_size() == 0) {
      for (const auto& [name, definition] : state_->all(DefinitionKind::kMesh)) {
        const Mesh& mesh = std::get<MeshDefinition>(definition->value).mesh;
        if (!mesh.empty()) {
          meshes_.push_back({.name = name, .mesh = mesh});
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status SelectTrees(const v1::LintRulesHeader& header) {
    of_catalog_ = header.stored_trees_size() > 0 || header.all_stored_trees();
    stored_field_ = header.all_stored_trees() ? "header.all_stored_trees" : "header.stored_trees";
    if (header.all_stored_trees() && header.stored_trees_size() > 0) {
      return rpc::BadField("stored_trees", "is given beside all_stored_trees; give one of both");
    }
    const Definitions::ByName& all = state_->all(DefinitionKind::kTree);
    const size_t count =
        header.all_stored_trees() ? all.size() : static_cast<size_t>(header.stored_trees_size());
    if (count > kMaxStoredTrees) {
      return rpc::WithField(
          InvalidArgument(
              Reason::kLimitExceeded,
              StrCat(count, " trees; at most ", kMaxStoredTrees, " can be looked at together"),
              {{fact::kHave, count}, {fact::kLimit, kMaxStoredTrees}}),
          header.all_stored_trees() ? "all_stored_trees" : "stored_trees");
    }
    absl::flat_hash_set<std::pair<std::string, int64_t>> versions;
    for (int i = 0; i < header.stored_trees_size(); ++i) {
      auto tree = state_->Locate(DefinitionKind::kTree, header.stored_trees(i));
      if (tree.ok() && !versions.insert({tree->current->name, tree->version()}).second) {
        tree = InvalidArgument(Reason::kBadField,
                               StrCat("\"", header.stored_trees(i), "\" is named twice"),
                               {{fact::kValue, header.stored_trees(i)}});
      }
      if (!tree.ok()) {
        return rpc::WithField(tree.status(), "stored_trees", static_cast<size_t>(i));
      }
      stored_.push_back({*std::move(tree), static_cast<size_t>(i)});
    }
    if (header.all_stored_trees()) {
      for (const auto& [name, definition] : all) {
        stored_.push_back({{.current = definition}, stored_.size()});
      }
    }
    std::sort(stored_.begin(), stored_.end(), [](const StoredPlace& a, const StoredPlace& b) {
      return std::pair(std::string_view(a.tree.current->name), a.tree.version()) <
             std::pair(std::string_view(b.tree.current->name), b.tree.version());
    });
    return absl::OkStatus();
  }

  absl::Status SetGivenTrees(const v1::LintRulesHeader& header) {
    if (header.given_trees_size() == 0) {
      return absl::OkStatus();
    }
    if (of_catalog_) {
      return rpc::BadField("given_trees",
                           StrCat("is given beside ", stored_field_, "; give one of both"));
    }
    if (header.given_trees_size() > kMaxGivenTrees) {
      return rpc::WithField(InvalidArgument(Reason::kLimitExceeded,
                                            StrCat(header.given_trees_size(), " trees; at most ",
                                                   kMaxGivenTrees, " can be looked at together"),
                                            {{fact::kHave, header.given_trees_size()},
                                             {fact::kLimit, kMaxGivenTrees}}),
                            "given_trees");
    }
    absl::flat_hash_set<std::string_view> names;
    for (int i = 0; i < header.given_trees_size(); ++i) {
      const v1::LintGivenTree& tree = header.given_trees(i);
      absl::Status status;
      if (tree.name().empty() || tree.name().size() > kMaxGivenNameBytes) {
        status = rpc::BadField("name", StrCat("has ", tree.name().size(),
                                              " bytes; it must have 1 to ", kMaxGivenNameBytes));
      } else if (!names.insert(tree.name()).second) {
        status = rpc::BadField("name", StrCat(PythonRepr(tree.name()), " occurs twice"));
      } else if (tree.tensors() < 1) {
        status =
            rpc::BadField("tensors", StrCat("is ", tree.tensors(), "; a tree has one at least"));
      }
      SHARDMESH_RETURN_IF_ERROR(
          rpc::WithField(std::move(status), "given_trees", static_cast<size_t>(i)));
    }
    given_trees_.assign(header.given_trees().begin(), header.given_trees().end());
    return absl::OkStatus();
  }

  // Adds a tensor to the tree that the next EndTree ends.
  void AddTensor(const TreeTensor& tensor) {
    tensors_.push_back({.name = NameForRules(*rules_, tensor.name),
                        .shape = Shape(tensor.shape.begin(), tensor.shape.end()),
                        .axes = tensor.axes,
                        .tree = static_cast<int64_t>(trees_.size())});
  }

  // Ends a tree. The tree consists of the tensors that were added since the previous EndTree.
  void EndTree(v1::LintTree tree, std::string text) {
    trees_.push_back(std::move(tree));
    options_.trees.push_back(std::move(text));
  }

  // Ends a tree of the request. A tree without a name has all tensors of the request.
  void EndGivenTree(const std::string& name) {
    v1::LintTree wire;
    wire.set_source(v1::LintTree::SOURCE_REQUEST);
    wire.set_name(name);
    EndTree(std::move(wire),
            name.empty() ? "the tensors given" : StrCat("tree ", PythonRepr(name)));
  }

  // Adds the stored trees that the header names. Decodes replaced versions one at a time and keeps
  // only the parts that linting needs. Once the trees exceed the limit of tensors, no more are
  // decoded.
  absl::Status AddStored(const IsCancelled& is_cancelled) {
    size_t of_trees = 0;
    for (const auto& [tree, place] : stored_) {
      if (is_cancelled()) {
        return absl::CancelledError("cancelled while the catalog's trees were read");
      }
      const auto definition = state_->Load(tree, is_cancelled);
      if (!definition.ok()) {
        return rpc::WithField(rpc::WithField(definition.status(), "stored_trees", place), "header");
      }
      SHARDMESH_RETURN_IF_ERROR(AddStored(**definition, tree.replaced == nullptr, &of_trees));
    }
    return absl::OkStatus();
  }

  absl::Status AddStored(const Definition& definition, bool is_current, size_t* of_trees) {
    const auto& tree = *std::get<std::shared_ptr<const StoredTree>>(definition.value);
    *of_trees += tree.tensors().size();
    if (*of_trees > static_cast<size_t>(TreeResolver::kMaxTensors)) {
      return WithReason(absl::ResourceExhaustedError(
                            StrCat("the stored trees up to \"", definition.name, "\" have ",
                                   *of_trees, " tensors together, and ", TreeResolver::kMaxTensors,
                                   " can be looked at; name fewer")),
                        Reason::kLimitExceeded,
                        {{fact::kHave, *of_trees}, {fact::kLimit, TreeResolver::kMaxTensors}});
    }
    int64_t own_specs = 0;
    absl::flat_hash_map<const std::vector<AxisValue>*, const std::vector<AxisValue>*> own_axes;
    for (TreeTensor tensor : tree.tensors()) {
      if (tensor.spec != nullptr) {
        ++own_specs;
        continue;
      }
      if (tensor.axes != nullptr) {
        const std::vector<AxisValue>*& axes = own_axes[tensor.axes];
        if (axes == nullptr) {
          axes = &axes_of_trees_.emplace_back(*tensor.axes);
        }
        tensor.axes = axes;
      }
      AddTensor(tensor);
    }
    v1::LintTree wire;
    wire.set_source(v1::LintTree::SOURCE_CATALOG);
    wire.set_name(definition.name);
    wire.set_version(definition.version);
    wire.set_own_specs(own_specs);
    EndTree(
        std::move(wire),
        StrCat("tree ", PythonRepr(is_current ? definition.name
                                              : StrCat(definition.name, "@", definition.version))));
    return absl::OkStatus();
  }

  // Checks that all trees of the request are complete, then adds the cluster's arrays. Refuses a
  // tree of the request in which a tensor occurs twice.
  absl::Status AddHeld(const IsCancelled& is_cancelled) {
    if (trees_.size() < given_trees_.size()) {
      const v1::LintGivenTree& tree = given_trees_[trees_.size()];
      return rpc::WithField(
          rpc::BadField("given_trees", StrCat("announces ", tree.tensors(), " tensors of ",
                                              PythonRepr(tree.name()), ", tree ", trees_.size() + 1,
                                              " of ", given_trees_.size(), "; ", of_given_tree_,
                                              " of them came, ", tensors_.size(),
                                              " in all: send the others, or lower its `tensors`")),
          "header");
    }
    if (!tensors_.empty() && !of_catalog_ && given_trees_.empty()) {
      EndGivenTree("");
    }
    std::vector<LintTensor> held;
    std::string last;
    while (held_prefix_.has_value() && registry_ != nullptr) {
      const std::vector<ArrayRegistry::NamedArray> page =
          registry_->ListNames(*held_prefix_, last, kNamesPerPage);
      if (page.empty()) {
        break;
      }
      if (is_cancelled()) {
        return absl::CancelledError("cancelled while the cluster's arrays were listed");
      }
      for (const ArrayRegistry::NamedArray& array : page) {
        held.push_back({.name = NameForRules(*rules_, array.name.name),
                        .shape = array.array->definition.descriptor.shape});
      }
      SHARDMESH_RETURN_IF_ERROR(CheckCount(tensors_.size() + held.size()));
      last = page.back().name.name;
    }
    // No reallocation below: `names` has views of these tensors.
    tensors_.reserve(tensors_.size() + held.size());
    // Without `given_trees`, the tensors may come from several models. In that case a tensor counts
    // as repeated only if another tensor has the same name and the same shape.
    absl::flat_hash_set<std::string_view> names;
    absl::flat_hash_set<std::tuple<int64_t, std::string_view, absl::Span<const int64_t>>> tensors;
    for (const LintTensor& tensor : tensors_) {
      if (is_cancelled()) {
        return absl::CancelledError("cancelled while the tree's names were compared");
      }
      names.insert(tensor.name);
      const absl::Span<const int64_t> shape =
          given_trees_.empty() ? absl::MakeConstSpan(*tensor.shape) : absl::Span<const int64_t>();
      if (!of_catalog_ && !tensors.insert({tensor.tree, tensor.name, shape}).second) {
        return rpc::BadField(
            "tensors", StrCat("tensor ", PythonRepr(tensor.name), ": the tensor is listed twice"));
      }
    }
    const size_t of_trees = tensors_.size();
    for (LintTensor& tensor : held) {
      if (!names.contains(tensor.name)) {
        tensor.tree = static_cast<int64_t>(trees_.size());
        tensors_.push_back(std::move(tensor));
      }
    }
    if (tensors_.size() > of_trees) {
      v1::LintTree wire;
      wire.set_source(v1::LintTree::SOURCE_HELD);
      EndTree(std::move(wire), "the cluster's arrays");
    }
    return absl::OkStatus();
  }

  std::shared_ptr<const Definitions> state_;
  const ArrayRegistry* registry_;
  std::optional<RuleSetDefinition> rules_;
  PartitionAxis profile_;
  std::vector<LintMesh> meshes_;
  // Whether the tensors come from trees of the catalog instead of from the request.
  bool of_catalog_ = false;
  std::string_view stored_field_;
  struct StoredPlace {
    Definitions::Referred tree;
    size_t place = 0;  // index in header.stored_trees, if the header names trees
  };
  std::vector<StoredPlace> stored_;  // sorted by name and version
  // Axes of stored trees; tensors point to these.
  std::deque<std::vector<AxisValue>> axes_of_trees_;
  std::vector<v1::LintGivenTree> given_trees_;
  int64_t of_given_tree_ = 0;        // tensors so far of the tree that is being added
  std::vector<v1::LintTree> trees_;  // trees added so far
  std::optional<std::string> held_prefix_;
  LintOptions options_;
  std::vector<LintTensor> tensors_;
};

// Answers DiffLayouts.
class DiffAnswer {
 public:
  explicit DiffAnswer(std::shared_ptr<const Definitions> state) : state_(std::move(state)) {}

  bool BeginsLong(const v1::DiffLayoutsHeader& header) const {
    return SearchesLong(*state_, header.a().rule_set()) ||
           SearchesLong(*state_, header.b().rule_set());
  }
  bool AddsLong() const { return a_->SearchesLong() || b_->SearchesLong(); }

  absl::Status Begin(const v1::DiffLayoutsHeader& header, const IsCancelled& is_cancelled) {
    SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(header.compatibility()));
    SHARDMESH_ASSIGN_OR_RETURN(stored_tree_, SelectTree(*state_, header.stored_tree()));
    SHARDMESH_RETURN_IF_ERROR(
        rpc::WithField(MakeResolver(header.a(), compatibility, is_cancelled, &a_), "a"));
    SHARDMESH_RETURN_IF_ERROR(
        rpc::WithField(MakeResolver(header.b(), compatibility, is_cancelled, &b_), "b"));
    return rpc::WithField(SetBudget(header.budget()), "budget");
  }

  const StoredTree* stored_tree() const { return stored_tree_.get(); }

  absl::Status Add(absl::Span<const TreeTensor> tensors, const IsCancelled& is_cancelled,
                   v1::DiffLayoutsResponse* response) {
    while (!tensors.empty()) {
      const absl::Span<const TreeTensor> next = tensors.subspan(0, kTensorsAtOnce);
      tensors.remove_prefix(next.size());
      SHARDMESH_ASSIGN_OR_RETURN(const std::vector<PlacedTensor> a,
                                 Place(next, "A", a_.get(), is_cancelled));
      SHARDMESH_ASSIGN_OR_RETURN(const std::vector<PlacedTensor> b,
                                 Place(next, "B", b_.get(), is_cancelled));
      SHARDMESH_ASSIGN_OR_RETURN(const LayoutDiff diff, DiffLayouts({&*a_->question().mesh, a},
                                                                    {&*b_->question().mesh, b}));
      for (const TensorDiff& tensor : diff.changed) {
        v1::TensorChange* const change = response->add_changes();
        change->set_name(tensor.name);
        change->set_a_spec(IndexOf(*tensor.spec_a, response));
        change->set_b_spec(IndexOf(*tensor.spec_b, response));
        change->set_a_bytes_per_device(tensor.bytes_per_device_a);
        change->set_b_bytes_per_device(tensor.bytes_per_device_b);
        change->set_spec_changed(tensor.spec_differs);
        change->set_tiles_changed(tensor.tiles_differ);
      }
    }
    return absl::OkStatus();
  }

  absl::Status End(v1::DiffLayoutsResponse* response, const IsCancelled&) {
    SHARDMESH_RETURN_IF_ERROR(EncodeReport(*a_, response->mutable_a()));
    SHARDMESH_RETURN_IF_ERROR(EncodeReport(*b_, response->mutable_b()));
    const std::optional<std::string> over =
        OverBudget(response->a().most_device_bytes(), response->b().most_device_bytes(), budget_);
    response->set_within_budget(!over.has_value());
    response->set_budget_message(over.value_or(""));
    response->set_revision(state_->revision());
    return absl::OkStatus();
  }

 private:
  // Maximum number of tensors between two checks for cancellation: a few milliseconds of work.
  static constexpr size_t kTensorsAtOnce = 1024;

  absl::Status MakeResolver(const v1::LayoutChoice& choice, Compatibility compatibility,
                            const IsCancelled& is_cancelled,
                            std::unique_ptr<TreeResolver>* to) const {
    TreeQuestion question;
    SHARDMESH_DECODE(mode, "mode", rpc::Decode(choice.mode(), compatibility));
    SHARDMESH_DECODE(profile, "profile", SelectProfile(*state_, choice.profile()));
    SHARDMESH_DECODE(rules, "rule_set",
                     SelectRules(*state_, choice.rule_set(), compatibility, is_cancelled));
    SHARDMESH_DECODE(mesh, "mesh", SelectMesh(*state_, choice.mesh(), compatibility));
    question.compatibility = compatibility;
    question.mode = mode;
    question.profile = std::move(profile);
    question.rules = std::move(rules);
    question.mesh = std::move(mesh);
    SHARDMESH_DECODE(resolver, "mesh", TreeResolver::Create(std::move(question)));
    *to = std::move(resolver);
    return absl::OkStatus();
  }

  absl::Status SetBudget(const v1::LayoutBudget& budget) {
    constexpr std::string_view kNegative =
        "is negative; a change that must save bytes is asked "
        "for by max_bytes_per_device";
    if (budget.max_bytes_per_device() < 0) {
      return rpc::BadField("max_bytes_per_device", "is negative; no device holds so little");
    }
    if (budget.max_increase_bytes() < 0) {
      return rpc::BadField("max_increase_bytes", kNegative);
    }
    if (!(budget.max_increase_ratio() >= 0)) {  // also refuses NaN
      return rpc::BadField("max_increase_ratio", kNegative);
    }
    if (budget.has_max_bytes_per_device()) {
      budget_.max_bytes_per_device = budget.max_bytes_per_device();
    }
    if (budget.has_max_increase_bytes()) {
      budget_.max_increase_bytes = budget.max_increase_bytes();
    }
    if (budget.has_max_increase_ratio()) {
      budget_.max_increase_ratio = budget.max_increase_ratio();
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<std::vector<PlacedTensor>> Place(absl::Span<const TreeTensor> tensors,
                                                         std::string_view layout,
                                                         TreeResolver* resolver,
                                                         const IsCancelled& is_cancelled) {
    const absl::StatusOr<std::vector<TreePlacement>> placements =
        resolver->Add(tensors, is_cancelled);
    if (!placements.ok()) {
      return WithContext(placements.status(), StrCat("layout ", layout));
    }
    std::vector<PlacedTensor> placed;
    placed.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TreeTensor& tensor = tensors[i];
      placed.push_back(
          {.name = std::string(tensor.name),
           .shape = Shape(tensor.shape.begin(), tensor.shape.end()),
           .bits_per_element = tensor.dtype.has_value() ? BitsPerElement(*tensor.dtype) : 0,
           .spec = resolver->specs()[(*placements)[i].spec_index].effective});
    }
    return placed;
  }

  // Returns the spec's index in the answer's table, to which a new spec is added.
  uint32_t IndexOf(const PartitionSpec& spec, v1::DiffLayoutsResponse* response) {
    const auto [known, is_new] =
        spec_indexes_.try_emplace(spec.ToString(), static_cast<uint32_t>(spec_indexes_.size()));
    if (is_new) {
      rpc::Encode(spec, response->add_specs());
    }
    return known->second;
  }

  std::shared_ptr<const Definitions> state_;
  std::shared_ptr<const StoredTree> stored_tree_;
  std::unique_ptr<TreeResolver> a_;
  std::unique_ptr<TreeResolver> b_;
  LayoutBudget budget_;
  absl::flat_hash_map<std::string, uint32_t> spec_indexes_;  // by the text of the spec
};

}  // namespace

std::unique_ptr<LintRulesCall> MakeLintRulesCall(std::shared_ptr<const Definitions> state,
                                                 const ArrayRegistry* registry) {
  return std::make_unique<TreeFeeder<LintAnswer, v1::LintRulesRequest, v1::LintRulesResponse>>(
      LintAnswer(std::move(state), registry));
}

std::unique_ptr<DiffLayoutsCall> MakeDiffLayoutsCall(std::shared_ptr<const Definitions> state) {
  return std::make_unique<TreeFeeder<DiffAnswer, v1::DiffLayoutsRequest, v1::DiffLayoutsResponse>>(
      DiffAnswer(std::move(state)));
}

}  // namespace shardmesh::server
