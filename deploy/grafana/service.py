"""The dashboard "Service": the servers, independent of runs."""

from __future__ import annotations

from typing import List

from deploy.grafana import expressions as promql
from deploy.grafana import panels, variables
from deploy.grafana.panels import (
    BYTES, BYTES_PER_SECOND, CALLS_PER_SECOND, COUNT, HALF, OPERATIONS_PER_SECOND, SECONDS, SHARE, TOKENS_PER_SECOND,
    Column, Panel, lines,
)  # fmt: skip

_FAILURES = "Unknown|DeadlineExceeded|ResourceExhausted|Unimplemented|Internal|Unavailable|DataLoss"
# Results of a store that fails. DATA_LOSS is damage of one sequence.
_STORE_FAILURES = "UNAVAILABLE|RESOURCE_EXHAUSTED"


def board() -> panels.Dashboard:
    built = variables.board(
        "SIS: Service",
        "sis-service",
        "Activity of the servers: calls, ingest, cache, stores, device. Panels of absent parts (a store, a "
        "device, TLS) are empty or 0.",
        [variables.instance()],
    )
    panels.add(built, "Servers", [_servers()])
    panels.add(built, "Calls", _calls())
    panels.add(built, "Ingest", _ingest())
    panels.add(built, "Cache", _cache())
    panels.add(built, "Store", _store())
    panels.add(built, "Device", _device())
    panels.add(built, "Process", _process())
    return built


def _chosen(metric: str, where: str = "") -> str:
    return f'{metric}{{job=~"$job", instance=~"$instance"{f", {where}" if where else ""}}}'


def _sum(metric: str, *labels: str, where: str = "") -> str:
    return f"sum by ({', '.join(labels)}) ({_chosen(metric, where)})"


def _by_server(metric: str) -> str:
    return _sum(metric, "instance")


def _rate(metric: str, *labels: str, where: str = "") -> str:
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"sum{by} (rate({_chosen(metric, where)}[$__rate_interval]))"


def _grpc(metric: str, *labels: str, where: str = "") -> str:
    service = 'grpc_service="sis.v1.RatioService"'
    return _rate(metric, *labels, where=f"{service}, {where}" if where else service)


def _failed_share(part: str, whole: str) -> str:
    """Returns the share of failed calls: 0, rather than nothing, if there are calls and none fails."""
    return f"({part} or {whole} * 0) / ({whole} > 0)"


def _servers() -> Panel:
    return panels.rows(
        "Servers",
        [
            Column("Up", _sum("up", "job", "instance"), COUNT),
            Column(None, _sum("sis_build_info", "job", "instance", "version", "backend", "store"), COUNT),
            Column(
                "Since start",
                f"sum by (job, instance) (time() - {_chosen('process_start_time_seconds')})",
                SECONDS,
            ),
            Column("Runs", _sum("sis_runs", "job", "instance"), COUNT),
            Column("Cache", _sum("sis_cache_bytes", "job", "instance"), BYTES),
            Column("Cache limit", _sum("sis_cache_budget_bytes", "job", "instance"), BYTES),
        ],
        {"job": "Job", "instance": "Server", "version": "Version", "backend": "Backend", "store": "Store"},
        what="Each server at the last scrape.",
        normal="all are up, with one version, and have run since the last update.",
        otherwise="0 under Up: it doesn't answer Prometheus. A short time since the start: it was restarted; without a "
        "store its records are missing (never_arrived).",
        runbooks=["target_down"],
    )


