// Command bench: the time of collectives on a running cluster, compared with other libraries on
// this host.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/grammar.h"
#include "client/cli/progress_bar.h"
#include "client/cli/table.h"
#include "process/steady_deadline.h"
#include "program/collective_choice.h"
#include "rpc/flags.h"
#include "sharding/device_group.h"
#include "status/nearest_name.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

// Limit on the number of instructions of a step. A measured call is one instruction; a measured
// broadcast is two, because a barrier precedes it. Workers report the times of instructions in
// heartbeats, which have room for this many instructions.
constexpr int64_t kMostCalls = 60;
// Limit on the bytes of one step's results on each worker. The limit bounds the number of calls in
// a step.
constexpr int64_t kStepBytes = int64_t{256} << 20;
constexpr int64_t kMostBytes = int64_t{1} << 30;
constexpr absl::Duration kHeartbeatLimit = absl::Seconds(20);

constexpr std::string_view kTimedOps[] = {"all-reduce", "all-gather", "reduce-scatter",
                                          "all-to-all", "broadcast",  "barrier"};

absl::Status NotTimed(std::string_view op) {
  return WrongUse(StrCat("--ops: ", op, " is not timed; ", StrJoin(kTimedOps, ", "), " are",
                         DidYouMean(op, kTimedOps)));
}

struct BenchFlags {
  std::string mesh = "default";
  std::vector<std::string> axes;  // empty: all axes of the mesh
  std::vector<std::string> ops = {std::begin(kTimedOps), std::end(kTimedOps)};
  std::vector<std::string> sizes = {"8", "1KiB", "64KiB", "1MiB", "16MiB"};
  std::vector<CollectiveAlgorithm> algorithms = {CollectiveAlgorithm::kAuto};
  std::vector<std::string> peers;
  int64_t calls = kMostCalls;
};

// One measurement: a row of the table that the command prints.
struct Figure {
  std::string system = "shardmesh";
  std::string op;
  std::string algorithm = {};
  int64_t ranks = 0;
  int64_t bytes = 0;
  int64_t calls = 0;
  double p50_us = 0;
  double p99_us = 0;
  // The two bandwidths of nccl-tests. Algorithm bandwidth: the vector's bytes per second; 0 for a
  // barrier, which has no vector. Bus bandwidth: the algorithm bandwidth times BusShare; 0 if no
  // rank must send.
  double algorithm_bytes_per_second = 0;
  double bus_bytes_per_second = 0;
  std::optional<bool> is_right = std::nullopt;  // nullopt: the result was not checked
};

// Returns the least number of bytes that each rank must send, divided by the number of bytes of the
// vector (Figure::bytes).
double BusShare(std::string_view op, int64_t ranks) {
  const double others = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  if (op == "all-reduce") return 2 * others;
  if (op == "all-gather" || op == "reduce-scatter" || op == "all-to-all") return others;
  return op == "broadcast" ? 1 : 0;
}

void SetBandwidth(Figure* figure) {
  if (figure->op == CollectiveKindName(CollectiveKind::kBarrier)) return;
  figure->algorithm_bytes_per_second = static_cast<double>(figure->bytes) / (figure->p50_us * 1e-6);
  figure->bus_bytes_per_second =
      BusShare(figure->op, figure->ranks) * figure->algorithm_bytes_per_second;
}

// A collective to measure, with the array on which it runs.
struct Subject {
  CollectiveOp op;
  Shape shape;
  PartitionSpec spec;
  double factor = 1;  // each element of the result is this multiple of the operand's element
};

absl::StatusOr<Subject> SubjectOf(CollectiveKind kind, int64_t bytes,
                                  const std::vector<std::string>& axes, int64_t ranks) {
  const int64_t count = std::max<int64_t>(bytes / 4, 1);
  const int64_t even = (count + ranks - 1) / ranks * ranks;
  SHARDMESH_ASSIGN_OR_RETURN(const PartitionSpec rows,
                             ParseSpec(StrCat("(", StrJoin(axes, ","), ")")));
  Subject subject{.op = {.kind = kind, .axes = axes}, .shape = {count}, .spec = PartitionSpec()};
  switch (kind) {
    case CollectiveKind::kAllReduce:
      subject.factor = static_cast<double>(ranks);
      break;
    case CollectiveKind::kReduceScatter:
      subject.shape = {even};
      subject.factor = static_cast<double>(ranks);
      break;
    case CollectiveKind::kAllGather:
      subject.shape = {even};
      subject.spec = rows;
      break;
    case CollectiveKind::kAllToAll:
      subject.shape = {ranks, even};
      subject.spec = rows;
      subject.op.split_dimension = 1;
      break;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kBarrier:
      break;
    default:
      return NotTimed(CollectiveKindName(kind));
  }
  return subject;
}

