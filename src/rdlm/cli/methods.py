"""`rdlm methods`: the methods behind one interface, and the kind of likelihood of each."""

from __future__ import annotations

from dataclasses import dataclass

from rdlm.display.text_table import print_json, table

COLUMNS = ("method", "process", "number", "certificate", "paper")


@dataclass(frozen=True)
class Methods:
    """List the methods: process, kind of likelihood, certificate and paper.

    A likelihood is exact or a bound, for the sampler with the same number of network calls, or an estimate. The
    certificate is its excess over the entropy of a known source, with the exact posterior.
    """

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """List the methods and return 0."""
        rows = rows_of_methods()
        if self.json:
            print_json({"rows": rows})
            return 0
        print(table(rows, COLUMNS))
        print(
            "\nexact, bound: for the sampler with the same number of calls; certificate: excess over the entropy of an"
            "\nindependent source with the exact posterior and 64 calls. PixelCNN++, Sparse Transformer, Transformer-XL"
            "\nand other architectures of autoregression are represented by autoregressive on the common network."
        )
        return 0


def rows_of_methods() -> list[dict[str, object]]:
    """Return a row for every method."""
    from rdlm.methods import METHODS

    rows: list[dict[str, object]] = []
    for name, kind in METHODS.items():
        card = getattr(kind, "card", None)
        row: dict[str, object] = {"method": name}
        if card is not None:
            certificate = "none: not a bound" if card.slack is None else f"holds, within {card.slack:g}%"
            certificate = "holds, at the entropy" if card.slack == 0 else certificate
            certificate += f" ({card.reason})" if card.reason else ""
            row |= {"process": card.process, "number": card.number, "certificate": certificate}
            row |= {"slack_percent": card.slack, "paper": card.paper}
        rows.append(row)
    return rows
