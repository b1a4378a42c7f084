// Compares two successive views of the membership, and divides the differences into pages.
#include "server/attach/membership_pages.h"

#include <utility>
#include <variant>

#include "process/host_port.h"
#include "rpc/codec/spec_codec.h"
#include "server/attach/attach_codec.h"
#include "sharding/mesh_definition.h"
#include "shardmesh/internal/v1/attach_service.pb.h"

namespace shardmesh::server {
namespace {

using Page = MembershipPages::Page;

// Approximate bytes of an item's tag and length.
constexpr int64_t kFramingBytes = 6;

// Collects items on a page, and begins a new page when the page is full.
class Pager {
 public:
  explicit Pager(std::vector<Page>* pages) : pages_(pages) {}

  internal::v1::Membership& page() { return *response_.mutable_membership(); }
  // Records that an item of about this size was added to the page.
  void Added(int64_t size_bytes) {
    is_empty_ = false;
    size_bytes_ += size_bytes + kFramingBytes;
    if (size_bytes_ >= MembershipPages::kPageBytes) Flush();
  }
  // Ends the page. Drops a page without items, unless `even_if_empty` says that other fields of the
  // page matter.
  void Flush(bool even_if_empty = false) {
    if (is_empty_ && !even_if_empty) return;
    pages_->push_back(EncodeMessage(response_));
    response_.Clear();
    size_bytes_ = 0;
    is_empty_ = true;
  }

