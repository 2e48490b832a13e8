"""Passes samples from verl's agent loops to its actor through its TransferQueue, on Ray.

    queued_samples.py PORT FOLDER

Reads FOLDER/task, and writes FOLDER/answer.
"""

import asyncio
import os
import sys

import training_worker

SAMPLES = []
TOLD = {}


class Replay:
    """An agent loop whose model said what is in SAMPLES."""

    def __init__(self, **named):
        pass

    async def run(self, sampling_params, *, uid, session_id, **named):
        from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

        TOLD[uid, session_id] = sampling_params
        sample = SAMPLES[session_id]
        return AgentLoopOutput(
            prompt_ids=sample.prompt, response_ids=sample.tokens, response_mask=sample.mask,
            response_logprobs=sample.log_probs, reward_score=0.0, metrics=AgentLoopMetrics(),
            extra_fields={"min_global_steps": 0, "max_global_steps": 0},
        )  # fmt: skip


def agent_loop_worker(config):
    """verl's own, as far as agent loops need it, in this process."""
    from verl.experimental.agent_loop.agent_loop import register
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

    register("replay")(Replay)
    worker = object.__new__(AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    unused = ("llm_client", "tokenizer", "processor", "hf_model_type", "dataset_cls", "reward_loop_worker_handles")
    vars(worker).update(dict.fromkeys(unused), config=config, tools=[], distillation_enabled=False)
    return worker


def main(port, folder):
    training_worker.environment(0, 1, port)
    # Ray makes its workers nice; beside other tests they would wait for minutes.
    os.environ["RAY_worker_niceness"] = "0"
    import pathlib

    import ray
    import torch
    import transfer_queue
    import verl
    from hydra import compose, initialize_config_dir
    from started_ray import start_ray
    from verl.utils import tensordict_utils
    from verl.workers.utils.padding import response_to_nested

    import sis.integrations.verl._plugin  # noqa: F401
    from sis.integrations.verl import SisConfig, attach

    torch.set_num_threads(1)
    task = torch.load(f"{folder}/task", weights_only=False)
    SAMPLES.extend(task["samples"])
    with initialize_config_dir(str(pathlib.Path(verl.__file__).parent / "trainer/config"), version_base=None):
        custom = [f"+actor_rollout_ref.rollout.custom.sis.{name}=any" for name in ("address", "run")]
        config = compose("ppo_trainer", overrides=custom)
    start_ray(num_cpus=4, object_store_memory=100 << 20)
    transfer_queue.init()
    loops = agent_loop_worker(config)
    trajectory = {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": False}

    async def generated():
        for number in range(len(SAMPLES)):
            await loops._run_agent_loop(
                {"temperature": 1.0}, trajectory, agent_name="replay", trace=False, uid="uid", session_id=number,
                global_steps=0,
            )  # fmt: skip

    asyncio.run(generated())
    keys = [f"uid_{number}_0" for number in range(len(SAMPLES))]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=["response_mask"])
    advantages = response_to_nested(task["advantages"], data["response_mask"])
    made = tensordict_utils.get_tensordict({"advantages": advantages})
    batch = transfer_queue.kv_batch_put(keys=keys, partition_id="train", fields=made)
    batch.extra_info = {
        "calculate_entropy": False, "global_batch_size": len(SAMPLES), "mini_batch_size": len(SAMPLES), "epochs": 1,
        "seed": 3, "dataloader_kwargs": {"shuffle": True}, "temperature": 1.0, "compute_loss": True,
    }  # fmt: skip
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    worker = training_worker.make_worker(task["path"], remove_padding=True)
    gradients = training_worker.Gradients(worker)
    training = attach(worker, SisConfig(**task["settings"]))
    metrics = tensordict_utils.get(worker.train_mini_batch(batch), "metrics")
    told = [TOLD["uid", number] for number in range(len(SAMPLES))]
    torch.save({"metrics": dict(metrics), "gradients": gradients.steps, "told": told}, f"{folder}/answer")
    training.close()
    torch.distributed.destroy_process_group()
    ray.shutdown()


if __name__ == "__main__":
    # Ray and hydra find Replay by its module.
    import queued_samples

    queued_samples.main(int(sys.argv[1]), sys.argv[2])
