"""`rdlm serve`: an HTTP service with the OpenAI completions API, and a web page."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from rdlm.cli import ModelOptions
from rdlm.display.text_table import say
from rdlm.errors import InputError

if TYPE_CHECKING:
    import socket

    from rdlm.api.language_model import LanguageModel
    from rdlm.serve.service import Limits


@dataclass(frozen=True)
class Serve(ModelOptions):
    """Serve models over HTTP: OpenAI-compatible completions, scores, trajectories, and a web page.

    An address that other machines can reach requires a secret token in the environment variable RDLM_TOKEN.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN [RUN ...]]")] = ()
    """Folders of runs, checkpoints or published models, or user/name on the hub; by default the packaged text model."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0: any free port."""
    steps: int | None = None
    """Sampler steps of requests that do not set them; by default the model's."""
    queue: int = 64
    """Number of samples that may be queued; further requests are rejected with status 429."""
    batch: int = 16
    """Samples per batch; does not affect the samples."""
    deadline: float = 60.0
    """Seconds after which a request times out."""
    threads: int | None = None
    """Worker threads; by default the number of processors."""
    json: bool = False
    """Print one JSON object with the address and the models when the service is ready."""

    def run(self) -> int:
        """Serve until a signal arrives, and return 0."""
        # Every network call runs on one thread, so that results do not depend on the number of threads.
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
        from rdlm.serve.server import Server
        from rdlm.serve.service import Service
        from rdlm.storage.memory import freeze_objects, use_one_arena

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
        return [self.load(run) for run in self.models or (None,)]

    def _announce(self, url: str, names: list[str]) -> None:
        from rdlm.display.text_table import print_json

        if self.json:
            print_json({"url": url, "models": names})
            sys.stdout.flush()
        say(f"serving {', '.join(names)} at {url} (Ctrl-C to stop)")
