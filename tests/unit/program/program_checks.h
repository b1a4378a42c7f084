// Checks plans of random programs: what they compute, and what is forecast of them.
#ifndef SHARDMESH_TESTS_UNIT_PROGRAM_PROGRAM_CHECKS_H_
#define SHARDMESH_TESTS_UNIT_PROGRAM_PROGRAM_CHECKS_H_

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "client/inspect/bounded_tensor.h"
#include "program/step_plan.h"
#include "tests/testing/random_cases.h"
#include "tests/unit/program/random_programs.h"

namespace shardmesh {

class Simulation;

// A program, and what it should compute: client/inspect/reference_program.h says how, and within
// which bounds. `program` must outlive the object.
class ProgramCheck {
 public:
  explicit ProgramCheck(const RandomProgram& program);

  // Runs the plan on simulated devices that round each value to its type and share memory as the
  // memory plan says. Expects the results of the reference: exactly if the program is exact, else
  // within their bounds. Also expects what ExpectForecast does.
  void ExpectComputes(const Plan& plan);

  // Elements that were compared, and elements for whose error no bound is known.
  int64_t compared() const { return compared_; }
  int64_t undetermined() const { return undetermined_; }

 private:
  // Compares value `have` of the plan with value `want` of the program.
  void ExpectValue(const Simulation& simulation, ValueIndex have, ValueIndex want,
                   std::string_view what);

  const RandomProgram& program_;
  std::vector<client::BoundedTensorPtr> reference_;  // by value of the program; empty after errors
  int64_t compared_ = 0;
  int64_t undetermined_ = 0;
};

// Expects that the forecast of a plan has the bytes by link of all its messages, its peak of
// memory, and times that can be.
void ExpectForecast(const Plan& plan, const PlanTarget& target);

// Returns a target with the mesh: with the default rates, or with links or kernels that are much
// slower, and with or without fused instructions.
PlanTarget RandomTarget(const Mesh& mesh, std::mt19937& random);

// Plans random products and graphs, and expects of each what ProgramCheck does.
void ExpectRandomProducts(const test::RandomCases& cases);
void ExpectRandomGraphs(const test::RandomCases& cases);

}  // namespace shardmesh

#endif  // SHARDMESH_TESTS_UNIT_PROGRAM_PROGRAM_CHECKS_H_
