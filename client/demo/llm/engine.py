"""TRL with vLLM as its engine, on one core. To be imported before them."""

import functools
import os
import socket
from typing import Any

# Nothing is fetched from a model hub.
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0")
# Its warnings name every weight that is loaded as float32.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import trl.trainer.utils
from client.demo.llm.settings import END, Settings
from transformers import AutoModelForCausalLM
from trl import GRPOConfig


def prepare() -> None:
    """Limits PyTorch to one core of the processor; call it before each trainer is made."""
    torch.set_num_threads(1)
    # On a CPU TRL multiplies the prompts' positions with the head too, though only responses are
    # scored.
    trl.trainer.utils._use_triton = lambda _: True


def prepare_vllm() -> None:
    """Also before each trainer is made: vLLM generates in this process, in bfloat16."""
    import trl.generation.vllm_generation
    import vllm
    import vllm._custom_ops
    import vllm.model_executor.layers.utils

    # TRL would choose one of a few ports, and trainers that start together the same.
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        os.environ["MASTER_PORT"] = str(listener.getsockname()[1])
    # TRL loads new weights into vLLM after every rollout; those of these two are packed, and can't
    # be loaded again.
    vllm._custom_ops._supports_onednn = False
    vllm.model_executor.layers.utils.check_cpu_sgl_kernel = lambda *_: False
    # TRL passes no dtype on.
    made = functools.partial(vllm.LLM, dtype="bfloat16", enforce_eager=True)
    trl.generation.vllm_generation.LLM = made


def model(path: str, tokenizer: Any) -> Any:
    # Eager attention takes half of the time of the other implementation for responses as short as
    # these.
    made = AutoModelForCausalLM.from_pretrained(path, dtype="float32", attn_implementation="eager")
    made.generation_config.eos_token_id = [tokenizer.eos_token_id, *tokenizer.encode(END)]
    return made


def grpo_config(settings: Settings, tokenizer: Any, folder: str, seed: int) -> GRPOConfig:
    return GRPOConfig(
        output_dir=folder,
        seed=seed,
        max_steps=settings.rollouts * settings.updates,
        per_device_train_batch_size=settings.responses // settings.updates,
        steps_per_generation=settings.updates,
        num_generations=settings.group,
        max_completion_length=settings.tokens,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        # Faster where processors have no bfloat16.
        bf16=False,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_importance_sampling_correction=False,
        vllm_max_model_length=64,
        gradient_checkpointing=False,
        # vLLM is a build for CPUs.
        use_cpu=True,
        generation_kwargs={"stop_token_ids": tokenizer.encode(END)},
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
