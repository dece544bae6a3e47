"""Function for scripts: a served model on a system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from clusim.base.errors import InputError
from clusim.base.files import guard_inputs
from clusim.base.units import format_size, parse_size
from clusim.hardware.engines import ENGINES, ServingEngine
from clusim.hardware.figures import value_of
from clusim.hardware.frameworks import CONTEXT
from clusim.hardware.kernels.measured_tables import find_table
from clusim.jobs.times import Times, shared_answers
from clusim.lowering.grain import QUICK
from clusim.serving.exchange import ServedDeepEp, fullest_skew
from clusim.serving.expected import expected_error
from clusim.serving.forward import ForwardPass
from clusim.serving.layout import (
    EXPERTS_ONLY,
    WEIGHT_BYTES,
    ReplicaLayout,
    place_replicas,
)
from clusim.serving.loop import ServingRun, Tell
from clusim.serving.pools import (
    MOST_ROUNDS,
    RESIDUAL,
    PoolRun,
    TransferCosts,
    latencies_ps,
    transfer_parts,
    transfer_times,
)
from clusim.serving.replica import FlightBatch, Replica, ServingHost
from clusim.serving.requests import ServingRequest, draw_requests
from clusim.serving.result import CacheUse, Serving
from clusim.serving.scheduler import Rule, SequenceScheduler
from clusim.serving.spec import PoolSpec, ReplicaSpec, ServingSpec, load_serving
from clusim.serving.times import ServedStepTimes
from clusim.serving.transfer import TransferTimes, outer_rate_Bps
from clusim.serving.verdict import StepLedger, add_times
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of
from clusim.workload.chips import chip_at, measured_on
from clusim.workload.host import peer_rates
from clusim.workload.kernels import PRECISIONS, Chip
from clusim.workload.models.transformer_sizes import TransformerSizes
from clusim.workload.parallel.plan import model_of


@dataclass(frozen=True)
class ServeRequest:
    """A serving file on a system.

    Attributes
    ----------
    compute, host : float
        Speed of kernels, and of the engine's host.
    """

    spec: ServingSpec
    setup: Setup
    compute: float = 1.0
    host: float = 1.0

    def faster(self, hardware: str, factor: float) -> ServeRequest:
        """Return the request with faster kernels (``compute``) or host."""
        if hardware == "compute":
            return replace(self, compute=self.compute * factor)
        return replace(self, host=self.host * factor)

    def on_links(self, setup: Setup) -> ServeRequest:
        """Return the request with other links; other traffic keeps its bytes/s."""
        traffic = self.spec.beside
        if traffic is None:
            return replace(self, setup=setup)
        load = traffic.load * outer_rate_Bps(self.setup) / outer_rate_Bps(setup)
        if load >= 1:
            raise InputError(f"other traffic needs {load:.0%} of these links")
        changed = traffic.model_copy(update={"load": load})
        spec = self.spec.model_copy(update={"beside": changed})
        return replace(self, setup=setup, spec=spec)

    def run(self) -> Serving:
        """Serve the requests of the file."""
        return ServedModel(self.spec, self.setup, self.compute, self.host).run()


class ServedModel:
    """A serving file on a system: its engine and replicas."""

    def __init__(
        self,
        spec: ServingSpec,
        setup: Setup,
        compute_speed: float = 1.0,
        host_speed: float = 1.0,
    ) -> None:
        self.spec, self.setup = spec, setup
        self.compute_speed, self.host_speed = compute_speed, host_speed
        model = model_of(spec.model)
        if not isinstance(model, TransformerSizes):
            raise InputError(
                f"model {spec.model.base}: only transformers are served"
            )
        self.model = model
        self.engine: ServingEngine = ENGINES[spec.engine.name]
        self.times = Times(QUICK, shared_answers())
        fabric = setup.fabric
        node = fabric.nodes[arrays_of(fabric).node_of(0)]
        assert node.endpoint is not None, "ranks are endpoints"
        self.endpoint = node.endpoint

    def layout(self, parallel: ReplicaSpec) -> ReplicaLayout:
        """Return the parts of the model on the ranks of a replica."""
        formats = self.spec.precision
        return ReplicaLayout(
            self.model,
            **parallel.model_dump(),
            weights=formats.weights,
            cache=formats.cache,
        )

    def step_times(self, layout: ReplicaLayout, first: int = 0) -> ServedStepTimes:
        """Return the times of the steps of a replica with first rank `first`."""
        self._check_place(first + layout.ranks)
        forward = ForwardPass(
            layout,
            self._chip(layout.weights),
            self._chip("bf16"),
            self.endpoint,
            self.engine,
            *self._exchange(layout),
        )
        return ServedStepTimes(
            self.setup, forward, self.times, first, self.compute_speed
        )

    def _exchange(
        self, layout: ReplicaLayout
    ) -> tuple[str, float, ServedDeepEp | None]:
        """Return the exchange for experts, its skew, and DeepEP if chosen."""
        spec, groups, deepep = self.spec.experts, layout.expert, None
        skew = spec.skew
        if spec.power and self.model.experts:
            skew = fullest_skew(self.model.experts, groups, spec.power, spec.seed)
        if spec.exchange == "deepep":
            machines = -(-layout.group // self.per_node)
            inside_Bps, _ = peer_rates(self.setup.fabric)
            deepep = ServedDeepEp(layout, machines, inside_Bps, spec.low_latency)
            deepep.check()
        return spec.exchange, skew, deepep

    @property
    def per_node(self) -> int:
        """GPUs of a node."""
        fabric = self.setup.fabric
        return fabric.num_ranks // max(1, fabric.num_zones)

    def _check_place(self, need: int) -> None:
        """Raise an error without enough GPUs for replicas."""
        ranks = self.setup.fabric.num_ranks
        if need > ranks:
            raise InputError(
                f"replicas need {need} GPUs, and {self.setup.name} has {ranks}; set nodes"
            )

    def _chip(self, weights: str) -> Chip:
        """Return the chip with the products of a precision."""
        if weights in EXPERTS_ONLY:
            weights = "bf16"
        if weights != "nvfp4":
            return chip_at(self.endpoint, PRECISIONS[weights], single=True)
        chip = chip_at(self.endpoint, PRECISIONS["fp8"], single=True)
        table = find_table(measured_on(self.endpoint), weights)
        if table is None:
            raise InputError(
                f"precision {weights}: not measured on {self.endpoint.chip}"
            )
        size: Any = WEIGHT_BYTES[weights]
        precision = replace(chip.precision, name=weights, gemm_bytes=size)
        return replace(
            chip,
            peak_flops=2 * chip.peak_flops,
            products=table,
            wider=(),
            precision=precision,
        )

    def cache_blocks(self, layout: ReplicaLayout) -> int:
        """Return the blocks of the cache of a copy of attention.

        Raises
        ------
        InputError
            The model does not fit.
        """
        cache, memory = self.spec.cache, self.endpoint.mem_bytes
        if cache.blocks:
            return cache.blocks
        if not memory:
            raise InputError(
                f"memory of {self.endpoint.chip} is unknown; set cache: {{blocks: ..}}"
            )
        reserve = (
            parse_size(str(value_of(CONTEXT)))
            if cache.reserve is None
            else cache.reserve
        )
        tokens = self.spec.batching.max_batched_tokens
        room_bytes = cache.share * memory - reserve - layout.weight_bytes()
        room_bytes -= layout.activation_bytes(tokens)
        blocks = int(room_bytes / (cache.block * layout.token_bytes()))
        if blocks < 1:
            raise InputError(
                f"{self.model.name} on {layout.ranks} GPUs lacks {format_size(round(-room_bytes))} of memory on each;"
                f" use more ranks{self._fitting(layout)}"
            )
        return blocks

    def _fitting(self, layout: ReplicaLayout) -> str:
        """Return the least tensor parallelism that fits, as text; may be empty."""
        memory = self.spec.cache.share * self.endpoint.mem_bytes
        for tensor in (2, 4, 8, 16, 32, 64):
            if tensor <= layout.tensor or self.model.heads % tensor:
                continue
            need = layout.weight_bytes() * layout.tensor / tensor
            if need < 0.9 * memory:
                return f", such as tensor {tensor}"
        return ""

    def _places(self, pools: Sequence[PoolSpec]) -> list[list[int]]:
        """Return the first ranks of the replicas of pools, on consecutive ranks."""
        sizes = [
            self.layout(pool.parallel).ranks
            for pool in pools
            for _ in range(pool.replicas)
        ]
        places = place_replicas(sizes, self.per_node)
        self._check_place(places.pop())
        return [[places.pop(0) for _ in range(pool.replicas)] for pool in pools]

    def replicas(
        self, parallel: ReplicaSpec, places: Sequence[int]
    ) -> list[Replica]:
        """Return replicas with some first ranks."""
        layout = self.layout(parallel)
        blocks = self.cache_blocks(layout)
        batching, host = self.spec.batching, self._host()
        rule = batching.rule or cast("Rule", self.engine.rule)
        result = []
        shared = self.step_times(layout, places[0])
        for place in places:
            times = replace(shared, first=place)
            batches = [
                FlightBatch(
                    [
                        SequenceScheduler(
                            rule,
                            batching.max_batched_tokens,
                            batching.max_sequences,
                            self.spec.cache.block,
                            max(1, blocks // layout.pipeline),
                            window=self.model.window,
                            prefix=self.spec.requests.prefix
                            * self.spec.cache.prefix,
                            windowed=layout.stage_layers / layout.full_layers - 1,
                        )
                        for _ in range(layout.attention_data)
                    ]
                )
                for _ in range(layout.pipeline)
            ]
            result.append(Replica(times, host, batches))
        return result

    def _host(self) -> ServingHost:
        spec, figures = self.spec.engine, ServingHost.of(self.engine)
        times_ps = (
            figures.step_ps if spec.step is None else spec.step,
            figures.sequence_ps if spec.sequence is None else spec.sequence,
            figures.request_ps if spec.request is None else spec.request,
        )
        return ServingHost(*(round(ps / self.host_speed) for ps in times_ps))

    def run(self, tell: Tell | None = None) -> Serving:
        """Serve the requests of the file."""
        if self.spec.pools is not None:
            return self._run_pools(tell)
        pool = PoolSpec(replicas=self.spec.replicas, parallel=self.spec.parallel)
        replicas = self.replicas(pool.parallel, *self._places([pool]))
        run = ServingRun(replicas, *self._load(), tell)
        run.play()
        return self._result(run, replicas, [])

    def _load(self) -> tuple[list[ServingRequest], int]:
        """Return the requests, and the number that is always in the server."""
        spec = self.spec.requests
        return draw_requests(spec), spec.concurrency or 0

    def _run_pools(self, tell: Tell | None) -> Serving:
        """Serve with separate replicas, until the times of transfers stay."""
        pools = self.spec.pools
        assert pools is not None
        prefill, decode = pools.prefill, pools.decode
        places = self._places([prefill, decode])
        layouts = self.layout(prefill.parallel), self.layout(decode.parallel)
        network = TransferTimes(self.setup, *layouts, self.spec.beside)
        costs = TransferCosts.of(self.spec.transfer, self.model.layers)
        times: dict[int, int] = {}
        before, residual = None, 1.0
        rounds = 0
        while residual > RESIDUAL and rounds < MOST_ROUNDS:
            replicas = self.replicas(prefill.parallel, places[0])
            decoders = self.replicas(decode.parallel, places[1])
            run = PoolRun(
                replicas,
                *self._load(),
                tell,
                decoders=decoders,
                network=network,
                costs=costs,
                known_ps=times,
            )
            run.play()
            rounds += 1
            now = latencies_ps(run.sequences)
            if before is not None:
                residual = float(np.max(np.abs(now / np.maximum(before, 1.0) - 1)))
            before, times = now, transfer_times(run)
        moved = sum(run.known_ps.values()) / max(1, len(run.known_ps)) * 1e-9
        notes = [
            f"transfers last {moved:.2f} ms in the mean, from {network.simulated} simulations of the network",
            f"{rounds} runs; no latency moved by more than {residual:.1%} in the last",
        ]
        result = self._result(run, [*replicas, *decoders], notes)
        return replace(result, transfers=lambda: transfer_parts(run))

    def _assumptions(self) -> list[str]:
        """Return notes on figures of other chips that stand for this one's."""
        return self.engine.assumptions(
            (self.endpoint.chip, self.endpoint.architecture),
            (self.spec.precision.weights, self.spec.precision.cache),
            latent=self.model.latent is not None,
            experts=bool(self.model.experts),
        )

    def _result(
        self, run: ServingRun, replicas: list[Replica], notes: list[str]
    ) -> Serving:
        last = replicas[-1]
        layout = last.times.forward.layout
        schedulers = [
            item
            for replica in replicas
            if replica.times.forward.layout == layout
            for batch in replica.batches
            for item in batch.schedulers
        ]
        spent: dict[str, float] = {}
        for replica in replicas:
            add_times(spent, replica.spent_s)
        rule = schedulers[0].rule
        notes = [*self._assumptions(), *notes]
        distinct = {replicas[0].times.different, last.times.different}
        return Serving(
            name=self.spec.name,
            system=self.setup.name,
            engine=f"{self.engine.name} {self.engine.release}, {rule}",
            layout=layout,
            gpus=sum(item.times.forward.layout.ranks for item in replicas),
            sequences=run.sequences,
            records=sorted(step for replica in replicas for step in replica.steps),
            cache_records=[
                step
                for replica in replicas
                if replica.times.forward.layout == layout
                for step in replica.steps
            ],
            batch_blocks=sum(item.blocks for item in last.batches[0].schedulers),
            batches=sum(len(replica.batches) for replica in replicas),
            different_steps=sum(distinct),
            cache=CacheUse(
                schedulers[0].blocks * schedulers[0].block,
                layout.token_bytes(),
                max(item.peak_blocks / item.blocks for item in schedulers),
                sum(item.preemptions for item in schedulers),
            ),
            spent_s=spent,
            ledger=sum((item.ledger for item in replicas), StepLedger()),
            balance=last.times.forward.balance,
            request_ps=last.host.request_ps,
            limits=self.spec.limits,
            notes=notes,
            expected=expected_error(self.engine.name, self.endpoint.chip),
        )


