"""vLLM within a trainer's process on one core, in bfloat16. To be imported before vLLM and TRL."""

import functools
import os
import socket

# Nothing is fetched from a model hub.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_ENABLE_V1_MULTIPROCESSING="0")
# Its warnings name every weight that is loaded as float32.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import trl.generation.vllm_generation
import trl.trainer.utils
import vllm
import vllm._custom_ops
import vllm.model_executor.layers.utils


def prepare() -> None:
    """Once in a process, before the trainer is made."""
    torch.set_num_threads(1)
    # TRL would choose one of a few ports, and trainers that start together the same.
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        os.environ["MASTER_PORT"] = str(listener.getsockname()[1])
    # TRL loads new weights into vLLM after every rollout; those of these two are packed, and can't be loaded again.
    vllm._custom_ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *_: False
    # TRL passes no dtype on.
    trl.generation.vllm_generation.LLM = functools.partial(vllm.LLM, dtype="bfloat16", enforce_eager=True)
    # On a CPU TRL multiplies the prompts' positions with the head too, though only responses are scored.
    trl.trainer.utils._use_triton = lambda _: True
