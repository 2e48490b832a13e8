"""verl's actor worker with the plug-in, from verl's configuration.

    plugin_worker.py ADDRESS PORT MODEL OVERRIDES FILE
"""

import os
import pathlib
import sys

import training_worker


def main(address, port, path, overrides, file):
    training_worker.environment(0, 1, port)
    os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "auto"
    import torch
    import verl
    from hydra import compose, initialize_config_dir
    from verl.trainer import main_ppo
    from verl.utils import tensordict_utils
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    lines = pathlib.Path(overrides).read_text().splitlines()
    ours = [line.replace("$SIS_ADDRESS", address) for line in lines if not line.startswith("#")]
    small = [
        f"actor_rollout_ref.model.path={path}", "actor_rollout_ref.model.use_remove_padding=false",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4", "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32", "actor_rollout_ref.actor.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    ]  # fmt: skip
    folder = str(pathlib.Path(verl.__file__).parent / "trainer/config")
    with initialize_config_dir(config_dir=folder, version_base=None):
        config = compose("ppo_trainer", overrides=small + ours)
        twice = compose("ppo_trainer", overrides=[*small, *ours, "algorithm.rollout_correction.rollout_is=token"])
    try:
        main_ppo.validate_config(config=twice, use_reference_policy=False, use_critic=False)
        refused = ""
    except ValueError as error:
        refused = str(error)
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    data = training_worker.batch(torch.load(file, weights_only=False))
    tensordict_utils.assign_non_tensor(data, mini_batch_size=8, epochs=2)
    metrics = tensordict_utils.get(worker.update_actor(data), "metrics")
    replica = RolloutReplicaRegistry._registry["vllm"].__module__
    logged = {name: value for name, value in metrics.items() if name.startswith("sis/")}
    torch.save({"metrics": logged, "replica": replica, "refused": refused}, file)
    worker.sis.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
