"""Put a finished run's network into the package, with its provenance.

    python scripts/ship.py RUN NAME RESULT.json

RESULT.json is what ``recurconv evaluate RUN ... --json`` printed. Writes src/recurconv/weights/NAME.
"""

import json
import shutil
import sys
from pathlib import Path

from recurconv import checkpoint
from recurconv.runs import RunFolder

WEIGHTS = Path(__file__).parent.parent / "src" / "recurconv" / "weights"


def ship(run: RunFolder, name: str, result: Path) -> None:
    """Copy the network and the recipe of ``run``, and note where they come from and what they reach."""
    state = run.load_state()
    if state is None or state["iteration"] < state["iterations"]:
        raise SystemExit(f"ship: {run.path} is not finished")
    evaluation = json.loads(result.read_text(encoding="utf-8"))
    environments = json.loads(run.environment_file.read_text(encoding="utf-8"))
    folder = WEIGHTS / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in (checkpoint.CONFIG, checkpoint.WEIGHTS, run.recipe_file.name):
        shutil.copyfile(run.path / file, folder / file)
    provenance = {
        "recipe": run.recipe().name,
        "iterations": state["iterations"],
        "training_seconds": round(state["seconds"]),
        "trained": environments,
        "result": {key: value for key, value in evaluation.items() if key != "model"},
    }
    checkpoint.write_json(folder / "provenance.json", provenance)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    ship(RunFolder.open(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
