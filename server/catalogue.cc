// Staging, committing and releasing arrays; recovery from the store.
#include "server/catalogue.h"

#include <algorithm>
#include <set>

#include "server/catalogue_record.h"
#include "server/random_id.h"
#include "sharding/nearest_name.h"
#include "sharding/reason.h"
#include "sharding/status_macros.h"
#include "sharding/str_cat.h"
#include "sharding/utf8.h"

namespace shardmesh::server {
namespace {

constexpr std::string_view kClusterKey = "cluster";
constexpr std::string_view kArrayPrefix = "array/";
constexpr std::string_view kNamePrefix = "name/";
constexpr std::string_view kManifestPrefix = "manifest/";

// A commit within these goes in one transaction, with room for its fence and its answer.
constexpr size_t kMaxSmallOperations = 100;
constexpr size_t kMaxSmallBytes = 1 << 20;

std::string ArrayKey(std::string_view id) { return StrCat(kArrayPrefix, id); }
std::string NameKey(std::string_view name) { return StrCat(kNamePrefix, name); }
std::string ManifestKey(std::string_view id) { return StrCat(kManifestPrefix, id); }
std::string ChunkKey(std::string_view id, int64_t chunk) {
  return StrCat(kManifestPrefix, id, "/", absl::Dec(chunk, absl::kZeroPad6));
}

absl::Status NoArray(std::string_view id) {
  return WithReason(
      absl::NotFoundError(StrCat("no array \"", id, "\"; it was released, or never was")),
      Reason::kNotFound);
}

absl::Status Given(std::string_view id) {
  return WithReason(
      absl::NotFoundError(StrCat("array \"", id, "\" was donated to a step that has not ended")),
      Reason::kNotFound);
}

absl::Status CheckName(const std::string& name) {
  const bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (!name.empty() && name.size() <= Catalogue::kMaxNameBytes && !control &&
      DecodeUtf8(name).has_value()) {
    return absl::OkStatus();
  }
  return WithReason(
      absl::InvalidArgumentError(StrCat("a name must be 1 to ", Catalogue::kMaxNameBytes,
                                        " bytes of UTF-8 without control characters; this one has ",
                                        name.size(), " bytes")),
      Reason::kBadField);
}

// The same array with other missing ranks.
ArrayPtr WithMissing(const Array& array, std::vector<int64_t> missing) {
  auto changed = std::make_shared<Array>(array);
  changed->missing_ranks = std::move(missing);
  if (changed->state != ArrayState::kStaging) {
    changed->state =
        changed->missing_ranks.empty() ? ArrayState::kAvailable : ArrayState::kDegraded;
  }
  return changed;
}

// Adds `rank` to the missing ones, or takes it away.
ArrayPtr WithRank(const ArrayPtr& array, int64_t rank, bool missing) {
  std::vector<int64_t> ranks = array->missing_ranks;
  const auto place = std::lower_bound(ranks.begin(), ranks.end(), rank);
  const bool is_missing = place != ranks.end() && *place == rank;
  if (is_missing == missing) return array;
  if (missing) {
    ranks.insert(place, rank);
  } else {
    ranks.erase(place);
  }
  return WithMissing(*array, std::move(ranks));
}

// `change` more of a state.
void Tally(ArrayState state, int64_t change, ArrayCounts* counts) {
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

bool LiesOn(const Array& array, std::string_view mesh_id, int64_t rank) {
  const ArrayDescriptor& descriptor = array.definition.descriptor;
  return descriptor.mesh_id == mesh_id && rank < descriptor.mesh.size();
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

struct Catalogue::Pending {
  CommitRequest request;
  CommitCallback callback;
  std::vector<ArrayPtr> arrays;  // what the staged ones become, as in request.arrays
  std::string manifest_id;       // empty: one transaction is enough
  std::vector<std::string> chunks;
  Transaction last;  // the one that makes it count

  // What an array will be when this has happened.
  ArrayPtr Committed(std::string_view id) const {
    for (const ArrayPtr& array : arrays) {
      if (array->definition.descriptor.array_id == id) return array;
    }
    return nullptr;
  }
};

Catalogue::Catalogue(Store* store, rpc::Clock* clock, ReleaseListener listener)
    : store_(store), clock_(clock), listener_(std::move(listener)) {}

Catalogue::~Catalogue() {
  auto idle = [this] {
    mutex_.AssertReaderHeld();
    return in_flight_ == 0;
  };
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&idle));
}

absl::StatusOr<std::unique_ptr<Catalogue>> Catalogue::Open(Store* store, rpc::Clock* clock,
                                                           ReleaseListener listener) {
  std::unique_ptr<Catalogue> catalogue(new Catalogue(store, clock, std::move(listener)));
  SHARDMESH_RETURN_IF_ERROR(catalogue->BeginTerm());
  SHARDMESH_ASSIGN_OR_RETURN(catalogue->requests_, RequestMemory::Open(store, clock));
  absl::MutexLock lock(&catalogue->mutex_);
  SHARDMESH_RETURN_IF_ERROR(catalogue->Load());
  return catalogue;
}

absl::Status Catalogue::BeginTerm() {
  ClusterRecord cluster;
  Revision seen = 0;
  const absl::StatusOr<KeyValue> stored = store_->Get(kClusterKey);
  if (stored.ok()) {
    SHARDMESH_ASSIGN_OR_RETURN(cluster, DecodeCluster(stored->key, stored->value));
    seen = stored->mod_revision;
  } else if (absl::IsNotFound(stored.status())) {
    cluster.cluster_id = RandomId();
  } else {
    return stored.status();
  }
  ++cluster.term;
  SHARDMESH_ASSIGN_OR_RETURN(
      cluster_revision_,
      CommitAndWait(*store_, {.compares = {{std::string(kClusterKey), seen}},
                              .puts = {{std::string(kClusterKey), EncodeCluster(cluster)}}}));
  cluster_id_ = cluster.cluster_id;
  term_ = cluster.term;
  return absl::OkStatus();
}

absl::Status Catalogue::Load() {
  // Names at their newest revision, and every array that a record describes.
  struct Found {
    Revision revision = 0;
    std::string array_id;  // empty: deleted
    std::string manifest_id;
  };
  std::map<std::string, Found> names;
  std::map<std::string, ArrayPtr> arrays;
  const auto found_name = [&](const std::string& name, Found found) {
    Found& newest = names[name];
    if (found.revision > newest.revision) newest = std::move(found);
  };

  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored_arrays, store_->List(kArrayPrefix));
  for (const KeyValue& item : stored_arrays.items) {
    SHARDMESH_ASSIGN_OR_RETURN(Array array, DecodeArray(item.key, item.value));
    arrays[item.key.substr(kArrayPrefix.size())] = std::make_shared<const Array>(std::move(array));
  }
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored_names, store_->List(kNamePrefix));
  for (const KeyValue& item : stored_names.items) {
    SHARDMESH_ASSIGN_OR_RETURN(std::string array_id, DecodeName(item.key, item.value));
    found_name(item.key.substr(kNamePrefix.size()), {item.mod_revision, std::move(array_id), ""});
  }
  // A manifest's record sorts before its chunks; chunks without one are an interrupted commit's.
  SHARDMESH_ASSIGN_OR_RETURN(const KeyValues stored_chunks, store_->List(kManifestPrefix));
  std::map<std::string, Revision> manifest_revisions;
  for (const KeyValue& item : stored_chunks.items) {
    const std::string path = item.key.substr(kManifestPrefix.size());
    const size_t slash = path.find('/');
    const std::string id = path.substr(0, slash);
    if (slash == std::string::npos) {
      SHARDMESH_ASSIGN_OR_RETURN(const int64_t chunks, DecodeManifest(item.key, item.value));
      manifests_[id].chunks = chunks;
      manifest_revisions[id] = item.mod_revision;
      continue;
    }
    if (manifest_revisions.count(id) == 0) {
      dead_keys_.push_back(item.key);
      continue;
    }
    SHARDMESH_ASSIGN_OR_RETURN(const auto entries, DecodeManifestChunk(item.key, item.value));
    for (const ManifestEntry& entry : entries) {
      const std::string& array_id = entry.array->definition.descriptor.array_id;
      arrays[array_id] = entry.array;
      manifests_[id].names.push_back(entry.name);
      ++manifest_mentions_[entry.name];
      found_name(entry.name, {manifest_revisions[id], array_id, id});
    }
  }

