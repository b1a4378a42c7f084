// Streamed calls that ask about the given layouts of a tree, about meshes for a tree, or about the
// layouts of arrays.
#include "server/resolve/layout_streams.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "rpc/codec/layout_codec.h"
#include "server/resolve/tree_resolver.h"
#include "sharding/layout/analysis.h"
#include "sharding/layout/held_shardings.h"
#include "sharding/layout/mesh_search.h"
#include "status/fact_keys.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tensor/dtype.h"

namespace shardmesh::server {
namespace {

using IsCancelled = std::function<bool()>;

// Adds the name of a tensor to an error about that tensor.
absl::Status TensorError(const absl::Status& status, std::string_view name) {
  return WithContext(status, StrCat("tensor ", PythonRepr(name)));
}

// Checks that each tensor has a spec: these calls add up given layouts and resolve none.
absl::Status CheckSpecs(absl::Span<const TreeTensor> tensors) {
  for (const TreeTensor& tensor : tensors) {
    if (tensor.spec == nullptr) {
      return TensorError(InvalidArgument(Reason::kMissingArgument,
                                         "there is no spec; give one, because this call adds up "
                                         "given layouts, or call ResolveTree to resolve them",
                                         {{fact::kField, "tensors.spec_indexes"}}),
                         tensor.name);
    }
  }
  return absl::OkStatus();
}

// Checks that all tensors have specs, counts the tensors with `resolver`, and calls `add` for each
// tensor. Adds the name of the tensor to an error of `add`. After CANCELLED the remaining tensors
// are not added.
template <typename AddOne>
absl::Status AddLaidOut(absl::Span<const TreeTensor> tensors, TreeResolver& resolver,
                        const IsCancelled& is_cancelled, const AddOne& add) {
  SHARDMESH_RETURN_IF_ERROR(CheckSpecs(tensors));
  SHARDMESH_RETURN_IF_ERROR(resolver.Add(tensors, is_cancelled).status());
  for (const TreeTensor& tensor : tensors) {
    if (is_cancelled()) {
      return absl::CancelledError("cancelled while tensors were added up");
    }
    if (const absl::Status status = add(tensor); !status.ok()) {
      return TensorError(status, tensor.name);
    }
  }
  return absl::OkStatus();
}

// Answers AnalyzeLayout.
class AnalyzeAnswer {
 public:
  explicit AnalyzeAnswer(std::shared_ptr<const Definitions> state) : state_(std::move(state)) {}

  absl::Status Begin(const v1::AnalyzeLayoutHeader& header, const IsCancelled&) {
    SHARDMESH_DECODE(mesh, "mesh", SelectMesh(*state_, header.mesh(), Compatibility::kDefault));
    SHARDMESH_ASSIGN_OR_RETURN(stored_tree_, SelectTree(*state_, header.stored_tree()));
    mesh_ = std::move(mesh);
    SHARDMESH_ASSIGN_OR_RETURN(analysis_, LayoutAnalysis::Create(mesh_));
    // Without a mesh the resolver only checks the tensors' names and counts the tensors.
    SHARDMESH_ASSIGN_OR_RETURN(resolver_, TreeResolver::Create(TreeQuestion()));
    return absl::OkStatus();
  }

  const StoredTree* stored_tree() const { return stored_tree_.get(); }

  absl::Status Add(absl::Span<const TreeTensor> tensors, const IsCancelled& is_cancelled) {
    return AddLaidOut(tensors, *resolver_, is_cancelled,
                      [this](const TreeTensor& tensor) { return AddToAnalysis(tensor); });
  }

  absl::Status End(v1::AnalyzeLayoutResponse* response, const IsCancelled&) {
    response->set_revision(state_->revision());
    v1::LayoutReport* report = response->mutable_report();
    SHARDMESH_ASSIGN_OR_RETURN(const LayoutReport layout, analysis_->Report());
    rpc::Encode(layout, report);
    report->set_devices(mesh_.size());
    report->set_tensors(resolver_->counts().tensors);
    report->set_parameters(resolver_->counts().parameters);
    report->set_sharded_parameters(sharded_parameters_);
    report->set_replicated_tensors(replicated_tensors_);
    return absl::OkStatus();
  }

