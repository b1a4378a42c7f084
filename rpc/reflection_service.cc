// Answers questions from the descriptors that are linked into the program.
#include "rpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/grpcpp.h>

#include <string_view>
#include <unordered_set>
#include <utility>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "status/str_cat.h"

namespace shardmesh::rpc {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::DescriptorPool;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;
using ::google::protobuf::FileDescriptorProto;
using ::grpc::reflection::v1alpha::ExtensionRequest;
using ::grpc::reflection::v1alpha::FileDescriptorResponse;
using ::grpc::reflection::v1alpha::ServerReflection;
using ::grpc::reflection::v1alpha::ServerReflectionRequest;
using ::grpc::reflection::v1alpha::ServerReflectionResponse;

using ServiceNames = std::shared_ptr<const std::vector<std::string>>;

// Appends `file` behind those that it imports, each once.
void AppendWithImports(const FileDescriptor& file,
                       std::unordered_set<const FileDescriptor*>* appended,
                       FileDescriptorResponse* to) {
  if (!appended->insert(&file).second) return;
  for (int i = 0; i < file.dependency_count(); ++i) {
    AppendWithImports(*file.dependency(i), appended, to);
  }
  FileDescriptorProto described;
  file.CopyTo(&described);
  described.SerializeToString(to->add_file_descriptor_proto());
}

void SetNotFound(std::string text, ServerReflectionResponse* response) {
  response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response->mutable_error_response()->set_error_message(std::move(text));
}

// Sets `file` and its imports; null: an error that says that `what` is unknown.
void SetFile(const FileDescriptor* file, const std::string& what,
             ServerReflectionResponse* response) {
  if (file == nullptr) return SetNotFound(StrCat("this server knows no ", what), response);
  std::unordered_set<const FileDescriptor*> appended;
  AppendWithImports(*file, &appended, response->mutable_file_descriptor_response());
}

const FileDescriptor* FileOf(const ExtensionRequest& extension) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* const extended = pool.FindMessageTypeByName(extension.containing_type());
  const FieldDescriptor* const field =
      extended == nullptr ? nullptr
                          : pool.FindExtensionByNumber(extended, extension.extension_number());
  return field == nullptr ? nullptr : field->file();
}

void SetExtensionNumbers(const std::string& type, ServerReflectionResponse* response) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const Descriptor* const extended = pool.FindMessageTypeByName(type);
  if (extended == nullptr) {
    return SetNotFound(StrCat("this server knows no message \"", type, "\""), response);
  }
  std::vector<const FieldDescriptor*> fields;
  pool.FindAllExtensions(extended, &fields);
  auto* const numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(type);
  for (const FieldDescriptor* field : fields) numbers->add_extension_number(field->number());
}

ServerReflectionResponse AnswerOf(const ServerReflectionRequest& request,
                                  const std::vector<std::string>& service_names) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      SetFile(pool.FindFileByName(request.file_by_filename()),
              StrCat("file \"", request.file_by_filename(), "\""), &response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      SetFile(pool.FindFileContainingSymbol(request.file_containing_symbol()),
              StrCat("symbol \"", request.file_containing_symbol(), "\""), &response);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const ExtensionRequest& extension = request.file_containing_extension();
      SetFile(FileOf(extension),
              StrCat("extension ", extension.extension_number(), " of \"",
                     extension.containing_type(), "\""),
              &response);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      SetExtensionNumbers(request.all_extension_numbers_of_type(), &response);
      break;
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : service_names) {
        response.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message("the question is empty");
      break;
  }
  return response;
}

// while (question = read()) write(AnswerOf(question)); finish(). Deletes itself at the end.
class ReflectionStream final
    : public grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse> {
 public:
  explicit ReflectionStream(ServiceNames service_names) : service_names_(std::move(service_names)) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_ = AnswerOf(request_, *service_names_);
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    request_.Clear();
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const ServiceNames service_names_;
  ServerReflectionRequest request_;
  ServerReflectionResponse response_;
};

class ReflectionService final : public ServerReflection::CallbackService {
 public:
  explicit ReflectionService(std::vector<std::string> service_names)
      : service_names_(std::make_shared<const std::vector<std::string>>(std::move(service_names))) {
  }

  grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse>* ServerReflectionInfo(
      grpc::CallbackServerContext* /*context*/) override {
    return new ReflectionStream(service_names_);
  }

 private:
  const ServiceNames service_names_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> service_names) {
  service_names.push_back(ServerReflection::service_full_name());
  return std::make_unique<ReflectionService>(std::move(service_names));
}

}  // namespace shardmesh::rpc
