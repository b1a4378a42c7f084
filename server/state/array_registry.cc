// Staging, committing and releasing arrays; recovery from the store.
#include "server/state/array_registry.h"

#include <algorithm>
#include <set>

#include "process/failpoint.h"
#include "process/log.h"
#include "process/random_bytes.h"
#include "server/state/array_record.h"
#include "status/fact_keys.h"
#include "status/nearest_name.h"
#include "status/reason.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "status/utf8.h"

namespace shardmesh::server {
namespace {

// Limit on the names that a search for an error message looks at, because all other calls wait for
// the lock.
constexpr int64_t kNamesLookedAt = 1'000;

constexpr std::string_view kClusterKey = "cluster";
constexpr std::string_view kArrayPrefix = "array/";
constexpr std::string_view kNamePrefix = "name/";
constexpr std::string_view kManifestPrefix = "manifest/";
constexpr std::string_view kReleasedPrefix = "released/";
constexpr std::string_view kStatePrefix = "state/";

// The maximum number of arrays in one record of released arrays. Such a record takes about half a
// MiB.
constexpr size_t kMaxReleased = 16'384;
// The maximum number of discarded arrays whose ids the registry remembers.
constexpr size_t kMaxDiscarded = 65'536;
// The maximum number of tiles or arrays of an inventory that are handled before the lock is
// released for other threads.
constexpr size_t kTakenAtOnce = 2'048;
// The maximum number of meshes whose last change is remembered. Beyond this number, the older half
// of the changes is forgotten.
constexpr size_t kMaxMeshFloors = 16'384;

// A commit within these limits is written as one transaction. The limits leave room for the fence
// (the compare of `cluster`) and the stored answer.
constexpr size_t kMaxSmallOperations = 100;
constexpr size_t kMaxSmallBytes = 1 << 20;

std::string ArrayKey(std::string_view id) { return StrCat(kArrayPrefix, id); }
std::string NameKey(std::string_view name) { return StrCat(kNamePrefix, name); }
std::string ReleasedKey(std::string_view id) { return StrCat(kReleasedPrefix, id); }
std::string StateKey(std::string_view id) { return StrCat(kStatePrefix, id); }
std::string ManifestKey(std::string_view id) { return StrCat(kManifestPrefix, id); }
std::string ChunkKey(std::string_view id, int64_t chunk) {
  return StrCat(kManifestPrefix, id, "/", absl::Dec(chunk, absl::kZeroPad6));
}

absl::Status NoArray(std::string_view id) {
  return WithReason(
      absl::NotFoundError(StrCat("no array \"", id, "\"; it was released, or never existed")),
      Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, id}});
}

absl::Status Given(std::string_view id) {
  return WithReason(
      absl::NotFoundError(StrCat("array \"", id, "\" was donated to a step that has not ended")),
      Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, id}});
}

absl::Status CheckName(const std::string& name) {
  if (name == "__metadata__") {
    return WithReason(
        absl::InvalidArgumentError("the name \"__metadata__\" is reserved: it is that of the texts "
                                   "in the header of a safetensors file, so the array could not be "
                                   "saved; give another name"),
        Reason::kBadField, {{fact::kValue, name}});
  }
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (!name.empty() && name.size() <= ArrayRegistry::kMaxNameBytes && !control &&
      DecodeUtf8(name).has_value()) {
    return absl::OkStatus();
  }
  return WithReason(
      absl::InvalidArgumentError(StrCat("a name must be 1 to ", ArrayRegistry::kMaxNameBytes,
                                        " bytes of UTF-8 without control characters; this one has ",
                                        name.size(), " bytes")),
      Reason::kBadField, {{fact::kValue, name}});
}

// Returns a copy of the array with the missing ranks `missing`, and with the array state that they
// imply.
ArrayPtr WithMissing(const Array& array, std::vector<int64_t> missing) {
  auto changed = std::make_shared<Array>(array);
  changed->missing_ranks = std::move(missing);
  if (changed->state != ArrayState::kStaging) {
    changed->state =
        changed->missing_ranks.empty() ? ArrayState::kAvailable : ArrayState::kDegraded;
  }
  return changed;
}

// Returns the array as state: without all that says where its first content came from.
Array AsState(Array array) {
  array.definition.source = {};
  array.definition.sent_from = {};
  array.definition.is_state = true;
  array.durability = Durability::kMemory;
  array.checkpoint = {};
  return array;
}

// Adds `change` to the count of arrays in the state `state`.
void AddTo(ArrayState state, int64_t change, ArrayCounts* counts) {
  switch (state) {
    case ArrayState::kStaging:
      counts->staging += change;
      break;
    case ArrayState::kAvailable:
      counts->available += change;
      break;
    case ArrayState::kDegraded:
      counts->degraded += change;
      break;
    case ArrayState::kReleased:
      break;
  }
}

// Returns the size of the tile of each rank. Requires that the array has a tiling.
std::vector<int64_t> RankBytes(const ArrayDescriptor& descriptor) {
  std::vector<int64_t> bytes(static_cast<size_t>(descriptor.mesh.size()));
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  for (size_t rank = 0; tiling.ok() && rank < bytes.size(); ++rank) {
    if (rank > 0 && tiling->has_equal_tiles()) {
      bytes[rank] = bytes[0];
      continue;
    }
    const absl::StatusOr<int64_t> size_bytes =
        descriptor.TileSizeBytes(tiling->TileOf(static_cast<DeviceId>(rank)));
    bytes[rank] = size_bytes.ok() ? *size_bytes : 0;
  }
  return bytes;
}

// The former coordinator kept no record of arrays without names, so nothing shows whether it has
// answered the client.
constexpr std::string_view kUnfinishedPut =
    "the coordinator ended before it told a worker that this put was done, and no name has the "
    "array; it may be dropped, unless a client got the put's answer and still wants the array";
constexpr std::string_view kUnfinishedStep =
    "the coordinator ended before it told a worker that this step was done, and no name has its "
    "result; it may be dropped, unless a client got the step's answer and still wants the result";

std::string OtherChecksum(uint32_t found, const Array& array, int64_t rank) {
  return StrCat("its checksum is ", absl::Hex(found, absl::kZeroPad8), ", the registry's of rank ",
                rank, " is ",
                absl::Hex(array.tile_crc32c[static_cast<size_t>(rank)], absl::kZeroPad8));
}

std::string_view IdOf(const std::string& id) { return id; }
template <typename Value>
std::string_view IdOf(const std::pair<const std::string_view, Value>& each) {
  return each.first;
}

template <typename ByMesh>
void TakeFrom(ByMesh& by_mesh, std::string_view mesh_id, std::string_view id) {
  const auto mesh = by_mesh.find(mesh_id);
  if (mesh == by_mesh.end()) return;
  if (const auto found = mesh->second.find(id); found != mesh->second.end()) {
    mesh->second.erase(found);
  }
  if (mesh->second.empty()) by_mesh.erase(mesh);
}

// Returns a key that arrays of equal type and shape share.
std::string FormOf(Dtype dtype, const Shape& shape) {
  return StrCat(DtypeName(dtype), " ", StrJoin(shape, ","));
}

std::string FormOf(const ArrayDescriptor& array) { return FormOf(array.dtype, array.shape); }

// Calls back for the next kTakenAtOnce objects of a mesh after the id `*last`, and advances
// `*last`. A callback may erase the object that it is called with. Returns true once the mesh has
// no more objects.
template <typename ByMesh, typename Callback>
bool ForSomeOf(ByMesh& by_mesh, std::string_view mesh_id, std::string* last,
               const Callback& callback) {
  const auto mesh = by_mesh.find(mesh_id);
  if (mesh == by_mesh.end()) return true;
  auto next = mesh->second.upper_bound(*last);
  for (size_t i = 0; i < kTakenAtOnce; ++i) {
    if (next == mesh->second.end()) return true;
    const auto each = next++;
    const bool is_last = next == mesh->second.end();
    if (i + 1 == kTakenAtOnce) *last = std::string(IdOf(*each));
    callback(*each);
    if (is_last) return true;  // the callback may have erased the mesh with its last object
  }
  return false;
}

}  // namespace

std::string_view ArrayStateName(ArrayState state) {
  switch (state) {
    case ArrayState::kStaging:
      return "STAGING";
    case ArrayState::kAvailable:
      return "AVAILABLE";
    case ArrayState::kDegraded:
      return "DEGRADED";
    case ArrayState::kReleased:
      return "RELEASED";
  }
  return "UNKNOWN";
}

struct ArrayRegistry::Pending {
  CommitRequest request;
  CommitCallback callback;
  std::vector<ArrayPtr> arrays;  // the request's arrays as committed, in the request's order
  absl::flat_hash_map<std::string_view, ArrayPtr> by_id = {};  // by array id
  std::vector<ManifestEntry> entries = {};  // entries of the names that get an array
  int64_t more_names = 0;                   // MoreNames(request)
  std::string manifest_id;                  // empty: the commit is one transaction
  std::vector<std::string> chunks;
  Transaction last;                   // the transaction that makes the manifest valid
  std::vector<std::string> given_up;  // arrays whose releases `last` records; pinned by the commit
};

ArrayRegistry::ArrayRegistry(Store* store, Clock* clock, ReleaseListener listener,
                             absl::Duration adoption_grace)
    : store_(store),
      clock_(clock),
      listener_(std::move(listener)),
      adoption_grace_(adoption_grace) {}

ArrayRegistry::~ArrayRegistry() {
  grace_alarm_.reset();
  auto idle = [this] {
    mutex_.AssertReaderHeld();
    return in_flight_ == 0;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&idle));
}

absl::StatusOr<std::unique_ptr<ArrayRegistry>> ArrayRegistry::Open(Store* store, Clock* clock,
                                                                   ReleaseListener listener,
                                                                   absl::Duration adoption_grace) {
  std::unique_ptr<ArrayRegistry> registry(
      new ArrayRegistry(store, clock, std::move(listener), adoption_grace));
  SHARDMESH_RETURN_IF_ERROR(registry->BeginTerm());
  SHARDMESH_ASSIGN_OR_RETURN(registry->requests_, RequestMemory::Open(store, clock));
  {
    absl::MutexLock lock(&registry->mutex_);
    SHARDMESH_RETURN_IF_ERROR(registry->Load());
  }
  registry->RewriteSparse();
  ArrayRegistry* const raw = registry.get();
  if (adoption_grace > absl::ZeroDuration()) {
    registry->grace_alarm_ = std::make_unique<Alarm>(clock, [raw] { raw->EndGrace(); });
    registry->grace_end_ = clock->Now() + adoption_grace;
    registry->grace_alarm_->SetNoLaterThan(registry->grace_end_);
  } else {
    registry->EndGrace();
  }
  return registry;
}

absl::Status ArrayRegistry::BeginTerm() {
  SHARDMESH_FAILPOINT("registry.begin_term");
  ClusterRecord cluster;
  Revision seen = 0;
  const absl::StatusOr<KeyValue> stored = store_->Get(kClusterKey);
  if (stored.ok()) {
    SHARDMESH_ASSIGN_OR_RETURN(cluster, DecodeCluster(stored->key, stored->value));
    seen = stored->mod_revision;
  } else if (absl::IsNotFound(stored.status())) {
    // Do not invent a new cluster id: workers would refuse it, and the content of the state would
    // be lost.
    if (store_->stats().unreadable_records > 0 || store_->revision() > 0) {
      return WithReason(
          absl::DataLossError("the record that says which cluster this state is of cannot be read, "
                              "or was set aside; take it from a snapshot with `shardmesh admin "
                              "check FOLDER --set-aside --cluster-of SNAPSHOT`, or restore the "
                              "snapshot with --restore"),
          Reason::kStoreFailed);
    }
    cluster.cluster_id = RandomId();
  } else {
    return stored.status();
  }
  ++cluster.term;
  SHARDMESH_RETURN_IF_ERROR(CheckTerm(cluster.term));
  SHARDMESH_ASSIGN_OR_RETURN(
      cluster_revision_,
      CommitAndWait(*store_, {.compares = {{std::string(kClusterKey), seen}},
                              .puts = {{std::string(kClusterKey), EncodeCluster(cluster)}},
                              .urgent = true}));
  cluster_id_ = cluster.cluster_id;
  term_ = cluster.term;
  return absl::OkStatus();
}

