"""Evaluation of DNA samples by a classifier of real sequences, by k-mers and by motifs.

| function | compares |
|---|---|
| `Judge` | predicted probability of every class, by a convolutional network trained on real sequences only |
| `activity_errors` | predicted probabilities of generated and of real sequences of the same class |
| `spectrum_divergence` | frequencies of k-mers, by class |
| `motif_profile` | which motifs of JASPAR are frequent in which class |
| `variety` | distinct k-mers, distances of pairs, and k-mers copied from the training data |
"""

from __future__ import annotations

import math
import sqlite3
import tempfile
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from rdlm.data import fetch
from rdlm.data.batch import Batches
from rdlm.data.fetch import Archive
from rdlm.data.store import Corpus
from rdlm.evaluate.metrics import jensen_shannon

Sequences = Int[Tensor, "n length"]
Labels = Int[Tensor, " n"]

JASPAR = Archive(
    "pypi",
    "pyjaspar",
    "4.0.0",
    "pyjaspar-4.0.0-py3-none-any.whl",
    "01b393f668c3cb552d3d58262a50005b1410e389e0a6bf5d570e976fbdaf01b3",
)
HUMAN = "9606"
"""Number of the species in JASPAR."""

MATCH = 0.85
"""Least score of a motif's occurrence, as a share of the way from its worst to its best score."""

EPOCHS, BATCH, RATE = 6, 64, 1e-3
"""Training of the classifier."""


class Judge(nn.Module):
    """A classifier of DNA: two convolutions, their largest and mean responses, and a linear layer."""

    def __init__(self, classes: int, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, width, 15, padding=7)
        self.second = nn.Conv1d(width, width, 9, padding=4)
        self.norms = nn.ModuleList([nn.BatchNorm1d(width), nn.BatchNorm1d(width)])
        self.dropout = nn.Dropout(0.4)
        self.last = nn.Linear(2 * width, classes)

    def forward(self, ids: Sequences) -> Float[Tensor, "n classes"]:
        """Return the logits of the classes."""
        x = functional.one_hot(ids, 4).float().mT  # [B, 4, L]
        x = functional.max_pool1d(functional.relu(self.norms[0](self.first(x))), 4)  # [B, W, L / 4]
        x = functional.relu(self.norms[1](self.second(x)))
        logits: Tensor = self.last(self.dropout(torch.cat([x.amax(-1), x.mean(-1)], dim=-1)))
        return logits

    @torch.no_grad()
    def probabilities(self, ids: Sequences) -> Float[Tensor, "n classes"]:
        """Return the predicted probabilities, as a mean over both strands."""
        self.eval()
        strands = [torch.cat([self(part) for part in rows.split(256)]) for rows in (ids, reverse_complement(ids))]
        return (strands[0].softmax(-1) + strands[1].softmax(-1)) / 2


def reverse_complement(ids: Sequences) -> Sequences:
    """Return the other strand; the bases A, C, G, T have the ids 0 to 3."""
    return 3 - ids.flip(-1)


def trained_judge(corpus: Corpus, path: Path, seed: int = 0, epochs: int = EPOCHS) -> Judge:
    """Return a classifier trained on the training split, both strands, from a file if it exists."""
    torch.manual_seed(seed)
    judge = Judge(len(corpus.classes))
    if path.is_file():
        judge.load_state_dict(load_file(path))
        return judge
    batches = Batches(corpus, "train", batch_size=BATCH, seed=seed)
    steps = epochs * len(batches.rows) // BATCH
    optimizer = torch.optim.AdamW(judge.parameters(), lr=RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3 * RATE, total_steps=max(2, steps))
    judge.train()
    for step in range(steps):
        batch = batches.batch(step)
        ids = torch.where(torch.rand(len(batch.ids), 1) < 0.5, batch.ids, reverse_complement(batch.ids))
        assert batch.label is not None
        optimizer.zero_grad()
        functional.cross_entropy(judge(ids), batch.label).backward()
        optimizer.step()
        schedule.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(judge.state_dict(), path)
    return judge


