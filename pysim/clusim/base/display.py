"""Display of objects: one line at a prompt, a small table in a notebook.

Subclasses of `Shown` implement `summary`; `repr` and the notebook table are derived from it. The code
that draws figures is in packages above those of the objects, so `clusim` registers it by class at import
(`register`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusim.base.errors import InputError, lacking, suggest
from clusim.base.records import dataclass

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

SCREEN_DPI = 120
"""Resolution of a picture in a notebook [dots/inch]."""

Columns = Mapping[str, Any]
"""Lists or arrays of equal length by name; names have units (``busy_ps``, ``rate_Bps``)."""

_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


@dataclass(frozen=True, slots=True)
class Summary:
    """One-line summary of an object.

    Attributes
    ----------
    title : str
        Its name, or its subject.
    values : tuple of str
        Values shown at the prompt, the most important first.
    note : str
        A sentence for notebooks.
    rows : dict of str
        Additional values in notebooks: name -> value.
    """

    title: str
    values: tuple[str, ...] = ()
    note: str = ""
    rows: Mapping[str, str] = field(default_factory=dict)


def columns_of(
    kind: type, rows: Sequence[Any], without: tuple[str, ...] = ()
) -> Columns:
    """Return the fields of `rows`, all objects of the dataclass `kind`, as columns."""
    names = [one.name for one in fields(kind) if one.name not in without]
    return {name: [getattr(row, name) for row in rows] for name in names}


class Shown(ABC):
    """An object with a short `repr` and a table for notebooks."""

    __slots__ = ()

    @abstractmethod
    def summary(self) -> Summary:
        """Return the kind of the object."""

    def __repr__(self) -> str:
        """Return one line: its class, title and values."""
        result = self.summary()
        return f"<{type(self).__name__} {result.title}: {', '.join(result.values)}>"

    def _repr_html_(self) -> str:
        """Return a small table; every text in it is escaped."""
        result = self.summary()
        lines = [f"<b>{escape(type(self).__name__)}</b> {escape(result.title)}"]
        lines += [
            escape(text) for text in (", ".join(result.values), result.note) if text
        ]
        rows = "".join(
            f'<tr><td style="{_CELL}">{escape(name)}</td><td style="{_CELL}">{escape(value)}</td></tr>'
            for name, value in result.rows.items()
        )
        table = f'<table style="margin:4px 0">{rows}</table>' if rows else ""
        return f"<div>{'<br>'.join(lines)}{table}</div>"

    def tables(self) -> Mapping[str, Callable[[], Columns]]:
        """Return the makers of the object's tables, the most useful first."""
        return {}

    def to_dataframe(self, table: str = "") -> DataFrame:
        """Return a table as a pandas DataFrame; by default the first of `tables`.

        Columns are named as in the object, units included (``busy_ps`` [ps], ``rate_Bps`` [bytes/s]).

        Raises
        ------
        InputError
            The object does not have this table; the message lists its tables.
        EnvironmentFailure
            pandas is not installed.
        """
        result = self.tables()
        name = table or next(iter(result), "")
        if name not in result:
            raise InputError(
                f"{type(self).__name__}: has no table {name!r}{suggest(name, result)}"
            )
        try:
            import pandas
        except ModuleNotFoundError:
            raise lacking("to_dataframe", "pandas", "notebook") from None
        return pandas.DataFrame(dict(result[name]()))

    def plot(self, figure: str = "", **look: Any) -> Plot:
        """Draw a figure of the object, by default its main figure.

        Parameters
        ----------
        figure : str
            Name of the figure; an unknown name is an error that lists them.
        **look
            ``width_in`` [inch] of figures without a fixed width, ``measure`` of figures of wires.

        Returns
        -------
        Plot
            A notebook shows it; `Plot.save` writes it.

        Raises
        ------
        InputError
            The object does not have this figure, or its class has no figures.
        EnvironmentFailure
            matplotlib is not installed.
        """
        name = type(self).__name__
        if name not in _painters:
            raise InputError(
                f"{name}: no pictures; there are pictures of {', '.join(_painters)}"
            )
        return Plot(_painters[name]()(self, figure, **look))


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture: shown by notebooks, written by `save`."""

    figure: Figure

    def __repr__(self) -> str:
        """Return its size."""
        width, height = self.figure.get_size_inches()
        return f"<Plot: {width:.1f} x {height:.1f} inches>"

    def _repr_png_(self) -> bytes:
        """Return the picture for a notebook."""
        from io import BytesIO

        out = BytesIO()
        self.figure.savefig(out, format="png", dpi=SCREEN_DPI)
        return out.getvalue()

    def save(self, path: str | Path, dpi: int = 300) -> None:
        """Write the figure in the format of the suffix: png (`dpi` [dots/inch]), svg or pdf."""
        import matplotlib

        from clusim.base.files import replacing

        form = picture_format(path)
        # The same picture is the same file.
        style: Any = {
            "svg.fonttype": "none",
            "svg.hashsalt": "clusim",
            "pdf.fonttype": 42,
        }
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
        with matplotlib.rc_context(style), replacing(path) as out:
            self.figure.savefig(out, format=form, dpi=dpi, metadata=metadata)


def need_matplotlib() -> None:
    """Raise if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise lacking("pictures", "matplotlib", "plot") from None


def picture_format(path: str | Path) -> str:
    """Return the format of a file's suffix: png, svg or pdf."""
    form = Path(path).suffix.lower().removeprefix(".")
    if form not in ("png", "svg", "pdf"):
        raise InputError(f"{path}: pictures are .png, .svg or .pdf")
    return form


Painter = Callable[..., "Figure"]
_painters: dict[str, Callable[[], Painter]] = {}


def register(name: str, load: Callable[[], Painter]) -> None:
    """Register the painter of the class called `name`; `load` is called at the first figure."""
    _painters[name] = load
