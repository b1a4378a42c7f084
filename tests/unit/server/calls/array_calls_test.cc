// Calls about arrays, without gRPC: descriptions, pages of lists, and gets, also from workers that
// were lost a moment ago.
#include "server/calls/array_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "process/random_bytes.h"
#include "rpc/codec/array_codec.h"
#include "rpc/codec/spec_codec.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "rpc/transfer_token.h"
#include "server/state/array_selection.h"
#include "shardmesh/v1/array_service.pb.h"
#include "status/detail.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "status/str_cat.h"
#include "tests/testing/row_array.h"
#include "tests/testing/sharding_printers.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/calls_fixture.h"
#include "tests/unit/server/define_mesh.h"

namespace shardmesh::server {
namespace {

using ::shardmesh::test::CarriesFacts;
using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::kInvalid;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const PartitionSpec kRows({SpecEntry::Axis("x")});

class ArrayCallsTest : public CallsFixture {
 protected:
  ArrayCallsTest() : CallsFixture({"w0", "w1"}) {}

  // An array of that spec under a name. Without a name, a pin keeps it, or the array `replica_of`
  // whose companion it is.
  ArrayDescriptor AddArray(const std::string& name, const PartitionSpec& spec,
                           const std::string& mesh_id = "m", const std::string& replica_of = "") {
    const ArrayDescriptor descriptor{.array_id = RandomId(),
                                     .dtype = Dtype::kF32,
                                     .shape = {8},
                                     .spec = spec,
                                     .mesh_id = mesh_id,
                                     .mesh_revision = 1,
                                     .mesh = *Mesh::Parse("x=2"),
                                     .cut_points = {}};
    EXPECT_THAT(registry_->Stage({.descriptor = descriptor, .replica_of = replica_of}), IsOk());
    CommitRequest commit;
    commit.arrays.push_back({.array_id = descriptor.array_id, .tile_crc32c = {1, 2}});
    if (name.empty() && !replica_of.empty()) {
      // The array holds its companion.
    } else if (name.empty()) {
      EXPECT_THAT(registry_->Pin(descriptor.array_id), IsOk());
    } else {
      commit.moves.push_back(
          {.name = name, .array_id = descriptor.array_id, .expected_version = std::nullopt});
    }
    absl::Notification done;
    registry_->Commit(std::move(commit), [&done](const absl::StatusOr<CommitResult>& result) {
      EXPECT_THAT(result, IsOk());
      done.Notify();
    });
    done.WaitForNotification();
    return descriptor;
  }
};

class DescribeArrayTest : public ArrayCallsTest {
 protected:
  absl::StatusOr<v1::Array> Describe(const v1::ArraySelector& selector) {
    v1::DescribeArrayRequest request;
    *request.mutable_array() = selector;
    v1::DescribeArrayResponse response;
    const absl::Status status = DescribeArray(Parts(), request, &response);
    if (!status.ok()) return status;
    return response.array();
  }
  static v1::ArraySelector Named(const std::string& name) {
    v1::ArraySelector selector;
    selector.set_name(name);
    return selector;
  }
  static v1::ArraySelector WithId(const std::string& id) {
    v1::ArraySelector selector;
    selector.set_array_id(id);
    return selector;
  }
};

TEST_F(DescribeArrayTest, AnArrayThatASessionTookOverIsAwaitedUntilTheWorkersHaveReported) {
  const std::string id = RandomId();
  recovery_.Begin({"w0"});
  EXPECT_THAT(Describe(WithId(id)), StatusIs(absl::StatusCode::kNotFound)) << "of nobody";
  ASSERT_THAT(registry_->TakeOver(id), IsOk());
  EXPECT_THAT(Describe(WithId(id)), StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  EXPECT_THAT(CheckNotAwaited(*registry_, id, recovery_),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  EXPECT_THAT(CheckNotAwaited(*registry_, "another", recovery_), IsOk());
  recovery_.Heard("w0");
  EXPECT_THAT(CheckNotAwaited(*registry_, id, recovery_), IsOk());
  EXPECT_THAT(Describe(WithId(id)), StatusIs(absl::StatusCode::kNotFound)) << "it is lost";
}

TEST_F(DescribeArrayTest, FindsAnArrayByNameByVersionAndById) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  const auto by_name = Describe(Named("rows"));
  ASSERT_THAT(by_name, IsOk());
  EXPECT_THAT(rpc::Decode(by_name->array_descriptor()), IsOkAndHolds(rows));
  EXPECT_EQ(by_name->name(), "rows");
  EXPECT_GE(by_name->name_version(), 1);
  EXPECT_EQ(by_name->size_bytes(), 32);
  EXPECT_EQ(by_name->state(), v1::ARRAY_STATE_AVAILABLE);
  EXPECT_EQ(by_name->durability(), v1::DURABILITY_MEMORY);
  EXPECT_FALSE(by_name->has_requested_spec());

  v1::ArraySelector versioned = Named("rows");
  versioned.set_version(by_name->name_version());
  const auto by_version = Describe(versioned);
  ASSERT_THAT(by_version, IsOk());
  EXPECT_EQ(by_version->SerializeAsString(), by_name->SerializeAsString());

  const auto by_id = Describe(WithId(rows.array_id));
  ASSERT_THAT(by_id, IsOk());
  EXPECT_EQ(by_id->array_descriptor().array_id(), rows.array_id);
  EXPECT_EQ(by_id->name(), "") << "the selector has no name";
  EXPECT_EQ(by_id->name_version(), 0);
}

TEST_F(DescribeArrayTest, ShowsARepairOnceItHasBegun) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  registry_->TileDamaged(rows.array_id, 1);
  ArrayRepair repair{.tiles = 1, .size_bytes = 16, .is_due = true, .ranks = {1}};
  recovery_.SetRepairs([&repair](std::string_view) { return std::optional(repair); },
                       [] { return RepairTotals(); });
  const auto due = Describe(Named("rows"));
  ASSERT_THAT(due, IsOk());
  EXPECT_EQ(due->state(), v1::ARRAY_STATE_DEGRADED);
  EXPECT_FALSE(due->has_repair());

  repair.is_due = false;
  repair.operation_id = "op-1";
  const auto running = Describe(Named("rows"));
  ASSERT_THAT(running, IsOk());
  EXPECT_EQ(running->repair().operation_id(), "op-1");
  EXPECT_EQ(running->repair().tiles(), 1);
}

TEST_F(DescribeArrayTest, RefusesSelectorsThatSelectNothing) {
  AddArray("rows", kRows);
  for (const v1::ArraySelector& empty : {v1::ArraySelector(), Named(""), WithId("")}) {
    EXPECT_THAT(Describe(empty), CarriesFacts(Reason::kBadField, {{fact::kField, "array"}}));
  }
  for (const int64_t version : {int64_t{0}, int64_t{-1}}) {
    v1::ArraySelector selector = Named("rows");
    selector.set_version(version);
    EXPECT_THAT(Describe(selector), StatusIs(kInvalid, Reason::kBadField)) << version;
    EXPECT_THAT(Describe(selector),
                CarriesFacts(Reason::kBadField, {{fact::kField, "array.version"}}));
  }
}

TEST_F(DescribeArrayTest, NamesTheArrayThatIsNotThere) {
  AddArray("rows", kRows);
  const auto not_found = StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound);
  EXPECT_THAT(Describe(Named("rowz")), not_found);
  EXPECT_THAT(Describe(Named("rowz")), CarriesFacts(Reason::kNotFound, {{fact::kKind, "name"},
                                                                        {fact::kName, "rowz"},
                                                                        {fact::kNearest, "rows"}}));
  EXPECT_THAT(Describe(WithId("gone")), not_found);
  EXPECT_THAT(Describe(WithId("gone")),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "array"}, {fact::kName, "gone"}}));
  v1::ArraySelector selector = Named("rows");
  selector.set_version(99);
  EXPECT_THAT(Describe(selector),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "name"}, {fact::kName, "rows@99"}}));
}

