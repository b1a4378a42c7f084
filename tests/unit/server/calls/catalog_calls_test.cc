// Calls about definitions, without a server: versions, pages, and what is refused.
#include "server/calls/catalog_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/codec/status.h"
#include "rpc/codec/time_codec.h"
#include "server/state/request_memory.h"
#include "server/store/local_store.h"
#include "status/fact_keys.h"
#include "status/reason.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

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

v1::EntryValue MeshOfSize(int64_t size) {
  v1::EntryValue value;
  v1::MeshAxis* const axis = value.mutable_mesh()->mutable_mesh()->add_axes();
  axis->set_name("tp");
  axis->set_size(size);
  return value;
}

v1::EntryValue OneRule(const std::string& pattern) {
  v1::EntryValue value;
  value.mutable_rule_set()->add_rules()->set_pattern(pattern);
  return value;
}

v1::EntryValue TreeOfOneTensor() {
  v1::EntryValue value;
  v1::TreeTensors* const tensors = value.mutable_tree()->mutable_tensors();
  tensors->set_names("w");
  tensors->add_name_sizes(1);
  tensors->add_ranks(1);
  tensors->add_sizes(8);
  tensors->add_dtypes(v1::DTYPE_F32);
  return value;
}

class CatalogCallsTest : public ::testing::Test {
 protected:
  void Create(const std::string& name, const v1::EntryValue& value) {
    Wait([&](DefinitionStore::Callback done) {
      definition_store_->Create({.request_id = "", .name = name}, value.SerializeAsString(),
                                std::move(done));
    });
  }
  void Update(const std::string& name, const v1::EntryValue& value) {
    Wait([&](DefinitionStore::Callback done) {
      definition_store_->Update({.request_id = "", .name = name}, value.SerializeAsString(),
                                std::move(done));
    });
  }
  static void Wait(const std::function<void(DefinitionStore::Callback)>& change) {
    absl::Notification done;
    change([&done](const auto& written) {
      EXPECT_THAT(written.status(), IsOk());
      done.Notify();
    });
    done.WaitForNotification();
  }

