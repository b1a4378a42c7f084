// The versions of the protocol, and the features that GetVersion tells.
#include "rpc/contract.h"

#include <google/protobuf/descriptor.h>

#include <optional>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "shardmesh/v1/admin_service.pb.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/compute_service.pb.h"

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

TEST(FeaturesTest, EachIsAnElementOfTheContractAndTheyAreInOrder) {
  // Links the files of the elements.
  ASSERT_NE(v1::SnapshotRequest::descriptor(), nullptr);
  ASSERT_NE(v1::BeginGetRequest::descriptor(), nullptr);
  ASSERT_NE(v1::OutputLayout::descriptor(), nullptr);
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  std::string_view before;
  for (const Feature& feature : kFeatures) {
    EXPECT_LT(before, feature.name);
    before = feature.name;
    const std::string element(feature.element);
    EXPECT_TRUE(pool->FindFieldByName(element) != nullptr ||
                pool->FindMethodByName(element) != nullptr)
        << element;
  }
}

}  // namespace
}  // namespace shardmesh::rpc