TEST_F(DescribeArrayTest, AnArrayThatIsNotCommittedIsNotFound) {
  ArrayDescriptor staged = test::RowArray("staged");
  ASSERT_THAT(registry_->Stage({.descriptor = staged}), IsOk());
  EXPECT_THAT(Describe(WithId("staged")), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
}

class ListArraysTest : public ArrayCallsTest {
 protected:
  // A page as the names of its arrays, the ids of those without one, and its next token.
  struct Page {
    std::vector<std::string> names;
    std::vector<std::string> ids;
    std::string token;
  };
  absl::StatusOr<Page> List(const v1::ListArraysRequest& request) {
    v1::ListArraysResponse response;
    const absl::Status status = ListArrays(Parts(), request, &response);
    if (!status.ok()) return status;
    EXPECT_GT(response.revision(), 0);
    EXPECT_LE(response.revision(), definition_store_->settled_revision());
    Page page{.names = {}, .ids = {}, .token = response.next_page_token()};
    for (const v1::Array& array : response.arrays()) {
      if (array.name().empty()) {
        page.ids.push_back(array.array_descriptor().array_id());
      } else {
        EXPECT_THAT(page.ids, IsEmpty()) << "arrays without a name come last";
        page.names.push_back(array.name());
      }
    }
    return page;
  }
  // All pages of at most `page_size` arrays, joined.
  Page All(v1::ListArraysRequest request, int32_t page_size) {
    request.set_page_size(page_size);
    Page all;
    for (int pages = 0; pages < 20; ++pages) {
      const auto page = List(request);
      EXPECT_THAT(page, IsOk());
      if (!page.ok()) break;
      EXPECT_LE(page->names.size() + page->ids.size(), static_cast<size_t>(page_size));
      all.names.insert(all.names.end(), page->names.begin(), page->names.end());
      all.ids.insert(all.ids.end(), page->ids.begin(), page->ids.end());
      if (page->token.empty()) return all;
      request.set_page_token(page->token);
    }
    ADD_FAILURE() << "the list does not end";
    return all;
  }
};

TEST_F(ListArraysTest, PagesOfAnySizeAddUp) {
  for (const char* name : {"b", "a", "b.2", "b.1", "c"}) AddArray(name, kRows);
  std::vector<std::string> ids = {AddArray("", kRows).array_id, AddArray("", kRows).array_id};
  std::sort(ids.begin(), ids.end());
  v1::ListArraysRequest named;
  v1::ListArraysRequest prefixed;
  prefixed.set_prefix("b");
  v1::ListArraysRequest everything;
  everything.set_include_unnamed(true);
  for (int32_t page_size = 1; page_size <= 8; ++page_size) {
    SCOPED_TRACE(page_size);
    EXPECT_THAT(All(named, page_size).names, ElementsAre("a", "b", "b.1", "b.2", "c"));
    EXPECT_THAT(All(named, page_size).ids, IsEmpty());
    EXPECT_THAT(All(prefixed, page_size).names, ElementsAre("b", "b.1", "b.2"));
    EXPECT_THAT(All(everything, page_size).names, ElementsAre("a", "b", "b.1", "b.2", "c"));
    EXPECT_EQ(All(everything, page_size).ids, ids);
  }
}

TEST_F(ListArraysTest, AFullPageOfTheLastNamesIsTheLastOne) {
  AddArray("a", kRows);
  AddArray("b", kRows);
  v1::ListArraysRequest request;
  request.set_page_size(2);
  const auto page = List(request);
  ASSERT_THAT(page, IsOk());
  EXPECT_THAT(page->names, ElementsAre("a", "b"));
  EXPECT_EQ(page->token, "");
  request.set_prefix("c");
  const auto empty = List(request);
  ASSERT_THAT(empty, IsOk());
  EXPECT_THAT(empty->names, IsEmpty());
  EXPECT_EQ(empty->token, "");
}

TEST_F(ListArraysTest, AListGoesOnAfterANameThatIsGone) {
  for (const char* name : {"a", "c"}) AddArray(name, kRows);
  v1::ListArraysRequest request;
  request.set_page_token("nb");
  const auto page = List(request);
  ASSERT_THAT(page, IsOk());
  EXPECT_THAT(page->names, ElementsAre("c"));
}

TEST_F(ListArraysTest, RefusesSizesAndTokensOfNoPage) {
  const auto refused = [this](const auto& change) {
    v1::ListArraysRequest request;
    change(request);
    return List(request);
  };
  const auto field = [](const char* name) {
    return CarriesFacts(Reason::kBadField, {{fact::kField, name}});
  };
  EXPECT_THAT(refused([](auto& request) { request.set_page_size(-1); }), field("page_size"));
  EXPECT_THAT(refused([](auto& request) { request.set_page_token("x"); }), field("page_token"));
  EXPECT_THAT(refused([](auto& request) { request.set_page_token("i"); }), field("page_token"))
      << "of a list that includes arrays without a name";
  EXPECT_THAT(refused([](auto& request) {
                request.set_include_unnamed(true);
                request.set_page_token("x");
              }),
              field("page_token"));
  EXPECT_THAT(refused([](auto& request) {
                request.set_include_unnamed(true);
                request.set_prefix("a");
              }),
              field("include_unnamed"));
  EXPECT_THAT(refused([](auto& request) { request.set_page_size(1'000'000); }), IsOk())
      << "a size over the most is the most";
}

class BeginGetTest : public ArrayCallsTest {
 protected:
  absl::StatusOr<v1::BeginGetResponse> Get(const std::string& name,
                                           const std::optional<Tile>& slice) {
    v1::BeginGetRequest request;
    request.set_session_id(session_);
    request.mutable_array()->set_name(name);
    if (slice.has_value()) rpc::Encode(*slice, request.mutable_slice());
    v1::BeginGetResponse response;
    const absl::Status status = BeginGet(Parts(), request, &response);
    if (!status.ok()) return status;
    return response;
  }
  std::string Open(absl::Duration ttl) {
    return sessions_.Open({.name = "host:10.0.0.1"}, "", ttl)->id;
  }

  std::string session_ = Open(absl::Hours(1));
};

TEST_F(BeginGetTest, TheTokenOpensTheArrayForFiveMinutes) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  const auto got = Get("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  const absl::Time end = clock_.Now() + absl::Minutes(5);
  EXPECT_THAT(rpc::Decode(got->expire_time()), IsOkAndHolds(end));
  SHARDMESH_ASSERT_OK_AND_ASSIGN(const rpc::VerifiedToken token,
                                 rpc::VerifyToken(got->token(), "key", rpc::TransferDirection::kGet,
                                                  end - absl::Nanoseconds(1)));
  EXPECT_EQ(token.array, rows);
  EXPECT_EQ(token.claims.array_descriptor, got->array().array_descriptor().SerializeAsString());
  EXPECT_EQ(token.claims.session_id, session_);
  EXPECT_EQ(token.claims.transfer_id, "");
  EXPECT_EQ(token.claims.term, 7);
  EXPECT_EQ(token.claims.expire_time, end);
  EXPECT_THAT(rpc::VerifyToken(got->token(), "key", rpc::TransferDirection::kPut, clock_.Now()),
              StatusIs(absl::StatusCode::kPermissionDenied, Reason::kBadToken));
}

TEST_F(BeginGetTest, TheTokenEndsWithTheLeaseOfItsTime) {
  AddArray("rows", kRows);
  session_ = Open(absl::Seconds(30));
  const absl::Time first_end = clock_.Now() + absl::Seconds(30);
  const auto first = Get("rows", std::nullopt);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(rpc::Decode(first->expire_time()), IsOkAndHolds(first_end));
  clock_.Advance(absl::Seconds(20));
  ASSERT_THAT(sessions_.Renew(session_), IsOk());
  const auto second = Get("rows", std::nullopt);
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(rpc::Decode(second->expire_time()), IsOkAndHolds(first_end + absl::Seconds(20)));
}

TEST_F(BeginGetTest, OnlyTheFirstGetOfASessionPinsTheArray) {
  AddArray("rows", kRows);
  const auto is_pinned_by_get = [this] {
    const auto got = Get("rows", std::nullopt);
    EXPECT_THAT(got, IsOk());
    return got.ok() && got->pinned();
  };
  EXPECT_TRUE(is_pinned_by_get());
  EXPECT_FALSE(is_pinned_by_get());
  EXPECT_EQ(sessions_.Get(session_)->pinned_arrays, 1);
  session_ = Open(absl::Hours(1));
  EXPECT_TRUE(is_pinned_by_get()) << "another session";
}

TEST_F(BeginGetTest, AGetThatFailsPinsNothing) {
  AddArray("rows", kRows);
  EXPECT_THAT(Get("row", std::nullopt), StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(Get("rows", Tile{{{0, 9}}}), StatusIs(kInvalid, Reason::kBadTile));
  EXPECT_THAT(Get("", std::nullopt), StatusIs(kInvalid, Reason::kBadField));
  EXPECT_EQ(sessions_.Get(session_)->pinned_arrays, 0);
  ASSERT_THAT(sessions_.Close(session_), IsOk());
  EXPECT_THAT(Get("rows", std::nullopt),
              StatusIs(absl::StatusCode::kNotFound, Reason::kSessionGone));
  EXPECT_THAT(Get("rows", std::nullopt),
              CarriesFacts(Reason::kSessionGone, {{fact::kName, session_}}));
}

TEST_F(BeginGetTest, RefusesSlicesThatAreNotWithinTheArray) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  for (const Tile& slice :
       {Tile{}, Tile{{{0, 8}, {0, 1}}}, Tile{{{3, 3}}}, Tile{{{8, 9}}}, Tile{{{0, 9}}}}) {
    SCOPED_TRACE(slice.ToString());
    const auto got = Get("rows", slice);
    EXPECT_THAT(got, StatusIs(kInvalid, Reason::kBadTile));
    EXPECT_THAT(got, CarriesFacts(Reason::kBadTile, {{fact::kArray, rows.array_id},
                                                     {fact::kHave, slice.ToString()},
                                                     {fact::kNeed, "[0,8)"}}));
    EXPECT_THAT(rpc::FieldViolationsOf(got.status()),
                ElementsAre(Field(&rpc::FieldViolation::field, "slice")));
  }
  for (const Tile& slice : {Tile{{{-1, 8}}}, Tile{{{5, 4}}}}) {
    const auto got = Get("rows", slice);
    EXPECT_THAT(got, StatusIs(kInvalid, Reason::kBadTile));
    EXPECT_THAT(rpc::FieldViolationsOf(got.status()),
                ElementsAre(Field(&rpc::FieldViolation::field, "slice.ranges[0]")));
  }
}

TEST_F(BeginGetTest, ASliceOverSeveralTilesListsThemInOrder) {
  AddArray("rows", kRows);
  const auto got = Get("rows", Tile{{{2, 6}}});
  ASSERT_THAT(got, IsOk());
  ASSERT_EQ(got->tiles_size(), 2);
  EXPECT_THAT(rpc::Decode(got->tiles(0).tile()), IsOkAndHolds(Tile{{{2, 4}}}));
  EXPECT_THAT(got->tiles(0).ranks(), ElementsAre(0));
  EXPECT_THAT(rpc::Decode(got->tiles(1).tile()), IsOkAndHolds(Tile{{{4, 6}}}));
  EXPECT_THAT(got->tiles(1).ranks(), ElementsAre(1));
  ASSERT_EQ(got->devices_size(), 2);
  EXPECT_EQ(got->devices(1).identity(), "w1");
  EXPECT_EQ(got->devices(1).incarnation(), 1u);
  EXPECT_EQ(got->devices(1).endpoints(0).address(), "10.0.0.1:1");
}

TEST_F(BeginGetTest, TheErrorOfManyMissingTilesKeepsItsAdvice) {
  AddArray("rows", kRows, "other");
  const auto selected = Select(*registry_, {.name = "rows"});
  ASSERT_THAT(selected, IsOk());
  std::vector<int64_t> missing(1'000);
  std::iota(missing.begin(), missing.end(), 0);
  const absl::Status error = Degraded(*selected, missing, *members_.view(), recovery_);
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(
      rpc::WireMessage(error),
      ::testing::AllOf(::testing::StartsWith("tensor \"rows\" lacks 1000 of its 2 tiles; "
                                             "load or compute the array again: "),
                       ::testing::EndsWith("missing: rank 0, rank 1, rank 2 and 997 more")));
}

TEST_F(BeginGetTest, AMeshThatIsGoneIsNamed) {
  AddArray("rows", kRows, "other");
  EXPECT_THAT(Get("rows", std::nullopt),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "mesh"}, {fact::kName, "other"}}));
}