 private:
  // A spec and a shape. The spec is identified by its address, because the tensors of a tree share
  // their specs.
  using Source = std::pair<const PartitionSpec*, Shape>;

  absl::Status AddToAnalysis(const TreeTensor& tensor) {
    Source source(tensor.spec, Shape(tensor.shape.begin(), tensor.shape.end()));
    auto known = tilings_.find(source);
    if (known == tilings_.end()) {
      SHARDMESH_ASSIGN_OR_RETURN(Tiling tiling, Tiling::Create(mesh_, *tensor.spec, source.second));
      known = tilings_.emplace(std::move(source), std::move(tiling)).first;
    }
    const Tiling& tiling = known->second;
    if (tensor.dtype.has_value()) {
      SHARDMESH_RETURN_IF_ERROR(analysis_->Add(tensor.name, tiling, BitsPerElement(*tensor.dtype)));
    }
    if (tiling.FullyReplicated()) {
      ++replicated_tensors_;
      return absl::OkStatus();
    }
    // Cannot overflow: the resolver has already summed the elements of all tensors.
    SHARDMESH_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(tensor.shape));
    sharded_parameters_ += elements;
    return absl::OkStatus();
  }

  std::shared_ptr<const Definitions> state_;
  std::shared_ptr<const StoredTree> stored_tree_;
  Mesh mesh_;
  std::unique_ptr<TreeResolver> resolver_;
  std::optional<LayoutAnalysis> analysis_;
  absl::flat_hash_map<Source, Tiling> tilings_;
  int64_t sharded_parameters_ = 0;
  int64_t replicated_tensors_ = 0;
};

// Answers AnalyzeShardingStrategy.
class ShardingStrategyAnswer {
 public:
  explicit ShardingStrategyAnswer(std::shared_ptr<const Definitions> state)
      : state_(std::move(state)) {}

  absl::Status Begin(const compat::v1::AnalyzeShardingStrategyHeader& header, const IsCancelled&) {
    SHARDMESH_DECODE(mesh, "mesh", SelectMesh(*state_, header.mesh(), Compatibility::kExact));
    SHARDMESH_ASSIGN_OR_RETURN(stored_tree_, SelectTree(*state_, header.stored_tree()));
    mesh_ = std::move(mesh);
    // Without a mesh the resolver only checks the tensors' names and counts the tensors.
    TreeQuestion question;
    question.compatibility = Compatibility::kExact;
    SHARDMESH_ASSIGN_OR_RETURN(resolver_, TreeResolver::Create(std::move(question)));
    return absl::OkStatus();
  }

  const StoredTree* stored_tree() const { return stored_tree_.get(); }

  absl::Status Add(absl::Span<const TreeTensor> tensors, const IsCancelled& is_cancelled) {
    return AddLaidOut(tensors, *resolver_, is_cancelled, [this](const TreeTensor& tensor) {
      tensors_.push_back({.name = std::string(tensor.name),
                          .shape = Shape(tensor.shape.begin(), tensor.shape.end()),
                          .spec = *tensor.spec});
      return absl::OkStatus();
    });
  }

  absl::Status End(compat::v1::AnalyzeShardingStrategyResponse* response, const IsCancelled&) {
    SHARDMESH_ASSIGN_OR_RETURN(const ExactAnalysis analysis, AnalyzeAsOriginal(tensors_, mesh_));
    const auto encode = [](const PythonCount& from, compat::v1::PythonCount* to) {
      to->set_value(from.value);
      to->set_is_float(from.is_float);
    };
    encode(analysis.total_parameters, response->mutable_total_parameters());
    encode(analysis.sharded_parameters, response->mutable_sharded_parameters());
    response->set_balance_score(analysis.balance_score);
    response->set_revision(state_->revision());
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<const Definitions> state_;
  std::shared_ptr<const StoredTree> stored_tree_;
  Mesh mesh_;
  std::unique_ptr<TreeResolver> resolver_;
  std::vector<AnalyzedTensor> tensors_;
};

// Answers SearchMeshes.
class SearchAnswer {
 public:
  // Maximum number of axes of the meshes to try; number of meshes in an answer by default; maximum
  // number of meshes in an answer.
  static constexpr int kMaxAxes = static_cast<int>(kMaxMeshAxes);
  static constexpr int32_t kDefaultResults = 20;
  static constexpr int32_t kMaxResults = 1000;
  // Maximum number of layouts to examine: the number of meshes, multiplied by the number of groups
  // of like tensors. To examine this many layouts takes some minutes.
  static constexpr int64_t kMaxLayouts = int64_t{1} << 32;