  for (const KeyValue& item : stored_names.items) {
    const bool outdated = names[item.key.substr(kNamePrefix.size())].revision != item.mod_revision;
    if (outdated) dead_keys_.push_back(item.key);
  }
  for (auto& [name, found] : names) {
    if (found.array_id.empty()) {
      if (manifest_mentions_.count(name) == 0) dead_keys_.push_back(NameKey(name));
      continue;
    }
    const auto array = arrays.find(found.array_id);
    if (array == arrays.end()) {
      return WithReason(
          absl::DataLossError(StrCat("the name \"", name, "\" points to array ", found.array_id,
                                     ", of which the store has no record; restore "
                                     "a copy of the data folder")),
          Reason::kStoreFailed);
    }
    SetArray(arrays_[found.array_id], array->second);
    AddName({name, found.array_id, found.revision}, found.manifest_id);
  }
  for (const KeyValue& item : stored_arrays.items) {
    if (arrays_.count(item.key.substr(kArrayPrefix.size())) == 0) dead_keys_.push_back(item.key);
  }
  for (auto manifest = manifests_.begin(); manifest != manifests_.end();) {
    const auto next = std::next(manifest);
    if (manifest->second.current_names == 0) DropManifest(manifest);
    manifest = next;
  }
  FlushReleased();
  return absl::OkStatus();
}