absl::Status ArrayRegistry::Load() {
  SHARDMESH_PASSES("registry.load");
  // The newest record of each name, and every array that has a record.
  struct Found {
    Revision revision = 0;
    std::string array_id;  // empty: deleted
    std::string manifest_id;
  };
  std::map<std::string, Found> names;
  std::map<std::string, ArrayPtr> arrays;
  std::map<std::string_view, Revision> revisions;  // by array: that of what `arrays` has
  std::set<std::string_view> cached;               // ids of arrays
  const auto found_name = [&](const std::string& name, Found found) {
    Found& newest = names[name];
    if (found.revision > newest.revision) newest = std::move(found);
  };

  // Load the readable records even if others are unreadable. An unreadable record might have
  // replaced or deleted a readable record. It is therefore unknown which records are obsolete:
  // remove no record.
  has_unreadable_ = store_->stats().unreadable_records > 0;
  is_damaged_ = has_unreadable_;
  const auto leave_out = [&](const std::string& key, const absl::Status& status) {
    is_damaged_ = true;
    left_out_.push_back(key);
    LogError("a record in the store cannot be read and is left out",
             {{"key", key}, {"error", status}});
  };
  if (const absl::StatusOr<KeyValue> stored = store_->Get(kRestoredKey); stored.ok()) {
    const absl::StatusOr<RestoredRecord> restored = DecodeRestored(stored->key, stored->value);
    if (restored.ok()) {
      restored_from_ = restored->digest;
      may_lack_names_ = restored->may_lack_names;
    } else {
      leave_out(stored->key, restored.status());
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored_arrays, store_->List(kArrayPrefix));
  for (const KeyValue& item : stored_arrays.items) {
    bool is_cached = false;
    absl::StatusOr<Array> array = DecodeArray(item.key, item.value, &is_cached);
    if (!array.ok()) {
      leave_out(item.key, array.status());
      continue;
    }
    const std::string_view id = std::string_view(item.key).substr(kArrayPrefix.size());
    if (is_cached) cached.insert(id);
    arrays[std::string(id)] = std::make_shared<const Array>(*std::move(array));
    revisions[id] = item.mod_revision;
  }
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored_names, store_->List(kNamePrefix));
  for (const KeyValue& item : stored_names.items) {
    absl::StatusOr<std::string> array_id = DecodeName(item.key, item.value);
    if (!array_id.ok()) {
      leave_out(item.key, array_id.status());
      continue;
    }
    found_name(item.key.substr(kNamePrefix.size()), {item.mod_revision, *std::move(array_id), ""});
  }
  // A manifest's record sorts before its chunks. Chunks without such a record are left over from an
  // interrupted commit.
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored_chunks, store_->List(kManifestPrefix));
  std::map<std::string, Revision> manifest_revisions;
  for (const KeyValue& item : stored_chunks.items) {
    const std::string path = item.key.substr(kManifestPrefix.size());
    const size_t slash = path.find('/');
    const std::string id = path.substr(0, slash);
    if (slash == std::string::npos) {
      const absl::StatusOr<int64_t> chunks = DecodeManifest(item.key, item.value);
      if (!chunks.ok()) {
        leave_out(item.key, chunks.status());
        continue;
      }
      manifests_[id].chunks = *chunks;
      manifest_revisions[id] = item.mod_revision;
      continue;
    }
    if (manifest_revisions.count(id) == 0) {
      dead_keys_.push_back(item.key);
      continue;
    }
    const auto entries = DecodeManifestChunk(item.key, item.value);
    if (!entries.ok()) {
      leave_out(item.key, entries.status());
      continue;
    }
    for (const ManifestEntry& entry : *entries) {
      const std::string& array_id = entry.array->definition.descriptor.array_id;
      const Revision version = entry.version > 0 ? entry.version : manifest_revisions[id];
      // The use of a cached array may have changed how many replicas it wants: the newest counts.
      const auto [place, is_new] = arrays.try_emplace(array_id);
      Revision& newest = revisions[place->first];
      if (is_new || version >= newest) {
        place->second = entry.array;
        newest = version;
      }
      manifests_[id].names.push_back(entry.name);
      ++manifest_mentions_[entry.name];
      found_name(entry.name, {version, array_id, id});
    }
  }

  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored_states, store_->List(kStatePrefix));
  for (const KeyValue& item : stored_states.items) {
    // Whatever the record has: its key says that the array is state.
    const std::string id = item.key.substr(kStatePrefix.size());
    if (const auto state = DecodeState(item.key, item.value); state.ok()) {
      least_state_steps_.emplace(id, state->step);
    } else {
      leave_out(item.key, state.status());
    }
    state_ids_.insert(id);
  }
  for (const std::string& id : state_ids_) {
    const auto array = arrays.find(id);
    if (array == arrays.end()) continue;
    array->second = std::make_shared<const Array>(AsState(*array->second));
  }
  for (const KeyValue& item : stored_names.items) {
    const bool outdated = names[item.key.substr(kNamePrefix.size())].revision != item.mod_revision;
    if (outdated) dead_keys_.push_back(item.key);
  }
  std::vector<std::string> given_up;
  for (auto& [name, found] : names) {
    if (found.array_id.empty()) {
      if (manifest_mentions_.count(name) == 0) dead_keys_.push_back(NameKey(name));
      continue;
    }
    // The name's own record is unreadable and newer than its entry in the manifest: the entry is
    // outdated.
    if (!found.manifest_id.empty() && has_unreadable_ &&
        store_->UnreadableRevision(NameKey(name)) > found.revision) {
      continue;
    }
    const auto array = arrays.find(found.array_id);
    if (array == arrays.end() && !has_unreadable_ && !restored_from_.empty() &&
        absl::IsNotFound(store_->Get(ArrayKey(found.array_id)).status())) {
      // The array's record was set aside. The array is thus unknown, and its tiles will go into
      // quarantine. Delete the name from the store as well. Each later start would otherwise report
      // the same problem.
      LogWarning("a name is given up: the record of its array was set aside",
                 {{"name", name}, {"array", found.array_id}});
      given_up.push_back(name);
      continue;
    }
    if (array == arrays.end()) {
      const std::string key = ArrayKey(found.array_id);
      unreadable_names_[name] = key;
      leave_out(NameKey(name), absl::DataLossError(StrCat("it points to the array of the record \"",
                                                          key, "\", which cannot be read")));
      continue;
    }
    AddArray(found.array_id, array->second);
    AddName({name, found.array_id, found.revision}, found.manifest_id);
  }
  // Released arrays whose release some ranks have not confirmed yet. A rank confirms by a message,
  // or by an inventory without the array.
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored_released, store_->List(kReleasedPrefix));
  for (const KeyValue& item : stored_released.items) {
    const absl::StatusOr<ReleasedRecord> record = DecodeReleased(item.key, item.value);
    if (!record.ok()) {
      leave_out(item.key, record.status());
      continue;
    }
    const auto batch = std::make_shared<ReleasedBatch>(ReleasedBatch{.key = item.key});
    for (const std::string& id : record->array_ids) {
      // A pin may have held the array, and a name that is lost may have taken the record back.
      if (item.key == ReleasedKey(id) && (is_damaged_ || may_lack_names_)) continue;
      if (arrays_.count(id) == 0) AddTombstone(id, record->mesh_id, record->ranks, batch);
    }
    if (batch->arrays == 0) dead_keys_.push_back(item.key);
  }
  std::vector<Released> companions;  // that their arrays gave up
  for (const KeyValue& item : stored_arrays.items) {
    const std::string id = item.key.substr(kArrayPrefix.size());
    if (arrays_.count(id) > 0 || arrays.count(id) == 0) continue;
    if (tombstones_.contains(id)) {
      dead_keys_.push_back(item.key);
      continue;
    }
    const ArrayDefinition& definition = arrays[id]->definition;
    // An array gives up its companion when it becomes cached. A name may be newer than that.
    const auto copied = arrays_.find(definition.replica_of);
    const bool is_of_cached = cached.contains(definition.replica_of) &&
                              (copied == arrays_.end() || copied->second.names == 0);
    // A pin may have held it when its array gave it up.
    const auto owner = arrays.find(definition.replica_of);
    const bool is_unwanted = owner != arrays.end() && owner->second->definition.replicas < 2;
    if ((tombstones_.contains(definition.replica_of) || is_of_cached || is_unwanted) &&
        !is_damaged_ && !may_lack_names_) {
      companions.push_back({.array_id = id,
                            .mesh_id = definition.descriptor.mesh_id,
                            .ranks = definition.descriptor.mesh.size(),
                            .durable = true});
      dead_keys_.push_back(item.key);
      continue;
    }
    // The array has a record but no name. Either a session held the array when its last name was
    // deleted, or the release of the array was interrupted. If some records are unreadable, one of
    // them may hold a name of the array: keep the array.
    ArrayEntry& entry = AddArray(id, arrays[id]);
    if (cached.contains(id) && !is_damaged_ && !may_lack_names_) {
      AddToCache(arrays_.find(id));
      continue;
    }
    entry.pins = 1;
    entry.is_kept_for_grace = !is_damaged_;
    entry.has_record = true;
  }
  for (auto& [id, entry] : arrays_) {
    if (!entry.array->definition.replica_of.empty()) AddCompanion(id, entry.pins > 0);
  }
  for (const std::string& id : state_ids_) {
    if (const auto found = arrays_.find(id); found != arrays_.end()) {
      found->second.state_step = std::nullopt;
    }
  }
  for (const auto& [id, entry] : arrays_) {
    NoteIfUnreplicated(id, entry);
    if (entry.names == 0 && entry.cached_as == 0 && !IsCompanion(id, entry)) unnamed_.insert(id);
  }
  if (is_damaged_ || may_lack_names_) {
    for (auto& [id, entry] : arrays_) {
      entry.adopted_from.resize(
          static_cast<size_t>(entry.array->definition.descriptor.mesh.size()));
      entry.may_lack_names = true;
    }
  }
  for (auto manifest = manifests_.begin(); manifest != manifests_.end();) {
    const auto next = std::next(manifest);
    // If records are damaged, all manifests stay in the store with their names. Keep the manifests
    // in memory as well: a later deletion of such a name must be recorded in the store.
    if (manifest->second.current_names == 0 && !is_damaged_) {
      DropManifest(manifest);
    } else {
      NoteIfSparse(manifest->first);
    }
    manifest = next;
  }
  if (is_damaged_) dead_keys_.clear();
  newly_cached_.clear();  // they have their records
  AddTombstones(companions);
  FlushReleased();
  GiveUp(given_up);
  return absl::OkStatus();
}

void ArrayRegistry::GiveUp(const std::vector<std::string>& names) {
  for (size_t begin = 0; begin < names.size(); begin += kMaxSmallOperations) {
    Transaction transaction = Fenced();
    transaction.urgent = true;
    const size_t end = std::min(names.size(), begin + kMaxSmallOperations);
    for (size_t i = begin; i < end; ++i) {
      if (manifest_mentions_.contains(names[i])) {
        transaction.puts.push_back({NameKey(names[i]), EncodeName("")});
      } else {
        transaction.deletes.push_back(NameKey(names[i]));
      }
    }
    CommitToStore(std::move(transaction), [](const absl::StatusOr<Revision>&) {});
  }
}

absl::Status ArrayRegistry::CheckStage(const ArrayDescriptor& descriptor) const {
  absl::MutexLock lock(&mutex_);
  return CheckMeshStays(descriptor);
}

absl::Status ArrayRegistry::CheckMeshStays(const ArrayDescriptor& descriptor) const {
  if (!changing_meshes_.contains(descriptor.mesh_id) &&
      !HasMeshChanged(descriptor.mesh_id, descriptor.mesh_revision)) {
    return absl::OkStatus();
  }
  return WithReason(
      absl::AbortedError(StrCat("the mesh \"", descriptor.mesh_id,
                                "\" is being changed, or was since "
                                "revision ",
                                descriptor.mesh_revision, "; look it up and try again")),
      Reason::kVersionMismatch,
      {{fact::kKind, "mesh"},
       {fact::kName, descriptor.mesh_id},
       {fact::kNeed, descriptor.mesh_revision}});
}

bool ArrayRegistry::HasMeshChanged(std::string_view mesh_id, Revision revision) const {
  const auto floor = mesh_floors_.find(mesh_id);
  return floor != mesh_floors_.end() && revision < floor->second;
}

absl::Status ArrayRegistry::Stage(ArrayDefinition definition) {
  SHARDMESH_PASSES("registry.stage");
  SHARDMESH_RETURN_IF_ERROR(definition.descriptor.Tiling().status());
  auto array = std::make_shared<Array>();
  array->definition = std::move(definition);
  const std::string& id = array->definition.descriptor.array_id;
  absl::MutexLock lock(&mutex_);
  SHARDMESH_RETURN_IF_ERROR(CheckMeshStays(array->definition.descriptor));
  if (arrays_.count(id) > 0) {
    return WithReason(absl::AlreadyExistsError(StrCat("array \"", id, "\" exists")),
                      Reason::kAlreadyExists, {{fact::kKind, "array"}, {fact::kName, id}});
  }
  AddArray(id, array);
  return absl::OkStatus();
}

void ArrayRegistry::Discard(const std::vector<std::string>& array_ids) {
  SHARDMESH_PASSES("registry.discard");
  DiscardStaged(array_ids);
  events_.MakeCalls();
}

void ArrayRegistry::DiscardStaged(const std::vector<std::string>& array_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& id : array_ids) {
    const auto found = arrays_.find(id);
    if (found == arrays_.end() || found->second.array->state != ArrayState::kStaging ||
        committing_arrays_.contains(id)) {
      continue;
    }
    for (const ArrayEntry::Waiting& waiting : found->second.waiting) {
      InventoryVerdict verdict;
      if (waiting.committed) {
        verdict.quarantine.push_back({id, waiting.tile, "its array could not be restored", false});
      } else {
        verdict.drop.push_back(id);
      }
      AddVerdict(waiting.identity, std::move(verdict));
    }
    EraseArray(found);
    if (discarded_.insert(id).second) {
      discarded_order_.push_back(id);
      if (discarded_order_.size() > kMaxDiscarded) {
        discarded_.erase(discarded_order_.front());
        discarded_order_.pop_front();
      }
    }
  }
}

void ArrayRegistry::Commit(CommitRequest request, CommitCallback callback) {
  SHARDMESH_PASSES("registry.commit");
  auto pending = std::make_shared<Pending>();
  pending->request = std::move(request);
  pending->callback = std::move(callback);
  bool needs_chunks = false;
  {
    absl::MutexLock lock(&mutex_);
    std::optional<MissingName> missing;
    if (absl::Status status = CheckCommit(pending->request, &missing); !status.ok()) {
      requests_->Abandon(pending->request.request_id);
      events_.Add([pending, status = std::move(status), missing = std::move(missing)] {
        std::move(pending->callback)(missing.has_value() ? NoName(*missing) : status);
      });
    } else {
      const absl::Time now = clock_->Now();
      for (const ArrayCommit& commit : pending->request.arrays) {
        ArrayEntry& entry = arrays_.find(commit.array_id)->second;
        ForgetLosses(entry, commit.epoch);
        auto array = std::make_shared<Array>(*entry.array);
        array->state = ArrayState::kAvailable;
        array->durability = commit.durability;
        array->tile_crc32c = commit.tile_crc32c;
        array->created = now;
        const std::string& id = array->definition.descriptor.array_id;
        pending->by_id.emplace(id, array);
        pending->arrays.push_back(std::move(array));
        committing_arrays_.insert(commit.array_id);
      }
      for (const std::string& id : pending->request.updated) {
        const auto found = FindLive(id);
        if (found != arrays_.end()) found->second.is_committing_update = true;
      }
      pending->more_names = MoreNames(pending->request);
      names_to_come_ += pending->more_names;
      for (const NameMove& move : pending->request.moves) {
        moving_names_.insert(move.name);
        if (move.array_id.empty()) continue;
        ArrayEntry& entry = arrays_.find(move.array_id)->second;
        ++entry.pins;
        ++entry.names_to_come;
      }
      Write(pending.get());
      if (pending->manifest_id.empty()) WriteReleases(pending.get());
      if (!pending->manifest_id.empty()) {
        needs_chunks = true;
      } else if (pending->last.puts.empty() && pending->last.deletes.empty()) {
        events_.Add([this, pending] { Finish(pending, 0); });
      } else {
        CommitToStore(std::move(pending->last), [this, pending](absl::StatusOr<Revision> revision) {
          Finish(pending, std::move(revision));
        });
      }
    }
  }
  if (needs_chunks) {
    // Encode without the lock. Until Finish, no other commit moves these names or changes these
    // arrays.
    MakeChunks(pending.get());
    absl::MutexLock lock(&mutex_);
    WriteChunk(pending, 0);
  }
  events_.MakeCalls();
}

absl::Status ArrayRegistry::CheckCommit(const CommitRequest& request,
                                        std::optional<MissingName>* missing) const {
  std::set<std::string_view> staged;
  for (const ArrayCommit& commit : request.arrays) {
    const auto found = arrays_.find(commit.array_id);
    if (found == arrays_.end() || found->second.array->state != ArrayState::kStaging) {
      return WithReason(absl::NotFoundError(StrCat("no staged array \"", commit.array_id, "\"")),
                        Reason::kNotFound,
                        {{fact::kKind, "array"}, {fact::kName, commit.array_id}});
    }
    if (committing_arrays_.contains(commit.array_id) || !staged.insert(commit.array_id).second) {
      return absl::AbortedError(
          StrCat("array \"", commit.array_id, "\" is being committed by another request"));
    }
    const int64_t ranks = found->second.array->definition.descriptor.mesh.size();
    if (static_cast<int64_t>(commit.tile_crc32c.size()) != ranks) {
      return WithReason(absl::InvalidArgumentError(
                            StrCat("array \"", commit.array_id, "\" has ", ranks, " tiles and ",
                                   commit.tile_crc32c.size(), " checksums; give one per rank")),
                        Reason::kBadField,
                        {{fact::kField, "tile_crc32c"}, {fact::kValue, commit.tile_crc32c.size()}});
    }
    const std::string& replica_of = found->second.array->definition.replica_of;
    if (replica_of.empty()) continue;
    const auto copied = arrays_.find(replica_of);
    if (copied == arrays_.end() || copied->second.array->state == ArrayState::kStaging ||
        copied->second.cached_as > 0 || copied->second.wants_no_companion ||
        !copied->second.companion.empty() || !copied->second.release_key.empty()) {
      return absl::AbortedError(StrCat("array \"", replica_of,
                                       "\" was released meanwhile, has a companion already, or "
                                       "wants none any more"));
    }
  }
  for (const std::string& id : request.reused) {
    if (!state_ids_.contains(id)) continue;
    return absl::AbortedError(
        StrCat("array \"", id,
               "\", whose content was to be used again, has become state that "
               "steps update; put it again"));
  }
  std::set<std::string_view> names;
  size_t deletions = 2 * request.superseded.size();
  for (const NameMove& move : request.moves) {
    SHARDMESH_RETURN_IF_ERROR(CheckMove(move, missing));
    if (!names.insert(move.name).second) {
      return WithReason(
          absl::InvalidArgumentError(StrCat("name \"", move.name, "\" is moved twice")),
          Reason::kBadField, {{fact::kValue, move.name}});
    }
    if (!move.array_id.empty()) {
      const auto found = FindLive(move.array_id);
      const bool there =
          found != arrays_.end() &&
          (found->second.array->state != ArrayState::kStaging || staged.count(move.array_id) > 0);
      if (!there) return NoArray(move.array_id);
      if (found->second.is_given) return Given(move.array_id);
    } else {
      ++deletions;
    }
  }
  if (deletions > kMaxSmallOperations) {
    return WithReason(
        absl::InvalidArgumentError(StrCat("a commit deletes at most ", kMaxSmallOperations,
                                          " names, of which each superseded array counts as two; "
                                          "this one has ",
                                          deletions, "; split it")),
        Reason::kLimitExceeded, {{fact::kHave, deletions}, {fact::kLimit, kMaxSmallOperations}});
  }
  return CheckRoom(MoreNames(request));
}