std::vector<float> Pattern(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<float> elements(static_cast<size_t>(count));
  // The elements are whole numbers, so that their sums are exact in any order.
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i * 7 % 251);
  return elements;
}

// Waits until all ranks have reported the times of the step's `instructions`. Returns the time of
// each of these instructions on its slowest rank, in microseconds.
absl::StatusOr<std::vector<double>> MicrosecondsOf(MeshClient* client, int64_t sequence,
                                                   size_t ranks,
                                                   const std::set<int64_t>& instructions) {
  const auto deadline = SteadyDeadline::After(kHeartbeatLimit);
  while (true) {
    SHARDMESH_ASSIGN_OR_RETURN(
        const std::vector<WorkerFlight> flights,
        client->cluster().ListFlightRecords({.step = sequence, .max_records = kMostCalls + 4}));
    std::map<int64_t, double> slowest;  // time on the slowest rank, by instruction
    std::map<int64_t, size_t> heard;
    for (const WorkerFlight& flight : flights) {
      for (const FlightRecord& record : flight.records) {
        if (record.is_running() || instructions.count(record.op) == 0) continue;
        double& most = slowest[record.op];
        most = std::max(most, absl::ToDoubleMicroseconds(record.ended - record.started));
        ++heard[record.op];
      }
    }
    const bool all =
        heard.size() == instructions.size() &&
        std::all_of(heard.begin(), heard.end(), [&](const auto& op) { return op.second == ranks; });
    if (all) {
      std::vector<double> times;
      for (const auto& [op, time] : slowest) times.push_back(time);
      return times;
    }
    if (deadline.is_over()) {
      return absl::DeadlineExceededError(
          StrCat("the workers' records of step ", sequence, " did not all come within ",
                 FormatTime(kHeartbeatLimit), "; see shardmesh doctor --step ", sequence));
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
}

double Percentile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

// Measures one collective with one algorithm.
absl::StatusOr<Figure> Measure(MeshClient* client, const BenchFlags& flags, const MeshStatus& mesh,
                               const Subject& subject, const std::string& array_id, int64_t bytes,
                               int64_t ranks) {
  // The root of a broadcast finishes its call before the other ranks have all bytes. Without a
  // barrier, the root could send the bytes of the next call early, and the next call would seem
  // faster. Therefore a barrier precedes each call.
  const bool is_one_way = subject.op.kind == CollectiveKind::kBroadcast;
  const int64_t calls =
      std::clamp<int64_t>(kStepBytes / std::max<int64_t>(bytes, 1), 5,
                          std::min(flags.calls, is_one_way ? kMostCalls / 2 : kMostCalls));
  Program program{.operand_count = 1, .ops = {}, .outputs = {}};
  for (int64_t call = 0; call < calls; ++call) {
    if (is_one_way) {
      program.ops.push_back(
          CollectiveOp{.kind = CollectiveKind::kBarrier, .axes = subject.op.axes});
    }
    program.ops.push_back(subject.op);
  }
  program.outputs = {static_cast<ValueIndex>(program.ops.size())};
  const std::vector<Operand> operands = {Operand(ArraySelector::ById(array_id))};
  SHARDMESH_ASSIGN_OR_RETURN(const CompiledProgram compiled,
                             client->compute().Compile(program, operands, mesh.mesh_id));
  Figure figure{.op = std::string(CollectiveKindName(subject.op.kind)),
                .ranks = ranks,
                .bytes = bytes,
                .calls = calls};
  std::set<int64_t> timed;
  for (size_t i = 0; i < compiled.instructions.size(); ++i) {
    const PlannedInstruction& planned = compiled.instructions[i];
    if (planned.collective != subject.op.kind) continue;
    timed.insert(static_cast<int64_t>(i));
    figure.algorithm = CollectiveAlgorithmName(planned.algorithm);
  }
  const ExecuteCall execute = {
      .work = compiled.plan_hash, .operands = operands, .mesh_id = mesh.mesh_id};
  // Run the step once before the measurement, so that memory, streams and processors are in their
  // usual state.
  SHARDMESH_ASSIGN_OR_RETURN(const StepResult warmed, client->compute().Execute(execute));
  const std::string& warm_id = warmed.outputs.front().array.descriptor.array_id;
  SHARDMESH_RETURN_IF_ERROR(client->arrays().ReleaseArrays({&warm_id, 1}).status());
  SHARDMESH_ASSIGN_OR_RETURN(const StepResult result, client->compute().Execute(execute));
  SHARDMESH_ASSIGN_OR_RETURN(std::vector<double> times,
                             MicrosecondsOf(client, result.sequence, mesh.workers.size(), timed));
  // Leave out the first call: its time includes the wait until the last rank begins the step.
  if (times.size() > 1) times.erase(times.begin());
  std::sort(times.begin(), times.end());
  figure.p50_us = Percentile(times, 0.5);
  figure.p99_us = Percentile(times, 0.99);
  SetBandwidth(&figure);

  const std::string& output_id = result.outputs.front().array.descriptor.array_id;
  SHARDMESH_ASSIGN_OR_RETURN(const GatheredTensor gathered,
                             client->arrays().Gather(ArraySelector::ById(output_id)));
  std::vector<float> expected = Pattern(subject.shape);
  for (float& element : expected) element *= static_cast<float>(subject.factor);
  const absl::Span<const char> got = gathered.view().bytes();
  figure.is_right = got.size() == expected.size() * sizeof(float) &&
                    std::memcmp(got.data(), expected.data(), got.size()) == 0;
  SHARDMESH_RETURN_IF_ERROR(client->arrays().ReleaseArrays({&output_id, 1}).status());
  return figure;
}

// Runs a shell command and returns its standard output.
absl::StatusOr<std::string> OutputOf(const std::string& line, const std::string& name) {
  FILE* const pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return absl::UnavailableError(StrCat("cannot run ", name));
  std::string output;
  std::array<char, 4096> chunk;
  for (size_t size = 0; (size = fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) {
    output.append(chunk.data(), size);
  }
  if (const int status = pclose(pipe); status != 0) {
    return absl::UnavailableError(StrCat(name, " failed (exit code ", WEXITSTATUS(status), ")"));
  }
  return output;
}

// Quotes a path for the shell.
std::string Quoted(const std::filesystem::path& path) {
  std::string quoted = "'";
  for (const char c : path.string()) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// Runs the benchmark program of another library and returns its figures. That program lies in the
// folder of this program.
absl::StatusOr<std::vector<Figure>> PeerFigures(const std::string& peer, int64_t ranks,
                                                const std::vector<int64_t>& sizes,
                                                const std::vector<std::string>& ops) {
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / (peer + "_bench");
  if (!std::filesystem::exists(program)) {
    return absl::FailedPreconditionError(
        StrCat(program.string(), " is missing: install ",
               peer == "gloo" ? "libgloo-dev" : "libopenmpi-dev and openmpi-bin",
               " and build shardmesh's bench programs, or leave --peer ", peer, " out"));
  }
  const std::string options = StrCat("--sizes ", StrJoin(sizes, ","), " --ops ", StrJoin(ops, ","));
  std::string output;
  if (peer == "mpi") {
    SHARDMESH_ASSIGN_OR_RETURN(
        output, OutputOf(StrCat("mpirun --allow-run-as-root --oversubscribe --bind-to none -n ",
                                ranks, " ", Quoted(program), " ", options),
                         "mpirun"));
  } else {
    std::string folder =
        (std::filesystem::temp_directory_path() / "shardmesh-bench-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) {
      return absl::UnavailableError(StrCat("no folder can be made at ", folder));
    }
    // The ranks find each other through the folder; only rank 0 prints results.
    std::string line;
    for (int64_t rank = ranks; rank-- > 0;) {
      line += StrCat(Quoted(program), " ", ranks, " ", rank, " ", Quoted(folder), " ", options,
                     rank > 0 ? " > /dev/null & " : "");
    }
    absl::StatusOr<std::string> written = OutputOf(line, "gloo_bench");
    std::filesystem::remove_all(folder);
    SHARDMESH_ASSIGN_OR_RETURN(output, std::move(written));
  }
  std::vector<Figure> figures;
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    const std::string line = output.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line.front() != '{') continue;
    const auto json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) continue;
    Figure figure{.system = json.value("system", peer),
                  .op = json.value("op", ""),
                  .algorithm = json.value("algorithm", ""),
                  .ranks = json.value("ranks", ranks),
                  .bytes = json.value("bytes", int64_t{0}),
                  .calls = json.value("calls", int64_t{0}),
                  .p50_us = json.value("p50_us", 0.0),
                  .p99_us = json.value("p99_us", 0.0),
                  .is_right = std::nullopt};
    SetBandwidth(&figure);
    figures.push_back(std::move(figure));
  }
  return figures;
}

absl::StatusOr<const MeshStatus*> FindMesh(const ClusterStatus& status, const std::string& name) {
  for (const MeshStatus& mesh : status.meshes) {
    if (mesh.mesh_id == name) {
      if (!mesh.complete) {
        return absl::FailedPreconditionError(
            StrCat("mesh ", name, " is not complete: see shardmesh status"));
      }
      return &mesh;
    }
  }
  return absl::NotFoundError(StrCat("there is no mesh ", name, "; see shardmesh status"));
}

void Show(const Invocation& invocation, const std::vector<Figure>& figures) {
  if (invocation.json) {
    Json rows = Json::array();
    for (const Figure& figure : figures) {
      Json row = {{"system", figure.system},
                  {"op", figure.op},
                  {"algorithm", figure.algorithm},
                  {"ranks", figure.ranks},
                  {"bytes", figure.bytes},
                  {"calls", figure.calls},
                  {"p50_us", figure.p50_us},
                  {"p99_us", figure.p99_us},
                  {"algorithm_bytes_per_second", figure.algorithm_bytes_per_second},
                  {"bus_bytes_per_second", figure.bus_bytes_per_second}};
      if (figure.is_right.has_value()) row["right"] = *figure.is_right;
      rows.push_back(std::move(row));
    }
    invocation.Print(rows);
    return;
  }
  using Align = Table::Align;
  Table table({{"op"},
               {"ranks", Align::kRight},
               {"bytes", Align::kRight},
               {"system"},
               {"algorithm"},
               {"calls", Align::kRight},
               {"p50", Align::kRight},
               {"p99", Align::kRight},
               {"alg/s", Align::kRight},
               {"bus/s", Align::kRight},
               {"result"}});
  const auto rate = [](double bytes) {
    return bytes > 0 ? FormatBytes(static_cast<int64_t>(bytes)) : "-";
  };
  for (const Figure& figure : figures) {
    table.AddRow({figure.op, StrCat(figure.ranks), StrCat(figure.bytes), figure.system,
                  figure.algorithm, StrCat(figure.calls),
                  FormatTime(absl::Microseconds(figure.p50_us)),
                  FormatTime(absl::Microseconds(figure.p99_us)),
                  rate(figure.algorithm_bytes_per_second), rate(figure.bus_bytes_per_second),
                  !figure.is_right.has_value() ? "-"
                  : *figure.is_right           ? "right"
                                               : "WRONG"});
  }
  table.Print();
}

absl::Status RunCollectives(const Invocation& invocation, const BenchFlags& flags) {
  std::vector<int64_t> sizes;
  for (const std::string& text : flags.sizes) {
    const auto size = ParseSize(text);
    if (!size.ok() || *size < 4 || *size > kMostBytes) {
      return WrongUse(StrCat("--sizes: \"", text, "\" is no size from 4 to 1GiB"));
    }
    sizes.push_back(*size);
  }
  std::vector<CollectiveKind> kinds;
  std::vector<std::string> names;
  for (const std::string& text : flags.ops) {
    auto kind = ParseCollectiveKind(text);
    if (!kind.ok()) return NotTimed(text);
    kinds.push_back(*kind);
    names.emplace_back(CollectiveKindName(*kind));
    SHARDMESH_RETURN_IF_ERROR(SubjectOf(kinds.back(), 4, {"x"}, 1).status());
  }
  for (const std::string& peer : flags.peers) {
    if (peer != "gloo" && peer != "mpi") {
      return WrongUse(StrCat("--peer: \"", peer, "\" is neither gloo nor mpi"));
    }
  }
  SHARDMESH_ASSIGN_OR_RETURN(const auto client, invocation.Connect());
  SHARDMESH_ASSIGN_OR_RETURN(const ClusterStatus status, client->cluster().GetStatus(flags.mesh));
  SHARDMESH_ASSIGN_OR_RETURN(const MeshStatus* const mesh, FindMesh(status, flags.mesh));
  std::vector<std::string> axes = flags.axes;
  if (axes.empty()) {
    for (const MeshAxis& axis : mesh->mesh.axes()) axes.push_back(axis.name);
  }
  SHARDMESH_ASSIGN_OR_RETURN(const DeviceGroup group, DeviceGroup::Create(mesh->mesh, axes, 0));

  std::vector<Figure> figures;
  bool all_right = true;
  std::optional<ProgressBar> bar(std::in_place, "measuring", invocation.quiet);
  int64_t rows_done = 0;  // measured pairs of a kind and a size
  const auto rows = static_cast<int64_t>(kinds.size() * sizes.size());
  for (const CollectiveKind kind : kinds) {
    for (const int64_t bytes : sizes) {
      if (kind == CollectiveKind::kBarrier && bytes != sizes.front()) continue;
      SHARDMESH_ASSIGN_OR_RETURN(Subject subject, SubjectOf(kind, bytes, axes, group.size()));
      const std::vector<float> elements = Pattern(subject.shape);
      SHARDMESH_ASSIGN_OR_RETURN(const TensorView view,
                                 TensorView::Create(Dtype::kF32, subject.shape,
                                                    {reinterpret_cast<const char*>(elements.data()),
                                                     elements.size() * sizeof(float)}));
      const PutTensor tensor{.name = {}, .view = view, .spec = subject.spec, .cut_points = {}};
      PutOptions put_options;
      put_options.mesh = flags.mesh;
      put_options.reuse = false;
      SHARDMESH_ASSIGN_OR_RETURN(const PutResult put,
                                 client->arrays().PutTensors({&tensor, 1}, put_options));
      const std::string array_id = put.arrays.front().descriptor.array_id;
      for (const CollectiveAlgorithm algorithm : flags.algorithms) {
        const absl::Span<const CollectiveAlgorithm> known = AlgorithmsOf(kind);
        if (algorithm != CollectiveAlgorithm::kAuto &&
            std::find(known.begin(), known.end(), algorithm) == known.end()) {
          continue;
        }
        subject.op.algorithm = algorithm;
        subject.op.order = algorithm == CollectiveAlgorithm::kRing ? CollectiveOrder::kFastest
                                                                   : CollectiveOrder::kReproducible;
        SHARDMESH_ASSIGN_OR_RETURN(
            figures.emplace_back(),
            Measure(client.get(), flags, *mesh, subject, array_id, bytes, group.size()));
        all_right = all_right && figures.back().is_right.value_or(true);
      }
      SHARDMESH_RETURN_IF_ERROR(client->arrays().ReleaseArrays({&array_id, 1}).status());
      bar->ShowCount(++rows_done, rows);
    }
  }
  bar.reset();
  for (const std::string& peer : flags.peers) {
    SHARDMESH_ASSIGN_OR_RETURN(const std::vector<Figure> theirs,
                               PeerFigures(peer, group.size(), sizes, names));
    figures.insert(figures.end(), theirs.begin(), theirs.end());
  }
  std::stable_sort(figures.begin(), figures.end(), [&](const Figure& a, const Figure& b) {
    const auto key = [&](const Figure& figure) {
      return std::make_pair(std::find(names.begin(), names.end(), figure.op), figure.bytes);
    };
    return key(a) < key(b);
  });
  Show(invocation, figures);
  if (!all_right) return absl::DataLossError("some results are wrong; see the table");
  return absl::OkStatus();
}

}  // namespace

