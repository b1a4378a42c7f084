// Text between quotes, as Python's repr writes it.
#ifndef SHARDMESH_STATUS_PYTHON_REPR_H_
#define SHARDMESH_STATUS_PYTHON_REPR_H_

#include <string>
#include <string_view>

namespace shardmesh {

// `text` between quotes, as Python's repr writes a string: 'tp', "it's", '\n', '\u200b'. In a text
// that is not UTF-8, bytes from 0x80 on are kept as they are. Which characters are printed as they
// are follows RE2's Unicode tables, of 15.0 on Debian 12; Python 3.11 has those of 14.0.
std::string PythonRepr(std::string_view text);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_PYTHON_REPR_H_
