"""Write ``csrc/ranges.h``, the C engine's copy of ``clusim.engine.ranges``.

    python csrc/bindings/write_ranges.py

A test compares the file with `text`.
"""

from __future__ import annotations

import re
from pathlib import Path

from clusim.engine import ranges
from clusim.engine.abi import TABLES

CSRC = Path(__file__).resolve().parents[1]
TARGET = CSRC / "ranges.h"

HEAD = """\
/* ranges.h - legal ranges of what the engine computes with. Written from clusim/engine/ranges.py by
 * bindings/write_ranges.py; a test compares the two. */
#ifndef CLUSIM_RANGES_H
#define CLUSIM_RANGES_H

#include <stdint.h>

#define RANGE_TIME_END ((int64_t)1 << {time})        /* no time of a run reaches this [ps] */
#define RANGE_DURATION_END ((int64_t)1 << {duration})    /* durations and starts in an image [ps] */
#define RANGE_LATENCY_END ((int64_t)1 << {latency})     /* latencies and timers in an image [ps] */
#define RANGE_PACKETS_END (UINT64_C(1) << {packets})    /* packets or bursts of a transfer */
#define RANGE_WIRE_BYTES_END (UINT64_C(1) << {wire_bytes}) /* a packet or burst on a wire [bytes] */
#define RANGE_OFFSET_END (UINT64_C(1) << {offset})     /* places of chunks in a buffer [bytes] */
#define RANGE_SLICES_END (UINT64_C(1) << {slices})     /* slices of an instance */
#define RANGE_OWED_256_END (UINT64_C(1) << {owed})   /* control bytes owed by a wire [1/256 byte] */
#define RANGE_SLOW_LEAST {slow_least}
#define RANGE_SLOW_MOST {slow}
#define RANGE_NVC_LEAST {least}
#define RANGE_NVC_MOST {most}

"""


def _structs() -> dict[str, str]:
    """Return the C type of a row of every table, from the header."""
    header = (CSRC / "include" / "clusim_image.h").read_text(encoding="utf-8")
    return {
        name: ctype for ctype, name in re.findall(r"const (\w+) \*(\w+);", header)
    }


def _field(name: str, ctype: str, field: str, legal: ranges.Range) -> str:
    dtype = TABLES[name]
    one = dtype
    if field and dtype.fields is not None:
        one = dtype.fields[field][0]
    base, shape = one.subdtype or (one, (1,))
    what = f"F({name}, {ctype}, {field}" if field else f"V({name}, {ctype}"
    flags = "NONE_TOO" if legal.none else "END_TOO" if legal.end else "0"
    sign = "SIGNED" if base.kind == "i" else "PLAIN"
    limits = f"INT64_C({legal.lo}), UINT64_C({legal.hi})"
    size = f"{base.itemsize}, {shape[0]}, {sign}"
    return f"    {what}, {size}, {limits}, {legal.into or 'nothing'}, {flags}) \\"


def _power(number: int) -> int:
    if number & (number - 1):
        raise ValueError(f"{number} is no power of 2")
    return number.bit_length() - 1


def text() -> str:
    """Return what the header should hold."""
    structs = _structs()
    lines = [
        HEAD.format(
            time=_power(ranges.TIME_END_PS),
            duration=_power(ranges.DURATION_END_PS),
            latency=_power(ranges.LATENCY_END_PS),
            packets=_power(ranges.PACKETS_END),
            wire_bytes=_power(ranges.WIRE_BYTES_END),
            offset=_power(ranges.OFFSET_END_BYTES),
            slices=_power(ranges.SLICES_END),
            owed=_power(ranges.OWED_256_END),
            slow_least=ranges.RANGES["endpoints"]["slow_1024"].lo,
            slow=ranges.RANGES["endpoints"]["slow_1024"].hi,
            least=ranges.NVC[0],
            most=ranges.NVC[1],
        ),
        "/* clang-format off */\n\n",
        "/* T(table, least rows, most rows) */\n",
        "#define RANGE_TABLES(T) \\\n",
    ]
    for name in ranges.TABLES:
        lo, hi = ranges.ROWS[name]
        lines.append(f"    T({name}, {lo}, UINT64_C({hi})) \\\n")
    lines.append("\n/* O(offsets, table they cut) */\n#define RANGE_OFFSETS(O) \\\n")
    lines += [f"    O({name}, {cut}) \\\n" for name, cut in ranges.OFFSETS.items()]
    lines.append(
        "\n/* F(table, struct, member, bytes, elements, sign, lowest, highest, points into, flag);"
        "\n * V: of tables of plain numbers, without a member. */\n#define RANGE_FIELDS(F, V) \\\n"
    )
    for name in ranges.TABLES:
        for field, legal in ranges.RANGES[name].items():
            lines.append(_field(name, structs[name], field, legal) + "\n")
    lines.append("\n/* clang-format on */\n\n#endif\n")
    return "".join(lines).replace(
        " \\\n\n", "\n\n"
    )  # the last line of a macro has no continuation


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
