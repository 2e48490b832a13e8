"""One rank of two that split a vocabulary, through verl's Megatron engine: split_vocabulary.py RANK PORT FOLDER. The
model, with a part of the head on each, and the schedule are not Megatron's, which want a GPU."""

import functools
import sys
import types

import training_worker


def main(rank, port, folder):
    training_worker.environment(rank, 2, port)
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from transformers import AutoModelForCausalLM
    from verl.workers.config import HFModelConfig, McoreEngineConfig
    from verl.workers.engine.megatron import transformer_impl

    from sis.integrations.verl import SisConfig, attach

    class Model(torch.nn.Module):
        pre_process = post_process = True
        config = types.SimpleNamespace(fp8=None)

        def __init__(self, path):
            super().__init__()
            whole = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
            self.body = whole.model
            self.head = torch.nn.Parameter(whole.lm_head.weight.detach().chunk(2)[rank].clone())

        def zero_grad_buffer(self):
            self.zero_grad()

        def forward(self, input_ids, packed_seq_params, **others):
            starts, place = packed_seq_params.cu_seqlens_q_padded[:-1].long(), torch.arange(input_ids.shape[1])
            sequence = (place[:, None] >= starts).sum(1) - 1
            seen = (sequence[:, None] == sequence) & (place[:, None] >= place)
            mask = torch.zeros(1, 1, *seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
            positions = (place - starts[sequence])[None]
            hidden = self.body(input_ids=input_ids, attention_mask=mask, position_ids=positions).last_hidden_state
            # Sums the gradients over the ranks.
            return tensor_parallel.copy_to_tensor_model_parallel_region(hidden) @ self.head.T

    def schedule(*, forward_step_func, data_iterator, model, num_microbatches, **others):
        found = []
        for _ in range(num_microbatches):
            output, loss_of = forward_step_func(data_iterator, model[0])
            loss, told = loss_of(output)
            (loss / num_microbatches).backward()
            found.append(told)
        return found

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    transformer_impl.get_forward_backward_func = lambda: schedule
    task = torch.load(f"{folder}/task", weights_only=False)
    engine = object.__new__(transformer_impl.MegatronEngineWithLMHead)
    model, steps = Model(task["path"]), []

    def stepped():
        steps.append({name: value.grad.clone() for name, value in model.named_parameters()})
        return True, 0.0, 0

    optimizer = types.SimpleNamespace(zero_grad=lambda: None, step=stepped, state={}, param_groups=[])
    vars(engine).update(
        engine_config=McoreEngineConfig(tensor_model_parallel_size=2, micro_batch_size_per_gpu=4),
        model_config=HFModelConfig(path=task["path"]), tf_config=None, module=[model], optimizer=optimizer,
        enable_routing_replay=False,
    )  # fmt: skip
    worker = types.SimpleNamespace(
        engine=engine, engine_config=engine.engine_config, model_config=engine.model_config, train_mini_batch=None
    )
    worker.set_loss_fn = functools.partial(setattr, worker, "loss")
    training_worker.set_loss(worker)
    answers = []
    for samples, settings, truncated in task["steps"]:
        training = attach(worker, SisConfig(**settings), truncated)
        data = training_worker.batch(samples, micro_batch_size_per_gpu=4, use_dynamic_bsz=False)
        metrics = engine.train_batch(data, worker.loss)["metrics"]
        logged = {name: value for name, value in metrics.items() if name.startswith("sis/")}
        answers.append({"metrics": logged, "gradients": steps.pop()})
        training.close()
        del engine.train_batch
    torch.save(answers, f"{folder}/answer{rank}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
