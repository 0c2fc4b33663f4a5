"""Start annotation when Python starts with this folder on its path, as in `tracekit record`.

Another sitecustomize on the path still runs. Without `--calibrate`, a profiler or a ring file,
nothing else happens.
"""

import os
import sys


def _run_the_next() -> None:
    """Run the next sitecustomize on the path, which this one hides; forget this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    this_module = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:  # whoever is importing this one looks for it
        sys.modules.setdefault("sitecustomize", this_module)


def _call(function: str, argument: object) -> None:
    """Call a function of tracekit's annotation package, imported under a unique name."""
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    name = "_tracekit_annotation"
    spec = spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(folder)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    getattr(module, function)(argument)


try:
    if os.environ.get("TRACEKIT_STEP_TIMES"):
        _call("note_steps", os.environ["TRACEKIT_STEP_TIMES"])
    listens = os.environ.get("NVTX_INJECTION64_PATH") or os.environ.get("TRACEKIT_RING")
    if os.environ.get("TRACEKIT_ANNOTATE") and listens:
        _call("prepare", int(os.environ["TRACEKIT_ANNOTATE"]))
except Exception as error:  # noqa: BLE001 - the program runs, whatever becomes of this
    sys.stderr.write(f"tracekit: no annotations ({error!r})\n")
_run_the_next()