def _calls() -> List[Panel]:
    failed = _grpc("grpc_server_handled_total", "grpc_method", where=f'grpc_code=~"{_FAILURES}"')
    handled = _grpc("grpc_server_handled_total", "grpc_method")

    def seconds(probability: float) -> str:
        buckets = _grpc("grpc_server_handling_seconds_bucket", "grpc_method", "le", where='grpc_type="unary"')
        return promql.quantile(probability, buckets)

    streams = 'grpc_service="sis.v1.RatioService", grpc_type!="unary"'
    begun = _sum("grpc_server_started_total", "grpc_method", where=streams)
    ended = _sum("grpc_server_handled_total", "grpc_method", where=streams)
    return [
        lines(
            "Calls",
            CALLS_PER_SECOND,
            {"{{grpc_method}}": handled},
            what="Calls that ended, by method. A stream counts when it ends.",
            normal="as many as the trainers' steps need.",
            otherwise="none: no client is running, or none can connect; check errors and the workers' logs.",
            runbooks=["errors"],
        ),
        lines(
            "Calls by code",
            CALLS_PER_SECOND,
            {"{{grpc_code}}": _grpc("grpc_server_handled_total", "grpc_code")},
            what="Calls that ended, by status code.",
            normal="OK; occasionally NotFound; and calls that clients cancel.",
            otherwise="InvalidArgument and FailedPrecondition are the caller's fault: the message in its log names the "
            "field. After FailedPrecondition from Evaluate a batch has no decisions. Unavailable, ResourceExhausted "
            "and Internal are the server's fault.",
            runbooks=["errors", "evaluations_refused"],
        ),
        lines(
            "Calls that fail",
            SHARE,
            {"{{grpc_method}}": _failed_share(failed, handled)},
            what="The share of calls that failed because of the server, by method. Excludes mistakes of callers.",
            normal="0. Unavailable while a server is replaced.",
            otherwise="clients repeat calls, and training slows down.",
            runbooks=["errors"],
            largest=1,
            alert_above=0.05,
        ),
        lines(
            "Time of calls, 50%",
            SECONDS,
            {"{{grpc_method}}": seconds(0.5)},
            what="Median duration of unary calls, by method.",
            normal="below a millisecond for control calls; for Evaluate about 10 ms per million positions and core.",
            otherwise="high for all methods: the machine is busy with something else.",
            runbooks=["latency"],
        ),
        lines(
            "Time of calls, 99%",
            SECONDS,
            {"{{grpc_method}}": seconds(0.99)},
            what="The duration that 99% of unary calls stay below, by method. At most 10 s, the last bucket.",
            normal="a few times the median.",
            otherwise="control calls above half a second wait for a core or for the store. Runs take turns in "
            "Evaluate, so a large batch elsewhere explains a little, not seconds.",
            runbooks=["latency"],
        ),
        lines(
            "Open streams",
            COUNT,
            {"{{grpc_method}}": f"{begun} - ({ended} or {begun} * 0)"},
            what="Open streams, by method.",
            normal="one Append stream per worker.",
            otherwise="fewer Append streams than workers: some have lost their connection.",
            runbooks=["ingest_stalled"],
        ),
    ]


