// Lists the tiles that workers have in quarantine, and arrays without a name.
#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rpc/codec/array_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/quarantine/order_queue.h"
#include "server/quarantine/quarantine_away.h"
#include "server/quarantine/quarantine_calls.h"
#include "server/state/array_view_codec.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"

namespace shardmesh::server {
namespace quarantine {
namespace {

constexpr int kDefaultPage = 100;
constexpr size_t kPageBytes = size_t{1} << 20;

bool IsFull(const v1::ListQuarantineResponse& page, int page_size) {
  return page.arrays_size() + page.unnamed_arrays_size() >= page_size ||
         page.ByteSizeLong() > kPageBytes;
}

// Lists arrays without a name that follow the page token, which has the form `/ARRAY`. If these
// arrays fill the page, sets the token of the next page and returns true.
bool ListUnnamed(const CoordinatorParts& context, std::string_view token, int page_size,
                 v1::ListQuarantineResponse* page) {
  const std::string_view start_after = token.empty() ? token : token.substr(1);
  const absl::Time now = context.clock->Now();
  for (const UnnamedArray& array : context.registry->ListUnnamed(start_after, page_size)) {
    v1::UnnamedArray* const to = page->add_unnamed_arrays();
    rpc::Encode(array.descriptor, to->mutable_array());
    for (const int64_t rank : array.missing_ranks) {
      to->add_missing_ranks(static_cast<int32_t>(rank));
    }
    to->set_durability(server::Encode(array.durability));
    if (array.until != absl::InfiniteFuture()) {
      rpc::Encode(std::max(array.until - now, absl::ZeroDuration()), to->mutable_held_for());
    }
    if (!IsFull(*page, page_size)) continue;
    page->set_next_page_token(StrCat("/", array.descriptor.array_id));
    return true;
  }
  return false;
}

// A page of a list, sorted by the workers' identities. For an attached worker, the page lists the
// arrays in the worker's quarantine. For an absent worker, the page has one entry.
struct QuarantinePage {
  v1::ListQuarantineResponse* const response;
  const int page_size;
  AwayWorkers away;  // absent workers that are not listed yet

  // Lists the absent workers before the identity `before`, or all absent workers if `before` is
  // null. If the page is full, sets the token of the next page and returns false.
  bool TellAway(const std::string* before = nullptr) {
    while (!away.empty() && (before == nullptr || away.begin()->first < *before)) {
      const auto first = away.extract(away.begin());
      Encode(first.key(), first.mapped(), response->add_unreached());
      if (!IsFull(*response, page_size)) continue;
      response->set_next_page_token(StrCat(first.key(), "/"));
      return false;
    }
    return true;
  }
  bool TellAwayBefore(const std::string& identity) { return TellAway(&identity); }
  bool Add(internal::v1::QuarantineAnswer answer) {
    bool has_more = answer.has_more();
    for (v1::QuarantinedArray& array : *answer.mutable_arrays()) {
      if (IsFull(*response, page_size)) {
        has_more = true;
        break;
      }
      *response->add_arrays() = std::move(array);
    }
    if (answer.arrays().empty() || !(has_more || IsFull(*response, page_size))) return true;
    const v1::QuarantinedArray& last = response->arrays(response->arrays_size() - 1);
    response->set_next_page_token(StrCat(last.identity(), "/", last.array().array_id()));
    return false;
  }
};

}  // namespace
}  // namespace quarantine

void ListQuarantine(const CoordinatorParts& context, QuarantineAccess* hub,
                    const v1::ListQuarantineRequest* request, v1::ListQuarantineResponse* response,
                    const QuarantineStopPtr& stop, QuarantineDone done) {
  using namespace quarantine;  // NOLINT(google-build-using-namespace)
  if (request->page_size() < 0 || request->page_size() > kMaxPage) {
    return std::move(done)(rpc::BadField(
        "page_size", StrCat("is ", request->page_size(), "; it must be from 0 to ", kMaxPage)));
  }
  const int page_size = request->page_size() == 0 ? kDefaultPage : request->page_size();
  // The token is `WORKER/ARRAY`: the last worker on the previous page, and its last array there.
  const std::string& token = request->page_token();
  const size_t slash = token.rfind('/');
  if (!token.empty() && slash == std::string::npos) {
    return std::move(done)(rpc::BadField("page_token", "is none that this call has given"));
  }
  const std::string last_identity = token.empty() ? "" : token.substr(0, slash);
  const std::string last_array = token.empty() ? "" : token.substr(slash + 1);
  const std::shared_ptr<const MembershipView> view = context.membership->view();
  std::vector<std::string> identities = AliveWorkers(*view);
  AwayWorkers away;
  if (request->identity().empty()) {
    // Arrays without a name come first. last_identity is empty on the first page, and after a page
    // that ended with such arrays.
    if (last_identity.empty() && ListUnnamed(context, token, page_size, response)) {
      return std::move(done)(absl::OkStatus());
    }
    away = FindAway(context, *view, {});
    // Skip the absent workers of previous pages. The exception is a worker with arrays on the
    // previous page that was lost since: list it as absent now.
    away.erase(away.begin(), last_array.empty() ? away.upper_bound(last_identity)
                                                : away.lower_bound(last_identity));
  } else {
    if (std::find(identities.begin(), identities.end(), request->identity()) == identities.end()) {
      return std::move(done)(WithReason(
          absl::NotFoundError(StrCat("no worker \"", request->identity(),
                                     "\" is attached; `shardmesh status` lists them")),
          Reason::kNotFound, {{fact::kKind, "worker"}, {fact::kName, request->identity()}}));
    }
    identities = {request->identity()};
  }
  std::deque<Orders::Order> orders;
  for (const std::string& identity : identities) {
    if (identity < last_identity) continue;  // last_identity is empty after arrays without a name
    Orders::Order& order = orders.emplace_back(OrderOf(identity, Action::ACTION_LIST, {}));
    order.order.set_max_arrays(page_size);
    if (identity == last_identity) order.order.set_start_after(last_array);
  }
  const auto page =
      std::make_shared<QuarantinePage>(QuarantinePage{response, page_size, std::move(away)});
  Orders::Run(
      context.clock, hub, std::move(orders), stop,
      [page](const std::string& identity, internal::v1::QuarantineAnswer answer) {
        return page->TellAwayBefore(identity) && page->Add(std::move(answer));
      },
      [page, done = std::move(done)](const absl::Status& status) mutable {
        if (status.ok() && page->response->next_page_token().empty()) page->TellAway();
        std::move(done)(status);
      });
}

}  // namespace shardmesh::server
