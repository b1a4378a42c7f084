// Lists of the catalog by prefix.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/server/hollow_fixture.h"

namespace shardmesh::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ListEntriesTest : public HollowFixture {
 protected:
  // One page of the names with this prefix; `*token` is that of the page before, then of this one.
  std::vector<std::string> Page(const std::string& prefix, int32_t page_size, std::string* token) {
    v1::ListEntriesRequest request;
    request.set_kind(v1::ENTRY_KIND_MESH);
    request.set_prefix(prefix);
    request.set_page_size(page_size);
    request.set_page_token(*token);
    v1::ListEntriesResponse response;
    EXPECT_THAT(
        Call<v1::CatalogService>(&v1::CatalogService::Stub::ListEntries, request, &response),
        IsOk());
    *token = response.next_page_token();
    std::vector<std::string> names;
    for (const v1::Entry& entry : response.entries()) names.push_back(entry.name());
    return names;
  }
  std::vector<std::string> All(const std::string& prefix) {
    std::string token;
    return Page(prefix, 0, &token);
  }
};

TEST_F(ListEntriesTest, ListsTheNamesWithThePrefixAndNoOthers) {
  StartCoordinator("");
  for (const std::string name : {"a", "ab", "ab.1", "ab.2", "ac", "b"}) {
    ASSERT_THAT(CreateMesh(name, 1), IsOk());
  }
  EXPECT_THAT(All("ab"), ElementsAre("ab", "ab.1", "ab.2"));
  EXPECT_THAT(All("b"), ElementsAre("b"));
  EXPECT_THAT(All("c"), IsEmpty());
  EXPECT_THAT(All("aa"), IsEmpty());
  EXPECT_THAT(All(""), ElementsAre("a", "ab", "ab.1", "ab.2", "ac", "b"));
}

// The workers that a definition names are in its entry a second time, as those of its ranks.
TEST_F(ListEntriesTest, AnEntryThatWouldMakeAPageTooLargeBeginsTheNext) {
  StartCoordinator("");
  const auto create = [this](const std::string& name, int64_t workers) {
    v1::CreateEntryRequest request;
    request.set_request_id(name);
    request.set_name(name);
    v1::MeshDefinition* const mesh = request.mutable_value()->mutable_mesh();
    mesh->mutable_mesh()->add_axes()->set_name("x");
    mesh->mutable_mesh()->mutable_axes(0)->set_size(workers);
    for (int64_t i = 0; i < workers; ++i) {
      const std::string identity = StrCat("worker-", i);
      mesh->add_workers(StrCat(identity, std::string(250 - identity.size(), 'w')));
    }
    v1::CreateEntryResponse response;
    return Call<v1::CatalogService>(&v1::CatalogService::Stub::CreateEntry, request, &response);
  };
  ASSERT_THAT(create("a", 2'000), IsOk());  // an entry of a megabyte
  ASSERT_THAT(create("b", 6'000), IsOk());  // of three
  ASSERT_THAT(create("c", 1), IsOk());
  std::string token;
  EXPECT_THAT(Page("", 0, &token), ElementsAre("a"));
  EXPECT_THAT(Page("", 0, &token), ElementsAre("b"));
  EXPECT_THAT(Page("", 0, &token), ElementsAre("c"));
  EXPECT_EQ(token, "");
}

TEST_F(ListEntriesTest, ThePagesOfAPrefixEndWithIt) {
  StartCoordinator("");
  for (const std::string name : {"a", "ab", "ab.1", "ab.2", "ac"}) {
    ASSERT_THAT(CreateMesh(name, 1), IsOk());
  }
  std::string token;
  EXPECT_THAT(Page("ab", 2, &token), ElementsAre("ab", "ab.1"));
  EXPECT_NE(token, "");
  EXPECT_THAT(Page("ab", 2, &token), ElementsAre("ab.2"));
  EXPECT_EQ(token, "") << "a name without the prefix follows, and no page does";
  EXPECT_THAT(Page("ab", 3, &token), ElementsAre("ab", "ab.1", "ab.2"));
  EXPECT_EQ(token, "") << "a full page is the last one";
  token = "x";
  EXPECT_THAT(Page("ab", 2, &token), IsEmpty());
  token = "A";
  EXPECT_THAT(Page("ab", 1, &token), ElementsAre("ab")) << "a token before the prefix";
}

}  // namespace
}  // namespace shardmesh::test
