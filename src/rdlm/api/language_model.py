"""A trained model with its method, tokenizer and corpus, and its loading."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from rdlm import pretrained
from rdlm.api import publish
from rdlm.api.publish import Dtype
from rdlm.config import LONGEST, DataConfig, GridName, OrderChoice, OrderName, RunConfig, SamplingOptions, SolverName
from rdlm.data import tokenizer as tokenizers
from rdlm.data.store import Kind
from rdlm.data.tokenizer import Tokenizer, Unknown
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods import METHODS
from rdlm.methods.base import BoundEstimator, Method
from rdlm.methods.rdlm import Rdlm
from rdlm.model.belief import BeliefNetwork
from rdlm.model.network import Precision, compile_network, device_of, use_precision
from rdlm.storage import checkpoint, config_file, run_folder
from rdlm.storage.files import damaged, read_json
from rdlm.storage.own_classes import UntrustedClassError, check_trusted, trusting

if TYPE_CHECKING:
    from rdlm.api.generate import Generation, Progress, WindowStep
    from rdlm.api.restore import Array, Laws, Restoration
    from rdlm.api.score import Effort, Score
    from rdlm.data.evidence import Reading
    from rdlm.sampling.constraints import Classifier


EXTRA_BYTES, EXTRA_TENSORS = 1 << 26, 1000
"""Bytes that a model may allocate beyond the weights in its files, for grids and buffers."""

TENSOR_BYTES = 32
"""Least number of bytes of a tensor in a file, for its name and shape."""

LONGEST_UNREQUESTED = 1 << 14
"""Largest number of tokens of a sample without an explicit length."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A method with trained weights that generates samples and scores text; `rdlm.load` returns one."""

    name: str
    method: Method
    tokenizer: Tokenizer
    config: RunConfig
    about: dict[str, Any]
    """The corpus: protocol, kind (text, image, dna), length, image shape, classes, licence."""
    folder: Path | None = None
    """The folder of the checkpoint or of the published model; `rdlm evaluate` writes curve.json into it."""

    def __repr__(self) -> str:
        corpus = self.about.get("protocol", "unknown corpus")
        size = f"{self.parameters:,} parameters, {self.kind} of {self.length} tokens"
        return f"<LanguageModel {self.name!r}: {self.config.method}, {size}, {corpus}>"

    def _repr_html_(self) -> str:
        from rdlm.api import notebook

        return notebook.language_model(self)

    @property
    def rdlm(self) -> Rdlm:
        """The method if it is RDLM; InputError for a baseline."""
        if not isinstance(self.method, Rdlm):
            raise InputError(
                f"{self.name} has the method {self.config.method!r}; this needs a model of the method 'rdlm'"
            )
        return self.method

    @property
    def kind(self) -> str:
        """The kind of data: text, image or dna."""
        return str(self.about["kind"])

    @property
    def length(self) -> int:
        """The number of tokens of a training sequence."""
        return int(self.about["length"])

    def sample_length(self, requested: int | None = None) -> int:
        """Return the tokens of a sample: those requested, else the model's own unless they are excessive.

        The length is stated by the files of a model, which need not contain anything of that size.
        """
        if requested is None and self.length > LONGEST_UNREQUESTED:
            raise InputError(
                f"{self.name} has sequences of {self.length:,} tokens: request a length for samples of more than "
                f"{LONGEST_UNREQUESTED:,}"
            )
        return requested or self.length

    @property
    def nfe(self) -> int:
        """The network evaluations of a sample unless a number is given: 64, or one per block."""
        return self.method.sampling_nfe(self.length)

    @property
    def parameters(self) -> int:
        """The number of parameters of the network."""
        return sum(parameter.numel() for parameter in self.method.network.parameters())

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.method.network.parameters()).device

    def to(
        self,
        device: str | torch.device | None = None,
        *,
        precision: Precision | None = None,
        compile: bool = False,
    ) -> LanguageModel:
        """Move the network to a device (auto, cpu, cuda, cuda:1, mps), set its precision, and return this model.

        With bfloat16 the network runs under autocast; states, evidence and probabilities stay in float32. With
        `compile`, the network is compiled, which takes up to a minute at the first call of each shape.
        """
        if device is not None:
            self.method.network.to(device_of(str(device)))
        if precision is not None:
            use_precision(self.method.network, precision)
        if compile:
            compile_network(self.method.network, self.device)
        return self

    def generate(
        self,
        *,
        num: int = 1,
        length: int | None = None,
        steps: int | None = None,
        solver: SolverName = "mixture",
        grid: GridName = "time",
        seed: int = 0,
        prompt: str = "",
        suffix: str = "",
        infill: str | None = None,
        gap: str = "_",
        ban: str = "",
        forbid: dict[int, str] | None = None,
        require: dict[int, str] | None = None,
        regex: str | None = None,
        label: str | None = None,
        signal: tuple[float, ...] | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        greedy: bool = False,
        window: float | None = None,
        order: OrderChoice | None = "auto",
        block: int | None = None,
        stride: int | None = None,
        clean: bool = True,
        batch: int = 16,
        rows: int | None = None,
        classifier: Classifier | None = None,
        classifier_scale: float = 1.0,
        trace: bool = False,
        progress: Progress | None = None,
    ) -> Generation:
        """Return `num` samples; for several prompts, see `generate_each`.

        The options are the fields of `rdlm.config.SamplingOptions`, which documents them. The most important ones:
        `num` samples of `length` tokens in `steps` network calls, with `seed`, `seed + 1`, ...; `prompt`, `suffix`,
        `infill` with gaps, `ban` and `regex` constrain the text; `label` or `signal` condition it, with weight
        `guidance`; `temperature`, `top_k`, `top_p` and `greedy` sharpen the choice of tokens; `order` is that of
        generation. A `classifier` is a differentiable log-likelihood [batch] of probabilities [batch, length, v]; a
        `trace` records the steps of the first sample; `progress` is called with the steps done and their total.
        """
        given = {name: value for name, value in locals().items() if name in SamplingOptions.__dataclass_fields__}
        from rdlm.api.generate import generate

        if not isinstance(prompt, str):
            raise InputError("prompt must be one text; for several, use generate_each(prompts)")
        options = SamplingOptions(**given | {"forbid": forbid or {}, "require": require or {}})
        made = generate(
            self, options, classifier=classifier, classifier_scale=classifier_scale, trace=trace, progress=progress
        )
        if made.order is not None:
            made.order.log()
        return made

    def generate_each(
        self,
        prompts: Sequence[str],
        options: SamplingOptions | None = None,
        progress: Progress | None = None,
    ) -> list[Generation]:
        """Return the samples of each prompt, identical to those of `generate(prompt=...)` with these options.

        `progress` is called with the steps done and their total, over all prompts.
        """
        from rdlm.api.generate import generate

        if isinstance(prompts, str) or not all(isinstance(prompt, str) for prompt in prompts):
            raise InputError("prompts are a list of texts: write [text] for one")
        found = []
        for index, prompt in enumerate(prompts):
            report = None if progress is None else partial(_report_after, progress, index, len(prompts))
            found.append(generate(self, options, prompt=prompt, progress=report))
        if found and found[0].order is not None:
            found[0].order.log()
        return found

    def generate_steps(self, options: SamplingOptions | None = None) -> Generator[WindowStep, None, Generation]:
        """Yield every step of the samples that `generate` returns with these options; of one batch at most.

        A step has the log-probabilities by which the states moved in `info.log_probs` [rows, positions, v], and the
        states after it in `info.after`. What the generator returns (`result = yield from ...`) are the samples.
        """
        from rdlm.api.generate import generate_steps

        return generate_steps(self, options or SamplingOptions())

    def score(
        self,
        texts: Sequence[str],
        prompts: Sequence[str] | None = None,
        *,
        nfe: int | None = None,
        order: OrderChoice = "auto",
        block: int | None = None,
        estimator: BoundEstimator | None = None,
        draws: int | None = None,
        seed: int = 0,
        unknown: Unknown = "error",
        effort: Effort | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> list[Score]:
        """Return the likelihood bound of each text with its 95% interval, in nats and in bits per character.

        With `prompts`, one for each text: of `-log p(text | prompt)`, exact if tokens are decoded one by one. The bound
        is that of the sampler of `nfe` network calls in an `order`, with tokens in blocks of `block`; it is estimated
        from `draws` whole paths (`estimator="path"`) or random steps ("steps") of each window. Characters outside of
        the vocabulary are an error, or with `unknown` skipped ("skip") or replaced by spaces ("replace"). `advance` is
        called with the number of windows that have passed through the network. An `effort` replaces nfe, order, block,
        estimator, draws and seed.
        """
        from rdlm.api.notebook import ScoreList
        from rdlm.api.score import chosen_effort, list_of_texts, score

        texts = list_of_texts(texts)
        if effort is None:
            effort = chosen_effort(self, texts, unknown, nfe, order, block, estimator, draws, seed)
        return ScoreList(score(self, texts, effort, unknown, advance, prompts))

    def restore(
        self,
        reading: str | Tensor | Array | Laws | Reading,
        channel: str | Tensor | Array | Mapping[str, Mapping[str, float]] | None = None,
        error: float | Literal["auto"] | None = None,
        *,
        literal: bool = False,
        read: str | None = None,
        words: LanguageModel | str | Path | None = None,
        whole: bool = False,
        passes: int = 0,
        samples: int = 0,
        steps: int = 64,
        order: OrderName = "synchronous",
        seed: int = 0,
        progress: Callable[[int], object] = lambda windows: None,
    ) -> Restoration:
        """Return the posterior of a text with gaps (?), alternatives ([ae]) and errors, or of evidence.

        Evidence is a tensor or an array of log-likelihoods [positions, V], or one {symbol: probability} per position.
        Characters that the model lacks are kept: see `rdlm.data.evidence.to_symbols`.
        With `literal`, question marks, `_` and brackets are ordinary characters.
        `channel` is symmetric or keyboard, with an `error` rate (0.1), or a matrix [true, read]. The posterior is of
        one network call, or the mean over `passes` of the sampler in `steps` calls each; with `whole` the text is the
        most likely whole text found; `samples` are drawn from the joint posterior in an `order`. With a model of word
        pieces, `words`, the posterior of a text is a mixture with that of its words.
        """
        from rdlm.api.restore import restore

        return restore(
            self,
            reading,
            read,
            channel=channel,
            error=error,
            literal=literal,
            words=words,
            whole=whole,
            passes=passes,
            samples=samples,
            steps=steps,
            order=order,
            seed=seed,
            progress=progress,
        )

    def save(self, folder: str | Path, *, dtype: Dtype = "float32") -> Path:
        """Publish the model into a folder and return the folder; weights of any type are loaded as float32."""
        return publish.write(self, Path(folder), dtype=dtype)

    def push_to_hub(
        self, name: str, *, private: bool = False, dtype: Dtype = "float32", message: str | None = None
    ) -> str:
        """Publish the model on the Hugging Face hub as user/name and return its address."""
        return publish.push(self, name, private=private, dtype=dtype, message=message)


def _report_after(progress: Progress, earlier: int, prompts: int, done: int, total: int) -> object:
    """Report the steps of one of several prompts."""
    return progress(earlier * total + done, prompts * total)


def load(
    run: str | Path | None = None,
    *,
    averaged: bool = True,
    device: str | torch.device = "cpu",
    precision: Precision = "float32",
    compile: bool = False,
    trust: Sequence[str | type] = (),
) -> LanguageModel:
    """Return the model that `find` locates, with the moving average of its weights unless `averaged` is False.

    `device`, `precision` and `compile` are those of `LanguageModel.to`. Nothing in the files is executed; names,
    shapes and checksums are compared before a number is used. A model with a user-defined network, schedule or bridge
    is built only if `trust` has its class, or its name such as "my_module:MyNetwork", which is then imported.
    """
    place = device_of(str(device))
    with trusting(trust):
        found = _load(find(run), averaged)
    changed = place.type != "cpu" or precision != "float32" or compile
    return found.to(place, precision=precision, compile=compile) if changed else found


def _load(path: Path, averaged: bool) -> LanguageModel:
    if publish.is_published(path):
        if not averaged:
            raise InputError(f"{path} is a published model with averaged weights only; averaged=False needs a run")
        return _load_published(path)
    state = checkpoint.verify(path)
    tokenizer = tokenizers.from_json(read_json(path / "tokenizer.json"))
    config, about, method = _build(path / "state.json", state, tokenizer.size, _bytes(state))
    parameters, all_tensors = dict(method.network.named_parameters()), method.network.state_dict()
    weights = {}
    if not averaged or len(all_tensors) > len(parameters):  # buffers have no average
        weights = checkpoint.read_part(path, "network", all_tensors)
    if averaged:
        weights |= checkpoint.read_part(path, "ema", parameters)
    _copy_weights(method, weights, path)
    method.load_state(checkpoint.read_part(path, "method", method.state()))
    return LanguageModel(path.parent.name, method, tokenizer, config, about, path)


def _load_published(path: Path) -> LanguageModel:
    state = publish.verify(path)
    tokenizer = tokenizers.from_json(read_json(path / "tokenizer.json"))
    widened = 4 // publish.TYPES[state["weights"]["dtype"]].itemsize
    config, about, method = _build(path / publish.CONFIG, state, tokenizer.size, widened * _bytes(state))
    _copy_weights(method, publish.read_weights(path, state, method.network.state_dict()), path)
    config = replace(config, data=_without_paths(config.data, path))
    return LanguageModel(state["name"], method, tokenizer, config, about, path)


def _without_paths(options: DataConfig, path: Path) -> DataConfig:
    """Return the options without the paths of the model's author, which do not apply on this machine."""
    name = str(path / "tokenizer.json") if str(options.tokenizer).endswith(".json") else options.tokenizer
    return replace(options, file=None, tokenizer=name)


def _copy_weights(method: Method, weights: dict[str, Tensor], path: Path) -> None:
    """Copy weights into the network, converted to the type of the network."""
    with torch.no_grad():
        for name, tensor in method.network.state_dict().items():
            tensor.copy_(weights[name])
    if isinstance(method.network, BeliefNetwork):
        try:
            method.network.belief.check()
        except ValueError as error:
            raise DamagedFileError(f"the weights in {path} are damaged: {error}") from None
    method.network.eval()


def find(run: str | Path | None = None) -> Path:
    """Return the folder of the checkpoint or published model that `run` refers to.

    The folder of a run refers to its best checkpoint, that of a checkpoint or a published model to itself; a name such
    as "text8" refers to a packaged model, unless the folder of that name contains another model; user/name refers to
    a model on the hub, unless there is a folder `user`; None refers to the packaged text model.
    """
    if run is None:
        return pretrained.path()
    if not isinstance(run, str | Path):
        raise InputError(f"a model must be named by a string or a path, got {run!r}")
    path = Path(run).expanduser()
    if str(run) in pretrained.names() and not _is_model_folder(path):
        return pretrained.path(str(run))
    if path.is_dir():
        return (
            path if publish.is_published(path) or (path / "state.json").is_file() else run_folder.find_checkpoint(path)
        )
    if publish.is_hub_name(str(run)):
        return publish.download(str(run))
    names = f" of a packaged model ({', '.join(pretrained.names())}) or" if pretrained.names() else ""
    near = get_close_matches(str(run), pretrained.names(), n=1)
    hint = f"; did you mean {near[0]}?" if near else "; a text is given with --prompt" if " " in str(run) else ""
    raise InputError(
        f"{run} is not a folder: give the folder of a run (rdlm train creates one), of a checkpoint or of a published "
        f"model, or the name{names} of a model on the hub (user/name){hint}"
    )


def _is_model_folder(path: Path) -> bool:
    """Return whether a folder belongs to a run, a checkpoint or a published model."""
    return any((path / name).is_file() for name in ("best.json", "latest.json", "state.json", publish.CONFIG))


def _bytes(state: dict[str, Any]) -> int:
    return sum(entry["bytes"] for entry in state["files"].values())


def describe(path: Path) -> tuple[RunConfig, dict[str, Any], Tokenizer]:
    """Return the configuration, the corpus and the tokenizer of a checkpoint or a published model."""
    published = publish.is_published(path)
    state = publish.verify(path) if published else checkpoint.describe(path)
    with _description_errors(path / (publish.CONFIG if published else "state.json")):
        config = config_file.from_dict(state["config"])
        about = _about(state["corpus"])
    if published:
        config = replace(config, data=_without_paths(config.data, path))
    return config, about, tokenizers.from_json(read_json(path / "tokenizer.json"))


def _build(file: Path, state: dict[str, Any], vocabulary: int, size: int) -> tuple[RunConfig, dict[str, Any], Method]:
    """Return configuration, corpus and method that a file describes; `size` bounds the bytes of the weights."""
    with _description_errors(file):
        about = _about(state["corpus"])
        config = config_file.from_dict(state["config"])
        check_trusted(config)
        with checkpoint.AllocationLimit(2 * size + EXTRA_BYTES, size // TENSOR_BYTES + EXTRA_TENSORS):
            method = METHODS[config.method](config, vocabulary, len(about["classes"]), int(about["signal"]))
    return config, about, method


@contextmanager
def _description_errors(file: Path) -> Iterator[None]:
    """Turn errors in the description of a model into those of its file."""
    try:
        yield
    except UntrustedClassError:
        raise
    except InputError as error:
        advice = "if another version of rdlm wrote it, open it with that version"
        raise InputError(f"{file.parent}: {error}; {advice}") from None
    except (ArithmeticError, DamagedFileError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(file, f"no model can be built from it: {error}") from error


def _about(corpus: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the corpus after checking the type of every entry."""
    classes, image, length = corpus["classes"], corpus["image"], corpus["length"]
    wrong = ["protocol"] if not isinstance(corpus["protocol"], str) else []
    wrong += ["kind"] if corpus["kind"] not in get_args(Kind) else []
    wrong += ["length"] if type(length) is not int or not 0 < length <= LONGEST else []
    wrong += ["signal"] if not isinstance(corpus["signal"], bool) else []
    wrong += ["classes"] if not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)) else []
    sides = image if isinstance(image, list) and all(type(side) is int and side > 0 for side in image) else []
    is_image = len(sides) == 3 and sides[2] in (1, 3) and math.prod(sides) == length
    wrong += ["image"] if (image is not None or corpus["kind"] == "image") and not is_image else []
    if wrong:
        raise ValueError(f"its corpus has a wrong {' and '.join(wrong)}")
    return corpus
