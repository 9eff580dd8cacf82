"""`make peers`: nvidia-modelopt and speculators beside this project, number by number.

Each builds tiny random drafters with its own classes, saves them itself and runs them;
the folders are loaded here, and everything a block computes is compared. They pin older
transformers, so that this runs in an environment of its own and in no other test.
"""

import contextlib
import importlib
import io
import logging
import os
import sys
import tempfile
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PEERS = {"nvidia-modelopt": "modelopt", "speculators": "speculators"}


def main() -> int:
    """Print a line per case; return how many are apart, or could not be compared."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent), str(here.parents[1])]
    return sum(compare(package, module) for package, module in PEERS.items())


def compare(package: str, module: str) -> int:
    """Compare one peer."""
    try:
        print(f"{package} {version(package)}")
        peer = importlib.import_module(f"peers_{module}")
    except (PackageNotFoundError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        print(f"{package} not compared: {type(error).__name__}: {reason}")
        return 1
    from measure import TOLERANCE, difference

    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        cases = peer.cases(Path(folder))
        while True:
            with contextlib.redirect_stdout(io.StringIO()):  # a peer says what it does
                case = next(cases, None)
            if case is None:
                return bad
            apart = difference(case)
            bad += apart > TOLERANCE
            words = "equal" if apart <= TOLERANCE else "APART"
            print(f"  {words}  {apart:.1e}  {case.name}", flush=True)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
