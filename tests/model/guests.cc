// Random calls of every method, under faults and after them.
#include "tests/model/guests.h"

#include <utility>

#include "absl/strings/match.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "status/status_macros.h"
#include "status/str_cat.h"
#include "tests/model/contract_caller.h"

namespace shardmesh::model {
namespace {

// Whether the model's complaint is about an answer that a killed process does not explain.
bool IsBroken(const absl::Status& status) {
  for (const char* answer : {" answered INTERNAL", " answered UNKNOWN", " answered DATA_LOSS",
                             " answered DEADLINE_EXCEEDED"}) {
    if (absl::StrContains(status.message(), answer)) return true;
  }
  return false;
}

}  // namespace

Guests::Guests(std::string address, std::string files, int count, int calls, uint64_t seed)
    : address_(std::move(address)),
      files_(std::move(files)),
      count_(count),
      calls_(calls),
      dice_(seed * 104'729 + 1) {
  for (const auto& [name, method] : AllMethods()) {
    for (int i = 0; i < RandomClient::WeightOf(name); ++i) methods_.push_back(name);
  }
}

Guests::~Guests() { Pause().IgnoreError(); }

void Guests::Resume() {
  is_over_ = false;
  for (int i = 0; i < count_; ++i) {
    threads_.emplace_back([this, number = next_number_++, seed = dice_.Next()] {
      Dice dice(seed);
      RandomClient client(number, address_, files_, &shared_);
      while (!is_over_) {
        const Op op{number, dice.Of(methods_), dice.Next()};
        const absl::Status status = client.Run(op);
        absl::MutexLock lock(&mutex_);
        ++under_faults_;
        if (!IsBroken(status)) continue;
        if (failure_.ok()) {
          failure_ = absl::InternalError(
              ToAbsl(StrCat("under faults, ", op.method, ": ", ToStd(status.message()))));
        }
        return;
      }
    });
  }
}

absl::Status Guests::Pause() {
  is_over_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  absl::MutexLock lock(&mutex_);
  return failure_;
}

absl::Status Guests::CleanUp() {
  const Caller caller(address_);
  for (const std::string prefix : {"c1", "shared/"}) {
    v1::ListArraysRequest list;
    list.set_prefix(prefix);
    list.set_page_size(1000);
    v1::ListArraysResponse listed;
    SHARDMESH_RETURN_IF_ERROR(caller.Call("ArrayService.ListArrays", list, &listed));
    for (const v1::Array& array : listed.arrays()) {
      v1::DeleteNameRequest request;
      request.set_request_id(StrCat("guests-", dice_.Next()));
      request.set_name(array.name());
      v1::DeleteNameResponse response;
      SHARDMESH_RETURN_IF_ERROR(caller.Call("ArrayService.DeleteName", request, &response));
    }
  }
  for (int kind = v1::ENTRY_KIND_UNSPECIFIED + 1; v1::EntryKind_IsValid(kind); ++kind) {
    v1::ListEntriesRequest list;
    list.set_kind(static_cast<v1::EntryKind>(kind));
    list.set_page_size(1000);
    v1::ListEntriesResponse listed;
    SHARDMESH_RETURN_IF_ERROR(caller.Call("CatalogService.ListEntries", list, &listed));
    for (const v1::Entry& entry : listed.entries()) {
      if (!absl::StartsWith(entry.name(), "c1")) continue;
      v1::DeleteEntryRequest request;
      request.set_request_id(StrCat("guests-", dice_.Next()));
      request.set_kind(list.kind());
      request.set_name(entry.name());
      v1::DeleteEntryResponse response;
      SHARDMESH_RETURN_IF_ERROR(caller.Call("CatalogService.DeleteEntry", request, &response));
    }
  }
  return absl::OkStatus();
}

absl::Status Guests::Check() {
  SHARDMESH_RETURN_IF_ERROR(CleanUp());
  for (int i = 0; i < count_; ++i) {
    const int number = next_number_++;
    RandomClient client(number, address_, files_, &shared_);
    for (int call = 0; call < calls_; ++call) {
      const Op op{number, dice_.Of(methods_), dice_.Next()};
      const absl::Status status = client.Run(op);
      if (!status.ok()) {
        return absl::InternalError(
            ToAbsl(StrCat("afterwards, ", op.method, ": ", ToStd(status.message()))));
      }
      ++checked_;
    }
    SHARDMESH_RETURN_IF_ERROR(client.Finish());
  }
  return absl::OkStatus();
}

std::string Guests::Summary() const {
  absl::MutexLock lock(&mutex_);
  return StrCat(under_faults_, " calls of all methods under faults, ", checked_, " after them");
}

}  // namespace shardmesh::model
