// Definitions in the store, and the snapshots made of them.
#include "server/state/definitions.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "process/failpoint.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "rpc/codec/field_check.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/state/array_record.h"
#include "sharding/axis_value.h"
#include "sharding/digest.h"
#include "shardmesh/store/v1/definition.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/python_repr.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr DefinitionKind kKinds[] = {DefinitionKind::kMesh, DefinitionKind::kProfile,
                                     DefinitionKind::kRuleSet, DefinitionKind::kLogicalRules,
                                     DefinitionKind::kTree};
static_assert(std::size(kKinds) == kDefinitionKindCount);
static_assert(std::variant_size_v<DefinitionValue> == kDefinitionKindCount);

// The maximum number of repetitions of a change, if another change of the definition comes first
// each time.
constexpr int kMaxTries = 16;

std::string KeyOf(DefinitionKind kind, std::string_view name) {
  return StrCat(DefinitionKindName(kind), "/", name);
}

// Returns the name of the kind as messages use it.
std::string_view WordsOf(DefinitionKind kind) {
  return kind == DefinitionKind::kRuleSet        ? "rule set"
         : kind == DefinitionKind::kLogicalRules ? "list of logical rules"
                                                 : DefinitionKindName(kind);
}

constexpr std::string_view kRanksPrefix = "ranks/";

std::string RanksKeyOf(std::string_view mesh_id) { return StrCat(kRanksPrefix, mesh_id); }

std::string WatermarkKeyOf(DefinitionKind kind) {
  return StrCat("watermark/", DefinitionKindName(kind));
}

// Returns a uid for a definition that a build without uids wrote. The uid depends only on name and
// revision. It therefore stays the same until the next write of the definition, which stores the
// uid.
std::string DerivedUid(std::string_view name, Revision revision) {
  constexpr size_t kUidDigits = 32;
  const std::string digest = Sha256(StrCat("uid\n", name, "\n", revision));
  return absl::BytesToHexString(digest).substr(0, kUidDigits);
}

bool HasWorkers(const Definition& mesh) {
  return !std::get<MeshDefinition>(mesh.value).workers.empty();
}

// Returns the condition that the mesh still has the same assigned workers, or still has none.
// Requires that the mesh's definition names no workers.
Compare CompareRanks(const Definition& mesh) {
  return {.key = RanksKeyOf(mesh.name),
          .mod_revision = mesh.assigned == nullptr ? 0 : mesh.assigned->revision};
}

int64_t RanksOf(const DefinitionValue& mesh) { return std::get<MeshDefinition>(mesh).mesh.size(); }

absl::StatusOr<std::shared_ptr<const MeshAssignment>> DecodeAssignment(std::string_view bytes,
                                                                       Revision revision) {
  store::v1::MeshAssignment record;
  if (!record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) ||
      record.workers().empty()) {
    return absl::DataLossError("the record of its ranks is not a MeshAssignment message");
  }
  return std::make_shared<const MeshAssignment>(MeshAssignment{
      .workers = {record.workers().begin(), record.workers().end()}, .revision = revision});
}

// Returns the kind and the name in a key of the store; nullopt for keys of other records.
std::optional<std::pair<DefinitionKind, std::string>> ParseKey(std::string_view key) {
  for (const DefinitionKind kind : kKinds) {
    const std::string prefix = KeyOf(kind, "");
    if (key.substr(0, prefix.size()) == prefix) {
      return std::pair(kind, std::string(key.substr(prefix.size())));
    }
  }
  return std::nullopt;
}

store::v1::Definition EncodeWithoutValue(const Definition& definition) {
  store::v1::Definition record;
  record.set_version(definition.version);
  record.set_uid(definition.uid);
  rpc::Encode(definition.updated, record.mutable_update_time());
  return record;
}

std::string Encode(const Definition& definition) {
  store::v1::Definition record = EncodeWithoutValue(definition);
  record.mutable_value()->ParseFromString(definition.wire_value);
  return record.SerializeAsString();
}

// Decodes a definition's record without its value. Stores the serialised value in `*wire_value`.
absl::StatusOr<std::shared_ptr<Definition>> DecodeWithoutValue(std::string_view name,
                                                               std::string_view bytes,
                                                               Revision revision,
                                                               std::string* wire_value) {
  store::v1::Definition record;
  if (!record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("the record is not a Definition message");
  }
  auto definition = std::make_shared<Definition>();
  definition->name = std::string(name);
  definition->version = record.version();
  definition->uid = record.uid().empty() ? DerivedUid(name, revision) : record.uid();
  definition->revision = revision;
  SHARDMESH_ASSIGN_OR_RETURN(definition->updated, rpc::Decode(record.update_time()));
  *wire_value = record.value().SerializeAsString();
  return definition;
}

absl::StatusOr<std::shared_ptr<Definition>> Decode(std::string_view name, std::string_view bytes,
                                                   Revision revision, int64_t min_sharding_size,
                                                   const std::function<bool()>& is_cancelled = {}) {
  std::string wire_value;
  SHARDMESH_ASSIGN_OR_RETURN(std::shared_ptr<Definition> definition,
                             DecodeWithoutValue(name, bytes, revision, &wire_value));
  definition->wire_value = std::move(wire_value);
  SHARDMESH_ASSIGN_OR_RETURN(
      definition->value,
      DefinitionStore::DecodeValue(definition->wire_value, min_sharding_size, is_cancelled));
  return definition;
}

// Returns the error for a version whose record cannot be read.
absl::Status UnreadableVersion(std::string_view name, int64_t version, const absl::Status& status) {
  return WithReason(absl::DataLossError(StrCat("cannot read version ", version, " of \"", name,
                                               "\" in the store: ", ToStd(status.message()))),
                    Reason::kStoreFailed);
}

