"""One of the two ranks of VerlCase.two_ranks.

    two_ranks.py RANK PORT FOLDER

Reads FOLDER/task, and writes FOLDER/answerRANK.
"""

import sys

import training_worker


def main(rank, port, folder):
    training_worker.environment(rank, 2, port)
    import torch
    from verl.utils import tensordict_utils

    from sis.integrations.verl import SisConfig, attach

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    task = torch.load(f"{folder}/task", weights_only=False)
    worker = training_worker.make_worker(task["path"], micro_batch=2, **task["arrangement"])
    # Ranks of sequence parallelism get the same samples, else every other one.
    own = slice(None) if task["arrangement"].get("sequence_parallel") else slice(rank, None, 2)
    answers = []
    for samples, settings, truncated in task["steps"]:
        gradients = training_worker.Gradients(worker)
        training = attach(worker, SisConfig(**settings), truncated)
        advantages = training_worker.batch(samples)["advantages"]
        data = training_worker.batch(samples[own])
        data["advantages"] = advantages[own]
        tensordict_utils.assign_non_tensor(data, global_batch_size=len(samples), **task["batch"])
        if settings.get("sets") == "trainer":
            data["old_log_probs"] = training_worker.recompute(worker, data)
            # For good: it is the last step.
            training_worker.move(worker.engine.module)
        output = worker.train_batch(data)
        metrics = {} if output is None else tensordict_utils.get(output, "metrics")
        logged = {name: value for name, value in metrics.items() if name.startswith("sis/")}
        answers.append({"metrics": logged, "gradients": gradients.steps[0]})
        training.close()
        training_worker.detach(worker)
    torch.save(answers, f"{folder}/answer{rank}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