 private:
  std::vector<Page>* const pages_;
  internal::v1::AttachResponse response_;
  int64_t size_bytes_ = 0;
  bool is_empty_ = true;
};

bool IsAlive(const WorkerStatus& worker) { return worker.state != WorkerState::kLost; }

void AddWorker(const WorkerStatus& worker, Pager* pager) {
  internal::v1::LiveWorker* added = pager->page().add_workers();
  added->set_identity(worker.info.identity);
  added->set_incarnation(worker.info.incarnation);
  for (const std::string& address : worker.info.endpoints) {
    added->add_endpoints()->set_address(WithPort(address, worker.info.exchange_port.value_or(0)));
  }
  pager->Added(static_cast<int64_t>(added->ByteSizeLong()));
}

const Mesh& MeshOf(const Definition& definition) {
  return std::get<MeshDefinition>(definition.value).mesh;
}

// Encodes the whole mesh. If a page is full, the remaining ranks follow on the next page.
std::vector<Page> PagesOf(const MeshRanks& ranks, const Definition& definition) {
  std::vector<Page> pages;
  Pager pager(&pages);
  internal::v1::MeshMembership* mesh = nullptr;
  int64_t size_bytes = 0;
  for (size_t rank = 0; rank < ranks.identities.size(); ++rank) {
    if (mesh == nullptr) {
      mesh = pager.page().add_meshes();
      mesh->set_mesh_id(ranks.mesh_id);
      mesh->set_mesh_revision(definition.revision);
      rpc::Encode(MeshOf(definition), mesh->mutable_mesh());
      mesh->set_first_rank(static_cast<int32_t>(rank));
      size_bytes = static_cast<int64_t>(mesh->ByteSizeLong());
    }
    mesh->add_identities(ranks.identities[rank]);
    size_bytes += static_cast<int64_t>(ranks.identities[rank].size()) + 3;
    if (size_bytes >= MembershipPages::kPageBytes) {
      pager.Added(size_bytes);
      mesh = nullptr;
    }
  }
  if (mesh != nullptr) pager.Added(size_bytes);
  pager.Flush();
  return pages;
}

// Encodes only the mesh's new revision, for workers that know the mesh.
std::vector<Page> RevisionOf(const MeshRanks& ranks, const Definition& definition) {
  std::vector<Page> pages;
  Pager pager(&pages);
  internal::v1::MeshMembership* mesh = pager.page().add_meshes();
  mesh->set_mesh_id(ranks.mesh_id);
  mesh->set_mesh_revision(definition.revision);
  pager.Flush(/*even_if_empty=*/true);
  return pages;
}

void Append(const std::vector<Page>& from, std::vector<Page>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

}  // namespace

bool MembershipPages::Update(std::shared_ptr<const MembershipView> view,
                             std::shared_ptr<const Definitions> state) {
  before_meshes_.clear();
  changed_meshes_.clear();
  after_meshes_.clear();
  const bool is_new_view = view != view_;
  if (!is_new_view && state == state_) return false;
  const bool is_new_epoch = view_ == nullptr || view->epoch != view_->epoch;
  TellMeshes(*view, *state);
  const bool is_change = is_new_epoch || !before_meshes_.empty() || !changed_meshes_.empty();
  if (is_change) TellWorkers(*view);
  view_ = std::move(view);
  state_ = std::move(state);
  if (is_new_epoch) {
    all_workers_.clear();
    end_ = nullptr;
  }
  return is_change;
}

void MembershipPages::TellWorkers(const MembershipView& view) {
  static const MembershipView* const nothing = new MembershipView();
  const MembershipView& told = view_ == nullptr ? *nothing : *view_;
  Pager pager(&after_meshes_);
  const auto lose = [&](const std::string& identity) {
    pager.page().add_lost_workers(identity);
    pager.Added(static_cast<int64_t>(identity.size()) + 3);
  };
  // Both lists of workers are sorted by identity, so one pass compares them.
  auto before = told.workers.begin();
  for (const auto& [identity, worker] : view.workers) {
    for (; before != told.workers.end() && before->first < identity; ++before) {
      // The new view no longer has this worker.
      if (IsAlive(*before->second)) lose(before->first);
    }
    const WorkerStatus* known = nullptr;
    if (before != told.workers.end() && before->first == identity) {
      known = before->second.get();
      ++before;
      if (known == worker.get()) continue;
    }
    const bool was_alive = known != nullptr && IsAlive(*known);
    if (!IsAlive(*worker)) {
      if (was_alive) lose(identity);
    } else if (!was_alive || known->attachment != worker->attachment) {
      AddWorker(*worker, &pager);
    }
  }
  for (; before != told.workers.end(); ++before) {
    if (IsAlive(*before->second)) lose(before->first);
  }
  SetEnd(view, &pager.page());
  pager.Flush(/*even_if_empty=*/true);
}

void MembershipPages::TellMeshes(const MembershipView& view, const Definitions& state) {
  Pager removed(&before_meshes_);
  const auto remove = [&](const std::string& mesh_id) {
    removed.page().add_removed_mesh_ids(mesh_id);
    removed.Added(static_cast<int64_t>(mesh_id.size()) + 3);
  };
  for (auto it = meshes_.begin(); it != meshes_.end();) {
    const auto now = view.meshes.find(it->first);
    if (now != view.meshes.end() && now->second == it->second.ranks) {
      ++it;
      continue;
    }
    remove(it->first);
    it = meshes_.erase(it);
  }
  removed.Flush();
  const Definitions::ByName& definitions = state.all(DefinitionKind::kMesh);
  for (const auto& [mesh_id, ranks] : view.meshes) {
    if (ranks->identities.empty()) continue;
    const auto definition = definitions.find(mesh_id);
    // The definitions change before the membership view does. Skip this mesh now: the Update with
    // the new view will add it.
    if (definition == definitions.end() ||
        MeshOf(*definition->second).size() != std::ssize(ranks->identities)) {
      continue;
    }
    ToldMesh& told = meshes_[mesh_id];
    if (told.definition == definition->second) continue;
    const bool is_revision_alone =
        told.definition != nullptr && MeshOf(*told.definition) == MeshOf(*definition->second);
    told.ranks = ranks;
    told.definition = definition->second;
    told.pages = PagesOf(*ranks, *told.definition);
    changed_meshes_.push_back(
        {ranks, is_revision_alone ? RevisionOf(*ranks, *told.definition) : told.pages});
  }
}

std::vector<Page> MembershipPages::ChangeFor(std::string_view identity) const {
  std::vector<Page> pages = before_meshes_;
  for (const ChangedMesh& mesh : changed_meshes_) {
    if (mesh.ranks->RankOf(identity).has_value()) Append(mesh.pages, &pages);
  }
  Append(after_meshes_, &pages);
  return pages;
}

std::vector<Page> MembershipPages::SnapshotFor(std::string_view identity) const {
  if (all_workers_.empty()) {
    Pager pager(&all_workers_);
    pager.page().set_snapshot(true);
    for (const auto& [each, worker] : view_->workers) {
      if (IsAlive(*worker)) AddWorker(*worker, &pager);
    }
    pager.Flush(/*even_if_empty=*/all_workers_.empty());
  }
  std::vector<Page> pages = all_workers_;
  for (const auto& [mesh_id, mesh] : meshes_) {
    if (mesh.ranks->RankOf(identity).has_value()) Append(mesh.pages, &pages);
  }
  if (end_ == nullptr) {
    internal::v1::AttachResponse response;
    SetEnd(*view_, response.mutable_membership());
    end_ = EncodeMessage(response);
  }
  pages.push_back(end_);
  return pages;
}

void MembershipPages::SetEnd(const MembershipView& view, internal::v1::Membership* page) const {
  page->set_epoch(view.epoch);
  page->set_term(term_);
  page->set_last(true);
}

}  // namespace shardmesh::server
