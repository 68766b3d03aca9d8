"""The cluster of the Slurm tests, and a loud line where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import VirtualCluster, missing_programs

REQUIRE = "DRAFTYARD_REQUIRE_SLURM"
_skipped: list[str] = []


@pytest.fixture(scope="session")
def cluster() -> Iterator[VirtualCluster]:
    """Four nodes of a real Slurm; SLURM_CONF points there as long as it lives."""
    missing = missing_programs()
    if missing:
        why = f"no Slurm on this machine ({', '.join(missing)} missing): apt-get install slurm-wlm munge"
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{REQUIRE}=1 and {why}", pytrace=False)
        _skipped.append(why)
        pytest.skip(why)
    cluster = VirtualCluster(nodes=4)
    with pytest.MonkeyPatch.context() as patch:
        try:
            cluster.start()
            patch.setenv("SLURM_CONF", str(cluster.conf))
            yield cluster
        finally:
            cluster.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped:
        terminalreporter.section("THE SLURM TESTS WERE SKIPPED", sep="!", red=True, bold=True)
        terminalreporter.write_line(_skipped[0])
