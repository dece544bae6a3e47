"""NCCL's environment variables: the syntax of lists, limits, and errors in one line."""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError
from clusim.nccl import Algorithm, Collective, Protocol, parse_assignments, parse_env, parse_version
from clusim.nccl.constants import LATEST, OLDEST, Path, Version
from clusim.nccl.env import allows
from clusim.nccl.transports import allowed_nics


def test_a_list_allows_only_what_it_names() -> None:
    settings = parse_env({"NCCL_ALGO": "ring,TREE"})
    assert allows(settings, Collective.ALLREDUCE, Algorithm.RING) is True
    assert allows(settings, Collective.ALLREDUCE, Algorithm.NVLS) is False
    assert allows(settings, Collective.ALLREDUCE, Protocol.LL) is None


def test_a_caret_forbids_what_it_names() -> None:
    settings = parse_env({"NCCL_ALGO": "^NVLS,NVLSTree"})
    assert allows(settings, Collective.BROADCAST, Algorithm.NVLS) is False
    assert allows(settings, Collective.BROADCAST, Algorithm.RING) is True


def test_lists_per_collective_override_the_one_for_all() -> None:
    settings = parse_env({"NCCL_ALGO": "ring;allreduce:tree,nvls;all_gather:^ring"})
    assert allows(settings, Collective.ALLREDUCE, Algorithm.RING) is False
    assert allows(settings, Collective.ALLREDUCE, Algorithm.TREE) is True
    assert allows(settings, Collective.REDUCESCATTER, Algorithm.RING) is True
    assert allows(settings, Collective.ALLGATHER, Algorithm.RING) is False


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("NCCL_ALGO", "Rnig", "'Rnig' is no algorithm; give tree, ring"),
        ("NCCL_ALGO", "allreduced:ring", "'allreduced' is no collective"),
        ("NCCL_PROTO", "", "empty"),
        ("NCCL_MIN_NCHANNELS", "0", "use 1 to 128"),
        ("NCCL_NTHREADS", "500", "not a multiple of 32"),
        ("NCCL_P2P_LEVEL", "NVSWITCH", "not a distance"),
        ("NCCL_ALGOS", "Ring", "did you mean NCCL_ALGO?"),
        ("NCCL_TOPO_FILE", "x.xml", "use the file as the topology"),
    ],
)
def test_errors_say_what_would_be_right(name: str, value: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_env({name: value})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_minimum_above_maximum_is_refused() -> None:
    with pytest.raises(InputError, match="more than NCCL_MAX_NCHANNELS=4"):
        parse_env({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "4"})


def test_values() -> None:
    words = ["ALGO=Ring", "NCCL_BUFFSIZE=8388608", "nccl_p2p_level=2", "NCCL_DEBUG=INFO"]
    settings = parse_env(parse_assignments(words))
    assert settings.buffsize == 8 << 20
    assert settings.p2p_level is Path.PXB
    assert settings.without_effect == ("NCCL_DEBUG",)
    assert parse_env({"NCCL_MAX_NRINGS": "4"}).max_nchannels == 4
    assert parse_env({"HOME": "/root"}) == parse_env({})


def test_assignments_need_a_value() -> None:
    with pytest.raises(InputError, match="write NAME=VALUE"):
        parse_assignments(["NCCL_ALGO"])


NAMED = {
    "nic0": "mlx5_0",
    "nic1": "mlx5_1",
    "nic2": "mlx5_10",
    "nic3": "mlx5_10:2",
    "nic4": "bnxt_re0",
}


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("", "01234"),
        ("mlx5", "0123"),
        ("mlx5_1", "123"),
        ("=mlx5_1:1", "1"),
        ("mlx5_10:2", "3"),
        ("=mlx5_0,bnxt_re0", "04"),
        ("^mlx5_1", "04"),
        ("^=mlx5_1", "0234"),
        ("^bnxt,mlx5_0", "123"),
        ("nic2", "2"),
        ("mlx5_7", ""),
    ],
)
def test_nics_by_prefix_name_port_and_exclusion(rule: str, allowed: str) -> None:
    found = allowed_nics(rule, [f"n3/{name}" for name in NAMED], NAMED)
    assert found.names == tuple(f"n3/nic{number}" for number in allowed)
    assert not found.note


@pytest.mark.parametrize(
    ("rule", "allowed", "said"),
    [
        ("mlx5_3,mlx5_5", "04", "2 of 8"),
        ("=mlx5_0:1,mlx5_3:1,mlx5_4:1,mlx5_5:1", "0246", "4 of 8"),
        ("mlx5", "01234567", "8 of 8"),
        ("^mlx5_1,mlx5_2", "01234567", "all 8"),
        (",".join(f"mlx5_{n}" for n in range(12)), "01234567", "8 of 8"),
    ],
)
def test_topologies_without_device_names_use_as_many_nics(
    rule: str, allowed: str, said: str
) -> None:
    found = allowed_nics(rule, [f"nic{number}" for number in range(8)], {})
    assert found.names == tuple(f"nic{number}" for number in allowed)
    assert found.note.startswith(f"NCCL_IB_HCA={rule}: ")
    assert said in found.note


def test_versions() -> None:
    assert parse_version("v2.30.7-1") == Version(2, 30, 7)
    assert parse_version("2.21.5+cuda12.1") == Version(2, 21, 5)
    assert parse_version("2.4.6") > OLDEST
    assert parse_version(LATEST) is LATEST
    for wrong in ("2.3", "3.0", "two"):
        with pytest.raises(InputError):
            parse_version(wrong)
