"""Put a finished run's network into the package, with its provenance.

    python scripts/ship.py RUN NAME DATA

Writes src/recurconv/weights/NAME, and what it reaches on the test split of DATA as results/NAME.json, which
``recurconv evaluate NAME --data DATA --split test --json`` gives again, for a denoiser of a range of noise levels with
``--sigma 15 25 50``. The provenance of a run that started from another network holds that one's, too.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from recurconv import checkpoint, files, loading, recipes
from recurconv.evaluation import evaluate
from recurconv.runs import RunFolder

ROOT = Path(__file__).parent.parent
PROVENANCE = "provenance.json"
WORDS = ("summary", "reaches", "takes")  # of a recipe
SIGMAS = (15.0, 25.0, 50.0)  # that papers measure, for a denoiser of a range


def ship(run: RunFolder, name: str, data: Path) -> None:
    """Copy the network and the recipe of ``run``, and note where they come from and what they reach."""
    state = run.load_state()
    if state is None or state["iteration"] < state["iterations"]:
        raise SystemExit(f"ship: {run.path} is not finished")
    folder = ROOT / "src" / "recurconv" / "weights" / name
    history = training(run)  # before the weights that it may have started from are replaced
    folder.mkdir(parents=True, exist_ok=True)
    for file in (checkpoint.CONFIG, checkpoint.WEIGHTS, run.recipe_file.name):
        shutil.copyfile(run.path / file, folder / file)
    sigmas = SIGMAS if run.recipe().sigmas else None
    result = json.loads(evaluate(name, data, "test", sigma=sigmas).as_json())
    files.write_json(ROOT / "results" / f"{name}.json", result)
    provenance = {
        **history,
        "result": {**result, "rows": [{k: v for k, v in row.items() if k != "pictures"} for row in result["rows"]]},
    }
    files.write_json(folder / PROVENANCE, provenance)


def training(run: RunFolder) -> dict[str, Any]:
    """What a run did, where and when; and the same of the network that it started from."""
    state, recipe = run.load_state(), run.recipe()
    assert state is not None
    usual = vars(recipes.get(recipe.name))
    done = {
        "recipe": recipe.name,
        "settings": {key: value for key, value in vars(recipe).items() if value != usual[key] and key not in WORDS},
        "iterations": state["iterations"],
        "training_seconds": round(state["seconds"]),
        "trained": run.starts(),
    }
    if not recipe.init:
        return done
    source = loading.find(recipe.init)
    if not (source / PROVENANCE).is_file():
        return {**done, "started_from": training(RunFolder(source))}
    before = json.loads((source / PROVENANCE).read_text(encoding="utf-8"))
    del before["result"]
    return {**done, "started_from": {"weights_of_commit": commit_of(source), **before}}


def commit_of(path: Path) -> str:
    """The last commit that changed a folder."""
    command = ["git", "log", "-1", "--format=%h", "--", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    ship(RunFolder.open(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
