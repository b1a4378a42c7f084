// Updates the peers with the membership, checks their hellos, and dials them.
#include "worker/exchange/peer_table.h"

#include <grpcpp/channel.h>

#include <algorithm>
#include <cstring>

#include "process/log.h"
#include "rpc/tls/dial.h"
#include "status/fact_keys.h"
#include "status/str_cat.h"
#include "worker/exchange/exchange_stream.h"

namespace shardmesh::worker {

absl::Status WorkerLost(std::string_view message, std::string_view identity) {
  return WithReason(absl::UnavailableError(ToAbsl(message)), Reason::kWorkerLost,
                    {{fact::kIdentity, identity}});
}

absl::Status WrongHello(std::string_view message, Reason reason, Facts facts) {
  return WithReason(absl::FailedPreconditionError(ToAbsl(message)), reason, facts);
}

bool PeerTable::SetMembership(MembershipView view,
                              absl::FunctionRef<void(Peer& peer, std::string_view reason)> leave,
                              absl::FunctionRef<void(const std::string& identity)> join) {
  if (view.epoch < view_.epoch) return false;
  // A map avoids a search through all old meshes for each new mesh: there may be thousands of
  // meshes.
  std::map<std::string_view, const MeshMembers*> meshes_before;
  for (const MeshMembers& mesh : view_.meshes) meshes_before.emplace(mesh.mesh_id, &mesh);
  std::map<std::string, MeshDevice> members;
  for (const MeshMembers& mesh : view.meshes) {
    const auto before = meshes_before.find(mesh.mesh_id);
    if (before == meshes_before.end() || !(*before->second == mesh)) {
      changed_epoch_[mesh.mesh_id] = view.epoch;
    }
    for (const MeshDevice& device : mesh.devices) {
      if (device.identity != options_.self.identity) members[device.identity] = device;
    }
  }
  for (auto it = peers_.begin(); it != peers_.end();) {
    const auto member = members.find(it->first);
    const bool stays =
        member != members.end() && member->second.incarnation == it->second.device.incarnation;
    if (stays) {
      it->second.device = member->second;
      ++it;
      continue;
    }
    leave(it->second,
          member == members.end()
              ? StrCat("it is no member of epoch ", view.epoch, " any more")
              : StrCat("it was started anew (incarnation ", member->second.incarnation, ")"));
    it = peers_.erase(it);
  }
  for (auto& [identity, device] : members) {
    const auto [it, is_new] = peers_.try_emplace(identity, options_.redial);
    if (!is_new) continue;
    it->second.device = device;
    join(identity);
  }
  view_ = std::move(view);
  return true;
}

absl::StatusOr<const MeshMembers*> PeerTable::MeshFor(std::string_view mesh_id,
                                                      int64_t epoch) const {
  const MeshMembers* const mesh = view_.Find(mesh_id);
  if (mesh == nullptr || !mesh->RankOf(options_.self.identity).has_value()) {
    return WithReason(
        absl::FailedPreconditionError(StrCat(options_.self.identity, " serves no rank of mesh \"",
                                             mesh_id, "\" in epoch ", view_.epoch)),
        Reason::kNotFound, {{fact::kKind, "mesh"}, {fact::kName, mesh_id}});
  }
  if (const auto changed = changed_epoch_.find(mesh_id);
      changed != changed_epoch_.end() && changed->second > epoch) {
    return WithReason(absl::AbortedError(StrCat(
                          "the workers of mesh \"", mesh_id, "\" changed in epoch ",
                          changed->second, ", the step is of epoch ", epoch, "; run it again")),
                      Reason::kStaleEpoch, {{fact::kHave, epoch}, {fact::kNeed, changed->second}});
  }
  if (!mesh->complete()) {
    return WithReason(absl::FailedPreconditionError(
                          StrCat("mesh \"", mesh_id, "\" has workers for ", mesh->devices.size(),
                                 " of its ", mesh->mesh.size(), " ranks")),
                      Reason::kMeshIncomplete,
                      {{fact::kMesh, mesh_id},
                       {fact::kHave, mesh->devices.size()},
                       {fact::kNeed, mesh->mesh.size()}});
  }
  return mesh;
}

absl::StatusOr<std::vector<PeerWay>> PeerTable::WaysTo(const MeshMembers& mesh,
                                                       std::string* blamed) const {
  std::vector<PeerWay> ways;
  for (const MeshDevice& device : mesh.devices) {
    PeerWay& way = ways.emplace_back();
    way.identity = device.identity;
    const Peer* const peer = Find(device.identity);
    if (peer == nullptr) continue;
    way.link = peer->link;
    way.channel = peer->channel;
    if (!peer->up && blamed->empty()) *blamed = device.identity;
    if (peer->up && way.channel == nullptr && options_.transport == Transport::kShm) {
      *blamed = device.identity;
      return WorkerLost(
          StrCat("rank ", device.rank, " (", device.identity, ") shares no memory with ",
                 options_.self.identity, ", which is to use nothing else (--transport shm)"),
          device.identity);
    }
  }
  return ways;
}

Peer* PeerTable::Find(const std::string& identity) {
  const auto peer = peers_.find(identity);
  return peer == peers_.end() ? nullptr : &peer->second;
}

const Peer* PeerTable::Find(const std::string& identity) const {
  const auto peer = peers_.find(identity);
  return peer == peers_.end() ? nullptr : &peer->second;
}

std::shared_ptr<PeerLink> PeerTable::LinkTo(const std::string& identity) const {
  const Peer* const peer = Find(identity);
  return peer == nullptr || !peer->up ? nullptr : peer->link;
}

std::vector<std::shared_ptr<PeerLink>> PeerTable::LinksUp() const {
  std::vector<std::shared_ptr<PeerLink>> links;
  for (const auto& [identity, peer] : peers_) {
    if (peer.up) links.push_back(peer.link);
  }
  return links;
}

bool PeerTable::IsReached(const Peer& peer, absl::Time now) const {
  return peer.up && (peer.channel != nullptr ||
                     (options_.transport != Transport::kShm && peer.shm_deadline <= now));
}

bool PeerTable::IsSharing(const Peer& peer) const {
  return peer.up && peer.shm_link != 0 && peer.channel == nullptr &&
         options_.clock->Now() < peer.shm_deadline;
}

bool PeerTable::IsSharing(std::string_view mesh_id) const {
  const MeshMembers* const mesh = view_.Find(mesh_id);
  if (mesh == nullptr) return false;
  return std::any_of(mesh->devices.begin(), mesh->devices.end(), [&](const MeshDevice& device) {
    const Peer* const peer = Find(device.identity);
    return peer != nullptr && IsSharing(*peer);
  });
}

absl::StatusOr<Peer*> PeerTable::CheckHello(const rpc::FrameHello& hello,
                                            const std::optional<std::string>& dialled) {
  const std::string& own = options_.self.identity;
  if (hello.peer_identity != own) {
    return WrongHello(StrCat("the hello is for ", hello.peer_identity, "; this is ", own),
                      Reason::kEndpointUnverified, {{fact::kIdentity, hello.peer_identity}});
  }
  if (hello.peer_incarnation != 0 && hello.peer_incarnation != options_.self.incarnation) {
    return WrongHello(StrCat("the hello is for incarnation ", hello.peer_incarnation, " of ", own,
                             "; this is ", options_.self.incarnation),
                      Reason::kEndpointUnverified, {{fact::kIdentity, own}});
  }
  if (!cluster_id_.empty() && hello.cluster_id != cluster_id_) {
    return WrongHello(StrCat(hello.identity, " is of cluster \"", hello.cluster_id, "\", ", own,
                             " of \"", cluster_id_, "\""),
                      Reason::kClusterMismatch,
                      {{fact::kIdentity, hello.identity},
                       {fact::kHave, hello.cluster_id},
                       {fact::kNeed, cluster_id_}});
  }
  if (dialled.has_value() ? hello.identity != *dialled : !(hello.identity < own)) {
    return WrongHello(
        dialled.has_value()
            ? StrCat(hello.identity, " answered where ", *dialled, " was dialled")
            : StrCat(hello.identity, " dialled ", own, "; the lower identity has to dial"),
        Reason::kEndpointUnverified, {{fact::kIdentity, hello.identity}});
  }
  Peer* const peer = Find(hello.identity);
  if (peer == nullptr || peer->device.incarnation != hello.incarnation) {
    return WrongHello(StrCat(hello.identity, " (incarnation ", hello.incarnation,
                             ") is not a member of epoch ", view_.epoch, " as ", own, " knows it"),
                      Reason::kStaleEpoch, {{fact::kNeed, view_.epoch}});
  }
  ShmAddress& shm = peer->shm_address;
  shm = {};
  if (shm_address_.has_value() && !hello.boot_id.empty() &&
      hello.boot_id == options_.self.boot_id && hello.shm_token.size() == shm.token.size()) {
    shm.socket = hello.shm_socket;
    std::memcpy(shm.token.data(), hello.shm_token.data(), shm.token.size());
  }
  return peer;
}

rpc::FrameHello PeerTable::HelloTo(const MeshDevice& device,
                                   MemoryBudget::Reservation* reservation) const {
  rpc::FrameHello hello = {.identity = options_.self.identity,
                           .incarnation = options_.self.incarnation,
                           .peer_identity = device.identity,
                           .peer_incarnation = device.incarnation,
                           .cluster_id = cluster_id_,
                           .initial_credit_bytes = options_.tag_limit_bytes,
                           .boot_id = options_.self.boot_id,
                           .link_credit_bytes = ReserveCredit(reservation),
                           .accepts_plain_payloads = !options_.frame_checksums};
  if (shm_address_.has_value()) {
    hello.shm_socket = shm_address_->socket;
    hello.shm_token = std::string(shm_address_->token.data(), shm_address_->token.size());
  }
  return hello;
}

int64_t PeerTable::ReserveCredit(MemoryBudget::Reservation* reservation) const {
  *reservation = MemoryBudget::Reservation();
  if (options_.budget == nullptr) return options_.link_limit_bytes;
  int64_t credit_bytes =
      PeerLinks::LinkCredit(options_.link_limit_bytes, options_.budget->limit_bytes(),
                            static_cast<int64_t>(peers_.size()));
  for (;; credit_bytes = std::max(credit_bytes / 2, PeerLinks::kLeastLinkCredit)) {
    const bool is_least = credit_bytes == PeerLinks::kLeastLinkCredit;
    constexpr std::string_view kWhat = "messages of a peer";
    auto reserved = is_least ? options_.budget->Reserve(credit_bytes, kWhat)
                             : options_.budget->TryReserve(credit_bytes, kWhat);
    if (reserved.ok()) *reservation = *std::move(reserved);
    if (reserved.ok() || is_least) return credit_bytes;
  }
}

PeerTable::Due PeerTable::Look(absl::Time now, PeerLink::Owner* owner,
                               grpc::CompletionQueue* queue) {
  Due due;
  absl::Time next = now + options_.ping_interval / 2;
  for (auto& [identity, peer] : peers_) {
    if (!IsReached(peer, now)) due.unreached.push_back(identity);
    if (peer.up && peer.channel == nullptr && now < peer.shm_deadline) {
      next = std::min(next, peer.shm_deadline);
    }
    if (peer.channel != nullptr) due.channels.emplace_back(identity, peer.channel);
    if (peer.link == nullptr && Dials(identity)) {
      if (peer.dial_time <= now) {
        Dial(peer, owner, queue);
      } else {
        next = std::min(next, peer.dial_time);
      }
    }
    if (peer.link != nullptr) due.links.push_back(peer.link);
  }
  due.links.insert(due.links.end(), greeting_.begin(), greeting_.end());
  if (!peers_.empty() || !due.links.empty()) due.next = next;
  return due;
}

void PeerTable::Dial(Peer& peer, PeerLink::Owner* owner, grpc::CompletionQueue* queue) {
  const MeshDevice& device = peer.device;
  const auto give_up = [&](const absl::Status& status) {
    LogWarning("cannot dial peer", {{"peer", device.identity}, {"error", status}});
    peer.dial_time = options_.clock->Now() + peer.backoff.NextDelay(status);
  };
  if (device.endpoints.empty()) {
    give_up(absl::FailedPreconditionError("the membership has no endpoint of it"));
    return;
  }
  const std::string& endpoint = device.endpoints[peer.next_endpoint++ % device.endpoints.size()];
  auto channel = rpc::CreateChannel(
      endpoint, {.credentials = options_.credentials,
                 .peer = rpc::ExpectedPeer::Worker(device.identity),
                 .max_message_bytes = rpc::kMaxFrameBytes,
                 // Bulk data gets its own connection, without the backoff of an earlier dial.
                 .own_connection = true});
  if (!channel.ok()) {
    give_up(channel.status());
    return;
  }
  MemoryBudget::Reservation credit;
  peer.link = std::make_shared<PeerLink>(owner, options_.clock, HelloTo(device, &credit));
  peer.link->KeepReservation(std::move(credit));
  ++live_links_;
  const std::shared_ptr<ExchangeStream> stream = DialExchange(*channel, queue);
  peer.link->Attach(stream);
  stream->Open(peer.link);
}

void PeerTable::AddGreeting(std::shared_ptr<PeerLink> link) {
  ++live_links_;
  greeting_.insert(std::move(link));
}

}  // namespace shardmesh::worker
