"""Tables of nccl-tests are replayed as their headers say: launches and iterations count in what is predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from clusim_cli.main import run


def table(tmp_path: Path, capsys: pytest.CaptureFixture[str], program: str, flags: str) -> str:
    """Return a file with what nccl-tests would print on a DGX A100."""
    assert run(["nccl-tests", f"{program}_perf", "dgx-a100", *flags.split()]) == 0
    path = tmp_path / "out.txt"
    path.write_text(capsys.readouterr().out)
    return str(path)


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("all_reduce", "-b 8 -e 256K -f 32 -g 8 -n 20"),
        ("all_reduce", "-b 64K -e 64K -n 5"),
        ("all_reduce", "-b 64K -e 64K -m 4 -n 5"),
        ("all_reduce", "-b 64K -e 64K -G 2 -n 5 -g 8"),
        ("all_gather", "-b 64K -e 1M -f 16 -t 8 -n 1 -w 0"),
        ("alltoall", "-b 64K -e 64K -g 8"),
        ("broadcast", "-b 64K -e 4M -f 64 -n 20"),
        ("reduce", "-b 4M -e 4M -n 50"),
    ],
)
def test_a_table_is_predicted_as_it_was_made(
    program: str, flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replay(ReplayRequest((table(tmp_path, capsys, program, flags),), topology="dgx-a100"))
    assert found.calls
    # Tables have four or five digits of a time.
    assert [call.error for call in found.calls] == pytest.approx([0] * len(found.calls), abs=6e-4)
    kept = " ".join(
        word
        for flag, value in zip(flags.split()[::2], flags.split()[1::2], strict=True)
        if flag in ("-g", "-t", "-m", "-n") and (flag == "-n" or value != "1")
        for word in (flag, value)
    )
    (note,) = [note for note in found.notes if "printed by nccl-tests with" in note]
    assert set(kept.split()) <= set(note.replace(",", "").split())


def test_fewer_iterations_take_longer_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = []
    for count in (1, 5, 100):
        name = table(tmp_path, capsys, "all_reduce", f"-b 8K -e 8K -n {count}")
        times.append(replay(ReplayRequest((name,), topology="dgx-a100")).calls[0].time_ps)
    assert times == sorted(times, reverse=True)
    # Start, end and the first launch, once: 10.5 us and a few of the host.
    assert times[0] - times[2] == pytest.approx(12e6, rel=0.4)
