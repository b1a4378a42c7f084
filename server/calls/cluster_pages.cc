// Reads and writes page tokens.
#include "server/calls/cluster_pages.h"

#include "absl/strings/numbers.h"
#include "rpc/codec/status.h"
#include "status/python_repr.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace {

constexpr int64_t kMaxPageItems = 10'000;

absl::Status BadToken(std::string_view token) {
  return rpc::BadField("page_token",
                       StrCat(PythonRepr(token.substr(0, 64)),
                              " is of no page; pass on next_page_token of the page before"));
}

}  // namespace

absl::StatusOr<int64_t> PageSize(int32_t asked, int64_t otherwise) {
  if (asked < 0 || asked > kMaxPageItems) {
    return rpc::BadField("page_size",
                         StrCat("is ", asked, "; it must be between 0 and ", kMaxPageItems));
  }
  return asked == 0 ? otherwise : asked;
}

absl::StatusOr<int64_t> NumberOfPageToken(const std::string& token) {
  int64_t number = 0;
  if (token.empty()) return number;
  if (!absl::SimpleAtoi(token, &number) || number < 1) return BadToken(token);
  return number;
}

std::string StatusPosition::OfMesh(std::string_view name, int64_t rank) {
  return StrCat("m/", rank, "/", name);
}

std::string StatusPosition::OfWorker(std::string_view identity) { return StrCat("w/", identity); }

absl::StatusOr<StatusPosition> StatusPosition::Parse(std::string_view token) {
  StatusPosition position;
  if (token.empty()) return position;
  position.in_meshes = token.starts_with("m/");
  if (!position.in_meshes && !token.starts_with("w/")) return BadToken(token);
  std::string_view name = token.substr(2);
  if (position.in_meshes) {
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos ||
        !absl::SimpleAtoi(ToAbsl(name.substr(0, slash)), &position.rank) || position.rank < 0) {
      return BadToken(token);
    }
    name.remove_prefix(slash + 1);
  }
  position.name = std::string(name);
  return position;
}

std::string LinkPosition::OfWorker(int64_t index) { return StrCat("w/", index); }

std::string LinkPosition::OfLink(std::string_view identity, int64_t index) {
  return StrCat("l/", index, "/", identity);
}

absl::StatusOr<LinkPosition> LinkPosition::Parse(std::string_view token) {
  LinkPosition position;
  if (token.empty()) return position;
  position.in_workers = token.starts_with("w/");
  if (!position.in_workers && !token.starts_with("l/")) return BadToken(token);
  std::string_view index = token.substr(2);
  if (!position.in_workers) {
    const size_t slash = index.find('/');
    if (slash == std::string_view::npos) return BadToken(token);
    position.identity = std::string(index.substr(slash + 1));
    index = index.substr(0, slash);
  }
  if (!absl::SimpleAtoi(ToAbsl(index), &position.index) || position.index < 0) {
    return BadToken(token);
  }
  return position;
}

}  // namespace shardmesh::server
