// Quotes text as Python's repr does.
#ifndef SHARDMESH_STATUS_PYTHON_REPR_H_
#define SHARDMESH_STATUS_PYTHON_REPR_H_

#include <string>
#include <string_view>

namespace shardmesh {

// Returns `text` in quotes, as Python's repr writes a string: 'tp', "it's", '\n', '\u200b'. If
// `text` is not UTF-8, bytes from 0x80 on stay unescaped. RE2's Unicode tables (15.0 on Debian 12)
// decide which characters are printable; Python 3.11 uses Unicode 14.0.
std::string PythonRepr(std::string_view text);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_PYTHON_REPR_H_
