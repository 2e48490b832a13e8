"""Other ways to carry such columns, each followed by the decision in torch eager."""

import warnings

import ray
import torch
import transfer_queue

# Arrays from the object store are read-only. Nothing here writes to them.
warnings.filterwarnings("ignore", "The given NumPy array is not writable")


def decide(ids, log_probs, sampled_ids, sampled_log_probs, current, current_sampled):
    """Which of N tokens are accepted: bool [N]. ids, log_probs and current are [N, slots], the
    others [N]; math.md, section 1."""
    log_envelopes = (current - log_probs).amax(-1)
    in_top_k = (ids == sampled_ids[:, None]).any(-1)
    log_ratios = current_sampled - sampled_log_probs
    acceptance = torch.where(in_top_k, (log_ratios - log_envelopes).exp().clamp(max=1), 0.0)
    return torch.rand(log_ratios.shape) < acceptance


class _TorchWay:
    def __init__(self, worker, batch):
        self._worker = worker
        self._slots = batch.current.shape[1]
        self._bytes = sum(array.nbytes for array in batch.recorded.values())
        self._current = (torch.from_numpy(batch.current), torch.from_numpy(batch.current_sampled))

    def _decide(self, flat):
        """flat(name): the column's values, one sequence after the other."""
        return decide(
            flat("top_k_ids").view(-1, self._slots),
            flat("top_k_log_probs").view(-1, self._slots),
            flat("sampled_ids").view(-1),
            flat("sampled_log_probs").view(-1),
            *self._current,
        )

    def held(self):
        return self._bytes


class ObjectStoreWay(_TorchWay):
    name = "Ray's object store, torch eager"

    def put(self, names):
        return ray.get(self._worker.put_in_object_store.remote())

    def mask(self, names, put):
        arrays = dict(zip(put, ray.get(list(put.values()))))
        return self._decide(lambda name: torch.from_numpy(arrays[name]))

    def clear(self, names):
        """They go with their references."""


class TransferQueueWay(_TorchWay):
    name = "TransferQueue, torch eager"

    def put(self, names):
        ray.get(self._worker.put_in_transfer_queue.remote(names))

    def mask(self, names, put):
        columns = transfer_queue.kv_batch_get(names, "train")
        # Nested tensors, one component a sequence.
        return self._decide(lambda name: columns[name].values())

    def clear(self, names):
        transfer_queue.kv_clear(names, "train")
