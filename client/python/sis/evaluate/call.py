"""One evaluate: cut into requests, its answers put together."""

from __future__ import annotations

import functools
import sys
from typing import Callable, ContextManager, Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np

from sis import algorithms, arrays, ragged, spans
from sis.arrays import ArrayLike
from sis.evaluate import micro_batches
from sis.evaluate.micro_batches import MicroBatch, RaggedRows, Rows
from sis.evaluate.request import EvaluateRequest
from sis.evaluation import OUTPUTS, Evaluation
from sis.options import EvaluateOptions
from sis.records import Slice, TopKRecords, listed
from sis.run import Run
from sis.servers.replicas import Replicas
from sis.servers.single_server import SingleServer
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
        """ValueError if an output is unknown or an option does not fit the positions of the
        records."""
        asked = listed("outputs", outputs)
        unknown = [name for name in asked if name not in OUTPUTS]
        if unknown:
            raise ValueError(f"output {unknown[0]!r} is none of {', '.join(OUTPUTS)}")
        self._outputs = {"accepted", *asked}
        self._service = service
        self._slices: Sequence[Slice] = (
            records.slices if isinstance(records, TopKRecords) else listed("records", records)
        )
        self._top_k = run.config.top_k
        # N, the number of positions.
        self.length = sum(part.length for part in self._slices)
        # How many slots each uses.
        self._counts = (
            records.counts if isinstance(records, TopKRecords) else np.full(self.length, self._top_k, np.uint8)
        )
        # Without slices and arrays.
        self.request = pb.EvaluateRequest(
            run=run.to_proto(),
            draw=draw,
            top_k=top_k,
            keep_seconds=records.keep_seconds if isinstance(records, TopKRecords) else 0,
            outputs=sorted(OUTPUTS[name] for name in self._outputs),
            prefix_curve=prefix_curve,
            total_variation=total_variation,
        )
        self._whole = options.needs_one_request(self._slices)
        self._options = options.checked(self._slices, self.length, run.config.vocabulary_size)
        self._options.write_whole(self.request)

    def at_slots(self, log_probs: ArrayLike) -> Dict[str, Rows]:
        """The fields of the form for log_probs [N, K], or [S] of the used slots."""
        counts, offsets = self._counts, ragged.offsets(self._counts)
        if np.ndim(log_probs) == 1:
            used = arrays.float32("log_probs", log_probs, [int(offsets[-1])])
        else:
            used = ragged.narrowed(arrays.float32("log_probs", log_probs, [self.length, self._top_k]), counts)
        return {"log_probs": RaggedRows(used, offsets), "counts": counts}

    def answer(self, form: str, current: Mapping[str, Rows]) -> Evaluation:
        """`current` are the arrays of the form."""
        if self.length == 0 and self._slices:
            # Every sequence of the batch is lost, and the service evaluates no empty slices.
            curve = [pb.PrefixPoint(top_k=top_k) for top_k in self.request.prefix_curve]
            response = pb.EvaluateResponse(prefix_curve=curve)
            return self._evaluation([(MicroBatch([], slice(0, 0)), response)])
        limit = sys.maxsize if self._whole else self._service.micro_batch_bytes
        batches: List[MicroBatch] = []
        requests: Dict[int, List[Callable[[], EvaluateRequest]]] = {}

        def make(batch: MicroBatch) -> EvaluateRequest:
            made = batch.request(self.request, self._slices, form, current)
            self._options.write(made.message, batch)
            return made

        for share in self._service.shares(self.request, self._slices):
            own_batches = micro_batches.cut(self._slices, share.numbers, current, limit)
            requests[share.server] = [functools.partial(make, batch) for batch in own_batches]
            batches += own_batches
        with self._span():
            responses = self._service.evaluate_shares(requests)
        return self._evaluation(list(zip(batches, responses)))

    def _span(self) -> ContextManager[object]:
        size = {"sequences": len(self._slices), "positions": self.length}
        return spans.client_span("evaluate", run=self.request.run.run_id, **size)

    def _evaluation(self, answers: Sequence[Tuple[MicroBatch, pb.EvaluateResponse]]) -> Evaluation:
        return Evaluation.from_proto(
            answers,
            len(self._slices),
            self.length,
            self._outputs,
            log_ratio_sums=isinstance(self._options.algorithm, algorithms.Gspo),
        )