def _ingest() -> List[Panel]:
    return [
        lines(
            "Tokens stored",
            TOKENS_PER_SECOND,
            {"{{run}}": _rate("sis_ingest_positions_total", "run")},
            what="New positions from workers, by run. Resent positions don't count.",
            normal="the tokens that the engines generate.",
            otherwise="0 while workers hold streams open: the server has no memory for them, or they have nothing to "
            "send.",
            runbooks=["ingest_stalled"],
        ),
        lines(
            "Bytes received",
            BYTES_PER_SECOND,
            {"{{run}}": _rate("sis_ingest_bytes_total", "run")},
            what="Bytes of accepted blocks, by run. Includes resent blocks.",
            normal="8K + 9 bytes for each token stored.",
            otherwise="far more: workers resend stored blocks; check their timeouts.",
            runbooks=["latency"],
        ),
        lines(
            "Tokens evaluated",
            TOKENS_PER_SECOND,
            {"{{decision}}": _rate("sis_tokens_total", "decision")},
            what="Evaluated tokens, once per draw, by decision.",
            normal="the tokens stored, times the number of updates per token.",
            otherwise="0 with tokens stored: no trainer is running.",
            runbooks=["ingest_stalled"],
            stacked=True,
        ),
        lines(
            "Refused entries",
            OPERATIONS_PER_SECOND,
            {"{{code}}": _rate("sis_refused_entries_total", "code")},
            what="Entries of Append that were refused, by status code. The call itself succeeds.",
            normal="0.",
            otherwise="INVALID_ARGUMENT: bad arrays; the worker's log names the field. ALREADY_EXISTS: two workers "
            "write the same sequence with different contents. FAILED_PRECONDITION: a worker of an older incarnation. "
            "RESOURCE_EXHAUSTED: no memory; if it persists, rollouts are faster than trainers release sequences. "
            "UNAVAILABLE: the store fails.",
            runbooks=["entries_refused", "appends_wait"],
            width=HALF,
        ),
        lines(
            "Evicted unread",
            OPERATIONS_PER_SECOND,
            {"{{run}}": _rate("sis_evicted_unread_sequences_total", "run")},
            what="Sequences lost by eviction before a trainer read them, by run.",
            normal="0, except for runs with evict_unread.",
            otherwise="rollouts are lost: the trainer has stopped or is slower than the workers, or ended runs "
            "occupy the memory. If none of this is true, the cache is too small.",
            runbooks=["evicted_unread"],
            width=HALF,
        ),
    ]


def _cache() -> List[Panel]:
    return [
        lines(
            "Cache",
            SHARE,
            {
                "{{instance}}": f"{_by_server('sis_cache_bytes')} / {_by_server('sis_cache_budget_bytes')}",
            },
            what="Used share of --cache_bytes.",
            normal="below 0.9, if trainers release finished sequences. With a store the cache may be full: evicted "
            "sequences are read again.",
            otherwise="full without a store: sequences are evicted, and their tokens become MISSING.",
            runbooks=["cache_near_limit"],
            largest=1,
            alert_above=0.9,
        ),
        lines(
            "Bytes by run",
            BYTES,
            {"{{run}}": _sum("sis_run_bytes", "run")},
            what="Bytes of each run in memory.",
            normal="the rollouts in flight: bytes per token by K and encoding (docs/scaling.md).",
            otherwise="a run that only grows does not release sequences. Delete runs that have ended.",
            runbooks=["cache_near_limit"],
            stacked=True,
        ),
        lines(
            "Sequences by run",
            COUNT,
            {"{{run}}": _sum("sis_run_sequences", "run")},
            what="Sequences of each run in memory.",
            normal="a few rollouts' worth.",
            otherwise="rising without end: no trainer releases sequences, or it has stopped.",
            runbooks=["cache_near_limit"],
        ),
        lines(
            "Runs",
            SHARE,
            {
                "{{instance}}": f"{_by_server('sis_runs')} / {_by_server('sis_runs_limit')}",
                "{{instance}}, one owner": (
                    f"{_by_server('sis_owner_runs')} / {_by_server('sis_owner_runs_limit')}"
                ),
            },
            what="Runs of each server, as a share of --max_runs; and the most of one owner, as a share of "
            "--max_runs_per_owner.",
            normal="below 0.9: those that train, and a few that have ended.",
            otherwise="at 1 no run can be created, or none by that owner. Delete ended runs, or set --run_idle_expiry.",
            runbooks=["runs_near_limit"],
            width=6,
            largest=1,
            alert_above=0.9,
        ),
        lines(
            "Dropped sequences",
            OPERATIONS_PER_SECOND,
            {"{{reason}}": _rate("sis_dropped_sequences_total", "reason")},
            what="Sequences that left the cache, by reason.",
            normal="nearly all released.",
            otherwise="evicted: no trainer releases, or the cache is too small; with a store they are read again. "
            "expired: time_to_live is shorter than a rollout waits. stale: the trainer is further ahead than "
            "max_staleness.",
            runbooks=["missing_tokens", "cache_near_limit"],
            width=6,
            stacked=True,
        ),
        lines(
            "Missing tokens",
            TOKENS_PER_SECOND,
            {"{{reason}}": _rate("sis_missing_tokens_total", "reason")},
            what="Evaluated tokens without a record, by reason, over all runs.",
            normal="0.",
            otherwise="see the runs' own panel, and the page.",
            runbooks=["missing_tokens", "corrupt_records"],
            width=6,
            stacked=True,
        ),
        lines(
            "Totals of steps",
            BYTES,
            {"{{instance}}": _by_server("sis_step_bytes")},
            what="Bytes of the totals of draws, in addition to the cache. At most a sixteenth of --cache_bytes.",
            normal="96 bytes per sequence and kept draw.",
            otherwise="at its limit: fewer draws are kept, and GetStep no longer finds the older ones.",
            runbooks=["cache_near_limit"],
            width=6,
        ),
    ]


