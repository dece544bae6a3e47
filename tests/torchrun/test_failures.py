"""Lines and remedies of errors in programs."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest

from clusim.base.errors import ClusimError, InputError
from clusim.programs.failures import explain_failure, locate, program_line, raised_at


def failure(text: str, **names: object) -> BaseException:
    """Return the error of a program."""
    try:
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__", **names})
    except BaseException as error:
        return error
    raise AssertionError("the program has no error")


def library(name: str, text: str) -> dict[str, object]:
    """Return the functions of a library."""
    names: dict[str, object] = {"__name__": name}
    exec(compile(text, f"{name}.py", "exec"), names)
    return names


def test_an_error_of_a_library_has_the_line_of_its_caller_once() -> None:
    kernels = library("torch.nn", "def run(error):\n    raise error")
    error = failure("\nrun(error)", run=kernels["run"], error=InputError("shape: unknown"))
    assert raised_at(error) == "train.py:2"
    assert isinstance(error, ClusimError)
    for _ in range(2):
        locate(error)
        assert str(error) == "train.py:2: shape: unknown"


def test_a_thread_without_the_program_has_the_line_of_the_main_thread() -> None:
    found: list[str] = []
    names = library(
        "torch.autograd",
        "def node(line, found):\n    found.append(line())\n"
        "def backward(of, *given):\n    thread = of(target=node, args=given)\n"
        "    thread.start()\n    thread.join()",
    )
    given = {"of": threading.Thread, "line": program_line, "found": found}
    code = compile("\n\nbackward(of, line, found)", "train.py", "exec")
    exec(code, {"__name__": "__main__", "backward": names["backward"], **given})
    assert found == ["train.py:3"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("c._cuda_sleep(3)", "torch._C._cuda_sleep of CUDA builds is not simulated; omit the call"),
        ("launch()", "kernels of Triton do not run (no driver); make it an operator"),
        ("raise OSError('CUDA_HOME is not set')", "extensions in CUDA are not compiled"),
    ],
)
def test_code_for_gpus_only_has_a_remedy(program: str, words: str) -> None:
    names = library("triton.runtime.jit", "def launch():\n    raise RuntimeError('no driver')")
    error = failure(f"\n{program}", c=ModuleType("torch._C"), launch=names["launch"])
    assert str(explain_failure(error)).startswith(f"train.py:2: {words}")


@pytest.mark.parametrize("program", ["1 / 0", "c.CUDA_HOME", "import absent_module"])
def test_other_errors_are_the_program_s(program: str) -> None:
    assert explain_failure(failure(program, c=ModuleType("torch.cuda"))) is None
