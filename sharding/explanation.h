// Explanation steps: how a question about a tensor's layout leads to the value of each dimension.
#ifndef SHARDMESH_SHARDING_EXPLANATION_H_
#define SHARDMESH_SHARDING_EXPLANATION_H_

#include <cstdint>
#include <string>

namespace shardmesh {

// One step of an explanation. The steps of a dimension are adjacent. Texts are for people.
struct ExplanationStep {
  enum class Kind {
    // A semantic name was looked up: subject = the name, result = the field, or the value of a
    // user-defined axis.
    kSemanticName,
    // The mode chose a variant: subject = the field, result = the field that was read. For a
    // user-defined axis: subject = its name, result = its value in that mode.
    kModeVariant,
    // The value was read: subject = the field or the user-defined axis, result = mesh axes.
    kMeshAxes,
    // A rule matched: subject = the tensor's name, result = the pattern.
    kRule,
    // The value was corrected: subject = requested, result = effective.
    kCorrection,
    // An earlier rule nearly matched: subject = the tensor's name, result = the pattern.
    kNearMiss,
  };
  Kind kind = Kind::kSemanticName;
  // The dimension, from 0; -1 for the whole spec.
  int64_t dim = 0;
  std::string subject;
  std::string result;

  friend bool operator==(const ExplanationStep&, const ExplanationStep&) = default;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_EXPLANATION_H_