absl::StatusOr<std::shared_ptr<const Definition>> Decode(
    std::string_view name, const ReplacedDefinition& replaced, int64_t min_sharding_size,
    const std::function<bool()>& is_cancelled) {
  SHARDMESH_RETURN_IF_ERROR(replaced.readable);
  auto definition =
      Decode(name, *replaced.record, replaced.revision, min_sharding_size, is_cancelled);
  if (!definition.ok() && !absl::IsCancelled(definition.status())) {
    return UnreadableVersion(name, replaced.version, definition.status());
  }
  return definition;
}

// Returns the former version that is stored in `kept`. `newer` is the next newer version of the
// definition. If the record is unreadable, its version is derived from `newer`.
ReplacedDefinition MakeReplaced(std::string_view name, int64_t newer, const KeptValue& kept) {
  ReplacedDefinition replaced{.version = newer - 1,
                              .revision = kept.mod_revision,
                              .updated = {},
                              .readable = {},
                              .record = kept.value};
  std::string wire_value;
  const auto definition = DecodeWithoutValue(name, *kept.value, kept.mod_revision, &wire_value);
  if (!definition.ok()) {
    replaced.readable = UnreadableVersion(name, replaced.version, definition.status());
    return replaced;
  }
  // Prefer the recorded version: after a restore, versions skip numbers, so the version before
  // `newer` may be lower than `newer - 1`.
  const int64_t version = (*definition)->version;
  if (version >= 1 && version < newer) replaced.version = version;
  replaced.updated = (*definition)->updated;
  replaced.size_bytes = static_cast<int64_t>(wire_value.size());
  return replaced;
}

// Returns the version that `kept` holds, if that version is `previous` or one of its former
// versions; otherwise nullopt.
std::optional<ReplacedDefinition> KnownReplaced(const Definition& previous, const KeptValue& kept) {
  if (previous.revision == kept.mod_revision) {
    return ReplacedDefinition{.version = previous.version,
                              .revision = previous.revision,
                              .updated = previous.updated,
                              .size_bytes = static_cast<int64_t>(previous.wire_value.size()),
                              .readable = {},
                              .record = kept.value};
  }
  for (const ReplacedDefinition& replaced : previous.replaced) {
    if (replaced.revision == kept.mod_revision) {
      return replaced;
    }
  }
  return std::nullopt;
}

// Parses the part of a reference after the '@'; nullopt if it is no valid version.
std::optional<int64_t> ParseVersion(std::string_view text) {
  int64_t version = 0;
  const bool is_number = !text.empty() && text.front() != '0' &&
                         text.find_first_not_of("0123456789") == std::string_view::npos &&
                         absl::SimpleAtoi(ToAbsl(text), &version);
  return is_number ? std::optional(version) : std::nullopt;
}

absl::Status NoSuchVersion(DefinitionKind kind, const Definition& current, int64_t version) {
  const int64_t oldest =
      current.replaced.empty() ? current.version : current.replaced.back().version;
  return WithReason(
      absl::NotFoundError(
          StrCat("version ", version, " of the ", WordsOf(kind), " \"", current.name, "\" is ",
                 version > current.version ? "still to come" : "no longer kept", "; ",
                 oldest == current.version
                     ? StrCat("version ", oldest, " is the only one kept")
                     : StrCat("kept are versions ", oldest, " to ", current.version))),
      Reason::kNotFound,
      {{fact::kKind, DefinitionKindName(kind)}, {fact::kName, StrCat(current.name, "@", version)}});
}

absl::Status UnreadableDefinition(DefinitionKind kind, std::string_view name) {
  return WithReason(
      absl::DataLossError(StrCat(
          "the record \"", KeyOf(kind, name), "\" of the store cannot be ",
          "read, so it is not known what the ", WordsOf(kind), " \"", name,
          "\" is; look at it with `shardmesh admin check FOLDER`; ",
          "--set-aside gives it up where it is damaged, a snapshot or the build that wrote it "
          "may read it, and another name is free")),
      Reason::kStoreFailed);
}

absl::Status VersionMismatch(DefinitionKind kind, std::string_view name, int64_t have,
                             int64_t expected) {
  return WithReason(
      absl::AbortedError(StrCat("the ", WordsOf(kind), " \"", name, "\" is at version ", have,
                                ", not ", expected, "; read it and decide again")),
      Reason::kVersionMismatch,
      {{fact::kKind, DefinitionKindName(kind)},
       {fact::kName, name},
       {fact::kHave, have},
       {fact::kNeed, expected}});
}

uint64_t NextPublisherId() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

std::string_view DefinitionKindName(DefinitionKind kind) {
  switch (kind) {
    case DefinitionKind::kMesh:
      return "mesh";
    case DefinitionKind::kProfile:
      return "profile";
    case DefinitionKind::kRuleSet:
      return "rule_set";
    case DefinitionKind::kLogicalRules:
      return "logical_rules";
    case DefinitionKind::kTree:
      return "tree";
  }
  return "";
}

const std::vector<std::string>& WorkersOf(const Definition& mesh) {
  return mesh.assigned != nullptr ? mesh.assigned->workers
                                  : std::get<MeshDefinition>(mesh.value).workers;
}

Revision RanksRevisionOf(const Definition& mesh) {
  return mesh.assigned == nullptr ? mesh.revision
                                  : std::max(mesh.revision, mesh.assigned->revision);
}

bool NamesVersion(std::string_view reference) {
  return reference.find('@') != std::string_view::npos;
}

