"""A limit to what is made while a model is built from a description that nobody vouches for.

A trained model with everything needed to use it: method, tokenizer, and what it was trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rdlm import pretrained as box
from rdlm.api import hub
from rdlm.api import publish as publication
from rdlm.api.publish import Dtype
from rdlm.config import RunConfig
from rdlm.data import tokenizer as tokenizers
from rdlm.data.store import Kind
from rdlm.data.tokenizer import Tokenizer
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods import METHODS
from rdlm.methods.base import Method
from rdlm.methods.rdlm import Rdlm
from rdlm.storage import checkpoint
from rdlm.storage import config_file as configfile
from rdlm.storage import run_folder as folder
from rdlm.storage.files import read_json

if TYPE_CHECKING:
    from rdlm.api.generate import Generation
    from rdlm.api.score import Score


FACTORIES = {
    torch.empty,
    torch.zeros,
    torch.ones,
    torch.full,
    torch.eye,
    torch.arange,
    torch.linspace,
    torch.rand,
    torch.randn,
}
"""What makes new tensors, of a size that their arguments alone decide."""


class AllocationLimit(TorchFunctionMode):
    """Inside its `with` block, a tensor too many, or one that brings all beyond `bytes`, is damage, and not made."""

    def __init__(self, bytes: int, tensors: int) -> None:
        super().__init__()
        self.left, self.tensors = bytes, tensors

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what `func` returns, after a rehearsal without memory where it makes a tensor."""
        given = dict(kwargs or {})
        if func in FACTORIES:
            rehearsed = {key: value for key, value in given.items() if key != "generator"}
            self.left -= int(func(*args, **{**rehearsed, "device": "meta"}).nbytes)
            self.tensors -= 1
            if self.left < 0 or self.tensors < 0:
                raise DamagedFileError("it describes a model that is larger than its files")
        return func(*args, **given)


SLACK = 1 << 26
"""Bytes that a model may take beyond its files, for grids and buffers."""

SMALLEST, MANY = 32, 1000
"""Bytes of a file that a tensor takes at least, its name and shape; and how many more tensors may be made."""

LONGEST = 1 << 24
"""Tokens of the longest sequence that a checkpoint may claim."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A method with trained weights, ready to generate and to score; `rdlm.load` returns one."""

    name: str
    method: Method
    tokenizer: Tokenizer
    config: RunConfig
    about: dict[str, Any]
    """What the checkpoint says of the corpus: protocol, kind (text, image, dna), length, image shape, classes."""
    folder: Path | None = None
    """The folder of the checkpoint, where an evaluation may leave its measured curve, or of the published model."""

    def __repr__(self) -> str:
        corpus = self.about.get("protocol", "unknown corpus")
        what = f"{self.parameters:,} parameters, {self.kind} of {self.length} tokens"
        return f"<LanguageModel {self.name!r}: {self.config.method}, {what}, {corpus}>"

    def _repr_html_(self) -> str:
        from rdlm.api import notebook as display

        return display.language_model(self)

    @property
    def rdlm(self) -> Rdlm:
        """Return the method of a model of this package's own kind; an error for a rival's."""
        if not isinstance(self.method, Rdlm):
            raise InputError(f"{self.name} is a model of the method {self.config.method!r}; this serves 'rdlm' alone")
        return self.method

    @property
    def kind(self) -> str:
        """Return what a sequence is: text, image or dna."""
        return str(self.about["kind"])

    @property
    def length(self) -> int:
        """Return the number of tokens of a training sequence."""
        return int(self.about["length"])

    @property
    def nfe(self) -> int:
        """Return the network evaluations of a sample unless a number is given: 64, or one per block."""
        return self.method.sampling_nfe(self.length)

    @property
    def parameters(self) -> int:
        """Return the number of the network's parameters."""
        return sum(parameter.numel() for parameter in self.method.network.parameters())

    def generate(self, **options: Any) -> Generation:
        """Return samples; the options are the fields of `rdlm.config.SamplingOptions`, such as num, steps, prompt."""
        from rdlm.api.generate import generate

        return generate(self, **options)

    def score(self, texts: Sequence[str], **options: Any) -> list[Score]:
        """Return the likelihood bound of each text with its interval; options as in `rdlm.scoring.score`."""
        from rdlm.api.notebook import Scores
        from rdlm.api.score import score

        return Scores(score(self, texts, **options))

    def save(self, folder: str | Path, *, dtype: Dtype = "float32") -> Path:
        """Publish the model into a folder, which is returned; half-size types are loaded back as float32."""
        return publication.write(self, Path(folder), dtype=dtype)

    def push_to_hub(
        self, name: str, *, private: bool = False, dtype: Dtype = "float32", message: str | None = None
    ) -> str:
        """Publish the model on the Hugging Face hub as user/name and return its address."""
        return hub.push(self, name, private=private, dtype=dtype, message=message)


