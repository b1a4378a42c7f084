// Texts for numbers of bytes, for people.
#ifndef SHARDMESH_STATUS_BYTE_TEXT_H_
#define SHARDMESH_STATUS_BYTE_TEXT_H_

#include <cstdint>
#include <string>
#include <utility>

namespace shardmesh {

// Returns a number below 1000 with three digits, such as `1.23`, `12.3` or `123`.
std::string FormatThreeDigits(double value);

// Returns text such as `86.7 MiB`, with three digits and a unit that is a power of 1024. Fewer than
// 1024 bytes are in bytes: `31 B`.
std::string FormatBytes(int64_t bytes);

// Returns the texts of two numbers that an error compares, as FormatBytes does. If the rounded
// texts are equal and the numbers are not, both texts are in bytes: `1048576 B`.
std::pair<std::string, std::string> FormatBytesApart(int64_t one, int64_t other);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_BYTE_TEXT_H_