absl::Status Catalogue::Stage(ArrayDefinition definition) {
  SHARDMESH_RETURN_IF_ERROR(definition.descriptor.Tiling().status());
  auto array = std::make_shared<Array>();
  array->definition = std::move(definition);
  const std::string& id = array->definition.descriptor.array_id;
  absl::MutexLock lock(&mutex_);
  const auto [entry, is_new] = arrays_.try_emplace(id);
  if (!is_new) {
    return WithReason(absl::AlreadyExistsError(StrCat("array \"", id, "\" exists")),
                      Reason::kAlreadyExists);
  }
  SetArray(entry->second, std::move(array));
  return absl::OkStatus();
}

void Catalogue::Discard(const std::vector<std::string>& array_ids) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& id : array_ids) {
    const auto found = arrays_.find(id);
    if (found == arrays_.end() || found->second.array->state != ArrayState::kStaging ||
        committing_arrays_.contains(id)) {
      continue;
    }
    EraseArray(found);
  }
}

void Catalogue::Commit(CommitRequest request, CommitCallback callback) {
  auto pending = std::make_shared<Pending>();
  pending->request = std::move(request);
  pending->callback = std::move(callback);
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
        auto array = std::make_shared<Array>(*arrays_.find(commit.array_id)->second.array);
        array->state = ArrayState::kAvailable;
        array->durability = commit.durability;
        array->tile_crc32c = commit.tile_crc32c;
        array->created = now;
        pending->arrays.push_back(std::move(array));
        committing_arrays_.insert(commit.array_id);
      }
      for (const NameMove& move : pending->request.moves) {
        moving_names_.insert(move.name);
        if (!move.array_id.empty()) ++arrays_.find(move.array_id)->second.pins;
      }
      Write(pending.get());
      if (!pending->manifest_id.empty()) {
        WriteChunk(pending, 0);
      } else if (pending->last.puts.empty() && pending->last.deletes.empty()) {
        events_.Add([this, pending] { Finish(pending, 0); });
      } else {
        CommitToStore(std::move(pending->last), [this, pending](absl::StatusOr<Revision> revision) {
          Finish(pending, std::move(revision));
        });
      }
    }
  }
  events_.MakeCalls();
}