HistoryOptions DefinitionHistory() {
  HistoryOptions options;
  static_assert(std::size(kDefinitionPrefixes) == kDefinitionKindCount);
  options.prefixes.assign(std::begin(kDefinitionPrefixes), std::end(kDefinitionPrefixes));
  // Nobody watches the records of arrays, stored answers and similar keys, so they need no history.
  options.others_have_none = true;
  return options;
}

DefinitionKind KindOf(const DefinitionValue& value) {
  return static_cast<DefinitionKind>(value.index());
}

absl::StatusOr<std::shared_ptr<const Definition>> Definitions::Find(DefinitionKind kind,
                                                                    std::string_view name) const {
  const ByName& definitions = all(kind);
  if (const auto found = definitions.find(name); found != definitions.end()) {
    return found->second;
  }
  if (is_unreadable_ != nullptr && (*is_unreadable_)(KeyOf(kind, name))) {
    return UnreadableDefinition(kind, name);
  }
  const std::vector<std::string> neighbours = NeighboursOf(name, definitions);
  const std::vector<std::string_view> known(neighbours.begin(), neighbours.end());
  return WithReason(absl::NotFoundError(StrCat("there is no ", WordsOf(kind), " named \"", name,
                                               "\"", DidYouMean(name, known))),
                    Reason::kNotFound,
                    {{fact::kKind, DefinitionKindName(kind)},
                     {fact::kName, name},
                     {fact::kNearest, NearestName(name, known).value_or("")}});
}

