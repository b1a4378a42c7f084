// What the JSON parser says of a text that it cannot read, for messages.
#ifndef SHARDMESH_PROCESS_JSON_ERROR_H_
#define SHARDMESH_PROCESS_JSON_ERROR_H_

#include <string>
#include <string_view>

namespace shardmesh {

// The text of its exception without what stands before it for machines, `[json.exception...] `.
// Quotes and backslashes, of the parser or of what it quotes, stay as they are; control characters
// are escaped, and in a text that is not UTF-8 all bytes from 0x80 on.
std::string JsonErrorText(std::string_view what);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_JSON_ERROR_H_
