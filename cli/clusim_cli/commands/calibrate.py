"""``clusim calibrate``: figures measured on the user's hardware."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from clusim_cli import options
from clusim_cli.outputs import OUTPUT, GuardedGroup
from clusim_cli.params import CHIP, MEASURED, TOPOLOGY


class _SystemGroup(GuardedGroup):
    """Group whose command is ``system`` if no command has its first word."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the words."""
        if args and args[0] not in self.commands:
            args = ["system", *args]
        return super().resolve_command(ctx, args)


@click.group(
    "calibrate",
    cls=_SystemGroup,
    short_help="Fit figures of a system to measurements; measure a GPU.",
)
def command() -> None:
    """Set figures of your hardware, which presets can only guess.

    clusim calibrate SYSTEM FILES is clusim calibrate system SYSTEM FILES.
    """


@command.command("system", short_help="Fit figures of a system to measurements.")
@click.argument("topology", type=TOPOLOGY)
@click.argument("files", nargs=-1, required=True, type=MEASURED)
@options.output(more="The overlay, a topology file for every command.")
@click.option("--move", "most", type=click.IntRange(1, 16), default=4, show_default=True, metavar="N",
              help="Most figures that move.")  # fmt: skip
@options.row_sizes(said="8")
@options.jobs()
@options.as_json("clusim.validation.calibration.result:Calibration")
@options.no_progress()
def system(
    topology: str,
    files: tuple[Path, ...],
    output: str | None,
    most: int,
    sizes: int | None,
    jobs: int | None,
    as_json: bool,
    no_progress: bool,
) -> None:
    """Fit a few figures of TOPOLOGY to measured collectives in FILES: outputs of nccl-tests, tables of clusim validate,
    dumps of NCCL's Inspector.

    Only calibrated and assumed figures move, by their priors. Errors are printed before and after, also of omitted
    rows.
    """
    from clusim.base.errors import InputError
    from clusim.base.files import check_place
    from clusim.validation.calibration.api import calibrate
    from clusim.validation.calibration.rows import SIZES
    from clusim_cli.progress import shown_progress

    if output is not None:
        check_place(output)
    with shown_progress(not no_progress, None) as bar:
        calibration = calibrate(
            topology,
            files,
            figures=most,
            sizes=sizes or SIZES,
            jobs=jobs,
            notify=bar.begins,
        )
    if output is not None and not calibration.figures:
        raise InputError(
            f"{output}: not written: no figure of {topology} fits these rows better"
        )
    if output is not None:
        calibration.write(Path(output))
    click.echo(
        json.dumps(calibration.to_json())
        if as_json
        else "\n".join(calibration.lines())
    )


@command.command("gpu", short_help="Measure the kernels of a GPU.")
@options.output(more="The file of kernels; kernels.json by default.")
@click.option("--measurements", "record", type=OUTPUT, default=None, metavar="FILE",
              help="Also write the raw measurements.")  # fmt: skip
@click.option("--from", "source", default=None, metavar="RECORD",
              help="Use a file of --measurements, of this or another computer, instead of measuring.")  # fmt: skip
@click.option("--preset", "chip", type=CHIP, default=None, metavar="NAME",
              help="The nearest preset, if no chip has the GPU's product name.")  # fmt: skip
@options.as_json("clusim_cli.forms:CalibrateJson")
def gpu(
    output: str | None,
    record: str | None,
    source: str | None,
    chip: str | None,
    as_json: bool,
) -> None:
    """Measure launches, operators, matrix products, attention, copies and memory of this computer's GPU (some minutes;
    needs PyTorch: pip install 'clusim-net[gpu]'), and write a file of kernels, marked calibrated.

    A workload uses it with 'hardware: {kernels: FILE}', a topology with 'chips: {NAME: {base: CHIP, kernels: FILE}}'.
    """
    from clusim.base.errors import InputError
    from clusim.base.files import write_text
    from clusim.hardware.kernels.calibrate import check_record, measure, overlay
    from clusim.hardware.kernels.calibrate.probe import Torch

    output = output or "kernels.json"
    for path in (output, record):
        if path and not Path(path).parent.is_dir():
            raise InputError(f"{path}: cannot be written: no such directory")
    if source is None:
        data = measure(
            Torch(), lambda text: click.echo(f"measuring {text}", err=True)
        )
    else:
        data = _read_record(source)
    data = check_record(data, source or "the measurement")
    if record:
        write_text(record, json.dumps(data, indent=1) + "\n")
    result = overlay(data, chip)
    write_text(
        output, json.dumps(result, indent=1) + "\n", [source] if source else []
    )
    if as_json:
        said = {
            key: result[key]
            for key in ("chip", "architecture", "mark", "source", "figures")
        }
        click.echo(json.dumps({**said, "file": str(output)}))
        return
    figures = result["figures"]
    met = ", ".join(
        f"{row['kind']} {row['fitted']['form_mean_abs_pct']:.1f}%"
        for row in result["products"]
    )
    click.echo(
        f"{output}: kernels of {result['chip']} (calibrated): {len(data['products'])} products"
        f" (deviation of the form: {met}),"
        f" {len(data['attention'])} of attention; memory {figures['memory_efficiency']:.1%} of its rate,"
        f" {figures['sustained']:.1%} of the clock in a long run, kernels {figures['kernel_floor_us']:.2f} us at least"
    )
    click.echo(
        f"use it: 'hardware: {{kernels: {output}}}' in a workload,"
        f" or 'chips: {{mine: {{base: {result['chip']}, kernels: {output}}}}}' in a topology"
    )


def _read_record(source: str) -> Any:
    """Return the values of a record; an error names the file."""
    from clusim.base.errors import InputError
    from clusim.base.limits import json_problem

    try:
        return json.loads(Path(source).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        message = f"{source}: cannot be read as a record: {json_problem(error)}"
        raise InputError(message) from error
