"""`rdlm serve`: models behind an HTTP service that OpenAI's clients understand, and a page to look at them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from rdlm.errors import InputError

if TYPE_CHECKING:
    import socket

    from rdlm.api.language_model import LanguageModel
    from rdlm.serve.service import Limits


@dataclass(frozen=True)
class Serve:
    """Serve models over HTTP: completions for OpenAI's clients, scores, trajectories, and a page.

    An address that other machines can reach needs a secret in the environment variable RDLM_TOKEN.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN [RUN ...]]")] = ()
    """Folders of runs, checkpoints or published models, or user/name on the hub; if none, the model in the box."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes any free one."""
    steps: int | None = None
    """Steps of a walk for which none are asked; the model's own number if not given."""
    queue: int = 64
    """Samples that may wait; requests beyond them are told to come back."""
    batch: int = 16
    """Samples that are under way together; it does not change them."""
    deadline: float = 60.0
    """Seconds after which a request is given up."""
    threads: int | None = None
    """Threads that compute; as many as there are processors if not given."""
    json: bool = False
    """Print one JSON object with the address and the models when the service is ready."""

    def run(self) -> int:
        """Serve until a signal ends it; return 0."""
        # Each network call runs on one thread, and calls are spread over threads: bits must not depend on their number.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        try:
            from rdlm.serve.server import listening, token_for
        except ModuleNotFoundError as missing:
            raise InputError(f"serving needs {missing.name}: pip install 'rdlm[serve]'") from None
        token = token_for(self.host)
        limits = self._limits()
        with listening(self.host, self.port) as opened:
            return self._serve(opened, token, limits)

    def _serve(self, opened: socket.socket, token: str | None, limits: Limits) -> int:
        import logging

        import torch

        from rdlm.serve.app import create
        from rdlm.serve.memory import freeze_objects, use_one_arena
        from rdlm.serve.server import Server
        from rdlm.serve.service import Service

        logging.basicConfig(level=logging.WARNING, format="rdlm: %(levelname)s: %(message)s", stream=sys.stderr)
        torch.set_num_threads(1)
        use_one_arena()
        service = Service(self._models(), limits)
        try:
            server = Server(create(service, token), service.drain)
            freeze_objects()
            name = f"[{self.host}]" if ":" in self.host else self.host
            self._announce(f"http://{name}:{opened.getsockname()[1]}", list(service.models))
            server.run(sockets=[opened])
        finally:
            service.close()
        if server.interrupted:
            raise KeyboardInterrupt
        return 0

    def _limits(self) -> Limits:
        from rdlm.serve.service import Limits

        processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        threads = processors if self.threads is None else self.threads
        return Limits(self.steps, self.queue, self.batch, self.deadline, threads)

    def _models(self) -> list[LanguageModel]:
        import rdlm

        return [rdlm.load(run) for run in self.models or (None,)]

    def _announce(self, url: str, names: list[str]) -> None:
        from rdlm.display.tables import print_json

        if self.json:
            print_json({"url": url, "models": names})
            sys.stdout.flush()
        print(f"rdlm: serving {', '.join(names)} at {url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