def serve_request(
    workload: str | Path | ServingSpec,
    topology: str | Path | Fabric | None = None,
    nodes: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> ServeRequest:
    """Return the request of a serving file on a system; by default the file's."""
    spec = (
        workload
        if isinstance(workload, ServingSpec)
        else load_serving(workload, changes)
    )
    name = spec.topology if topology is None else topology
    if not name:
        raise InputError("topology missing in the serving file; set topology")
    count = nodes if nodes is not None or topology is not None else spec.nodes
    return ServeRequest(spec, Setup(name, count))


def load_model(
    workload: str | Path | ServingSpec,
    topology: str | Path | Fabric | None = None,
    nodes: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> ServedModel:
    """Return the served model of a file on a system; by default the file's."""
    request = serve_request(workload, topology, nodes, changes)
    return ServedModel(request.spec, request.setup)


def serve(
    workload: str | Path | ServingSpec,
    topology: str | Path | Fabric | None = None,
    *,
    nodes: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Serving:
    """Serve requests with a model, as ``clusim serve`` does.

    Parameters
    ----------
    workload : str or Path or ServingSpec
        A YAML file, or its content as an object.
    topology : str or Path or Fabric or None
        The system; by default the file's.
    nodes : int or None
        Number of nodes to join.
    changes : mapping or None
        Keys of the file with dots, and their values: ``{"requests.concurrency": 64}``.

    Returns
    -------
    Serving
        `ttft`, `tpot`, `itl` and `latency` [s], `tokens_per_s`, `cache`, `spent`, `verdict`.

    Raises
    ------
    InputError
        An invalid file, or a model or request that does not fit.
    """
    with guard_inputs():
        return load_model(workload, topology, nodes, changes).run()
