"""Bits per dimension of image models and of lossless codecs on the same test images.

    python -m experiments.images cifar10 --minutes 8          # all methods on one core: about an hour; it continues
    python -m experiments.images cifar10 --run RUN            # the orders of a run that `rdlm train` made
    python -m experiments.images cifar10 --codecs             # the anchors; JPEG XL needs `pip install imagecodecs`
    python -m experiments.images cifar10 --table --csv docs/data/images-cifar10.csv
    python -m experiments.images cifar10 --run RUN --pictures docs/figures

All methods have the network of the preset `cifar10-small` or `mnist-small` (the autoregressive one is causal, of half
the width) and the same minutes of processor time of one core; the learning rate decays within them. Numbers are upper
bounds, exact for the autoregressive method and sizes of files for codecs.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.changes import Change, changed
from experiments.trial import commit, write_csv
from rdlm import methods
from rdlm.api import language_model
from rdlm.api.decoding import sequence_posterior
from rdlm.api.generate import generate
from rdlm.api.language_model import LanguageModel
from rdlm.api.output import grid
from rdlm.config import MethodName, RunConfig, SamplingOptions
from rdlm.data.batch import Batch
from rdlm.data.evidence import from_levels
from rdlm.data.image import encode_png
from rdlm.data.store import Corpus
from rdlm.display.text_table import table
from rdlm.evaluate.evaluate import held_out_sequences
from rdlm.methods.bound import Setting, measure_bound, repeated_bound
from rdlm.presets import preset
from rdlm.process.order import named_schedule
from rdlm.random import generator_of
from rdlm.storage.files import write_atomic
from rdlm.train.loop import accumulate, update
from rdlm.train.parallel import team
from rdlm.train.run import load_corpus, open_run

IMAGES = 2000
"""Test images on which everything is measured."""

ERASURE: dict[str, Any] = {"asynchronous": 1.0, "mixed": 0.0}
ROWS: dict[str, tuple[MethodName, Change]] = {
    "ours": ("rdlm", {}),
    "ours, erasure only": ("rdlm", {"objective": ERASURE}),
    "masked": ("mdlm", {}),
    "autoregressive": ("autoregressive", {"model": {"width": 64, "layers": 6}}),
    "D3PM Gauss": ("d3pm", {"d3pm": {"matrix": "gauss"}}),
}
"""Method and changes of the preset, by row."""

ORDERS = (("random", 16), ("random", 64), ("random", 256), ("synchronous", 64), ("synchronous", 256))
"""Orders and network calls for the bounds of RDLM."""

CALLS = {"masked": 256, "D3PM Gauss": 1000, "autoregressive": 0}


def configuration(data: str, row: str, seed: int) -> RunConfig:
    """Return the configuration of a row."""
    method, change = ROWS[row]
    config = changed(preset(f"{data}-small"), change)
    return replace(config, method=method, training=replace(config.training, seed=seed))


def train_for(config: RunConfig, folder: Path, minutes: float) -> None:
    """Train for so many minutes of processor time, with the number of steps by that of the first ones; resume."""
    note = folder.with_suffix(".json")
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        steps = max(2, int(60 * minutes / seconds_per_step(config, folder.with_suffix(".pace"))))
        write_atomic(note, json.dumps({"steps": steps, "minutes": minutes, "commit": commit()}))
    steps = json.loads(note.read_text(encoding="utf-8"))["steps"]
    training = replace(config.training, steps=steps, warmup=min(config.training.warmup, steps // 10))
    with team("cpu") as members, open_run(replace(config, training=training), folder, members, methods.build) as run:
        run.network.train()
        while run.counters.step < steps:
            update(run, *accumulate(run))
            run.counters.step += 1
            if run.counters.step % 250 == 0:
                print(f"{folder.name}: {run.counters.step} of {steps} steps", flush=True)
                run.save()
        run.save()


def seconds_per_step(config: RunConfig, folder: Path) -> float:
    """Return the mean processor time of a few steps of a temporary run."""
    with team("cpu") as members, open_run(config, folder, members, methods.build) as run:
        run.network.train()
        times = []
        for _ in range(60):  # the first ones make tables and measure the information
            began = time.process_time()
            update(run, *accumulate(run))
            run.counters.step += 1
            times.append(time.process_time() - began)
    return sum(times[30:]) / len(times[30:])


# -- measurement ----------------------------------------------------------------------------------


def compared_images(corpus: Corpus, seed: int = 0, count: int = IMAGES) -> Batch:
    """Return the test images of the table, chosen by a seed."""
    return held_out_sequences(corpus, "test", corpus.length, count, seed)


def measured(model: LanguageModel, row: str, batch: Batch, evaluations: int) -> Iterator[dict[str, Any]]:
    """Yield the bounds of a model in bits per dimension: in several orders, or in the method's own."""
    unit = batch.ids.shape[1] * math.log(2)
    if model.config.method != "rdlm":
        calls = CALLS[row] or batch.ids.shape[1]
        found = repeated_bound(model.method, batch[slice(0, evaluations // 8)], calls, 0, most=8)
        yield {"calls": calls, "order": "", "bits": found.mean / unit, "margin": 1.96 * found.stderr / unit}
        return
    for order, asked in ORDERS:
        schedule, calls = named_schedule(order, asked, batch.ids.shape[1])  # type: ignore[arg-type]
        setting = Setting(calls, token_schedule=None if order == "synchronous" else schedule)
        with torch.no_grad():
            total = measure_bound(model.rdlm, batch, setting, evaluations, generator_of("images", calls)).total
        yield {"calls": calls, "order": order, "bits": total.value / unit, "margin": total.margin / unit}


def measure(row: str, folder: Path, corpus: Corpus, evaluations: int, out: Path, note: Mapping[str, Any]) -> None:
    """Write the bounds of a run, unless they have been measured."""
    path = out / f"{folder.name}.bounds.json"
    if path.exists():
        return
    model, batch = language_model.load(folder), compared_images(corpus)
    seconds = json.loads((folder.with_suffix(".json")).read_text()) if folder.with_suffix(".json").exists() else {}
    rows = [{"name": row, **found} for found in measured(model, row, batch, evaluations)]
    about = {"steps": model.config.training.steps, "seed": model.config.training.seed, **seconds, **note}
    write_atomic(path, json.dumps([{**found, **about} for found in rows], indent=1))


# -- codecs -----------------------------------------------------------------------------------------


def codecs() -> dict[str, Callable[[NDArray[np.uint8]], int]]:
    """Return the size in bytes of an image [height, width, channels] under every codec that is installed."""
    from PIL import Image

    def pillow(pixels: NDArray[np.uint8], **options: Any) -> int:
        buffer = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, **options)
        return buffer.tell()

    found: dict[str, Callable[[NDArray[np.uint8]], int]] = {
        "zlib": lambda pixels: len(zlib.compress(pixels.tobytes(), 9)),
        "PNG": lambda pixels: pillow(pixels, format="png", optimize=True),
        "WebP": lambda pixels: pillow(pixels, format="webp", lossless=True, quality=100, method=6),
    }
    try:
        import imagecodecs  # type: ignore[import-not-found]
    except ImportError:
        print("JPEG XL is left out: pip install imagecodecs")
        return found
    return {**found, "JPEG XL": lambda pixels: len(imagecodecs.jpegxl_encode(pixels, lossless=True, effort=7))}


def measured_codecs(corpus: Corpus, count: int = IMAGES) -> list[dict[str, Any]]:
    """Return the bits per dimension of every codec: each image as a file, and all of them as one sheet."""
    assert corpus.image is not None
    pixels = compared_images(corpus, count=count).ids.numpy().astype(np.uint8).reshape(-1, *corpus.image)
    side = math.isqrt(len(pixels))
    height, width, channels = corpus.image
    sheet = pixels[: side * side].reshape(side, side, height, width, channels)
    whole = sheet.transpose(0, 2, 1, 3, 4).reshape(side * height, side * width, channels)
    rows = []
    for name, size in codecs().items():
        bits = np.array([8 * size(one) / one.size for one in pixels])
        margin = float(1.96 * bits.std() / math.sqrt(len(bits)))
        one = 8 * size(np.ascontiguousarray(whole)) / whole.size
        for form, value, error in (("a file each", float(bits.mean()), margin), ("one sheet", one, 0.0)):
            rows.append({"name": name, "order": form, "bits": value, "margin": error, "commit": commit()})
    return rows


# -- pictures ---------------------------------------------------------------------------------------


def pictures(model: LanguageModel, corpus: Corpus, folder: Path, steps: int = 256) -> None:
    """Write grids of samples, and of test images: given with noise, restored; with a missing half, completed."""
    folder.mkdir(parents=True, exist_ok=True)
    shape, name = corpus.image, corpus.name
    assert shape is not None
    drawn = generate(model, SamplingOptions(num=16, steps=steps, order="random"))
    samples = [np.array(one.tokens, np.uint8).reshape(shape) for one in drawn.samples]
    write_atomic(folder / f"{name}-samples.png", encode_png(grid(samples)))
    batch = compared_images(corpus, count=4)
    for kind in ("noise", "half"):
        rows = [picture for ids in batch.ids for picture in restored(model, ids, shape, kind, steps)]
        write_atomic(folder / f"{name}-{kind}.png", encode_png(grid(rows)))


def restored(
    model: LanguageModel, ids: torch.Tensor, shape: tuple[int, int, int], kind: str, steps: int
) -> list[NDArray[np.uint8]]:
    """Return an image, what was given of it, the mean of its posterior, and a sample of it."""
    generator, size = generator_of("pictures", int(ids.sum())), model.tokenizer.size
    if kind == "noise":
        noise = 0.1 * (size - 1)
        given = ids + noise * torch.randn(ids.shape, generator=generator)
        evidence = from_levels(given.double(), size, noise)
    else:
        lower = torch.arange(len(ids)) >= len(ids) // 2
        evidence = from_levels(ids.double(), size, 1e-2)
        evidence[lower] = 0.0
        given = torch.where(lower, (size - 1) / 2, ids.double())
    posterior, drawn = sequence_posterior(model, evidence, samples=1, steps=steps, order="random")
    mean = posterior.double() @ torch.arange(size, dtype=torch.float64)
    levels = (ids.double(), given.double(), mean, drawn[0].double())
    return [x.round().clamp(0, size - 1).numpy().astype(np.uint8).reshape(shape) for x in levels]


# -- command ----------------------------------------------------------------------------------------


def collected(out: Path) -> list[dict[str, Any]]:
    """Return all rows that have been measured, the best first."""
    rows = [row for path in sorted(out.glob("*.bounds.json")) for row in json.loads(path.read_text())]
    names = ("name", "order", "calls", "bits", "low", "high", "minutes", "steps", "seed", "commit")
    found = []
    for row in sorted(rows, key=lambda row: float(row["bits"])):
        low, high = row["bits"] - row["margin"], row["bits"] + row["margin"]
        full = {**row, "bits": f"{row['bits']:.3f}", "low": f"{low:.3f}", "high": f"{high:.3f}"}
        found.append({name: full.get(name, "") for name in names})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and measure the rows, measure a run or the codecs, or print the table of what has been measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("cifar10", "mnist"))
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of row names; all if not given")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training of each row")
    parser.add_argument("--evaluations", type=int, default=IMAGES, help="network evaluations of each bound")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, help="folder of runs and bounds; runs/images-DATA")
    parser.add_argument("--run", type=Path, default=None, help="measure this run, or draw its pictures")
    parser.add_argument("--pictures", type=Path, default=None, help="folder of the pictures of a run")
    parser.add_argument("--codecs", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--csv", type=Path, default=None)
    options = parser.parse_args(arguments)
    out = options.out or Path("runs") / f"images-{options.data}"
    work(options, out, load_corpus(preset(f"{options.data}-small")))
    rows = collected(out)
    print(table(rows, list(rows[0]) if rows else []))
    if options.csv is not None and rows:
        write_csv(options.csv, rows, ("name", "order", "calls", "seed", "minutes"))


def work(options: argparse.Namespace, out: Path, corpus: Corpus) -> None:
    """Run the actions of the options."""
    out.mkdir(parents=True, exist_ok=True)
    if options.pictures is not None:
        pictures(language_model.load(options.run), corpus, options.pictures)
    elif options.run is not None:
        measure("ours", options.run, corpus, options.evaluations, out, {"minutes": options.minutes, "commit": commit()})
    elif options.codecs:
        write_atomic(out / "codecs.bounds.json", json.dumps(measured_codecs(corpus), indent=1))
    elif not options.table:
        for row in ROWS:
            if not options.only or row.startswith(tuple(options.only)):
                folder = out / f"{row.replace(',', '').replace(' ', '-').lower()}-{options.seed}"
                train_for(configuration(options.data, row, options.seed), folder, options.minutes)
                measure(row, folder, corpus, options.evaluations, out, {})


if __name__ == "__main__":
    main()
