// The names of the facts (key and value pairs) that errors carry, and the facts of each reason.
#ifndef SHARDMESH_STATUS_FACT_KEYS_H_
#define SHARDMESH_STATUS_FACT_KEYS_H_

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "status/str_cat.h"

namespace shardmesh {

enum class Reason : int;

// The name of a fact. Like the names of reasons, it is part of the contract with clients.
class FactKey {
 public:
  constexpr explicit FactKey(std::string_view name) : name_(name) {}
  constexpr std::string_view name() const { return name_; }
  friend constexpr bool operator==(FactKey, FactKey) = default;

 private:
  std::string_view name_;
};

// All names of facts. error.proto and docs/errors.md describe the values.
namespace fact {
// The index of a dimension, counted from 0.
inline constexpr FactKey kDimension{"dimension"};
// The value that the call found: a number, a size in bytes or a name, as the error's reason says.
inline constexpr FactKey kHave{"have"};
// The value that the call needs or expects, in the unit of the fact `have`.
inline constexpr FactKey kNeed{"need"};
// The largest allowed value; in seconds if the limit is a time.
inline constexpr FactKey kLimit{"limit"};
// The faulty value, as the caller gave it.
inline constexpr FactKey kValue{"value"};
// The position of the fault, in bytes or characters from 0.
inline constexpr FactKey kPosition{"position"};
// The path of the faulty field in the request, such as `spec.dimensions[1]`, or the faulty flag.
inline constexpr FactKey kField{"field"};
// The kind of the object that `name` names, such as `mesh`, `array` or `session`.
inline constexpr FactKey kKind{"kind"};
// The name or the id that the request uses.
inline constexpr FactKey kName{"name"};
// The known name that is most similar to the faulty name.
inline constexpr FactKey kNearest{"nearest"};
// The faulty axes, joined by commas.
inline constexpr FactKey kAxis{"axis"};
// The name of the mesh; for a mesh without a name, its axes and their sizes.
inline constexpr FactKey kMesh{"mesh"};
// An array's id.
inline constexpr FactKey kArray{"array"};
// A tensor's name.
inline constexpr FactKey kTensor{"tensor"};
// An element type.
inline constexpr FactKey kDtype{"dtype"};
// The operation of a step, by its name or its number.
inline constexpr FactKey kOp{"op"};
// The sequence number of a step.
inline constexpr FactKey kStep{"step"};
// Ranks of a mesh, joined by commas.
inline constexpr FactKey kRank{"rank"};
// Identities of workers, joined by commas.
inline constexpr FactKey kIdentity{"identity"};
// The path of a file or a folder.
inline constexpr FactKey kFile{"file"};
}  // namespace fact

// A fact of an error, such as {fact::kRank, 3}. The value is a text or a number. An empty text
// means that the value is not known: the error then gets no such fact.
struct Fact {
  template <typename T>
  Fact(FactKey fact_key, const T& fact_value) : key(fact_key), value(StrCat(fact_value)) {}

  FactKey key;
  std::string value;
};
using Facts = std::initializer_list<Fact>;

// The facts that an error of `reason` may have.
absl::Span<const FactKey> FactKeysOf(Reason reason);
// Returns whether an error of `reason` may have the fact.
bool MayHave(Reason reason, FactKey key);

}  // namespace shardmesh

#endif  // SHARDMESH_STATUS_FACT_KEYS_H_