int64_t ArrayRegistry::MoreNames(const CommitRequest& request) const {
  int64_t more = 0;
  for (const NameMove& move : request.moves) {
    if (move.array_id.empty()) {
      --more;
    } else if (names_.find(move.name) == names_.end()) {
      ++more;
    }
  }
  return std::max<int64_t>(more, 0);
}

absl::Status ArrayRegistry::CheckRoom(int64_t more_names) const {
  const int64_t have = std::ssize(names_) + names_to_come_;
  if (more_names == 0 || have + more_names <= max_names_) return absl::OkStatus();
  return WithReason(
      absl::ResourceExhaustedError(StrCat("there are ", have, " names, and ", more_names,
                                          " more would exceed the limit of ", max_names_,
                                          "; delete some, or start the coordinator with more "
                                          "--max-names")),
      Reason::kLimitExceeded, {{fact::kHave, have + more_names}, {fact::kLimit, max_names_}});
}

absl::Status ArrayRegistry::CheckRoomForNames(int64_t more) const {
  absl::MutexLock lock(&mutex_);
  return CheckRoom(more);
}

absl::Status ArrayRegistry::CheckNewName(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  std::optional<MissingName> missing;
  SHARDMESH_RETURN_IF_ERROR(
      CheckMove({.name = name, .array_id = "any", .expected_version = 0}, &missing));
  return CheckRoom(1);
}

absl::Status ArrayRegistry::CheckNameMove(const NameMove& move) const {
  CommitRequest request;
  request.moves.push_back(move);
  std::optional<MissingName> missing;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    status = CheckCommit(request, &missing);
  }
  return missing.has_value() ? NoName(*missing) : status;
}

absl::Status ArrayRegistry::CheckMove(const NameMove& move,
                                      std::optional<MissingName>* missing) const {
  SHARDMESH_RETURN_IF_ERROR(CheckName(move.name));
  if (moving_names_.contains(move.name)) {
    return WithReason(absl::AbortedError(StrCat("name \"", move.name,
                                                "\" is being moved by another request; retry")),
                      Reason::kVersionMismatch, {{fact::kKind, "name"}, {fact::kName, move.name}});
  }
  const auto found = names_.find(move.name);
  const int64_t version = found == names_.end() ? 0 : found->second.entry.version;
  if (move.expected_version.has_value() || move.array_id.empty()) {
    SHARDMESH_RETURN_IF_ERROR(CheckReadable(move.name));
  }
  if (move.expected_version.has_value() && *move.expected_version != version) {
    return WithReason(absl::AbortedError(StrCat(
                          "name \"", move.name, "\" is at version ", version, ", expected ",
                          *move.expected_version, version == 0 ? " (there is no such name)" : "",
                          *move.expected_version == 0 ? " (a new name); choose another name"
                                                      : "; look it up again and retry")),
                      Reason::kVersionMismatch,
                      {{fact::kKind, "name"},
                       {fact::kName, move.name},
                       {fact::kHave, version},
                       {fact::kNeed, *move.expected_version}});
  }
  if (move.array_id.empty() && version == 0) {
    *missing = Missing(move.name);
    return absl::NotFoundError("no such name");
  }
  return absl::OkStatus();
}

void ArrayRegistry::Write(Pending* pending) {
  SHARDMESH_PASSES("registry.write");
  const CommitRequest& request = pending->request;
  Transaction& last = pending->last;
  last = Fenced();
  std::vector<ManifestEntry>& entries = pending->entries;
  std::set<std::string_view> written;
  for (const NameMove& move : request.moves) {
    if (move.array_id.empty()) {
      // Record the deletion if a manifest mentions the name, or if an unreadable record may mention
      // it.
      if (has_unreadable_ || manifest_mentions_.contains(move.name)) {
        last.puts.push_back({NameKey(move.name), EncodeName("")});
      } else {
        last.deletes.push_back(NameKey(move.name));
      }
      continue;
    }
    const auto committed = pending->by_id.find(move.array_id);
    entries.push_back({move.name, committed != pending->by_id.end()
                                      ? committed->second
                                      : arrays_.find(move.array_id)->second.array});
  }
  std::vector<Put> puts;
  for (const ArrayPtr& array : pending->arrays) {
    if (array->definition.replica_of.empty()) continue;
    const std::string& id = array->definition.descriptor.array_id;
    if (written.insert(id).second) puts.push_back({ArrayKey(id), EncodeArray(*array)});
  }
  size_t bytes = request.answer.size();
  // WriteReleases adds a record and a deletion for each superseded array.
  const size_t others = last.puts.size() + last.deletes.size() + 2 * request.superseded.size();
  for (const ManifestEntry& entry : entries) {
    const std::string& id = entry.array->definition.descriptor.array_id;
    if (written.insert(id).second) puts.push_back({ArrayKey(id), EncodeArray(*entry.array)});
    puts.push_back({NameKey(entry.name), EncodeName(id)});
    if (puts.size() + others > kMaxSmallOperations) break;
  }
  for (const Put& put : puts) bytes += put.key.size() + put.value.size();
  // Deletions stay in the last transaction. If there are only deletions, a manifest would not make
  // that transaction smaller.
  if (entries.empty() || (bytes <= kMaxSmallBytes && puts.size() + others <= kMaxSmallOperations)) {
    for (Put& put : puts) last.puts.push_back(std::move(put));
  } else {
    pending->manifest_id = RandomId();
    last.compares.push_back({ManifestKey(pending->manifest_id), 0});
  }
  requests_->AddTo(&last, request.request_id, request.answer);
  // A transaction that only deletes names frees space.
  last.urgent = !request.moves.empty() && entries.empty();
  if (last.puts.empty() && last.deletes.empty() && pending->manifest_id.empty()) return;
  // With the names that move to the step's results. If this coordinator ends before the workers
  // hear of the commit, the next one must not take the updated arrays as they were before.
  for (const std::string& id : request.updated) {
    last.puts.push_back({StateKey(id), EncodeState({.array_id = id, .step = request.step})});
  }
}

void ArrayRegistry::WriteReleases(Pending* pending) {
  const CommitRequest& request = pending->request;
  if (request.superseded.empty()) return;
  std::map<std::string_view, int64_t> leaving;  // by array: how many of its names move
  for (const NameMove& move : request.moves) {
    const auto name = names_.find(move.name);
    if (name != names_.end()) ++leaving[name->second.entry.array_id];
  }
  const std::set<std::string_view> superseded(request.superseded.begin(), request.superseded.end());
  for (const std::string_view id : superseded) {
    const auto found = FindLive(id);
    if (found == arrays_.end()) continue;
    ArrayEntry& entry = found->second;
    const bool has_name = entry.names + entry.names_to_come > leaving[id];
    const bool was_named = entry.was_named || entry.has_record;
    if (has_name || !was_named || entry.may_lack_names || !entry.release_key.empty() ||
        entry.array->state == ArrayState::kStaging || IsCompanion(id, entry)) {
      continue;
    }
    const ArrayDescriptor& descriptor = entry.array->definition.descriptor;
    pending->last.puts.push_back({ReleasedKey(id), EncodeReleased({.mesh_id = descriptor.mesh_id,
                                                                   .ranks = descriptor.mesh.size(),
                                                                   .array_ids = {found->first}})});
    pending->last.deletes.push_back(ArrayKey(id));
    pending->given_up.push_back(found->first);
    ++entry.pins;
  }
}

void ArrayRegistry::MakeChunks(Pending* pending) {
  pending->chunks = EncodeManifestChunks(std::exchange(pending->entries, {}));
  pending->last.puts.push_back({ManifestKey(pending->manifest_id),
                                EncodeManifest(static_cast<int64_t>(pending->chunks.size()))});
}

void ArrayRegistry::WriteChunk(std::shared_ptr<Pending> pending, size_t next) {
  if (next == pending->chunks.size()) {
    WriteReleases(pending.get());
    Transaction last = std::move(pending->last);
    CommitToStore(std::move(last), [this, pending](absl::StatusOr<Revision> revision) {
      Finish(pending, std::move(revision));
    });
    return;
  }
  Transaction chunk = Fenced();
  chunk.puts.push_back({ChunkKey(pending->manifest_id, static_cast<int64_t>(next)),
                        std::move(pending->chunks[next])});
  CommitToStore(std::move(chunk), [this, pending, next](absl::StatusOr<Revision> revision) {
    if (!revision.ok()) {
      Finish(pending, std::move(revision));
      return;
    }
    absl::MutexLock lock(&mutex_);
    WriteChunk(pending, next + 1);
  });
}

void ArrayRegistry::Finish(const std::shared_ptr<Pending>& pending,
                           absl::StatusOr<Revision> revision) {
  SHARDMESH_PASSES("registry.finish");
  // The last transaction compares only the fence and the absence of its new manifest. A failed
  // compare therefore means that another coordinator has written `cluster`.
  if (absl::IsAborted(revision.status())) {
    revision = WithReason(
        absl::FailedPreconditionError("another coordinator has taken over this store; stop this "
                                      "one"),
        Reason::kStaleTerm, {{fact::kHave, term_}});
  }
  {
    absl::MutexLock lock(&mutex_);
    const CommitRequest& request = pending->request;
    for (const ArrayCommit& commit : request.arrays) committing_arrays_.erase(commit.array_id);
    for (const NameMove& move : request.moves) moving_names_.erase(move.name);
    names_to_come_ -= pending->more_names;
    if (revision.ok()) {
      requests_->Finish(request.request_id, *revision);
      Apply(*pending, *revision);
    } else {
      requests_->Abandon(request.request_id);
      for (size_t i = 0; i < pending->chunks.size(); ++i) {
        dead_keys_.push_back(ChunkKey(pending->manifest_id, static_cast<int64_t>(i)));
      }
    }
    EndUpdates(request, revision.ok());
    // Undo the commit's own pins only after each name points to its new array. If a name moves to
    // the array that it already has, only the pin keeps that array during the move.
    for (const NameMove& move : request.moves) {
      if (move.array_id.empty()) continue;
      ArrayEntry& entry = arrays_.find(move.array_id)->second;
      --entry.pins;
      --entry.names_to_come;
      ReleaseIfUnheld(move.array_id);
    }
    for (const std::string& id : pending->given_up) {
      --arrays_.find(id)->second.pins;
      ReleaseIfUnheld(id);
    }
    events_.Add([pending, result = std::move(revision)] {
      if (result.ok()) {
        std::move(pending->callback)(CommitResult{*result});
      } else {
        std::move(pending->callback)(result.status());
      }
    });
    FlushReleased();
  }
  events_.MakeCalls();
  RewriteSparse();
}

void ArrayRegistry::EndUpdates(const CommitRequest& request, bool is_committed) {
  for (const std::string& id : request.updated) {
    const auto found = FindLive(id);
    if (found == arrays_.end()) continue;
    ArrayEntry& entry = found->second;
    entry.is_committing_update = false;
    const std::vector<int64_t> recounted_ranks = std::exchange(entry.recounted_ranks, {});
    if (!is_committed) continue;
    entry.state_step = request.step;
    for (const int64_t rank : recounted_ranks) SetMissing(entry, rank, true);
    if (recounted_ranks.empty()) continue;
    Tell(ArrayChange{.array_id = id, .mesh_id = entry.array->definition.descriptor.mesh_id});
  }
}

void ArrayRegistry::Apply(const Pending& pending, Revision revision) {
  SHARDMESH_PASSES("registry.apply");
  for (const ArrayPtr& array : pending.arrays) {
    ArrayEntry& entry = arrays_.find(array->definition.descriptor.array_id)->second;
    // Ranks may have been lost since the commit began.
    SetArray(entry, WithMissing(*array, Current(entry)->missing_ranks));
    // Sessions may have taken over an array whose tiles are restored from quarantine.
    entry.pins += TakeAwaited(array->definition.descriptor.array_id).value_or(0);
    for (const ArrayEntry::Waiting& waiting : std::exchange(entry.waiting, {})) {
      const std::string& id = array->definition.descriptor.array_id;
      InventoryVerdict verdict;
      if (array->tile_crc32c[static_cast<size_t>(waiting.rank)] == waiting.crc32c) {
        verdict.commit.push_back(id);
      } else {
        SetMissing(entry, waiting.rank, true);
        verdict.quarantine.push_back(
            {id, waiting.tile, OtherChecksum(waiting.crc32c, *array, waiting.rank), true});
      }
      AddVerdict(waiting.identity, std::move(verdict));
    }
    const ArrayDescriptor& descriptor = array->definition.descriptor;
    if (array->definition.replica_of.empty()) {
      Tell(ArrayChange{.array_id = descriptor.array_id, .mesh_id = descriptor.mesh_id});
    } else {  // watchers hear of the companion's array only
      AddCompanion(descriptor.array_id, /*has_pin=*/false);
    }
    NoteIfUnreplicated(descriptor.array_id, entry);
  }
  if (!pending.manifest_id.empty()) {
    Manifest& manifest = manifests_[pending.manifest_id];
    manifest.chunks = static_cast<int64_t>(pending.chunks.size());
    for (const NameMove& move : pending.request.moves) {
      if (move.array_id.empty()) continue;
      manifest.names.push_back(move.name);
      ++manifest_mentions_[move.name];
    }
  }
  NoteSuperseded(pending.request.moves);
  for (const std::string& id : pending.given_up) {
    arrays_.find(id)->second.release_key = ReleasedKey(id);
  }
  for (const NameMove& move : pending.request.moves) {
    const bool own_key = pending.manifest_id.empty() || move.array_id.empty();
    // Report the name before releasing its former array. Watchers therefore never see a name whose
    // array is deleted.
    Tell(NameChange{.name = move.name, .array_id = move.array_id, .version = revision});
    if (const auto old = names_.find(move.name); old != names_.end()) DropName(old, own_key);
    unreadable_names_.erase(move.name);
    if (!move.array_id.empty()) {
      AddName({move.name, move.array_id, revision}, pending.manifest_id);
    }
  }
  for (const ArrayPtr& array : pending.arrays) {
    ReleaseIfUnheld(array->definition.descriptor.array_id);
  }
}

void ArrayRegistry::NoteSuperseded(absl::Span<const NameMove> moves) {
  if (!is_caching_) return;
  std::set<std::string> origins;
  for (const NameMove& move : moves) {
    const auto named = arrays_.find(move.array_id);
    if (named != arrays_.end()) origins.insert(named->second.array->definition.origin_key());
  }
  origins.erase("");
  if (origins.empty()) return;
  for (const NameMove& move : moves) {
    const auto name = names_.find(move.name);
    if (name == names_.end() || name->second.entry.array_id == move.array_id) continue;
    ArrayEntry& old = arrays_.find(name->second.entry.array_id)->second;
    old.is_superseded = origins.contains(old.array->definition.origin_key());
  }
}

ArrayRegistry::ArrayEntry& ArrayRegistry::AddArray(const std::string& array_id, ArrayPtr array) {
  const auto [added, is_new] = arrays_.try_emplace(array_id);
  if (is_new) {
    arrays_by_mesh_[array->definition.descriptor.mesh_id].emplace(added->first, &added->second);
    arrays_by_form_[FormOf(array->definition.descriptor)].emplace(added->first, &added->second);
    if (std::string key = array->definition.origin_key(); !key.empty()) {
      ids_by_origin_[std::move(key)].insert(array_id);
    }
  }
  SetArray(added->second, std::move(array));
  return added->second;
}

