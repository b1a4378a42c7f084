// Runs a Llama-shaped model by llama.cpp, once for each line of its input.
//
// clang-format off
//   llama_cpp_peer MODEL.gguf THREADS [SERVER...]
// clang-format on
//
// With SERVERs (HOST:PORT of rpc-server programs), these have the layers; otherwise this process
// has them. Prints "ready". Answers each line "PROMPTS LENGTH NEW" by one line of JSON with the
// seconds of the prompts' batch, and of the further steps: {"prefill_s", "decode_s",
// "decode_steps"}. Each step takes the token with the largest logit of each sequence.
// bench/peers/build_llama_cpp.sh compiles it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << "llama_cpp_peer: " << message << "\n";
  std::exit(1);
}

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void AddServers(const std::vector<std::string>& servers) {
  using AddServer = ggml_backend_reg_t (*)(const char* endpoint);
  ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
  const auto add = rpc == nullptr ? nullptr
                                  : reinterpret_cast<AddServer>(ggml_backend_reg_get_proc_address(
                                        rpc, "ggml_backend_rpc_add_server"));
  if (add == nullptr) Fail("this build has no RPC backend");
  for (const std::string& server : servers) {
    ggml_backend_reg_t added = add(server.c_str());
    if (added == nullptr) Fail("cannot reach the server " + server);
    ggml_backend_register(added);
  }
}

// Adds a token, and asks for its logits if `is_last`.
void Add(llama_batch& batch, llama_token token, llama_pos position, llama_seq_id sequence,
         bool is_last) {
  const int32_t at = batch.n_tokens++;
  batch.token[at] = token;
  batch.pos[at] = position;
  batch.n_seq_id[at] = 1;
  batch.seq_id[at][0] = sequence;
  batch.logits[at] = is_last;
}

// Runs the batch. Returns the most likely token after each token that asked for logits, in order.
std::vector<llama_token> Decode(llama_context* context, const llama_batch& batch,
                                int32_t vocabulary_size) {
  if (llama_decode(context, batch) != 0) Fail("llama_decode failed");
  llama_synchronize(context);
  std::vector<llama_token> tokens;
  for (int32_t i = 0; i < batch.n_tokens; ++i) {
    if (batch.logits[i] == 0) continue;
    const float* const logits = llama_get_logits_ith(context, i);
    tokens.push_back(
        static_cast<llama_token>(std::max_element(logits, logits + vocabulary_size) - logits));
  }
  return tokens;
}

std::string Generate(llama_model* model, int threads, int32_t prompts, int32_t length,
                     int32_t new_tokens) {
  llama_context_params options = llama_context_default_params();
  options.n_ctx = static_cast<uint32_t>(prompts * (length + new_tokens + 256));
  options.n_batch = static_cast<uint32_t>(prompts * length);
  options.n_ubatch = static_cast<uint32_t>(std::min(prompts * length, 512));
  options.n_seq_max = static_cast<uint32_t>(prompts);
  options.n_threads = threads;
  options.n_threads_batch = threads;
  llama_context* const context = llama_init_from_model(model, options);
  if (context == nullptr) Fail("cannot make a context");
  const int32_t vocabulary_size = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_batch batch = llama_batch_init(prompts * length, 0, 1);
  // Threads and buffers are made by the first batch.
  for (int32_t i = 0; i < 16; ++i) Add(batch, i, i, 0, i == 15);
  (void)Decode(context, batch, vocabulary_size);
  llama_memory_clear(llama_get_memory(context), true);

  batch.n_tokens = 0;
  for (int32_t sequence = 0; sequence < prompts; ++sequence) {
    for (int32_t i = 0; i < length; ++i) {
      Add(batch, std::rand() % vocabulary_size, i, sequence, i + 1 == length);
    }
  }
  const Clock::time_point begin = Clock::now();
  std::vector<llama_token> tokens = Decode(context, batch, vocabulary_size);
  const Clock::time_point middle = Clock::now();
  for (int32_t step = 0; step + 1 < new_tokens; ++step) {
    batch.n_tokens = 0;
    for (int32_t sequence = 0; sequence < prompts; ++sequence) {
      Add(batch, tokens[static_cast<size_t>(sequence)], length + step, sequence, true);
    }
    tokens = Decode(context, batch, vocabulary_size);
  }
  const Clock::time_point end = Clock::now();
  llama_batch_free(batch);
  llama_free(context);
  std::ostringstream json;
  json << "{\"prefill_s\": " << Seconds(begin, middle) << ", \"decode_s\": " << Seconds(middle, end)
       << ", \"decode_steps\": " << new_tokens - 1 << "}";
  return json.str();
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc < 3 ? 0 : std::atoi(argv[2]);
  if (threads < 1) Fail("usage: llama_cpp_peer MODEL.gguf THREADS [SERVER...]");
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  const std::vector<std::string> servers(argv + 3, argv + argc);
  if (!servers.empty()) AddServers(servers);
  llama_model_params options = llama_model_default_params();
  options.n_gpu_layers = servers.empty() ? 0 : 999;
  llama_model* const model = llama_model_load_from_file(argv[1], options);
  if (model == nullptr) Fail(std::string("cannot load ") + argv[1]);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    int32_t prompts = 0, length = 0, new_tokens = 0;
    if (!(words >> prompts >> length >> new_tokens) || prompts < 1 || length < 16) return 2;
    std::cout << Generate(model, threads, prompts, length, new_tokens) << std::endl;
  }
  llama_model_free(model);
  llama_backend_free();
}
