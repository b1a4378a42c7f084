"""all-MiniLM-L6-v2 in PyTorch: embeddings of sentences of one length."""


class MiniLm:
    """The model of a folder, on all threads of this process."""

    def __init__(self, folder):
        from torch_weights import read_model  # pylint: disable=import-outside-toplevel
        self.config, tensors = read_model(folder)
        self.weights = {name.removeprefix("bert."): tensor.clone() for name, tensor in tensors.items()}
        self.vocabulary_size = self.config["vocab_size"]

    def _linear(self, x, name):
        from torch.nn.functional import linear  # pylint: disable=import-outside-toplevel
        return linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def _norm(self, x, name):
        from torch.nn.functional import layer_norm  # pylint: disable=import-outside-toplevel
        return layer_norm(x, x.shape[-1:], self.weights[name + ".weight"], self.weights[name + ".bias"],
                          self.config["layer_norm_eps"])

    def embed(self, ids):
        """The embedding of each row of `ids`, all of whose tokens count."""
        import torch.nn.functional as functions  # pylint: disable=import-outside-toplevel
        batch, length = ids.shape
        heads = self.config["num_attention_heads"]
        x = (self.weights["embeddings.word_embeddings.weight"][ids] + self.weights["embeddings.position_embeddings.weight"][:length]
             + self.weights["embeddings.token_type_embeddings.weight"][0])
        x = self._norm(x, "embeddings.LayerNorm")
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"encoder.layer.{layer}."

            def project(name, prefix=prefix, x=x):
                return self._linear(x, f"{prefix}attention.self.{name}").view(batch, length, heads, -1).transpose(1, 2)

            attended = functions.scaled_dot_product_attention(project("query"), project("key"), project("value"))
            attended = self._linear(attended.transpose(1, 2).reshape(batch, length, -1), prefix + "attention.output.dense")
            x = self._norm(x + attended, prefix + "attention.output.LayerNorm")
            inner = functions.gelu(self._linear(x, prefix + "intermediate.dense"))
            x = self._norm(x + self._linear(inner, prefix + "output.dense"), prefix + "output.LayerNorm")
        return functions.normalize(x.mean(1))