absl::Status Catalogue::CheckCommit(const CommitRequest& request,
                                    std::optional<MissingName>* missing) const {
  std::set<std::string_view> staged;
  for (const ArrayCommit& commit : request.arrays) {
    const auto found = arrays_.find(commit.array_id);
    if (found == arrays_.end() || found->second.array->state != ArrayState::kStaging) {
      return WithReason(absl::NotFoundError(StrCat("no staged array \"", commit.array_id, "\"")),
                        Reason::kNotFound);
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
                        Reason::kBadField);
    }
  }
  std::set<std::string_view> names;
  size_t deletions = 0;
  for (const NameMove& move : request.moves) {
    SHARDMESH_RETURN_IF_ERROR(CheckMove(move, missing));
    if (!names.insert(move.name).second) {
      return WithReason(
          absl::InvalidArgumentError(StrCat("name \"", move.name, "\" is moved twice")),
          Reason::kBadField);
    }
    if (!move.array_id.empty()) {
      const auto found = arrays_.find(move.array_id);
      const bool there =
          found != arrays_.end() &&
          (found->second.array->state != ArrayState::kStaging || staged.count(move.array_id) > 0);
      if (!there) return NoArray(move.array_id);
      if (found->second.is_given) return Given(move.array_id);
    } else if (++deletions > kMaxSmallOperations) {
      return WithReason(absl::InvalidArgumentError(StrCat("a commit deletes at most ",
                                                          kMaxSmallOperations, " names; split it")),
                        Reason::kLimitExceeded);
    }
  }
  return absl::OkStatus();
}

absl::Status Catalogue::CheckMove(const NameMove& move, std::optional<MissingName>* missing) const {
  SHARDMESH_RETURN_IF_ERROR(CheckName(move.name));
  if (moving_names_.contains(move.name)) {
    return WithReason(absl::AbortedError(StrCat("name \"", move.name,
                                                "\" is being moved by another request; retry")),
                      Reason::kVersionMismatch);
  }
  const auto found = names_.find(move.name);
  const int64_t version = found == names_.end() ? 0 : found->second.entry.version;
  if (move.expected_version.has_value() && *move.expected_version != version) {
    return WithReason(absl::AbortedError(StrCat("name \"", move.name, "\" is at version ", version,
                                                ", expected ", *move.expected_version,
                                                version == 0 ? " (there is no such name)" : "",
                                                "; look it up again and retry")),
                      Reason::kVersionMismatch);
  }
  if (move.array_id.empty() && version == 0) {
    *missing = Missing(move.name);
    return absl::NotFoundError("no such name");
  }
  return absl::OkStatus();
}

void Catalogue::Write(Pending* pending) {
  const CommitRequest& request = pending->request;
  Transaction& last = pending->last;
  last = Fenced();
  std::vector<ManifestEntry> entries;
  std::set<std::string_view> written;
  for (const NameMove& move : request.moves) {
    if (move.array_id.empty()) {
      if (manifest_mentions_.contains(move.name)) {
        last.puts.push_back({NameKey(move.name), EncodeName("")});
      } else {
        last.deletes.push_back(NameKey(move.name));
      }
      continue;
    }
    ArrayPtr array = pending->Committed(move.array_id);
    if (array == nullptr) array = arrays_.find(move.array_id)->second.array;
    entries.push_back({move.name, std::move(array)});
  }
  std::vector<Put> puts;
  size_t bytes = 0;
  for (const ManifestEntry& entry : entries) {
    const std::string& id = entry.array->definition.descriptor.array_id;
    if (written.insert(id).second) puts.push_back({ArrayKey(id), EncodeArray(*entry.array)});
    puts.push_back({NameKey(entry.name), EncodeName(id)});
    if (puts.size() + last.puts.size() + last.deletes.size() > kMaxSmallOperations) break;
  }
  for (const Put& put : puts) bytes += put.key.size() + put.value.size();
  if (bytes <= kMaxSmallBytes &&
      puts.size() + last.puts.size() + last.deletes.size() <= kMaxSmallOperations) {
    for (Put& put : puts) last.puts.push_back(std::move(put));
  } else {
    pending->manifest_id = RandomId();
    pending->chunks = EncodeManifestChunks(entries);
    last.compares.push_back({ManifestKey(pending->manifest_id), 0});
    last.puts.push_back({ManifestKey(pending->manifest_id),
                         EncodeManifest(static_cast<int64_t>(pending->chunks.size()))});
  }
  requests_->AddTo(&last, request.request_id, request.answer);
}

