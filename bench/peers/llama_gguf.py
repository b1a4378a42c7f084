"""Writes the model of a folder in HuggingFace's layout as a GGUF file, for llama.cpp, without a tokenizer.

usage: llama_gguf.py FOLDER FILE BF16|Q8_0

Needs the packages gguf and torch. llama.cpp rotates pairs of neighbouring features, and HuggingFace pairs of features half a
head apart: the rows of the query and key projections are permuted, as convert_hf_to_gguf.py does.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from torch_weights import read_model  # noqa: E402

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm"}
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def permuted(tensor, heads):
    return tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def main():
    folder, path, kind = sys.argv[1:]
    import gguf  # pylint: disable=import-outside-toplevel
    import torch  # pylint: disable=import-outside-toplevel
    config, tensors = read_model(folder)
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    quantization = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if kind == "BF16" else gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config.get("rope_theta", 10_000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in tensors.items():
        values = tensor.to(torch.float32).numpy()
        if "q_proj" in name or "k_proj" in name:
            values = permuted(values, heads if "q_proj" in name else key_heads)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
