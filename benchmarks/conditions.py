"""Check conditional generation and error messages: `python benchmarks/conditions.py [MODEL] [--num N] [--json]`.

Everything goes through the command line: 1,000 samples per condition, every one of which is checked; the same seeds in
other batches; and a list of user errors, each of which must end with exit code 2 and one line that names the error.
Then prompts: bits per character of held-out texts, of their first halves continued by the model, and of the model's own
texts, all of them bounds of whole sequences. MODEL has the alphabet of text8; the default is the pretrained one. Takes
about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import rdlm
from rdlm.api.publish import CONFIG
from rdlm.display.text_table import print_json, table
from rdlm.train.run import held_out, load_corpus

INFILL = "the ____ of the ________ was born in ____"
DIGITS = "(one|two|three|four|five|six|seven|eight|nine|zero| )+"
COLUMNS = ("what", "seen", "of", "note")
Row = dict[str, object]


def command(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rdlm", "generate", *options], capture_output=True, text=True)


def texts(*options: str) -> list[str]:
    made = command(*options, "--json")
    if made.returncode:
        raise SystemExit(made.stderr)
    return [sample["text"] for sample in json.loads(made.stdout)["samples"]]


def conditions(model: str, num: int) -> Iterator[Row]:
    known = re.compile(INFILL.replace("_", "[a-z ]"))
    checks: dict[str, tuple[Sequence[str], Callable[[str], bool]]] = {
        "infill: every known character is kept": (
            ("--infill", INFILL, "--num", str(num)),
            lambda text: bool(known.fullmatch(text)),
        ),
        "regex: the whole text matches": (
            ("--regex", DIGITS, "--length", "24", "--num", str(num)),
            lambda text: bool(re.fullmatch(DIGITS, text)),
        ),
        "ban, prompt and suffix: none of the banned characters between them": (
            ("--ban", "etz", "--prompt", "ban ", "--suffix", " in", "--length", "32", "--num", str(num)),
            lambda text: text.startswith("ban ") and text.endswith(" in") and not set("etz") & set(text[4:-3]),
        ),
        "a text of 4,096 characters in one call": (
            ("--length", "4096", "--prompt", "the history of "),
            lambda text: len(text) == 4096 and text.startswith("the history of "),
        ),
    }
    for what, (options, holds) in checks.items():
        made = texts(model, "--steps", "8", *options)
        yield {"what": what, "seen": sum(map(holds, made)), "of": len(made), "note": f"{len(set(made))} different"}


def seeds(model: str) -> Iterator[Row]:
    for solver in ("mixture", "drift", "heun", "corrector", "deterministic", "euler"):
        for window in ((), ("--window", "1")):
            options = (model, "--steps", "12", "--solver", solver, *window)
            whole = texts(*options, "--num", "4", "--seed", "3")
            halves = texts(*options, "--num", "2", "--seed", "3") + texts(*options, "--num", "2", "--seed", "5")
            alike = [whole == halves, whole == texts(*options, "--num", "4", "--seed", "3", "--batch", "1")]
            words = "all tokens together" if window else "the model's token schedule"
            yield {"what": f"same seed: {solver}, {words}", "seen": sum(alike), "of": 2, "note": "halves, batch of 1"}


def mistakes(model: str, folder: Path) -> Iterator[Row]:
    other = folder / "other"
    rdlm.load(model).save(other)
    config = json.loads((other / CONFIG).read_text())
    (other / CONFIG).write_text(json.dumps(config | {"format": 999}))
    tried: dict[str, tuple[str, ...]] = {
        "a prompt longer than the model": ("--prompt", "a" * 200, "--length", "128"),
        "a character outside of the vocabulary in a prompt": ("--prompt", "Häuser"),
        "the same in an infill": ("--infill", "the ____ OF"),
        "the same in a ban": ("--ban", "Q"),
        "an infill without a gap": ("--infill", "the end of"),
        "a regex that nothing of that length matches": ("--regex", "ab", "--length", "5"),
        "a regex that nothing with that prompt matches": ("--regex", "[ab]+", "--prompt", "c", "--length", "5"),
        "an invalid regex": ("--regex", "(ab"),
        "a banned prompt": ("--ban", "t", "--prompt", "the "),
        "an infill beside a prompt": ("--infill", "a_", "--prompt", "b"),
        "0 steps": ("--steps", "0"),
        "0 samples": ("--num", "0"),
        "temperature 0": ("--temperature", "0"),
        "top-p above 1": ("--top-p", "2"),
        "guidance without a class": ("--guidance", "2"),
        "a class for a model without classes": ("--label", "3"),
        "an unknown solver": ("--solver", "eulr"),
    }
    runs = {what: command(model, *options) for what, options in tried.items()}
    runs["a missing model"] = command(str(folder / "none"))
    runs["a model of another format"] = command(str(other))
    for what, done in runs.items():
        lines = [line.strip("│ ") for line in done.stderr.splitlines() if any(map(str.isalpha, line))]
        clear = done.returncode == 2 and "Traceback" not in done.stderr
        yield {"what": what, "seen": int(clear), "of": 1, "note": lines[-1][:100] if lines else ""}


def prompts(name: str, count: int = 48) -> Iterator[Row]:
    model = rdlm.load(name)
    length, half = model.length, model.length // 2
    ids = held_out(load_corpus(model.config), length, 2 * count, 0).ids.tolist()
    real = [model.tokenizer.decode(row) for row in ids]
    ends = [model.generate(prompt=text[:half], length=length, seed=i) for i, text in enumerate(real[:count])]
    continued = [made.samples[0].text for made in ends]
    own = [sample.text for sample in model.generate(num=count).samples]
    for what, some in (
        ("held-out texts", real[:count]),
        ("others of them", real[count:]),
        ("first halves, continued", continued),
        ("the model's own", own),
    ):
        bits = torch.tensor([score.bits_per_char for score in model.score(some)])
        margin = 1.96 * float(bits.std()) / len(bits) ** 0.5
        yield {
            "what": f"bits per character: {what}",
            "seen": round(float(bits.mean()), 3),
            "of": "",
            "note": f"± {margin:.3f}, {len(bits)} texts of {length}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="text8")
    parser.add_argument("--num", type=int, default=1000, help="samples for each condition")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows: list[Any] = [
            *conditions(arguments.model, arguments.num),
            *seeds(arguments.model),
            *mistakes(arguments.model, Path(folder)),
            *prompts(arguments.model),
        ]
    if arguments.json:
        print_json({"rows": rows})
    else:
        print(table(rows, COLUMNS))
    sys.exit(any(isinstance(row["of"], int) and row["seen"] != row["of"] for row in rows))


if __name__ == "__main__":
    main()