void ArrayRegistry::SetArray(ArrayEntry& entry, ArrayPtr array) {
  if (entry.array != nullptr) Count(entry, -1);
  entry.missing.assign(static_cast<size_t>(array->definition.descriptor.mesh.size()), false);
  for (const int64_t rank : array->missing_ranks) entry.missing[static_cast<size_t>(rank)] = true;
  entry.missing_count = std::ssize(array->missing_ranks);
  entry.array = std::move(array);
  entry.is_outdated = false;
  Count(entry, 1);
}

void ArrayRegistry::SetMissing(ArrayEntry& entry, int64_t rank, bool is_missing) {
  const auto place = static_cast<size_t>(rank);
  if (place >= entry.missing.size() || entry.missing[place] == is_missing) return;
  Count(entry, -1);
  entry.missing[place] = is_missing;
  entry.missing_count += is_missing ? 1 : -1;
  entry.is_outdated = true;
  Count(entry, 1);
}

void ArrayRegistry::ForgetLosses(ArrayEntry& entry, int64_t epoch) {
  if (entry.missing_count == 0) return;
  const std::string& mesh_id = entry.array->definition.descriptor.mesh_id;
  for (int64_t rank = 0; rank < std::ssize(entry.missing); ++rank) {
    if (!entry.missing[static_cast<size_t>(rank)]) continue;
    const auto presence = presence_.find({mesh_id, rank});
    if (presence == presence_.end()) continue;
    const std::optional<int64_t> lost = presence->second.lost_epoch;
    if (lost.has_value() && *lost <= epoch) SetMissing(entry, rank, false);
  }
}

const ArrayPtr& ArrayRegistry::Current(const ArrayEntry& entry) const {
  if (std::exchange(entry.is_outdated, false)) {
    std::vector<int64_t> missing;
    missing.reserve(static_cast<size_t>(entry.missing_count));
    for (size_t rank = 0; rank < entry.missing.size(); ++rank) {
      if (entry.missing[rank]) missing.push_back(static_cast<int64_t>(rank));
    }
    entry.array = WithMissing(*entry.array, std::move(missing));
  }
  return entry.array;
}

void ArrayRegistry::Count(const ArrayEntry& entry, int64_t change) {
  if (entry.cached_as > 0) return;
  const bool is_companion = !entry.array->definition.replica_of.empty();
  AddTo(StateOf(entry), change, is_companion ? &companion_counts_ : &counts_);
}

ArrayState ArrayRegistry::StateOf(const ArrayEntry& entry) {
  if (entry.array->state == ArrayState::kStaging) return ArrayState::kStaging;
  return entry.missing_count == 0 ? ArrayState::kAvailable : ArrayState::kDegraded;
}

void ArrayRegistry::Tell(ClusterChange::Value change) {
  if (changes_ == nullptr || !changes_->is_watched()) return;
  events_.Add([changes = changes_, change = std::move(change)] { changes->Add(change); });
}

void ArrayRegistry::EraseArray(Arrays::iterator entry) {
  Count(entry->second, -1);
  TakeFrom(arrays_by_mesh_, entry->second.array->definition.descriptor.mesh_id, entry->first);
  TakeFrom(arrays_by_form_, FormOf(entry->second.array->definition.descriptor), entry->first);
  unnamed_.erase(entry->first);
  unreplicated_.erase(entry->first);
  if (state_ids_.erase(entry->first) > 0) dead_keys_.push_back(StateKey(entry->first));
  least_state_steps_.erase(entry->first);
  EraseOrigin(entry->second.array->definition.origin_key(), entry->first);
  for (const std::string& key : entry->second.other_origins) EraseOrigin(key, entry->first);
  arrays_.erase(entry);
}

void ArrayRegistry::EraseOrigin(const std::string& key, const std::string& array_id) {
  const auto origin = ids_by_origin_.find(key);
  if (origin == ids_by_origin_.end()) return;
  origin->second.erase(array_id);
  if (origin->second.empty()) ids_by_origin_.erase(origin);
}

void ArrayRegistry::AddOrigin(std::string_view array_id, const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end() || key.empty() || found->second.array->definition.is_state) return;
  if (!ids_by_origin_[key].insert(found->first).second) return;
  std::vector<std::string>& others = found->second.other_origins;
  if (others.size() == kOtherOrigins) {
    EraseOrigin(others.front(), found->first);
    others.erase(others.begin());
  }
  others.push_back(key);
}

void ArrayRegistry::AddCompanion(const std::string& companion_id, bool has_pin) {
  ArrayEntry& companion = arrays_.find(companion_id)->second;
  companion.was_named = true;
  const auto copied = arrays_.find(companion.array->definition.replica_of);
  if (copied == arrays_.end() || copied->first == companion_id || copied->second.cached_as > 0 ||
      copied->second.wants_no_companion || !copied->second.companion.empty()) {
    return;
  }
  copied->second.companion = companion_id;
  if (!has_pin) ++companion.pins;
  companion.is_kept_for_grace = false;
  unreplicated_.erase(copied->first);
  // The array itself has not changed, but the number of its complete replicas has.
  Tell(ArrayChange{.array_id = copied->first,
                   .mesh_id = copied->second.array->definition.descriptor.mesh_id});
}

bool ArrayRegistry::IsCompanion(std::string_view array_id, const ArrayEntry& entry) const {
  const auto copied = arrays_.find(entry.array->definition.replica_of);
  return copied != arrays_.end() && copied->second.companion == array_id;
}

void ArrayRegistry::NoteIfUnreplicated(std::string_view array_id, const ArrayEntry& entry) {
  if (entry.array->definition.replicas < 2 || !entry.companion.empty() ||
      entry.array->state == ArrayState::kStaging) {
    return;
  }
  unreplicated_.emplace(array_id);
  if (entry.names > 0 && replica_listener_) events_.Add([this] { replica_listener_(); });
}

std::vector<ArrayPtr> ArrayRegistry::ListUnreplicated(std::string_view start_after,
                                                      int64_t limit) const {
  std::vector<ArrayPtr> page;
  absl::MutexLock lock(&mutex_);
  for (auto id = unreplicated_.upper_bound(start_after);
       id != unreplicated_.end() && std::ssize(page) < limit; ++id) {
    const ArrayEntry& entry = arrays_.find(*id)->second;
    if (entry.names > 0) page.push_back(Current(entry));
  }
  return page;
}

ArrayPtr ArrayRegistry::FindTwin(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return nullptr;
  const ArrayEntry& entry = found->second;
  if (entry.companion.empty() && !IsCompanion(array_id, entry)) return nullptr;
  const auto twin =
      arrays_.find(entry.companion.empty() ? entry.array->definition.replica_of : entry.companion);
  return twin == arrays_.end() ? nullptr : Current(twin->second);
}

int64_t ArrayRegistry::ReplicasOf(std::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return 1;
  return arrays_.find(found->second.entry.array_id)->second.array->definition.replicas;
}

void ArrayRegistry::AddName(NameEntry entry, std::string manifest_id) {
  ArrayEntry& array = arrays_.find(entry.array_id)->second;
  // Only an array with a name is copied. It may have been committed without one.
  if (++array.names == 1) NoteIfUnreplicated(entry.array_id, array);
  array.checked_as = 0;
  array.was_named = true;
  array.is_superseded = false;
  if (std::exchange(array.is_kept_for_grace, false)) --array.pins;  // the name holds it now
  if (!array.release_key.empty()) dead_keys_.push_back(std::exchange(array.release_key, {}));
  unnamed_.erase(entry.array_id);
  if (!manifest_id.empty()) ++manifests_[manifest_id].current_names;
  std::string name = entry.name;
  names_[std::move(name)] = {std::move(entry), std::move(manifest_id)};
}

void ArrayRegistry::DropName(Names::iterator name, bool key_stays) {
  const Name old = std::move(name->second);
  names_.erase(name);
  AddFormer(old.entry);
  if (old.manifest_id.empty()) {
    if (!key_stays) dead_keys_.push_back(NameKey(old.entry.name));
  } else if (const auto manifest = manifests_.find(old.manifest_id);
             --manifest->second.current_names == 0) {
    DropManifest(manifest);
  } else {
    NoteIfSparse(old.manifest_id);
  }
  --arrays_.find(old.entry.array_id)->second.names;
  ReleaseIfUnheld(old.entry.array_id);
}

void ArrayRegistry::AddFormer(NameEntry former) {
  std::vector<NameEntry>& all = arrays_.find(former.array_id)->second.former;
  if (all.size() == kFormerVersions) {
    former_.erase({all.front().name, all.front().version});
    all.erase(all.begin());
  }
  former_[{former.name, former.version}] = former.array_id;
  all.push_back(std::move(former));
}

void ArrayRegistry::DropManifest(std::map<std::string, Manifest>::iterator manifest) {
  // Delete the manifest's record first: without it, remaining chunks are invalid.
  dead_keys_.push_back(ManifestKey(manifest->first));
  for (int64_t chunk = 0; chunk < manifest->second.chunks; ++chunk) {
    dead_keys_.push_back(ChunkKey(manifest->first, chunk));
  }
  for (const std::string& name : manifest->second.names) {
    const auto mentions = manifest_mentions_.find(name);
    if (--mentions->second == 0) manifest_mentions_.erase(mentions);
  }
  sparse_manifests_.erase(manifest->first);
  manifests_.erase(manifest);
}

struct ArrayRegistry::Rewrite {
  std::string old_id;
  std::string new_id;
  std::vector<ManifestEntry> entries;
  std::vector<std::string> chunks = {};
};

void ArrayRegistry::NoteIfSparse(const std::string& manifest_id) {
  // A name in the manifest may look outdated only because of an unreadable record: keep the
  // manifest.
  if (is_damaged_) return;
  const Manifest& manifest = manifests_.find(manifest_id)->second;
  if (2 * manifest.current_names < std::ssize(manifest.names)) {
    sparse_manifests_.insert(manifest_id);
  }
}

void ArrayRegistry::RewriteSparse() {
  std::shared_ptr<Rewrite> rewrite;
  {
    absl::MutexLock lock(&mutex_);
    rewrite = BeginRewrite();
  }
  if (rewrite == nullptr) return;
  // Encode without the lock: this takes long if there are many names.
  rewrite->chunks = EncodeManifestChunks(rewrite->entries);
  absl::MutexLock lock(&mutex_);
  manifests_.find(rewrite->new_id)->second.chunks = std::ssize(rewrite->chunks);
  WriteAnew(std::move(rewrite), 0);
}

std::shared_ptr<ArrayRegistry::Rewrite> ArrayRegistry::BeginRewrite() {
  if (is_rewriting_ || sparse_manifests_.empty()) return nullptr;
  is_rewriting_ = true;
  auto rewrite = std::make_shared<Rewrite>(
      Rewrite{.old_id = *sparse_manifests_.begin(), .new_id = RandomId(), .entries = {}});
  sparse_manifests_.erase(sparse_manifests_.begin());
  // Count the names as mentioned by the new manifest from now on. A deletion of a name during the
  // rewrite is then recorded in the store, and the new manifest does not restore the name. A name
  // that moves during the rewrite gets a newer version, which replaces its entry in the new
  // manifest.
  Manifest& manifest = manifests_[rewrite->new_id];
  for (const std::string& name : manifests_.find(rewrite->old_id)->second.names) {
    const auto found = names_.find(name);
    if (found == names_.end() || found->second.manifest_id != rewrite->old_id) continue;
    const NameEntry& entry = found->second.entry;
    rewrite->entries.push_back({name, arrays_.find(entry.array_id)->second.array, entry.version});
    manifest.names.push_back(name);
    ++manifest_mentions_[name];
  }
  return rewrite;
}

void ArrayRegistry::WriteAnew(std::shared_ptr<Rewrite> rewrite, size_t next_chunk) {
  Transaction transaction = Fenced();
  const bool is_last = next_chunk == rewrite->chunks.size();
  if (is_last) {
    transaction.compares.push_back({ManifestKey(rewrite->new_id), 0});
    transaction.puts.push_back({ManifestKey(rewrite->new_id),
                                EncodeManifest(static_cast<int64_t>(rewrite->chunks.size()))});
    transaction.deletes.push_back(ManifestKey(rewrite->old_id));
  } else {
    transaction.puts.push_back({ChunkKey(rewrite->new_id, static_cast<int64_t>(next_chunk)),
                                std::move(rewrite->chunks[next_chunk])});
  }
  CommitToStore(std::move(transaction),
                [this, rewrite, next_chunk, is_last](const absl::StatusOr<Revision>& revision) {
                  if (is_last || !revision.ok()) return EndRewrite(*rewrite, revision.status());
                  absl::MutexLock lock(&mutex_);
                  WriteAnew(rewrite, next_chunk + 1);
                });
}

void ArrayRegistry::EndRewrite(const Rewrite& rewrite, const absl::Status& written) {
  {
    absl::MutexLock lock(&mutex_);
    is_rewriting_ = false;
    const auto fresh = manifests_.find(rewrite.new_id);
    if (written.ok()) {
      for (const ManifestEntry& entry : rewrite.entries) {
        const auto found = names_.find(entry.name);
        if (found == names_.end() || found->second.manifest_id != rewrite.old_id) continue;
        found->second.manifest_id = rewrite.new_id;
        ++fresh->second.current_names;
      }
      // If the last name of the old manifest was deleted during the rewrite, the old manifest was
      // dropped at that deletion.
      if (const auto old = manifests_.find(rewrite.old_id); old != manifests_.end()) {
        DropManifest(old);
      }
    }
    // If the store had no room for the new manifest, the next deletion of a name tries the rewrite
    // again.
    if (fresh->second.current_names == 0) {
      DropManifest(fresh);
    } else {
      NoteIfSparse(rewrite.new_id);
    }
    FlushReleased();
  }
  events_.MakeCalls();
  RewriteSparse();
}

void ArrayRegistry::ReleaseIfUnheld(std::string_view array_id) {
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return;
  const ArrayEntry& entry = found->second;
  if (entry.names > 0 || entry.pins > 0 || entry.array->state == ArrayState::kStaging) return;
  if (entry.cached_as > 0) return;
  if (MayCache(entry)) return AddToCache(found);
  TellAndRelease(found);
}

void ArrayRegistry::TellAndRelease(Arrays::iterator found) {
  const Array& array = *found->second.array;
  if (array.definition.replica_of.empty()) {
    Tell(ArrayChange{.array_id = found->first,
                     .mesh_id = array.definition.descriptor.mesh_id,
                     .is_deleted = true});
  }
  ReleaseNow(found);
}

void ArrayRegistry::ReleaseNow(Arrays::iterator found) {
  ArrayEntry& entry = found->second;
  const std::string_view array_id = found->first;
  // The array has a record if a name under `name/` has ever pointed to it. Deleting a missing
  // record is no error.
  const bool was_named = entry.was_named || entry.has_record;
  if (was_named) dead_keys_.push_back(ArrayKey(array_id));
  for (const NameEntry& version : entry.former) former_.erase({version.name, version.version});
  const ArrayDescriptor& descriptor = entry.array->definition.descriptor;
  const bool knows_names = entry.was_named || entry.is_taken_over;
  if (!entry.adopted_from.empty() && (!knows_names || entry.may_lack_names)) {
    PutAside(
        descriptor, entry.adopted_from,
        entry.may_lack_names
            ? "it has no name, and may have lost one: the state was made from a snapshot or has "
              "lost records"
            : "the coordinator found it without a name after its start, and nothing held it any "
              "more");
  } else {
    released_.push_back({.array_id = found->first,
                         .mesh_id = descriptor.mesh_id,
                         .ranks = descriptor.mesh.size(),
                         .durable = was_named || entry.array->durability == Durability::kDisk,
                         .key = entry.release_key});
  }
  const std::string companion_id = entry.companion;
  EraseArray(found);
  GiveUpCompanion(companion_id);
}

