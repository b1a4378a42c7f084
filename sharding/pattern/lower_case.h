// The lower case of a character, by which Python compares back-references that ignore case.
#ifndef SHARDMESH_SHARDING_PATTERN_LOWER_CASE_H_
#define SHARDMESH_SHARDING_PATTERN_LOWER_CASE_H_

namespace shardmesh {

// Returns the character in lower case by Unicode 14, as Python 3.11 has it; \u0130, whose lower
// case has two characters, becomes the first of them. With `ascii`, only ASCII letters change.
// Thread-safe.
char32_t LowerCase(char32_t c, bool ascii);

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_PATTERN_LOWER_CASE_H_
