"""Put a finished run's network into the package, with its provenance.

    python scripts/ship.py RUN NAME DATA

Writes src/recurconv/weights/NAME, and what it reaches on the test split of DATA as results/NAME.json, which
``recurconv evaluate NAME --data DATA --split test --json`` gives again, for a denoiser of a range of noise levels with
``--sigma 15 25 50``.
"""

import json
import shutil
import sys
from pathlib import Path

from recurconv import checkpoint, files
from recurconv.evaluation import evaluate
from recurconv.runs import RunFolder

ROOT = Path(__file__).parent.parent
SIGMAS = (15.0, 25.0, 50.0)  # that papers measure, for a denoiser of a range


def ship(run: RunFolder, name: str, data: Path) -> None:
    """Copy the network and the recipe of ``run``, and note where they come from and what they reach."""
    state = run.load_state()
    if state is None or state["iteration"] < state["iterations"]:
        raise SystemExit(f"ship: {run.path} is not finished")
    folder = ROOT / "src" / "recurconv" / "weights" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in (checkpoint.CONFIG, checkpoint.WEIGHTS, run.recipe_file.name):
        shutil.copyfile(run.path / file, folder / file)
    sigmas = SIGMAS if run.recipe().sigmas else None
    result = json.loads(evaluate(name, data, "test", sigma=sigmas).as_json())
    files.write_json(ROOT / "results" / f"{name}.json", result)
    provenance = {
        "recipe": run.recipe().name,
        "iterations": state["iterations"],
        "training_seconds": round(state["seconds"]),
        "trained": run.starts(),
        "result": {**result, "rows": [{k: v for k, v in row.items() if k != "pictures"} for row in result["rows"]]},
    }
    files.write_json(folder / "provenance.json", provenance)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    ship(RunFolder.open(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
