from __future__ import annotations

from pathlib import Path

import pytest

from clusim.report.page_data import Feed
from support import traces


@pytest.fixture(scope="session")
def collective(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traces.write_collective(tmp_path_factory.mktemp("traces") / "collective.h5")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traces.write_cluster(tmp_path_factory.mktemp("traces") / "cluster.h5")


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traces.write_training(tmp_path_factory.mktemp("traces") / "training.h5")


@pytest.fixture(scope="session")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return traces.write_traffic(tmp_path_factory.mktemp("traces") / "traffic.h5")


@pytest.fixture(scope="session")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of an incast of 24 senders, 16 of them on other nodes, with a policy."""
    return traces.write_incast(tmp_path_factory.mktemp("traces") / "incast.h5")


@pytest.fixture(scope="session")
def feed(training: Path) -> Feed:
    return Feed.open(training)
