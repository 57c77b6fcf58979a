"""The command line: `rdlm COMMAND [options]`.

A command is a frozen dataclass in `rdlm.cli` whose fields are its options, whose attribute docstrings are their help,
and whose `run` does the work and returns the exit code. Its module is imported only when the command is chosen, and
imports torch inside `run`: help and errors in flags appear at once.

With `--json` a command prints one JSON object on standard output; everything else goes to standard error.
Exit codes: 0 success, 1 failure, 2 user error, 3 damaged file, 130 interrupted, 141 broken pipe.
"""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import MISSING, Field, is_dataclass
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TextIO,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import rdlm
from rdlm import __version__
from rdlm.deprecated import renamed_flags
from rdlm.display.text_table import PrintableStream, printable
from rdlm.errors import DamagedFileError, DivergedError, InputError, InterruptedRunError, LeaderFailedError, unknown
from rdlm.storage.files import COMPILED, COMPILED_VARIABLE, DENIED, FULL, cache_dir, make_cache_dir

CHECKOUT = ("benchmarks", "experiments")
"""Root packages that are not part of the installed package; the commands that run them are in them."""

UNUSABLE = {errno.ENAMETOOLONG, errno.ELOOP}
"""Error numbers of paths that no system call accepts."""


class Command(Protocol):
    """A command with its parsed options."""

    def run(self) -> int:
        """Do the work and return the exit code."""


class Entry(NamedTuple):
    """The module and the class of a command, and one line of description."""

    module: str
    name: str
    summary: str
    two_stages: bool = False
    """Whether the first argument selects the defaults: a `FromPreset` of `rdlm.cli.train`."""


COMMANDS = {
    "demo": Entry("rdlm.cli.demo", "Demo", "train, evaluate and sample from a small model, in minutes"),
    "train": Entry("rdlm.cli.train", "Train", "train a preset or your own configuration", two_stages=True),
    "plan": Entry("rdlm.cli.train", "PlanRun", "estimate the cost of a run on other devices", two_stages=True),
    "methods": Entry("rdlm.cli.compare", "Methods", "list the methods and the kind of likelihood of each"),
    "presets": Entry("rdlm.cli.train", "Presets", "list the presets with a summary of each"),
    "compare": Entry("rdlm.cli.compare", "Compare", "train and compare several methods", two_stages=True),
    "generate": Entry("rdlm.cli.generate", "Generate", "sample from a model, with or without conditions"),
    "serve": Entry("rdlm.cli.serve", "Serve", "serve models over HTTP, with a web page"),
    "evaluate": Entry("rdlm.cli.evaluate", "Evaluate", "measure the bound and the samples of a model"),
    "restore": Entry("rdlm.cli.restore", "Restore", "restore a text from an uncertain reading of it"),
    "score": Entry("rdlm.cli.score", "ScoreText", "bound the likelihood of texts"),
    "publish": Entry("rdlm.cli.publish", "Publish", "export a model with its card to a folder or the hub"),
    "analyze": Entry("experiments.analyze", "Analyze", "repeat an analysis of the paper (in a checkout)"),
    "certify": Entry("rdlm.cli.certify", "Certify", "check likelihood bounds against known entropies"),
    "bench": Entry("benchmarks.command", "Bench", "measure the speed (in a checkout)"),
    "data": Entry("rdlm.cli.data", "Data", "list, get and verify corpora"),
    "doctor": Entry("rdlm.cli.doctor", "Doctor", "check this machine and this installation"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; only a bug raises an exception."""
    if argv is None:
        # Without it the collector walks through all objects of torch again at the end: 0.6 s of processor time.
        atexit.register(gc.freeze)
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: names of files may be any bytes
    with ExitStack() as streams:
        streams.enter_context(redirect_stderr(cast(TextIO, PrintableStream(sys.stderr))))
        if sys.stdout.isatty():
            streams.enter_context(redirect_stdout(cast(TextIO, PrintableStream(sys.stdout))))
        return _run(arguments)


def open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller has closed (`>&-`): Python sets them to None.

    Otherwise the next file that is opened would take their number, to which libraries in C write.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _run(arguments: list[str]) -> int:
    try:
        code = dispatch(arguments)
        sys.stdout.flush()
        return code
    except InputError as error:
        return _complain(str(error), 2)
    except DamagedFileError as error:
        return _complain(str(error), 3)
    except DivergedError as error:
        return _complain(str(error), 1)
    except InterruptedRunError as stopped:
        return _complain(str(stopped), stopped.code)
    except LeaderFailedError:
        return 1
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:
        # The reader has closed the pipe. Buffered output would raise again when Python closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        named = f" {error.filename}" if error.filename else ""
        if error.errno in FULL:
            return _complain(f"cannot write{named}: {error.strerror}", 1)
        if error.errno in DENIED:
            return _complain(f"no access to{named or ' a file'}: {error.strerror}", 1)
        if error.errno in UNUSABLE:
            return _complain(f"cannot use the path{named:.200}: {error.strerror}", 2)
        raise


def dispatch(arguments: list[str]) -> int:
    """Run the command named first in `arguments` and return its exit code; without a command, print the help."""
    if not arguments:
        print(overview(), file=sys.stderr)
        return 2
    first, *options = arguments
    if first in ("-h", "--help"):
        print(overview())
        return 0
    if first == "--version":
        print(f"rdlm {__version__}")
        return 0
    if first.startswith("-"):
        raise InputError(f"unknown flag {first!r} before a command; see rdlm --help")
    if first not in COMMANDS:
        raise unknown("command", first, COMMANDS)
    limit_spinning()
    parsed = parse(first, renamed_flags(options))
    if isinstance(parsed, int):
        return parsed
    set_cache_folders()
    return parsed.run()


def set_cache_folders() -> None:
    """Direct matplotlib's and torch's caches into the cache of rdlm, unless the user has set them.

    The folders are made here: those libraries would make them with the permissions of the umask.
    """
    for variable, name in (("MPLCONFIGDIR", "matplotlib"), (COMPILED_VARIABLE, COMPILED)):
        if variable not in os.environ:
            with suppress(OSError):  # a cache that cannot be written is reported by those who need it
                make_cache_dir(name)
            os.environ[variable] = str(cache_dir(name))


def limit_spinning() -> None:
    """Make waiting OpenMP threads sleep soon, unless the user has set their policy; call before torch is imported.

    By default they spin for milliseconds. When other processes are busy, the spinning threads keep the one they wait
    for off the processor: a training step on two processors, one of them busy, took ten times as long. With both
    processors free the setting costs 6%.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def parse(command: str, options: list[str]) -> Command | int:
    """Return the parsed command, or the exit code if the parser has printed help or an error."""
    import tyro

    entry = COMMANDS[command]
    package = entry.module.partition(".")[0]
    if package in CHECKOUT:
        require_checkout(command, package)
    module = importlib.import_module(entry.module)
    options_class: Any = getattr(module, entry.name)
    default = options_class.defaults(command, options) if entry.two_stages else tyro.MISSING_NONPROP
    if {"-h", "--help"} & {*options}:
        join_docstrings(options_class)
    try:
        parsed: Command = tyro.cli(
            options_class,
            prog=f"rdlm {command}",
            args=options,
            default=default,
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands),
        )
        return parsed
    except SystemExit as answered:
        return answered.code if isinstance(answered.code, int) else 1


def require_checkout(command: str, package: str) -> None:
    """Make a root package of the source checkout importable; outside of a checkout this is an InputError."""
    root = Path(rdlm.__file__).parents[2]
    if not (root / package / "__init__.py").is_file():
        raise InputError(
            f"rdlm {command} needs a checkout of the repository: its folder {package}/ is not part of the installed "
            "package. Clone the repository, or unpack the source distribution of rdlm "
            f"{__version__}; run `make setup` there, then `.venv/bin/rdlm {command}`"
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))