  explicit SearchAnswer(std::shared_ptr<const Definitions> state) : state_(std::move(state)) {}

  bool BeginsLong(const v1::SearchMeshesHeader& header) const {
    return SearchesLong(*state_, header.rule_set());
  }
  bool AddsLong() const { return resolver_->SearchesLong(); }

  absl::Status Begin(const v1::SearchMeshesHeader& header, const IsCancelled& is_cancelled) {
    SHARDMESH_RETURN_IF_ERROR(DecodeOptions(header));
    SHARDMESH_ASSIGN_OR_RETURN(meshes_, CountMeshes(options_));
    SHARDMESH_DECODE(mode, "mode", rpc::Decode(header.mode(), Compatibility::kDefault));
    SHARDMESH_DECODE(profile, "profile", SelectProfile(*state_, header.profile()));
    SHARDMESH_DECODE(
        rules, "rule_set",
        SelectRules(*state_, header.rule_set(), Compatibility::kDefault, is_cancelled));
    SHARDMESH_ASSIGN_OR_RETURN(stored_tree_, SelectTree(*state_, header.stored_tree()));
    TreeQuestion question;
    question.mode = mode;
    question.profile = std::move(profile);
    question.rules = std::move(rules);
    SHARDMESH_ASSIGN_OR_RETURN(resolver_, TreeResolver::Create(std::move(question)));
    return absl::OkStatus();
  }

  const StoredTree* stored_tree() const { return stored_tree_.get(); }

  absl::Status Add(absl::Span<const TreeTensor> tensors, const IsCancelled& is_cancelled) {
    for (const TreeTensor& tensor : tensors) {
      if (!tensor.dtype.has_value()) {
        return TensorError(
            InvalidArgument(Reason::kMissingArgument,
                            "there is no dtype; give one, because meshes are ranked by bytes",
                            {{fact::kField, "tensors.dtypes"}}),
            tensor.name);
      }
    }
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<TreePlacement> placements,
                               resolver_->Add(tensors, is_cancelled));
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TreeTensor& tensor = tensors[i];
      if (is_cancelled()) {
        return absl::CancelledError("cancelled while tensors were grouped");
      }
      // The search uses the effective spec: the rule's spec, fitted to the tensor's rank and size.
      const PartitionSpec& spec = resolver_->specs()[placements[i].spec_index].effective;
      SHARDMESH_RETURN_IF_ERROR(groups_.Add(spec, tensor.shape, BitsPerElement(*tensor.dtype)));
    }
    return absl::OkStatus();
  }