void Catalogue::WriteChunk(std::shared_ptr<Pending> pending, size_t next) {
  if (next == pending->chunks.size()) {
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

void Catalogue::Finish(const std::shared_ptr<Pending>& pending, absl::StatusOr<Revision> revision) {
  // All that a commit compares is the fence, and that its manifest is new.
  if (absl::IsAborted(revision.status())) {
    revision = WithReason(
        absl::FailedPreconditionError("another coordinator has taken over this store; stop this "
                                      "one"),
        Reason::kStaleTerm);
  }
  {
    absl::MutexLock lock(&mutex_);
    const CommitRequest& request = pending->request;
    for (const ArrayCommit& commit : request.arrays) committing_arrays_.erase(commit.array_id);
    for (const NameMove& move : request.moves) moving_names_.erase(move.name);
    if (revision.ok()) {
      requests_->Finish(request.request_id, *revision);
      Apply(*pending, *revision);
    } else {
      requests_->Abandon(request.request_id);
      for (size_t i = 0; i < pending->chunks.size(); ++i) {
        dead_keys_.push_back(ChunkKey(pending->manifest_id, static_cast<int64_t>(i)));
      }
    }
    // The commit's own pins go last: until each name points to where it was moved, they may be all
    // that holds an array, such as one whose only name is moved to it again.
    for (const NameMove& move : request.moves) {
      if (move.array_id.empty()) continue;
      --arrays_.find(move.array_id)->second.pins;
      ReleaseIfUnheld(move.array_id);
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
}

void Catalogue::Apply(const Pending& pending, Revision revision) {
  for (const ArrayPtr& array : pending.arrays) {
    ArrayEntry& entry = arrays_.find(array->definition.descriptor.array_id)->second;
    // Ranks may have been lost since the commit began.
    SetArray(entry, WithMissing(*array, entry.array->missing_ranks));
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
  for (const NameMove& move : pending.request.moves) {
    const bool own_key = pending.manifest_id.empty() || move.array_id.empty();
    if (const auto old = names_.find(move.name); old != names_.end()) DropName(old, own_key);
    if (!move.array_id.empty()) {
      AddName({move.name, move.array_id, revision}, pending.manifest_id);
    }
  }
  for (const ArrayPtr& array : pending.arrays) {
    ReleaseIfUnheld(array->definition.descriptor.array_id);
  }
}

void Catalogue::SetArray(ArrayEntry& entry, ArrayPtr array) {
  if (entry.array != nullptr) {
    Tally(entry.array->state, -1, &counts_);
  }
  Tally(array->state, 1, &counts_);
  entry.array = std::move(array);
}

void Catalogue::EraseArray(Arrays::iterator entry) {
  Tally(entry->second.array->state, -1, &counts_);
  arrays_.erase(entry);
}

void Catalogue::AddName(NameEntry entry, std::string manifest_id) {
  ArrayEntry& array = arrays_.find(entry.array_id)->second;
  ++array.names;
  array.versions.push_back(entry);
  versions_[{entry.name, entry.version}] = entry.array_id;
  if (!manifest_id.empty()) ++manifests_[manifest_id].current_names;
  std::string name = entry.name;
  names_[std::move(name)] = {std::move(entry), std::move(manifest_id)};
}

void Catalogue::DropName(Names::iterator name, bool key_stays) {
  const Name old = std::move(name->second);
  names_.erase(name);
  if (old.manifest_id.empty()) {
    if (!key_stays) dead_keys_.push_back(NameKey(old.entry.name));
  } else if (const auto manifest = manifests_.find(old.manifest_id);
             --manifest->second.current_names == 0) {
    DropManifest(manifest);
  }
  --arrays_.find(old.entry.array_id)->second.names;
  ReleaseIfUnheld(old.entry.array_id);
}

void Catalogue::DropManifest(std::map<std::string, Manifest>::iterator manifest) {
  // The record goes first: chunks without it mean nothing.
  dead_keys_.push_back(ManifestKey(manifest->first));
  for (int64_t chunk = 0; chunk < manifest->second.chunks; ++chunk) {
    dead_keys_.push_back(ChunkKey(manifest->first, chunk));
  }
  for (const std::string& name : manifest->second.names) {
    const auto mentions = manifest_mentions_.find(name);
    if (--mentions->second == 0) manifest_mentions_.erase(mentions);
  }
  manifests_.erase(manifest);
}

void Catalogue::ReleaseIfUnheld(std::string_view array_id) {
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return;
  ArrayEntry& entry = found->second;
  if (entry.names > 0 || entry.pins > 0 || entry.array->state == ArrayState::kStaging) return;
  // Its record is there if a name of its own key ever pointed to it; deleting none is no error.
  if (!entry.versions.empty()) dead_keys_.push_back(ArrayKey(array_id));
  for (const NameEntry& version : entry.versions) versions_.erase({version.name, version.version});
  released_.push_back(found->first);
  EraseArray(found);
}

void Catalogue::FlushReleased() {
  if (!released_.empty()) {
    events_.Add([this, released = std::exchange(released_, {})] { listener_(released); });
  }
  // The store is told under the lock, so that a key that is used anew is written after this. Should
  // it fail, the next Open finds the keys dead and tries again.
  for (size_t begin = 0; begin < dead_keys_.size(); begin += kMaxSmallOperations) {
    const size_t end = std::min(begin + kMaxSmallOperations, dead_keys_.size());
    Transaction deletes = Fenced();
    deletes.deletes.assign(dead_keys_.begin() + static_cast<ptrdiff_t>(begin),
                           dead_keys_.begin() + static_cast<ptrdiff_t>(end));
    CommitToStore(std::move(deletes), [](absl::StatusOr<Revision>) {});
  }
  dead_keys_.clear();
}

Transaction Catalogue::Fenced() const {
  return {.compares = {{std::string(kClusterKey), cluster_revision_}}};
}

void Catalogue::CommitToStore(Transaction transaction, Store::CommitCallback callback) {
  ++in_flight_;
  store_->Commit(std::move(transaction),
                 [this, callback = std::move(callback)](absl::StatusOr<Revision> revision) mutable {
                   std::move(callback)(std::move(revision));
                   absl::MutexLock lock(&mutex_);
                   --in_flight_;
                 });
}

absl::StatusOr<ArrayPtr> Catalogue::FindArray(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return NoArray(array_id);
  return found->second.array;
}

Catalogue::MissingName Catalogue::Missing(std::string_view name) const {
  return {std::string(name), NeighboursOf(name, names_)};
}

absl::Status Catalogue::NoName(const MissingName& missing) {
  const std::vector<std::string_view> known(missing.neighbours.begin(), missing.neighbours.end());
  return WithReason(absl::NotFoundError(StrCat("no array is named \"", missing.name, "\"",
                                               DidYouMean(missing.name, known))),
                    Reason::kNotFound);
}

absl::StatusOr<NameEntry> Catalogue::FindName(std::string_view name, int64_t version) const {
  MissingName missing;
  {
    absl::MutexLock lock(&mutex_);
    if (version != 0) {
      const auto found = versions_.find({std::string(name), version});
      if (found == versions_.end()) {
        return WithReason(absl::NotFoundError(StrCat("version ", version, " of name \"", name,
                                                     "\" is not there any more, or never was")),
                          Reason::kNotFound);
      }
      return NameEntry{std::string(name), found->second, version};
    }
    const auto found = names_.find(name);
    if (found != names_.end()) return found->second.entry;
    missing = Missing(name);
  }
  return NoName(missing);
}

int64_t Catalogue::VersionOf(std::string_view name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = names_.find(name);
  return found == names_.end() ? 0 : found->second.entry.version;
}

bool Catalogue::HasName(std::string_view array_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  return found != arrays_.end() && found->second.names > 0;
}

std::vector<Catalogue::NamedArray> Catalogue::ListNames(std::string_view prefix,
                                                        std::string_view start_after,
                                                        int64_t limit) const {
  std::vector<NamedArray> page;
  absl::MutexLock lock(&mutex_);
  auto at = start_after < prefix ? names_.lower_bound(prefix) : names_.upper_bound(start_after);
  for (; at != names_.end() && std::string_view(at->first).substr(0, prefix.size()) == prefix &&
         static_cast<int64_t>(page.size()) < limit;
       ++at) {
    page.push_back({at->second.entry, arrays_.find(at->second.entry.array_id)->second.array});
  }
  return page;
}

std::vector<ArrayPtr> Catalogue::ListArrays(std::string_view start_after, int64_t limit) const {
  std::vector<ArrayPtr> page;
  absl::MutexLock lock(&mutex_);
  for (auto at = arrays_.upper_bound(start_after);
       at != arrays_.end() && static_cast<int64_t>(page.size()) < limit; ++at) {
    page.push_back(at->second.array);
  }
  return page;
}

ArrayCounts Catalogue::CountArrays() const {
  absl::MutexLock lock(&mutex_);
  return counts_;
}

int64_t Catalogue::CountNames() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(names_.size());
}

absl::Status Catalogue::Pin(std::string_view array_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end()) return NoArray(array_id);
  if (found->second.is_given) return Given(array_id);
  ++found->second.pins;
  return absl::OkStatus();
}

bool Catalogue::Give(std::string_view array_id, int64_t pins) {
  absl::MutexLock lock(&mutex_);
  const auto found = arrays_.find(array_id);
  if (found == arrays_.end() || found->second.names > 0 || found->second.pins > pins) return false;
  found->second.is_given = true;
  return true;
}

void Catalogue::TakeBack(std::string_view array_id) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = arrays_.find(array_id); found != arrays_.end()) {
    found->second.is_given = false;
  }
}

void Catalogue::Unpin(std::string_view array_id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = arrays_.find(array_id);
    if (found == arrays_.end() || found->second.pins == 0) return;
    --found->second.pins;
    ReleaseIfUnheld(array_id);
    FlushReleased();
  }
  events_.MakeCalls();
}

