"""The process in which the engine's arrays lie."""

import ray
import torch
import transfer_queue
from tensordict import TensorDict

import sis
from tests.bench.trainer_path.batch import RECORDED, Batch


@ray.remote(num_cpus=0)
class Worker:
    """Hands a batch of this shape over, in the way that is asked for. `address`: of the server."""

    def __init__(self, address, shape, threads):
        torch.set_num_threads(threads)
        transfer_queue.init()
        self._batch = Batch(*shape)
        self._client = sis.Client(address)
        self._runs = {}

    def put_in_object_store(self):
        """References to the arrays, by name."""
        return {name: ray.put(array) for name, array in self._batch.recorded.items()}

    def put_in_transfer_queue(self, names):
        columns = {name: torch.from_numpy(array) for name, array in self._batch.recorded.items()}
        transfer_queue.kv_batch_put(names, "train", TensorDict(columns, batch_size=len(names)))

    def append_over_tcp(self, run_id, names):
        if run_id not in self._runs:
            self._runs[run_id] = self._client.get_run(run_id).run
        arrays = self._batch.recorded
        blocks = [
            sis.Block(name, 0, 0, **{column: arrays[column][row] for column in RECORDED})
            for row, name in enumerate(names)
        ]
        sis.append_many(self._client, self._runs[run_id], blocks, sampling=sis.Sampling("raw"), worker="worker")
