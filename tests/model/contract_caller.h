// Caller: any call of the contract, by its name, with messages known only by their descriptors.
#ifndef SHARDMESH_TESTS_MODEL_CONTRACT_CALLER_H_
#define SHARDMESH_TESTS_MODEL_CONTRACT_CALLER_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace shardmesh::model {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// Every method of every service of shardmesh.v1 that is linked in, by name such as
// "ArrayService.MoveName".
std::vector<std::pair<std::string, const MethodDescriptor*>> AllMethods();
// The files of the contract in the source tree.
std::vector<std::string> ContractFiles();
// Dies if there is no such method.
const MethodDescriptor* FindMethod(std::string_view name);

// Sets a text field, if the message has one of that name.
void SetIfThere(Message* message, const std::string& field, const std::string& value);

// One connection at a time: when it is lost the next call makes another, without gRPC's delay
// between attempts. Thread-safe.
class Caller {
 public:
  struct Limits {
    absl::Duration timeout = absl::Seconds(60);
    // The client cancels the call when it has sent this many messages; -1: never.
    int cancel_after = -1;
    // Ends the call when this many answers have come; -1: reads to the end.
    int max_answers = -1;
  };

  explicit Caller(const std::string& address);
  ~Caller();

  // Sends serialized messages as one stream and reads all answers; unary calls are streams of one.
  absl::Status CallBytes(const MethodDescriptor* method, const std::vector<std::string>& requests,
                         std::vector<std::string>* answers, const Limits& limits) const;
  absl::Status CallBytes(const MethodDescriptor* method, const std::vector<std::string>& requests,
                         std::vector<std::string>* answers) const {
    return CallBytes(method, requests, answers, Limits());
  }

  // A call with one message each way. INTERNAL if OK came without exactly one answer that parses.
  absl::Status Call(std::string_view method, const Message& request, Message* answer,
                    absl::Duration timeout = absl::Seconds(60)) const;

 private:
  std::shared_ptr<grpc::Channel> Channel() const;

  const std::string address_;
  mutable absl::Mutex mutex_;
  mutable std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shardmesh::model

#endif  // SHARDMESH_TESTS_MODEL_CONTRACT_CALLER_H_