void ArrayRegistry::GiveUpCompanion(const std::string& companion_id) {
  const auto companion = arrays_.find(companion_id);
  if (companion == arrays_.end()) return;
  --companion->second.pins;
  ReleaseIfUnheld(companion_id);
}

// Tiles of an adopted array, or of one that may have lost a name, go into quarantine instead. A
// move to another layout counts on the memory of what it has moved, and may have recorded the
// release. A companion goes with its array: one copy is enough for the cache.
bool ArrayRegistry::MayCache(const ArrayEntry& entry) const {
  const ArrayDefinition& definition = entry.array->definition;
  if (!is_caching_ || !entry.adopted_from.empty() || entry.missing_count > 0 || entry.is_given ||
      entry.is_superseded || !entry.release_key.empty() || !definition.replica_of.empty() ||
      changing_meshes_.contains(definition.descriptor.mesh_id)) {
    return false;
  }
  return !definition.origin_key().empty();
}

void ArrayRegistry::AddToCache(Arrays::iterator found) {
  ArrayEntry& entry = found->second;
  for (const NameEntry& version : entry.former) former_.erase({version.name, version.version});
  entry.former.clear();
  Count(entry, -1);
  const int64_t former = std::exchange(entry.checked_as, 0);
  entry.cached_as = former > 0 ? former : next_cached_++;
  entry.has_record = true;
  cached_.emplace(entry.cached_as, found->first);
  CountCached(*entry.array, 1);
  newly_cached_.push_back(found->first);
  Tell(ArrayChange{.array_id = found->first,
                   .mesh_id = entry.array->definition.descriptor.mesh_id,
                   .is_deleted = true});
  GiveUpCompanion(std::exchange(entry.companion, {}));
  // The next use of the array begins anew: an earlier copy of it may have failed.
  if (entry.array->definition.replicas > 1 && replica_listener_) {
    events_.Add([this] { replica_listener_(); });
  }
}

void ArrayRegistry::TakeFromCache(Arrays::iterator found) {
  ArrayEntry& entry = found->second;
  cached_.erase(entry.cached_as);
  CountCached(*entry.array, -1);
  entry.cached_as = 0;
  Count(entry, 1);
}

void ArrayRegistry::EvictNow(Arrays::iterator found) {
  TakeFromCache(found);
  ++cache_totals_.evictions;
  ReleaseNow(found);
}

void ArrayRegistry::CountCached(const Array& array, int64_t sign) {
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  const std::vector<int64_t> bytes = RankBytes(descriptor);
  const auto mesh =
      cached_bytes_.try_emplace(descriptor.mesh_id, std::vector<int64_t>(bytes.size())).first;
  // Arrays of an older version of the mesh were evicted before it changed.
  mesh->second.resize(std::max(mesh->second.size(), bytes.size()));
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    mesh->second[rank] += sign * bytes[rank];
    cache_totals_.bytes += sign * bytes[rank];
  }
  cache_totals_.arrays += sign;
  const auto is_zero = [](int64_t each) { return each == 0; };
  if (std::all_of(mesh->second.begin(), mesh->second.end(), is_zero)) cached_bytes_.erase(mesh);
}

ArrayRegistry::Arrays::const_iterator ArrayRegistry::FindLive(std::string_view array_id) const {
  const auto found = arrays_.find(array_id);
  return found == arrays_.end() || found->second.cached_as == 0 ? found : arrays_.end();
}

ArrayRegistry::Arrays::iterator ArrayRegistry::FindLive(std::string_view array_id) {
  const auto found = arrays_.find(array_id);
  return found == arrays_.end() || found->second.cached_as == 0 ? found : arrays_.end();
}

void ArrayRegistry::SetCaching(bool on) {
  absl::MutexLock lock(&mutex_);
  is_caching_ = on;
}

bool ArrayRegistry::IsCached(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  return found != arrays_.end() && (found->second.cached_as > 0 || found->second.checked_as > 0);
}

absl::Status ArrayRegistry::PinFound(std::string_view array_id, bool is_use,
                                     std::optional<int64_t> replicas) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = arrays_.find(array_id);
    if (found == arrays_.end()) return NoArray(array_id);
    ArrayEntry& entry = found->second;
    if (entry.is_given) return Given(array_id);
    const bool is_hit = is_use && (entry.cached_as > 0 || entry.checked_as > 0);
    if (is_hit) ++cache_totals_.hits;
    if (is_use) entry.checked_as = 0;
    if (entry.cached_as > 0) {
      if (!is_use) entry.checked_as = entry.cached_as;
      TakeFromCache(found);
      Tell(ArrayChange{.array_id = found->first,
                       .mesh_id = entry.array->definition.descriptor.mesh_id});
    }
    if (is_hit && replicas.has_value()) SetReplicas(entry, *replicas);
    ++entry.pins;
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status ArrayRegistry::CheckMayBeState(std::string_view array_id) const {
  const auto found = FindLive(array_id);
  if (found == arrays_.end() || found->second.array->state == ArrayState::kStaging) {
    return NoArray(array_id);
  }
  const ArrayEntry& entry = found->second;
  const ArrayDefinition& definition = entry.array->definition;
  const auto refused = [&](std::string_view why) {
    return WithReason(absl::FailedPreconditionError(StrCat("array ", array_id, " ", why)),
                      Reason::kNotAvailable, {{fact::kField, "program.updates"}});
  };
  if (definition.replicas > 1 || !entry.companion.empty() || !definition.replica_of.empty()) {
    return refused(
        "has second replicas, which steps do not update; put it with one replica, or create the "
        "state with zeros");
  }
  if (!definition.is_state && entry.names + entry.names_to_come > 1) {
    return refused(
        "has several names, whose content would all change; put it anew for the state, without the "
        "reuse of arrays");
  }
  return absl::OkStatus();
}

void ArrayRegistry::SetState(Arrays::iterator found) {
  ArrayEntry& entry = found->second;
  EraseOrigin(entry.array->definition.origin_key(), found->first);
  for (const std::string& key : std::exchange(entry.other_origins, {})) {
    EraseOrigin(key, found->first);
  }
  unreplicated_.erase(found->first);
  SetArray(entry, std::make_shared<const Array>(AsState(*Current(entry))));
  entry.state_step = 0;
  state_ids_.insert(found->first);
}

void ArrayRegistry::MakeState(absl::Span<const std::string> array_ids,
                              absl::AnyInvocable<void(absl::Status) &&> callback) {
  SHARDMESH_PASSES("registry.make_state");
  {
    absl::MutexLock lock(&mutex_);
    absl::Status checked;
    Transaction records = Fenced();
    std::vector<std::string> new_ids;
    for (const std::string& id : array_ids) {
      checked.Update(CheckMayBeState(id));
      if (!checked.ok()) break;
      if (FindLive(id)->second.array->definition.is_state) continue;
      records.puts.push_back({StateKey(id), EncodeState({.array_id = id})});
      new_ids.push_back(id);
    }
    // From now on no put may use what they have: see CheckCommit.
    if (checked.ok()) state_ids_.insert(new_ids.begin(), new_ids.end());
    if (!checked.ok() || new_ids.empty()) {
      events_.Add(
          [callback = std::move(callback), checked]() mutable { std::move(callback)(checked); });
    } else {
      CommitToStore(std::move(records), [this, new_ids, callback = std::move(callback)](
                                            absl::StatusOr<Revision> revision) mutable {
        {
          absl::MutexLock locked(&mutex_);
          for (const std::string& id : new_ids) {
            const auto found = FindLive(id);
            // Another call may have made it state.
            if (found == arrays_.end() || found->second.array->definition.is_state) continue;
            if (revision.ok()) {
              SetState(found);
            } else {
              state_ids_.erase(id);
            }
          }
        }
        std::move(callback)(revision.status());
      });
    }
  }
  events_.MakeCalls();
}

std::optional<int64_t> ArrayRegistry::StateStepOf(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = FindLive(array_id);
  if (found == arrays_.end() || !found->second.array->definition.is_state) return std::nullopt;
  return found->second.state_step;
}

int64_t ArrayRegistry::LeastStateStepOf(const std::string& array_id) const {
  const auto found = least_state_steps_.find(array_id);
  return found == least_state_steps_.end() ? 0 : found->second;
}

std::optional<std::string> ArrayRegistry::JudgeState(ArrayEntry& entry, int64_t state_step) {
  const auto name = [](int64_t step) {
    return step == 0 ? std::string("no step") : StrCat("step ", step);
  };
  if (!entry.state_step.has_value()) {
    const int64_t least = LeastStateStepOf(entry.array->definition.descriptor.array_id);
    if (state_step < least) {
      return StrCat("its array is state that ", name(least), " has updated, and the tile is of ",
                    name(state_step));
    }
    entry.state_step = state_step;
  }
  if (*entry.state_step == state_step) return std::nullopt;
  return StrCat("its array is state that ", name(*entry.state_step),
                " has updated last, and the tile is of ", name(state_step));
}

void ArrayRegistry::SetReplicas(ArrayEntry& entry, int64_t replicas) {
  if (!entry.companion.empty()) return;
  entry.wants_no_companion = replicas < 2;
  if (entry.array->definition.replicas == replicas) return;
  Array changed = *Current(entry);
  changed.definition.replicas = replicas;
  SetArray(entry, std::make_shared<const Array>(std::move(changed)));
  // NoteIfUnreplicated adds an array that wants a companion when it gets a name.
  unreplicated_.erase(entry.array->definition.descriptor.array_id);
}

std::vector<CachedArray> ArrayRegistry::ListCached() const {
  std::vector<CachedArray> cached;
  absl::MutexLock lock(&mutex_);
  cached.reserve(cached_.size());
  for (const auto& [order, id] : cached_) {
    const Array& array = *arrays_.find(id)->second.array;
    const ArrayDescriptor& descriptor = array.definition.descriptor;
    cached.push_back(
        {id, descriptor.mesh_id, RankBytes(descriptor), array.durability == Durability::kDisk});
  }
  return cached;
}

ArrayRegistry::BytesByMesh ArrayRegistry::CachedBytes() const {
  absl::MutexLock lock(&mutex_);
  return cached_bytes_;
}

CacheTotals ArrayRegistry::cache_totals() const {
  absl::MutexLock lock(&mutex_);
  return cache_totals_;
}

std::vector<std::string> ArrayRegistry::Evict(absl::Span<const std::string> array_ids) {
  std::vector<std::string> evicted;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& id : array_ids) {
      const auto found = arrays_.find(id);
      if (found == arrays_.end() || found->second.cached_as == 0) continue;
      EvictNow(found);
      evicted.push_back(id);
    }
    FlushReleased();
  }
  events_.MakeCalls();
  return evicted;
}

void ArrayRegistry::FlushReleased() {
  SHARDMESH_PASSES("registry.flush_released");
  if (!newly_cached_.empty()) {
    Transaction records = Fenced();
    size_t bytes = 0;
    for (const std::string& id : std::exchange(newly_cached_, {})) {
      const auto found = arrays_.find(id);
      if (found == arrays_.end() || found->second.cached_as == 0) continue;
      Put put{ArrayKey(id), EncodeArray(*found->second.array, /*is_cached=*/true)};
      bytes += put.key.size() + put.value.size();
      records.puts.push_back(std::move(put));
      if (records.puts.size() < kMaxSmallOperations && bytes < kMaxSmallBytes) continue;
      CommitToStore(std::exchange(records, Fenced()), [](const absl::StatusOr<Revision>&) {});
      bytes = 0;
    }
    // Without its record, an array is found without a name after a restart, and then released.
    if (!records.puts.empty()) {
      CommitToStore(std::move(records), [](const absl::StatusOr<Revision>&) {});
    }
    events_.Add([this] {
      if (cache_listener_) cache_listener_();
    });
  }
  if (!released_.empty()) {
    AddTombstones(released_);
    std::map<std::string, std::vector<std::string>> by_mesh;
    for (Released& released : std::exchange(released_, {})) {
      by_mesh[std::move(released.mesh_id)].push_back(std::move(released.array_id));
    }
    events_.Add([this, by_mesh = std::move(by_mesh)] {
      SHARDMESH_PASSES("registry.tell_released");
      for (const auto& [mesh_id, ids] : by_mesh) listener_(mesh_id, ids);
    });
  }
  // Queue the deletions under the lock: a later write of the same key must come after the deletion.
  // If a deletion fails, the next Open finds the obsolete keys and deletes them.
  for (size_t begin = 0; begin < dead_keys_.size(); begin += kMaxSmallOperations) {
    const size_t end = std::min(begin + kMaxSmallOperations, dead_keys_.size());
    Transaction deletes = Fenced();
    deletes.deletes.assign(dead_keys_.begin() + static_cast<ptrdiff_t>(begin),
                           dead_keys_.begin() + static_cast<ptrdiff_t>(end));
    CommitToStore(std::move(deletes), [](absl::StatusOr<Revision>) {});
  }
  dead_keys_.clear();
}

Transaction ArrayRegistry::Fenced() const {
  return {.compares = {{std::string(kClusterKey), cluster_revision_}}};
}

void ArrayRegistry::CommitToStore(Transaction transaction, Store::CommitCallback callback) {
  ++in_flight_;
  store_->Commit(std::move(transaction),
                 [this, callback = std::move(callback)](absl::StatusOr<Revision> revision) mutable {
                   std::move(callback)(std::move(revision));
                   absl::MutexLock lock(&mutex_);
                   --in_flight_;
                 });
}

absl::StatusOr<ArrayPtr> ArrayRegistry::FindArray(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = FindLive(array_id);
  if (found == arrays_.end()) return NoArray(array_id);
  return Current(found->second);
}

std::optional<std::string> ArrayRegistry::MeshOf(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return std::nullopt;
  return found->second.array->definition.descriptor.mesh_id;
}

ArrayRegistry::MissingName ArrayRegistry::Missing(std::string_view name) const {
  return {std::string(name), NeighboursOf(name, names_)};
}

absl::Status ArrayRegistry::CheckReadable(std::string_view name) const {
  if (!has_unreadable_ && unreadable_names_.empty()) return absl::OkStatus();
  if (names_.find(name) != names_.end()) return absl::OkStatus();
  std::string key = NameKey(name);
  if (const auto found = unreadable_names_.find(ToAbsl(name)); found != unreadable_names_.end()) {
    key = found->second;
  } else if (store_->UnreadableRevision(key) == 0) {
    return absl::OkStatus();
  }
  return WithReason(
      absl::DataLossError(StrCat("the record \"", key, "\" of the store cannot be read, so it is ",
                                 "not known which array has the name \"", name, "\"; look at it ",
                                 "with `shardmesh admin check FOLDER`; --set-aside gives the name ",
                                 "up, and a snapshot may have it")),
      Reason::kStoreFailed);
}

absl::Status ArrayRegistry::NoName(const MissingName& missing) {
  const std::vector<std::string_view> known(missing.neighbours.begin(), missing.neighbours.end());
  std::string hint = DidYouMean(missing.name, known);
  if (hint.empty()) hint = "; `shardmesh ls` lists the arrays";
  return WithReason(absl::NotFoundError(StrCat("no array is named \"", missing.name, "\"", hint)),
                    Reason::kNotFound,
                    {{fact::kKind, "name"},
                     {fact::kName, missing.name},
                     {fact::kNearest, NearestName(missing.name, known).value_or("")}});
}

