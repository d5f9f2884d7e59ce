"""Generation by a vLLM server, over HTTP: token ids in, token ids and log-probabilities out.

Nothing here imports vLLM. The server has to be started as `mappa_trainer.engines.vllm_server`
starts it; what of that matters is checked against every answer.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel

from mappa_trainer.adapters import save_adapter
from mappa_trainer.engines import Completion
from mappa_trainer.errors import EngineError
from mappa_trainer.models import save_untied
from mappa_trainer.types import Sampling

REQUEST_TIMEOUT_S = 3600.0
"""For one answer, the time that it waits for its turn included."""
RETRY_AFTER_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Waits between the attempts at one request; a server that crashes needs some to be gone."""
_CONNECTIONS = 256
_NO_LOGPROB = -9999.0
"""What vLLM writes for a log-probability that is not finite, or is lower."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a server says it serves."""

    name: str
    """Of the model without any adapter."""
    context: int
    """The most tokens of prompt and completion together."""


class VLLMClient:
    """Talks to one server. Its methods may be called from any thread and any event loop.

    Args:
        url: Of the server, e.g. `"http://127.0.0.1:8000"`; a `/v1` at its end is left out.
        diagnosis: Says why the server is dead, if it is; empty while it may be alive.
        retry_after: Seconds between attempts at a request that did not get through.
        timeout_s: The most that an answer may take.
    """

    def __init__(
        self,
        url: str,
        *,
        diagnosis: Callable[[], str] = str,
        retry_after: Sequence[float] = RETRY_AFTER_S,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._diagnosis = diagnosis
        self._retry_after = retry_after
        self._served: ServedModel | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mappa-vllm")
        self._thread.daemon = True
        self._thread.start()
        self._http = httpx2.AsyncClient(
            base_url=self.url,
            verify=self.url.startswith(
                "https:"
            ),  # reading certificates takes a fraction of a second
            timeout=httpx2.Timeout(timeout_s, connect=10.0, pool=None),
            limits=httpx2.Limits(max_connections=_CONNECTIONS),
            trust_env=False,  # a proxy knows nothing of this machine
        )

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for a coroutine that uses this client, from outside an event loop."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def join(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Wait for a coroutine that uses this client, from within an event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request, again if it does not get through, and return the answer's JSON.

        Text that is no JSON is returned as it is. Runs in the client's own loop: see `run`.

        Raises:
            EngineError: the server refuses, is dead, or cannot be reached.
        """
        for wait in (*self._retry_after, None):
            try:
                response = await self._http.request(method, path, json=body)
            except httpx2.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                final = isinstance(error, httpx2.ReadTimeout)
            else:
                if response.is_success:
                    return _content(response)
                problem = f"HTTP {response.status_code}: {_said(response)}"
                final = response.status_code < 500
            dead = self._diagnosis()
            if dead or final or wait is None:
                raise EngineError(f"{method} {self.url}{path} failed: {dead or problem}")
            await asyncio.sleep(wait)
        raise AssertionError  # the last attempt has no wait

    async def served(self) -> ServedModel:
        """Return what the server serves.

        Raises:
            EngineError: see `request`.
        """
        if self._served is None:
            self._served = _served_model(await self.request("GET", "/v1/models"), self.url)
        return self._served

    def reload_weights(self, folder: str) -> None:
        """Make the server read all weights again, from a folder that it can see.

        Raises:
            EngineError: see `request`.
        """
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        self.run(self.request("POST", "/collective_rpc", body))

    def load_adapter(self, name: str, folder: str) -> None:
        """Make the server read an adapter, in the place of the one that had its name.

        Raises:
            EngineError: see `request`.
        """
        body = {"lora_name": name, "lora_path": folder, "load_inplace": True}
        self.run(self.request("POST", "/v1/load_lora_adapter", body))

    def close(self) -> None:
        """Close all connections; nothing can be asked any more."""
        if self._thread.is_alive():
            self.run(self._http.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class VLLMEngine:
    """An `Engine` over one set of weights of a server: the served model, or an adapter on it.

    Args:
        client: Of the server.
        eos_ids: Ids that end a completion; the one sampled is kept as its last token.
        adapter: The name of the LoRA adapter to generate with; None for the model without any.
        folder: Where `sync` leaves weights for the server, which has to see it.
        dtype: Of the server.
    """

    def __init__(
        self,
        client: VLLMClient,
        *,
        eos_ids: Collection[int],
        adapter: str | None = None,
        folder: Path | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.client = client
        self.adapter = adapter
        self._folder = folder
        self._dtype = dtype
        self.version = 0
        """Of the weights; see `Completion.weight_version`."""
        self._eos_ids = frozenset(eos_ids)
        self._salt = secrets.token_hex(16)

    def sync(self, source: PreTrainedModel, version: int) -> None:
        """Give the server the weights of `source`: all of them, or those of the adapter.

        Raises:
            EngineError: the server does not take them, or the disk does not.
        """
        assert self._folder is not None
        try:
            if self.adapter:
                save_adapter(source, self.adapter, self._folder)
            else:
                save_untied(source, self._folder, self._dtype)
        except (OSError, SafetensorError) as error:
            raise EngineError(
                f"{self._folder}: the weights cannot be written for the server: {error}; make room"
            ) from error
        if self.adapter:
            self.client.load_adapter(self.adapter, str(self._folder))
        else:
            self.client.reload_weights(str(self._folder))
        self.note_weights(version)

    def note_weights(self, version: int) -> None:
        """Note that the server has new weights, so that no prefix cached before is used again."""
        self.version = version
        self._salt = secrets.token_hex(16)

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """Sample one completion per prompt, all at the same time; see `Engine.generate`.

        Raises:
            EngineError: see `complete`.
        """
        if len(prompts) != len(seeds):
            raise ValueError(
                f"generate got {len(prompts)} prompts but {len(seeds)} seeds; give one per prompt"
            )
        return self.client.run(self._complete_all(prompts, seeds, sampling))

    async def complete(self, prompt: Sequence[int], seed: int, sampling: Sampling) -> Completion:
        """Sample one completion.

        Raises:
            EngineError: the server fails, or its answer is not what was asked for.
        """
        return await self.client.join(self._complete(prompt, seed, sampling))

    async def _complete_all(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        tasks = []
        try:
            async with asyncio.TaskGroup() as group:
                for prompt, seed in zip(prompts, seeds, strict=True):
                    tasks.append(group.create_task(self._complete(prompt, seed, sampling)))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others failed alike, or were cancelled
        return [task.result() for task in tasks]

    async def _complete(self, prompt: Sequence[int], seed: int, sampling: Sampling) -> Completion:
        served, version = await self.client.served(), self.version
        if len(prompt) + sampling.max_new_tokens > served.context:
            return Completion((), (), "prompt_too_long", version)
        body = {
            "model": self.adapter or served.name,
            "prompt": list(prompt),
            "seed": seed % 2**63,
            "stop_token_ids": sorted(self._eos_ids),
            "cache_salt": self._salt,
            **_sampling_fields(sampling),
        }
        reply = await self.client.request("POST", "/v1/completions", body)
        try:
            return _completion(reply, prompt, sampling, self._eos_ids, version)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{self.client.url} answered without what was asked for ({error!r}): "
                f"{str(reply)[:300]}; it must be vLLM 0.32 or a later release like it"
            ) from None


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Name every field that shapes the distribution, so that no default of a server does."""
    return {
        "n": 1,
        "max_tokens": sampling.max_new_tokens,
        "min_tokens": 0,
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,  # the ids that end a completion are given as stop_token_ids
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
    }


def _completion(
    reply: Mapping[str, Any],
    prompt: Sequence[int],
    sampling: Sampling,
    eos_ids: Collection[int],
    version: int,
) -> Completion:
    """Read an answer.

    Raises:
        EngineError: it is no completion of the prompt.
    """
    choice = reply["choices"][0]
    ids = tuple(choice["token_ids"])
    logprobs = tuple(choice["logprobs"]["token_logprobs"])
    reason = choice["finish_reason"]
    if list(choice["prompt_token_ids"]) != list(prompt):
        raise EngineError(
            f"the server changed a prompt of {len(prompt)} tokens, so what it sampled cannot be "
            "trained on; start it without anything that edits prompts"
        )
    if len(ids) != len(logprobs) or not 0 < len(ids) <= sampling.max_new_tokens:
        raise EngineError(
            f"the server returned {len(ids)} tokens with {len(logprobs)} log-probabilities, and at "
            f"most {sampling.max_new_tokens} were asked for; is it vLLM 0.32?"
        )
    if bad := [value for value in logprobs if not _is_logprob(value)]:
        raise EngineError(
            f"the server returned the log-probability {bad[0]!r}; its weights are not finite, or "
            "overflow in its dtype: try model.sampler_precision = 'float32'"
        )
    if reason != ("stop" if ids[-1] in eos_ids else "length"):
        raise EngineError(
            f"the server ended a completion of {len(ids)} tokens with {reason!r} and the id "
            f"{ids[-1]}; it was to end at one of {sorted(eos_ids)} or at the token limit"
        )
    return Completion(ids, logprobs, reason, version)


def _is_logprob(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > _NO_LOGPROB


def _served_model(reply: Any, url: str) -> ServedModel:
    try:
        card = next(card for card in reply["data"] if card.get("parent") is None)
        return ServedModel(str(card["id"]), int(card["max_model_len"]))
    except (StopIteration, KeyError, TypeError, ValueError):
        raise EngineError(
            f"{url}/v1/models names no model with a context length: {str(reply)[:300]}; give the "
            "address of a vLLM server"
        ) from None


def _content(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text


def _said(response: httpx2.Response) -> str:
    """Return what an error answer says, in the places where vLLM and FastAPI put it."""
    content = _content(response)
    if isinstance(content, dict):
        error = content.get("error", content)
        content = error.get("message", error) if isinstance(error, dict) else error
    return str(content)[:500]
