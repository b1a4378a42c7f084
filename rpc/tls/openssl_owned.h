// Smart pointers for OpenSSL's objects: OpensslOwned<X509, X509_free>.
#ifndef SHARDMESH_RPC_TLS_OPENSSL_OWNED_H_
#define SHARDMESH_RPC_TLS_OPENSSL_OWNED_H_

#include <memory>

namespace shardmesh::rpc {

template <auto Free>
struct OpensslDeleter {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};
template <typename T, auto Free>
using OpensslOwned = std::unique_ptr<T, OpensslDeleter<Free>>;

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_TLS_OPENSSL_OWNED_H_
