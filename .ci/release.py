"""Build the wheel of a release for Linux on x86-64, which needs no compiler and no LLVM.

    python .ci/release.py FOLDER [VERSION]

The wheel that pip builds holds the machine code of the loops as LLVM takes it. Here it is linked
into one library of the system's, by the C compiler, so that Numba and LLVM (208 MB) are left to the
extra `compiler`. Without VERSION it is that of git's tag.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOOPS, LIBRARY, INDEX = "tracekit/loops/", "loops.so", "loops.json"
PLATFORM = "manylinux2014_x86_64"
"""Linked code calls three functions of any libc."""


def main() -> int:
    """Run the script."""
    out = Path(sys.argv[1]).absolute()
    version = {"SETUPTOOLS_SCM_PRETEND_VERSION": sys.argv[2]} if len(sys.argv) > 2 else {}  # noqa: PLR2004
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place),
                *("--config-settings", "loops=yes", ROOT),
            ],
            check=True,
            env={**os.environ, **version},
        )
        [built] = Path(place).glob("*.whl")
        print(release(built, out))
    return 0


def release(built: Path, out: Path) -> Path:
    """Write the wheel of a release, made of one that pip has built; return its path."""
    with zipfile.ZipFile(built) as wheel:
        files = {each: wheel.read(each) for each in wheel.namelist()}
    loops = {name: files.pop(name) for name in list(files) if name.startswith(LOOPS)}
    if not loops:
        raise SystemExit(f"{built.name} holds no compiled loops: see what its build said")
    files |= linked(loops)
    [record] = (name for name in files if name.endswith(".dist-info/RECORD"))
    folder = record.removesuffix("RECORD")
    files[f"{folder}METADATA"] = without_compiler(files[f"{folder}METADATA"].decode()).encode()
    tags = files[f"{folder}WHEEL"].decode().replace("py3-none-any", f"py3-none-{PLATFORM}")
    files[f"{folder}WHEEL"] = tags.replace("Purelib: true", "Purelib: false").encode()
    del files[record]
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    out.mkdir(parents=True, exist_ok=True)
    path = out / built.name.replace("-any.whl", f"-{PLATFORM}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return path


def linked(loops: dict[str, bytes]) -> dict[str, bytes]:
    """Return the code of loops as one library, and the index of what is in it."""
    index, codes = {}, {}
    for path, data in loops.items():
        head, _, code = data[hashlib.sha256().digest_size :].partition(b"\n")
        returns, _, symbol = head.decode().partition(" ")
        index[Path(path).name] = symbol, returns == "1"
        codes[symbol] = code
    if len(codes) < len(loops):
        raise SystemExit("two loops have one symbol")
    with tempfile.TemporaryDirectory() as place:
        for number, code in enumerate(codes.values()):
            (Path(place) / f"{number}.o").write_bytes(code)
        library = Path(place) / LIBRARY
        objects = sorted(Path(place).glob("*.o"))
        # Such code has addresses in it, of which the linker warns.
        command = ["cc", "-shared", "-nostdlib", "-s", "-Wl,-z,noexecstack", "-Wl,-z,notext"]
        done = subprocess.run([*command, "-o", library, *objects], check=False, capture_output=True)
        if done.returncode:
            raise SystemExit(done.stderr.decode())
        return {
            LOOPS + LIBRARY: library.read_bytes(),
            LOOPS + INDEX: json.dumps(index, sort_keys=True, indent=0).encode(),
        }


def without_compiler(metadata: str) -> str:
    """Return what a wheel says of itself with Numba and LLVM as an extra."""
    head, gap, text = metadata.partition("\n\n")
    head = re.sub(
        r"^(Requires-Dist: (?:llvmlite|numba)\b[^;\n]*)$",
        r"\1; extra == 'compiler'",
        head,
        flags=re.MULTILINE,
    )
    return f"{head}\nProvides-Extra: compiler{gap}{text}"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main())
