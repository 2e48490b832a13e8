"""One evaluate: splits it into requests, and merges the answers."""

from __future__ import annotations

import functools
import sys
from typing import Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from sis import _algorithms, _arrays, _ragged, _spans
from sis._arrays import ArrayLike
from sis._evaluate import micro_batches
from sis._evaluate.micro_batches import Current, MicroBatch, Request
from sis._evaluation import OUTPUTS, Evaluation
from sis._options import EvaluateOptions
from sis._records import Slice, TopKRecords, listed
from sis._run import Run
from sis._servers.replicas import Replicas
from sis._servers.single_server import SingleServer
from sis.v1 import ratio_service_pb2 as pb


class EvaluateCall:
    def __init__(
        self,
        service: Union[SingleServer, Replicas],
        run: Run,
        records: Union[TopKRecords, Sequence[Slice]],
        draw: int,
        top_k: int,
        outputs: Sequence[str],
        options: EvaluateOptions,
        prefix_curve: Sequence[int] = (),
        total_variation: bool = False,
    ) -> None:
        """Raises ValueError if an output is unknown, or an option does not fit the records' positions."""
        asked = listed("outputs", outputs)
        unknown = [name for name in asked if name not in OUTPUTS]
        if unknown:
            raise ValueError(f"output {unknown[0]!r} must be one of {', '.join(OUTPUTS)}")
        self._outputs = {"accepted", *asked}
        self._service = service
        if isinstance(records, TopKRecords):
            fetched: Optional[TopKRecords] = records
            self._slices: Sequence[Slice] = records.slices
        else:
            fetched, self._slices = None, listed("records", records)
        self._top_k = run.config.top_k
        # N, the number of positions.
        self._length = sum(part.length for part in self._slices)
        # The number of used slots of each position.
        self._counts = fetched.counts if fetched is not None else np.full(self._length, self._top_k, np.uint8)
        # Without slices and arrays.
        self._request = pb.EvaluateRequest(
            run=run.to_proto(),
            draw=draw,
            top_k=top_k,
            keep_seconds=fetched.keep_seconds if fetched is not None else 0,
            outputs=sorted(OUTPUTS[name] for name in self._outputs),
            prefix_curve=prefix_curve,
            total_variation=total_variation,
        )
        self._whole = options._needs_one_request(self._slices)
        self._options = options._checked(self._slices, self._length, run.config.vocabulary_size)
        self._options._write_whole(self._request)

    def gathered(self, log_probs: ArrayLike, sampled_log_probs: ArrayLike) -> Evaluation:
        """Evaluates the GATHERED form. log_probs: [N, K], or [S] at the used slots."""
        own = _arrays.float32("sampled_log_probs", sampled_log_probs, (self._length,))
        counts, offsets = self._counts, _ragged.offsets(self._counts)
        if np.ndim(log_probs) == 1:
            used = _arrays.float32("log_probs", log_probs, (int(offsets[-1]),))
        else:
            used = _ragged.narrowed(_arrays.float32("log_probs", log_probs, (self._length, self._top_k)), counts)
        return self._answer(Current("gathered", {"sampled_log_probs": own, "counts": counts}, used, offsets))

    def reduced(self, **values: ArrayLike) -> Evaluation:
        """Evaluates the REDUCED form. `values`: its fields, [N] each."""
        checked = {name: _arrays.float32(name, array, (self._length,)) for name, array in values.items()}
        no_slots = np.zeros(self._length + 1, np.int64)
        return self._answer(Current("reduced", checked, np.empty(0, np.float32), no_slots))

    def _answer(self, current: Current) -> Evaluation:
        if self._length == 0 and self._slices:
            # The batch has no positions, and the service evaluates no empty slices.
            curve = [pb.PrefixPoint(top_k=top_k) for top_k in self._request.prefix_curve]
            response = pb.EvaluateResponse(prefix_curve=curve)
            return self._evaluation([(MicroBatch([], slice(0, 0)), response)])
        limit = sys.maxsize if self._whole else self._service.micro_batch_bytes
        batches: List[MicroBatch] = []
        requests: Dict[int, List[Callable[[], Request]]] = {}
        for server, numbers in self._service.shares(self._request, self._slices).items():
            own_batches = micro_batches.cut(self._slices, numbers, current, limit)
            requests[server] = [functools.partial(self._made, current, batch) for batch in own_batches]
            batches += own_batches
        size = {"sequences": len(self._slices), "positions": self._length}
        with _spans.client_span("evaluate", run=self._request.run.run_id, **size):
            responses = self._service.evaluate_shares(self._request.run.run_id, requests)
        return self._evaluation(list(zip(batches, responses)))

    def _made(self, current: Current, batch: MicroBatch) -> Request:
        message = pb.EvaluateRequest()
        message.CopyFrom(self._request)
        message.slices.extend(self._slices[number].to_proto() for number in batch.numbers)
        self._options._write(message, batch)
        return Request(message, current.form, current.fields(batch.rows), self._options._arrays(batch.rows))

    def _evaluation(self, answers: Sequence[Tuple[MicroBatch, pb.EvaluateResponse]]) -> Evaluation:
        return Evaluation.from_proto(
            answers,
            len(self._slices),
            self._length,
            self._outputs,
            log_ratio_sums=isinstance(self._options.algorithm, _algorithms.Gspo),
        )
