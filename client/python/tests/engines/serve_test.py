"""`vllm serve` with the plug-in of sis, which only knows the ids of requests: run by tools/rl-test."""

import json
import os
import pathlib
import tomllib
import time
import unittest

os.environ.update(HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")

import in_float64
import requests
import tiny_model
import torch
import vllm_process
from client.python.tests import snippets
from server.testing.live_server import LiveServer
from transformers import AutoModelForCausalLM

import sis
import sis.torch

K, SEED, TEMPERATURE = 20, 1, 0.9
PROMPT = [270, 443, 285, 264]
# The response whose weights change.
LENGTH = 160
CLIENT = pathlib.Path(sis.__file__).parents[1]


def install_plugin(site):
    """Makes what an installed wheel has: the entry points of pyproject.toml."""
    project = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    folder = site / "sis_ratio.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sis-ratio\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in project["entry-points"].items()
        )
    )


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        model = tiny_model.make_for(cls)
        cls.folder = model.parent
        cls.old = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64)
        server = LiveServer(cache_bytes=256 << 20)
        cls.addClassCleanup(server.close)
        cls.client = sis.Client(server.address)
        cls.addClassCleanup(cls.client.close)
        cls.run_ = cls.client.create_run("serve", seed=SEED, vocabulary_size=tiny_model.VOCABULARY, top_k=K)
        # The name of the weights that vLLM starts with.
        cls.client.advance_version(cls.run_, 0, label="default")
        install_plugin(cls.folder / "site")
        # As docs/engines.md starts it.
        *variables, program, first, _, flag, mode = snippets.of_page("engines", "sh")[0].split()
        told = dict(zip((variable.partition("=")[0] for variable in variables), (server.address, "serve")))
        port = vllm_process.start(
            cls, cls.folder, [program, first, str(model)], flag, mode, "--dtype", "float32", "--enforce-eager",
            "--max-model-len", "512", "--max-num-seqs", "8", VLLM_SERVER_DEV_MODE="1",
            PYTHONPATH=f"{cls.folder / 'site'}:{CLIENT}", **told,
        )  # fmt: skip
        cls.address = f"http://127.0.0.1:{port}"

    def post(self, path, **body):
        headers = {"X-Request-Id": body.pop("id", "")}
        answer = requests.post(f"{self.address}{path}", json=body, headers=headers, stream="stream" in body, timeout=300)
        answer.raise_for_status()
        return answer

    def complete(self, name, **changed):
        return self.post(
            "/v1/completions", id=name, **{
                "model": str(self.folder / "tiny"), "prompt": PROMPT, "temperature": TEMPERATURE, "max_tokens": 40, "seed": 3,
                "ignore_eos": True, "return_token_ids": True, **changed,
            },
        )  # fmt: skip

    def recorded(self, name, tokens):
        """Returns the records of a sequence once it is sealed."""
        deadline = time.monotonic() + 60
        while True:
            records = self.client.fetch_top_k(self.run_, [sis.Slice(name, length=len(tokens))])
            if not records.missing:
                self.assertEqual(records.sampled_ids.tolist(), tokens)
                return records
            self.assertLess(time.monotonic(), deadline, records.missing)
            time.sleep(0.1)

    def d(self, records, logits, tokens, draw):
        """Returns D per token of logits [T, vocabulary] in float64."""
        gathered = sis.torch.gather(records, logits, torch.tensor(tokens), temperature=TEMPERATURE)
        return self.client.evaluate(self.run_, records, draw=draw, **gathered._asdict()).totals.mean_d

    def check_ages(self, draw, classes, tokens, behaviour, current):
        """Compares the sums by age of a draw with float64. classes: by name, the positions of this age; behaviour,
        current: logits [T, vocabulary]."""
        behaviour, current, drawn = behaviour / TEMPERATURE, current / TEMPERATURE, torch.tensor(tokens)
        (accepted,) = in_float64.accepted(
            ["cmpl-long-0"], [0], torch.ones(1, len(tokens)), drawn[None], behaviour[None], current[None], SEED, draw, K
        )
        changes = current.log_softmax(-1) - behaviour.log_softmax(-1)
        deviations = changes[torch.arange(len(tokens)), drawn]
        weights = torch.where(accepted, 1.0, deviations.exp())
        ages = {age.name: age for age in self.client.list_steps(self.run_)[draw].ages}
        self.assertEqual(ages.keys(), classes.keys())
        for name, rows in classes.items():
            age, here, deviation, weight = ages[name], accepted[rows], deviations[rows].abs(), weights[rows]
            self.assertEqual((age.accepted, age.scored), (int(here.sum()), len(here)))
            for got, wanted in (
                (age.d, deviation), (age.d_sis, deviation[~here]), (age.weight, weight), (age.weight_squared, weight**2),
            ):  # fmt: skip
                self.assertAlmostEqual(got, wanted.sum().item(), delta=1e-5 * age.scored + 1e-4 * wanted.sum().item())
            print(f"age {name}: {age.accepted} of {age.scored} accepted, D {age.mean_d:.2e}, D_SIS {age.mean_d_sis:.2e}")

    @torch.no_grad()
    def logits(self, model, tokens, **options):
        return model(torch.tensor([tokens]), **options).logits[0]

    def test_a_request_is_recorded_under_its_id_whatever_it_asks_for(self):
        for draw, asked in enumerate((None, 2)):
            answer = self.complete(f"episode-{draw}", n=2, logprobs=asked).json()
            self.assertEqual(answer["id"], f"cmpl-episode-{draw}")
            for choice in answer["choices"]:
                tokens = choice["token_ids"]
                listed = choice["logprobs"] and max(map(len, choice["logprobs"]["top_logprobs"]))
                # The sampled token may be a third.
                self.assertIn(listed, [None] if asked is None else [2, 3])
                records = self.recorded(f"cmpl-episode-{draw}-0/{choice['index']}", tokens)
                logits = self.logits(self.old, PROMPT + tokens)[len(PROMPT) - 1 : -1]
                self.assertLess(self.d(records, logits, tokens, draw), 1e-5)
        self.assertEqual(self.client.get_run("serve").policy_version, 0)

    def test_the_page(self):
        request = {"model": str(self.folder / "tiny"), "prompt": PROMPT, "max_tokens": 40, "return_token_ids": True}
        here = {"client": self.client, "run": self.run_, "address": self.address, "request": request}
        snippets.run("engines", 4, here)
        tokens = here["answer"]["choices"][0]["token_ids"]
        self.recorded(here["answer"]["id"] + "-0", tokens)

    def test_weights_that_are_updated_within_a_request(self):
        torch.manual_seed(7)
        new = AutoModelForCausalLM.from_pretrained(self.folder / "tiny", dtype=torch.float64)
        for parameter in new.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
        tokens, updated = [], False
        for line in self.complete("long", max_tokens=LENGTH, stream=True).iter_lines():
            if not line.startswith(b"data: {"):
                continue
            tokens += json.loads(line[6:])["choices"][0]["token_ids"]
            if len(tokens) >= LENGTH // 4 and not updated:
                updated = True
                self.post("/pause?mode=keep&clear_cache=false")
                named = ((name, value.float()) for name, value in new.state_dict().items())
                vllm_process.load_weights(self.address, self.folder / "tiny", named)
                self.post("/update_weight_version", new_version="step-7")
                self.post("/resume")
        # After the engine has them: tokens wait for the label.
        time.sleep(1)
        self.assertTrue(self.client.fetch_top_k(self.run_, [sis.Slice("cmpl-long-0", length=LENGTH)]).missing)
        self.client.advance_version(self.run_, 7, label="step-7")
        records = self.recorded("cmpl-long-0", tokens)
        # Evaluated first with the old weights alone.
        whole = PROMPT + tokens
        of_old = self.logits(self.old, whole)[len(PROMPT) - 1 : -1]
        d_of_old = self.d(records, of_old, tokens, 10)
        ages = self.client.inspect_sequence(self.run_, "cmpl-long-0").staleness.tolist()
        count = ages.count(7)
        self.assertEqual(ages, [7] * count + [0] * (LENGTH - count))
        self.assertTrue(LENGTH // 4 <= count < LENGTH, count)
        # The tokens of the new weights see keys and values that the old ones made.
        first = len(PROMPT) + count - 1
        with torch.no_grad():
            cache = self.old(torch.tensor([whole[:first]]), use_cache=True).past_key_values
        of_new = self.logits(new, whole[first:-1], past_key_values=cache)
        behaviour = torch.cat([of_old[:count], of_new])
        self.check_ages(10, {"4-7": slice(count), "0": slice(count, LENGTH)}, tokens, behaviour, of_old)
        d = self.d(records, behaviour, tokens, 11)
        print(f"{count} tokens of the old weights, {LENGTH - count} of the new ones: D {d:.2e}, of the old alone {d_of_old:.2e}")
        self.assertLess(d, 1e-5)
        self.assertGreater(d_of_old, 1e-2)


if __name__ == "__main__":
    unittest.main()
