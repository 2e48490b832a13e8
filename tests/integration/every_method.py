"""A request of every method, and calls of methods by their names."""

from sis.v1 import ratio_service_pb2 as pb

VOCABULARY, TOP_K = 32, 4
SEQUENCE = pb.SequenceRef(id="s")


def requests(run_id):
    """By method, about one run; of Append the header alone."""
    run = pb.RunRef(run_id=run_id)
    sampling = pb.Sampling(log_probs=pb.Sampling.LOG_PROBS_RAW, temperature=1)
    return {
        "CreateRun": pb.CreateRunRequest(run_id=run_id, config=pb.RunConfig(seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)),
        "AdvanceVersion": pb.AdvanceVersionRequest(run=run),
        "DeleteRun": pb.DeleteRunRequest(run=run),
        "GetRun": pb.GetRunRequest(run_id=run_id),
        "GetServer": pb.GetServerRequest(),
        "GetStep": pb.GetStepRequest(run=run, draw=1),
        "InspectRun": pb.InspectRunRequest(run=run),
        "InspectSequence": pb.InspectSequenceRequest(run=run, sequence=SEQUENCE),
        "ListSteps": pb.ListStepsRequest(run=run),
        "ListRuns": pb.ListRunsRequest(),
        "ListSequences": pb.ListSequencesRequest(run=run),
        "Append": pb.AppendRequest(header=pb.AppendHeader(run=run, vocabulary_size=VOCABULARY, sampling=sampling)),
        "Release": pb.ReleaseRequest(run=run, sequences=[SEQUENCE]),
        "FetchTopK": pb.FetchTopKRequest(run=run, slices=[pb.Slice(sequence=SEQUENCE)]),
        "Evaluate": pb.EvaluateRequest(run=run, slices=[pb.Slice(sequence=SEQUENCE, length=1)]),
    }


def begin(channel, method, *messages, metadata=()):
    """Begins a call of any method. Iterating it yields the answers, as bytes."""
    return channel.stream_stream(
        f"/sis.v1.RatioService/{method}", request_serializer=lambda message: message.SerializeToString()
    )(iter(messages), metadata=metadata)
