"""A Llama-shaped decoder in PyTorch, tensor-parallel over Gloo as Megatron lays it out, with a cache of keys and values."""

import time


class Llama:
    """The part of a model that one rank has: its heads, and its part of the inner features."""

    def __init__(self, folder, rank, ranks):
        import torch  # pylint: disable=import-outside-toplevel
        from torch_weights import read_model  # pylint: disable=import-outside-toplevel
        config, tensors = read_model(folder)
        self.ranks = ranks
        self.layers = config["num_hidden_layers"]
        self.heads = config["num_attention_heads"] // ranks
        self.key_heads = config["num_key_value_heads"] // ranks
        self.head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.epsilon = config["rms_norm_eps"]
        self.vocabulary_size = config["vocab_size"]
        frequencies = config.get("rope_theta", 10_000.0) ** (-torch.arange(0, self.head_size, 2) / self.head_size)
        angles = torch.outer(torch.arange(config["max_position_embeddings"]), frequencies)
        self.cosines, self.sines = angles.cos(), angles.sin()
        self.weights = {}
        for name, tensor in tensors.items():
            if any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")):
                tensor = tensor.chunk(ranks, 0)[rank].clone()
            elif any(part in name for part in ("o_proj", "down_proj")):
                tensor = tensor.chunk(ranks, 1)[rank].contiguous().clone()
            self.weights[name] = tensor
        if "lm_head.weight" not in self.weights:
            self.weights["lm_head.weight"] = tensors["model.embed_tokens.weight"].chunk(ranks, 0)[rank].clone()

    def _sum(self, partial):
        if self.ranks > 1:
            import torch.distributed as dist  # pylint: disable=import-outside-toplevel
            dist.all_reduce(partial)
        return partial

    def _rotate(self, x, begin):
        import torch  # pylint: disable=import-outside-toplevel
        cosines = self.cosines[begin:begin + x.shape[2]].to(x.dtype)
        sines = self.sines[begin:begin + x.shape[2]].to(x.dtype)
        left, right = x.chunk(2, -1)
        return torch.cat((left * cosines - right * sines, right * cosines + left * sines), -1)

    def _step(self, ids, begin, cache):
        """The most likely next token of each sequence. The cache has `begin` rows."""
        import torch  # pylint: disable=import-outside-toplevel
        from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu  # pylint: disable=import-outside-toplevel
        weights = self.weights
        x = weights["model.embed_tokens.weight"][ids]
        batch, length, hidden = x.shape
        end = begin + length
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."

            def project(y, name, heads, prefix=prefix):
                return linear(y, weights[f"{prefix}self_attn.{name}_proj.weight"]).view(batch, length, heads, -1).transpose(1, 2)

            normal = rms_norm(x, (hidden,), weights[prefix + "input_layernorm.weight"], self.epsilon)
            keys, values = cache[layer]
            keys[:, :, begin:end] = self._rotate(project(normal, "k", self.key_heads), begin)
            values[:, :, begin:end] = project(normal, "v", self.key_heads)
            attended = scaled_dot_product_attention(
                self._rotate(project(normal, "q", self.heads), begin), keys[:, :, :end], values[:, :, :end],
                is_causal=length > 1, enable_gqa=True)
            attended = attended.transpose(1, 2).reshape(batch, length, -1)
            x = x + self._sum(linear(attended, weights[prefix + "self_attn.o_proj.weight"]))
            normal = rms_norm(x, (hidden,), weights[prefix + "post_attention_layernorm.weight"], self.epsilon)
            inner = silu(linear(normal, weights[prefix + "mlp.gate_proj.weight"])) * linear(normal, weights[prefix + "mlp.up_proj.weight"])
            x = x + self._sum(linear(inner, weights[prefix + "mlp.down_proj.weight"]))
        last = rms_norm(x[:, -1], (hidden,), weights["model.norm.weight"], self.epsilon)
        logits = linear(last, weights["lm_head.weight"])
        if self.ranks > 1:
            import torch.distributed as dist  # pylint: disable=import-outside-toplevel
            parts = [torch.empty_like(logits) for _ in range(self.ranks)]
            dist.all_gather(parts, logits)
            logits = torch.cat(parts, -1)
        return logits.argmax(-1, keepdim=True)

    def generate(self, prompts, length, new):
        """Seconds of the prompts' step, and of the further steps."""
        import torch  # pylint: disable=import-outside-toplevel
        with torch.inference_mode():
            dtype = self.weights["model.norm.weight"].dtype
            shape = (prompts, self.key_heads, length + new, self.head_size)
            cache = [(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(self.layers)]
            generator = torch.Generator().manual_seed(1)
            ids = torch.randint(0, self.vocabulary_size, (prompts, length), generator=generator)
            start = time.perf_counter()
            ids = self._step(ids, 0, cache)
            middle = time.perf_counter()
            for step in range(new - 1):
                ids = self._step(ids, length + step, cache)
            return {"prefill_s": middle - start, "decode_s": time.perf_counter() - middle, "decode_steps": new - 1}
