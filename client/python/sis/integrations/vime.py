"""vime: its policy loss, with accepted tokens at ratio 1. With

    --custom-generate-function-path sis.integrations.vime.generate --use-rollout-logprobs
    --loss-type custom_loss --custom-loss-function-path sis.integrations.vime.loss
    --custom-megatron-before-train-step-hook-path sis.integrations.vime.before_train_step
    --vllm-max-logprobs 22 --custom-config-path FILE

and in FILE `sis: {address: "localhost:50051", run: my-training}`, with any other field of sis.integrations.SisConfig.
vime starts vLLM with processed log-probs; an engine that you start needs `--logprobs-mode processed_logprobs`.
"""

from __future__ import annotations

from typing import Any, Dict

from vime.backends.megatron_utils.loss import get_log_probs_and_entropy, policy_loss_function
from vime.rollout import vllm_rollout
from vime.utils.ppo_utils import get_pg_loss_type

from sis.engines._adapter import Adapter
from sis.engines.vllm import GenerateAdapter
from sis.integrations._recorded_answers import vllm_answer
from sis.integrations._refusals import Needed
from sis.integrations._slime_family import Engine, Framework, OneTurn, Process, packed_loss

# vLLM counts the sampled token among the listed ones: see sis.engines.vllm.GenerateAdapter.
_BESIDE_TOP_K = 2


class _Vllm(Engine):
    def check(self, args: Any, top_k: int) -> None:
        if get_pg_loss_type(args) == "reinforce":
            raise ValueError("pg_loss_type is 'reinforce': it has no ratio. Set it to 'ppo'")
        # vLLM's arguments are absent where only training is debugged.
        most = getattr(args, "vllm_max_logprobs", -1)
        if 0 <= most < top_k + _BESIDE_TOP_K:
            raise ValueError(
                f"vllm_max_logprobs is {most}, too few for top_k {top_k}: set it to {top_k + _BESIDE_TOP_K}"
            )
        self.adapter(args, {"temperature": args.rollout_temperature, "logprobs": top_k + _BESIDE_TOP_K})

    def asked(self, payload: Dict[str, Any], top_k: int) -> Dict[str, Any]:
        return {**payload, "sampling_params": {**payload["sampling_params"], "logprobs": top_k + _BESIDE_TOP_K}}

    def adapter(self, args: Any, sampling_params: Dict[str, Any]) -> Adapter:
        return GenerateAdapter(sampling_params, "processed_logprobs")

    def output_of(self, answer: Any) -> Any:
        return vllm_answer(answer)


_NEEDED: Needed = {
    "rollout_top_p": (1.0, "the loss is of whole distributions"),
    "rollout_top_k": (-1, "the loss is of whole distributions"),
    "vllm_speculative_config": (None, "vLLM's log-probs of some tokens are then wrong by several nats"),
}
_process = Process(Framework("vime", "vime", policy_loss_function, _NEEDED, _Vllm()))
before_train_step = _process.before_train_step
generate = OneTurn(_process, vllm_rollout).generate
loss = packed_loss(_process, get_log_probs_and_entropy)