void AddBenchCommands(CommandLine* line) {
  CLI::App* const group = line->AddGroup("bench", "Measure a running cluster: collectives");
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* const collectives = line->AddCommand(
      "collectives",
      "Time collectives on the cluster's workers: latency, bus bandwidth, checked results",
      [flags](const Invocation& i) { return RunCollectives(i, *flags); }, group);
  collectives->add_option("--mesh", flags->mesh, "the mesh (default: default)");
  collectives->add_option("--axes", flags->axes, "along these axes (default: all of the mesh)")
      ->delimiter(',');
  collectives->add_option("--ops", flags->ops, StrCat(StrJoin(kTimedOps, ", "), " (default: all)"))
      ->delimiter(',');
  collectives
      ->add_option("--sizes", flags->sizes,
                   "bytes of the vector that is reduced, or that a rank has in the end (default: "
                   "8,1KiB,64KiB,1MiB,16MiB)")
      ->delimiter(',');
  AddParsedOption(
      collectives, "--algorithms", &flags->algorithms,
      [](std::string_view text) -> absl::StatusOr<std::vector<CollectiveAlgorithm>> {
        std::vector<CollectiveAlgorithm> algorithms;
        for (size_t begin = 0; begin <= text.size();) {
          const size_t end = std::min(text.find(',', begin), text.size());
          SHARDMESH_ASSIGN_OR_RETURN(algorithms.emplace_back(),
                                     ParseCollectiveAlgorithm(text.substr(begin, end - begin)));
          begin = end + 1;
        }
        return algorithms;
      },
      "auto, or names of algorithms, each for the ops that have it (default: auto)");
  collectives
      ->add_option("--calls", flags->calls,
                   "calls of each, at most; half as many broadcasts (default: 60)")
      ->check(CLI::Range(int64_t{5}, kMostCalls));
  collectives
      ->add_option("--peer", flags->peers,
                   "gloo or mpi: the same table from Debian's library, on this host")
      ->delimiter(',');
}

}  // namespace shardmesh::client