def _store() -> List[Panel]:
    operations = _rate("sis_store_operations_total", "operation")
    failed = _rate("sis_store_operations_total", "operation", where=f'result=~"{_STORE_FAILURES}"')
    reads = _rate("sis_store_operations_total", where='operation="load"')
    found = _rate("sis_store_operations_total", where='operation="load", result="OK"')
    buckets = _rate("sis_store_seconds_bucket", "operation", "le")
    return [
        lines(
            "Calls of the store",
            OPERATIONS_PER_SECOND,
            {"{{operation}}": operations},
            what="Calls of RocksDB or Redis, by operation.",
            normal="put follows the ingest, merge and drop the number of sequences.",
            otherwise="many loads: memory is too small for the rollouts in flight, or clients place sequences on "
            "different replicas. Empty without --store.",
            runbooks=["latency"],
        ),
        lines(
            "Store calls that fail",
            SHARE,
            {"{{operation}}": _failed_share(failed, operations)},
            what="The share of calls of the store that failed, by operation: it is unreachable, or full.",
            normal="0. More for seconds while a node of Redis is replaced.",
            otherwise="appends are refused, and records that are not in memory are missing (store_down).",
            runbooks=["store_fails", "missing_tokens"],
            largest=1,
            alert_above=0.05,
        ),
        lines(
            "Time of the store, 99%",
            SECONDS,
            {"{{operation}}": promql.quantile(0.99, buckets)},
            what="The duration that 99% of calls of the store stay below, by operation.",
            normal="a write to a file or over a network: milliseconds.",
            otherwise="acks of appends are delayed by this time.",
            runbooks=["store_slow"],
            alert_above=0.25,
        ),
        lines(
            "Bytes to and from the store",
            BYTES_PER_SECOND,
            {
                "{{instance}} written": _rate("sis_store_written_bytes_total", "instance"),
                "{{instance}} read": _rate("sis_store_read_bytes_total", "instance"),
            },
            what="Bytes of records that were written and read.",
            normal="written: the received bytes, and again when a sequence is sealed. Read: little.",
            otherwise="more read than written: evicted sequences are needed again. Let trainers release finished "
            "ones; raise --cache_bytes.",
            runbooks=["cache_near_limit"],
            width=HALF,
        ),
        lines(
            "Reads that find something",
            SHARE,
            {"found": _failed_share(found, reads)},
            what="The share of reads of the store that found records. The others were for new sequences, which are "
            "not stored yet.",
            normal="low while rollouts are new; high after a restart, or with little memory.",
            otherwise="high for long: the cache is smaller than the data in use.",
            runbooks=["cache_near_limit"],
            largest=1,
            width=HALF,
        ),
        lines(
            "Quarantined",
            COUNT,
            {
                "{{instance}} runs": _by_server("sis_store_runs_quarantined"),
                "{{instance}} files": _by_server("sis_store_damaged_files"),
            },
            what="Runs whose stored record can't be used, and damaged files of RocksDB. They are kept, but not served.",
            normal="0.",
            otherwise="stderr names the runs with the reasons; the files are in the folder `lost`.",
            runbooks=["runs_quarantined", "corrupt_records"],
            width=HALF,
        ),
        lines(
            "Recovery",
            SECONDS,
            {"{{instance}}": _by_server("sis_store_recovery_seconds")},
            what="Time from opening the store to having restored its runs, at the last start.",
            normal="well below a second.",
            otherwise="seconds: a large directory after a crash.",
            runbooks=["target_down"],
            width=HALF,
        ),
    ]


