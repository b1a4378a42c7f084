// Services composed method by method: some take messages, some their bytes.
#ifndef SHARDMESH_SERVER_SERVICE_SERVICE_MIXINS_H_
#define SHARDMESH_SERVER_SERVICE_SERVICE_MIXINS_H_

namespace shardmesh::server {

// `Base` with each of the generated mixins around it, for a service that cannot be the generated
// CallbackService because a stream of it comes as bytes (see rpc/stream/message_bytes.h):
//   class MyService : public WithMethods<v1::MyService::Service,
//                                        v1::MyService::WithRawCallbackMethod_Stream,
//                                        v1::MyService::WithCallbackMethod_Unary>::Type
// If a method is left out and then overridden, the service does not compile.
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