absl::StatusOr<NameEntry> ArrayRegistry::FindName(std::string_view name, int64_t version) const {
  MissingName missing;
  {
    absl::MutexLock lock(&mutex_);
    if (version != 0) {
      const auto current = names_.find(name);
      if (current != names_.end() && current->second.entry.version == version) {
        return current->second.entry;
      }
      const auto found = former_.find({std::string(name), version});
      if (found == former_.end()) {
        return WithReason(
            absl::NotFoundError(
                StrCat("version ", version, " of name \"", name,
                       "\" is not there any more, or never existed",
                       current == names_.end()
                           ? "; there is no array of that name now"
                           : StrCat("; the current version is ", current->second.entry.version))),
            Reason::kNotFound, {{fact::kKind, "name"}, {fact::kName, StrCat(name, "@", version)}});
      }
      return NameEntry{std::string(name), found->second, version};
    }
    const auto found = names_.find(name);
    if (found != names_.end()) return found->second.entry;
    SHARDMESH_RETURN_IF_ERROR(CheckReadable(name));
    missing = Missing(name);
  }
  return NoName(missing);
}

int64_t ArrayRegistry::VersionOf(std::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = names_.find(name);
  return found == names_.end() ? 0 : found->second.entry.version;
}

bool ArrayRegistry::HasName(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  return found != arrays_.end() && found->second.names > 0;
}

std::string ArrayRegistry::LabelOf(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  const bool is_companion = found != arrays_.end() && IsCompanion(array_id, found->second);
  const std::string_view prefix = is_companion ? "the second replica of " : "";
  const std::string_view id =
      is_companion ? std::string_view(found->second.array->definition.replica_of) : array_id;
  int64_t looked_at = 0;
  for (const auto& [name, named] : names_) {
    if (named.entry.array_id == id) return StrCat(prefix, "array \"", name, "\" (", id, ")");
    if (++looked_at == kNamesLookedAt) break;
  }
  return StrCat(prefix, "array ", id);
}

ArrayRegistry::Holds ArrayRegistry::HoldsOf(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return {};
  return {.names = found->second.names, .pins = found->second.pins};
}

std::vector<ArrayRegistry::NamedArray> ArrayRegistry::ListNames(std::string_view prefix,
                                                                std::string_view start_after,
                                                                int64_t limit) const {
  std::vector<NamedArray> page;
  absl::MutexLock lock(&mutex_);
  auto at = start_after < prefix ? names_.lower_bound(prefix) : names_.upper_bound(start_after);
  for (; at != names_.end() && std::string_view(at->first).substr(0, prefix.size()) == prefix &&
         static_cast<int64_t>(page.size()) < limit;
       ++at) {
    page.push_back({at->second.entry, Current(arrays_.find(at->second.entry.array_id)->second)});
  }
  return page;
}

ArrayRegistry::Nameless ArrayRegistry::ListNameless(std::string_view start_after,
                                                    int64_t limit) const {
  constexpr int64_t kMaxLookedAt = 20'000;
  Nameless page;
  absl::MutexLock lock(&mutex_);
  int64_t looked_at = 0;
  std::string_view last = start_after;
  for (auto at = arrays_.upper_bound(start_after); at != arrays_.end(); ++at) {
    if (std::ssize(page.arrays) == limit || looked_at == kMaxLookedAt) {
      page.next_start_after = std::string(last);
      break;
    }
    ++looked_at;
    last = at->first;
    if (at->second.cached_as == 0 && at->second.names == 0 &&
        at->second.array->state != ArrayState::kStaging && !IsCompanion(at->first, at->second)) {
      page.arrays.push_back(Current(at->second));
    }
  }
  return page;
}

std::vector<ArrayPtr> ArrayRegistry::ListArrays(std::string_view start_after, int64_t limit) const {
  std::vector<ArrayPtr> page;
  absl::MutexLock lock(&mutex_);
  for (auto at = arrays_.upper_bound(start_after);
       at != arrays_.end() && static_cast<int64_t>(page.size()) < limit; ++at) {
    if (at->second.cached_as == 0) page.push_back(Current(at->second));
  }
  return page;
}

std::vector<ArrayPtr> ArrayRegistry::ListKept(std::string_view start_after, int64_t limit) const {
  std::vector<ArrayPtr> page;
  absl::MutexLock lock(&mutex_);
  for (auto at = arrays_.upper_bound(start_after);
       at != arrays_.end() && static_cast<int64_t>(page.size()) < limit; ++at) {
    const ArrayEntry& entry = at->second;
    if (entry.cached_as == 0 && !entry.is_given) page.push_back(Current(entry));
  }
  return page;
}

std::vector<ArrayPtr> ArrayRegistry::FindByOrigin(const std::string& key, int64_t limit,
                                                  bool is_use) const {
  std::vector<ArrayPtr> found;
  absl::MutexLock lock(&mutex_);
  const auto origin = ids_by_origin_.find(key);
  if (origin == ids_by_origin_.end()) {
    cache_totals_.misses += is_caching_ && is_use && !key.empty() ? 1 : 0;
    return found;
  }
  for (const bool is_cached : {false, true}) {
    for (const std::string& id : origin->second) {
      if (std::ssize(found) == limit) break;
      const ArrayEntry& entry = arrays_.find(id)->second;
      if ((entry.cached_as > 0) != is_cached) continue;
      const ArrayPtr& array = Current(entry);
      if (array->state != ArrayState::kStaging) found.push_back(array);
    }
  }
  return found;
}

std::vector<ArrayPtr> ArrayRegistry::ListAlike(Dtype dtype, const Shape& shape,
                                               std::string_view start_after, int64_t limit) const {
  std::vector<ArrayPtr> page;
  const std::string form = FormOf(dtype, shape);
  absl::MutexLock lock(&mutex_);
  const auto alike = arrays_by_form_.find(form);
  if (alike == arrays_by_form_.end()) return page;
  for (auto at = alike->second.upper_bound(start_after);
       at != alike->second.end() && std::ssize(page) < limit; ++at) {
    const ArrayPtr& array = Current(*at->second);
    if (array->state == ArrayState::kStaging || !array->definition.replica_of.empty() ||
        array->definition.is_state) {
      continue;
    }
    page.push_back(array);
  }
  return page;
}

ArrayPtr ArrayRegistry::FindCommitted(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return nullptr;
  const ArrayPtr& array = Current(found->second);
  const bool is_known = array->state != ArrayState::kStaging && !array->definition.is_state;
  return is_known ? array : nullptr;
}

ArrayCounts ArrayRegistry::CountArrays() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

ArrayCounts ArrayRegistry::CountCompanions() const {
  absl::MutexLock lock(&mutex_);
  return companion_counts_;
}

int64_t ArrayRegistry::CountNames() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(names_.size());
}

int64_t ArrayRegistry::CountTiles(std::string_view mesh_id, int64_t rank) const {
  absl::MutexLock lock(&mutex_);
  const auto arrays = arrays_by_mesh_.find(mesh_id);
  if (arrays == arrays_by_mesh_.end()) return 0;
  return std::count_if(arrays->second.begin(), arrays->second.end(), [rank](const auto& each) {
    const ArrayEntry& entry = *each.second;
    const auto place = static_cast<size_t>(rank);
    return entry.cached_as == 0 && entry.array->state != ArrayState::kStaging &&
           place < entry.missing.size() && !entry.missing[place];
  });
}

absl::Status ArrayRegistry::Pin(std::string_view array_id) {
  SHARDMESH_PASSES("registry.pin");
  absl::MutexLock lock(&mutex_);
  const auto found = FindLive(array_id);
  if (found == arrays_.end()) return NoArray(array_id);
  if (found->second.is_given) return Given(array_id);
  found->second.checked_as = 0;
  ++found->second.pins;
  return absl::OkStatus();
}

bool ArrayRegistry::Give(std::string_view array_id, int64_t pins) {
  absl::MutexLock lock(&mutex_);
  const auto found = FindLive(array_id);
  if (found == arrays_.end() || found->second.names > 0 || found->second.pins > pins) return false;
  found->second.is_given = true;
  return true;
}

void ArrayRegistry::TakeBack(std::string_view array_id) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = arrays_.find(array_id); found != arrays_.end()) {
    found->second.is_given = false;
  }
}

void ArrayRegistry::Unpin(absl::Span<const std::string> array_ids) {
  SHARDMESH_PASSES("registry.unpin");
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& array_id : array_ids) {
      if (const auto awaited = awaited_.find(array_id); awaited != awaited_.end()) {
        --awaited_pins_;
        if (--awaited->second == 0) {
          awaited_.erase(awaited);
          if (!grace_is_over_ && given_up_.size() < kMaxAwaited) given_up_.insert(array_id);
        }
        continue;
      }
      const auto found = arrays_.find(array_id);
      if (found == arrays_.end() || found->second.pins == 0) continue;
      --found->second.pins;
      ReleaseIfUnheld(array_id);
    }
    FlushReleased();
  }
  events_.MakeCalls();
}

bool ArrayRegistry::HasRoomToAwait(int64_t awaited_of_session) const {
  // The session's pins that are gone by now count as the session's, and not as the others'.
  const int64_t others = std::max<int64_t>(awaited_pins_ - awaited_of_session, 0);
  const int64_t share = std::clamp((kMaxAwaited - others) / kAwaitedShares, kMinAwaitedOfSession,
                                   kMaxAwaitedOfSession);
  return awaited_of_session < share;
}

absl::StatusOr<TakenOver> ArrayRegistry::TakeOver(const std::string& array_id,
                                                  int64_t awaited_of_session) {
  SHARDMESH_PASSES("registry.take_over");
  absl::MutexLock lock(&mutex_);
  if (const auto found = FindLive(array_id); found != arrays_.end()) {
    ArrayEntry& entry = found->second;
    if (entry.is_given) return Given(array_id);
    entry.checked_as = 0;
    // The pin of the grace period becomes that of the session.
    if (!TakeGrace(array_id, entry)) ++entry.pins;
    return TakenOver::kPinned;
  }
  if (grace_is_over_ || arrays_.contains(array_id) || tombstones_.contains(array_id)) {
    return NoArray(array_id);
  }
  if (!HasRoomToAwait(awaited_of_session)) return TakenOver::kNoRoom;
  given_up_.erase(array_id);
  ++awaited_[array_id];
  ++awaited_pins_;
  return TakenOver::kAwaited;
}

bool ArrayRegistry::TakeGrace(const std::string& array_id, ArrayEntry& entry) {
  if (!std::exchange(entry.is_kept_for_grace, false)) return false;
  entry.is_taken_over = !is_damaged_ && !may_lack_names_;
  unnamed_.erase(array_id);
  return true;
}

void ArrayRegistry::ReplaceGrace(const std::string& array_id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = FindLive(array_id);
    if (found == arrays_.end() || !TakeGrace(array_id, found->second)) return;
    --found->second.pins;
    ReleaseIfUnheld(array_id);  // the session may have unpinned it meanwhile
    FlushReleased();
  }
  events_.MakeCalls();
}

std::optional<int64_t> ArrayRegistry::TakeAwaited(const std::string& array_id) {
  if (given_up_.erase(array_id) > 0) return 0;
  const auto awaited = awaited_.extract(array_id);
  if (awaited.empty()) return std::nullopt;
  awaited_pins_ -= awaited.mapped();
  return awaited.mapped();
}

bool ArrayRegistry::IsAwaited(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  return !grace_is_over_ && awaited_.find(array_id) != awaited_.end();
}

bool ArrayRegistry::IsOnlyKeptForGrace(std::string_view array_id) const {
  if (awaited_.find(array_id) != awaited_.end()) return false;
  if (orphans_.find(array_id) != orphans_.end()) return true;
  const auto found = FindLive(array_id);
  if (found == arrays_.end()) return false;
  const ArrayEntry& entry = found->second;
  return entry.is_kept_for_grace && entry.pins == 1 && entry.names == 0 &&
         entry.names_to_come == 0 && !entry.is_given;
}

bool ArrayRegistry::CanReleaseUnnamed(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  return IsOnlyKeptForGrace(array_id);
}

bool ArrayRegistry::ReleaseUnnamed(std::string_view array_id) {
  {
    absl::MutexLock lock(&mutex_);
    if (!IsOnlyKeptForGrace(array_id)) return false;
    if (const auto orphan = orphans_.find(array_id); orphan != orphans_.end()) {
      DeleteOrphan(orphan->first, orphan->second);
      EraseOrphan(orphan);
    } else {
      const auto found = arrays_.find(array_id);
      ArrayEntry& entry = found->second;
      entry.is_kept_for_grace = false;
      entry.pins = 0;
      entry.adopted_from.clear();  // so that the tiles are deleted
      unnamed_.erase(found->first);
      TellAndRelease(found);
    }
    FlushReleased();
  }
  events_.MakeCalls();
  return true;
}

void ArrayRegistry::AddTombstones(const std::vector<Released>& released) {
  // Released arrays by mesh, and by whether the store records the release.
  std::map<std::pair<std::string_view, bool>, std::vector<const Released*>> groups;
  for (const Released& each : released) {
    if (each.key.empty()) {
      groups[{each.mesh_id, each.durable}].push_back(&each);
    } else {
      AddTombstone(each.array_id, each.mesh_id, each.ranks,
                   std::make_shared<ReleasedBatch>(ReleasedBatch{.key = each.key}));
    }
  }
  for (const auto& [group, members] : groups) {
    for (size_t begin = 0; begin < members.size(); begin += kMaxReleased) {
      const size_t end = std::min(members.size(), begin + kMaxReleased);
      auto batch = std::make_shared<ReleasedBatch>();
      ReleasedRecord record{
          .mesh_id = std::string(group.first), .ranks = members[begin]->ranks, .array_ids = {}};
      for (size_t i = begin; i < end; ++i) {
        AddTombstone(members[i]->array_id, record.mesh_id, members[i]->ranks, batch);
        if (group.second) record.array_ids.push_back(members[i]->array_id);
      }
      if (group.second && batch->arrays > 0) {
        batch->key = ReleasedKey(RandomId());
        Transaction put = Fenced();
        put.puts.push_back({batch->key, EncodeReleased(record)});
        put.urgent = true;  // a release must be recorded even if the store is full
        CommitToStore(std::move(put), [](const absl::StatusOr<Revision>&) {});
      }
    }
  }
}

void ArrayRegistry::AddTombstone(std::string array_id, const std::string& mesh_id, int64_t ranks,
                                 const std::shared_ptr<ReleasedBatch>& batch) {
  if (ranks < 1) return;
  const auto [tombstone, is_new] = tombstones_.try_emplace(std::move(array_id));
  if (!is_new) return;
  tombstones_by_mesh_[mesh_id].insert(tombstone->first);
  tombstone->second = {.batch = batch,
                       .mesh_id = mesh_id,
                       .confirmed = std::vector<bool>(static_cast<size_t>(ranks)),
                       .unconfirmed = ranks};
  ++batch->arrays;
}

void ArrayRegistry::Confirm(Tombstones::iterator tombstone, int64_t rank) {
  Tombstone& released = tombstone->second;
  const auto place = static_cast<size_t>(rank);
  if (place >= released.confirmed.size() || released.confirmed[place]) return;
  released.confirmed[place] = true;
  if (--released.unconfirmed == 0) Forget(tombstone);
}

void ArrayRegistry::Forget(Tombstones::iterator tombstone) {
  ReleasedBatch& batch = *tombstone->second.batch;
  if (--batch.arrays == 0 && !batch.key.empty()) dead_keys_.push_back(batch.key);
  TakeFrom(tombstones_by_mesh_, tombstone->second.mesh_id, tombstone->first);
  tombstones_.erase(tombstone);
}

int64_t ArrayRegistry::CountUnconfirmed() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(tombstones_.size());
}

std::vector<int64_t> ArrayRegistry::RanksYetToDrop(std::string_view mesh_id) const {
  std::set<int64_t> ranks;
  absl::MutexLock lock(&mutex_);
  const auto released = tombstones_by_mesh_.find(mesh_id);
  if (released == tombstones_by_mesh_.end()) return {};
  for (const std::string& array_id : released->second) {
    const std::vector<bool>& confirmed = tombstones_.find(array_id)->second.confirmed;
    for (size_t rank = 0; rank < confirmed.size(); ++rank) {
      if (!confirmed[rank]) ranks.insert(static_cast<int64_t>(rank));
    }
  }
  return {ranks.begin(), ranks.end()};
}