TEST_F(BeginGetTest, ASliceNamesOnlyRanksThatCanBeAsked) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  AddArray("copies", PartitionSpec());
  const Tile whole = Tile::Whole({8});
  const auto before = Get("copies", whole);
  ASSERT_THAT(before, IsOk());
  EXPECT_THAT(before->tiles(0).ranks(), ElementsAre(0, 1));

  members_.Detach(attachments_[1], "it is gone");
  const auto copies = Get("copies", whole);
  ASSERT_THAT(copies, IsOk());
  ASSERT_EQ(copies->tiles_size(), 1);
  EXPECT_THAT(copies->tiles(0).ranks(), ElementsAre(0));
  ASSERT_EQ(copies->devices_size(), 1);
  EXPECT_EQ(copies->devices(0).rank(), 0);

  const auto first = Get("rows", rows.Tiling()->TileOf(0));
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(first->tiles(0).ranks(), ElementsAre(0));
  EXPECT_THAT(Get("rows", rows.Tiling()->TileOf(1)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(Get("rows", whole).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
}

// The arrays count as kept in memory, as when some of their workers have no data folder.
TEST_F(BeginGetTest, AGetWaitsForTheWorkersOfItsTilesThatComeBack) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  AddArray("copies", PartitionSpec());
  const Tile whole = Tile::Whole({8});
  const Tile first = rows.Tiling()->TileOf(0);
  const Tile second = rows.Tiling()->TileOf(1);
  const auto recovering = StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering);
  const auto degraded = StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded);

  members_.Detach(attachments_[1], "it is gone");
  recovery_.Lost("w1");  // its tiles are on its disk
  EXPECT_THAT(Get("rows", first), IsOk());
  EXPECT_THAT(Get("rows", second).status(), recovering);
  EXPECT_THAT(Get("rows", whole).status(), recovering);

  members_.Detach(attachments_[0], "it is gone");  // its tiles were in memory
  EXPECT_THAT(Get("rows", first).status(), degraded);
  EXPECT_THAT(Get("rows", second).status(), recovering);
  EXPECT_THAT(Get("rows", whole).status(), degraded);
  EXPECT_THAT(Get("copies", whole).status(), recovering) << "one replica is enough";

  clock_.Advance(Recovery::kDefaultReturnGrace);
  EXPECT_THAT(Get("rows", second).status(), degraded);
  EXPECT_THAT(Get("copies", whole).status(), degraded);
}

