// Composes a service method by method: some methods take messages, others the messages' bytes.
#ifndef SHARDMESH_SERVER_SERVICE_SERVICE_MIXINS_H_
#define SHARDMESH_SERVER_SERVICE_SERVICE_MIXINS_H_

namespace shardmesh::server {

// Derives a service from `Base` with each of the generated mixins. Used for a service that cannot
// be the generated CallbackService, because one of its streams takes bytes
// (rpc/stream/message_bytes.h):
//   class MyService : public WithMethods<v1::MyService::Service,
//                                        v1::MyService::WithRawCallbackMethod_Stream,
//                                        v1::MyService::WithCallbackMethod_Unary>::Type
// A service that overrides a method without listing its mixin does not compile.
template <typename Base, template <typename> typename... Mixins>
struct WithMethods {
  using Type = Base;
};
template <typename Base, template <typename> typename First, template <typename> typename... Rest>
struct WithMethods<Base, First, Rest...> {
  using Type = First<typename WithMethods<Base, Rest...>::Type>;
};

}  // namespace shardmesh::server

#endif  // SHARDMESH_SERVER_SERVICE_SERVICE_MIXINS_H_