absl::StatusOr<Definitions::Referred> Definitions::Locate(DefinitionKind kind,
                                                          std::string_view reference) const {
  const size_t at = reference.find('@');
  if (at == std::string_view::npos) {
    SHARDMESH_ASSIGN_OR_RETURN(auto current, Find(kind, reference));
    return Referred{.current = std::move(current)};
  }
  const std::optional<int64_t> version = ParseVersion(reference.substr(at + 1));
  if (!version.has_value()) {
    return InvalidArgument(Reason::kBadField,
                           StrCat(PythonRepr(reference), " names no version; write ",
                                  reference.substr(0, at), "@N with a version N of 1 or more"),
                           {{fact::kValue, reference}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(auto current, Find(kind, reference.substr(0, at)));
  if (*version == current->version) {
    return Referred{.current = std::move(current)};
  }
  for (const ReplacedDefinition& replaced : current->replaced) {
    if (replaced.version == *version) {
      return Referred{.current = std::move(current), .replaced = &replaced};
    }
  }
  return NoSuchVersion(kind, *current, *version);
}

absl::StatusOr<std::shared_ptr<const Definition>> Definitions::Load(
    const Referred& referred, const std::function<bool()>& is_cancelled) const {
  if (referred.replaced == nullptr) {
    return referred.current;
  }
  const ReplacedDefinition& replaced = *referred.replaced;
  if (auto known = decoded_->Find(replaced.record); known != nullptr) {
    return known;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto decoded, Decode(referred.current->name, replaced,
                                                        min_sharding_size_, is_cancelled));
  // A build without uids may have written this version, but it belongs to the same definition as
  // the current version.
  auto definition = std::make_shared<Definition>(*decoded);
  definition->uid = referred.current->uid;
  return decoded_->Keep(replaced.record, std::move(definition));
}

absl::StatusOr<std::shared_ptr<const Definition>> Definitions::FindReferred(
    DefinitionKind kind, std::string_view reference,
    const std::function<bool()>& is_cancelled) const {
  SHARDMESH_ASSIGN_OR_RETURN(const Referred referred, Locate(kind, reference));
  return Load(referred, is_cancelled);
}

template <typename T>
absl::StatusOr<std::shared_ptr<const T>> Definitions::FindValue(
    DefinitionKind kind, std::string_view reference,
    const std::function<bool()>& is_cancelled) const {
  SHARDMESH_ASSIGN_OR_RETURN(auto definition, FindReferred(kind, reference, is_cancelled));
  const T* const value = &std::get<T>(definition->value);
  return std::shared_ptr<const T>(std::move(definition), value);
}

absl::StatusOr<std::shared_ptr<const MeshDefinition>> Definitions::FindMesh(
    std::string_view reference) const {
  return FindValue<MeshDefinition>(DefinitionKind::kMesh, reference);
}

absl::StatusOr<std::shared_ptr<const PartitionAxis>> Definitions::FindProfile(
    std::string_view reference) const {
  return FindValue<PartitionAxis>(DefinitionKind::kProfile, reference);
}

absl::StatusOr<std::shared_ptr<const RuleSetDefinition>> Definitions::FindRuleSet(
    std::string_view reference, const std::function<bool()>& is_cancelled) const {
  return FindValue<RuleSetDefinition>(DefinitionKind::kRuleSet, reference, is_cancelled);
}

absl::StatusOr<std::shared_ptr<const LogicalRules>> Definitions::FindLogicalRules(
    std::string_view reference) const {
  return FindValue<LogicalRules>(DefinitionKind::kLogicalRules, reference);
}

absl::StatusOr<std::shared_ptr<const StoredTree>> Definitions::FindTree(
    std::string_view reference) const {
  SHARDMESH_ASSIGN_OR_RETURN(const auto definition, FindReferred(DefinitionKind::kTree, reference));
  return std::get<std::shared_ptr<const StoredTree>>(definition->value);
}

absl::StatusOr<std::vector<Definitions::Version>> Definitions::Versions(
    DefinitionKind kind, std::string_view name) const {
  if (NamesVersion(name)) {
    return InvalidArgument(Reason::kBadField,
                           StrCat(PythonRepr(name),
                                  " names a version; versions are listed of a "
                                  "name alone, write ",
                                  name.substr(0, name.find('@'))),
                           {{fact::kValue, name}});
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto current, Find(kind, name));
  std::vector<Version> versions = {{.version = current->version,
                                    .revision = current->revision,
                                    .updated = current->updated,
                                    .size_bytes = static_cast<int64_t>(current->wire_value.size()),
                                    .uid = current->uid}};
  for (const ReplacedDefinition& replaced : current->replaced) {
    SHARDMESH_RETURN_IF_ERROR(replaced.readable);
    versions.push_back({.version = replaced.version,
                        .revision = replaced.revision,
                        .updated = replaced.updated,
                        .size_bytes = replaced.size_bytes,
                        .uid = current->uid});
  }
  return versions;
}

DefinitionStore::DefinitionStore(Store* store, Clock* clock, RequestMemory* requests,
                                 int64_t min_sharding_size)
    : store_(store),
      clock_(clock),
      requests_(requests),
      min_sharding_size_(min_sharding_size),
      id_(NextPublisherId()),
      state_(std::make_shared<Definitions>()) {}

DefinitionStore::~DefinitionStore() {
  auto idle = [this] {
    mutex_.AssertReaderHeld();
    return in_flight_ == 0;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&idle));
}

absl::StatusOr<std::unique_ptr<DefinitionStore>> DefinitionStore::Open(Store* store, Clock* clock,
                                                                       RequestMemory* requests,
                                                                       int64_t min_sharding_size) {
  auto definition_store = std::unique_ptr<DefinitionStore>(
      new DefinitionStore(store, clock, requests, min_sharding_size));
  SHARDMESH_RETURN_IF_ERROR(definition_store->Load());
  return definition_store;
}

absl::Status DefinitionStore::Load() {
  SHARDMESH_PASSES("definitions.load");
  auto state = std::make_shared<Definitions>();
  state->min_sharding_size_ = min_sharding_size_;
  // Only a state that was restored or lost records has the record kRestoredKey. The revision of
  // this record is above all versions that were given before the restore or the loss.
  restored_at_ = store_->UnreadableRevision(kRestoredKey);
  if (const auto restored = store_->Get(kRestoredKey); restored.ok()) {
    restored_at_ = std::max(restored_at_, restored->mod_revision);
  }
  for (const DefinitionKind kind : kKinds) {
    SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored, store_->List(KeyOf(kind, "")));
    state->revision_ = stored.revision;
    auto definitions = std::make_shared<Definitions::ByName>();
    for (const KeyValue& item : stored.items) {
      const std::string name = ParseKey(item.key)->second;
      auto decoded = Decode(name, item.value, item.mod_revision, min_sharding_size_);
      if (!decoded.ok()) {
        // Serve the other definitions. Write never overwrites the key of the definition that is
        // left out.
        LogError("a definition in the store cannot be read and is left out",
                 {{"key", item.key}, {"error", decoded.status()}});
        undecoded_.insert(item.key);
        continue;
      }
      const std::shared_ptr<Definition> definition = *std::move(decoded);
      if (kind == DefinitionKind::kMesh && !HasWorkers(*definition)) {
        // Leave the mesh out. Without the record of its assigned workers, its ranks would be
        // assigned to other workers, which lack the tiles of its arrays.
        if (const absl::Status assigned = LoadAssignment(definition.get()); !assigned.ok()) {
          LogError("the ranks of a mesh cannot be read, and it is left out",
                   {{"mesh", name}, {"error", assigned}});
          undecoded_.insert(item.key);
          continue;
        }
      }
      definition->replaced = ReplacedBy(*definition, kind, stored.revision, nullptr);
      definitions->emplace(name, definition);
    }
    SHARDMESH_RETURN_IF_ERROR(LoadWatermark(kind, *definitions));
    state->definitions_[static_cast<size_t>(kind)] = std::move(definitions);
  }
  if (!undecoded_.empty() || store_->stats().unreadable_records > 0) {
    state->is_unreadable_ = std::make_shared<const std::function<bool(const std::string&)>>(
        [store = store_, undecoded = undecoded_](const std::string& key) {
          return undecoded.contains(key) || store->UnreadableRevision(key) > 0;
        });
  }
  absl::MutexLock lock(&mutex_);
  state_ = std::move(state);
  return absl::OkStatus();
}

absl::Status DefinitionStore::LoadAssignment(Definition* mesh) const {
  const std::string key = RanksKeyOf(mesh->name);
  if (store_->UnreadableRevision(key) > 0) {
    return absl::DataLossError("the record of its ranks is damaged");
  }
  const auto stored = store_->Get(key);
  if (absl::IsNotFound(stored.status())) return absl::OkStatus();
  SHARDMESH_RETURN_IF_ERROR(stored.status());
  SHARDMESH_ASSIGN_OR_RETURN(auto assigned, DecodeAssignment(stored->value, stored->mod_revision));
  if (std::ssize(assigned->workers) != RanksOf(mesh->value)) {
    return absl::DataLossError(StrCat("the record of its ranks names ", assigned->workers.size(),
                                      " workers, the mesh has ", RanksOf(mesh->value), " ranks"));
  }
  mesh->assigned = std::move(assigned);
  return absl::OkStatus();
}

absl::Status DefinitionStore::LoadWatermark(DefinitionKind kind,
                                            const Definitions::ByName& definitions) {
  const std::string key = WatermarkKeyOf(kind);
  int64_t watermark = 0;
  bool is_known = store_->UnreadableRevision(key) == 0;
  const auto stored = store_->Get(key);
  if (stored.ok()) {
    store::v1::Watermark record;
    is_known = is_known && record.ParseFromString(stored->value) && record.version() >= 0;
    watermark = std::max<int64_t>(record.version(), 0);
  } else if (!absl::IsNotFound(stored.status())) {
    return stored.status();
  }
  watermark = std::max(watermark, restored_at_);
  if (!is_known) {
    LogWarning("the watermark of versions cannot be read; new definitions start far above",
               {{"kind", DefinitionKindName(kind)}});
    watermark = std::max(watermark, store_->revision());
    for (const auto& [name, definition] : definitions) {
      watermark = std::max(watermark, definition->version);
    }
  }
  absl::MutexLock lock(&watermark_mutex_);
  watermarks_[static_cast<size_t>(kind)] = watermark;
  return absl::OkStatus();
}

std::vector<ReplacedDefinition> DefinitionStore::ReplacedBy(const Definition& definition,
                                                            DefinitionKind kind, Revision at,
                                                            const Definition* previous) const {
  std::vector<ReplacedDefinition> replaced;
  const auto history = store_->History(KeyOf(kind, definition.name), at);
  if (!history.ok()) {
    LogWarning("the versions before this one are not available until it is updated",
               {{"kind", DefinitionKindName(kind)},
                {"name", definition.name},
                {"version", definition.version},
                {"error", history.status()}});
    return replaced;
  }
  // Skip the first item, which is the definition itself.
  int64_t newer = definition.version;
  for (size_t i = 1; i < history->size(); ++i) {
    const KeptValue& kept = (*history)[i];
    auto known = previous == nullptr ? std::nullopt : KnownReplaced(*previous, kept);
    replaced.push_back(known.has_value() ? *std::move(known)
                                         : MakeReplaced(definition.name, newer, kept));
    newer = replaced.back().version;
  }
  return replaced;
}

std::shared_ptr<const Definitions> DefinitionStore::shared_state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

const Definitions& DefinitionStore::state() const {
  // Ids and generations are never reused, so the cache of an earlier DefinitionStore never matches.
  struct Cache {
    uint64_t definition_store = 0;
    uint64_t generation = 0;
    std::shared_ptr<const Definitions> state;
  };
  thread_local Cache cache;
  const uint64_t generation = generation_.load(std::memory_order_acquire);
  if (cache.definition_store != id_ || cache.generation != generation) {
    cache = {.definition_store = id_, .generation = generation, .state = shared_state()};
  }
  return *cache.state;
}

absl::StatusOr<DefinitionValue> DefinitionStore::DecodeValue(
    std::string_view wire_value, int64_t min_sharding_size,
    const std::function<bool()>& is_cancelled) {
  v1::EntryValue value;
  if (!value.ParseFromArray(wire_value.data(), static_cast<int>(wire_value.size()))) {
    return rpc::BadField("value", "is not an EntryValue message");
  }
  switch (value.value_case()) {
    case v1::EntryValue::kMesh: {
      auto mesh = rpc::Decode(value.mesh());
      if (!mesh.ok()) {
        return rpc::WithField(rpc::WithField(mesh.status(), "mesh"), "value");
      }
      return *std::move(mesh);
    }
    case v1::EntryValue::kProfile: {
      auto profile = rpc::Decode(value.profile());
      if (!profile.ok()) {
        return rpc::WithField(rpc::WithField(profile.status(), "profile"), "value");
      }
      return *std::move(profile);
    }
    case v1::EntryValue::kRuleSet: {
      auto rules =
          rpc::Decode(value.rule_set(), Compatibility::kDefault, min_sharding_size, is_cancelled);
      if (!rules.ok()) {
        return rpc::WithField(rpc::WithField(rules.status(), "rule_set"), "value");
      }
      return *std::move(rules);
    }
    case v1::EntryValue::kLogicalRules: {
      auto rules = rpc::Decode(value.logical_rules());
      if (!rules.ok()) {
        return rpc::WithField(rpc::WithField(rules.status(), "logical_rules"), "value");
      }
      return *std::move(rules);
    }
    case v1::EntryValue::kTree: {
      auto tree = StoredTree::Create(std::move(*value.mutable_tree()));
      if (!tree.ok()) {
        return rpc::WithField(rpc::WithField(tree.status(), "tree"), "value");
      }
      return *std::move(tree);
    }
    case v1::EntryValue::VALUE_NOT_SET:
      break;
  }
  return rpc::BadField(
      "value", "has neither a mesh, nor a profile, nor a rule set, nor logical rules, nor a tree");
}

void DefinitionStore::Create(Change change, std::string wire_value, Callback callback,
                             const std::function<bool()>& is_cancelled) {
  auto value = DecodeValue(wire_value, min_sharding_size_, is_cancelled);
  if (!value.ok()) {
    return std::move(callback)(value.status());
  }
  const DefinitionKind kind = KindOf(*value);
  Write(Verb::kCreate, std::move(change), kind, std::move(wire_value), *std::move(value),
        std::move(callback));
}

void DefinitionStore::Update(Change change, std::string wire_value, Callback callback,
                             const std::function<bool()>& is_cancelled) {
  auto value = DecodeValue(wire_value, min_sharding_size_, is_cancelled);
  if (!value.ok()) {
    return std::move(callback)(value.status());
  }
  const DefinitionKind kind = KindOf(*value);
  Write(Verb::kUpdate, std::move(change), kind, std::move(wire_value), *std::move(value),
        std::move(callback));
}

void DefinitionStore::Delete(Change change, DefinitionKind kind, Callback callback) {
  Write(Verb::kDelete, std::move(change), kind, "", {}, std::move(callback));
}

void DefinitionStore::Write(Verb verb, Change change, DefinitionKind kind, std::string wire_value,
                            DefinitionValue value, Callback callback, int tries) {
  SHARDMESH_PASSES("definitions.write");
  if (const absl::Status named = rpc::CheckEntryName(change.name, "name"); !named.ok()) {
    return std::move(callback)(named);
  }
  const std::string fingerprint =
      Sha256(StrCat(static_cast<int>(verb), "\n", KeyOf(kind, change.name), "\n",
                    change.expected_version.value_or(0), "\n", wire_value));
  auto remembered = requests_->Begin(change.request_id, fingerprint);
  if (!remembered.ok()) {
    return std::move(callback)(remembered.status());
  }
  if (remembered->has_value()) {
    // The stored answer has no value. The first request had the same value as this request, because
    // their fingerprints are equal.
    std::string ignored;
    auto definition =
        DecodeWithoutValue(change.name, (*remembered)->bytes, (*remembered)->revision, &ignored);
    if (definition.ok()) {
      (*definition)->value = std::move(value);
      (*definition)->wire_value = std::move(wire_value);
      // The assigned workers have no version. If the definition is still the same, add its current
      // workers.
      const auto current = shared_state()->Find(kind, change.name);
      if (current.ok() && (*current)->version == (*definition)->version &&
          (*current)->uid == (*definition)->uid) {
        (*definition)->assigned = (*current)->assigned;
      }
    }
    return std::move(callback)(std::move(definition));
  }

  const auto existing = shared_state()->Find(kind, change.name);
  absl::Status refused;
  if (absl::IsDataLoss(existing.status())) {
    refused = existing.status();
  } else if (verb == Verb::kCreate && !existing.ok()) {
    absl::MutexLock lock(&mutex_);
    refused = CheckRoom(kind);
    if (refused.ok() && !change.validate_only) ++to_come_[static_cast<size_t>(kind)];
  } else if (verb == Verb::kCreate) {
    refused = WithReason(
        absl::AlreadyExistsError(StrCat("there is a ", WordsOf(kind), " named \"", change.name,
                                        "\" already, at version ", (*existing)->version,
                                        "; update it, or choose another name")),
        Reason::kAlreadyExists,
        {{fact::kKind, DefinitionKindName(kind)}, {fact::kName, change.name}});
  } else if (verb != Verb::kCreate && !existing.ok()) {
    refused = existing.status();
  } else if (change.expected_version.has_value() && existing.ok() &&
             (*existing)->version != *change.expected_version) {
    refused = VersionMismatch(kind, change.name, (*existing)->version, *change.expected_version);
  }
  if (!refused.ok()) {
    requests_->Abandon(change.request_id);
    return std::move(callback)(std::move(refused));
  }

  auto definition = std::make_shared<Definition>();
  if (verb == Verb::kDelete) {
    *definition = **existing;
  } else {
    definition->name = change.name;
    if (existing.ok()) {
      definition->uid = (*existing)->uid;
      // Before a restore, the former state may have given the next version to another value.
      // Versions up to restored_at_ are therefore skipped.
      definition->version = std::max((*existing)->version, restored_at_) + 1;
    } else if (!change.validate_only) {
      definition->uid = RandomId();
    }
    definition->updated = clock_->Now();
    definition->value = std::move(value);
    definition->wire_value = std::move(wire_value);
  }
  const std::string key = KeyOf(kind, change.name);
  Transaction transaction;
  transaction.compares.push_back(
      {.key = key, .mod_revision = existing.ok() ? (*existing)->revision : 0});
  if (kind == DefinitionKind::kMesh) {
    // The update must fail if the mesh's workers are assigned or moved before the update is
    // committed.
    if (verb == Verb::kUpdate && !HasWorkers(**existing)) {
      transaction.compares.push_back(CompareRanks(**existing));
    }
    const bool keeps = verb == Verb::kUpdate && (*existing)->assigned != nullptr &&
                       !HasWorkers(*definition) &&
                       std::ssize((*existing)->assigned->workers) == RanksOf(definition->value);
    if (!change.assign.empty()) {
      store::v1::MeshAssignment record;
      record.mutable_workers()->Assign(change.assign.begin(), change.assign.end());
      transaction.puts.push_back(
          {.key = RanksKeyOf(change.name), .value = record.SerializeAsString()});
    } else if (keeps) {
      definition->assigned = (*existing)->assigned;
    } else {
      transaction.deletes.push_back(RanksKeyOf(change.name));
    }
  }
  // For a creation, add_records is called later, because the version is not known yet.
  const auto add_records = [this, &transaction, &key, verb, definition,
                            request_id = change.request_id] {
    requests_->AddTo(&transaction, request_id, EncodeWithoutValue(*definition).SerializeAsString());
    if (verb == Verb::kDelete) {
      transaction.deletes.push_back(key);
      transaction.urgent = true;
    } else {
      transaction.puts.push_back({.key = key, .value = Encode(*definition)});
    }
  };
  if (change.validate_only) {
    if (verb == Verb::kCreate) {
      absl::MutexLock lock(&watermark_mutex_);
      definition->version = watermarks_[static_cast<size_t>(kind)] + 1;
    }
    add_records();
    const absl::Status checked = CheckTransaction(transaction);
    definition->revision = 0;
    return std::move(callback)(
        checked.ok() ? absl::StatusOr<std::shared_ptr<const Definition>>(std::move(definition))
                     : checked);
  }
  Store::CommitCallback written =
      [this, definition, kind, verb, previous = existing.ok() ? *existing : nullptr,
       request_id = change.request_id, change = std::move(change), tries,
       callback = std::move(callback)](absl::StatusOr<Revision> revision) mutable {
        const auto give_room_back = [&] {
          if (verb != Verb::kCreate) return;
          absl::MutexLock lock(&mutex_);
          --to_come_[static_cast<size_t>(kind)];
        };
        if (!revision.ok()) {
          give_room_back();
          requests_->Abandon(request_id);
          // Another change came first, perhaps an assignment of ranks, which makes no new version:
          // try again. The next attempt compares an expected version again.
          if (verb != Verb::kCreate && tries < kMaxTries &&
              ReasonOf(revision.status()) == Reason::kVersionMismatch) {
            std::string wire;
            DefinitionValue again;
            if (verb == Verb::kUpdate) {
              wire = std::move(definition->wire_value);
              again = std::move(definition->value);
            }
            return Write(verb, std::move(change), kind, std::move(wire), std::move(again),
                         std::move(callback), tries + 1);
          }
          return std::move(callback)(revision.status());
        }
        definition->revision = *revision;
        if (!change.assign.empty()) {
          definition->assigned = std::make_shared<const MeshAssignment>(
              MeshAssignment{.workers = std::move(change.assign), .revision = *revision});
        }
        if (verb == Verb::kUpdate) {
          definition->replaced = ReplacedBy(*definition, kind, *revision, previous.get());
        }
        Publish(definition, kind, *revision, verb == Verb::kDelete);
        give_room_back();
        requests_->Finish(request_id, *revision);
        std::move(callback)(std::move(definition));
      };
  if (verb == Verb::kUpdate) {
    add_records();
    return CommitToStore(std::move(transaction), std::move(written));
  }
  absl::MutexLock lock(&watermark_mutex_);
  int64_t& watermark = watermarks_[static_cast<size_t>(kind)];
  if (verb == Verb::kCreate) {
    definition->version = watermark + 1;
    add_records();
    return CommitToStore(std::move(transaction), std::move(written));
  }
  add_records();
  watermark = std::max(watermark, definition->version);
  store::v1::Watermark record;
  record.set_version(watermark);
  transaction.puts.push_back({.key = WatermarkKeyOf(kind), .value = record.SerializeAsString()});
  CommitToStore(std::move(transaction), std::move(written));
}

void DefinitionStore::Assign(const std::string& mesh_id, std::vector<std::string> workers,
                             Callback callback) {
  const auto found = shared_state()->Find(DefinitionKind::kMesh, mesh_id);
  if (!found.ok()) {
    return std::move(callback)(found.status());
  }
  const std::shared_ptr<const Definition>& mesh = *found;
  if (!WorkersOf(*mesh).empty() || std::ssize(workers) != RanksOf(mesh->value)) {
    return std::move(callback)(mesh);
  }
  WriteRanks(mesh, std::move(workers), std::move(callback));
}

absl::Status DefinitionStore::CheckReassign(const Definitions& state, const std::string& mesh_id,
                                            const std::string& from, const std::string& to) {
  SHARDMESH_ASSIGN_OR_RETURN(const auto mesh, state.Find(DefinitionKind::kMesh, mesh_id));
  const std::vector<std::string>& workers = WorkersOf(*mesh);
  if (std::find(workers.begin(), workers.end(), from) == workers.end()) return absl::OkStatus();
  if (mesh->assigned == nullptr) {
    return WithReason(
        absl::FailedPreconditionError(
            StrCat("the definition of mesh \"", mesh_id, "\" names its workers, \"", from,
                   "\" among them; start a worker of that identity, or define the mesh anew")),
        Reason::kRanksDefined, {{fact::kMesh, mesh_id}, {fact::kIdentity, from}});
  }
  const auto other = std::find(workers.begin(), workers.end(), to);
  if (other == workers.end()) return absl::OkStatus();
  const auto rank = static_cast<int64_t>(other - workers.begin());
  return WithReason(
      absl::FailedPreconditionError(
          StrCat("worker \"", to, "\" serves rank ", rank, " of mesh \"", mesh_id,
                 "\"; a worker serves at most one rank of a mesh; name another")),
      Reason::kWorkerServesRank,
      {{fact::kIdentity, to}, {fact::kMesh, mesh_id}, {fact::kRank, rank}, {fact::kHave, 1}});
}

void DefinitionStore::Reassign(const std::string& mesh_id, const std::string& from,
                               const std::string& to, Callback callback) {
  const std::shared_ptr<const Definitions> state = shared_state();
  if (absl::Status status = CheckReassign(*state, mesh_id, from, to); !status.ok()) {
    return std::move(callback)(std::move(status));
  }
  const std::shared_ptr<const Definition> mesh =
      state->all(DefinitionKind::kMesh).find(mesh_id)->second;
  std::vector<std::string> workers = WorkersOf(*mesh);
  const auto place = std::find(workers.begin(), workers.end(), from);
  if (place == workers.end()) {
    return std::move(callback)(mesh);
  }
  *place = to;
  WriteRanks(mesh, std::move(workers), std::move(callback));
}

void DefinitionStore::WriteRanks(const std::shared_ptr<const Definition>& mesh,
                                 std::vector<std::string> workers, Callback callback) {
  store::v1::MeshAssignment record;
  record.mutable_workers()->Assign(workers.begin(), workers.end());
  Transaction transaction;
  // If a client changes the mesh before this commit, these ranks must not be written.
  transaction.compares.push_back(
      {.key = KeyOf(DefinitionKind::kMesh, mesh->name), .mod_revision = mesh->revision});
  transaction.compares.push_back(CompareRanks(*mesh));
  transaction.puts.push_back({.key = RanksKeyOf(mesh->name), .value = record.SerializeAsString()});
  CommitToStore(std::move(transaction),
                [this, mesh, workers = std::move(workers),
                 callback = std::move(callback)](absl::StatusOr<Revision> revision) mutable {
                  if (!revision.ok()) {
                    return std::move(callback)(revision.status());
                  }
                  auto with_ranks = std::make_shared<Definition>(*mesh);
                  with_ranks->assigned = std::make_shared<const MeshAssignment>(
                      MeshAssignment{.workers = std::move(workers), .revision = *revision});
                  Publish(with_ranks, DefinitionKind::kMesh, *revision, /*deleted=*/false);
                  std::move(callback)(std::move(with_ranks));
                });
}

void DefinitionStore::CommitToStore(Transaction transaction, Store::CommitCallback callback) {
  {
    absl::MutexLock lock(&mutex_);
    ++in_flight_;
  }
  store_->Commit(std::move(transaction),
                 [this, callback = std::move(callback)](absl::StatusOr<Revision> revision) mutable {
                   std::move(callback)(std::move(revision));
                   absl::MutexLock lock(&mutex_);
                   --in_flight_;
                 });
}

absl::Status DefinitionStore::CheckRoom(DefinitionKind kind) const {
  const auto count = [&](DefinitionKind of) {
    mutex_.AssertHeld();
    return std::ssize(state_->all(of)) + to_come_[static_cast<size_t>(of)];
  };
  int64_t all = 0;
  for (const DefinitionKind each : kKinds) all += count(each);
  const auto over = [](int64_t have, std::string_view what, int64_t limit, std::string_view flag) {
    return WithReason(absl::ResourceExhaustedError(StrCat(
                          "the catalog has ", have, " ", what, ", the limit is ", limit,
                          "; delete unused ones, or start the coordinator with more ", flag)),
                      Reason::kLimitExceeded, {{fact::kHave, have}, {fact::kLimit, limit}});
  };
  const int64_t meshes = count(DefinitionKind::kMesh);
  if (kind == DefinitionKind::kMesh && meshes >= limits_.max_meshes) {
    return over(meshes, "meshes", limits_.max_meshes, "--max-meshes");
  }
  if (all >= limits_.max_definitions) {
    return over(all, "definitions", limits_.max_definitions, "--max-definitions");
  }
  return absl::OkStatus();
}

void DefinitionStore::Publish(std::shared_ptr<const Definition> definition, DefinitionKind kind,
                              Revision revision, bool deleted) {
  SHARDMESH_PASSES("definitions.publish");
  absl::MutexLock lock(&mutex_);
  auto next = std::make_shared<Definitions>(*state_);
  next->revision_ = revision;
  // Copy only the map of this kind. The new snapshot shares the maps of the other kinds with the
  // previous snapshot.
  auto definitions = std::make_shared<Definitions::ByName>(state_->all(kind));
  if (deleted) {
    definitions->erase(definition->name);
  } else {
    definitions->insert_or_assign(definition->name, definition);
  }
  next->definitions_[static_cast<size_t>(kind)] = std::move(definitions);
  state_ = std::move(next);
  generation_.fetch_add(1, std::memory_order_release);
}

absl::StatusOr<std::unique_ptr<WatchHandle>> DefinitionStore::Watch(
    const std::vector<DefinitionKind>& kinds, Revision from_revision, WatchCallback callback) {
  std::vector<std::string> prefixes;
  for (const DefinitionKind kind : kKinds) {
    if (kinds.empty() || std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) {
      prefixes.push_back(KeyOf(kind, ""));
      if (kind == DefinitionKind::kMesh) prefixes.emplace_back(kRanksPrefix);
    }
  }
  return store_->Watch(
      std::move(prefixes), from_revision,
      [this, callback = std::move(callback)](const std::vector<WatchEvent>& changes) {
        const std::shared_ptr<const Definitions> state = shared_state();
        std::vector<Event> events;
        for (const WatchEvent& change : changes) {
          if (change.key.compare(0, kRanksPrefix.size(), kRanksPrefix) == 0) {
            // Skip this event if the mesh or its ranks were changed or deleted after it: that later
            // change has its own event.
            const Definitions::ByName& meshes = state->all(DefinitionKind::kMesh);
            const auto mesh = meshes.find(change.key.substr(kRanksPrefix.size()));
            if (change.value == nullptr || mesh == meshes.end() ||
                mesh->second->assigned == nullptr ||
                mesh->second->assigned->revision != change.revision) {
              continue;
            }
            events.push_back({.kind = DefinitionKind::kMesh,
                              .name = mesh->first,
                              .record = change.value,
                              .definition = mesh->second,
                              .revision = change.revision});
            continue;
          }
          auto key = ParseKey(change.key);
          Event event{.kind = key->first,
                      .name = std::move(key->second),
                      .record = change.value,
                      .definition = nullptr,
                      .revision = change.revision};
          // In most cases the published definition is still the one of this event.
          const Definitions::ByName& current = state->all(event.kind);
          if (const auto found = current.find(event.name);
              found != current.end() && found->second->revision == event.revision) {
            event.definition = found->second;
          }
          events.push_back(std::move(event));
        }
        if (!events.empty()) callback(events);
      });
}

absl::StatusOr<std::shared_ptr<const Definition>> DefinitionStore::Read(const Event& event) const {
  if (event.definition != nullptr) {
    return event.definition;
  }
  return Decode(event.name, *event.record, event.revision, min_sharding_size_);
}

absl::StatusOr<std::shared_ptr<const Definition>> DefinitionStore::Describe(
    const Event& event) const {
  if (event.definition != nullptr) {
    return event.definition;
  }
  std::string wire_value;
  SHARDMESH_ASSIGN_OR_RETURN(
      std::shared_ptr<Definition> definition,
      DecodeWithoutValue(event.name, *event.record, event.revision, &wire_value));
  definition->wire_value = std::move(wire_value);
  if (event.kind == DefinitionKind::kTree) {
    SHARDMESH_ASSIGN_OR_RETURN(definition->value,
                               DecodeValue(definition->wire_value, min_sharding_size_));
  }
  return definition;
}

}  // namespace shardmesh::server