void Catalogue::TilesLost(std::string_view mesh_id, int64_t rank) {
  absl::MutexLock lock(&mutex_);
  for (auto& [id, entry] : arrays_) {
    if (LiesOn(*entry.array, mesh_id, rank)) SetArray(entry, WithRank(entry.array, rank, true));
  }
}

InventoryVerdict Catalogue::TilesFound(std::string_view mesh_id, int64_t rank,
                                       const std::vector<InventoryTile>& tiles) {
  InventoryVerdict verdict;
  std::set<std::string_view> kept;
  absl::MutexLock lock(&mutex_);
  for (const InventoryTile& tile : tiles) {
    const auto found = arrays_.find(tile.array_id);
    if (found == arrays_.end()) {
      verdict.drop.push_back(tile.array_id);
      continue;
    }
    const Array& array = *found->second.array;
    if (!LiesOn(array, mesh_id, rank)) continue;
    const bool staging = array.state == ArrayState::kStaging;
    if (staging || array.tile_crc32c[static_cast<size_t>(rank)] == tile.crc32c) {
      verdict.keep.push_back(tile.array_id);
      kept.insert(found->first);
    } else {
      verdict.drop.push_back(tile.array_id);
    }
  }
  for (auto& [id, entry] : arrays_) {
    if (!LiesOn(*entry.array, mesh_id, rank)) continue;
    SetArray(entry, WithRank(entry.array, rank, kept.count(id) == 0));
  }
  return verdict;
}

}  // namespace shardmesh::server
