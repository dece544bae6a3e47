"""``clusim run --algorithm nccl``: what NCCL would run, with its environment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

Clusim = Callable[..., Any]
RUN = ("run", "dgx-h100", "--algorithm", "nccl", "--json")


def ran(clusim: Clusim, *args: str) -> dict[str, Any]:
    """Return the JSON of a run that must succeed."""
    done = clusim(*RUN, *args)
    assert done.code == 0, done.err
    data: dict[str, Any] = json.loads(done.out)
    return data


def test_small_and_large_sizes_run_what_nccl_chooses(clusim: Clusim) -> None:
    small, large = ran(clusim, "--size", "8KiB"), ran(clusim, "--size", "16MiB")
    assert (small["algorithm"], small["protocol"], small["channels"]) == ("ring", "ll", 1)
    assert (large["algorithm"], large["protocol"], large["channels"]) == ("nvls", "simple", 16)


def test_the_environment_and_the_release_decide(clusim: Clusim) -> None:
    data = ran(clusim, "--size", "1MiB", "--env", "NCCL_ALGO=Tree", "--env", "NCCL_PROTO=LL128")
    assert (data["algorithm"], data["protocol"]) == ("tree", "ll128")
    assert ran(clusim, "--size", "16MiB", "--nccl-version", "2.14")["algorithm"] != "nvls"


def test_nccl_takes_channels_and_a_protocol_as_its_variables(clusim: Clusim) -> None:
    size = ("--size", "4MiB", "--env", "NCCL_ALGO=Ring")
    told = ran(clusim, *size, "--channels", "2", "--protocol", "SIMPLE")
    words = ("NCCL_MIN_NCHANNELS=2", "NCCL_MAX_NCHANNELS=2", "NCCL_PROTO=Simple")
    same = ran(clusim, *size, *(part for word in words for part in ("--env", word)))
    assert (told["channels"], told["protocol"]) == (2, "simple")
    assert told["fingerprint"] == same["fingerprint"]
    nvls = ran(clusim, "--size", "16MiB", "--channels", "2")
    assert (nvls["algorithm"], nvls["channels"]) == ("nvls", 2)


@pytest.mark.parametrize(
    ("spelled", "plain"),
    [
        (("-c", "AllGather"), ("--collective", "all_gather")),
        (("--algorithm", "Ring", "--protocol", "LL"), ("--algorithm", "ring", "--protocol", "ll")),
        (("--algorithm", "NCCL", "--protocol", "Simple"), ("--protocol", "simple")),
        (("--dtype", "half"), ("--dtype", "float16")),
    ],
)
def test_words_may_be_spelled_as_others_do(
    clusim: Clusim, spelled: tuple[str, ...], plain: tuple[str, ...]
) -> None:
    small = ("run", "dgx-h100", "--size", "64KiB", "--json")
    one, two = (json.loads(clusim(*small, *words).out) for words in (spelled, plain))
    assert one["fingerprint"] == two["fingerprint"]


def test_data_come_out_right_with_a_root_and_some_of_the_ranks(clusim: Clusim) -> None:
    options = ("--size", "60KiB", "--collective", "broadcast", "--root", "3", "--ranks", "2-5")
    assert ran(clusim, *options, "--verify")["verified"] is True


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--protocol", "ll", "--env", "NCCL_PROTO=Simple"), "are the same setting"),
        (("--channels", "2", "--env", "NCCL_MAX_NCHANNELS=4"), "are the same setting"),
        (("--protocol", "fast"), "'fast': unknown; there are simple"),
        (("--collective", "allredcue"), "did you mean 'allreduce'"),
        (("--algorithm", "ring", "--env", "NCCL_PROTO=LL"), "--algorithm nccl"),
        (("--algorithm", "ring", "--nccl-version", "2.27"), "--algorithm nccl"),
        (("--algorithm", "nccl", "--env", "NCCL_ALGOO=Ring"), "NCCL_ALGO"),
        (("--algorithm", "nccl", "--collective", "barrier"), "barrier"),
        (("--algorithm", "nccl", "--collective", "reduce", "--ranks", "0-3", "--root", "5"), "5"),
        (("--algorithm", "nccl", "--ranks", "2"), "at least two"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    clusim: Clusim, args: tuple[str, ...], says: str
) -> None:
    done = clusim("run", "dgx-h100", "--size", "64KiB", *args)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "explain dgx-a100 --size 64MiB",
        "nccl-tests all_reduce_perf dgx-a100 -b 64K -e 64K --jobs 1 --no-progress",
        "crossover dgx-a100 --size 64KiB --jobs 1 --no-progress",
        "run dgx-a100 --size 64KiB --no-progress",
    ],
)
def test_every_command_reports_obeyed_variables_without_effect(clusim: Clusim, words: str) -> None:
    """The threads of LL128 limit channels of small LL128 plans only; one channel changes every plan."""
    env = "--env NCCL_LL128_NTHREADS=320 --env NCCL_MAX_NCHANNELS=1"
    out = " ".join(clusim(*words.split(), *env.split()).out.split())
    assert "obeyed, without effect on th" in out
    (names,) = re.findall(r"without effect on th(?:is run|ese sizes): ([A-Z0-9_, ]+) \(", out)
    assert names == "NCCL_LL128_NTHREADS"
