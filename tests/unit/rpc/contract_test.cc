// The versions of the protocol, and the features that GetVersion tells.
#include "rpc/contract.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shardmesh/v1/admin_service.pb.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "shardmesh/v1/compute_service.pb.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "shardmesh/v1/resolve_service.pb.h"
#include "shardmesh/v1/save_service.pb.h"
#include "shardmesh/v1/session_service.pb.h"

namespace shardmesh::rpc {
namespace {

TEST(CommonProtocolTest, IsTheNewestThatBothSpeak) {
  EXPECT_EQ(CommonProtocol(kOldestProtocol, kNewestProtocol), kNewestProtocol);
  EXPECT_EQ(CommonProtocol(kNewestProtocol, kNewestProtocol + 1), kNewestProtocol);
  EXPECT_EQ(CommonProtocol(kOldestProtocol - 1, kOldestProtocol), kOldestProtocol);
}

TEST(CommonProtocolTest, IsNoneBeyondTheWindowOfOneVersion) {
  EXPECT_EQ(CommonProtocol(kNewestProtocol + 1, kNewestProtocol + 2), std::nullopt);
  EXPECT_EQ(CommonProtocol(kOldestProtocol - 1, kOldestProtocol - 1), std::nullopt);
  EXPECT_EQ(CommonProtocol(kNewestProtocol, kNewestProtocol - 1), std::nullopt);
  EXPECT_EQ(CommonProtocol(0, 0), std::nullopt);
  EXPECT_LE(kNewestProtocol - kOldestProtocol, 1);
}

// The files of these messages are linked, and so in the pool.
std::vector<const google::protobuf::FileDescriptor*> Files() {
  return {
      v1::SnapshotRequest::descriptor()->file(),    v1::BeginGetRequest::descriptor()->file(),
      v1::WatchRequest::descriptor()->file(),       v1::GetVersionRequest::descriptor()->file(),
      v1::OutputLayout::descriptor()->file(),       v1::ListOperationsRequest::descriptor()->file(),
      v1::ResolveSpecRequest::descriptor()->file(), v1::ListSessionsRequest::descriptor()->file(),
      v1::BeginSaveRequest::descriptor()->file()};
}

TEST(FeaturesTest, EachIsOfElementsOfTheContractAndTheyAreInOrder) {
  ASSERT_THAT(Files(), testing::Each(testing::NotNull()));
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  std::string_view before;
  for (const Feature& feature : kFeatures) {
    EXPECT_LT(before, feature.name);
    before = feature.name;
    EXPECT_FALSE(feature.elements.front().empty()) << feature.name;
    for (const std::string_view name : feature.elements) {
      if (name.empty()) continue;
      const std::string element(name);
      EXPECT_TRUE(pool->FindFieldByName(element) != nullptr ||
                  pool->FindMethodByName(element) != nullptr)
          << element;
    }
  }
}

TEST(FeaturesTest, ValidateOnlyIsOfAllRequestsThatHaveIt) {
  const auto* const feature =
      std::find_if(std::begin(kFeatures), std::end(kFeatures),
                   [](const Feature& each) { return each.name == "validate_only"; });
  ASSERT_NE(feature, std::end(kFeatures));
  std::set<std::string> told(feature->elements.begin(), feature->elements.end());
  told.erase("");
  std::set<std::string> there;
  for (const google::protobuf::FileDescriptor* const file : Files()) {
    for (int i = 0; i < file->message_type_count(); ++i) {
      const auto* const field = file->message_type(i)->FindFieldByName("validate_only");
      if (field != nullptr) there.insert(field->full_name());
    }
  }
  EXPECT_EQ(told, there);
}

}  // namespace
}  // namespace shardmesh::rpc
