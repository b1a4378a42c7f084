// The recursive value of a profile's field or of a spec's dimension: none, a name, a tuple, a list,
// ...
#ifndef SHARDMESH_SHARDING_AXIS_VALUE_H_
#define SHARDMESH_SHARDING_AXIS_VALUE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace shardmesh {

// One value of the kinds below. Tuples and lists differ (they come from Python, whose resolution
// rules treat them differently), and their entries may be of any kind, none included.
//
// Nothing is checked here: what a value may be depends on the field that holds it. Whoever decodes
// values from outside bounds their depth and count.
// Immutable but for assignment; safe to read from several threads.
class AxisValue {
 public:
  enum class Kind {
    kNotGiven,       // the field was left to its default
    kNone,           // explicitly no axis: not partitioned
    kName,           // one logical, field or mesh axis name
    kTuple,          // ordered entries, major to minor
    kList,           // a composite of ordered entries
    kUnconstrained,  // the dimension's layout is left to the planner
  };

  // Not given.
  AxisValue() = default;
  static AxisValue NotGiven() { return AxisValue(); }
  static AxisValue None() { return AxisValue(Kind::kNone); }
  static AxisValue Unconstrained() { return AxisValue(Kind::kUnconstrained); }
  static AxisValue Name(std::string name);
  static AxisValue Tuple(std::vector<AxisValue> entries);
  static AxisValue List(std::vector<AxisValue> entries);
  // A tuple of names, the commonest composite.
  static AxisValue TupleOf(absl::Span<const std::string_view> names);

  Kind kind() const { return kind_; }
  bool is_given() const { return kind_ != Kind::kNotGiven; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_name() const { return kind_ == Kind::kName; }
  bool is_tuple() const { return kind_ == Kind::kTuple; }
  bool is_list() const { return kind_ == Kind::kList; }
  bool is_unconstrained() const { return kind_ == Kind::kUnconstrained; }

  // The name; empty unless is_name().
  const std::string& name() const { return name_; }
  // The entries; empty unless is_tuple() or is_list(). Valid as long as this value is unchanged.
  absl::Span<const AxisValue> entries() const { return entries_; }

  friend bool operator==(const AxisValue& a, const AxisValue& b) = default;

  // As Python's repr writes it: `None`, `'tp'`, `('fsdp', 'dp')`, `('tp',)`, `['tp', None]`;
  // `NOT_GIVEN` and `UNCONSTRAINED` for the other two.
  std::string ToString() const;

 private:
  explicit AxisValue(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kNotGiven;
  std::string name_;
  std::vector<AxisValue> entries_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_AXIS_VALUE_H_