// The worker of a missing tile is attached: a repair is about to begin, runs, or nothing is done.
TEST_F(BeginGetTest, AGetOfAnArrayInRepairMayBeTriedAgain) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  registry_->TileDamaged(rows.array_id, 1);
  ArrayRepair repair{.tiles = 1, .size_bytes = 16, .is_due = true, .ranks = {1}};
  recovery_.SetRepairs([&repair](std::string_view) { return std::optional(repair); },
                       [] { return RepairTotals(); });
  const absl::Status due = Get("rows", std::nullopt).status();
  EXPECT_THAT(due, StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  EXPECT_THAT(std::string(due.message()),
              HasSubstr("tensor \"rows\" lacks 1 of its 2 tiles; the repair of 1 tile is about to "
                        "begin: try again; missing: rank 1 (w1)"));
  EXPECT_THAT(Get("rows", std::nullopt),
              CarriesFacts(Reason::kRecovering, {{fact::kRank, "1"}, {fact::kIdentity, "w1"}}));

  repair.is_due = false;
  repair.time_left = absl::Seconds(5);
  repair.failure = "rank 0: no source";  // of a tile that is there again
  const absl::Status running = Get("rows", std::nullopt).status();
  EXPECT_THAT(running, StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  EXPECT_THAT(std::string(running.message()),
              HasSubstr("tensor \"rows\" lacks 1 of its 2 tiles; a repair reads 1 tile again (5s "
                        "left): try again; missing: rank 1 (w1)"));

  // The repair brings another tile, so this get does not wait for it.
  repair.ranks = {0};
  const absl::Status other = Get("rows", std::nullopt).status();
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_EQ(RetryDelayOf(other), absl::Seconds(5));

  // A worker that has gone again ends its repair.
  repair.ranks = {1};
  members_.Detach(attachments_[1], "it is gone");
  EXPECT_THAT(Get("rows", std::nullopt).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));

  repair = ArrayRepair();
  const absl::Status gone = Get("rows", std::nullopt).status();
  EXPECT_THAT(gone, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_EQ(RetryDelayOf(gone), std::nullopt);
}

TEST_F(BeginGetTest, ARepairOfOtherRanksHelpsNoGet) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  registry_->TileDamaged(rows.array_id, 0);
  registry_->TileDamaged(rows.array_id, 1);
  recovery_.SetRepairs(
      [](std::string_view) {
        return std::optional(
            ArrayRepair{.tiles = 1, .size_bytes = 16, .is_due = true, .ranks = {1}});
      },
      [] { return RepairTotals(); });
  EXPECT_THAT(Get("rows", rows.Tiling()->TileOf(1)).status(),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  const absl::Status other = Get("rows", rows.Tiling()->TileOf(0)).status();
  EXPECT_THAT(other, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
  EXPECT_THAT(std::string(other.message()), Not(HasSubstr("about to begin")));
  EXPECT_EQ(RetryDelayOf(other), std::nullopt);
  EXPECT_THAT(Get("rows", std::nullopt).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
}

TEST_F(BeginGetTest, ADegradedArrayThatIsSelectedByItsIdIsNamedByItsName) {
  const ArrayDescriptor rows = AddArray("rows", kRows);
  registry_->TileDamaged(rows.array_id, 1);
  v1::BeginGetRequest request;
  request.set_session_id(session_);
  request.mutable_array()->set_array_id(rows.array_id);
  v1::BeginGetResponse response;
  EXPECT_THAT(std::string(BeginGet(Parts(), request, &response).message()),
              HasSubstr("array \"rows\" (" + rows.array_id + ") lacks 1 of its 2 tiles"));
}

TEST_F(BeginGetTest, AGetOfAWholeArrayListsNoTiles) {
  AddArray("rows", kRows);
  const auto got = Get("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->tiles_size(), 0);
  EXPECT_EQ(got->devices_size(), 2);
}

// The copies of the tiles of mesh "m" are on mesh "c", whose ranks have the workers w1 and w0.
class SecondCopyTest : public BeginGetTest {
 protected:
  SecondCopyTest() {
    DefineMesh(definition_store_.get(), "c", *Mesh::Parse("x=2"));
    EXPECT_THAT(members_.AddMesh("c", 2, {"w1", "w0"}), IsOk());
  }

  absl::StatusOr<v1::BeginGetResponse> GetEither(const v1::ArraySelector& array,
                                                 const std::optional<Tile>& slice) {
    v1::BeginGetRequest request;
    request.set_session_id(session_);
    *request.mutable_array() = array;
    if (slice.has_value()) rpc::Encode(*slice, request.mutable_slice());
    request.set_accept_second_copy(true);
    v1::BeginGetResponse response;
    const absl::Status status = BeginGet(Parts(), request, &response);
    if (!status.ok()) return status;
    return response;
  }
  absl::StatusOr<v1::BeginGetResponse> GetEither(const std::string& name,
                                                 const std::optional<Tile>& slice) {
    v1::ArraySelector array;
    array.set_name(name);
    return GetEither(array, slice);
  }
  // The worker is lost with its tiles of both copies, and the registry knows it.
  void Lose(size_t worker) {
    members_.Detach(attachments_[worker], "it is gone");
    registry_->TilesLost("m", static_cast<int64_t>(worker), attachments_[worker]);
    registry_->TilesLost("c", 1 - static_cast<int64_t>(worker), attachments_[worker]);
  }
  static std::vector<int> RanksOf(
      const google::protobuf::RepeatedPtrField<v1::DeviceEndpoint>& devices) {
    std::vector<int> ranks;
    for (const v1::DeviceEndpoint& each : devices) ranks.push_back(each.rank());
    return ranks;
  }

  const ArrayDescriptor rows_ = AddArray("rows", kRows);
  const std::string copy_id_ = AddArray("", kRows, "c", rows_.array_id).array_id;
  const Tile first_ = rows_.Tiling()->TileOf(0);
  const Tile second_ = rows_.Tiling()->TileOf(1);
};

TEST_F(SecondCopyTest, AnArrayThatLacksTilesIsReadFromBothCopies) {
  Lose(1);
  const auto got = GetEither("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->array().array_descriptor().array_id(), rows_.array_id);
  EXPECT_EQ(got->array().array_descriptor().mesh_id(), "m");
  EXPECT_EQ(got->array().state(), v1::ARRAY_STATE_DEGRADED);
  EXPECT_THAT(RanksOf(got->devices()), ElementsAre(0));
  EXPECT_EQ(got->second_copy().array_id(), copy_id_);
  EXPECT_THAT(RanksOf(got->second_copy().devices()), ElementsAre(1));
  EXPECT_EQ(got->second_copy().devices(0).identity(), "w0");

  const absl::Time end = clock_.Now() + absl::Minutes(5);
  SHARDMESH_ASSERT_OK_AND_ASSIGN(
      const rpc::VerifiedToken token,
      rpc::VerifyToken(got->second_copy().token(), "key", rpc::TransferDirection::kGet,
                       end - absl::Nanoseconds(1)));
  EXPECT_EQ(token.array.array_id, copy_id_);
  EXPECT_EQ(token.claims.session_id, session_);
  EXPECT_EQ(token.claims.expire_time, end);
}

TEST_F(SecondCopyTest, ADescriptionHasTheWorkersOfBothCopies) {
  Lose(1);
  v1::DescribeArrayRequest request;
  request.mutable_array()->set_name("rows");
  v1::DescribeArrayResponse response;
  ASSERT_THAT(DescribeArray(Parts(), request, &response), IsOk());
  EXPECT_THAT(response.holders(), IsEmpty()) << "nobody asked for them";
  request.set_include_holders(true);
  ASSERT_THAT(DescribeArray(Parts(), request, &response), IsOk());
  const auto text_of = [](const auto& holders) {
    std::string text;
    for (const v1::TileHolder& each : holders) {
      StrAppend(&text, each.rank(), " ", each.identity(), each.present() ? "; " : " lost; ");
    }
    return text;
  };
  EXPECT_EQ(text_of(response.holders()), "0 w0; 1 w1 lost; ");
  EXPECT_EQ(text_of(response.second_holders()), "0 w1 lost; 1 w0; ");
}

TEST_F(SecondCopyTest, ASliceListsTheRanksOfEachCopy) {
  const Tile across = Tile{{{2, 6}}};
  const auto before = GetEither("rows", across);
  ASSERT_THAT(before, IsOk());
  for (const int i : {0, 1}) {
    EXPECT_THAT(before->tiles(i).ranks(), ElementsAre(i));
    EXPECT_THAT(before->tiles(i).second_copy_ranks(), ElementsAre(i));
  }

  members_.Detach(attachments_[1], "it is gone");  // the registry has not heard of it
  const auto after = GetEither("rows", across);
  ASSERT_THAT(after, IsOk());
  EXPECT_THAT(after->tiles(0).ranks(), ElementsAre(0));
  EXPECT_THAT(after->tiles(0).second_copy_ranks(), IsEmpty());
  EXPECT_THAT(after->tiles(1).ranks(), IsEmpty());
  EXPECT_THAT(after->tiles(1).second_copy_ranks(), ElementsAre(1));

  const auto of_first = GetEither("rows", first_);
  ASSERT_THAT(of_first, IsOk());
  EXPECT_THAT(RanksOf(of_first->devices()), ElementsAre(0));
  EXPECT_THAT(of_first->second_copy().devices(), IsEmpty());
  const auto of_second = GetEither("rows", second_);
  ASSERT_THAT(of_second, IsOk());
  EXPECT_THAT(of_second->devices(), IsEmpty());
  EXPECT_THAT(RanksOf(of_second->second_copy().devices()), ElementsAre(1));
}

// The worker may hang: it is not lost yet.
TEST_F(SecondCopyTest, ATileOfAWorkerWhoseHeartbeatIsLateIsReadFromTheCopy) {
  const Tile across = Tile{{{2, 6}}};
  clock_.Advance(absl::Seconds(3));
  auto got = GetEither("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_THAT(RanksOf(got->devices()), ElementsAre(0, 1)) << "the workers of the copy are late too";

  ASSERT_THAT(members_.Heartbeat(attachments_[0], 0), IsOk());
  got = GetEither("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_EQ(got->array().state(), v1::ARRAY_STATE_AVAILABLE);
  EXPECT_THAT(RanksOf(got->devices()), ElementsAre(0));
  EXPECT_THAT(RanksOf(got->second_copy().devices()), ElementsAre(0, 1));
  got = GetEither("rows", across);
  ASSERT_THAT(got, IsOk());
  EXPECT_THAT(got->tiles(0).ranks(), ElementsAre(0));
  EXPECT_THAT(got->tiles(1).ranks(), IsEmpty());
  EXPECT_THAT(got->tiles(1).second_copy_ranks(), ElementsAre(1));
  got = Get("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_THAT(RanksOf(got->devices()), ElementsAre(0, 1)) << "this client does not read the copy";

  ASSERT_THAT(members_.Heartbeat(attachments_[1], 0), IsOk());
  got = GetEither("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_THAT(RanksOf(got->devices()), ElementsAre(0, 1));
}

TEST_F(SecondCopyTest, ATileThatNeitherCopyHasIsNamed) {
  const auto degraded = CarriesFacts(Reason::kArrayDegraded, {{fact::kArray, rows_.array_id},
                                                              {fact::kName, "rows"},
                                                              {fact::kRank, "1"},
                                                              {fact::kIdentity, "w1"}});
  Lose(1);
  registry_->TileDamaged(copy_id_, 1);
  EXPECT_THAT(GetEither("rows", std::nullopt).status(), degraded);
  EXPECT_THAT(GetEither("rows", second_).status(), degraded);
  EXPECT_THAT(GetEither("rows", first_), IsOk());
  EXPECT_EQ(sessions_.Get(session_)->pinned_arrays, 1) << "by the call that succeeded";
}

TEST_F(SecondCopyTest, ACopyOnALiveWorkerIsNotWaitedFor) {
  members_.Detach(attachments_[1], "it is gone");
  registry_->TilesLost("m", 1, attachments_[1]);
  registry_->TilesLost("c", 0, attachments_[1]);
  recovery_.Lost("w1");  // its tiles are on its disk
  EXPECT_THAT(Get("rows", std::nullopt).status(),
              StatusIs(absl::StatusCode::kUnavailable, Reason::kRecovering));
  EXPECT_THAT(GetEither("rows", std::nullopt), IsOk());
}

TEST_F(SecondCopyTest, TheHoldersOfATileAreThoseOfTheArrayOrElseOfTheCopy) {
  const auto holders = [this]() -> absl::StatusOr<std::vector<HeldTile>> {
    const absl::StatusOr<SelectedArray> selected = Select(*registry_, {.name = "rows"}, recovery_);
    if (!selected.ok()) return selected.status();
    return FindHoldersInBoth(*selected, Tile::Whole(rows_.shape), *members_.view(), recovery_);
  };
  const auto array_of = [](const HeldTile& held) {
    return held.array->definition.descriptor.array_id;
  };
  auto held = holders();
  ASSERT_THAT(held, IsOk());
  ASSERT_EQ(held->size(), 2u);
  for (const DeviceId rank : {0, 1}) {
    const HeldTile& tile = (*held)[static_cast<size_t>(rank)];
    EXPECT_EQ(array_of(tile), rows_.array_id);
    EXPECT_THAT(tile.tile.devices, ElementsAre(rank));
  }
  Lose(1);
  held = holders();
  ASSERT_THAT(held, IsOk());
  ASSERT_EQ(held->size(), 2u);
  EXPECT_EQ(array_of((*held)[0]), rows_.array_id);
  EXPECT_THAT((*held)[0].tile.devices, ElementsAre(0));
  EXPECT_EQ(array_of((*held)[1]), copy_id_);
  EXPECT_THAT((*held)[1].tile.devices, ElementsAre(1));
  EXPECT_EQ((*held)[1].tile.tile, second_);
  registry_->TileDamaged(copy_id_, 1);
  EXPECT_THAT(holders().status(),
              CarriesFacts(Reason::kArrayDegraded, {{fact::kArray, rows_.array_id},
                                                    {fact::kName, "rows"},
                                                    {fact::kRank, "1"},
                                                    {fact::kIdentity, "w1"}}));
}

TEST_F(SecondCopyTest, ClientsThatDoNotAcceptTheCopyAreAnsweredWithoutIt) {
  const auto got = Get("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_FALSE(got->has_second_copy());
  Lose(1);
  for (const std::optional<Tile>& slice : {std::optional<Tile>(), std::optional(second_)}) {
    const absl::Status refused = Get("rows", slice).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, Reason::kArrayDegraded));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the second replica has these tiles"));
  }
  const auto of_first = Get("rows", first_);
  ASSERT_THAT(of_first, IsOk());
  EXPECT_THAT(of_first->tiles(0).second_copy_ranks(), IsEmpty());
}

TEST_F(SecondCopyTest, OnlyTheArrayThatHoldsTheCopyIsReadFromIt) {
  AddArray("single", kRows);
  const auto single = GetEither("single", std::nullopt);
  ASSERT_THAT(single, IsOk());
  EXPECT_FALSE(single->has_second_copy());
  v1::ArraySelector copy;
  copy.set_array_id(copy_id_);
  const auto of_copy = GetEither(copy, std::nullopt);
  ASSERT_THAT(of_copy, IsOk());
  EXPECT_FALSE(of_copy->has_second_copy()) << "a pin of the copy does not keep its array";
}

TEST_F(SecondCopyTest, ThePinOfTheArrayKeepsTheCopy) {
  ASSERT_THAT(GetEither("rows", std::nullopt), IsOk());
  CommitRequest removal;
  removal.moves.push_back({.name = "rows", .array_id = "", .expected_version = std::nullopt});
  absl::Notification done;
  registry_->Commit(std::move(removal), [&done](const absl::StatusOr<CommitResult>& result) {
    EXPECT_THAT(result, IsOk());
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_THAT(registry_->FindArray(copy_id_), IsOk());
  v1::ReleaseArraysRequest request;
  request.set_session_id(session_);
  request.add_array_ids(rows_.array_id);
  v1::ReleaseArraysResponse response;
  ASSERT_THAT(ReleaseArrays(Parts(), request, &response), IsOk());
  EXPECT_EQ(response.released(), 1);
  EXPECT_THAT(registry_->FindArray(copy_id_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SecondCopyTest, ACopyWhoseMeshIsGoneIsLeftOut) {
  ASSERT_THAT(members_.RemoveMesh("c"), IsOk());
  const auto got = GetEither("rows", std::nullopt);
  ASSERT_THAT(got, IsOk());
  EXPECT_FALSE(got->has_second_copy());
}

TEST(ErrorOfAbortTest, IsTheClientsErrorOfBoundedLengthOrACancellation) {
  v1::AbortTransferRequest request;
  request.set_reason("enough");
  const absl::Status cancelled = ErrorOfAbort(request);
  EXPECT_THAT(cancelled, StatusIs(absl::StatusCode::kCancelled, Reason::kCancelled));
  EXPECT_THAT(cancelled.message(), HasSubstr("the client aborted the transfer: enough"));
  request.mutable_error();
  EXPECT_EQ(ErrorOfAbort(request), cancelled) << "the code OK is no error";
  rpc::Encode(absl::CancelledError("by Ctrl-C"), request.mutable_error());
  EXPECT_EQ(ErrorOfAbort(request), cancelled);

  rpc::Encode(WithReason(absl::ResourceExhaustedError("worker w0 has no room"),
                         Reason::kMemoryLimit, {{fact::kHave, 1}, {fact::kNeed, 2}}),
              request.mutable_error());
  const absl::Status failed = ErrorOfAbort(request);
  EXPECT_THAT(failed, StatusIs(absl::StatusCode::kResourceExhausted, Reason::kMemoryLimit));
  EXPECT_EQ(failed.message(), "worker w0 has no room");
  request.mutable_error()->set_message(std::string(1 << 20, 'm'));
  EXPECT_LE(ErrorOfAbort(request).message().size(), rpc::kMaxStatusMessageBytes);
  request.mutable_error()->set_code(4711);
  EXPECT_THAT(ErrorOfAbort(request), StatusIs(absl::StatusCode::kUnknown));
  request.clear_error();
  request.set_reason(std::string(1 << 20, 'r'));
  EXPECT_LE(ErrorOfAbort(request).message().size(), 2 * rpc::kMaxStatusMessageBytes);
}

}  // namespace
}  // namespace shardmesh::server
