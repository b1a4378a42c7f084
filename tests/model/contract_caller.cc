// Any call of the contract, by its name.
#include "tests/model/contract_caller.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/sync_stream.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "rpc/call.h"
#include "rpc/codec/status.h"
#include "shardmesh/compat/v1/compat_service.pb.h"
#include "shardmesh/internal/v1/attach_service.pb.h"
#include "shardmesh/internal/v1/exchange_service.pb.h"
#include "shardmesh/v1/admin_service.pb.h"
#include "shardmesh/v1/array_service.pb.h"
#include "shardmesh/v1/catalog_service.pb.h"
#include "shardmesh/v1/cluster_service.pb.h"
#include "shardmesh/v1/compute_service.pb.h"
#include "shardmesh/v1/layout_service.pb.h"
#include "shardmesh/v1/mesh_service.pb.h"
#include "shardmesh/v1/operation_service.pb.h"
#include "shardmesh/v1/reshard_service.pb.h"
#include "shardmesh/v1/resolve_service.pb.h"
#include "shardmesh/v1/rule_service.pb.h"
#include "shardmesh/v1/save_service.pb.h"
#include "shardmesh/v1/session_service.pb.h"
#include "shardmesh/v1/tile_service.pb.h"
#include "status/str_cat.h"

namespace shardmesh::model {
namespace {

// Every file below proto/shardmesh that defines services is reached from these messages; RunRandom
// compares them with the folder of the contract.
std::vector<const google::protobuf::FileDescriptor*> Files() {
  return {v1::SnapshotRequest::descriptor()->file(),
          v1::BeginPutRequest::descriptor()->file(),
          internal::v1::Hello::descriptor()->file(),
          v1::GetEntryRequest::descriptor()->file(),
          v1::GetStatusRequest::descriptor()->file(),
          v1::ExecuteRequest::descriptor()->file(),
          internal::v1::ExchangeRequest::descriptor()->file(),
          v1::GetOperationRequest::descriptor()->file(),
          v1::ResolveSpecRequest::descriptor()->file(),
          v1::ResolveTreeRequest::descriptor()->file(),
          v1::LintRulesRequest::descriptor()->file(),
          v1::DescribeMeshRequest::descriptor()->file(),
          v1::BeginSaveRequest::descriptor()->file(),
          v1::PlanReshardRequest::descriptor()->file(),
          compat::v1::ComputeHashRequest::descriptor()->file(),
          v1::OpenSessionRequest::descriptor()->file(),
          v1::PutTilesRequest::descriptor()->file()};
}

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

std::string FromBuffer(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  buffer.Dump(&slices).ok();
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

}  // namespace

std::vector<std::pair<std::string, const MethodDescriptor*>> AllMethods() {
  std::vector<std::pair<std::string, const MethodDescriptor*>> methods;
  for (const google::protobuf::FileDescriptor* file : Files()) {
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor* service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.emplace_back(StrCat(service->name(), ".", service->method(m)->name()),
                             service->method(m));
      }
    }
  }
  return methods;
}

const MethodDescriptor* FindMethod(std::string_view name) {
  for (const auto& [known, method] : AllMethods()) {
    if (known == name) return method;
  }
  std::fprintf(stderr, "there is no method %s\n", std::string(name).c_str());
  std::abort();
}

std::vector<std::string> ContractFiles() {
  std::vector<std::string> paths;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(SHARDMESH_SOURCE_DIR "/proto/shardmesh")) {
    if (entry.is_regular_file()) paths.push_back(entry.path().string());
  }
  return paths;
}

void SetIfThere(Message* message, const std::string& field, const std::string& value) {
  const auto* found = message->GetDescriptor()->FindFieldByName(field);
  if (found != nullptr && !found->is_repeated() &&
      found->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
    message->GetReflection()->SetString(message, found, value);
  }
}

Caller::Caller(const std::string& address) : address_(address) {}

std::shared_ptr<grpc::Channel> Caller::Channel() const {
  absl::MutexLock lock(&mutex_);
  // One that has failed would be tried again after some seconds only.
  if (channel_ == nullptr || channel_->GetState(false) == GRPC_CHANNEL_TRANSIENT_FAILURE) {
    rpc::ChannelOptions options;
    options.own_connection = true;
    channel_ = *rpc::CreateChannel(address_, options);
  }
  return channel_;
}

Caller::~Caller() = default;

absl::Status Caller::CallBytes(const MethodDescriptor* method,
                               const std::vector<std::string>& requests,
                               std::vector<std::string>* answers, const Limits& limits) const {
  const std::string path = StrCat("/", method->service()->full_name(), "/", method->name());
  const grpc::internal::RpcMethod rpc_method(path.c_str(),
                                             grpc::internal::RpcMethod::BIDI_STREAMING);
  const std::shared_ptr<grpc::Channel> channel = Channel();
  grpc::ClientContext context;
  rpc::Apply(rpc::CallOptions::Within(limits.timeout), &context);
  using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>;
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      Factory::Create(channel.get(), rpc_method, &context));
  int sent = 0;
  for (const std::string& request : requests) {
    if (sent++ == limits.cancel_after) context.TryCancel();
    if (!stream->Write(ToBuffer(request))) break;
  }
  if (limits.cancel_after == sent) context.TryCancel();
  stream->WritesDone();
  grpc::ByteBuffer answer;
  while (stream->Read(&answer)) {
    answers->push_back(FromBuffer(answer));
    if (static_cast<int>(answers->size()) == limits.max_answers) {
      context.TryCancel();
      while (stream->Read(&answer)) {
      }
      stream->Finish();
      return absl::OkStatus();
    }
  }
  return rpc::FromGrpc(stream->Finish());
}

absl::Status Caller::Call(std::string_view method, const Message& request, Message* answer,
                          absl::Duration timeout) const {
  std::vector<std::string> answers;
  Limits limits;
  limits.timeout = timeout;
  const absl::Status status =
      CallBytes(FindMethod(method), {request.SerializeAsString()}, &answers, limits);
  if (!status.ok()) return status;
  if (answers.size() != 1 || !answer->ParseFromString(answers[0])) {
    return absl::InternalError(StrCat(method, " answered OK with ", answers.size(), " messages"));
  }
  return status;
}

}  // namespace shardmesh::model