  absl::StatusOr<v1::Entry> Get(v1::EntryKind kind, const std::string& name,
                                const std::function<bool()>& is_cancelled = nullptr) {
    v1::GetEntryRequest request;
    request.set_kind(kind);
    request.set_name(name);
    v1::GetEntryResponse response;
    const absl::Status status = GetEntry(*definition_store_, request, is_cancelled, &response);
    if (!status.ok()) return status;
    return response.entry();
  }
  absl::StatusOr<v1::ListEntryVersionsResponse> Versions(v1::EntryKind kind,
                                                         const std::string& name) {
    v1::ListEntryVersionsRequest request;
    request.set_kind(kind);
    request.set_name(name);
    v1::ListEntryVersionsResponse response;
    const absl::Status status = ListEntryVersions(*definition_store_, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  absl::StatusOr<v1::ListEntriesResponse> List(const v1::ListEntriesRequest& request) {
    v1::ListEntriesResponse response;
    const absl::Status status = ListEntries(*definition_store_, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  static v1::ListEntriesRequest Meshes() {
    v1::ListEntriesRequest request;
    request.set_kind(v1::ENTRY_KIND_MESH);
    return request;
  }

  test::FakeClock clock_;
  const std::unique_ptr<Store> store_ = CreateMemoryStore({.history = DefinitionHistory()});
  const std::unique_ptr<RequestMemory> requests_ = *RequestMemory::Open(store_.get(), &clock_);
  const std::unique_ptr<DefinitionStore> definition_store_ =
      *DefinitionStore::Open(store_.get(), &clock_, requests_.get());
};

TEST_F(CatalogCallsTest, AnEntryIsFoundByItsNameAndByItsVersions) {
  Create("m", MeshOfSize(2));
  const absl::Time created = clock_.Now();
  clock_.Advance(absl::Seconds(5));
  Update("m", MeshOfSize(4));
  const auto current = Get(v1::ENTRY_KIND_MESH, "m");
  ASSERT_THAT(current, IsOk());
  EXPECT_EQ(current->name(), "m");
  EXPECT_EQ(current->value().SerializeAsString(), MeshOfSize(4).SerializeAsString());
  EXPECT_EQ(current->version(), 2);
  EXPECT_EQ(current->uid().size(), 32u);
  EXPECT_THAT(rpc::Decode(current->update_time()), IsOkAndHolds(created + absl::Seconds(5)));
  EXPECT_FALSE(current->has_mesh_assignment()) << "no worker serves its ranks";

  const auto by_version = Get(v1::ENTRY_KIND_MESH, "m@2");
  ASSERT_THAT(by_version, IsOk());
  EXPECT_EQ(by_version->SerializeAsString(), current->SerializeAsString());

  const auto former = Get(v1::ENTRY_KIND_MESH, "m@1");
  ASSERT_THAT(former, IsOk());
  EXPECT_EQ(former->name(), "m");
  EXPECT_EQ(former->value().SerializeAsString(), MeshOfSize(2).SerializeAsString());
  EXPECT_EQ(former->version(), 1);
  EXPECT_EQ(former->uid(), current->uid());
  EXPECT_LT(former->revision(), current->revision());
  EXPECT_THAT(rpc::Decode(former->update_time()), IsOkAndHolds(created));
}

TEST_F(CatalogCallsTest, KindsHaveNamesOfTheirOwn) {
  Create("n", MeshOfSize(2));
  Create("n", OneRule("kernel"));
  EXPECT_TRUE(Get(v1::ENTRY_KIND_MESH, "n")->value().has_mesh());
  EXPECT_TRUE(Get(v1::ENTRY_KIND_RULE_SET, "n")->value().has_rule_set());
  EXPECT_THAT(Get(v1::ENTRY_KIND_PROFILE, "n"),
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "profile"}, {fact::kName, "n"}}));
}

TEST_F(CatalogCallsTest, EveryCallRefusesAKindThatIsUnsetOrUnknown) {
  const auto refused = CarriesFacts(Reason::kBadField, {{fact::kField, "kind"}});
  for (const auto kind : {v1::ENTRY_KIND_UNSPECIFIED, static_cast<v1::EntryKind>(99)}) {
    EXPECT_THAT(Get(kind, "m"), StatusIs(kInvalid, Reason::kBadField));
    EXPECT_THAT(Get(kind, "m"), refused);
    EXPECT_THAT(Versions(kind, "m"), refused);
    v1::ListEntriesRequest list;
    list.set_kind(kind);
    EXPECT_THAT(List(list), refused);
  }
}

TEST_F(CatalogCallsTest, NamesTheEntryThatIsNotThere) {
  Create("mesh", MeshOfSize(2));
  const auto is_about_the_name = ElementsAre(Field(&rpc::FieldViolation::field, "name"));
  const auto missing = CarriesFacts(
      Reason::kNotFound, {{fact::kKind, "mesh"}, {fact::kName, "mosh"}, {fact::kNearest, "mesh"}});
  const auto entry = Get(v1::ENTRY_KIND_MESH, "mosh");
  EXPECT_THAT(entry, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(entry, missing);
  EXPECT_THAT(rpc::FieldViolationsOf(entry.status()), is_about_the_name);
  EXPECT_THAT(Get(v1::ENTRY_KIND_MESH, "mosh@1"), missing);
  const auto versions = Versions(v1::ENTRY_KIND_MESH, "mosh");
  EXPECT_THAT(versions, missing);
  EXPECT_THAT(rpc::FieldViolationsOf(versions.status()), is_about_the_name);
}

TEST_F(CatalogCallsTest, TellsAVersionThatIsNotThereFromTextThatIsNone) {
  Create("m", MeshOfSize(2));
  const auto absent = Get(v1::ENTRY_KIND_MESH, "m@2");
  EXPECT_THAT(absent, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(absent,
              CarriesFacts(Reason::kNotFound, {{fact::kKind, "mesh"}, {fact::kName, "m@2"}}));
  for (const std::string name :
       {"m@", "m@0", "m@-1", "m@x", "m@1x", "m@1@1", "m@99999999999999999999"}) {
    const auto malformed = Get(v1::ENTRY_KIND_MESH, name);
    EXPECT_THAT(malformed, StatusIs(kInvalid)) << name;
    EXPECT_THAT(malformed,
                CarriesFacts(Reason::kBadField, {{fact::kField, "name"}, {fact::kValue, name}}));
  }
}

TEST_F(CatalogCallsTest, OnlyRulesOfAFormerVersionTakeLongAndCanBeCancelled) {
  Create("rules", OneRule("kernel"));
  Update("rules", OneRule("bias"));
  int asked = 0;
  const auto cancel = [&asked] { return ++asked > 0; };
  EXPECT_THAT(Get(v1::ENTRY_KIND_RULE_SET, "rules", cancel), IsOk());
  EXPECT_EQ(asked, 0) << "the current version is compiled";
  EXPECT_THAT(Get(v1::ENTRY_KIND_RULE_SET, "rules@1", cancel),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(asked, 1);
  const auto former = Get(v1::ENTRY_KIND_RULE_SET, "rules@1", [] { return false; });
  ASSERT_THAT(former, IsOk()) << "a cancelled call leaves nothing behind";
  EXPECT_EQ(former->value().rule_set().rules(0).pattern(), "kernel");
}

TEST_F(CatalogCallsTest, OnlyAGetHasTheTensorsOfATree) {
  Create("tree", TreeOfOneTensor());
  const auto entry = Get(v1::ENTRY_KIND_TREE, "tree");
  ASSERT_THAT(entry, IsOk());
  EXPECT_EQ(entry->value().tree().tensors().names(), "w");
  v1::ListEntriesRequest request;
  request.set_kind(v1::ENTRY_KIND_TREE);
  const auto list = List(request);
  ASSERT_THAT(list, IsOk());
  ASSERT_EQ(list->entries_size(), 1);
  EXPECT_FALSE(list->entries(0).value().tree().has_tensors());
  for (const v1::Entry& each : {*entry, list->entries(0)}) {
    EXPECT_EQ(each.value().tree().tensor_count(), 1);
    EXPECT_EQ(each.value().tree().parameters(), 8);
    EXPECT_EQ(each.value().tree().bytes(), 32);
  }
}

TEST_F(CatalogCallsTest, VersionsAreListedTheNewestFirst) {
  Create("m", MeshOfSize(2));
  Update("m", MeshOfSize(300));
  Update("m", MeshOfSize(4));
  const auto versions = Versions(v1::ENTRY_KIND_MESH, "m");
  ASSERT_THAT(versions, IsOk());
  ASSERT_EQ(versions->versions_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(versions->versions(i).version(), 3 - i);
    EXPECT_EQ(versions->versions(i).uid(), versions->versions(0).uid());
  }
  EXPECT_GT(versions->versions(0).revision(), versions->versions(1).revision());
  EXPECT_EQ(versions->versions(1).size_bytes(), MeshOfSize(300).ByteSizeLong());
  EXPECT_EQ(versions->versions(2).size_bytes(), MeshOfSize(2).ByteSizeLong());
  EXPECT_GE(versions->revision(), versions->versions(0).revision());
  const auto of_one = Versions(v1::ENTRY_KIND_MESH, "m@1");
  EXPECT_THAT(of_one, StatusIs(kInvalid));
  EXPECT_THAT(of_one,
              CarriesFacts(Reason::kBadField, {{fact::kField, "name"}, {fact::kValue, "m@1"}}));
}

TEST_F(CatalogCallsTest, PagesOfAnySizeAddUp) {
  for (const char* name : {"b", "a", "b.2", "b.1", "c"}) Create(name, MeshOfSize(2));
  Create("b.rules", OneRule("kernel"));
  for (int32_t page_size = 1; page_size <= 6; ++page_size) {
    for (const std::string prefix : {"", "b"}) {
      v1::ListEntriesRequest request = Meshes();
      request.set_prefix(prefix);
      request.set_page_size(page_size);
      std::vector<std::string> names;
      do {
        const auto page = List(request);
        ASSERT_THAT(page, IsOk());
        EXPECT_LE(page->entries_size(), page_size);
        EXPECT_GT(page->entries_size(), 0) << "a page without an entry";
        EXPECT_GE(page->revision(), 6);
        for (const v1::Entry& entry : page->entries()) names.push_back(entry.name());
        request.set_page_token(page->next_page_token());
        ASSERT_LE(names.size(), 5u);
      } while (!request.page_token().empty());
      if (prefix.empty()) {
        EXPECT_THAT(names, ElementsAre("a", "b", "b.1", "b.2", "c")) << page_size;
      } else {
        EXPECT_THAT(names, ElementsAre("b", "b.1", "b.2")) << page_size;
      }
    }
  }
}

TEST_F(CatalogCallsTest, APageBeginsAfterItsTokenWhetherTheNameIsThereOrNot) {
  for (const char* name : {"a", "c"}) Create(name, MeshOfSize(2));
  const auto names_after = [this](const std::string& token, const std::string& prefix) {
    v1::ListEntriesRequest request = Meshes();
    request.set_page_token(token);
    request.set_prefix(prefix);
    const auto page = List(request);
    EXPECT_THAT(page, IsOk());
    std::vector<std::string> names;
    for (const v1::Entry& entry : page->entries()) names.push_back(entry.name());
    return names;
  };
  EXPECT_THAT(names_after("a", ""), ElementsAre("c"));
  EXPECT_THAT(names_after("b", ""), ElementsAre("c"));
  EXPECT_THAT(names_after("c", ""), IsEmpty());
  EXPECT_THAT(names_after("a", "c"), ElementsAre("c")) << "a token before the prefix";
  EXPECT_THAT(names_after("d", "c"), IsEmpty()) << "a token behind it";
}

TEST_F(CatalogCallsTest, RefusesANegativePageSizeAndCapsALargeOne) {
  v1::ListEntriesRequest request = Meshes();
  request.set_page_size(-1);
  EXPECT_THAT(List(request), CarriesFacts(Reason::kBadField, {{fact::kField, "page_size"}}));
  for (int i = 0; i < 101; ++i) Create("m" + std::to_string(i), MeshOfSize(1));
  request.set_page_size(0);
  EXPECT_EQ(List(request)->entries_size(), 100);
  request.set_page_size(1'000'000);
  EXPECT_EQ(List(request)->entries_size(), 101);
}

TEST(NewMeshNameTest, RefusesNamesOfAuxiliaryMeshes) {
  for (const std::string name : {"m.replicas-0123456789ab", "m.resize-0123456789ab"}) {
    const absl::Status refused = CheckNewMeshName(name);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadField));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(name));
  }
  for (const char* name :
       {"m", "m.replicas-1", "m.replicas-0123456789abc", "m.resize-", "resize"}) {
    EXPECT_THAT(CheckNewMeshName(name), IsOk()) << name;
  }
}

TEST_F(CatalogCallsTest, AnEmptyCatalogHasOnePage) {
  const auto page = List(Meshes());
  ASSERT_THAT(page, IsOk());
  EXPECT_THAT(page->entries(), IsEmpty());
  EXPECT_EQ(page->next_page_token(), "");
}

}  // namespace
}  // namespace shardmesh::server
