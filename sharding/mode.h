// The activity of a model (training, decoding, ...), on which the layout of its tensors may depend.
#ifndef SHARDMESH_SHARDING_MODE_H_
#define SHARDMESH_SHARDING_MODE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/compatibility.h"

namespace shardmesh {

enum class RuntimeMode {
  kTrain,           // __train__
  kPrefill,         // __prefill__
  kAutoregressive,  // __autoregressive__
  kInsert,          // __insert__
};

// Returns the name as users write it, such as "__train__".
std::string_view RuntimeModeName(RuntimeMode mode);

// Returns whether a profile's decode fields apply: in kAutoregressive and kInsert.
constexpr bool IsGeneration(RuntimeMode mode) {
  return mode == RuntimeMode::kAutoregressive || mode == RuntimeMode::kInsert;
}

// A runtime mode, or a dimension of a tensor whose extent determines it: 1 means autoregressive,
// any other extent means train.
// Example: with Mode::OfDimension(1), an activation of shape (8, 1, 384) is being decoded; one of
// shape (8, 128, 384) is not.
class Mode {
 public:
  Mode(RuntimeMode mode) : value_(mode) {}  // NOLINT: a runtime mode is a mode.
  // A negative dimension counts from the last.
  static Mode OfDimension(int64_t dim) { return Mode(dim); }

  // Returns the mode of that name. For an unknown name, returns train under kExact, and
  // INVALID_ARGUMENT (UNKNOWN_MODE) with the known modes under kDefault.
  static absl::StatusOr<Mode> Parse(std::string_view name,
                                    Compatibility compatibility = Compatibility::kDefault);

  // Returns the runtime mode for a tensor of this shape. A mode that is a dimension needs the
  // shape. Errors are INVALID_ARGUMENT: MISSING_ARGUMENT (Python: ValueError) for a dimension
  // without a shape, INVALID_DIMENSION (Python: IndexError) for a dimension that the shape lacks.
  absl::StatusOr<RuntimeMode> Resolve(std::optional<absl::Span<const int64_t>> shape) const;

  // Returns the dimension; nullopt for a runtime mode.
  std::optional<int64_t> dimension() const;

  // Returns a text such as "__train__" or "dimension 1".
  std::string ToString() const;

  friend bool operator==(const Mode&, const Mode&) = default;

 private:
  explicit Mode(int64_t dim) : value_(dim) {}

  std::variant<RuntimeMode, int64_t> value_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_MODE_H_
