// gRPC's reflection service, by which tools such as grpcurl learn what a server offers.
#ifndef SHARDMESH_RPC_REFLECTION_SERVICE_H_
#define SHARDMESH_RPC_REFLECTION_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

namespace shardmesh::rpc {

// Returns grpc.reflection.v1alpha.ServerReflection for a server that offers the services with these
// full names. It describes all files that are linked into the program.
//
// gRPC 1.51's own plugin has the synchronous interface, whose thread waits for all connections of
// the process beside the threads of the callback interface. The three then wake each other: a step
// took 10 % longer (docs/benchmarks.md).
std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> service_names);

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_REFLECTION_SERVICE_H_
