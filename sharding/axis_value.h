// The recursive value of a profile's field or of a spec's dimension: none, a name, a tuple, a list,
// ...
#ifndef SHARDMESH_SHARDING_AXIS_VALUE_H_
#define SHARDMESH_SHARDING_AXIS_VALUE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

namespace shardmesh {

// One value of the kinds below. Tuples and lists are distinct, because Python's resolution rules
// treat them differently. Their entries may be of any kind, none included.
//
// The class checks nothing: the field that holds a value decides which values are legal. A decoder
// of untrusted values bounds their depth and count. Immutable except for assignment; safe to read
// from several threads.
class AxisValue {
 public:
  enum class Kind {
    kNotGiven,       // the profile does not set the field, which then has its default
    kNone,           // explicitly no axis: the dimension is not partitioned
    kName,           // the name of one logical axis, field or mesh axis
    kTuple,          // ordered entries, major to minor
    kList,           // ordered entries of one composite axis
    kUnconstrained,  // the planner may choose the dimension's layout
  };

  // Not given.
  AxisValue() = default;
  static AxisValue NotGiven() { return AxisValue(); }
  static AxisValue None() { return AxisValue(Kind::kNone); }
  static AxisValue Unconstrained() { return AxisValue(Kind::kUnconstrained); }
  static AxisValue Name(std::string name);
  static AxisValue Tuple(std::vector<AxisValue> entries);
  static AxisValue List(std::vector<AxisValue> entries);
  // Returns a tuple of names, the most common composite.
  static AxisValue TupleOf(absl::Span<const std::string_view> names);

  Kind kind() const { return kind_; }
  bool is_given() const { return kind_ != Kind::kNotGiven; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_name() const { return kind_ == Kind::kName; }
  bool is_tuple() const { return kind_ == Kind::kTuple; }
  bool is_list() const { return kind_ == Kind::kList; }
  bool is_unconstrained() const { return kind_ == Kind::kUnconstrained; }

  // Returns the name; empty unless is_name().
  const std::string& name() const { return name_; }
  // Returns the entries; empty unless is_tuple() or is_list(). The span is valid while this value
  // is unchanged.
  absl::Span<const AxisValue> entries() const { return entries_; }

  friend bool operator==(const AxisValue& a, const AxisValue& b) = default;

  // Returns the value as Python's repr writes it: `None`, `'tp'`, `('fsdp', 'dp')`, `('tp',)`,
  // `['tp', None]`. kNotGiven gives `NOT_GIVEN`, kUnconstrained gives `UNCONSTRAINED`.
  std::string ToString() const;

 private:
  explicit AxisValue(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kNotGiven;
  std::string name_;
  std::vector<AxisValue> entries_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_SHARDING_AXIS_VALUE_H_
