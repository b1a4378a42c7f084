// Tests whether an error message about a field names the field.
#ifndef SHARDMESH_RPC_CODEC_MESSAGE_SUBJECT_H_
#define SHARDMESH_RPC_CODEC_MESSAGE_SUBJECT_H_

#include <algorithm>
#include <iterator>
#include <string_view>

namespace shardmesh::rpc {

// Whether a message describes a field without naming it, such as `is 0; it must be from 1 to 16`.
inline bool LacksSubject(std::string_view message) {
  constexpr std::string_view kVerbs[] = {"is",    "has",   "must",  "ends",   "begins", "needs",
                                         "lacks", "holds", "names", "occurs", "may",    "cannot"};
  const std::string_view first = message.substr(0, message.find(' '));
  return first.size() < message.size() &&
         std::find(std::begin(kVerbs), std::end(kVerbs), first) != std::end(kVerbs);
}

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_CODEC_MESSAGE_SUBJECT_H_