def _device() -> List[Panel]:
    reads = _rate("sis_device_cache_reads_total", "result")
    return [
        lines(
            "Device cache",
            BYTES,
            {
                "{{instance}} used": _by_server("sis_device_cache_bytes"),
                "{{instance}} limit": _by_server("sis_device_cache_budget_bytes"),
            },
            what="Used and maximum bytes of the device for copies of record blocks. Only with CUDA.",
            normal="as much as a step reads.",
            otherwise="full, with few hits: raise --device_cache_bytes.",
        ),
        lines(
            "Blocks on the device",
            OPERATIONS_PER_SECOND,
            {"{{result}}": reads},
            what="Ranges of record blocks that the device evaluated. hit: it had a copy; copied: the block was sent "
            "and stays; passed: it was sent for one call only. Only with CUDA.",
            normal="copied on the first evaluation of a rollout, hit on the later ones.",
            otherwise="mostly passed: the device has no memory for them.",
            stacked=True,
        ),
        lines(
            "Copies evicted from the device",
            OPERATIONS_PER_SECOND,
            {"{{instance}}": _rate("sis_device_cache_evictions_total", "instance")},
            what="Copies that were replaced by others. Only with CUDA.",
            normal="0 within a step.",
            otherwise="as many as are copied: the cache is smaller than a step.",
        ),
    ]


def _process() -> List[Panel]:
    return [
        lines(
            "Cores",
            COUNT,
            {"{{instance}}": _rate("process_cpu_seconds_total", "instance")},
            what="Cores that the server keeps busy.",
            normal="in bursts, up to --evaluate_threads.",
            otherwise="always at the machine's limit: calls wait.",
            runbooks=["latency"],
            width=HALF,
        ),
        lines(
            "Resident memory",
            BYTES,
            {"{{instance}}": _by_server("process_resident_memory_bytes")},
            what="Bytes of memory in use.",
            normal="--cache_bytes, plus messages in flight and the totals of steps.",
            otherwise="rising without end: lower --grpc_memory_bytes, and find streams whose client does not read.",
            runbooks=["cache_near_limit"],
            width=HALF,
        ),
        lines(
            "Open files",
            SHARE,
            {"{{instance}}": f"{_by_server('process_open_fds')} / {_by_server('process_max_fds')}"},
            what="Open file descriptors, as a share of the limit.",
            normal="one per connection, and some for the store.",
            otherwise="near 1: at 1 the server accepts no connections, and is restarted; raise the hard limit "
            "(ulimit -Hn).",
            runbooks=["errors"],
            largest=1,
            width=HALF,
        ),
        lines(
            "Certificate",
            SECONDS,
            {"{{instance}}": f"{_by_server('sis_tls_certificate_not_after_timestamp_seconds')} - time()"},
            what="Time until the server's certificate expires. Empty without TLS.",
            normal="days or weeks, longer after each renewal.",
            otherwise="below three days: it was not renewed. At 0 no client can connect.",
            runbooks=["certificate_expires"],
            width=HALF,
        ),
        lines(
            "Invalid files",
            COUNT,
            {"{{instance}} {{files}}": f"max by (instance, files) ({_chosen('sis_reload_failed')})"},
            what="1 for files of identities, TLS or a proxy's certificate that can't be reloaded, so that their "
            "earlier version is in use. Empty without such files.",
            normal="0.",
            otherwise="a removed token is still valid, or a certificate is not renewed: the server's log has the "
            "reason.",
            runbooks=["reload_failed"],
            width=2 * HALF,
        ),
    ]
