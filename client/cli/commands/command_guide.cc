// All commands of the program, with the sections of the program's help and an example for each
// command.
#include "client/cli/commands/command_guide.h"

#include "client/cli/commands/commands.h"

namespace shardmesh::client {

const std::vector<std::pair<std::string, std::vector<std::string>>>& CommandSections() {
  static const auto* const sections =
      new std::vector<std::pair<std::string, std::vector<std::string>>>{
          {"Layout questions",
           {"plan", "resolve", "explain", "match", "compare", "tiles", "rules", "profile", "mesh",
            "shardings"}},
          {"Arrays", {"load", "put", "save", "reshard", "ls", "describe", "get", "rm", "array"}},
          {"Compute", {"linear", "matmul", "collective", "run", "embed", "generate"}},
          {"Cluster", {"status", "links", "doctor", "health", "ops", "admin", "version"}},
          {"Catalog", {"catalog"}},
          {"Local cluster", {"up", "down"}},
          {"Command line", {"config", "completion", "man", "explain-error"}},
          {"Compatibility with the Python originals",
           {"axes", "constrain", "hash", "layer", "logical", "presets", "spec"}},
          {"Development", {"bench", "certs", "make-checkpoint", "make-tensor"}},
      };
  return *sections;
}

const std::vector<CommandExample>& CommandExamples() {
  constexpr bool kAlone = true;
  static const auto* const examples = new std::vector<CommandExample>{
      {"shardmesh plan model.safetensors --rules bert.yaml --mesh fsdp=2,tp=2", kAlone},
      {"shardmesh plan model.safetensors --rules bert.yaml --search 8 --axes fsdp,tp", kAlone},
      {"shardmesh resolve --spec fsdp,tp --shape 30522x384 --mesh fsdp=2,tp=4", kAlone},
      {"shardmesh resolve --axes __BATCH__,__LENGTH__,__EMBED__ --mesh fsdp=2,tp=2", kAlone},
      {"shardmesh explain encoder.layer.0.output.dense.weight --rules bert.yaml --shape 384x1536 "
       "--mesh fsdp=2,tp=2",
       kAlone},
      {"shardmesh match model.safetensors --rules bert.yaml", kAlone},
      {"shardmesh compare fsdp,- fsdp --rank 2 --mesh fsdp=2,tp=2", kAlone},
      {"shardmesh tiles --spec fsdp,tp --shape 8x16 --mesh fsdp=2,tp=2", kAlone},
      {"shardmesh reshard --from fsdp=4:fsdp,- --to fsdp=4:-,fsdp --shape 4096x512", kAlone},
      {"shardmesh rules lint bert.yaml --tree model.safetensors --mesh fsdp=2,tp=2"},
      {"shardmesh rules diff bert.yaml bert.yaml --tree model.safetensors --mesh fsdp=2,tp=2",
       kAlone},
      {"shardmesh rules test 'attention.*weight' layers.0.attention.query.weight", kAlone},
      {"shardmesh rules rewrite bert.yaml", kAlone},
      {"shardmesh rules from-text 'attention|mlp->fsdp.tp,norm->'", kAlone},
      {"shardmesh profile show"},
      {"shardmesh mesh show fsdp=2,tp=4", kAlone},
      {"shardmesh mesh query size --axes fsdp,tp --mesh fsdp=2,tp=4", kAlone},
      {"shardmesh shardings encoder --specs"},
      {"shardmesh load model.safetensors --rules bert.yaml"},
      {"shardmesh put x.npy --as x --axes __BATCH__,__EMBED__"},
      {"shardmesh put model.safetensors:encoder.layer.0.output.dense.weight --as w --spec tp,- "
       "--uneven ceil"},
      {"shardmesh save encoder /srv/checkpoints/bert --validate-only"},
      {"shardmesh save encoder /srv/checkpoints/bert --step 100 --keep 3 --detach"},
      {"shardmesh reshard encoder.layer.0.output.dense.weight --to tp,-"},
      {"shardmesh reshard --tree encoder --rules bert.yaml --plan-only"},
      {"shardmesh reshard --tree encoder --rules bert.yaml --uneven memory"},
      {"shardmesh ls encoder.layer.0"},
      {"shardmesh ls -o name --no-headers"},
      {"shardmesh describe encoder.layer.0.output.dense.weight"},
      {"shardmesh get encoder.layer.0.output.dense.weight --out w.npy"},
      {"shardmesh get encoder.layer.0.output.dense.weight --slice 0:16,: --out w.safetensors"},
      {"shardmesh get --tree encoder --out encoder"},
      {"shardmesh rm encoder.layer.0.output.dense.weight"},
      {"shardmesh rm --tree encoder --validate-only"},
      {"shardmesh array load model.safetensors --tree axes.json --mode prefill"},
      {"shardmesh array put x.npy --as x --spec fsdp,tp --cuts 0:100,300"},
      {"shardmesh array ls encoder.layer.0 -o wide"},
      {"shardmesh array describe x"},
      {"shardmesh array get x --out y.npy"},
      {"shardmesh array rm x"},
      {"shardmesh linear --input x.npy --weight w --activation gelu --as hidden"},
      {"shardmesh matmul x.npy w --transpose-b --out y.npy"},
      {"shardmesh matmul x.npy w --transpose-b --plan-only --candidates 5"},
      {"shardmesh collective all-reduce partial --axes tp --as sum"},
      {"shardmesh run layer.txtpb --operand x=x.npy --operand w=weights --out y=y.npy"},
      {"shardmesh run layer.txtpb --operand x=x.npy --prefix model/ --plan-only"},
      {"shardmesh embed --model minilm --tokens 101,7592,2088,102 --out embedding.npy"},
      {"shardmesh generate --model llama --tokens 1,5,77 --tokens 1,9 --max-new 16"},
      {"shardmesh status"},
      {"shardmesh status --watch --interval 5s"},
      {"shardmesh links --mesh default"},
      {"shardmesh doctor --records 1"},
      {"shardmesh health ready --wait"},
      {"shardmesh admin snapshot state.snapshot"},
      {"shardmesh admin check /var/lib/shardmesh"},
      {"shardmesh admin sessions"},
      {"shardmesh ops ls --state running"},
      {"shardmesh ops show 17"},
      {"shardmesh ops watch 17"},
      {"shardmesh ops cancel 17 --force"},
      {"shardmesh mesh resize default dp=3"},
      {"shardmesh admin watch --of workers"},
      {"shardmesh admin worker drain worker-3"},
      {"shardmesh admin worker forget worker-3"},
      {"shardmesh admin worker replace worker-3 spare"},
      {"shardmesh admin quarantine list"},
      {"shardmesh admin quarantine restore 0190a1b2-0000-0000-0000-000000000001 --as w"},
      {"shardmesh admin quarantine drop 0190a1b2-0000-0000-0000-000000000001"},
      {"shardmesh admin cache drop"},
      {"shardmesh version", kAlone},
      {"shardmesh catalog ls rules"},
      {"shardmesh catalog get rules bert@2"},
      {"shardmesh catalog history rules bert"},
      {"shardmesh catalog put rules bert bert.yaml"},
      {"shardmesh catalog rm rules bert"},
      {"shardmesh up --mesh fsdp=2,tp=2 --detach"},
      {"shardmesh down"},
      {"shardmesh config set-context prod --address coordinator.example:7070", kAlone},
      {"shardmesh config use-context prod", kAlone},
      {"shardmesh config get-contexts", kAlone},
      {"shardmesh config current-context", kAlone},
      {"shardmesh config view -o json", kAlone},
      {"shardmesh config delete-context prod", kAlone},
      {"shardmesh completion bash", kAlone},
      {"shardmesh completion zsh", kAlone},
      {"shardmesh man catalog get", kAlone},
      {"shardmesh explain-error NO_MESH", kAlone},
      {"shardmesh axes __BATCH__,__EMBED__"},
      {"shardmesh constrain --spec fsdp,tp --shape 64x64 --mesh fsdp=2,tp=2", kAlone},
      {"shardmesh hash 'some text' --algorithm md5", kAlone},
      {"shardmesh layer output matmul --lhs dp,tp --rhs tp,-", kAlone},
      {"shardmesh layer check --mesh dp=2,tp=4 --method all_gather"},
      {"shardmesh layer describe --in 512 --out 2048", kAlone},
      {"shardmesh layer promote BF16 F32", kAlone},
      {"shardmesh logical resolve --names batch,embed --rules logical.yaml"},
      {"shardmesh logical compose logical.yaml logical.yaml"},
      {"shardmesh presets", kAlone},
      {"shardmesh spec axes '(fsdp,dp),tp'", kAlone},
      {"shardmesh bench collectives --ops all-reduce --sizes 1MiB"},
      {"shardmesh certs --dir tls --workers 4", kAlone},
      {"shardmesh make-checkpoint --out random.safetensors", kAlone},
      {"shardmesh make-tensor --shape 128x384 --out x.npy", kAlone},
  };
  return *examples;
}

void AddAllCommands(CommandLine* line) {
  AddAdminCommands(line);
  AddWorkerCommands(line);
  AddOperationCommands(line);
  AddClusterCommands(line);
  AddDoctorCommands(line);
  AddErrorsCommands(line);
  AddHealthCommands(line);
  AddLinksCommands(line);
  AddBenchCommands(line);
  AddLayoutCommands(line);
  AddSpecCommands(line);
  AddProfileCommands(line);
  AddMeshCommands(line);
  AddLayerCommands(line);
  AddPlanCommands(line);
  AddArrayCommands(line);
  AddReshardCommands(line);
  AddComputeCommands(line);
  AddRunCommands(line);
  AddModelCommands(line);
  AddCatalogCommands(line);
  AddRulesCommands(line);
  AddLogicalCommands(line);
  AddCertsCommands(line);
  AddCheckpointCommands(line);
  AddConfigCommands(line);
  AddManualCommands(line);
  for (const auto& [title, commands] : CommandSections()) line->AddSection(title, commands);
  std::vector<std::string> examples;
  for (const CommandExample& example : CommandExamples()) examples.push_back(example.text);
  line->AddExamples(examples);
}

}  // namespace shardmesh::client
