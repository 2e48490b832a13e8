"""One rank of two, of verl_test: two_ranks.py RANK PORT MODEL FOLDER SETTINGS."""

import json
import sys

import training_worker


def main(rank, port, path, folder, settings):
    training_worker.environment(rank, 2, port)
    import torch
    from verl.utils import tensordict_utils

    from sis.verl.settings import Settings
    from sis.verl.training import attach

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    worker = training_worker.make_worker(path, micro_batch=2)
    gradients = training_worker.Gradients(worker)
    training = attach(worker, Settings(**settings))
    samples = torch.load(f"{folder}/samples", weights_only=False)
    # Every other one.
    own = samples[rank::2]
    advantages = training_worker.batch(samples)["advantages"][rank::2]
    data = training_worker.batch(own)
    data["advantages"] = advantages
    tensordict_utils.assign_non_tensor(data, global_batch_size=len(samples))
    metrics = tensordict_utils.get(worker.train_batch(data), "metrics")
    logged = {name: value for name, value in metrics.items() if name.startswith("sis/")}
    torch.save({"metrics": logged, "gradients": gradients.steps[0]}, f"{folder}/answer{rank}")
    training.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
