"""Models on real workers against the package transformers, on the same random checkpoints.

    transformers_test.py BIN    BIN: the folder of the programs

Runs with the first interpreter that has torch, transformers and numpy: that of build/python, or python3 of the PATH. Where
none has them, the exit code is 77. `pip install transformers torch` installs them.
"""

import json
import os
import pathlib
import subprocess
import sys

BUILD = pathlib.Path(__file__).resolve().parent.parent / "build"
SKIPPED = 77
MARK = "SHARDMESH_TRANSFORMERS_TEST"  # set where the interpreter was chosen


def choose_interpreter():
    """Runs this program with an interpreter that has the packages, and ends with its exit code."""
    for python in (str(BUILD / "python" / "bin" / "python"), "python3"):
        try:
            found = subprocess.run([python, "-c", "import numpy, torch, transformers"], stdin=subprocess.DEVNULL,
                                   capture_output=True, check=False).returncode == 0
        except OSError:
            continue
        if found:
            os.environ[MARK] = "1"
            os.execvp(python, [python, *sys.argv])
    print("SKIPPED: no interpreter has torch and transformers, so that models were not compared with them; "
          "`pip install transformers torch` installs both", file=sys.stderr)
    sys.exit(SKIPPED)


if __name__ == "__main__" and MARK not in os.environ:
    choose_interpreter()

import numpy  # pylint: disable=wrong-import-position
import torch  # pylint: disable=wrong-import-position
import transformers  # pylint: disable=wrong-import-position

import own_cluster  # pylint: disable=wrong-import-position
from own_cluster import SECONDS, Failed, expect  # pylint: disable=wrong-import-position

NEW_TOKENS = 64
PROMPTS = [[1, 5, 77, 200, 3, 9], [255], list(range(40, 60))]
SENTENCES = [[101, 7, 23, 99, 102], [101, 102], [101] + [5] * 40 + [102]]


class Test:
    def __init__(self, programs, folder):
        self.program = programs / "shardmesh"
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDMESH_")}
        self.environment.update(XDG_RUNTIME_DIR=str(folder), XDG_CONFIG_HOME=str(folder), HOME=str(folder))

    def call(self, *arguments):
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, env=self.environment, text=True,
                              capture_output=True, timeout=SECONDS, check=False)
        expect(done.returncode == 0, f"{arguments}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    @staticmethod
    def tokens(sequences):
        return [word for sequence in sequences for word in ("--tokens", ",".join(map(str, sequence)))]

    def a_llama_generates_the_same_tokens_and_logits(self):
        self.call("make-checkpoint", "--arch", "llama", "--size", "tiny", "--out", "llama")
        answer = json.loads(self.call("generate", "--model", "llama", *self.tokens(PROMPTS), "--max-new", NEW_TOKENS,
                                      "--logits", "logits.npy", "--output", "json"))
        logits = numpy.load(self.folder / "logits.npy")
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "llama", dtype=torch.float32).eval()
        for i, prompt in enumerate(PROMPTS):
            expected = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False,
                                      pad_token_id=0)[0]
            expect(answer["tokens"][i] == expected[len(prompt):].tolist(), f"prompt {i} is continued by other tokens")
            with torch.no_grad():
                want = model(expected[None, :-1]).logits[0, len(prompt) - 1:].numpy()
            error = abs(logits[i] - want).max()
            expect(error <= 1e-3, f"the logits of prompt {i} differ by {error}")

    def an_encoder_gives_the_same_embeddings(self):
        self.call("make-checkpoint", "--arch", "all-minilm-l6-v2", "--size", "tiny", "--out", "encoder")
        self.call("embed", "--model", "encoder", *self.tokens(SENTENCES), "--out", "embeddings.npy")
        have = numpy.load(self.folder / "embeddings.npy")
        model = transformers.AutoModel.from_pretrained(self.folder / "encoder", dtype=torch.float32).eval()
        for i, sentence in enumerate(SENTENCES):
            with torch.no_grad():
                rows = model(torch.tensor([sentence])).last_hidden_state[0]
            mean = rows.mean(0)
            error = abs(have[i] - (mean / mean.norm()).numpy()).max()
            expect(error <= 1e-4, f"the embedding of sentence {i} differs by {error}")

    def run(self):
        faults = []
        self.call("up", "--mesh", "tp=2", "--detach")
        try:
            for test in (self.a_llama_generates_the_same_tokens_and_logits, self.an_encoder_gives_the_same_embeddings):
                try:
                    test()
                    print(f"{test.__name__}: ok", flush=True)
                except Failed as failed:
                    faults.append(f"{test.__name__}: {failed}")
        finally:
            self.call("down")
        return faults


if __name__ == "__main__":
    own_cluster.main(Test, "transformers-")
