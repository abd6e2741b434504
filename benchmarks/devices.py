"""Writes the devices of instance types from a checkout of Karpenter's AWS provider.

``python -m benchmarks.devices CHECKOUT`` reads ``pkg/providers/drametadata`` there, which has the
devices that the drivers of NVIDIA and of EFA publish on each type, and rewrites the data of
``reconciler/catalog/aws/devices.py``. It fails on anything that it does not know.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, Final

TARGET: Final = Path(__file__).parents[1] / "reconciler/catalog/aws/data/devices.json"
FILES: Final = {"gpu": "zz_generated_gpu_metadata.go", "efa": "zz_generated_efa_metadata.go"}
_FIELDS: Final = {"StringValue": "string", "IntValue": "int", "BoolValue": "bool",
                  "VersionValue": "version"}  # fmt: skip

_TYPE: Final = re.compile(r'^\t"([\w.-]+)": \{$')
_ATTRIBUTE: Final = re.compile(r'^\t{5}"([\w./]+)":\s+\{(\w+): (?:str|int|bool)Ptr\((.+)\)\},$')
_CAPACITY: Final = re.compile(r'^\t{5}"([\w./]+)":\s+\{Value: resource\.MustParse\("(\w+)"\)\},$')
_FRAME: Final = re.compile(
    r"^(\t+[{}]+,?|\t\tCount: \d+,|\t\tDevices: \[\]DRADevice\{|\t{4}(Attributes|Capacity): map.*\{"
    r"|\}|)$"
)


def read_devices(text: str, name: str) -> dict[str, Any]:
    """Return the kinds of devices in a file of the provider, and those of each type.

    Raises:
        SystemExit: the file has another form.
    """
    kinds: dict[str, int] = {}
    types: dict[str, list[int]] = {}
    current: list[int] = []
    device: dict[str, dict[str, Any]] = {}
    body = text[text.index("DeviceMetadata{\n") :].splitlines()[1:]
    for number, line in enumerate(body):
        if found := _TYPE.match(line):
            current = types[found[1]] = []
        elif line == "\t\t\t{":
            device = {"attributes": {}, "capacity": {}}
        elif line == "\t\t\t},":
            key = json.dumps({part: fields for part, fields in device.items() if fields})
            current.append(kinds.setdefault(key, len(kinds)))
        elif found := _CAPACITY.match(line):
            device["capacity"][found[1]] = {"value": found[2]}
        elif found := _ATTRIBUTE.match(line):
            device["attributes"][found[1]] = {_FIELDS[found[2]]: json.loads(found[3])}
        elif line == "}":
            break
        elif not _FRAME.match(line):
            raise SystemExit(f"{name}: line {number} of the table is not known: {line.strip()}")
    return {"kinds": list(kinds), "types": types}


def format_devices(found: dict[str, dict[str, Any]]) -> str:
    """Return the content of the data file, one kind and one type a line."""
    parts = []
    for name, devices in found.items():
        kinds = ",\n".join(devices["kinds"])
        rows = (
            (json.dumps(k), json.dumps(v).replace(" ", "")) for k, v in devices["types"].items()
        )
        types = ",\n".join(f"{name}:{members}" for name, members in rows)
        parts.append(f'"{name}":{{\n"kinds":[\n{kinds}\n],\n"types":{{\n{types}\n}}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Rewrite the data of the devices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    folder = parser.parse_args().checkout / "pkg/providers/drametadata"
    found = {n: read_devices((folder / file).read_text(), file) for n, file in FILES.items()}
    TARGET.write_text(format_devices(found))
    for name, devices in found.items():
        print(f"{name}: {len(devices['types'])} instance types, {len(devices['kinds'])} devices")


if __name__ == "__main__":
    main()
