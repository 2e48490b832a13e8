"""The process in which the engine's arrays lie."""

import ray
import torch
import transfer_queue
from tensordict import TensorDict

import sis
from tests.bench.trainer_path.batch import RECORDED, Batch


@ray.remote(num_cpus=0)
class Worker:
    """Hands a batch of this shape over, in the way that is asked for. `addresses`: of the server,
    over TCP and by its Unix socket."""

    def __init__(self, addresses, shape, threads):
        torch.set_num_threads(threads)
        transfer_queue.init()
        self._batch = Batch(*shape)
        self._clients = {name: sis.Client(address) for name, address in addresses.items()}
        self._runs = {}
        recorded = self._batch.recorded
        bytes_recorded = sum(array.nbytes for array in recorded.values())
        # Rows begin at whole cache lines.
        segment = self._clients["unix"].lease_segment(bytes_recorded + len(RECORDED) * shape[0] * 64)
        self._rows = {
            name: [segment.empty(row.shape, row.dtype) for row in array]
            for name, array in recorded.items()
        }
        self._fill_segment()

    def put_in_object_store(self):
        """References to the arrays, by name."""
        return {name: ray.put(array) for name, array in self._batch.recorded.items()}

    def put_in_transfer_queue(self, names):
        columns = {name: torch.from_numpy(array) for name, array in self._batch.recorded.items()}
        transfer_queue.kv_batch_put(names, "train", TensorDict(columns, batch_size=len(names)))

    def append_over_tcp(self, run_id, names):
        self._append("tcp", run_id, names, self._batch.recorded)

    def append_in_segment(self, run_id, names):
        """Copies the arrays into shared memory first, as an engine does that doesn't write there."""
        self._fill_segment()
        self.append_in_place(run_id, names)

    def append_in_place(self, run_id, names):
        """As an engine does that wrote them into shared memory."""
        self._append("unix", run_id, names, self._rows)

    def _fill_segment(self):
        for name, array in self._batch.recorded.items():
            for row, values in zip(self._rows[name], array):
                row[:] = values

    def _append(self, client, run_id, names, arrays):
        if (client, run_id) not in self._runs:
            self._runs[client, run_id] = self._clients[client].get_run(run_id).run
        blocks = [
            sis.Block(name, 0, 0, **{column: arrays[column][row] for column in RECORDED})
            for row, name in enumerate(names)
        ]
        self._clients[client].append_many(
            self._runs[client, run_id], blocks, sampling=sis.Sampling("raw"), worker="worker"
        )
