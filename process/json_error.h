// Error texts of the JSON parser, for messages.
#ifndef SHARDMESH_PROCESS_JSON_ERROR_H_
#define SHARDMESH_PROCESS_JSON_ERROR_H_

#include <string>
#include <string_view>

namespace shardmesh {

// Returns the text of the parser's exception without the leading `[json.exception...] `. Quotes and
// backslashes, of the parser or of quoted input, stay unchanged. Control characters are escaped. In
// a text that is not UTF-8, all bytes from 0x80 on are escaped too.
std::string JsonErrorText(std::string_view what);

}  // namespace shardmesh

#endif  // SHARDMESH_PROCESS_JSON_ERROR_H_
