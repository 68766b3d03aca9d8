"""The virtual cluster is a real Slurm, and leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.slurm.cluster import VirtualCluster

pytestmark = pytest.mark.slurm


def test_it_has_four_nodes(cluster: VirtualCluster) -> None:
    assert sorted(cluster.ask("sinfo", "-h", "-N", "-o", "%N").split()) == ["node1", "node2", "node3", "node4"]


def test_a_step_runs_on_two_of_them(cluster: VirtualCluster) -> None:
    nodes = cluster.ask("srun", "-N2", "--ntasks-per-node=1", "bash", "-c", "echo $SLURMD_NODENAME").split()
    assert len(set(nodes)) == 2


def test_another_one_beside_it_stops_without_a_trace(cluster: VirtualCluster) -> None:
    other = VirtualCluster(nodes=2)
    try:
        other.start()
        other.ask("sbatch", "--wrap=sleep 100", "-o", "/dev/null")
    finally:
        other.stop()
    assert other.members() == []
    assert not other.folder.exists()
    assert cluster.all_idle()