def load(run: str | Path | None = None, *, averaged: bool = True) -> LanguageModel:
    """Return the model that `find` finds, with the moving average of its weights.

    Nothing in the files is executed; names, shapes and checksums are compared before a number is used.
    """
    path = find(run)
    if publication.holds(path):
        if not averaged:
            raise InputError(f"{path} is a published model: it has averaged weights alone, averaged=False is for runs")
        return _published(path)
    state = checkpoint.verify(path)
    tokenizer = tokenizers.from_json(read_json(path / "tokenizer.json"))
    config, about, method = _built(path / "state.json", state, tokenizer.size, _size(state))
    _take(method, checkpoint.read_part(path, "ema" if averaged else "network", dict(method.network.named_parameters())))
    method.load_state(checkpoint.read_part(path, "method", method.state()))
    return LanguageModel(path.parent.name, method, tokenizer, config, about, path)


def _published(path: Path) -> LanguageModel:
    state = publication.verify(path)
    tokenizer = tokenizers.from_json(read_json(path / "tokenizer.json"))
    widened = 4 // publication.TYPES[state["weights"]["dtype"]].itemsize
    config, about, method = _built(path / publication.CONFIG, state, tokenizer.size, widened * _size(state))
    _take(method, publication.read_weights(path, state, dict(method.network.named_parameters())))
    return LanguageModel(state["name"], method, tokenizer, config, about, path)


def _take(method: Method, weights: dict[str, Tensor]) -> None:
    """Copy weights into the network, in the network's own type."""
    with torch.no_grad():
        for name, parameter in method.network.named_parameters():
            parameter.copy_(weights[name])
    method.network.eval()


def find(run: str | Path | None = None) -> Path:
    """Return the folder of a checkpoint or of a published model that `run` means.

    A run's folder means its best checkpoint; a checkpoint's and a published model's mean themselves; a name such as
    "text8" means a model in the box, unless a folder here of that name holds another; user/name means a model on the
    hub, unless there is a folder `user`; None is the text model in the box.
    """
    if run is None:
        return box.path()
    path = Path(run).expanduser()
    if str(run) in box.names() and not _is_home(path):
        return box.path(str(run))
    if path.is_dir():
        return path if publication.holds(path) or (path / "state.json").is_file() else folder.pointed(path)
    if hub.is_name(str(run)):
        return hub.download(str(run))
    boxed = f" of a model in the box ({', '.join(box.names())}) or" if box.names() else ""
    raise InputError(
        f"{run} is not a folder: give the folder of a run (rdlm train makes one), of a checkpoint or of a published "
        f"model, or the name{boxed} of a model on the hub (user/name)"
    )


def _is_home(path: Path) -> bool:
    """Return whether a folder is that of a run, of a checkpoint or of a published model."""
    return any((path / name).is_file() for name in ("best.json", "latest.json", "state.json", publication.CONFIG))


def _size(state: dict[str, Any]) -> int:
    return sum(entry["bytes"] for entry in state["files"].values())


def _built(file: Path, state: dict[str, Any], vocabulary: int, size: int) -> tuple[RunConfig, dict[str, Any], Method]:
    """Return configuration, corpus and method as a file describes them; a model must not outgrow its files' size."""
    try:
        about = _about(state["corpus"])
        config = configfile.from_dict(state["config"])
        with AllocationLimit(2 * size + SLACK, size // SMALLEST + MANY):
            method = METHODS[config.method](config, vocabulary, len(about["classes"]), int(about["signal"]))
    except InputError as error:
        advice = "if another version of rdlm wrote it, open it with that one"
        raise InputError(f"{file.parent}: {error}; {advice}") from None
    except (ArithmeticError, DamagedFileError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedFileError(f"{file} is damaged: no model can be built from it: {error}") from error
    return config, about, method


def _about(corpus: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint says of its corpus, every entry of the kind that it must have."""
    classes, image, length = corpus["classes"], corpus["image"], corpus["length"]
    wrong = ["protocol"] if not isinstance(corpus["protocol"], str) else []
    wrong += ["kind"] if corpus["kind"] not in get_args(Kind) else []
    wrong += ["length"] if type(length) is not int or not 0 < length <= LONGEST else []
    wrong += ["signal"] if not isinstance(corpus["signal"], bool) else []
    wrong += ["classes"] if not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)) else []
    if image is not None and not (
        isinstance(image, list) and len(image) == 3 and all(type(side) is int and side > 0 for side in image)
    ):
        wrong.append("image")
    if wrong:
        raise ValueError(f"its corpus has a wrong {' and '.join(wrong)}")
    return corpus