  absl::Status End(v1::SearchMeshesResponse* response, const IsCancelled& is_cancelled) {
    const auto groups = static_cast<int64_t>(groups_.groups().size());
    int64_t layouts = 0;
    if (__builtin_mul_overflow(meshes_, groups, &layouts) || layouts > kMaxLayouts) {
      return WithReason(absl::ResourceExhaustedError(StrCat(
                            meshes_, " meshes and ", groups, " kinds of tensors have more than ",
                            kMaxLayouts, " layouts; bound the axes, or fix some of them")),
                        Reason::kLimitExceeded,
                        {{fact::kHave, layouts}, {fact::kLimit, kMaxLayouts}});
    }
    options_.is_cancelled = is_cancelled;
    SHARDMESH_ASSIGN_OR_RETURN(const MeshSearchResult result,
                               SearchMeshes(groups_.groups(), options_));
    response->set_evaluated(result.evaluated);
    response->set_fitting(result.fitting);
    response->set_revision(state_->revision());
    for (const MeshCandidate& from : result.best) {
      v1::MeshCandidate* to = response->add_meshes();
      for (size_t axis = 0; axis < options_.axes.size(); ++axis) {
        v1::MeshAxis* wire = to->mutable_mesh()->add_axes();
        wire->set_name(options_.axes[axis].name);
        wire->set_size(from.sizes[axis]);
      }
      to->set_fits(from.fits);
      to->set_device_bytes(from.device_bytes);
      to->set_wasted_bytes(from.wasted_bytes);
      to->set_sharded_bytes(from.sharded_bytes);
      to->set_corrected_tensors(from.corrected_tensors);
      to->set_unplaceable_tensors(from.unplaceable_tensors);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status DecodeOptions(const v1::SearchMeshesHeader& header) {
    if (header.devices() < 1 || header.devices() > kMaxMeshDevices) {
      return rpc::BadField(
          "devices", StrCat("is ", header.devices(), "; it must be from 1 to ", kMaxMeshDevices));
    }
    options_.device_count = header.devices();
    if (header.axes_size() < 1 || header.axes_size() > kMaxAxes) {
      return rpc::BadField(
          "axes", StrCat("has ", header.axes_size(), " entries; it must have 1 to ", kMaxAxes));
    }
    for (int i = 0; i < header.axes_size(); ++i) {
      SHARDMESH_ASSIGN_OR_RETURN(SearchAxis axis, DecodeAxis(header.axes(i), i));
      options_.axes.push_back(std::move(axis));
    }
    if (header.has_device_memory_bytes()) {
      if (header.device_memory_bytes() < 0) {
        return rpc::BadField("device_memory_bytes", StrCat("is ", header.device_memory_bytes(),
                                                           "; it must be at least 0"));
      }
      options_.device_memory_bytes = header.device_memory_bytes();
    }
    if (header.max_results() < 0 || header.max_results() > kMaxResults) {
      return rpc::BadField(
          "max_results", StrCat("is ", header.max_results(), "; it must be from 1 to ", kMaxResults,
                                ", or 0 for ", kDefaultResults));
    }
    options_.keep = header.max_results() == 0 ? kDefaultResults : header.max_results();
    if (header.ranking_size() > 0) {
      options_.ranking.clear();
    }
    for (int i = 0; i < header.ranking_size(); ++i) {
      auto criterion = rpc::Decode(header.ranking(i));
      if (!criterion.ok()) {
        return rpc::WithField(criterion.status(), "ranking", static_cast<size_t>(i));
      }
      for (const MeshCriterion before : options_.ranking) {
        if (before == *criterion) {
          return rpc::WithField(
              InvalidArgument(Reason::kBadField,
                              StrCat(MeshCriterionName(*criterion), " occurs twice"),
                              {{fact::kValue, MeshCriterionName(*criterion)}}),
              "ranking", static_cast<size_t>(i));
        }
      }
      options_.ranking.push_back(*criterion);
    }
    return absl::OkStatus();
  }

  static absl::StatusOr<SearchAxis> DecodeAxis(const v1::SearchAxis& from, int index) {
    const auto bad = [index](std::string_view field, std::string_view message) {
      return rpc::WithField(rpc::BadField(field, message), "axes", static_cast<size_t>(index));
    };
    SearchAxis axis;
    axis.name = from.name();
    if (axis.name.empty() || axis.name.size() > kMaxAxisNameBytes) {
      return bad("name",
                 StrCat("has ", axis.name.size(), " bytes; it must have 1 to ", kMaxAxisNameBytes));
    }
    if (from.has_min_size()) axis.min_size = from.min_size();
    if (axis.min_size < 1) {
      return bad("min_size", StrCat("is ", axis.min_size, "; it must be at least 1"));
    }
    if (from.has_max_size()) {
      if (from.max_size() < axis.min_size) {
        return bad("max_size", StrCat("is ", from.max_size(), "; it must be at least ",
                                      axis.min_size, ", the least size"));
      }
      axis.max_size = from.max_size();
    }
    return axis;
  }

  std::shared_ptr<const Definitions> state_;
  std::shared_ptr<const StoredTree> stored_tree_;
  MeshSearchOptions options_;
  int64_t meshes_ = 0;
  std::unique_ptr<TreeResolver> resolver_;
  TensorGroups groups_;
};

// ListShardings, as synchronous code:
//   answer the leaves of the request
//   while (page = some leaves, then some of the registry's names) write(page)
class ListShardingsReactor final
    : public grpc::ServerWriteReactor<compat::v1::ListShardingsResponse> {
 public:
  ListShardingsReactor(std::shared_ptr<const Definitions> state, const ArrayRegistry* registry,
                       const compat::v1::ListShardingsRequest* request)
      : state_(std::move(state)), registry_(registry), request_(request) {
    const absl::Status status = AnswerLeaves();
    lists_names_ = registry_ != nullptr && request_->has_prefix();
    status.ok() ? WriteNext() : Finish(rpc::ToGrpc(status));
  }

  void OnWriteDone(bool ok) override { ok ? WriteNext() : Finish(grpc::Status::OK); }
  void OnDone() override { delete this; }

 private:
  static constexpr int kMaxLeaves = 100'000;
  static constexpr int64_t kNamesPerLook = 500;
  static constexpr size_t kMessageBytes = size_t{256} << 10;

  struct Leaf {
    std::optional<PartitionSpec> spec;
    std::optional<Mesh> mesh;
  };

  absl::Status AnswerLeaves() {
    SHARDMESH_DECODE(compatibility, "compatibility", rpc::Decode(request_->compatibility()));
    if (request_->has_prefix() && request_->prefix().size() > ArrayRegistry::kMaxNameBytes) {
      return rpc::WithField(
          InvalidArgument(Reason::kLimitExceeded,
                          StrCat("has ", request_->prefix().size(), " bytes; names have at most ",
                                 ArrayRegistry::kMaxNameBytes),
                          {{fact::kHave, request_->prefix().size()},
                           {fact::kLimit, ArrayRegistry::kMaxNameBytes}}),
          "prefix");
    }
    if (request_->leaves_size() > kMaxLeaves) {
      return rpc::WithField(
          InvalidArgument(
              Reason::kLimitExceeded,
              StrCat(request_->leaves_size(), " leaves are over the limit of ", kMaxLeaves),
              {{fact::kHave, request_->leaves_size()}, {fact::kLimit, kMaxLeaves}}),
          "leaves");
    }
    std::vector<HeldLeaf> leaves;
    leaves.reserve(static_cast<size_t>(request_->leaves_size()));
    for (int i = 0; i < request_->leaves_size(); ++i) {
      auto leaf = rpc::Decode(request_->leaves(i), compatibility);
      if (!leaf.ok()) {
        return rpc::WithField(std::move(leaf).status(), "leaves", static_cast<size_t>(i));
      }
      leaves.push_back(*std::move(leaf));
    }
    switch (request_->question()) {
      case compat::v1::ListShardingsRequest::QUESTION_UNSPECIFIED:
      case compat::v1::ListShardingsRequest::QUESTION_LAYOUTS:
        KeepLayouts(ExtractShardingStructure(leaves));
        return absl::OkStatus();
      case compat::v1::ListShardingsRequest::QUESTION_LAYOUTS_ON_MESH: {
        SHARDMESH_DECODE(mesh, "mesh", SelectMesh(*state_, request_->mesh(), compatibility));
        SHARDMESH_DECODE(layouts, "mesh", ExtractShardings(leaves, mesh));
        KeepLayouts(std::move(layouts));
        return absl::OkStatus();
      }
      case compat::v1::ListShardingsRequest::QUESTION_SPECS: {
        SHARDMESH_DECODE(specs, "leaves", GetPartitionSpecs(leaves));
        for (std::optional<PartitionSpec>& spec : specs) {
          leaves_.emplace_back().spec = std::move(spec);
        }
        return absl::OkStatus();
      }
      default:
        return rpc::BadField("question", "is none that this build knows");
    }
  }

  void KeepLayouts(std::vector<std::optional<NamedSharding>> layouts) {
    leaves_.reserve(layouts.size());
    for (std::optional<NamedSharding>& layout : layouts) {
      Leaf& leaf = leaves_.emplace_back();
      if (layout.has_value()) {
        leaf.spec = std::move(layout->spec);
        leaf.mesh = std::move(layout->mesh);
      }
    }
  }

  void WriteNext() {
    response_.Clear();
    bytes_ = 0;
    for (; next_leaf_ < leaves_.size() && bytes_ < kMessageBytes; ++next_leaf_) {
      compat::v1::LeafSharding* to = response_.add_shardings();
      to->set_name(request_->leaves(static_cast<int>(next_leaf_)).name());
      Encode(leaves_[next_leaf_], to);
    }
    while (lists_names_ && next_leaf_ == leaves_.size() && bytes_ < kMessageBytes) {
      AddNames();
    }
    response_.shardings_size() == 0 ? Finish(grpc::Status::OK) : StartWrite(&response_);
  }

  // Adds the registry's next names after last_name_ to the response.
  void AddNames() {
    const std::vector<ArrayRegistry::NamedArray> named =
        registry_->ListNames(request_->prefix(), last_name_, kNamesPerLook);
    lists_names_ = !named.empty();
    for (const ArrayRegistry::NamedArray& each : named) {
      compat::v1::LeafSharding* to = response_.add_shardings();
      to->set_name(each.name.name);
      const ArrayDescriptor& array = each.array->definition.descriptor;
      const bool has_mesh =
          request_->question() != compat::v1::ListShardingsRequest::QUESTION_SPECS;
      Encode({.spec = array.spec, .mesh = has_mesh ? std::optional(array.mesh) : std::nullopt}, to);
      last_name_ = each.name.name;
      if (bytes_ >= kMessageBytes) {
        return;
      }
    }
  }

  void Encode(const Leaf& from, compat::v1::LeafSharding* to) {
    if (from.spec.has_value()) {
      rpc::Encode(*from.spec, to->mutable_spec());
    }
    if (from.mesh.has_value()) {
      rpc::Encode(*from.mesh, to->mutable_mesh());
    }
    bytes_ += to->ByteSizeLong();
  }

  const std::shared_ptr<const Definitions> state_;
  const ArrayRegistry* const registry_;
  const compat::v1::ListShardingsRequest* const request_;
  // No lock: only one reaction (gRPC callback) runs at a time.
  std::vector<Leaf> leaves_;
  size_t next_leaf_ = 0;
  bool lists_names_ = false;
  std::string last_name_;
  compat::v1::ListShardingsResponse response_;
  size_t bytes_ = 0;  // of response_
};

}  // namespace

std::unique_ptr<AnalyzeLayoutCall> MakeAnalyzeLayoutCall(std::shared_ptr<const Definitions> state) {
  return std::make_unique<
      TreeFeeder<AnalyzeAnswer, v1::AnalyzeLayoutRequest, v1::AnalyzeLayoutResponse>>(
      AnalyzeAnswer(std::move(state)));
}

std::unique_ptr<ShardingStrategyCall> MakeShardingStrategyCall(
    std::shared_ptr<const Definitions> state) {
  return std::make_unique<
      TreeFeeder<ShardingStrategyAnswer, compat::v1::AnalyzeShardingStrategyRequest,
                 compat::v1::AnalyzeShardingStrategyResponse>>(
      ShardingStrategyAnswer(std::move(state)));
}

std::unique_ptr<SearchMeshesCall> MakeSearchMeshesCall(std::shared_ptr<const Definitions> state) {
  return std::make_unique<
      TreeFeeder<SearchAnswer, v1::SearchMeshesRequest, v1::SearchMeshesResponse>>(
      SearchAnswer(std::move(state)));
}

grpc::ServerWriteReactor<compat::v1::ListShardingsResponse>* MakeListShardingsReactor(
    std::shared_ptr<const Definitions> state, const ArrayRegistry* registry,
    const compat::v1::ListShardingsRequest* request) {
  return new ListShardingsReactor(std::move(state), registry, request);
}

}  // namespace shardmesh::server