def wilson(hits: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95% interval of a share, which stays within [0, 1]."""
    share, shrink = hits / count, 1 + z * z / count
    middle = (share + z * z / (2 * count)) / shrink
    half = z / shrink * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return middle - half, middle + half


def activity_errors(
    made: Float[Tensor, "n classes"], real: Float[Tensor, "m classes"], label: Labels, real_label: Labels
) -> tuple[float, float]:
    """Return two mean squared errors of predicted activities, over classes.

    The first is that of the paper's Table 4 in kind: over all pairs of a generated and a real sequence of a class. As a
    class does not determine a sequence, it contains the variance of both, and samples without variety have less of it
    than real sequences. The second one, of the mean activities of each class, has no such part.
    """
    pairs, means = [], []
    for one in real_label.unique():
        a, b = made[label == one].double(), real[real_label == one].double()
        means.append((a.mean(0) - b.mean(0)).square().mean())
        pairs.append(means[-1] + (a.var(0, correction=0) + b.var(0, correction=0)).mean())
    return float(torch.stack(pairs).mean()), float(torch.stack(means).mean())


def kmers(ids: Sequences, k: int) -> Int[Tensor, "n words"]:
    """Return the number of the k-mer at every place of every sequence."""
    words = ids.long().unfold(1, k, 1)  # [n, L - k + 1, k]
    return words @ (4 ** torch.arange(k - 1, -1, -1))


def spectrum_divergence(made: Sequences, real: Sequences, label: Labels, real_label: Labels, k: int) -> float:
    """Return the Jensen-Shannon divergence of the frequencies of k-mers in bits, as a mean over classes."""
    found = [
        jensen_shannon(kmers(made[label == one], k).flatten(), kmers(real[real_label == one], k).flatten())
        for one in real_label.unique()
    ]
    return sum(found) / len(found)


@lru_cache(maxsize=1)
def motifs() -> tuple[Float[Tensor, "motifs 4 width"], Float[Tensor, " motifs"]]:
    """Return the log-odds of the human motifs of JASPAR 2026 (newest versions) and the least score of a match."""
    query = """SELECT m.BASE_ID, m.VERSION, d.row, d.col, d.val FROM MATRIX m JOIN MATRIX_SPECIES s ON s.ID = m.ID
        JOIN MATRIX_DATA d ON d.ID = m.ID WHERE m.COLLECTION = 'CORE' AND s.TAX_ID = ? ORDER BY m.BASE_ID, m.VERSION"""
    with tempfile.TemporaryDirectory() as folder, fetch.open_member(fetch.fetch(JASPAR), "*/JASPAR2026.sqlite") as file:
        (path := Path(folder) / "jaspar.sqlite").write_bytes(file.read())
        with closing(sqlite3.connect(path)) as database:
            rows = database.execute(query, (HUMAN,)).fetchall()
    newest = {name: version for name, version, *_ in rows}
    places = {name: place for place, name in enumerate(newest)}
    wide = max(int(row[3]) for row in rows)
    counts = torch.zeros(len(newest), 4, wide)
    for name, version, base, column, value in rows:
        if version == newest[name]:
            counts[places[name], "ACGT".index(base), int(column) - 1] = float(value)
    total = counts.sum(1, keepdim=True)
    odds = torch.log2((counts + 0.2) / (total + 0.8) * 4) * (total > 0)
    worst, best = odds.amin(1).sum(-1), odds.amax(1).sum(-1)
    return odds, worst + MATCH * (best - worst)


@torch.no_grad()
def motif_hits(ids: Sequences) -> Bool[Tensor, "n motifs"]:
    """Return which motifs occur in which sequences, on either strand."""
    odds, least = motifs()
    found = []
    for rows in ids.split(64):
        strands = [functional.one_hot(each, 4).float().mT for each in (rows, reverse_complement(rows))]
        scores = [functional.conv1d(functional.pad(x, (0, odds.shape[-1] - 1)), odds).amax(-1) for x in strands]
        found.append(torch.maximum(*scores) >= least)
    return torch.cat(found)


def motif_profile(ids: Sequences, label: Labels) -> Float[Tensor, "classes motifs"]:
    """Return how much more frequent a motif is in the sequences of a class than in those of all classes."""
    hits = motif_hits(ids).float()
    share = torch.stack([hits[label == one].mean(0) for one in label.unique()])
    return share - share.mean(0)


def variety(made: Sequences, known: Int[np.ndarray, " words"], k: int = 10, copied: int = 20) -> dict[str, float]:
    """Return shares: distinct k-mers of all, differing positions of pairs, and long k-mers among the `known` ones."""
    words = kmers(made, k)
    ones = functional.one_hot(made, 4).float().flatten(1)  # [n, 4 L]
    equal = ones @ ones.T / made.shape[1]
    off = ~torch.eye(len(made), dtype=torch.bool)
    long = kmers(made, copied).flatten().numpy()
    place = np.searchsorted(known, long).clip(max=len(known) - 1)
    return {
        "distinct": len(words.unique()) / words.numel(),
        "distance": float(1 - equal[off].mean()),
        "copied": float((known[place] == long).mean()),
    }