def join_docstrings(options_class: type, is_command: bool = True) -> None:
    """Annotate the fields of a dataclass, and of those in it, with their docstrings in one line.

    tyro keeps the line breaks of docstrings whose second line is indented.
    """
    import tyro

    from rdlm.config import attribute_docstrings

    for home in filter(is_dataclass, options_class.__mro__):
        hints, own = get_type_hints(home, include_extras=True), vars(home).get("__annotations__", {})
        help_of = attribute_docstrings(home)
        for name in own:
            parts = [part for part in (hints[name], *get_args(hints[name])) if isinstance(part, type)]
            for nested in filter(is_dataclass, parts):
                join_docstrings(nested, is_command=False)
            if not any(map(is_dataclass, parts)):
                shown = _shown(hints[name], home.__dataclass_fields__[name]) if is_command else {}
                own[name] = Annotated[hints[name], tyro.conf.arg(help=help_of.get(name), **shown)]


def _shown(hint: Any, option: Field[Any]) -> dict[str, Any]:
    """Return how the help shows an option of a command: without None, and without a default that its text describes.

    In a configuration None is shown, because it is a value that can replace that of a preset.
    """
    default = option.default if option.default_factory is MISSING else option.default_factory()
    shown = {"help_behavior_hint": ""} if isinstance(default, bool) or default in (None, "", (), {}) else {}
    kind, *given = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(kind) in (Union, UnionType) and not any(getattr(one, "metavar", None) for one in given):
        shown["metavar"] = "|".join(_metavar(part) for part in get_args(kind) if part is not type(None))
    return shown


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is tuple:
        return f"{_metavar(get_args(kind)[0])} ..."
    return str(kind.__name__).upper()


def overview() -> str:
    """Return the help of the whole program."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {entry.summary}" for name, entry in COMMANDS.items()]
    return "\n".join(
        [
            "usage: rdlm COMMAND [options]",
            "       rdlm COMMAND --help",
            "       rdlm --version",
            "",
            "Riemannian diffusion language models.",
            "",
            "commands:",
            *lines,
        ]
    )


def _complain(message: str, code: int) -> int:
    message = printable(message)
    print(f"rdlm: error: {message}" if code < 128 else f"rdlm: {message}", file=sys.stderr)
    return code
