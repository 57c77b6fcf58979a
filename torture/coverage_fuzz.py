"""Coverage-guided fuzzing of every reader of foreign files, with atheris (which is not a dependency of this package).

    python -m venv FOLDER && FOLDER/bin/pip install atheris     # and rdlm with its dependencies
    FOLDER/bin/python torture/coverage_fuzz.py --minutes 10 --corpus build/fuzz

Each reader gets bytes in a process of its own. It must return, or raise InputError or DamagedFileError with a short
message, within seconds and a gigabyte; anything else ends the process, and the input is kept in the corpus as crash-*.
`--target NAME` fuzzes one reader and passes the other options on to libFuzzer. The exit code is 1 if one was found.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import logging
import os
import re
import resource
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "data"), str(Path(__file__).parent)]

LONGEST, SECONDS, MEGABYTES = 4096, 20, 2048
"""Bytes of an input, and the time and memory of one reading (with those of torch)."""

Reader = Callable[[bytes], object]


def readers() -> dict[str, tuple[Reader, list[bytes]]]:
    """Return name -> reader and some valid contents."""
    import test_foreign
    import test_own
    import torch
    from safetensors.torch import save

    from rdlm.api.generate import read_curve
    from rdlm.api.orders import read_orders
    from rdlm.data import own, recipe, store
    from rdlm.data.channels import symmetric
    from rdlm.data.tokenizer import from_json, train_bpe, wordpiece
    from rdlm.data.word_evidence import LETTERS, from_words
    from rdlm.storage import config_file, files, manifest, measurements, tables
    from rdlm.train import record

    foreign = {
        name.replace(" ", "-"): (
            lambda data, name=name: (
                test_foreign.check(name, data[1:], test_foreign.ALPHABETS[data[0] % 5]) if data else 0
            ),
            [bytes([number]) + sample for number in range(5) for sample in samples if len(sample) < LONGEST],
        )
        for name, (_, samples) in test_foreign.READERS.items()
    }
    shared = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="rdlm-fuzz-", dir=shared if shared.is_dir() else None))

    def written(name: str, read: Callable[[Path], object]) -> Reader:
        """Return a reader of a file with this name."""

        def reader(data: bytes) -> object:
            (place / name).write_bytes(data)
            return read(place / name)

        return reader

    def tokenizer(data: bytes) -> None:
        (place / "tokenizer.json").write_bytes(data)
        found = from_json(files.read_json(place / "tokenizer.json"))
        found.decode(found.encode("a b"))

    def index(data: bytes) -> object:
        (place / "meta.json").write_bytes(data)
        return store.describe(place)

    pieces = wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, "the", "then", "and", "##s", "2", "."])
    noisy = symmetric(LETTERS, 0.1)

    def words(data: bytes) -> object:
        text = data[1:].decode(errors="replace")
        return from_words(text, pieces, noisy if data[:1] < b"a" else None, literal=data[:1] == b"l")

    def own_data(path: Path) -> object:
        from rdlm.data.recipe import CorpusRequest

        return list(own.own(CorpusRequest("own", path)).tokens)

    def read_measurements(path: Path) -> list[str]:
        return [measurements.interval(metric) for metric in measurements.read(path)["metrics"].values()]

    metric = {"value": 1.5, "low": 1, "high": None, "unit": "bits", "convention": "upper bound"}
    measured = {"split": "test", "protocol": "x", "claims_bound": True, "metrics": {"bits_per_character": metric}}
    row = {"order": "strided", "block": 0, "calls": 4, "value": 1.5, "low": 1, "high": 2}
    bounds = {name: "x" for name in ("weights", "protocol", "split", "unit")}
    bounds |= {"sequences": 1, "evaluations": 2, "rows": [row]}
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", "some text of mine " * 9)
    table = {"table": "x"}
    meta = {name: "x" for name in ("name", "protocol", "kind", "licence", "source")}
    meta |= {"format": 1, "length": 4, "classes": [], "image": None, "files": {}}
    subwords = json.dumps(train_bpe(["some text of mine"], 260).to_json()).encode()
    whole_words = json.dumps(pieces.to_json()).encode()
    metadata = {"parameters": tables._canonical(table), "checksum": tables._checksum({"a": torch.zeros(2)})}
    return foreign | {
        "JSON": (written("a.json", files.read_json), [b'{"a": [1, 2.5, null, "x"]}', b'{"a": NaN}']),
        "YAML": (
            written("config.yaml", config_file.read),
            [
                b"method: mdlm\ntraining:\n  steps: 7\n  betas: [0.9, 0.95]\n",
                b"training: {betas: &a [0.5, 0.75]}\nobjective: {<<: {interval: *a}}\n",
            ],
        ),
        "bounds-by-order": (written("orders.json", read_orders), [json.dumps(bounds).encode()]),
        "measurements": (written("evaluation.json", read_measurements), [json.dumps(measured).encode()]),
        "curve": (
            written("curve.json", lambda path: read_curve(path, 0.5)),
            [b'{"noise": [0.5, 0.25, 0], "nats": [0, 1.5, 2]}', b'{"noise": [0.5, 0], "nats": [0, 1e308]}'],
        ),
        "record": (
            written("record.jsonl", lambda path: (record.read_lines(path.parent), record.truncate(path, 1))),
            [b'{"kind": "step", "step": 1}\n{"step": 2}\n', record._with_checksum('{"step": 1}').encode()],
        ),
        "words": (words, [b"athe[nm] ?nd 22.", b"lthe [x] and", b"Ath? th\\?n Ands. th_ "]),
        "archives": (
            lambda data: written(f"a.{'zip' if data[:1] == b'P' else 'gz'}", recipe.read_bytes)(data),
            [zipped.getvalue(), gzip.compress(b"some text"), gzip.compress(b"some") + gzip.compress(b"text")],
        ),
        "manifest": (
            written(
                "state.json",
                lambda path: manifest.Manifest.parse(path, files.read_json(path).get("files"), required=[]),
            ),
            [b'{"files": {"a": {"bytes": 1, "sha256": "' + b"0" * 64 + b'"}}}'],
        ),
        "index-of-a-corpus": (index, [json.dumps(meta).encode()]),
        "tokenizer": (
            tokenizer,
            [b'{"kind": "characters", "alphabet": "ab "}', b'{"kind": "bytes"}', subwords, whole_words],
        ),
        "safetensors": (
            written("table.safetensors", lambda path: tables.read(path, table)),
            [save({"a": torch.zeros(2)}, metadata), save({"b": torch.ones(1, dtype=torch.int32)})],
        ),
        "own-data": (
            written("data", own_data),
            [
                *(
                    text.encode()
                    for text in (test_own.FASTA, test_own.FASTQ, test_own.CSV, test_own.TSV, test_own.JSONL)
                ),
                b'[{"text": "some text of mine", "id": 1}, {"text": "more of it", "id": 2}]',
                b"PAR1" + bytes(8) + b"PAR1",
            ],
        ),
    }


def fuzz_one(name: str, arguments: list[str]) -> None:
    """Fuzz one reader in this process; atheris ends it."""
    import atheris

    with atheris.instrument_imports(
        include=["rdlm.data", "rdlm.storage", "rdlm.config", "rdlm.train.record", "json", "csv", "yaml", "numpy.lib"]
    ):
        import rdlm.api.orders
        import rdlm.data.corpus
        import rdlm.data.evidence
        import rdlm.data.hocr
        import rdlm.data.word_evidence
        import rdlm.storage.config_file
        import rdlm.storage.tables
        import rdlm.train.record  # noqa: F401
    from rdlm.errors import DamagedFileError, InputError

    logging.disable(logging.CRITICAL)
    read = readers()[name][0]

    def one(data: bytes) -> None:
        try:
            read(data)
        except (InputError, DamagedFileError) as error:
            if len(str(error)) > LONGEST:
                raise AssertionError("a message of kilobytes") from error

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def campaign(minutes: float, corpus: Path, names: list[str]) -> dict[str, dict[str, object]]:
    """Fuzz each reader in a process of its own, and return what was found."""
    found: dict[str, dict[str, object]] = {}
    for name, (_, samples) in readers().items():
        if names and name not in names:
            continue
        folder = corpus / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, sample in enumerate(samples):
            (folder / f"sample-{number}").write_bytes(sample[:LONGEST])
        limits = [f"-max_total_time={int(60 * minutes)}", f"-max_len={LONGEST}", f"-timeout={SECONDS}"]
        limits += [f"-rss_limit_mb={MEGABYTES}", f"-artifact_prefix={folder}/", "-print_final_stats=1", str(folder)]
        command = [sys.executable, __file__, "--target", name, *limits]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False).stderr
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        executed = re.search(r"number_of_executed_units: (\d+)", said)
        covered = re.findall(r"cov: (\d+)", said)
        crashes = sorted(path.name for kind in ("crash", "timeout", "oom") for path in folder.glob(f"{kind}-*"))
        found[name] = {
            "inputs": int(executed[1]) if executed else 0,
            "edges": int(covered[-1]) if covered else 0,
            "processor seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime),
            "found": crashes,
        }
        print(f"{name}: {found[name]}", flush=True)
        if crashes or not executed:
            print(said[-3000:], file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for each reader")
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--only", nargs="*", default=[], help="names of readers")
    parser.add_argument("--target", help="fuzz one reader in this process")
    options, rest = parser.parse_known_args()
    os.environ.setdefault("RDLM_CACHE", tempfile.mkdtemp(prefix="rdlm-fuzz-cache-"))
    if options.target:
        fuzz_one(options.target, rest)
        return 0
    found = campaign(options.minutes, options.corpus, options.only)
    (options.corpus / "found.json").write_text(
        json.dumps({"minutes": options.minutes, "readers": found}, indent=1) + "\n"
    )
    return 1 if any(one["found"] or not one["inputs"] for one in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