void ArrayRegistry::TilesDropped(absl::Span<const std::string> array_ids, const RankOf& rank_of) {
  // Call `rank_of` without the lock.
  std::map<std::string, std::optional<int64_t>, std::less<>> ranks;
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& id : array_ids) {
      if (const auto found = tombstones_.find(id); found != tombstones_.end()) {
        ranks.emplace(found->second.mesh_id, std::nullopt);
      }
    }
  }
  for (auto& [mesh_id, rank] : ranks) rank = rank_of(mesh_id);
  {
    absl::MutexLock lock(&mutex_);
    for (const std::string& id : array_ids) {
      const auto found = tombstones_.find(id);
      if (found == tombstones_.end()) continue;
      const auto rank = ranks.find(found->second.mesh_id);
      if (rank != ranks.end() && rank->second.has_value()) Confirm(found, *rank->second);
    }
    FlushReleased();
  }
  events_.MakeCalls();
}

absl::Status ArrayRegistry::BeginMeshChange(const std::string& mesh_id) {
  {
    absl::MutexLock lock(&mutex_);
    SHARDMESH_RETURN_IF_ERROR(CheckMeshChangeLocked(mesh_id));
    changing_meshes_.insert(mesh_id);
    if (const auto cached = arrays_by_mesh_.find(mesh_id); cached != arrays_by_mesh_.end()) {
      std::vector<std::string> ids;
      for (const auto& [id, entry] : cached->second) ids.emplace_back(id);
      for (const std::string& id : ids) EvictNow(arrays_.find(id));
    }
    FlushReleased();
  }
  events_.MakeCalls();
  return absl::OkStatus();
}

absl::Status ArrayRegistry::CheckMeshChange(const std::string& mesh_id) const {
  absl::MutexLock lock(&mutex_);
  return CheckMeshChangeLocked(mesh_id);
}

absl::Status ArrayRegistry::CheckMeshChangeLocked(const std::string& mesh_id) const {
  const auto found = arrays_by_mesh_.find(mesh_id);
  const auto is_live = [](const auto& each) { return each.second->cached_as == 0; };
  const int64_t live = found == arrays_by_mesh_.end()
                           ? 0
                           : std::count_if(found->second.begin(), found->second.end(), is_live);
  if (live > 0) {
    const auto first = std::find_if(found->second.begin(), found->second.end(), is_live);
    std::string example = StrCat("array ", first->first);
    int64_t looked_at = 0;
    for (const auto& [name, named] : names_) {
      if (found->second.contains(named.entry.array_id)) {
        example = StrCat("\"", name, "\"");
        break;
      }
      if (++looked_at == kNamesLookedAt) break;
    }
    return WithReason(absl::FailedPreconditionError(StrCat(
                          "arrays lie on the mesh \"", mesh_id, "\", such as ", example,
                          "; delete their names (`shardmesh rm NAME`) and release them first")),
                      Reason::kMeshInUse,
                      {{fact::kMesh, mesh_id}, {fact::kArray, first->first}, {fact::kHave, live}});
  }
  if (changing_meshes_.contains(mesh_id)) {
    return WithReason(absl::AbortedError(StrCat("the mesh \"", mesh_id,
                                                "\" is being changed by another request; retry")),
                      Reason::kVersionMismatch, {{fact::kKind, "mesh"}, {fact::kName, mesh_id}});
  }
  return absl::OkStatus();
}

void ArrayRegistry::EndMeshChange(const std::string& mesh_id, std::optional<Revision> revision) {
  {
    absl::MutexLock lock(&mutex_);
    changing_meshes_.erase(mesh_id);
    if (!revision.has_value()) return;
    Revision& floor = mesh_floors_[mesh_id];
    floor = std::max(floor, *revision);  // a repeated request may report an older revision
    if (mesh_floors_.size() > kMaxMeshFloors) {
      std::vector<Revision> floors;
      for (const auto& [id, each] : mesh_floors_) floors.push_back(each);
      const auto middle = floors.begin() + static_cast<ptrdiff_t>(floors.size() / 2);
      std::nth_element(floors.begin(), middle, floors.end());
      std::erase_if(mesh_floors_, [&](const auto& each) { return each.second < *middle; });
    }
    for (auto each = presence_.lower_bound({mesh_id, 0});
         each != presence_.end() && each->first.first == mesh_id;) {
      each = presence_.erase(each);
    }
    // The changed mesh has other ranks, and the former ranks will not confirm releases: stop
    // waiting for them. Tiles that the workers of the former ranks still have will go into
    // quarantine.
    while (tombstones_by_mesh_.count(mesh_id) > 0) {
      Forget(tombstones_.find(*tombstones_by_mesh_.find(mesh_id)->second.begin()));
    }
    FlushReleased();
  }
  events_.MakeCalls();
}

void ArrayRegistry::TilesLost(std::string_view mesh_id, int64_t rank, uint64_t attachment,
                              std::optional<int64_t> epoch) {
  SHARDMESH_PASSES("registry.tiles_lost");
  absl::MutexLock lock(&mutex_);
  Presence& presence = presence_[{std::string(mesh_id), rank}];
  if (presence.attachment > attachment) return;  // the worker has attached again
  presence = {.attachment = attachment, .is_lost = true, .lost_epoch = epoch};
  const auto arrays = arrays_by_mesh_.find(mesh_id);
  if (arrays == arrays_by_mesh_.end()) return;
  for (const auto& [id, entry] : arrays->second) SetMissing(*entry, rank, true);
}

void ArrayRegistry::TileDamaged(std::string_view array_id, int64_t rank) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = arrays_.find(array_id);
    if (found == arrays_.end() || found->second.array->state == ArrayState::kStaging) return;
    SetMissing(found->second, rank, true);
    if (found->second.cached_as > 0) {
      if (found->second.missing_count > 0) EvictNow(found);
      FlushReleased();
    } else {
      Tell(ArrayChange{.array_id = found->first,
                       .mesh_id = found->second.array->definition.descriptor.mesh_id});
    }
  }
  events_.MakeCalls();
}

std::vector<size_t> ArrayRegistry::FindUnknown(const std::vector<InventoryTile>& tiles) const {
  std::vector<size_t> unknown;
  absl::MutexLock lock(&mutex_);
  if (grace_is_over_) return unknown;
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (arrays_.count(tiles[i].array_id) == 0 && !tombstones_.contains(tiles[i].array_id)) {
      unknown.push_back(i);
    }
  }
  return unknown;
}

InventoryVerdict ArrayRegistry::TakeInventory(const Inventory& inventory) {
  SHARDMESH_PASSES("registry.take_inventory");
  Taking taking{.inventory = inventory};
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [mesh_id, mesh] : inventory.meshes) {
      // EndMeshChange has erased the presences of the former ranks.
      if (!mesh.rank.has_value() || HasMeshChanged(mesh_id, mesh.revision)) continue;
      Presence& presence = presence_[{mesh_id, *mesh.rank}];
      if (presence.attachment > inventory.attachment ||
          (presence.attachment == inventory.attachment && presence.is_lost)) {
        continue;
      }
      presence = {.attachment = inventory.attachment, .lost_epoch = presence.lost_epoch};
      taking.ranks.emplace(mesh_id, *mesh.rank);
    }
  }
  // Handle the tiles in pieces, so that other threads get the lock between two pieces. If the
  // worker is lost between two pieces, its ranks are removed from `taking`. Each array is judged in
  // its state at the time of its piece.
  const std::vector<InventoryTile>& tiles = inventory.tiles;
  for (size_t begin = 0; begin < tiles.size(); begin += kTakenAtOnce) {
    absl::MutexLock lock(&mutex_);
    CheckRanks(&taking);
    const size_t end = std::min(tiles.size(), begin + kTakenAtOnce);
    for (size_t i = begin; i < end; ++i) {
      // A rank may list several tiles of one array. The worker holds the array if one of these
      // tiles is the rank's tile.
      const bool is_held = Classify(tiles[i], &taking);
      taking.listed[tiles[i].array_id] |= is_held;
    }
  }
  const absl::Span<const std::string> quarantined = inventory.quarantined;
  for (size_t begin = 0; begin < quarantined.size(); begin += kTakenAtOnce) {
    absl::MutexLock lock(&mutex_);
    JudgeQuarantined(quarantined.subspan(begin, kTakenAtOnce), &taking.verdict);
  }
  for (const std::string& id : quarantined) taking.listed.try_emplace(id, false);
  const auto in_pieces = [&](const auto& take_some) {
    for (const auto& [mesh_id, mesh] : inventory.meshes) {
      std::string last;
      for (bool is_done = false; !is_done;) {
        absl::MutexLock lock(&mutex_);
        CheckRanks(&taking);
        const auto rank = taking.ranks.find(mesh_id);
        is_done = rank == taking.ranks.end() || take_some(mesh_id, rank->second, &last);
        FlushReleased();
      }
    }
  };
  in_pieces([&](std::string_view mesh_id, int64_t rank, std::string* last) {
    mutex_.AssertHeld();
    return MissArrays(mesh_id, rank, taking, last);
  });
  in_pieces([&](std::string_view mesh_id, int64_t rank, std::string* last) {
    mutex_.AssertHeld();
    return MissOrphans(mesh_id, rank, taking, last);
  });
  in_pieces([&](std::string_view mesh_id, int64_t rank, std::string* last) {
    mutex_.AssertHeld();
    return GiveUpOrphans(mesh_id, rank, last);
  });
  in_pieces([&](std::string_view mesh_id, int64_t rank, std::string* last) {
    mutex_.AssertHeld();
    return ConfirmUnlisted(mesh_id, rank, taking, last);
  });
  events_.MakeCalls();
  return std::move(taking.verdict);
}

void ArrayRegistry::SetCheckpoint(std::string_view array_id, ArraySource checkpoint) {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return;
  auto changed = std::make_shared<Array>(*Current(found->second));
  if (changed->definition.is_state) return;
  changed->checkpoint = std::move(checkpoint);
  SetArray(found->second, std::move(changed));
}

InventoryVerdict ArrayRegistry::TakeRestored(const Inventory& restored) {
  InventoryVerdict verdict;
  {
    absl::MutexLock lock(&mutex_);
    for (const InventoryTile& tile : restored.tiles) {
      Taking taking{.inventory = restored};
      Classify(tile, &taking);
      InventoryVerdict& judged = taking.verdict;
      std::move(judged.drop.begin(), judged.drop.end(), std::back_inserter(verdict.drop));
      std::move(judged.quarantine.begin(), judged.quarantine.end(),
                std::back_inserter(verdict.quarantine));
      if (judged.commit.empty()) continue;
      // The worker now holds the tile of its rank, provided that it is still attached.
      ArrayEntry& entry = arrays_.find(tile.array_id)->second;
      const std::string& mesh_id = entry.array->definition.descriptor.mesh_id;
      const int64_t rank = *restored.meshes.find(mesh_id)->second.rank;
      const auto found = presence_.find({mesh_id, rank});
      const Presence presence = found == presence_.end() ? Presence() : found->second;
      const bool is_gone = presence.attachment > restored.attachment ||
                           (presence.attachment == restored.attachment && presence.is_lost);
      if (!is_gone) SetMissing(entry, rank, false);
    }
    FlushReleased();
  }
  events_.MakeCalls();
  return verdict;
}

void ArrayRegistry::CheckRanks(Taking* taking) const {
  for (auto rank = taking->ranks.begin(); rank != taking->ranks.end();) {
    const auto next = std::next(rank);
    const auto presence = presence_.find({std::string(rank->first), rank->second});
    if (presence == presence_.end() ||
        presence->second.attachment != taking->inventory.attachment || presence->second.is_lost) {
      taking->ranks.erase(rank);
    }
    rank = next;
  }
}

bool ArrayRegistry::MissArrays(std::string_view mesh_id, int64_t rank, const Taking& taking,
                               std::string* last) {
  return ForSomeOf(arrays_by_mesh_, mesh_id, last, [&](const auto& each) {
    mutex_.AssertHeld();
    if (taking.Holds(each.first)) return;
    // The attach has ended all puts that the worker took part in before. This one began since, and
    // the worker has yet to stage its tile. A lost process is known by TilesLost.
    if (each.second->array->state == ArrayState::kStaging &&
        !committing_arrays_.contains(ToAbsl(each.first))) {
      return;
    }
    SetMissing(*each.second, rank, true);
    // The worker has no such tile any more, and no name or session needs the array.
    if (each.second->cached_as > 0 && rank < std::ssize(each.second->missing)) {
      EvictNow(arrays_.find(each.first));
    }
  });
}

// Removes the rank from orphans (unknown committed arrays) whose tile the rank reported before but
// no longer lists.
bool ArrayRegistry::MissOrphans(std::string_view mesh_id, int64_t rank, const Taking& taking,
                                std::string* last) {
  return ForSomeOf(orphans_by_mesh_, mesh_id, last, [&](const std::string& id) {
    mutex_.AssertHeld();
    const auto orphan = orphans_.find(id);
    Orphan& found = orphan->second;
    if (rank >= std::ssize(found.identities) || taking.Holds(id)) return;
    std::string& identity = found.identities[static_cast<size_t>(rank)];
    if (!std::exchange(identity, "").empty() && --found.reported == 0) EraseOrphan(orphan);
  });
}

bool ArrayRegistry::GiveUpOrphans(std::string_view mesh_id, int64_t rank, std::string* last) {
  presence_[{std::string(mesh_id), rank}].has_listed = true;
  if (!orphans_by_mesh_.contains(mesh_id)) return true;
  // The number of ranks from 0 on that have all brought their inventories. It is counted once for
  // all orphans, because a mesh may have thousands of ranks.
  int64_t listed = 0;
  for (auto each = presence_.lower_bound({std::string(mesh_id), 0});
       each != presence_.end() && each->first.first == mesh_id && each->first.second == listed &&
       each->second.has_listed && !each->second.is_lost;
       ++each) {
    ++listed;
  }
  return ForSomeOf(orphans_by_mesh_, mesh_id, last, [&](const std::string& id) {
    mutex_.AssertHeld();
    const auto orphan = orphans_.find(id);
    const Orphan& found = orphan->second;
    if (found.has_committed || std::ssize(found.identities) > listed) return;
    PutAside(found.descriptor, found.identities, kUnfinishedStep);
    EraseOrphan(orphan);
  });
}

// A rank confirms a release if it lists the array neither in its inventory nor in its quarantine.
bool ArrayRegistry::ConfirmUnlisted(std::string_view mesh_id, int64_t rank, const Taking& taking,
                                    std::string* last) {
  return ForSomeOf(tombstones_by_mesh_, mesh_id, last, [&](const std::string& id) {
    mutex_.AssertHeld();
    if (!taking.listed.contains(id)) Confirm(tombstones_.find(id), rank);
  });
}

void ArrayRegistry::JudgeQuarantined(absl::Span<const std::string> array_ids,
                                     InventoryVerdict* verdict) const {
  for (const std::string& id : array_ids) {
    if (const auto found = arrays_.find(id); found != arrays_.end()) {
      // A staged array may be one that is being restored from quarantine. Because that may fail,
      // give no verdict yet.
      if (found->second.array->state != ArrayState::kStaging) verdict->live.push_back(id);
    } else if (tombstones_.contains(id)) {
      verdict->drop.push_back(id);
    } else if (grace_is_over_ && !is_damaged_ && !may_lack_names_) {
      verdict->unknown.push_back(id);
    }  // else unreadable or unreported arrays may include this one: give no verdict
  }
}

// Returns whether the tile's mesh has no ranks yet, so that the tile cannot be judged now. The
// worker sends its inventory again once the mesh has ranks.
bool ArrayRegistry::MayBeAdoptedLater(const Inventory& inventory, const InventoryTile& tile) const {
  if (grace_is_over_ || !tile.descriptor.has_value() || inventory.other_mesh == nullptr ||
      inventory.meshes.contains(tile.descriptor->mesh_id)) {
    return false;
  }
  const InventoryMesh mesh = inventory.other_mesh(tile.descriptor->mesh_id);
  return mesh.mesh != nullptr && mesh.identities.empty() && tile.descriptor->mesh == *mesh.mesh;
}

bool ArrayRegistry::Classify(const InventoryTile& tile, Taking* taking) {
  const Inventory& inventory = taking->inventory;
  InventoryVerdict& verdict = taking->verdict;
  const auto put_aside = [&](std::string reason, bool array_lives) {
    verdict.quarantine.push_back({tile.array_id, tile.tile, std::move(reason), array_lives});
    return false;
  };
  const auto found = arrays_.find(tile.array_id);
  if (found == arrays_.end()) {
    const auto tombstone = tombstones_.find(tile.array_id);
    // The client of an earlier put says that it has given the put up.
    const bool is_given_up = given_up_.contains(tile.array_id) && !tile.of_step;
    if (tombstone != tombstones_.end() ||
        (!tile.committed && (is_given_up || discarded_.contains(tile.array_id)))) {
      if (verdict.drop.empty() || verdict.drop.back() != tile.array_id) {
        verdict.drop.push_back(tile.array_id);
      }
    } else if (const bool is_complete = tile.committed || tile.of_step;
               is_complete && MayBeAdoptedLater(inventory, tile)) {
      return false;
    } else if (!is_complete || !Adopt(inventory, tile)) {
      return put_aside(std::string(tile.committed ? "the registry does not know its array"
                                   : tile.of_step ? kUnfinishedStep
                                                  : kUnfinishedPut),
                       false);
    } else if (arrays_.count(tile.array_id) == 0 && orphans_.count(tile.array_id) == 0) {
      verdict.drop.push_back(tile.array_id);  // its holder has released it before its adoption
    } else if (!tile.committed && arrays_.count(tile.array_id) > 0) {
      verdict.commit.push_back(tile.array_id);
    }
    return true;
  }
  ArrayEntry& entry = found->second;
  const Array& array = *entry.array;
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  const auto own = inventory.meshes.find(descriptor.mesh_id);
  InventoryMesh other;
  if (own == inventory.meshes.end() && inventory.other_mesh != nullptr) {
    other = inventory.other_mesh(descriptor.mesh_id);
  }
  const InventoryMesh& mesh = own != inventory.meshes.end() ? own->second : other;
  const std::optional<int64_t> rank = mesh.rank;
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  const bool lies_here = rank.has_value() && *rank < descriptor.mesh.size() && tiling.ok() &&
                         tiling->TileOf(*rank) == tile.tile;
  if (!lies_here && mesh.identities.empty()) {
    // The mesh's record cannot be read, or its ranks are not assigned yet. The tile may still
    // belong to this worker.
    return false;
  }
  if (!lies_here) {
    std::vector<std::string> holders;
    for (int64_t each = 0; tiling.ok() && each < descriptor.mesh.size() && holders.size() < 8;
         ++each) {
      if (tiling->TileOf(each) != tile.tile) continue;
      const auto place = static_cast<size_t>(each);
      holders.push_back(place < mesh.identities.size() ? StrCat("rank ", each, ", which \"",
                                                                mesh.identities[place], "\" serves")
                                                       : StrCat("rank ", each));
    }
    return put_aside(
        StrCat("its array lives on mesh \"", descriptor.mesh_id, "\", where this part is ",
               holders.empty() ? "no rank's" : StrCat("that of ", StrJoin(holders, ", of ")),
               rank.has_value() ? StrCat("; this worker serves rank ", *rank)
                                : std::string("; this worker serves no rank of it")),
        true);
  }
  if (array.state == ArrayState::kStaging) {
    // Remember to send the outcome of the running commit to this worker. Without the outcome, the
    // worker would keep its committed tile of a discarded array for ever.
    entry.waiting.push_back({inventory.identity, *rank, tile.tile, tile.crc32c, tile.committed});
  } else if (array.definition.is_state) {
    if (std::optional<std::string> reason = JudgeState(entry, tile.state_step)) {
      // A tile that counted until now does so no longer.
      SetMissing(entry, *rank, true);
      return put_aside(*std::move(reason), true);
    }
    if (entry.is_committing_update) entry.recounted_ranks.push_back(*rank);
    verdict.commit.push_back(tile.array_id);
    if (!entry.adopted_from.empty()) {
      entry.adopted_from[static_cast<size_t>(*rank)] = inventory.identity;
    }
  } else if (array.tile_crc32c[static_cast<size_t>(*rank)] == tile.crc32c) {
    verdict.commit.push_back(tile.array_id);
    if (!entry.adopted_from.empty()) {
      entry.adopted_from[static_cast<size_t>(*rank)] = inventory.identity;
    }
  } else {
    return put_aside(OtherChecksum(tile.crc32c, array, *rank), true);
  }
  if (taking->ranks.count(descriptor.mesh_id) > 0) SetMissing(entry, *rank, false);
  return true;
}

void ArrayRegistry::EraseOrphan(std::map<std::string, Orphan, std::less<>>::iterator orphan) {
  TakeFrom(orphans_by_mesh_, orphan->second.descriptor.mesh_id, orphan->first);
  orphans_.erase(orphan);
}

bool ArrayRegistry::Adopt(const Inventory& inventory, const InventoryTile& tile) {
  if (grace_is_over_ || !tile.descriptor.has_value()) return false;
  const ArrayDescriptor& descriptor = *tile.descriptor;
  const auto mesh = inventory.meshes.find(descriptor.mesh_id);
  if (mesh == inventory.meshes.end() || !mesh->second.rank.has_value() ||
      mesh->second.mesh == nullptr || !(descriptor.mesh == *mesh->second.mesh) ||
      changing_meshes_.contains(descriptor.mesh_id)) {
    return false;
  }
  const int64_t rank = *mesh->second.rank;
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  if (!tiling.ok() || tiling->TileOf(rank) != tile.tile) return false;
  if (tile.state_step < LeastStateStepOf(tile.array_id)) return false;
  const auto [found, is_new] = orphans_.try_emplace(tile.array_id);
  Orphan& orphan = found->second;
  if (is_new) {
    orphans_by_mesh_[descriptor.mesh_id].insert(tile.array_id);
    orphan.descriptor = descriptor;
    orphan.identities.resize(static_cast<size_t>(descriptor.mesh.size()));
    orphan.tile_crc32c.resize(orphan.identities.size());
    orphan.state_step = tile.state_step;
  } else if (!(orphan.descriptor == descriptor) || orphan.state_step != tile.state_step) {
    return false;
  }
  const auto place = static_cast<size_t>(rank);
  orphan.reported += orphan.identities[place].empty() ? 1 : 0;
  orphan.identities[place] = inventory.identity;
  orphan.tile_crc32c[place] = tile.crc32c;
  if (!tile.on_disk) orphan.durability = Durability::kMemory;
  (tile.committed ? orphan.has_committed : orphan.has_staged) = true;
  if (orphan.reported < descriptor.mesh.size()) return true;
  auto array = std::make_shared<Array>();
  array->definition.descriptor = orphan.descriptor;
  array->state = ArrayState::kAvailable;
  array->durability = orphan.durability;
  array->tile_crc32c = std::move(orphan.tile_crc32c);
  array->created = clock_->Now();
  if (orphan.state_step > 0 || state_ids_.contains(tile.array_id)) {
    *array = AsState(*std::move(array));
    state_ids_.insert(tile.array_id);
  }
  Tell(ArrayChange{.array_id = tile.array_id, .mesh_id = descriptor.mesh_id});
  if (orphan.has_staged) {
    for (const std::string& identity : orphan.identities) {
      AddVerdict(identity, {.commit = {tile.array_id}});
    }
  }
  ArrayEntry& entry = AddArray(tile.array_id, std::move(array));
  entry.adopted_from = std::move(orphan.identities);
  entry.state_step = orphan.state_step;
  PinAdopted(tile.array_id, entry);
  // Some ranks may have been lost after they reported their tiles.
  for (int64_t each = 0; each < descriptor.mesh.size(); ++each) {
    const auto presence = presence_.find({descriptor.mesh_id, each});
    if (presence != presence_.end() && presence->second.is_lost) {
      SetMissing(entry, each, true);
    }
  }
  EraseOrphan(found);
  ReleaseIfUnheld(tile.array_id);
  return true;
}

void ArrayRegistry::PinAdopted(const std::string& array_id, ArrayEntry& entry) {
  const std::optional<int64_t> awaited = TakeAwaited(array_id);
  if (!awaited.has_value()) {
    entry.pins = 1;
    entry.is_kept_for_grace = true;
    unnamed_.insert(array_id);
  } else {
    entry.pins = *awaited;
    entry.is_taken_over = !is_damaged_ && !may_lack_names_;
  }
}

void ArrayRegistry::DeleteOrphan(const std::string& array_id, const Orphan& orphan) {
  released_.push_back({.array_id = array_id,
                       .mesh_id = orphan.descriptor.mesh_id,
                       .ranks = orphan.descriptor.mesh.size(),
                       .durable = orphan.durability == Durability::kDisk});
  for (const std::string& identity : orphan.identities) {
    if (!identity.empty()) AddVerdict(identity, {.drop = {array_id}});
  }
}

void ArrayRegistry::PutAside(const ArrayDescriptor& descriptor,
                             const std::vector<std::string>& identities, std::string_view reason) {
  const absl::StatusOr<Tiling> tiling = descriptor.Tiling();
  for (size_t rank = 0; tiling.ok() && rank < identities.size(); ++rank) {
    if (identities[rank].empty()) continue;
    InventoryVerdict verdict;
    verdict.quarantine.push_back({descriptor.array_id, tiling->TileOf(static_cast<DeviceId>(rank)),
                                  std::string(reason), false});
    AddVerdict(identities[rank], std::move(verdict));
  }
}

UnnamedArray ArrayRegistry::UnnamedOf(const ArrayEntry& entry) const {
  const Array& array = *Current(entry);
  return {.descriptor = array.definition.descriptor,
          .durability = array.durability,
          .missing_ranks = array.missing_ranks,
          .can_be_named = true,
          .until = entry.is_kept_for_grace ? grace_end_ : absl::InfiniteFuture()};
}

UnnamedArray ArrayRegistry::UnnamedOf(const Orphan& orphan) const {
  UnnamedArray array{
      .descriptor = orphan.descriptor, .durability = orphan.durability, .until = grace_end_};
  for (size_t rank = 0; rank < orphan.identities.size(); ++rank) {
    if (orphan.identities[rank].empty()) {
      array.missing_ranks.push_back(static_cast<int64_t>(rank));
    }
  }
  return array;
}

std::vector<UnnamedArray> ArrayRegistry::ListUnnamed(std::string_view start_after,
                                                     int64_t limit) const {
  std::vector<UnnamedArray> result;
  absl::MutexLock lock(&mutex_);
  auto entry = unnamed_.upper_bound(start_after);
  auto orphan = orphans_.upper_bound(start_after);
  while (std::ssize(result) < limit && (entry != unnamed_.end() || orphan != orphans_.end())) {
    if (orphan == orphans_.end() || (entry != unnamed_.end() && *entry < orphan->first)) {
      result.push_back(UnnamedOf(arrays_.find(*entry++)->second));
    } else {
      result.push_back(UnnamedOf((orphan++)->second));
    }
  }
  return result;
}

std::optional<UnnamedArray> ArrayRegistry::FindUnnamed(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  if (unnamed_.find(array_id) != unnamed_.end()) {
    return UnnamedOf(arrays_.find(array_id)->second);
  }
  const auto orphan = orphans_.find(array_id);
  return orphan == orphans_.end() ? std::nullopt : std::optional(UnnamedOf(orphan->second));
}

int64_t ArrayRegistry::CountUnnamed() const {
  absl::MutexLock lock(&mutex_);
  return std::ssize(unnamed_) + std::ssize(orphans_);
}

void ArrayRegistry::EndGrace() {
  {
    absl::MutexLock lock(&mutex_);
    grace_is_over_ = true;
    orphans_by_mesh_.clear();
    for (const auto& [id, orphan] : std::exchange(orphans_, {})) {
      if (given_up_.contains(id) && !is_damaged_ && !may_lack_names_) {
        DeleteOrphan(id, orphan);  // its client says that it has no name
        continue;
      }
      std::vector<int64_t> missing;
      for (size_t rank = 0; rank < orphan.identities.size() && missing.size() < 8; ++rank) {
        if (orphan.identities[rank].empty()) missing.push_back(static_cast<int64_t>(rank));
      }
      PutAside(orphan.descriptor, orphan.identities,
               StrCat("the registry does not know its array, and not every rank has its tile: "
                      "missing are ",
                      StrJoin(missing, ", ")));
    }
    given_up_.clear();  // the pins in awaited_ belong to sessions, which remove them
    std::vector<std::string> kept;
    for (auto& [id, entry] : arrays_) {
      if (std::exchange(entry.is_kept_for_grace, false)) kept.push_back(id);
    }
    std::vector<std::string> gone;  // records of state that no rank has brought
    for (const std::string& id : state_ids_) {
      if (!arrays_.contains(id)) gone.push_back(id);
    }
    for (const std::string& id : gone) {
      if (is_damaged_ || may_lack_names_) break;
      state_ids_.erase(id);
      dead_keys_.push_back(StateKey(id));
    }
    for (const std::string& id : kept) {
      unnamed_.erase(id);
      --arrays_.find(id)->second.pins;
      ReleaseIfUnheld(id);
    }
    FlushReleased();
    // Clear the mark may_lack_names in the store only after the records of nameless arrays are
    // deleted. Until then, each start must put these arrays into quarantine.
    const bool is_left =
        std::any_of(arrays_.begin(), arrays_.end(), [](const Arrays::value_type& each) {
          return each.second.has_record && !each.second.was_named && each.second.cached_as == 0;
        });
    if (may_lack_names_ && !is_left) {
      may_lack_names_ = false;
      Transaction settled = Fenced();
      settled.puts.push_back(
          {std::string(kRestoredKey), EncodeRestored({restored_from_, /*may_lack_names=*/false})});
      CommitToStore(std::move(settled), [](const absl::StatusOr<Revision>&) {});
    }
  }
  events_.MakeCalls();
}

void ArrayRegistry::AddVerdict(const std::string& identity, InventoryVerdict verdict) {
  events_.Add([this, identity, verdict = std::move(verdict)] {
    if (verdict_listener_) verdict_listener_(identity, verdict);
  });
}

absl::Status ArrayRegistry::CheckTile(std::string_view array_id, int64_t rank, const Tile& tile,
                                      uint32_t crc32c) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return NoArray(array_id);
  const Array& array = *found->second.array;
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  SHARDMESH_ASSIGN_OR_RETURN(const Tiling tiling, descriptor.Tiling());
  if (array.state == ArrayState::kStaging || rank >= descriptor.mesh.size() ||
      tiling.TileOf(rank) != tile) {
    return absl::FailedPreconditionError(
        StrCat("tile ", tile.ToString(), " of array ", array_id, " is not that of rank ", rank));
  }
  if (array.definition.is_state) {
    return WithReason(
        absl::FailedPreconditionError(StrCat("array ", array_id,
                                             " is state, whose tiles are not restored: the "
                                             "steps that updated it since are not in the tile")),
        Reason::kChecksumMismatch, {{fact::kArray, array_id}});
  }
  if (array.tile_crc32c[static_cast<size_t>(rank)] != crc32c) {
    return WithReason(absl::FailedPreconditionError(StrCat("array ", array_id, " lives, and ",
                                                           OtherChecksum(crc32c, array, rank))),
                      Reason::kChecksumMismatch, {{fact::kArray, array_id}});
  }
  return absl::OkStatus();
}

}  // namespace shardmesh::server
